"""Functions that translate ONNX layout and fill operators: shapes, slices, concatenation, padding, ranges."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import Dim, DimExpr, concrete, volume
from ...errors import ShapeError
from .node import Node, Result, operator, resolve
from .shapes import bounds


@operator("Constant", limits="strings, sparse values")
def _constant(n: Node) -> Result:
    if len(n.attrs) != 1:
        raise ShapeError(f"a constant of {len(n.attrs)} values: {', '.join(n.attrs)}")
    for name in ("value_float", "value_floats", "value_int", "value_ints"):
        if name in n.attrs:
            return n.context.constant(np.asarray(n.attrs[name], np.float32 if "float" in name else np.int64))
    if "value" not in n.attrs:
        raise n.unsupported("sparse or string value")
    found: Tensor = n.attrs["value"]
    return found


@operator("Shape")
def _shape(n: Node) -> Result:
    shape = n.x().shape
    rank = len(shape)
    return n.context.value(list(shape[n.attr("start", 0) : n.attr("end", rank)]))


@operator("Size")
def _size(n: Node) -> Result:
    return n.context.value(volume(n.x().shape))


@operator("Reshape")
def _reshape(n: Node) -> Result:
    x = n.x()
    asked = list(n.dims(1))
    if not n.attr("allowzero", 0):
        for i, d in enumerate(asked):
            if isinstance(d, int) and d == 0:
                if i >= x.rank:
                    raise ShapeError(f"the 0 at position {i} copies an axis that {x.type} does not have")
                asked[i] = x.shape[i]
    if sum(isinstance(d, int) and d == -1 for d in asked) > 1:
        raise ShapeError(f"{tuple(asked)} has more than one -1")
    y = t.reshape(x, asked)
    return t.full(y.shape, x.attr("value"), x.dtype) if x.op == "full" else y


@operator("Flatten")
def _flatten(n: Node) -> Result:
    x, axis = n.x(), n.attr("axis", 1)
    if not -x.rank <= axis <= x.rank:
        raise ShapeError(f"axis {axis} is outside a rank-{x.rank} value")
    axis = axis + x.rank if axis < 0 else axis
    return t.reshape(x, (volume(x.shape[:axis]), volume(x.shape[axis:])))


@operator("Squeeze")
def _squeeze(n: Node) -> Result:
    x = n.x()
    axes = n.axes(1, x.rank)
    if axes is None:
        if any(isinstance(d, DimExpr) for d in x.shape):
            raise n.unsupported("no axes, with free dimensions")
        return t.squeeze(x)
    if any(x.shape[a] != 1 for a in axes):
        raise ShapeError(f"axes {axes} of {x.type} are not all of size 1")
    return t.squeeze(x, axes) if axes else x


@operator("Unsqueeze")
def _unsqueeze(n: Node) -> Result:
    x = n.x()
    count = len(n.attr("axes") if "axes" in n.attrs else n.ints(1))
    axes = n.axes(1, x.rank + count)
    assert axes is not None
    rest = iter(x.shape)
    return t.reshape(x, [1 if i in axes else next(rest) for i in range(x.rank + count)])


@operator("Transpose")
def _transpose(n: Node) -> Result:
    x = n.x()
    return t.permute(x, n.attr("perm", list(reversed(range(x.rank)))))


def two_way(have: tuple[Dim, ...], asked: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Return the broadcast shape of the shapes `have` and `asked`, aligned at the last axis."""
    rank = max(len(have), len(asked))
    pairs = zip((1,) * (rank - len(have)) + have, (1,) * (rank - len(asked)) + asked)
    return tuple(b if a == 1 else a for a, b in pairs)


@operator("Expand")
def _expand(n: Node) -> Result:
    x = n.x()
    shape = two_way(x.shape, n.dims(1))
    if two_way(n.dims(1), x.shape) != shape:
        raise ShapeError(f"{x.type} does not broadcast with {n.dims(1)}")
    return t.full(shape, x.attr("value"), x.dtype) if x.op == "full" else t.broadcast_to(x, shape)


@operator("Tile")
def _tile(n: Node) -> Result:
    x = n.x()
    repeats = n.dims(1)
    if len(repeats) != x.rank:
        raise ShapeError(f"there are {len(repeats)} repeats, but the value has rank {x.rank}")
    split: list[Dim] = [d for pair in zip([1] * x.rank, x.shape) for d in pair]
    wide = [d for pair in zip(repeats, x.shape) for d in pair]
    if all(r == 1 for r in repeats):
        return x
    return t.reshape(t.broadcast_to(t.reshape(x, split), wide), [r * d for r, d in zip(repeats, x.shape)])


@operator("Concat")
def _concat(n: Node) -> Result:
    parts = n.tensors()
    return t.concat(parts, resolve(n.attr("axis"), parts[0].rank))


@operator("Split", limits="sizes that depend on data")
def _split(n: Node) -> Result:
    x = n.x()
    axis = n.axis(0, x.rank)
    size = x.shape[axis]
    sizes: list[Dim]
    if n.has(1) or "split" in n.attrs:  # an attribute before opset 13
        sizes = list(n.dims(1)) if n.has(1) else list(n.attr("split"))
    else:
        count = len(n.outputs)
        if n.attr("num_outputs", count) != count:
            raise ShapeError(f"num_outputs={n.attr('num_outputs')} of a node with {count} outputs")
        piece = (size + count - 1) // count
        if isinstance(size, int) and isinstance(piece, int) and piece * (count - 1) > size:
            raise ShapeError(f"{size} elements do not make {count} pieces of {piece}, the last of which may be smaller")
        sizes = [piece] * (count - 1)
        sizes.append(size - piece * (count - 1))
    if len(sizes) < len(n.outputs) or (all(isinstance(d, int) for d in (*sizes, size)) and sum(sizes) != size):
        raise ShapeError(f"the pieces have sizes {sizes}, which do not add up to the {size} elements of the axis")
    return t.split(x, sizes, axis)


def _bound(value: Dim, size: Dim) -> Dim:
    """Clamp a slice bound (step >= 1) to 0..size.

    A comparison undecided for free dimensions is left to `dims` binding.
    """
    if bounds(value)[1] < 0:
        value = value + size
        return 0 if bounds(value)[1] < 0 else value
    return size if bounds(value - size)[0] >= 0 else value


def slice_any(x: Tensor, axis: int, start: Dim, end: Dim, step: int) -> Tensor:
    """Slice of x along one axis as ONNX defines it, with negative bounds and steps.

    Raises ShapeError for a negative step along a free dimension, unless it reverses the whole axis.
    """
    size = x.shape[axis]
    if all(isinstance(d, int) for d in (start, end, size)):
        count, first, last = concrete((size, start, end))
        if step < 0 and first < -count:  # Python's slice is empty here, ONNX starts at the first element
            first = 0
        picked = range(count)[slice(first, last, step)]
        if not len(picked):
            return t.slice_axis(x, axis, 0, 0)
        if step > 0:
            return t.slice_axis(x, axis, picked[0], picked[-1] + 1, step)
        return t.flip(t.slice_axis(x, axis, picked[-1], picked[0] + 1, -step), axis)
    if step > 0:
        low, high = _bound(start, size), _bound(end, size)
        empty = bounds(high - low)[1] <= 0
        return t.slice_axis(x, axis, 0, 0) if empty else t.slice_axis(x, axis, low, high, step)
    whole = bounds(start - size)[0] >= -1 or start == -1
    if step == -1 and whole and bounds(end + size)[1] < 0:
        return t.flip(x, axis)
    raise ShapeError(f"a slice {start}:{end}:{step} of a free dimension", hint="give its size: dims={...}")


@operator("Slice", limits="bounds that depend on data")
def _slice(n: Node) -> Result:
    x = n.x()
    starts, ends = n.dims(1), n.dims(2)
    axes = [resolve(a, x.rank) for a in (n.ints(3) if n.has(3) else range(len(starts)))]
    steps = n.ints(4) if n.has(4) else (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps or len(set(axes)) != len(axes):
        raise ShapeError(f"slice of {len(starts)} starts, {len(ends)} ends, axes {axes}, steps {steps}")
    for axis, start, end, step in zip(axes, starts, ends, steps):
        x = slice_any(x, axis, start, end, step)
    return x


@operator("Pad", limits="fill value or widths that depend on data")
def _pad(n: Node) -> Result:
    x = n.x()
    widths = n.dims(1)
    axes = n.axes(3, x.rank) or tuple(range(x.rank))
    if len(widths) != 2 * len(axes):
        raise ShapeError(f"{len(widths)} pad widths for {len(axes)} axes")
    value = n.array(2).item() if n.has(2) and n.known(2) is not None and n.array(2).size else 0
    if n.has(2) and n.known(2) is None:
        raise n.unsupported("fill value depends on data")
    for i, axis in enumerate(axes):
        x = _pad_axis(n, x, axis, widths[i], widths[len(axes) + i], value)
    return x


def _pad_axis(n: Node, x: Tensor, axis: int, lo: Dim, hi: Dim, value: Any) -> Tensor:
    mode: Any = n.choice("mode", "constant", "reflect", "edge", "wrap")
    start, stop = (-d if isinstance(d, int) and d < 0 else 0 for d in (lo, hi))
    if start or stop:  # negative widths crop
        x = t.slice_axis(x, axis, start, x.shape[axis] - stop)
        lo, hi = (0 if start else lo), (0 if stop else hi)
    if mode == "constant":
        return t.pad(x, [(lo, hi) if i == axis else (0, 0) for i in range(x.rank)], value)
    if (lo, hi) == (0, 0):
        return x
    size = x.shape[axis]
    if any(isinstance(d, DimExpr) for d in (size, lo, hi)):
        raise n.unsupported(f"mode {mode} with free dimensions")
    count, before, after = concrete((size, lo, hi))
    n.context.check(t.zeros([count + before + after], "int64"))  # size check of the index array before it is created
    index = np.pad(np.arange(count), (before, after), mode=mode)
    return t.gather(x, n.context.constant(index), axis)


@operator("CenterCropPad")
def _center(n: Node) -> Result:
    x = n.x()
    asked = n.ints(1)
    axes = n.axes(9, x.rank) or tuple(range(x.rank))
    if len(asked) != len(axes) or any(d < 0 for d in asked):
        raise ShapeError(f"sizes {asked} for {len(axes)} axes")
    for axis, want in zip(axes, asked):
        have = x.shape[axis]
        if not isinstance(have, int):
            raise n.unsupported("free dimensions")
        if want <= have:
            start = (have - want) // 2
            x = t.slice_axis(x, axis, start, start + want)
        else:
            lo = (want - have) // 2
            x = t.pad(x, [(lo, want - have - lo) if i == axis else (0, 0) for i in range(x.rank)])
    return x


@operator("DepthToSpace")
def _depth_to_space(n: Node) -> Result:
    x, b = n.x(), n.attr("blocksize")
    batch, channels, height, width = x.shape
    if n.choice("mode", "DCR", "CRD") == "DCR":
        parts = t.permute(t.reshape(x, (batch, b, b, channels // (b * b), height, width)), (0, 3, 4, 1, 5, 2))
    else:
        parts = t.permute(t.reshape(x, (batch, channels // (b * b), b, b, height, width)), (0, 1, 4, 2, 5, 3))
    return t.reshape(parts, (batch, channels // (b * b), height * b, width * b))


@operator("SpaceToDepth")
def _space_to_depth(n: Node) -> Result:
    x, b = n.x(), n.attr("blocksize")
    batch, channels, height, width = x.shape
    parts = t.reshape(x, (batch, channels, height // b, b, width // b, b))
    order = (0, 3, 5, 1, 2, 4) if n.choice("mode", "DCR", "CRD") == "DCR" else (0, 1, 3, 5, 2, 4)
    return t.reshape(t.permute(parts, order), (batch, channels * b * b, height // b, width // b))


# ---------------------------------------------------------------- fills and ranges
@operator("ConstantOfShape", limits="shapes that depend on data")
def _constant_of_shape(n: Node) -> Result:
    value = n.attrs.get("value")
    found = np.zeros((), np.float32) if value is None else n.context.known(value)
    if found is None:
        raise n.unsupported("value of 4-bit integers")
    if found.size != 1:
        raise ShapeError(f"a fill with {found.size} values")
    return t.full(n.dims(0), found.reshape(-1)[0].item(), dtypes.name_of(found.dtype))


@operator("Range", limits="ends that depend on data")
def _range(n: Node) -> Result:
    start, limit, delta = (n.known(i) for i in range(3))
    if start is None or limit is None or delta is None:
        raise n.unsupported("ends depend on data")
    first, last, step = start.reshape(()).item(), limit.reshape(()).item(), delta.reshape(()).item()
    kind = next((v.dtype for v in (n.value(i) for i in range(3)) if isinstance(v, Tensor)), "int64")
    if any(isinstance(v, DimExpr) for v in (first, last, step)):
        if step != 1:
            raise n.unsupported("step with free dimensions")
        count: Dim = last - first
    else:
        if step == 0:
            raise ShapeError("a range with a step of 0")
        count = max(int(np.ceil((last - first) / step)), 0)
    line = t.arange(count, kind)
    line = line if step == 1 else t.mul(line, step)
    if isinstance(first, DimExpr):
        return t.add(line, t.cast(n.x(0), kind))
    return line if first == 0 else t.add(line, first)


@operator("EyeLike")
def _eye(n: Node) -> Result:
    x = n.x()
    if x.rank != 2:
        raise ShapeError(f"{x.type} is no matrix")
    kind = n.dtype("dtype") if "dtype" in n.attrs else x.dtype
    ahead = t.sub(t.iota(x.shape, 1), t.iota(x.shape, 0))
    return t.cast(t.eq(ahead, n.attr("k", 0)), kind)


@operator("Trilu", limits="k that depends on data")
def _trilu(n: Node) -> Result:
    x = n.x()
    (k,) = n.ints(1) if n.has(1) else (0,)
    shape = x.shape[-2:]
    ahead = t.sub(t.iota(shape, 1), t.iota(shape, 0))
    keep = t.ge(ahead, k) if n.attr("upper", 1) else t.le(ahead, k)
    return t.where(t.with_rank(keep, x.rank), x, t.zeros((1,) * x.rank, x.dtype))


__all__ = ["slice_any", "two_way"]
