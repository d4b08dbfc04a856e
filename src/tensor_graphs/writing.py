"""Atomic, durable writing of output files and folders.

At every moment the complete old or the complete new version exists.

Content is written next to its target under a hidden name, synced to disk and renamed. A writer holds a lock on its
hidden file, so what a killed process left is recognized by its free lock and removed by the next writer or reader.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

from .errors import UnwritableError, UsageError

try:
    import fcntl
except ImportError:  # Windows: leftovers are recognized by age only
    fcntl = None  # type: ignore[assignment]

PART, OLD, KEPT = ".part", ".old", ".kept"  # hidden name suffixes: being written, replaced folder, replaced file
RECORD = "manifest.json"  # a folder without it is no saved program
TRIES = 50  # attempts to rename a folder while other writers do the same
STALE_S = 3600.0  # age in seconds from which a hidden file is a leftover, if there are no locks
_EXCHANGE = 2  # RENAME_EXCHANGE of linux/fs.h
_NO_LOCKS = (errno.ENOLCK, errno.EBADF, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


# ---------------------------------------------------------------- names
def named_path(path: str | os.PathLike[str]) -> Path:
    """A path that the file system can name.

    Raises UsageError for values that are not paths, NUL characters, lone surrogates, and names that are too long.
    """
    if not isinstance(path, str | os.PathLike) or isinstance(found := os.fspath(path), bytes):
        raise UsageError(f"a {type(path).__name__} is no path", hint="give a str or a pathlib.Path")
    try:
        os.lstat(found)
    except ValueError as error:
        raise UsageError(f"no file can be called {found[:80]!r}: {error}") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UsageError(f"no file can be called {found[:80]!r}…: {error.strerror}") from None
    return Path(found)


# ---------------------------------------------------------------- files
@contextlib.contextmanager
def named_errors(path: Path | str, needed: int | None = None) -> Iterator[None]:
    """Context manager that converts an OSError to UnwritableError, with the needed and free bytes if the disk is
    full."""
    try:
        yield
    except OSError as error:
        raise _unwritable(error, Path(path), needed) from error


def _unwritable(error: OSError, path: Path, needed: int | None) -> UnwritableError:
    reason = f"{path.name or path} could not be written: {error.strerror or error}"
    hint = "name another place"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        hint = "make room, or name another place"
        if needed is not None:
            reason += f"; it needs {needed} bytes"
        with contextlib.suppress(OSError):
            reason += f", {shutil.disk_usage(_above(path)).free} are free"
    return UnwritableError(reason, where=str(path), hint=hint)


def _above(path: Path) -> Path:
    """The nearest existing parent folder of a path."""
    return next(p for p in Path(os.path.abspath(path)).parents if p.exists())


@contextlib.contextmanager
def replacing(path: Path | str, needed: int | None = None) -> Iterator[BinaryIO]:
    """Context manager that yields a file; its content atomically replaces `path` if the block succeeds.

    If the block raises, `path` is unchanged. Links are followed; mode and, if permitted, owner of an older file are
    kept; missing folders are created. Devices, pipes and paths in /dev or /proc (/dev/stdout) are written directly.
    `needed`: bytes to be written, for the message of UnwritableError. Raises UsageError for a path that no file can
    have.
    """
    path, counted = named_path(path), _Counted()
    try:
        with replacing_raw(path) as file:
            counted.file = file
            yield counted  # type: ignore[misc]
    except OSError as error:
        raise _unwritable(error, Path(path), counted.bytes if needed is None else needed) from error


class _Counted:
    """A binary file that counts the bytes written."""

    file: IO[bytes]

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, content: bytes | memoryview) -> int:
        """Write all of `content`; returns its number of bytes."""
        self.bytes += content.nbytes if isinstance(content, memoryview) else len(content)
        return self.file.write(content)

    def flush(self) -> None:
        """Flush the buffer to the operating system."""
        self.file.flush()

    def tell(self) -> int:
        """Bytes written so far."""
        return self.bytes


def write_bytes(path: Path | str, content: bytes) -> None:
    """Replace a file's content atomically; see `replacing`."""
    with replacing(path, len(content)) as file:
        file.write(content)


def write_text(path: Path | str, text: str) -> None:
    """Replace a file's content by a UTF-8 text atomically; see `replacing`."""
    write_bytes(path, text.encode("utf-8", "surrogateescape"))


@contextlib.contextmanager
def replacing_raw(path: Path | str, *, tidy: bool = True) -> Iterator[IO[bytes]]:
    """Context manager as `replacing` with plain OSErrors, for callers that continue without the file.

    `tidy`: also remove leftovers of killed processes (takes time proportional to the folder's size).
    """
    if is_stream(path):
        yield from _streamed(Path(path))
        return
    target = _followed(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if tidy:
        clean(target)
    with _part(target) as (file, part):
        yield file
        file.flush()
        _take_over(file.fileno(), target)
        os.fsync(file.fileno())
        os.replace(part, target)
    sync_folder(target.parent)


def _followed(path: Path | str) -> Path:
    """The path with all links followed.

    Raises OSError for a link that the operating system does not follow: one that leads to itself, or another user's in
    a sticky folder such as /tmp (`realpath` alone would follow the latter).
    """
    with contextlib.suppress(FileNotFoundError):
        os.stat(path)
    return Path(os.path.realpath(path))


def is_stream(path: Path | str) -> bool:
    """Whether a path is written directly: a device, pipe or socket, or a path in /dev or /proc."""
    text = os.path.abspath(path)
    if text.startswith(("/dev/std", "/dev/fd/", "/proc/self/fd/")):
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _streamed(path: Path) -> Iterator[IO[bytes]]:
    buffer = io.BytesIO()  # written at once at the end, as atomically as a stream allows
    yield buffer
    names = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
    text = os.path.abspath(path)
    number = names.get(text)
    if number is None and text.startswith(("/dev/fd/", "/proc/self/fd/")) and path.name.isdigit():
        number = int(path.name)
    descriptor = os.dup(number) if number is not None else os.open(path, os.O_WRONLY | os.O_APPEND)
    with open(descriptor, "wb") as file:
        file.write(buffer.getbuffer())


@contextlib.contextmanager
def _part(target: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """A new locked file next to its target; removed afterwards unless it was renamed."""
    while True:
        part = _hidden(target, PART)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        if _locked(descriptor) and _same(descriptor, part):
            break
        os.close(descriptor)  # another process removed it as a leftover between creation and locking
    try:
        with open(descriptor, "wb") as file:
            yield file, part
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)


def _take_over(descriptor: int, target: Path) -> None:
    """Copy mode and, if permitted, owner of the older file to the new one."""
    try:
        facts = os.stat(target)
    except OSError:
        return
    if hasattr(os, "fchown"):
        with contextlib.suppress(OSError):
            os.fchown(descriptor, facts.st_uid, facts.st_gid)
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, stat.S_IMODE(facts.st_mode))


@contextlib.contextmanager
def undone_on_failure(path: Path) -> Iterator[None]:
    """Context manager for replacing `path` and then another file that belongs to it: `path` is restored if the block
    fails.

    If the process is killed in the block, `kept_versions` finds the older file.
    """
    clean_kept(path)
    kept = _hidden(path, KEPT)
    older = path.is_file()
    if older:
        try:
            os.link(path, kept)
        except OSError:  # a file system without hard links
            shutil.copy2(path, kept)
    try:
        yield
    except BaseException:
        if older:
            os.replace(kept, path)
        else:
            path.unlink(missing_ok=True)
        raise
    finally:
        kept.unlink(missing_ok=True)


def kept_versions(path: Path) -> list[Path]:
    """Older versions of `path`, left by processes killed inside `undone_on_failure`."""
    return _left(path, KEPT)


def clean_kept(path: Path) -> None:
    """Remove the older versions of a file that is known to be complete."""
    for kept in kept_versions(path):
        kept.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Sync a folder so that renames in it survive a power loss (not on Windows, which cannot open folders)."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------- folders
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
        place = _followed(target)
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
                    _sync_file(Path(folder, name))
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
        part = _hidden(place, PART)
        part.mkdir()
        if os.name == "nt":
            return part
        try:
            descriptor = os.open(part, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        locks.callback(os.close, descriptor)
        if _locked(descriptor) and _same(descriptor, part):
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
    """Move the content of one folder into another that is empty, RECORD last."""
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
            _locked(descriptor)
        old = _hidden(place, OLD)
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
        for old in _left(place, OLD):
            with contextlib.suppress(OSError), contextlib.ExitStack() as locks:
                if _abandoned(old, locks):
                    os.rename(old, place)
                    break
    clean(place)


# ---------------------------------------------------------------- leftovers of killed processes
def clean(target: Path) -> int:
    """Remove leftovers of writing `target`; return how many files and folders were removed."""
    return sum(map(remove_abandoned, [*_left(target, PART), *_left(target, OLD)]))


def _left(target: Path, ending: str) -> list[Path]:
    """Hidden files and folders with the name pattern of writing `target`."""
    begin = f".{_short(target.name)}."
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        wanted = [e.name for e in entries if e.name.startswith(begin) and e.name.endswith(ending)]
        return [target.parent / n for n in sorted(wanted) if len(n) == len(begin) + 32 + len(ending)]
    return []


def remove_abandoned(path: Path) -> bool:
    """Remove a hidden file or folder if its writer is gone. Returns whether it was removed."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as locks:
        if _abandoned(path, locks):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
            return True
    return False


def _abandoned(path: Path, locks: contextlib.ExitStack) -> bool:
    """Whether no process holds the lock of a hidden file or folder; the lock is then held until `locks` are released.

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


def _locked(descriptor: int) -> bool:
    """Lock an open file until it is closed. Also True if the file system has no locks."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _NO_LOCKS
    return True


def _same(descriptor: int, path: Path) -> bool:
    """Whether a path still names the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def _hidden(target: Path, ending: str) -> Path:
    if not target.name:  # the root of the file system
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    return target.with_name(f".{_short(target.name)}.{uuid.uuid4().hex}{ending}")


def _short(name: str) -> str:
    """A name truncated so that the hidden name made from it is not too long."""
    return os.fsdecode(os.fsencode(name)[:180]) if len(os.fsencode(name)) > 180 else name


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


__all__ = [
    "clean",
    "clean_kept",
    "is_stream",
    "kept_versions",
    "named_errors",
    "recover",
    "remove_abandoned",
    "replacing",
    "replacing_folder",
    "replacing_raw",
    "sync_folder",
    "undone_on_failure",
    "write_bytes",
    "write_text",
]
