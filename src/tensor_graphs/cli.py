"""The command line. Results go to stdout, progress and logs to stderr; `--json` prints exactly one document.

A command returns an `Answer`; `run` prints it, or the error that was raised, and knows the exit code.
"""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Annotated, Any

import typer

from . import __version__
from .errors import Interrupted, TensorGraphsError, UsageError, VerificationError

SCHEMA = 1
app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Find the fastest form of a tensor program by e-graph rewriting and measured kernel costs.",
)  # fmt: skip
db = typer.Typer(no_args_is_help=True, help="The store of measured kernel costs.", rich_markup_mode=None)
rules_app = typer.Typer(no_args_is_help=True, help="The rewrite rules.", rich_markup_mode=None)
app.add_typer(db, name="db")
app.add_typer(rules_app, name="rules")

Model = Annotated[str, typer.Argument(help=".onnx, .pt2, .safetensors with a graph, or a folder with config.json")]
Dims = Annotated[list[str] | None, typer.Option("--dim", help="NAME=INT, a free dimension's size; may be repeated")]
Fix = Annotated[
    list[str] | None, typer.Option("--fix", help="NAME=INT, the only size of a free dimension; may be repeated")
]
Backend = Annotated[str, typer.Option(help="auto, numpy, torch, gpu, cuda, triton, triton-only or generated")]
Budget = Annotated[float, typer.Option(help="seconds for the whole optimization")]
ToleranceOption = Annotated[str, typer.Option(help="eager, fast, exact, or a relative error")]
CostDb = Annotated[Path | None, typer.Option(help="folder of the cost store")]
Trust = Annotated[bool, typer.Option("--trust-model", help="allow formats whose loading can run code (.pt2)")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]
Out = Annotated[Path | None, typer.Option("-o", "--output", help="where to write")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="say more on stderr")]
Seed = Annotated[int, typer.Option(help="seed of the verification inputs")]
Nodes = Annotated[int, typer.Option(help="e-node limit of each block")]
Iterations = Annotated[int, typer.Option(help="iteration limit of each block")]
Beam = Annotated[
    int | None,
    typer.Option(
        help="e-nodes per e-class that are rewritten further; 0: all; by default 4; wider ones count as 8, 32 or all"
    ),
]
Slack = Annotated[
    float, typer.Option(help="kernel launches by which a form may be dearer than its class's best and still be kept")
]
Effort = Annotated[
    int, typer.Option(help="0: no rewriting; 1: within these limits; each step more also within limits twice as wide")
]
MemoryLimit = Annotated[float | None, typer.Option(help="bytes that the values kernels write may take together")]
ErrorBudget = Annotated[
    float | None, typer.Option(help="most that the kernels' measured relative errors may add up to")
]


# ---------------------------------------------------------------- output and errors
class Console:
    """Progress on stderr: a spinner with the stage where stderr is a terminal, a line per stage with -v, else nothing."""

    def __init__(self, verbose: bool, quiet: bool = False) -> None:
        self.verbose, self.quiet, self._status = verbose, quiet, None  # type: tuple[bool, bool, Any]

    def say(self, stage: str, message: str) -> None:
        """A stage began, or something happened in it."""
        text = f"{stage}: {message}" if message else stage
        if self._status is not None:
            self._status.update(text)
        elif self.verbose:
            print(text, file=sys.stderr, flush=True)

    @contextmanager
    def live(self) -> Iterator[Console]:
        """Show the spinner while working."""
        if self.quiet or self.verbose or not sys.stderr.isatty():
            yield self
            return
        from rich.console import Console as Rich

        with Rich(stderr=True).status("starting") as status:
            self._status = status
            try:
                yield self
            finally:
                self._status = None


@contextmanager
def interruptible(progress: Any) -> Iterator[None]:
    """Ctrl-C or SIGTERM once: stop searching and keep the best so far; a second time: quit."""

    def ask(number: int, frame: FrameType | None) -> None:
        if progress.stopped:
            for s in old:
                signal.signal(s, signal.SIG_DFL)  # whoever swallows this one does not get the next
            raise KeyboardInterrupt
        progress.stopped = True
        print("stopping, keeping the best so far (again to quit)", file=sys.stderr, flush=True)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return
    old = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for s, handler in old.items():
            signal.signal(s, handler)


@dataclass(frozen=True)
class Answer:
    """What a command found, as fields of the JSON document and as text; `error` where it ended early with a result."""

    document: Mapping[str, Any]
    text: str
    error: TensorGraphsError | None = None


def _plain(value: Any) -> Any:
    """Plain JSON data: no NaN or infinities (they become null), no array scalars, no objects."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if hasattr(value, "to_json"):
        return _plain(value.to_json())
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _sizes(dims: list[str] | None) -> dict[str, int]:
    found = {}
    for item in dims or []:
        name, sep, size = item.partition("=")
        if not sep or not size.lstrip("-").isdigit():
            raise UsageError(f"--dim {item!r} is not NAME=INT")
        found[name] = int(size)
    return found


def _tolerance(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        if text not in ("eager", "fast", "exact"):
            raise UsageError(f"--tolerance {text!r}", hint="eager, fast, exact, or a relative error") from None
        return text


# ---------------------------------------------------------------- commands
def _print_version(asked: bool) -> None:
    if asked:
        print(f"tensor-graphs {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")] = False,
) -> None:  # fmt: skip
    """What may stand before a command."""


@app.command()
def optimize(
    model: Model, output: Out = None, dim: Dims = None, fix: Fix = None, backend: Backend = "auto", budget: Budget = 60.0,
    tolerance: ToleranceOption = "eager", costdb: CostDb = None,
    verify: Annotated[bool, typer.Option(help="check the result against a float64 run of the original")] = True,
    measure: Annotated[bool, typer.Option(help="time kernels that the store does not know")] = True,
    seed: Seed = 0, nodes: Nodes = 20_000, iterations: Iterations = 10, beam: Beam = None, slack: Slack = 3,
    effort: Effort = 1, memory_limit: MemoryLimit = None, error_budget: ErrorBudget = None,
    again: Annotated[bool, typer.Option("--again", help="search on, though the plan of an earlier search is known")] = False,
    report: Annotated[Path | None, typer.Option(help="write an HTML report here")] = None,
    trust_model: Trust = False, as_json: Json = False, verbose: Verbose = False,
) -> Answer:  # fmt: skip
    """Optimize a model and write a program that runs without a search."""
    from . import pipeline
    from .egraph.saturate import Limits

    console = Console(verbose, quiet=as_json and not verbose)
    progress = pipeline.Progress(console.say)
    limits = Limits(nodes=nodes, iterations=iterations, beam=beam, slack=slack)
    writable(output or default_output(model), folder=True)
    if report is not None:
        writable(report)
    with interruptible(progress), console.live():
        program = pipeline.optimize(
            model, dims=_sizes(dim), fixed=_sizes(fix), backend=backend, tolerance=_tolerance(tolerance), budget=budget, costdb=costdb,
            verify=verify, measure=measure, seed=seed, limits=limits, progress=progress, trust=trust_model,
            memory_limit=memory_limit, error_budget=error_budget, effort=effort, again=again,
        )  # fmt: skip
        folder = program.save(output or default_output(model))
    found = program.report
    found.source = str(folder / "program.py")
    if report is not None:
        report.write_text(found.html(), encoding="utf-8")
    stopped = Interrupted("stopped on request; the best plan so far was written", where=str(folder))
    return Answer({"report": found, "output": str(folder)}, str(found), stopped if progress.stopped else None)


def writable(target: Path, *, folder: bool = False) -> None:
    """Look where a result is to go before it is worked for. UsageError if something else is there, or nothing may be written."""
    from .backends.program import refuse_occupied

    if folder:
        refuse_occupied(target)
    elif target.is_dir():
        raise UsageError(f"{target} is a folder", hint="name a file")
    above = next(p for p in target.absolute().parents if p.exists())
    try:  # not by asking for permissions: root has them all, in places too that hold no files
        with TemporaryDirectory(prefix=".tensor_graphs-", dir=above):
            pass
    except OSError as problem:
        raise UsageError(f"nothing can be written in {above}: {problem.strerror}", hint="name another place") from None


def default_output(model: str) -> Path:
    """Where a program goes unless told: beside the current folder, named after the model."""
    return Path(f"{Path(model).stem or 'model'}-optimized")


@app.command()
def saturate(
    model: Model, output: Annotated[Path, typer.Option("-o", "--output", help="egraph JSON to write (.json or .json.gz)")],
    dim: Dims = None, backend: Backend = "auto", budget: Budget = 60.0, costdb: CostDb = None,
    nodes: Nodes = 20_000, iterations: Iterations = 10, beam: Beam = None, slack: Slack = 3, effort: Effort = 1,
    trust_model: Trust = False, as_json: Json = False, verbose: Verbose = False,
) -> Answer:  # fmt: skip
    """Write the saturated e-graph with its candidate kernels: the first half of optimize."""
    from . import pipeline
    from .egraph.saturate import Limits
    from .egraph_file import write

    writable(output)
    console = Console(verbose, quiet=as_json and not verbose)
    progress = pipeline.Progress(console.say)
    with interruptible(progress), console.live():
        explorer = pipeline.saturate(
            model, dims=_sizes(dim), backend=backend, budget=budget, costdb=costdb, trust=trust_model, progress=progress,
            limits=Limits(nodes=nodes, iterations=iterations, beam=beam, slack=slack), effort=effort,
        )  # fmt: skip
        write(output, explorer)
    document = {
        "output": str(output), "inputs": [f"{t.attr('name')}: {t.type}" for t in explorer.graph.inputs], "e_nodes": len(explorer.view), "classes": explorer.view.n_classes,
        "candidates": len(explorer.choice.hypergraph.candidates), "stopped": explorer.view.report.stopped,
    }  # fmt: skip
    text = _lines(document) + (f"\n{explorer.view.report.rule_table()}" if verbose else "")
    stopped = Interrupted("stopped on request; what was found so far was written", where=str(output))
    return Answer(document, text, stopped if progress.stopped else None)


def _lines(document: Mapping[str, Any]) -> str:
    width = max(map(len, document))
    shown = {k: ", ".join(map(str, v)) if isinstance(v, list) else v for k, v in document.items()}
    return "\n".join(f"{k:>{width}}  {v}" for k, v in shown.items())


@app.command()
def extract(
    file: Annotated[Path, typer.Argument(help="egraph JSON (.json or .json.gz)")], output: Out = None,
    time_limit: Annotated[float, typer.Option(help="seconds for the solvers")] = 10.0,
    method: Annotated[str, typer.Option(help="auto, greedy, cp-sat, highs or frontier")] = "auto",
    verify: Annotated[bool, typer.Option(help="compare the program with the model that the file names")] = True,
    as_json: Json = False, verbose: Verbose = False,
) -> Answer:  # fmt: skip
    """Solve an e-graph for its cheapest term, with a proven lower bound; emit the program where the file describes one."""
    from .egraph_file import read
    from .extract.serialize import to_json
    from .extract.solve import solve

    found = read(file)
    if output is not None and not found.describes_program:
        raise UsageError("this e-graph describes no program", where=str(file), hint="leave -o out, or use `saturate`")
    if output is not None:
        writable(output, folder=True)
    console = Console(verbose, quiet=as_json and not verbose)
    with console.live():
        console.say("extract", f"{found.problem.n_nodes} nodes in {found.problem.n_classes} classes")
        solution = solve(found.problem, method=method, time_limit=time_limit)  # type: ignore[arg-type]
        document = to_json(found.problem, solution)
        unit = {"cost": " µs", "lower bound": " µs"} if found.describes_program else {}
        text = "\n".join(f"{k:>12}  {v}{unit.get(k, '')}" for k, v in solution.summary().items())
        if found.describes_program:
            console.say("program", "")
            program = found.program(solution, verify=verify)
            priced = found.priced(solution)
            document |= {"unit": "us", "kernels": {n: {"count": count, "us": us} for n, (count, us) in priced.items()}}
            kinds = [f"{count} {n} ({us:.1f} µs)" for n, (count, us) in priced.items()]
            text += f"\n{'kernels':>12}  {', '.join(kinds) or 'none'}"
            document["output"] = str(program.save(output or default_output(str(file))))
            text += f"\n{'written to':>12}  {document['output']}"
    return Answer(document, text)


@app.command()
def explain(
    target: Annotated[str, typer.Argument(help="a saved program's folder, or a model")], dim: Dims = None,
    steps: Annotated[bool, typer.Option("--steps", help="every rule applied, block by block")] = False,
    backend: Backend = "auto", trust_model: Trust = False, as_json: Json = False,
) -> Answer:  # fmt: skip
    """Say what a program does and why: its kernels with their costs, or a model's operators and their rewriting."""
    from . import explain as explaining

    return Answer(*explaining.explain(target, _sizes(dim), backend, trust=trust_model, steps=steps))


@app.command()
def profile(
    model: Model, paths: Annotated[int, typer.Option(help="how many distinct plans to time")] = 5, dim: Dims = None,
    backend: Backend = "auto", budget: Budget = 60.0, costdb: CostDb = None, trust_model: Trust = False,
    diversity: Annotated[float, typer.Option(help="least share of each plan's kernels that all before it do without, 0 to 1")] = 0.0,
    resume: Annotated[bool, typer.Option("--resume", help="keep the times of an earlier sweep of this model")] = False,
    workers: Annotated[int, typer.Option(help="processes that rewrite blocks side by side; 0: as the machine has cores")] = 0,
    jobs: Annotated[Path | None, typer.Option(help="measure nothing: write what the best plans lack here, for `measure`")] = None,
    as_json: Json = False, verbose: Verbose = False,
) -> Answer:  # fmt: skip
    """Measure kernels that the store lacks, then time the best few whole plans end to end."""
    from . import pipeline, sweep

    if jobs is not None:
        writable(jobs)
    console = Console(verbose, quiet=as_json and not verbose)
    progress = pipeline.Progress(console.say)
    with interruptible(progress), console.live():
        if jobs is not None:
            from .lacking import write_lacking

            count = write_lacking(model, jobs, paths, _sizes(dim), backend, budget, costdb, progress, trust=trust_model)
            return Answer({"jobs": count, "output": str(jobs)}, f"{count} kernels to measure written to {jobs}")
        document, text = sweep.profile(
            model, paths, _sizes(dim), backend, budget, costdb, progress, trust=trust_model, resume=resume, workers=workers,
            diversity=diversity,
        )  # fmt: skip
    stopped = Interrupted("stopped on request; what was measured is kept", where=model, hint="go on with --resume")
    return Answer(document, text, stopped if progress.stopped else None)


@app.command()
def measure(
    jobs: Annotated[Path, typer.Argument(help="kernels to measure, as `profile --jobs` writes them")],
    output: Annotated[Path, typer.Option("-o", "--output", help="folder for the shards; what it holds is not measured again")],
    device: Annotated[str, typer.Option(help="cuda, or cpu to try jobs in Triton's interpreter")] = "cuda",
    workers: Annotated[int, typer.Option(help="processes that compile; 0: as the machine has cores")] = 0,
    schedules: Annotated[int, typer.Option(help="most schedules of one kernel")] = 16,
    seconds: Annotated[float, typer.Option(help="stop after about this long")] = math.inf,
    as_json: Json = False, verbose: Verbose = False,
) -> Answer:  # fmt: skip
    """Measure a file of kernels on this machine; `db merge` takes the shards over where plans are made."""
    from .backends.jobs import measure_jobs, read_jobs
    from .pipeline import Progress

    if device not in ("cuda", "cpu"):
        raise UsageError(f"--device {device!r}", hint="cuda or cpu")
    console = Console(verbose, quiet=as_json and not verbose)
    progress = Progress(console.say)
    with interruptible(progress), console.live():
        found = measure_jobs(
            read_jobs(jobs), output, device=device, workers=workers or None, schedules=schedules, seconds=seconds,
            say=lambda message: console.say("measure", message), stop=lambda: progress.stopped,
        )  # fmt: skip
    text = (
        f"{found.measured} measured, {found.known} were known, {len(found.bad)} are no jobs; rows: {dict(found.rows)}"
        f"\nto plan for this GPU elsewhere: TENSOR_GRAPHS_GPU={found.gpu!r}"
    )
    stopped = Interrupted(
        "stopped on request; what was measured is kept", where=str(output), hint="the same again goes on"
    )
    return Answer({"output": str(output), **found.to_json()}, text, stopped if progress.stopped else None)


@app.command()
def doctor(as_json: Json = False) -> Answer:
    """Versions, devices, the cost store's health: what to put into a bug report."""
    from .explain import doctor as examine

    document = examine()
    return Answer(document, "\n".join(f"{k:>14}  {v}" for k, v in document.items()))


@db.command("stats")
def db_stats(costdb: CostDb = None, as_json: Json = False) -> Answer:
    """Rows by family, and how well prices of unseen shapes are predicted (held-out error)."""
    found = _store(costdb).stats()
    return Answer({"stats": found.to_json()}, repr(found))


@db.command("check")
def db_check(costdb: CostDb = None, as_json: Json = False) -> Answer:
    """Verify every shard's checksum; set damaged ones aside."""
    found = _store(costdb).check()
    return Answer({"check": found.to_json()}, repr(found))


@db.command("merge")
def db_merge(other: Path, costdb: CostDb = None, as_json: Json = False) -> Answer:
    """Take over another store's shards."""
    found = _store(costdb).merge(other)
    return Answer({"merge": found.to_json()}, repr(found))


@db.command("compact")
def db_compact(costdb: CostDb = None, as_json: Json = False) -> Answer:
    """Put the many small shards of a store into one for each device: what is read anew is read faster."""
    found = _store(costdb).compact()
    return Answer({"compact": found.to_json()}, repr(found))


@db.command("export")
def db_export(path: Path, costdb: CostDb = None, as_json: Json = False) -> Answer:
    """Write all rows as one Parquet file."""
    rows = _store(costdb).export(path)
    return Answer({"rows": rows, "output": str(path)}, f"{rows} rows written to {path}")


def _store(costdb: Path | None) -> Any:
    from . import settings
    from .costdb.store import Store, default_root

    return Store(costdb or settings.current().costdb or default_root())


@rules_app.command("check")
def rules_check(
    file: Annotated[Path, typer.Argument(help="rules, one per line: Tensat's text format, or our own spelling")],
    pairs: Annotated[bool, typer.Option("--pairs", help="two consecutive lines of Tensat's format are one rule")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="exit with 5 if a rule is refuted")] = False,
    seed: Annotated[int, typer.Option(help="seed of the shapes and values tried")] = 0,
    as_json: Json = False, verbose: Verbose = False,
) -> Answer:  # fmt: skip
    """A verdict on every rule of a file: proved, tested, refuted with a counterexample, or unknown."""
    from .rules import check_file

    console = Console(verbose, quiet=as_json and not verbose)
    begin = time.perf_counter()
    rules = check_file.read(_text(file), pairs=pairs)
    progress = Until()
    with console.live(), interruptible(progress):
        found = list(check_file.check_all(rules, seed=seed, say=lambda text: console.say("check", text),
                                          stop=lambda: progress.stopped, processes=min(8, os.cpu_count() or 1)))  # fmt: skip
    counts = check_file.counts(found)
    document = {"rules": [c.to_json() for c in found], "counts": counts, "seconds": time.perf_counter() - begin}
    shown = [
        f"{c.index:>5}  {c.verdict.status:<8} {' ; '.join(c.text.splitlines())}\n{'':>16}{c.to_json()['detail']}"
        for c in found
    ]
    summary = ", ".join(f"{n} {status}" for status, n in counts.items())
    text = "\n".join([*shown, summary])
    wrong = VerificationError(f"{counts['refuted']} of {len(found)} rules are refuted", where=str(file))
    return Answer(document, text, unfinished(found, rules) or (wrong if strict and counts["refuted"] else None))


@rules_app.command("derive")
def rules_derive(
    file: Annotated[Path, typer.Argument(help="rules, one per line: Tensat's text format, or our own spelling")],
    pairs: Annotated[bool, typer.Option("--pairs", help="two consecutive lines of Tensat's format are one rule")] = False,
    time_limit: Annotated[float, typer.Option(help="seconds for one rule at all its sizes")] = 5.0,
    rounds: Annotated[int, typer.Option(help="rounds of rewriting for one rule")] = 16,
    nodes: Annotated[int, typer.Option(help="e-nodes for one rule at all its sizes")] = 60_000,
    jobs: Annotated[int, typer.Option(help="worker processes; 0: one per core, at most 8")] = 0,
    as_json: Json = False, verbose: Verbose = False,
) -> Answer:  # fmt: skip
    """Whether our rules prove each rule of a file: at several sizes, both sides end up in one e-class."""
    from dataclasses import replace

    from .egraph.worker import Pool
    from .rules import check_file, derive_file, prove

    if jobs < 0:
        raise UsageError(f"--jobs {jobs} is negative")
    limits = replace(prove.LIMITS, seconds=time_limit, iterations=rounds, nodes=nodes)
    lines = check_file.read(_text(file), pairs=pairs)
    console, found = Console(verbose, quiet=as_json and not verbose), []
    pool, progress = Pool(jobs or min(8, os.cpu_count() or 1)), Until()
    try:
        with console.live(), interruptible(progress):
            for one in derive_file.derive_all(lines, pool, limits, stop=lambda: progress.stopped):
                found.append(one)
                console.say("derive", f"{len(found)} of {len(lines)}")
    finally:
        pool.close()
    counts = derive_file.counts(found)
    document = {"rules": [d.to_json() for d in found], "counts": counts,
                "limits": {n: getattr(limits, n) for n in ("seconds", "iterations", "nodes", "bytes")}}  # fmt: skip
    shown = [f"{d.index:>5}  {'derived' if d.derived else f'not derived ({d.detail})':<12} {d.seconds:6.2f} s  {' ; '.join(d.text.splitlines())}"
             for d in found]  # fmt: skip
    summary = f"{counts['derived']} of {len(found)} derived, {counts['seconds_median']:.2f} s a rule (at most {counts['seconds_max']:.2f} s)"
    return Answer(document, "\n".join([*shown, summary]), unfinished(found, lines))


@dataclass
class Until:
    """Work that ends early once it is asked to."""

    stopped: bool = False


def unfinished(found: Sequence[Any], rules: Sequence[Any]) -> TensorGraphsError | None:
    """The error of a file that was not worked through, beside what was found."""
    return None if len(found) == len(rules) else Interrupted(f"stopped after {len(found)} of {len(rules)} rules")


def _text(file: Path) -> str:
    """A text file's content; UsageError if it is no text."""
    if file.stat().st_size > 1 << 26:
        raise UsageError("the file is larger than 64 MiB", where=str(file))
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError("this is no text", where=str(file), hint="one rule per line, in UTF-8") from None


@rules_app.command("synthesize")
def rules_synthesize(
    ops: Annotated[str, typer.Option(help="ops and numbers, separated by commas: matmul,add,transpose,concat,split,relu,0")],
    size: Annotated[int, typer.Option(help="ops in the larger side of a rule")] = 2,
    variables: Annotated[int, typer.Option(help="tensor variables to build terms of, 1 to 4")] = 3,
    broadcast: Annotated[bool, typer.Option("--broadcast", help="also a row, a column and a single number")] = False,
    time_limit: Annotated[float, typer.Option(help="seconds for the search; what was found is kept")] = 600.0,
    seed: Annotated[int, typer.Option(help="seed of the values that terms are compared on")] = 0,
    compare: Annotated[Path | None, typer.Option(help="rules of which to say how many the found ones alone derive")] = None,
    pairs: Annotated[bool, typer.Option("--pairs", help="two consecutive lines of that file are one rule")] = False,
    output: Out = None, as_json: Json = False, verbose: Verbose = False,
) -> Answer:  # fmt: skip
    """Find rules over chosen ops by enumerating terms: tested, general, none derivable from the others."""
    from types import SimpleNamespace

    from .egraph.worker import Pool
    from .rules import ALL, check_file, derive_file
    from .rules.synthesize import synthesize

    if output is not None:
        writable(output)
    names = tuple(op.strip() for op in ops.split(",") if op.strip())
    lines = check_file.read(_text(compare), pairs=pairs) if compare is not None else []
    console, progress = Console(verbose, quiet=as_json and not verbose), SimpleNamespace(stopped=False)
    with interruptible(progress), console.live():
        found = synthesize(
            names, size, variables=variables, seed=seed, broadcast=broadcast, base=ALL, time_limit=time_limit,
            say=lambda text: console.say("synthesize", text), stop=lambda: bool(progress.stopped),
        )  # fmt: skip
        if output is not None:
            output.write_text(found.text(), encoding="utf-8")
        document = found.to_json()
        text = found.text()
        if lines and not progress.stopped:
            pool = Pool(os.cpu_count() or 1)
            try:
                derived = list(derive_file.derive_all(lines, pool, ours=found.rules))
            finally:
                pool.close()
            document["compared"] = {"rules": [d.to_json() for d in derived], "counts": derive_file.counts(derived)}
            text += f"\n# derives {sum(d.derived for d in derived)} of {len(derived)} rules of {compare}\n"
    if output is not None:
        document["output"] = str(output)
    stopped = Interrupted("stopped on request; what was found so far was kept", where=str(output or ""))
    return Answer(document, text, stopped if progress.stopped else None)


@rules_app.command("list")
def rules_list(as_json: Json = False) -> Answer:
    """Every rewrite rule, with what is known of its truth."""
    from .rules import ALL, verdicts
    from .rules.check import STATUSES

    found = [verdicts.of(r) for r in ALL]
    rows = [
        {"name": r.name, "family": r.family, "left": r.left, "right": r.right, "when": list(r.when), "growth": r.growth,
         "exact": r.exact, "both": r.both, "shortcut": r.shortcut, "doc": r.doc, "verdict": v.status, "detail": v.detail}
        for r, v in zip(ALL, found)
    ]  # fmt: skip
    counts = {s: sum(v.status == s for v in found) for s in STATUSES}
    text = "\n".join(f"{r['family']:>16}  {r['name']:<34} {r['verdict']:<8} {r['doc']}" for r in rows)
    return Answer({"rules": rows, "counts": counts}, text)


def main(argv: list[str] | None = None) -> None:
    """Run the command line; never returns normally, exits with the code of the outcome."""
    warnings.formatwarning = lambda message, *_: f"warning: {message}\n"  # which line of ours it is helps nobody
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def run(arguments: list[str]) -> int:
    """The exit code of a command line: 0 ok, 1 our bug, 2 usage, 3 model, 4 device, 5 verification, 6 no plan, 130."""
    as_json = "--json" in arguments
    try:
        with redirect_stdout(sys.stderr) if as_json else nullcontext():  # whatever a library prints is no result
            answer = app(args=arguments, standalone_mode=False, prog_name="tensor-graphs")
        if answer == 130:  # how Typer passes KeyboardInterrupt on
            raise KeyboardInterrupt
        if not isinstance(answer, Answer):  # --help
            return answer if isinstance(answer, int) else 0
        return _finish(as_json, answer)
    except BrokenPipeError:  # the reader of a pipe has gone: nothing is wrong, and nobody listens
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as leaving:
        return int(leaving.code or 0) if isinstance(leaving.code, int | None) else 1
    except BaseException as error:
        return _fail(as_json, *_described(error))


def _finish(as_json: bool, answer: Answer) -> int:
    """Print an answer, and what cut it short."""
    if answer.error is None:
        print(_dump({"ok": True, **answer.document}) if as_json else answer.text, flush=True)
        return 0
    if not as_json:
        print(answer.text, flush=True)
    return _fail(as_json, answer.error.exit_code, answer.error.to_json(), str(answer.error), answer.document)


def _described(error: BaseException) -> tuple[int, dict[str, str], str]:
    """Exit code, JSON object and text of an error."""
    if isinstance(error, TensorGraphsError):
        return error.exit_code, error.to_json(), f"error: {error}"
    if hasattr(error, "format_message"):  # of Typer's parser, whichever copy of Click that is made of
        known = UsageError(error.format_message(), where="command line", hint="see --help")
        return 2, known.to_json(), f"error: {known}"
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return 130, Interrupted("interrupted").to_json(), "interrupted"
    if isinstance(error, OSError) and error.filename is not None:
        known = UsageError(error.strerror or str(error), where=str(error.filename))
        return 2, known.to_json(), f"error: {known}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        known = UsageError(f"a file could not be written: {error.strerror}", hint="make room, or write elsewhere")
        return 2, known.to_json(), f"error: {known}"
    import traceback

    trace = "".join(traceback.format_exception(error))
    hint = "this is a bug; please report it with the command and the output of `tensor-graphs doctor`"
    bug = TensorGraphsError(f"{type(error).__name__}: {error}", where=_place(error), hint=hint)
    return 1, bug.to_json(), f"{trace}\n{hint}"


def _place(error: BaseException) -> str:
    """Where an error was raised: module and line."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""


def _dump(document: Mapping[str, Any]) -> str:
    return json.dumps(_plain({"schema": SCHEMA, **document}), allow_nan=False)


def _fail(
    as_json: bool, code: int, error: dict[str, str], text: str, document: Mapping[str, Any] | None = None
) -> int:  # fmt: skip
    if as_json:
        print(_dump({"ok": False, "error": error, **(document or {})}), flush=True)
    print(text, file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    main()
