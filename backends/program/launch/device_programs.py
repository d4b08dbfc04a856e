"""Defines the contract of programs on a device: the class `DevicePrograms`, whose defaults are those of programs on the
host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from ....errors import TensorGraphsError
from ....extract.model.plan import Plan
from ...runtime.cpu_tensors import Spec, TensorCalls
from ...runtime.marshalling import Marshalling, NumpyMarshalling
from ...runtime.threads import loops_shared
from ..emit.emitted_program import EmittedProgram

Run = Callable[..., Sequence[Any]]
Direct = Callable[..., "tuple[Any, ...] | None"]  # inputs -> results

__all__ = ["BoundRun", "DevicePrograms", "Direct", "Run"]


class BoundRun(NamedTuple):
    """A bound program (`run`), and what a direct function of its calls must know.

    `lock`: held while it runs. `tensors`: how it takes tensors of the CPU. `inputs`, `outputs`: their types (name,
    shape, dtype). `check`: called with all arguments before a call, may raise; None for no check. `in_mode`: whether
    the caller is in a mode of Torch that the call has to leave.
    """

    run: Run
    lock: Any
    tensors: TensorCalls = TensorCalls()
    inputs: Sequence[Spec] = ()
    outputs: Sequence[Spec] = ()
    check: Callable[[Sequence[Any]], None] | None = None
    in_mode: Callable[[], bool] | None = None


class DevicePrograms:
    """Functions that emit the programs of one kind of device, bind them to weights (make them callable), and convert
    their arguments and results (marshalling).

    The methods' defaults are for NumPy arrays on the host. `place` is the user's choice among devices of this kind
    ("cuda:1"), by default the device's name.
    """

    has_size_calls = False  # whether there are functions for calls at sizes that a program has not met (`SizeCalls`)
    direct_after = 0  # calls until the first attempt to make a direct function (`direct`); 0: there are none
    helpers: Mapping[str, str] = {}  # source of helper functions that emitted programs may call, by name

    def emit(self, plan: Plan, *, reuse_outputs: bool = False) -> EmittedProgram:
        """Emit the source of the program that runs `plan`. With `reuse_outputs`, the next call may overwrite the
        outputs."""
        raise NotImplementedError

    def exchange(self, place: str) -> Marshalling:
        """The object that converts arguments and results of programs on the device `place`."""
        return NumpyMarshalling()

    def bound(
        self, bind: Callable[..., Run], weights: Mapping[str, Any], states: dict[str, Any], place: str,
        launch_mode: str = "",
    ) -> Run:  # fmt: skip
        """Make an emitted program callable on the device `place`; returns the result of its function `bind`.

        `weights`: values by key. `states`: memory by name, which calls read and overwrite. `launch_mode`: how calls
        launch kernels, where a device has several launch modes; "" chooses by timing the first calls.
        """
        loops_shared()
        return bind(*([weights, states] if states else [weights]))

    def direct(self, bound: BoundRun, given: Sequence[Any]) -> Direct | None:
        """A faster function for calls of a bound program with inputs like `given`, those of its last call; None if
        there is none (yet). It holds the program's lock while it runs, and returns None where the emitted code has to
        make a call."""
        return None

    def poisoned(self, run: Run) -> AbstractContextManager[None]:
        """Context in which a call of the bound program `run` finds NaN in memory that it must write before it reads it;
        on the host nothing is changed."""
        return nullcontext()

    def tensors(self, place: str) -> str:
        """Name of the Torch device whose tensors programs on the device `place` work on; "" for programs on NumPy
        arrays."""
        return ""

    def hardware(self) -> str:
        """Name of the hardware that programs are made for ("NVIDIA H200 sm_90"); "" if they run on any hardware."""
        return ""

    def present(self, place: str) -> str:
        """Name of the hardware at `place`, by which compiled kernels are recognized as usable there; "" if programs
        have no compiled kernels there."""
        return ""

    def check_hardware(self, wanted: str, where: str = "") -> None:
        """Raise DeviceUnavailableError unless this machine has the hardware that a saved program was made for.

        `wanted`: its name, as `hardware` gives it. `where`: path for the message.
        """

    def check_free_memory(self, place: str, wanted: int) -> None:
        """Raise DeviceMemoryError if `wanted` bytes are not free on the device `place`."""

    def wait(self, place: str, what: str) -> None:
        """Wait until the kernels that were launched on the device `place` have ended.

        Raises DeviceFaultError if a kernel failed. `what`: the operation, for the message.
        """

    def fault(self, error: RuntimeError, what: str) -> TensorGraphsError | None:
        """The error of this package that stands for `error`, a RuntimeError raised during the operation `what`; None if
        it does not come from the device."""
        return None
