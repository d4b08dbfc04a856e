"""Holds type laws (rules for a result's shape and dtype, given the operands') of composite ops: normalization, linear
layers, attention, rope, losses, recurrences, packed integers."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ShapeError
from ..types import dtypes
from .law_text import (
    BYTES,
    D0,
    GATES,
    S0,
    S1,
    S2,
    Cases,
    LawCase,
    axis_of,
    broadcast,
    check_index_dtype,
    has_rank,
    replace,
    same_dtype,
    vec_get,
    vec_of,
    vec_set,
)
from .ops import Attrs, Op, Type


def norm(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: that of x; gain and shift have the rank-1 shape [x.shape[-1]].

    Raises ShapeError otherwise.
    """
    for t in types[1:]:
        if t.shape != types[0].shape[-1:]:
            raise ShapeError(f"gain or shift is {t.shape}, not {types[0].shape[-1:]}")
    return Type(types[0].shape, same_dtype(types))


def channel_norm(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: that of x[N, C, ...]; the other operands have the rank-1 shape [C].

    Raises ShapeError otherwise.
    """
    for t in types[1:]:
        if types[0].rank < 2 or t.shape != types[0].shape[1:2]:
            raise ShapeError(f"a channel value is {t.shape}, not {types[0].shape[1:2]}")
    return Type(types[0].shape, same_dtype(types))


def linear(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of x[..., K] @ w[K, N] + b[N].

    Raises ShapeError if the operands do not fit.
    """
    x, w, b = types
    if w.rank != 2 or x.rank < 2 or x.shape[-1] != w.shape[0] or b.shape != w.shape[1:]:
        raise ShapeError("linear needs x[..., K] of rank >= 2, w[K, N] and b[N]")
    return Type((*x.shape[:-1], w.shape[1]), same_dtype(types))


def linear_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `linear` (a linear layer x[..., K] @ w[K, N] + b[N]) as egglog text: one case, the shape
    [..., N] and x's dtype. `ranks` is not used."""
    yield LawCase(vec_set(S0, f"(- (vec-length {S0}) 1)", vec_get(S1, 1)), D0)


def attention(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of attention: q[..., T, D], k[..., S, D], v[..., S, E] (mask[..., T, S]) of equal rank.

    Raises ShapeError otherwise.
    """
    q, k, v = types[:3]
    if not op.floats_only and (types[3].dtype != "bool" or not dtypes.is_float(q.dtype)):
        raise ShapeError(f"{op.name} needs floating-point operands and a bool mask, not {q} and {types[3]}")
    if not q.rank == k.rank == v.rank >= 3 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ShapeError("attention needs q[..., T, D], k[..., S, D], v[..., S, E] of equal rank >= 3")
    batch = broadcast(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    if len(types) == 4:
        scores = (*batch, q.shape[-2], k.shape[-2])
        if broadcast(types[3].shape, scores) != scores:
            raise ShapeError(f"the mask {types[3].shape} does not broadcast to {scores}")
    return Type((*batch, q.shape[-2], v.shape[-1]), same_dtype(types if op.floats_only else types[:3]))


def attention_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `attention` as egglog text: one case for each of `ranks` (operand ranks that may occur) from
    3."""
    for r in ranks:
        if r >= 3:
            batch = [f"(max {vec_get(S0, i)} (max {vec_get(S1, i)} {vec_get(S2, i)}))" for i in range(r - 2)]
            yield LawCase(vec_of([*batch, vec_get(S0, r - 2), vec_get(S2, r - 1)]), D0, (has_rank(S0, r),))


def rope(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of x[..., D] with cos and sin that broadcast to it.

    Raises ShapeError if the operands do not fit.
    """
    if broadcast(*(t.shape for t in types)) != types[0].shape:
        raise ShapeError("cos and sin must broadcast to x")
    if not types[0].rank or (isinstance(types[0].shape[-1], int) and types[0].shape[-1] % 2):
        raise ShapeError("rope needs an even last axis")
    return Type(types[0].shape, same_dtype(types))


def cross_entropy(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of logits[N, C] with integer target[N]: [N].

    Raises ShapeError if the operands do not fit.
    """
    logits, target = types
    check_index_dtype(target)
    if logits.rank != 2 or target.shape != logits.shape[:1] or not dtypes.is_float(logits.dtype):
        raise ShapeError("cross_entropy needs floating-point logits[N, C] and target[N]")
    return Type(target.shape, logits.dtype)


def cross_entropy_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `cross_entropy` as egglog text: one case, the target's shape and the dtype of the logits.
    `ranks` is not used."""
    yield LawCase(S1, D0)


def recurrent(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of `recurrent` over x[T, B, I]: a vector of T * B * directions * width outputs, then the last states.

    Initial states and weights are vectors. Raises ShapeError if the operands do not fit.
    """
    x, state, w = types
    hidden, width, count = attrs["hidden"], attrs["width"], attrs["layers"] * attrs["directions"]
    if (x.rank, state.rank, w.rank) != (3, 1, 1) or min(hidden, width, count) < 1 or attrs["directions"] > 2:
        raise ShapeError("recurrent needs x[T, B, I], rank-1 states, rank-1 weights, and positive sizes")
    if attrs["cell"] not in GATES or len(attrs["activations"].split()) != GATES[attrs["cell"]][1]:
        raise ShapeError(f"no recurrent cell {attrs['cell']!r} with the activations {attrs['activations']!r}")
    steps, batch, size = x.shape
    if isinstance(steps, int) and steps < 1:
        raise ShapeError("a recurrent layer needs at least one step")
    lstm, rows = attrs["cell"] == "lstm", hidden * GATES[attrs["cell"]][0]
    states = count * batch * (width + (hidden if lstm else 0))
    every = rows * (width + 2) + (width * hidden if width != hidden else 0)
    every += 3 * hidden if "peephole" in attrs["variant"] else 0
    inputs = attrs["directions"] * rows * (size + (attrs["layers"] - 1) * attrs["directions"] * width)
    if state.shape[0] != states or w.shape[0] != inputs + count * every:
        sizes = (states, state.shape[0], inputs + count * every, w.shape[0])
        raise ShapeError(
            "the states have {1} elements, not {0}, or the weights {3}, not {2}".format(*sizes), sizes=sizes
        )
    return Type((steps * batch * attrs["directions"] * width + states,), same_dtype(types))


def recurrent_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `recurrent` as egglog text: one case, a vector that holds all outputs and the last states, in
    x's dtype. `ranks` is not used."""
    rows = f"(* {vec_get(S0, 0)} (* {vec_get(S0, 1)} (* a_directions a_width)))"
    yield LawCase(vec_of([f"(+ {rows} {vec_get(S1, 0)})"]), D0)


def unpack(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of bytes that hold 8 // bits numbers each along one axis: the axis grows, dtype from the attribute.

    Raises ShapeError otherwise.
    """
    (x,), bits, block = types, attrs["bits"], attrs["block"]
    axis, size = axis_of(attrs["axis"], x.rank), x.shape[attrs["axis"]]
    forms = ("unsigned", "signed", "e2m1") if bits == 4 else ("unsigned", "signed")
    if bits not in (2, 4) or attrs["form"] not in forms:
        raise ShapeError(
            f"no packed numbers of {bits} bits and form {attrs['form']!r}", hint=f"forms: {', '.join(forms)}"
        )
    if x.dtype != "uint8" or not dtypes.is_float(attrs["dtype"]):
        raise ShapeError(f"packed numbers are uint8 and become floats, not {x.dtype} and {attrs['dtype']}")
    if block < 1 or (isinstance(size, int) and size % block):
        raise ShapeError(f"{size} bytes are no multiple of the block {block}", sizes=(size,))
    return Type(replace(x.shape, axis, size * (8 // bits)), attrs["dtype"])


def unpack_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `unpack` as egglog text: one case, the operand's shape with 8 / bits times the size along the
    axis, and the attribute's dtype. `ranks` is not used."""
    yield LawCase(vec_set(S0, "a_axis", f"(* {vec_get(S0, 'a_axis')} (/ 8 a_bits))"), "a_dtype")


def dequantize(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of q with scales and zero points for blocks: shape of q, dtype of the scales.

    Raises ShapeError if the operands do not fit.
    """
    q, scale, zero = types
    if not q.rank == scale.rank == zero.rank or not dtypes.is_float(scale.dtype):
        raise ShapeError("dequantize needs operands of equal rank and floating-point scales")
    for size, block in zip(q.shape, scale.shape):
        if block not in (1, size) and (
            not isinstance(size, int) or not isinstance(block, int) or not block or size % block
        ):
            raise ShapeError(f"{block} scales do not divide {size} numbers", sizes=(size, block))
    if zero.shape not in (scale.shape, (1,) * q.rank):
        raise ShapeError(f"zero points are {zero.shape}, not {scale.shape} or all 1")
    return Type(q.shape, scale.dtype)


def dequantize_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `dequantize` as egglog text: one case, the shape of the first operand and the dtype of the
    scales. `ranks` is not used."""
    yield LawCase(S0, "(dt x1)")


def quantize(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of wide floats x with scales and zero points, one of each for all elements or for each index of an
    axis: shape of x, dtype of the zero points.

    Raises ShapeError if the operands do not fit.
    """
    x, scale, zero = types
    if not x.rank == scale.rank == zero.rank or any(b not in (1, d) for d, b in zip(x.shape, scale.shape)):
        raise ShapeError("quantize needs operands of equal rank and scales that broadcast")
    if x.dtype != scale.dtype or x.dtype not in ("float32", "float64") or zero.dtype not in BYTES:
        raise ShapeError("quantize needs float32 or float64, scales of that dtype, and zero points of 8 bits")
    if zero.shape not in (scale.shape, (1,) * x.rank):
        raise ShapeError(f"zero points are {zero.shape}, not {scale.shape} or all 1")
    return Type(x.shape, zero.dtype)


def quantize_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `quantize` as egglog text: one case, the shape of the first operand and the dtype of the
    zero points. `ranks` is not used."""
    yield LawCase(S0, "(dt x2)")


__all__ = [
    "attention",
    "attention_text",
    "channel_norm",
    "cross_entropy",
    "cross_entropy_text",
    "dequantize",
    "dequantize_text",
    "linear",
    "linear_text",
    "norm",
    "quantize",
    "quantize_text",
    "recurrent",
    "recurrent_text",
    "rope",
    "unpack",
    "unpack_text",
]
