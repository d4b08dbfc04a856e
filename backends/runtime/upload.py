"""Converts weight data to Torch tensors on a device, and to arrays."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np

from ...costdb.keys.device import GPU_KIND
from ...egraph.ir.weight_data import Data, DerivedData, load_data
from ...egraph.types import dtypes
from .cpu_tensors import array_of, tensor_of

Array = np.ndarray[Any, Any]


def uploaded(data: Data, device: str) -> Any:
    """The weight `data` as a tensor on a Torch device. Callers must not write to it, since it may share memory with the
    data.

    A GPU computes derived data itself (`DerivedData.load_on`), which is faster than NumPy and copies nothing back.
    """
    if device.startswith(GPU_KIND):
        if isinstance(data, DerivedData) and (found := data.load_on(device)) is not None:
            return found
        return tensor_of(load_data(data)).to(device)
    return tensor_of(np.array(load_data(data))).to(device)  # memory of its own


def downloaded(data: Data, device: str) -> Array:
    """The weight `data` as a NumPy array. Derived data is computed on the Torch device `device`, if that is a GPU, and
    copied from there."""
    if device.startswith(GPU_KIND) and isinstance(data, DerivedData) and (found := data.load_on(device)) is not None:
        return array_of(found)
    return load_data(data)


def copied_bytes(leaves: Iterable[Data]) -> int:
    """Bytes that `uploaded` copies to a GPU for the weights `leaves`: those of the sources of derived data,
    each once."""
    found: dict[int, Data] = {}
    for data in leaves:
        found |= {id(d): d for d in (data.sources if isinstance(data, DerivedData) else (data,))}
    return sum(prod(d.shape) * dtypes.itemsize(dtypes.name_of(d.dtype)) for d in found.values())


__all__ = ["copied_bytes", "downloaded", "uploaded"]
