"""Imports libraries that a later search step needs, in the background."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from importlib import import_module
from threading import Thread
from time import monotonic
from weakref import WeakSet

from ...processes.import_lock import free_import_lock

SOLVER_MODULES = ("ortools.math_opt.python.mathopt", "ortools.sat.python.cp_model")
STORE_MODULES = ("duckdb", "pyarrow")
END_S = 20.0  # seconds, at most, that the end of the process waits for imports

_begun: WeakSet[Thread] = WeakSet()


def import_in_background(modules: Sequence[str]) -> Thread:
    """Start a thread that imports modules, and return the thread.

    Solvers take half a second to import, and so does the cost store. Errors are left to the later user.
    """

    def load() -> None:
        for module in modules:
            with suppress(ImportError, RuntimeError):  # the process may be ending
                import_module(module)

    return in_background(load)


def in_background(work: Callable[[], object]) -> Thread:
    """Start a thread that calls `work`, which may import modules, and return the thread. The end of the process waits
    for it. Errors of `work` are left to the later user of what it prepares."""

    def run() -> None:
        with suppress(Exception):
            work()

    thread = Thread(target=copy_context().run, args=(run,), name="load-ahead", daemon=True)
    thread.start()
    _begun.add(thread)
    return thread


@atexit.register
def _wait() -> None:
    """Wait for imports, inside of which a process cannot end without a crash. An import that waits for a lock which
    Ctrl-C has left locked does not end."""
    free_import_lock()
    end = monotonic() + END_S
    for thread in [*_begun]:
        thread.join(max(0.0, end - monotonic()))


__all__ = ["SOLVER_MODULES", "STORE_MODULES", "import_in_background", "in_background"]
