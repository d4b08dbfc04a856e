"""Defines the values that nodes of an ONNX model read and write, and the dtypes of ONNX element types.

Integers that describe shapes are `SymbolicInts`: arrays of ints and dimension expressions. All other tensors are
expressions. Sequences, results whose size depends on data, and initializers of 4-bit integers are values of classes of
their own, which only the operators that are made for them take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.ir.weight_data import Data
from ..common.sizes import size_tensor

Array = np.ndarray[Any, Any]

#: ONNX element type -> dtype. Not supported: strings, complex, 4- and 8-bit floats, 2-bit ints. 4-bit ints: `FourBits`.
ELEMENT_TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
}  # fmt: skip
#: ONNX element type -> name, of initializers that may hold two numbers a byte (`FourBits`).
FOUR_BITS = {21: "uint4", 22: "int4"}


def element_name(code: int) -> str:
    """Return the lower-case ONNX name of an element type, or its number if it is unknown."""
    import onnx

    return onnx.TensorProto.DataType.Name(code).lower() if code in onnx.TensorProto.DataType.values() else str(code)


@dataclass(frozen=True)
class SymbolicInts:
    """Integers that may depend on free dimensions; `values` is an object array of ints and dimension expressions.
    `dtype` is that of the tensor in the file: int64 or int32."""

    values: Array
    dtype: str = "int64"

    def tensor(self) -> Tensor:
        """The integers as a tensor of their dtype."""
        flat = [t.cast(size_tensor(d), self.dtype) for d in self.values.reshape(-1)]
        if self.values.ndim == 0:
            return flat[0]
        line = t.concat([t.reshape(d, (1,)) for d in flat], 0) if flat else t.zeros((0,), self.dtype)
        return t.reshape(line, self.values.shape)


@dataclass(frozen=True)
class KnownSequence:
    """ONNX sequence whose length and elements (`items`) are known when the model is loaded."""

    items: tuple[Tensor | SymbolicInts, ...]


@dataclass(frozen=True)
class MaskPositions:
    """Positions where a mask holds, the result of NonZero: [rank, count], or [count, rank] if `transposed`."""

    mask: Tensor
    transposed: bool


@dataclass(frozen=True)
class MaskedValues:
    """The values `full[mask]` that a mask selects, of rank 1; their number depends on data. Without a mask, `full` is a
    scalar, repeated as often as needed."""

    full: Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class FourBits:
    """An initializer of 4-bit integers. Only operators that dequantize take it, since no dtype has 4 bits.

    `data`: uint8 [(elements + 1) // 2], two numbers a byte in row-major order, the first in the lower four bits.
    `kind`: "int4" (two's complement) or "uint4".
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    data: Data


Opaque = KnownSequence | MaskPositions | MaskedValues | FourBits
"""Values that are not tensors."""
Value = Tensor | SymbolicInts | Opaque
