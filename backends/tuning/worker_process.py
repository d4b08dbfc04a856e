"""Runs a process that measures kernels: jobs and replies as JSON lines, deadlines, a restart after a crash or hang."""

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
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from ... import settings
from ...bytecode import bytecode_environment
from ...errors import WorkerError
from ...processes.forked import ForkedWorker, start_forked
from ...processes.memory_limits import MEMORY_EXIT, limited_environment
from ...processes.spawn import start_line_worker
from ..gpu import keep_compiled
from .measurement import CUT

GRACE_S, POLL_S = 1.0, 0.1  # seconds, at most, that a running kernel gets after time is up; polling interval
WAIT_S = 180.0  # maximum seconds a worker may wait for a lock
SHORT = 80  # maximum length of a worker's message about waiting


WorkerHandle = subprocess.Popen[str] | ForkedWorker


class _Cut(Exception):
    """Raised when a reply is no longer needed."""


class CpuWorkerProcess:
    """A worker process that runs `module`; starts on first use and restarts after it has died.

    `timeout`: seconds for a job (request to the worker). `environment`: further environment variables of the process.
    `prepare`: name of a function of the module that is called before workers are forked (processes/forked.py); "" for a
    module whose workers are processes of their own, as are those of a module whose imports fail.
    """

    def __init__(
        self, module: str = "tensor_graphs.backends.tuning.cpu_worker", timeout: float = 30.0,
        environment: Mapping[str, str] | None = None, prepare: str = "",
    ) -> None:  # fmt: skip
        self.module, self.timeout, self.environment = module, timeout, dict(environment or {})
        self.prepare = prepare
        self.ended: Callable[[], bool] | None = (
            None  # polled while waiting for a reply: whether no reply is needed any more
        )
        self.grace = math.inf  # seconds that a running job gets once `ended`, at most GRACE_S
        self._process: WorkerHandle | None = None
        self._replies: queue.Queue[str | None] = queue.Queue()
        self._reader: threading.Thread | None = None  # puts the worker's lines into `_replies`
        self._count = 0

    def ask(self, job: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """The reply to a job (request to the worker). A dead or silent worker gives a reply with status crash or
        timeout.

        `timeout`: seconds for this job; None means the default.
        """
        timeout = self.timeout if timeout is None else timeout
        process, line = self._started(), None
        try:
            self._send(process, job)
            line = self._reply(timeout)
        except queue.Empty:
            process.poll()
            if not isinstance(process, ForkedWorker) or process.begun:
                self.close()
                return {"ok": False, "status": "timeout", "message": f"no answer within {timeout:g} s"}
            process.server.kill()  # it hangs
        except _Cut:
            self.close()
            return {"ok": False, "status": CUT, "message": "the time was up"}
        except OSError:
            pass
        except BaseException:
            self.close()
            raise
        if line is None and isinstance(process, ForkedWorker) and _is_lost(process):
            self.close()  # imports have failed or hung, no process more is allowed, or something has killed the server:
            self.prepare = ""  # the next attempt tells which, and whether it is the kernel's fault
            return self.ask(job, timeout)
        return self._parsed(line, process)

    def begin(self, job: dict[str, Any]) -> None:
        """Give a running worker a job (request to the worker) whose reply nobody waits for."""
        if self.alive:
            assert self._process is not None
            with contextlib.suppress(OSError):  # it has died; the next job starts another
                self._send(self._process, job)

    def _send(self, process: WorkerHandle, job: dict[str, Any]) -> None:
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

    def _parsed(self, line: str | None, process: WorkerHandle) -> dict[str, Any]:
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

    def _started(self) -> WorkerHandle:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._process = self._forked() or started(self.module, self.environment)
        self._replies = queue.Queue()
        assert self._process.stdout is not None
        try:
            self._reader = threading.Thread(target=_listen, args=(self._process.stdout, self._replies), daemon=True)
            self._reader.start()
        except BaseException:  # also Ctrl-C, before anybody closes this worker
            self.close()
            raise
        return self._process

    def _forked(self) -> ForkedWorker | None:
        if not self.prepare:
            return None
        keep_compiled()
        common = {**bytecode_environment(), **_thread_environment(), **self.environment}
        with contextlib.suppress(OSError):  # a process of its own may start, or names the error
            return start_forked(self.module, self.prepare, common, limited_environment())
        return None

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
        reader, self._reader = self._reader, None
        if process is None:
            return
        if isinstance(process, subprocess.Popen) and process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        if reader is None or reader.ident is None:  # no thread could be started
            process.stdout.close()
        elif not isinstance(process, ForkedWorker) or process.begun:  # else the pipe ends when the server looks at it
            reader.join(GRACE_S)


def started(
    module: str, environment: Mapping[str, str] | None = None, arguments: Sequence[str] = (), count: int = 1
) -> subprocess.Popen[str]:
    """Start a worker process that runs a module of this package, with line-based pipes.

    `environment`: further environment variables. `arguments`: of the command line. The process has the memory limit of
    one of `count` workers. Raises WorkerError if it cannot be started.
    """
    keep_compiled()
    more = {**bytecode_environment(), **_thread_environment(), **limited_environment(count), **(environment or {})}
    try:
        return start_line_worker(module, arguments, environment=more)
    except OSError as error:
        raise WorkerError(f"the measuring process cannot be started: {error}") from None


def _is_lost(process: ForkedWorker) -> bool:
    """Whether a worker that has ended did so because of its server."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    return process.lost


def _listen(pipe: IO[str], replies: queue.Queue[str | None]) -> None:
    """Hand on the lines of a worker, and close the pipe: who closes it while this reads waits for this."""
    with contextlib.suppress(ValueError, OSError), pipe:
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
