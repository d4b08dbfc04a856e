"""Exports the tables of an explorer as Arrow tables, plain data, NetworkX graphs and DOT texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import UsageError
from .names import value_name
from .page import columns

if TYPE_CHECKING:
    from .explorer import Explorer


def _tables(explorer: Explorer) -> Iterator[tuple[str, str, Any]]:
    """(table, column, values or lists of values) of every column."""
    found = columns(explorer)
    for name, values in found.items():
        table, _, column = name.partition(".")
        if column.endswith(".item"):
            continue
        if column.endswith(".off"):
            ends = np.asarray(values).tolist()
            items = np.asarray(found[name.removesuffix(".off") + ".item"]).tolist()
            yield table, column.removesuffix(".off"), [items[a:b] for a, b in pairwise(ends)]
        else:
            yield table, column, values


def arrow_tables(explorer: Explorer) -> dict[str, Any]:
    """The e-graph, its kernels, the plan and the model as Arrow tables by name (`Explorer.to_arrow`)."""
    import pyarrow as pa

    found: dict[str, dict[str, Any]] = {}
    for table, column, values in _tables(explorer):
        if isinstance(values, list) and values and isinstance(values[0], list):
            array = pa.array(values, pa.list_(pa.int32()))
        else:
            array = pa.array(
                [_utf8(v) if isinstance(v, str) else v for v in values] if isinstance(values, list) else values
            )
        found.setdefault(table, {})[column] = array
    return {table: pa.table(parts) for table, parts in found.items()}


def json_tables(explorer: Explorer) -> dict[str, dict[str, list[Any]]]:
    """The tables of `arrow_tables` as plain data: table -> column -> values (`Explorer.to_json`)."""
    found: dict[str, dict[str, list[Any]]] = {}
    for table, column, values in _tables(explorer):
        plain = values.tolist() if isinstance(values, np.ndarray) else list(values)
        found.setdefault(table, {})[column] = [
            None if isinstance(v, float) and not math.isfinite(v) else _utf8(v) if isinstance(v, str) else v
            for v in plain
        ]
    return found


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


# ---------------------------------------------------------------- graphs
class ExportGraph(NamedTuple):
    """Graph to export: vertices (id -> attributes) and edges (from, to, attributes)."""

    nodes: dict[str, dict[str, Any]]
    edges: list[tuple[str, str, dict[str, Any]]]


def _egraph(explorer: Explorer) -> ExportGraph:
    view = explorer.view
    chosen = {n for i in explorer.choice.chosen for n in explorer.covered[i]}
    nodes: dict[str, dict[str, Any]] = {}
    edges = []
    for c, kind in enumerate(view.types):
        nodes[f"c{c}"] = {
            "kind": "e-class",
            "label": f"c{c} {kind}",
            "weight": bool(view.weight[c]),
            "output": c in view.roots,
        }
    for n, op in enumerate(view.op):
        leaf = view.tensors.get(n)
        label = f"{op} {dict(leaf.attrs).get('name', '')}" if leaf is not None else op
        nodes[f"n{n}"] = {"kind": "e-node", "label": label, "op": op, "chosen": n in chosen}
        edges.append((f"c{view.cls[n]}", f"n{n}", {"kind": "member", "index": 0}))
        edges += [(f"n{n}", f"c{k}", {"kind": "operand", "index": i}) for i, k in enumerate(view.children(n).tolist())]
    return ExportGraph(nodes, edges)


def _candidates(explorer: Explorer) -> ExportGraph:
    nodes: dict[str, dict[str, Any]] = {}
    edges = []
    chosen = set(explorer.choice.chosen)
    for i, (c, price) in enumerate(zip(explorer.choice.hypergraph.candidates, explorer.choice.prices)):
        nodes[f"k{i}"] = {
            "kind": "view" if c.is_view else "kernel", "label": c.template.name, "us": price.us, "price": price.source, "chosen": i in chosen,
        }  # fmt: skip
        for role, vertices in (("reads", [v for _, v in c.inputs]), ("writes", list(c.outputs))):
            for v in vertices:
                name = value_name(explorer.view, v)
                nodes.setdefault(name, {"kind": "value", "label": f"{name} {explorer.view.types[v.cls]}"})
                edges.append((name, f"k{i}", {"kind": role}) if role == "reads" else (f"k{i}", name, {"kind": role}))
    return ExportGraph(nodes, edges)


def _plan(explorer: Explorer) -> ExportGraph:
    whole = _candidates(explorer)
    kept = {f"k{i}" for i in explorer.choice.chosen}
    edges = [e for e in whole.edges if e[0] in kept or e[1] in kept]
    used = kept | {x for a, b, _ in edges for x in (a, b)}
    return ExportGraph({k: v for k, v in whole.nodes.items() if k in used}, edges)


KINDS: Mapping[str, Callable[[Explorer], ExportGraph]] = {"egraph": _egraph, "candidates": _candidates, "plan": _plan}


def drawn(explorer: Explorer, what: str) -> ExportGraph:
    """Vertices and edges of the graph `what`: "egraph", "candidates" or "plan". Raises UsageError for another name."""
    if what not in KINDS:
        raise UsageError(f"there is no graph {what[:40]!r}", where="explorer", hint=f"one of {', '.join(KINDS)}")
    return KINDS[what](explorer)


def networkx_graph(explorer: Explorer, what: str) -> Any:
    """The graph "egraph", "candidates" or "plan" as a NetworkX MultiDiGraph (`Explorer.to_networkx`).

    Raises UsageError for another name, or without the package networkx.
    """
    found = drawn(explorer, what)
    try:
        import networkx
    except ImportError:
        raise UsageError("to_networkx needs networkx", hint="pip install networkx") from None
    graph = networkx.MultiDiGraph(name=explorer.graph.name)
    graph.add_nodes_from(found.nodes.items())
    graph.add_edges_from(found.edges)
    return graph


def dot_text(explorer: Explorer, what: str) -> str:
    """The graph "egraph", "candidates" or "plan" in the DOT language of Graphviz (`Explorer.to_dot`).

    Raises UsageError for another name.
    """
    found = drawn(explorer, what)
    lines = ["digraph {", "  node [shape=box];"]
    for name, attrs in found.nodes.items():
        label = attrs["label"] + (f" {attrs['us']:.2f} us" if attrs["kind"] == "kernel" else "")
        style = ", style=filled, fillcolor=palegreen" if attrs.get("chosen") else ""
        shape = ", shape=ellipse" if attrs["kind"] in ("e-node", "kernel", "view") else ""
        lines.append(f"  {_quoted(name)} [label={_quoted(label)}{shape}{style}];")
    lines += [f"  {_quoted(a)} -> {_quoted(b)};" for a, b, _ in found.edges]
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    """A DOT string: quotes and backslashes escaped, control characters as spaces."""
    plain = "".join(c if c >= " " else " " for c in _utf8(text))
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


__all__ = ["arrow_tables", "dot_text", "json_tables", "networkx_graph"]
