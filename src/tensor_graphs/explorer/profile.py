"""Times the best few plans (choices of kernels) of a model end to end, since kernel times do not add up exactly.

Results are stored, so that an interrupted sweep can resume.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from .. import cache_folder, settings
from ..backends.program.program import Program
from ..backends.tuning.keys import key_of
from ..backends.verification.index_bounds import index_bounds
from ..egraph.ir.graph import Graph
from ..egraph.ir.tensor import structural_digest
from ..errors import UsageError
from ..extract.model.plan import Plan
from ..extract.search.alternatives import variants
from ..options import Options
from ..pipeline.cache.plan_file import priced_steps
from ..pipeline.context.session import Session
from ..pipeline.costs.measuring import measurer_started
from ..pipeline.execution.full_states import full_states
from ..pipeline.execution.run_program import run_flat
from ..pipeline.execution.timing import clock_of, interleaved
from ..pipeline.optimize import optimize_graph
from ..pipeline.sources.source import as_graph, bound, sizes_of
from ..plain import decode, read_bytes, strict_json
from ..progress import Progress
from ..verification.plan_terms import meaning
from ..verification.reference import sample_inputs
from ..wording import counted
from ..writing.files import replacing_raw
from .saturate import RunnablePlan, runnable, saturate

MAX_TIMES_FILE_BYTES = 1 << 26  # maximum bytes of a file of times
MIN_TIMING_S, MAX_TIMING_S = 0.2, 3.0  # minimum and maximum seconds of timing per plan
SEARCHING = 0.6  # fraction of the budget for `optimize`
CHOOSING = 0.3  # fraction of the then remaining time for enumerating plans
MIN_ROUNDS = 3  # minimum rounds of a plan and the best plan: two warm-ups, one counted
# plans are alike if less than this fraction of either's estimated time is in kernels that the other lacks
DIVERSITY = 0.05
NAMED = 4  # maximum kernels listed per line


def plan_digest(plan: Plan) -> str:
    """Identity of a plan: 32 hex digits of its terms and kernels on this machine, independent of value ids."""
    kernels = sorted(key_of(s.template, s.call).digest for s in plan.steps if not s.is_view)
    roots = [structural_digest(root).hex() for root in meaning(plan)[0]]
    return blake2b("\n".join([*roots, *kernels]).encode(), digest_size=16).hexdigest()


@dataclass
class KernelTimes:
    """End-to-end times of plans in µs by plan digest (`us`), kept in a file that is rewritten after every plan."""

    file: Path
    us: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> KernelTimes:
        """Load the times of an earlier sweep; empty if the file is missing or malformed."""
        with suppress(OSError, ValueError):
            found = decode(dict[str, float], strict_json(read_bytes(file, MAX_TIMES_FILE_BYTES)))
            return cls(file, {k: v for k, v in found.items() if v > 0})
        return cls(file)

    def add(self, digest: str, us: float) -> None:
        """Store a plan's time in µs under its digest.

        Write errors are ignored: they only cost a later sweep its resume data.
        """
        self.us[digest] = us
        with suppress(OSError), replacing_raw(self.file, own=True) as file:
            file.write(json.dumps(self.us).encode())


def times_file(graph: Graph, backend: str) -> Path:
    """File of a model's end-to-end times in the cache folder, named by a hash of the graph's structure and backend."""
    digest = blake2b(backend.encode(), digest_size=12)
    for root in graph.roots:
        digest.update(structural_digest(root))
    return cache_folder.private("sweeps") / f"{digest.hexdigest()}.json"


def profile(
    model: str, count: int, dims: Mapping[str, int], backend: str, budget: float, costdb: Path | None,
    progress: Progress, *, trust: bool = False, resume: bool = False, workers: int = 0, diversity: float = DIVERSITY,
) -> tuple[dict[str, Any], str]:  # fmt: skip
    """End-to-end times of the best `count` distinct plans of a model, as (JSON document, text).

    `optimize` measures missing kernels first. Each plan is timed interleaved with the best one. `dims`: sizes of free
    dimensions. `budget`: seconds for everything; it is exceeded at most by the mandatory work of `optimize` and by the
    current plan (a build and three rounds). Programs are not verified, as none is returned. `diversity`: minimum
    fraction of estimated time that one of any two plans spends in kernels that the other lacks; more similar plans are
    skipped. `resume`: reuse times of an earlier sweep. `workers`: rewriting processes (0: the setting); kernels are
    always timed one at a time. `trust`: links in the model's folder may lead out of it. Raises UsageError for less than
    one plan or a negative number of workers.
    """
    if count < 1 or workers < 0:
        raise UsageError(
            f"{count} paths, {workers} workers", hint="at least one path, and no negative number of workers"
        )
    until = time.monotonic() + budget
    with settings.override(**({"workers": workers} if workers else {})):
        free = as_graph(model, trust=trust)
        graph, _ = bound(free, sizes_of(free, dims))  # plans for one size: the measured kernels are those they call
        first = _searched(graph, backend, SEARCHING * budget, costdb, progress)
        left = max(until - time.monotonic(), MIN_TIMING_S)
        explorer = saturate(graph, backend=backend, costdb=costdb, budget=left / 2)
        left = max(until - time.monotonic(), MIN_TIMING_S)
        found = runnable(explorer, variants(explorer.choice, seconds=CHOOSING * left))
        chosen, alike = distinct(found, count, diversity)
        chosen = [replace(p, rank=n) for n, p in enumerate(sorted(chosen, key=lambda p: p.cost))]
    file = times_file(chosen[0].graph, backend)
    times = KernelTimes.read(file) if resume else KernelTimes(file)
    kept = set(times.us)
    _time(chosen, times, until, first.tensors, progress)
    rows = [_row(path, chosen[0], times, kept) for path in chosen if plan_digest(path.plan) in times.us]
    untimed = len(chosen) - len(rows)
    document = {
        "paths": rows, "alike": alike, "untimed": untimed, "measured_now": first.report.measured_now, "times": str(file),
    }  # fmt: skip
    return document, _text(rows, alike, untimed, count)


def _searched(graph: Graph, backend: str, budget: float, costdb: Path | None, progress: Progress) -> Program:
    """A program found by a search that measures unmeasured kernels of its plan. It is neither verified nor timed:
    `profile` times whole plans."""
    options = Options(backend=backend, budget=budget, costdb=costdb, again=True, verify=False)
    session = Session(options, progress, whole=False)
    with session.running(), measurer_started(session):
        return optimize_graph(session, graph)


@dataclass(frozen=True)
class Called:
    """Calls of one kernel in a plan: number of calls, estimated µs of all together, template name."""

    count: int
    us: float
    name: str


def kernels_of(plan: Plan) -> dict[str, Called]:
    """Kernels of a plan with their calls: digest of the cost store key -> `Called`."""
    found: dict[str, Called] = {}
    for step, call in priced_steps(plan):
        digest = key_of(step.template, call).digest
        before = found.get(digest, Called(0, 0.0, ""))
        found[digest] = Called(before.count + 1, before.us + step.cost.us, step.template.name)
    return found


def extra_calls(mine: Mapping[str, Called], theirs: Mapping[str, Called]) -> tuple[float, dict[str, int]]:
    """Calls of `mine` that `theirs` lacks, as (fraction of `mine`'s estimated time, number of calls by template
    name)."""
    more = {k: c.count - theirs[k].count if k in theirs else c.count for k, c in mine.items()}
    us, names = 0.0, dict[str, int]()
    for k, n in more.items():
        if n > 0:
            us += mine[k].us * n / mine[k].count
            names[mine[k].name] = names.get(mine[k].name, 0) + n
    total = sum(c.us for c in mine.values())
    return (us / total if total else 0.0), names


def distinct(paths: Iterable[RunnablePlan], count: int, diversity: float) -> tuple[list[RunnablePlan], int]:
    """First `count` plans of an iterator that are pairwise unlike, and the number of skipped plans.

    Two plans are alike if each spends less than `diversity` of its estimated time in kernels that the other lacks, or
    if both call the same kernels.
    """
    chosen: list[RunnablePlan] = []
    known: list[dict[str, Called]] = []
    alike = 0
    for path in paths:
        mine = kernels_of(path.plan)
        apart = [max(extra_calls(mine, other)[0], extra_calls(other, mine)[0]) for other in known]
        if all(share >= diversity and share > 0 for share in apart):
            chosen.append(replace(path, rank=len(chosen)))
            known.append(mine)
            if len(chosen) == count:
                break
        else:
            alike += 1
    return chosen, alike


def _time(
    chosen: Sequence[RunnablePlan], times: KernelTimes, until: float, device: str, progress: Progress
) -> None:  # fmt: skip
    """Time the plans without a stored time, best plan first, dividing the remaining seconds equally.

    Ends when the previous plan's duration exceeds what is left.
    """
    calls, needed = _Calls(chosen[0].graph), 0.0
    new = [p for p in chosen if plan_digest(p.plan) not in times.us]
    for number, path in enumerate(new):
        began = time.monotonic()
        if progress.stopped or (number and began + needed > until):
            return
        progress.say("time", repr(path))
        pair = {"best": calls.of(chosen[0]), "this": calls.of(path)} if path.rank else {"this": calls.of(path)}
        built = time.monotonic() - began
        seconds = min(MAX_TIMING_S, max(MIN_TIMING_S, (until - time.monotonic()) / (len(new) - number)))
        found_us = interleaved(
            pair, seconds=seconds, least=1, clock=clock_of(device), first=calls.reset,
            ended=lambda: time.monotonic() > until,
        )  # fmt: skip
        needed = built + MIN_ROUNDS * sum(found_us.values()) / 1e6
        times.add(plan_digest(path.plan), found_us["this"])


def _row(
    path: RunnablePlan, best: RunnablePlan, times: KernelTimes, kept: Collection[str]
) -> dict[str, Any]:  # fmt: skip
    digest = plan_digest(path.plan)
    mine, theirs = kernels_of(path.plan), kernels_of(best.plan)
    share, more = extra_calls(mine, theirs)
    return {
        "path": f"path {path.rank}", "estimated_us": path.cost, "measured_us": times.us[digest],
        "kernels": path.plan.kernels, "resumed": digest in kept, "other_kernels": share, "more": more,
        "less": extra_calls(theirs, mine)[1],
    }  # fmt: skip


class _Calls:
    """Plans' programs as calls without arguments on shared inputs. At most two programs hold their weights."""

    def __init__(self, graph: Graph) -> None:
        self.inputs = sample_inputs(
            [*graph.inputs, *graph.leaves("state")], np.random.default_rng(0), index_bounds(graph)
        )
        self.best: Callable[[], Any] | None = None
        self.programs: dict[bool, Program] = {}  # keys: True for the best one, False for the latest other one
        self.reset = full_states([])  # of the programs, so that every call is a first one

    def of(self, path: RunnablePlan) -> Callable[[], Any]:
        """A call of the plan's program."""
        if path.rank == 0 and self.best is not None:
            return self.best
        program = path.program()
        run_flat(program, self.inputs)
        self.programs[path.rank == 0] = program
        self.reset = full_states([*self.programs.values()])
        values = program.near([self.inputs[n] for n in program.input_names])
        call = lambda: program.flat(*values)
        if path.rank == 0:
            self.best = call
        return call


def _text(rows: Sequence[Mapping[str, Any]], alike: int, untimed: int, asked: int) -> str:
    lines = []
    for r in rows:
        lines.append(
            f"{r['path']:>8}  {r['estimated_us']:>10.1f} µs estimated  {r['measured_us']:>10.1f} µs measured  "
            f"{counted(r['kernels'], 'kernel')}{'  (from an earlier sweep)' if r['resumed'] else ''}"
        )
        if r is not rows[0]:
            lines.append(
                f"{'':>8}  {100 * r['other_kernels']:.0f} % of its time in kernels that path 0 lacks{_changes(r)}"
            )
    if alike:
        lines.append(f"{counted(alike, 'further plan')} with nearly the same kernels as one of these: not timed")
    if untimed:
        lines.append(f"{counted(untimed, 'further plan')} not timed: out of time (a larger --budget, or --resume)")
    if len(rows) + alike + untimed < asked:
        lines.append(
            "no further plan was found: each value has the same kernel in all plans (a larger --budget may find more)"
        )
    return "\n".join(lines)


def _changes(row: Mapping[str, Any]) -> str:
    """Text of the kernels that a plan calls more and less often than the best plan."""

    def named(counts: Mapping[str, int], sign: str) -> list[str]:
        most = sorted(counts.items(), key=lambda p: (-p[1], p[0]))
        listed = [f"{sign}{n} {name}" for name, n in most[:NAMED]]
        return [*listed, f"{sign}{sum(n for _, n in most[NAMED:])} others"] if most[NAMED:] else listed

    found = [*named(row["more"], "+"), *named(row["less"], "-")]
    return f": {', '.join(found)}" if found else ""


__all__ = ["Called", "KernelTimes", "distinct", "extra_calls", "kernels_of", "plan_digest", "profile", "times_file"]
