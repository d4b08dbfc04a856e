"""Chooses in which ranges of a free dimension a program runs a plan (choice of kernels) made for the range, or the
caller's own function.

A program for all sizes is chosen at one size. Whole calls of it are timed at other sizes, beside those of the caller's
function. For each bucket of sizes another plan is searched at a size in the middle. The bucket in which the plan for
all sizes is slowest, relative to the caller's function, comes first and gets the largest share of the remaining budget.
Then the fastest form (plan for all sizes, bucket's plan, caller's function) is measured at both ends of a bucket; where
they differ, the bucket is divided. Buckets in which the plan for all sizes is as fast as any get no plan of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, isqrt
from statistics import median

import numpy as np

from ...backends.program.buckets import Bucket, BucketForm, Buckets
from ...backends.program.program import Program
from ...backends.registry import on_gpu
from ...egraph.ir.graph import Graph
from ...egraph.types.dims import dim
from ...errors import UsageError
from ...extract.model.backend import Backend
from ...options import Options
from ...report.omissions import Omission, OmittedWork
from ...report.records import BucketReport
from ...report.report import Report
from ...verification.comparison import FACTORS
from ..context.session import Session
from ..sources.caller import Caller, CallerForm
from .bucket_forms import ALL, CALLER, HALVINGS, MAX_TIMED_SIZE, OWN, Forms, winners
from .size_ranges import Sizes, ranges

BOUNDS = (16, 128, 1024)  # largest sizes of all buckets but the last, on a GPU
FIRST = 0.5  # fraction of the budget for the plan of all sizes
# a search of a bucket begins if at least MIN_BUDGET_SHARE of the budget is left, plus NEEDED of the seconds that the
# first search spent in STAGES, which take about as long in each search
MIN_BUDGET_SHARE, NEEDED = 0.05, 0.5
STAGES = ("saturate", "candidates", "build", "verify")

Search = Callable[[Graph, Sizes], Program]


def buckets_of(options: Options, graph: Graph, backends: Sequence[Backend]) -> list[tuple[int, int]]:
    """(least, largest size) of the buckets of a graph's dimension with the largest range.

    [] for one plan: without measuring, with states, or where the options want none.
    """
    bounds = options.size_buckets
    if bounds is None:
        bounds = BOUNDS if on_gpu(backends) else ()
    if not graph.free_dims or not bounds or not options.measure or options.deterministic or options.limited:
        return []
    if graph.leaves("state") or graph.updates:
        return []
    atom = ranges(graph)[divided_dimension(graph)]
    low = max(1, atom.min)
    ends = sorted({min(int(b), atom.max) for b in bounds if b >= low} | {atom.max})
    rows = list(zip([low, *(e + 1 for e in ends)], ends))
    return rows if len(rows) > 1 else []


def refuse_buckets_without(options: Options, graph: Graph) -> None:
    """Raise UsageError if buckets are wanted for a graph without free dimensions."""
    if options.size_buckets and not graph.free_dims:
        raise UsageError(
            f"size_buckets={tuple(options.size_buckets)} divide a free dimension, and the graph has no free dimensions",
            hint='leave size_buckets out, or make a size free: dynamic_shapes= of a module, ((tg.dim("T"), 8), "float32") as'
            " the example of a function",
        )


def divided_dimension(graph: Graph) -> str:
    """The free dimension with the most sizes."""
    return max(ranges(graph).items(), key=lambda named: named[1].max - named[1].min)[0]


def middle(least: int, most: int) -> int:
    """The size between `least` and `most` (the ends of a bucket) at which its plan is searched.

    A power of two near the geometric mean, if there is one.
    """
    mean = isqrt(least * min(most, max(MAX_TIMED_SIZE, 4 * least)))
    return min(max(1 << (mean - 1).bit_length() if mean > 1 else 1, least), most)


# ---------------------------------------------------------------- the program
def with_buckets(
    session: Session, graph: Graph, rows: Sequence[tuple[int, int]], program: Program, backends: Sequence[Backend],
    search: Search,
) -> Program:  # fmt: skip
    """The program with plans for buckets of sizes where they, or the caller's function, are faster.

    `rows`: (least, largest size) of each bucket (`buckets_of`). `search` finds a program of a graph at some sizes; its
    budget is the session's. The report gets a row for each bucket.
    """
    name, report = divided_dimension(graph), program.report
    if name not in program.manifest.sizes:
        return program
    low, high, searched = program.manifest.sizes[name]
    rows = [(max(a, low), min(b, high)) for a, b in rows if a <= high and b >= low]
    sizes = {n: s for n, (_, _, s) in program.manifest.sizes.items()}
    caller, pressed = _comparable(session, program, backends), session.interrupted()
    parts = {
        row: Forms(graph, sizes, name, {ALL: program}, caller, session.options.seed, pressed) for row in rows
    }  # fmt: skip
    with session.stage("buckets", f"{len(rows)} of {name}"):
        lags = {row: _lag(forms, row) for row, forms in parts.items() if not row[0] <= searched <= row[1]}
    least = MIN_BUDGET_SHARE * session.options.budget + NEEDED * sum(
        session.stage_clock.seconds.get(s, 0.0) for s in STAGES
    )
    for row in sorted(lags, key=lambda row: -lags[row]):
        at, left = middle(*row), session.left
        share = max(left * lags[row] / sum(lags.values()), least)
        del lags[row]
        if session.progress.stopped or left < least:
            report.omitted.append(str(Omission(OmittedWork.SIZE_PLAN, f"{name} of {row[0]} to {row[1]}")))
            continue
        found, why = _searched(session, graph, {**sizes, name: at}, name, row, share, search)
        if found is not None:
            parts[row].programs = {ALL: program, OWN: found}
        else:
            report.warnings.append(f"no plan for {name} of {row[0]} to {row[1]}: {why}")
    with session.stage("buckets"):
        return _divided(program, report, name, parts, 0 if session.over else HALVINGS)


def _comparable(session: Session, program: Program, backends: Sequence[Backend]) -> Caller | None:
    """The caller's function if it may run instead of plans on the program's device.

    None also if the backends lack the library that the function uses (NumPy or Torch).
    """
    caller, options = session.caller, session.options
    if caller is None or not options.allow_caller or options.tolerance not in FACTORS or options.params:
        return None
    library = "numpy" if not caller.torch else "torch_cuda" if on_gpu(backends) else "torch"
    there = caller.device.partition(":")[0] == (program.tensors or "cpu").partition(":")[0]
    return caller if there and library in {b.name for b in backends} else None


def _lag(forms: Forms, row: tuple[int, int]) -> float:
    """Time of the program for all sizes over that of the caller's function, in the middle of a bucket. Without such a
    function, the distance |log| between that middle size and the size at which the program was searched. Positive.
    """
    at = middle(*row)
    if forms.caller is None:
        return abs(np.log(at / forms.sizes[forms.dimension])).item() or 1.0
    times = forms.timed(at)
    lag = median(times[ALL]) / median(times[CALLER])
    return lag if 0 < lag < inf else 1.0  # one of the forms does not run at this size


def _searched(
    session: Session, graph: Graph, sizes: Sizes, name: str, row: tuple[int, int], seconds: float, search: Search
) -> tuple[Program | None, str]:  # fmt: skip
    """(program for one bucket, ""), or (None, reason) if none was found that runs at all sizes of the bucket."""
    own = graph.bind({name: dim(name, min=row[0], max=row[1])})
    why = ""
    try:
        with session.part(seconds, own=True):
            found = search(own, sizes)
            why = "; ".join(w for w in session.warnings if "one size" in w)
    except Exception as error:  # there is a program for these sizes already
        return None, f"{type(error).__name__}: {getattr(error, 'message', error)}"[:300]
    if name in found.manifest.sizes and found.manifest.sizes[name][:2] == row:
        return found, ""
    return None, why or "it does not run at all of these sizes"


def _divided(
    program: Program, report: Report, name: str, parts: Mapping[tuple[int, int], Forms], halvings: int
) -> Program:
    """The program with the fastest form of each bucket.

    Adjacent buckets with the plan for all sizes, or with the caller's function, become one; without a function to
    compare with they stay apart, for `torch.compile` to judge.
    """
    rows: list[tuple[int, int, str, Forms]] = []
    for row, forms in parts.items():
        for least, most, form in winners(*row, forms.fastest_at, halvings):
            if rows and rows[-1][2] == form != OWN and forms.caller is not None:
                least, before = rows[-1][0], rows.pop()[3]
                forms.us = {**before.us, **forms.us}
            rows.append((least, most, form, forms))
    plans: dict[str, Program] = {}
    instead: dict[int, BucketForm] = {}
    buckets, report.buckets = [], []
    for least, most, form, forms in rows:
        own, plan = forms.programs.get(OWN), ""
        if own is not None and OWN in (form, forms.compiled([least]) if form == CALLER else ""):
            plan = f"at_{own.manifest.sizes[name][2]}"
            plans[plan] = own
        if form == CALLER and forms.caller is not None:
            instead[least] = CallerForm(forms.caller)
        buckets.append(Bucket(least, most, plan))
        at = own.manifest.sizes[name][2] if own is not None and plan else 0
        report.buckets.append(BucketReport(name, least, most, form, at, forms.medians(least, most)))
    for other in (p for forms in parts.values() for p in forms.programs.values()):
        if other is not program and other not in plans.values():
            other.unbind()
    return program.divide(Buckets(name, tuple(buckets)), plans, instead).bind()  # kernels of all plans are compiled


__all__ = ["buckets_of", "divided_dimension", "middle", "refuse_buckets_without", "with_buckets"]
