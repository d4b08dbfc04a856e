"""Data of a graph's parameters: arrays, or sources that read them from files when they are needed."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np


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
        """Read and return the array."""
        ...


Data = np.ndarray[Any, Any] | ArraySource


def load_data(data: Data) -> np.ndarray[Any, Any]:
    """Weight data as an array; a lazy source is read from its file now."""
    return data if isinstance(data, np.ndarray) else data.load()
