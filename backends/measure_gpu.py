"""Timing kernels on a GPU: schedules compile in a pool of processes, and one process with the device checks and times them.

Each candidate is measured in the schedules that its search proposes (schedule_search.py). Several candidates are under way at
once: while schedules of some compile, what is ready of others runs, in whatever order it becomes ready. What does not fit, spills
registers or is the same binary as another is not run. What is left runs once, is checked against float64, and gives a few
samples; the best few are then measured in full.
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

from .. import settings
from ..costdb.calibrate import calibration_rows
from ..costdb.device import cores, gpu_facts, gpu_machine, machine_here
from ..costdb.schema import Row
from ..errors import DeviceUnavailableError, WorkerError
from ..extract.clock import Clock
from ..extract.kernel import Call, Candidate, Template
from .compile_pool import COMPILE_S, CompilePool, Reply
from .gpu_process import START_S, GpuProcess
from .kernel_text import KernelText, kernel_text
from .keys import key_of
from .measure import CUT, POLL_S, Failure, Sink, Timing, Worker, ended_of
from .schedule_search import Key, Schedule, ScheduleSearch, key_of_schedule
from .tries import SCHEDULES, Measured, Try, failed, kind_of, not_tried, rows_of, search_of

BEST, CLOSE = 2, 1.1  # of those tried that get the full protocol, and times the fastest one's time that they may take
ALIKE = 2  # best schedules of kernels like one that are tried in it
AGAIN = 8  # schedules of a kernel where one like it was searched
AHEAD = 48  # schedules under way at once: some for each compiler, so that none waits for the device
OPEN = 20  # kernels under way at once, each with memory on the device; as many may wait for one like them
LEAVE = 2  # one of so many kernels may be left under way where others can be begun: the device has them while a plan is solved for
RUN_S = 15.0  # most seconds of one job
PROCESSES = 2  # with the device: one gets ready what it will run while the other one's runs
HANDED = 2  # jobs that each has at once: one that it does, and the next
FREE = 3  # compilers that are left idle where nothing is wanted but what may be: what is wanted then finds one
CAPABILITY = 90  # compiled for where no GPU is seen
CALIBRATE_S = 0.7
AT_ONCE_S = 5.0  # most seconds for compiling what a program runs for the first time
KEEP_S = 0.5  # seconds for which rows may be in memory only

Worth = Callable[[Candidate], float]
Ahead = tuple[Measured, Schedule]  # a schedule that may be wanted


@dataclass(frozen=True, eq=False)
class Event:
    """A try of a kernel is compiled, or the device has done a `job`: with that try, or (None) the last one with the kernel. Without a
    kernel: whoever waits is to look around."""

    kernel: Measured | None
    one: Try | None
    job: Future[None] | None = None


class _Ended(Exception):
    """The time for measuring is up."""


class GpuMeasurer:
    """Times candidates on the GPU and adds the rows to a sink (a cost store); see the module.

    `device` "cpu" lets Torch's CPU tensors and Triton's interpreter take the GPU's place: for tests, the times mean
    nothing. `workers` processes compile (none there); `timeout` bounds each step of one schedule on the device.
    """

    def __init__(
        self, sink: Sink, *, device: str = "cuda", workers: int | None = None, schedules: int = SCHEDULES,
        timeout: float = RUN_S, worker: Worker | None = None,
    ) -> None:  # fmt: skip
        if device == "cuda" and worker is None:
            _refuse_elsewhere()
        self.sink, self.device, self.schedules = sink, device, schedules
        self.clock = Clock()  # what this object's thread has done, and waited for
        several = PROCESSES if device == "cuda" and worker is None else 1
        self.processes = [GpuProcess(device, timeout, worker, among=several) for _ in range(several)]
        count = (0 if device == "cpu" else max(1, min(16, cores() - 1))) if workers is None else workers
        self.pool = CompilePool(count, partial(_capability, device)) if count else None
        self.counts = Counter[str]()  # kernels, schedules and what became of them
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="emit")  # writes what is next while the device is busy
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._under_way: list[Measured] = []  # what is still to be judged of others was given up
        self._waiting: deque[tuple[Measured, Try | None]] = deque()  # for the device
        self._handed: dict[Future[None], GpuProcess] = {}  # jobs that were not taken in yet
        self._early: dict[tuple[str, Key], Try] = {}  # compiled before they were wanted
        self._ahead: Try | None = None  # the last of them
        self._alike: dict[Hashable, dict[Key, float]] = {}  # by kind of kernel: the least µs of schedules
        self._most: dict[str, int] = {}  # schedules of kernels that are searched further than is usual
        self._rows: list[Row] = []  # measured, and not in the sink yet
        self._kept = 0.0  # when rows went there last
        self._measuring = 0.0  # seconds in all
        self._ended: Callable[[], bool] | None = None  # whether the time for measuring is up
        self.keeps = False  # whether what is under way then is left so, for whoever measures next
        self._behind: Thread | None = None  # goes on with what was left under way while the next plan is solved for
        self._called_back = False  # whether it is to stop
        self._fault: BaseException | None = None  # what has stopped it
        self._calibrating: Future[Reply] | None = None  # the device, by a process that has nothing else to do
        self._calibrated = False  # whether it was seen to that the device is
        self._worked = False  # whether a job on the device is done

    # ------------------------------------------------------------ the interface of measurers
    def start(self) -> None:
        """Let the processes start while there are other things to do: asking the driver what to compile for takes a while."""
        for process in self.processes:
            process.start()
        if self.pool is not None:
            self._writer.submit(self.pool.start)

    def measure(
        self, candidates: Iterable[Candidate], progress: Callable[[int], None] | None = None, worth: Worth | None = None,
        look: bool = False, later: Iterable[tuple[Candidate, bool]] = (), leave: bool = False,
    ) -> Sequence[Candidate]:  # fmt: skip
        """Time each distinct call in the schedules that its search proposes and store timing, accuracy and failures; returns
        when the rows are durable. Candidates are taken from the iterable a few ahead of what is timed. `worth` is asked again
        and again for the µs up to which more measuring of a candidate is of use. With `look`, searches end with their first
        guesses. `later` are candidates that may be measured next (and whether they are looked at): what their searches begin
        with is compiled while compilers are idle. With `leave`, it returns when but a few kernels are under way, and gives their
        candidates: they are measured on meanwhile and in the next call, at whose end their rows are durable."""
        self.start()
        began = time.monotonic()
        try:
            self._call_back()
            self._measure(
                iter(candidates), progress or (lambda done: None), worth, look, self._beginnings(later), leave
            )
            self._take_calibration()
            self._calibrate_once()  # while the next plan is solved for
        except BaseException:
            for process in self.processes:
                process.interrupt()  # what it is doing is not waited for
            self._drop()
            raise
        finally:
            self._measuring += time.monotonic() - began
            self._keep([], all_=True)
            flush = getattr(self.sink, "flush", None)
            if flush is not None:
                flush()
        left = [k.candidate for k in self._under_way if k.candidate is not None]
        if left and (leave or self.keeps):
            self._until(None if self.keeps else self._ended)
            self._behind = Thread(target=self._go_on, args=(worth,), name="measuring", daemon=True)
            self._behind.start()
        return left

    def _go_on(self, worth: Worth | None) -> None:
        """Take in what happens to what is under way, and hand out what follows from it, until called back."""
        try:
            while self._under_way and not self._called_back:
                self._over(self._step(worth, iter(())))
        except _Ended:
            pass  # the next call will see it too
        except BaseException as error:
            self._fault = error

    def _call_back(self) -> None:
        """Have nobody else deal with what is under way; raises what happened to whoever did."""
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
        """A kernel that is measured to the end, if it is one, is not under way any more; how many that are."""
        if kernel is None:
            return 0
        self._count(kernel)
        self._under_way.remove(kernel)
        self._rows += rows_of(kernel)
        return 1

    def _measure(
        self, source: Iterator[Candidate], progress: Callable[[int], None], worth: Worth | None, look: bool,
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
        """The time is up: keep what was tried of the kernels under way, and let the rest go."""
        for kernel in self._drop():
            kernel.tries = [t for t in kernel.tries if t.cold or t.failure is not None]
            self._process_of(kernel).forget(kernel.number)
            self._count(kernel)
            self._keep(rows_of(kernel))

    def _until(self, ended: Callable[[], bool] | None) -> None:
        """What says that the time is up."""
        self._ended = ended
        for process in self.processes:
            process.ended = None if self.keeps else ended

    def _drop(self) -> list[Measured]:
        """Have nothing under way any more; what was. The device does nothing more of what it was handed."""
        for job in self._handed:
            job.cancel()
        wait(self._handed)
        dropped, self._under_way, self._handed = self._under_way, [], {}
        self._waiting.clear()
        return dropped

    def _following(self, source: Iterator[Candidate], held: deque[Candidate], look: bool) -> Candidate | None:
        """The next candidate. While there is enough to compile, a first look waits for that of a kernel like it, and a search for
        such a kernel's search: it will begin with its best schedules."""
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
        """Give rows to the sink, a few kernels' at a time: a store writes a file each time."""
        self._rows += rows
        if self._rows and (all_ or time.monotonic() - self._kept > KEEP_S):
            with self.clock.running("rows"):
                self.sink.add(self._rows)
            self._rows, self._kept = [], time.monotonic()

    def _count(self, kernel: Measured) -> None:
        """Note what became of a kernel's schedules."""
        self.counts["kernels"] += 1
        self.counts["looks"] += kernel.look
        for one in kernel.tries:
            self.counts["schedules"] += 1
            self.counts["twins" if one.twin else one.failure.status if one.failure else "timed"] += 1
            reply = one.compiled.result() if one.compiled is not None and one.compiled.done() else {}
            self.clock.add("compile", reply.get("seconds", 0.0))

    @property
    def spent(self) -> dict[str, float]:
        """Where the time of measuring went: wall-clock seconds by what the process in charge and the one with the device did or
        waited for, side by side (`compile`: all compilers' seconds together, `pool`: the seconds that they had), and counts."""
        seconds = Counter({f"{name}_s": seconds for name, seconds in self.clock.seconds.items()})
        for process in self.processes:
            seconds.update({f"{name}_s": seconds for name, seconds in process.clock.seconds.items()})
        return {**seconds, "pool_s": (self.pool.workers if self.pool else 0) * self._measuring, **self.counts}

    @property
    def clocks(self) -> list[tuple[str, Clock]]:
        """Who took part, and what each did when."""
        devices = [(f"device {n}", process.clock) for n, process in enumerate(self.processes, 1)]
        return [("measuring", self.clock), *([("compilers", self.pool.clock)] if self.pool else []), *devices]

    def unfinished(self, candidate: Candidate) -> bool:
        """Whether a measured candidate has schedules that are worth measuring, as one has whose search was cut."""
        if candidate.is_view or candidate.template.space is None:
            return False
        search = self._search(candidate.template, candidate.call)
        return search is not None and bool(search.known) and search.unfinished

    def further(self, candidate: Candidate) -> bool:
        """Let a search that has measured all the schedules that it may go on with as many again; whether there are more. (One that
        ended before, as what is of no use does, is left.)"""
        if candidate.is_view or candidate.template.space is None:
            return False
        search = self._search(candidate.template, candidate.call)
        if search is None or search.room > 0:
            return False
        self._most[key_of(candidate.template, candidate.call).digest] = search.count + self.schedules
        return self.unfinished(candidate)

    def _calibrate_once(self) -> None:
        """Have the device calibrated where the store knows no limits of it: when it has nothing to do after the first kernels, for
        what libraries' kernels take says more."""
        predictor, done = getattr(self.sink, "predictor", None), self._calibrated
        if done or predictor is None or self.device != "cuda" or self._handed or not self._worked:
            return
        self._calibrated = True
        if gpu_machine().device not in predictor("cold").rooflines.measured():
            job = {"job": "calibrate", "seconds": CALIBRATE_S}
            self._calibrating = self.processes[-1].ask_later(job, START_S)

    def _take_calibration(self) -> None:
        """Keep what calibrating gave, if it is done. WorkerError where the device gives nothing."""
        if self._calibrating is None or not self._calibrating.done():
            return
        reply, self._calibrating = self._calibrating.result(), None
        if reply["ok"]:
            self.sink.add(calibration_rows(reply["probes"]))
        elif reply["status"] != CUT:
            raise WorkerError(f"the GPU cannot be calibrated: {reply['message']}", where=reply["status"])

    def compile(self, wanted: Iterable[tuple[Template, Call]], seconds: float = AT_ONCE_S) -> None:
        """Have kernels that a program is about to run for the first time compiled side by side, where there are several: it would
        compile one after the other. For at most `seconds`; what is the matter with one is said when it runs."""
        texts: dict[str, tuple[KernelText, Call]] = {}
        for template, call in wanted if self.pool is not None else ():
            with contextlib.suppress(Exception):
                text = kernel_text(template, call)
                texts |= {text.digest: (text, call)} if text.generated else {}
        if self.pool is not None and len(texts) > 1:
            with self.clock.running("compile"):
                wait([self.pool.submit(text, call) for text, call in texts.values()], timeout=seconds)

    def time(self, template: Template, call: Call) -> Timing | Failure:
        """One measurement of a call in the schedule that it names, not stored."""
        self._call_back()
        self._drop()
        self._until(None)
        kernel = Measured(template, call)
        self._under_way = [kernel]
        self._submit(kernel, [call])
        while self._step(None, iter(())) is None:
            pass
        self._under_way = []
        (only,) = kernel.tries
        if only.failure is not None:
            return only.failure
        return Timing(tuple(only.cold), only.accuracy or {})

    def calibrate(self, seconds: float = 4.0) -> list[Row]:
        """Measure what bounds every kernel here, and store it; the rows. WorkerError where the device gives none."""
        self._call_back()
        reply = self.processes[0].ask({"job": "calibrate", "seconds": seconds}, START_S)
        if not reply["ok"]:
            raise WorkerError(f"the GPU cannot be calibrated: {reply['message']}", where=reply["status"])
        rows = calibration_rows(reply["probes"])
        self.sink.add(rows)
        return rows

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
        """The candidate's kernel with its first schedules compiling; None for views and kernels that were here before."""
        template, call = candidate.template, candidate.call
        digest = key_of(template, call).digest
        if candidate.is_view or digest in seen:
            for kernel in self._under_way:  # begun by another search, perhaps: who asks last is told of it
                kernel.candidate = candidate if kernel.digest == digest else kernel.candidate
            return None
        seen.add(digest)
        search = self._search(template, call)
        kernel = Measured(template, call, search=search, candidate=candidate, look=look)
        wanted = [call] if search is None else [replace(call, schedule=s) for s in search.more(look=look)]
        if not wanted and search is not None:  # all was measured: asked for again, the best one is
            best = search.measured[0][1] if search.measured else key_of_schedule(search.ranked[0])
            wanted = [replace(call, schedule=dict(best))]
        self._submit(kernel, wanted)
        return kernel

    def _search(self, template: Template, call: Call) -> ScheduleSearch | None:
        """The search of a kernel: it begins with what was best in others like it, and is shorter where one of them was searched."""
        most = self._most.get(key_of(template, call).digest, self.schedules) if self._most else self.schedules
        search = search_of(template, call, most, getattr(self.sink, "snapshot", None))
        known = dict(self._alike.get(kind_of(template, call), {}))  # as it is now: another thread may add to it
        if search is not None and search.fits is not None and known:
            best = (dict(key) for key in sorted(known, key=lambda key: (known[key], key)))
            search.like = list(islice(filter(search.fits, best), ALIKE))
            if len(known) >= self.schedules and most == self.schedules:
                search.count = min(search.count, AGAIN)
        return search

    def _submit(self, kernel: Measured, calls: Sequence[Call]) -> None:
        """Write and compile calls of a kernel, if that was not done ahead; each is in the queue when it is ready to be judged."""
        for call in calls:
            place = (kernel.digest, key_of_schedule(call.schedule))
            one = self._early.pop(place, None)
            if one is None:
                one = Try(call)
                self._writer.submit(self._write, kernel.template, one)
            kernel.tries.append(one)
            kernel.pending += 1
            self._writer.submit(self._announce, kernel, one)

    def _write(self, template: Template, one: Try) -> None:
        try:
            one.text = kernel_text(template, one.call)
            if self.pool is not None and one.text.generated:
                one.compiled = self.pool.submit(one.text, one.call)
        except Exception as error:  # an emitter's fault, or a schedule it cannot write: that schedule's failure
            one.failure = Failure("emit-error", f"{type(error).__name__}: {error}"[:400], "emit")

    def _announce(self, kernel: Measured, one: Try) -> None:
        if one.compiled is None:
            self._events.put(Event(kernel, one))
        else:
            one.compiled.add_done_callback(lambda _: self._events.put(Event(kernel, one)))

    def _step(self, worth: Worth | None, later: Iterator[Ahead]) -> Measured | None:
        """Hand the device what is ready, and take in one thing that it or a compiler has done since. The kernel, if that was
        the last of it."""
        self._hand_out()
        event = self._next(later)
        kernel, one = event.kernel, event.one
        if kernel is None:
            return None
        if event.job is not None:
            if event.job not in self._handed:
                return None  # of a kernel that was given up
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
        """Give each process something to do: about a kernel that it has open, if possible, else about one that none has."""
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

    def _done(self, kernel: Measured, one: Try | None, job: Future[None]) -> None:
        self._events.put(Event(kernel, one, job))

    def _process_of(self, kernel: Measured) -> GpuProcess:
        return kernel.process or self.processes[0]

    def _next(self, later: Iterator[Ahead]) -> Event:
        """What happens next; while nothing does, idle compilers are given what may be wanted."""
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
        """Have one more schedule compiled that may be wanted, if a compiler is idle: of a search under way, its next moves by what
        is known now; else what the search of a later candidate begins with. Whether there was one."""
        busy = self.pool.busy if self.pool is not None else math.inf
        written = self._ahead is None or self._ahead.text is not None or self._ahead.failure is not None
        if self.pool is None or busy >= self.pool.workers - FREE or not written:
            return False
        moves = ((k, s) for k in self._under_way if not k.look for s in k.hoped())
        for kernel, schedule in chain(moves, later):
            place = kernel.digest, key_of_schedule(schedule)
            if place not in self._early:
                self._ahead = self._early[place] = Try(replace(kernel.call, schedule=schedule))
                self._writer.submit(self._write, kernel.template, self._ahead)
                self.counts["ahead"] += 1
                return True
        return False

    def _beginnings(self, later: Iterable[tuple[Candidate, bool]]) -> Iterator[tuple[Measured, Schedule]]:
        """What the searches of candidates that were not begun would begin with."""
        for candidate, look in later:
            if not candidate.is_view:
                kernel = Measured(candidate.template, candidate.call)
                search = self._search(kernel.template, kernel.call)
                yield from ((kernel, s) for s in (search.more(look=look) if search is not None else ()))

    def _settled(self, kernel: Measured, one: Try, worth: Worth | None) -> None:
        """A try of the kernel is over: ask its search for more when it was the last, and end with the best in full."""
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

    def _wanted(self, kernel: Measured, search: ScheduleSearch, worth: Worth | None) -> list[Schedule]:
        """The schedules that a kernel's search proposes after all under way were judged; where the kernel is given up, those not
        tried fail with it."""
        for one in kernel.tries:
            us, key = (one.twin or one).us, key_of_schedule(one.call.schedule)
            search.told(one.call.schedule, us)
            if us < math.inf:
                known = self._alike.setdefault(kind_of(kernel.template, kernel.call), {})
                known[key] = min(us, known.get(key, us))
        if why := kernel.given_up:
            rest = [s for s in search.ranked if key_of_schedule(s) not in search.known]
            kernel.tries += [Try(replace(kernel.call, schedule=dict(s)), failure=not_tried(why)) for s in rest]
            return []
        useful = worth(kernel.candidate) if worth is not None and kernel.candidate is not None else math.inf
        return search.more(useful, look=kernel.look)

    def _best(self, kernel: Measured, worth: Worth | None) -> list[int]:
        """The tries to be measured in full: the fastest ones, unless the kernel is of no use. After a first look none is, where
        there are schedules left: the samples of tries tell as much as matters then."""
        alive = {i: t for i, t in enumerate(kernel.tries) if t.twin is None and t.us < math.inf}
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

    # ------------------------------------------------------------ with the device, in its thread
    def _try(self, kernel: Measured, one: Try) -> None:
        """Run one schedule: is it right, and how fast about?"""
        if why := kernel.given_up:
            one.failure = not_tried(why)
            return
        assert one.text is not None
        reply = self._process_of(kernel).attempt(kernel.opening, kernel.tries.index(one), one.text)
        if not failed(one, reply):
            one.accuracy, one.cold = reply["accuracy"], reply["cold"]
        elif one.failure is not None and one.failure.status in ("fault", "crash", "timeout"):
            kernel.broken += 1

    def _finish(self, kernel: Measured) -> None:
        """Measure the best schedules in full; twins take what their first has."""
        for i in kernel.best:
            one = kernel.tries[i]
            reply = self._process_of(kernel).measure(kernel.opening, i, one.text)
            if not failed(one, reply):
                one.accuracy, one.cold, one.hot = reply["accuracy"], reply["cold"], reply["hot"]
                one.clock_mhz = reply["clock_mhz"]
        self._process_of(kernel).forget(kernel.number)
        for one in kernel.tries:
            if one.twin is not None:
                one.failure, one.accuracy, one.cold, one.hot = (
                    one.twin.failure, one.twin.accuracy, one.twin.cold, one.twin.hot,
                )  # fmt: skip


def _capability(device: str) -> int:
    """What is compiled for: the architecture of the GPU, where there is one."""
    return int(gpu_facts().get("capability", CAPABILITY)) if device == "cuda" else CAPABILITY


def _refuse_elsewhere() -> None:
    """DeviceUnavailableError where plans are made for another GPU than the one here: times would be stored as that one's."""
    wanted = gpu_machine() if settings.current().gpu else None  # else nothing is asked of the driver yet
    if wanted is not None and wanted != (here := machine_here()):
        raise DeviceUnavailableError(
            f"plans are made for {wanted.device}, and kernels cannot be measured on {here.device} for it",
            where="TENSOR_GRAPHS_GPU", hint="measure where that GPU is (tensor-graphs measure), or unset it",
        )  # fmt: skip
