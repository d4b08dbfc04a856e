"""Nodes of opsets 7 to 10 in the form of opset 11, which the translations of operators read: attributes that became
operands, and operators that got another name or other defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...egraph.types import dtypes
from ...errors import ShapeError
from .node import Node, operator
from .values import Value

#: The first opset of the forms that the translations read.
CURRENT = 11


def _integers(n: Node, name: str) -> Value:
    """The attribute `name` as an operand of int64. Raises ShapeError if it is missing."""
    if name not in n.attrs:
        raise ShapeError(f"{n.label} lacks its attribute {name}")
    return n.context.constant(np.atleast_1d(np.asarray(n.attrs[name], np.int64)))


def _number(n: Node, value: float) -> Value:
    """A number as an operand of rank 0 and of the dtype of the first operand."""
    with np.errstate(over="ignore"):  # an end of float32 is infinite in float16
        return n.context.constant(np.asarray(value).astype(dtypes.numpy_dtype(n.x().dtype)))


def _changed(n: Node, inputs: list[Value | None], *gone: str, **attrs: Any) -> Node:
    """The node with other operands, without the attributes `gone`, and with further ones."""
    return replace(n, inputs=inputs, attrs={k: v for k, v in n.attrs.items() if k not in gone} | attrs)


def _clip(n: Node) -> Node:
    """`min` and `max` default to the ends of float32's finite numbers, to which infinities of float32 are clipped."""
    ends = np.finfo(np.float32)
    lo, hi = (float(n.attr(name, end)) for name, end in (("min", ends.min), ("max", ends.max)))
    return _changed(n, [n.x(), _number(n, lo), _number(n, hi)], "min", "max")


def _pad(n: Node) -> Node:
    return _changed(n, [n.x(), _integers(n, "pads"), _number(n, n.attr("value", 0.0))], "pads", "value")


def _slice(n: Node) -> Node:
    if n.opset >= 10:
        return n
    axes = _integers(n, "axes") if "axes" in n.attrs else None
    return _changed(n, [n.value(0), _integers(n, "starts"), _integers(n, "ends"), axes], "starts", "ends", "axes")


def _top_k(n: Node) -> Node:
    return n if n.opset >= 10 else _changed(n, [n.x(), _integers(n, "k")], "k")


def _resize(n: Node) -> Node:
    """Elements lie at multiples of the scale. ONNX's text does not say how a place between two is rounded: its test
    data and ONNX Runtime round down along axes that grow, up along axes that shrink."""
    scales = n.value(1) if n.has(1) else n.context.constant(np.asarray(n.attr("scales", ()), np.float32))
    known = n.context.known(scales)
    rounding = {"floor"} if known is None else {"floor" if s >= 1 else "ceil" for s in known if s != 1} or {"floor"}
    nearest = n.choice("mode", "nearest", "linear", "bilinear") == "nearest"
    if nearest and len(rounding) > 1:
        raise n.unsupported("axes that grow and axes that shrink, before opset 11")
    return replace(
        _changed(n, [n.x(), None, scales], "scales", mode="nearest" if nearest else "linear",
                 coordinate_transformation_mode="asymmetric", nearest_mode=rounding.pop()),
        op="Resize",
    )  # fmt: skip


def _normalization(n: Node) -> Node:
    if not n.attr("spatial", 1):
        raise n.unsupported("statistics for each element, before opset 9")
    return _changed(n, list(n.inputs), "spatial")


def _dropout(n: Node) -> Node:
    if n.wanted(1) and n.opset < 10:
        raise n.unsupported("the mask, before opset 10")
    return n


def _scan(n: Node) -> Node:
    if n.opset < 9:
        raise n.unsupported("of batches, before opset 9")
    return n


#: Operator -> the node of an opset before `CURRENT` as one of opset 11.
_FORMS: Mapping[str, Callable[[Node], Node]] = {
    "Clip": _clip, "Pad": _pad, "Slice": _slice, "TopK": _top_k, "Resize": _resize, "Upsample": _resize, "BatchNormalization": _normalization,
    "Dropout": _dropout, "Scan": _scan,
}  # fmt: skip


def current(n: Node) -> Node:
    """The node `n` in the form of opset 11, which the builders (functions that translate operators) expect: `n` itself
    if its opset is not older, or if its operator has not changed since. Raises UnsupportedError for older nodes that
    have no such form."""
    return n if n.opset >= CURRENT or n.op not in _FORMS else _FORMS[n.op](n)


@operator("Upsample", limits="opset 11 and later, where ONNX has Resize")
def _upsample(n: Node) -> Value:
    raise n.unsupported(f"of opset {n.opset}")


__all__ = ["current"]
