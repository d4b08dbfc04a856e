"""Starts and drives a device process (gpu_worker.py) from the calling process, and records which kernels it has open.

A thread per process runs its jobs (requests to the device process) in order, so that the caller can plan further jobs.
A process that ended is replaced; kernels and trials are sent again.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ...costdb.keys.device import GPU_KIND
from ...errors import WorkerError
from ...extract.model.clock import Clock
from ...processes.ending import at_end
from ...processes.forks import Lock
from ...processes.memory_limits import limited_environment
from ..generate.kernel_text import KernelText
from .compile_pool import Reply
from .worker_process import CpuWorkerProcess

LOCK = "TENSOR_GRAPHS_GPU_LOCK"  # environment variable with the path of the GPU lock file
START_S = 180.0  # deadline in seconds for starting the process or opening a kernel
# deadline in seconds of a job of a process that has run a kernel before: a kernel that hangs holds the device's lock,
# and a search of half a minute would measure nothing else
HANGS_S = 4.0


class GpuProcess:
    """Worker process on `device` ("cuda", or "cpu" for tests), with the parent's thread that runs its jobs.

    `timeout`: seconds per job, on a GPU at most HANGS_S once the process has run a kernel. `among`: number of device
    processes; if there are several, each holds the GPU lock while it runs a kernel.
    """

    def __init__(self, device: str, timeout: float, worker: CpuWorkerProcess | None = None, among: int = 1) -> None:
        environment = {"TENSOR_GRAPHS_MEASURE_DEVICE": device, **limited_environment(among)}
        environment |= {"TRITON_INTERPRET": "1"} if device == "cpu" else {}
        environment |= {LOCK: os.environ.get(LOCK) or own_lock()} if among > 1 else {}
        self.timeout, self.clock = timeout, Clock()  # time spent by jobs
        self.worker = worker or CpuWorkerProcess("tensor_graphs.backends.tuning.gpu_worker", environment=environment)
        self._hand = ThreadPoolExecutor(1, thread_name_prefix="device")
        self.opened: dict[int, set[int]] = {}  # open kernel -> indices of its trials that the process knows
        self.ended: Callable[[], bool] | None = None  # whether no reply is needed any more
        self.starting = False  # whether the first process is still starting
        self._ran = False  # whether the process has run a kernel: its libraries and compiler are loaded
        self._hangs_s = min(timeout, HANGS_S) if device == GPU_KIND else timeout

    def start(self) -> None:
        """Start the process without waiting for it."""
        if not self.worker.alive:
            began, self.starting = time.monotonic(), True
            self.worker.start()
            self._hand.submit(self._started, began)

    def _started(self, began: float) -> None:
        """Record the start-up time. A failure is reported by the first kernel."""
        try:
            self.ask({"job": "ready"}, START_S)
        finally:
            self.starting = False
        self.clock.spent("start", began, time.monotonic())

    def interrupt(self) -> None:
        """Kill the process during a job; the next job starts another process."""
        self.worker.close()

    def close(self) -> None:
        """Kill the process and drop queued jobs."""
        self.worker.close()
        self._hand.shutdown(wait=False, cancel_futures=True)

    def do(self, work: Callable[[], None]) -> Future[None]:
        """Run `work` in the process's thread after earlier jobs; returns a future that ends with it."""
        return self._hand.submit(work)

    def ask_later(self, job: dict[str, Any], timeout: float) -> Future[Reply]:
        """Queue a job, which may take `timeout` seconds, after earlier ones; returns the future reply."""
        return self._hand.submit(self.ask, job, timeout)

    def attempt(self, opening: Reply, index: int, text: KernelText) -> Reply:
        """Let the process run, check and roughly time one schedule of a kernel; returns its reply.

        `opening`: the message that opens the kernel in the process; `index`: number of the trial; `text`: source of the
        kernel in that schedule.
        """
        with self.clock.running("try"):
            return self._in_context(opening, {"job": "try", "index": index, "text": text.to_json()}, None)

    def measure(self, opening: Reply, index: int, text: KernelText | None) -> Reply:
        """Let the process measure a tried schedule in full (all samples, cold and hot, and another check); returns its
        reply. `opening`: the message that opens the kernel in the process; `index`: number of the trial; `text`: source
        of the kernel in that schedule."""
        with self.clock.running("time"):
            return self._in_context(opening, {"job": "time", "index": index}, text)

    def forget(self, kernel: int) -> None:
        """Close the kernel of this number (`Measured.number`), which frees its memory in the process."""
        if self.opened.pop(kernel, None) is not None and self.worker.alive:
            with self.clock.running("close"):
                self.ask({"job": "close", "kernel": kernel})

    def _in_context(self, opening: Reply, job: Reply, text: KernelText | None) -> Reply:
        kernel = int(opening["kernel"])
        if not self.worker.alive:
            self.opened.clear()
            self._ran = False
        if kernel not in self.opened:
            with self.clock.running("open"):
                opened = self.ask(opening, START_S)
            if opened.get("fatal"):  # before any of the kernel's code has run
                raise WorkerError(f"the GPU cannot be used: {opened['message']}")
            if not opened["ok"]:
                return opened
            self.opened[kernel] = set()
        tried = self.opened[kernel]
        if text is not None and job["index"] not in tried:
            again = self.ask({"job": "try", "kernel": kernel, "index": job["index"], "text": text.to_json()})
            if not again["ok"]:
                return again
        reply = self.ask({**job, "kernel": kernel}, self._hangs_s if self._ran else None)
        if reply["ok"]:
            tried.add(job["index"])
            self._ran = True
        return reply

    def ask(self, job: dict[str, Any], timeout: float | None = None) -> Reply:
        """Send a job to the process and wait; returns its reply, for a failed job with status and message. A reply with
        `fatal` set kills the process.

        `timeout`: seconds for this job, by default that of the process.
        """
        self.worker.ended = self.ended
        reply = self.worker.ask(job, timeout or (self.timeout if self.worker.alive else START_S))
        for step, seconds in reply.get("steps", {}).items():
            self.clock.add(step, seconds)
        if reply.get("fatal"):
            with contextlib.suppress(OSError):
                self.worker.close()
        return reply


_making = Lock()
_own: dict[int, str] = {}  # process id -> path: a forked child needs its own


def own_lock() -> str:
    """Path of the lock file by which this process and its child processes take turns on the GPU; made on the first
    call."""
    owner = os.getpid()
    with _making:
        if owner not in _own:
            file, _own[owner] = tempfile.mkstemp(prefix="tensor-graphs-gpu-", suffix=".lock")
            os.close(file)
            at_end(_removed, _own[owner])
        return _own[owner]


def _removed(path: str) -> None:
    Path(path).unlink(missing_ok=True)
