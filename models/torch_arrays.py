"""Torch tensors as NumPy arrays and back, over the same memory. torch is imported only when something is converted.

NumPy has no bfloat16 of its own: such tensors travel as 16-bit integers and are viewed as `ml_dtypes.bfloat16`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..egraph import dtypes
from ..errors import UnsupportedError

#: What carries a dtype across where the other side does not know it: name -> integer dtype of the same width.
_CARRIER = {"bfloat16": "int16"}


def dtype_name(dtype: Any) -> str:
    """The name of a torch dtype. UnsupportedError for those without a meaning here (complex, quantized, float8)."""
    name = str(dtype).removeprefix("torch.")
    if name not in dtypes.DTYPES:
        raise UnsupportedError(f"torch dtype {name} is not supported", hint=f"supported: {', '.join(dtypes.DTYPES)}")
    return name


def torch_dtype(name: str) -> Any:
    """The torch dtype of a name."""
    import torch

    return getattr(torch, dtypes.check(name))


def to_numpy(tensor: Any) -> np.ndarray[Any, Any]:
    """A torch tensor as an array that shares its memory (strides kept). Tensors of other devices are copied to the host.

    UnsupportedError for sparse, meta or fake tensors and for unknown dtypes.
    """
    import torch

    name = dtype_name(tensor.dtype)
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        raise UnsupportedError(f"a {tensor.layout} tensor on {tensor.device} has no array", hint="materialize it first")
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if name in _CARRIER:
        carried = tensor.view(torch_dtype(_CARRIER[name])).numpy()
        return np.asarray(carried.view(dtypes.numpy_dtype(name)))
    return np.asarray(tensor.numpy())


def to_torch(array: np.ndarray[Any, Any]) -> Any:
    """An array as a torch tensor over the same memory where it is writable and has no negative strides, else a copy."""
    import torch

    name = dtypes.name_of(array.dtype)
    if not array.flags.writeable or any(s < 0 for s in array.strides):
        array = np.array(array, copy=True)
    if name in _CARRIER:
        return torch.from_numpy(array.view(_CARRIER[name])).view(torch_dtype(name))
    return torch.from_numpy(array)


__all__ = ["dtype_name", "to_numpy", "to_torch", "torch_dtype"]
