"""The few knobs that come from outside a call: environment variables, with a context manager for tests and notebooks.

Precedence: argument > `override(...)` > environment > default.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from pathlib import Path
from threading import Lock
from typing import Any

from .errors import UsageError, warned
from .private import private_folder


@dataclass(frozen=True)
class Settings:
    """One field per knob; its environment variable is TENSOR_GRAPHS_<NAME in capitals>."""

    home: str = ""  # folder of caches and the default cost store; empty: the platform's user cache folder
    costdb: str = ""  # folder of the cost store; empty: <home>/costdb
    backend: str = "auto"  # auto, numpy, torch, gpu, cuda, triton, triton-only, generated
    threads: int = 0  # CPU threads for kernels; 0: all cores
    gpu: str = ""  # the GPU that plans are for, where it is not here: its key's device|driver|toolchain
    workers: int = 0  # saturation worker processes; 0: as many as cores, at most 4
    file_memory: int = 0  # bytes of memory that the contents of an e-graph file may take; 0: from the file's size
    max_nodes: int = 250_000  # operations of a model; larger ones are refused when they are loaded
    log: str = ""  # e.g. "saturate:debug,extract:info"


_VARIABLES = [(f.name, f"TENSOR_GRAPHS_{f.name.upper()}", int if f.type == "int" else str) for f in fields(Settings)]
_override: ContextVar[Settings | None] = ContextVar("tensor_graphs_settings", default=None)


def current() -> Settings:
    """The settings in force here: an enclosing `override`, else the environment, else the defaults."""
    overridden = _override.get()
    if overridden is not None:
        return overridden
    found: dict[str, Any] = {}
    for name, variable, kind in _VARIABLES:
        text = os.environ.get(variable)
        if text is not None:
            found[name] = _number(variable, text) if kind is int else text
    return Settings(**found)


def _number(variable: str, text: str) -> int:
    """A number of threads or processes. UsageError for anything else than 0..4096."""
    try:
        number = int(text or "0")
    except ValueError:
        number = -1
    if not 0 <= number <= 4096:
        raise UsageError(f"{variable}={text[:80]!r} is no integer within 0..4096", where="environment")
    return number


@contextmanager
def override(**changes: Any) -> Iterator[Settings]:
    """Use other settings inside a `with` block: `with settings.override(backend="numpy"): ...`. UsageError for unknown ones."""
    if unknown := sorted(changes.keys() - {f.name for f in fields(Settings)}):
        raise UsageError(f"no settings are called {unknown}", hint=f"they are {[f.name for f in fields(Settings)]}")
    token = _override.set(replace(current(), **changes))
    try:
        yield current()
    finally:
        _override.reset(token)


def home() -> Path:
    """The folder for caches, created private to the user; falls back to a fresh temporary folder if not writable."""
    configured = current().home
    if configured:
        folder = Path(configured)
    else:
        from platformdirs import user_cache_path

        folder = user_cache_path("tensor_graphs")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    made = not _temporary
    temporary = _temporary_folder()
    if made:
        if _override.get() is None:
            os.environ["TENSOR_GRAPHS_HOME"] = str(temporary)
        warned(f"the cache folder is not writable; using {temporary} for this process (set TENSOR_GRAPHS_HOME)")
    return temporary


def private(name: str) -> Path:
    """The folder `name` below `home()`, for code and plans: nobody but this user can write to it. Where others could, a folder of this
    process alone takes its place, and a warning says why."""
    folder = home() / name
    why = private_folder(folder)
    if not why:
        return folder
    temporary = _temporary_folder() / name
    if not temporary.is_dir():
        warned(
            f"{why}: compiled code and plans are kept in {temporary} for this process"
            " (set TENSOR_GRAPHS_HOME to a folder that only you can write)"
        )
        temporary.mkdir(mode=0o700, exist_ok=True)
    return temporary


_temporary: list[Path] = []
_making = Lock()


def _temporary_folder() -> Path:
    """A private folder for as long as this process lives."""
    with _making:
        if not _temporary:
            import atexit
            import tempfile

            _temporary.append(Path(tempfile.mkdtemp(prefix="tensor_graphs-")))
            atexit.register(_removed, _temporary[0], os.getpid())
    return _temporary[0]


def _removed(folder: Path, owner: int) -> None:
    """Remove the folder at the end of the process that made it, not of one that was forked from it."""
    if os.getpid() == owner:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
