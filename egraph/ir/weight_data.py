"""Holds the data of a graph's parameters: arrays, or sources that read them from files when they are needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class ArraySource(Protocol):
    """Protocol of lazily loaded weight data (regions of files: `file_array.FileArray`)."""

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


def load_data(data: Data) -> np.ndarray[Any, Any]:
    """Weight data as an array; a lazy source is read from its file now."""
    return data if isinstance(data, np.ndarray) else data.load()
