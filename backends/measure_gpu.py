"""Timing kernels on a GPU: schedules compile in a pool of processes, and one process with the device checks and times them.

Each candidate is measured in the schedules its template finds worth it, at most `SCHEDULES`. All compile first, side by
side and ahead of the device; what does not fit, spills registers or is the same binary as another is not run. What is left
runs once, is checked against float64, and gives a few samples; the best few are then measured in full.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from ..costdb.device import cores, gpu_facts, gpu_machine
from ..costdb.key import KernelKey, Work
from ..costdb.roofline import CALIBRATION
from ..costdb.schema import REGIMES, Accuracy, Row
from ..costdb.schema import Failure as FailureRow
from ..costdb.schema import Timing as TimingRow
from ..costdb.source import source_hash
from ..errors import WorkerError
from ..extract.kernel import Call, Candidate, Template
from ..extract.work import call_work
from .kernel_text import KernelText, call_json, kernel_text
from .keys import key_of
from .measure import Failure, Sink, Timing, Worker

SCHEDULES = 16  # of one kernel that are compiled
BEST = 3  # of those tried that get the full protocol
HOPELESS = 3.0  # a first time this many times the best one's gets none
AHEAD = 4  # candidates that compile while others are timed
START_S, COMPILE_S, RUN_S = 180.0, 60.0, 15.0  # most seconds for starting a process, one schedule's compiler, one job
CAPABILITY = 90  # compiled for where no GPU is seen

CALIBRATE_S = 1.5
GIVE_UP = 3  # schedules of one kernel that fault, crash or hang before the others are not tried

Reply = dict[str, Any]


@dataclass
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
        """The middle one of the cold samples."""
        return sorted(self.cold)[len(self.cold) // 2]


@dataclass
class Measured:
    """A kernel with all its schedules."""

    template: Template
    call: Call
    tries: list[Try] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.work = Work(*call_work(self.template, self.call))  # here: terms are made in one thread only


class CompilePool:
    """Processes that compile kernel texts, each with a thread that waits for it."""

    def __init__(self, workers: int, capability: int, timeout: float = COMPILE_S) -> None:
        self.capability, self.timeout = capability, timeout
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="compile")
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._all = [Worker("tensor_graphs.backends.compile_worker", environment=_COMPILES) for _ in range(workers)]
        for worker in self._all:
            self._idle.put(worker)

    def submit(self, text: KernelText, call: Call) -> Future[Reply]:
        """The resources of a text, once it is compiled."""
        return self._threads.submit(self._compile, text, call)

    def _compile(self, text: KernelText, call: Call) -> Reply:
        worker = self._idle.get()
        try:
            job = {"text": text.to_json(), "call": call_json(call), "capability": self.capability}
            return worker.ask(job, self.timeout if worker.alive else START_S)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End all processes, with whatever they are doing."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._all:
            worker.close()


_COMPILES = {"TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


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
        self.worker = worker or Worker("tensor_graphs.backends.gpu_worker", environment=environment)
        count = (0 if device == "cpu" else max(1, min(16, cores() - 1))) if workers is None else workers
        capability = int(gpu_facts().get("capability", CAPABILITY)) if device == "cuda" else CAPABILITY
        self.pool = CompilePool(count, capability) if count else None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="emit")  # writes what is next while the device is busy
        self._open: Measured | None = None
        self._known: set[int] = set()

    # ------------------------------------------------------------ the interface of measurers
    def measure(self, candidates: Iterable[Candidate], progress: Callable[[int], None] | None = None) -> None:
        """Time each distinct call in its schedules and store timing, accuracy and failures; returns when the rows are
        durable. Candidates are taken from the iterable a few ahead of the one being timed."""
        self.worker.start()
        self._calibrate_once()
        waiting: list[Future[Measured | None]] = []
        source, seen, done = iter(candidates), set[str](), 0
        while True:
            for candidate in itertools.islice(source, AHEAD - len(waiting)):
                waiting.append(self._writer.submit(self._begun, candidate, seen))
            if not waiting:
                break
            kernel = waiting.pop(0).result()
            if kernel is not None:
                self._finish(kernel)
                self.sink.add(rows_of(kernel))
            done += 1
            if progress is not None:
                progress(done)
        flush = getattr(self.sink, "flush", None)
        if flush is not None and seen:
            flush()

    def _calibrate_once(self) -> None:
        """Calibrate where the store knows no limits of this device."""
        predictor = getattr(self.sink, "predictor", None)
        if predictor is not None and self.device == "cuda":
            if gpu_machine().device not in predictor("cold").rooflines.measured():
                self.calibrate(CALIBRATE_S)

    def time(self, template: Template, call: Call) -> Timing | Failure:
        """One measurement of a call in the schedule that it names, not stored."""
        kernel = self._submitted(Measured(template, call, [Try(call)]))
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
        self.worker.close()
        if self.pool is not None:
            self.pool.close()

    def __enter__(self) -> GpuMeasurer:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    # ------------------------------------------------------------ one kernel
    def _begun(self, candidate: Candidate, seen: set[str]) -> Measured | None:
        """The candidate's kernel with its schedules compiling; None for views and kernels that were here before."""
        template, call = candidate.template, candidate.call
        digest = key_of(template, call).digest
        if candidate.is_view or digest in seen:
            return None
        seen.add(digest)
        return self._submitted(Measured(template, call, [Try(c) for c in schedules_of(template, call, self.schedules)]))

    def _submitted(self, kernel: Measured) -> Measured:
        for one in kernel.tries:
            try:
                one.text = kernel_text(kernel.template, one.call)
            except Exception as error:  # an emitter's fault, or a schedule it cannot write: that schedule's failure
                one.failure = Failure("emit-error", f"{type(error).__name__}: {error}"[:400], "emit")
                continue
            if self.pool is not None and one.text.generated:
                one.compiled = self.pool.submit(one.text, one.call)
        return kernel

    def _finish(self, kernel: Measured) -> None:
        judge(kernel.tries)
        alive = {i: t for i, t in enumerate(kernel.tries) if t.failure is None and t.twin is None}
        if alive:
            self._tried(kernel, alive)
        for one in kernel.tries:
            if one.twin is not None:
                one.failure, one.accuracy, one.cold, one.hot = (
                    one.twin.failure, one.twin.accuracy, one.twin.cold, one.twin.hot,
                )  # fmt: skip

    def _tried(self, kernel: Measured, alive: Mapping[int, Try]) -> None:
        """Try all schedules, then measure the best few of them in full."""
        best, broken = float("inf"), 0
        for i, one in alive.items():
            assert one.text is not None
            if broken >= GIVE_UP:
                one.failure = Failure("not-tried", f"{broken} other schedules ended the process", "try")
                continue
            reply = self._in_context(kernel, {"job": "try", "index": i, "text": one.text.to_json()})
            if not _failed(one, reply):
                one.accuracy, one.cold = reply["accuracy"], reply["cold"]
                best = min(best, one.us)
            elif one.failure is not None and one.failure.status in ("fault", "crash", "timeout"):
                broken += 1
        right = sorted((i for i, t in alive.items() if t.failure is None), key=lambda i: alive[i].us)
        for i in right[:BEST]:
            one = alive[i]
            if one.us > HOPELESS * best:
                break
            reply = self._in_context(kernel, {"job": "time", "index": i}, one.text)
            if not _failed(one, reply):
                one.accuracy, one.cold, one.hot = reply["accuracy"], reply["cold"], reply["hot"]
                one.clock_mhz = reply["clock_mhz"]

    def _in_context(self, kernel: Measured, job: Reply, text: KernelText | None = None) -> Reply:
        """The reply to a job about an open kernel. A process that has started since knows neither the kernel nor what was
        tried: both are told again."""
        if self._open is not kernel or not self.worker.alive:
            opened = self._ask(
                {"job": "open", "pattern": kernel.template.pattern, "call": call_json(kernel.call)}, START_S
            )
            if opened.get("fatal"):  # nothing of the kernel has run yet
                raise WorkerError(f"the GPU cannot be used: {opened['message']}")
            if not opened["ok"]:
                return opened
            self._open, self._known = kernel, set()
        if text is not None and job["index"] not in self._known:
            again = self._ask({"job": "try", "index": job["index"], "text": text.to_json()})
            if not again["ok"]:
                return again
        reply = self._ask(job)
        if reply["ok"]:
            self._known.add(job["index"])
        return reply

    def _ask(self, job: Reply, timeout: float | None = None) -> Reply:
        reply = self.worker.ask(job, timeout or (self.timeout if self.worker.alive else START_S))
        if reply.get("fatal"):
            with contextlib.suppress(OSError):
                self.worker.close()
        return reply


def schedules_of(template: Template, call: Call, most: int = SCHEDULES) -> list[Call]:
    """The calls to measure: one per schedule worth it, or the one that the call names already."""
    if template.space is None or call.schedule:
        return [call]
    return [replace(call, schedule=dict(s)) for s in list(template.space(call))[:most]] or [call]


def judge(tries: Sequence[Try]) -> None:
    """Wait for the compiler; note what failed, does not fit, is another's twin, or spills where others do not."""
    first: dict[str, Try] = {}
    spilling: list[tuple[int, Try]] = []
    for one in tries:
        if one.compiled is None or one.failure is not None:
            continue
        reply = one.compiled.result()
        if _failed(one, reply):
            continue
        if not reply["fits"]:
            one.failure = Failure("resources", f"{reply['shared']} bytes of shared memory", "compile")
        elif reply["digest"] in first:
            one.twin = first[reply["digest"]]
        else:
            first[reply["digest"]] = one
            if reply["spills"]:
                spilling.append((reply["spills"], one))
    clean = [t for t in tries if t.failure is None and t.twin is None and all(t is not s for _, s in spilling)]
    spilling.sort(key=lambda pair: pair[0])
    for spills, one in spilling if clean else spilling[1:]:
        one.failure = Failure("spills", f"{spills} bytes of registers spill per thread", "compile")


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
