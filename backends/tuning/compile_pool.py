"""Compiles kernel texts in parallel: the calling process's side of the pool of compiler processes (their side is
compile_server.py)."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from typing import IO, Any

from ...extract.model.clock import Clock
from ...extract.model.kernel import Call
from ...processes.forks import Lock
from ..generate.kernel_text import KernelText, call_json
from .compile_server import READY
from .worker_process import started

COMPILE_S = 60.0  # deadline in seconds for compiling one schedule

Reply = dict[str, Any]

_ENVIRONMENT = {"TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
_GONE: Reply = {"ok": False, "status": "crash", "stage": "compile", "message": "the compiling process ended"}


class CompilePool:
    """Pool of up to `workers` compiler processes for one compute capability (90 is sm_90), given as a number or as a
    function that is called on first use.

    `timeout`: seconds per text.
    """

    def __init__(self, workers: int, capability: int | Callable[[], int], timeout: float = COMPILE_S) -> None:
        self.workers, self.timeout, self._capability = workers, timeout, capability
        self._process: subprocess.Popen[str] | None = None
        self._lock = Lock()
        self._waiting: dict[int, Future[Reply]] = {}
        self._count = 0
        self.clock = Clock()  # when compilers were loading and working
        self.starting = False  # whether the compiler is being loaded for the first time

    def start(self) -> None:
        """Start loading the compiler without waiting; `submit` does this on demand."""
        with self._lock:
            self._started()

    @cached_property
    def capability(self) -> int:
        """Compute capability to compile for."""
        return self._capability if isinstance(self._capability, int) else self._capability()

    @property
    def busy(self) -> int:
        """Number of texts being compiled or queued."""
        return len(self._waiting)

    def submit(self, text: KernelText, call: Call) -> Future[Reply]:
        """Compile the text of a kernel for a call, in the background. Returns the future reply: resource use (shared
        memory, registers and others: `compile_worker.compile_text`), or status and message of a failure."""
        found: Future[Reply] = Future()
        job = {"text": text.to_json(), "call": call_json(call), "capability": self.capability, "timeout": self.timeout}
        with self._lock:
            self._count += 1
            number, process = self._count, self._started()
            self._waiting[number] = found
            try:
                assert process.stdin is not None
                process.stdin.write(json.dumps({"id": number, **job}) + "\n")
                process.stdin.flush()
            except OSError:  # the server just died: the listener fails all waiting jobs, perhaps not this one
                self._waiting.pop(number, None)
                found.set_result(dict(_GONE))
        return found

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            arguments = [str(self.workers), str(self.capability)]
            self._process = started(
                "tensor_graphs.backends.tuning.compile_server", _ENVIRONMENT, arguments, self.workers
            )
            assert self._process.stdout is not None
            self._waiting, self.starting = {}, True
            threading.Thread(target=self._listen, args=(self._process.stdout, self._waiting), daemon=True).start()
        return self._process

    def _listen(self, pipe: IO[str], waiting: dict[int, Future[Reply]]) -> None:
        """Body of a thread that delivers replies to waiting futures; when the pipe ends, the remaining futures fail."""
        began = time.monotonic()
        with contextlib.suppress(ValueError, OSError):
            for line in pipe:
                reply, now = json.loads(line), time.monotonic()
                if reply["id"] == READY:
                    self.clock.spent("start", began, now)
                    self.starting = False
                    continue
                self.clock.spent("compile", now - reply.get("seconds", 0.0), now)
                found = waiting.pop(reply["id"], None)
                if found is not None:
                    found.set_result(reply)
        self.starting = False
        while waiting:
            with contextlib.suppress(KeyError):
                waiting.popitem()[1].set_result(dict(_GONE))
        pipe.close()

    def close(self) -> None:
        """Kill all compilers."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
