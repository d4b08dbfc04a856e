"""Samples the operands of views, joins, leaves and gathers."""

from __future__ import annotations

import contextlib
from math import prod
from typing import Any

from ...egraph.ops.ops import OPS, Type
from ...egraph.patterns.pattern import PatternCall, Term, Var
from .ranks import is_int, least_rank
from .sample_parts import draw_attributes, not_yet, one_size, wanted_sizes, with_axis
from .sampler import NotYet, Reject, Sampler, Sizes, Want, exactly, upto


def reshape(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws types for the operands of `reshape`: a shape with the same number of elements."""
    x, known = call.args[0], s.known(call.args[0])
    full = want.shape is not None and all(d is not None and len(d) == 1 for d in want.shape)
    asked = tuple(next(iter(d)) for d in want.shape if d) if full and want.shape is not None else None
    if known is None:
        try:
            shape = s.attr(call, "shape", not_yet) if asked is None else s.attr(call, "shape", lambda: asked)
        except NotYet:
            shape = asked
        fixed = exactly(s.regroup(prod(shape), max(least_rank(x), s.rng.randint(1, 4)))) if shape is not None else None
        known = s.term(x, Want(fixed, want.dtype))
    volume = prod(known.shape)
    rank = len(want.shape) if want.shape is not None else None
    s.attr(call, "shape", lambda: asked or _grouping(s, known.shape, volume, rank))


def _grouping(s: Sampler, shape: tuple[Any, ...], volume: Any, rank: int | None) -> tuple[int, ...]:
    """The same shape, a random shape that keeps the last axis (as reshapes of activations do), or any random shape of
    this volume."""
    style = s.rng.random()
    if style < 0.15 and rank in (None, len(shape)):
        return shape
    if style < 0.5 and shape and shape[-1] and rank != 0:
        head = s.regroup(volume // shape[-1], (rank or s.rng.randint(1, 3)) - (1 if rank else 0))
        return (*head, shape[-1])
    return s.regroup(volume, rank)


def permute(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws types for the operands of `permute`: the operand's axes in another order."""
    x = call.args[0]
    known, shape = s.known(x), want.shape
    try:
        perm = s.attr(call, "perm", not_yet)
    except NotYet:
        perm = None
        if known is None and shape is None:
            known = s.term(x, want)
        rank = known.rank if known is not None else len(shape or ())
        with contextlib.suppress(NotYet):
            perm = s.attr(call, "perm", lambda: tuple(s.rng.sample(range(rank), rank)))
    if known is None and perm is not None:
        ordered = (
            None if shape is None or len(shape) != len(perm) else tuple(shape[perm.index(i)] for i in range(len(perm)))
        )
        s.term(x, Want(ordered or (None,) * len(perm), want.dtype))
    elif known is None:
        s.term(x, Want((None,) * len(shape or ()), want.dtype))


def broadcast_to(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws types for the operands of `broadcast_to`: axes of size 1 are broadcast. Raises Reject if no draw gives
    `want`."""
    x = call.args[0]
    try:
        shape = s.attr(call, "shape", not_yet)
    except NotYet:
        shape = None
    if s.known(x) is None:
        if shape is not None:
            s.term(x, Want(_stretched(s, x, upto(shape)), want.dtype))
        elif want.shape is not None:
            inner = tuple(None if d is None else d | {1} for d in want.shape)
            s.term(x, Want(_stretched(s, x, inner), want.dtype))
        else:
            rank = s.rng.randint(1, 4)
            s.term(x, Want(_stretched(s, x, (None,) * rank) if isinstance(x, Var) else None, want.dtype))
    have = s.known(x)
    if have is None:
        raise Reject
    wanted = want.shape or (None,) * have.rank
    s.attr(
        call,
        "shape",
        lambda: tuple(d if d != 1 or s.rng.random() < 0.3 else s.pick(w) for d, w in zip(have.shape, wanted)),
    )


def _stretched(s: Sampler, x: Term, shape: tuple[Sizes, ...]) -> tuple[Sizes, ...]:
    """Allowed sizes of a broadcast operand, with many axes restricted to size 1."""
    return tuple(frozenset((1,)) if s.rng.random() < 0.4 else d for d in shape) if isinstance(x, Var) else shape


def slice_(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws types for the operands of `slice`: a range of one axis. Raises Reject if no draw fits `want`."""
    x, known = call.args[0], s.known(call.args[0])
    shape = wanted_sizes(s, call, want)
    rank = len(shape) if known is None else known.rank
    rank = max(rank, least_rank(call)) if want.shape is None else rank
    shape = shape if len(shape) == rank else (None,) * rank
    try:
        axis = s.attr(call, "axis", lambda: s.rng.randrange(max(rank, 1)))
    except NotYet:
        axis = None
    size = one_size(s, shape[axis]) if axis is not None and axis < rank else None
    if known is None:
        low = size
        with contextlib.suppress(NotYet):
            low = max(low or 0, s.value(dict(call.attrs)["stop"]))
        inner = None if low is None else frozenset((low, low + s.rng.randint(0, 3)))
        known = s.term(x, Want(with_axis(shape, axis, inner) if axis is not None else (None,) * rank, want.dtype))
    axis = s.attr(call, "axis", lambda: s.rng.randrange(max(rank, 1)))
    if not axis < known.rank:
        raise Reject
    length = known.shape[axis]
    step = s.attr(call, "step", lambda: s.rng.randint(1, 2))
    span = None if size is None else size * step

    def propose_start() -> int:
        if s.rng.random() < 0.25:
            return 0
        return s.rng.randint(0, max(0, length if span is None else length - span))

    start = s.attr(call, "start", propose_start)

    def propose_stop() -> int:
        if span is not None:
            return int(min(int(start) + span, length))
        return int(length if s.rng.random() < 0.3 else s.rng.randint(min(start, length), length))

    s.attr(call, "stop", propose_stop)


def pad(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws types for the operands of `pad`: padding before and after the elements along one axis.

    Raises Reject if no draw fits `want`.
    """
    shape = wanted_sizes(s, call, want)
    shape = shape if want.shape is not None else (None,) * max(len(shape), 1)
    axis = s.attr(call, "axis", lambda: s.rng.randrange(max(len(shape), 1)))
    if not axis < len(shape):
        raise Reject
    size = one_size(s, shape[axis])
    lo = s.attr(call, "lo", lambda: s.rng.randint(0, 2 if size is None else min(2, size)))
    hi = s.attr(call, "hi", lambda: s.rng.randint(0, 2 if size is None else min(2, size - lo)))
    s.attr(call, "value", lambda: s.rng.choice((0.0, 0.0, 1.0, -2.0)))
    inner = None if size is None else frozenset((size - lo - hi,))
    s.term(call.args[0], Want(with_axis(shape, axis, inner), want.dtype))


def concat(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws types for the operands of `concat`: sizes add up along one axis. Raises Reject if no draw fits `want`."""
    shape = wanted_sizes(s, call, want)
    if want.shape is None and all(s.known(a) is None for a in call.args):
        shape = (None,) * max(len(shape), least_rank(call))
    rank = len(shape)
    try:
        axis = s.attr(call, "axis", lambda: s.rng.randrange(max(rank, 1)))
    except NotYet:
        axis = s.rng.randrange(max(rank, 1))
    if not 0 <= axis < rank:
        raise Reject
    size = one_size(s, shape[axis])
    for a, b in (call.args, call.args[::-1]):
        other = s.known(b)
        if s.known(a) is None:
            if other is not None:
                rest = None if size is None else frozenset((size - other.shape[axis],))
                s.term(a, Want(with_axis(exactly(other.shape), axis, rest), want.dtype))
            else:
                part = (
                    None
                    if size is None
                    else frozenset((s.rng.randint(0 if s.rng.random() < 0.1 else min(1, size), size),))
                )
                s.term(a, Want(with_axis(shape, axis, part), want.dtype))
    s.attr(call, "axis", lambda: axis)


def windows(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws types for the operands of `windows`: sliding windows along one axis; the window becomes a new last axis."""
    rank = len(want.shape) - 1 if want.shape is not None else s.rng.randint(1, 3)
    axis = s.attr(call, "axis", lambda: s.rng.randrange(max(rank, 1)))
    size = s.attr(call, "size", lambda: s.rng.randint(1, 3))
    s.attr(call, "stride", lambda: s.rng.randint(1, 2))
    s.attr(call, "dilation", lambda: s.rng.randint(1, 2))
    shape: tuple[Sizes, ...] = want.shape[:-1] if want.shape is not None else (None,) * rank
    s.term(call.args[0], Want(with_axis(shape, axis, frozenset((size + 2, size + 3))), want.dtype))


def leaf(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws shape and attributes of `full` or `iota`. Raises Reject if no draw fits `want`."""
    shape = want.shape if want.shape is not None else (None,) * s.rng.randint(0, 4)
    narrow = call.op == "full" and s.rng.random() < 0.6
    propose = lambda: tuple(1 if narrow and (d is None or 1 in d) else s.pick(d) for d in shape)
    found = s.attr(call, "shape", propose)
    if call.op == "iota" and not found:
        raise Reject
    s.attr(call, "dtype", lambda: want.dtype)
    draw_attributes(s, call, len(found))


def index_type(s: Sampler, term: Term, shape: tuple[Sizes, ...] | None, bound: Any) -> Type:
    """The type of an index operand with this shape.

    `bound`: exclusive upper bound of the indices, recorded for a variable; values of other terms are not checked.
    Raises Reject for a variable that is not an integer.
    """
    fresh = isinstance(term, Var) and term.name not in s.types
    found = s.known(term) or s.term(term, Want(shape, "int64"))
    if isinstance(term, Var):
        if not is_int(found.dtype) or bound < 1:
            raise Reject
        s.bounds[term.name] = bound if fresh else min(bound, s.bounds.get(term.name, bound))
    return found


def gather(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws types for the operands of a gather: x with one axis replaced by the axes of the indices.

    `gather_elements` keeps the rank. Raises Reject if no draw fits `want`.
    """
    x, index, *updates = call.args
    left = s.known(x) or s.term(x, Want((None,) * max(1, least_rank(x), s.rng.randint(1, 3)), want.dtype))
    axis = s.attr(call, "axis", lambda: s.rng.randrange(max(left.rank, 1)))
    if not axis < left.rank:
        raise Reject
    wide = OPS[call.op].law != "gather"
    whole = exactly(left.shape) if updates else upto(left.shape)  # gather_elements may gather at some positions only
    shape: tuple[Sizes, ...] = whole if wide else (None,) * s.rng.randint(0, 2)
    found = index_type(s, index, with_axis(shape, axis, None) if wide else shape, left.shape[axis])
    for u in updates:
        s.term(u, Want(exactly(found.shape), left.dtype))
    draw_attributes(s, call, left.rank)


def cross_entropy(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws types for the operands of `cross_entropy`: logits[N, C] and target[N]."""
    logits = s.known(call.args[0]) or s.term(call.args[0], Want((None, None), want.dtype))
    index_type(s, call.args[1], exactly(logits.shape[:1]), logits.shape[1])
