"""Starts worker processes: modules of this package, run by this interpreter, with pipes to the parent."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Any, TypeVar

from .forks import Lock, adopted, in_forked_child

P = TypeVar("P")

RUNNER = f"{__name__.rpartition('.')[0]}.run_worker"  # module that runs the others


def interpreter() -> str:
    """Path of the Python interpreter that worker processes run: the one that `multiprocessing.set_executable` names, as
    programs that embed Python do, else `sys.executable`. Raises FileNotFoundError if there is none."""
    from multiprocessing.spawn import get_executable

    found = os.fsdecode(get_executable() or "")
    if not os.path.exists(found):
        raise FileNotFoundError(
            f"{found!r} is no Python interpreter (sys.executable); multiprocessing.set_executable names one"
        )
    return found


def start_worker(
    module: str, arguments: Sequence[str] = (), *, environment: Mapping[str, str] | None = None,
    stderr: int | IO[Any] = subprocess.DEVNULL, pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:  # fmt: skip
    """A process that runs `python -m module` (run_worker.py) with pipes of bytes at its standard input and output.

    It is in a session of its own, so that Ctrl-C reaches the parent only, and a forked child of this process sees it
    as ended. It imports from this process's `sys.path`, never from the current folder. `environment`: variables
    beside, or in place of, those of this process. `stderr`: where its standard error goes, as for Popen. `pass_fds`:
    descriptors that stay open in it. Raises OSError if it cannot be started.
    """
    command = [interpreter(), "-P", "-m", RUNNER, module, *arguments]
    return adopted(_in_lasting_thread(lambda: subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=_environment(environment), start_new_session=True,
        pass_fds=pass_fds,
    )))  # fmt: skip


def start_line_worker(
    module: str, arguments: Sequence[str] = (), *, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """A worker process (`start_worker`) whose pipes carry lines of UTF-8 text and whose standard error is discarded."""
    command = [interpreter(), "-P", "-m", RUNNER, module, *arguments]
    return adopted(_in_lasting_thread(lambda: subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
        env=_environment(environment), start_new_session=True,
    )))  # fmt: skip


_lock = Lock()
_starter: list[ThreadPoolExecutor] = []


def _in_lasting_thread(start: Callable[[], P]) -> P:
    """`start()`, called in the main thread, or in one that lives as long: Linux ends a worker that asks to die with its
    parent (child.py) when the *thread* that has started it ends."""
    if threading.current_thread() is not threading.main_thread():
        with _lock:
            if not _starter:
                _starter.append(ThreadPoolExecutor(1, "worker-starter"))
        with suppress(RuntimeError):  # the process is ending
            return _starter[0].submit(start).result()
    return start()


in_forked_child(_starter.clear)  # a forked child has no threads


def import_path() -> str:
    """Value of PYTHONPATH with which a worker imports from this process's `sys.path`."""
    return os.pathsep.join(p for p in sys.path if p)


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": import_path(), **(more or {})}


__all__ = ["import_path", "interpreter", "start_line_worker", "start_worker"]
