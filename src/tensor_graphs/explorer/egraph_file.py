"""Writes and reads the file between `saturate` and `extract`: egraph-serialize JSON whose e-nodes are candidate
kernels.

Each class is a value in one layout (`c12`, or `c12@1,8` for strides that are not row-major). Each node is a kernel,
named with its operands, at its cost in µs. The additional top-level key `tensor_graphs` holds what turns a solution
into a program: the algebraic e-graph, and the name and sha256 of the model (graph and weights), a safetensors file
beside the JSON.

The file is untrusted input: nothing in it is executed. A kernel is only a name; its meaning comes from matching the
installed backends' templates against the algebraic e-graph again, each of whose nodes is type-checked first. The
resulting program is compared with the model.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from numbers import Real
from pathlib import Path
from typing import Any

from ..backends.program.program import Program
from ..backends.registry import backend
from ..egraph.ir.graph import Graph
from ..egraph.view.view import EGraphView
from ..errors import (
    BadModelError,
    DeviceUnavailableError,
    ExtractionError,
    TensorGraphsError,
    UsageError,
    VerificationError,
)
from ..extract.candidates.hypergraph import Hypergraph
from ..extract.model.kernel import Candidate
from ..extract.model.pricing import Priced
from ..extract.search.encoding import EncodedHypergraph
from ..extract.search.plan import plan_of
from ..extract.search.search import Choice
from ..extract.solve.extraction import Extraction
from ..extract.solve.problem import Problem, reachable
from ..extract.solve.serialize import parse_egraph, read_document, read_egraph, to_json, write_egraph
from ..models.files.native import load_graph, save_graph
from ..option_checks import is_progress, of_kind
from ..options import Options
from ..pipeline.context.session import Session
from ..pipeline.stages.match import hypergraph as all_kernels
from ..pipeline.stages.provenance import attach
from ..plain import is_file
from ..progress import Progress
from ..report.report import Report
from ..verification.comparison import Verification
from ..wording import counted, with_article
from ..writing.files import kept_versions, named_errors, named_path, undone_on_failure
from .egraph_record import KEY, VERSION, one_size, record_of, sizes_of, view_from_json, view_to_json
from .explorer import Explorer
from .names import kernel_name, value_name
from .tables import model_tables

GIVEN = "given"  # operator of the node of a value that needs no kernel
PART = "part"  # operator of the node that selects one value of a multi-output kernel
JOINED = " + "  # separator of the values of a multi-output kernel in its class name
SOURCES = ("measured", "predicted", "bound")


# ---------------------------------------------------------------- writing
def write(path: str | Path, explorer: Explorer) -> None:
    """Write the e-graph with its kernels to `path`, and the model beside it (`.model.safetensors`): both, or neither.

    Raises UnwritableError if they cannot be written.
    """
    path = named_path(path)
    hypergraph, prices = explorer.choice.hypergraph, explorer.choice.prices
    rows, problem = _named(explorer)
    names = [GIVEN if i < 0 else kernel_name(hypergraph.view, hypergraph.candidates[i]) for i in rows.candidate]
    parts = len(list(hypergraph.numbered.parts))
    names[len(names) - parts :] = [PART] * parts
    sources = {f"k{n}": prices[i].source for n, i in enumerate(rows.candidate) if i >= 0}
    model = model_path(Path(os.path.realpath(path)))
    with named_errors(path), undone_on_failure(model):
        save_graph(_with_leaves(explorer), model)
        number = {f"k{n}": i for n, i in enumerate(rows.candidate) if i >= 0}
        record = {
            "version": VERSION, "model": {"file": model.name, "sha256": _sha256(model)},
            "backends": list(dict.fromkeys(c.template.backend for c in hypergraph.candidates)),
            **view_to_json(hypergraph.view), "sources": sources,
            "computes": {k: sorted(explorer.covered[i]) for k, i in number.items()},
            "layers": _layers(explorer), "sizes": dict(explorer.sizes),
            "limits": {k: explorer.facts[i].limit_us for k, i in number.items() if i in explorer.facts},
        }  # fmt: skip
        write_egraph(path, problem, ops=names, extra={KEY: record})


def _named(explorer: Explorer) -> tuple[EncodedHypergraph, Problem]:
    """The kernels at their current prices, and their extraction problem with the ids that the file has."""
    hypergraph = explorer.choice.hypergraph
    rows = EncodedHypergraph(hypergraph, [p.us for p in explorer.choice.prices])
    node_ids = tuple(f"k{i}" for i in range(rows.problem.n_nodes))
    class_ids = (*(value_name(hypergraph.view, v) for v in rows.vertices), *_bundles(hypergraph.view, rows))
    return rows, replace(rows.problem, node_ids=node_ids, class_ids=class_ids)


def _layers(explorer: Explorer) -> dict[str, str]:
    """Layers of the e-classes of the model's operations, by class number as text."""
    named = model_tables(explorer.work, explorer.view, explorer.modules)["class.layer"]
    return {str(c): str(layer) for c, layer in enumerate(named) if layer}


def made_by(view: EGraphView, candidate: Candidate) -> str:
    """Name of the class in the file that a candidate computes: one value, or all values of a multi-output kernel."""
    return JOINED.join(value_name(view, v) for v in candidate.outputs)


def _bundles(view: EGraphView, rows: EncodedHypergraph) -> list[str]:
    vertices = list(rows.vertices)
    return [JOINED.join(value_name(view, vertices[v]) for v in bundle) for bundle in rows.bundles]


def model_path(path: Path) -> Path:
    """Path of the model file beside an e-graph file."""
    return path.with_name(path.name.removesuffix(".gz").removesuffix(".json") + ".model.safetensors")


def _with_leaves(explorer: Explorer) -> Graph:
    """The model with leaves that only the view has as additional outputs, so that one file holds all data."""
    used = set(explorer.work.nodes())
    extra = [t for t in dict.fromkeys(explorer.view.tensors.values()) if t not in used]
    names = tuple(f"leaf {i}" for i in range(len(extra)))
    return replace(
        explorer.work, outputs=(*explorer.work.outputs, *extra), names=(*explorer.graph.names, *names),
        structure=explorer.graph.structure, name=explorer.graph.name,
    )  # fmt: skip


def _sha256(path: Path) -> str:
    """A file's SHA-256 in hex; "" if the file does not exist."""
    if not is_file(path):
        return ""
    with path.open("rb") as file:
        total = sha256()
        while chunk := file.read(1 << 20):
            total.update(chunk)
    return total.hexdigest()


# ---------------------------------------------------------------- reading
@dataclass(frozen=True)
class EGraphFile:
    """A parsed e-graph file: extraction problem, each node's operator, and the member `tensor_graphs` (e-graph and
    model as JSON), if present."""

    path: Path
    problem: Problem
    ops: tuple[str, ...]
    record: Mapping[str, Any] | None

    @property
    def describes_program(self) -> bool:
        """Whether a solution of the file's problem can be turned into a program: the file has the member
        `tensor_graphs` (e-graph and model as JSON)."""
        return self.record is not None

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes, by name, of the model's free dimensions at which the e-graph was made. Raises ExtractionError if they
        are malformed."""
        return sizes_of(self.record, f"{self.path}: {KEY}") if self.record is not None else {}

    def program(self, found: Extraction, *, verify: bool = True) -> Program:
        """The program that a solution of `problem` stands for, compared with the model if `verify`. A model with free
        dimensions has one size of each (`sizes`), as the report's `dims` and a warning in it say.

        Raises UsageError if the file describes no program, BadModelError if the model file is missing, changed or
        malformed, ExtractionError if the e-graph is malformed or names a kernel that does not match, VerificationError
        if the program computes something else than the model.
        """
        if self.record is None:
            raise UsageError(
                "this e-graph describes no program",
                where=str(self.path),
                hint="leave -o out, or write one with saturate",
            )
        view, graph = self.view(self.record)
        try:
            plan = plan_of(self._choice(self.record, view, found), graph)
            program = Program(plan)
        except TensorGraphsError as error:
            error.where = error.where or str(self.path)
            raise
        program.report = replace(Report.of_plan(plan), dims=self.sizes)
        if self.sizes:
            program.report.warnings.append(one_size(self.sizes))
        attach(program, graph)
        if verify:
            program.report.verification = _check(program, graph, str(self.path)).to_json()
        return program

    def view(self, record: Mapping[str, Any]) -> tuple[EGraphView, Graph]:
        """(e-graph, model) that `record`, the file's member `tensor_graphs`, describes; both have the same roots.
        Raises the errors of `program`."""
        return self._view(record, self._model(record))

    def priced(self, found: Extraction) -> dict[str, tuple[int, float]]:
        """Prices of a solution's kernels: price source -> (number of kernels, their µs), without views.

        Empty if the file describes no program.
        """
        counted: dict[str, tuple[int, float]] = {}
        sources = self.record["sources"] if self.record is not None else {}
        for node in reachable(self.problem, found.choice):
            source = sources.get(self.problem.node_name(node))
            if source in SOURCES and not self.ops[node].startswith("view."):
                count, us = counted.get(source, (0, 0.0))
                counted[source] = count + 1, us + float(self.problem.cost[node])
        return counted

    def _model(self, record: Mapping[str, Any]) -> Graph:
        name, digest = record["model"].get("file"), record["model"].get("sha256")
        beside = "the model must be named as a file beside the e-graph"
        if not isinstance(name, str) or Path(name).name != name or name in ("", ".", ".."):
            raise BadModelError(beside, where=str(self.path))
        try:
            model = named_path(Path(os.path.realpath(self.path)).with_name(name))
        except UsageError as error:
            raise BadModelError(f"{beside}: {error.message}", where=str(self.path)) from None
        if not is_file(model) or _sha256(model) != digest:
            model = next((p for p in kept_versions(model) if _sha256(p) == digest), model)
        if not is_file(model) or _sha256(model) != digest:
            raise BadModelError(
                "the model beside the e-graph is missing or was changed", where=str(model), hint="saturate again"
            )
        return load_graph(model)

    def _view(self, record: Mapping[str, Any], saved: Graph) -> tuple[EGraphView, Graph]:
        """Return (algebraic e-graph, model with the same roots)."""
        view = view_from_json(record, saved, f"{self.path}: {KEY}")
        n = len(view.roots) - len(saved.updates)
        if not 0 < n <= len(saved.outputs):
            raise ExtractionError(f"{len(view.roots)} roots do not fit the model", where=f"{self.path}: {KEY}.roots")
        graph = replace(saved, outputs=saved.outputs[:n], names=saved.names[:n])
        if [view.types[r] for r in view.roots] != [t.type for t in graph.roots]:
            raise ExtractionError("the roots' types are not the model's", where=f"{self.path}: {KEY}.roots")
        return view, graph

    def _choice(self, record: Mapping[str, Any], view: EGraphView, found: Extraction) -> Choice:
        session = Session(Options(measure=False, budget=math.inf))  # the same candidates as `saturate` generates
        hypergraph = all_kernels(session, view, _backends(record["backends"], str(self.path)))
        number = {(made_by(view, c), kernel_name(view, c)): i for i, c in enumerate(hypergraph.candidates)}
        prices = [Priced(math.inf, math.inf, math.inf, "bound")] * len(hypergraph.candidates)
        chosen = []
        for node in reachable(self.problem, found.choice):
            if self.ops[node] in (GIVEN, PART):
                continue
            where = f"{self.path}: node {self.problem.node_name(node)}"
            index = number.get((self.problem.class_name(int(self.problem.cls[node])), self.ops[node]))
            if index is None:
                raise ExtractionError(
                    f"no kernel {self.ops[node][:200]} makes this class",
                    where=where,
                    hint="saturate again with this version",
                )
            cost, source = float(self.problem.cost[node]), record["sources"].get(self.problem.node_name(node))
            if source not in SOURCES:
                raise ExtractionError("the kernel's price has no source", where=where, hint=f"one of {SOURCES}")
            prices[index] = Priced(cost, cost, cost, source)
            chosen.append(index)
        _check_roots(self.problem, hypergraph, str(self.path))
        return Choice(hypergraph, chosen, prices, found)


def read(path: str | Path, roots: Sequence[str] = ()) -> EGraphFile:
    """Read an e-graph file, plain or gzipped. `roots`: the classes to extract instead of the file's, named as in
    `parse_egraph`; a solution then stands for no program. Raises ExtractionError if a part is malformed."""
    document = read_document(path)
    problem = parse_egraph(document, where=str(path), roots=roots)
    ops = tuple(str(node.get("op", "")) for node in document["nodes"].values())
    return EGraphFile(Path(path), problem, ops, None if roots else record_of(document, f"{path}: {KEY}"))


def extract(
    source: Any,
    *,
    time_limit: float = 10.0,
    method: str = "auto",
    deterministic: bool = False,
    roots: Sequence[str | int] = (),
    progress: Progress | None = None,
) -> Extraction:
    """The cheapest extraction of an e-graph, with a proven lower bound.

    `source`: a path to egraph-serialize JSON, such a document as a dict, a `Problem`, or the result of `tg.saturate`
    (its kernels at their current prices). `time_limit`: seconds. `method`: "auto", "greedy", "cp-sat", "highs" or
    "frontier". `deterministic`: equal inputs give equal answers. `roots`: the classes to extract instead of a
    document's `root_eclasses`, each by its id, the id of a node of it, or the variable that egglog's `let` binds to it.
    `progress`: setting its `stopped`, from another thread or a signal handler, ends the search with the best so far.

    Returns an `Extraction` with cost, lower_bound, gap, optimal, choice, and `choices` by name. Raises UsageError for
    any other source or option, ExtractionError if the e-graph is malformed or a root has no term.
    """
    from ..extract.solve.solve import solve

    if isinstance(roots, str | int):
        raise UsageError(f"invalid argument roots={roots!r}", hint="roots is a list of ids")
    of_kind("a number of seconds", Real)("time_limit", time_limit)
    is_progress("progress", progress)
    shown = progress or Progress()
    problem = _problem(source, roots)
    shown.say("extract", size_of(problem))
    found = solve(
        problem, time_limit=time_limit, method=method, deterministic=deterministic, stop=lambda: shown.stopped  # type: ignore[arg-type]
    )  # fmt: skip
    return replace(found, choices=to_json(problem, found)["choices"])


def size_of(problem: Problem) -> str:
    """The size of an extraction problem in words: "541 nodes in 141 classes"."""
    return f"{counted(problem.n_nodes, 'node')} in {counted(problem.n_classes, 'class', 'classes')}"


def _problem(source: Any, roots: Sequence[str | int]) -> Problem:
    if isinstance(source, str | Path):
        return read_egraph(source, roots=roots)
    if isinstance(source, Mapping):
        return parse_egraph(source, roots=roots)
    if roots:
        raise UsageError("roots are given with a path or a document", hint=f"{type(source).__name__} has its own")
    if isinstance(source, Explorer):
        return _named(source)[1]
    if isinstance(source, Problem):
        return source
    raise UsageError(
        f"{with_article(type(source).__name__)} is no e-graph",
        hint="give a path, a document (json.loads of egraph-serialize JSON), or what tg.saturate returned",
    )


# ---------------------------------------------------------------- checks of what was read


def _backends(names: Sequence[Any], where: str) -> list[Any]:
    found = []
    for name in names:
        try:
            found.append(backend(str(name)))
        except UsageError as error:
            raise ExtractionError(error.message, where=where, hint="saturate again on this machine") from None
        if reason := found[-1].unavailable():
            raise DeviceUnavailableError(f"the backend {name} cannot be used: {reason}", where=where)
    return found


def _check_roots(problem: Problem, hypergraph: Hypergraph, where: str) -> None:
    """Raise ExtractionError unless the solution's roots contain all outputs of the model."""
    built = {problem.class_name(r) for r in problem.roots}
    if missing := [p for p in (value_name(hypergraph.view, v) for v in hypergraph.roots) if p not in built]:
        raise ExtractionError(f"the model's output {missing[0]} is no root class", where=where)


def _check(program: Program, graph: Graph, where: str) -> Verification:
    """Verify the program.

    Raises VerificationError if it is wrong beyond rounding: the file then claims equalities that do not hold.
    """
    from ..extract.model.work import graph_flops
    from ..pipeline.execution.run_program import run_flat
    from ..verification.verify import verify

    flops = graph_flops(list(graph.roots))
    verdict = verify(graph, lambda values: run_flat(program, values), flops=flops, device=program.tensors)
    if verdict.miscompiled:
        raise VerificationError(
            verdict.worst.message,
            where=where, hint="the e-graph claims an equality that does not hold; run saturate again",
        )  # fmt: skip
    return verdict
