"""Holds the data of a graph's parameters: arrays, or sources that read them from files when they are needed."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ...errors import BadWeightsError
from ...plain import Malformed, file_identity, opened


@runtime_checkable
class ArraySource(Protocol):
    """Protocol of lazily loaded weight data (memory-mapped files)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes along the axes."""
        ...

    @property
    def dtype(self) -> str:
        """Name of the dtype."""
        ...

    def load(self) -> np.ndarray[Any, Any]:
        """Read the array from its file, and return it."""
        ...


@runtime_checkable
class ComputedData(Protocol):
    """Protocol of weight data that is computed from other weight data, the same from equal data: its `sources` and its
    `recipe` stand for its content."""

    @property
    def sources(self) -> Sequence[Data]:
        """The weight data that this data is computed from."""
        ...

    @property
    def recipe(self) -> tuple[object, ...]:
        """What the data depends on beside its sources: names and numbers whose `repr` is equal in every process."""
        ...


class DerivedData(ABC):
    """Base of lazily computed weight data (`ComputedData`) that a device may compute, such as codes of a quantized
    weight."""

    @property
    @abstractmethod
    def sources(self) -> Sequence[Data]:
        """The weight data that this data is computed from."""

    @property
    @abstractmethod
    def recipe(self) -> tuple[object, ...]:
        """What the data depends on beside its sources (`ComputedData.recipe`)."""

    @abstractmethod
    def load_on(self, device: str) -> Any | None:
        """Compute the data as a row-major tensor on a Torch device; None if that is not possible there.

        The tensor is equal to the array that `load` returns, bit for bit. Callers share it and must not write to it.
        """


Data = np.ndarray[Any, Any] | ArraySource


class MappedFile(np.memmap[Any, Any]):
    """The bytes of a region of a mapped file, uint8[n].

    They change if the file is written, and the operating system ends the process if it is cut short (SIGBUS): what
    outlives a search is `detached`. `path`: absolute. `identity`: the file's (`plain.file_identity`) when its header
    was read; () if it may have changed since.
    """

    path = Path()
    identity: tuple[int, ...] = ()

    def read(self) -> np.ndarray[Any, Any]:
        """The bytes, read from the file into memory of their own: uint8[n].

        Raises BadWeightsError if the file is not the one that was mapped any more.
        """
        path, found = self.path, np.empty(self.size, np.uint8)
        try:
            with opened(path, 1 << 62) as file:
                file.seek(int(self.offset))
                whole = file.readinto(found.data) == found.size
                same = not self.identity or file_identity(file.fileno()) == self.identity
        except (OSError, Malformed) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise BadWeightsError(f"{path.name} cannot be read: {reason}", where=str(path)) from None
        if not whole or not same:
            raise BadWeightsError(
                f"{path.name} was replaced or written after it was opened", where=str(path), hint="load the model again"
            )
        return found


#: Bytes read from files, while an array over them is in use: (path, offset, size, identity) -> uint8[n].
_read: weakref.WeakValueDictionary[Any, np.ndarray[Any, Any]] = weakref.WeakValueDictionary()


def detached(array: Any) -> Any:
    """An equal array with the same strides that is not over a mapped file; `array` itself if it is not over one, or no
    NumPy array.

    Arrays over the same region share memory. Raises BadWeightsError if the file has changed since it was mapped.
    """
    root = array
    while isinstance(getattr(root, "base", None), np.ndarray):
        root = root.base
    if not isinstance(root, MappedFile):
        return array
    key = root.path, root.offset, root.size, root.identity
    held = _read.get(key) if root.identity else None
    if held is None:
        held = _read[key] = root.read()
    start = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    found = np.ndarray(array.shape, array.dtype, held, start, array.strides)
    found.flags.writeable = False
    return found


def load_data(data: Data) -> np.ndarray[Any, Any]:
    """Weight data as an array; a lazy source is read from its file now."""
    return data if isinstance(data, np.ndarray) else data.load()
