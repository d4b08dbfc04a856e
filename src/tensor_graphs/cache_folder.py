"""Locates the user's cache folder, and makes private folders below it for compiled code and plans (choices of
kernels)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from . import settings
from .errors import UsageError, warned
from .private import private_folder, temporary_place
from .processes.ending import at_end
from .processes.forks import Lock, in_forked_child

_temporary: list[Path] = []  # the temporary folder of this process, if one was made
_making = Lock()


def home() -> Path:
    """Path of the user's cache folder, created with mode 0700.

    If it is not writable, or the user's home folder is unknown: a temporary folder of this process, with a warning.
    """
    configured = settings.current().home
    folder = Path(os.path.expanduser(configured)) if configured else _cache_folder()
    with suppress(OSError):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if os.access(folder, os.W_OK):
                return folder
    made = not _temporary
    temporary = _temporary_folder()
    if made:
        if not settings.overridden():
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


def evict(files: Iterable[Path], most: int) -> None:
    """Remove files but the `most` that were written or touched last. Another process may be removing some, too."""
    used: dict[Path, float] = {}
    for path in files:
        with suppress(FileNotFoundError):
            used[path] = path.stat().st_mtime
    for old in sorted(used, key=lambda path: used[path], reverse=True)[most:]:
        old.unlink(missing_ok=True)


def _temporary_folder() -> Path:
    """A private temporary folder, removed at process exit."""
    with _making:
        if not _temporary:
            import tempfile

            _temporary.append(Path(tempfile.mkdtemp(prefix="tensor_graphs-", dir=_place())))
            at_end(_removed, _temporary[0])
    return _temporary[0]


@in_forked_child
def _forget_parents_folder() -> None:
    """The parent's folder is removed with the parent: a forked child makes its own."""
    if _temporary and os.environ.get("TENSOR_GRAPHS_HOME") == str(_temporary[0]):
        del os.environ["TENSOR_GRAPHS_HOME"]
    _temporary.clear()


def _place() -> str:
    try:
        return temporary_place()
    except RuntimeError as error:
        raise UsageError(str(error), where="environment") from None


def _removed(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
