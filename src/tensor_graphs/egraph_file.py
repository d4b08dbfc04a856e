"""The file between `saturate` and `extract`: egraph-serialize JSON whose nodes are candidate kernels.

Each class is a value in one layout, each node a kernel with its cost in µs. The extra top-level key `tensor_graphs` holds
what turns a solution into a program: the algebraic e-graph (ops, attributes, types), the kernels by template name with
their operands, and the model (graph, weights) in a safetensors file beside the JSON, with its sha256. Nothing in either
file is executed: templates are looked up by name among the installed backends.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from .backends.program import Program
from .backends.registry import template
from .egraph.graph import Graph, Tensor
from .egraph.ops import Type
from .egraph.view import EGraphView, SaturationReport
from .errors import BadModelError, ExtractionError, UsageError
from .explorer import Explorer
from .extract.candidates import Hypergraph
from .extract.kernel import Call, Candidate, Operand, Priced, Vertex
from .extract.plan import plan_of
from .extract.problem import Extraction, Problem
from .extract.search import Choice, Rows
from .extract.serialize import read_egraph, write_egraph
from .models.native import load_graph, save_graph

KEY = "tensor_graphs"
VERSION = 1


def write(path: Path, explorer: Explorer) -> None:
    """Write the e-graph with its kernels to `path` and the model beside it (`.model.safetensors`)."""
    view, hypergraph = explorer.view, explorer.choice.hypergraph
    rows = Rows(hypergraph, [p.us for p in explorer.choice.prices])
    model = model_path(path)
    save_graph(_with_leaves(explorer), model)
    candidates = [None if i < 0 else _candidate_out(hypergraph.candidates[i], rows) for i in rows.candidate]
    names = ["given" if i < 0 else hypergraph.candidates[i].template.name for i in rows.candidate]
    extra = {
        KEY: {
            "version": VERSION, "model": {"file": model.name, "sha256": _sha256(model)}, "view": _view_out(view),
            "outputs": list(explorer.graph.names), "name": explorer.graph.name, "structure": _structure_out(explorer.graph.structure),
            "vertices": [[v.cls, list(v.strides)] for v in rows.vertices], "kernels": candidates,
            "given": [[c, list(s)] for c, s in hypergraph.given.items()],
            "prices": [None if i < 0 else explorer.choice.prices[i].source for i in rows.candidate],
        }
    }  # fmt: skip
    write_egraph(path, rows.problem, ops=names, extra=extra)


def model_path(path: Path) -> Path:
    """The model file beside an e-graph file."""
    return path.with_name(path.name.removesuffix(".gz").removesuffix(".json") + ".model.safetensors")


def describes_program(path: str | Path) -> bool:
    """Whether an e-graph file holds what a program needs."""
    return KEY in _document(Path(path))


def program_of(path: str | Path, problem: Problem, found: Extraction) -> Program:
    """The program that a solution of the file's e-graph means. BadModelError for a model file that was changed."""
    path = Path(path)
    record = _document(path)[KEY]
    if record.get("version") != VERSION:
        raise UsageError(f"e-graph file version {record.get('version')}, this reads {VERSION}", where=str(path))
    model = path.with_name(Path(record["model"]["file"]).name)  # beside the file, never elsewhere
    if not model.is_file() or _sha256(model) != record["model"]["sha256"]:
        raise BadModelError(
            "the model beside the e-graph is missing or was changed", where=str(model), hint="saturate again"
        )
    try:
        return _program(record, load_graph(model), problem, found)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ExtractionError(f"malformed {KEY} record: {error!r}", where=str(path)) from None


def _program(record: Mapping[str, Any], saved: Graph, problem: Problem, found: Extraction) -> Program:
    n = len(record["outputs"])
    leaves = {_leaf_key(t): t for t in saved.nodes() if t.is_leaf}
    view = _view_in(record["view"], leaves)
    roots_total = len(view.roots)
    graph = replace(
        saved, outputs=saved.outputs[:n], names=tuple(record["outputs"]), structure=_structure_in(record["structure"]),
        name=record["name"],
    )  # fmt: skip
    assert roots_total == n + len(saved.updates)
    vertices = [Vertex(c, tuple(s)) for c, s in record["vertices"]]
    number = {problem.node_name(i): i for i in range(problem.n_nodes)}
    kernels = record["kernels"]
    candidates = [_candidate_in(k, vertices, view) if k else None for k in kernels]
    chosen_nodes = [int(i) for i in found.choice if i >= 0]
    of_node = {number[f"n{i}"] if f"n{i}" in number else i: i for i in range(len(kernels))}
    order = _ordered(problem, found)
    picked = [of_node[i] for i in order if kernels[of_node[i]] is not None]
    listed = [c for c in candidates if c is not None]
    index = {i: k for k, i in enumerate(i for i, c in enumerate(candidates) if c is not None)}
    prices = [
        Priced(float(problem.cost[i]), float(problem.cost[i]), float(problem.cost[i]), record["prices"][i])
        for i, c in enumerate(candidates) if c is not None
    ]  # fmt: skip
    given = {c: tuple(s) for c, s in record["given"]}
    roots = [Vertex(c, _row_major(view, c)) for c in view.roots]
    choice = Choice(Hypergraph(view, listed, given, roots), [index[i] for i in picked], prices, found)
    assert chosen_nodes
    return Program(plan_of(choice, graph))


def _row_major(view: EGraphView, cls: int) -> tuple[int, ...]:
    from .egraph.dims import concrete
    from .extract.kernel import contiguous

    return contiguous(concrete(view.types[cls].shape))


def _ordered(problem: Problem, found: Extraction) -> list[int]:
    """Chosen nodes, children first."""
    order: list[int] = []
    done: set[int] = set()
    stack = [(int(r), False) for r in reversed(problem.roots)]
    while stack:
        cls, ready = stack.pop()
        node = int(found.choice[cls])
        if ready:
            order.append(node)
        elif cls not in done:
            done.add(cls)
            stack.append((cls, True))
            stack += [(int(k), False) for k in reversed(problem.kid[problem.off[node] : problem.off[node + 1]])]
    return order


def extract(source: Any, *, time_limit: float = 10.0, method: str = "auto", deterministic: bool = False) -> Extraction:
    """Solve an e-graph: a path to egraph-serialize JSON, a `Problem`, or what `tg.saturate` returned (its kernels at
    their known prices). Returns the `Extraction`: cost, lower_bound, gap, optimal, choice."""
    from .extract.solve import solve

    if isinstance(source, Explorer):
        problem = Rows(source.choice.hypergraph, [p.us for p in source.choice.prices]).problem
    else:
        problem = source if isinstance(source, Problem) else read_egraph(source)
    return solve(problem, time_limit=time_limit, method=method, deterministic=deterministic)  # type: ignore[arg-type]


# ---------------------------------------------------------------- pieces
def _with_leaves(explorer: Explorer) -> Graph:
    """The work graph with every leaf of the view as a further output, so that the model file holds all of them."""
    used = set(explorer.work.nodes())
    extra = [t for t in explorer.view.tensors.values() if t not in used]
    extra = list(dict.fromkeys(extra))
    names = tuple(f"leaf{i}" for i in range(len(extra)))
    return replace(explorer.work, outputs=(*explorer.work.outputs, *extra), names=(*explorer.work.names, *names),
                   structure=tuple(range(len(explorer.work.outputs) + len(extra))))  # fmt: skip


def _leaf_key(leaf: Tensor) -> str:
    attrs = dict(leaf.attrs)
    return f"{leaf.op}:{attrs.get('name', attrs.get('digest', ''))}"


def _view_out(view: EGraphView) -> dict[str, Any]:
    return {
        "op": view.op, "attrs": [[[k, _plain(v)] for k, v in a] for a in view.attrs], "cls": view.cls.tolist(),
        "off": view.off.tolist(), "kid": view.kid.tolist(), "roots": list(view.roots),
        "types": [[t.dtype, [int(d) for d in t.shape]] for t in view.types],  # type: ignore[arg-type]
        "weight": [bool(w) for w in view.weight], "leaves": {str(n): _leaf_key(t) for n, t in view.tensors.items()},
        "stopped": view.report.stopped,
    }  # fmt: skip


def _view_in(record: Mapping[str, Any], leaves: Mapping[str, Tensor]) -> EGraphView:
    array = lambda name: np.asarray(record[name], np.int32)
    tensors = {int(n): leaves[k] for n, k in record["leaves"].items()}
    return EGraphView(
        [str(o) for o in record["op"]], [tuple((k, _value(v)) for k, v in a) for a in record["attrs"]], array("cls"),
        array("off"), array("kid"), [Type(tuple(s), d) for d, s in record["types"]], np.asarray(record["weight"], bool),
        tuple(record["roots"]), SaturationReport(stopped=str(record["stopped"])), tensors, {},
    )  # fmt: skip


def _candidate_out(candidate: Candidate, rows: Rows) -> dict[str, Any]:
    return {
        "backend": candidate.template.backend, "template": candidate.template.name, "output": rows.vertices[candidate.output],
        "inputs": [[o, v.cls, list(v.strides)] for o, v in candidate.inputs],
        "attrs": {k: _plain(v) for k, v in candidate.call.attrs.items()}, "weights": sorted(candidate.weights),
    }  # fmt: skip


def _candidate_in(record: Mapping[str, Any], vertices: list[Vertex], view: EGraphView) -> Candidate:
    operand = lambda v: Operand(view.types[v.cls], v.strides)
    inputs = tuple((str(o), Vertex(c, tuple(s))) for o, c, s in record["inputs"])
    output = vertices[record["output"]]
    call = Call({o: operand(v) for o, v in inputs}, operand(output), {k: _value(v) for k, v in record["attrs"].items()})
    return Candidate(
        template(record["backend"], record["template"]), output, inputs, call, frozenset(record["weights"])
    )


def _plain(value: Any) -> Any:
    """Tuples as lists, floats as hexadecimal text (exact, and JSON has no infinities)."""
    if isinstance(value, float):
        return {"float": value.hex()}
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return float.fromhex(value["float"])
    return tuple(_value(v) for v in value) if isinstance(value, list) else value


def _structure_out(value: Any) -> Any:
    if isinstance(value, dict):
        return {"dict": {k: _structure_out(v) for k, v in value.items()}}
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [_structure_out(v) for v in value]}
    return value


def _structure_in(value: Any) -> Any:
    if isinstance(value, dict) and "dict" in value:
        return {k: _structure_in(v) for k, v in value["dict"].items()}
    if isinstance(value, dict):
        ((kind, items),) = value.items()
        return (list if kind == "list" else tuple)(_structure_in(v) for v in items)
    return value


def _document(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    found = json.loads(gzip.decompress(data) if path.name.endswith(".gz") else data)
    return found if isinstance(found, dict) else {}


def _sha256(path: Path) -> str:
    total = sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            total.update(chunk)
    return total.hexdigest()
