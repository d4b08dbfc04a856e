"""Samples the operands of matrix products, convolutions, pooling, attention and quantized weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...egraph.ops.ops import Type
from ...egraph.patterns.pattern import PatternCall, Var
from ...egraph.types.dims import concrete
from .ranks import least_rank
from .sample_parts import draw_attributes, not_yet, rank_of, result_dtype, with_axis
from .sampler import NotYet, Reject, Sampler, Sizes, Want, exactly, upto


def matmul(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws types for the operands of `matmul`: [..., M, K] @ [..., K, N] or [K, N]. Raises Reject if no draw gives
    `want`."""
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
    """Draws types for the operands of `linear`: x[..., K] @ w[K, N] + b[N]. Raises Reject if no draw fits `want`."""
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


def window_counts(s: Sampler, call: PatternCall, i: int, size: Any, kernel: Any) -> int:
    """Number of windows of a convolution or pool along spatial axis i.

    `size`, `kernel`: sizes of the image and of the window along that axis. Raises NotYet before the attributes are
    drawn.
    """
    strides, pads, dilations = (s.attr(call, name, not_yet) for name in ("strides", "pads", "dilations"))
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
        few = [n for n in range(1, 9) if any(window_counts(s, call, i, n, k) in d for k in kernels)]
        if not few:
            raise Reject
        yield frozenset(few if kernel is not None else (s.rng.choice([n for n in few if 4 <= n <= 6] or few),))


def _kernel(s: Sampler, call: PatternCall, i: int, size: Any, wanted: Sizes) -> Sizes:
    """A random kernel size along a spatial axis that gives the wanted number of windows."""
    found = [k for k in (1, 2, 3) if wanted is None or window_counts(s, call, i, size, k) in wanted]
    if not found:
        raise Reject
    return frozenset((s.rng.choice(found),))


def conv(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws types for the operands of `conv`: x[N, C, *S] with w[O, C/groups, *K]. Raises Reject if no draw gives
    `want`."""
    x, w = call.args
    left, right = s.known(x), s.known(w)
    n = (
        len(want.shape) - 2
        if want.shape is not None
        else (left or right or Type((1,) * s.rng.choice((3, 4, 4, 4, 4, 5)), "")).rank - 2
    )
    for name in ("strides", "dilations"):
        with contextlib.suppress(NotYet):
            n = len(s.attr(call, name, not_yet)) if want.shape is None and not left and not right else n
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
    """Draws types for the operands of `pool`: windows over the spatial axes of x[N, C, *S]."""
    shape = want.shape if want.shape is not None else (None,) * 4
    n = len(shape) - 2
    for name, choices, length in (
        ("kernel", (1, 2, 3), n),
        ("strides", (1, 2), n),
        ("dilations", (1, 2), n),
        ("pads", (0, 1), 2 * n),
    ):
        s.attr(call, name, _several(s, choices, length))
    s.term(call.args[0], Want((*shape[:2], *_inputs(s, call, shape[2:], s.attr(call, "kernel", not_yet))), want.dtype))


def attention(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws types for the operands of attention: q[..., T, D], k[..., S, D], v[..., S, E], mask[..., T, S].

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
        dtype = "bool" if call.op == "hiding_attention" else want.dtype
        s.term(m, Want((*lead, *upto((left.shape[-2], keys.shape[-2]))), dtype))
    draw_attributes(s, call)


def from_float8(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws a type for the bytes of 8-bit floats."""
    s.term(call.args[0], Want(want.shape if want.shape is not None else (None,) * rank_of(s, call, want), "uint8"))
    s.attr(call, "dtype", lambda: want.dtype)


def unpack(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws a type for bytes along one axis in whole blocks, and how numbers are packed in them.

    Raises Reject if no draw fits `want`.
    """
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
        s.term(x, Want(with_axis(shape, axis, packed), "uint8"))


def dequantize(s: Sampler, call: PatternCall, want: Want) -> None:
    """Draws types for numbers, scales whose sizes divide those of the numbers, and zero points for each scale or for
    all."""
    q, scale, zero = call.args
    rank = max(rank_of(s, call, want), 1)
    numbers = s.known(q)
    if numbers is None:
        dtype = s.rng.choice(("int8", "uint8", s.float)) if isinstance(q, Var) else result_dtype(s, q)
        numbers = s.term(q, Want(want.shape if want.shape is not None else (None,) * rank, dtype))
    wide = [s.rng.choice([d for d in range(1, n + 1) if n % d == 0] or [n]) for n in concrete(numbers.shape)]
    scales = s.term(scale, Want(upto(wide), want.dtype))
    if s.known(zero) is None:
        shape = scales.shape if s.rng.random() < 0.5 else (1,) * scales.rank
        s.term(zero, Want(exactly(shape), s.rng.choice((want.dtype, "int8"))))
