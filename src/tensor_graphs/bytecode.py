"""Keeps compiled bytecode of PyTorch in the cache folder, where its installation has none and Python writes none.

In images that set PYTHONDONTWRITEBYTECODE, and in folders that the user may not write, Python compiles the sources of
PyTorch, of its exporter and of Triton anew in each process: 2 to 5 s, in a search on a GPU in four processes at once.
There worker processes, and imports in `bytecode_kept`, read and write bytecode in a private folder (about 70 MB). As
elsewhere, Python compares the time and size of each source file with those in its bytecode.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec

from .cache_folder import private
from .processes.forks import Lock

FOLDER = "bytecode"
PACKAGE = "torch"  # the package that is looked at

_changing = Lock()
_before: list[tuple[str | None, bool]] = []  # Python's own setting, once for each `bytecode_kept` that is entered


def is_missing() -> bool:
    """Whether PyTorch is installed without bytecode, and Python would not write any."""
    if _before:
        return True
    with suppress(ValueError):  # a module without a specification
        spec = find_spec(PACKAGE)  # imports nothing
        if spec is not None and spec.origin and spec.cached and not os.path.exists(spec.cached):
            unwritable = not sys.pycache_prefix and not os.access(os.path.dirname(spec.origin), os.W_OK)
            return sys.dont_write_bytecode or unwritable
    return False


def bytecode_environment() -> dict[str, str]:
    """Environment variables with which a Python process keeps bytecode in the cache folder; none where PyTorch has its
    own."""
    if not is_missing():
        return {}
    return {"PYTHONPYCACHEPREFIX": str(private(FOLDER)), "PYTHONDONTWRITEBYTECODE": ""}


@contextmanager
def bytecode_kept() -> Iterator[None]:
    """Context manager in which imports of this process, in all of its threads, keep bytecode in the cache folder; does
    nothing where PyTorch has its own."""
    with _changing:
        kept = is_missing()
        if kept:
            folder = str(private(FOLDER))
            _before.append((sys.pycache_prefix, sys.dont_write_bytecode))
            sys.pycache_prefix, sys.dont_write_bytecode = folder, False
    try:
        yield
    finally:
        if kept:
            with _changing:
                own = _before.pop()
                if not _before:
                    sys.pycache_prefix, sys.dont_write_bytecode = own


__all__ = ["bytecode_environment", "bytecode_kept", "is_missing"]
