"""Process-wide settings from environment variables, with a context manager for tests and notebooks.

Precedence: argument > `override(...)` > environment variable > default.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from pathlib import Path
from threading import Lock
from typing import Any

from .errors import UsageError, warned
from .private import private_folder, temporary_place


@dataclass(frozen=True)
class Settings:
    """Values of all settings: field NAME is the environment variable TENSOR_GRAPHS_NAME, in capitals."""

    home: str = ""  # folder of caches and the default cost store; empty: the platform's user cache folder
    costdb: str = ""  # folder of the cost store; empty: <home>/costdb
    team: str = ""  # folder or fsspec URL of a team's cost store, read below the own one; empty: none
    starter: str = ""  # folder of shipped measurements below the cost store; empty: the package's own; "none": not used
    backend: str = "auto"  # auto, numpy, torch, gpu, cuda, triton, triton-only, generated
    threads: int = 0  # CPU threads for kernels; 0: all cores
    gpu: str = ""  # plan for a GPU that is not in this machine: its device key "device|driver|toolchain"
    workers: int = 0  # saturation worker processes; 0: one per core, at most 4
    file_memory: int = 0  # memory limit in bytes for parsing an e-graph file; 0: derived from the file's size
    worker_memory: int = 0  # memory limit in bytes of one worker process; 0: derived from the machine's memory
    max_nodes: int = 250_000  # maximum number of operations of a model; larger models are refused on loading
    export_seconds: int = 0  # time limit of torch.export in seconds; 0: derived from the budget
    log: str = ""  # e.g. "saturate:debug,extract:info"


_VARIABLES = [(f.name, f"TENSOR_GRAPHS_{f.name.upper()}", int if f.type == "int" else str) for f in fields(Settings)]
_MOST = {"threads": 4096, "workers": 4096}  # largest values of settings, if not 2^62
_override: ContextVar[Settings | None] = ContextVar("tensor_graphs_settings", default=None)


def current() -> Settings:
    """The current settings: those of an enclosing `override`, else of the environment, else defaults."""
    overridden = _override.get()
    if overridden is not None:
        return overridden
    found: dict[str, Any] = {}
    for name, variable, kind in _VARIABLES:
        text = os.environ.get(variable)
        if text is not None:
            found[name] = _number(variable, text, _MOST.get(name, 1 << 62)) if kind is int else text
    return Settings(**found)


def planned_gpu() -> str:
    """Value of the setting `gpu`, without reading the other settings: callers ask for it often."""
    overridden = _override.get()
    return os.environ.get("TENSOR_GRAPHS_GPU", "") if overridden is None else overridden.gpu


def _number(variable: str, text: str, most: int) -> int:
    """Parse an integer setting. UsageError outside 0..most."""
    try:
        number = int(text or "0")
    except ValueError:
        number = -1
    if not 0 <= number <= most:
        raise UsageError(f"{variable}={text[:80]!r} is no integer within 0..{most}", where="environment")
    return number


@contextmanager
def override(**changes: Any) -> Iterator[Settings]:
    """Context manager with changed settings: `with settings.override(backend="numpy"): ...`.

    Raises UsageError for unknown names.
    """
    if unknown := sorted(changes.keys() - {f.name for f in fields(Settings)}):
        raise UsageError(f"no settings are called {unknown}", hint=f"they are {[f.name for f in fields(Settings)]}")
    token = _override.set(replace(current(), **changes))
    try:
        yield current()
    finally:
        _override.reset(token)


def home() -> Path:
    """The cache folder, created with mode 0700; a temporary folder of this process if unwritable or unknown."""
    configured = current().home
    folder = Path(configured) if configured else _cache_folder()
    with suppress(OSError):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if os.access(folder, os.W_OK):
                return folder
    made = not _temporary
    temporary = _temporary_folder()
    if made:
        if _override.get() is None:
            os.environ["TENSOR_GRAPHS_HOME"] = str(temporary)
        why = "not known" if folder is None else "not writable"
        warned(f"the cache folder is {why}; using {temporary} for this process (set TENSOR_GRAPHS_HOME)")
    return temporary


def _cache_folder() -> Path | None:
    """The platform's user cache folder; None if the user's home folder is not known."""
    from platformdirs import user_cache_path

    try:
        folder = user_cache_path("tensor_graphs")
    except RuntimeError:
        return None
    return folder if folder.is_absolute() else None  # not "~/.cache" below the current folder


def private(name: str) -> Path:
    """Path of the folder `name` below `home()` for code and plans, writable by this user only.

    If other users could write to it, a temporary folder of this process is used instead, with a warning.
    """
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
    """A private temporary folder, removed at process exit."""
    with _making:
        if not _temporary:
            import atexit
            import tempfile

            _temporary.append(Path(tempfile.mkdtemp(prefix="tensor_graphs-", dir=_place())))
            atexit.register(_removed, _temporary[0], os.getpid())
    return _temporary[0]


def _forked() -> None:
    """Free the lock, and forget the parent's folder, which goes with the parent: a child makes its own."""
    global _making
    _making = Lock()
    if _temporary and os.environ.get("TENSOR_GRAPHS_HOME") == str(_temporary[0]):
        del os.environ["TENSOR_GRAPHS_HOME"]
    _temporary.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _place() -> str:
    try:
        return temporary_place()
    except RuntimeError as error:
        raise UsageError(str(error), where="environment") from None


def _removed(folder: Path, owner: int) -> None:
    """Remove the folder when its creating process exits, but not when a fork of that process does."""
    if os.getpid() == owner:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
