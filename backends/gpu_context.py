"""Starts the use of a GPU in threads: creates the CUDA context while PyTorch is imported, or while a cached plan is
rebuilt, and loads Triton's driver in measuring processes.

The context takes a good half second, as does the import of PyTorch.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from threading import Thread


def begin_context() -> Thread:
    """Start a thread that retains the primary context of the first visible device, which PyTorch then finds there.

    Does nothing without a driver; errors are ignored, because PyTorch raises them again. Returns the thread.
    """
    thread = Thread(target=_retain, name="cuda-context", daemon=True)
    thread.start()
    return thread


def begin_driver() -> Thread:
    """Start a thread that initializes the CUDA driver (otherwise the first call of the driver does); it creates no
    CUDA context. Returns the thread."""
    thread = Thread(target=_initialized, name="cuda-driver", daemon=True)
    thread.start()
    return thread


def _retain() -> None:
    if (driver := _initialized()) is not None:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)


def _initialized() -> ctypes.CDLL | None:
    """The initialized driver; None without one."""
    with contextlib.suppress(OSError, AttributeError):  # no driver library, or one without these functions
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuInit(0) == 0:
            return driver
    return None


_loading: list[Thread] = []


def begin_compiler(then: Callable[[], object] = lambda: None) -> None:
    """Start a thread that loads Triton, which generated kernels need, and calls `then`. Errors are ignored: the first
    launch reports them."""

    def load() -> None:
        _load_compiler()
        with contextlib.suppress(Exception):
            then()

    _loading.append(Thread(target=load, daemon=True))
    _loading[0].start()


def _load_compiler() -> None:
    """Load Triton's driver, which compiles its helper module on first use."""
    with contextlib.suppress(Exception):
        from triton.runtime import driver

        _ = driver.active.utils


def hash_compiler() -> None:
    """Let Triton compute its part of the keys of compiled kernels, which it keeps: the digest of its libraries, 0.4 s
    that the first kernel would wait for. Without Triton, or if it keeps none there, nothing happens."""
    with contextlib.suppress(Exception):
        from triton.runtime.cache import triton_key

        triton_key()


def compiler_loaded() -> None:
    """Wait until Triton is loaded."""
    while _loading:
        _loading.pop().join()


__all__ = ["begin_compiler", "begin_context", "begin_driver", "compiler_loaded", "hash_compiler"]
