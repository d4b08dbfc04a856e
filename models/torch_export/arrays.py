"""Converts between torch tensors and NumPy arrays without copies. torch is imported only when something is converted.

NumPy has no bfloat16: such tensors are exchanged as 16-bit integers and viewed as `ml_dtypes.bfloat16`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...egraph.types import dtypes
from ...errors import UnsupportedError

#: Integer dtypes of equal width that stand in for dtypes which the other library does not know.
_CARRIER = {"bfloat16": "int16"}


def dtype_name(dtype: Any) -> str:
    """Return the name of a torch dtype. Raises UnsupportedError for unsupported dtypes (complex, quantized, float8)."""
    name = str(dtype).removeprefix("torch.")
    if name not in dtypes.DTYPES:
        raise UnsupportedError(f"torch dtype {name} is not supported", hint=f"supported: {', '.join(dtypes.DTYPES)}")
    return name


def to_numpy(tensor: Any) -> np.ndarray[Any, Any]:
    """Return a NumPy array that shares a torch tensor's memory and strides.

    Tensors on other devices are copied to the host.

    Raises UnsupportedError for sparse or meta tensors and for unsupported dtypes.
    """
    import torch

    name = dtype_name(tensor.dtype)
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        raise UnsupportedError(f"a {tensor.layout} tensor on {tensor.device} has no array", hint="materialize it first")
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if name in _CARRIER:
        carried = tensor.view(dtypes.torch_dtype(_CARRIER[name])).numpy()
        return np.asarray(carried.view(dtypes.numpy_dtype(name)))
    return np.asarray(tensor.numpy())


__all__ = ["dtype_name", "to_numpy"]
