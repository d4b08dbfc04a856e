"""Lazy weights: arrays backed by a region of a file, copied or memory-mapped on first use."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ...egraph.ir import dtypes
from ...errors import BadWeightsError

COPIED = 1 << 20  # maximum bytes of an array that is copied; larger ones are mapped


@dataclass(frozen=True)
class MappedArray:
    """A lazy array: `shape` elements of `dtype` (little-endian, C order), `offset` bytes into the file `path`.

    The file is read only when `load` is called.
    """

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return prod(self.shape) * dtypes.itemsize(self.dtype)

    def load(self) -> np.ndarray[Any, Any]:
        """Return a read-only array: a copy up to 1 MiB, else over the memory-mapped file.

        Raises BadWeightsError if the file cannot be read or is too short. If a mapped file is cut short later, the
        operating system ends the process at the next read of a lost page (SIGBUS).
        """
        if self.nbytes == 0:
            return np.zeros(self.shape, dtypes.numpy_dtype(self.dtype))
        try:
            size = self.path.stat().st_size
        except OSError as error:
            raise BadWeightsError(f"{self.path.name} cannot be read: {error.strerror}", where=str(self.path)) from None
        if self.offset + self.nbytes > size:
            raise BadWeightsError(
                f"{self.path.name} holds {size} bytes, a tensor needs {self.offset}+{self.nbytes}", where=str(self.path)
            )
        try:
            if self.nbytes <= COPIED:
                raw = self._copied()
            else:
                raw = np.memmap(self.path, dtype=np.uint8, mode="r", offset=self.offset, shape=(self.nbytes,))
        except (OSError, ValueError, OverflowError) as error:
            raise BadWeightsError(f"{self.path.name} cannot be mapped: {error}", where=str(self.path)) from None
        return raw.view(dtypes.numpy_dtype(self.dtype)).reshape(self.shape)

    def _copied(self) -> np.ndarray[Any, Any]:
        """The bytes, read into memory. ValueError if the file has become shorter."""
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.offset)
            content = file.read(self.nbytes)
        if len(content) != self.nbytes:
            raise ValueError("it has become shorter")
        return np.frombuffer(content, np.uint8)
