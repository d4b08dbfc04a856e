"""Makes a plan (values, steps in execution order, expressions of the weights) from chosen candidate kernels."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor, make
from ...egraph.simplify.widen import as_dtype
from ...egraph.view.view import EGraphView
from ...errors import NoPlanError
from ..model.kernel import Vertex, contiguous
from ..model.plan import Plan, Step, Value
from .search import Choice


def plan_of(choice: Choice, graph: Graph) -> Plan:
    """The executable plan of a choice. `graph` is the model whose outputs and updates are the roots of the e-graph."""
    return _PlanBuilder(choice, graph).build()


@dataclass
class _PlanBuilder:
    choice: Choice
    graph: Graph
    values: list[Value] = field(default_factory=list)
    ids: dict[Vertex, int] = field(default_factory=dict)
    weights: dict[int, Tensor] = field(default_factory=dict)

    def build(self) -> Plan:
        """Build the plan. Raises NoPlanError if a step reads a value that no earlier step produces."""
        view = self.choice.hypergraph.view
        self.weight_terms = WeightTerms(view)
        self.leaves = {
            int(view.cls[n]): (op, str(dict(view.attrs[n])["name"]))
            for n, op in enumerate(view.op)
            if op in ("input", "state")
        }
        for leaf in self.graph.inputs:  # graph inputs without readers still belong to the signature
            if leaf.attr("name") not in {name for _, name in self.leaves.values()}:
                self._add(Value(-1, leaf.type, contiguous(leaf.shape), "input", leaf.attr("name")))  # type: ignore[arg-type]
        steps = [self._step(i) for i in self.choice.chosen]
        roots = [self._read(v) for v in self.choice.hypergraph.roots]
        n = len(self.graph.outputs)
        stats = {"rounds": self.choice.rounds, "measured": self.choice.measured, "sources": self.choice.sources}
        return Plan(
            self.graph, tuple(self.values), tuple(steps), self.weights, tuple(roots[:n]),
            dict(zip(self.graph.updates, roots[n:], strict=True)), self.choice.cost,
            self.choice.extraction.lower_bound, stats, launching=self.choice.launching,
        )  # fmt: skip

    def _add(self, value: Value) -> int:
        number = len(self.values)
        self.values.append(replace(value, id=number))
        return number

    def _carried(self, cls: int) -> str:
        dtype = self.choice.hypergraph.view.types[cls].dtype
        return "" if dtype == self.choice.hypergraph.type_of(cls).dtype else dtype

    def _step(self, index: int) -> Step:
        candidate = self.choice.hypergraph.candidates[index]
        inputs = tuple((operand, self._read(v)) for operand, v in candidate.inputs)
        origin, base = ("view", inputs[0][1]) if candidate.is_view else ("kernel", -1)
        made = []
        for vertex, operand in zip(candidate.outputs, candidate.call.outputs, strict=True):
            value = Value(-1, operand.type, vertex.strides, origin, base=base, carried=self._carried(vertex.cls))
            made.append(self._add(value))
            self.ids.setdefault(vertex, made[-1])  # the first producer of a vertex wins
        price = self.choice.prices[index]
        call = replace(candidate.call, schedule=dict(price.schedule)) if price.schedule else candidate.call
        return Step(candidate.template, call, inputs, made[0], price, candidate.template.pattern, tuple(made[1:]))

    def _read(self, vertex: Vertex) -> int:
        found = self.ids.get(vertex)
        if found is not None:
            return found
        kind = self.choice.hypergraph.type_of(vertex.cls)
        if vertex.cls in self.leaves:
            origin, name = self.leaves[vertex.cls]
            number = self._add(Value(-1, kind, vertex.strides, origin, name))
        elif self.choice.hypergraph.view.weight[vertex.cls]:
            number = self._add(Value(-1, kind, vertex.strides, "weight", carried=self._carried(vertex.cls)))
            self.weights[number] = as_dtype(self.weight_terms.term(vertex.cls), kind.dtype)
        else:
            raise NoPlanError(f"value {vertex} is read before anything makes it")
        self.ids[vertex] = number
        return number


class WeightTerms:
    """Expressions of weight-only e-classes over params and constants, the smallest for each."""

    def __init__(self, view: EGraphView) -> None:
        self.view = view
        self._best: dict[int, tuple[float, int]] = {}  # class -> (size of its smallest term, its e-node)
        self._made: dict[int, Tensor] = {}
        self._solve()

    def _solve(self) -> None:
        """Compute the smallest term of each class by worklist relaxation."""
        view, cls = self.view, self.view.cls.tolist()
        off, child = view.off.tolist(), view.child.tolist()
        nodes = [n for n in range(len(view.op)) if view.weight[cls[n]]]
        parents: dict[int, list[int]] = {}
        for n in nodes:
            for k in child[off[n] : off[n + 1]]:
                parents.setdefault(k, []).append(n)
        todo = list(reversed(nodes))
        while todo:
            n = todo.pop()
            children = child[off[n] : off[n + 1]]
            if any(k not in self._best for k in children):
                continue
            size = 1.0 + sum(self._best[k][0] for k in children)
            if cls[n] not in self._best or size < self._best[cls[n]][0]:
                self._best[cls[n]] = (size, n)
                todo += parents.get(cls[n], ())

    def term(self, cls: int) -> Tensor:
        """The smallest expression of the class. Raises NoPlanError if no expression reaches params and constants."""
        if cls not in self._best:
            raise NoPlanError(f"weight class {cls} has no expression over params and constants")
        stack = [cls]
        while stack:
            c = stack[-1]
            node = self._best[c][1]
            children = self.view.children(node).tolist()
            missing = [k for k in children if k not in self._made]
            if c in self._made:
                stack.pop()
            elif missing:
                stack += missing
            else:
                self._made[c] = self._leaf_or_op(node, children)
        return self._made[cls]

    def _leaf_or_op(self, node: int, children: list[int]) -> Tensor:
        leaf = self.view.tensors.get(node)
        if leaf is not None:
            return leaf
        return make(self.view.op[node], [self._made[k] for k in children], dict(self.view.attrs[node]))
