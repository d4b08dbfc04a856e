"""Runs tuning trials (one kernel with one choice of tuning parameters each) on a GPU as a pipeline: emission of source,
compilation in a process pool, jobs of device processes.

The calling thread queues trials (`_submit`) and processes one completion at a time (`_step`), of which it is told by an
`Event`. A writer thread emits source. Compilers and device processes work in parallel. Idle compilers get schedules
that a search may want next.
"""

from __future__ import annotations

import contextlib
import math
import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from ...costdb.keys.device import GPU_KIND
from ...errors import WorkerError
from ...extract.model.clock import Clock
from ...extract.model.kernel import Call, Template
from ..generate.kernel_text import kernel_text
from .compile_pool import COMPILE_S, CompilePool
from .device_calibration import DeviceCalibration
from .gpu_process import START_S, GpuProcess
from .kernel_searches import Ahead, Cutoff, KernelSearches
from .measurement import Failure, Sink
from .schedule_search import Key, key_of_schedule
from .trials import Measured, Trial, failed, not_tried
from .worker_process import POLL_S

HANDED = 2  # jobs queued per device process: the current one and the next
FREE = 3  # compilers kept idle while only speculative work is available


@dataclass(frozen=True, eq=False)
class Event:
    """Message to the calling thread: a compilation (`job` None) or a device job has ended.

    `one`: the trial; None for the last job of a kernel. An event with `kernel` None only wakes the calling thread.
    """

    kernel: Measured | None
    one: Trial | None
    job: Future[None] | None = None


class Ended(Exception):
    """Raised when the measuring time is up."""


class TrialPipeline:
    """The kernels that are being measured, and the processes that work on their trials (one schedule each).

    `device`: "cuda", or "cpu" for tests. `pool`: compiler processes; None compiles nothing in advance. `schedules`:
    number of schedules per kernel. `calibrates`: whether device limits that the cost store lacks are measured, too.
    """

    def __init__(
        self, sink: Sink, device: str, processes: Sequence[GpuProcess], pool: CompilePool | None, schedules: int,
        *, calibrates: bool,
    ) -> None:  # fmt: skip
        self.device, self.processes, self.pool = device, list(processes), pool
        self.searches = KernelSearches(sink, schedules)
        self.calibration = DeviceCalibration(sink, wanted=calibrates)
        self.clock = Clock()  # time spent by the calling thread
        self.counts = Counter[str]()  # kernels, schedules and their outcomes
        self.keeps = False  # whether kernels in flight when time is up are kept for the next call
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="emit")  # emits source while the device is busy
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._in_flight: list[Measured] = []  # kernels in flight; events of other kernels are ignored
        self._waiting: deque[tuple[Measured, Trial | None]] = deque()  # ready for the device
        self._handed: dict[Future[None], GpuProcess] = {}  # device jobs in flight
        self._early: dict[tuple[str, Key], Trial] = {}  # trials compiled speculatively
        self._ahead: Trial | None = None  # the trial prefetched last
        self._ended: Callable[[], bool] | None = None  # whether the measuring time is up
        self._worked = False  # whether a device job has finished

    def _until(self, ended: Callable[[], bool] | None) -> None:
        """Set the function that tells whether time is up."""
        self._ended = ended
        for process in self.processes:
            process.ended = None if self.keeps else ended

    def _drop(self) -> list[Measured]:
        """Abandon all kernels in flight and return them. Queued device jobs are cancelled."""
        for job in self._handed:
            job.cancel()
        wait(self._handed)
        dropped, self._in_flight, self._handed = self._in_flight, [], {}
        self._waiting.clear()
        return dropped

    def _submit(self, kernel: Measured, calls: Sequence[Call]) -> None:
        """Emit and compile calls of a kernel that were not compiled speculatively; queues an event for each call when
        its compilation is done."""
        for call in calls:
            place = (kernel.digest, key_of_schedule(call.schedule))
            one = self._early.pop(place, None)
            if one is None:
                one = Trial(call)
                self._writer.submit(self._write, kernel.template, one)
            kernel.trials.append(one)
            kernel.pending += 1
            self._writer.submit(self._announce, kernel, one)

    def _write(self, template: Template, one: Trial) -> None:
        try:
            one.text = kernel_text(template, one.call)
            if self.pool is not None and one.text.generated:
                one.compiled = self.pool.submit(one.text, one.call)
        except Exception as error:  # an emitter error fails this schedule only
            one.failure = Failure("emit-error", f"{type(error).__name__}: {error}"[:400], "emit")

    def _announce(self, kernel: Measured, one: Trial) -> None:
        if one.compiled is None:
            self._events.put(Event(kernel, one))
        else:
            one.compiled.add_done_callback(lambda _: self._events.put(Event(kernel, one)))

    def _step(self, worth: Cutoff | None, later: Iterator[Ahead]) -> Measured | None:
        """Give ready jobs to the device and process one event.

        Returns the kernel that the event finished, else None. `later`: schedules to compile speculatively.
        """
        self._hand_out()
        event = self._next(later)
        kernel, one = event.kernel, event.one
        if kernel is None:
            return None
        if event.job is not None:
            if event.job not in self._handed:
                return None  # of an abandoned kernel
            del self._handed[event.job]
            event.job.result()
            self._worked = True
            if one is None:
                return kernel
        elif kernel not in self._in_flight or one is None:
            return None
        elif kernel.judge(one):
            self._waiting.append((kernel, one))
            return None
        self._settled(kernel, one, worth)
        return None

    def _hand_out(self) -> None:
        """Fill the queue of each device process, preferring its open kernels, then kernels that no process has open."""
        for process in self.processes:
            for _ in range(HANDED - sum(p is process for p in self._handed.values())):
                own = (i for i, (k, _) in enumerate(self._waiting) if k.process is process)
                free = (i for i, (k, _) in enumerate(self._waiting) if k.process is None)
                at = next(chain(own, free), None)
                if at is None:
                    break
                kernel, one = self._waiting[at]
                del self._waiting[at]
                kernel.process = process
                job = process.do(partial(self._finish, kernel) if one is None else partial(self._try, kernel, one))
                self._handed[job] = process
                job.add_done_callback(partial(self._done, kernel, one))

    def _done(self, kernel: Measured, one: Trial | None, job: Future[None]) -> None:
        self._events.put(Event(kernel, one, job))

    def _process_of(self, kernel: Measured) -> GpuProcess:
        return kernel.process or self.processes[0]

    def _next(self, later: Iterator[Ahead]) -> Event:
        """The next event; while none comes, idle compilers get speculative work.

        Raises WorkerError if no event comes for too long, and Ended when measuring time is up.
        """
        until = time.monotonic() + START_S + COMPILE_S
        while time.monotonic() < until:
            if self._ended is not None and self._ended():
                raise Ended
            with contextlib.suppress(queue.Empty):
                return self._events.get_nowait()
            self._calibrate_once()
            if self._compiled_ahead(later):
                continue
            with contextlib.suppress(queue.Empty), self.clock.running("idle" if self._handed else "wait"):
                return self._events.get(timeout=POLL_S)
        raise WorkerError(f"nothing was compiled within {START_S + COMPILE_S:g} s")

    def _compiled_ahead(self, later: Iterator[Ahead]) -> bool:
        """Start one speculative compilation if a compiler is idle; returns whether one was started.

        Likely next schedules of running searches come first, then first schedules of later candidates.
        """
        busy = self.pool.busy if self.pool is not None else math.inf
        written = self._ahead is None or self._ahead.text is not None or self._ahead.failure is not None
        if self.pool is None or busy >= self.pool.workers - FREE or not written:
            return False
        moves = ((k, s) for k in self._in_flight if not k.look for s in k.likely_next())
        for kernel, schedule in chain(moves, later):
            place = kernel.digest, key_of_schedule(schedule)
            if place not in self._early:
                self._ahead = self._early[place] = Trial(replace(kernel.call, schedule=schedule))
                self._writer.submit(self._write, kernel.template, self._ahead)
                self.counts["ahead"] += 1
                return True
        return False

    def _settled(self, kernel: Measured, one: Trial, worth: Cutoff | None) -> None:
        """Finish a trial. After the last one of a round, ask the search for more, or measure the best in full."""
        kernel.pending -= 1
        if kernel.search is not None and one.us < math.inf:
            kernel.search.record(one.call.schedule, one.us)
        if kernel.pending:
            return
        with self.clock.running("choose"):
            wanted = self.searches.wanted(kernel, kernel.search, worth) if kernel.search is not None else []
        if wanted:
            self._submit(kernel, [replace(kernel.call, schedule=s) for s in wanted])
            return
        spilled = kernel.least_spilling()
        kernel.pending = int(spilled is not None)
        if spilled is None:
            with self.clock.running("choose"):
                kernel.best = self.searches.best(kernel, worth)
        self._waiting.append((kernel, spilled))

    def _calibrate_once(self) -> None:
        """Start device calibration if the store has no device limits.

        Runs when the device is idle after the first kernels, because library kernels' times are more informative.
        """
        if self.device == GPU_KIND and self._worked and not self._handed:
            self.calibration.begin(self.processes[-1])

    # ------------------------------------------------------------ device jobs, in the thread of a device process
    def _try(self, kernel: Measured, one: Trial) -> None:
        """Device job: run, check and roughly time one schedule."""
        if why := kernel.given_up:
            one.failure = not_tried(why)
            return
        assert one.text is not None
        reply = self._process_of(kernel).attempt(kernel.opening, kernel.trials.index(one), one.text)
        if not failed(one, reply):
            one.accuracy, one.cold = reply["accuracy"], reply["cold"]
        elif one.failure is not None and one.failure.status in ("fault", "crash", "timeout"):
            kernel.broken += 1

    def _finish(self, kernel: Measured) -> None:
        """Device job: measure the best schedules in full; trials with identical binaries share results."""
        for i in kernel.best:
            one = kernel.trials[i]
            reply = self._process_of(kernel).measure(kernel.opening, i, one.text)
            if not failed(one, reply):
                one.accuracy, one.cold, one.hot = reply["accuracy"], reply["cold"], reply["hot"]
                one.clock_mhz = reply["clock_mhz"]
        self._process_of(kernel).forget(kernel.number)
        for one in kernel.trials:
            if one.twin is not None:
                one.failure, one.accuracy, one.cold, one.hot = (
                    one.twin.failure, one.twin.accuracy, one.twin.cold, one.twin.hot,
                )  # fmt: skip


__all__ = ["Ended", "Event", "TrialPipeline"]
