"""Describes the e-graph, its kernels, the plan, the model and the rewrites as columns, once for the viewer and all
exports.

Names are TABLE.COLUMN, one entry per row; a column `X.off` (one entry more than rows) with `X.item` holds lists, as in
CSR. Indices refer to rows of other tables; -1 stands for none, NaN for an unknown number. Tables:

    class    e-classes: type, flags, first iteration, first e-node, layer of the model
    node     e-nodes: e-class, op, attributes, operand e-classes, rule that made it
    place    values in a layout that kernels read or write (e-class, strides)
    kernel   candidate kernels: values read and written, e-nodes computed, prices, limit, source text
    op       ops with their names in ONNX and PyTorch, for searches
    rule     rules that made e-nodes: both sides as text
    model    operations of the model as written; term, step: the rewriting, step by step
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..egraph.explain.explain import Explanation, classes_of
from ..egraph.ir.graph import Graph
from ..egraph.ir.tensor import LEAVES, Tensor, topological
from ..egraph.ops.ops import OPS, Type
from ..egraph.patterns.rule import Rule
from ..egraph.types.dims import concrete
from ..egraph.view.view import EGraphView
from ..errors import TensorGraphsError
from ..extract.model.kernel import Candidate, Vertex, output_names
from ..rules import EVERY
from .columns import Column
from .layers import layers_of, weight_names

if TYPE_CHECKING:
    from .explorer import Explorer

LONGEST_TEXT = 400  # characters of one label
LONGEST_SOURCE = 20_000  # characters of one kernel's source
MOST_SOURCE = 2 << 20  # characters of all sources together
MAX_QUESTION_SHARE = 0.25  # most of the time for questions that one question may take
MOST_TERMS = 20_000  # nodes of the terms of all rewriting steps together

Columns = dict[str, Column]


def text_of_attrs(attrs: Sequence[tuple[str, Any]]) -> str:
    """Attributes of an op as text, without dtypes and digests."""
    shown = [f"{k}={list(v) if isinstance(v, tuple) else v}" for k, v in attrs if k not in ("digest", "dtype")]
    return ", ".join(shown)[:LONGEST_TEXT]


def lists(name: str, rows: Sequence[Sequence[int]]) -> Columns:
    """Column of lists, as the columns `name.off` and `name.item`."""
    off = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    return {f"{name}.off": off, f"{name}.item": np.array([x for row in rows for x in row], np.int32)}


# ---------------------------------------------------------------- the e-graph
def view_tables(view: EGraphView, made_by: Mapping[int, Sequence[str]], made_from: Mapping[int, int]) -> Columns:
    """Tables `class`, `node` and `op`. `made_by`: e-node -> rules that made it; `made_from`: e-node -> an e-node on the
    left side of the first of these rules.
    """
    n = len(view)
    own = view.original_nodes if view.original_nodes is not None else np.zeros(n, np.bool_)
    age = view.age if view.age is not None else np.full(view.n_classes, -1, np.int32)
    root = np.zeros(view.n_classes, np.bool_)
    root[list(view.roots)] = True
    since = age[view.cls] if n else np.zeros(0, np.int32)  # an e-node is no older than its e-class and its operands
    np.maximum.at(since, np.repeat(np.arange(n), np.diff(view.off)), age[view.child])
    leaf = {i: str(dict(t.attrs).get("name", "")) for i, t in view.tensors.items()}
    rules = [list(made_by.get(i, ())) for i in range(n)]
    known = sorted(OPS.keys() & set(view.op))
    return {
        "op.name": known, "op.also": [" ".join((*OPS[op].onnx, *OPS[op].aten)) for op in known],
        "class.type": [str(t) for t in view.types], "class.bytes": _floats([float(nbytes_of(t)) for t in view.types]),
        "class.weight": view.weight, "class.root": root, "class.age": age,
        "class.original": view.original_classes,
        "node.class": view.cls, "node.op": list(view.op), "node.name": [leaf.get(i, "")[:LONGEST_TEXT] for i in range(n)],
        "node.attrs": ["" if i in leaf else text_of_attrs(a) for i, a in enumerate(view.attrs)],
        "node.kid.off": view.off, "node.kid.item": view.child, "node.own": own, "node.age": np.where(own, 0, since),
        "node.rule": [r[0] if r else "" for r in rules], "node.rules": [", ".join(r[1:8]) for r in rules],
        "node.from": np.array([made_from.get(i, -1) for i in range(n)], np.int32),
    }  # fmt: skip


def rules_of_nodes(explorer: Explorer) -> tuple[dict[int, list[str]], dict[int, int]]:
    """(e-node -> rules that made it, e-node -> an e-node on the left side of the first of these rules)."""
    rules: dict[int, list[str]] = {}
    start: dict[int, int] = {}
    for d in explorer.derivations:
        for node in d.made:
            known = rules.setdefault(node, [])
            if d.rule not in known:
                known.append(d.rule)
            start.setdefault(node, d.left[0])
    return rules, start


def rule_texts(names: Iterable[str]) -> Columns:
    """Table `rule`: the sides of the named built-in rules as text, and their documentation."""
    known = {d.name: d for r in EVERY for d in r.directions}
    found = [known[n] for n in sorted(set(names)) if n in known]
    return {
        "rule.name": [r.name for r in found],
        "rule.text": [text_of_rule(r)[:LONGEST_TEXT] for r in found],
        "rule.doc": [r.doc[:LONGEST_TEXT] for r in found],
    }


def text_of_rule(rule: Rule) -> str:
    """A rule without its name, in the language that `rules check` reads."""
    return str(rule).removeprefix(f"{rule.name}: ")


# ---------------------------------------------------------------- kernels
def kernel_tables(explorer: Explorer) -> Columns:
    """Tables `place` (values in a layout) and `kernel`: every candidate, with position in the plan, prices, lower
    bounds and sources."""
    found = explorer.choice.hypergraph
    candidates, prices = found.candidates, explorer.choice.prices
    places: dict[Vertex, int] = {}
    outs = [[places.setdefault(v, len(places)) for v in c.outputs] for c in candidates]
    ins = [[places.setdefault(v, len(places)) for _, v in c.inputs] for c in candidates]
    position = {i: n for n, i in enumerate(explorer.choice.chosen)}
    facts = [explorer.facts.get(i) for i in range(len(candidates))]
    nan = math.nan
    columns: Columns = {
        "place.class": np.array([v.cls for v in places], np.int32),
        "place.layout": [",".join(map(str, v.strides)) for v in places],
        "place.given": np.array([found.given.get(v.cls) == v.strides for v in places], np.bool_),
        "kernel.name": [c.template.name for c in candidates], "kernel.backend": [c.template.backend for c in candidates],
        "kernel.view": np.array([c.is_view for c in candidates], np.bool_),
        "kernel.computes": [c.template.pattern[:LONGEST_TEXT] for c in candidates],
        "kernel.us": _floats([p.us for p in prices]), "kernel.low": _floats([p.low for p in prices]),
        "kernel.high": _floats([p.high for p in prices]), "kernel.price": [p.source for p in prices],
        "kernel.schedule": [", ".join(f"{k}={v}" for k, v in p.schedule) for p in prices],
        "kernel.flops": _floats([f.flops if f else nan for f in facts]),
        "kernel.bytes": _floats([f.bytes if f else nan for f in facts]),
        "kernel.limit": _floats([f.limit_us if f else nan for f in facts]),
        "kernel.error": _floats([nan if not f or f.error is None else f.error for f in facts]),
        "kernel.launch": _floats([f.roofline.launch_us if f else nan for f in facts]),
        "kernel.byte_rate": _floats([f.roofline.bytes_per_us if f else nan for f in facts]),
        "kernel.flop_rate": _floats([f.roofline.flops_per_us if f else nan for f in facts]),
        "kernel.step": np.array([position.get(i, -1) for i in range(len(candidates))], np.int32),
        "kernel.operands": [", ".join(o for o, _ in c.inputs) for c in candidates],
    }  # fmt: skip
    columns |= lists("kernel.out", outs) | lists("kernel.in", ins)
    columns |= lists("kernel.node", [sorted(used) for used in explorer.covered])
    return columns


def nbytes_of(kind: Type) -> int:
    """Bytes of a value of a type."""
    return Type(concrete(kind.shape), kind.dtype).nbytes


def _floats(values: Sequence[float]) -> Column:
    return np.array(values, np.float64)


def source_column(explorer: Explorer) -> Columns:
    """Column `kernel.source`: the source text of chosen kernels, then of others by price, within MOST_SOURCE."""
    candidates = explorer.choice.hypergraph.candidates
    chosen = set(explorer.choice.chosen)
    order = sorted(range(len(candidates)), key=lambda i: (i not in chosen, explorer.choice.prices[i].us))
    texts, left, known = [""] * len(candidates), MOST_SOURCE, dict[tuple[int, int], str]()
    for i in order:
        c = candidates[i]
        if c.is_view or left <= 0:
            continue
        place = (id(c.template), id(c.call))
        if place not in known:
            known[place] = source_of(c, explorer.choice.prices[i].schedule)
            left -= len(known[place])
        texts[i] = known[place]
    return {"kernel.source": texts}


def source_of(candidate: Candidate, schedule: Sequence[tuple[str, int]] = ()) -> str:
    """The source text of a kernel in a schedule: its call, then the definitions that the call needs.

    The reason as text if it has none. `schedule`: by default that of the candidate's call.
    """
    from dataclasses import replace

    template, call = candidate.template, candidate.call
    names = {o: o for o in template.operands} | {n: n for n in output_names(len(call.outputs))} | {"scratch": "scratch"}
    call = replace(call, names=names, schedule=dict(schedule) or call.schedule)
    try:
        parts = [template.write(call)]
        if template.source is not None:
            parts += [str(text) for text in template.source(call).values()]
    except (TensorGraphsError, LookupError, ValueError, TypeError, AttributeError) as error:
        return f"no source text: {error}"[:LONGEST_TEXT]
    return "\n\n".join(parts)[:LONGEST_SOURCE]


def question_columns(explorer: Explorer, seconds: float) -> Columns:
    """Columns `kernel.pinned` and `kernel.without`: time of the whole plan in µs if the kernel must run, or must not.
    Column `kernel.proven`: whether these times are proven optimal; otherwise they are upper bounds.

    NaN where the question was not asked within `seconds`, infinity where no plan is left. Asked for the plan's kernels,
    the most expensive first, each with its cheapest rival; then for further rivals: kernels that write a value of the
    plan.
    """
    found, prices = explorer.choice.hypergraph, explorer.choice.prices
    pinned, without = np.full(len(found.candidates), np.nan), np.full(len(found.candidates), np.nan)
    proven = np.ones(len(found.candidates), np.bool_)
    chosen = [i for i in explorer.choice.chosen if not found.candidates[i].is_view]
    pinned[chosen], running = explorer.choice.cost, set(chosen)
    rivals: dict[Vertex, list[int]] = {v: [] for i in chosen for v in found.candidates[i].outputs}
    for i, c in sorted(enumerate(found.candidates), key=lambda r: prices[r[0]].us):
        if not c.is_view and prices[i].us < math.inf and i not in running:
            for v in c.outputs:
                rivals.get(v, []).append(i)
    first: list[tuple[int, bool]] = []
    further: list[tuple[int, bool]] = []
    for i in sorted(chosen, key=lambda i: -prices[i].us):
        others = list(dict.fromkeys(r for v in found.candidates[i].outputs for r in rivals[v]))
        first += [(i, False), *((r, True) for r in others[:1])]
        further += [(r, True) for r in others[1:]]
    until = time.monotonic() + seconds
    for i, pin in dict.fromkeys([*first, *sorted(further, key=lambda r: prices[r[0]].us)]):
        if (left := until - time.monotonic()) <= 0:
            break
        (pinned if pin else without)[i], proven[i] = _asked(explorer, i, pin, min(left, seconds * MAX_QUESTION_SHARE))
    return {"kernel.pinned": pinned, "kernel.without": without, "kernel.proven": proven}


def _asked(explorer: Explorer, candidate: int, pin: bool, seconds: float) -> tuple[float, bool]:
    """Time of the plan in µs with a kernel that must run (`pin`) or must not, and whether it is proven optimal.

    Infinite without a plan.
    """
    name = [f"k{candidate}"]
    try:
        answer = explorer.what_if(pin=name, seconds=seconds) if pin else explorer.what_if(forbid=name, seconds=seconds)
    except TensorGraphsError:
        return math.inf, True
    return (math.inf, True) if answer.unused else (answer.after_us, answer.optimal)


# ---------------------------------------------------------------- the model and its rewriting
def model_tables(graph: Graph, view: EGraphView, modules: Mapping[Tensor, str]) -> Columns:
    """Table `model`: the operations of the simplified model, in topological order, with layer, and e-class if known.
    Column `class.layer`: the layers of e-classes. `modules`: known module paths of operations.
    """
    nodes = graph.nodes()
    number = {n: i for i, n in enumerate(nodes)}
    outputs = dict(zip(graph.roots, [*graph.names, *graph.updates]))
    classes, layers, held, own = (
        classes_of(view, graph.roots),
        layers_of(graph, modules),
        weight_names(nodes),
        dict[int, str](),
    )
    for n in nodes:
        if n in layers and n in classes:
            own.setdefault(classes[n], layers[n])
    return {
        "class.layer": [own.get(c, "")[:LONGEST_TEXT] for c in range(view.n_classes)],
        "model.layer": [layers.get(n, "")[:LONGEST_TEXT] for n in nodes],
        "model.weight": np.array([n in held for n in nodes], np.bool_),
        "model.op": [n.op for n in nodes], "model.type": [str(n.type) for n in nodes],
        "model.name": [_label(n)[:LONGEST_TEXT] for n in nodes], "model.output": [str(outputs.get(n, ""))[:LONGEST_TEXT] for n in nodes],
        "model.class": np.array([classes.get(n, -1) for n in nodes], np.int32),
        **lists("model.arg", [[number[a] for a in n.args] for n in nodes]),
    }  # fmt: skip


def _label(node: Tensor) -> str:
    return str(node.attr("name")) if node.op in LEAVES[:3] else text_of_attrs(node.attrs)


def rewrite_tables(found: Sequence[Explanation]) -> Columns:
    """Tables `term` (nodes of all terms, shared) and `step` (rule, the subterm before and after, the whole terms)."""
    number: dict[Tensor, int] = {}
    steps = []
    for output, explanation in enumerate(found):
        for s in explanation.steps:
            for node in topological([s.old, s.new, s.before, s.after]):
                number.setdefault(node, len(number))
            if len(number) > MOST_TERMS:
                break
            steps.append((output, s))
    nodes = list(number)
    return {
        "term.op": [n.op for n in nodes], "term.type": [str(n.type) for n in nodes],
        "term.name": [_label(n)[:LONGEST_TEXT] for n in nodes],
        **lists("term.arg", [[number[a] for a in n.args] for n in nodes]),
        "step.rule": [s.rule for _, s in steps], "step.forward": np.array([s.forward for _, s in steps], np.bool_),
        "step.output": np.array([o for o, _ in steps], np.int32),
        **{f"step.{part}": np.array([number[getattr(s, part)] for _, s in steps], np.int32)
           for part in ("before", "after", "old", "new")},
    }  # fmt: skip


__all__ = [
    "Columns", "kernel_tables", "model_tables", "question_columns", "rewrite_tables", "rule_texts", "rules_of_nodes", "source_column",
    "view_tables",
]  # fmt: skip
