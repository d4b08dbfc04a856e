"""Defines the interface between the ONNX importer and the functions that translate operators (builders): operands,
attributes, values known at load time.

Integers that describe shapes are `SymbolicInts` values: arrays of ints and dimension expressions. All other values are
tensor expressions; `Context.known` evaluates those that depend only on constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.evaluate.interpret import evaluate
from ...egraph.ir.tensor import Tensor
from ...egraph.ir.weight_data import Data
from ...egraph.types import dtypes
from ...egraph.types.dims import Dim, DimExpr, concrete
from ...errors import BadModelError, ShapeError, TooLargeError, UnsupportedError
from ..common.sizes import size_tensor

Array = np.ndarray[Any, Any]

#: Supported versions of the default operator set (first, last).
OPSETS = (11, 28)

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


#: Limit on the elements of a value that is evaluated at load time for a shape, an axis or a scale.
KNOWN_ELEMENTS = 1 << 16
#: Constant results of rank <= 1 with at most this many elements are folded.
FOLDED_ELEMENTS = 64


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
            raise TooLargeError(f"a value of type {tensor.type} takes {tensor.type.nbytes:.3g} bytes",
                                hint=f"the limit here is {self.limit} bytes")  # fmt: skip
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


class Branch(Protocol):
    """Protocol of a function that builds a subgraph (of If, Loop, Scan) in the scope of its node and returns the
    subgraph's outputs.

    `given`: values of the subgraph's inputs.
    """

    def __call__(self, graph: Any, given: Sequence[Value] = ()) -> list[Value]: ...


@dataclass
class Node:
    """One ONNX node as it is passed to the function that translates its operator (`@operator`): its operands as tensors
    (None: omitted), its attributes, and which of its results are used.

    `context`: what all nodes share during the import (opset, params found so far, known values). `branch`: builds a
    subgraph of the node (of If, Loop, Scan).
    """

    op: str
    label: str  # operator and name, for messages
    inputs: Sequence[Value | None]
    attrs: Mapping[str, Any]
    outputs: Sequence[bool]  # for each result, whether it is used
    context: Context
    branch: Branch

    @property
    def opset(self) -> int:
        """Operator set version of the model."""
        return self.context.opset

    def has(self, position: int) -> bool:
        """Whether the optional operand at `position` is present."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def value(self, position: int) -> Value:
        """The operand at `position`. Raises BadModelError if it is missing."""
        found = self.inputs[position] if position < len(self.inputs) else None
        if found is None:
            raise BadModelError(f"{self.label} lacks its operand {position}")
        return found

    def x(self, position: int = 0) -> Tensor:
        """The operand at `position` as a tensor. Raises UnsupportedError for a sequence."""
        found = self.value(position)
        if isinstance(found, FourBits):
            raise self.unsupported(f"operand {position} of {found.kind}")
        if isinstance(found, Opaque):
            raise self.unsupported(
                "of a sequence" if isinstance(found, KnownSequence) else "of a size that depends on data"
            )
        return found.tensor() if isinstance(found, SymbolicInts) else found

    def listed(self, position: int = 0) -> tuple[Tensor | SymbolicInts, ...]:
        """The items of the operand at `position`, a sequence. Raises BadModelError for other operands."""
        found = self.value(position)
        if not isinstance(found, KnownSequence):
            raise BadModelError(f"{self.label}: its operand {position} is no sequence")
        return found.items

    def plain(self, position: int = 0) -> Tensor | SymbolicInts:
        """The operand at `position`, which is a tensor or symbolic integers. Raises UnsupportedError for a sequence."""
        found = self.value(position)
        return found if isinstance(found, SymbolicInts) else self.x(position)

    def opt(self, position: int) -> Tensor | None:
        """The optional operand at `position` as a tensor; None if absent."""
        return self.x(position) if self.has(position) else None

    def stored(self, position: int) -> tuple[str, Data] | None:
        """(name, data) of the initializer that the operand at `position` is, perhaps reshaped; None for other
        operands."""
        value = self.inputs[position]
        if isinstance(value, FourBits):
            return value.name, value.data
        x = self.x(position)
        while x.op == "reshape":
            x = x.args[0]
        if x.op == "param":
            return str(x.attr("name")), self.context.params[x.attr("name")]
        name = self.context.names.get(id(x))
        found = None if name is None else self.context.known(x)
        return None if name is None or found is None else (name[1], found)

    def tensors(self) -> list[Tensor]:
        """Return all operands as tensors (for variadic operators)."""
        return [self.x(i) for i in range(len(self.inputs))]

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute `name`; `default` if it is missing."""
        return self.attrs.get(name, default)

    def choice(self, name: str, *options: str) -> str:
        """Return the string attribute `name`, which must be one of the options; the first option is the default. Raises
        BadModelError for other values."""
        found: str = self.attrs.get(name, options[0])
        if found not in options:
            raise BadModelError(f"{self.label}: {name} is {found[:40]!r}, not one of {', '.join(options)}")
        return found

    def numbers(self, name: str, count: int, default: int = 0) -> list[int]:
        """Return the attribute `name`, a list of `count` integers (all `default` if it is missing or empty). Raises
        ShapeError for another count."""
        found = list(self.attrs.get(name) or [default] * count)
        if len(found) != count:
            raise ShapeError(f"{name}={found} does not have {count} numbers")
        return found

    def fitting(self, position: int, shape: Sequence[Dim]) -> Tensor:
        """Return the operand at `position` as a tensor that broadcasts to `shape`. Raises ShapeError for another one,
        which would make the result larger."""
        found = self.x(position)
        pairs = zip(found.shape[::-1], tuple(shape)[::-1])
        if found.rank > len(shape) or any(a != 1 and _differ(a, b) for a, b in pairs):
            raise ShapeError(f"operand {position}, {found.type}, does not broadcast to {list(shape)}")
        return found

    def shaped(self, position: int, shape: Sequence[Dim]) -> Tensor:
        """Return the operand at `position` as a tensor. Raises ShapeError if its shape is not `shape`."""
        found = self.x(position)
        if found.rank != len(shape) or any(map(_differ, found.shape, shape)):
            raise ShapeError(f"operand {position} is {found.type}, not of shape {list(shape)}")
        return found

    def single(self, position: int) -> Value:
        """Return the operand at `position`, which has one element. Raises ShapeError for another number."""
        found = self.value(position)
        shape = (
            found.values.shape if isinstance(found, SymbolicInts) else () if isinstance(found, Opaque) else found.shape
        )
        if any(d != 1 for d in shape):
            raise ShapeError(f"operand {position} has shape {list(shape)}, not one element")
        return found

    def known(self, position: int) -> Array | None:
        """Return the value of the operand at `position` if it is known at load time, else None. Symbolic sizes give an
        object array."""
        return self.context.known(self.inputs[position]) if self.has(position) else None

    def array(self, position: int) -> Array:
        """Return the value of the operand at `position`. Raises UnsupportedError if it depends on data or free
        dimensions."""
        found = self.known(position)
        if found is None or found.dtype == object:
            raise self.unsupported(f"operand {position} depends on data")
        return found

    def dims(self, position: int) -> tuple[Dim, ...]:
        """Return the integers of the operand at `position`, possibly symbolic, as a flat tuple. Raises UnsupportedError
        if they depend on data."""
        found = self.known(position)
        if found is None:
            raise self.unsupported(f"operand {position} depends on data")
        if found.ndim > 1:
            raise ShapeError(f"operand {position} has shape {list(found.shape)}, not one axis")
        return tuple(d if isinstance(d, DimExpr) else int(d) for d in found.reshape(-1))

    def ints(self, position: int) -> tuple[int, ...]:
        """Return the integers of the operand at `position` as a flat tuple. Raises UnsupportedError if one is
        symbolic."""
        found = self.dims(position)
        if any(isinstance(d, DimExpr) for d in found):
            raise self.unsupported(f"operand {position} depends on a free dimension")
        return concrete(found)

    def axes(self, position: int, rank: int) -> tuple[int, ...] | None:
        """Return axes of a tensor of this rank, made non-negative, from the attribute `axes`, or from the operand at
        `position` (later opsets); None if absent. Raises ShapeError for axes that repeat or are outside the rank."""
        found: Iterable[int] | None = self.attr("axes")
        if found is None and self.has(position):
            found = self.ints(position)
        if found is None:
            return None
        chosen = tuple(resolve(a, rank) for a in found)
        if len(set(chosen)) != len(chosen):
            raise ShapeError(f"axes {chosen} repeat")
        return chosen

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        """Return the attribute `name` as a non-negative axis of a value of `rank` axes; `default` if it is missing."""
        return resolve(self.attr(name, default), rank)

    def dtype(self, name: str, default: int = 1) -> str:
        """Return the dtype of the attribute `name`, an ONNX element type; `default` if it is missing."""
        code = self.attr(name, default)
        if code not in ELEMENT_TYPES:
            raise self.unsupported(f"to dtype {element_name(code)}")
        return ELEMENT_TYPES[code]

    def wanted(self, position: int) -> bool:
        """Whether the result at `position` is used."""
        return position < len(self.outputs) and self.outputs[position]

    def unsupported(self, reason: str) -> UnsupportedError:
        """Make (not raise) the error for an unsupported variant of a supported operator; `reason` names the variant."""
        return UnsupportedError("unsupported operator", missing={f"{self.op} ({reason})": 1})


def _differ(a: Dim, b: Dim) -> bool:
    """Return whether two sizes are different numbers; sizes with free dimensions count as equal."""
    return isinstance(a, int) and isinstance(b, int) and a != b


def resolve(axis: int, rank: int) -> int:
    """Return a non-negative axis. Raises ShapeError if it is outside the rank."""
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} is outside a rank-{rank} value")
    return axis % rank


Result = Value | Sequence["Value | None"]
Build = Callable[[Node], Result]


@dataclass(frozen=True)
class Operator:
    """Registry entry of the ONNX operator `name` (`operator_key`): the function that translates it (`build`) and, as
    text, its unsupported variants (`limits`)."""

    name: str
    build: Build
    limits: str = ""


OPERATORS: dict[str, Operator] = {}


def operator(*names: str, domain: str = "", limits: str = "") -> Callable[[Build], Build]:
    """Return a decorator that registers a function as the translation of the named operators of a domain ("": the
    default one).

    `limits`: text for docs/onnx-support.md on unsupported variants. All ONNX operators are registered through this
    function. The decorator raises ValueError for an operator that is registered already.
    """

    def install(build: Build) -> Build:
        for name in names:
            key = f"{domain}.{name}" if domain else name
            if key in OPERATORS:
                raise ValueError(f"ONNX operator {key} is registered twice")
            OPERATORS[key] = Operator(key, build, limits)
        return build

    return install


def ranked(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors, of which fills of lower rank are replaced by fills of the highest rank, so that scalars need no
    reshape."""
    rank = max((x.rank for x in tensors), default=0)
    return [
        t.full((1,) * (rank - x.rank) + x.shape, x.attr("value"), x.dtype) if x.op == "full" and x.rank < rank else x
        for x in tensors
    ]


def simple(builders: Mapping[str, Callable[..., Tensor]], arity: int) -> None:
    """Register operators that need only their operands; `builders`: operator name -> function of `arity` tensors."""
    for name, build in builders.items():
        operator(name)(lambda n, build=build: build(*ranked([n.x(i) for i in range(arity)])))  # type: ignore[misc]
