"""Grows one fusion group (a term for one kernel) from its output e-class towards the leaves: chooses inlined e-nodes
and leaf e-classes within size limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...egraph.ir.tensor import Tensor, topological
from ...egraph.ops.ops import OPS
from .policy import UNLIMITED_PRODUCTS, FusionGroup, FusionPolicy

if TYPE_CHECKING:
    from .groups import FusionGroups

MAX_GROUP_NODES, MAX_GROUP_LEAVES = 48, 10


class GroupTooLarge(Exception):
    """Raised when a fusion group exceeds MAX_GROUP_NODES, MAX_GROUP_LEAVES or `FusionGrowth.most_met` (the limit on
    values with outside consumers on a path), or contains its own output."""


@dataclass(eq=False)
class GroupNode:
    """An e-node inside a fusion group; `parts` are its operands: a `GroupNode` where it is inlined, an e-class where it
    is a leaf."""

    node: int
    parts: list[GroupNode | int]


@dataclass
class FusionGrowth:
    """Growth of one fusion group from the output e-class `cls`, under a fusion policy: state of the search and result.

    `leaves`: e-classes that the group reads, each with its placeholder in the term (None: not made yet). `done`: key of
    a visited e-class -> its `GroupNode`, or the e-class itself if it is a leaf; a key is (e-class, values with outside
    consumers on the path, products on the path, whether below a product, whether broadcast operands and reductions are
    leaves). `open`: keys visited or being visited. `made`: terms of inlined e-nodes. `root`: the e-node of the output.
    `nodes`: number of inlined e-nodes. `inside`: e-classes that the group may contain. `met_packed`: whether growth
    came to a weight that is computed from fewer bytes, inlined or not.
    """

    groups: FusionGroups
    cls: int
    policy: FusionPolicy
    max_recomputed: int = UNLIMITED_PRODUCTS  # largest number of values with other consumers on a path of the group
    most_met: int = UNLIMITED_PRODUCTS  # largest number of such values on a path with which the group is used
    leaves: dict[int, Tensor | None] = field(default_factory=dict)
    spread: dict[int, None] = field(default_factory=dict)  # leaves that are broadcast over more elements
    done: dict[tuple[int, int, int, bool, bool], GroupNode | int] = field(default_factory=dict)
    made: dict[GroupNode, Tensor] = field(default_factory=dict)
    root: GroupNode | None = None
    nodes: int = 0
    used: int = 0  # largest number of products (GEMM, conv, attention) on a path
    met: int = 0  # largest number of values on a path that have consumers outside the group
    # keys of the classes in progress or finished
    open: set[tuple[int, int, int, bool, bool]] = field(default_factory=set)
    inside: set[int] = field(default_factory=set)
    met_packed: bool = False

    def __post_init__(self) -> None:
        self.admitted = self.groups.admitted(self.policy)

    def grown(self, node: int) -> FusionGroup | None:
        """The fusion group whose output is computed by the e-node `node`.

        None if the group is too large, consists of one operation that needs no generated kernel, is a duplicate, or has
        fewer products than the policy asks for.
        """
        if self.groups.facts.kinds[node] == "scan" and not self.policy.scans:
            return None
        self.inside = self.groups.inside(node, self.policy.products, self.policy.scans) | {self.cls}
        try:
            root = self.root = self._node(node, 0, 0, False, self.policy.spread_bare)
        except GroupTooLarge:
            return None
        if self.cls in self.leaves or not root.parts or self.used != self.policy.products:
            return None
        if self.policy.spread_bare and not self.spread:  # same group as without spread_bare
            return None
        if self.policy.packed and not any(self.groups.view.op[n] == "dequantize" for n in self.inlined):
            return None  # same group as without packed weights
        if self.policy.scans and not any(self.groups.facts.kinds[n] == "scan" for n in self.inlined):
            return None
        term = self._term(root)
        if term in self.groups.seen:
            return None
        order = {leaf: cls for cls, leaf in self.leaves.items()}
        leaves = tuple((t, order[t]) for t in topological([term]) if t in order)
        inner = {c: self._term(part) for (c, *_), part in self.done.items() if not isinstance(part, int)}
        return FusionGroup(
            self.cls, term, leaves, self.policy.name, tuple((t, c) for c, t in inner.items()), tuple(self.spread)
        )

    @property
    def inlined(self) -> Iterator[int]:
        """The e-nodes of the grown group, from the output down."""
        todo, seen = [self.root], set[GroupNode]()
        while todo:
            part = todo.pop()
            if part is not None and part not in seen:
                seen.add(part)
                yield part.node
                todo += [p for p in reversed(part.parts) if not isinstance(p, int)]

    def _term(self, part: GroupNode | int) -> Tensor:
        """The tensor of a part, built lazily: most groups turn out too large first."""
        view = self.groups.view
        if isinstance(part, int):
            found = self.leaves[part]
            if found is None:
                found = self.leaves[part] = self.groups.placeholder(list(self.leaves).index(part), view.types[part])
            return found
        if part not in self.made:
            self.made[part] = self.groups.tensor(part.node, tuple([self._term(p) for p in part.parts]))
        return self.made[part]

    def _node(self, node: int, beside: int, products: int, below: bool, lean: bool) -> GroupNode:
        """Inline an e-node. beside: number of values on the path with outside consumers · products: number of matrix
        products on the path · below: whether the node is an operand of a product · lean: operands broadcast over the
        node's elements and reductions are leaves.
        """
        r, policy = self.groups, self.policy
        facts = r.facts
        cls = facts.owners[node]
        self.nodes += cls not in facts.formulas  # index formulas are not values
        if self.nodes > MAX_GROUP_NODES:
            raise GroupTooLarge
        kind = facts.kinds[node]
        if product := kind == "product":
            products, below = products + 1, True
            self.used = max(self.used, products)
        elif kind == "rows" and self.policy.rows_beside:  # no product below a reduction
            products, below = max(products, self.policy.products), True
        # overlapping windows need each value below many times: nothing expensive is inlined there
        if node in facts.window_nodes:
            products, below = UNLIMITED_PRODUCTS, True
        bare_spread = policy.spread_bare
        others = policy.left_only and product and not bare_spread
        first = policy.rows_bare and OPS[r.view.op[node]].several_passes
        size = facts.elements(cls) if lean and OPS[r.view.op[node]].pointwise else 0
        children = facts.children[node]
        spread = (
            [k for k in children if k not in facts.elementwise_classes and facts.elements(k) < size] if size else []
        )
        if spread:
            self.spread |= dict.fromkeys(spread)
        parts = []
        for i, k in enumerate(children):
            thin = bool(i) or not policy.rows_below if product and bare_spread else lean
            bare = (others if i else first or kind == "written") or k in spread
            parts.append(self._class(k, beside, products, below, bare, thin))
        return GroupNode(node, parts)

    def _class(self, cls: int, beside: int, products: int, below: bool, bare: bool, lean: bool) -> GroupNode | int:
        if bare and cls not in self.groups.facts.inlined_classes and not self._packed(cls):
            return self._leaf(cls)
        key = (cls, beside, products, below, lean)
        found = self.done.get(key)
        if found is None:
            if key in self.open:  # cycle through free operations
                raise GroupTooLarge
            self.open.add(key)
            node = self._inlined(cls, products, below, lean)
            if node is not None and self._needed_beside(cls):
                beside += 1
                self.met = max(self.met, beside)
                if self.met > self.most_met:
                    raise GroupTooLarge
                node = node if beside <= self.max_recomputed else None
            found = self.done[key] = (
                self._leaf(cls) if node is None else self._node(node, beside, products, below, lean)
            )
        return found

    def _inlined(self, cls: int, products: int, below: bool, lean: bool) -> int | None:
        """The e-node that computes a class inside the group; None if the class becomes a leaf."""
        r, own = self.groups, self.cls
        if self._packed(cls):
            return r.facts.packed[cls]
        if cls == own or (cls in r.given and cls not in r.facts.inlined_classes):
            return None
        key = cls, products, below, lean
        nodes = self.admitted.get(key)
        if nodes is None:
            nodes = self.admitted[key] = r.admissible(cls, self.policy, products, below, lean)
        for n in nodes:
            if own not in r.facts.children[n]:
                return n
        return None

    def _packed(self, cls: int) -> bool:
        """Whether a weight-only class is computed inside the group from fewer bytes."""
        if cls not in self.groups.facts.packed:
            return False
        self.met_packed = True
        return self.policy.packed

    def _needed_beside(self, cls: int) -> bool:
        """Whether a class has a consumer that the group cannot compute."""
        r = self.groups
        if cls in r.facts.inlined_classes or cls in r.stored_classes:
            return False
        if self.spread and r.view.original_classes[cls] and OPS[r.view.op[r.choice[cls]]].kind != "view":
            if any(cls in r.below(k) for k in self.spread):
                r.shared.add(cls)
                return True
        if cls in r.shared and self.cls in r.beside:
            return True
        return r.uses.count.get(cls, 0) >= 2 and not r.uses.readers[cls] <= self.inside

    def _leaf(self, cls: int) -> int:
        if cls not in self.leaves:
            if len(self.leaves) >= MAX_GROUP_LEAVES:
                raise GroupTooLarge
            self.leaves[cls] = None
        return cls
