"""Describes views (results that share their operand's memory): their strides, their NumPy and Torch expressions, and
their templates (kernels that only make a view).

A view costs nothing at run time: `view_strides` gives its strides, or None if the op needs a copy. Strides are in
elements; strides of axes of size 1 are meaningless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...egraph.ops.index_maps import AffineMap, BroadcastMap, ReshapeMap
from ...egraph.ops.ops import OPS, Type
from ...egraph.ops.type_laws import infer
from ...extract.model.kernel import Call, Code, Operand, Strides, Template, contiguous
from ...extract.model.library_kernel import LibraryKernel, identified, identify

Attrs = Mapping[str, Any]
Layout = tuple[Strides, int]  # strides and offset of the first element, in elements


def view_strides(op: str, attrs: Attrs, operand: Operand) -> Strides | None:
    """Strides, in elements, of the view that the op makes of `operand`; None if the op needs a copy. `attrs`:
    attributes of the op."""
    found = view_layout(op, attrs, operand)
    return None if found is None else found[0]


def view_layout(op: str, attrs: Attrs, operand: Operand) -> Layout | None:
    """(strides, offset from the operand's first element), in elements, of the view that the op makes of `operand`; None
    if the op needs a copy. `attrs`: attributes of the op."""
    entry, shape, strides = OPS[op], operand.type.shape, operand.strides
    if entry.kind != "view" or entry.index_map is None:
        return None
    found = entry.index_map(attrs, [shape])
    if isinstance(found, BroadcastMap):
        return tuple(s if d == w else 0 for s, d, w in zip(strides, shape, attrs["shape"])), 0
    if isinstance(found, ReshapeMap):
        return _reshape(attrs, shape, strides)  # type: ignore[arg-type]
    return _affine(found, strides) if isinstance(found, AffineMap) else None


def _affine(found: AffineMap, strides: Strides) -> Layout:
    """Layout of a view that reads its operand at affine indices."""
    made: dict[int, int] = {}
    offset = 0
    for along, stride in zip(found.axes, strides, strict=True):
        for axis, factor in along.terms:
            made[axis] = made.get(axis, 0) + stride * factor
        offset += stride * (along.offset if along.offset != -1 else 0)  # -1: the last element of an empty axis
    return tuple(made.get(axis, 0) for axis in range(max(made, default=-1) + 1)), offset


def view_type(op: str, attrs: Attrs, operand: Type) -> Type:
    """Type of the result of the view op `op`, with the attributes `attrs`, on an operand of the type `operand`."""
    return infer(OPS[op], (operand,), attrs)


def _runs(shape: Sequence[int], strides: Strides) -> list[list[int]]:
    """Coalesced axes: [elements, innermost stride] of each maximal contiguous group of axes, outermost first."""
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


# ---------------------------------------------------------------- spellings
def index_text(attrs: Attrs) -> str:
    """NumPy subscript, such as `:, 2:5`, of a slice with the attributes `attrs`."""
    step = "" if attrs["step"] == 1 else f":{attrs['step']}"
    return ":, " * int(attrs["axis"]) + f"{attrs['start']}:{attrs['stop']}{step}"


@identified("views._flip_text")
def _flip_text(call: Call) -> str:
    return f"{call.names['x']}[{':, ' * call.attrs['axis']}::-1]"


def _first(op: str, call: Call) -> list[Any]:
    """The operand index of a view's first element."""
    index_map = OPS[op].index_map
    assert index_map is not None
    found = index_map(call.attrs, [call.operands["x"].type.shape])
    assert isinstance(found, AffineMap)
    return [along.offset for along in found.axes]


def _strided_text(op: str) -> Callable[[Call], str]:
    """Code of a view by explicit strides.

    NumPy's broadcast_to and sliding windows would be read-only, which Torch rejects.
    """

    def text(call: Call) -> str:
        found = view_layout(op, call.attrs, call.operands["x"])
        assert found is not None
        x = call.names["x"]
        if found[1]:
            x += f"[{', '.join(f'{first}:' for first in _first(op, call))}]"
        return f"strided({x}, {view_type(op, call.attrs, call.operands['x'].type).shape}, {found[0]})"

    return identify(text, "views._strided_text.<locals>.text")


@identified("views.<lambda>")  # the identity in stored cost keys
def _slice_text(call: Call) -> str:
    return f"{call.names['x']}[{index_text(call.attrs)}]"


@identified("views.<lambda>")
def _torch_windows_text(call: Call) -> str:
    shape = view_type("windows", call.attrs, call.operands["x"].type).shape
    strides = view_strides("windows", call.attrs, call.operands["x"])
    return f"{call.names['x']}.as_strided({shape}, {strides}, {call.names['x']}.storage_offset())"


#: View op whose expression is a function of the call -> NumPy expression.
_NUMPY: dict[str, Code] = {
    "broadcast_to": _strided_text("broadcast_to"),
    "slice": _slice_text,
    "flip": _flip_text,
    "windows": _strided_text("windows"),
}
#: The same for Torch.
_TORCH: dict[str, Code] = {
    "slice": _slice_text,
    "cast": "{x}",  # only between equal storage dtypes
    "windows": _torch_windows_text,
}


def _method(method: tuple[str, str] | None) -> str | None:
    """Format string of a call of `x`'s method, given (name, arguments); None for None."""
    return None if method is None else f"{{x}}.{method[0]}({{{method[1]}}})"


def torch_copy_code(op: str) -> Code | None:
    """Torch expression of the view op `op` that may copy; None if there is none."""
    return torch_code(op) or _method(OPS[op].methods.torch_copy)


def view_ops() -> list[str]:
    """Names of the ops whose result can be a view of the operand's memory."""
    return [op.name for op in OPS.values() if op.kind == "view" and op.index_map is not None]


def numpy_code(op: str) -> Code:
    """NumPy expression of the view op `op`, over the operand `x` and the op's attributes: a format string, or a
    function from a call."""
    return _NUMPY.get(op) or _method(OPS[op].methods.numpy) or _strided_text(op)


def torch_code(op: str) -> Code | None:
    """Torch expression of the view op `op`, or of a cast between equal storage dtypes: a format string, or a function
    from a call.

    None if Torch has no such view, as for negative strides.
    """
    return _TORCH.get(op) or _method(OPS[op].methods.torch)


def _pattern(op: str) -> str:
    attrs = ", ".join(f"{a}={a}" for a in OPS[op].attrs)
    return f"{op}(x, {attrs})"


def _feasible(op: str) -> Callable[[Call], bool]:
    return lambda call: view_layout(op, call.attrs, call.operands["x"]) is not None


def view_templates() -> tuple[LibraryKernel, ...]:
    """One template per view op (kernels that only make a view), for every backend on NumPy's memory."""
    return tuple(
        LibraryKernel(
            f"view.{op}",
            "numpy",
            _pattern(op),
            numpy_code(op),
            family="view",
            exact=True,
            applies=_feasible(op),
            setup=() if op in ("slice", "flip") or OPS[op].methods.numpy else ("strided",),
        )
        for op in view_ops()
    )


def has_torch_view(template: Template) -> bool:
    """Whether the view that `template` makes has a Torch expression."""
    return torch_code(template.name.rpartition(".")[2]) is not None


def torch_view(template: Template, call: Call) -> str | None:
    """Torch expression of the view that `template` makes in `call`; None if only NumPy has the view."""
    code = torch_code(template.name.rpartition(".")[2])
    return None if code is None else spelled(code, call)


def spelled(code: Code, call: Call) -> str:
    """Source text of a template's `code` for a call: a format string filled with the call's names and attributes, or
    the result of a function of the call."""
    if callable(code):
        return code(call)
    return code.format(**{k: repr(v) for k, v in call.attrs.items()}, **call.names)
