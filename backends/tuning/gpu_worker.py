"""Checks and times kernels one at a time, in the worker process that has the GPU; jobs and replies are JSON lines.

    open  a kernel: draw operands, compute the float64 reference; several kernels can be open
    try   one schedule: run, check, take a few samples
    time  a tried schedule: all samples, cold and hot; check again
    close a kernel: free its memory
    calibrate, describe: the device; ready: only reply

A schedule must be correct before it is timed: outputs and scratch start as NaN between guard zones, and inputs must
stay unchanged. Generated kernels must give bitwise equal results in several runs, which detects races. A kernel that
faults invalidates the CUDA context and ends this process: the parent starts another.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...costdb.keys.device import GPU_KIND
from ...extract.model.clock import Clock
from ..generate.kernel_text import KernelText, call_of_json
from ..gpu_context import begin_compiler, begin_context
from .cpu_worker import main, waiting
from .gpu_bench import Bench, reference
from .gpu_calibrate import calibrate
from .gpu_device import MeasuringDevice, device_of, facts
from .rehearsal import load_kernels, rehearse
from .result_check import Wrong

WARM_S, IDLE_S = 0.1, 0.3
# polling interval of the GPU lock; seconds of waiting that the parent is not told of, since its threads need the
# interpreter's lock for every message
POLL_S, QUIET_S = 0.0005, 1.0


# ---------------------------------------------------------------- the fixed reference kernel
_last = [0.0]


def warm_up_clock(device: MeasuringDevice) -> None:
    """Keep a GPU that has been idle busy for a moment before timing, so that its clock reaches the usual rate."""
    if device.name == GPU_KIND and time.monotonic() - _last[0] > IDLE_S:
        until = time.monotonic() + WARM_S
        while time.monotonic() < until:
            for _ in range(20):
                reference(device)()
            device.synchronize()
    _last[0] = time.monotonic()


# ---------------------------------------------------------------- jobs
_devices: dict[str, MeasuringDevice] = {}
_benches: dict[int, Bench] = {}
_clock = Clock()  # seconds of the steps of the current job


def _device() -> MeasuringDevice:
    name = os.environ.get("TENSOR_GRAPHS_MEASURE_DEVICE", GPU_KIND)
    if name not in _devices:
        _devices[name] = device_of(name)
    return _devices[name]


def _open(job: Mapping[str, Any]) -> dict[str, Any]:
    bench = _benches[int(job["kernel"])] = Bench(
        _device(), job["pattern"], call_of_json(job["call"]), float(job.get("loss", 0.0)), turn, _clock
    )
    bench.loads = bool(job.get("loads"))
    return {"bytes": sum(x.numel() * x.itemsize for x in bench.sets[0].operands.values())}


def _close(job: Mapping[str, Any]) -> dict[str, Any]:
    _benches.pop(int(job["kernel"]), None)
    return {}


def _try(job: Mapping[str, Any]) -> dict[str, Any]:
    bench = _benches[int(job["kernel"])]
    with _clock.running("load"):
        tried = bench.loaded(KernelText.of_json(job["text"]))
    return bench.attempt(int(job["index"]), tried)


def _time(job: Mapping[str, Any]) -> dict[str, Any]:
    return _benches[int(job["kernel"])].measure(int(job["index"]))


def _calibrate(job: Mapping[str, Any]) -> dict[str, Any]:
    with turn():
        return {"probes": calibrate(_device(), float(job["seconds"]))}


_JOBS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "open": _open, "close": _close, "try": _try, "time": _time, "calibrate": _calibrate, "describe": lambda job: facts(_device()),
    "ready": lambda job: {},
}  # fmt: skip


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Context manager in which this process has the device to itself, at its usual clock rate."""
    with contextlib.ExitStack() as held:
        with _clock.running("lock"):
            held.enter_context(with_gpu_lock())
            warm_up_clock(_device())
        try:
            yield
        finally:
            _last[0] = time.monotonic()


@contextlib.contextmanager
def with_gpu_lock() -> Iterator[None]:
    """Context manager that holds the GPU lock of processes that share the file TENSOR_GRAPHS_GPU_LOCK.

    A no-op if unset.
    """
    path = os.environ.get("TENSOR_GRAPHS_GPU_LOCK")
    if not path:
        yield
        return
    from filelock import FileLock

    lock, known = FileLock(path, is_singleton=True), os.path.exists(path)
    if not _free(lock, 0.0):
        if not _free(lock, QUIET_S):
            waiting(True)
            lock.acquire(poll_interval=POLL_S)
            waiting(False)
        _last[0] = time.monotonic()  # the previous holder kept the device busy
    elif known:
        _last[0] = max(_last[0], time.monotonic() - _seconds_since_used(path))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.utime(path, (time.time(), time.time()))
        lock.release()


def _seconds_since_used(lock: str) -> float:
    """Seconds since a process last released the lock, and thus used the device: the age of the lock file's access time.

    (Locking changes the file's modification time.)
    """
    try:
        return max(0.0, time.time() - os.stat(lock).st_atime)
    except OSError:
        return math.inf


def _free(lock: Any, seconds: float) -> bool:
    """Try to acquire the lock for at most `seconds`; returns whether that succeeded. The lock is reentrant."""
    with contextlib.suppress(TimeoutError):
        lock.acquire(timeout=seconds, poll_interval=POLL_S)
        return True
    return False


def answer(job: Mapping[str, Any]) -> dict[str, Any]:
    """Do one job (request to the device process); returns the reply: the result of its function in `_JOBS`, or status,
    stage and message of a failure. `fatal` in a reply: the device is unusable from now on. `steps`: seconds by step of
    the job, of which `lock` is the wait for the device."""
    _clock.seconds.clear()
    return {**_answer(job), "steps": dict(_clock.seconds)}


def _answer(job: Mapping[str, Any]) -> dict[str, Any]:
    stage = str(job["job"])
    try:
        return {"ok": True, **_JOBS[stage](job)}
    except Wrong as error:
        return {"ok": False, "status": "wrong", "stage": stage, "message": str(error), "ratio": error.ratio}
    except Exception as error:
        message = f"{type(error).__name__}: {error}"[:400]
        fatal = _broken()
        return {"ok": False, "status": _status(error, fatal), "stage": stage, "message": message, "fatal": fatal}
    finally:
        _last[0] = time.monotonic()


def _status(error: Exception, fatal: bool) -> str:
    if fatal and "captur" not in str(error):
        return "fault"
    kinds = {"OutOfMemoryError": "memory", "MemoryError": "memory", "OutOfResources": "resources"}
    return kinds.get(type(error).__name__, "error")


def _broken() -> bool:
    """Whether the device is unusable: after a memory fault, or after an aborted graph capture."""
    try:
        _device().synchronize()
        return not _device().sound
    except Exception:
        return True


def begin() -> None:
    """Initialize the device while the parent does other work.

    Triton, needed by generated kernels only, loads in a thread.
    """
    if os.environ.get("TENSOR_GRAPHS_MEASURE_DEVICE", GPU_KIND) == GPU_KIND:
        begin_context()
    with contextlib.suppress(Exception):  # errors are reported by the first job
        _device().synchronize()
        rehearse(_device())
    gc.freeze()  # a collection over the objects of PyTorch takes 0.1 s
    if _devices and _device().name == GPU_KIND:
        begin_compiler(load_kernels)


if __name__ == "__main__":
    main(answer, begin, device=True)
