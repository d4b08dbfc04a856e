"""Recognizes the weights that programs treat as constants, and notices when they change."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: Bytes up to which a weight is compared as a whole at every call; of larger ones, bytes at the begin, in the middle
#: and at the end.
WHOLE, PIECE = 4096, 64


def _samples(x: Any) -> list[Any]:
    """Bytes of a weight's memory that are compared at every call; none for weights that are not dense on a CPU."""
    import torch

    dense = x.is_contiguous() or (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last))
    if not dense or not x.numel() or x.device.type != "cpu" or x.layout != torch.strided:
        return []
    size = x.numel() * x.element_size()
    if size <= WHOLE:
        return [(ctypes.c_char * size).from_address(x.data_ptr())]
    piece = ctypes.c_char * PIECE
    return [piece.from_address(x.data_ptr() + at) for at in (0, size // 2 - PIECE // 2, size - PIECE)]


class Frozen:
    """Weights that the programs treat as constants, recognized by identity, memory address and version.

    A write through `weight.data` or an array that shares its memory changes none of these three, so on a CPU some bytes
    of each weight are compared as well. The weights are not kept alive; `gone` is called with this object when one of
    them ceases to exist.
    """

    def __init__(self, positions: Sequence[int], args: Sequence[Any], gone: Callable[[Frozen], None]) -> None:
        self.positions = list(positions)
        tensors, own = [args[i] for i in positions], weakref.ref(self)

        def ended(_: Any) -> None:
            if (found := own()) is not None:
                gone(found)

        self._known = [(i, weakref.ref(args[i], ended), args[i]._version, args[i].data_ptr()) for i in positions]
        self._bytes = [(piece, piece.raw) for x in tensors for piece in _samples(x)]

    @property
    def tensors(self) -> list[Any]:
        """The weights, in the order of `positions`; None for one that does not exist any more."""
        return [known[1]() for known in self._known]

    def hold(self, args: Sequence[Any] | Mapping[int, Any]) -> bool:
        """Whether the weights among a call's arguments are the ones that the programs contain, unchanged."""
        for i, weight, version, address in self._known:
            if args[i] is not (x := weight()) or x._version != version or x.data_ptr() != address:
                return False
        # read after the addresses: the memory of other addresses may have been freed
        return not self._bytes or all(piece.raw == kept for piece, kept in self._bytes)

    @property
    def outdated(self) -> bool:
        """Whether a weight was written in place or does not exist any more, so that no later call has these weights."""
        return any((x := weight()) is None or x._version != version for _, weight, version, _ in self._known)

    def unchanged(self) -> bool:
        """Whether the weights exist and are as they were when this object was made. For any thread."""
        weights = self.tensors
        if any(x is None for x in weights):
            return False
        alive = [x.detach() for x in weights]  # so that no memory is freed while it is read
        same = all(x.data_ptr() == known[3] for x, known in zip(alive, self._known, strict=True))
        return same and self.hold(dict(zip(self.positions, weights, strict=True)))


__all__ = ["Frozen"]
