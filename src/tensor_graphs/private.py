"""Folders and files that no other user can change: the only places from which compiled code and plans are loaded.

Trust is based on ownership and permissions: a folder is private if it and all its parents belong to this user or to
root and nobody else can write to them. So this user wrote its content. The checksum at the end of each file detects
damage, not attacks.

The functions use only the standard library and no constants of this module: emitted programs contain copies of their
source, docstrings included.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from pathlib import Path


def unsafe_folder(folder: Path) -> str:
    """The reason why another user could put files into `folder` or replace it; "" if none could. A folder that does not
    exist is safe if one can be made there.

    The folder must belong to this user, must not be a link, and must be writable by nobody else. Folders and links that
    lead to it must belong to this user or to root, and the folders must be writable by nobody else or be sticky, as
    /tmp is. (Where files have no owners, as on Windows, all folders are safe.)
    """
    import stat

    if not hasattr(os, "getuid"):
        return ""
    try:
        whole = (
            folder if folder.is_absolute() else Path.cwd() / folder
        )  # with its "..": after a link, ".." is the parent of the link's target
    except FileNotFoundError:
        return "the current folder was removed"
    place, links = Path(whole.anchor), 0
    todo = list(reversed(whole.parts[1:]))
    while True:
        try:
            facts = os.lstat(place)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"{place} cannot be looked at ({error.strerror})"
        if facts.st_uid not in ((0, os.getuid()) if todo else (os.getuid(),)):
            return f"{place} belongs to another user"
        if stat.S_ISLNK(facts.st_mode):
            links += 1
            if not todo or links > 40:
                return f"{place} is a link"
            target = Path(os.readlink(place))
            todo += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            place = Path(target.anchor) if target.is_absolute() else place.parent
        elif not stat.S_ISDIR(facts.st_mode):
            return f"{place} is not a folder"
        elif facts.st_mode & 0o022 and not (facts.st_mode & stat.S_ISVTX and todo):
            return f"{place} can be written by other users"
        elif not todo:
            return ""
        if todo:
            name = todo.pop()
            place = place.parent if name == ".." else place / name


def private_folder(folder: Path) -> str:
    """Make `folder`, and the folders above it that are missing, with mode 0700. Returns the reason why the folder
    cannot be used; "" if it can.
    """
    why = unsafe_folder(folder)
    if why:
        return why
    try:
        for one in reversed([folder, *folder.parents]):
            if not one.is_dir():
                one.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        return f"{folder} cannot be made ({error.strerror or error})"
    why = unsafe_folder(folder)
    return why or ("" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} cannot be written: it is read-only")


def code_folder(name: str) -> Path | None:
    """The folder `name` for compiled code, below TENSOR_GRAPHS_HOME or the user's cache folder. None, with a warning,
    where it cannot be written or other users can write to it."""
    home = os.environ.get("TENSOR_GRAPHS_HOME")
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tensor_graphs"
    except RuntimeError:  # no HOME, and a user without an entry in the password file
        cache = Path("~")
    folder = (Path(home) if home else cache) / name
    known = bool(home) or cache.is_absolute()  # never below the current folder, which may be anybody's archive
    why = private_folder(folder) if known else "the home folder is not known"
    if why:
        hint = "set TENSOR_GRAPHS_HOME to a folder that only you can write"
        warnings.warn(f"{why}: compiled kernels are not kept ({hint})", stacklevel=2)
    return None if why else folder


def temporary_place() -> str:
    """A folder for temporary folders of compiled code: the system's (TMPDIR), else /tmp or /var/tmp. Raises
    RuntimeError if other users can rename files in all of these folders, as in a shared folder that is not sticky.
    """
    import tempfile

    places = [tempfile.gettempdir(), "/tmp", "/var/tmp"]
    for place in places:
        if (
            os.path.isdir(place)
            and os.access(place, os.W_OK)
            and not unsafe_folder(Path(place) / f"tensor-graphs-{os.urandom(8).hex()}")
        ):
            return place
    raise RuntimeError(
        f"other users can replace code in the temporary folder {places[0]}: set TMPDIR to a folder of your own"
    )


def sealed(content: bytes, name: str = "") -> bytes:
    """The content followed by its SHA-256, the format that `read_sealed` reads. (A checksum behind the end of an ELF
    file does not hinder loading it.) The checksum covers `name` as well, so that the content of a file of another name
    is refused."""
    return content + b"\nsha256 " + hashlib.sha256(name.encode() + content).hexdigest().encode()


def read_sealed(path: Path, most: int = 1 << 28, name: str = "") -> bytes:
    """The content of a file of at most `most` bytes in a private folder, without its checksum. `name`: as for `sealed`.

    Raises FileNotFoundError if there is no file, another OSError if it cannot be read or is a link; ValueError if it is
    not a regular file, can be written by another user, is too large, or does not match its checksum.
    """
    import stat

    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise ValueError("it is not a plain file")
        if hasattr(os, "getuid") and (facts.st_uid != os.getuid() or facts.st_mode & 0o022):
            raise ValueError("another user can write it")
        if facts.st_size > most:
            raise ValueError(f"it has more than {most} bytes")
        whole = file.read(facts.st_size + 1)
    content = whole[:-72]
    if sealed(content, name) != whole:
        raise ValueError("it does not have the checksum that it ends with")
    return content


__all__ = ["code_folder", "private_folder", "read_sealed", "sealed", "temporary_place", "unsafe_folder"]
