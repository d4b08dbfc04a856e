"""A process with the device, and which kernels it has open: the near side of gpu_worker.py.

Jobs are done one after the other by a thread of its own, so that whoever hands them out has the time to think about the next
ones. A process that ended is followed by another, which knows neither kernels nor what was tried of them: both are told again.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..egraph.forks import Lock
from ..errors import WorkerError
from ..extract.clock import Clock
from .compile_pool import Reply
from .kernel_text import KernelText
from .measure import Worker

LOCK = "TENSOR_GRAPHS_GPU_LOCK"  # names the file by which processes have the device to themselves
START_S = 180.0  # most seconds for starting the process, or opening a kernel


class GpuProcess:
    """A process on `device` ("cuda", or "cpu" in its place); `timeout` seconds bound a job. `among`: how many of them there are;
    each has the device to itself while it runs something."""

    def __init__(self, device: str, timeout: float, worker: Worker | None = None, among: int = 1) -> None:
        environment = {"TENSOR_GRAPHS_MEASURE_DEVICE": device}
        environment |= {"TRITON_INTERPRET": "1"} if device == "cpu" else {}
        environment |= {LOCK: os.environ.get(LOCK) or own_lock()} if among > 1 else {}
        self.timeout, self.clock = timeout, Clock()  # what jobs take
        self.worker = worker or Worker("tensor_graphs.backends.gpu_worker", environment=environment)
        self._hand = ThreadPoolExecutor(1, thread_name_prefix="device")
        self.opened: dict[int, set[int]] = {}  # kernels that the process knows: tries it knows
        self.ended: Callable[[], bool] | None = None  # whether nobody waits for replies any more

    def start(self) -> None:
        """Let the process start while there are other things to do."""
        if not self.worker.alive:
            began = time.monotonic()
            self.worker.start()
            self._hand.submit(self._started, began)

    def _started(self, began: float) -> None:
        """Note when it answers; what is the matter, if anything is, is said by the first kernel."""
        self.ask({"job": "ready"}, START_S)
        self.clock.spent("start", began, time.monotonic())

    def interrupt(self) -> None:
        """End it in the middle of a job: the next job has another."""
        self.worker.close()

    def close(self) -> None:
        """End it, with whatever it is doing."""
        self.worker.close()
        self._hand.shutdown(wait=False, cancel_futures=True)

    def do(self, work: Callable[[], None]) -> Future[None]:
        """Have jobs done when those before are."""
        return self._hand.submit(work)

    def ask_later(self, job: dict[str, Any], timeout: float) -> Future[Reply]:
        """The reply to a job that is done when those before are."""
        return self._hand.submit(self.ask, job, timeout)

    def attempt(self, opening: Reply, index: int, text: KernelText) -> Reply:
        """Run one schedule of a kernel: is it right, and how fast about?"""
        with self.clock.running("try"):
            return self._in_context(opening, {"job": "try", "index": index, "text": text.to_json()}, None)

    def measure(self, opening: Reply, index: int, text: KernelText | None) -> Reply:
        """Measure a schedule that was tried in full."""
        with self.clock.running("time"):
            return self._in_context(opening, {"job": "time", "index": index}, text)

    def forget(self, kernel: int) -> None:
        """Free a kernel's memory."""
        if self.opened.pop(kernel, None) is not None and self.worker.alive:
            with self.clock.running("close"):
                self.ask({"job": "close", "kernel": kernel})

    def _in_context(self, opening: Reply, job: Reply, text: KernelText | None) -> Reply:
        kernel = int(opening["kernel"])
        if not self.worker.alive:
            self.opened.clear()
        if kernel not in self.opened:
            with self.clock.running("open"):
                opened = self.ask(opening, START_S)
            if opened.get("fatal"):  # nothing of the kernel has run yet
                raise WorkerError(f"the GPU cannot be used: {opened['message']}")
            if not opened["ok"]:
                return opened
            self.opened[kernel] = set()
        tried = self.opened[kernel]
        if text is not None and job["index"] not in tried:
            again = self.ask({"job": "try", "kernel": kernel, "index": job["index"], "text": text.to_json()})
            if not again["ok"]:
                return again
        reply = self.ask({**job, "kernel": kernel})
        if reply["ok"]:
            tried.add(job["index"])
        return reply

    def ask(self, job: dict[str, Any], timeout: float | None = None) -> Reply:
        """The reply to a job; the process is another one after a fault."""
        self.worker.ended = self.ended
        reply = self.worker.ask(job, timeout or (self.timeout if self.worker.alive else START_S))
        if reply.get("fatal"):
            with contextlib.suppress(OSError):
                self.worker.close()
        return reply


_making = Lock()
_own: dict[int, str] = {}  # by process: a forked child has another one than its parent


def own_lock() -> str:
    """The file by which this process's children have the device to themselves, one at a time."""
    owner = os.getpid()
    with _making:
        if owner not in _own:
            file, _own[owner] = tempfile.mkstemp(prefix="tensor-graphs-gpu-", suffix=".lock")
            os.close(file)
            atexit.register(_removed, _own[owner], owner)
        return _own[owner]


def _removed(path: str, owner: int) -> None:
    if os.getpid() == owner:
        Path(path).unlink(missing_ok=True)
