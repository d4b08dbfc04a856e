"""Emits CPU programs from plans (choices of kernels): for one size, or for any size."""

from __future__ import annotations

from ....extract.model.plan import Plan
from .emit_cpu import ProgramEmitter
from .emitted_program import EmittedProgram


def emit(plan: Plan, *, reuse_outputs: bool = False) -> EmittedProgram:
    """Emit the source of the program that runs `plan` on the CPU, at one size or at any size.

    With `reuse_outputs`, outputs are in the workspace and the next call overwrites them.
    """
    from .emit_any_size import SizedEmitter, renamed_sizes

    if plan.sizes:
        return SizedEmitter(renamed_sizes(plan), reuse_outputs).emit()
    return ProgramEmitter(plan, reuse_outputs).emit()
