"""Runs egglog in a worker process that can be killed, because egglog cannot be interrupted within a round.

Started as `python -m tensor_graphs.egraph.saturate.worker` with pipes. It does not use `multiprocessing`, so it works
from scripts without a main guard, from `python -` and from notebooks. A frame is a 4-byte length, a JSON header, and
the raw bytes of the arrays that the header lists. A worker ends when its parent ends (end of input), when its memory
exceeds the request's limit (exit code 77), or when it is killed at the deadline.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from ...bytecode import bytecode_environment
from ...errors import WorkerError
from ...processes.forks import Lock, in_forked_child
from ...processes.memory_limits import MEMORY_EXIT, watch_memory
from ...processes.spawn import start_worker
from ...writing.files import named_errors
from .engine import Arrays, Engine
from .engine_bounds import Bounds, Deadline, EngineError, MemoryLimit, Stopped

START_SECONDS = 30.0


# ---------------------------------------------------------------- frames
def write_frame(stream: IO[bytes], header: dict[str, Any], arrays: Arrays) -> None:
    """Send one message: a JSON header and the bytes of its arrays."""
    listed = [[name, a.dtype.str, list(a.shape)] for name, a in arrays.items()]
    text = json.dumps(header | {"arrays": listed}).encode()
    stream.write(struct.pack("<I", len(text)) + text)
    for a in arrays.values():
        stream.write(np.ascontiguousarray(a).tobytes())
    stream.flush()


def _exactly(stream: IO[bytes], size: int) -> bytes:
    """Read exactly `size` bytes; raises EOFError at the end of the stream."""
    data = stream.read(size)
    if len(data) != size:
        raise EOFError
    return data


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], Arrays]:
    """The next message of a stream, as (header, arrays).

    Raises EOFError at the end of the stream, ValueError if the bytes are not a message.
    """
    (size,) = struct.unpack("<I", _exactly(stream, 4))
    if size > 1 << 30:
        raise ValueError(f"a frame of {size} bytes")
    header: dict[str, Any] = json.loads(_exactly(stream, size))
    arrays: Arrays = {}
    for name, dtype, shape in header.pop("arrays"):
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(_exactly(stream, count * kind.itemsize), kind).reshape(shape)
    return header, arrays


# ---------------------------------------------------------------- inside the worker
def _read_requests(stream: IO[bytes], requests: queue.Queue[dict[str, Any]]) -> None:
    """Thread: queue incoming requests."""
    try:
        while True:
            requests.put(read_frame(stream)[0])
    except BaseException:  # the parent closed the pipe or died; egglog may be busy, so exit immediately
        os._exit(0)


def serve() -> None:
    """Main loop of the worker process: reads requests from standard input and writes one reply to each, until the input
    ends.

    egglog stays on this thread, because its objects are bound to a thread.
    """
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # redirect stdout to stderr, so that prints cannot corrupt the frames
    requests: queue.Queue[dict[str, Any]] = queue.Queue()
    limit = [0]
    threading.Thread(target=_read_requests, args=(sys.stdin.buffer, requests), daemon=True).start()
    watch_memory(lambda: limit[0])
    engine: Engine | None = None
    write_frame(replies, {"ready": os.getpid()}, {})
    while True:
        request = requests.get()
        limit[0] = request["memory"]
        try:
            engine = engine or Engine()
            arguments = [] if request["payload"] is None else [request["payload"]]
            header, arrays = getattr(engine, request["method"])(*arguments)
            write_frame(replies, {"result": header}, arrays)
        except EngineError as error:
            write_frame(replies, {"error": str(error)}, {})
        limit[0] = 0  # nothing grows between requests, and nothing is watched


# ---------------------------------------------------------------- in the parent
def tensor_graphs_file() -> str:
    """File that the package was imported from, so that the worker imports the same package."""
    file = sys.modules[__name__.split(".")[0]].__file__
    assert file is not None
    return file


class SaturationWorker:
    """One worker process with its pipes. A dead or killed process is replaced at the next `prepare`."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.starting = False  # the process has not reported ready yet
        self.owing = False  # a reply was asked for and not read: the process must not get another request
        self.last_words = ""  # stderr tail of the process that ended last

    def prepare(self) -> None:
        """Start the process if it is not running, and wait until it is ready.

        A process that owes a reply, because Ctrl-C came between the request and the reply, is replaced.
        """
        if self.process is not None and (self.owing or self.process.poll() is not None):
            self.kill()
        self.begin()
        if self.starting:
            self.owing = True
            self._receive(Bounds(START_SECONDS, 0))

    def begin(self) -> None:
        """Start the process if there is none, without waiting for it to become ready.

        Raises WorkerError if the process cannot be started.
        """
        if self.process is not None:
            return
        with named_errors(Path("a temporary file")):  # no folder for temporary files, or a full one
            self.stderr = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        root = str(Path(tensor_graphs_file()).parents[1])
        paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        try:
            path = {**bytecode_environment(), "PYTHONPATH": os.pathsep.join(paths)}
            process = start_worker("tensor_graphs.egraph.saturate.worker", environment=path, stderr=self.stderr)
        except OSError as error:
            self.stderr.close()
            raise WorkerError(f"cannot start the saturation worker: {error}") from None
        except BaseException:
            self.stderr.close()
            raise
        self.process, self.starting, self.owing = process, True, False
        self.frames: queue.Queue[Any] = queue.Queue()
        try:
            threading.Thread(target=self._listen, args=(process, self.frames), daemon=True).start()
        except BaseException:  # also Ctrl-C: the thread, if it has started, ends with the process
            self.kill()
            raise

    @staticmethod
    def _listen(process: subprocess.Popen[bytes], frames: queue.Queue[Any]) -> None:
        """Thread: queue frames from the process, then the exception that ended the stream."""
        assert process.stdout is not None
        try:
            while True:
                frames.put(read_frame(process.stdout))
        except Exception as error:
            frames.put(error)

    def _next(self, bounds: Bounds) -> Any:
        """The next frame, or the exception that ended the stream."""
        end = time.perf_counter() + bounds.seconds
        try:
            while True:
                if bounds.stop():
                    raise Stopped
                left = end - time.perf_counter()
                if left <= 0:
                    raise Deadline
                with contextlib.suppress(queue.Empty):
                    return self.frames.get(timeout=min(left, 0.05))
        except BaseException:  # also Ctrl-C: nobody will read the pending reply
            self.kill()
            raise

    def _receive(self, bounds: Bounds) -> tuple[dict[str, Any], Arrays]:
        """(header, arrays) of the reply to a request. Raises MemoryLimit, WorkerError or EngineError."""
        found = self._next(bounds)
        if isinstance(found, Exception):
            code = self.kill()
            if code == MEMORY_EXIT:
                raise MemoryLimit
            reason = self.last_words or "no message"
            what = "answered nonsense" if isinstance(found, ValueError | KeyError) else f"died (exit code {code})"
            raise WorkerError(
                f"the saturation worker {what}: {reason}", hint="run in-process to debug: session=InProcess()"
            )
        header, arrays = found
        self.starting = self.owing = False
        if "error" in header:
            raise EngineError(header["error"])
        return header.get("result", header), arrays

    def request(self, method: str, payload: Any, bounds: Bounds) -> tuple[dict[str, Any], Arrays]:
        """Call a method of the `Engine` in the worker process with the argument `payload` (None: none) and return its
        result (`SaturationSession.request`).

        A dead process is not restarted, because the new one would have no state: WorkerError is raised.
        """
        process = self.process
        if process is None:
            raise WorkerError("the saturation worker is not running", hint="call prepare() first")
        assert process.stdin is not None
        self.owing = True
        with contextlib.suppress(OSError):  # a broken pipe: reading reports why the process died
            write_frame(process.stdin, {"method": method, "payload": payload, "memory": bounds.bytes}, {})
        return self._receive(bounds)

    def kill(self) -> int | None:
        """Kill the process; returns its exit code (None if there was no process)."""
        process, self.process = self.process, None
        if process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)  # the process may be exiting: keep its own exit code
        process.kill()
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with self.stderr:
            self.stderr.seek(0)
            self.last_words = self.stderr.read()[-2000:].decode(errors="replace").strip()
        return code

    close = kill


class Pool:
    """Up to `size` worker processes, started on first use and kept; each serves one session at a time."""

    def __init__(self, size: int = 2) -> None:
        self.size = size
        self.workers = [SaturationWorker() for _ in range(size)]
        self._free = self.workers[::-1]
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def session(self) -> Iterator[SaturationWorker]:
        """Context manager that yields a worker for exclusive use. Waits until one is free."""
        taken: list[SaturationWorker] = []  # named before it is removed: an exception at any moment loses no worker
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._free)
                taken.append(self._free[-1])
                self._free.remove(taken[0])
            yield taken[0]
        finally:
            self._give_back(taken)

    def _give_back(self, taken: Sequence[SaturationWorker]) -> None:
        with self._changed:
            self._free += [w for w in taken if w not in self._free]
            self._changed.notify_all()

    def begin(self) -> None:
        """Start all idle workers without waiting for them (starting takes a third of a second)."""
        idle: list[SaturationWorker] = []
        try:
            with self._changed:
                idle += self._free
                self._free.clear()
            for worker in idle:
                with contextlib.suppress(OSError, WorkerError):  # reported when the worker is used
                    worker.begin()
        finally:
            self._give_back(idle)

    def close(self) -> None:
        """Kill all workers; they restart on demand."""
        for worker in self.workers:
            worker.kill()


_pool: Pool | None = None
_making = Lock()


def default_pool() -> Pool:
    """The pool of this process, created on first use and closed at exit. All threads share it."""
    global _pool
    with _making:
        if _pool is None:
            from ... import settings

            _pool = Pool(settings.current().workers or min(2, os.cpu_count() or 1))
            atexit.register(_pool.close)
        return _pool


@in_forked_child
def _left_behind() -> None:
    """Give a forked child its own pool: workers held by the parent's threads would never be returned."""
    global _pool
    if _pool is not None:
        atexit.unregister(_pool.close)
    _pool = None


__all__ = ["Pool", "SaturationWorker", "default_pool", "read_frame", "serve", "write_frame"]

if __name__ == "__main__":
    serve()
