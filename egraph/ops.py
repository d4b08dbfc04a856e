"""The op table's form: what one entry says about an operation, and the registry.

Entries live in `atomic.py` (operations with a NumPy meaning of their own) and `composite.py` (operations defined by a
decomposition into simpler ones). Everything else that needs to know an op (egglog sorts, the interpreter, importers,
per-op tests, docs) reads it from here: adding an op touches one place.

Conventions that keep the algebra small:
- Every node has exactly one value. Operations with several results are several nodes (a split is slices).
- Pointwise operands have equal rank; a dimension of size 1 broadcasts. The builders insert the reshapes.
- Operands of one node share a dtype unless the entry says otherwise. The builders insert the casts.
- Reductions keep the reduced axes with size 1; dropping them is a reshape.
- `slice`, `concat` and `pad` work on one axis; `concat` takes two operands. Offsets are explicit attributes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any

from ..errors import ShapeError
from . import dtypes
from .dims import Dim, Shape, concrete

if TYPE_CHECKING:
    from .graph import Tensor

Attrs = Mapping[str, Any]


@dataclass(frozen=True)
class Type:
    """Shape and dtype of a value."""

    shape: Shape
    dtype: str

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the value; its shape must be concrete."""
        size = dtypes.itemsize(self.dtype)
        for d in concrete(self.shape):
            size *= d
        return size

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Op:
    """One operation.

    `law` names the shape and dtype rule in `laws.py` (which holds it both in Python and for egglog).
    `numpy(attrs, *arrays)` is the meaning on concrete arrays; a composite has `decompose(*tensors, **attrs)` instead.
    `kind` is one of leaf, pointwise, reduction, contraction, view, layout (moves data without arithmetic), index
    (gather/scatter/sort), composite. `linear` lists the operands in which the op is linear.
    `attrs` says how each attribute is stored and lowered: "int" an i64, "dims" an interned vector of ints (shapes, axes,
    permutations), the others ("float", "bool", "str", "dtype") interned by value.
    `onnx` and `aten` name operators of the same meaning (operand order and attributes are the importers' business).
    """

    name: str
    arity: int
    law: str
    kind: str
    attrs: Mapping[str, str]
    defaults: Mapping[str, Any]
    doc: str
    numpy: Callable[..., Any] | None = None
    decompose: Callable[..., Tensor] | None = None
    commutative: bool = False
    associative: bool = False
    monoid: str = ""  # for reductions: the binary op it folds
    linear: tuple[int, ...] = ()
    floats_only: bool = False
    flops: float = 1.0  # arithmetic per output element (pointwise) or per input element (reductions): for the roofline
    onnx: tuple[str, ...] = ()
    aten: tuple[str, ...] = ()

    @property
    def pointwise(self) -> bool:
        """Whether each output element depends on the operand elements at the same position only."""
        return self.law in ("pointwise", "compare", "where", "cast")

    @property
    def composite(self) -> bool:
        """Whether the op is defined by a decomposition."""
        return self.decompose is not None


OPS: dict[str, Op] = {}


def register(op: Op) -> Op:
    """Add an entry to the table; two entries of one name are a programming error."""
    if op.name in OPS:
        raise ValueError(f"op {op.name!r} is registered twice")
    OPS[op.name] = op
    return op


def check_attrs(op: Op, attrs: Attrs) -> tuple[tuple[str, Any], ...]:
    """The attributes completed with defaults, in the table's order and canonical Python types."""
    unknown = set(attrs) - set(op.attrs)
    if unknown:
        raise ShapeError(f"{op.name} has no attribute {sorted(unknown)}", hint=f"it has {list(op.attrs)}")
    found = []
    for name, kind in op.attrs.items():
        if name in attrs:
            value = attrs[name]
        elif name in op.defaults:
            value = op.defaults[name]
        else:
            raise ShapeError(f"{op.name} needs the attribute {name!r}")
        found.append((name, _CANONICAL[kind](value)))
    return tuple(found)


def _canonical_dim(value: Any) -> Dim:
    from .dims import Expr

    if isinstance(value, Expr):
        return value
    try:
        return index(value)
    except TypeError:
        raise ShapeError(f"{value!r} is no size, axis or count", hint="give an int or a tg.dim") from None


def _dims(values: Any) -> tuple[Dim, ...]:
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise ShapeError(f"{values!r} is no shape", hint="give a tuple of sizes")
    return tuple([_canonical_dim(d) for d in values])


def _canonical_number(value: Any) -> Any:
    """A number, or a size as a number (a fill's value)."""
    from .dims import Expr

    if isinstance(value, bool | int | Expr):
        return value
    return math.nan if value != value else float(value)  # one NaN object: a key


_CANONICAL: dict[str, Callable[[Any], Any]] = {
    "int": _canonical_dim,
    "dims": _dims,
    "float": lambda v: _canonical_number(v),
    "bool": bool,
    "str": str,
    "dtype": dtypes.name_of,
}


def infer(op: Op, types: Sequence[Type], attrs: Attrs) -> Type:
    """The result type, or a ShapeError naming the op and its operands."""
    from .laws import LAWS

    if len(types) != op.arity:
        raise ShapeError(f"{op.name} takes {op.arity} operands, not {len(types)}")
    if op.floats_only and any(not dtypes.is_float(t.dtype) for t in types):
        raise ShapeError(f"{op.name} needs floating-point operands, not {', '.join(map(str, types))}")
    try:
        return LAWS[op.law](op, tuple(types), attrs)
    except ShapeError as error:
        if not error.where:
            error.where = f"{op.name}({', '.join(map(str, types))}){dict(attrs) if attrs else ''}"
        raise
