"""What the builder of an ONNX operator sees: its operands, attributes, and whatever is known about them at load time.

Integers that describe shapes travel as `Symbolic` values: arrays of dimensions, ints or expressions in named sizes.
Everything else is a tensor expression; `Context.known` evaluates those that depend on nothing but constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import numpy as np

from ..egraph import api as t
from ..egraph import dtypes
from ..egraph.dims import Dim, Expr, concrete
from ..egraph.graph import Data, Tensor
from ..egraph.interpret import evaluate
from ..errors import BadModelError, ShapeError, TooLargeError, UnsupportedError
from .sizes import size_tensor

Array = np.ndarray[Any, Any]

#: ONNX element types with a dtype of ours. The others (strings, complex, 4- and 8-bit floats, 4-bit ints) have none.
ELEMENT_TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16",
}  # fmt: skip


def element_name(code: int) -> str:
    """ONNX's name of an element type, in small letters; the number if it has none."""
    import onnx

    return onnx.TensorProto.DataType.Name(code).lower() if code in onnx.TensorProto.DataType.values() else str(code)


#: At most so many elements are evaluated at load time to learn a shape, an axis or a scale.
KNOWN_ELEMENTS = 1 << 16
#: Results of rank <= 1 with at most so many elements that depend on constants alone are replaced by their value.
FOLDED_ELEMENTS = 64


@dataclass(frozen=True)
class Symbolic:
    """Integers known up to named sizes; `values` is an object array of ints and dimension expressions."""

    values: Array

    def tensor(self) -> Tensor:
        """The same integers as a value that is computed (int64)."""
        flat = [size_tensor(d) for d in self.values.reshape(-1)]
        if self.values.ndim == 0:
            return flat[0]
        line = t.concat([t.reshape(d, (1,)) for d in flat], 0) if flat else t.zeros((0,), "int64")
        return t.reshape(line, self.values.shape)


@dataclass(frozen=True)
class Listed:
    """A sequence of values, of a length that is known."""

    items: tuple[Tensor | Symbolic, ...]


@dataclass(frozen=True)
class Places:
    """Where a mask holds, which depends on data: [rank, count] as NonZero gives them, or `turned` to [count, rank]."""

    mask: Tensor
    turned: bool


@dataclass(frozen=True)
class Picked:
    """The values of `full` where a mask holds, in a row; without a mask one number, as often as is wanted."""

    full: Tensor
    mask: Tensor | None


Opaque = Listed | Places | Picked
"""Values that are no tensor."""
Value = Tensor | Symbolic | Opaque


@dataclass
class Context:
    """What is shared while one model is built: weights found so far, the opset, the size limit, known values."""

    opset: int
    limit: int
    params: dict[str, Data] = field(default_factory=dict)
    _purity: dict[int, tuple[Tensor, int]] = field(default_factory=dict)
    _known: dict[int, Array] = field(default_factory=dict)

    def constant(self, array: Array) -> Tensor:
        """A constant; one value in every place becomes a fill."""
        array = np.asarray(array)
        kind = dtypes.name_of(array.dtype)
        if array.size and array.tobytes() == array.reshape(-1)[:1].tobytes() * array.size:
            return t.full(array.shape, array.reshape(-1)[0].item(), kind)
        return t.constant(array)

    def value(self, sizes: Any) -> Value:
        """A constant when all sizes are ints, else a symbolic value."""
        array = np.empty(np.shape(sizes), dtype=object)
        array[...] = sizes
        if any(isinstance(d, Expr) for d in array.reshape(-1)):
            return Symbolic(array)
        return self.constant(array.astype(np.int64))

    def check(self, tensor: Tensor) -> Tensor:
        """The tensor, or TooLargeError when its (known) size is beyond the limit."""
        if all(isinstance(d, int) for d in tensor.shape) and tensor.type.nbytes > self.limit:
            raise TooLargeError(f"a value of type {tensor.type} takes {tensor.type.nbytes:.3g} bytes",
                                hint=f"the limit here is {self.limit} bytes")  # fmt: skip
        return tensor

    def _pure(self, root: Tensor) -> int:
        """2: made of constants alone and small; 1: of small weights too; 0: neither. Remembered for each node."""
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
        """The value as an array if it can be told now: an object array for symbolic ones; None if it cannot."""
        if value is None or isinstance(value, Opaque):
            return None
        if isinstance(value, Symbolic):
            return value.values
        if not self._pure(value):
            return None
        if id(value) not in self._known:
            try:
                self._known[id(value)] = evaluate([value], {}, params=self.params)[0]
            except (ValueError, ArithmeticError, LookupError):  # no value at all, such as 2 ** -1 in integers
                return None
        return self._known[id(value)]

    def fold(self, value: Value) -> Value:
        """Short vectors and scalars that depend on constants alone, replaced by what they evaluate to."""
        if isinstance(value, Symbolic | Opaque) or value.is_leaf or value.op in ("full", "iota") or value.rank > 1:
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
    """Builds a subgraph (of If, Loop, Scan) in the scope of its node, its inputs bound to values."""

    def __call__(self, graph: Any, given: Sequence[Value] = ()) -> list[Value]: ...


@dataclass
class Node:
    """One ONNX node being built."""

    op: str
    label: str  # for messages: operator and name
    inputs: Sequence[Value | None]
    attrs: Mapping[str, Any]
    outputs: Sequence[bool]  # which results are asked for
    context: Context
    branch: Branch

    @property
    def opset(self) -> int:
        """Version of the operator set that the node follows."""
        return self.context.opset

    def has(self, position: int) -> bool:
        """Whether an optional operand is given."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def value(self, position: int) -> Value:
        """An operand as it is; BadModelError if it is missing."""
        found = self.inputs[position] if position < len(self.inputs) else None
        if found is None:
            raise BadModelError(f"{self.label} lacks its operand {position}")
        return found

    def x(self, position: int = 0) -> Tensor:
        """An operand as a tensor."""
        found = self.value(position)
        if isinstance(found, Opaque):
            raise self.unsupported("of a sequence" if isinstance(found, Listed) else "of a size that depends on data")
        return found.tensor() if isinstance(found, Symbolic) else found

    def listed(self, position: int = 0) -> tuple[Tensor | Symbolic, ...]:
        """The values of an operand that is a sequence."""
        found = self.value(position)
        if not isinstance(found, Listed):
            raise BadModelError(f"{self.label}: its operand {position} is no sequence")
        return found.items

    def plain(self, position: int = 0) -> Tensor | Symbolic:
        """An operand as it is, which is no sequence."""
        found = self.value(position)
        return found if isinstance(found, Symbolic) else self.x(position)

    def opt(self, position: int) -> Tensor | None:
        """An optional operand as a tensor."""
        return self.x(position) if self.has(position) else None

    def tensors(self) -> list[Tensor]:
        """All operands (of a variadic operator)."""
        return [self.x(i) for i in range(len(self.inputs))]

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute or its default."""
        return self.attrs.get(name, default)

    def choice(self, name: str, *options: str) -> str:
        """A string attribute that must be one of the options; the first is the default."""
        found: str = self.attrs.get(name, options[0])
        if found not in options:
            raise BadModelError(f"{self.label}: {name} is {found[:40]!r}, not one of {', '.join(options)}")
        return found

    def known(self, position: int) -> Array | None:
        """The operand's value if it can be told now (an object array where sizes are symbolic)."""
        return self.context.known(self.inputs[position]) if self.has(position) else None

    def array(self, position: int) -> Array:
        """The operand's value, concrete; UnsupportedError if it depends on data."""
        found = self.known(position)
        if found is None or found.dtype == object:
            raise self.unsupported(f"operand {position} depends on data")
        return found

    def dims(self, position: int) -> tuple[Dim, ...]:
        """The operand's integers, possibly symbolic, as a flat tuple; UnsupportedError if they depend on data."""
        found = self.known(position)
        if found is None:
            raise self.unsupported(f"operand {position} depends on data")
        return tuple(d if isinstance(d, Expr) else int(d) for d in found.reshape(-1))

    def ints(self, position: int) -> tuple[int, ...]:
        """The operand's integers, concrete, as a flat tuple."""
        found = self.dims(position)
        if any(isinstance(d, Expr) for d in found):
            raise self.unsupported(f"operand {position} depends on a free dimension")
        return concrete(found)

    def axes(self, position: int, rank: int) -> tuple[int, ...] | None:
        """Axes from the attribute `axes`, or from an operand (later opsets); resolved, in order; None if absent."""
        found: Iterable[int] | None = self.attr("axes")
        if found is None and self.has(position):
            found = self.ints(position)
        return None if found is None else tuple(resolve(a, rank) for a in found)

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        """The attribute `axis`, resolved."""
        return resolve(self.attr(name, default), rank)

    def dtype(self, name: str, default: int = 1) -> str:
        """An attribute that holds an element type."""
        code = self.attr(name, default)
        if code not in ELEMENT_TYPES:
            raise self.unsupported(f"to dtype {element_name(code)}")
        return ELEMENT_TYPES[code]

    def wanted(self, position: int) -> bool:
        """Whether a result is used by anything."""
        return position < len(self.outputs) and self.outputs[position]

    def unsupported(self, reason: str) -> UnsupportedError:
        """The error to raise for a variant of a known operator."""
        return UnsupportedError("unsupported operator", missing={f"{self.op} ({reason})": 1})


def resolve(axis: int, rank: int) -> int:
    """A non-negative axis; ShapeError outside the rank."""
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} is outside a rank-{rank} value")
    return axis % rank


Result = Value | Sequence["Value | None"]
Build = Callable[[Node], Result]


@dataclass(frozen=True)
class Operator:
    """One supported operator: how it is built, and what of it is not supported."""

    name: str
    build: Build
    limits: str = ""


OPERATORS: dict[str, Operator] = {}


def operator(*names: str, limits: str = "") -> Callable[[Build], Build]:
    """Register a builder for operators of the default domain. This is the one place where an operator is added."""

    def install(build: Build) -> Build:
        for name in names:
            if name in OPERATORS:
                raise ValueError(f"ONNX operator {name} is registered twice")
            OPERATORS[name] = Operator(name, build, limits)
        return build

    return install


def ranked(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Operands with fills given the rank of the widest operand, so that numbers need no reshape."""
    rank = max((x.rank for x in tensors), default=0)
    return [
        t.full((1,) * (rank - x.rank) + x.shape, x.attr("value"), x.dtype) if x.op == "full" and x.rank < rank else x
        for x in tensors
    ]


def simple(builders: Mapping[str, Callable[..., Tensor]], arity: int) -> None:
    """Register operators whose builder takes the operands alone."""
    for name, build in builders.items():
        operator(name)(lambda n, build=build: build(*ranked([n.x(i) for i in range(arity)])))  # type: ignore[misc]
