"""Chooses the emitter for the device of a plan (the chosen kernels), and executes emitted source."""

from __future__ import annotations

import ctypes
import importlib
import weakref
from hashlib import sha256
from typing import Any

from ....bytecode import bytecode_kept
from ....errors import DeviceUnavailableError, UnusableKernelsError, UsageError
from ....extract.model.plan import Plan
from ....imported import BROKEN, imported, other_package
from ... import gpu
from ...device import HOST
from ...runtime.compile_clock import CompileWatch
from ..emit.emitted_program import EmittedProgram
from ..emit.execute import execute
from .binaries import C_LIBRARY, Binaries, without_compilers
from .device_programs import DevicePrograms

try:
    from _ctypes import dlclose
except ImportError:  # Windows
    dlclose = None  # type: ignore[assignment]

_C_MACHINES: dict[Any, str] = {}  # (compiler command, PATH) -> its macros, for the helper `c_machine` of all programs


def device_of(plan: Plan) -> str:
    """Name of the device that a plan's kernels run on; the host's name for a plan without kernels.

    Raises UsageError if there are several.
    """
    from ...registry import backend

    found = {backend(name).device.name for name in {s.template.backend for s in plan.steps}}
    if len(found) > 1:
        raise UsageError(f"a plan must stay on one device, this one is on {', '.join(sorted(found))}")
    return next(iter(found), HOST.name)


def programs_of(name: str) -> DevicePrograms:
    """The object that emits and calls programs on the device called `name`. Raises UsageError for an unknown name."""
    from ...registry import device

    return device(name).programs


def emit_for(plan: Plan, *, reuse_outputs: bool = False) -> EmittedProgram:
    """Emit the source of the program that runs `plan`, for the plan's device. `reuse_outputs`: the next call may
    overwrite the outputs."""
    return programs_of(device_of(plan)).emit(plan, reuse_outputs=reuse_outputs)


def executed(source: str, name: str, binaries: Binaries | None = None) -> dict[str, Any]:
    """Execute the emitted `source`; returns its namespace. With the compiled kernels `binaries`, compilers are not
    imported.

    `name`: the program's name or path, for messages and tracebacks. The namespace's C library is unloaded once the
    namespace is garbage. Raises UnusableKernelsError if C kernels cannot be compiled or PyTorch cannot be imported,
    DeviceUnavailableError if another import fails.
    """
    if binaries is None and "triton" in source:
        gpu.keep_compiled()
    if "import torch" in source and imported("torch") is None:
        _import_torch(name)
    title = "".join(c if c.isalnum() or c in "_-." else "_" for c in ascii(name)[1:81])
    compilers = CompileWatch()
    space: dict[str, Any] = {
        "__name__": f"tensor_graphs_{title}",
        "C_MACHINES": _C_MACHINES,
        "C_SECONDS": compilers.seconds,
    }
    in_c = binaries is not None and C_LIBRARY in binaries.files
    if binaries is not None and in_c:
        space["C_BINARY"] = binaries.files[C_LIBRARY]
    elif binaries is not None:
        space["__builtins__"] = without_compilers()
    try:
        with bytecode_kept():
            execute(source, f"<{title} {sha256(source.encode()).hexdigest()[:12]}>", space)
        compilers.ended()
    except ImportError as error:
        raise DeviceUnavailableError(
            f"the program's kernels need {error.name or 'a module'}, which cannot be imported: {error}", where=name,
            hint="install or repair it, or optimize with another backend",
        ) from error  # fmt: skip
    except (RuntimeError, OSError) as error:
        if "C_SOURCE" not in space:
            # of a module whose shared libraries are missing, such as an incomplete PyTorch
            if isinstance(error, OSError):
                raise DeviceUnavailableError(
                    f"the program's kernels need a module that cannot be imported: {error}", where=name,
                    hint="repair it, or optimize with another backend",
                ) from error  # fmt: skip
            raise
        raise _unusable(
            "c", f"the program's C kernels cannot be compiled: {error}", name,
            "is there a C compiler, and room for temporary files? or optimize with another backend",
        ) from error  # fmt: skip
    if binaries is not None and not in_c:
        binaries.install(space)
    library = space.get("kernels")
    if (
        isinstance(library, ctypes.CDLL) and dlclose is not None
    ):  # Python never unloads a library; its functions keep the CDLL object alive
        weakref.finalize(library, dlclose, library._handle).atexit = False
    return space


def _import_torch(name: str) -> None:
    """Import PyTorch for the program `name`; an incomplete installation may raise anything."""
    try:
        importlib.import_module("torch")
        if wrong := other_package("torch"):
            raise ImportError(wrong)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        BROKEN["torch"] = f"it cannot be imported: {error}"
        raise _unusable(
            "torch", f"the program's kernels need torch, which cannot be imported: {error}", name,
            "install or repair it, or optimize with another backend",
        ) from error  # fmt: skip


def _unusable(backend: str, message: str, where: str, hint: str) -> UnusableKernelsError:
    found = UnusableKernelsError(message, where=where, hint=hint)
    found.backend = backend
    return found


__all__ = ["device_of", "emit_for", "executed", "programs_of"]
