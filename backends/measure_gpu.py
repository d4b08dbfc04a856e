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
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice
from typing import Any

from ..costdb import tuned
from ..costdb.device import cores, gpu_facts, gpu_machine
from ..costdb.key import KernelKey, Work
from ..costdb.roofline import CALIBRATION
from ..costdb.schema import REGIMES, Accuracy, Row
from ..costdb.schema import Failure as FailureRow
from ..costdb.schema import Timing as TimingRow
from ..costdb.snapshot import Snapshot
from ..costdb.source import source_hash
from ..errors import WorkerError
from ..extract.clock import Clock
from ..extract.kernel import Call, Candidate, Template
from ..extract.work import call_work
from .compile_pool import COMPILE_S, CompilePool, Reply
from .kernel_text import KernelText, call_json, kernel_text
from .keys import key_of
from .measure import CUT, POLL_S, Failure, Sink, Timing, Worker, ended_of
from .schedule_search import COUNT, Key, Schedule, ScheduleSearch, key_of_schedule

SCHEDULES = COUNT  # of one kernel that are measured
BEST, CLOSE = 2, 1.1  # of those tried that get the full protocol, and times the fastest one's time that they may take
ALIKE = 2  # best schedules of kernels like one that are tried in it
AGAIN = 8  # schedules of a kernel where one like it was searched
AHEAD = 48  # schedules under way at once: some for each compiler, so that none waits for the device
OPEN = 20  # kernels under way at once, each with memory on the device; as many may wait for one like them
START_S, RUN_S = 180.0, 15.0  # most seconds for starting a process, one job
CAPABILITY = 90  # compiled for where no GPU is seen
REGIME = "cold"  # of the times that searches go by

CALIBRATE_S = 0.7
KEEP_S = 0.5  # seconds for which rows may be in memory only
FRAME = 16  # bytes of stack that are no spilled registers: alignment of a frame, a counter's address
GIVE_UP = 3  # schedules of one kernel that fault, crash or hang before the others are not tried

Worth = Callable[[Candidate], float]
_numbers = count()


@dataclass(eq=False)
class Try:
    """One schedule of a kernel on its way."""

    call: Call
    text: KernelText | None = None
    compiled: Future[Reply] | None = None
    failure: Failure | None = None
    accuracy: dict[str, float] | None = None
    cold: Sequence[float] = ()
    hot: Sequence[float] = ()
    clock_mhz: float = float("nan")
    twin: Try | None = None  # an earlier schedule that gives the same binary

    @property
    def us(self) -> float:
        """The middle one of the cold samples; infinite for a failure."""
        return sorted(self.cold)[len(self.cold) // 2] if self.cold and self.failure is None else math.inf


class _Ended(Exception):
    """The time for measuring is up."""


@dataclass(eq=False)
class Measured:
    """A kernel with the schedules that were tried, and those that are under way."""

    template: Template
    call: Call
    tries: list[Try] = field(default_factory=list)
    search: ScheduleSearch | None = None
    candidate: Candidate | None = None
    look: bool = False  # whether only a few guesses are tried
    pending: int = 0  # tries that are not judged yet
    broken: int = 0  # tries that ended the process with the device
    spilling: list[tuple[int, Try]] = field(default_factory=list)  # bytes; tried only where all spill
    binaries: dict[str, Try] = field(default_factory=dict)
    number: int = field(default_factory=lambda: next(_numbers))

    def __post_init__(self) -> None:
        self.work = Work(*call_work(self.template, self.call))

    def judge(self, one: Try) -> bool:
        """Whether a compiled try is worth running now; notes what failed, does not fit, is another's twin, or spills."""
        reply = one.compiled.result() if one.compiled is not None else None
        if one.failure is not None or reply is None:
            return one.failure is None
        if _failed(one, reply):
            return False
        if not reply["fits"]:
            one.failure = Failure("resources", f"{reply['shared']} bytes of shared memory", "compile")
        elif (twin := self.binaries.setdefault(reply["digest"], one)) is not one:
            one.twin = twin
        elif reply["spills"] > FRAME:
            self.spilling.append((reply["spills"], one))
        else:
            return True
        return False

    def least_spilling(self) -> Try | None:
        """The try that spills least, where nothing that does not spill has run; the others have failed."""
        self.spilling.sort(key=lambda pair: pair[0])
        clean = any(t.us < math.inf for t in self.tries)
        least = None if clean or not self.spilling else self.spilling.pop(0)[1]
        for spills, one in self.spilling:
            one.failure = Failure("spills", f"{spills} bytes of registers spill per thread", "compile")
        self.spilling.clear()
        return least


class GpuMeasurer:
    """Times candidates on the GPU and adds the rows to a sink (a cost store); see the module.

    `device` "cpu" lets Torch's CPU tensors and Triton's interpreter take the GPU's place: for tests, the times mean
    nothing. `workers` processes compile (none there); `timeout` bounds each step of one schedule on the device.
    """

    def __init__(
        self, sink: Sink, *, device: str = "cuda", workers: int | None = None, schedules: int = SCHEDULES,
        timeout: float = RUN_S, worker: Worker | None = None,
    ) -> None:  # fmt: skip
        self.sink, self.device, self.schedules, self.timeout = sink, device, schedules, timeout
        environment = {"TENSOR_GRAPHS_MEASURE_DEVICE": device}
        environment |= {"TRITON_INTERPRET": "1"} if device == "cpu" else {}
        self._another = partial(Worker, "tensor_graphs.backends.gpu_worker", environment=environment)
        self.worker = worker or self._another()
        count = (0 if device == "cpu" else max(1, min(16, cores() - 1))) if workers is None else workers
        capability = int(gpu_facts().get("capability", CAPABILITY)) if device == "cuda" else CAPABILITY
        self.pool = CompilePool(count, capability) if count else None
        self._spare = self._another() if device == "cuda" and worker is None else None
        self.clock = Clock()  # what this object's thread has done, and waited for
        self.counts = Counter[str]()  # kernels, schedules and what became of them
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="emit")  # writes what is next while the device is busy
        self._ready: queue.SimpleQueue[tuple[Measured, Try]] = queue.SimpleQueue()
        self._under_way: list[Measured] = []  # what is still to be judged of others was given up
        self._waiting: deque[tuple[Measured, Try]] = deque()  # taken from the queue, the device was busy with others
        self._opened: dict[int, set[int]] = {}  # kernels open in the process with the device: tries it knows
        self._alike: dict[Hashable, dict[Key, float]] = {}  # by kind of kernel: the least µs of schedules
        self._rows: list[Row] = []  # measured, and not in the sink yet
        self._kept = 0.0  # when rows went there last
        self._measuring = 0.0  # seconds in all
        self._ended: Callable[[], bool] | None = None  # whether the time for measuring is up
        self._calibrated = False  # whether it was seen to that the device is

    # ------------------------------------------------------------ the interface of measurers
    def start(self) -> None:
        """Let the processes start while there are other things to do."""
        self.worker.start()
        if self.pool is not None:
            self.pool.start()

    def measure(
        self, candidates: Iterable[Candidate], progress: Callable[[int], None] | None = None, worth: Worth | None = None,
        look: bool = False,
    ) -> None:  # fmt: skip
        """Time each distinct call in the schedules that its search proposes and store timing, accuracy and failures; returns
        when the rows are durable. Candidates are taken from the iterable a few ahead of what is timed. `worth` is asked again
        and again for the µs up to which more measuring of a candidate is of use. With `look`, searches end with their first
        guesses."""
        self.start()
        began = time.monotonic()
        try:
            self._measure(iter(candidates), progress or (lambda done: None), worth, look)
        finally:
            self._measuring += time.monotonic() - began
            self._keep([], all_=True)
            flush = getattr(self.sink, "flush", None)
            if flush is not None:
                flush()

    def _measure(
        self, source: Iterator[Candidate], progress: Callable[[int], None], worth: Worth | None, look: bool
    ) -> None:  # fmt: skip
        seen, done, held = set[str](), 0, deque[Candidate]()
        under_way = self._under_way = []
        self._ended = ended_of(worth)
        self._waiting.clear()
        while True:
            while sum(k.pending for k in under_way) < AHEAD and len(under_way) < OPEN:
                candidate = self._following(source, held, look)
                if candidate is None:
                    break
                with self.clock.running("begin"):
                    kernel = self._begun(candidate, seen, look)
                if kernel is not None:
                    under_way.append(kernel)
                    continue
                done += 1
                progress(done)
            if not under_way:
                break
            self._calibrate_once()  # while the first ones compile
            if self._spare is not None:
                self._spare.start()
            try:
                kernel = self._step(worth)
            except _Ended:
                return self._given_up(under_way)
            if kernel.pending == 0:
                self._finish(kernel, worth)
                self._count(kernel)
                under_way.remove(kernel)
                self._keep(rows_of(kernel))
                done += 1
                progress(done)

    def _given_up(self, under_way: Sequence[Measured]) -> None:
        """The time is up: keep what was tried of the kernels under way, and let the rest go."""
        for kernel in under_way:
            kernel.tries = [t for t in kernel.tries if t.cold or t.failure is not None]
            self._close_kernel(kernel)
            self._count(kernel)
            self._keep(rows_of(kernel))

    def _following(self, source: Iterator[Candidate], held: deque[Candidate], look: bool) -> Candidate | None:
        """The next candidate. While there is enough to compile, a first look waits for that of a kernel like it, and a search for
        such a kernel's search: it will begin with its best schedules."""
        busy = {_kind(k.template, k.call) for k in self._under_way}
        busy -= self._alike.keys() if look else set()
        free = next((c for c in held if _kind(c.template, c.call) not in busy), None)
        if free is None:
            while len(held) < OPEN and (candidate := next(source, None)) is not None:
                if _kind(candidate.template, candidate.call) not in busy:
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
        """Where the time of measuring went: wall-clock seconds by what the process in charge did or waited for (`compile`:
        all compilers' seconds together, `pool`: the seconds that they had), and counts."""
        seconds = {f"{name}_s": seconds for name, seconds in self.clock.seconds.items()}
        return {**seconds, "pool_s": (self.pool.workers if self.pool else 0) * self._measuring, **self.counts}

    def unfinished(self, candidate: Candidate) -> bool:
        """Whether a measured candidate has schedules that are worth measuring, as one has whose search was cut."""
        if candidate.is_view or candidate.template.space is None:
            return False
        search = self._search(candidate.template, candidate.call)
        return search is not None and bool(search.known) and bool(search.more())

    def _calibrate_once(self) -> None:
        """Calibrate where the store knows no limits of this device."""
        predictor, looked = getattr(self.sink, "predictor", None), self._calibrated
        self._calibrated = True
        if predictor is not None and self.device == "cuda" and not looked:
            if gpu_machine().device not in predictor("cold").rooflines.measured():
                self.calibrate(CALIBRATE_S)

    def time(self, template: Template, call: Call) -> Timing | Failure:
        """One measurement of a call in the schedule that it names, not stored."""
        kernel = Measured(template, call)
        self._under_way = [kernel]
        self._submit(kernel, [call])
        while kernel.pending:
            self._step(None)
        self._finish(kernel)
        (only,) = kernel.tries
        if only.failure is not None:
            return only.failure
        return Timing(tuple(only.cold), only.accuracy or {})

    def calibrate(self, seconds: float = 4.0) -> list[Row]:
        """Measure what bounds every kernel here, and store it; the rows. WorkerError where the device gives none."""
        reply = self._ask({"job": "calibrate", "seconds": seconds}, START_S)
        if not reply["ok"]:
            raise WorkerError(f"the GPU cannot be calibrated: {reply['message']}", where=reply["status"])
        rows: list[Row] = [row for probe in reply["probes"] for row in calibration_rows(probe)]
        self.sink.add(rows)
        return rows

    def close(self) -> None:
        """End all processes."""
        self._writer.shutdown(wait=False, cancel_futures=True)
        for worker in (self.worker, self._spare):
            if worker is not None:
                worker.close()
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
        search = search_of(template, call, self.schedules, getattr(self.sink, "snapshot", None))
        known = self._alike.get(_kind(template, call), {})
        if search is not None and search.fits is not None and known:
            best = (dict(key) for key in sorted(known, key=lambda key: (known[key], key)))
            search.like = list(islice(filter(search.fits, best), ALIKE))
            if len(known) >= self.schedules:
                search.count = min(search.count, AGAIN)
        return search

    def _submit(self, kernel: Measured, calls: Sequence[Call]) -> None:
        """Write and compile calls of a kernel; each is in the queue when it is ready to be judged."""
        for call in calls:
            one = Try(call)
            kernel.tries.append(one)
            kernel.pending += 1
            self._writer.submit(self._write, kernel, one)

    def _write(self, kernel: Measured, one: Try) -> None:
        try:
            one.text = kernel_text(kernel.template, one.call)
            if self.pool is not None and one.text.generated:
                one.compiled = self.pool.submit(one.text, one.call)
        except Exception as error:  # an emitter's fault, or a schedule it cannot write: that schedule's failure
            one.failure = Failure("emit-error", f"{type(error).__name__}: {error}"[:400], "emit")
        if one.compiled is None:
            self._ready.put((kernel, one))
        else:
            one.compiled.add_done_callback(lambda _: self._ready.put((kernel, one)))

    def _step(self, worth: Worth | None) -> Measured:
        """Judge and try what is ready, of the kernel that the device has open if possible; ask its search for more when that was
        the last. The kernel."""
        kernel, one = self._next()
        if kernel.broken >= GIVE_UP:
            one.failure = _given_up(kernel)
        elif kernel.judge(one):
            self._try(kernel, one)
        kernel.pending -= 1
        if kernel.pending == 0:
            with self.clock.running("choose"):
                wanted = self._wanted(kernel, kernel.search, worth) if kernel.search is not None else []
            if not wanted and (spilled := kernel.least_spilling()) is not None:
                self._try(kernel, spilled)
            self._submit(kernel, [replace(kernel.call, schedule=s) for s in wanted])
        return kernel

    def _next(self) -> tuple[Measured, Try]:
        if self._ended is not None and self._ended():
            raise _Ended
        with contextlib.suppress(queue.Empty):
            while True:
                self._noted(self._ready.get_nowait())
        while not self._waiting:
            with self.clock.running("wait"):
                self._noted(self._awaited())
        for i, (kernel, _) in enumerate(self._waiting):
            if kernel.number in self._opened:
                self._waiting.rotate(-i)
                break
        return self._waiting.popleft()

    def _noted(self, ready: tuple[Measured, Try]) -> None:
        if ready[0] in self._under_way:
            self._waiting.append(ready)

    def _awaited(self) -> tuple[Measured, Try]:
        until = time.monotonic() + START_S + COMPILE_S
        while time.monotonic() < until:
            if self._ended is not None and self._ended():
                raise _Ended
            with contextlib.suppress(queue.Empty):
                return self._ready.get(timeout=POLL_S)
        raise WorkerError(f"nothing was compiled within {START_S + COMPILE_S:g} s")

    def _wanted(self, kernel: Measured, search: ScheduleSearch, worth: Worth | None) -> list[Schedule]:
        """The schedules that a kernel's search proposes after all under way were judged; where the kernel is given up, those not
        tried fail with it."""
        for one in kernel.tries:
            us, key = (one.twin or one).us, key_of_schedule(one.call.schedule)
            search.told(one.call.schedule, us)
            if us < math.inf:
                known = self._alike.setdefault(_kind(kernel.template, kernel.call), {})
                known[key] = min(us, known.get(key, us))
        if kernel.broken >= GIVE_UP:
            rest = [s for s in search.ranked if key_of_schedule(s) not in search.known]
            kernel.tries += [Try(replace(kernel.call, schedule=dict(s)), failure=_given_up(kernel)) for s in rest]
            return []
        useful = worth(kernel.candidate) if worth is not None and kernel.candidate is not None else math.inf
        return search.more(useful, look=kernel.look)

    def _finish(self, kernel: Measured, worth: Worth | None = None) -> None:
        """Measure the best schedules in full, unless the kernel is of no use; twins take what their first has."""
        alive = {i: t for i, t in enumerate(kernel.tries) if t.twin is None and t.us < math.inf}
        right = sorted(alive, key=lambda i: alive[i].us)
        if right and worth is not None and kernel.candidate is not None:
            with self.clock.running("choose"):
                useful = worth(kernel.candidate)
            if not 0 < alive[right[0]].us <= CLOSE * useful:
                right = []
        for i in right[: 1 if kernel.look else BEST]:
            one = alive[i]
            if one.us > CLOSE * alive[right[0]].us:
                break
            with self.clock.running("time"):
                reply = self._in_context(kernel, {"job": "time", "index": i}, one.text)
            if not _failed(one, reply):
                one.accuracy, one.cold, one.hot = reply["accuracy"], reply["cold"], reply["hot"]
                one.clock_mhz = reply["clock_mhz"]
        self._close_kernel(kernel)
        for one in kernel.tries:
            if one.twin is not None:
                one.failure, one.accuracy, one.cold, one.hot = (
                    one.twin.failure, one.twin.accuracy, one.twin.cold, one.twin.hot,
                )  # fmt: skip

    def _close_kernel(self, kernel: Measured) -> None:
        if self._opened.pop(kernel.number, None) is not None and self.worker.alive:
            with self.clock.running("close"):
                self._ask({"job": "close", "kernel": kernel.number})

    def _try(self, kernel: Measured, one: Try) -> None:
        """Run one schedule: is it right, and how fast about?"""
        assert one.text is not None
        job = {"job": "try", "index": kernel.tries.index(one), "text": one.text.to_json()}
        with self.clock.running("try"):
            reply = self._in_context(kernel, job)
        if not _failed(one, reply):
            one.accuracy, one.cold = reply["accuracy"], reply["cold"]
        elif one.failure is not None and one.failure.status in ("fault", "crash", "timeout"):
            kernel.broken += 1

    def _in_context(self, kernel: Measured, job: Reply, text: KernelText | None = None) -> Reply:
        """The reply to a job about a kernel. A process that has started since knows neither the kernel nor what was tried: both
        are told again."""
        if not self.worker.alive:
            self._opened.clear()
        if kernel.number not in self._opened:
            opening = {"job": "open", "kernel": kernel.number, "pattern": kernel.template.pattern}
            with self.clock.running("open"):
                opened = self._ask({**opening, "call": call_json(kernel.call)}, START_S)
            if opened.get("fatal"):  # nothing of the kernel has run yet
                raise WorkerError(f"the GPU cannot be used: {opened['message']}")
            if not opened["ok"]:
                return opened
            self._opened[kernel.number] = set()
        tried = self._opened[kernel.number]
        if text is not None and job["index"] not in tried:
            again = self._ask({"job": "try", "kernel": kernel.number, "index": job["index"], "text": text.to_json()})
            if not again["ok"]:
                return again
        reply = self._ask({**job, "kernel": kernel.number})
        if reply["ok"]:
            tried.add(job["index"])
        return reply

    def _ask(self, job: Reply, timeout: float | None = None) -> Reply:
        self.worker.ended = self._ended
        reply = self.worker.ask(job, timeout or (self.timeout if self.worker.alive else START_S))
        if reply.get("fatal"):
            with contextlib.suppress(OSError):
                self.worker.close()
        if not self.worker.alive and self._spare is not None:  # the next one has started already
            self.worker, self._spare = self._spare, self._another()
            self._opened.clear()
        return reply


def schedules_of(template: Template, call: Call, most: int = SCHEDULES) -> list[Call]:
    """The calls of the best guesses: one per schedule, or the one that the call names already."""
    if template.space is None or call.schedule:
        return [call]
    return [replace(call, schedule=dict(s)) for s in list(template.space(call))[:most]] or [call]


def search_of(
    template: Template, call: Call, most: int = SCHEDULES, snapshot: Snapshot | None = None
) -> ScheduleSearch | None:
    """The search of a kernel's schedules with what a store knows of it; None where there is nothing to choose."""
    ranked = [] if template.space is None or call.schedule else [dict(s) for s in template.space(call)]
    if not ranked:
        return None
    fits = None if template.fits is None else lambda s: template.fits(replace(call, schedule=s))  # type: ignore[misc]
    if snapshot is None:
        return ScheduleSearch(ranked[:most], fits, count=most)
    key = key_of(template, call)
    near = tuned.nearest(snapshot, key, Work(*call_work(template, call)), REGIME)
    legal = [s for s in near if fits is not None and fits(s)]
    known = dict(_known(snapshot, key, [*ranked[:most], *tuned.tried(snapshot, key)]))
    return ScheduleSearch(ranked[:most], fits, [] if known else legal, most, known)


def _kind(template: Template, call: Call) -> Hashable:
    """What a kernel has in common with those whose schedules are good guesses for it (generated.py); else itself."""
    alike = getattr(template, "alike", None)
    return alike(call) if alike is not None else (template.identity, id(call))


def _known(snapshot: Snapshot, key: KernelKey, schedules: Iterable[Mapping[str, int]]) -> Iterator[tuple[Key, float]]:
    """What was measured of schedules, or failed."""
    for schedule in schedules:
        digest = key.with_schedule(schedule).digest
        measured = snapshot.measurement(digest, REGIME)
        if measured is not None:
            yield key_of_schedule(schedule), measured.us
        elif snapshot.has(digest, "failure"):
            yield key_of_schedule(schedule), math.inf


def _given_up(kernel: Measured) -> Failure:
    return Failure("not-tried", f"{kernel.broken} other schedules ended the process", "try")


def _failed(one: Try, reply: Reply) -> bool:
    if reply["ok"]:
        return False
    one.failure = Failure(reply["status"], reply["message"], reply.get("stage", ""))
    return True


# ---------------------------------------------------------------- rows
def rows_of(kernel: Measured) -> list[Row]:
    """Timing (cold, and hot where taken), accuracy and failure rows of a kernel's schedules."""
    rows: list[Row] = []
    for one in kernel.tries:
        common: dict[str, Any] = {"key": key_of(kernel.template, one.call), "work": kernel.work}
        if one.failure is not None:
            failure = one.failure
            if failure.status == CUT:
                continue
            rows.append(FailureRow(status=failure.status, stage=failure.stage, message=failure.message, **common))
            continue
        for regime, samples in (("cold", one.cold), ("hot", one.hot)):
            if samples:
                rows.append(TimingRow(samples=samples, regime=regime, clock_mhz=one.clock_mhz, **common))
        norms: dict[str, Any] = dict(one.accuracy or {"rel_fro": 0.0})
        rows.append(Accuracy(**norms, **common))
    return rows


CALIBRATION_VERSION = "1"


def calibration_rows(probe: Mapping[str, Any]) -> list[Row]:
    """The rows of one probe: limits hold in every regime."""
    machine = gpu_machine()
    key = KernelKey(
        kernel=f"{CALIBRATION}/{probe['name']}", name=probe["name"], family=CALIBRATION, backend="cuda",
        emitter=CALIBRATION_VERSION, source=source_hash(f"{probe['name']}-{probe['flops']}-{probe['bytes']}", "text"),
        dtypes=(probe["dtype"],), device=machine.device, driver=machine.driver, toolchain=machine.toolchain,
    )  # fmt: skip
    work = Work(probe["flops"], probe["bytes"])
    return [TimingRow(key=key, work=work, samples=probe["samples"], regime=regime) for regime in REGIMES]
