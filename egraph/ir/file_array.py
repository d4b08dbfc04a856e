"""Holds lazy weights: arrays stored in a region of a file, read into memory when they are needed.

Files are read, never memory-mapped: a mapped file that is written changes values, and one that is cut short ends the
process (SIGBUS).
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...errors import BadWeightsError
from ...plain import Malformed, file_identity, opened
from ..types import dtypes
from .page_digest import PAGE, page_digest

LARGEST_READ = 1 << 30  # bytes of one read; Linux reads at most 2^31 - 4096

#: Bytes of regions with an identity, while an array over them is in use: (path, offset, bytes, identity) -> uint8[n].
_read: weakref.WeakValueDictionary[Any, np.ndarray[Any, Any]] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class FileArray:
    """A lazy array: `shape` elements of `dtype` (little-endian, C order), `offset` bytes into the file `path`.

    The file is read only when `load` or `pieces` is called. `identity`: the file's (`plain.file_identity`) when its
    header was read; () if it may have changed since. `digest`: that of the bytes (`page_digest`), which reading
    compares; None if it is unknown.
    """

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: str
    identity: tuple[int, ...] = ()
    digest: int | None = None

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return prod(self.shape) * dtypes.itemsize(self.dtype)

    def load(self) -> np.ndarray[Any, Any]:
        """Return a read-only array in memory of its own, which equal regions share while one of their arrays is in use.

        Raises BadWeightsError if the file cannot be read, is too short, was replaced or written since its header was
        read, or has other bytes than `digest` says.
        """
        key = self.path.absolute(), self.offset, self.nbytes, self.identity
        raw = _read.get(key) if self.identity else None
        if raw is None:
            raw = self._bytes()
            raw.flags.writeable = False
            if self.identity:
                _read[key] = raw
        else:
            with self._opened():  # the file may have been written since
                pass
        return self._shaped(raw)

    def copy(self) -> np.ndarray[Any, Any]:
        """Return a new array that the caller may write to. Raises as `load` does."""
        return self._shaped(self._bytes())

    def _bytes(self) -> np.ndarray[Any, Any]:
        raw = np.empty(self.nbytes, np.uint8)
        for _ in self.pieces([raw]):
            pass
        return raw

    def _shaped(self, raw: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return raw.view(dtypes.numpy_dtype(self.dtype)).reshape(self.shape)

    def pieces(self, buffers: Sequence[np.ndarray[Any, Any]]) -> Iterator[tuple[int, int]]:
        """Read the bytes into `buffers` (uint8 arrays of one length) in turn; yields (offset, bytes) of each piece when
        its buffer holds it. Raises as `load` does, and ValueError with a `digest` if pieces are not of whole pages."""
        if not self.nbytes:
            return
        if self.digest is not None and buffers[0].size < self.nbytes and buffers[0].size % PAGE:
            raise ValueError(f"pieces of {buffers[0].size} bytes are not of whole pages of {PAGE}")
        found = 0
        with self._opened() as file:
            for turn, start in enumerate(range(0, self.nbytes, buffers[0].size)):
                count = min(buffers[0].size, self.nbytes - start)
                place = buffers[turn % len(buffers)][:count]
                self._fill(file, place)
                found = found if self.digest is None else page_digest(place, found)
                yield start, count
            self._refuse_changed(file)
        if self.digest is not None and found != self.digest:
            raise BadWeightsError(
                f"{self.path.name} is damaged: bytes {self.offset} to {self.offset + self.nbytes} are not those that"
                " were saved",
                where=str(self.path), hint="save the program again",
            )  # fmt: skip

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        """The file at the array's first byte. Raises as `load` does."""
        try:
            with opened(self.path, 1 << 62) as file:
                size = os.fstat(file.fileno()).st_size
                if self.offset + self.nbytes > size:
                    raise Malformed(
                        f"{self.path.name} has {size} bytes, but a tensor lies at bytes {self.offset} to "
                        f"{self.offset + self.nbytes}"
                    )
                self._refuse_changed(file)
                file.seek(self.offset)
                yield file
        except Malformed as error:
            raise BadWeightsError(str(error), where=str(self.path)) from None
        except (OSError, ValueError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise BadWeightsError(f"{self.path.name} cannot be read: {reason}", where=str(self.path)) from None

    def _fill(self, file: BinaryIO, place: np.ndarray[Any, Any]) -> None:
        """Read the next bytes of the file into `place`, uint8[n]."""
        for start in range(0, place.size, LARGEST_READ):
            part = place[start : start + LARGEST_READ]
            if file.readinto(part.data) != part.size:  # type: ignore[attr-defined]
                raise Malformed(f"{self.path.name} has become shorter")

    def _refuse_changed(self, file: BinaryIO) -> None:
        if self.identity and file_identity(file.fileno()) != self.identity:
            raise BadWeightsError(
                f"{self.path.name} was replaced or written after it was opened", where=str(self.path),
                hint="load the model again",
            )  # fmt: skip


__all__ = ["FileArray"]
