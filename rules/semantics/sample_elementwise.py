"""Samples the operands of elementwise ops, reductions and ops along one axis."""

from __future__ import annotations

from typing import Any

from ...egraph.ops.ops import OPS, Type
from ...egraph.patterns.pattern import PatternCall, Var
from .ranks import least_rank
from .sample_parts import draw_attributes, has_bool, propose_axes, rank_of, wanted_sizes
from .sampler import INTS, NotYet, Reject, Sampler, Want, exactly, upto


def _operand_dtype(s: Sampler, call: PatternCall, i: int, want: Want) -> str:
    law = OPS[call.op].law
    if law == "where":
        return "bool" if i == 0 else want.dtype
    if law == "cast":
        return s.dtype_for(call.args[0])
    if law != "compare":
        return want.dtype
    if OPS[call.op].floats_only:
        return s.float
    if call.op == "not" and s.known(call.args[0]) is None and isinstance(call.args[0], Var):
        return s.dtype or ("bool" if s.rng.random() < 0.7 else s.rng.choice(INTS))
    return s.dtype_for(*call.args) if not all(map(has_bool, call.args)) else "bool"


def pointwise(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws types for the operands of an elementwise op: a common shape first; each operand has it, or size 1 at some
    axes."""
    target: list[Any] = []
    have = [t for t in map(s.known, call.args) if t is not None]
    for i, sizes in enumerate(wanted_sizes(s, call, want)):
        wide = {t.shape[i] for t in have if i < t.rank and t.shape[i] != 1}
        target.append(wide.pop() if wide else s.pick(sizes))
    dtype = ""
    for i, a in enumerate(call.args):
        if s.known(a) is None:
            dtype = dtype if dtype and OPS[call.op].law == "compare" else _operand_dtype(s, call, i, want)
            shape = exactly(target) if len(call.args) == 1 and want.shape is None else upto(target)
            if len(call.args) == 1 and want.shape is not None:
                shape = want.shape
            s.term(a, Want(shape, dtype))
    if OPS[call.op].law == "cast":
        s.attr(call, "dtype", lambda: want.dtype)


def reduce(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws a type for the operand of a reduction. Reduced axes have size 1 in the result and any size in the
    operand."""
    x = call.args[0]
    if s.known(x) is None and (want.shape is None or all(d is None for d in want.shape)):
        s.term(x, Want(want.shape, want.dtype))
    shape = want.shape
    rank = len(shape) if shape is not None else (s.known(x) or Type((), "")).rank
    allowed = [i for i in range(rank) if shape is None or shape[i] is None or 1 in (shape[i] or ())]
    try:
        axes = s.attr(call, "axes", lambda: propose_axes(s, allowed))
    except NotYet:
        axes = None
    if s.known(x) is None:
        inner = tuple(None if axes is None or i in axes else d for i, d in enumerate(shape or ()))
        s.term(x, Want(inner, want.dtype))
    s.attr(call, "axes", lambda: ())


def along(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws a type for the operand of an op along one axis: the result has its shape (or size 1 at the axis).

    The dtype may differ.
    """
    entry, x = OPS[call.op], call.args[0]
    shape = want.shape
    if entry.law == "arg_reduce" and shape is not None:
        shape = tuple(None if d is None or 1 in d else d for d in shape)
    if shape is None and s.known(x) is None:
        shape = (None,) * max(1, least_rank(x), s.rng.randint(1, 4))
    dtype = s.dtype_for(x) if entry.law in ("arg_reduce", "along_index") else want.dtype
    rank = s.term(x, Want(shape, dtype)).rank
    draw_attributes(s, call, rank)


def same(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws a type for the operand of an op that keeps the type. The result has the operand's shape; attributes name
    axes."""
    rank = rank_of(s, call, want)
    shape = want.shape if want.shape is not None else (None,) * max(rank, least_rank(call))
    rank = s.term(call.args[0], Want(shape, want.dtype)).rank
    draw_attributes(s, call, rank)


def norm(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws types for the operands of a norm: x, and rank-1 operands of the size of its last axis or of its channel
    axis.

    Raises Reject if no draw fits `want`.
    """
    axis = 1 if OPS[call.op].law == "channel_norm" else -1
    rank = rank_of(s, call, want)
    shape = want.shape if want.shape is not None else (None,) * max(rank, 2)
    x = s.term(call.args[0], Want(shape, want.dtype))
    if x.rank < 2 and axis == 1:
        raise Reject
    for a in call.args[1:]:
        s.term(a, Want(exactly((x.shape[axis],)), want.dtype))
    draw_attributes(s, call, x.rank)


def rope(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws types for the operands of `rope`: x with a last axis of even size, and angles that broadcast to x."""
    rank = max(1, rank_of(s, call, want))
    shape = want.shape if want.shape is not None else (*(None,) * (rank - 1), frozenset((2, 4, 6)))
    x = s.term(call.args[0], Want(shape, want.dtype))
    for a in call.args[1:]:
        s.term(a, Want(upto(x.shape), want.dtype))
