"""Timing kernels on the CPU, safely: a warm child process that may crash or hang at the cost of one candidate."""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Protocol

import numpy as np

from .. import settings
from ..costdb.device import cores
from ..costdb.key import Work
from ..costdb.schema import Accuracy, Row
from ..costdb.schema import Failure as FailureRow
from ..costdb.schema import Timing as TimingRow
from ..egraph.forks import adopted
from ..errors import WorkerError
from ..extract.kernel import Call, Candidate, Template
from ..extract.work import call_work
from .gpu import keep_compiled
from .keys import key_of
from .measure_worker import encode


@dataclass(frozen=True)
class Timing:
    """What a kernel takes: samples in µs, their median, and its error norms."""

    samples_us: tuple[float, ...]
    accuracy: dict[str, float]
    reference: str = "float64"

    @property
    def median(self) -> float:
        """µs."""
        return float(np.median(self.samples_us))


@dataclass(frozen=True)
class Failure:
    """Why there is no time: `status` is wrong, error, memory, crash, timeout or cut."""

    status: str
    message: str
    stage: str = ""


CUT = "cut"  # the status of what was not waited for: no failure of its own, and none is stored
GRACE_S, POLL_S = 1.0, 0.1  # seconds that a kernel under way is given when the time is up; between looks at the clock
WAIT_S = 180.0  # most seconds that a child waits for others
SHORT = 80  # characters of a line that says so, at most


class _Cut(Exception):
    """Nobody needs the reply any more."""


class Sink(Protocol):
    """Where rows go (costdb's Store)."""

    def add(self, rows: Iterable[Row]) -> object:
        """Keep the rows."""
        ...


class Worker:
    """The child process; started when first needed, and again after it died."""

    def __init__(
        self, module: str = "tensor_graphs.backends.measure_worker", timeout: float = 30.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.module, self.timeout, self.environment = module, timeout, dict(environment or {})
        self.ended: Callable[[], bool] | None = (
            None  # asked while a reply is waited for: whether nobody needs it any more
        )
        self._process: subprocess.Popen[str] | None = None
        self._replies: queue.Queue[str | None] = queue.Queue()
        self._count = 0

    def ask(self, job: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """The reply to a job; a dead or silent child is a reply too (status crash, timeout). `timeout` in seconds, if
        this job is to have another than the others."""
        timeout = self.timeout if timeout is None else timeout
        process = self._started()
        self._count += 1
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"id": self._count, **job}) + "\n")
            process.stdin.flush()
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

    def _reply(self, timeout: float) -> str | None:
        """The next line that is a reply; queue.Empty after `timeout` seconds, not counting those in which the child waits for others;
        _Cut when nobody has needed it for GRACE_S."""
        until, cut = time.monotonic() + timeout, math.inf
        while True:
            now = time.monotonic()
            if self.ended is not None and self.ended():
                cut = min(cut, now + GRACE_S)
            if now >= cut:
                raise _Cut
            try:
                line = self._replies.get(timeout=max(0.0, min(until - now, POLL_S)))
            except queue.Empty:
                if time.monotonic() >= until:
                    raise
                continue
            if line is None or (waits := _waits(line)) is None:
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
        return {"ok": False, "status": "crash", "message": f"the measuring process ended with code {code}"}

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._process = started(self.module, self.environment)
        self._replies = queue.Queue()
        assert self._process.stdout is not None
        threading.Thread(target=_listen, args=(self._process.stdout, self._replies), daemon=True).start()
        return self._process

    @property
    def alive(self) -> bool:
        """Whether the child runs: the next job need not wait for it to start."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Let the child start while there are other things to do; `ask` would do it too."""
        self._started()

    def close(self) -> None:
        """End the child, with whatever it is doing."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()


def started(
    module: str, environment: Mapping[str, str] | None = None, arguments: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """A child that runs a module of this package, spoken to in lines; WorkerError if it cannot be started."""
    keep_compiled()
    path = os.pathsep.join(p for p in sys.path if p)
    known = {**os.environ, "PYTHONPATH": path, **_thread_environment(), **(environment or {})}
    try:
        return adopted(subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env=known, start_new_session=True,
        ))  # fmt: skip
    except OSError as error:
        raise WorkerError(f"the measuring process cannot be started: {error}") from None


def _listen(pipe: IO[str], replies: queue.Queue[str | None]) -> None:
    with contextlib.suppress(ValueError, OSError):
        for line in pipe:
            replies.put(line)
    replies.put(None)


def _waits(line: str) -> bool | None:
    """What a line says of waiting for others; None where it is a reply."""
    if len(line) > SHORT:
        return None
    try:
        return dict(json.loads(line)).get("waits")
    except (ValueError, TypeError):
        return None


def _thread_environment() -> dict[str, str]:
    """Thread counts as the settings say; and workers of one library that do not spin into the next one's time."""
    threads = settings.current().threads
    quick = {"OPENBLAS_THREAD_TIMEOUT": "12"}  # 2**12 cycles
    if not threads:
        return quick
    names = ("TENSOR_GRAPHS_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {**quick, **dict.fromkeys(names, str(threads))}


def ended_of(worth: object) -> Callable[[], bool] | None:
    """What says that the time for measuring is up, where a search's bounds (`extract.worth.Worth`) know one."""
    return getattr(worth, "ended", None)


class CpuMeasurer:
    """Times candidates in a child process and adds the rows to a sink (a cost store).

    About `seconds` of sampling a candidate (three times that where other processes disturb it); each answer is checked
    against the pattern's meaning in float64 first. `timeout` bounds one candidate in all.
    """

    def __init__(
        self, sink: Sink, *, seconds: float = 0.015, timeout: float = 30.0, worker: Worker | None = None
    ) -> None:
        self.sink, self.seconds = sink, seconds
        self.worker = worker or Worker(timeout=timeout)
        self.threads = settings.current().threads or cores()

    def measure(
        self, candidates: Iterable[Candidate], progress: Callable[[int], None] | None = None,
        worth: Callable[[Candidate], float] | None = None, look: bool = False,
        later: Iterable[tuple[Candidate, bool]] = (), leave: bool = False,
    ) -> Sequence[Candidate]:  # fmt: skip
        """Time each distinct call and store timing, accuracy and failures; returns when the rows are durable. A kernel that is
        still running a second after the time is up is given up, and nothing is stored of it. None is left under way."""
        seen: set[str] = set()
        self.worker.ended = ended_of(worth)
        for done, candidate in enumerate(candidates):
            key = key_of(candidate.template, candidate.call)
            if not candidate.is_view and key.digest not in seen:
                seen.add(key.digest)
                self.sink.add(self._rows(candidate.template, candidate.call))
            if progress is not None:
                progress(done + 1)
        flush = getattr(self.sink, "flush", None)
        if flush is not None and seen:
            flush()
        return ()

    def unfinished(self, candidate: Candidate) -> bool:
        """Never: there is nothing to choose about a kernel here."""
        return False

    def further(self, candidate: Candidate) -> bool:
        """Nor this."""
        return False

    def time(self, template: Template, call: Call) -> Timing | Failure:
        """One measurement, not stored."""
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
            Accuracy(reference=found.reference, **norms, **common),
        ]

    def close(self) -> None:
        """End the child process."""
        self.worker.close()

    def __enter__(self) -> CpuMeasurer:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()
