"""Recognizes products of a row of floats with packed integer weights that can be computed in integer arithmetic
(integer dot products).

In a sum over x · scale · (n - zero), n are the packed integers of a weight. Each block of the row x is quantized once,
to integers of 16 or 24 bits with one scale per block, which are stored as planes of 8 bits (`dots_split` in
`backends/ir/c_dots.py`) for the processor's byte dot-product instructions (VNNI). With AVX2 alone, numbers below 64 are
multiplied with these planes by `vpmaddubsw`, others with words of 16 bits by `vpmaddwd`. Products and their integer
sums are exact; scales and zero points are applied to sums of 64 products or more; no weight is converted to a float.
The rounding error of x is that of 16 or 24 bits, relative to the largest number of its block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.expr import Builder, Expr, factors
from ...ir.index import Axis, Index, index
from .blocked import LANES, BlockedSum, moved

QUARTERS = 4  # chunks of `LANES` bytes in a vector


@dataclass(frozen=True)
class ByteNumber:
    """A float value that is affine in an integer, some of the bits of a byte: factor · integer - offset, where the
    integer is ((byte ^ flip) & mask) shifted to its lowest bit."""

    load: Expr
    mask: int
    flip: int
    factor: Expr
    offset: Expr


@dataclass(frozen=True)
class DotVector:
    """64 consecutive bytes of packed weights in an operand, from index `at` on.

    The numbers are the bits `mask`, from bit `low` on, of the bytes ^ `flip`. `chunks`: for each quarter of the bytes,
    the chunk of the row with which it is multiplied.
    """

    operand: str
    at: Index
    flip: int
    low: int
    mask: int
    chunks: tuple[int, ...]


@dataclass(frozen=True)
class DotGroup:
    """Weight vectors (indices into `IntegerDots.vectors`) that share their scales and offsets.

    `scales`, `offsets`: float values, one for each quarter (16 of the 64 bytes) of a vector.
    """

    vectors: tuple[int, ...]
    scales: tuple[Expr, ...]
    offsets: tuple[Expr, ...]

    def scales_at(self) -> tuple[str, str, Index] | None:
        """(dtype, operand, index of the first) of the scales if they are neighbours in an operand, else None."""
        if any(e.op != "load" or e.args for e in self.scales):
            return None
        operand, first, _, dtype = self.scales[0].value
        known = all(e.value == (operand, first + q, (), dtype) for q, e in enumerate(self.scales))
        return (dtype, operand, first) if known else None


@dataclass(frozen=True)
class IntegerDots:
    """A sum over blocks as integer dot products of `row`, the float factor over the reduction axis, with the packed
    weights of `vectors`. `groups`: the vectors with equal scales and offsets."""

    row: Expr
    vectors: tuple[DotVector, ...]
    groups: tuple[DotGroup, ...]

    @property
    def even(self) -> bool:
        """Whether all quarters of a vector have the same scale and offset, in each group."""
        return all(len(set(values)) == 1 for g in self.groups for values in (g.scales, g.offsets))


def integer_dots(b: Builder, e: Expr, parts: BlockedSum, rows: Axis | None = None) -> IntegerDots | None:
    """The sum `e`, whose blocks are `parts`, as integer dot products made in builder `b`; None if it is no product of
    floats and packed integers. `rows`: the axis over several rows of floats, on which weights do not depend."""
    over, under = factors(e.args[0])
    start = index(parts.block) * (LANES * len(parts.bodies)) + index(parts.lane)

    def first(f: Expr) -> Expr:
        """A factor at the elements of the first chunk."""
        return moved(b, f, e.axis, start)

    numbers = [f for f in over if _number(b, first(f), parts.lane) is not None]
    if len(numbers) != 1:
        return None
    row = b.product([f for f in over if f is not numbers[0] and parts.lane in first(f).axes],
                    [f for f in under if parts.lane in first(f).axes])  # fmt: skip
    found = [_chunk(b, body, parts) for body in parts.bodies]
    own = {e.axis} if rows is None else {e.axis, rows}
    if row.axes != own or row.kind != "float" or any(c is None for c in found):
        return None
    if any(rows in x.axes for c in found if c is not None for x in c[1:]):
        return None
    return _vectors(row, [c for c in found if c is not None], parts.lane)


def _chunk(b: Builder, body: Expr, parts: BlockedSum) -> tuple[ByteNumber, Expr, Expr] | None:
    """(number, scale, offset in units of the integer) of the summand of one chunk; None if it is not such a product."""
    over, under = factors(body)
    found = [n for f in over if (n := _number(b, f, parts.lane)) is not None]
    if len(found) != 1:
        return None
    number = found[0]
    above, below = ([f for f in side if parts.lane not in f.axes] for side in (over, under))
    scale = b.product([*above, *parts.shared, number.factor], below)
    return number, scale, b.pointwise("div", (number.offset, number.factor))


def _number(b: Builder, e: Expr, lane: Axis) -> ByteNumber | None:
    """A value along `lane` as a `ByteNumber`; None if it is not affine in the bits of a byte."""
    if e.kind != "float" or lane not in e.axes:
        return None
    if e.op == "cast":
        return _bits(b, e.args[0], lane)
    if e.op not in ("mul", "add", "sub") or lane in e.args[1].axes:
        return None
    found, other = _number(b, e.args[0], lane), e.args[1]
    if found is None or (e.op == "mul" and other.op != "const"):
        return None
    factor, offset = found.factor, found.offset
    if e.op == "mul":
        factor, offset = b.mul(factor, other), b.mul(offset, other)
    else:
        offset = b.pointwise("add" if e.op == "sub" else "sub", (offset, other))
    return ByteNumber(found.load, found.mask, found.flip, factor, offset)


def _bits(b: Builder, e: Expr, lane: Axis) -> ByteNumber | None:
    """An integer expression of one byte as a `ByteNumber`; None if it does not select bits of a byte."""
    mask, flip = 255, 0
    while e.op in ("and", "xor") and e.args[1].op == "const":
        constant = int(e.args[1].value) & 255
        if e.op == "and" and flip:  # bits flipped after the selection
            return None
        mask, flip = (mask & constant, flip) if e.op == "and" else (mask, flip ^ constant)
        e = e.args[0]
    if e.op != "load" or e.args or e.value[2] or e.value[3] not in ("uint8", "int8") or not mask:
        return None
    signed = e.value[3] == "int8"
    if e.value[1].coefficient(lane) != 1 or (signed and mask != 255):
        return None
    low = (mask & -mask).bit_length() - 1
    offset = b.const(128.0 if signed else 0.0)  # the sign bit flipped adds 128
    return ByteNumber(e, mask, flip ^ 128 if signed else flip, b.const(float(1 << low)), offset)


def _vectors(row: Expr, chunks: Sequence[tuple[ByteNumber, Expr, Expr]], lane: Axis) -> IntegerDots | None:
    """The dot products of chunks, four of which form a vector if they are consecutive in memory and use the same bits
    of their bytes. None if some chunks do not belong to such a vector.
    """
    streams: dict[tuple[str, int, int], list[tuple[int, int]]] = {}  # -> (bytes from the first chunk, chunk)
    starts: dict[str, Index] = {}
    for n, (number, _, _) in enumerate(chunks):
        operand, at, _, _ = number.load.value
        gap = at - starts.setdefault(operand, at)
        if gap.terms:
            return None
        streams.setdefault((operand, number.mask, number.flip), []).append((gap.const, n))
    vectors: list[DotVector] = []
    for (operand, mask, flip), places in streams.items():
        places.sort()
        for i in range(0, len(places), QUARTERS):
            own = places[i : i + QUARTERS]
            if [at - own[0][0] for at, _ in own] != [LANES * q for q in range(QUARTERS)]:
                return None
            low = (mask & -mask).bit_length() - 1
            start = starts[operand] + own[0][0] - index(lane)
            vectors.append(DotVector(operand, start, flip, low, mask >> low, tuple(n for _, n in own)))
    groups: dict[tuple[tuple[Expr, ...], tuple[Expr, ...]], list[int]] = {}
    for v, vector in enumerate(vectors):
        key = tuple(chunks[n][1] for n in vector.chunks), tuple(chunks[n][2] for n in vector.chunks)
        groups.setdefault(key, []).append(v)
    return IntegerDots(row, tuple(vectors), tuple(DotGroup(tuple(own), *key) for key, own in groups.items()))


__all__ = ["DotGroup", "DotVector", "IntegerDots", "integer_dots"]
