"""Calls functions at the end of this process, also where Python calls none of those registered with `atexit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def at_end(call: Callable[..., Any], *args: Any) -> None:
    """Call `call(*args)` when this process exits, but not when a fork of it does.

    A child process of `multiprocessing` that was forked ends without the functions of `atexit`, but not without those
    of `multiprocessing.util`, which a main process calls at its exit as well.
    """
    from multiprocessing.util import Finalize

    Finalize(None, call, args=args, exitpriority=0)


__all__ = ["at_end"]
