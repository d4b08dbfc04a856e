"""Calls programs: marshals arguments, selects plans and functions for the call's sizes, makes direct calls, and
translates errors of devices."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ...egraph.ir.structure import filled
from ...errors import ShapeError, TensorGraphsError, Unpicklable, UsageError
from ...extract.model.sizes import bound_value
from ...processes.forks import Lock
from ...wording import spelled_values
from ..device import HOST
from ..runtime.arguments import by_name, unfolded
from ..runtime.cpu_tensors import LARGE, TensorCalls, refuse_tangents, warn_of_gradients
from ..runtime.fixed_arguments import without_fixed
from ..runtime.marshalling import Quick
from .buckets import BucketForm, CallsAtSizes
from .emit.emit_any_size import sources
from .index_checks import checked_indices
from .launch.binaries import Binaries
from .launch.device_programs import BoundRun, Direct
from .launch.direct_calls import DirectCalls
from .launch.emission import programs_of
from .launch.size_calls import SizeCalls, size_call
from .manifest import Manifest, Spec
from .torch_modes import in_plain_modes
from .weights import Array, SharedWeights, bytes_of

if TYPE_CHECKING:
    from ...report.report import Report

KEPT_SHAPES = 256  # cached shapes of calls, for programs with free sizes


class ProgramCalls(Unpicklable, ABC):
    """Base of `Program`: its state, and the ways to call it.

    A call is made by the first of these that applies: the direct function of calls like the last one (`DirectCalls`), a
    function of the sizes (`SizeCalls`) at sizes that were not met before, the emitted code with arguments marshalled by
    `quick`, the emitted code with arguments marshalled one by one.
    """

    #: Set by `tg.optimize` and `tg.load_program`; declared as it is there, None in programs of other origin.
    report: Report = None  # type: ignore[assignment]
    _runs_itself = True  # whether `_flat` is that of this class, so that direct functions make calls

    def _start(self, manifest: Manifest, source: str, weights: Mapping[str, Array], device: str | None) -> None:
        self.manifest, self.source, self._weights = manifest, source, weights
        self.device = device or manifest.device
        self.states: dict[str, Any] = {}
        self._shared: dict[str, Any] | None = None  # memory of states that other programs use, too
        self._pool: SharedWeights | None = None
        self._programs = programs_of(manifest.device)
        self._exchange = self._programs.exchange(self.device)
        self._bound: Callable[..., Sequence[Any]] | None = None
        # whether the caller is in a mode of Torch that calls have to leave; None without such modes
        self._in_mode: Callable[[], bool] | None = None
        self._binaries: Binaries | None = None  # compiled kernels: saved ones, or those of the last calls
        self._space: Mapping[str, Any] = {}  # namespace of the executed source, while bound
        self._tensors: TensorCalls | None = None  # how the bound program takes tensors of the CPU
        self._quick: Quick | None = None  # set while bound, for programs without free sizes
        self._direct: Direct | None = None  # function that makes calls like the last one, without the program's code
        self._direct_calls = DirectCalls(0)  # the same for all calls of a program without free sizes
        self._new_sizes: SizeCalls | None = None  # functions for calls at sizes that the program has not met
        self._lock = Lock()  # guards running kernels, and reading or setting states and weights
        self._fitting: dict[tuple[Any, ...], CallsAtSizes] = {}  # shapes of a call -> what it needs
        self._steady: frozenset[int] = frozenset()  # inputs that stay at their addresses between calls
        self.plans: dict[str, Any] = {}  # plans for some buckets of sizes, by name
        self._index_checks: tuple[Any, Callable[[Sequence[Any]], None] | None] | None = None  # (manifest, its check)
        self._forms: dict[int, BucketForm] = {}  # least size of a bucket -> what runs there instead of its plan
        self.input_names = [name for name, _, _ in manifest.inputs]

    @abstractmethod
    def _bind(self) -> None:
        """Execute the emitted source and bind it to weights and states."""

    @property
    def _run(self) -> Callable[..., Sequence[Any]] | None:
        """The function that the emitted `bind` returned; None while the program is not bound."""
        return self._bound

    @_run.setter
    def _run(self, run: Callable[..., Sequence[Any]] | None) -> None:
        self._bound = run
        self._forget_direct()
        sized = self.manifest.sizes and run is not None and self._programs.has_size_calls
        self._new_sizes = SizeCalls() if self._tries and sized else None

    def _forget_direct(self) -> None:
        """Drop the direct functions, and count calls anew until the next is made."""
        self._direct, self._direct_calls = None, DirectCalls(self._tries)
        self._fitting.clear()

    @property
    def _tries(self) -> int:
        """Calls until the first attempt to make a direct function (`DirectCalls`); 0 for none."""
        moved = (self.device == HOST.name) != (self.manifest.device == HOST.name)  # to a CPU
        return 0 if moved else self._programs.direct_after

    @property
    def tensors(self) -> str:
        """Name of the Torch device whose tensors the program works on; "" for a program on NumPy arrays."""
        return self._programs.tensors(self.device)

    def __call__(self, /, *args: Any, **named: Any) -> Any:
        """Run the program.

        Raises ShapeError for an input of another shape or dtype, UsageError for a missing or unknown one. If the
        program was traced from a module with dict, list or tuple arguments, nested arguments are accepted too.
        Arguments that are no tensors, such as numbers, have the values of the examples; a call may leave them out, and
        UsageError is raised if it gives another value. Raises IndexRangeError, on a CPU, if an input that is an index
        (`manifest.index_limits`) is outside of its axis. Warns in its first calls if an input requires gradients, which
        results do not have.
        """
        found: Sequence[Any] | None = None
        call = self._flat
        if (direct := self._direct) is None:
            warn_of_gradients((*args, *named.values()))
        elif args and not named and self._runs_itself:
            refuse_tangents(args)
            found, call = self._launched(direct, args), self._undirected
        try:
            if found is None:
                found = call(args, named)
        except UsageError as error:
            if isinstance(error, ShapeError) and error.sizes and not error.hint:
                error.hint = self._one_size_hint()
            fixed = self.manifest.fixed
            taken, kept = without_fixed(args, named, fixed, len(self.input_names)) if fixed else (args, named)
            inputs = unfolded(taken, kept, self.input_names)
            if inputs is None and (len(taken), len(kept)) == (len(args), len(named)):
                raise
            found = self._flat(taken, kept) if inputs is None else self._flat((), inputs)
        structure = self.manifest.structure
        return found[0] if structure is None else filled(structure, found)

    def _one_size_hint(self) -> str:
        """Hint for a call at other sizes: the free dimensions of the model of which the program has one size."""
        sizes = {n: s for n, s in getattr(self.report, "dims", {}).items() if n not in self.manifest.sizes}
        made = f"the program was made for {spelled_values(sizes)} only; `optimize` makes one for every size"
        return made if sizes else ""

    def flat(self, /, *args: Any, **named: Any) -> Sequence[Any]:
        """Run the program and return its outputs as a flat sequence, without the graph's structure."""
        return self._flat(args, named)

    def _flat(self, args: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        refuse_tangents(args if not named else (*args, *named.values()))
        if not named and args and self._direct is not None:
            if (results := self._launched(self._direct, args)) is not None:
                return results
        return self._undirected(args, named)

    def _undirected(self, args: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        """The results of a call that no direct function makes, of arguments without tangents."""
        if not named:
            quick, called, program, learnt = self._quick, self._called, self, self._direct_calls
            if quick is None and self.manifest.sizes and len(args) == len(self.input_names):
                if self._new_sizes is not None and (results := self._at_new_size(args)) is not None:
                    return results
                _, quick, form, program, learnt = self._at(args)
                called = form.called
                if learnt.call is not None and learnt.call is not self._direct:
                    self._direct = learnt.call
                    if (results := self._launched(self._direct, args)) is not None:
                        return results
            if quick is not None and (found := quick(args)) is not None:
                taken, converted = found
                self._check_indices(args)
                results = called(taken)
                learnt.wait -= 1
                if not learnt.wait:
                    self._direct = learnt.learn(partial(program._make_direct, args, self._index_check))
                    if program._new_sizes is not None and learnt.call is None:
                        program._learn_sizes(args)
                return results if converted is None else converted(results)
        given = args if not named and len(args) == len(self.input_names) else by_name(args, named, self.input_names)
        return self._exchange.hand_out(self.flat_near(*given), given)

    @property
    def _index_check(self) -> Callable[[Sequence[Any]], None] | None:
        """The function that checks a call's indices (`checked_indices`); None if no input is an index."""
        known, manifest = self._index_checks, self.manifest
        if known is None or known[0] is not manifest:
            known = self._index_checks = manifest, checked_indices(manifest)
        return known[1]

    def _check_indices(self, args: Sequence[Any]) -> None:
        """Raise IndexRangeError for an index among the inputs that is outside of the axis that it indexes."""
        if (check := self._index_check) is not None:
            check(args)

    def _launched(self, direct: Callable[..., Sequence[Any] | None], args: Sequence[Any]) -> Sequence[Any] | None:
        """The results of a direct call; None where the emitted program has to make it."""
        try:
            return direct(*args)
        except (LookupError, ValueError, RuntimeError) as error:
            self._raise(error)

    def flat_near(self, *given: Any) -> Sequence[Any]:
        """Run the program and return its outputs as a flat sequence, left on the program's device. `given`: all of the
        program's inputs."""
        near = self.manifest.device != HOST.name or not given  # else a direct call may return tensors for arrays
        if near and self._direct is not None and (found := self._launched(self._direct, given)) is not None:
            return found
        specs: Sequence[Any] = self.manifest.inputs
        program, learnt = self, self._direct_calls
        if self.manifest.sizes:
            specs, _, _, program, learnt = self._at(given)
        taken = [self._exchange.accept(x, spec) for x, spec in zip(given, specs)]
        self._check_indices(taken)
        results = program.called(taken)
        if near:
            learnt.wait -= 1
            if not learnt.wait:
                self._direct = learnt.learn(partial(program._make_direct, given, None))
        return results

    def _at_new_size(self, args: Sequence[Any]) -> Sequence[Any] | None:
        """The results of a call at sizes that the program has not met, without the emitted code; None where that has to
        make the call."""
        try:
            shapes = tuple([x.shape for x in args])
        except AttributeError:
            return None
        if shapes in self._fitting:
            return None
        program, divided = self, self.manifest.buckets
        if divided is not None:
            sizes = sources([shape for _, shape, _ in self.manifest.inputs], [divided.dimension])
            try:
                size = sizes[0].of(shapes)
            except IndexError:
                return None
            low, high, _ = self.manifest.sizes[divided.dimension]
            if not low <= size <= high or (row := divided.of(size)).least in self._forms:
                return None
            program = self.plans.get(row.plan, self)
        new = program._new_sizes
        return None if new is None else self._launched(partial(new.call, shapes), args)

    def _learn_sizes(self, given: Sequence[Any]) -> None:
        """Make a function for calls at new sizes, after the emitted code made the first call with inputs of the shapes
        of `given`."""
        bound, new = self._bound, self._new_sizes
        if new is not None and bound is not None and hasattr(bound, "known"):
            mode = self._in_mode or (lambda: False)
            new.learn(lambda: size_call(bound, given, self._lock, mode), bound, given)

    def _make_direct(self, given: Sequence[Any], check: Callable[[Sequence[Any]], None] | None) -> Direct | None:
        """The direct function of calls with inputs like `given`, after such a call (`DevicePrograms.direct`), which
        makes the `check` of their indices."""
        if (run := self._bound) is None:
            return None
        manifest = self.manifest
        inputs = [(name, tuple(np.shape(x)), dtype) for (name, _, dtype), x in zip(manifest.inputs, given)]
        bound = BoundRun(
            run, self._lock, self._tensors or TensorCalls(), inputs, [] if manifest.sizes else manifest.outputs,  # type: ignore[arg-type]
            check, self._in_mode,
        )  # fmt: skip
        return self._programs.direct(bound, given)

    def quick(self, specs: Sequence[Spec]) -> Quick | None:
        """Function that converts inputs of the types `specs` to arguments quickly (`BucketForm.quick`); None if there
        is none."""
        return self._exchange.quick(specs, lambda: None if self._run is None else self._tensors)

    def _tensor_calls(self, space: Mapping[str, Any]) -> TensorCalls:
        """Calling convention of the executed source for CPU tensors, by TENSORS and RESULTS of its namespace."""
        outputs: Sequence[Any] = self.manifest.outputs
        own = [i for i in space.get("RESULTS", ()) if bytes_of(outputs[i]) < LARGE]
        own = own if own == list(space.get("RESULTS", ()))[: len(own)] else []  # they are given by position
        return TensorCalls(bool(space.get("TENSORS")), [outputs[i] for i in own], len(own) == len(outputs))

    def called(self, taken: Sequence[Any]) -> Sequence[Any]:
        """Run the program and return its outputs as a flat sequence. `taken`: the arguments that the function of
        `quick` made of the inputs.

        Raises ShapeError for sizes that the program does not accept, UsageError for a write past the end of an axis,
        and an error of the device if a kernel fails (`DevicePrograms.fault`).
        """
        return self._called(taken)

    def _called(self, taken: Sequence[Any]) -> Sequence[Any]:
        """Run the program on marshalled arguments; errors of the device and of emitted code become errors of this
        package."""
        try:
            with self._lock:
                run = self._bound
                if run is None:
                    self._bind()
                    run = self._bound
                    assert run is not None
                if self._in_mode is not None and self._in_mode():
                    with in_plain_modes(self.tensors):
                        return run(*taken)
                return run(*taken)
        except (LookupError, ValueError, RuntimeError) as error:
            if type(error).__name__ == "NotStored":
                return self._compiled_again(taken, str(error))
            self._raise(error)

    def _raise(self, error: Exception) -> NoReturn:
        """Raise the error of this package for one of a call (`_translated`), or the error itself."""
        if (found := self._translated(error)) is None:
            raise error
        raise found from (error if isinstance(error, RuntimeError) else None)

    def _translated(self, error: Exception) -> TensorGraphsError | None:
        """The error of this package for one that the emitted code or the device raised in a call; None if there is
        none."""
        if isinstance(error, TensorGraphsError):
            return None
        if isinstance(error, IndexError):
            full = "a state that is full? reset() starts over" if self.manifest.states else ""
            return UsageError(f"written past the end of an axis: {error}", where=self.manifest.name, hint=full)
        if type(error).__name__ == "SizeError":
            return ShapeError(str(error), where=self.manifest.name)
        if isinstance(error, RuntimeError):
            return self._programs.fault(error, f"running {self.manifest.name}")
        return None

    def _specs(self, given: Sequence[Any]) -> Sequence[Spec]:
        """The inputs' specs at the sizes that the arguments have. Raises ShapeError for sizes outside their ranges."""
        return self._at(given).specs

    def _compiled_again(self, taken: Sequence[Any], why: str) -> Sequence[Any]:
        """Run the program with kernels compiled from source, because the saved kernels do not suffice (`why`, for the
        warning)."""
        warnings.warn(f"{self.manifest.name}: kernels are compiled again: {why}", RuntimeWarning, stacklevel=6)
        with self._lock:
            self._binaries, self._run = None, None
        return self._called(taken)

    def _at(self, given: Sequence[Any]) -> CallsAtSizes:
        """The prepared calls for the arguments' sizes. Raises ShapeError for sizes outside their ranges."""
        try:
            shapes = tuple([x.shape for x in given])
        except AttributeError:
            shapes = tuple([x.shape if hasattr(x, "shape") else np.shape(x) for x in given])
        found = self._fitting.get(shapes)
        if found is None:
            found = self._fitted(shapes)
            if len(self._fitting) >= KEPT_SHAPES:
                self._fitting.clear()
            self._fitting[shapes] = found
        return found

    def _fitted(self, shapes: Sequence[Sequence[int]]) -> CallsAtSizes:
        inputs, ranges, divided = self.manifest.inputs, self.manifest.sizes, self.manifest.buckets
        for (name, shape, dtype), seen in zip(inputs, shapes):
            if len(shape) != len(seen):
                raise ShapeError(f"input {name!r} has the shape {list(seen)}, not {dtype}{list(shape)}")
        sizes = {s.name: s.of(shapes) for s in sources([shape for _, shape, _ in inputs], list(ranges))}
        for name, size in sizes.items():
            low, high, _ = ranges[name]
            if not low <= size <= high:
                raise ShapeError(f"dimension {name}={size} is outside {low}..{high}", where=self.manifest.name)
        specs = [(name, bound_value(shape, sizes), dtype) for name, shape, dtype in inputs]
        program, form = self, None
        if divided is not None:
            row = divided.of(sizes[divided.dimension])
            program, form = self.plans.get(row.plan, self), self._forms.get(row.least)
        form = form or program
        tries = program._tries if form is program else 0
        return CallsAtSizes(specs, form.quick(specs), form, program, DirectCalls(tries))

    def near(self, values: Sequence[Any]) -> list[Any]:
        """`values` as tensors on the program's GPU, or as NumPy arrays for a CPU program, so that calls need no
        transfer."""
        return [self._exchange.near(v) for v in values]
