"""The command line. Results go to stdout, progress and logs to stderr; `--json` prints exactly one document."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from .errors import Interrupted, TensorGraphsError, UsageError

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
Backend = Annotated[str, typer.Option(help="auto, numpy or torch")]
Budget = Annotated[float, typer.Option(help="seconds for the whole optimization")]
ToleranceOption = Annotated[str, typer.Option(help="eager, fast, exact, or a relative error")]
CostDb = Annotated[Path | None, typer.Option(help="folder of the cost store")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]
Out = Annotated[Path | None, typer.Option("-o", "--output", help="where to write")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="say more on stderr")]
Seed = Annotated[int, typer.Option(help="seed of the verification inputs")]
Nodes = Annotated[int, typer.Option(help="e-node limit of each block")]
Iterations = Annotated[int, typer.Option(help="iteration limit of each block")]
Beam = Annotated[int, typer.Option(help="e-nodes kept per e-class and iteration; 0: the cost guard alone")]


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
            raise KeyboardInterrupt
        progress.stopped = True
        print("stopping, keeping the best so far (again to quit)", file=sys.stderr, flush=True)

    old = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for s, handler in old.items():
            signal.signal(s, handler)


def emit(as_json: bool, document: dict[str, Any], text: str) -> None:
    """One JSON document, or the text."""
    print(json.dumps({"schema": SCHEMA, "ok": True, **document}, default=_plain) if as_json else text)


def _plain(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    if hasattr(value, "item"):
        return value.item()
    return str(value)


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
        return text


# ---------------------------------------------------------------- commands
@app.command()
def optimize(
    model: Model, output: Out = None, dim: Dims = None, backend: Backend = "auto", budget: Budget = 60.0,
    tolerance: ToleranceOption = "eager", costdb: CostDb = None,
    verify: Annotated[bool, typer.Option(help="check the result against a float64 run of the original")] = True,
    measure: Annotated[bool, typer.Option(help="time kernels that the store does not know")] = True,
    seed: Seed = 0, nodes: Nodes = 20_000, iterations: Iterations = 10, beam: Beam = 0,
    report: Annotated[Path | None, typer.Option(help="write an HTML report here")] = None,
    trust_model: Annotated[bool, typer.Option("--trust-model", help="allow formats whose loading can run code (.pt2)")] = False,
    as_json: Json = False, verbose: Verbose = False,
) -> None:  # fmt: skip
    """Optimize a model and write a program that runs without a search."""
    from . import pipeline
    from .egraph.saturate import Limits

    console = Console(verbose, quiet=as_json and not verbose)
    progress = pipeline.Progress(console.say)
    limits = Limits(nodes=nodes, iterations=iterations, beam=beam)
    with interruptible(progress), console.live():
        program = pipeline.optimize(
            model, dims=_sizes(dim), backend=backend, tolerance=_tolerance(tolerance), budget=budget, costdb=costdb,
            verify=verify, measure=measure, seed=seed, limits=limits, progress=progress, trust=trust_model,
        )  # fmt: skip
        folder = program.save(output or default_output(model))
    found = program.report
    found.source = str(folder / "program.py")
    if report is not None:
        report.write_text(found.html(), encoding="utf-8")
    emit(as_json, {"report": found.to_json(), "output": str(folder)}, str(found))
    if progress.stopped:
        raise Interrupted("stopped on request; the best plan so far was written", where=str(folder))


def default_output(model: str) -> Path:
    """Where a program goes unless told: beside the current folder, named after the model."""
    return Path(f"{Path(model).stem or 'model'}-optimized")


@app.command()
def saturate(
    model: Model, output: Annotated[Path, typer.Option("-o", "--output", help="egraph JSON to write (.json or .json.gz)")],
    dim: Dims = None, backend: Backend = "auto", budget: Budget = 60.0, costdb: CostDb = None,
    nodes: Nodes = 20_000, iterations: Iterations = 10, beam: Beam = 0, trust_model: Annotated[bool, typer.Option("--trust-model")] = False,
    as_json: Json = False, verbose: Verbose = False,
) -> None:  # fmt: skip
    """Write the saturated e-graph with its candidate kernels: the first half of optimize."""
    from . import pipeline
    from .egraph.saturate import Limits
    from .egraph_file import write

    console = Console(verbose, quiet=as_json and not verbose)
    progress = pipeline.Progress(console.say)
    with interruptible(progress), console.live():
        explorer = pipeline.saturate(
            model, dims=_sizes(dim), backend=backend, budget=budget, costdb=costdb, trust=trust_model, progress=progress,
            limits=Limits(nodes=nodes, iterations=iterations, beam=beam),
        )  # fmt: skip
        write(output, explorer)
    document = {
        "output": str(output), "e_nodes": len(explorer.view), "classes": explorer.view.n_classes,
        "candidates": len(explorer.choice.hypergraph.candidates), "stopped": explorer.view.report.stopped,
    }  # fmt: skip
    emit(as_json, document, "\n".join(f"{k:>10}  {v}" for k, v in document.items()))


@app.command()
def extract(
    file: Annotated[Path, typer.Argument(help="egraph JSON (.json or .json.gz)")], output: Out = None,
    time_limit: Annotated[float, typer.Option(help="seconds for the solvers")] = 10.0,
    method: Annotated[str, typer.Option(help="auto, greedy, cp-sat, highs or frontier")] = "auto",
    as_json: Json = False, verbose: Verbose = False,
) -> None:  # fmt: skip
    """Solve an e-graph for its cheapest term, with a proven lower bound; emit the program where the file describes one."""
    from .extract.serialize import read_egraph, to_json
    from .extract.solve import solve

    problem = read_egraph(file)
    console = Console(verbose, quiet=as_json and not verbose)
    with console.live():
        console.say("extract", f"{problem.n_nodes} nodes in {problem.n_classes} classes")
        found = solve(problem, method=method, time_limit=time_limit)  # type: ignore[arg-type]
    document = to_json(problem, found)
    from .egraph_file import describes_program, program_of

    if output is not None or describes_program(file):
        if not describes_program(file):
            raise UsageError(
                "this e-graph describes no program", where=str(file), hint="leave -o out, or use `saturate`"
            )
        program = program_of(file, problem, found)
        document["output"] = str(program.save(output or default_output(str(file))))
    emit(as_json, document, repr(found) + (f"\nwritten to {document['output']}" if "output" in document else ""))


@app.command()
def explain(
    target: Annotated[str, typer.Argument(help="a saved program's folder, or a model")], dim: Dims = None,
    backend: Backend = "auto", as_json: Json = False,
) -> None:  # fmt: skip
    """Say what a program does and why: its kernels with their costs, or a model's operators."""
    from . import explain as explaining

    document, text = explaining.explain(target, _sizes(dim), backend)
    emit(as_json, document, text)


@app.command()
def profile(
    model: Model, paths: Annotated[int, typer.Option(help="how many distinct plans to time")] = 5, dim: Dims = None,
    backend: Backend = "auto", budget: Budget = 60.0, costdb: CostDb = None, as_json: Json = False, verbose: Verbose = False,
) -> None:  # fmt: skip
    """Measure kernels that the store lacks, then time the best few whole plans end to end."""
    from . import explain as explaining
    from . import pipeline

    console = Console(verbose, quiet=as_json and not verbose)
    progress = pipeline.Progress(console.say)
    with interruptible(progress), console.live():
        document, text = explaining.profile(model, paths, _sizes(dim), backend, budget, costdb, progress)
    emit(as_json, document, text)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Versions, devices, the cost store's health: what to put into a bug report."""
    from .explain import doctor as examine

    document = examine()
    emit(as_json, document, "\n".join(f"{k:>14}  {v}" for k, v in document.items()))


@db.command("stats")
def db_stats(costdb: CostDb = None, as_json: Json = False) -> None:
    """Rows by family, and how well prices of unseen shapes are predicted (held-out error)."""
    found = _store(costdb).stats()
    emit(as_json, {"stats": found.to_json()}, repr(found))


@db.command("check")
def db_check(costdb: CostDb = None, as_json: Json = False) -> None:
    """Verify every shard's checksum; set damaged ones aside."""
    found = _store(costdb).check()
    emit(as_json, {"check": found.to_json()}, repr(found))


@db.command("merge")
def db_merge(other: Path, costdb: CostDb = None, as_json: Json = False) -> None:
    """Take over another store's shards."""
    found = _store(costdb).merge(other)
    emit(as_json, {"merge": found.to_json()}, repr(found))


@db.command("export")
def db_export(path: Path, costdb: CostDb = None, as_json: Json = False) -> None:
    """Write all rows as one Parquet file."""
    rows = _store(costdb).export(path)
    emit(as_json, {"rows": rows, "output": str(path)}, f"{rows} rows written to {path}")


def _store(costdb: Path | None) -> Any:
    from . import settings
    from .costdb.store import Store, default_root

    return Store(costdb or settings.current().costdb or default_root())


@rules_app.command("list")
def rules_list(as_json: Json = False) -> None:
    """Every rewrite rule."""
    from .rules import ALL

    rows = [
        {"name": r.name, "family": r.family, "left": r.left, "right": r.right, "when": list(r.when), "growth": r.growth,
         "exact": r.exact, "both": r.both, "shortcut": r.shortcut, "doc": r.doc} for r in ALL
    ]  # fmt: skip
    emit(as_json, {"rules": rows}, "\n".join(f"{r['family']:>16}  {r['name']:<34} {r['doc']}" for r in rows))


def main(argv: list[str] | None = None) -> None:
    """Run the command line; never returns normally, exits with the code of the outcome."""
    arguments = sys.argv[1:] if argv is None else argv
    sys.exit(run(arguments))


def run(arguments: list[str]) -> int:
    """The exit code of a command line: 0 ok, 1 our bug, 2 usage, 3 model, 4 device, 5 verification, 6 no plan, 130."""
    as_json = "--json" in arguments
    import click

    try:
        app(args=arguments, standalone_mode=False, prog_name="tensor-graphs")
        return 0
    except TensorGraphsError as error:
        return _fail(as_json, error.exit_code, error.to_json(), f"error: {error}")
    except (click.exceptions.Exit, SystemExit) as leaving:
        return int(getattr(leaving, "exit_code", None) or getattr(leaving, "code", 0) or 0)
    except click.ClickException as error:
        message = {"code": "usage", "message": error.format_message(), "where": "command line", "hint": "see --help"}
        return _fail(as_json, 2, message, f"error: {error.format_message()}")
    except (KeyboardInterrupt, click.exceptions.Abort):
        message = {"code": "interrupted", "message": "interrupted", "where": "", "hint": ""}
        return _fail(as_json, 130, message, "interrupted")
    except BrokenPipeError:
        return 0
    except Exception as error:
        return _fail(as_json, 1, *_bug(error))


def _bug(error: Exception) -> tuple[dict[str, str], str]:
    import traceback

    text = f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(error))
    hint = "this is a bug; please report it with the command and the output of `tensor-graphs doctor`"
    return {
        "code": "internal",
        "message": text,
        "where": trace.strip().splitlines()[-2].strip(),
        "hint": hint,
    }, f"{trace}\n{hint}"


def _fail(as_json: bool, code: int, error: dict[str, str], text: str) -> int:
    if as_json:
        print(json.dumps({"schema": SCHEMA, "ok": False, "error": error}))
    print(text, file=sys.stderr)
    return code
