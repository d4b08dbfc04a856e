"""Converts arguments of calls to tensors without gradients, which programs take without conversion."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any


class PlainTensors:
    """Conversion of the arguments of calls to tensors without gradients.

    `count`: number of arguments. A detached view of each `Parameter` is made once and reused until another parameter,
    or the same one with other memory (`parameter.data = ...`), is given, or the parameter does not exist any more.
    """

    def __init__(self, count: int) -> None:
        import torch

        self._tensor, self._parameter = torch.Tensor, torch.nn.Parameter
        # parameter (which is not kept alive), its address, view of it
        self._views: list[tuple[weakref.ref[Any], int, Any] | None] = [None] * count

    def of(self, given: Sequence[Any]) -> list[Any]:
        """The `count` arguments of a call, tensors and parameters detached; instances of other subclasses are
        returned as they are.
        """
        found, views = list(given), self._views
        for i, x in enumerate(given):
            kind = type(x)
            if kind is self._parameter:
                known = views[i]
                if known is None or known[1] != x.data_ptr() or known[0]() is not x:
                    known = views[i] = weakref.ref(x, partial(_forgotten, views, i)), x.data_ptr(), x.detach()
                found[i] = known[2]
            elif kind is self._tensor and x.requires_grad:
                found[i] = x.detach()
        return found


def _forgotten(views: list[Any], at: int, _: Any) -> None:
    views[at] = None


__all__ = ["PlainTensors"]
