"""Converts weight data to Torch tensors on a device, and to arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from ...costdb.keys.device import GPU_KIND
from ...egraph.ir.file_array import FileArray
from ...egraph.ir.weight_data import Data, DerivedData, load_data
from ...egraph.types import dtypes
from .cpu_tensors import array_of, tensor_of

Array = np.ndarray[Any, Any]
PIECE = 1 << 24  # bytes of each of two buffers through which a weight is copied to a device
Pieces = Iterator[tuple[int, int]]  # (offset, bytes) of each piece of a weight, when its buffer holds it


def uploaded(data: Data, device: str) -> Any:
    """The weight `data` as a tensor on a Torch device. Callers must not write to it, since it may share memory with the
    data.

    A GPU computes derived data itself (`DerivedData.load_on`), which is faster than NumPy and copies nothing back.
    """
    if device.startswith(GPU_KIND):
        if isinstance(data, DerivedData) and (found := data.load_on(device)) is not None:
            return found
        return (
            uploaded_file(data, device)
            if isinstance(data, FileArray)
            else uploaded_tensor(tensor_of(load_data(data)), device)
        )
    return tensor_of(np.array(load_data(data))).to(device)  # memory of its own


def uploaded_file(data: FileArray, device: str) -> Any:
    """A region of a file as a row-major tensor on a Torch device. A large one is read and copied in pieces, so that the
    host's memory holds two of them at a time. Raises BadWeightsError as `FileArray.load` does."""
    import torch

    if data.nbytes <= PIECE:
        return tensor_of(data.copy()).to(device)
    return _in_pieces(data.pieces, data.nbytes, device).view(getattr(torch, data.dtype)).reshape(data.shape)


def uploaded_tensor(x: Any, device: str) -> Any:
    """A Torch tensor on a Torch device. A large row-major one of the host is copied to a GPU in pieces through pinned
    memory: from other memory the driver copies a third as fast."""
    import torch

    size = x.numel() * x.element_size()
    is_plain = x.device.type == "cpu" and x.is_contiguous() and not (x.is_neg() or x.is_conj())
    if not device.startswith(GPU_KIND) or size <= PIECE or not is_plain:
        return x.to(device)
    values = x.detach().reshape(-1).view(torch.uint8)

    def pieces(buffers: Sequence[Array]) -> Pieces:
        for turn, start in enumerate(range(0, size, PIECE)):
            part = values[start : start + PIECE]
            torch.from_numpy(buffers[turn % 2])[: len(part)].copy_(part)
            yield start, len(part)

    return _in_pieces(pieces, size, device).view(x.dtype).reshape(x.shape)


def _in_pieces(pieces: Callable[[Sequence[Array]], Pieces], size: int, device: str) -> Any:
    """Bytes on a Torch device, copied from two buffers, which `pieces` fills in turn."""
    import torch

    on_gpu = device.startswith(GPU_KIND)
    there = torch.empty(size, dtype=torch.uint8, device=device)
    stream = torch.cuda.current_stream(there.device) if on_gpu else None
    buffers = [torch.empty(PIECE, dtype=torch.uint8, pin_memory=on_gpu) for _ in range(2)]
    copies: list[Any] = []  # an event for each piece: its copy has ended
    for turn, (start, count) in enumerate(pieces([b.numpy() for b in buffers])):
        there[start : start + count].copy_(buffers[turn % 2][:count], non_blocking=True)
        if stream is not None:
            copies = [*copies[-1:], stream.record_event()]
            if turn:
                copies[0].synchronize()  # the next piece goes into the buffer of the copy before this one
    if copies:
        copies[-1].synchronize()
    return there


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


__all__ = ["copied_bytes", "downloaded", "uploaded", "uploaded_file", "uploaded_tensor"]
