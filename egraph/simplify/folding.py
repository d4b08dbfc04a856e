"""Holds simplification rules that replace a node by its value: constants, empty tensors, ops over constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..evaluate.interpret import evaluate
from ..ir.tensor import Tensor, constant, make
from ..ops.atomic_numpy import Array
from ..types import dtypes
from ..types.dims import Shape, volume
from .fills import fill
from .jumps import jumps
from .positions import counter
from .simplifier import Simplifier


def canonical_fill(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """The fill with its value in canonical form; None if the value already is."""
    return fill(attrs["shape"], attrs["value"], attrs["dtype"])


def uniform_constant(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """A fill equal to a small constant whose elements are all equal; None for other constants."""
    data = make(op, (), attrs).data
    return None if data is None or data.nbytes > s.fold_bytes else _known(data, attrs["dtype"], attrs["shape"])


def empty_as_fill(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """A fill in place of an empty value (0 elements); None for other values."""
    made = make(op, args, attrs)
    return fill(made.shape, 0, made.dtype) if any(isinstance(d, int) and d == 0 for d in made.shape) else None


def _known(array: Array, dtype: str, shape: Shape) -> Tensor:
    """An array as a fill (all elements bitwise equal), an iota (a counter), or a constant."""
    flat = array.reshape(-1)
    if flat.size and (flat.view(np.uint8).reshape(flat.size, -1) == flat[:1].view(np.uint8)).all():
        return fill(shape, flat[0].item(), dtype)
    counts = counter(array)
    return constant(array) if counts is None else counts


def fold(s: Simplifier, op: str, args: tuple[Tensor, ...], attrs: dict[str, Any]) -> Tensor | None:
    """The value of an op over constants, as a constant, iota or fill; None if an operand is not constant.

    Ops over fills fold at any size; constants and iotas fold only within the size limit, and dequantized constants not
    at all: kernels read the bytes.
    """
    if op == "dequantize" and args[0].op == "constant":
        return None
    if not args or any(a.op not in ("full", "constant", "iota") for a in args):
        return None
    node = make(op, args, attrs)
    rounded = s.exact or s.at_sharp or jumps(node)  # as the model rounds: the last bit decides
    if node.entry.pointwise and all(a.op == "full" for a in args):
        single = [fill((), a.attr("value"), a.dtype) for a in args]
        wide = not rounded and dtypes.is_float(node.dtype) and all(dtypes.is_float(a.dtype) for a in args)
        value = evaluate([make(op, single, attrs)], {}, float64=wide)[0]
        return fill(node.shape, value.item(), node.dtype)
    if any(not isinstance(d, int) for a in (node, *args) for d in a.shape) or not 0 < node.type.nbytes <= s.fold_bytes:
        return None
    if any(a.type.nbytes > 16 * s.fold_bytes or volume(a.shape) == 0 for a in args):
        return None
    value = evaluate([node], {}, float64=not rounded)[0].astype(dtypes.numpy_dtype(node.dtype))  # rounded once
    return _known(np.ascontiguousarray(value), node.dtype, node.shape)


__all__ = ["canonical_fill", "empty_as_fill", "fold", "uniform_constant"]
