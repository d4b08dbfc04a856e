"""Measurement and tuning of kernels on a GPU: schedules compile in a process pool.

Device processes check and time them.

Each candidate is measured with the schedules that its search proposes (schedule_search.py). Several candidates are in
flight: while schedules of some compile, ready schedules of others run, in any order. Schedules that need too many
resources, spill registers or duplicate another binary are not run. The rest run once, are checked against float64 and
give a few samples; the best few are then measured in full.
"""

from __future__ import annotations

import contextlib
import math
import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from threading import Thread

from ... import settings
from ...costdb.keys.device import GPU_KIND, cores, gpu_facts, gpu_machine, machine_here
from ...costdb.store.calibrate import calibration_rows
from ...costdb.store.schema import Row
from ...egraph.ir.ops import Type
from ...errors import DeviceUnavailableError, WorkerError
from ...extract.model.clock import Clock
from ...extract.model.kernel import Call, Candidate, Operand, Template
from ..generate.kernel_text import KernelText, kernel_text
from .compile_pool import COMPILE_S, CompilePool, Reply
from .gpu_process import START_S, GpuProcess
from .keys import key_of
from .measure_cpu import CUT, POLL_S, CpuWorkerProcess, Failure, Sink, Timing, ended_of
from .schedule_search import Key, Schedule, ScheduleSearch, key_of_schedule
from .trials import SCHEDULES, Measured, Trial, failed, kind_of, not_tried, rows_of, search_of

BEST, CLOSE = 2, 1.1  # schedules per kernel measured in full; maximum multiple of the fastest time for these
ALIKE = 2  # best schedules of similar kernels that are tried
AGAIN = 8  # maximum schedules of a kernel after a similar kernel was searched
AHEAD = 48  # schedules in flight: some per compiler, so that none waits for the device
OPEN = 20  # kernels in flight, each with device memory; as many again may wait for a similar kernel
# 1/LEAVE of the started kernels may stay in flight on return: the device works on them while a plan is solved for
LEAVE = 2
RUN_S = 15.0  # deadline in seconds of one device job
PROCESSES = 2  # device processes: one prepares its next job while the other's runs
HANDED = 2  # jobs queued per device process: the current one and the next
FREE = 3  # compilers kept idle while only speculative work is available
CAPABILITY = 90  # compute capability to compile for if there is no GPU
CALIBRATE_S = 0.7
AT_ONCE_S = 5.0  # deadline in seconds for compiling a program's kernels before its first run
KEEP_S = 0.5  # maximum seconds before rows are written to the sink

Cutoff = Callable[[Candidate], float]
Ahead = tuple[Measured, Schedule]  # a kernel and a schedule to compile speculatively


@dataclass(frozen=True, eq=False)
class Event:
    """Completion of a compilation or of a device `job`.

    `one`: the trial; None for the last job of a kernel. `kernel` None: wake-up without a completion.
    """

    kernel: Measured | None
    one: Trial | None
    job: Future[None] | None = None


class _Ended(Exception):
    """The measuring time is up."""


class GpuMeasurer:
    """Measures candidates on the GPU and adds rows to a sink (a cost store). A `Measurer`.

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
        self.sink, self.device, self.schedules = sink, device, schedules
        self.clock = Clock()  # time spent by the calling thread
        several = PROCESSES if device == GPU_KIND and worker is None else 1
        self.processes = [GpuProcess(device, timeout, worker, among=several) for _ in range(several)]
        count = (0 if device == "cpu" else max(1, min(16, cores() - 1))) if workers is None else workers
        self.pool = CompilePool(count, partial(_capability, device)) if count else None
        self.counts = Counter[str]()  # kernels, schedules and their outcomes
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="emit")  # emits source while the device is busy
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._under_way: list[Measured] = []  # kernels in flight; events of other kernels are ignored
        self._waiting: deque[tuple[Measured, Trial | None]] = deque()  # ready for the device
        self._handed: dict[Future[None], GpuProcess] = {}  # device jobs in flight
        self._early: dict[tuple[str, Key], Trial] = {}  # trials compiled speculatively
        self._ahead: Trial | None = None  # the last of these
        self._alike: dict[Hashable, dict[Key, float]] = {}  # kind of kernel -> schedule -> least µs
        self._most: dict[str, int] = {}  # digest of a kernel with an extended search -> its number of schedules
        self._rows: list[Row] = []  # measured rows not yet in the sink
        self._kept = 0.0  # time of the last write to the sink
        self._measuring = 0.0  # total seconds of measuring
        self._ended: Callable[[], bool] | None = None  # whether the measuring time is up
        self.keeps = False  # whether kernels in flight at that time are kept for the next call
        self._behind: Thread | None = None  # continues with kernels in flight while the next plan is solved for
        self._called_back = False  # whether that thread should stop
        self._fault: BaseException | None = None  # exception that ended that thread
        self._calibrating: Future[Reply] | None = None  # calibration of the device, in flight
        self._calibrated = not calibrates  # whether calibration was considered
        self._worked = False  # whether a device job has finished

    # ------------------------------------------------------------ the interface of measurers
    def pause(self) -> None:
        """No-op: the processes take long to start."""

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

        Returns when the rows are durable. Candidates are drawn from the iterable slightly ahead of measuring. `worth`:
        cost cutoff of a candidate in µs, above which measuring is useless; called repeatedly. `look`: searches end with
        their first guesses. `later`: (candidate, whether it is a first look) that may be measured next; idle compilers
        compile their first schedules. `leave`: return early and give the candidates still in flight; these continue in
        the background and in the next call, which makes their rows durable.
        """
        self.start()
        began = time.monotonic()
        try:
            self._call_back()
            self._measure(
                iter(candidates), progress or (lambda done: None), worth, look, self._beginnings(later), leave
            )
            self._take_calibration()
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
        left = [k.candidate for k in self._under_way if k.candidate is not None]
        if left and (leave or self.keeps):
            self._until(None if self.keeps else self._ended)
            self._behind = Thread(target=self._go_on, args=(worth,), name="measuring", daemon=True)
            self._behind.start()
        return left

    def _go_on(self, worth: Cutoff | None) -> None:
        """Background thread: process events of kernels in flight until called back."""
        try:
            while self._under_way and not self._called_back:
                self._over(self._step(worth, iter(())))
        except _Ended:
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
        self._under_way.remove(kernel)
        self._rows += rows_of(kernel)
        return 1

    def _measure(
        self, source: Iterator[Candidate], progress: Callable[[int], None], worth: Cutoff | None, look: bool,
        later: Iterator[Ahead], leave: bool,
    ) -> None:  # fmt: skip
        self._until(ended_of(worth))
        under_way, done, held = self._under_way, 0, deque[Candidate]()
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
            except _Ended:
                return None if self.keeps else self._given_up()
            if self._over(kernel):
                self._keep([])
                done += 1
                progress(done)

    def _given_up(self) -> None:
        """Time is up: keep the finished trials of kernels in flight and abandon the rest."""
        for kernel in self._drop():
            kernel.trials = [t for t in kernel.trials if t.cold or t.failure is not None]
            self._process_of(kernel).forget(kernel.number)
            self._count(kernel)
            self._keep(rows_of(kernel))

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
        dropped, self._under_way, self._handed = self._under_way, [], {}
        self._waiting.clear()
        return dropped

    def _following(self, source: Iterator[Candidate], held: deque[Candidate], look: bool) -> Candidate | None:
        """The next candidate to start, None if there is none.

        While compilers are busy, a candidate waits for the first look, or the search, of a similar kernel: it will
        start with that kernel's best schedules.
        """
        busy = {kind_of(k.template, k.call) for k in self._under_way}
        busy -= self._alike.keys() if look else set()
        free = next((c for c in held if kind_of(c.template, c.call) not in busy), None)
        if free is None:
            while len(held) < OPEN and (candidate := next(source, None)) is not None:
                if kind_of(candidate.template, candidate.call) not in busy:
                    return candidate
                held.append(candidate)
            idle = self.pool is None or sum(k.pending for k in self._under_way) < self.pool.workers
            free = held[0] if held and idle else None
        if free is not None:
            held.remove(free)
        return free

    def _keep(self, rows: Sequence[Row], *, all_: bool = False) -> None:
        """Give rows to the sink, batched by time: a store writes a file each time."""
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
        """Breakdown of measuring time, and counts.

        Wall-clock seconds per activity of the calling process and of the device processes, which overlap; `compile_s`
        sums over compilers, `pool_s` is the compilers' total available time.
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
        if candidate.is_view or candidate.template.space is None:
            return False
        search = self._search(candidate.template, candidate.call)
        return search is not None and bool(search.known) and search.unfinished

    def further(self, candidate: Candidate) -> bool:
        """Extend an exhausted search by as many schedules again; whether there are any.

        Searches that ended early are left alone.
        """
        if candidate.is_view or candidate.template.space is None:
            return False
        search = self._search(candidate.template, candidate.call)
        if search is None or search.room > 0:
            return False
        self._most[key_of(candidate.template, candidate.call).digest] = search.count + self.schedules
        return self.unfinished(candidate)

    def _calibrate_once(self) -> None:
        """Start device calibration if the store has no device limits.

        Runs when the device is idle after the first kernels, because library kernels' times are more informative.
        """
        if self._calibrated or self.device != GPU_KIND or self._handed or not self._worked:
            return
        self._calibrated = True
        if not self.sink.calibrated(gpu_machine().device):
            job = {"job": "calibrate", "seconds": CALIBRATE_S}
            self._calibrating = self.processes[-1].ask_later(job, START_S)

    def _take_calibration(self) -> None:
        """Store finished calibration results. WorkerError if calibration failed."""
        if self._calibrating is None or not self._calibrating.done():
            return
        reply, self._calibrating = self._calibrating.result(), None
        if reply["ok"]:
            self.sink.add(calibration_rows(reply["probes"]))
        elif reply["status"] != CUT:
            raise WorkerError(f"the GPU cannot be calibrated: {reply['message']}", where=reply["status"])

    def compile(
        self, wanted: Iterable[tuple[Template, Call]], seconds: float = AT_ONCE_S, programs: Iterable[str] = ()
    ) -> bool:  # fmt: skip
        """Compile kernels of a program in parallel before its first run, which would compile them one by one.

        `programs`: sources of programs, whose CUDA C++ kernels are compiled together as in their first run. Takes at most
        `seconds`; returns whether all were done. Compilation errors are reported when a kernel runs.
        """
        empty = Call({}, Operand(Type((1,), "float32"), (1,)), {})
        found = (KernelText(source, (), (), False, 0, True) for source in programs if "CudaKernel(" in source)
        texts: dict[str, tuple[KernelText, Call]] = {text.digest: (text, empty) for text in found}
        for template, call in wanted if self.pool is not None else ():
            with contextlib.suppress(Exception):
                text = kernel_text(template, call)
                texts |= {text.digest: (text, call)} if text.generated else {}
        if self.pool is None or len(texts) < 2:
            return True
        with self.clock.running("compile"):
            return not wait([self.pool.submit(text, call) for text, call in texts.values()], timeout=seconds).not_done

    def time(self, template: Template, call: Call) -> Timing | Failure:
        """Result of measuring a call with its own schedule, not stored."""
        self._call_back()
        self._drop()
        self._until(None)
        kernel = Measured(template, call)
        self._under_way = [kernel]
        self._submit(kernel, [call])
        while self._step(None, iter(())) is None:
            pass
        self._under_way = []
        (only,) = kernel.trials
        if only.failure is not None:
            return only.failure
        return Timing(tuple(only.cold), only.accuracy or {})

    def calibrate(self, seconds: float = 4.0) -> list[Row]:
        """Measure the device limits (bandwidths, peak rates, launch gap), store and return the rows.

        WorkerError on failure.
        """
        self._call_back()
        reply = self.processes[0].ask({"job": "calibrate", "seconds": seconds}, START_S)
        if not reply["ok"]:
            raise WorkerError(f"the GPU cannot be calibrated: {reply['message']}", where=reply["status"])
        rows = calibration_rows(reply["probes"])
        self.sink.add(rows)
        return rows

    def rest(self) -> None:
        """End the measurements in flight and make their rows durable. The processes stay for the next call."""
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
        for process in self.processes:
            process.close()
        if self.pool is not None:
            self.pool.close()

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
            for kernel in self._under_way:
                kernel.candidate = candidate if kernel.digest == digest else kernel.candidate
            return None
        seen.add(digest)
        search = self._search(template, call)
        kernel = Measured(template, call, search=search, candidate=candidate, look=look)
        wanted = [call] if search is None else [replace(call, schedule=s) for s in search.more(look=look)]
        if not wanted and search is not None:  # everything is measured: measure the best schedule again
            best = search.measured[0][1] if search.measured else key_of_schedule(search.ranked[0])
            wanted = [replace(call, schedule=dict(best))]
        self._submit(kernel, wanted)
        return kernel

    def _search(self, template: Template, call: Call) -> ScheduleSearch | None:
        """The search of a kernel, starting with the best schedules of similar kernels.

        Shorter if one of these was searched.
        """
        most = self._most.get(key_of(template, call).digest, self.schedules) if self._most else self.schedules
        search = search_of(template, call, most, self.sink.snapshot)
        known = dict(self._alike.get(kind_of(template, call), {}))  # a copy, because another thread may add to it
        if search is not None and search.fits is not None and known:
            best = (dict(key) for key in sorted(known, key=lambda key: (known[key], key)))
            search.like = list(islice(filter(search.fits, best), ALIKE))
            if len(known) >= self.schedules and most == self.schedules:
                search.count = min(search.count, AGAIN)
        return search

    def _submit(self, kernel: Measured, calls: Sequence[Call]) -> None:
        """Emit and compile calls of a kernel unless done speculatively; queue an event for each that can be judged."""
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
        """Give ready jobs to the device and process one event. Returns the kernel if it is finished."""
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
        elif kernel not in self._under_way or one is None:
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
        """The next event; meanwhile idle compilers get speculative work.

        WorkerError if nothing happens for too long.
        """
        until = time.monotonic() + START_S + COMPILE_S
        while time.monotonic() < until:
            if self._ended is not None and self._ended():
                raise _Ended
            with contextlib.suppress(queue.Empty):
                return self._events.get_nowait()
            self._calibrate_once()
            if self._compiled_ahead(later):
                continue
            with contextlib.suppress(queue.Empty), self.clock.running("idle" if self._handed else "wait"):
                return self._events.get(timeout=POLL_S)
        raise WorkerError(f"nothing was compiled within {START_S + COMPILE_S:g} s")

    def _compiled_ahead(self, later: Iterator[Ahead]) -> bool:
        """Start one speculative compilation if a compiler is idle; whether one was started.

        Next moves of running searches come first, then first schedules of later candidates.
        """
        busy = self.pool.busy if self.pool is not None else math.inf
        written = self._ahead is None or self._ahead.text is not None or self._ahead.failure is not None
        if self.pool is None or busy >= self.pool.workers - FREE or not written:
            return False
        moves = ((k, s) for k in self._under_way if not k.look for s in k.hoped())
        for kernel, schedule in chain(moves, later):
            place = kernel.digest, key_of_schedule(schedule)
            if place not in self._early:
                self._ahead = self._early[place] = Trial(replace(kernel.call, schedule=schedule))
                self._writer.submit(self._write, kernel.template, self._ahead)
                self.counts["ahead"] += 1
                return True
        return False

    def _beginnings(self, later: Iterable[tuple[Candidate, bool]]) -> Iterator[tuple[Measured, Schedule]]:
        """(kernel, schedule) that the searches of candidates not yet started would begin with."""
        for candidate, look in later:
            if not candidate.is_view:
                kernel = Measured(candidate.template, candidate.call)
                search = self._search(kernel.template, kernel.call)
                yield from ((kernel, s) for s in (search.more(look=look) if search is not None else ()))

    def _settled(self, kernel: Measured, one: Trial, worth: Cutoff | None) -> None:
        """Finish a trial. After the last one of a round, ask the search for more, or measure the best in full."""
        kernel.pending -= 1
        if kernel.search is not None and one.us < math.inf:
            kernel.search.told(one.call.schedule, one.us)
        if kernel.pending:
            return
        with self.clock.running("choose"):
            wanted = self._wanted(kernel, kernel.search, worth) if kernel.search is not None else []
        if wanted:
            self._submit(kernel, [replace(kernel.call, schedule=s) for s in wanted])
            return
        spilled = kernel.least_spilling()
        kernel.pending = int(spilled is not None)
        if spilled is None:
            kernel.best = self._best(kernel, worth)
        self._waiting.append((kernel, spilled))

    def _wanted(self, kernel: Measured, search: ScheduleSearch, worth: Cutoff | None) -> list[Schedule]:
        """The schedules that a kernel's search proposes after a round.

        If the kernel is given up, its remaining schedules fail.
        """
        for one in kernel.trials:
            us, key = (one.twin or one).us, key_of_schedule(one.call.schedule)
            search.told(one.call.schedule, us)
            if us < math.inf:
                known = self._alike.setdefault(kind_of(kernel.template, kernel.call), {})
                known[key] = min(us, known.get(key, us))
        if why := kernel.given_up:
            rest = [s for s in search.ranked if key_of_schedule(s) not in search.known]
            kernel.trials += [Trial(replace(kernel.call, schedule=dict(s)), failure=not_tried(why)) for s in rest]
            return []
        useful = worth(kernel.candidate) if worth is not None and kernel.candidate is not None else math.inf
        return search.more(useful, look=kernel.look)

    def _best(self, kernel: Measured, worth: Cutoff | None) -> list[int]:
        """Indices of trials to measure in full: the fastest, unless the kernel is useless.

        Empty after a first look with schedules left: the samples of trials suffice then.
        """
        alive = {i: t for i, t in enumerate(kernel.trials) if t.twin is None and t.us < math.inf}
        right = sorted(alive, key=lambda i: alive[i].us)
        left = kernel.search is not None and len(kernel.search.known) < len(kernel.search.ranked)
        if not right or (kernel.look and left):
            return []
        if worth is not None and kernel.candidate is not None:
            with self.clock.running("choose"):
                useful = worth(kernel.candidate)
            if not 0 < alive[right[0]].us <= CLOSE * useful:
                return []
        return [i for i in right[:BEST] if alive[i].us <= CLOSE * alive[right[0]].us]

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


def _capability(device: str) -> int:
    """Compute capability to compile for: the GPU's, if there is one."""
    return int(gpu_facts().get("capability", CAPABILITY)) if device == GPU_KIND else CAPABILITY


def _refuse_elsewhere() -> None:
    """DeviceUnavailableError if the setting `gpu` describes another GPU than this machine's.

    Times would be stored under its name.
    """
    wanted = gpu_machine() if settings.current().gpu else None  # otherwise do not query the driver yet
    if wanted is not None and wanted != (here := machine_here()):
        raise DeviceUnavailableError(
            f"plans are made for {wanted.device}, and kernels cannot be measured on {here.device} for it",
            where="TENSOR_GRAPHS_GPU", hint="measure where that GPU is (tensor-graphs measure), or unset it",
        )  # fmt: skip
