"""Frees Python's import lock where Ctrl-C has left it locked."""

from __future__ import annotations

import _imp
from contextlib import suppress


def free_import_lock() -> None:
    """Release Python's global import lock if this thread has it.

    No code outside of `importlib` runs with it, but where an exception of a signal handler (Ctrl-C) came between its
    acquisition and the `try` that releases it: all other threads would wait for ever at their next import.
    """
    with suppress(RuntimeError):  # this thread does not have it
        while True:
            _imp.release_lock()


__all__ = ["free_import_lock"]
