"""Emitting source for a plan's device, and executing emitted source."""

from __future__ import annotations

import ctypes
import weakref
from hashlib import sha256
from typing import Any

from ...errors import UsageError
from ...extract.model.kernel import Plan, Template
from .. import gpu
from .emit import emit
from .emit_cpu import Emitted
from .emit_gpu import emit_cuda
from .execute import execute

try:
    from _ctypes import dlclose
except ImportError:  # Windows
    dlclose = None  # type: ignore[assignment]

EMITTERS = {"cpu": emit, "cuda": emit_cuda}


def backend_device(template: Template) -> str:
    """The device whose memory a template's kernels work in."""
    from ..registry import backend

    return backend(template.backend).device


def device_of(plan: Plan) -> str:
    """The device of a plan's kernels; "cpu" without any. UsageError if there are several."""
    found = {backend_device(t) for t in {s.template.backend: s.template for s in plan.steps}.values()}
    if len(found) > 1:
        raise UsageError(f"a plan must stay on one device, this one is on {', '.join(sorted(found))}")
    return next(iter(found), "cpu")


def emit_for(plan: Plan, *, reuse_outputs: bool = False) -> Emitted:
    """The emitted program of a plan, for its device."""
    return EMITTERS[device_of(plan)](plan, reuse_outputs=reuse_outputs)


def executed(source: str, name: str) -> dict[str, Any]:
    """Execute emitted source and return its namespace. Its compiled C library is unloaded once the namespace is
    garbage."""
    if "triton" in source:
        gpu.keep_compiled()
    title = "".join(c if c.isalnum() or c in "_-." else "_" for c in ascii(name)[1:81])
    space: dict[str, Any] = {"__name__": f"tensor_graphs_{title}"}
    execute(source, f"<{title} {sha256(source.encode()).hexdigest()[:12]}>", space)
    library = space.get("kernels")
    if (
        isinstance(library, ctypes.CDLL) and dlclose is not None
    ):  # Python never unloads a library; its functions keep the CDLL object alive
        weakref.finalize(library, dlclose, library._handle).atexit = False
    return space


__all__ = ["backend_device", "device_of", "emit_for", "executed"]
