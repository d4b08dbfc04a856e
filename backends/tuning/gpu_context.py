"""CUDA context of a measuring process, made in a thread while PyTorch is imported: both take a good half second."""

from __future__ import annotations

import contextlib
import ctypes
from threading import Thread


def begin_context() -> Thread:
    """Start a thread that retains the primary context of the first visible device, which PyTorch then finds there.

    Does nothing without a driver; errors are left to PyTorch, which meets them again. Returns the thread.
    """
    thread = Thread(target=_retain, name="cuda-context", daemon=True)
    thread.start()
    return thread


def _retain() -> None:
    with contextlib.suppress(OSError, AttributeError):  # no driver library, or one without these functions
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuInit(0) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)


__all__ = ["begin_context"]
