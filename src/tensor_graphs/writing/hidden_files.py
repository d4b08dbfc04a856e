"""Hidden files and folders next to the target that is being written, and the removal of those of killed processes.

A writer holds a lock on its hidden file, so what a killed process left is recognized by its free lock and removed by
the next writer or reader.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
import uuid
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: leftovers are recognized by age only
    fcntl = None  # type: ignore[assignment]

PART, OLD, KEPT = ".part", ".old", ".kept"  # hidden name suffixes: being written, replaced folder, replaced file
STALE_S = 3600.0  # age in seconds from which a hidden file is a leftover, if there are no locks
_NO_LOCKS = (errno.ENOLCK, errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def hidden_path(target: Path, ending: str) -> Path:
    if not target.name:  # the root of the file system
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    return target.with_name(f".{_short(target.name)}.{uuid.uuid4().hex}{ending}")


def _short(name: str) -> str:
    """A name truncated so that the hidden name made from it is not too long."""
    return os.fsdecode(os.fsencode(name)[:180]) if len(os.fsencode(name)) > 180 else name


def locked(descriptor: int) -> bool:
    """Lock an open file until it is closed. Also True if the file system has no locks."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _NO_LOCKS
    return True


def is_same(descriptor: int, path: Path) -> bool:
    """Whether a path still names the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def clean(target: Path) -> int:
    """Remove leftovers of writing `target`; return how many files and folders were removed."""
    return sum(map(remove_abandoned, [*leftovers(target, PART), *leftovers(target, OLD)]))


def leftovers(target: Path, ending: str) -> list[Path]:
    """Hidden files and folders with the name pattern of writing `target`."""
    begin = f".{_short(target.name)}."
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        wanted = [e.name for e in entries if e.name.startswith(begin) and e.name.endswith(ending)]
        return [target.parent / n for n in sorted(wanted) if len(n) == len(begin) + 32 + len(ending)]
    return []


def remove_abandoned(path: Path) -> bool:
    """Remove a hidden file or folder if its writer is gone. Returns whether it was removed."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as locks:
        if abandoned(path, locks):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
            return True
    return False


def abandoned(path: Path, locks: contextlib.ExitStack) -> bool:
    """Whether no process holds the lock of a hidden file or folder; if so, this process holds the lock until `locks`
    are released.

    Without locks: whether it is old.
    """
    facts = os.lstat(path)
    if stat.S_ISREG(facts.st_mode) or (stat.S_ISDIR(facts.st_mode) and fcntl is not None):
        if fcntl is not None:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            locks.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    return False
        return time.time() - facts.st_mtime > STALE_S
    return False


def sync_folder(folder: Path) -> None:
    """Sync a folder so that renames in it survive a power loss (not on Windows, which cannot open folders)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
