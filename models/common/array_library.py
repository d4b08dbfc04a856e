"""Names array functions of NumPy and PyTorch alike, so that the encoder of quantized weights is written once for the
host and for a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...egraph.types import dtypes


class NumPyLibrary:
    """Array functions on NumPy arrays; dtypes are given by name."""

    names: Any = np  # functions that have the same name and meaning in both libraries

    def cast(self, x: Any, dtype: str) -> Any:
        """The array `x` in a dtype, rounded to the nearest number, ties to even."""
        return x.astype(dtypes.numpy_dtype(dtype), copy=False)

    def bits(self, x: Any) -> Any:
        """The array `x` as signed integers of the same width, over the same memory."""
        return x.view(f"i{x.dtype.itemsize}")

    def of_bits(self, x: Any, dtype: str) -> Any:
        """The inverse of `bits`: the integers `x` as numbers of a dtype of the same width, over the same memory."""
        return x.view(dtypes.numpy_dtype(dtype))

    def float8(self, x: Any) -> Any:
        """The bits of float32 numbers rounded to the float e4m3fn, as uint8."""
        import ml_dtypes

        codes = np.empty(x.shape, np.uint8)
        codes.view(ml_dtypes.float8_e4m3fn)[...] = x
        return codes

    def constant(self, values: Any, like: Any) -> Any:
        """A float32 array of one axis with the given values (for tensors: on the device of `like`)."""
        return np.asarray(values, np.float32)

    def taken(self, x: Any, index: Any) -> Any:
        """The elements of `x` at the positions `index` [..., 1] along the last axis, [..., 1]."""
        return np.take_along_axis(x, index, -1)

    def contiguous(self, x: Any) -> Any:
        """The array in row-major order."""
        return np.ascontiguousarray(x)


class TorchLibrary:
    """Array functions on Torch tensors of any device, with the members of `NumPyLibrary`; correctly rounded operations
    give the same bits."""

    @property
    def names(self) -> Any:
        """Functions that have the same name and meaning in both libraries."""
        import torch

        return torch

    def cast(self, x: Any, dtype: str) -> Any:
        """The tensor in a dtype, rounded to the nearest number, ties to even (`NumPyLibrary.cast`)."""
        return x.to(dtypes.torch_dtype(dtype))

    def bits(self, x: Any) -> Any:
        """The tensor as signed integers of the same width, over the same memory (`NumPyLibrary.bits`)."""
        import torch

        return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])

    def of_bits(self, x: Any, dtype: str) -> Any:
        """The tensor as numbers of a dtype of the same width, over the same memory (`NumPyLibrary.of_bits`)."""
        return x.view(dtypes.torch_dtype(dtype))

    def float8(self, x: Any) -> Any:
        """The bits of float32 numbers rounded to the float e4m3fn, as uint8 (`NumPyLibrary.float8`)."""
        import torch

        return x.to(torch.float8_e4m3fn).view(torch.uint8)

    def constant(self, values: Any, like: Any) -> Any:
        """A float32 tensor of one axis with the given values, on the device of `like` (`NumPyLibrary.constant`).
        Dividing by a tensor rounds correctly on a GPU, dividing by a Python number does not."""
        import torch

        return torch.from_numpy(np.atleast_1d(np.asarray(values, np.float32)).copy()).to(like.device)

    def taken(self, x: Any, index: Any) -> Any:
        """The elements of `x` at the positions `index` [..., 1] along the last axis, [..., 1]
        (`NumPyLibrary.taken`)."""
        return x.gather(-1, index)

    def contiguous(self, x: Any) -> Any:
        """The tensor in row-major order (`NumPyLibrary.contiguous`)."""
        return x.contiguous()


__all__ = ["NumPyLibrary", "TorchLibrary"]
