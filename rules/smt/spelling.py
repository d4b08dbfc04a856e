"""Prepares terms for a proof: expresses constant arrays by ops, which rules can match.

Subterms over constants alone are evaluated first: the mean of an identity kernel, products of identity matrices. A
constant array is then expressed as a fill, padding with zeros, a broadcast, an identity matrix, or such a term times a
number. An average pool is expressed as the equal convolution: by identity matrices at every kernel position, divided by
the window size. Then the rules about convolutions apply to it, also where rewriting creates new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ...egraph.builders import builders as api
from ...egraph.evaluate.interpret import evaluate
from ...egraph.ir.tensor import Tensor, constant, make, rebuild, topological
from ...egraph.types.dims import Shape
from ...egraph.types.dtypes import is_float, name_of, numpy_dtype

Array = np.ndarray[Any, Any]
MAX_ARRAY_ELEMENTS = 1 << 16  # largest number of elements of arrays that are analyzed
CLOSED = ("constant", "full", "iota")
RING = ("add", "sub", "mul", "neg")  # left to the rules, which know their laws
LINEAR = ("avg_pool", "conv", "matmul", "permute")
ORDERED = ("relu", "max_pool")
FUNCTIONS = ("sigmoid", "tanh")
NUMBERS = 6  # limit on distinct fill values in a claim whose sums and products are added as facts
DENOMINATOR = 1 << 20  # evaluated numbers are rounded to a fraction within 1e-12 with at most this denominator


def spelled_out(roots: Sequence[Tensor]) -> list[Tensor]:
    """The roots with constant arrays expressed by ops where possible, and average pools as convolutions."""
    closed: set[int] = set()

    def worked_out(node: Tensor, args: tuple[Tensor, ...]) -> Tensor | None:
        if node.op not in CLOSED and not (args and all(id(a) in closed for a in node.args)):
            return None
        closed.add(id(node))
        return None if node.op in CLOSED or node.op in RING else _worked_out(node)

    def change(node: Tensor, args: tuple[Tensor, ...]) -> Tensor | None:
        if node.op == "constant":
            return array_term(node.data)
        if node.op == "avg_pool" and node.rank == 4 and all(isinstance(d, int) for d in args[0].shape):
            return mean_as_conv(args[0], dict(node.attrs))
        return None

    return rebuild(rebuild(rebuild(rebuild(roots, unscaled), side_by_side), worked_out), change)


def side_by_side(node: Tensor, args: tuple[Tensor, ...]) -> Tensor | None:
    """One average pool equal to two nested average pools over adjacent windows; None for other nodes.

    `args`: the node's rewritten operands. Done before pools become convolutions, whose rules do not merge such pools.
    """
    if node.op != "avg_pool" or args[0].op != "avg_pool":
        return None
    inner, outer = dict(args[0].attrs), dict(node.attrs)
    plain = {*inner["dilations"], *outer["dilations"]} == {1} and not any(outer["pads"])
    if not plain or inner["strides"] != inner["kernel"]:
        return None
    both = {n: tuple(a * b for a, b in zip(inner[n], outer[n])) for n in ("kernel", "strides")}
    return make("avg_pool", args[0].args, {**inner, **both})


def unscaled(node: Tensor, args: tuple[Tensor, ...]) -> Tensor | None:
    """Rewrite op(..., k * c, ...) to op(..., c, ...) * k for a node of a linear op, where all other operands and c are
    constant terms and k is one element. Returns None for other nodes.

    `args`: the node's operands, rewritten already.
    """
    if node.op not in LINEAR:
        return None
    for i, a in enumerate(args):
        for x, factor in (a.args, a.args[::-1]) if a.op == "mul" else ():
            one = factor.rank == node.rank and all(d == 1 for d in factor.shape)
            if one and x.shape == a.shape and not closed(factor) and all(map(closed, (*args[:i], x, *args[i + 1 :]))):
                return make("mul", (make(node.op, (*args[:i], x, *args[i + 1 :]), dict(node.attrs)), factor))
    return None


def closed(root: Tensor) -> bool:
    """Whether a term has constants as its only leaves."""
    return all(n.op in CLOSED for n in topological([root]) if n.is_leaf or not n.args)


def one_value(a: Tensor, b: Tensor) -> bool:
    """Whether two constant terms have equal values up to rounding in float64."""
    if not (closed(a) and closed(b) and a.type == b.type and is_float(a.dtype)):
        return False
    sizes = [[d for d in n.shape if isinstance(d, int)] for n in topological([a, b])]
    if any(len(s) < n.rank or prod(s) > MAX_ARRAY_ELEMENTS for s, n in zip(sizes, topological([a, b]))):
        return False
    x, y = evaluate([a, b], {}, float64=True)
    return bool(np.isfinite(x).all()) and bool(np.allclose(x, y, rtol=1e-12, atol=0.0))


def known(roots: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Equalities as pairs (constant term, its value), such as (2 + 3, 5): for constant terms in `roots`, and for
    functions, sums and products of the numbers in them.

    A proof adds these equalities to the e-graph, because rewrite rules do not evaluate arithmetic.
    """
    order = topological(roots)
    worked = [(n, _worked_out(n)) for n in order if n.op in RING and closed(n)]
    applied = [f for f in FUNCTIONS if any(n.op == f for n in order)]
    fills = [n for n in order if n.op == "full" and is_float(n.dtype)]
    worked += [(made, _worked_out(made)) for f in applied for made in (make(f, (n,)) for n in fills)]
    found = [(n, e) for n, e in worked if e is not None and e is not n]
    values = sorted({float(n.attr("value")) for n in order if n.op == "full" and is_float(n.dtype)})
    if not 0 < len(values) <= NUMBERS:
        return found
    doubled = [2.0] if any(n.op == "add" for n in order) else []  # x + x is 2 * x, and so on
    for rank, dtype in sorted({(n.rank, n.dtype) for n in order if n.op == "mul" and is_float(n.dtype)}):
        number = partial(_number, (1,) * rank, dtype)
        if any(n.op in ORDERED for n in order):
            found += [(make("relu", (number(v),)), number(v)) for v in values if v >= 0]
        have = sorted({*values, 1.0, *doubled}) if len(values) > 1 or doubled else []
        for i, a in enumerate(have):
            for b in have[i:]:
                found += [(make(op, (number(a), number(b))), number(_near(v, values)))
                          for op, v in (("mul", a * b), ("add", a + b)) if abs(v) < DENOMINATOR]  # fmt: skip
    return found


def _number(shape: Shape, dtype: str, value: float) -> Tensor:
    return api.full(shape, value, dtype)


def _near(value: float, known: Sequence[float]) -> float:
    """The known number that equals a value up to rounding, else the value."""
    return next((v for v in known if abs(v - value) <= 1e-12 * abs(v)), value)


def _worked_out(node: Tensor) -> Tensor | None:
    """The value of a constant node, expressed by ops; None if it has no such expression."""
    if not is_float(node.dtype) or not all(isinstance(d, int) for d in node.shape):
        return None
    (value,) = evaluate([node], {}, float64=True)
    if not 0 < value.size <= MAX_ARRAY_ELEMENTS or not np.isfinite(value).all():
        return None
    numbers, at = np.unique(value, return_inverse=True)
    near = [float(Fraction(float(v)).limit_denominator(DENOMINATOR)) for v in numbers]
    exact = [n if abs(n - v) <= 1e-12 * abs(v) else v for n, v in zip(near, numbers)]
    found = _expression(np.asarray(exact)[at].reshape(value.shape) + 0.0, node.dtype)
    return None if any(n.op == "constant" for n in topological([found])) else found


def mean_as_conv(x: Tensor, attrs: Mapping[str, Any]) -> Tensor:
    """avg_pool(x, **attrs) of x[N, C, H, W] as the sum over each window (a convolution with the weights `unit`, which
    are 1 from a channel to itself, else 0) divided by the number of elements of a window."""
    (height, width), channels = attrs["kernel"], x.shape[1]
    how = {"strides": attrs["strides"], "pads": attrs["pads"], "dilations": attrs["dilations"], "groups": 1}
    total = make("conv", (x, unit((channels, channels, height, width), x.dtype)), how)
    return make("mul", (total, api.full((1,) * 4, 1.0 / (height * width), x.dtype)))


def unit(shape: Shape, dtype: str) -> Tensor:
    """Weights of a convolution that adds up each channel's window: 1 where output and input channel (the first two
    indices) are the same, else 0."""
    first, second = (make("iota", (), {"axis": i, "shape": shape, "dtype": "int64"}) for i in (0, 1))
    return make("cast", (make("eq", (first, second)),), {"dtype": dtype})


def array_term(data: Any) -> Tensor | None:
    """Expression by ops for an array of at most `MAX_ARRAY_ELEMENTS` floats; None if none was found."""
    if not isinstance(data, np.ndarray) or not 0 < data.size <= MAX_ARRAY_ELEMENTS or data.dtype.kind in "iub":
        return None
    found = _expression(data, name_of(data.dtype))
    return None if found.op == "constant" else found


def _expression(x: Array, dtype: str) -> Tensor:
    number = x.flat[0]
    if x.shape[:2] == (1, 1) and number == 1 and _same(x, np.ones_like(x)):  # the identity matrix of size one
        return unit(x.shape, dtype)
    if _same(x, np.full_like(x, number)):
        return api.full(x.shape, float(number), dtype)
    for axis, size in enumerate(x.shape):
        zero = [_same(part, np.zeros_like(part)) for part in np.moveaxis(x, axis, 0)]
        lo, hi = zero.index(False), zero[::-1].index(False)
        if lo and hi:  # zeros on one side only may be the corner of another pattern
            inner = _expression(x.take(range(lo, size - hi), axis), dtype)
            return make("pad", (inner,), {"axis": axis, "lo": lo, "hi": hi, "value": 0.0})
    if x.ndim > 1:
        diagonal = np.eye(*x.shape[:2], dtype=x.dtype).reshape(*x.shape[:2], *(1,) * (x.ndim - 2))
        if _same(x, np.broadcast_to(diagonal, x.shape)):
            return unit(x.shape, dtype)
        if number and _same(x, np.broadcast_to(diagonal * number, x.shape)):
            return make("mul", (unit(x.shape, dtype), api.full((1,) * x.ndim, float(number), dtype)))
    for axis, size in enumerate(x.shape):
        if size > 1 and _same(x, np.broadcast_to(x.take([0], axis), x.shape)):
            return make("broadcast_to", (_expression(x.take([0], axis), dtype),), {"shape": x.shape})
    return constant(x.astype(numpy_dtype(dtype)))


def _same(a: Array, b: Array) -> bool:
    return bool(np.array_equal(a, b)) and bool(np.array_equal(np.signbit(a), np.signbit(b)))
