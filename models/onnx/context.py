"""Holds the state of one ONNX import, and evaluates values that are known when a model is loaded: those that depend on
constants and small weights only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.evaluate.interpret import evaluate
from ...egraph.ir.tensor import Tensor
from ...egraph.ir.weight_data import Data
from ...egraph.types import dtypes
from ...egraph.types.dims import DimExpr, concrete
from ...errors import TooLargeError
from ...wording import spelled_bytes
from .values import Array, Opaque, SymbolicInts, Value

#: Limit on the elements of a value that is evaluated at load time for a shape, an axis or a scale.
KNOWN_ELEMENTS = 1 << 16
#: Constant results of rank <= 1 with at most this many elements are folded.
FOLDED_ELEMENTS = 64


@dataclass
class Context:
    """State of one import that all nodes share: params found so far, opset, size limit of a value in bytes, evaluated
    values."""

    opset: int
    limit: int
    params: dict[str, Data] = field(default_factory=dict)
    #: Names of initializers that became constants, by id of their tensor (kept alive here).
    names: dict[int, tuple[Tensor, str]] = field(default_factory=dict)
    #: Leaves of the packed weights found so far (models/onnx/packed.py), by initializers and layout.
    packed: dict[tuple[Any, ...], dict[str, Tensor]] = field(default_factory=dict)
    _purity: dict[int, tuple[Tensor, int]] = field(default_factory=dict)
    _known: dict[int, Array] = field(default_factory=dict)

    def constant(self, array: Array) -> Tensor:
        """The array as an expression: a fill if all elements are equal, else a constant."""
        array = np.asarray(array)
        kind = dtypes.name_of(array.dtype)
        if array.size and array.tobytes() == array.reshape(-1)[:1].tobytes() * array.size:
            return t.full(array.shape, array.reshape(-1)[0].item(), kind)
        return t.constant(array)

    def value(self, sizes: Any, dtype: str = "int64") -> Value:
        """`sizes` (ints, bools and dimension expressions) as a value of `dtype`: a constant if it has no dimension
        expression, otherwise a `SymbolicInts`."""
        array = np.empty(np.shape(sizes), dtype=object)
        array[...] = sizes
        if any(isinstance(d, DimExpr) for d in array.reshape(-1)):
            return SymbolicInts(array, dtype)
        return self.constant(array.astype(dtypes.numpy_dtype(dtype)))

    def check(self, tensor: Tensor) -> Tensor:
        """Return the tensor. Raises TooLargeError if its static size exceeds the limit."""
        if all(isinstance(d, int) for d in tensor.shape) and tensor.type.nbytes > self.limit:
            raise TooLargeError(f"a value of type {tensor.type} takes {spelled_bytes(tensor.type.nbytes)}",
                                hint=f"the limit here is {spelled_bytes(self.limit)}")  # fmt: skip
        return tensor

    def _pure(self, root: Tensor) -> int:
        """Return the constness of a node: 2 if it depends only on small constants, 1 if also on small weights, else 0.

        Cached per node.
        """
        stack = [root]
        while stack:
            node = stack[-1]
            waiting = [a for a in node.args if id(a) not in self._purity]
            if waiting:
                stack.extend(waiting)
                continue
            stack.pop()
            level = min((self._purity[id(a)][1] for a in node.args), default=2)
            self._purity[id(node)] = (node, min(level, _purity_of(node)))
        return self._purity[id(root)][1]

    def known(self, value: Value | None) -> Array | None:
        """Return the value as an array if it is known at load time, else None. Symbolic values give an object array."""
        if value is None or isinstance(value, Opaque):
            return None
        if isinstance(value, SymbolicInts):
            return value.values
        if not self._pure(value):
            return None
        if id(value) not in self._known:
            try:
                self._known[id(value)] = evaluate([value], {}, params=self.params)[0]
            except (ValueError, ArithmeticError, LookupError):  # undefined, such as 2 ** -1 in integers
                return None
        return self._known[id(value)]

    def fold(self, value: Value) -> Value:
        """The value itself, or a constant in its place if it is a scalar or short vector that depends on constants
        only."""
        if isinstance(value, SymbolicInts | Opaque) or value.is_leaf or value.op in ("full", "iota") or value.rank > 1:
            return value
        if not all(isinstance(d, int) and d <= FOLDED_ELEMENTS for d in value.shape) or self._pure(value) != 2:
            return value
        found = self.known(value)
        return value if found is None else self.constant(found)


def _purity_of(node: Tensor) -> int:
    small = all(isinstance(d, int) for d in node.shape) and prod(concrete(node.shape)) <= KNOWN_ELEMENTS
    if not small or node.op in ("input", "state") or node.entry.kind == "contraction":
        return 0
    if node.entry.composite and node.entry.law not in ("pointwise", "reduce"):
        return 0
    return 1 if node.op == "param" else 2
