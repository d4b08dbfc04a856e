"""Finds modules that the process has imported already, such as PyTorch, which takes seconds to import."""

from __future__ import annotations

import importlib
import os
import sys
from types import FrameType
from typing import Any

#: Packages that take long to import, so that a process may be forked meanwhile.
SLOW = ("torch", "triton", "jax", "onnx", "pyarrow", "duckdb", "egglog", "ortools", "scipy", "pandas")

#: Packages that are installed and could not be imported in this process -> why.
BROKEN: dict[str, str] = {}


def imported(name: str) -> Any:
    """The module `name` if it has been imported, else None. Waits for an import that runs in another thread: until its
    end, `sys.modules` has a module without most of its contents."""
    if name not in sys.modules:
        return None
    try:
        return importlib.import_module(name)
    except ImportError:  # it failed in the other thread
        return None


def give_up_imports() -> None:
    """Make imports of modules that another thread of the parent was importing fail (ModuleNotFoundError).

    They would wait for that thread for ever: the child does not have it.
    """
    own: set[str] = set()
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        own.add(str(frame.f_globals.get("__name__")))
        frame = frame.f_back
    for name, module in list(sys.modules.items()):
        unfinished = getattr(getattr(module, "__spec__", None), "_initializing", False)
        if unfinished and name not in own and name.partition(".")[0] in SLOW:
            sys.modules[name] = None  # type: ignore[assignment]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=give_up_imports)

__all__ = ["BROKEN", "SLOW", "give_up_imports", "imported"]
