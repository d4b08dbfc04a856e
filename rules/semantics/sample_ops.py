"""Backward shape inference per op: from the wanted sizes of a result to those of the operands (used by sample.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

from ...egraph.ir.dims import concrete
from ...egraph.ir.ops import OPS, Type
from ...egraph.ir.pattern import PatternCall, Term, Var
from .sampler import INTS, NotYet, Reject, Sampler, Sizes, Want, exactly, is_int, least_rank, upto

Handler = Callable[[Sampler, PatternCall, Want], None]


def result_dtype(s: Sampler, term: Term) -> str:
    """Dtype in which the root of a rule's left side is sampled."""
    if not isinstance(term, PatternCall):
        return s.dtype_for(term)
    law = OPS[term.op].law
    if law == "compare":
        return "bool"
    if law in ("arg_reduce", "along_index"):
        return "int64"
    if OPS[term.op].logic is not None:
        return s.rng.choice(("bool", "bool", *INTS)) if not _has_bool(term) else "bool"
    if law in ("from_float8", "unpack"):
        return s.float
    if law == "cast":
        return str(s.attr(term, "dtype", lambda: s.rng.choice(("float32", "float16", "float64", "int32"))))
    return s.dtype_for(*(term.args[1:] if law == "where" else term.args[:1] if law == "gather" else term.args))


def _has_bool(term: Term) -> bool:
    if not isinstance(term, PatternCall):
        return False
    return OPS[term.op].law == "compare" or any(map(_has_bool, term.args))


def _rank(s: Sampler, call: PatternCall, want: Want) -> int:
    """Draws the operands of `_rank`: the rank of an op whose operands have the result's rank."""
    if want.shape is not None:
        return len(want.shape)
    for a in call.args:
        found = s.known(a)
        if found is not None:
            return found.rank
    return max(least_rank(call), s.rng.choices((0, 1, 2, 3, 4), (1, 6, 10, 8, 6))[0])


def _sizes(s: Sampler, call: PatternCall, want: Want) -> tuple[Sizes, ...]:
    return want.shape if want.shape is not None else (None,) * _rank(s, call, want)


def _set(shape: tuple[Sizes, ...], axis: int, sizes: Sizes) -> tuple[Sizes, ...]:
    return (*shape[:axis], sizes, *shape[axis + 1 :])


# ---------------------------------------------------------------- elementwise
def _kid_dtype(s: Sampler, call: PatternCall, i: int, want: Want) -> str:
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
        return "bool" if s.rng.random() < 0.7 else s.rng.choice(INTS)
    return s.dtype_for(*call.args) if not all(map(_has_bool, call.args)) else "bool"


def pointwise(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws the operands of an elementwise op: a common shape first; each operand has it, or size 1 at some axes."""
    target: list[Any] = []
    have = [t for t in map(s.known, call.args) if t is not None]
    for i, sizes in enumerate(_sizes(s, call, want)):
        wide = {t.shape[i] for t in have if i < t.rank and t.shape[i] != 1}
        target.append(wide.pop() if wide else s.pick(sizes))
    dtype = ""
    for i, a in enumerate(call.args):
        if s.known(a) is None:
            dtype = dtype if dtype and OPS[call.op].law == "compare" else _kid_dtype(s, call, i, want)
            shape = exactly(target) if len(call.args) == 1 and want.shape is None else upto(target)
            if len(call.args) == 1 and want.shape is not None:
                shape = want.shape
            s.term(a, Want(shape, dtype))
    if OPS[call.op].law == "cast":
        s.attr(call, "dtype", lambda: want.dtype)


# ---------------------------------------------------------------- reductions and ops along an axis
def _propose_axes(s: Sampler, allowed: list[int]) -> tuple[int, ...]:
    count = min(len(allowed), s.rng.choices((0, 1, 2, 3), (1, 14, 5, 1))[0])
    return tuple(sorted(s.rng.sample(allowed, count)))


def reduce(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws the operand of a reduction. Reduced axes have size 1 in the result and any size in the operand."""
    x = call.args[0]
    if s.known(x) is None and (want.shape is None or all(d is None for d in want.shape)):
        s.term(x, Want(want.shape, want.dtype))
    shape = want.shape
    rank = len(shape) if shape is not None else (s.known(x) or Type((), "")).rank
    allowed = [i for i in range(rank) if shape is None or shape[i] is None or 1 in (shape[i] or ())]
    try:
        axes = s.attr(call, "axes", lambda: _propose_axes(s, allowed))
    except NotYet:
        axes = None
    if s.known(x) is None:
        inner = tuple(None if axes is None or i in axes else d for i, d in enumerate(shape or ()))
        s.term(x, Want(inner, want.dtype))
    s.attr(call, "axes", lambda: ())


def along(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws the operand of an op along one axis: the result has its shape (or size 1 at the axis).

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
    _scalars(s, call, rank)


def _scalars(s: Sampler, call: PatternCall, rank: int = 0) -> None:
    """Draws all attributes that constrain shapes at most by naming an axis."""
    draw: dict[str, Callable[[], Any]] = {
        "axis": lambda: s.rng.randrange(max(rank, 1)),
        "axes": lambda: _propose_axes(s, list(range(rank))),
        "descending": lambda: s.rng.random() < 0.5,
        "causal": lambda: s.rng.random() < 0.3,
        "window": lambda: s.rng.choice((0, 0, 0, 2)),
        "softcap": lambda: s.rng.choice((0.0, 0.0, 5.0)),
        "mode": lambda: s.rng.choice(("set", "add", "max")),
        "groups": lambda: 1,
        "dtype": lambda: s.float,
        "name": lambda: "leaf",
    }
    for name, _ in call.attrs:
        s.attr(call, name, draw.get(name, lambda: s.rng.choice((0.5, 1.0, 0.125, 1e-5, 2.0, -0.25))))


# ---------------------------------------------------------------- views and layout
def reshape(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws the operands of `reshape`: a shape with the same number of elements."""
    x, known = call.args[0], s.known(call.args[0])
    full = want.shape is not None and all(d is not None and len(d) == 1 for d in want.shape)
    asked = tuple(next(iter(d)) for d in want.shape if d) if full and want.shape is not None else None
    if known is None:
        try:
            shape = s.attr(call, "shape", _later) if asked is None else s.attr(call, "shape", lambda: asked)
        except NotYet:
            shape = asked
        fixed = exactly(s.regroup(prod(shape), max(least_rank(x), s.rng.randint(1, 4)))) if shape is not None else None
        known = s.term(x, Want(fixed, want.dtype))
    volume = prod(known.shape)
    rank = len(want.shape) if want.shape is not None else None
    s.attr(call, "shape", lambda: asked or _grouping(s, known.shape, volume, rank))


def _later() -> Any:
    raise NotYet


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
    """Draws the operands of `permute`: the operand's axes in another order."""
    x = call.args[0]
    known, shape = s.known(x), want.shape
    try:
        perm = s.attr(call, "perm", _later)
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
    """Draws the operands of `broadcast_to`: axes of size 1 are broadcast."""
    x = call.args[0]
    try:
        shape = s.attr(call, "shape", _later)
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


def _one(s: Sampler, sizes: Sizes) -> int | None:
    return None if sizes is None else s.pick(sizes)


def slice_(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws the operands of `slice`: a range of one axis."""
    x, known = call.args[0], s.known(call.args[0])
    shape = _sizes(s, call, want)
    rank = len(shape) if known is None else known.rank
    rank = max(rank, least_rank(call)) if want.shape is None else rank
    shape = shape if len(shape) == rank else (None,) * rank
    try:
        axis = s.attr(call, "axis", lambda: s.rng.randrange(max(rank, 1)))
    except NotYet:
        axis = None
    size = _one(s, shape[axis]) if axis is not None and axis < rank else None
    if known is None:
        low = size
        with contextlib.suppress(NotYet):
            low = max(low or 0, s.value(dict(call.attrs)["stop"]))
        inner = None if low is None else frozenset((low, low + s.rng.randint(0, 3)))
        known = s.term(x, Want(_set(shape, axis, inner) if axis is not None else (None,) * rank, want.dtype))
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
    """Draws the operands of `pad`: padding before and after the elements along one axis."""
    shape = _sizes(s, call, want)
    shape = shape if want.shape is not None else (None,) * max(len(shape), 1)
    axis = s.attr(call, "axis", lambda: s.rng.randrange(max(len(shape), 1)))
    if not axis < len(shape):
        raise Reject
    size = _one(s, shape[axis])
    lo = s.attr(call, "lo", lambda: s.rng.randint(0, 2 if size is None else min(2, size)))
    hi = s.attr(call, "hi", lambda: s.rng.randint(0, 2 if size is None else min(2, size - lo)))
    s.attr(call, "value", lambda: s.rng.choice((0.0, 0.0, 1.0, -2.0)))
    inner = None if size is None else frozenset((size - lo - hi,))
    s.term(call.args[0], Want(_set(shape, axis, inner), want.dtype))


def concat(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws the operands of `concat`: sizes add up along one axis."""
    shape = _sizes(s, call, want)
    if want.shape is None and all(s.known(a) is None for a in call.args):
        shape = (None,) * max(len(shape), least_rank(call))
    rank = len(shape)
    try:
        axis = s.attr(call, "axis", lambda: s.rng.randrange(max(rank, 1)))
    except NotYet:
        axis = s.rng.randrange(max(rank, 1))
    if not 0 <= axis < rank:
        raise Reject
    size = _one(s, shape[axis])
    for a, b in (call.args, call.args[::-1]):
        other = s.known(b)
        if s.known(a) is None:
            if other is not None:
                rest = None if size is None else frozenset((size - other.shape[axis],))
                s.term(a, Want(_set(exactly(other.shape), axis, rest), want.dtype))
            else:
                part = (
                    None
                    if size is None
                    else frozenset((s.rng.randint(0 if s.rng.random() < 0.1 else min(1, size), size),))
                )
                s.term(a, Want(_set(shape, axis, part), want.dtype))
    s.attr(call, "axis", lambda: axis)


def windows(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws the operands of `windows`: sliding windows along one axis; the window becomes a new last axis."""
    rank = len(want.shape) - 1 if want.shape is not None else s.rng.randint(1, 3)
    axis = s.attr(call, "axis", lambda: s.rng.randrange(max(rank, 1)))
    size = s.attr(call, "size", lambda: s.rng.randint(1, 3))
    s.attr(call, "stride", lambda: s.rng.randint(1, 2))
    s.attr(call, "dilation", lambda: s.rng.randint(1, 2))
    shape: tuple[Sizes, ...] = want.shape[:-1] if want.shape is not None else (None,) * rank
    s.term(call.args[0], Want(_set(shape, axis, frozenset((size + 2, size + 3))), want.dtype))


def leaf(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws a call of `full` or `iota`."""
    shape = want.shape if want.shape is not None else (None,) * s.rng.randint(0, 4)
    narrow = call.op == "full" and s.rng.random() < 0.6
    propose = lambda: tuple(1 if narrow and (d is None or 1 in d) else s.pick(d) for d in shape)
    found = s.attr(call, "shape", propose)
    if call.op == "iota" and not found:
        raise Reject
    s.attr(call, "dtype", lambda: want.dtype)
    _scalars(s, call, len(found))


# ---------------------------------------------------------------- contractions
def matmul(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws the operands of `matmul`: [..., M, K] @ [..., K, N] or [K, N]."""
    a, b = call.args
    left, right = s.known(a), s.known(b)
    rank = len(want.shape) if want.shape is not None else 0
    rank = rank or (
        left.rank
        if left
        else right.rank
        if right and right.rank > 2
        else s.rng.choices(range(2, 7), (6, 6, 6, 2, 1))[0]
    )
    rank = max(rank, least_rank(a), 2)
    shape = want.shape if want.shape is not None and len(want.shape) == rank else (None,) * rank
    batch = [s.pick(d) for d in shape[:-2]]
    if left is None:
        inner = None if right is None else frozenset((right.shape[-2],))
        wide = upto(batch) if right is None or right.rank > 2 else exactly(batch)
        left = s.term(a, Want((*wide, shape[-2], inner), want.dtype))
    if left.rank < 2:
        raise Reject
    if right is None:
        flat = left.rank == 2 or (s.rng.random() < 0.5 and least_rank(b) <= 2)
        wide = (
            ()
            if flat
            else tuple(frozenset((1, d, e)) if e == 1 else frozenset((1, e)) for d, e in zip(batch, left.shape))
        )
        s.term(b, Want((*wide, frozenset((left.shape[-1],)), shape[-1]), want.dtype))


def linear(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws the operands of `linear`: x[..., K] @ w[K, N] + b[N]."""
    x, w, b = call.args
    shape = want.shape if want.shape is not None else (None,) * max(2, least_rank(x), s.rng.randint(2, 4))
    right = s.known(w)
    inner = None if right is None else frozenset((right.shape[0],))
    left = s.known(x) or s.term(x, Want((*shape[:-1], inner), want.dtype))
    if left.rank < 1:
        raise Reject
    right = right or s.term(w, Want((frozenset((left.shape[-1],)), shape[-1]), want.dtype))
    s.term(b, Want(exactly(right.shape[1:]), want.dtype))


def _several(s: Sampler, choices: tuple[int, ...], n: int) -> Callable[[], tuple[int, ...]]:
    """A function that draws n numbers from `choices`."""
    return lambda: tuple(s.rng.choice(choices) for _ in range(n))


def _positions(s: Sampler, call: PatternCall, i: int, size: Any, kernel: Any) -> int:
    """Number of windows of a convolution or pool along spatial axis i."""
    strides, pads, dilations = (s.attr(call, name, _later) for name in ("strides", "pads", "dilations"))
    room = size + pads[i] + pads[len(strides) + i] - dilations[i] * (kernel - 1) - 1
    return int(room // max(strides[i], 1) + 1)


def _inputs(s: Sampler, call: PatternCall, wanted: Sequence[Sizes], kernel: Sequence[Any] | None) -> Iterator[Sizes]:
    """Input sizes per spatial axis that give the wanted number of windows.

    All such sizes if the kernel is known, else a random one.
    """
    for i, d in enumerate(wanted):
        if d is None:
            yield frozenset((s.rng.choice((4, 5, 6)),))
            continue
        kernels = (1, 2, 3) if kernel is None else (kernel[i],)
        few = [n for n in range(1, 9) if any(_positions(s, call, i, n, k) in d for k in kernels)]
        if not few:
            raise Reject
        yield frozenset(few if kernel is not None else (s.rng.choice([n for n in few if 4 <= n <= 6] or few),))


def _kernel(s: Sampler, call: PatternCall, i: int, size: Any, wanted: Sizes) -> Sizes:
    """A random kernel size along a spatial axis that gives the wanted number of windows."""
    found = [k for k in (1, 2, 3) if wanted is None or _positions(s, call, i, size, k) in wanted]
    if not found:
        raise Reject
    return frozenset((s.rng.choice(found),))


def conv(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws the operands of `conv`: x[N, C, *S] with w[O, C/groups, *K]."""
    x, w = call.args
    left, right = s.known(x), s.known(w)
    n = (
        len(want.shape) - 2
        if want.shape is not None
        else (left or right or Type((1,) * s.rng.choice((3, 4, 4, 4, 4, 5)), "")).rank - 2
    )
    for name in ("strides", "dilations"):
        with contextlib.suppress(NotYet):
            n = len(s.attr(call, name, _later)) if want.shape is None and not left and not right else n
    if n < 1:
        raise Reject
    shape = want.shape if want.shape is not None else (None,) * (n + 2)
    s.attr(call, "strides", _several(s, (1, 1, 2), n))
    s.attr(call, "dilations", _several(s, (1, 1, 2), n))
    s.attr(call, "pads", _several(s, (0, 0, 1, 2), 2 * n))
    groups = s.attr(call, "groups", lambda: s.rng.choice((1, 1, 2)))
    if left is None:
        channels = None if right is None else frozenset((right.shape[1] * groups,))
        channels = channels or frozenset((groups * s.rng.choice((1, 2, 3)),))
        space = _inputs(s, call, shape[2:], None if right is None else right.shape[2:])
        left = s.term(x, Want((shape[0], channels, *space), want.dtype))
    if right is None:
        if left.rank < 3 or not groups or left.shape[1] % groups:
            raise Reject
        outs = shape[1] if shape[1] is not None else frozenset((groups * s.rng.choice((1, 2)),))
        kernel = (_kernel(s, call, i, left.shape[2 + i], shape[2 + i]) for i in range(n))
        s.term(w, Want((outs, frozenset((left.shape[1] // groups,)), *kernel), want.dtype))


def pool(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws the operands of `pool`: windows over the spatial axes of x[N, C, *S]."""
    shape = want.shape if want.shape is not None else (None,) * 4
    n = len(shape) - 2
    for name, choices, length in (
        ("kernel", (1, 2, 3), n),
        ("strides", (1, 2), n),
        ("dilations", (1, 2), n),
        ("pads", (0, 1), 2 * n),
    ):
        s.attr(call, name, _several(s, choices, length))
    s.term(call.args[0], Want((*shape[:2], *_inputs(s, call, shape[2:], s.attr(call, "kernel", _later))), want.dtype))


def attention(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws the operands of attention: q[..., T, D], k[..., S, D], v[..., S, E], mask[..., T, S].

    Leading sizes broadcast.
    """
    q, k, v, *mask = call.args
    rank = len(want.shape) if want.shape is not None else next(
        (t.rank for t in map(s.known, call.args) if t is not None), s.rng.randint(3, 4))  # fmt: skip
    shape = want.shape if want.shape is not None else (None,) * rank
    batch = [s.pick(d) for d in shape[:-2]]
    lead = upto(batch)
    left = s.known(q) or s.term(q, Want((*lead, shape[-2] if len(shape) > 1 else None, None), want.dtype))
    keys = s.known(k) or s.term(k, Want((*lead, None, frozenset((left.shape[-1],))), want.dtype))
    s.term(v, Want((*lead, frozenset((keys.shape[-2],)), shape[-1]), want.dtype))
    for m in mask:
        s.term(m, Want((*lead, *upto((left.shape[-2], keys.shape[-2]))), want.dtype))
    _scalars(s, call)


# ---------------------------------------------------------------- normalisations, rope, indexing
def same(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws the operand of an op that keeps the type. The result has the operand's shape; attributes name axes."""
    rank = _rank(s, call, want)
    shape = want.shape if want.shape is not None else (None,) * max(rank, least_rank(call))
    rank = s.term(call.args[0], Want(shape, want.dtype)).rank
    _scalars(s, call, rank)


def norm(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws the operands of a norm: x, and rank-1 operands of the size of its last axis or of its channel axis."""
    axis = 1 if OPS[call.op].law == "channel_norm" else -1
    rank = _rank(s, call, want)
    shape = want.shape if want.shape is not None else (None,) * max(rank, 2)
    x = s.term(call.args[0], Want(shape, want.dtype))
    if x.rank < 2 and axis == 1:
        raise Reject
    for a in call.args[1:]:
        s.term(a, Want(exactly((x.shape[axis],)), want.dtype))
    _scalars(s, call, x.rank)


def rope(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws the operands of `rope`: x with a last axis of even size, and angles that broadcast to x."""
    rank = max(1, _rank(s, call, want))
    shape = want.shape if want.shape is not None else (*(None,) * (rank - 1), frozenset((2, 4, 6)))
    x = s.term(call.args[0], Want(shape, want.dtype))
    for a in call.args[1:]:
        s.term(a, Want(upto(x.shape), want.dtype))


def _index(s: Sampler, term: Term, shape: tuple[Sizes, ...] | None, bound: Any) -> Type:
    """The type of an index operand below a bound; a variable records the bound, other terms cannot guarantee one."""
    fresh = isinstance(term, Var) and term.name not in s.types
    found = s.known(term) or s.term(term, Want(shape, "int64"))
    if isinstance(term, Var):
        if not is_int(found.dtype) or bound < 1:
            raise Reject
        s.bounds[term.name] = bound if fresh else min(bound, s.bounds.get(term.name, bound))
    return found


def gather(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws the operands of a gather: x with one axis replaced by the axes of the indices.

    `gather_elements` keeps the rank.
    """
    x, index, *updates = call.args
    left = s.known(x) or s.term(x, Want((None,) * max(1, least_rank(x), s.rng.randint(1, 3)), want.dtype))
    axis = s.attr(call, "axis", lambda: s.rng.randrange(max(left.rank, 1)))
    if not axis < left.rank:
        raise Reject
    wide = OPS[call.op].law != "gather"
    whole = exactly(left.shape) if updates else upto(left.shape)  # gather_elements may gather at some positions only
    shape: tuple[Sizes, ...] = whole if wide else (None,) * s.rng.randint(0, 2)
    found = _index(s, index, _set(shape, axis, None) if wide else shape, left.shape[axis])
    for u in updates:
        s.term(u, Want(exactly(found.shape), left.dtype))
    _scalars(s, call, left.rank)


def cross_entropy(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws the operands of `cross_entropy`: logits[N, C] and target[N]."""
    logits = s.known(call.args[0]) or s.term(call.args[0], Want((None, None), want.dtype))
    _index(s, call.args[1], exactly(logits.shape[:1]), logits.shape[1])


# ---------------------------------------------------------------- quantized weights
def from_float8(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws the bytes of 8-bit floats."""
    s.term(call.args[0], Want(want.shape if want.shape is not None else (None,) * _rank(s, call, want), "uint8"))
    s.attr(call, "dtype", lambda: want.dtype)


def unpack(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws bytes along one axis in whole blocks, and how numbers are packed in them."""
    x = call.args[0]
    have = s.known(x)
    rank = len(want.shape) if want.shape is not None else have.rank if have is not None else s.rng.randint(1, 3)
    bits = s.attr(call, "bits", lambda: s.rng.choice((2, 4, 4)))
    s.attr(call, "form", lambda: s.rng.choice(("unsigned", "signed")))
    axis = s.attr(call, "axis", lambda: s.rng.randrange(rank))
    block = s.attr(call, "block", lambda: s.rng.choice((1, 1, 2)))
    s.attr(call, "dtype", lambda: want.dtype)
    shape = want.shape if want.shape is not None else (None,) * rank
    if have is None:
        if not axis < len(shape):
            raise Reject
        sizes = shape[axis]
        packed = (
            frozenset((block, 2 * block))
            if sizes is None
            else frozenset(d * bits // 8 for d in sizes if d % (8 // bits * block) == 0)
        )
        s.term(x, Want(_set(shape, axis, packed), "uint8"))


def dequantize(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws numbers, scales whose sizes divide those of the numbers, and zero points for each scale or for all."""
    q, scale, zero = call.args
    rank = max(_rank(s, call, want), 1)
    numbers = s.known(q)
    if numbers is None:
        dtype = s.rng.choice(("int8", "uint8", s.float)) if isinstance(q, Var) else result_dtype(s, q)
        numbers = s.term(q, Want(want.shape if want.shape is not None else (None,) * rank, dtype))
    wide = [s.rng.choice([d for d in range(1, n + 1) if n % d == 0] or [n]) for n in concrete(numbers.shape)]
    scales = s.term(scale, Want(upto(wide), want.dtype))
    if s.known(zero) is None:
        shape = scales.shape if s.rng.random() < 0.5 else (1,) * scales.rank
        s.term(zero, Want(exactly(shape), s.rng.choice((want.dtype, "int8"))))


HANDLERS: dict[str, Handler] = {
    "from_float8": from_float8,
    "unpack": unpack,
    "dequantize": dequantize,
    "leaf": leaf,
    "pointwise": pointwise,
    "compare": pointwise,
    "where": pointwise,
    "cast": pointwise,
    "reduce": reduce,
    "arg_reduce": along,
    "along": along,
    "along_index": along,
    "matmul": matmul,
    "conv": conv,
    "pool": pool,
    "reshape": reshape,
    "permute": permute,
    "broadcast_to": broadcast_to,
    "slice": slice_,
    "concat": concat,
    "pad": pad,
    "windows": windows,
    "gather": gather,
    "gather_elements": gather,
    "scatter_elements": gather,
    "norm": norm,
    "channel_norm": norm,
    "linear": linear,
    "attention": attention,
    "rope": rope,
    "cross_entropy": cross_entropy,
    "same": same,
}
