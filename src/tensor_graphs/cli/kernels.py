"""Implements `tensor-graphs kernels`: commands that check and list user kernels, and ask for wanted ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import Interrupted, KernelRefusedError, UsageError
from ..options import Options, summary
from ..plain import as_int
from .console import Answer, Json, Verbose, working, writable

app = typer.Typer(
    no_args_is_help=True,
    help="User kernels (docs/kernels.md). Files of kernels are executed as code.",
    rich_markup_mode=None,
)

KernelFiles = Annotated[
    list[Path] | None, typer.Option("--kernels", help="file of user kernels; executed as code; repeatable")
]


@app.command("check")
def check_kernels(
    file: Annotated[Path, typer.Argument(help="Python file of kernels; executed as code, in a child process")],
    interpret: Annotated[bool, typer.Option("--interpret", help="without a GPU, run Triton kernels in Triton's interpreter")] = False,
    again: Annotated[bool, typer.Option("--again", help="check again instead of using the stored verdict")] = False,
    as_json: Json = False, verbose: Verbose = False,
) -> Answer:  # fmt: skip
    """Check every kernel of a file against its reference: edge cases of sizes and values, writes out of bounds, changed
    inputs, determinism."""
    from ..backends.admission.use import verdicts_of
    from ..backends.user.files import kernel_file

    with working(verbose, as_json) as progress:
        found = verdicts_of(kernel_file(file), interpret=interpret, again=again, say=partial(progress.say, "check"))
    refused = [v for v in found if not v.admitted and v.status != "unavailable"]
    error = (
        KernelRefusedError(f"{len(refused)} of {len(found)} kernels are refused", where=str(file)) if refused else None
    )
    return Answer({"kernels": [v.to_json() for v in found]}, "\n".join(map(str, found)), error)


@app.command("list")
def list_kernels(
    files: Annotated[list[Path] | None, typer.Argument(help="files of user kernels; executed in a child process")] = None,
    as_json: Json = False,
) -> Answer:  # fmt: skip
    """List the kernels that files declare, or without files all library kernels, with their patterns."""
    from ..backends.admission.use import described
    from ..backends.registry import backends
    from ..backends.user.files import kernel_file

    if files:
        rows = [row for f in files for row in described(kernel_file(f))]
    else:
        rows = [
            {"name": t.name, "backend": t.backend, "family": t.family, "pattern": t.pattern, "when": list(t.when)}
            for b in backends().values() for t in b.templates
        ]  # fmt: skip
    return Answer(
        {"kernels": rows},
        "\n".join(f"{r['backend']:<11} {r['name']:<30} {r['family']:<12} {r['pattern']}" for r in rows),
    )


@app.command("wanted")
def wanted_kernels(
    model: Annotated[str, typer.Argument(help="a model, as for `optimize`")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="folder to write the briefs (and with --propose the kernels) to")] = None,
    count: Annotated[int, typer.Option(help="maximum number of briefs")] = 5,
    dim: Annotated[list[str] | None, typer.Option("--dim", help="NAME=INT: size of a free dimension; repeatable")] = None,
    backend: Annotated[str, typer.Option(help=summary("backend"))] = "auto",
    budget: Annotated[float, typer.Option(help=summary("budget"))] = Options.budget,
    costdb: Annotated[Path | None, typer.Option(help=summary("costdb"))] = None,
    kernels: KernelFiles = None,
    command: Annotated[str, typer.Option("--propose", help="command that reads a brief and prints a file of kernels; its output is executed as code, with your rights, once in a child process for the checks")] = "",
    limit: Annotated[float, typer.Option("--propose-seconds", help="time limit of one proposal in seconds")] = 120.0,
    trust_model: Annotated[bool, typer.Option("--trust-model", help=summary("trust"))] = False,
    as_json: Json = False, verbose: Verbose = False,
) -> Answer:  # fmt: skip
    """Write briefs (requests for a kernel) of the kernel calls with the largest gap to the roofline limit; with
    --propose, ask a program for kernels.
    """
    from ..kernels.briefs import write_briefs
    from ..kernels.proposals import propose
    from ..kernels.wanted import wanted

    if command and output is None:
        raise UsageError("--propose needs a folder for the proposed files", hint="-o DIR")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        writable(output / "brief-1.json")
    with working(verbose, as_json) as progress:
        briefs = wanted(
            model, count=count, dims=sizes(dim), backend=backend, budget=budget, costdb=costdb, trust=trust_model,
            kernels=kernels or (), progress=progress,
        )  # fmt: skip
        paths = write_briefs(output, briefs) if output is not None else []
        proposals = []
        if command and output is not None:
            proposals = propose(
                briefs,
                command,
                output,
                seconds=limit,
                stopped=lambda: progress.stopped,
                say=partial(progress.say, "propose"),
            )
    document: dict[str, Any] = {"briefs": [b.to_json() for b in briefs], "files": paths, "why_none": briefs.why}
    if command:
        document["proposals"] = [p.to_json() for p in proposals]
    if not briefs:
        shown = briefs.why
    elif command:
        shown = "\n".join(map(str, proposals))
    elif output is not None:
        shown = "\n".join(f"{b.region.gap_us:10.1f} µs  {b.region.pattern[:100]}" for b in briefs) + f"\n{output}"
    else:
        shown = "\n".join(b.markdown() for b in briefs)
    stopped = Interrupted("stopped on request; what was found so far was kept", where=str(output or ""))
    return Answer(document, shown, stopped if progress.stopped else None)


def sizes(dims: list[str] | None) -> dict[str, int]:
    """Sizes of `NAME=INT` texts. Raises UsageError for other texts."""
    found = {}
    for item in dims or []:
        name, sep, size = item.partition("=")
        if not sep or (number := as_int(size)) is None:
            raise UsageError(f"the size {item[:80]!r} is not NAME=INT")
        found[name] = number
    return found


__all__ = ["KernelFiles", "app", "sizes"]
