"""Implements the commands `saturate` and `extract`, between which an e-graph is a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ExtractionError, Interrupted, UsageError
from ..options import Options
from ..writing.files import is_stream
from .arguments import Backend, Beam, Budget, CostDb, Dims, Effort, Iterations, Model, Nodes, Roots, Slack, Trust
from .console import Answer, Json, Verbose, tell, working, writable
from .kernels import sizes


def default_output(model: str) -> Path:
    """Default output folder of `optimize` and `extract`: `MODEL-optimized` in the current directory."""
    return Path(f"{Path(model).stem or 'model'}-optimized")


def saturate(
    model: Model, output: Annotated[Path, typer.Option("-o", "--output", help="e-graph JSON file to write (.json or .json.gz)")],
    dim: Dims = None, backend: Backend = "auto", budget: Budget = Options.budget, costdb: CostDb = None,
    nodes: Nodes = 20_000, iterations: Iterations = 10, beam: Beam = None, slack: Slack = 3, effort: Effort = Options.effort,
    trust_model: Trust = False, as_json: Json = False, verbose: Verbose = False,
) -> Answer:  # fmt: skip
    """Run rewriting only; write the saturated e-graph with its candidate kernels and prices for `extract`."""
    from ..egraph.saturate.saturate import Limits
    from ..explorer.egraph_file import write
    from ..explorer.egraph_record import one_size
    from ..explorer.saturate import saturate as saturated

    if is_stream(output):
        raise UsageError(f"{output} is no file", hint="the model is written beside the e-graph: name a file")
    writable(output)
    with working(verbose, as_json) as progress:
        explorer = saturated(
            model, dims=sizes(dim), backend=backend, budget=budget, costdb=costdb, trust=trust_model, progress=progress,
            limits=Limits(nodes=nodes, iterations=iterations, beam=beam, slack=slack), effort=effort,
        )  # fmt: skip
        write(output, explorer)
    if explorer.sizes:
        tell(f"warning: {one_size(explorer.sizes)}")
    document = {
        "output": str(output), "inputs": [f"{t.attr('name')}: {t.type}" for t in explorer.graph.inputs],
        "sizes": dict(explorer.sizes), "e_nodes": len(explorer.view), "classes": explorer.view.n_classes,
        "candidates": len(explorer.choice.hypergraph.candidates), "stopped": explorer.view.report.stopped,
    }  # fmt: skip
    text = _lines(document) + (f"\n{explorer.view.report.rule_table()}" if verbose else "")
    stopped = Interrupted("stopped on request; what was found so far was written", where=str(output))
    return Answer(document, text, stopped if progress.stopped else None)


def _lines(document: Mapping[str, Any]) -> str:
    width = max(map(len, document))
    listed = {k: [f"{n}={s}" for n, s in v.items()] if isinstance(v, Mapping) else v for k, v in document.items()}
    shown = {k: (", ".join(map(str, v)) or "none") if isinstance(v, list) else v for k, v in listed.items()}
    return "\n".join(f"{k:>{width}}  {v}" for k, v in shown.items())


def extract(
    file: Annotated[Path, typer.Argument(help="e-graph JSON file (.json or .json.gz)")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="folder to write the program to; without it, only the costs are printed")] = None,
    time_limit: Annotated[float, typer.Option(help="time limit of the solvers in seconds")] = 10.0,
    method: Annotated[str, typer.Option(help="solver: auto, greedy, cp-sat, highs or frontier")] = "auto",
    root: Roots = None,
    verify: Annotated[bool, typer.Option(help="compare the program with the model stored beside the file")] = True,
    as_json: Json = False, verbose: Verbose = False,
) -> Answer:  # fmt: skip
    """Extract the cheapest term of an e-graph, with a proven lower bound of its cost.

    Writes the program if the file describes one. Ctrl-C ends the search with the cheapest choice so far.
    """
    from ..explorer.egraph_file import read, size_of
    from ..explorer.egraph_record import one_size
    from ..extract.solve.serialize import to_json
    from ..extract.solve.solve import solve

    if output is not None and root:
        raise UsageError("a program computes the model's outputs, not other classes", hint="leave -o or --root out")
    found = read(file, root or ())
    if output is not None and not found.describes_program:
        raise UsageError("this e-graph describes no program", where=str(file), hint="leave -o out, or use `saturate`")
    if output is not None:
        writable(output, folder=True)
    with working(verbose, as_json) as progress:
        progress.say("extract", size_of(found.problem))
        try:
            solution = solve(found.problem, method=method, time_limit=time_limit, stop=lambda: progress.stopped)  # type: ignore[arg-type]
        except ExtractionError as error:
            raise ExtractionError(error.message, where=f"{file}: {error.where}", hint=error.hint) from None
        document = to_json(found.problem, solution)
        unit = {"cost": " µs", "lower bound": " µs"} if found.describes_program else {}
        text = "\n".join(f"{k:>12}  {v}{unit.get(k, '')}" for k, v in solution.summary().items())
        if found.describes_program:
            progress.say("program", "")
            program = found.program(solution, verify=verify)
            priced = found.priced(solution)
            document |= {"unit": "us", "kernels": {n: {"count": count, "us": us} for n, (count, us) in priced.items()}}
            kinds = [f"{count} {n} ({us:.1f} µs)" for n, (count, us) in priced.items()]
            text += f"\n{'kernels':>12}  {', '.join(kinds) or 'none'}"
            document["sizes"] = found.sizes
            document["output"] = str(program.save(output or default_output(str(file))))
            text += f"\n{'written to':>12}  {document['output']}"
    if found.sizes:
        tell(f"warning: {one_size(found.sizes)}")
    stopped = Interrupted("stopped on request; this is the cheapest choice found so far", where=str(file))
    return Answer(document, text, stopped if progress.stopped else None)
