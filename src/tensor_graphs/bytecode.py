"""Keeps compiled bytecode of PyTorch in the cache folder, where its installation has none and Python writes none.

In images that set PYTHONDONTWRITEBYTECODE, and in folders that the user may not write, Python compiles the sources of
PyTorch, of its exporter and of Triton anew in each process: 2 to 5 s, in a search on a GPU in four processes at once.
There worker processes, and imports in `bytecode_kept`, read and write bytecode in a private folder (about 70 MB). As
elsewhere, the time and size of each source file are compared with those in its bytecode.

Worker processes are told so by environment variables. In the user's process Python's own settings
(`sys.dont_write_bytecode`, `sys.pycache_prefix`) stay as they are: a finder of modules before Python's gives loaders
that read and write bytecode there to modules installed beside PyTorch and to this package's, and to no other module.
"""

from __future__ import annotations

import marshal
import os
import resource
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import MAGIC_NUMBER, find_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

from .cache_folder import private
from .processes.forks import Lock

FOLDER = "bytecode"
PACKAGE = "torch"  # the package that is looked at
HEADER = 16  # bytes before the code in a bytecode file (PEP 552)
ROOM = 256 << 20  # least free bytes where Python itself may write bytecode


def is_missing() -> bool:
    """Whether PyTorch is installed without bytecode, and Python would not write any."""
    spec = _package()
    if spec is not None and spec.origin and spec.cached and not os.path.exists(spec.cached):
        unwritable = not sys.pycache_prefix and not os.access(os.path.dirname(spec.origin), os.W_OK)
        return sys.dont_write_bytecode or unwritable
    return False


def _package() -> ModuleSpec | None:
    """Where PyTorch is installed, without importing it; None if it is not."""
    with suppress(ValueError):  # a module without a specification
        return find_spec(PACKAGE)
    return None


def bytecode_environment() -> dict[str, str]:
    """Environment variables with which a Python process keeps bytecode in the cache folder; none where PyTorch has its
    own, or where the disk is nearly full or files are limited in size: Python keeps the begin of a file that does not
    fit, and then fails to import its module for good (EOFError; before 3.12.8 and 3.13.1)."""
    if not is_missing() or not _has_room(private(FOLDER)):
        return {}
    return {"PYTHONPYCACHEPREFIX": str(private(FOLDER)), "PYTHONDONTWRITEBYTECODE": ""}


def _has_room(folder: Path) -> bool:
    """Whether bytecode of many modules fits into a folder."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return shutil.disk_usage(folder).free >= ROOM and (limit == resource.RLIM_INFINITY or limit >= ROOM)


@contextmanager
def bytecode_kept() -> Iterator[None]:
    """Context manager in which imports, in all threads of this process, of modules installed beside PyTorch and of this
    package's keep bytecode in the cache folder; does nothing where PyTorch has its own."""
    if not is_missing() or (spec := _package()) is None or spec.origin is None:
        yield
        return
    installed = os.path.dirname(os.path.dirname(spec.origin))
    with _finder.active(_Kept((f"{installed}{os.sep}", f"{os.path.dirname(__file__)}{os.sep}"), private(FOLDER))):
        yield


class _Kept(NamedTuple):
    """Which modules' bytecode is kept, and where."""

    sources: tuple[str, ...]  # what the paths of the modules' sources begin with
    folder: Path  # of the bytecode


class _Finder:
    """A finder of modules (`sys.meta_path`) that finds what Python's own finder of source files finds.

    It is registered once and stays: Python reads that list while other threads import. Outside of `active` it finds
    nothing.
    """

    def __init__(self) -> None:
        self._changing = Lock()
        self._active: list[_Kept] = []

    @contextmanager
    def active(self, kept: _Kept) -> Iterator[None]:
        """Context manager in which bytecode of these modules is kept."""
        with self._changing:
            self._active = [*self._active, kept]
            if self not in sys.meta_path and PathFinder in sys.meta_path:
                sys.meta_path.insert(sys.meta_path.index(PathFinder), self)
        try:
            yield
        finally:
            with self._changing:
                at = self._active.index(kept)
                self._active = self._active[:at] + self._active[at + 1 :]

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Where the module `name` is, and how it is loaded; None for a module to which other finders attend."""
        active = self._active
        spec = PathFinder.find_spec(name, path, target) if active else None
        if spec is None or type(spec.loader) is not SourceFileLoader or spec.origin is None or spec.cached is None:
            return None
        for kept in active:
            if spec.origin.startswith(kept.sources) and not os.path.exists(spec.cached):
                spec.loader = _Loader(name, spec.origin, kept.folder)
                return spec
        return None


_finder = _Finder()


class _Loader(SourceFileLoader):
    """Loads a module from its source file, with bytecode below a folder of its own."""

    def __init__(self, name: str, path: str, folder: Path) -> None:
        super().__init__(name, path)
        level = f".opt-{sys.flags.optimize}" if sys.flags.optimize else ""
        source = Path(path)
        below = source.parent.relative_to(source.anchor)
        # as Python names it if the folder is its PYTHONPYCACHEPREFIX: worker processes share it
        self.bytecode = folder / below / f"{source.stem}.{sys.implementation.cache_tag}{level}.pyc"

    def get_code(self, fullname: str) -> CodeType | None:
        """Code of the module: its kept bytecode, or compiled from its source and then kept. Raises SyntaxError, or
        OSError if the source cannot be read."""
        header = self._header()
        with suppress(OSError, EOFError, ValueError, TypeError):
            kept = self.bytecode.read_bytes()
            if kept[:HEADER] == header and isinstance(code := marshal.loads(kept[HEADER:]), CodeType):
                return code
        code = super().get_code(fullname)
        with suppress(OSError):  # no room: compiled again next time
            self.bytecode.parent.mkdir(parents=True, exist_ok=True)
            part = self.bytecode.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
            try:
                part.write_bytes(header + marshal.dumps(code))
                os.replace(part, self.bytecode)
            finally:
                part.unlink(missing_ok=True)
        return code

    def _header(self) -> bytes:
        """First bytes of a bytecode file of the source as it is: version of Python, time and size of the source."""
        source = os.stat(self.path)
        numbers = (0, int(source.st_mtime), source.st_size)  # 0: the time and size are compared
        return MAGIC_NUMBER + b"".join((n & 0xFFFFFFFF).to_bytes(4, "little") for n in numbers)


__all__ = ["bytecode_environment", "bytecode_kept", "is_missing"]
