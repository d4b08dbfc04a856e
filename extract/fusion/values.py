"""Classifies values for maximal fusion (fusion/maximal.py): values that can be fused, reductions, and values that every
consumer recomputes because that is cheaper than memory traffic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod

from ...egraph.ops.ops import OPS
from ...egraph.types.dims import concrete
from .groups import FusionGroups
from .matrix_vector import vector_product_extent

# (least ratio of the consumer's elements, largest flops per element) of values recomputed per consumer element
RECOMPUTE_LIMITS = ((2, 8), (8, 64))
MAX_SLICED_SIZE_RATIO = (
    2.0  # largest total size of slices, relative to the value, for computing each slice at its consumer
)
MAX_SHORT_REDUCTION = 8  # largest number of elements of a short reduction


def is_view(op: str) -> bool:
    """Whether an op is a cast or a view, other than of overlapping windows."""
    return op == "cast" or (OPS[op].kind == "view" and OPS[op].law != "windows")


def _reads_one_place(op: str) -> bool:
    """Whether an element takes little arithmetic on one element of each operand, at an index independent of data.

    Other cheap ops are left to ordinary fusion groups.
    """
    entry = OPS[op]
    return entry.kind == "leaf" or entry.pointwise or (entry.moves and entry.law != "windows")


def _is_row_reduction(op: str) -> bool:
    """Whether an op reduces rows along one axis, or along the axes that a node names."""
    entry = OPS[op]
    return bool(entry.monoid) or (entry.fusion_role == "rows" and not entry.reduces_several_axes)


@dataclass
class MaximalFusionValues:
    """Values computed by a view's cheapest e-nodes, classified for maximal fusion.

    `rows`: whether reductions are fused. `unrolled`: short reductions are unrolled, and no other reduction is fused.
    """

    groups: FusionGroups
    rows: bool
    unrolled: bool = False

    @cached_property
    def order(self) -> list[int]:
        """E-classes that an e-node computes, operands before their consumers."""
        r = self.groups
        return [c for c in r.uses.order if c not in r.given and r.uses.choice[c] >= 0]

    def op(self, cls: int) -> str:
        """Name of the op of an e-class's cheapest e-node."""
        return str(self.groups.view.op[self.groups.uses.choice[cls]])

    def children(self, cls: int) -> list[int]:
        """The e-classes that the chosen e-node of a class reads."""
        return self.groups.uses.children(cls)

    def fits(self, cls: int) -> bool:
        """Whether a kernel of maximal fusion may contain the value of an e-class: an elementwise op or view, a product
        of vectors, or a reduction that `rows` and `unrolled` allow."""
        if self._sums(cls):
            return self.short(cls) if self.unrolled else self.rows
        op = self.op(cls)
        return (OPS[op].fusion_role == "cheap" and _reads_one_place(op)) or self._vector_product(cls) is not None

    def reduces(self, cls: int) -> bool:
        """Whether an e-class is a reduction that its kernel computes as a loop along the reduction axis (not
        unrolled)."""
        return self.rows and not self.unrolled and self._sums(cls)

    def _sums(self, cls: int) -> bool:
        product = self._vector_product(cls)
        return _is_row_reduction(self.op(cls)) or (product is not None and product[1] > 1)

    def _vector_product(self, cls: int) -> tuple[int, int, int] | None:
        """`extent` of a class that is a matrix-vector product; None for other classes."""
        if self.op(cls) != "matmul":
            return None
        left, right = (concrete(self.groups.view.types[k].shape) for k in self.children(cls))
        return vector_product_extent(left, right)

    def short(self, cls: int) -> bool:
        """Whether an e-class is a reduction over at most MAX_SHORT_REDUCTION elements."""
        return _is_row_reduction(self.op(cls)) and self.extent(cls)[1] <= MAX_SHORT_REDUCTION

    @cached_property
    def recomputed(self) -> dict[int, bool]:
        """E-class -> whether each consumer recomputes it at negligible cost, so that no kernel has to store it."""
        found: dict[int, bool] = {}
        sliced: set[int] = set()  # computed as disjoint slices, each at its consumer
        parts: set[int] = set()  # concatenations, and values read only by these
        needed: dict[int, int] = {}  # least number of elements of a consumer, through recomputed ones
        readers, roots = self._readers, {*self.groups.view.roots}
        for c in reversed(self.order):
            op, size = self.op(c), self.groups.facts.elements(c)
            needed[c] = min(
                (size if q in parts else needed[q] if found[q] else self.groups.facts.elements(q) for q in readers[c]),
                default=size,
            )
            whole = bool(readers[c]) and all(q in parts for q in readers[c])
            if op == "concat" or (op == "reshape" and whole):
                parts.add(c)
            if c in self.groups.facts.inlined_classes or is_view(op):
                found[c] = True
            elif c in roots or not readers[c] or not (OPS[op].pointwise or op in ("pad", "concat")):
                found[c] = False
            elif op == "concat" and whole:
                found[c] = True
            else:
                if OPS[op].pointwise and self._only_sliced(c, sliced):
                    sliced.add(c)
                found[c] = c in sliced or self._is_small_operand(c, needed[c])
        return found

    def _only_sliced(self, cls: int, sliced: set[int]) -> bool:
        readers, elements = self._readers[cls], self.groups.facts.elements
        slices = [q for q in readers if self.op(q) == "slice"]
        rest = [q for q in readers if self.op(q) != "slice"]
        return sum(map(elements, slices)) <= MAX_SLICED_SIZE_RATIO * elements(cls) and all(q in sliced for q in rest)

    def _is_small_operand(self, cls: int, least: int) -> bool:
        size = self.groups.facts.elements(cls)
        return any(times * size <= least and self._work[cls] <= most for times, most in RECOMPUTE_LIMITS)

    @cached_property
    def _readers(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {c: [] for c in self.order}
        for c in self.order:
            for k in dict.fromkeys(self.children(c)):
                if k in found:
                    found[k].append(c)
        return found

    @cached_property
    def _work(self) -> dict[int, float]:
        """Class -> flops per element, with its operands recomputed."""
        found: dict[int, float] = {}
        for c in self.order:
            inside = self.fits(c) and not self.reduces(c)
            own = 0.0 if is_view(self.op(c)) else OPS[self.op(c)].flops if inside else inf
            found[c] = own + sum(found.get(k, 0.0) for k in dict.fromkeys(self.children(c)))
        return found

    @cached_property
    def below(self) -> dict[int, int]:
        """E-class -> bitset of the values with more than one element that are in memory before any kernel runs and from
        which it is computed."""
        r = self.groups
        found = {c: 1 << n for n, c in enumerate(sorted(c for c in r.given if r.facts.elements(c) > 1))}
        for c in self.order:
            found[c] = 0
            for k in self.children(c):
                found[c] |= found.get(k, 0)
        return found

    def sources(self, cls: int) -> Iterator[int]:
        """Yields the e-classes that the value `cls` reads and that are not recomputed by it: values in memory or
        results of fused parts, found through recomputed values."""
        seen: set[int] = set()
        stack = [*reversed(self.children(cls))]
        while stack:
            k = stack.pop()
            if k in seen or k in self.groups.facts.formulas:
                continue
            seen.add(k)
            if self.recomputed.get(k):
                stack += reversed(self.children(k))
            else:
                yield k

    def shown(self, root: int) -> int:
        """The e-class behind `root` where that is a view that consumers recompute: its operand, followed through
        further such views."""
        while self.recomputed.get(root):
            children = [k for k in self.children(root) if k not in self.groups.facts.formulas]
            if len(children) != 1:
                break
            (root,) = children
        return root

    def concatenated_values(self, cls: int) -> set[int]:
        """E-classes that the concatenation `cls` joins, found through nested concatenations and views of them."""
        found: set[int] = set()
        stack = [*self.children(cls)]
        while stack:
            k = stack.pop()
            if k in self.recomputed and (self.op(k) == "concat" or is_view(self.op(k))):
                stack += self.children(k)
            else:
                found.add(k)
        return found

    def extent(self, cls: int) -> tuple[int, int, int]:
        """Extent of the reduction that computes an e-class: (number of results, reduction length, stride in elements
        between neighbouring elements of the reduction)."""
        if (found := self._vector_product(cls)) is not None:
            return found
        view, node = self.groups.view, self.groups.uses.choice[cls]
        shape, attrs = concrete(view.types[self.children(cls)[0]].shape), dict(view.attrs[node])
        axes = [a % len(shape) for a in attrs.get("axes") or (attrs.get("axis", -1),)]
        depth = prod(shape[a] for a in axes)
        return prod(shape) // max(depth, 1), depth, prod(shape[max(axes) + 1 :])
