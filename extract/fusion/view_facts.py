"""Computes properties of an e-graph's e-nodes and e-classes that decide how fusion groups (terms for one kernel) grow
and that do not depend on kernel times."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf, prod

from ...egraph.ops.ops import OPS
from ...egraph.types.dims import concrete
from ...egraph.view.view import EGraphView

MAX_WINDOW_FLOPS = 2  # flops per element above which a value is not recomputed for every window that contains it
UNPACKING = ("dequantize", "unpack", "from_float8", "cast")  # ops that weights in fewer bytes pass through
PACKED_RATIO = 0.9  # largest share of its bytes from which a weight is worth computing


@dataclass(frozen=True, eq=False)
class ViewFacts:
    """Properties of a view's e-nodes and e-classes, computed on first use. `given`: e-classes in memory before any
    kernel runs."""

    view: EGraphView
    given: frozenset[int]

    @cached_property
    def children(self) -> list[list[int]]:
        """Operand e-classes of each e-node."""
        off, child = self.view.off.tolist(), self.view.child.tolist()
        return [child[off[n] : off[n + 1]] for n in range(len(self.view))]

    @cached_property
    def kinds(self) -> list[str]:
        """Fusion role of each e-node (`Op.fusion_role`, such as "cheap" or "product")."""
        roles = {op: OPS[op].fusion_role for op in {*self.view.op}}
        return [roles[op] for op in self.view.op]

    @cached_property
    def _sizes(self) -> list[int]:
        """Number of elements of each class."""
        return [prod(concrete(t.shape)) for t in self.view.types]

    @cached_property
    def owners(self) -> list[int]:
        """E-class of each e-node, by the e-node's index."""
        return list(self.view.cls.tolist())

    @cached_property
    def window_nodes(self) -> set[int]:
        """E-nodes that read their operand through overlapping windows of more than one element."""
        return {n for n in range(len(self.view)) if self._reads_windows(n)}

    @cached_property
    def formulas(self) -> set[int]:
        """E-classes that are index formulas (computed from constants and iota only) and are always computed inline."""
        return self._cheap_closure(set())

    @cached_property
    def inlined_classes(self) -> set[int]:
        """E-classes that are cheaper to compute inline than to read from memory: index formulas, and cheap functions of
        these and of single elements in memory (such as a mask of the positions up to the current one)."""
        single = {c for c in self.given if self.elements(c) == 1}
        return self._cheap_closure(self.formulas | single, MAX_WINDOW_FLOPS) - single | self.formulas

    @cached_property
    def packed(self) -> dict[int, int]:
        """Weight-only e-class -> the e-node that computes it from fewer bytes than it has: dequantizations, views of
        these, and the values that they read. Empty without a dequantization of weights."""
        view, weight = self.view, self.view.weight
        if not any(op == "dequantize" and weight[view.cls[n]] for n, op in enumerate(view.op)):
            return {}
        nodes = [
            n for n, op in enumerate(view.op) if weight[view.cls[n]] and (op in UNPACKING or OPS[op].kind == "view")
        ]
        size = [float(t.nbytes) for t in view.types]
        found: dict[int, int] = {}
        changed = True
        while changed:
            changed = False
            for n in nodes:
                cls, read = int(view.cls[n]), sum(size[k] for k in self.children[n])
                if read < PACKED_RATIO * size[cls]:
                    found[cls], size[cls], changed = n, read, True
        return found

    @cached_property
    def elementwise_classes(self) -> set[int]:
        """E-classes computed by elementwise operations and views alone from e-classes in memory before any kernel
        runs."""
        return self._cheap_closure(set(self.given))

    def _cheap_closure(self, known: set[int], dearest: float = inf) -> set[int]:
        """Closure of `known` under elementwise operations, views, constants and iota, with at most `dearest` flops per
        element each."""
        found, cls, kinds = set(known), self.view.cls.tolist(), self.kinds
        nodes = [
            n for n, op in enumerate(self.view.op)
            if kinds[n] == "cheap" and op not in ("input", "param", "state", "constant") and OPS[op].flops <= dearest
        ]  # fmt: skip
        size = -1
        while size < len(found):
            size = len(found)
            nodes = [n for n in nodes if cls[n] not in found]
            for n in nodes:
                if found.issuperset(self.children[n]):
                    found.add(cls[n])
        return found

    def elements(self, cls: int) -> int:
        """Number of elements of an e-class."""
        return self._sizes[cls]

    def _reads_windows(self, node: int) -> bool:
        law = OPS[self.view.op[node]].law
        if law == "conv":
            return any(d != 1 for d in self.view.types[self.children[node][1]].shape[2:])
        return law in ("pool", "windows")

    def reduces_several_axes(self, node: int) -> bool:
        """Whether an e-node reduces over several axes. Such a reduction is not inlined at a product's operands, whose
        tiles hold single rows.
        """
        axes = dict(self.view.attrs[node]).get("axes", ())
        return OPS[self.view.op[node]].reduces_several_axes or len(axes) > 1
