"""Functions that build the graph of a NumPy call on traced arrays: layout, indices, sorting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import index
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.builders.numpy_indexing import from_end, getitem
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.axes import axis_of
from ...egraph.types.dims import Dim, volume
from ...errors import TraceError
from ..torch_export import aten_create, aten_views
from ..torch_export import aten_layout as layout
from ..torch_export.aten_reduce import arg, sort
from .numpy_builders import Axes, Build, ints


def _order(rank: int, order: Any) -> None:
    """Check the order in which the elements of an array of `rank` axes are read. Raises TraceError if it may differ
    from row-major order, as "F" does, and "A" and "K" for some arrays of the caller.
    """
    if order not in ("C", None) and (rank > 1 or order not in ("F", "A", "K")):
        raise TraceError(
            f"the memory order {order!r} cannot be traced", hint="order='C', and .T where elements are to move"
        )


def _reshape(a: Tensor, shape: Any, order: str = "C", copy: Any = None) -> Tensor:
    sizes = ints(shape)
    _order(max(a.rank, len(sizes)) if order == "F" else a.rank, order)
    return t.reshape(a, sizes)


def _ravel(a: Tensor, order: str = "C") -> Tensor:
    _order(a.rank, order)
    return t.reshape(a, (volume(a.shape),))


def _transpose(a: Tensor, axes: Any = None) -> Tensor:
    return t.permute(a, tuple(reversed(range(a.rank))) if axes is None else ints(axes))


def _moveaxis(a: Tensor, source: Any, destination: Any) -> Tensor:
    from_, to = ([axis_of(v, a.rank) for v in ints(vs)] for vs in (source, destination))
    order = [i for i in range(a.rank) if i not in from_]
    for place, axis in sorted(zip(to, from_, strict=True)):
        order.insert(place, axis)
    return t.permute(a, order)


def _rollaxis(a: Tensor, axis: int, start: int = 0) -> Tensor:
    axis, start = axis_of(axis, a.rank), start + a.rank if start < 0 else start
    order = [i for i in range(a.rank) if i != axis]
    order.insert(start - 1 if axis < start else start, axis)
    return t.permute(a, order)


def _expand_dims(a: Tensor, axis: Any) -> Tensor:
    axes = ints(axis)
    for place in sorted(axis_of(v, a.rank + len(axes)) for v in axes):
        a = t.expand_dims(a, place)
    return a


def _flip(m: Tensor, axis: Axes = None) -> Tensor:
    return layout.flip(m, range(m.rank) if axis is None else [axis_of(v, m.rank) for v in ints(axis)])


def _sliding_window_view(x: Tensor, window_shape: Any, axis: Axes = None) -> Tensor:
    sizes = ints(window_shape)
    if 0 in sizes:
        raise TraceError("windows without elements", hint="a window of one element at least")
    axes = range(x.rank) if axis is None else [axis_of(v, x.rank) for v in ints(axis)]
    for place, size in zip(axes, sizes, strict=True):
        x = t.windows(x, place, size)  # the elements of a window become a new last axis
    return x


def _rot90(m: Tensor, k: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    a, b = (axis_of(v, m.rank) for v in axes)
    turned = {0: lambda: m, 1: lambda: t.swapaxes(t.flip(m, b), a, b), 2: lambda: t.flip(t.flip(m, a), b),
              3: lambda: t.flip(t.swapaxes(m, a, b), b)}  # fmt: skip
    return turned[k % 4]()


def _roll(a: Tensor, shift: Any, axis: Any = None) -> Tensor:
    if axis is None:
        return layout.roll(a, int(np.sum(shift)), ())
    moves, axes = np.broadcast_arrays(ints(shift), ints(axis))
    return layout.roll(a, moves.tolist(), [axis_of(v, a.rank) for v in axes.tolist()])


def _tile(A: Tensor, reps: Any) -> Tensor:
    factors = ints(reps)
    return layout.repeat(A, [1] * (A.rank - len(factors)) + factors)


def _repeat(a: Tensor, repeats: Any, axis: Any = None) -> Tensor:
    if axis is None:
        a, axis = t.reshape(a, (volume(a.shape),)), 0
    counts = np.asarray(repeats)
    if counts.ndim == 0 or counts.size == 1:
        return layout.repeat_interleave(a, int(counts.reshape(())), axis)
    return t.gather(a, t.constant(np.repeat(np.arange(int(a.shape[axis])), counts)), axis)


def _pieces(size: Dim, count: int, even: bool) -> list[Dim]:
    if not isinstance(size, int) or count < 1 or (even and size % count):
        raise TraceError(f"{size} elements do not make {count} equal pieces")
    return [size // count + (i < size % count) for i in range(count)]


def _split(even: bool, along: Callable[[int], int] | None = None) -> Build:
    def build(ary: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
        axis = axis_of(axis, ary.rank) if along is None else along(ary.rank)
        size = ary.shape[axis]
        if isinstance(indices_or_sections, int | np.integer):
            return t.split(ary, _pieces(size, int(indices_or_sections), even), axis)
        places = [0, *(int(v) for v in indices_or_sections), None]
        return [getitem(ary, (*[slice(None)] * axis, slice(a, b))) for a, b in pairwise(places)]

    return build


def _pad(array: Tensor, pad_width: Any, mode: str = "constant", constant_values: Any = 0) -> Tensor:
    if isinstance(pad_width, dict) or not isinstance(constant_values, int | float):
        raise TraceError("np.pad with a value for each side cannot be traced", hint="one number for all")
    widths = np.broadcast_to(np.asarray(pad_width, dtype=np.int64), (array.rank, 2)).tolist()
    flat = [v for pair in reversed(widths) for v in pair]
    if mode == "constant":
        padded = np.pad(np.zeros(1, dtypes.numpy_dtype(array.dtype)), 1, constant_values=constant_values)
        return layout.constant_pad(array, flat, padded[0].item())  # in the array's dtype: 65535 for -1
    if mode not in ("edge", "reflect", "wrap", "symmetric"):
        raise TraceError(
            f"np.pad with mode={mode!r} cannot be traced", hint="constant, edge, reflect, symmetric or wrap"
        )
    return layout.edge_pad(mode)(array, flat)


def _take_along(arr: Tensor, indices: Any, axis: int | None = -1) -> Tensor:
    x, index = arr, t.as_tensor(indices)
    if axis is None:
        x, axis = t.reshape(x, (volume(x.shape),)), 0
    along = axis_of(axis, x.rank)
    index = from_end(index, x.shape[along])
    if index.rank != x.rank:
        raise TraceError(f"np.take_along_axis takes indices of the array's rank {x.rank}, not of rank {index.rank}")
    sides = [i if j == 1 else j for i, j in zip(x.shape, index.shape)]  # the axes other than `axis` broadcast
    wide = t.broadcast_to(x, [d if a == along else s for a, (d, s) in enumerate(zip(x.shape, sides))])
    places = t.broadcast_to(index, [index.shape[along] if a == along else s for a, s in enumerate(sides)])
    return t.gather_elements(wide, places, along)


def _extreme_place(build: Build) -> Build:
    find = arg(build)

    def run(a: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
        if axis is not None:
            axis = axis_of(axis, a.rank)
        if 0 in (a.shape if axis is None else a.shape[axis : axis + 1]):
            raise TraceError("argmax and argmin of no elements are not defined")
        return find(_comparable(a), axis, keepdims)

    return run


def _comparable(a: Tensor) -> Tensor:
    return t.cast(a, "uint8") if a.dtype == "bool" else a


def _sort(position: int) -> Build:
    def build(a: Tensor, axis: int | None = -1, kind: Any = None, stable: Any = None) -> Tensor:
        if position and not stable and kind not in ("stable", "mergesort"):
            kind = "stable"  # NumPy's default order of equal elements is undefined
        x, axis = (t.reshape(a, (volume(a.shape),)), 0) if axis is None else (a, axis)
        return sort(x, axis_of(axis, x.rank))[position]

    return build


def _diagonal(a: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    return aten_views.diagonal(a, offset, axis1, axis2)


def _diag(v: Tensor, k: int = 0) -> Tensor:
    if v.rank == 2:
        return aten_views.diagonal(v, k)
    size = int(v.shape[0]) + abs(k)  # type: ignore[arg-type]
    line = t.pad(v, [(max(k, 0), max(-k, 0))])
    mask = np.eye(size, k=k, dtype=bool)
    rows = t.reshape(line, (1, size))
    return t.where(t.constant(mask), rows, t.full((1, 1), 0, v.dtype))


def _triangle(build: Callable[..., Tensor]) -> Build:
    return lambda m, k=0: build(m, index(k))


def _at_least(rank: int) -> Build:
    def one(x: Any) -> Tensor:
        x = t.as_tensor(x)
        if rank == 3 and x.rank in (1, 2):
            return t.reshape(x, (1, *x.shape, 1) if x.rank == 1 else (*x.shape, 1))
        return t.reshape(x, (1,) * max(rank - x.rank, 0) + x.shape)

    return lambda *arys: one(arys[0]) if len(arys) == 1 else tuple(one(x) for x in arys)


def _broadcast_arrays(*args: Any) -> tuple[Tensor, ...]:
    parts = [t.as_tensor(x) for x in args]
    shape = np.broadcast_shapes(*(p.shape for p in parts))  # type: ignore[arg-type]
    return tuple(t.broadcast_to(p, shape) for p in parts)


def _unstack(x: Tensor, axis: int = 0) -> tuple[Tensor, ...]:
    return tuple(aten_views.unbind(x, axis_of(axis, x.rank)))


#: Builders over expressions. The results have the operand's dtype or are indices.
LAYOUT: dict[str, Build] = {
    "reshape": _reshape, "ravel": _ravel, "transpose": _transpose, "matrix_transpose": t.transpose,
    "linalg.matrix_transpose": t.transpose, "swapaxes": lambda a, axis1, axis2: t.swapaxes(a, axis1, axis2),
    "moveaxis": _moveaxis, "rollaxis": _rollaxis, "expand_dims": _expand_dims,
    "squeeze": lambda a, axis=None: t.squeeze(a, axis), "broadcast_to": lambda array, shape: t.broadcast_to(array, ints(shape)),
    "broadcast_arrays": _broadcast_arrays, "flip": _flip, "fliplr": lambda m: t.flip(m, 1), "flipud": lambda m: t.flip(m, 0),
    "lib.stride_tricks.sliding_window_view": _sliding_window_view, "rot90": _rot90, "roll": _roll, "tile": _tile, "repeat": _repeat, "split": _split(True), "array_split": _split(False),
    "hsplit": _split(True, lambda rank: 1 if rank > 1 else 0), "vsplit": _split(True, lambda rank: 0),
    "dsplit": _split(True, lambda rank: 2), "unstack": _unstack, "pad": _pad, "tril": _triangle(aten_create.tril),
    "triu": _triangle(aten_create.triu), "diagonal": _diagonal, "diag": _diag,
    "linalg.diagonal": lambda x, offset=0: aten_views.diagonal(x, offset, -2, -1), "take_along_axis": _take_along,
    "argmax": _extreme_place(t.argmax), "argmin": _extreme_place(t.argmin), "sort": _sort(0), "argsort": _sort(1),
    "atleast_1d": _at_least(1), "atleast_2d": _at_least(2), "atleast_3d": _at_least(3),
}  # fmt: skip
