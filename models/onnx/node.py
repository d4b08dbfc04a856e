"""Defines the interface between the ONNX importer and the functions that translate operators (builders): a node with
its operands and attributes, and the table of operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.ir.weight_data import Data
from ...egraph.types.dims import Dim, DimExpr, concrete
from ...errors import BadModelError, ShapeError, UnsupportedError
from .context import Context
from .values import ELEMENT_TYPES, Array, FourBits, KnownSequence, Opaque, SymbolicInts, Value, element_name

#: Supported versions of the default operator set (first, last).
OPSETS = (7, 28)


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
