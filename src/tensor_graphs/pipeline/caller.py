"""The caller's own module or function as a rival of the compiled program on the CPU: both are timed, the faster one
runs.

The cost model prices kernels one by one. Only whole calls in the caller's process tell whether the program is faster
than the caller's existing code. If the program loses by more than noise, `optimize` returns a `CallerProgram`, which
calls the caller's function for inputs like the examples; the report says so.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ..backends.program.program import Program, structured
from ..backends.runtime.marshalling import array_of, is_torch, tensor_of
from ..egraph.ir.graph import Graph
from ..egraph.ir.ops import Type
from ..report.report import CALLER, Report
from ..verification.memory_checks import eager_bytes, lacking
from .timing import Run, is_surely_faster, sampled, wall_us

SHARE_S, LEAST_S = 1.0, 0.1  # seconds of timing: maximum, and minimum even if the budget is exhausted
NOISE = 0.04  # relative margin by which the caller's function must be faster to win
SHORT_US = 50.0  # calls shorter than this many µs are repeated until a sample is as long


@dataclass(frozen=True)
class Caller:
    """A module or function with the arguments of its example call. `torch`: the arguments are Torch tensors, else NumPy
    arrays.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    torch: bool

    @classmethod
    def of(cls, source: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Caller | None:
        """The optimization source as a callable with examples; None if it cannot be called with them.

        Callable: functions and modules whose example leaves are all CPU tensors or all arrays. Not callable:
        ExportedProgram, examples given as types.
        """
        leaves = list(_leaves((args, dict(kwargs))))
        tensors = [is_torch(x) for x in leaves]
        if not callable(source) or not leaves or type(source).__name__ == "ExportedProgram":
            return None
        on_cpu = all(x.device.type == "cpu" for x, t in zip(leaves, tensors) if t)
        arrays = all(isinstance(x, np.ndarray) for x, t in zip(leaves, tensors) if not t)
        if not on_cpu or not arrays or len(set(tensors)) != 1:
            return None
        return cls(source, args, kwargs, tensors[0])

    @property
    def inputs(self) -> list[Any]:
        """Flat list of the example call's tensors or arrays, in the order of the program's inputs."""
        return list(_leaves((self.args, dict(self.kwargs))))

    @cached_property
    def plain(self) -> bool:
        """Whether all arguments are positional tensors or arrays."""
        return not self.kwargs and all(hasattr(a, "shape") for a in self.args)

    def call(self, given: Sequence[Any]) -> Any:
        """Call the function with `given` in place of the example tensors or arrays."""
        if self.plain:
            return self.function(*given)
        left = iter(given)
        args, kwargs = _filled((self.args, dict(self.kwargs)), left)
        return self.function(*args, **kwargs)

    def outputs(self, given: Sequence[Any]) -> list[Any]:
        """Flat list of the tensors or arrays that the function returns, in the order of the program's outputs."""
        return _results(self.returned(given), self.torch)

    def returned(self, given: Sequence[Any]) -> Any:
        """Return value of the function, called without gradients."""
        if not self.torch:
            return self.call(given)
        import torch

        if not torch.is_grad_enabled():
            return self.call(given)
        with torch.no_grad():
            return self.call(given)


def _leaves(value: Any) -> Iterator[Any]:
    """Tensors and arrays in nested arguments, in order."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        yield value


def _filled(value: Any, left: Iterator[Any]) -> Any:
    """Copy of nested arguments with tensors and arrays replaced by the next items of `left`."""
    if isinstance(value, Mapping):
        return {k: _filled(v, left) for k, v in value.items()}
    if isinstance(value, list | tuple):
        parts = [_filled(v, left) for v in value]
        return parts if isinstance(value, list) else tuple(parts)
    return next(left) if hasattr(value, "shape") and hasattr(value, "dtype") else value


def _results(found: Any, torch: bool) -> list[Any]:
    if not torch:
        return [np.asarray(x) for x in _leaves(found)]
    if is_torch(found):
        return [found]
    from torch.utils import _pytree

    return [x for x in _pytree.tree_leaves(found) if x is not None]


def _same_structure(found: Any, structure: Any, torch: bool) -> bool:
    """Whether a returned value has the same nesting and container types as a program's results."""
    if structure is None or isinstance(structure, int):
        return is_torch(found) if torch else type(found) is np.ndarray
    if type(found) is not type(structure) or len(found) != len(structure):
        return False
    if isinstance(found, dict):
        return list(found) == list(structure) and all(_same_structure(found[k], structure[k], torch) for k in found)
    return all(s is not None and _same_structure(f, s, torch) for f, s in zip(found, structure))


# ---------------------------------------------------------------- a program that calls the caller's function
class CallerProgram(Program):
    """A program whose calls run the caller's own function if the inputs match the examples' kind (CPU tensors, or
    arrays).

    Other inputs run the compiled plan. `save` writes the compiled plan.
    """

    caller: Caller | None
    said: str  # text of the timing comparison, for the saved manifest and the warning of `save`
    _kinds: Sequence[tuple[Any, Any, tuple[int, ...]]] | None  # type, dtype, shape of each positional argument
    _as_is: bool | None  # whether results already have the program's nesting; None before the first call

    @classmethod
    def around(cls, program: Program, caller: Caller, said: str = "") -> CallerProgram:
        """Make a CallerProgram that takes over all attributes of `program`, which must not be used afterwards."""
        made = object.__new__(cls)
        made.__dict__.update(program.__dict__)
        made.caller, made.said, made._kinds, made._as_is = caller, said, None, None
        if caller.plain and not program.manifest.sizes:
            made._kinds = [(type(x), x.dtype, tuple(x.shape)) for x in caller.args]
        return made

    def bind(self, params: Mapping[str, Any] | None = None) -> Program:
        """See Program. After binding other weights the compiled plan runs, because the caller's function has its own
        weights.
        """
        if params is not None:
            self.caller = self._kinds = None
        return super().bind(params)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """See Program."""
        kinds = self._kinds
        if kinds is None or named or len(args) != len(kinds):
            return super().__call__(*args, **named)
        for x, (kind, dtype, shape) in zip(args, kinds):
            if type(x) is not kind or x.dtype != dtype or x.shape != shape:
                return super().__call__(*args)
        caller = self.caller
        assert caller is not None
        found = caller.returned(args)
        if self._as_is is None:
            self._as_is = _same_structure(found, self.manifest.structure, caller.torch)
        return found if self._as_is else structured(self.manifest.structure, _results(found, caller.torch))

    def flat(self, *args: Any, **named: Any) -> Sequence[Any]:
        """See Program."""
        caller = self.caller
        given = args if not named and len(args) == len(self.input_names) else self._arguments(args, named)
        if caller is None or not self._fit(given, caller.torch):
            return super().flat(*given)
        return caller.outputs(given)

    def _fit(self, given: Sequence[Any], torch: bool) -> bool:
        """Whether a call's inputs have the kind, dtypes and shapes that the caller's function takes."""
        specs = self._specs(given) if self.manifest.sizes else self.manifest.inputs
        for x, (_, shape, dtype) in zip(given, specs):
            own = is_torch(x) and x.device.type == "cpu" if torch else type(x) is np.ndarray
            if not own or _dtype(x) != dtype or tuple(x.shape) != shape:
                return False
        return True

    def save(self, folder: str | Path) -> Path:
        """Write the compiled plan (see Program.save). Warns that the folder does not contain the caller's function."""
        if self.caller is None:
            return super().save(folder)
        warnings.warn(f"the compiled plan is saved, not the caller's function: {self.said}", stacklevel=2)
        made, self.manifest = self.manifest, replace(self.manifest, compared=self.said)
        try:
            return super().save(folder)
        finally:
            self.manifest = made


# ---------------------------------------------------------------- comparison
def unlike(
    program: Program, caller: Caller, graph: Graph, first: dict[str, float], clock: Callable[[Run], float] = wall_us
) -> str:  # fmt: skip
    """Reason why the caller's function cannot replace the program, or "" if it can.

    Calls both once, and writes the µs of these calls to `first`, by "caller" and "program".
    """
    if graph.updates or program.manifest.states:
        return "the program has states of its own"
    given = caller.inputs
    if program.device != "cpu" or [dtype for _, _, dtype in program.manifest.inputs] != [_dtype(x) for x in given]:
        return "the example inputs are not the program's"
    if [tuple(x.shape) for x in given] != [shape for _, shape, _ in _specs(program, given)]:
        return "the example inputs have other sizes"
    if missing := lacking(max(sum(t.type.nbytes for t in graph.roots), eager_bytes(graph))):
        return missing
    try:
        found: list[Any] = []
        first["caller"] = clock(lambda: found.extend(caller.outputs(given)))
        types, shared = [_type(x) for x in found], any(_shares(x, y) for x in found for y in given)
        found.clear()  # large outputs of both are not held at once
        first["program"] = clock(lambda: found.extend(program.flat(*given)))
        wanted = [_type(x) for x in found]
    except Exception as error:  # any error of the caller's function
        return f"it raised {type(error).__name__}: {str(error).partition(chr(10))[0][:120]}"
    if types != wanted:
        return "it returns other types than the program"
    return "it returns its inputs' memory" if shared else ""


def _specs(program: Program, given: Sequence[Any]) -> Sequence[Any]:
    try:
        return program._specs(given) if program.manifest.sizes else program.manifest.inputs
    except Exception:
        return ()


def _dtype(x: Any) -> str:
    return str(x.dtype).rpartition(".")[2]


def _type(x: Any) -> Type:
    return Type(tuple(x.shape), _dtype(x))


def _shares(x: Any, y: Any) -> bool:
    if is_torch(x):
        return bool(x.numel() and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr())
    return bool(np.may_share_memory(x, y))


def compared(
    program: Program, caller: Caller, report: Report, *, left: float, ended: Callable[[], bool],
    clock: Callable[[Run], float] = wall_us, first: Mapping[str, float] | None = None,
) -> bool:  # fmt: skip
    """Time both; return whether a `CallerProgram` and the bare function are faster than the program by more than noise.

    Writes the median call times in µs of the program and of the bare function to the report. Samples alternate between
    the calls, for `left` seconds bounded to LEAST_S..SHARE_S, at least one round; `ended` is polled after each. Both
    must have been called before (warm). `first`: µs of these calls; where both together took longer than the sampling may,
    they are the samples.
    """
    given = caller.inputs
    until = time.perf_counter() + min(SHARE_S, max(left, LEAST_S))

    def over() -> bool:
        return ended() or time.perf_counter() >= until

    wrapped = CallerProgram.around(program, caller)
    calls: dict[str, Run] = {
        "caller": lambda: caller.call(given), "program": lambda: program(*given), "wrapped": lambda: wrapped(*given)
    }  # fmt: skip
    with _fastest(caller):
        known = first or {}
        long = sum(known.values()) > 1e6 * (until - time.perf_counter())
        samples = {name: [known[name] if long else clock(calls[name])] for name in ("caller", "program")}
        samples["wrapped"] = samples["caller"]
        if not (long or over()):
            times = max(1, int(SHORT_US / max(1e-3, min(samples["caller"] + samples["program"]))))
            many = {name: _repeated(call, times) for name, call in calls.items()}
            samples = sampled(many, seconds=SHARE_S, settled=LEAST_S, clock=clock, ended=over)
            samples = {name: [us / times for us in taken] for name, taken in samples.items()}
    report.caller_us, report.program_us = (median(samples[name]) for name in ("caller", "program"))
    return all(is_surely_faster(samples[name], samples["program"], NOISE) for name in ("wrapped", "caller"))


def _repeated(call: Run, times: int) -> Run:
    def run() -> None:
        for _ in range(times):
            call()

    return call if times == 1 else run


def _fastest(caller: Caller) -> Any:
    """Context in which the caller's function is timed: torch.inference_mode for Torch functions."""
    if not caller.torch:
        return nullcontext()
    import torch

    return torch.inference_mode()


def values(caller: Caller, graph: Graph, given: Mapping[str, Any]) -> list[Any]:
    """The caller's results for verification, as arrays. `given`: arrays by the names of the graph's inputs."""
    arrays = [given[str(n.attr("name"))] for n in graph.inputs]
    found = caller.outputs([tensor_of(a) for a in arrays] if caller.torch else arrays)
    return [array_of(x) if is_torch(x) else x for x in found]


def note(report: Report, said: str) -> None:
    """Record in the report why nothing was compared."""
    report.compared = f"not compared with the caller's own: {said}"


def decided(report: Report, taken: bool, why: str = "") -> str:
    """Record the comparison and the winner in the report; return the text."""
    assert report.caller_us is not None and report.program_us is not None
    ours, theirs = (_time(us) for us in (report.program_us, report.caller_us))
    runs = "the caller's own form runs" if taken else "the program runs" + (f", for {why}" if why else "")
    report.compared = f"caller {theirs}, program {ours}: {runs}"
    if taken:
        report.runs = CALLER
    return report.compared


def _time(us: float) -> str:
    return f"{us / 1000:.2f} ms" if us >= 1000 else f"{us:.1f} µs"


__all__ = ["Caller", "CallerProgram", "compared", "decided", "note", "unlike", "values"]
