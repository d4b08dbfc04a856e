"""Holds lazy weights: arrays backed by a region of a file, copied or memory-mapped on first use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ...egraph.ir.weight_data import MappedFile
from ...egraph.types import dtypes
from ...errors import BadWeightsError
from ...plain import file_identity

COPIED = 1 << 20  # maximum bytes of an array that is copied; larger ones are mapped


@dataclass(frozen=True)
class MappedArray:
    """A lazy array: `shape` elements of `dtype` (little-endian, C order), `offset` bytes into the file `path`.

    The file is read only when `load` is called. `identity`: the file's (`plain.file_identity`) when its header was
    read; () if it may have changed since.
    """

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: str
    identity: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return prod(self.shape) * dtypes.itemsize(self.dtype)

    def load(self) -> np.ndarray[Any, Any]:
        """Return a read-only array: a copy up to 1 MiB, else over the memory-mapped file.

        Raises BadWeightsError if the file cannot be read, is too short, or was replaced or written since its header was
        read. A mapped file that is written later changes the array; if it is cut short, the operating system ends the
        process at the next read of a lost page (SIGBUS). Programs hold `detached` arrays.
        """
        if self.nbytes == 0:
            return np.zeros(self.shape, dtypes.numpy_dtype(self.dtype))
        try:
            with open(self.path, "rb", buffering=0, opener=opened_without_waiting) as file:
                raw = self._bytes(file)
        except (OSError, ValueError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise BadWeightsError(f"{self.path.name} cannot be read: {reason}", where=str(self.path)) from None
        return raw.view(dtypes.numpy_dtype(self.dtype)).reshape(self.shape)

    def _bytes(self, file: FileIO) -> np.ndarray[Any, Any]:
        """The array's bytes: copied, or mapped. Raises ValueError if the file has become shorter."""
        size = os.fstat(file.fileno()).st_size
        if self.offset + self.nbytes > size:
            raise BadWeightsError(
                f"{self.path.name} has {size} bytes, but a tensor lies at bytes {self.offset} to {self.offset + self.nbytes}",
                where=str(self.path),
            )
        if self.nbytes > COPIED:
            self._refuse_changed(file)
            mapped = MappedFile(file, dtype=np.uint8, mode="r", offset=self.offset, shape=(self.nbytes,))
            mapped.path, mapped.identity = self.path.absolute(), self.identity
            return mapped
        file.seek(self.offset)
        content = file.read(self.nbytes)
        self._refuse_changed(file)
        if len(content) != self.nbytes:
            raise ValueError("it has become shorter")
        return np.frombuffer(content, np.uint8)

    def _refuse_changed(self, file: FileIO) -> None:
        if self.identity and file_identity(file.fileno()) != self.identity:
            raise BadWeightsError(
                f"{self.path.name} was replaced or written after it was opened", where=str(self.path),
                hint="load the model again",
            )  # fmt: skip


def opened_without_waiting(path: str, flags: int) -> int:
    """A descriptor of a file, opened with `os.open` flags; does not wait if a pipe is in the file's place."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
