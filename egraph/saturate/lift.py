"""Converts an e-graph saturated at concrete generic sizes into an e-graph with symbolic sizes (lifting).

Saturation needs concrete numbers. A graph with symbolic dimensions is bound to *generic* sizes: primes that are neither
numbers of the model nor factors of them. A number in the saturated e-graph then reveals its origin and is written as an
expression again: with T = 131, 131 is T, 100608 is 768·T, and 65 is T // 2 if the model has that size. An e-node is
lifted if shape and dtype inference, applied to the lifted operands and attributes, gives the lifted type of its
e-class; other e-nodes are dropped. Matching sizes do not prove equal values, so programs are also run at other sizes
(`src/tensor_graphs/pipeline/sizes/any_size.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from math import isfinite
from typing import Any

import numpy as np

from ...errors import ShapeError
from ..ir.graph import Graph
from ..ir.tensor import Tensor, make
from ..ops.ops import OPS, Op, Type
from ..ops.type_laws import infer
from ..types import dtypes
from ..types.dims import Atom, Dim, DimExpr, Shape, bind
from ..view.view import EGraphView

#: Attributes that hold axis indices, not sizes.
POSITIONS = ("axis", "axes", "perm")
MIN_GENERIC_SIZE = 7  # smallest generic size where the model allows; 1, 2, 3 and 5 are too common
ATTEMPTS = 200
WHOLE = 1 << 31  # fill values at or beyond this are not sizes
ROUNDED = 2e-7  # relative tolerance: values computed from sizes may have been rounded to float32


def numbers(graph: Graph) -> Iterator[Dim]:
    """All sizes and integer attribute values that occur in a graph, except axis indices."""
    for node in dict.fromkeys([*graph.nodes(), *graph.inputs]):
        yield from node.shape
        for name, value in node.attrs:
            kind = node.entry.attrs[name]
            if name in POSITIONS or (name == "shape" and node.is_leaf):
                continue
            if kind == "dims":
                yield from value
            elif kind == "int":
                yield value
            elif kind == "float" and isfinite(value) and value == int(value):
                yield int(value)


def factored(known: Iterable[Dim]) -> tuple[set[int], list[DimExpr]]:
    """Split numbers into (absolute values of plain numbers and of coefficients, size expressions).

    The size expressions are the atoms of symbolic numbers, and symbolic sums as a whole.
    """
    plain: set[int] = set()
    found: dict[DimExpr, None] = {}
    for value in known:
        if not isinstance(value, DimExpr):
            plain.add(abs(int(value)))
            continue
        for atoms, factor in value.terms:
            plain.add(abs(factor))
            found |= {DimExpr((((atom,), 1),)): None for atom in atoms}
        if len(value.terms) > 1:
            found[value] = None
    return plain, list(found)


def is_prime(n: int) -> bool:
    """Whether n is prime (trial division; n is small here)."""
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


def telling(n: int) -> bool:
    """Whether n has a prime factor greater than 5; such a number occurs in few models, so that it tells where it comes
    from."""
    for p in (2, 3, 5):
        while n and n % p == 0:
            n //= p
    return n > 1


def _choices(atom: Atom, wanted: int, below: bool = False) -> list[int]:
    """Generic sizes for a dimension, nearest to the wanted size first.

    `below`: sizes up to the wanted one come before larger ones. If the dimension's range has no prime, the result is up
    to 65 of its smallest sizes, largest first.
    """
    low, high = max(atom.min, MIN_GENERIC_SIZE), min(atom.max, max(4 * wanted, 64))
    primes = sorted(
        (n for n in range(low, high + 1) if is_prime(n)), key=lambda n: (below and n > wanted, abs(n - wanted), n)
    )
    return primes or sorted(range(atom.min, min(atom.max, atom.min + 64) + 1), reverse=True)


def generic_sizes(graph: Graph, wanted: Mapping[str, int], *, below: bool = False) -> dict[str, int]:
    """Sizes near the wanted ones for which the values of the graph's size expressions and its numbers are all distinct.

    Returns the assignment with fewest ambiguities among ATTEMPTS tries. Raises ShapeError if the graph is invalid at
    all tried sizes. `below`: prefer sizes that are not larger than the wanted ones, so that kernels need no more tiles.
    """
    plain, known = factored(numbers(graph))
    options = {name: _choices(atom, wanted[name], below) for name, atom in graph.free_dims.items()}
    best: tuple[int, dict[str, int]] | None = None
    error: ShapeError | None = None
    for attempt in range(ATTEMPTS):
        sizes: dict[str, int] = {}
        for place, (name, values) in enumerate(options.items()):
            fresh = [v for v in values if v not in sizes.values()] or values
            sizes[name] = fresh[(attempt // (1 + place)) % len(fresh)]
        try:
            clashes = _clashes(plain, known, sizes)
            if best is None or clashes < best[0]:
                graph.bind(sizes)
                best = clashes, sizes
        except ShapeError as problem:
            error = problem
            continue
        if not clashes:
            break
    if best is None:
        raise error or ShapeError("no sizes satisfy the constraints of the graph")
    return best[1]


def _clashes(plain: set[int], known: Sequence[DimExpr], sizes: Mapping[str, int]) -> int:
    """Number of ambiguities: expressions that divide a number of the graph, and expressions mistakable for a multiple
    of another.

    For example, at m = 11 and n = 7, m + 3 could be 2n.
    """
    values = [int(bind(e, sizes)) for e in known]  # type: ignore[arg-type]
    own = sum(not telling(v) or any(n and n % v == 0 for n in plain) for v in values)
    pairs = ((v, e, w, f) for (v, e), (w, f) in permutations(zip(values, known), 2) if telling(w) and v % w == 0)
    return own + sum(e != v // w * f for v, e, w, f in pairs)


@dataclass
class Numbers:
    """Map from numbers at the generic sizes (primes that stand for free sizes) to expressions in symbolic sizes."""

    graph: Graph  # with symbolic sizes
    sizes: Mapping[str, int]  # the generic sizes
    _known: dict[int, Dim] = field(default_factory=dict)
    _types: dict[Type, Type] = field(default_factory=dict)
    made: dict[Any, Any] = field(default_factory=dict)  # memo for users of this object

    def __post_init__(self) -> None:
        every = list(numbers(self.graph))
        _, parts = factored(every)
        known = sorted(((int(bind(e, self.sizes)), e) for e in parts), key=lambda f: -f[0])  # type: ignore[arg-type]
        self._factors = [(n, e) for n, e in known if telling(n) or e in self._atoms()]
        for value in every:
            if isinstance(value, DimExpr):
                self._known.setdefault(int(bind(value, self.sizes)), value)  # type: ignore[arg-type]
        self.simple = {float(n.attr("value")) for n in self.graph.nodes() if n.op == "full"} | {0.5, 1.0, 2.0}

    def _atoms(self) -> list[Dim]:
        """The symbolic dimensions as expressions."""
        return [DimExpr((((atom,), 1),)) for atom in self.graph.free_dims.values()]

    def dim(self, n: int) -> Dim:
        """The expression in symbolic sizes whose value at the generic sizes is `n` (a size, stride, offset or bound): a
        product of known expressions and a plain factor."""
        if n < 0:
            return -self.dim(-n)
        found = self._known.get(n)
        if found is None:
            found = self._known[n] = self._product(n)
        return found

    def _product(self, n: int) -> Dim:
        """A number as a product of known expressions and a plain factor."""
        for value, expression in self._factors:
            if n > 1 and value > 1 and n % value == 0:
                return self.dim(n // value) * expression
        return n

    def shape(self, shape: Sequence[int]) -> Shape:
        """Expressions in symbolic sizes of a shape or of strides."""
        return tuple([self.dim(int(d)) for d in shape])

    def type(self, kind: Type) -> Type:
        """The type with symbolic sizes in place of those at the generic sizes; cached."""
        found = self._types.get(kind)
        if found is None:
            found = self._types[kind] = Type(self.shape(kind.shape), kind.dtype)  # type: ignore[arg-type]
        return found

    def attr(self, name: str, kind: str, value: Any) -> Any:
        """An attribute value with symbolic sizes in place of those at the generic sizes, given the attribute's name and
        its kind in the op table."""
        if name in POSITIONS:
            return value
        return self.shape(value) if kind == "dims" else self.dim(value) if kind == "int" else value

    def attrs(self, op: Op, attrs: Iterable[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
        """Attributes of an e-node with symbolic sizes in place of those at the generic sizes."""
        return tuple([(name, self.attr(name, op.attrs[name], value)) for name, value in attrs])

    def fill(self, value: Any) -> tuple[Dim | float, Dim] | None:
        """Fill value in symbolic sizes as (numerator, denominator), of which one contains a size; None if neither does.

        If the generic size of T is 131, the fill value 131.0 is (T, 1), and 1/131 is (1.0, T).
        """
        if isinstance(value, bool) or not isfinite(value) or not value or value in self.simple:
            return None
        if value == int(value) and abs(value) < WHOLE:
            found = self.dim(int(value))
            return (found, 1) if isinstance(found, DimExpr) else None
        for size in sorted(
            {n for n, e in self._known.items() if isinstance(e, DimExpr)} | {n for n, _ in self._factors}
        ):
            if not telling(size):
                continue
            top = value * size
            near = min(self.simple, key=lambda s: abs(s - top))
            if near and abs(top - near) <= ROUNDED * abs(near):
                return near, self.dim(size)
        return None


@dataclass(frozen=True)
class Lifted:
    """An e-graph view with symbolic sizes.

    `symbolic` has the same e-nodes and e-classes as `generic`, the view at the generic sizes without e-nodes that do
    not lift. `numbers` maps numbers at the generic sizes to expressions. `lost` counts dropped e-nodes per op.
    """

    generic: EGraphView
    symbolic: EGraphView
    numbers: Numbers
    lost: Mapping[str, int]


def lifted(view: EGraphView, numbers: Numbers) -> Lifted:
    """The e-graph `view` in symbolic sizes, without the e-nodes whose types differ at other sizes."""
    leaves = {(n.op, n.attr("name")): n for n in (*numbers.graph.nodes(), *numbers.graph.inputs) if _named(n)}
    types = [numbers.type(t) for t in view.types]
    known: dict[Any, bool] = {}
    attrs: list[tuple[tuple[str, Any], ...]] = []
    tensors: dict[int, Tensor] = {}
    holding: list[bool] = []
    off, child, cls = view.off.tolist(), view.child.tolist(), view.cls.tolist()
    for node, name in enumerate(view.op):
        op, made = OPS[name], types[cls[node]]
        spelled = numbers.attrs(op, view.attrs[node])
        if node in view.tensors or not op.arity:
            leaf = _leaf(view, node, spelled, numbers, leaves)
            fits = leaf is not None and leaf.type == made
            if leaf is not None and (node in view.tensors or leaf.op != name):
                tensors[node] = leaf
        else:
            operands = [types[k] for k in child[off[node] : off[node + 1]]]
            key = name, spelled, made, *operands
            if key not in known:
                known[key] = _fits(op, operands, spelled, made)
            fits = known[key]
        holding.append(fits)
        attrs.append(spelled)
    lost: dict[str, int] = {}
    for node, fits in enumerate(holding):
        if not fits:
            lost[view.op[node]] = lost.get(view.op[node], 0) + 1
    keep = _reached(view, holding)
    generic = _restricted(view, keep)
    leaves_kept = {new: tensors[old] for new, old in enumerate(keep) if old in tensors}
    symbolic = replace(generic, attrs=[attrs[i] for i in keep], types=types, tensors=leaves_kept, classes={})
    return Lifted(generic, symbolic, numbers, lost)


def _reached(view: EGraphView, holding: Sequence[bool]) -> list[int]:
    """Indices of e-nodes that hold and whose operands are computable from such e-nodes.

    Raises ShapeError if a root is not computable.
    """
    off, child, cls = view.off.tolist(), view.child.tolist(), view.cls.tolist()
    users: dict[int, list[int]] = {}
    missing = [len(set(child[off[n] : off[n + 1]])) for n in range(len(view))]
    for n in range(len(view)):
        for k in set(child[off[n] : off[n + 1]]):
            users.setdefault(k, []).append(n)
    ready = [n for n, left in enumerate(missing) if not left and holding[n]]
    known: set[int] = set()
    kept: list[int] = []
    while ready:
        n = ready.pop()
        kept.append(n)
        if cls[n] not in known:
            known.add(cls[n])
            for user in users.get(cls[n], ()):
                missing[user] -= 1
                if not missing[user] and holding[user]:
                    ready.append(user)
    if lost := [r for r in view.roots if r not in known]:
        raise ShapeError(f"{len(lost)} outputs have no form that is valid at every size")
    return sorted(kept)


def _named(node: Tensor) -> bool:
    return node.op in ("input", "param", "state")


def _leaf(
    view: EGraphView, node: int, attrs: tuple[tuple[str, Any], ...], numbers: Numbers, leaves: Mapping[Any, Tensor]
) -> Tensor | None:
    """A leaf with symbolic sizes; None if its data or value is only valid at the generic sizes."""
    op, found = view.op[node], view.tensors.get(node)
    if found is not None and op in ("input", "param", "state"):
        return leaves.get((op, found.attr("name")))
    if op == "constant":
        return found
    fields = dict(attrs)
    over = numbers.fill(fields["value"]) if op == "full" else None
    if over is None:
        return make(op, (), fields)
    top, below = over
    whole = make(op, (), {**fields, "value": top})
    if below == 1:
        return whole
    if not dtypes.is_float(fields["dtype"]):
        return None
    return make("div", (whole, make(op, (), {**fields, "value": below})))


def _fits(op: Op, operands: Sequence[Type], attrs: tuple[tuple[str, Any], ...], made: Type) -> bool:
    """Whether an e-node's lifted type follows from its lifted operands and attributes."""
    try:
        return infer(op, operands, dict(attrs)) == made and _keeps_volume(op, operands, made)
    except (ShapeError, TypeError, ValueError):
        return False


def _keeps_volume(op: Op, operands: Sequence[Type], made: Type) -> bool:
    """Whether a reshape keeps the number of elements; its type law compares concrete numbers only."""
    if op.name != "reshape":
        return True
    have, want = (_volume(t.shape) for t in (operands[0], made))
    return have == want


def _volume(shape: Shape) -> Dim:
    total: Dim = 1
    for d in shape:
        total = total * d
    return total


def _restricted(view: EGraphView, keep: Sequence[int]) -> EGraphView:
    """The view with a subset of its e-nodes; keeps all e-classes and the record of the original graph."""
    kept = np.zeros(len(view), np.bool_)
    kept[list(keep)] = True
    return replace(
        view.only(kept),
        original_nodes=None if view.original_nodes is None else view.original_nodes[kept],
        block_classes=view.original_classes,
    )


__all__ = ["Lifted", "Numbers", "generic_sizes", "lifted", "numbers"]
