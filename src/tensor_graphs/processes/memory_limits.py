"""Determines the memory of this machine, and limits the memory of worker processes.

A parent computes a worker's limit (`worker_bytes`) and passes it in the worker's environment (`limited_environment`);
the worker applies it to itself (`limit_own_memory`).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .. import settings

MEMORY_EXIT = 77  # exit code of a worker process that exceeded its memory limit
MIN_WORKER_BYTES = 4 << 30  # bytes: smallest derived limit of a worker, if as much is available
STARTED = 1 << 30  # bytes: smallest derived limit of a worker at all, which its libraries need
PART = 0.6  # part of the machine's memory that the workers of one kind may take together
VARIABLE = "TENSOR_GRAPHS_WORKER_MEMORY"
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def machine_memory() -> int:
    """Physical memory in bytes; 2**40 if the platform does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 1 << 40


def host_bytes() -> int:
    """Memory limit of this process in bytes: the machine's memory, or the container's limit if smaller."""
    found = machine_memory()
    for path in _CGROUPS:
        with suppress(OSError, ValueError):  # no such file, or "max"
            found = min(found, int(Path(path).read_text(encoding="ascii")))
    return found


def available_bytes() -> int:
    """Memory in bytes that this process can still take without swapping; the limit of the container included."""
    found = host_bytes()
    with suppress(OSError, ValueError, KeyError):
        found = min(found, _listed("/proc/meminfo")["MemAvailable:"] << 10)
    with suppress(OSError, ValueError, KeyError):
        limit = int(Path(_CGROUPS[0]).read_text(encoding="ascii"))
        found = min(found, max(0, limit - _listed("/sys/fs/cgroup/memory.stat")["anon"]))
    return found


def _listed(path: str) -> dict[str, int]:
    """Names and numbers of a system file with a pair in each line."""
    lines = Path(path).read_text(encoding="ascii").splitlines()
    return {words[0]: int(words[1]) for line in lines if len(words := line.split()) > 1}


def worker_bytes(count: int = 1) -> int:
    """Return the memory limit in bytes of one of `count` workers of a kind: the setting `worker_memory`, else derived.

    A derived limit is a part of the machine's memory, and at most what is available now: this process may hold large
    inputs and weights.
    """
    if chosen := settings.current().worker_memory:
        return chosen
    return max(STARTED, min(available_bytes(), max(MIN_WORKER_BYTES, int(PART * host_bytes()) // max(count, 1))))


def limited_environment(count: int = 1) -> dict[str, str]:
    """Environment variable that tells one of `count` workers its memory limit, as a dict."""
    return {VARIABLE: str(worker_bytes(count))}


def resident_bytes() -> int:
    """Resident memory of this process; peak resident memory where the system does not report the current value."""
    try:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _data_bytes() -> int:
    """Private writable memory that this process has reserved, in bytes: libraries reserve more than they use."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * os.sysconf("SC_PAGE_SIZE")


def watch_memory(limit: Callable[[], int]) -> None:
    """Start a thread that ends this process with MEMORY_EXIT when its resident memory exceeds `limit()` bytes (0:
    none)."""

    def watch() -> None:
        while True:
            time.sleep(0.02)
            allowed = limit()  # read once: it may change
            if allowed and resident_bytes() > allowed:
                os._exit(MEMORY_EXIT)

    threading.Thread(target=watch, daemon=True).start()


def limit_own_memory(*, device: bool = False) -> None:
    """Apply the limit of `worker_bytes` to this worker process.

    The worker's private memory may grow by the limit; allocations beyond it fail (MemoryError), also in compilers that
    the worker starts. With `device`, or where the system has no such limit, resident memory is watched instead and the
    process exits with MEMORY_EXIT: a CUDA driver reserves far more than it uses.
    """
    allowed = worker_bytes()
    if sys.platform == "linux" and not device:
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        soft = allowed + _data_bytes()
        soft = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    else:
        watch_memory(lambda: allowed)


__all__ = [
    "MEMORY_EXIT", "available_bytes", "host_bytes", "limit_own_memory", "limited_environment", "machine_memory", "resident_bytes",
    "watch_memory", "worker_bytes",
]  # fmt: skip
