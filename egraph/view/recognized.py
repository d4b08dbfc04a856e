"""Rewrites a graph without an e-graph: operations that spell out a composite op become that op, and batch norms with
fixed statistics become part of the convolution before them.

Saturation finds the same forms, which fused library kernels need. This is for searches that may end before it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..builders import builders as t
from ..ir.graph import Graph
from ..ir.tensor import Tensor, make, rebuild, topological
from ..ops.ops import OPS
from ..patterns.pattern import PatternCall, build
from ..patterns.rule import Rule
from .match import Binding, Matcher
from .view import view_of

PASSES = 3  # a recognized op may be an operand of another one: sigmoid, then silu


def recognized(graph: Graph, rules: Sequence[Rule]) -> Graph:
    """The graph with composite ops where those of `rules` that collect operations into one match, and with batch norms
    folded into convolutions; the same object if nothing changes. A subgraph of which some inner value has other uses
    stays."""
    collecting = [r for r in rules if _collects(r)]
    for _ in range(PASSES):
        before, graph = graph, _folded(_collected(graph, collecting))
        if before is graph:
            break
    return graph


def _collects(rule: Rule) -> bool:
    """Whether the right side is one composite op of the left side's variables."""
    if rule.growth != "collects" or len(rule.rights) != 1 or not isinstance(rule.rights[0], PatternCall):
        return False
    return OPS[rule.rights[0].op].composite


def _collected(graph: Graph, rules: Sequence[Rule]) -> Graph:
    nodes = graph.nodes()
    view, present = view_of(graph), {n.op for n in nodes}
    matcher, of_class = Matcher(view), {c: n for n, c in view.classes.items()}
    users = Counter(a for n in nodes for a in dict.fromkeys(n.args))
    users.update(graph.roots)
    found: dict[Tensor, tuple[int, Rule, Binding]] = {}
    for rule in rules:
        left = rule.lefts[0]
        if not isinstance(left, PatternCall) or left.op not in present:
            continue
        for cls, binding in matcher.find(left, rule.guards):
            root = of_class.get(cls)
            bound = {of_class[c] for name, c in binding.items() if name[0] != "@" and c in of_class}
            inner = None if root is None else _inner(root, bound, users)
            if root is not None and inner and inner > found.get(root, (0,))[0]:
                found[root] = inner, rule, binding
    if not found:
        return graph

    made: dict[Tensor, Tensor] = {}
    for node in nodes:
        args = tuple(made[a] for a in node.args)
        same = all(a is b for a, b in zip(args, node.args))
        made[node] = node if same else make(node.op, args, dict(node.attrs), data=node.data)
        if node in found:
            _, rule, binding = found[node]
            operands = {name: made[of_class[c]] for name, c in binding.items() if name[0] != "@"}
            new = build(rule.rights[0], operands, {name[1:]: v for name, v in binding.items() if name[0] == "@"})
            made[node] = new if new.type == node.type else made[node]
    return graph.with_roots([made[r] for r in graph.roots])


def _inner(root: Tensor, bound: set[Tensor], users: Mapping[Tensor, int]) -> int:
    """Number of nodes of a match, which begins at `root` and ends at the values `bound`; 0 if one has other uses."""
    nodes, todo = {root}, [root]
    while todo:
        for a in todo.pop().args:
            if a.args and a not in bound and a not in nodes:
                nodes.add(a)
                todo.append(a)
    uses = Counter(a for n in nodes for a in dict.fromkeys(n.args))
    return len(nodes) if all(uses[n] == users[n] for n in nodes if n is not root) else 0


def _folded(graph: Graph) -> Graph:
    """The graph with batch norms of convolutions' results as scales of the weights, and biases."""
    nodes = graph.nodes()
    if not any(n.op == "batch_norm" for n in nodes):
        return graph
    users = Counter(a for n in nodes for a in dict.fromkeys(n.args))
    users.update(graph.roots)
    fixed = {n for n in nodes if n.op in ("param", "constant", "full")}
    fixed.update(n for n in topological(list(graph.roots)) if n.args and fixed.issuperset(n.args))

    def change(node: Tensor, args: tuple[Tensor, ...]) -> Tensor | None:
        if node.op != "batch_norm" or not fixed.issuperset(node.args[1:]):
            return None
        old, bias = _convolution(node.args[0])
        if old is None or users[old] > 1 or users[node.args[0]] > 1 or old.dtype != node.dtype:
            return None
        if not fixed.issuperset((old.args[1], *(() if bias is None else (bias,)))):
            return None
        new, bias = _convolution(args[0])
        return None if new is None else _scaled(new, bias, args[1:], float(node.attr("eps")))

    return graph.with_roots(rebuild(graph.roots, change))


def _convolution(x: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """(convolution, bias of its channels or None) whose result x is; (None, None) for others."""
    if x.op == "conv":
        return x, None
    if x.op == "add":
        for conv, bias in (x.args, x.args[::-1]):
            if conv.op == "conv" and bias.op == "reshape" and bias.args[0].rank == 1 and _by_channel(bias, conv):
                return conv, bias.args[0]
    return None, None


def _by_channel(bias: Tensor, conv: Tensor) -> bool:
    return bias.shape == (1, conv.shape[1], *(1,) * (conv.rank - 2))


def _scaled(conv: Tensor, bias: Tensor | None, norm: Sequence[Tensor], eps: float) -> Tensor:
    """A convolution with a batch norm of (gain, shift, mean, variance) of its result."""
    gain, shift, mean, variance = norm
    x, w = conv.args[:2]
    scale: Any = gain * t.rsqrt(variance + eps)
    weight = w * t.reshape(scale, (w.shape[0], *(1,) * (w.rank - 1)))
    moved = shift + ((bias - mean) if bias is not None else -mean) * scale
    line = (1, conv.shape[1], *(1,) * (conv.rank - 2))
    return make("conv", (x, weight), dict(conv.attrs)) + t.reshape(moved, line)


__all__ = ["recognized"]
