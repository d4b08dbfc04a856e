"""Represents the caller's own module or function, which runs in place of the compiled program if it is faster
(choose_form.py times both).

The cost model prices kernels one by one. Only whole calls in the caller's process tell whether the program is faster
than the caller's existing code. If the program loses by more than noise, `optimize` returns a `CallerProgram`, which
calls the caller's function for inputs like the examples; the report says so.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from ...backends.device import HOST
from ...backends.program.program import Program
from ...backends.runtime.arguments import by_name
from ...backends.runtime.cpu_tensors import tensor_guard
from ...backends.runtime.marshalling import Quick, Spec, array_of, is_torch, tensor_of
from ...egraph.ir.structure import filled
from .arguments import array_leaves, has_structure, result_leaves, with_arrays

CHECKS = 4  # checks of arguments in C that a program makes at most


@dataclass(frozen=True)
class Caller:
    """A module or function with the arguments of its example call.

    `torch`: the arguments are Torch tensors, else NumPy arrays. `device`: that of all arguments. `training`: the mode
    of a module when it was traced.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    torch: bool
    device: str = "cpu"
    training: bool | None = None

    @classmethod
    def of(cls, source: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Caller | None:
        """Constructor: the source of an optimization as a callable with its example arguments `args` and `kwargs`; None
        if it cannot be called with them.

        Callable: functions and modules whose example leaves are all tensors of one device or all arrays. Not callable:
        ExportedProgram, examples given as types.
        """
        leaves = list(array_leaves((args, dict(kwargs))))
        tensors = [is_torch(x) for x in leaves]
        if not callable(source) or not leaves or type(source).__name__ == "ExportedProgram":
            return None
        devices = {str(x.device) if t else "cpu" for x, t in zip(leaves, tensors)}
        arrays = all(isinstance(x, np.ndarray) for x, t in zip(leaves, tensors) if not t)
        if len(devices) != 1 or not arrays or len(set(tensors)) != 1:
            return None
        return cls(source, args, kwargs, tensors[0], devices.pop(), getattr(source, "training", None))

    @property
    def inputs(self) -> list[Any]:
        """Flat list of the example call's tensors or arrays, in the order of the program's inputs."""
        return list(array_leaves((self.args, dict(self.kwargs))))

    def is_on(self, device: str) -> bool:
        """Whether the arguments lie on `device`; a GPU without a number is the first one."""
        (kind, _, number), (own, _, index) = device.partition(":"), self.device.partition(":")
        return kind == own and (number or "0") == (index or "0")

    @property
    def library(self) -> str:
        """Name of the backend with the kernels that the function calls: that of Torch on its device, or NumPy's."""
        return ("torch" if self.device == HOST.name else "torch_cuda") if self.torch else "numpy"

    @property
    def in_mode(self) -> bool:
        """Whether a module is in the mode (training or evaluation) that it was traced in; True for functions."""
        return self.training is None or self.function.training is self.training  # type: ignore[attr-defined]

    @cached_property
    def plain(self) -> bool:
        """Whether all arguments are positional tensors or arrays."""
        return not self.kwargs and all(hasattr(a, "shape") for a in self.args)

    def call(self, given: Sequence[Any]) -> Any:
        """Call the function with `given` in place of the tensors or arrays of its example arguments; returns what it
        returns."""
        if self.plain:
            return self.function(*given)
        left = iter(given)
        args, kwargs = with_arrays((self.args, dict(self.kwargs)), left)
        return self.function(*args, **kwargs)

    def outputs(self, given: Sequence[Any]) -> list[Any]:
        """Call the function (`returned`); returns its tensors or arrays as a flat list, in the order of the program's
        outputs."""
        return result_leaves(self.returned(given), torch=self.torch)

    def returned(self, given: Sequence[Any]) -> Any:
        """Call the function with arguments `given`, without gradients and without autocast, so that dtypes are those of
        its graph; returns what it returns."""
        if not self.torch:
            return self.call(given)
        torch = sys.modules["torch"]
        modes = torch._C
        if modes._is_any_autocast_enabled():
            with torch.autocast(self.device.partition(":")[0], enabled=False), torch.no_grad():
                return self.call(given)
        if not modes.is_grad_enabled():
            return self.function(*given) if self.plain else self.call(given)
        modes._set_grad_enabled(False)  # the context of torch.no_grad() takes 1.5 µs
        try:
            return self.call(given)
        finally:
            modes._set_grad_enabled(True)

    def run_arrays(self, names: Sequence[str], given: Mapping[str, Any]) -> list[Any]:
        """Call the function for verification; returns its results as arrays. `given`: arrays by input name, `names`:
        their order."""
        arrays = [given[name] for name in names]
        found = self.outputs([tensor_of(a).to(self.device) for a in arrays] if self.torch else arrays)
        return [array_of(x.cpu()) if is_torch(x) else x for x in found]


class CallerForm:
    """The caller's own function as what runs the calls in a bucket of sizes (`backends/program/buckets.py`).

    It takes arguments of the examples' kind and device; its results are a flat list.
    """

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    def quick(self, specs: Sequence[Spec]) -> Quick:
        """Function that maps a call's arguments to (arguments, None), or to None if their types, devices or dtypes are
        not those of the examples or their shapes not those of `specs`.
        """
        example = self.caller.inputs[0]
        kind, device = type(example), getattr(example, "device", None)
        types = {dtype_of(x): x.dtype for x in self.caller.inputs}
        wanted = [(shape, types.get(dtype)) for _, shape, dtype in specs]

        def arguments(given: Sequence[Any]) -> tuple[Sequence[Any], None] | None:
            if not self.caller.in_mode:
                return None
            for x, (shape, dtype) in zip(given, wanted, strict=True):
                if type(x) is not kind or x.shape != shape or x.dtype != dtype:
                    return None
                if device is not None and x.device != device:
                    return None
            return given, None

        return arguments

    def called(self, taken: Sequence[Any]) -> Sequence[Any]:
        """Call the caller's function with `taken`, the arguments that `quick` returned; returns its results."""
        return self.caller.outputs(taken)


class CallerProgram(Program):
    """Program whose calls run the caller's own function, if inputs are of the examples' kind (tensors on their device,
    or arrays).

    Other inputs run the compiled plan. `save` writes the compiled plan.
    """

    _runs_itself = False
    caller: Caller | None
    comparison: str  # text of the timing comparison, for the saved manifest and the warning of `save`
    #: Type, dtype, shape and device (None for arrays) of each positional argument.
    _kinds: Sequence[tuple[Any, Any, tuple[int, ...], Any]] | None
    _check: Callable[..., bool] | None  # whether positional arguments are tensors like those of an earlier call, in C
    _checks: int  # such checks that may still be made
    _as_is: bool | None  # whether results already have the program's nesting; None before the first call

    @classmethod
    def around(cls, program: Program, caller: Caller, comparison: str = "") -> CallerProgram:
        """CallerProgram that takes over all attributes of `program`, which must not be used afterwards.

        `comparison`: text of the timing comparison that the caller's function won.
        """
        made = object.__new__(cls)
        made.__dict__.update(program.__dict__)
        made.caller, made.comparison, made._kinds, made._as_is = caller, comparison, None, None
        made._check, made._checks = None, CHECKS
        if caller.plain and not program.manifest.sizes:
            made._kinds = [(type(x), x.dtype, tuple(x.shape), getattr(x, "device", None)) for x in caller.args]
        return made

    def bind(self, params: Mapping[str, Any] | None = None) -> Self:
        """Bind weights and return this program (`Program.bind`).

        After binding other weights the compiled plan runs, because the caller's function has its own weights.
        """
        if params is not None:
            self.caller = self._kinds = None
        return super().bind(params)

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        """Run the program (`Program.__call__`)."""
        kinds = self._kinds
        if kinds is None or named or len(args) != len(kinds):
            return super().__call__(*args, **named)
        if self._check is None or not self._check(*args):
            for x, (kind, dtype, shape, device) in zip(args, kinds):
                if type(x) is not kind or x.dtype != dtype or x.shape != shape or getattr(x, "device", None) != device:
                    return super().__call__(*args)
            self._remember(args)
        caller = self.caller
        assert caller is not None
        if caller.training is not None and not caller.in_mode:
            return super().__call__(*args)
        found = caller.returned(args)
        if self._as_is:
            return found
        if self._as_is is None:
            self._as_is = has_structure(found, self.manifest.structure, torch=caller.torch)
        return found if self._as_is else filled(self.manifest.structure, result_leaves(found, torch=caller.torch))

    def _remember(self, args: Sequence[Any]) -> None:
        """Create the check in C that accepts tensors like the arguments `args`; a few times at most, where strides
        alternate."""
        if self._checks and self.caller is not None and self.caller.torch and args:
            self._checks -= 1
            self._check = tensor_guard(args)

    def _flat(self, args: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        """The outputs as a flat sequence (`Program.flat`)."""
        caller = self.caller
        given = args if not named and len(args) == len(self.input_names) else by_name(args, named, self.input_names)
        if caller is None or not caller.in_mode or not self._fit(given, caller.torch):
            return super()._flat(given, {})
        return caller.outputs(given)

    def _fit(self, given: Sequence[Any], torch: bool) -> bool:
        """Whether a call's inputs have the kind, dtypes and shapes that the caller's function takes."""
        specs = self._specs(given) if self.manifest.sizes else self.manifest.inputs
        device = "" if self.caller is None else self.caller.device
        for x, (_, shape, dtype) in zip(given, specs):
            own = is_torch(x) and str(x.device) == device if torch else type(x) is np.ndarray
            if not own or dtype_of(x) != dtype or tuple(x.shape) != shape:
                return False
        return True

    def save(self, folder: str | Path) -> Path:
        """Write the compiled plan and return its path (`Program.save`). Warns that the folder lacks the caller's
        function."""
        if self.caller is None:
            return super().save(folder)
        warnings.warn(f"the compiled plan is saved, not the caller's function: {self.comparison}", stacklevel=2)
        made, self.manifest = self.manifest, replace(self.manifest, compared=self.comparison)
        try:
            return super().save(folder)
        finally:
            self.manifest = made


def expected_inputs(program: Program, given: Sequence[Any]) -> Sequence[Any]:
    """Inputs of a program at the sizes of `given`, as (name, shape, dtype).

    () if the program cannot run at these sizes.
    """
    try:
        return program._specs(given) if program.manifest.sizes else program.manifest.inputs
    except Exception:
        return ()


def dtype_of(x: Any) -> str:
    """Name of the dtype of an array or tensor."""
    return str(x.dtype).rpartition(".")[2]


__all__ = ["Caller", "CallerForm", "CallerProgram", "dtype_of", "expected_inputs"]
