"""Thread pools of CPU libraries.

NumPy's BLAS and Torch's OpenMP have separate pools. If both are active on the same cores, they slow each other down by
an order of magnitude, because idle workers spin.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ...processes.forks import Lock, in_forked_child

_SETTERS = ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads", "openblas_set_num_threads64_",
            "openblas_set_num_threads")  # fmt: skip


@cache
def _openblas() -> tuple[Any, Any] | None:
    """(setter, getter) of the thread count of NumPy's OpenBLAS; None if not found."""
    import numpy.linalg  # noqa: F401  (loads the library)

    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for path in sorted({line.split()[-1] for line in lines if "openblas" in line}):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for name in _SETTERS:
            if hasattr(library, name):
                return getattr(library, name), getattr(library, name.replace("_set_", "_get_"))
    return None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Context manager in which NumPy's matrix products are single-threaded, so that no BLAS worker spins afterwards.

    A no-op if NumPy uses another BLAS. The thread count is process-wide; the last context to exit restores it.
    """
    found = _openblas()
    if found is None:
        yield
        return
    setter, getter = found
    with _setting:
        if not _single["by"]:
            _single["before"] = getter()
            setter(1)
        _single["by"] += 1
    try:
        yield
    finally:
        with _setting:
            _single["by"] -= 1
            if not _single["by"]:
                setter(_single["before"])


_setting = Lock()
_single = {"by": 0, "before": 0}  # number of active contexts; thread count to restore


_shared = {"used": False}  # whether kernels with OpenMP loops may have run in this process


def loops_shared() -> None:
    """Record that kernels with OpenMP loops run in this process, so that its forked children use one OpenMP thread
    each."""
    _shared["used"] = True


@in_forked_child
def _one_thread() -> None:
    """Make OpenMP single-threaded in a forked child.

    The worker threads exist only in the parent, and libgomp would wait for them forever.
    """
    if not _shared["used"]:
        return
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).omp_set_num_threads(1)  # for C kernels without Torch
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "set_num_threads"):  # not while another thread of the parent imported it
        torch.set_num_threads(1)
