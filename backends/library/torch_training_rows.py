"""Makes rows (library kernels) of training steps: for the CPU, and for GPUs with operands of different dtypes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel
from . import torch_cuda_rows, torch_rows
from .torch_rows import one_float

Row = Callable[..., LibraryKernel]
cpu_row: Row = torch_rows.row
gpu_row: Row = partial(torch_cuda_rows.row, mixed=True)  # the conditions of rows say which dtypes may differ


def all_float(call: Call) -> bool:
    """Condition on calls: operands and all results have the same float dtype."""
    return one_float(call) and all(o.type.dtype == call.output.type.dtype for o in call.more)
