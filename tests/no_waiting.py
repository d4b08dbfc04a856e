"""Check that no call waits for the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_waiting() -> Iterator[None]:
    """Context manager in which PyTorch raises RuntimeError where the host waits for the GPU."""
    import torch

    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
