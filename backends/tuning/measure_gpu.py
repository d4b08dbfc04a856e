"""Measures and tunes kernels on a GPU: a process pool compiles schedules (tuning parameters), device processes check
and time them.

Each candidate is measured with the schedules that its search proposes (schedule_search.py). Several candidates are in
flight: while schedules of some compile, ready schedules of others run, in any order. Schedules that need too many
resources, spill registers or duplicate another binary are not run. The rest run once, are checked against float64 and
give a few samples; the best few are then measured in full.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import replace
from functools import partial
from threading import Thread

from ... import settings
from ...costdb.keys.device import GPU_KIND, cores, gpu_facts, gpu_machine, machine_here
from ...costdb.store.schema import Row
from ...errors import DeviceUnavailableError
from ...extract.model.clock import Clock
from ...extract.model.kernel import Call, Candidate, Template
from ..generate.kernel_text import KernelText, kernel_text
from ..generate.lowering_pool import LEFT_CORES
from .compile_pool import CompilePool
from .gpu_process import GpuProcess
from .kernel_searches import Ahead, Cutoff
from .keys import key_of
from .measurement import Failure, Sink, Timing, ended_of
from .schedule_search import key_of_schedule
from .trial_pipeline import Ended, Event, TrialPipeline
from .trials import SCHEDULES, Measured, rows_of, similarity_key
from .worker_process import CpuWorkerProcess

AHEAD = 48  # schedules in flight: some per compiler, so that none waits for the device
OPEN = 20  # kernels in flight, each with device memory; as many again may wait for a similar kernel
# 1/LEAVE of the started kernels may stay in flight on return: the device works on them while a plan is solved for
LEAVE = 2
RUN_S = 15.0  # deadline in seconds of one device job
PROCESSES = 2  # device processes: one prepares its next job while the other's runs (a third one gains nothing)
MOST_COMPILERS = 16  # compiler processes at most
CAPABILITY = 90  # compute capability to compile for if there is no GPU
AT_ONCE_S = 5.0  # deadline in seconds for compiling a program's kernels before its first run
KEEP_S = 2.0  # seconds after which rows are written to the sink before a round ends: a store's write waits for the disk


class GpuMeasurer(TrialPipeline):
    """Measures candidates on the GPU and adds the rows to a sink (a cost store). Implements the protocol `Measurer`.

    `device` "cpu" uses Torch's CPU tensors and Triton's interpreter: for tests, the times are meaningless. `workers`:
    number of compiler processes (0 on "cpu"). `timeout`: seconds for each device job of one schedule. `calibrates`:
    whether device limits that the sink lacks are measured, too.
    """

    ahead = True

    def __init__(
        self, sink: Sink, *, device: str = GPU_KIND, workers: int | None = None, schedules: int = SCHEDULES,
        timeout: float = RUN_S, worker: CpuWorkerProcess | None = None, calibrates: bool = True,
    ) -> None:  # fmt: skip
        if device == GPU_KIND and worker is None:
            _refuse_elsewhere()
        several = PROCESSES if device == GPU_KIND and worker is None else 1
        processes = [GpuProcess(device, timeout, worker, among=several) for _ in range(several)]
        count = (
            (0 if device == "cpu" else max(1, min(MOST_COMPILERS, cores() - LEFT_CORES)))
            if workers is None
            else workers
        )
        pool = CompilePool(count, partial(_capability, device)) if count else None
        super().__init__(sink, device, processes, pool, schedules, calibrates=calibrates)
        self.sink, self.schedules = sink, schedules
        self._rows: list[Row] = []  # measured rows not yet in the sink
        self._kept = 0.0  # time of the last write to the sink
        self._measuring = 0.0  # total seconds of measuring
        self._behind: Thread | None = None  # continues with kernels in flight while the next plan is solved for
        self._called_back = False  # whether the thread `_behind` has been told to stop
        self._fault: BaseException | None = None  # exception that ended the thread `_behind`

    # ------------------------------------------------------------ the interface of measurers
    def pause(self) -> None:
        """Free the processes' memory while nothing is measured (`Measurer.pause`): does nothing, because they take long
        to start."""

    def start(self) -> None:
        """Start the processes without waiting for them, or for the driver's answer on the compute capability."""
        for process in self.processes:
            process.start()
        if self.pool is not None:
            self._writer.submit(self.pool.start)

    def measure(
        self, candidates: Iterable[Candidate], progress: Callable[[int], None] | None = None, worth: Cutoff | None = None,
        look: bool = False, later: Iterable[tuple[Candidate, bool]] = (), leave: bool = False,
    ) -> Sequence[Candidate]:  # fmt: skip
        """Measure each distinct call with the schedules of its search; store timing, accuracy and failures.

        Returns the candidates whose measurement continues in the background: none without `leave`, unless the attribute
        `keeps` is set and time is up. The rows of all others are on disk when the call returns.

        Candidates are drawn from the iterable slightly ahead of measuring. `progress`: called with the number of
        finished candidates. `worth`: cost cutoff of a candidate in µs, above which measuring is useless; called
        repeatedly. `look`: searches end with their first guesses. `later`: (candidate, whether only first guesses are
        to be tried) that may be measured next; idle compilers compile their first schedules. `leave`: return early with
        the candidates still in flight; these continue in the background and in the next call, which stores their rows.
        """
        self.start()
        began = time.monotonic()
        try:
            self._call_back()
            self._measure(
                iter(candidates), progress or (lambda done: None), worth, look, self.searches.beginnings(later), leave
            )
            self.calibration.take()
            self._calibrate_once()  # runs while the next plan is solved for
        except BaseException:
            for process in self.processes:
                process.interrupt()  # do not wait for the current job
            self._drop()
            raise
        finally:
            self._measuring += time.monotonic() - began
            self._keep([], all_=True)
            self.sink.flush()
        left = [k.candidate for k in self._in_flight if k.candidate is not None]
        if left and (leave or self.keeps):
            self._until(None if self.keeps else self._ended)
            self._behind = Thread(target=self._go_on, args=(worth,), name="measuring", daemon=True)
            self._behind.start()
        return left

    def _go_on(self, worth: Cutoff | None) -> None:
        """Body of the background thread: process events of kernels in flight until `_call_back`."""
        try:
            while self._in_flight and not self._called_back:
                self._over(self._step(worth, iter(())))
        except Ended:
            pass  # the next call notices it, too
        except BaseException as error:
            self._fault = error

    def _call_back(self) -> None:
        """Stop the background thread; raises its exception."""
        if self._behind is None:
            return
        self._called_back = True
        self._events.put(Event(None, None))
        self._behind.join()
        self._behind, self._called_back = None, False
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    def _over(self, kernel: Measured | None) -> int:
        """Remove a kernel that is fully measured from those in flight and queue its rows.

        Returns the number removed (0 or 1).
        """
        if kernel is None:
            return 0
        self._count(kernel)
        self._in_flight.remove(kernel)
        self._rows += rows_of(kernel)
        return 1

    def _measure(
        self, source: Iterator[Candidate], progress: Callable[[int], None], worth: Cutoff | None, look: bool,
        later: Iterator[Ahead], leave: bool,
    ) -> None:  # fmt: skip
        self._until(ended_of(worth))
        under_way, done, held = self._in_flight, 0, deque[Candidate]()
        seen, before, begun = {k.digest for k in under_way}, len(under_way), 0
        while True:
            dry = False
            while sum(k.pending for k in under_way) < AHEAD and len(under_way) < OPEN:
                candidate = self._following(source, held, look)
                if candidate is None:
                    dry = not held
                    break
                with self.clock.running("begin"):
                    kernel = self._begun(candidate, seen, look)
                if kernel is not None:
                    under_way.append(kernel)
                    begun += 1
                    continue
                done += 1
                progress(done)
            if len(under_way) <= (before + begun // LEAVE if leave and dry else 0):
                break
            try:
                kernel = self._step(worth, later)
            except Ended:
                return None if self.keeps else self._given_up()
            if self._over(kernel):
                self._keep([])
                done += 1
                progress(done)

    def _given_up(self) -> None:
        """When time is up: store the finished trials of the kernels in flight and abandon the other trials."""
        for kernel in self._drop():
            kernel.trials = [t for t in kernel.trials if t.cold or t.failure is not None]
            self._process_of(kernel).forget(kernel.number)
            self._count(kernel)
            self._keep(rows_of(kernel))

    def _following(self, source: Iterator[Candidate], held: deque[Candidate], look: bool) -> Candidate | None:
        """The next candidate to start, from `held` or `source`; None if there is none.

        While compilers are busy, a candidate is held back until a similar kernel's first look or search has
        ended, because it will start with that kernel's best schedules.
        """
        busy = {similarity_key(k.template, k.call) for k in self._in_flight}
        busy -= self.searches.alike.keys() if look else set()
        free = next((c for c in held if similarity_key(c.template, c.call) not in busy), None)
        if free is None:
            while len(held) < OPEN and (candidate := next(source, None)) is not None:
                if similarity_key(candidate.template, candidate.call) not in busy:
                    return candidate
                held.append(candidate)
            idle = self.pool is None or sum(k.pending for k in self._in_flight) < self.pool.workers
            free = held[0] if held and idle else None
        if free is not None:
            held.remove(free)
        return free

    def _keep(self, rows: Sequence[Row], *, all_: bool = False) -> None:
        """Queue rows for the sink, which gets them every `KEEP_S` seconds (at once with `all_`), because a store writes
        a file each time."""
        self._rows += rows
        if self._rows and (all_ or time.monotonic() - self._kept > KEEP_S):
            with self.clock.running("rows"):
                self.sink.add(self._rows)
            self._rows, self._kept = [], time.monotonic()

    def _count(self, kernel: Measured) -> None:
        """Count the outcomes of a kernel's schedules."""
        self.counts["kernels"] += 1
        self.counts["looks"] += kernel.look
        for one in kernel.trials:
            self.counts["schedules"] += 1
            self.counts["twins" if one.twin else one.failure.status if one.failure else "timed"] += 1
            reply = one.compiled.result() if one.compiled is not None and one.compiled.done() else {}
            self.clock.add("compile", reply.get("seconds", 0.0))

    @property
    def ready(self) -> bool:
        """Whether a device process and the compilers have started."""
        compiling = self.pool is not None and self.pool.starting
        return not compiling and any(not process.starting for process in self.processes)

    @property
    def spent(self) -> dict[str, float]:
        """Time spent on measuring, and counts of kernels and schedules, by name.

        A key that ends in `_s` has the seconds of an activity, summed over the calling process and the device
        processes, which overlap. `compile_s` also has the time of all compilers, `pool_s` is the measuring time times
        their number. `open_s`, `try_s` and `time_s` are whole jobs of device processes; the steps in them are `lock_s`
        (waiting for the other process), `draw_s` (operands and reference), `load_s`, `check_s`, `copy_s` and
        `prepare_s` (operands of further calls), `record_s` and `sample_s`. Other keys are counts.
        """
        seconds = Counter({f"{name}_s": seconds for name, seconds in self.clock.seconds.items()})
        for process in self.processes:
            seconds.update({f"{name}_s": seconds for name, seconds in process.clock.seconds.items()})
        return {**seconds, "pool_s": (self.pool.workers if self.pool else 0) * self._measuring, **self.counts}

    @property
    def clocks(self) -> list[tuple[str, Clock]]:
        """Clocks of the participating processes, as (name, clock)."""
        devices = [(f"device {n}", process.clock) for n, process in enumerate(self.processes, 1)]
        return [("measuring", self.clock), *([("compilers", self.pool.clock)] if self.pool else []), *devices]

    def unfinished(self, candidate: Candidate) -> bool:
        """Whether a measured candidate has schedules left that are worth measuring, because its search was cut off."""
        return self.searches.unfinished(candidate)

    def further(self, candidate: Candidate) -> bool:
        """Allow `schedules` more schedules to a candidate's search that has used up its number; returns whether any are
        left to try.

        False, without a change, for a search that has not used up its number of schedules.
        """
        return self.searches.further(candidate)

    def calibrate(self, seconds: float = 4.0) -> list[Row]:
        """Measure the device limits (bandwidths, peak rates, launch gap) for about `seconds`; stores and returns the
        rows. Raises WorkerError on failure."""
        self._call_back()
        return self.calibration.measured(self.processes[0], seconds)

    def compile(self, wanted: Iterable[tuple[Template, Call]], seconds: float = AT_ONCE_S) -> bool:
        """Compile kernels of a program in parallel before its first run, which would compile them one by one.

        `wanted`: the kernels with their calls. Takes at most `seconds`; returns whether all were done. Compilation
        errors are reported when a kernel runs.
        """
        if self.pool is None:
            return True
        texts: dict[str, tuple[KernelText, Call]] = {}
        for template, call in wanted:
            with contextlib.suppress(Exception):
                text = kernel_text(template, call)
                texts |= {text.digest: (text, call)} if text.generated else {}
        with self.clock.running("compile"):
            return not wait([self.pool.submit(text, call) for text, call in texts.values()], timeout=seconds).not_done

    def time(self, template: Template, call: Call) -> Timing | Failure:
        """Measure a call with its own schedule and return the result without storing it."""
        self._call_back()
        self._drop()
        self._until(None)
        kernel = Measured(template, call)
        self._in_flight = [kernel]
        self._submit(kernel, [call])
        while self._step(None, iter(())) is None:
            pass
        self._in_flight = []
        (only,) = kernel.trials
        if only.failure is not None:
            return only.failure
        return Timing(tuple(only.cold), only.accuracy or {})

    def rest(self) -> None:
        """End the measurements in flight and write their rows to the disk. The processes stay for the next call."""
        with contextlib.suppress(Exception):
            self._call_back()
        self._given_up()
        self._keep([], all_=True)
        self.sink.flush()

    def close(self) -> None:
        """End all processes."""
        with contextlib.suppress(Exception):
            self._call_back()
        self._writer.shutdown(wait=False, cancel_futures=True)
        closings = [*(p.close for p in self.processes), *([self.pool.close] if self.pool is not None else [])]
        ends = [Thread(target=close, daemon=True) for close in closings]  # at once: a driver ends a process slowly
        for end in ends:
            end.start()
        for end in ends:
            end.join()

    def __enter__(self) -> GpuMeasurer:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    # ------------------------------------------------------------ one kernel
    def _begun(self, candidate: Candidate, seen: set[str], look: bool) -> Measured | None:
        """Start a candidate: compile its first schedules. None for views and kernels seen before."""
        template, call = candidate.template, candidate.call
        digest = key_of(template, call).digest
        if candidate.is_view or digest in seen:
            # already started, perhaps by another search: the last requester becomes its candidate
            for kernel in self._in_flight:
                kernel.candidate = candidate if kernel.digest == digest else kernel.candidate
            return None
        seen.add(digest)
        search = self.searches.of(template, call)
        kernel = Measured(template, call, search=search, candidate=candidate, look=look)
        wanted = [call] if search is None else [replace(call, schedule=s) for s in search.more(look=look)]
        if not wanted and search is not None:  # everything is measured: measure the best schedule again
            best = search.measured[0][1] if search.measured else key_of_schedule(search.ranked[0])
            wanted = [replace(call, schedule=dict(best))]
        self._submit(kernel, wanted)
        return kernel


def _capability(device: str) -> int:
    """Compute capability to compile for (90 is sm_90): that of the GPU, if there is one."""
    return int(gpu_facts().get("capability", CAPABILITY)) if device == GPU_KIND else CAPABILITY


def _refuse_elsewhere() -> None:
    """Raise DeviceUnavailableError if the setting `gpu` describes another GPU than this machine's, because times would
    be stored under that GPU's name."""
    wanted = gpu_machine() if settings.current().gpu else None  # otherwise do not query the driver yet
    if wanted is not None and wanted != (here := machine_here()):
        raise DeviceUnavailableError(
            f"plans are made for {wanted.device}, and kernels cannot be measured on {here.device} for it",
            where="TENSOR_GRAPHS_GPU", hint="measure where that GPU is (tensor-graphs measure), or unset it",
        )  # fmt: skip
