"""Timing the best few whole plans of a model, because kernel times do not add up exactly. What was timed is kept, so that
a sweep that was stopped can go on where it ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from . import pipeline, settings
from .accept import run_flat
from .backends.keys import key_of
from .backends.program import Program
from .diagnose import meaning
from .egraph.graph import Graph, structural_digest
from .errors import UsageError
from .extract.kernel import Plan
from .plain import decode, read_bytes, strict_json
from .progress import Progress
from .source import as_graph
from .timing import clock_of, interleaved
from .verify import index_bounds, sample_inputs
from .writing import replacing_raw

LARGEST = 1 << 26  # bytes of the times of a sweep
LEAST, MOST = 0.2, 3.0  # seconds for one plan


def plan_digest(plan: Plan) -> str:
    """32 hex digits of what a plan computes and with which kernels on this machine, however its values are numbered."""
    kernels = sorted(key_of(s.template, s.call).digest for s in plan.steps if not s.is_view)
    roots = [structural_digest(root).hex() for root in meaning(plan)[0]]
    return blake2b("\n".join([*roots, *kernels]).encode(), digest_size=16).hexdigest()


@dataclass
class Times:
    """Times of whole plans in µs by digest, in a file that is replaced after every plan."""

    file: Path
    us: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Times:
        """What an earlier sweep left; nothing where the file is missing or is no such file."""
        with suppress(OSError, ValueError):
            found = decode(dict[str, float], strict_json(read_bytes(file, LARGEST)))
            return cls(file, {k: v for k, v in found.items() if v > 0})
        return cls(file)

    def add(self, digest: str, us: float) -> None:
        """Keep one time. A folder that cannot be written only costs the next sweep its head start."""
        self.us[digest] = us
        with suppress(OSError), replacing_raw(self.file) as file:
            file.write(json.dumps(self.us).encode())


def times_file(graph: Graph, backend: str) -> Path:
    """Where the times of a model's plans lie: in the cache folder, under a name made of the graph's structure."""
    digest = blake2b(backend.encode(), digest_size=12)
    for root in graph.roots:
        digest.update(structural_digest(root))
    return settings.private("sweeps") / f"{digest.hexdigest()}.json"


def profile(
    model: str, count: int, dims: Mapping[str, int], backend: str, budget: float, costdb: Path | None,
    progress: Progress, *, trust: bool = False, resume: bool = False, workers: int = 0, diversity: float = 0.0,
) -> tuple[dict[str, Any], str]:  # fmt: skip
    """Optimize (which measures what is missing), then time the best few plans whole, each in turn with the best one.

    `diversity`: least share of each plan's kernels that all before it do without. `resume` takes the times that an
    earlier sweep of this model left. `workers`: processes that rewrite blocks side by side (0: the setting); kernels are
    always timed one after the other, as they would disturb each other.
    """
    if count < 1 or workers < 0:
        raise UsageError(
            f"{count} paths, {workers} workers", hint="at least one path, and no negative number of workers"
        )
    with settings.override(**({"workers": workers} if workers else {})):
        graph = as_graph(model, dims=dims, trust=trust)
        first = pipeline.optimize(
            graph, dims=dims, backend=backend, budget=budget, costdb=costdb, again=True, progress=progress
        )
        found = list(pipeline.paths(graph, dims=dims, backend=backend, costdb=costdb, count=count, diversity=diversity))
    file = times_file(found[0].graph, backend)
    times = Times.read(file) if resume else Times(file)
    kept = set(times.us)
    calls = _Calls(found[0].graph)
    rows = []
    for path in found:
        digest = plan_digest(path.plan)
        if digest not in times.us and not progress.stopped:
            progress.say("time", repr(path))
            pair = {"best": calls.of(found[0]), "this": calls.of(path)} if path.rank else {"this": calls.of(path)}
            seconds = min(MOST, max(LEAST, budget / len(found)))
            found_us = interleaved(pair, seconds=seconds, clock=clock_of(first.device), first=calls.reset)
            times.add(digest, found_us["this"])
        if digest in times.us:
            rows.append({
                "path": f"path {path.rank}", "estimated_us": path.cost, "measured_us": times.us[digest],
                "kernels": path.plan.kernels, "resumed": digest in kept,
            })  # fmt: skip
    return {"paths": rows, "measured_now": first.report.measured_now, "times": str(file)}, _text(rows)


class _Calls:
    """Programs as functions without arguments, on inputs that all share; two programs at most hold their weights."""

    def __init__(self, graph: Graph) -> None:
        self.inputs = sample_inputs(
            [*graph.inputs, *graph.leaves("state")], np.random.default_rng(0), index_bounds(graph)
        )
        self.best: Callable[[], Any] | None = None
        self.programs: dict[bool, Program] = {}  # the best one, and the latest other one

    def of(self, path: pipeline.RunnablePlan) -> Callable[[], Any]:
        """A call of the path's program."""
        if path.rank == 0 and self.best is not None:
            return self.best
        program = path.program()
        run_flat(program, self.inputs)
        self.programs[path.rank == 0] = program
        values = program.near([self.inputs[n] for n in program.input_names])
        call = lambda: program.flat(*values)
        if path.rank == 0:
            self.best = call
        return call

    def reset(self) -> None:
        """Every call is a first one: what states count would leave the tensors that it points into."""
        for program in self.programs.values():
            program.reset()


def _text(rows: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(
        f"{r['path']:>8}  {r['estimated_us']:>10.1f} µs estimated  {r['measured_us']:>10.1f} µs measured  "
        f"{r['kernels']} kernels{'  (from an earlier sweep)' if r['resumed'] else ''}"
        for r in rows
    )


__all__ = ["Times", "plan_digest", "profile", "times_file"]
