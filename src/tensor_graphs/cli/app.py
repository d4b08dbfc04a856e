"""Runs the command line. Results go to stdout, progress and logs to stderr; `--json` prints exactly one JSON document.

Each command returns an `Answer`; `run` prints the answer or the raised error and returns the exit code.
"""

from __future__ import annotations

import io
import math
import os
import re
import signal
import sys
import threading
import warnings
from contextlib import nullcontext, redirect_stdout
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import __version__
from ..costdb.keys.device import GPU_KIND
from ..errors import Interrupted, UsageError
from ..imported import other_packages_named
from ..options import Options, summary
from ..wording import counted
from ..writing.files import write_text
from .arguments import (
    Backend,
    Beam,
    Budget,
    CostDb,
    Dims,
    Effort,
    ErrorBudget,
    Fix,
    Iterations,
    MemoryLimit,
    Model,
    Nodes,
    Quantize,
    Roots,
    Seed,
    Slack,
    ToleranceOption,
    Trust,
)  # fmt: skip
from .console import (
    Answer,
    Json,
    Verbose,
    discard,
    open_missing_streams,
    printable,
    tell,
    terminated,
    working,
    writable,
)
from .db import app as db_app
from .egraphs import default_output, extract, saturate
from .generate import generate
from .kernels import KernelFiles, sizes
from .kernels import app as kernels_app
from .outcome import Unprintable, described, fail, finish
from .rules import app as rules_app
from .rules import rules_of

if TYPE_CHECKING:
    from ..backends.tuning.fleet import FleetOutcome
    from ..backends.tuning.job_measuring import Outcome
    from ..egraph.patterns.rule import Rule

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
    help="Find the fastest equivalent of a tensor program by e-graph rewriting and measured kernel costs."
    "\n\nBegin with `tensor-graphs optimize model.onnx`, then `tensor-graphs explain` on the folder that it names. Each command has --help.",
)  # fmt: skip
app.add_typer(db_app, name="db")
app.add_typer(rules_app, name="rules")
app.add_typer(kernels_app, name="kernels")

#: A path of the home folder that the shell leaves as it is.
_HOME = re.compile(r"^(--(?:output|report|rules|kernels|costdb|jobs|draft|compare)=|-o)~/")


# ---------------------------------------------------------------- arguments
def _own_rules(file: Path | None) -> list[Rule]:
    """The rewrite rules of a file in this project's rule syntax."""
    if file is None:
        return []
    from ..rules.files.rule_file import OwnRule

    found = []
    for line in rules_of(file):
        if not isinstance(line, OwnRule) or line.rule is None:
            why = line.problem if isinstance(line, OwnRule) else "it is in Tensat's format"
            raise UsageError(
                f"line {line.line} cannot be used as a rewrite rule: {why}",
                where=str(file),
                hint="name: left => right if condition",
            )
        found.append(line.rule)
    return found


def _tolerance(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        if text not in ("eager", "fast", "exact"):
            raise UsageError(f"invalid --tolerance {text!r}", hint="eager, fast, exact, or a relative error") from None
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
    """Global options of the command line, given before a command."""


@app.command()
def optimize(
    model: Model, output: Annotated[Path | None, typer.Option("-o", "--output", help="folder to write the program to; default: the name of the model and -optimized")] = None,
    dim: Dims = None, fix: Fix = None, backend: Backend = "auto", budget: Budget = Options.budget,
    tolerance: ToleranceOption = str(Options.tolerance), costdb: CostDb = None,
    verify: Annotated[bool, typer.Option(help=summary("verify"))] = Options.verify,
    measure: Annotated[bool, typer.Option(help=summary("measure"))] = Options.measure,
    seed: Seed = Options.seed, nodes: Nodes = 20_000, iterations: Iterations = 10, beam: Beam = None, slack: Slack = 3,
    effort: Effort = Options.effort, memory_limit: MemoryLimit = None, error_budget: ErrorBudget = None, quantize: Quantize = None,
    rules: Annotated[Path | None, typer.Option(help="file of additional rewrite rules, one per line")] = None,
    kernels: KernelFiles = None,
    again: Annotated[bool, typer.Option("--again", help=summary("again"))] = Options.again,
    report: Annotated[Path | None, typer.Option(help="write an HTML report to this file")] = None,
    trust_model: Trust = False, as_json: Json = False, verbose: Verbose = False,
) -> Answer:  # fmt: skip
    """Optimize a model and write the compiled program to a folder. Loading the folder needs no search."""
    from ..egraph.saturate.saturate import Limits
    from ..pipeline import optimize as pipeline

    limits = Limits(nodes=nodes, iterations=iterations, beam=beam, slack=slack)
    writable(output or default_output(model), folder=True)
    if report is not None:
        writable(report)
    with working(verbose, as_json) as progress:
        program = pipeline.optimize(
            model, dims=sizes(dim), fixed=sizes(fix), backend=backend, tolerance=_tolerance(tolerance), budget=budget, costdb=costdb,
            verify=verify, measure=measure, seed=seed, limits=limits, progress=progress, trust=trust_model,
            memory_limit=memory_limit, error_budget=error_budget, effort=effort, rules=_own_rules(rules), again=again,
            kernels=kernels or (), quantize=quantize,
        )  # fmt: skip
        folder = program.save(output or default_output(model))
    found = program.report
    found.source = str(folder / "program.py")
    if report is not None:
        write_text(report, found.html())
    checked = "" if found.verification or not verify else ", NOT VERIFIED"
    stopped = Interrupted(f"stopped on request; the best plan so far was written{checked}", where=str(folder))
    return Answer({"report": found, "output": str(folder)}, str(found), stopped if progress.stopped else None)


app.command()(saturate)
app.command()(extract)


@app.command()
def explain(
    target: Annotated[str, typer.Argument(help="a saved program's folder, or a model")], dim: Dims = None,
    steps: Annotated[bool, typer.Option("--steps", help="list every rule application, block by block")] = False,
    backend: Backend = "auto", trust_model: Trust = False, as_json: Json = False,
) -> Answer:  # fmt: skip
    """Show a saved program's kernels and costs, or a model's operators, sizes and blocks."""
    from . import explain as explaining

    return Answer(*explaining.explain(target, sizes(dim), backend, trust=trust_model, steps=steps))


@app.command()
def view(
    target: Annotated[Path, typer.Argument(help="an e-graph JSON file, a saved program's folder, or a report.json")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="HTML file to write; without it, a temporary file is opened in a browser")] = None,
    root: Roots = None, as_json: Json = False,
) -> Answer:  # fmt: skip
    """Show an e-graph, a saved program or a report as one interactive HTML page, which needs no server."""
    from . import view as viewing

    if output is not None:
        writable(output)
    document = viewing.show(target, output, launch=output is None and not as_json, roots=root or ())
    note = "" if output is not None or document["opened"] else " (no browser was found: open it yourself)"
    return Answer(document, f"{document['output']}, {document['bytes'] / 1024:.0f} KiB{note}")


@app.command()
def profile(
    model: Model, paths: Annotated[int, typer.Option(help="number of distinct plans to time")] = 5, dim: Dims = None,
    backend: Backend = "auto", budget: Budget = Options.budget, costdb: CostDb = None, trust_model: Trust = False,
    diversity: Annotated[float, typer.Option(help="minimum share of a plan's time in kernels that any other plan does not have, 0 to 1")] = 0.05,
    resume: Annotated[bool, typer.Option("--resume", help="reuse the times of an earlier sweep of this model")] = False,
    workers: Annotated[int, typer.Option(help="worker processes for rewriting; 0: one per core")] = 0,
    jobs: Annotated[Path | None, typer.Option(help="measure nothing; write the unmeasured kernels of the best plans to this file, for `measure`")] = None,
    as_json: Json = False, verbose: Verbose = False,
) -> Answer:  # fmt: skip
    """Measure kernels that the cost store does not contain, then time the best few plans end to end."""
    from ..explorer import profile as sweep

    if jobs is not None:
        writable(jobs)
    with working(verbose, as_json) as progress:
        if jobs is not None:
            from ..explorer.export_jobs import write_unmeasured

            count = write_unmeasured(
                model, jobs, paths, sizes(dim), backend, budget, costdb, progress, trust=trust_model
            )
            return Answer(
                {"jobs": count, "output": str(jobs)}, f"{counted(count, 'kernel')} to measure written to {jobs}"
            )
        document, text = sweep.profile(
            model, paths, sizes(dim), backend, budget, costdb, progress, trust=trust_model, resume=resume, workers=workers,
            diversity=diversity,
        )  # fmt: skip
    stopped = Interrupted("stopped on request; what was measured is kept", where=model, hint="continue with --resume")
    return Answer(document, text, stopped if progress.stopped else None)


@app.command()
def measure(
    jobs: Annotated[Path, typer.Argument(help="job file of kernels to measure, written by `profile --jobs`")],
    output: Annotated[Path, typer.Option("-o", "--output", help="folder for the result shards; kernels already in it are skipped")],
    device: Annotated[str, typer.Option(help="cuda, or cpu to run the jobs in Triton's interpreter (test only)")] = GPU_KIND,
    workers: Annotated[int, typer.Option(help="compiler processes; 0: one per core")] = 0,
    schedules: Annotated[int, typer.Option(help="maximum number of schedules tried per kernel")] = 16,
    seconds: Annotated[float, typer.Option(help="stop after about this many seconds")] = math.inf,
    fleet: Annotated[str | None, typer.Option(help="measure on a Ray cluster: its address, \"auto\", or \"local\" for one of this machine's GPUs")] = None,
    as_json: Json = False, verbose: Verbose = False,
) -> Answer:  # fmt: skip
    """Measure the kernels of a job file on this machine, or on a Ray cluster.

    `db merge` imports the resulting shards on another machine.
    """
    from ..backends.tuning.job_measuring import measure_jobs
    from ..backends.tuning.jobs import read_jobs

    if device not in (GPU_KIND, "cpu"):
        raise UsageError(f"invalid --device {device!r}", hint="cuda or cpu")
    with working(verbose, as_json) as progress:
        found: FleetOutcome | Outcome
        common: dict[str, Any] = {
            "device": device, "workers": workers or None, "schedules": schedules, "seconds": seconds,
            "say": partial(progress.say, "measure"), "stop": lambda: progress.stopped,
        }  # fmt: skip
        if fleet is not None:
            from ..backends.tuning.fleet import measure_on_fleet

            found = measure_on_fleet(read_jobs(jobs), output, address=fleet, **common)
            text = f"{found.measured} measured, {found.known} already measured, {found.lost} lost, {len(found.bad)} failed or not valid jobs; rows: {dict(found.rows)}"
        else:
            found = measure_jobs(read_jobs(jobs), output, **common)
            text = (
                f"{found.measured} measured, {found.known} already measured, {len(found.bad)} not valid jobs; rows: {dict(found.rows)}"
                f"\nto plan for this GPU elsewhere: TENSOR_GRAPHS_GPU={found.gpu!r}"
            )
    stopped = Interrupted(
        "stopped on request; what was measured is kept",
        where=str(output),
        hint="run the same command again to continue",
    )
    return Answer({"output": str(output), **found.to_json()}, text, stopped if progress.stopped else None)


@app.command()
def doctor(as_json: Json = False) -> Answer:
    """Print versions, devices and the cost store's state, for a bug report."""
    from .explain import doctor as examine

    document = examine()
    return Answer(document, "\n".join(f"{k:>14}  {v}" for k, v in document.items()))


app.command()(generate)


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit the process with the outcome's exit code; never returns."""
    # the source line of a warning is internal
    warnings.formatwarning = lambda message, *_: f"warning: {printable(str(message))}\n"
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminated)
    open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters that the terminal cannot encode are escaped
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def _in_home(argument: str) -> str:
    """An argument of the command line, with the home folder's path where it names one by "~"."""
    return _HOME.sub(lambda found: f"{found[1]}{os.path.expanduser('~')}/", argument)


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit code: 0 ok, 1 internal error, 2 usage, 3 model, 4 device, 5 verification,
    6 no plan, 130 interrupted, 143 terminated.
    """
    try:
        return _run([_in_home(a) for a in arguments], "--json" in arguments)
    except BrokenPipeError:  # the reader of the pipe has closed: not an error
        discard(sys.stdout)
        return 0
    except Unprintable as error:
        discard(sys.stdout)
        tell(f"error: standard output cannot be written: {error}")
        return UsageError.exit_code


@cache
def _commands() -> Any:
    """The commands of `app` as Click's, which Typer makes from the functions' signatures: once a process."""
    return typer.main.get_command(app)


def _run(arguments: list[str], as_json: bool) -> int:
    """Run a command line and return its exit code. Raises Unprintable if standard output cannot be written."""
    try:
        shown = redirect_stdout(sys.stderr) if as_json else nullcontext()
        with shown, other_packages_named():  # stdout holds the JSON document only
            answer = _commands()(args=arguments, standalone_mode=False, prog_name="tensor-graphs")
        if answer == 130:  # how Typer passes KeyboardInterrupt on
            raise KeyboardInterrupt
        if not isinstance(answer, Answer):  # --help
            return answer if isinstance(answer, int) else 0
        return finish(as_json, answer)
    except (BrokenPipeError, Unprintable):
        raise
    except SystemExit as leaving:
        return int(leaving.code or 0) if isinstance(leaving.code, int | None) else 1
    except BaseException as error:
        return fail(as_json, *described(error))


if __name__ == "__main__":
    main()
