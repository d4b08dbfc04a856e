"""Functions that translate ONNX pooling operators."""

from __future__ import annotations

from dataclasses import dataclass

from ...egraph.builders import builders as t
from ...egraph.composites import composite_ops as c
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import DimExpr, volume
from ...errors import ShapeError
from ..common.sizes import size_tensor
from .contract import same_pads, spatial
from .node import Node, Result, operator


@dataclass(frozen=True)
class _Window:
    """Pooling window: kernel, strides, dilations, explicit pads, and extra high padding from `ceil_mode`."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    pads: list[int]
    extra: list[int]

    @property
    def all_pads(self) -> list[int]:
        """Explicit pads plus the extra padding of ceil_mode."""
        n = len(self.kernel)
        return [*self.pads[:n], *(p + e for p, e in zip(self.pads[n:], self.extra))]

    def of(self, pads: list[int]) -> dict[str, list[int]]:
        """Return the attributes of the pooling ops."""
        return {"kernel": self.kernel, "strides": self.strides, "pads": pads, "dilations": self.dilations}


def _window(n: Node, x: Tensor) -> _Window:
    count = x.rank - 2
    kernel, strides, dilations = (spatial(n, name, count) for name in ("kernel_shape", "strides", "dilations"))
    pads = same_pads(n, x.shape[2:], kernel, strides, dilations)
    extra = [0] * count
    if n.attr("ceil_mode", 0):
        for i, size in enumerate(x.shape[2:]):
            if isinstance(size, DimExpr):
                raise n.unsupported("ceil_mode with a free dimension")
            room = size + pads[i] + pads[count + i] - (kernel[i] - 1) * dilations[i] - 1
            places = -(-room // strides[i]) + 1
            # the last window must start inside the input or its low padding
            if (places - 1) * strides[i] >= size + pads[i]:
                places -= 1
            extra[i] = max((places - 1) * strides[i] - room, 0)
    return _Window(kernel, strides, dilations, pads, extra)


def _average(n: Node, x: Tensor, w: _Window) -> Tensor:
    """Return the mean of each window over the counted elements (`count_include_pad`)."""
    mean = c.avg_pool(x, **w.of(w.all_pads))
    counted = [0] * len(w.pads) if n.attr("count_include_pad", 0) else w.pads
    if not any(counted) and not any(w.extra):
        return mean
    ones = t.ones((1, 1, *x.shape[2:]), x.dtype)
    if n.attr("count_include_pad", 0):  # explicit padding counts, extra padding of ceil_mode does not
        k = len(w.kernel)
        ones = t.pad(ones, [(0, 0), (0, 0), *((w.pads[i], w.pads[k + i]) for i in range(k))], 1.0)
        share = c.avg_pool(ones, **w.of([*([0] * k), *w.extra]))
    else:
        share = c.avg_pool(ones, **w.of(w.all_pads))
    return t.div(mean, share)


@operator("AveragePool")
def _average_pool(n: Node) -> Result:
    return _average(n, n.x(), _window(n, n.x()))


def _positions(n: Node, x: Tensor, w: _Window) -> Tensor:
    """Return the flat index in the whole input of each window's first maximum."""
    count = len(w.kernel)
    space = x.shape[2:]
    place = t.zeros((1,) * count, "int64")
    order = range(count) if n.attr("storage_order", 0) else reversed(range(count))
    stride = t.full((1,) * count, 1, "int64")
    for i in order:
        line = t.iota([space[i] if j == i else 1 for j in range(count)], i)
        place = t.add(place, t.mul(line, stride))
        stride = t.mul(stride, t.reshape(size_tensor(space[i]), (1,) * count))
    place = t.broadcast_to(t.reshape(place, (1, 1, *place.shape)), (1, 1, *space))
    values, places = x, place
    pads = w.all_pads
    widths = [(0, 0), (0, 0), *((pads[i], pads[count + i]) for i in range(count))]
    values, places = t.pad(values, widths, float("-inf")), t.pad(places, widths)
    for i in range(count):
        step = (2 + i, w.kernel[i], w.strides[i], w.dilations[i])
        values, places = t.windows(values, *step), t.windows(places, *step)
    flat = (*values.shape[: x.rank], volume(tuple(w.kernel)))
    values, places = t.reshape(values, flat), t.reshape(places, (1, 1, *flat[2:]))
    best = t.argmax(values, x.rank, True)
    inside = t.squeeze(t.gather_elements(t.broadcast_to(places, flat), best, x.rank), x.rank)
    start = t.iota(x.shape[:2], 1) + t.iota(x.shape[:2], 0) * t.reshape(size_tensor(x.shape[1]), (1, 1))
    base = t.mul(start, t.reshape(size_tensor(volume(space)), (1, 1)))
    return t.add(inside, t.reshape(base, (*x.shape[:2], *((1,) * count))))


@operator("MaxPool")
def _max_pool(n: Node) -> Result:
    kind = n.x().dtype
    x = n.x() if dtypes.is_float(kind) else t.cast(n.x(), "float32")
    w = _window(n, x)
    out = t.cast(c.max_pool(x, **w.of(w.all_pads)), kind)
    return [out, _positions(n, x, w)] if n.wanted(1) else out


def _root(fold: Tensor, p: int) -> Tensor:
    if p == 1:
        return fold
    return t.sqrt(fold) if p == 2 else t.pow(fold, 1.0 / p)


@operator("LpPool")
def _lp_pool(n: Node) -> Result:
    x, p = n.x(), n.attr("p", 2)
    w = _window(n, x)
    powers = t.square(x) if p == 2 else t.pow(t.abs(x), float(p))
    return _root(c.avg_pool(powers, **w.of(w.all_pads)) * float(str(volume(tuple(w.kernel)))), p)


@operator("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global(n: Node) -> Result:
    x = n.x()
    if x.rank < 3:
        raise ShapeError(f"{x.type} has no spatial axes")
    axes = tuple(range(2, x.rank))
    if n.op == "GlobalAveragePool":
        return t.mean(x, axes, True)
    if n.op == "GlobalMaxPool":
        return t.max(x, axes, True)
    p = n.attr("p", 2)
    powers = t.square(x) if p == 2 else t.pow(t.abs(x), float(p))
    return _root(t.sum(powers, axes, True), p)
