"""Holds simplification rules of views: reshape, broadcast, permute, slice, concat, pad, flip, windows, gather."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ir.tensor import Tensor, make
from ..types.dims import Dim, volume
from .fills import fill, number, same_fill
from .positions import reshaped
from .simplifier import Simplifier


def simplify_shape(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """A simpler reshape or broadcast: no-ops dropped, folded into fills and iotas, only the last of two kept.

    None if nothing changes.
    """
    (x,), shape = args, attrs["shape"]
    if x.shape == shape:
        return x
    if x.op == "full":
        return fill(shape, x.attr("value"), x.dtype)
    if x.op == "iota" and op == "reshape":
        return reshaped(x, shape)
    return s.build(op, x.args, attrs) if x.op == op else None


def simplify_permute(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """One permutation in place of two; a reshape if the order of all axes longer than 1 stays.

    None if nothing changes.
    """
    (x,), perm = args, attrs["perm"]
    if perm == tuple(range(len(perm))):
        return x
    shape = tuple(x.shape[p] for p in perm)
    if x.op == "full":
        return fill(shape, x.attr("value"), x.dtype)
    if x.op == "permute":
        inner = x.attr("perm")
        return s.build("permute", x.args, {"perm": tuple(inner[p] for p in perm)})
    moved = [p for p in perm if x.shape[p] != 1]
    return s.build("reshape", (x,), {"shape": shape}) if moved == sorted(moved) else None


def _ints(*values: Dim) -> bool:
    return all(isinstance(v, int) for v in values)


def simplify_slice(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """A simpler slice of a slice, of one side of a concat, of padding, of a broadcast or of a fill.

    None if nothing changes.
    """
    (x,), axis, start, stop, step = args, attrs["axis"], attrs["start"], attrs["stop"], attrs["step"]
    size = x.shape[axis]
    if start == 0 and stop == size and step == 1:
        return x
    shape = make(op, args, attrs).shape
    if x.op == "full":
        return fill(shape, x.attr("value"), x.dtype)
    if x.op == "broadcast_to" and x.args[0].shape[axis] == 1:
        return s.build("broadcast_to", x.args, {"shape": shape})
    if x.op == "iota" and (x.attr("axis") != axis or (start == 0 and step == 1)):
        return make("iota", (), {**dict(x.attrs), "shape": shape})
    if not _ints(size, start, stop) or not _ints(*shape[axis : axis + 1]):
        return None
    last = start + (shape[axis] - 1) * step  # index of the last element taken; there is at least one
    if stop != last + 1:
        return s.build("slice", args, {**attrs, "stop": last + 1})
    if step != 1 and shape[axis] == 1:
        return s.build("slice", args, {**attrs, "step": 1})
    inner = _SLICED.get(x.op)
    return inner(s, x, axis, start, last, step) if inner and x.attr("axis") == axis else None


def _slice_of_slice(s: Simplifier, x: Tensor, axis: int, start: int, last: int, step: int) -> Tensor | None:
    """One slice in place of two nested ones."""
    first, by = x.attr("start"), x.attr("step")
    if not _ints(first):
        return None
    return s.build("slice", x.args, {"axis": axis, "start": first + start * by, "stop": first + last * by + 1,
                                     "step": step * by})  # fmt: skip


def _slice_of_concat(s: Simplifier, x: Tensor, axis: int, start: int, last: int, step: int) -> Tensor | None:
    """A slice within one side of a concat as a slice of that side."""
    left, right = x.args
    seam = left.shape[axis]
    if not isinstance(seam, int) or last >= seam > start:
        return None
    shift = 0 if last < seam else seam
    attrs = {"axis": axis, "start": start - shift, "stop": last + 1 - shift, "step": step}
    return s.build("slice", (right if shift else left,), attrs)


def _slice_of_pad(s: Simplifier, x: Tensor, axis: int, start: int, last: int, step: int) -> Tensor | None:
    """A slice within the padding as a fill; a slice within the data as a slice of the operand."""
    (data,), lo = x.args, x.attr("lo")
    size = data.shape[axis]
    if not _ints(lo, size):
        return None
    if last < lo or start >= lo + size:
        shape = list(x.shape)
        shape[axis] = (last - start) // step + 1
        return fill(tuple(shape), x.attr("value"), x.dtype)
    if start >= lo and last < lo + size:
        return s.build("slice", (data,), {"axis": axis, "start": start - lo, "stop": last + 1 - lo, "step": step})
    return None


_SLICED: dict[str, Callable[[Simplifier, Tensor, int, int, int, int], Tensor | None]] = {
    "slice": _slice_of_slice,
    "concat": _slice_of_concat,
    "pad": _slice_of_pad,
}


def simplify_concat(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """A concat without empty parts; adjacent slices of one value, and equal fills, are merged.

    None if nothing changes.
    """
    (x, y), axis = args, attrs["axis"]
    for part, other in ((x, y), (y, x)):
        if part.shape[axis] == 0:
            return other
    if x.op == y.op == "full" and same_fill(x, y):
        return fill(make(op, args, attrs).shape, x.attr("value"), x.dtype)
    if x.op == y.op == "slice" and x.args == y.args and x.attr("axis") == y.attr("axis") == axis:
        if x.attr("step") == y.attr("step") == 1 and x.attr("stop") == y.attr("start"):
            return s.build("slice", x.args, {**dict(x.attrs), "stop": y.attr("stop")})
    return None


def simplify_pad(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """Padding without 0 elements; a fill extended by its own value; nested padding along one axis merged.

    None if nothing changes.
    """
    (x,), axis, lo, hi, value = args, attrs["axis"], attrs["lo"], attrs["hi"], attrs["value"]
    if lo == 0 and hi == 0:
        return x
    if x.op == "full" and same_fill(x, fill(x.shape, value, x.dtype)):
        return fill(make(op, args, attrs).shape, x.attr("value"), x.dtype)
    if (
        x.op == "pad"
        and x.attr("axis") == axis
        and same_fill(*(fill((), v, "float64") for v in (value, x.attr("value"))))
    ):
        return s.build("pad", x.args, {**attrs, "lo": lo + x.attr("lo"), "hi": hi + x.attr("hi")})
    return None


def simplify_flip(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """The operand of two flips along one axis; None otherwise."""
    (x,) = args
    return x.args[0] if x.op == "flip" and x.attr("axis") == attrs["axis"] else None


def simplify_windows(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """A reshape in place of windows of one element; None for larger windows."""
    (x,) = args
    plain = attrs["size"] == 1 and attrs["stride"] == 1
    return s.build("reshape", (x,), {"shape": (*x.shape, 1)}) if plain else None


def simplify_gather(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """A fill for a gather from a fill; for constant indices a slice, or a concat of slices for a few consecutive runs.

    None if nothing changes.
    """
    x, index = args
    shape = make(op, args, attrs).shape
    if x.op == "full" and volume(x.shape) != 0:
        return fill(shape, x.attr("value"), x.dtype)
    at, axis = number(index), attrs["axis"]
    if not isinstance(x.shape[axis], int):
        return None
    if index.rank == 1 and isinstance(index.shape[0], int) and (index.data is not None or index.op == "iota"):
        places = np.arange(index.shape[0]) if index.data is None else index.data
        return _runs(s, x, axis, np.clip(places, 0, x.shape[axis] - 1).tolist())
    if at is None or volume(index.shape) != 1:
        return None
    spot = min(max(int(at), 0), x.shape[axis] - 1)
    piece = s.build("slice", (x,), {"axis": axis, "start": spot, "stop": spot + 1})
    return s.build("reshape", (piece,), {"shape": shape})


RUNS = 3  # largest number of consecutive index runs for which a gather becomes slices


def _runs(s: Simplifier, x: Tensor, axis: int, places: Sequence[int]) -> Tensor | None:
    """A gather at constant indices as a concat of slices (for example the component rotations of a cross product)."""
    starts = [n for n in range(len(places)) if n == 0 or places[n] != places[n - 1] + 1]
    if not 0 < len(starts) <= RUNS:
        return None
    runs = [(places[a], places[b - 1] + 1) for a, b in zip(starts, [*starts[1:], len(places)])]
    found, *more = (s.build("slice", (x,), {"axis": axis, "start": a, "stop": b}) for a, b in runs)
    for piece in more:
        found = s.build("concat", (found, piece), {"axis": axis})
    return found


__all__ = [
    "RUNS",
    "simplify_concat",
    "simplify_flip",
    "simplify_gather",
    "simplify_pad",
    "simplify_permute",
    "simplify_shape",
    "simplify_slice",
    "simplify_windows",
]
