"""Defines tensors: hash-consed expression nodes (one object per equal expression), the pool that holds them, and
traversals of terms.

A `Tensor` is immutable and exists once per (op, operands, attributes): identity is structural equality, and common
subexpressions are shared by construction. `==` builds an elementwise comparison, `is` compares expressions, and tensors
are hashed by identity. `bool(tensor)` raises, so `==` between tensors in a condition, and `in` on a list of tensors,
raise too.
"""

from __future__ import annotations

import hashlib
import math
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ...errors import UsageError
from ...processes.forks import Lock
from ..ops.ops import OPS, Attrs, Op, Type, check_attrs
from ..ops.type_laws import infer
from ..types import dtypes
from ..types.dims import Dim, Shape
from .refused_values import refuse_value

LEAVES = ("input", "param", "state", "constant")

_pool: weakref.WeakValueDictionary[tuple[Any, ...], Tensor] = weakref.WeakValueDictionary()
_entering = Lock()  # held while adding to the pool: two threads may create the same node


class Tensor:
    """One value: an op applied to operands, or a leaf. Create tensors only with `make` and the builders in
    `builders/builders.py`."""

    __slots__ = ("__weakref__", "_digest", "args", "attrs", "data", "op", "type")
    # NumPy must not try to iterate over us; models/functions/numpy_calls.py installs the function
    __array_ufunc__: Callable[..., Any] = None  # type: ignore[assignment]
    __hash__ = object.__hash__

    op: str
    args: tuple[Tensor, ...]
    attrs: tuple[tuple[str, Any], ...]
    type: Type
    data: np.ndarray[Any, Any] | None  # set for `constant` leaves only
    _digest: bytes | None

    @property
    def shape(self) -> Shape:
        """Sizes along the axes, as ints or symbolic dimension expressions."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """Name of the dtype."""
        return self.type.dtype

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.type.shape)

    ndim = rank

    @property
    def entry(self) -> Op:
        """The op table entry of this node's op."""
        return OPS[self.op]

    def attr(self, name: str) -> Any:
        """Value of the attribute `name`."""
        return dict(self.attrs)[name]

    @property
    def is_leaf(self) -> bool:
        """Whether this is an input, param, state or constant."""
        return self.op in LEAVES

    def __bool__(self) -> bool:
        refuse_value(UsageError("the truth value of a tensor expression is not known yet", hint="use tg.where"))

    def __copy__(self) -> Tensor:
        return self

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a call of `make`: unpickling gives the node of the pool, so identity stays structural equality."""
        return make, (self.op, self.args, dict(self.attrs), self.data)

    def __repr__(self) -> str:
        operands = [a.attr("name") if a.op in LEAVES[:3] else f"{a.op}{list(a.shape)}" for a in self.args]
        shown = [f"{k}={v!r}" for k, v in self.attrs if k not in ("dtype", "shape")]
        return f"{self.op}({', '.join([*operands, *shown])}): {self.type}"

    def __iter__(self) -> Iterator[Tensor]:
        raise UsageError("tensor expressions are not iterable", hint="index them: x[0]")

    def __contains__(self, item: object) -> bool:
        raise UsageError("membership in a tensor expression is not known yet", hint="tg.any(tg.eq(x, value))")

    # builders/tensor_operators.py installs the operators here, because builders insert casts and reshapes.
    _repr_html_: Callable[[], str]
    __add__: Callable[..., Tensor]
    __radd__: Callable[..., Tensor]
    __sub__: Callable[..., Tensor]
    __rsub__: Callable[..., Tensor]
    __mul__: Callable[..., Tensor]
    __rmul__: Callable[..., Tensor]
    __truediv__: Callable[..., Tensor]
    __rtruediv__: Callable[..., Tensor]
    __matmul__: Callable[..., Tensor]
    __rmatmul__: Callable[..., Tensor]
    __pow__: Callable[..., Tensor]
    __neg__: Callable[..., Tensor]
    __getitem__: Callable[..., Tensor]
    __eq__: Callable[..., Tensor]  # type: ignore[assignment]
    __ne__: Callable[..., Tensor]  # type: ignore[assignment]
    __lt__: Callable[..., Tensor]
    __le__: Callable[..., Tensor]
    __gt__: Callable[..., Tensor]
    __ge__: Callable[..., Tensor]
    __rpow__: Callable[..., Tensor]
    __floordiv__: Callable[..., Tensor]
    __rfloordiv__: Callable[..., Tensor]
    __mod__: Callable[..., Tensor]
    __rmod__: Callable[..., Tensor]
    __abs__: Callable[..., Tensor]
    __and__: Callable[..., Tensor]
    __rand__: Callable[..., Tensor]
    __or__: Callable[..., Tensor]
    __ror__: Callable[..., Tensor]
    __xor__: Callable[..., Tensor]
    __rxor__: Callable[..., Tensor]
    __invert__: Callable[..., Tensor]
    __len__: Callable[..., int]
    reshape: Callable[..., Tensor]
    flatten: Callable[..., Tensor]
    size: Dim
    astype: Callable[..., Tensor]
    transpose: Callable[..., Tensor]
    permute: Callable[..., Tensor]
    sum: Callable[..., Tensor]
    mean: Callable[..., Tensor]
    max: Callable[..., Tensor]
    min: Callable[..., Tensor]
    T: Tensor
    mT: Tensor

    # models/functions/numpy_calls.py installs NumPy's functions and methods.
    __array_function__: Callable[..., Any]
    all: Callable[..., Tensor]
    any: Callable[..., Tensor]
    argmax: Callable[..., Tensor]
    argmin: Callable[..., Tensor]
    argsort: Callable[..., Tensor]
    clip: Callable[..., Tensor]
    copy: Callable[..., Tensor]
    cumsum: Callable[..., Tensor]
    diagonal: Callable[..., Tensor]
    dot: Callable[..., Tensor]
    prod: Callable[..., Tensor]
    ravel: Callable[..., Tensor]
    repeat: Callable[..., Tensor]
    round: Callable[..., Tensor]
    squeeze: Callable[..., Tensor]
    std: Callable[..., Tensor]
    swapaxes: Callable[..., Tensor]
    take: Callable[..., Tensor]
    trace: Callable[..., Tensor]
    var: Callable[..., Tensor]


def make(op: str, args: Sequence[Tensor] = (), attrs: Attrs | None = None, data: Any = None) -> Tensor:
    """Return the unique node `op(*args, **attrs)` with its inferred type (hash-consing).

    `data`: array of a constant. Raises ShapeError if the operands do not fit the op.
    """
    entry = OPS[op]
    full = check_attrs(entry, attrs or {})
    key = _pool_key(op, args, full)
    found = _pool.get(key)
    if found is None:
        found = object.__new__(Tensor)
        found.op, found.args, found.attrs, found.data, found._digest = op, tuple(args), full, data, None
        found.type = infer(entry, [a.type for a in args], dict(full))
        with _entering:
            found = _pool.setdefault(key, found)
    return found


def _pool_key(op: str, args: Sequence[Tensor], attrs: tuple[tuple[str, Any], ...]) -> tuple[Any, ...]:
    """Key of a node in the pool; its operands must be alive."""
    return (op, *map(id, args), *attrs_key(attrs)) if attrs else (op, *map(id, args))


def attrs_key(attrs: tuple[tuple[str, Any], ...]) -> tuple[Any, ...]:
    """Hashable key of attributes; 1, 1.0 and True have different keys, and so have 0.0 and -0.0."""
    kinds = tuple([(float, math.copysign(1.0, v)) if type(v) is float else type(v) for _, v in attrs])
    return (attrs, kinds)


def constant(array: Any) -> Tensor:
    """A constant leaf that holds a private copy of the array; equal contents give the same node, without a second
    copy."""
    value = np.asarray(array, order="C")
    dtype = dtypes.name_of(value.dtype)
    digest = hashlib.blake2b(value.reshape(-1).view(np.uint8).data, digest_size=16).hexdigest()
    attrs = {"digest": digest, "shape": value.shape, "dtype": dtype}
    known = _pool.get(_pool_key("constant", (), check_attrs(OPS["constant"], attrs)))
    if known is not None:
        return known
    kept = np.array(value, copy=True, order="C")
    kept.setflags(write=False)
    return make("constant", (), attrs, data=kept)


def topological(roots: Iterable[Tensor], known: Container[Tensor] = ()) -> list[Tensor]:
    """All nodes reachable from the roots, operands first, in a deterministic depth-first order. Iterative.

    Nodes in `known` are skipped, together with nodes reachable only through them.
    """
    order: list[Tensor] = []
    seen: set[Tensor] = set()  # not ids: some libraries' audit hooks, called for each `id`, make it four times as slow
    stack: list[Any] = [*roots]  # None: the operands of the node below it are done
    stack.reverse()
    while stack:
        node = stack.pop()
        if node is None:
            order.append(stack.pop())
            continue
        if node in seen or node in known:
            continue
        seen.add(node)
        if node.args:
            stack += (node, None)
            stack += node.args[::-1]
        else:
            order.append(node)
    return order


def rebuild(roots: Sequence[Tensor], change: Callable[[Tensor, tuple[Tensor, ...]], Tensor | None]) -> list[Tensor]:
    """Rebuild terms bottom-up: every node is passed through `change(node, new_operands)`.

    A result of None keeps the node's op and attributes. Returns the new roots.
    """
    new: dict[Tensor, Tensor] = {}
    for node in topological(roots):
        args = tuple([new[a] for a in node.args])
        found = change(node, args)
        if found is None:
            same = all(a is b for a, b in zip(args, node.args))
            found = node if same else make(node.op, args, dict(node.attrs), data=node.data)
        new[node] = found
    return [new[r] for r in roots]


def structural_digest(node: Tensor) -> bytes:
    """Structural hash of the term rooted at a node, commutative operands sorted; cached on the nodes."""
    for item in topological([node]):
        if item._digest is None:
            children = [a._digest or b"" for a in item.args]
            if item.entry.commutative:
                children.sort()
            text = repr((item.op, item.attrs)).encode()
            item._digest = hashlib.blake2b(text + b"\0" + b"".join(children), digest_size=16).digest()
    assert node._digest is not None
    return node._digest
