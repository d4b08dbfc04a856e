"""Makes the unfused baseline plan: one kernel per graph node. Also the fallback if optimization finds no plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...egraph.composites.composite import expand
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor, topological
from ...egraph.patterns.pattern import PatternCall, Var
from ...egraph.patterns.pattern_attrs import Name
from ...egraph.types.dims import concrete
from ...errors import NoPlanError
from ...extract.model.backend import Backend
from ...extract.model.kernel import Call, Operand, Strides, Template, contiguous
from ...extract.model.plan import Plan, Step, Value
from ...extract.model.pricing import Priced
from ..runtime.views import view_strides

FREE = Priced(0.0, 0.0, 0.0, "bound")
_WEIGHTS = ("param", "constant", "full", "iota")


def direct_plan(graph: Graph, backends: Sequence[Backend]) -> Plan:
    """Unfused plan of a graph: one kernel per node in topological order.

    A node's kernel is its first legal template (a kernel's pattern and code), in the order of the backends; a composite
    op without one is decomposed. Nodes are views where strides allow that; weights are folded at load. Raises
    NoPlanError for an op that has neither a legal template nor a decomposition.
    """
    return _Builder(graph, [t for b in backends for t in b.templates if not t.loss]).build()


@dataclass
class _Builder:
    graph: Graph
    templates: Sequence[Template]
    values: list[Value] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    ids: dict[Tensor, int] = field(default_factory=dict)
    weights: dict[int, Tensor] = field(default_factory=dict)
    foldable: set[Tensor] = field(default_factory=set)

    def build(self) -> Plan:
        self.by_op: dict[str, list[Template]] = {}
        for t in self.templates:
            if isinstance(t.term, PatternCall) and _plain(t):
                self.by_op.setdefault(t.term.op, []).append(t)
        for leaf in self.graph.inputs:
            self.ids[leaf] = self._add(leaf, "input", leaf.attr("name"))
        self._nodes(self.graph.nodes())
        outputs = tuple(self._read(n) for n in self.graph.outputs)
        updates = {name: self._read(n) for name, n in self.graph.updates.items()}
        return Plan(self.graph, tuple(self.values), tuple(self.steps), self.weights, outputs, updates, 0.0, 0.0)

    def _nodes(self, nodes: Sequence[Tensor]) -> None:
        """Add kernels for all nodes, operands first, except those that depend on weights only: they are folded at
        load."""
        for node in nodes:
            if node.op in _WEIGHTS or (node.args and all(a in self.foldable for a in node.args)):
                self.foldable.add(node)
        for node in nodes:
            if node not in self.ids and node not in self.foldable:
                self._node(node)

    def _add(self, node: Tensor, origin: str, name: str = "", strides: Strides | None = None, base: int = -1) -> int:
        number = len(self.values)
        self.values.append(Value(number, node.type, strides or contiguous(node.shape), origin, name, base))  # type: ignore[arg-type]
        return number

    def _read(self, node: Tensor) -> int:
        if node not in self.ids:
            self.ids[node] = number = self._add(node, "weight")
            self.weights[number] = node
        return self.ids[node]

    def _node(self, node: Tensor) -> None:
        if node.op == "state":
            self.ids[node] = self._add(node, "state", node.attr("name"))
            return
        inputs = list(map(self._read, node.args))
        if self._computed(node, inputs) or self._computed(node, [self._dense(v) for v in inputs]):
            return
        if not node.entry.composite:
            raise NoPlanError(f"no kernel computes {node!r}")
        body = expand(node)
        self._nodes(topological([body]))
        self.ids[node] = self._read(body)

    def _computed(self, node: Tensor, inputs: Sequence[int]) -> bool:
        """Add a kernel for the node over the values `inputs` if a template accepts their layouts; returns whether one
        was added."""
        operands = [Operand(self.values[v].type, self.values[v].strides) for v in inputs]
        for template in self.by_op.get(node.op, ()):
            found = self._fits(template, node, operands)
            if found is not None:
                self._step(template, node, found, inputs)
                return True
        return False

    def _dense(self, value: int) -> int:
        """Id of the value if it is dense, else of a row-major copy, for which a kernel is added."""
        old = self.values[value]
        source = Operand(old.type, old.strides)
        if source.dense:
            return value
        for template in (t for t in self.templates if isinstance(t.term, Var)):
            operand = template.operands[0]
            call = Call({operand: source}, Operand(old.type, contiguous(concrete(old.type.shape))), {})
            if template.applies is None or template.applies(call):
                made = len(self.values)
                self.values.append(Value(made, old.type, call.output.strides, "kernel"))
                self.steps.append(Step(template, call, ((operand, value),), made, FREE, f"copy: {old.type}"))
                return made
        return value

    def _fits(self, template: Template, node: Tensor, operands: Sequence[Operand]) -> Call | None:
        strides: Strides | None = contiguous(node.shape)  # type: ignore[arg-type]
        if template.family == "view":
            strides = view_strides(node.op, dict(node.attrs), operands[0])
        if strides is None:
            return None
        attrs = {}
        assert isinstance(template.term, PatternCall)
        for (_, spelled), (_, value) in zip(template.term.attrs, node.attrs):
            assert isinstance(spelled, Name)
            attrs[spelled.name] = value
        names = [a.name for a in template.term.args if isinstance(a, Var)]
        call = Call(dict(zip(names, operands)), Operand(node.type, strides), attrs)
        dense = names if "*" in template.dense else template.dense
        if not all(call.operands[o].dense for o in dense) or (
            template.applies is not None and not template.applies(call)
        ):
            return None
        return call if template.layout is None else replace(call, output=Operand(node.type, template.layout(call)))

    def _step(self, template: Template, node: Tensor, call: Call, read: Sequence[int]) -> None:
        inputs = tuple(zip(call.operands, read))
        view = template.family == "view"
        made = self._add(node, "view" if view else "kernel", "", call.output.strides, inputs[0][1] if view else -1)
        self.ids[node] = made
        self.steps.append(Step(template, call, inputs, made, FREE, f"{node.op}: {node.type}"))


def _plain(template: Template) -> bool:
    """Whether a template is a single op with one result over distinct operands with free attributes and without weight
    preparation."""
    term = template.term
    if len(template.terms) > 1:
        return False
    assert isinstance(term, PatternCall)
    operands = [a.name for a in term.args if isinstance(a, Var)]
    free = all(isinstance(value, Name) for _, value in term.attrs)
    return free and len(set(operands)) == len(term.args) and not template.prep and not template.when
