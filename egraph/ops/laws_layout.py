"""Holds type laws (rules for a result's shape and dtype, given the operands') of views and of ops that move elements:
reshape, permute, slice, concat, pad, windows, gather, scatter."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ShapeError
from ..types.dims import volume
from .law_text import (
    D0,
    S0,
    S1,
    Cases,
    LawCase,
    axis_of,
    check_index_dtype,
    has_rank,
    replace,
    same_dtype,
    vec_get,
    vec_of,
    vec_set,
)
from .laws_contraction import conv_size, window_text
from .ops import Attrs, Op, Type


def reshape(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: the requested shape; the number of elements must be equal.

    Raises ShapeError otherwise.
    """
    have, want = volume(types[0].shape), volume(attrs["shape"])
    if isinstance(have, int) and isinstance(want, int) and have != want:
        raise ShapeError(f"cannot reshape {types[0].shape} to {attrs['shape']}")
    return Type(attrs["shape"], types[0].dtype)


def requested_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law of an op to a requested shape as egglog text: one case, the shape in the op's attribute
    `shape` and the operand's dtype. `ranks` is not used."""
    yield LawCase("a_shape", D0)


def permute(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: output axis i is input axis perm[i].

    Raises ShapeError if the operands do not fit.
    """
    perm = attrs["perm"]
    if sorted(perm) != list(range(types[0].rank)):
        raise ShapeError(f"{perm} is not a permutation of {types[0].rank} axes")
    return Type(tuple(types[0].shape[p] for p in perm), types[0].dtype)


def permute_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `permute` (output axis i is input axis perm[i]) as egglog text: one case for each of `ranks`,
    the operand ranks that may occur."""
    for r in ranks:
        yield LawCase(vec_of(vec_get(S0, vec_get("a_perm", i)) for i in range(r)), D0, (has_rank("a_perm", r),))


def broadcast_to(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: the requested shape, of equal rank; sizes of 1 stretch.

    Raises ShapeError otherwise.
    """
    shape = attrs["shape"]
    if len(shape) != types[0].rank or any(a not in (1, b) for a, b in zip(types[0].shape, shape)):
        sizes = [d for pair in zip(types[0].shape, shape) if pair[0] not in (1, pair[1]) for d in pair]
        raise ShapeError(f"{types[0].shape} does not broadcast to {shape}", sizes=sizes)
    return Type(shape, types[0].dtype)


def slice_(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: elements start, start+step, … below stop along one axis; 0 <= start <= stop <= size, step >= 1.

    Raises ShapeError otherwise.
    """
    axis, start, stop, step = axis_of(attrs["axis"], types[0].rank), attrs["start"], attrs["stop"], attrs["step"]
    size = types[0].shape[axis]
    if not isinstance(step, int) or step < 1:
        raise ShapeError(f"slice step {step} is not a positive int", hint="flip first")
    if all(isinstance(d, int) for d in (start, stop, size)) and not 0 <= start <= stop <= size:
        raise ShapeError(f"slice {start}:{stop} is outside size {size}")
    return Type(replace(types[0].shape, axis, (stop - start + step - 1) // step), types[0].dtype)


def slice_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `slice` as egglog text: one case, the operand's shape with the number of selected elements
    along the axis. `ranks` is not used."""
    size = "(/ (+ (- a_stop a_start) (- a_step 1)) a_step)"
    yield LawCase(vec_set(S0, "a_axis", size), D0)


def concat(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: sizes add along one axis; all other sizes must be equal.

    Raises ShapeError otherwise.
    """
    a, b = types
    axis = axis_of(attrs["axis"], a.rank)
    if a.rank != b.rank or any(p != q for i, (p, q) in enumerate(zip(a.shape, b.shape)) if i != axis):
        sizes = [d for i, pair in enumerate(zip(a.shape, b.shape)) if i != axis and pair[0] != pair[1] for d in pair]
        raise ShapeError(f"{a.shape} and {b.shape} differ along an axis other than {axis}", sizes=sizes)
    return Type(replace(a.shape, axis, a.shape[axis] + b.shape[axis]), same_dtype(types))


def concat_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `concat` as egglog text: one case, the first operand's shape with the sum of both sizes along
    the axis. `ranks` is not used."""
    yield LawCase(vec_set(S0, "a_axis", f"(+ {vec_get(S0, 'a_axis')} {vec_get(S1, 'a_axis')})"), D0)


def pad(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: `lo` and `hi` constant elements before and after along one axis, both >= 0.

    Raises ShapeError otherwise.
    """
    axis, lo, hi = axis_of(attrs["axis"], types[0].rank), attrs["lo"], attrs["hi"]
    if any(isinstance(d, int) and d < 0 for d in (lo, hi)):
        raise ShapeError(f"negative padding {lo}, {hi}", hint="slice instead")
    return Type(replace(types[0].shape, axis, types[0].shape[axis] + lo + hi), types[0].dtype)


def pad_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `pad` as egglog text: one case, the operand's shape with `lo + hi` more elements along the
    axis. `ranks` is not used."""
    yield LawCase(vec_set(S0, "a_axis", f"(+ {vec_get(S0, 'a_axis')} (+ a_lo a_hi))"), D0)


def windows(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: window positions along `axis`, window elements in a new last axis.

    Raises ShapeError if the operands do not fit.
    """
    axis, size = axis_of(attrs["axis"], types[0].rank), attrs["size"]
    count = conv_size(types[0].shape[axis], size, attrs["stride"], 0, 0, attrs["dilation"])
    return Type((*replace(types[0].shape, axis, count), size), types[0].dtype)


def windows_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `windows` as egglog text: one case, the number of window positions along the axis, and the
    window's size as a new last axis. `ranks` is not used."""
    count = window_text(vec_get(S0, "a_axis"), "a_size", "a_stride", "0", "0", "a_dilation")
    yield LawCase(f"(vec-push {vec_set(S0, 'a_axis', count)} a_size)", D0)


def _from_something(x: Type, index: Type, axis: int) -> None:
    """Raise ShapeError for indices into an axis of no elements."""
    if x.shape[axis] == 0 and 0 not in index.shape:
        raise ShapeError(f"no index is valid: axis {axis} of {x} has no elements")


def gather(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of x with `axis` replaced by the axes of the index (NumPy's take).

    Raises ShapeError if the operands do not fit.
    """
    x, index = types
    check_index_dtype(index)
    axis = axis_of(attrs["axis"], x.rank)
    _from_something(x, index, axis)
    return Type((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), x.dtype)


def gather_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `gather` (NumPy's take) as egglog text: one case for each of `ranks` (ranks of x that may
    occur) and each axis."""
    for r in ranks:
        for axis in range(r):
            head = vec_of(vec_get(S0, i) for i in range(axis))
            tail = vec_of(vec_get(S0, i) for i in range(axis + 1, r))
            yield LawCase(f"(vec-append {head} {S1} {tail})", D0, (has_rank(S0, r), f"(= {axis} a_axis)"))


def _inside_other_axes(x: Type, index: Type, axis: int) -> None:
    """Raise ShapeError if an index tensor of x's elements has another rank than x, or has more positions than x along
    an axis other than `axis`, where an element of x at the same position is used."""
    if index.rank != x.rank:
        raise ShapeError("the indices must have the rank of the data")
    _from_something(x, index, axis)
    for i, (many, size) in enumerate(zip(index.shape, x.shape)):
        if i != axis and isinstance(many, int) and isinstance(size, int) and many > size:
            raise ShapeError(f"the indices have {many} positions along axis {i}, the data {size}")


def gather_elements(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: shape of the index, which has x's rank (NumPy's take_along_axis).

    Raises ShapeError if the operands do not fit.
    """
    x, index = types
    check_index_dtype(index)
    _inside_other_axes(x, index, axis_of(attrs["axis"], x.rank))
    return Type(index.shape, x.dtype)


def gather_elements_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `gather_elements` as egglog text: one case, the shape of the index and the dtype of x.
    `ranks` is not used."""
    yield LawCase(S1, D0)


def scatter_elements(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of x with updates (same shape as the index) written along one axis.

    Raises ShapeError if the operands do not fit.
    """
    x, index, updates = types
    check_index_dtype(index)
    _inside_other_axes(x, index, axis_of(attrs["axis"], x.rank))
    if index.shape != updates.shape or x.dtype != updates.dtype:
        raise ShapeError("indices and updates must have equal shapes, the data's rank and the data's dtype")
    return x


__all__ = [
    "broadcast_to",
    "concat",
    "concat_text",
    "gather",
    "gather_elements",
    "gather_elements_text",
    "gather_text",
    "pad",
    "pad_text",
    "permute",
    "permute_text",
    "requested_text",
    "reshape",
    "scatter_elements",
    "slice_",
    "slice_text",
    "windows",
    "windows_text",
]
