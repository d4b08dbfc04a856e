"""Runs programs on an NVIDIA GPU: Torch tensors at fixed addresses, replayed as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ....errors import TensorGraphsError
from ....extract.model.plan import Plan
from ... import gpu
from ...runtime.marshalling import Marshalling, TensorMarshalling
from ..emit.emit_any_size import renamed_sizes
from ..emit.emit_gpu import emit_cuda
from ..emit.emit_gpu_any_size import SizedCudaEmitter
from ..emit.emitted_program import EmittedProgram
from ..helpers.any_size_gpu_helpers import HELPERS as ANY_SIZE_HELPERS
from ..helpers.any_size_helpers import SIZED_HELPERS
from ..helpers.gpu_helpers import HELPERS
from .device_programs import BoundRun, DevicePrograms, Direct, Run
from .direct_calls import direct_call
from .launching import plan_for_launching
from .older_programs import name_launch_mode
from .poison import poisoned

__all__ = ["PROGRAMS", "GpuPrograms"]


class GpuPrograms(DevicePrograms):
    """Emits and calls programs on an NVIDIA GPU.

    A `place` "cpu" runs a program of Torch library kernels on Torch's CPU tensors.
    """

    has_size_calls, direct_after = True, 1
    helpers = {
        **HELPERS,
        **ANY_SIZE_HELPERS,
        "check_sizes": SIZED_HELPERS["check_sizes"],
        "SizeError": SIZED_HELPERS["SizeError"],
    }

    def emit(self, plan: Plan, *, reuse_outputs: bool = False) -> EmittedProgram:
        """Emit the source of the program that runs `plan` on a GPU; with `reuse_outputs`, the next call may overwrite
        the outputs."""
        if plan.sizes:
            return SizedCudaEmitter(renamed_sizes(plan), reuse_outputs).emit()
        return emit_cuda(plan_for_launching(plan), reuse_outputs=reuse_outputs)

    def exchange(self, place: str) -> Marshalling:
        """The object that converts arguments and results to and from tensors on `place` (`DevicePrograms.exchange`)."""
        return TensorMarshalling(place)

    def bound(
        self, bind: Callable[..., Run], weights: Mapping[str, Any], states: dict[str, Any], place: str,
        launch_mode: str = "",
    ) -> Run:  # fmt: skip
        """Make an emitted program callable on the device `place`; returns the result of its function `bind`.

        `weights`: values by key. `states`: memory by name, which calls read and overwrite. `launch_mode`: how calls
        launch kernels; "" chooses by timing the first calls.
        """
        run = bind(weights, states, place, True, launch_mode) if launch_mode else bind(weights, states, place)
        name_launch_mode(run)
        return run

    def direct(self, bound: BoundRun, given: Sequence[Any]) -> Direct | None:
        """One C function for calls of a bound program with inputs like `given`, those of its last call; None if there
        is none yet. It holds the program's lock while it runs."""
        return direct_call(bound.run, given, bound.lock)

    def poisoned(self, run: Run) -> AbstractContextManager[None]:
        """Context in which a call of the bound program `run` finds NaN in memory that it must write before it reads it
        (`DevicePrograms.poisoned`)."""
        return poisoned(run)

    def tensors(self, place: str) -> str:
        """Name of the Torch device whose tensors programs work on, which is `place` itself
        (`DevicePrograms.tensors`)."""
        return place

    def hardware(self) -> str:
        """Name and compute capability of the GPU that programs are made for."""
        return gpu.planned_for()

    def present(self, place: str) -> str:
        """Name and compute capability of the GPU `place`; "" for "cpu" (`DevicePrograms.present`)."""
        if place == "cpu":
            return ""
        import torch

        with torch.cuda.device(place):
            return gpu.hardware()

    def check_hardware(self, wanted: str, where: str = "") -> None:
        """Raise DeviceUnavailableError unless this machine has the GPU that a saved program was made for. `wanted`: its
        name, as `hardware` gives it. `where`: path for the message."""
        gpu.check_hardware(wanted, where=where)

    def check_free_memory(self, place: str, wanted: int) -> None:
        """Raise DeviceMemoryError if `wanted` bytes are not free on a GPU (`DevicePrograms.check_free_memory`)."""
        if place != "cpu":
            gpu.check_free_memory(place, wanted)

    def wait(self, place: str, what: str) -> None:
        """Wait until the kernels that were launched on the GPU `place` have ended; `what`: the operation, for the
        message (`DevicePrograms.wait`)."""
        gpu.wait(place, what)

    def fault(self, error: RuntimeError, what: str) -> TensorGraphsError | None:
        """The error of this package that stands for `error`, a RuntimeError raised during the operation `what`; None if
        it does not come from the GPU (`DevicePrograms.fault`)."""
        return gpu.device_error(error, what)


PROGRAMS = GpuPrograms()
