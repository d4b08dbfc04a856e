"""Runs programs on the CPU: NumPy arrays, and Torch tensors or memory addresses over the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....extract.model.plan import Plan
from ..emit.emit import emit
from ..emit.emitted_program import EmittedProgram
from ..helpers.cpu_helpers import HELPERS
from .binaries import processor
from .device_programs import BoundRun, DevicePrograms, Direct
from .host_calls import host_call

__all__ = ["PROGRAMS", "HostPrograms"]


class HostPrograms(DevicePrograms):
    """Emits and calls programs on the CPU, which work on NumPy arrays."""

    direct_after = 8  # the first one compiles a C file: not for a program that is called a few times
    helpers = HELPERS

    def emit(self, plan: Plan, *, reuse_outputs: bool = False) -> EmittedProgram:
        """Emit the source of the program that runs `plan` on the CPU, at one size or at any size. With `reuse_outputs`,
        the next call may overwrite the outputs."""
        return emit(plan, reuse_outputs=reuse_outputs)

    def direct(self, bound: BoundRun, given: Sequence[Any]) -> Direct | None:
        """One C function for calls of a bound program with arrays or tensors of its types; None if there is none."""
        return host_call(bound)

    def present(self, place: str) -> str:
        """Name of this CPU, for the compiled C kernels of saved programs (`DevicePrograms.present`)."""
        return processor()


PROGRAMS = HostPrograms()
