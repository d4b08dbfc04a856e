"""Helper functions of emitted GPU programs: memory, uploads, and (from gpu_calls.py, gpu_launches.py,
library_launches.py, library_addresses.py and cuda_driver.py) calls.

Their source is copied into emitted programs: each may use `np`, `torch` and the other helpers only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...ir.definitions import sources_of
from .cuda_driver import HELPERS as DRIVER
from .gpu_calls import HELPERS as CALLS
from .gpu_launches import HELPERS as LAUNCHES
from .library_addresses import HELPERS as ADDRESSES
from .library_launches import HELPERS as LIBRARY

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import torch


def device_bytes(size: int, device: Any) -> Any:
    """A uint8 tensor of `size` bytes on the device, for all intermediate values, as one allocation."""
    return torch.empty(size, dtype=torch.uint8, device=device)


def tensor_at(memory: Any, offset: int, shape: Sequence[int], dtype: Any, strides: Any = None) -> Any:
    """A tensor at an offset of the workspace, row-major unless strides (in elements) are given."""
    if strides is None:
        strides = torch.empty(shape, device="meta").stride()
    return (
        memory[offset:].view(dtype).as_strided(shape, strides)
        if 0 not in shape
        else memory.new_empty(shape, dtype=dtype)
    )


def uploaded(x: Any, device: Any, row_major: bool = True) -> Any:
    """A NumPy array or tensor on the device, row-major or in its own layout. bfloat16 arrays are sent as 16-bit
    integers.
    """
    if isinstance(x, np.ndarray):
        x = x if x.flags.writeable else x.copy(order="K")
        x = (
            torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
            if x.dtype.name == "bfloat16"
            else torch.from_numpy(x)
        )
    return x.to(device).contiguous() if row_major else x.to(device)


def kept(states: Any, name: str, shape: Sequence[int], dtype: Any, device: Any) -> Any:
    """Memory of a state: the tensor in the caller's `states`, else new zeros, which are added to `states`."""
    if name not in states:
        states[name] = torch.zeros(shape, dtype=dtype, device=device)
    return states[name]


#: helper name -> source
HELPERS: dict[str, str] = {
    **CALLS,
    **DRIVER,
    **LAUNCHES,
    **LIBRARY,
    **ADDRESSES,
    **sources_of(__name__),
}
