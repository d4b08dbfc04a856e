"""attention: 2 kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class Place:
    """A read-only array's memory, declared writable to NumPy; keeps the array alive."""

    def __init__(self, array):
        self.array, seen = array, array.__array_interface__
        self.__array_interface__ = {**seen, "data": (seen["data"][0], False)}


def four_axes(q: Any, k: Any, v: Any, mask: Any) -> tuple[Any, Any, Any, Any]:
    """(q, k, v, mask) of attention as [batch, heads, T, D]: rank 3 has one batch, rank 5 a group axis that k and v
    share."""
    if q.dim() == 3:
        q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
        mask = mask.unsqueeze(0) if mask is not None and mask.dim() == 3 else mask
    elif q.dim() == 5:
        q, k, v = q.flatten(1, 2), k.squeeze(2), v.squeeze(2)
        mask = mask.squeeze(2) if mask is not None and mask.dim() == 5 else mask
    return q, k, v, mask


def sdpa(q: Any, k: Any, v: Any, mask: Any, scale: float, causal: bool) -> Any:
    """Attention of [batch, heads, T, D]; rank 3 has one batch, rank 5 a group axis that k and v share."""
    attend = torch._C._nn.scaled_dot_product_attention
    shape = (*q.shape[:-1], v.shape[-1])
    q, k, v, mask = four_axes(q, k, v, mask)
    made = attend(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    return made.reshape(shape).contiguous()


def tensor(x):
    """A Torch tensor over an array's memory; a tensor is returned unchanged."""
    if x.__class__ is not np.ndarray:
        return x
    if not x.flags.writeable:  # Torch has no read-only tensors, and warns; no kernel writes to an input
        x = np.asarray(Place(x)).view(x.dtype)
    try:
        return torch.from_numpy(x)
    except (TypeError, ValueError):  # bfloat16, or a negative stride of an axis of one element
        return tensor_of(x)


def tensor_of(x):
    """A Torch tensor over the memory of an array that torch.from_numpy refuses: bfloat16 (through its bits), negative strides."""
    if min(x.strides, default=0) < 0:
        x = np.lib.stride_tricks.as_strided(x, strides=[abs(s) for s in x.strides])
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


TENSORS = True  # inputs may be tensors of the CPU, too
RESULTS = (0,)  # outputs whose memory a call may pass, after the inputs

def bind(weights):
    """Makes the program for given weights."""

    def run(q, k, v, v5=None):
        """(q: float32[1, 2, 4, 8], k: float32[1, 2, 4, 8], v: float32[1, 2, 4, 8]) -> (output: float32[1, 4, 16])"""
        q_t = tensor(q)
        k_t = tensor(k)
        v_t = tensor(v)
        # attention: float32[1, 2, 4, 8]
        v3 = sdpa(q_t, k_t, v_t, None, 0.25, True)
        v4 = v3.permute((0, 2, 1, 3))
        # reshape: float32[1, 4, 16]
        v5 = np.empty((1, 4, 16), np.float32) if v5 is None else v5
        v5_t = tensor(v5)
        v5_t.view((1, 4, 2, 8)).copy_(v4)
        del v3, v4
        return v5_t if q.__class__ is torch.Tensor else v5,

    return run
