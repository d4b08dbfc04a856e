"""Views: their strides, their NumPy and Torch expressions, and view templates.

A view is free: `view_strides` gives its strides, or None if the op needs a copy. Strides are in elements; strides of
axes of size 1 are meaningless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...egraph.ir.ops import OPS, Type
from ...egraph.ir.type_laws import infer
from ...extract.model.kernel import (
    Call,
    Code,
    LibraryKernel,
    Operand,
    Strides,
    Template,
    contiguous,
    identified,
    identify,
)

Attrs = Mapping[str, Any]
Layout = tuple[Strides, int]  # strides and offset of the first element, in elements


def view_strides(op: str, attrs: Attrs, operand: Operand) -> Strides | None:
    """Strides of the view `op` of an operand; None if the op needs a copy."""
    found = view_layout(op, attrs, operand)
    return None if found is None else found[0]


def view_layout(op: str, attrs: Attrs, operand: Operand) -> Layout | None:
    """Strides of a view and its offset from the operand's first element; None if the op needs a copy."""
    rule = _LAYOUTS.get(op)
    return None if rule is None else rule(attrs, operand.type.shape, operand.strides)  # type: ignore[arg-type]


def view_type(op: str, attrs: Attrs, operand: Type) -> Type:
    """Result type of a view op."""
    return infer(OPS[op], (operand,), attrs)


def _runs(shape: Sequence[int], strides: Strides) -> list[list[int]]:
    """Coalesced axes: [elements, innermost stride] of each maximal group of axes that is contiguous, outermost
    first."""
    found: list[list[int]] = []
    for size, stride in zip(shape, strides):
        if size == 1:
            continue
        if found and found[-1][1] == size * stride:
            found[-1] = [found[-1][0] * size, stride]
        else:
            found.append([size, stride])
    return found


def _reshape(attrs: Attrs, shape: Sequence[int], strides: Strides) -> Layout | None:
    want = tuple(int(d) for d in attrs["shape"])
    if 0 in shape:
        return contiguous(want), 0
    runs = _runs(shape, strides) or [[1, 1]]
    left, step = runs.pop()
    made: list[int] = []
    for size in reversed(want):
        if size != 1 and left == 1 and runs:
            left, step = runs.pop()
        if left % size:
            return None
        made.append(step)
        left, step = left // size, step * size
    return _normal(tuple(reversed(made)), want), 0


def _normal(strides: Strides, shape: Sequence[int]) -> Strides:
    return tuple(w if d == 1 else s for s, w, d in zip(strides, contiguous(shape), shape))


def _permute(attrs: Attrs, shape: Sequence[int], strides: Strides) -> Layout:
    return tuple(strides[p] for p in attrs["perm"]), 0


def _broadcast(attrs: Attrs, shape: Sequence[int], strides: Strides) -> Layout:
    return tuple(s if d == w else 0 for s, d, w in zip(strides, shape, attrs["shape"])), 0


def _slice(attrs: Attrs, shape: Sequence[int], strides: Strides) -> Layout:
    axis = attrs["axis"]
    return _replaced(strides, axis, strides[axis] * attrs["step"]), strides[axis] * attrs["start"]


def _flip(attrs: Attrs, shape: Sequence[int], strides: Strides) -> Layout:
    axis = attrs["axis"]
    return _replaced(strides, axis, -strides[axis]), strides[axis] * max(shape[axis] - 1, 0)


def _windows(attrs: Attrs, shape: Sequence[int], strides: Strides) -> Layout:
    step = strides[attrs["axis"]]
    return (*_replaced(strides, attrs["axis"], step * attrs["stride"]), step * attrs["dilation"]), 0


def _replaced(strides: Strides, axis: int, value: int) -> Strides:
    return (*strides[:axis], value, *strides[axis + 1 :])


_LAYOUTS: dict[str, Callable[[Attrs, Sequence[int], Strides], Layout | None]] = {
    "reshape": _reshape,
    "permute": _permute,
    "broadcast_to": _broadcast,
    "slice": _slice,
    "flip": _flip,
    "windows": _windows,
}


# ---------------------------------------------------------------- spellings
def index_text(attrs: Attrs) -> str:
    """The subscript of a slice: `:, 2:5`."""
    step = "" if attrs["step"] == 1 else f":{attrs['step']}"
    return ":, " * int(attrs["axis"]) + f"{attrs['start']}:{attrs['stop']}{step}"


@identified("views._flip_text")
def _flip_text(call: Call) -> str:
    return f"{call.names['x']}[{':, ' * call.attrs['axis']}::-1]"


def _strided_text(op: str) -> Callable[[Call], str]:
    """A view by explicit strides: NumPy's broadcast_to and sliding windows are read-only, which Torch rejects."""

    def text(call: Call) -> str:
        found = view_layout(op, call.attrs, call.operands["x"])
        assert found is not None
        return f"strided({call.names['x']}, {view_type(op, call.attrs, call.operands['x'].type).shape}, {found[0]})"

    return identify(text, "views._strided_text.<locals>.text")


@identified("views.<lambda>")  # the identity in stored cost keys
def _slice_text(call: Call) -> str:
    return f"{call.names['x']}[{index_text(call.attrs)}]"


@identified("views.<lambda>")
def _torch_windows_text(call: Call) -> str:
    shape = view_type("windows", call.attrs, call.operands["x"].type).shape
    strides = _windows(call.attrs, (), call.operands["x"].strides)[0]
    return f"{call.names['x']}.as_strided({shape}, {strides}, {call.names['x']}.storage_offset())"


#: Op -> NumPy expression over `x` and the op's attributes.
NUMPY: dict[str, Code] = {
    "reshape": "{x}.reshape({shape})",
    "permute": "{x}.transpose({perm})",
    "broadcast_to": _strided_text("broadcast_to"),
    "slice": _slice_text,
    "flip": _flip_text,
    "windows": _strided_text("windows"),
}

#: Op -> Torch expression; `flip` is missing because Torch has no negative strides.
TORCH: dict[str, Code] = {
    "reshape": "{x}.view({shape})",
    "permute": "{x}.permute({perm})",
    "broadcast_to": "{x}.expand({shape})",
    "slice": _slice_text,
    "cast": "{x}",  # only between equal storage dtypes
    "windows": _torch_windows_text,
}


def _pattern(op: str) -> str:
    attrs = ", ".join(f"{a}={a}" for a in OPS[op].attrs)
    return f"{op}(x, {attrs})"


def _feasible(op: str) -> Callable[[Call], bool]:
    return lambda call: view_layout(op, call.attrs, call.operands["x"]) is not None


#: One template per view op, for every backend on NumPy's memory.
VIEWS: tuple[LibraryKernel, ...] = tuple(
    LibraryKernel(
        f"view.{op}",
        "numpy",
        _pattern(op),
        NUMPY[op],
        family="view",
        exact=True,
        applies=_feasible(op),
        setup=("strided",) if op in ("windows", "broadcast_to") else (),
    )
    for op in _LAYOUTS
)


def has_torch_view(template: Template) -> bool:
    """Whether the view has a Torch expression."""
    return template.name.rpartition(".")[2] in TORCH


def torch_view(template: Template, call: Call) -> str | None:
    """Torch expression of a view; None if only NumPy has the view."""
    code = TORCH.get(template.name.rpartition(".")[2])
    if code is None:
        return None
    return spelled(code, call)


def spelled(code: Code, call: Call) -> str:
    """The text of a code template for a call."""
    if callable(code):
        return code(call)
    return code.format(**{k: repr(v) for k, v in call.attrs.items()}, **call.names)
