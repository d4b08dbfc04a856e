"""Writes files atomically and durably.

Content is written next to its target under a hidden name, synced to disk and renamed.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

from ..errors import UnwritableError, UsageError
from ..wording import with_article
from .hidden_files import KEPT, PART, clean, hidden_path, is_same, leftovers, locked, sync_folder


def named_path(path: str | os.PathLike[str]) -> Path:
    """A path that the file system can name. A first component "~" is the user's home folder, which the shell has not
    put in where the path stands in quotes, after `--name=` or in a setting.

    Raises UsageError for values that are not paths, NUL characters, lone surrogates, and names that are too long.
    """
    if not isinstance(path, str | os.PathLike) or isinstance(found := os.fspath(path), bytes):
        raise UsageError(f"{with_article(type(path).__name__)} is no path", hint="give a str or a pathlib.Path")
    if found.partition("/")[0] == "~":
        found = os.path.expanduser(found)
    try:
        os.lstat(found)
    except ValueError as error:
        raise UsageError(f"no file can be called {found[:80]!r}: {error}") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UsageError(f"no file can be called {found[:80]!r}…: {error.strerror}") from None
    return Path(found)


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
def replacing_raw(path: Path | str, *, tidy: bool = True, own: bool = False) -> Iterator[IO[bytes]]:
    """Context manager as `replacing` with plain OSErrors, for callers that continue without the file.

    `tidy`: also remove leftovers of killed processes (takes time proportional to the folder's size). `own`: the file is
    one of this package's caches or stores: a link, pipe or device in its place is replaced, not written to.
    """
    if not own and is_stream(path):
        yield from _streamed(Path(path))
        return
    target = followed(Path(path).parent) / Path(path).name if own else followed(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if tidy:
        clean(target)
    with _part(target) as (file, part):
        yield file
        file.flush()
        if not own:
            _take_over(file.fileno(), target)
        os.fsync(file.fileno())
        os.replace(part, target)
    sync_folder(target.parent)


def followed(path: Path | str) -> Path:
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
    """Context manager: (file, path) of a new locked file next to its target, removed at the end unless renamed."""
    while True:
        part = hidden_path(target, PART)
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        if locked(descriptor) and is_same(descriptor, part):
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
    kept = hidden_path(path, KEPT)
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
    """Older versions of `path` that remained because a process was killed while it replaced `path` (inside
    `undone_on_failure`)."""
    return leftovers(path, KEPT)


def clean_kept(path: Path) -> None:
    """Remove the older versions of a file that is known to be complete."""
    for kept in kept_versions(path):
        kept.unlink(missing_ok=True)
