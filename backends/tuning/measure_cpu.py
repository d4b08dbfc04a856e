"""Measures kernels on the CPU in a worker process that is kept between candidates; a crash or hang costs only one
candidate.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Protocol

import numpy as np

from ... import settings
from ...costdb.keys.device import cores
from ...costdb.keys.key import Work
from ...costdb.store.schema import AccuracyRow, FailureRow, Row, TimingRow
from ...costdb.store.snapshot import Snapshot
from ...errors import WorkerError
from ...extract.model.clock import Clock
from ...extract.model.kernel import Call, Candidate, Template
from ...extract.model.work import call_work
from ...processes.memory_limits import MEMORY_EXIT, limited_environment
from ...processes.spawn import start_line_worker
from ..gpu import keep_compiled
from .cpu_worker import PRELOAD, encode
from .keys import key_of


@dataclass(frozen=True)
class Timing:
    """Result of measuring a kernel: samples in µs, error norms (`result_check.accuracy`), and the reference's
    precision."""

    samples_us: tuple[float, ...]
    accuracy: dict[str, float]
    reference: str = "float64"

    @property
    def median(self) -> float:
        """Median of the samples in µs."""
        return float(np.median(self.samples_us))


@dataclass(frozen=True)
class Failure:
    """Reason for a missing measurement: `status` is wrong, error, memory, crash, timeout or cut (the time was up; never
    stored); on a GPU also emit-error, resources or spills. `message`: the error's text. `stage`: the step that failed,
    such as compile."""

    status: str
    message: str
    stage: str = ""


CUT = "cut"  # status of a measurement that was cut off when time was up: not the kernel's failure, never stored
GRACE_S, POLL_S = 1.0, 0.1  # seconds, at most, that a running kernel gets after time is up; polling interval
WAIT_S = 180.0  # maximum seconds a worker may wait for a lock
SHORT = 80  # maximum length of a worker's message about waiting


class _Cut(Exception):
    """Raised when a reply is no longer needed."""


class Sink(Protocol):
    """Protocol of destinations of measured rows, such as the cost store. Default implementations: `SinkBase`."""

    def add(self, rows: Iterable[Row]) -> object:
        """Add rows; they may reach the disk only with `flush`."""
        ...

    def flush(self) -> object:
        """Write all added rows to the disk."""
        ...

    @property
    def snapshot(self) -> Snapshot | None:
        """Earlier measurements, which schedule searches continue from; None if there are none."""
        ...

    def calibrated(self, device: str) -> bool:
        """Whether the limits of a device (bandwidths, peak rates, launch gap) are known, or need not be measured."""
        ...


class SinkBase:
    """Defaults of `Sink`: no earlier rows, nothing to flush, no calibration."""

    snapshot: Snapshot | None = None

    def flush(self) -> object:
        """Write all added rows to the disk (`Sink.flush`): nothing to do by default, since added rows are
        not buffered."""
        return None

    def calibrated(self, device: str) -> bool:
        """Whether the limits of a device need not be measured (`Sink.calibrated`): always by default."""
        return True


class CpuWorkerProcess:
    """A worker process that runs `module`; starts on first use and restarts after it has died.

    `timeout`: seconds for a job (request to the worker). `environment`: further environment variables of the process.
    """

    def __init__(
        self, module: str = "tensor_graphs.backends.tuning.cpu_worker", timeout: float = 30.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.module, self.timeout, self.environment = module, timeout, dict(environment or {})
        self.ended: Callable[[], bool] | None = (
            None  # polled while waiting for a reply: whether no reply is needed any more
        )
        self.grace = math.inf  # seconds that a running job gets once `ended`, at most GRACE_S
        self._process: subprocess.Popen[str] | None = None
        self._replies: queue.Queue[str | None] = queue.Queue()
        self._count = 0

    def ask(self, job: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """The reply to a job (request to the worker). A dead or silent worker gives a reply with status crash or
        timeout.

        `timeout`: seconds for this job; None means the default.
        """
        timeout = self.timeout if timeout is None else timeout
        process = self._started()
        try:
            self._send(process, job)
            line = self._reply(timeout)
        except queue.Empty:
            self.close()
            return {"ok": False, "status": "timeout", "message": f"no answer within {timeout:g} s"}
        except _Cut:
            self.close()
            return {"ok": False, "status": CUT, "message": "the time was up"}
        except OSError:
            line = None
        except BaseException:
            self.close()
            raise
        return self._parsed(line, process)

    def begin(self, job: dict[str, Any]) -> None:
        """Give a running worker a job (request to the worker) whose reply nobody waits for."""
        if self.alive:
            assert self._process is not None
            with contextlib.suppress(OSError):  # it has died; the next job starts another
                self._send(self._process, job)

    def _send(self, process: subprocess.Popen[str], job: dict[str, Any]) -> None:
        self._count += 1
        assert process.stdin is not None
        process.stdin.write(json.dumps({"id": self._count, **job}) + "\n")
        process.stdin.flush()

    def _reply(self, timeout: float) -> str | None:
        """The next line that is a reply to the last job; None if the worker ended.

        Raises queue.Empty after `timeout` seconds, not counting time in which the worker waits for a lock, and
        _Cut once measuring time has been up for `grace`, at most GRACE_S.
        """
        until, cut = time.monotonic() + timeout, math.inf
        while True:
            now = time.monotonic()
            if self.ended is not None and self.ended():
                cut = min(cut, now + min(GRACE_S, self.grace))
            if now >= cut:
                raise _Cut
            try:
                line = self._replies.get(timeout=max(0.0, min(until - now, POLL_S)))
            except queue.Empty:
                if time.monotonic() >= until:
                    raise
                continue
            if line is None or (waits := _waits(line)) is None:
                if line is not None and _number(line) < self._count:
                    continue  # of a job that nobody waits for
                return line
            until = time.monotonic() + (WAIT_S if waits else timeout)

    def _parsed(self, line: str | None, process: subprocess.Popen[str]) -> dict[str, Any]:
        try:
            reply = json.loads(line or "")
            if reply["id"] == self._count:
                return dict(reply)
        except (ValueError, KeyError, TypeError):
            pass
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        code = process.poll()
        self.close()
        if code == MEMORY_EXIT:
            return {"ok": False, "status": "memory", "message": "the measuring process exceeded its memory limit"}
        return {"ok": False, "status": "crash", "message": f"the measuring process ended with code {code}"}

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._process = started(self.module, self.environment)
        self._replies = queue.Queue()
        assert self._process.stdout is not None
        try:
            threading.Thread(target=_listen, args=(self._process.stdout, self._replies), daemon=True).start()
        except BaseException:  # also Ctrl-C, before anybody closes this worker
            self.close()
            raise
        return self._process

    @property
    def alive(self) -> bool:
        """Whether the worker runs, so that the next job (request to the worker) does not wait for its start."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the worker without waiting for it; `ask` does this on demand."""
        self._started()

    def close(self) -> None:
        """Kill the worker, and a compiler that it has started; they are a session of their own."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()


def started(
    module: str, environment: Mapping[str, str] | None = None, arguments: Sequence[str] = (), count: int = 1
) -> subprocess.Popen[str]:
    """Start a worker process that runs a module of this package, with line-based pipes.

    `environment`: further environment variables. `arguments`: of the command line. The process has the memory limit of
    one of `count` workers. Raises WorkerError if it cannot be started.
    """
    keep_compiled()
    more = {**_thread_environment(), **limited_environment(count), **(environment or {})}
    try:
        return start_line_worker(module, arguments, environment=more)
    except OSError as error:
        raise WorkerError(f"the measuring process cannot be started: {error}") from None


def _listen(pipe: IO[str], replies: queue.Queue[str | None]) -> None:
    with contextlib.suppress(ValueError, OSError):
        for line in pipe:
            replies.put(line)
    replies.put(None)


def _waits(line: str) -> bool | None:
    """True or False if the line says that the worker waits, or no longer waits, for a lock; None if it is a reply."""
    if len(line) > SHORT:
        return None
    try:
        return dict(json.loads(line)).get("waits")
    except (ValueError, TypeError):
        return None


def _number(line: str) -> float:
    """Number of the job that a line replies to; infinite if the line is no reply."""
    try:
        return int(json.loads(line)["id"])
    except (ValueError, TypeError, KeyError):
        return math.inf


def _thread_environment() -> dict[str, str]:
    """Environment of workers: thread counts from the settings, and OpenBLAS workers that stop spinning early, so that
    they do not disturb the next library."""
    threads = settings.current().threads
    quick = {"OPENBLAS_THREAD_TIMEOUT": "12"}  # 2**12 cycles
    if not threads:
        return quick
    names = ("TENSOR_GRAPHS_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {**quick, **dict.fromkeys(names, str(threads))}


def ended_of(worth: object) -> Callable[[], bool] | None:
    """The member `ended` of a cost cutoff `worth` (`extract.search.cutoff.CostCutoff`), which tells whether the time
    for measuring is over; None if `worth` has no such member.
    """
    return getattr(worth, "ended", None)


class CpuMeasurer:
    """Measures candidates in a worker process and adds the rows to a sink (a cost store). Implements the protocol
    `Measurer`.

    `seconds`: sampling time per candidate (up to four times that if other processes disturb it). Results are first
    checked against a float64 reference. `timeout`: seconds per candidate in total. `preload`: library that the worker
    imports when it starts. `grace`: seconds that a kernel which runs when time is up gets. `spent` and `clocks` are
    empty: nothing is counted on a CPU.
    """

    ahead = False
    keeps = False  # no measurement stays in flight
    ready = True  # the worker starts fast
    spent: Mapping[str, float] = {}
    clocks: list[tuple[str, Clock]] = []

    def __init__(
        self, sink: Sink, *, seconds: float = 0.015, timeout: float = 30.0, worker: CpuWorkerProcess | None = None,
        preload: str = "", grace: float = GRACE_S,
    ) -> None:  # fmt: skip
        self.sink, self.seconds = sink, seconds
        self.worker = worker or CpuWorkerProcess(timeout=timeout, environment={PRELOAD: preload} if preload else None)
        self.worker.grace = grace
        self.threads = settings.current().threads or cores()

    def measure(
        self, candidates: Iterable[Candidate], progress: Callable[[int], None] | None = None,
        worth: Callable[[Candidate], float] | None = None, look: bool = False,
        later: Iterable[tuple[Candidate, bool]] = (), leave: bool = False,
    ) -> Sequence[Candidate]:  # fmt: skip
        """Measure each distinct call and store timing, accuracy and failures; returns when the rows are on disk.

        `progress` is called with the number of finished candidates. `worth`: cost cutoff of a candidate in µs, above
        which it is not measured further. The other parameters are those of `Measurer.measure`. A kernel that still runs
        `grace` (at most `GRACE_S`) after time is up is abandoned without a row. Always returns (), because no
        measurement stays in flight.
        """
        seen: set[str] = set()
        self.worker.ended = ended_of(worth)
        for done, candidate in enumerate(candidates):
            key = key_of(candidate.template, candidate.call)
            if not candidate.is_view and key.digest not in seen:
                seen.add(key.digest)
                self.sink.add(self._rows(candidate.template, candidate.call))
            if progress is not None:
                progress(done + 1)
        if seen:
            self.sink.flush()
        return ()

    def unfinished(self, candidate: Candidate) -> bool:
        """Whether `candidate` has untried schedules that are worth measuring (`Measurer.unfinished`): never, since CPU
        kernels have no schedules."""
        return False

    def further(self, candidate: Candidate) -> bool:
        """Whether the schedule search of `candidate` may continue with more schedules (`Measurer.further`): never,
        since CPU kernels have no schedules."""
        return False

    def time(self, template: Template, call: Call) -> Timing | Failure:
        """Measure one call and return the result without storing it."""
        reply = self.worker.ask({**encode(template, call), "seconds": self.seconds})
        if not reply["ok"]:
            return Failure(reply["status"], reply["message"], reply.get("stage", ""))
        return Timing(tuple(reply["samples"]), reply["accuracy"], reply["reference"])

    def _rows(self, template: Template, call: Call) -> list[Row]:
        found = self.time(template, call)
        common: dict[str, Any] = {
            "key": key_of(template, call),
            "work": Work(*call_work(template, call)),
            "threads": self.threads,
        }
        if isinstance(found, Failure):
            if found.status == CUT:
                return []
            return [FailureRow(status=found.status, stage=found.stage, message=found.message, **common)]
        norms: dict[str, Any] = {k: v for k, v in found.accuracy.items() if np.isfinite(v) or k != "rel_fro"}
        return [
            TimingRow(samples=found.samples_us, **common),
            AccuracyRow(reference=found.reference, **norms, **common),
        ]

    def start(self) -> None:
        """Start the worker without waiting for it.

        Importing its libraries takes as long as a measurement of many kernels.
        """
        self.worker.start()

    def compile(self, wanted: Iterable[tuple[Template, Call]], seconds: float = 0.0) -> bool:
        """Compile kernels before they are needed (`Measurer.compile`): a running worker does so without being waited
        for, in the time until its first measurement."""
        for template, call in wanted:
            self.worker.begin({**encode(template, call), "compile": True})
        return True

    def pause(self) -> None:
        """End the worker process; the next measurement starts another."""
        self.worker.close()

    def rest(self) -> None:
        """End the measurements in flight (`Measurer.rest`): there are none between calls, so this only ends the worker
        process."""
        self.pause()

    def close(self) -> None:
        """End the worker process."""
        self.worker.close()

    def __enter__(self) -> CpuMeasurer:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()
