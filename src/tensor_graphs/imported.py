"""Finds packages, which may be missing, broken, or another package of the same name (such as a folder beside the user's
script), and modules that the process has imported already: PyTorch takes seconds to import."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .errors import TensorGraphsError, UsageError

#: Packages that take long to import, so that a process may be forked meanwhile.
SLOW = ("torch", "triton", "jax", "onnx", "pyarrow", "duckdb", "egglog", "ortools", "scipy", "pandas")

#: Package -> an attribute of it that no other package of that name has, such as a folder of the user's.
MARKS = {
    "torch": "Tensor", "numpy": "ndarray", "triton": "jit", "jax": "jit", "pyarrow": "Table", "duckdb": "connect",
    "onnx": "ModelProto", "safetensors": "safe_open", "filelock": "FileLock", "ml_dtypes": "bfloat16",
    "typer": "Typer", "rich": "print", "scipy": "__version__", "ortools": "__version__", "fsspec": "filesystem",
}  # fmt: skip

#: Packages that are installed and could not be imported in this process -> why.
BROKEN: dict[str, str] = {}


def installed(name: str) -> bool:
    """Whether the package or module `name` can be imported, as far as known before it is; a folder without
    `__init__.py` is none."""
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # the package of a module is missing, or the module was made by hand
        return name in sys.modules
    if found is None or found.origin is None:
        return False
    return not other_package(name)


def other_package(name: str) -> str:
    """What is wrong with the imported package `name`, if it is another one of that name; else empty."""
    module, mark = sys.modules.get(name), MARKS.get(name)
    if module is None or mark is None or hasattr(module, mark) or _unfinished(module):
        return ""
    place = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), "?")
    return f"{place} is another package called {name}: it has no {mark}"


@contextmanager
def other_packages_named() -> Iterator[None]:
    """Context manager that raises a UsageError in place of an AttributeError or ImportError where an imported package
    is another one (`other_package`)."""
    try:
        yield
    except TensorGraphsError:
        raise
    except (AttributeError, ImportError) as error:
        if wrong := next(filter(None, map(other_package, MARKS)), ""):
            raise UsageError(wrong, hint="is there a file or folder of that name beside your script?") from error
        raise


def imported(name: str) -> Any:
    """The module `name` if it has been imported, else None (also if it is another one of that name).

    Waits for an import that runs in another thread: until its end, `sys.modules` has a module without most of its
    contents.
    """
    if name not in sys.modules:
        return None
    try:
        found = importlib.import_module(name)
    except ImportError:  # it failed in the other thread
        return None
    return None if other_package(name) else found


def _unfinished(module: Any) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


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
        if _unfinished(module) and name not in own and name.partition(".")[0] in SLOW:
            sys.modules[name] = None  # type: ignore[assignment]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=give_up_imports)

__all__ = [
    "BROKEN", "MARKS", "SLOW", "give_up_imports", "imported", "installed", "other_package", "other_packages_named",
]  # fmt: skip
