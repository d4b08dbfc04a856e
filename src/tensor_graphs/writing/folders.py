"""Replaces folders atomically and durably."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from .files import followed, named_errors
from .hidden_files import OLD, PART, abandoned, clean, hidden_path, is_same, leftovers, locked, sync_file, sync_folder

RECORD = "manifest.json"  # a folder without it is no saved program
TRIES = 50  # attempts to rename a folder while other writers do the same
_EXCHANGE = 2  # RENAME_EXCHANGE of linux/fs.h


@contextlib.contextmanager
def replacing_folder(target: Path | str, needed: int | None = None) -> Iterator[Path]:
    """Context manager that yields a new folder, which replaces `target` if the block succeeds.

    Else `target` is unchanged. The older folder is removed. A link is followed. If the file system can exchange two
    names atomically, `target` exists at every moment; otherwise the older folder is moved aside first, and `recover`
    restores it if the process is killed in between. If `target` is this process's current folder, it must be empty, and
    the new files are moved into it, RECORD (the file that lists the others) last: a replaced current folder would leave
    the process in a removed one. Raises UnwritableError, which names the cause, and the bytes `needed` if the disk is
    full.
    """
    with named_errors(target, needed), contextlib.ExitStack() as locks:
        place = followed(target)
        place.parent.mkdir(parents=True, exist_ok=True)
        recover(place)
        within = _is_current(place)
        if within and any(place.iterdir()):
            raise OSError(errno.EBUSY, "it is the current folder, and not empty: change to another folder first")
        part = _new_folder(place, locks)
        try:
            yield part
            for folder, _, files in os.walk(part):
                for name in files:
                    sync_file(Path(folder, name))
                sync_folder(Path(folder))
            with contextlib.suppress(OSError):
                part.chmod(stat.S_IMODE(place.stat().st_mode))
            if within:
                _filled_in(part, place)
            else:
                _into_place(part, place)
            sync_folder(place.parent)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _new_folder(place: Path, locks: contextlib.ExitStack) -> Path:
    """A new folder next to its target, locked until `locks` are released."""
    while True:
        part = hidden_path(place, PART)
        part.mkdir()
        if os.name == "nt":
            return part
        try:
            descriptor = os.open(part, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        locks.callback(os.close, descriptor)
        if locked(descriptor) and is_same(descriptor, part):
            return part


def _into_place(part: Path, place: Path) -> None:
    """Rename a folder to its target and remove the older one. Concurrent writers may do the same: the last one wins."""
    for attempt in range(TRIES):
        try:
            if not place.is_dir():
                os.rename(part, place)
                return
            if _exchanged(part, place):
                shutil.rmtree(part, ignore_errors=True)
                return
            _aside(part, place)
            return
        except OSError as error:
            raced = (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY)
            if error.errno not in raced or attempt == TRIES - 1:
                raise


def _is_current(place: Path) -> bool:
    """Whether a folder is this process' current one."""
    with contextlib.suppress(OSError):
        return os.path.samefile(place, os.curdir)
    return False


def _filled_in(part: Path, place: Path) -> None:
    """Move the content of one folder into another that is empty; the manifest (RECORD), without which a folder is no
    saved program, comes last."""
    for name in sorted(os.listdir(part), key=lambda name: (name == RECORD, name)):
        os.rename(part / name, place / name)
    sync_folder(place)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two folders atomically. False if the system or the file system does not support it."""
    import ctypes

    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    here = -100  # AT_FDCWD
    if call(here, os.fsencode(one), here, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number == errno.ENOENT:
        raise OSError(number, os.strerror(number))
    return False


def _aside(part: Path, place: Path) -> None:
    """Replace a folder in two steps: move the older one aside, and back if the second step fails."""
    with contextlib.ExitStack() as locks:
        if os.name != "nt":
            descriptor = os.open(place, os.O_RDONLY)
            locks.callback(os.close, descriptor)
            locked(descriptor)
        old = hidden_path(place, OLD)
        os.rename(place, old)
        try:
            os.rename(part, place)
        except OSError:
            with contextlib.suppress(OSError):
                os.rename(old, place)
            raise
        finally:
            if place.exists():
                shutil.rmtree(old, ignore_errors=True)


def recover(place: Path) -> None:
    """Restore the folder `place` if a killed process had moved it aside, and remove leftovers of killed processes."""
    if not place.exists():
        for old in leftovers(place, OLD):
            with contextlib.suppress(OSError), contextlib.ExitStack() as locks:
                if abandoned(old, locks):
                    os.rename(old, place)
                    break
    clean(place)
