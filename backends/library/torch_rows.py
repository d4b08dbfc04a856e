"""Holds the common parts of Torch CPU library kernels: the constructor of a row of the kernel table, and conditions on
dtypes."""

from __future__ import annotations

from functools import cache
from typing import Any

from ...extract.model.kernel import Call, Code
from ...extract.model.library_kernel import LibraryKernel
from ...imported import BROKEN, installed
from .torch_calls import (
    FLOATS,
    Applies,
    both,
    dtypes_of,
    usable,
)


def one_float(call: Call) -> bool:
    """Condition on calls: operands and results all have the same float dtype."""
    found = dtypes_of(call)
    return len(found) == 1 and found <= set(FLOATS)


def packs(call: Call) -> bool:
    """Condition on calls: oneDNN packs weights of their dtype: float32, and bfloat16 if the CPU supports it."""
    found = dtypes_of(call)
    return found == {"float32"} or (found == {"bfloat16"} and multiplies_bfloat16())


@cache
def multiplies_bfloat16() -> bool:
    """Whether oneDNN has bfloat16 GEMMs for this CPU."""
    if unavailable():
        return False
    import torch

    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def usable_if(*conditions: Applies | None) -> Applies:
    """Make the condition on calls that Torch can run them (`usable`) and that all of `conditions` hold; None is always
    true."""
    return both(usable, *conditions)


def row(name: str, pattern: str, code: Code, *, applies: Applies | None = None, **more: Any) -> LibraryKernel:
    """Template of a library kernel that runs Torch code on the CPU, for `pattern` (rule language); `more`: further
    fields of `LibraryKernel`."""
    return LibraryKernel(f"torch.{name}", "torch", pattern, code, applies=usable_if(applies), **more)


@cache
def _is_installed() -> bool:
    return installed("torch")


def unavailable() -> str:
    """Reason why Torch cannot be used; empty if it can, as far as known before it is imported."""
    if "torch" in BROKEN:
        return f"PyTorch is installed, but {BROKEN['torch']}"
    return "" if _is_installed() else "PyTorch is not installed (pip install 'tensor-graphs[torch]')"
