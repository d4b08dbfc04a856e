"""Searches on a virtual clock, without a GPU: `python -m benchmarks.search.replay WORKLOAD ... [--seconds 4 20]
[--seeds 3]`.

The extraction, the acquisition policy, the schedule searches and the order of trials are the real ones. Compilers and
the device only advance a virtual clock by the durations that benchmarks/search/rehearsal.py takes for an H200 with 32
cores. Solves are limited by counted work, which stands for their seconds: a longer solve finds a better plan here too,
and costs as much time. So a replay of 26 seconds takes a few seconds, and two replays of one policy give equal results
on a busy machine. Kernel times are made up from rooflines (`Times` in rehearsal.py), a different set per seed.

Printed per search: the true cost in µs of the plan returned (unmeasured kernels at their true times), the number of
measured kernels and rounds; `--json FILE` appends one line per search.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from benchmarks.search.rehearsal import (
    COMPILE_S,
    FULL_S,
    GENERATED,
    GPU,
    LAUNCH_US,
    LEAST,
    LIBRARY,
    LOAD_S,
    MOST_S,
    OPEN_S,
    SPREAD,
    TRY_S,
    WORKERS,
    Silent,
    Times,
    _place,
    hypergraph_of,
)  # fmt: skip
from tensor_graphs.backends.tuning import kernel_searches, measure_gpu, trials
from tensor_graphs.backends.tuning.gpu_process import GpuProcess
from tensor_graphs.backends.tuning.keys import key_of
from tensor_graphs.backends.tuning.measure_gpu import GpuMeasurer
from tensor_graphs.backends.tuning.schedule_search import ScheduleSearch
from tensor_graphs.backends.tuning.trial_pipeline import Ended, Event
from tensor_graphs.backends.tuning.trials import Measured, Trial
from tensor_graphs.costdb.keys.key import Work
from tensor_graphs.costdb.price.features import schedule_of
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.extract.candidates.hypergraph import Hypergraph
from tensor_graphs.extract.model import clock as clock_module
from tensor_graphs.extract.model.kernel import Call, Template
from tensor_graphs.extract.model.work import call_work
from tensor_graphs.extract.search import plan_solver
from tensor_graphs.extract.search import search as search_module
from tensor_graphs.extract.solve.solve_clock import LABELS_A_SECOND
from tensor_graphs.pipeline.costs.prices import CostPricer

# virtual seconds of a solve beside its labels (search states), of which the solver makes LABELS_A_SECOND
SOLVE_S_PER_CANDIDATE = 3e-5
TAIL = 0.15  # share of kernels that take 2 to 8 times as long as predicted, for odd seeds
MADE_UP_NEIGHBOURS = 32  # schedules per kernel beside the ranked guesses
PRICE_S_PER_CALL = 1e-5  # virtual seconds of pricing


class VirtualTime:
    """A clock that stands still until `advance` is called; in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Virtual seconds."""
        return self.now

    perf_counter = monotonic


class TrueTimes:
    """Kernel times in µs: from the first store in `stores` that has the kernel with this schedule, else made up.

    Made-up times are reproducible for (seed, kernel, schedule).
    """

    def __init__(self, store: Store, seed: int, stores: Sequence[Path] = ()) -> None:
        self.rooflines, self.seed = store.predictor("cold").rooflines, seed
        self.known = Times(stores, store).known
        self.schedules: dict[tuple[str, ...], list[dict[str, int]]] = {}  # known ones of a kernel
        for *kernel, schedule in self.known:
            if found := dict(schedule_of(schedule)):
                self.schedules.setdefault(tuple(kernel), []).append(found)

    def of(self, template: Template, call: Call) -> float:
        """The time of a kernel in the schedule of the call."""
        row = key_of(template, call)
        if (us := self.known.get(_place(row.columns))) is not None:
            return us
        place = [str(row.columns[name]) for name in ("kernel", "shapes", "strides", "schedule")]
        draw = lambda text: random.Random(f"{self.seed}|{text}").random()
        low, high = LIBRARY if template.space is None else GENERATED
        real = {name: value for name, value in call.schedule.items() if name != "replay"}  # without the made-up part
        bound = self.rooflines.of(row.device, row.backend, str(row.dtypes[0])).us(
            Work(*call_work(template, replace(call, schedule=real)))
        )
        us = LAUNCH_US + bound * (low + (high - low) * draw("|".join(place[:3])))
        if self.seed % 2 and draw("tail|" + "|".join(place[:3])) < TAIL:
            us *= 2 + 6 * draw("slow|" + "|".join(place[:3]))
        return us * (1 + SPREAD * draw("|".join(place)) ** 2) if call.schedule else us


@dataclass
class CheapSearch(ScheduleSearch):
    """A schedule search whose neighbours are the schedules with known times, or made-up ones if there are none.

    Real neighbours are checked by emitting kernels, which takes longer than a replay.
    """

    others: Sequence[dict[str, int]] = ()

    def _neighbours(self) -> Iterator[dict[str, int]]:
        made_up = ({**self.ranked[0], "replay": number} for number in range(MADE_UP_NEIGHBOURS))
        yield from filter(self._open, self.others or made_up)


class Schedules:
    """Schedule searches of a workload's kernels: real candidate schedules, replaced neighbours."""

    def __init__(self) -> None:
        self.times: TrueTimes | None = None

    def search_of(self, template: Template, call: Call, most: int, snapshot: Any) -> ScheduleSearch | None:
        """The schedule search of a kernel, in place of `trials.search_of`."""
        found = trials.search_of(template, call, most, snapshot)
        if found is None or self.times is None:
            return found
        others = self.times.schedules.get(_place(key_of(template, call).columns)[:3], ())
        fits = (lambda s: True) if found.fits is not None else None
        return CheapSearch(
            found.ranked, fits, found.near, found.count, found.known, like=found.like, form=found.form, confirm=found.confirm,
            others=others,
        )  # fmt: skip


class NoThread:
    """Stand-in for the measurer's background thread, whose work the replay advances itself."""

    def __init__(self, target: Any = None, args: Sequence[Any] = (), **_: Any) -> None:
        self.worth = args[0] if args else None

    def start(self) -> None:
        """Does nothing."""

    def join(self) -> None:
        """Does nothing."""


class VirtualMeasurer(GpuMeasurer):
    """The GPU measurer with compilers and a device that only advance a virtual clock."""

    def __init__(self, store: Store, times: TrueTimes, time: VirtualTime) -> None:
        super().__init__(store, device="cpu", workers=0, worker=Silent())  # type: ignore[arg-type]
        self.times, self.time_ = times, time
        self.processes = [GpuProcess("cpu", 1.0, Silent())]  # type: ignore[arg-type]
        self.pool = SimpleNamespace(
            workers=WORKERS, busy=WORKERS, starting=False, clock=clock_module.Clock(), start=lambda: None
        )  # type: ignore[assignment]
        self.compilers, self.device_free, self.open = [0.0] * WORKERS, 0.0, set[int]()
        self.queue: list[tuple[float, int, Event]] = []
        self.numbers = itertools.count()

    def close(self) -> None:
        """Does nothing: there are no processes."""

    def _push(self, at: float, event: Event) -> None:
        heappush(self.queue, (at, next(self.numbers), event))

    def _submit(self, kernel: Measured, calls: Sequence[Call]) -> None:
        for call in calls:
            one, at = Trial(call), self.time_.now
            if kernel.template.space is not None:
                first = self.compilers.index(min(self.compilers))
                seconds = COMPILE_S["nvrtc" if "cuda" in kernel.template.backend else "triton"]
                at = self.compilers[first] = max(at, self.compilers[first]) + seconds
            kernel.trials.append(one)
            kernel.pending += 1
            self._push(at, Event(kernel, one))

    def _hand_out(self) -> None:
        while self._waiting and len(self._handed) < 4:
            kernel, one = self._waiting.popleft()
            kernel.process = self.processes[0]
            if one is None:
                seconds = sum(self._run_s(FULL_S, kernel.trials[i].us) for i in kernel.best)
            else:
                us = self.times.of(kernel.template, one.call)
                seconds = self._run_s(TRY_S, us) + (0.0 if kernel.number in self.open else OPEN_S) + LOAD_S / 2
                self.open.add(kernel.number)
            self.device_free = max(self.device_free, self.time_.now) + seconds
            job: Future[None] = Future()
            job.set_result(None)
            self._handed[job] = self.processes[0]
            self._push(self.device_free, Event(kernel, one, job))

    def _run_s(self, seconds: float, us: float) -> float:
        return seconds + LEAST * us / 1e6 + min(MOST_S, 100 * us / 1e6)

    def _next(self, later: Iterator[Any]) -> Event:
        self.time_.now = max(self.time_.now, self.queue[0][0])
        if self._ended is not None and self._ended():
            raise Ended  # the event stays: the next call may go on with its kernel
        event = heappop(self.queue)[2]
        if event.job is not None and event.kernel is not None:
            if event.one is not None:
                event.one.accuracy, event.one.cold = (
                    {"rel_fro": 0.0},
                    [self.times.of(event.kernel.template, event.one.call)] * 3,
                )
            else:
                for i in event.kernel.best:
                    event.kernel.trials[i].hot = event.kernel.trials[i].cold
        return event

    def advance(self, seconds: float) -> None:
        """Advance the virtual clock, during which measurements in flight continue."""
        until = self.time_.now + seconds
        while self._behind is not None and self._in_flight:
            self._hand_out()
            if not self.queue or self.queue[0][0] > until:
                break
            try:
                self._over(self._step(self._behind.worth, iter(())))  # type: ignore[attr-defined]
            except Ended:
                break
        self.time_.now = max(self.time_.now, until)


def replay(
    graph: Hypergraph, seconds: float, seed: int, pricer: CostPricer, schedules: Schedules, starter: bool = False,
    stores: Sequence[Path] = (),
) -> dict[str, Any]:  # fmt: skip
    """One search: true cost of its plan, counts, and the virtual seconds used.

    `starter`: use the shipped starter rows. `stores`: cost stores with known kernel times.
    """
    time = VirtualTime()
    solve_ = plan_solver._solve
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        patch = lambda target, name, value: stack.enter_context(mock.patch.object(target, name, value))
        for module in (plan_solver, clock_module, measure_gpu, search_module):
            patch(module, "time", time)
        patch(measure_gpu, "Thread", NoThread)
        patch(Store, "flush", lambda self: ())
        store = Store(Path(folder), starter=(lambda: [GPU.partition("|")[0]]) if starter else None)
        pricer.store = store
        patch(kernel_searches, "search_of", schedules.search_of)
        times = schedules.times = TrueTimes(store, seed, stores)
        measurer = VirtualMeasurer(store, times, time)

        def solved(
            hypergraph: Any,
            cost: Any,
            limit: float,
            deterministic: bool,
            budgets: Any,
            known: Any,
            stop: Any,
            **options: Any,
        ) -> Any:
            chosen, found = solve_(hypergraph, cost, limit, True, budgets, known, None, **options)
            labels = found.stats.get("labels", 0) / LABELS_A_SECOND
            measurer.advance(SOLVE_S_PER_CANDIDATE * len(cost) + labels)
            return chosen, found

        price_ = pricer.price

        def priced(found: Any) -> Any:
            measurer.advance(PRICE_S_PER_CALL * len(found) if len(found) > 1 else 0.0)
            return price_(found)

        patch(plan_solver, "_solve", solved)
        patch(pricer, "price", priced)
        choice = search_module.search(graph, pricer, measurer, seconds=seconds)
        true = 0.0
        for i in choice.chosen:
            candidate, price = graph.candidates[i], choice.prices[i]
            if candidate.is_view or price.source == "measured":
                true += price.us
            else:
                true += times.of(candidate.template, replace(candidate.call, schedule=dict(price.schedule)))
        unmeasured = choice.sources.get("predicted", 0) + choice.sources.get("bound", 0)
        return {"us": true, "rounds": choice.rounds, "kernels": choice.measured, "schedules": measurer.counts["schedules"],
                "unmeasured": unmeasured, "stopped": choice.stopped, "virtual_s": round(time.now, 2)}  # fmt: skip


def main() -> None:
    """Parse the command line, replay the searches, print the results."""
    parser = argparse.ArgumentParser(description="Searches on a virtual clock.")
    parser.add_argument("workloads", nargs="+")
    parser.add_argument("--seconds", type=float, nargs="*", default=[4.0, 20.0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--times", type=Path, nargs="*", default=[], help="cost stores with times of kernels")
    parser.add_argument(
        "--starter", action="store_true", help="above the starter rows that TENSOR_GRAPHS_STARTER names"
    )
    options = parser.parse_args()
    os.environ.setdefault("TENSOR_GRAPHS_GPU", GPU)
    for workload in options.workloads:
        graph = hypergraph_of(workload, "gpu")
        print(workload, len(graph.candidates), "candidates", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            pricer, schedules = CostPricer(Store(Path(folder))), Schedules()
            for seconds, seed in itertools.product(options.seconds, range(options.seeds)):
                found = {
                    "workload": workload,
                    "seconds": seconds,
                    "seed": seed,
                    **replay(graph, seconds, seed, pricer, schedules, options.starter, options.times),
                }
                print(found, flush=True)
                if options.json:
                    with options.json.open("a") as file:
                        file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
