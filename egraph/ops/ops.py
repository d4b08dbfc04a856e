"""Holds the op table: the `Op` entry type, the registry `OPS`, attribute canonicalization and type inference.

Entries are in `ops/atomic_ops.py` (ops with NumPy semantics) and `composites/composite_ops.py` (ops defined by a
decomposition into simpler ops). Egglog sorts, interpreter, fusion, generated kernels, docs and many per-op tests are
derived from this table; CONTRIBUTING.md names what else a new op may need (library kernels, an importer's row, a rule).

Conventions that keep the algebra small:
- Every node has exactly one value. An operation with several results is several nodes (a split is a set of slices).
- Pointwise operands have equal rank; a dimension of size 1 broadcasts. Builders insert the reshapes.
- Operands of one node share a dtype unless the entry says otherwise. Builders insert the casts.
- Reductions keep reduced axes with size 1; dropping an axis is a reshape.
- `slice`, `concat` and `pad` act on one axis; `concat` takes two operands. Offsets are explicit attributes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import ShapeError, UsageError
from ..types import dtypes
from ..types.dims import Dim, Shape, concrete, volume
from .index_maps import MapOf

if TYPE_CHECKING:
    from ..ir.tensor import Tensor

Attrs = Mapping[str, Any]
FUSED_MONOIDS = ("add", "maximum", "minimum")  # of reductions that fused kernels compute
COSTLY_FLOPS = 8.0  # flops of an element from which an elementwise op is costly


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
        """Size of the value in bytes; the shape must be concrete."""
        size = dtypes.itemsize(self.dtype)
        for d in concrete(self.shape):
            size *= d
        return size

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


class TargetText(NamedTuple):
    """Source text of an op in each target language: C, CUDA C++ and Triton for elementwise ops, JAX for all ops.

    A text is a format string of the operands `{0}`, `{1}`, `{2}`; an empty text means that the language has none.
    `c`: C over float32, and over float64 unless `c_double` is given; `c_whole`: C over integers and bools. `cuda`: CUDA
    C++ over float32, and over float64 unless `cuda_double` is given; `cuda_whole` and `cuda_bool`: CUDA C++ over
    integers and over bools, `c_whole` unless given. `triton`: Triton over float32 and float64, may be several texts
    separated by "; ": the values of all but the last are variables, which later texts use as further operands;
    `triton_whole`: Triton over integers and bools, `triton` unless given. `jax`: JAX over every dtype; of an op that is
    not elementwise, it may name attributes, too, and what `backends/pallas/spelling.py` derives from types (`{shape}`,
    `{dtype}`, `{wide}`, `{least}`, `{greatest}`).
    """

    c: str = ""
    c_double: str = ""
    c_whole: str = ""
    cuda: str = ""
    cuda_double: str = ""
    cuda_whole: str = ""
    cuda_bool: str = ""
    triton: str = ""
    triton_whole: str = ""
    jax: str = ""

    def of(self, target: str) -> str:
        """The source text of the op for a target, named like a field (`c`, `cuda`, ...). If it has none, that of the
        target that stands in for it (`cuda_double`: `cuda`), else ""."""
        found: str = getattr(self, target)
        return found or (self.of(_SAME_TEXT[target]) if target in _SAME_TEXT else "")


#: target -> target whose text it has unless it has its own.
_SAME_TEXT = {
    "c_double": "c", "cuda_double": "cuda", "cuda_whole": "c_whole", "cuda_bool": "c_whole", "triton_whole": "triton",
}  # fmt: skip


class OutFunction(NamedTuple):
    """The elementwise function `name` of NumPy or Torch, which can write its result to given memory (`out=`).

    `dtypes`: operands of the library's kernel of this op: "any", "number" (not bool), "float" (one float dtype),
    "bits" (bool and integers), or "none" if the function is a reference only. `counted`: Torch lacks the function for
    bools and some integers; the reference computes it in int64.
    """

    name: str
    dtypes: str = "any"
    counted: bool = False


class ViewMethods(NamedTuple):
    """Method names of NumPy arrays and Torch tensors that compute a view op, as (name, attribute passed as argument).

    `numpy`: a view in NumPy; None: a view by explicit strides. `torch`: a view in Torch, None if Torch has none.
    `torch_copy`: a method that copies, where Torch has no such view.
    """

    numpy: tuple[str, str] | None = None
    torch: tuple[str, str] | None = None
    torch_copy: tuple[str, str] | None = None


_NO_TEXT, _NO_METHODS = TargetText(), ViewMethods()


@dataclass(frozen=True)
class Op:
    """One operation.

    `law` names the shape and dtype law in `ops/type_laws.py`. `numpy(attrs, *arrays)` computes the op on concrete
    arrays; a composite has `decompose(*tensors, **attrs)` instead. `kind` is one of leaf, pointwise, reduction,
    contraction, view, layout (moves data without arithmetic), index (gather, scatter, sort), composite. `linear` lists
    the operands in which the op is linear. `attrs` maps each attribute to its encoding: "int" an i64, "dims" an
    interned vector of ints (shapes, axes, permutations), "float", "bool", "str" and "dtype" interned by value. `onnx`
    and `aten` name equivalent operators (importers handle operand order and attributes). `text`, `numpy_function` and
    `torch_function` are the spellings of an elementwise op. `index_map` says which operand elements a view or layout op
    reads (`ops/index_maps.py`).

    Facts about elementwise functions of real numbers: `symmetry` is "odd" (f(-x) = -f(x)), "even" or "". `monotone`:
    finite and nondecreasing everywhere. `nonnegative`: no result is negative. `twice`: "once" if f(f(x)) = f(x),
    "operand" if f(f(x)) = x, else "". `fixed`: numbers c with f(c, ..., c) = c in every number format. `domain`: "" if
    the op is defined for all finite operands, "positive" if for positive ones, "nonzero" if for a last operand other
    than 0. `rounding`: "never" if a result is exact, "always" if even a result of few bits may be off, "last" if the
    exact result is rounded once.

    Facts for proofs: `algebra` is "ring" if elements of the result are sums and products of operand elements and
    integers, "order" if they are operand elements chosen by their order, else "". `real(z, *elements)` is the value
    over the reals, of terms with Python's arithmetic; `z.If` chooses. `logic(z, *elements)` is the value of boolean
    terms; `z` has `And`, `Or`, `Xor` and `Not`.

    Facts for kernels: `fused_as` is the role in fused kernels where `fusion_role` does not derive it. `several_passes`:
    each element of a row is needed more than once, with other elements between (a maximum, then a sum). `work(node)`:
    flops of a node, where they are not `flops` per element. `wide_operands`: a small relative error of an operand may
    change the result entirely (periodic functions, rounding to whole numbers), so operands are not stored in fewer
    bits. `kernels_may_lack`: for some operands or devices no library has a kernel of this composite op, so that graphs
    that are not rewritten hold its decomposition as well.

    Facts for drawing operands: `keeps_positive`: the result of positive operands is positive; implied for ops that move
    elements. `index_operand`: position of the operand that holds indices into operand 0 (along the attribute `axis`, or
    axis 1), or into the flattened spatial axes of the attribute `shape`. `negative_indices`: negative
    indices count from the end.
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
    monoid: str = ""  # for reductions: the binary op that the reduction folds
    linear: tuple[int, ...] = ()
    floats_only: bool = False
    symmetry: str = ""
    monotone: bool = False
    nonnegative: bool = False
    twice: str = ""
    fixed: tuple[float, ...] = ()
    domain: str = ""
    rounding: str = "last"
    algebra: str = ""
    real: Callable[..., Any] | None = None
    logic: Callable[..., Any] | None = None
    fused_as: str = ""
    several_passes: bool = False
    wide_operands: bool = False
    kernels_may_lack: bool = False
    work: Callable[[Tensor], float] | None = None
    keeps_positive: bool = False
    index_operand: int | None = None
    negative_indices: bool = False
    # arithmetic per output element (pointwise) or per input element (reductions), for the roofline model
    flops: float = 1.0
    onnx: tuple[str, ...] = ()
    aten: tuple[str, ...] = ()
    text: TargetText = _NO_TEXT
    numpy_function: OutFunction | None = None
    torch_function: OutFunction | None = None
    index_map: MapOf | None = None
    methods: ViewMethods = _NO_METHODS

    @property
    def costly(self) -> bool:
        """Whether an element of the result needs so much arithmetic that a kernel should store it rather than compute
        it twice."""
        return self.pointwise and self.flops >= COSTLY_FLOPS

    @property
    def pointwise(self) -> bool:
        """Whether each output element depends only on operand elements at the same index."""
        return self.law in ("pointwise", "compare", "where", "cast", "from_float8")

    @property
    def folded(self) -> str:
        """Name of the binary op that a reduction folds over its axes; the op's own name for other ops."""
        return self.monoid or self.name

    @property
    def moves(self) -> bool:
        """Whether the op only moves elements.

        Each result element is an operand element or a constant, at an index independent of data.
        """
        return self.kind in ("view", "layout")

    @property
    def composite(self) -> bool:
        """Whether the op is defined by a decomposition."""
        return self.decompose is not None

    @property
    def fusion_role(self) -> str:
        """Role in fused kernels: "cheap", "rows", "scan", "product", "written" or "opaque".

        cheap: reads few operand elements per result element and does little arithmetic on them. rows: a reduction.
        scan: a running sum. product: a contraction. written: writes elements into a tensor in memory, so that it can
        only be the last op of a kernel. opaque: is never fused.
        """
        reduces = self.monoid in FUSED_MONOIDS or (self.composite and self.law == "reduce")
        derived = "rows" if reduces else "cheap" if self.pointwise or self.moves else "opaque"
        return self.fused_as or derived

    @property
    def reduces_several_axes(self) -> bool:
        """Whether every node of the op reduces over several axes, whatever its attributes."""
        return self.fusion_role == "rows" and self.law in ("channel_norm", "pool")

    @property
    def positive_of_positive(self) -> bool:
        """Whether the result of positive operands is positive."""
        return self.keeps_positive or self.moves

    @property
    def integer_arithmetic(self) -> bool:
        """Whether the op may wrap around on integers (sums and products, unlike comparisons, selections and maxima)."""
        computes = self.kind in ("pointwise", "reduction", "contraction") and self.law in (
            "pointwise",
            "reduce",
            "along",
            "matmul",
        )
        return computes and not self.floats_only and self.algebra != "order"

    def indexed_size(self, shape: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        """Number of elements that `index_operand` indexes; `attrs`: those of the call; `shape`: the shape of operand
        0."""
        if "shape" in self.attrs:
            made = attrs["shape"]
            return volume(made[2:]) if len(made) > 2 else made[0]
        return shape[attrs["axis"] if "axis" in self.attrs else 1]


OPS: dict[str, Op] = {}


def register(op: Op) -> Op:
    """Add an entry to the op table, and return it. Raises ValueError if the name is taken."""
    if op.name in OPS:
        raise ValueError(f"op {op.name!r} is registered twice")
    OPS[op.name] = op
    return op


def check_attrs(op: Op, attrs: Attrs) -> tuple[tuple[str, Any], ...]:
    """Attributes completed with defaults, in table order and as canonical Python types.

    Raises ShapeError for unknown or missing ones, UsageError for values of another kind.
    """
    if not attrs.keys() <= op.attrs.keys():
        unknown = sorted(attrs.keys() - op.attrs.keys())
        raise ShapeError(f"{op.name} has no attribute {unknown}", hint=f"it has {list(op.attrs)}")
    found = []
    for name, kind in op.attrs.items():
        if name in attrs:
            value = attrs[name]
        elif name in op.defaults:
            value = op.defaults[name]
        else:
            raise ShapeError(f"{op.name} needs the attribute {name!r}")
        try:
            found.append((name, _CANONICAL[kind](value)))
        except (TypeError, ValueError):
            raise UsageError(f"{name}={value!r} of {op.name} is no {kind}") from None
    return tuple(found)


def _canonical_dim(value: Any) -> Dim:
    if type(value) is int:  # nearly always
        return value
    from ..types.dims import DimExpr

    if isinstance(value, DimExpr):
        return value if type(value) is DimExpr else DimExpr(value.terms)
    try:
        return index(value)
    except TypeError:
        raise ShapeError(f"{value!r} is no size, axis or count", hint="give an int or a tg.dim") from None


def dims_of(values: Any) -> tuple[Dim, ...]:
    """Sizes or axes as ints and dimension expressions. Raises ShapeError for anything else."""
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise ShapeError(f"{values!r} is no shape", hint="give a tuple of sizes")
    return tuple([d if type(d) is int else _canonical_dim(d) for d in values])


def _canonical_number(value: Any) -> Any:
    """A number, or a dimension expression used as a number (value of a fill)."""
    from ..types.dims import DimExpr

    if isinstance(value, DimExpr):
        return _canonical_dim(value)
    if isinstance(value, bool | int):
        return value
    return math.nan if value != value else float(value)  # math.nan is one object, so that NaN works as a dictionary key


_CANONICAL: dict[str, Callable[[Any], Any]] = {
    "int": _canonical_dim,
    "dims": dims_of,
    "float": lambda v: _canonical_number(v),
    "bool": bool,
    "str": str,
    "dtype": dtypes.name_of,
}
