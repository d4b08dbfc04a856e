"""Builds the sides of a text rule at concrete sizes, as tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ...egraph.builders import builders as api
from ...egraph.composites import composite_ops as composite
from ...egraph.ir.tensor import Tensor, constant, make
from ...errors import ShapeError
from .linear_equations import Affine
from .terms import Typed, subterms

if TYPE_CHECKING:
    from .shape_families import Typing

ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (lambda x: x, composite.sigmoid, composite.relu, api.tanh)


class TextInstance:
    """A text rule at concrete sizes, which are the `values` of the unknowns of a family of shapes; builds its sides as
    tensors."""

    def __init__(self, typing: Typing, values: Mapping[int, int]) -> None:
        self.typing, self.values = typing, dict(values)
        self.known: dict[Affine, int] = {}

    def size(self, expr: Affine) -> int:
        """The value of a size expression."""
        if not expr.terms:
            return int(expr.constant)
        if (found := self.known.get(expr)) is None:
            found = self.known[expr] = int(expr.at(self.values))
        return found

    def shape(self, typed: Typed) -> tuple[int, ...]:
        """The concrete shape of a typed term."""
        return tuple(map(self.size, typed.sizes))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tensor variables."""
        return {n: self.shape(t) for n, t in self.typing.inputs.items()}

    @property
    def volume(self) -> int:
        """Number of elements of the largest tensor among the rule's sides and variables."""
        return max(prod(self.shape(t)) for t in (*self.typing.terms, *self.typing.inputs.values()))

    @property
    def work(self) -> int:
        """Evaluation cost: total number of elements of all values, times window sizes."""
        return sum(prod(self.shape(t)) * self._window(t) for t in subterms(self.typing.terms))

    def _window(self, typed: Typed) -> int:
        if typed.op == "conv2d":
            return prod(self.shape(typed.args[1])[1:])
        return typed.params["kernel_h"] * typed.params["kernel_w"] if typed.op in ("poolmax", "poolavg") else 1

    def sides(self, dtype: str = "float32") -> list[tuple[Tensor, Tensor]]:
        """(left, right) of each pair of sides as tensors of the dtype; a variable is the same input in all of them.
        Raises ShapeError if the shapes do not fit."""
        return [(self.build(a, dtype), self.build(b, dtype)) for a, b in self.typing.pairs]

    def lefts(self, dtype: str = "float32") -> list[Tensor]:
        """Tensors of the rule's left sides, over one input per variable."""
        n = len(self.typing.pairs) or len(self.typing.terms)
        return [self.build(t, dtype) for t in self.typing.terms[:n]]

    def build(self, typed: Typed, dtype: str = "float32") -> Tensor:
        """Build the tensor of a typed term; raises ShapeError if its shape is not that of the typed term."""
        found = _BUILD[typed.op](self, typed, [self.build(a, dtype) for a in typed.args], dtype)
        if tuple(found.shape) != self.shape(typed):
            raise ShapeError(f"{typed.op} has shape {found.shape}, not {self.shape(typed)}")
        return found

    def pads(self, kernel: Sequence[int], pad: int) -> tuple[int, ...]:
        """Padding of a two-dimensional window of the sizes `kernel`: (before, before, after, after); `pad` is TASO's
        mode: 1 none, 0 "same"."""
        if pad == 1:
            return (0,) * 4
        low = [(k - 1) // 2 for k in kernel]
        return (*low, *(k - 1 - p for k, p in zip(kernel, low)))

    def __str__(self) -> str:
        shown = [f"?{n}: {list(s)}" for n, s in self.shapes.items()]
        return "; ".join([*shown, *(f"?{n} = {v}" for n, v in self.typing.attrs.items())])


# ---------------------------------------------------------------- operators as tensors
def _activated(found: Tensor, typed: Typed) -> Tensor:
    activation: Callable[[Tensor], Tensor] = ACTIVATIONS[typed.params.get("act", 0)]
    return activation(found)


def _conv(at: TextInstance, typed: Typed, args: list[Tensor], dtype: str) -> Tensor:
    p, kernel = typed.params, at.shape(typed.args[1])[2:]
    attrs = {"strides": (p["stride_h"], p["stride_w"]), "pads": at.pads(kernel, p["pad"]), "dilations": (1, 1),
             "groups": p["groups"]}  # fmt: skip
    return _activated(make("conv", args, attrs), typed)


def _pooled(at: TextInstance, typed: Typed, args: list[Tensor], dtype: str) -> Tensor:
    p = typed.params
    kernel = (p["kernel_h"], p["kernel_w"])
    attrs = {
        "kernel": kernel,
        "strides": (p["stride_h"], p["stride_w"]),
        "pads": at.pads(kernel, p["pad"]),
        "dilations": (1, 1),
    }
    return _activated(make({"poolmax": "max_pool", "poolavg": "avg_pool"}[typed.op], args, attrs), typed)


def _split(at: TextInstance, typed: Typed, args: list[Tensor], dtype: str) -> Tensor:
    axis, cut = typed.params["axis"], at.size(typed.numbers["cut"])
    first = typed.op == "split_0"
    stop = cut if first else args[0].shape[axis]
    return make("slice", args, {"axis": axis, "start": 0 if first else cut, "stop": stop, "step": 1})


def _enlarge(at: TextInstance, typed: Typed, args: list[Tensor], dtype: str) -> Tensor:
    found = args[0]
    for axis, name in ((2, "h"), (3, "w")):
        low, high = (at.size(typed.numbers[side + name]) for side in ("before_", "after_"))
        if low + high:
            found = make("pad", (found,), {"axis": axis, "lo": low, "hi": high, "value": 0.0})
    return found


def eye_kernel(n: int, h: int, w: int) -> np.ndarray[Any, Any]:
    """The identity kernel [n, n, h, w] under "same" padding."""
    found = np.zeros((n, n, h, w))
    found[range(n), range(n), (h - 1) // 2, (w - 1) // 2] = 1
    return found


def _pool_kernel(at: TextInstance, typed: Typed, args: list[Tensor], dtype: str) -> Tensor:
    n, _, h, w = at.shape(typed)
    each = np.broadcast_to(np.eye(n)[:, :, None, None], (n, n, h, w)).astype(dtype)
    return make("mul", (constant(each), api.full((1, 1, 1, 1), 1.0 / (h * w), dtype)))


def _merged(at: TextInstance, typed: Typed, args: list[Tensor], dtype: str) -> Tensor:
    count, (w,) = typed.params["count"], args
    rows, per = w.shape[0] // count, w.shape[1]
    parts = []
    for i in range(count):
        part = make("slice", (w,), {"axis": 0, "start": i * rows, "stop": (i + 1) * rows, "step": 1})
        part = make("pad", (part,), {"axis": 1, "lo": i * per, "hi": (count - 1 - i) * per, "value": 0.0})
        parts.append(part)
    return api.concat(parts, 0)


def _scaled(at: TextInstance, typed: Typed, args: list[Tensor], dtype: str) -> Tensor:
    x, factor = args
    return make("mul", (x, api.with_rank(factor, x.rank)))


def _scalar(at: TextInstance, typed: Typed, args: list[Tensor], dtype: str) -> Tensor:
    return api.full((), typed.params["value"], dtype)


_BUILD: dict[str, Callable[[TextInstance, Typed, list[Tensor], str], Tensor]] = {
    "input": lambda at, t, a, d: api.input(t.params["name"], at.shape(t), d),
    "number": _scalar,
    "ewadd": lambda at, t, a, d: make("add", a),
    "ewmul": lambda at, t, a, d: make("mul", a),
    "smul": _scaled,
    "relu": lambda at, t, a, d: composite.relu(*a),
    "tanh": lambda at, t, a, d: api.tanh(*a),
    "sigmoid": lambda at, t, a, d: composite.sigmoid(*a),
    "matmul": lambda at, t, a, d: _activated(make("matmul", a), t),
    "conv2d": _conv,
    "poolmax": _pooled,
    "poolavg": _pooled,
    "concat": lambda at, t, a, d: make("concat", a, {"axis": t.params["axis"]}),
    "split_0": _split,
    "split_1": _split,
    "transpose": lambda at, t, a, d: make("permute", a, {"perm": t.params["perm"]}),
    "enlarge": _enlarge,
    "merge": _merged,
    "reshape": lambda at, t, a, d: make("reshape", a, {"shape": t.params["shape"]}),
    "batchnorm": lambda at, t, a, d: make("batch_norm", a),
    "Iconv": lambda at, t, a, d: constant(eye_kernel(*at.shape(t)[1:]).astype(d)),
    "Cpool": _pool_kernel,
    "Imatmul": lambda at, t, a, d: constant(np.eye(at.shape(t)[0], dtype=d)),
    "Iewmul": lambda at, t, a, d: api.ones(at.shape(t), d),
}


__all__ = ["ACTIVATIONS", "TextInstance", "eye_kernel"]
