"""Blocked sums: reductions whose operands are stored in blocks along the reduction axis (packed numbers, one scale per
group).

A sum over K elements becomes a loop over blocks with a vector of `LANES` accumulators. Inside a block, the chunks of
`LANES` consecutive elements are unrolled, so that masks and shifts of packed numbers are constants. Factors that are
constant in a block (its scale) are applied once to the block's sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...ir.expr import Builder, Expr, factors, walk
from ...ir.index import Axis, Index, index
from ...ir.simplify import simplifies

LANES = 16  # accumulators: one AVX-512 register of float32, two of AVX2
#: Sizes of a block, the preferred one first: scales of 128 elements are common, more chunks need more registers.
BLOCKS = (128, 256, 64, 32, 16)


@dataclass(frozen=True)
class BlockedSum:
    """A sum over blocks of consecutive elements, each divided into chunks of `LANES` elements.

    `block`: axis over blocks. `lane`: axis over the elements of a chunk. `shared`: factors that all elements of a block
    have. `bodies`: for each chunk of a block, the summand without these factors.
    """

    block: Axis
    lane: Axis
    shared: tuple[Expr, ...]
    bodies: tuple[Expr, ...]


def blocked(b: Builder, e: Expr) -> BlockedSum | None:
    """The reduction `e` as a sum over blocks of consecutive elements, made in builder `b`.

    None for other reductions, if no block size makes all operands contiguous within chunks, or if blocks are not needed
    (no operand of bytes and no index with a division).
    """
    axis, body = e.axis, e.args[0]
    if e.value[0] != "sum" or e.kind != "float":
        return None
    packed = any(x.op == "load" and axis in x.axes and x.value[3] in ("uint8", "int8") for x in walk([body]))
    if not packed and not any(axis in i.axes for i in _divided([body])):
        return None
    for strict in (True, False):
        for size in BLOCKS:
            found = _in_blocks(b, axis, body, size) if axis.size % size == 0 else None
            if found is not None and all(_fits(found, i, strict) for i in _divided((*found.shared, *found.bodies))):
                return found
    return None


def _in_blocks(b: Builder, axis: Axis, body: Expr, size: int) -> BlockedSum:
    """The sum in blocks of `size` elements, without checking that operands are contiguous."""
    block, lane = Axis(f"{axis.name}b", axis.size // size), Axis(f"{axis.name}l", LANES)
    bodies = [moved(b, body, axis, index(block) * size + chunk * LANES + index(lane)) for chunk in range(size // LANES)]
    over, under = zip(*map(factors, bodies))
    shared = [f for f in over[0] if lane not in f.axes and all(f in o for o in over)]
    rest = [b.product([f for f in o if f not in shared], u) for o, u in zip(over, under)]
    return BlockedSum(block, lane, tuple(shared), tuple(rest))


def _fits(found: BlockedSum, i: Index, strict: bool) -> bool:
    """Whether a dividend in an index is independent of the lane and, with `strict`, of the block."""
    return found.lane not in i.axes and (not strict or found.block not in i.axes)


def _divided(roots: tuple[Expr, ...] | list[Expr]) -> Iterator[Index]:
    """Dividends of the divisions in all indices of the expressions."""
    for e in walk(roots):
        at = e.value if e.op == "index" else e.value[1] if e.op == "load" else None
        if at is not None:
            yield from (d.index for d in at.divisions())


def moved(b: Builder, e: Expr, axis: Axis, to: Index) -> Expr:
    """The expression `e` rebuilt in builder `b` with `axis` replaced by the index `to`, simplified."""
    change = {axis: to}

    def one(x: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if x.op == "index":
            return b.index(x.value.replaced(change))
        if x.op == "load":
            operand, at, steps, dtype = x.value
            return b.make("load", args, (operand, at.replaced(change), steps, dtype), x.kind)
        return b.pointwise(x.op, args) if args != x.args and simplifies(x.op) else None

    return b.rebuilt([e], one)[0]


__all__ = ["BLOCKS", "LANES", "BlockedSum", "blocked"]
