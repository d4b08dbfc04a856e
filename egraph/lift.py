"""From one size to every size: an e-graph that was saturated at generic sizes, read as one in free sizes.

Saturation needs numbers. A graph with free dimensions is therefore bound to *generic* sizes: primes that no number of the
model is or has as a factor. So a number in the e-graph says where it comes from, and is written as an expression again: 131
is T, 100608 is 768·T, 65 is T // 2 where the model has that size. An e-node lifts where the type laws, applied to the
lifted operands and attributes, give the lifted type of its class; the others are left out. That the sizes fit is no proof
that the values agree: programs are also run at other sizes (`src/tensor_graphs/symbolic.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from math import isfinite
from typing import Any

import numpy as np

from ..errors import ShapeError
from . import dtypes
from .dims import Atom, Dim, Expr, Shape, bind
from .graph import Graph, Tensor, make
from .ops import OPS, Op, Type, infer
from .view import EGraphView

#: Attributes that say which axes, not how many elements.
POSITIONS = ("axis", "axes", "perm")
LEAST = 7  # generic sizes are no smaller where the model allows: 1, 2, 3 and 5 are everywhere
ATTEMPTS = 200
WHOLE = 1 << 31  # fills beyond this are no sizes
ROUNDED = 2e-7  # relative: numbers made of sizes may have been rounded to float32


def numbers(graph: Graph) -> Iterator[Dim]:
    """Every size and whole number in a graph, positions of axes apart."""
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


def factored(known: Iterable[Dim]) -> tuple[set[int], list[Expr]]:
    """The plain numbers, and the expressions that are not products of others: named sizes, sums, quotients."""
    plain: set[int] = set()
    found: dict[Expr, None] = {}
    for value in known:
        if not isinstance(value, Expr):
            plain.add(abs(int(value)))
            continue
        for atoms, factor in value.terms:
            plain.add(abs(factor))
            found |= {Expr((((atom,), 1),)): None for atom in atoms}
        if len(value.terms) > 1:
            found[value] = None
    return plain, list(found)


def is_prime(n: int) -> bool:
    """Whether n is a prime (n is small here)."""
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


def telling(n: int) -> bool:
    """Whether a number over n can be told from numbers that people write: n has a prime factor beyond 5."""
    for p in (2, 3, 5):
        while n and n % p == 0:
            n //= p
    return n > 1


def _choices(atom: Atom, wanted: int) -> list[int]:
    """Generic sizes for a dimension, the nearest to the wanted one first; all its sizes where it has no prime."""
    low, high = max(atom.min, LEAST), min(atom.max, max(4 * wanted, 64))
    primes = sorted((n for n in range(low, high + 1) if is_prime(n)), key=lambda n: (abs(n - wanted), n))
    return primes or sorted(range(atom.min, min(atom.max, atom.min + 64) + 1), reverse=True)


def generic_sizes(graph: Graph, wanted: Mapping[str, int]) -> dict[str, int]:
    """Sizes near the wanted ones at which the graph's expressions can be told from its numbers and from each other.

    ShapeError where the graph holds at none of those that were tried.
    """
    plain, known = factored(numbers(graph))
    options = {name: _choices(atom, wanted[name]) for name, atom in graph.free_dims.items()}
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
        raise error or ShapeError("the graph holds at no size")
    return best[1]


def _clashes(plain: set[int], known: Sequence[Expr], sizes: Mapping[str, int]) -> int:
    """How many expressions are a factor of a number of the graph, and how many would be read as a multiple of another: at
    m = 11, m + 3 is 2n where n is 7."""
    values = [int(bind(e, sizes)) for e in known]  # type: ignore[arg-type]
    own = sum(not telling(v) or any(n and n % v == 0 for n in plain) for v in values)
    pairs = ((v, e, w, f) for (v, e), (w, f) in permutations(zip(values, known), 2) if telling(w) and v % w == 0)
    return own + sum(e != v // w * f for v, e, w, f in pairs)


@dataclass
class Numbers:
    """Numbers at the generic sizes as expressions in free sizes."""

    graph: Graph  # in free sizes
    sizes: Mapping[str, int]  # the generic ones
    _known: dict[int, Dim] = field(default_factory=dict)
    _types: dict[Type, Type] = field(default_factory=dict)
    made: dict[Any, Any] = field(default_factory=dict)  # what others keep of what they have lifted

    def __post_init__(self) -> None:
        every = list(numbers(self.graph))
        _, parts = factored(every)
        known = sorted(((int(bind(e, self.sizes)), e) for e in parts), key=lambda f: -f[0])  # type: ignore[arg-type]
        self._factors = [(n, e) for n, e in known if telling(n) or e in self._atoms()]
        for value in every:
            if isinstance(value, Expr):
                self._known.setdefault(int(bind(value, self.sizes)), value)  # type: ignore[arg-type]
        self.simple = {float(n.attr("value")) for n in self.graph.nodes() if n.op == "full"} | {0.5, 1.0, 2.0}

    def _atoms(self) -> list[Dim]:
        """The named sizes themselves."""
        return [Expr((((atom,), 1),)) for atom in self.graph.free_dims.values()]

    def dim(self, n: int) -> Dim:
        """A size, stride, offset or bound."""
        if n < 0:
            return -self.dim(-n)
        found = self._known.get(n)
        if found is None:
            found = self._known[n] = self._product(n)
        return found

    def _product(self, n: int) -> Dim:
        for value, expression in self._factors:
            if n > 1 and value > 1 and n % value == 0:
                return self.dim(n // value) * expression
        return n

    def shape(self, shape: Sequence[int]) -> Shape:
        """Sizes or strides."""
        return tuple([self.dim(int(d)) for d in shape])

    def type(self, kind: Type) -> Type:
        """A type; cached."""
        found = self._types.get(kind)
        if found is None:
            found = self._types[kind] = Type(self.shape(kind.shape), kind.dtype)  # type: ignore[arg-type]
        return found

    def attr(self, name: str, kind: str, value: Any) -> Any:
        """An attribute's value, by the attribute's name and kind in the op table."""
        if name in POSITIONS:
            return value
        return self.shape(value) if kind == "dims" else self.dim(value) if kind == "int" else value

    def attrs(self, op: Op, attrs: Iterable[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
        """The attributes of an e-node."""
        return tuple([(name, self.attr(name, op.attrs[name], value)) for name, value in attrs])

    def fill(self, value: Any) -> tuple[Dim | float, Dim] | None:
        """A fill's value as a number or size over a size: (131.0, 1) is (T, 1), and 1/131 is (1.0, T). None if it stays,
        as the graph's own numbers do."""
        if isinstance(value, bool) or not isfinite(value) or not value or value in self.simple:
            return None
        if value == int(value) and abs(value) < WHOLE:
            found = self.dim(int(value))
            return (found, 1) if isinstance(found, Expr) else None
        for size in sorted({n for n, e in self._known.items() if isinstance(e, Expr)} | {n for n, _ in self._factors}):
            if not telling(size):
                continue
            top = value * size
            near = min(self.simple, key=lambda s: abs(s - top))
            if near and abs(top - near) <= ROUNDED * abs(near):
                return near, self.dim(size)
        return None


@dataclass(frozen=True)
class Lifted:
    """A view in free sizes: e-nodes and classes as in `generic`, the view at the generic sizes without what does not lift.
    `lost` counts the e-nodes left out by op."""

    generic: EGraphView
    symbolic: EGraphView
    numbers: Numbers
    lost: Mapping[str, int]


def lifted(view: EGraphView, numbers: Numbers) -> Lifted:
    """The view's e-nodes that hold at every size, as far as types can tell."""
    leaves = {(n.op, n.attr("name")): n for n in (*numbers.graph.nodes(), *numbers.graph.inputs) if _named(n)}
    types = [numbers.type(t) for t in view.types]
    known: dict[Any, bool] = {}
    attrs: list[tuple[tuple[str, Any], ...]] = []
    tensors: dict[int, Tensor] = {}
    holding: list[bool] = []
    off, kid, cls = view.off.tolist(), view.kid.tolist(), view.cls.tolist()
    for node, name in enumerate(view.op):
        op, made = OPS[name], types[cls[node]]
        spelled = numbers.attrs(op, view.attrs[node])
        if node in view.tensors or not op.arity:
            leaf = _leaf(view, node, spelled, numbers, leaves)
            fits = leaf is not None and leaf.type == made
            if leaf is not None and (node in view.tensors or leaf.op != name):
                tensors[node] = leaf
        else:
            operands = [types[k] for k in kid[off[node] : off[node + 1]]]
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
    """The e-nodes that hold and whose operands can be computed by such. ShapeError if a root cannot."""
    off, kid, cls = view.off.tolist(), view.kid.tolist(), view.cls.tolist()
    users: dict[int, list[int]] = {}
    missing = [len(set(kid[off[n] : off[n + 1]])) for n in range(len(view))]
    for n in range(len(view)):
        for k in set(kid[off[n] : off[n + 1]]):
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
        raise ShapeError(f"no form of {len(lost)} outputs holds at every size")
    return sorted(kept)


def _named(node: Tensor) -> bool:
    return node.op in ("input", "param", "state")


def _leaf(
    view: EGraphView, node: int, attrs: tuple[tuple[str, Any], ...], numbers: Numbers, leaves: Mapping[Any, Tensor]
) -> Tensor | None:
    """A leaf in free sizes; None if its data or its value is only that of the generic sizes."""
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
    try:
        return infer(op, operands, dict(attrs)) == made and _keeps_volume(op, operands, made)
    except (ShapeError, TypeError, ValueError):
        return False


def _keeps_volume(op: Op, operands: Sequence[Type], made: Type) -> bool:
    """The law of reshapes compares numbers only."""
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
    """The view with some of its e-nodes; all classes stay, and what the graph had."""
    kept = np.zeros(len(view), np.bool_)
    kept[list(keep)] = True
    return replace(view.only(kept), own=None if view.own is None else view.own[kept], stamped=view.original)


__all__ = ["Lifted", "Numbers", "generic_sizes", "lifted", "numbers"]
