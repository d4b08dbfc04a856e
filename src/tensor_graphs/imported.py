"""Modules that the process has imported already, such as PyTorch, which takes seconds to import."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def imported(name: str) -> Any:
    """The module `name` if it has been imported, else None. Waits for an import that runs in another thread: until its
    end, `sys.modules` has a module without most of its contents."""
    if name not in sys.modules:
        return None
    try:
        return importlib.import_module(name)
    except ImportError:  # it failed in the other thread
        return None
