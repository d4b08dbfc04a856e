"""A program: emitted source bound to weights. Callable; saved as a folder that loads without optimization.

A saved program is a folder with `program.py` (plain source), `manifest.json` (names, shapes, structure, checksums),
`weights.safetensors` and, if known, `report.json` (optimization report) and `origin.safetensors` (the source graph and
the terms of its kernels); also `kernels.cu`, a readable copy, if it has CUDA C++ kernels. A saved program is code: load
only what you trust. Plans for some buckets of sizes are saved programs in the folder `plans`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...costdb.keys import rates
from ...egraph.ir import dtypes
from ...egraph.ir.ops import Type
from ...egraph.ir.structure import filled
from ...egraph.ir.weight_data import Data
from ...errors import ShapeError, Unpicklable, UsageError
from ...extract.model.bound_plan import bound_plan
from ...extract.model.plan import Plan
from ...extract.model.sizes import bound_value
from ...processes.forks import Lock
from ...writing.files import named_path
from ...writing.folders import replacing_folder
from ..device import HOST
from ..runtime.arguments import by_name, unfolded
from ..runtime.cpu_tensors import LARGE, TensorCalls
from ..runtime.heap import trim
from ..runtime.marshalling import Quick, array_of, is_torch
from .binaries import Binaries, collected
from .buckets import FOLDER, BucketForm, Buckets, CallsAtSizes
from .device_programs import Direct
from .direct_calls import DirectCalls
from .emission import emit_for, executed, programs_of
from .emit_any_size import sources
from .manifest import STATE, Manifest, Spec, initial_states, manifest_of
from .manifest_summary import described, html_table, memory_of
from .memory_plan import Layout
from .program_folder import refuse_occupied, stored_bytes, write_program
from .size_calls import SizeCalls, size_call
from .torch_modes import in_plain_modes, mode_to_leave
from .weights import Array, EvaluatedWeights, SharedWeights, bytes_of

KEPT_SHAPES = 256  # cached shapes of calls, for programs with free sizes


class Program(Unpicklable):
    """An executable plan: emitted source bound to weights.

    Takes inputs by position or name, as NumPy arrays or Torch tensors; returns outputs of the same kind in the graph's
    structure.

    Calls from several threads run one after another. Outputs are fresh arrays unless `reuse_outputs`. Weights are read
    at the first call or at `bind`. A state (memory kept between calls) starts as the param of its name, else as zeros.

    A program with free sizes runs at every size in their ranges; the first call at a size prepares its memory plan.

    On a GPU, kernels run on the caller's current stream, without synchronization unless results are converted to
    arrays. `device` names another device than the program was made for, such as "cuda:1", or "cpu" if Torch has the
    same kernels for CPUs.
    """

    kept_by = "program.save(folder), and tg.load_program(folder) where it is needed"
    report: Any = None  # optimization report; set by the pipeline
    attached: Callable[[Path], None] | None = None  # writes further files into a saved folder; set by the pipeline

    def __init__(
        self, plan: Plan, params: Mapping[str, Data] | None = None, *, reuse_outputs: bool = False,
        sizes: Mapping[str, int] | None = None, device: str | None = None,
    ) -> None:  # fmt: skip
        plan = bound_plan(plan, sizes or {})
        emitted = emit_for(plan, reuse_outputs=reuse_outputs)
        self.plan: Plan | None = plan
        self.layout: Layout | None = emitted.layout
        self._params: dict[str, Data] = {**plan.graph.params, **(params or {})}
        weights: Mapping[str, Array] = EvaluatedWeights(emitted.weights, self._params, emitted.plain)
        manifest = manifest_of(plan, emitted, initial_states(plan, emitted.states.items(), self._params))
        self._start(manifest, emitted.source, weights, device)

    @classmethod
    def from_saved(
        cls,
        manifest: Manifest,
        source: str,
        weights: Mapping[str, Array],
        binaries: Binaries | None,
        device: str | None,
    ) -> Program:
        """A program from the parts of a saved folder; its `plan` is None.

        `source`: text of program.py. `weights`: arrays by key. `binaries`: compiled kernels, if they are known.
        `device`: the user's choice; None for the manifest's device.
        """
        made = object.__new__(cls)
        made.plan, made.layout, made._params = None, None, {}
        made._start(manifest, source, weights, device)
        made._binaries = binaries
        return made

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
        self.plans: dict[str, Program] = {}  # plans for some buckets of sizes, by name
        self._forms: dict[int, BucketForm] = {}  # least size of a bucket -> what runs there instead of its plan
        self.input_names = [name for name, _, _ in manifest.inputs]

    # ------------------------------------------------------------ binding
    @property
    def _run(self) -> Callable[..., Sequence[Any]] | None:
        """The function that the emitted `bind` returned; None while the program is not bound."""
        return self._bound

    @_run.setter
    def _run(self, run: Callable[..., Sequence[Any]] | None) -> None:
        self._bound, self._direct, self._direct_calls = run, None, DirectCalls(self._tries)
        self._new_sizes = SizeCalls() if self._tries and self.manifest.sizes and run is not None else None
        self._fitting.clear()

    @property
    def _tries(self) -> int:
        """Calls until the first attempt to make a direct function (`DirectCalls`); 0 for none."""
        return int(self._programs.has_direct and self.device != HOST.name)

    def bind(self, params: Mapping[str, Data] | None = None) -> Program:
        """Read and prepare the weights now, if not yet done; `params` replaces params by name.

        Resets states (memory kept between calls). Returns itself.

        Raises UsageError for unknown params, params without data or of another shape or dtype, and for `params` of a
        loaded program, which has only its saved weights. The program then keeps its weights.
        """
        with self._lock:
            if params is not None:
                if not isinstance(self._weights, EvaluatedWeights):
                    raise UsageError(
                        "a loaded program can only use its saved weights", hint="optimize again to use others"
                    )
                assert self.plan is not None
                leaves = {str(n.attr("name")): n.type for op in ("param", "state") for n in self.plan.graph.leaves(op)}
                _known("param or state", params, {*leaves, *self._params})
                self._params |= {n: _data(n, v, leaves.get(n)) for n, v in params.items()}
                self._weights = EvaluatedWeights(self._weights.terms, self._params, self._weights.plain)
                states = [(n, Type(shape, dtype)) for n, shape, dtype in self.manifest.states]
                initial = initial_states(self.plan, states, self._params)
                self.manifest = replace(self.manifest, initial=initial)
                self._run = None
                self._forms.clear()  # they have weights of their own
                self._pool = SharedWeights() if self.plans else None  # the pool has the values of other weights
                for plan in self.plans.values():
                    plan._pool = self._pool
            if self._run is None:
                self._bind()
            self._reset()
        for plan in self.plans.values():
            plan.bind(params)
        return self

    def divide(
        self, buckets: Buckets, plans: Mapping[str, Program], forms: Mapping[int, BucketForm] | None = None
    ) -> Program:
        """Run other plans in some buckets (ranges) of sizes, from the next binding on. Returns itself.

        `plans`: programs with the same inputs and outputs, by the names of their plans in `buckets`; each must hold for
        the sizes of its buckets. `forms`: by a bucket's least size, what runs in place of the bucket's plan for
        arguments that its `quick` accepts. Plans share equal weights.
        """
        with self._lock:
            self.manifest = replace(self.manifest, buckets=buckets)
            self.plans, self._forms, self._run = dict(plans), dict(forms or {}), None
            self._pool = self._pool or SharedWeights()
            for plan in plans.values():
                plan._pool, plan._run = self._pool, None
                if isinstance(plan._weights, EvaluatedWeights) and isinstance(self._weights, EvaluatedWeights):
                    plan.manifest = replace(plan.manifest, borrowed=plan._weights.borrowed(self._weights))
        return self

    def pooled(self, weights: SharedWeights) -> Program:
        """Take weights from `weights`, a pool that programs over the same params share, from the next binding on.
        Returns itself."""
        self._pool = weights
        return self

    def steady(self, inputs: Iterable[int]) -> Program:
        """Declare inputs, by position, whose tensors stay at their addresses between calls, from the next binding on:
        parameters of a model that is trained. CUDA graphs of programs of one size then read them without a copy. Calls
        with other tensors are right as well, but slower. Returns itself."""
        with self._lock:
            self._steady = frozenset(inputs)
            if hasattr(self._run, "steady"):
                self._collect()
                self._run = None
        return self

    def missing_bytes(self) -> int:
        """Bytes still to be allocated on the device before the program can run (`bind`): its memory by `memory_of`,
        less the states that it shares with other programs and the weights that the pool shared with them already holds.
        """
        there = sum(bytes_of(s) for s in self.manifest.states if s[0] in (self._shared or {}))
        there += 0 if self._pool is None else self._pool.held(self._weights)
        return sum(memory_of(self.manifest).values()) - there

    def check_room(self) -> None:
        """Check, without allocating, that the program fits into the free memory of its device.

        Raises DeviceMemoryError if `missing_bytes` are not free.
        """
        self._programs.check_room(self.device, self.missing_bytes())

    def preparing_s(self) -> float:
        """Estimated seconds of preparing the weights for the program, except those that the pool shared with other
        programs holds already."""
        weights, pool = self._weights, self._pool
        if isinstance(weights, EvaluatedWeights):
            missing = [n for n, _, _ in self.manifest.weights if pool is None or not pool.holds(weights, n)]
            return weights.preparing_s(missing, "" if pool is None else self.tensors)  # a pool computes on the device
        nbytes = sum(map(bytes_of, self.manifest.weights)) - (0 if pool is None else pool.held(weights))
        return nbytes / rates.HOST.reference_bytes_per_s

    def _bind(self) -> None:
        self.check_room()
        space = executed(self.source, self.manifest.name, self._usable())
        self._space, self._tensors = space, self._tensor_calls(space)
        self._in_mode = mode_to_leave(space.get("torch"), bool(self.manifest.sizes))
        self.states = {spec[0]: self._state_memory(spec) for spec in self.manifest.states}
        self._reset()
        weights = self._weights if self._pool is None else self._pool.of(self._weights, self._exchange, self.tensors)
        self._quick = None if self.manifest.sizes else self.quick(self.manifest.inputs)  # type: ignore[arg-type]
        with in_plain_modes(self.tensors):
            self._run = self._programs.bound(space["bind"], weights, self.states, self.device, self.manifest.way)
        if self._steady and hasattr(self._run, "steady"):
            self._run.steady = self._steady

    def share(self, states: dict[str, Any], weights: SharedWeights | None = None) -> Program:
        """Bind the program to states that other programs read and write, and to weights that they hold. Returns itself.

        `states`: memory by name, as other programs got or made it; states that are missing are allocated and added.
        Values of existing states are kept; from here on, `reset` and `bind` do not change shared states. `weights`: a
        pool of the programs' prepared weights. Raises ShapeError for a state of another shape or dtype.
        """
        with self._lock:
            self._collect()
            known = weights.adopt(self._pool) if weights is not None and self._pool is not None else []
            self._shared, self._pool = states, weights
            self._run, self.states, self._space = None, {}, {}
            trim()
            self._bind()
            known.clear()
        return self

    def _state_memory(self, spec: Spec) -> Any:
        """Memory of a state: that shared with other programs (allocated with the initial value if missing), else new
        zeros."""
        if self._shared is None:
            return self._exchange.zeros(spec)
        name, shape, dtype = spec
        found = self._shared.get(name)
        if found is None:
            found = self._shared[name] = self._exchange.zeros(spec)
            if STATE + name in {kept[0] for kept in self.manifest.initial}:
                self._exchange.write(found, self._weights[STATE + name])
        kind = str(found.dtype).removeprefix("torch.")
        if tuple(found.shape) != shape or kind != dtype:
            raise ShapeError(f"state {name!r} is {dtype}{list(shape)}, the shared one {kind}{list(found.shape)}")
        return found

    def _usable(self) -> Binaries | None:
        """The known compiled kernels, if they are for this kind of GPU or CPU; else None, with a RuntimeWarning on a
        GPU."""
        if self._binaries is None or (self.device == HOST.name != self.manifest.device):
            return None
        here = self._programs.present(self.device)
        if here == self._binaries.gpu:
            return self._binaries
        if self.manifest.device == HOST.name:
            self._binaries = None
            return None
        warnings.warn(
            f"{self.manifest.name}: kernels are compiled again: saved for {self._binaries.gpu}, here is {here or 'no GPU'}",
            RuntimeWarning, stacklevel=2,
        )  # fmt: skip
        self._binaries = None
        return None

    def _collect(self) -> None:
        """Remember the compiled kernels of the bound program, if none are known yet."""
        if self._run is not None and self._binaries is None:
            self._binaries = collected(self._run, self._programs.present(self.device), self._space)

    @property
    def binaries(self) -> Binaries | None:
        """The compiled kernels that the program was given, else those that its calls have launched so far; None if
        there are none, or if they cannot be stored."""
        with self._lock:
            self._collect()
            return self._binaries

    def take_binaries(self, binaries: Binaries | None) -> None:
        """Use the given compiled kernels, which were compiled from the same source, instead of compiling. The program
        must not be bound yet.
        """
        with self._lock:
            self._binaries = binaries

    def unbind(self) -> None:
        """Release the prepared weights and the states (memory kept between calls); the next call reads the weights
        again."""
        with self._lock:
            self._collect()
            self._run, self.states, self._space = None, {}, {}
        for plan in self.plans.values():
            plan.unbind()
        trim()

    def reset(self) -> None:
        """Set all states (memory kept between calls) to their initial values, except those shared with other
        programs."""
        with self._lock:
            self._reset()

    def _reset(self) -> None:
        if self._shared is not None:
            return
        initial = {spec[0] for spec in self.manifest.initial}
        for name, state in self.states.items():
            if STATE + name in initial:
                self._exchange.write(state, self._weights[STATE + name])
            else:
                state[...] = 0

    def set_state(self, name: str, value: Any) -> None:
        """Overwrite the state `name` (memory kept between calls) with `value`, an array or tensor of its shape.

        Raises UsageError for an unknown name, ShapeError for another shape.
        """
        try:
            with self._lock:
                state = self._state(name)
                self._exchange.write(state, value)
        except (ValueError, RuntimeError) as error:
            raise ShapeError(f"state {name!r} is {list(state.shape)}: {error}") from None

    def get_state(self, name: str) -> Array:
        """A copy of the values of the state `name` (memory kept between calls). Raises UsageError for an
        unknown name."""
        with self._lock:
            return self._exchange.read(self._state(name))

    def _state(self, name: str) -> Any:
        """The memory of a state; binds the program if needed."""
        if self._run is None:
            self._bind()
        _known("state", [name], [spec[0] for spec in self.manifest.states])
        return self.states[name]

    @property
    def tensors(self) -> str:
        """Name of the Torch device whose tensors the program works on; "" for a program on NumPy arrays."""
        return self._programs.tensors(self.device)

    @contextmanager
    def poisoned(self) -> Iterator[None]:
        """Context manager in which the next call runs the emitted code on memory that holds NaN wherever the call must
        write before it reads: the workspace and results of a program on a GPU. For tests and verification; no other
        thread may call the program meanwhile."""
        if self._run is None:
            self.bind()
        assert self._run is not None
        direct, self._direct = self._direct, None
        try:
            with self._programs.poisoned(self._run):
                yield
        finally:
            self._direct = self._direct or direct

    def wait(self, what: str) -> None:
        """Wait until the program's device has finished its work.

        Raises DeviceFaultError if the work failed; `what` names the operation for the message.
        """
        self._programs.wait(self.device, what)

    # ------------------------------------------------------------ calling
    def __call__(self, /, *args: Any, **named: Any) -> Any:
        """Run the program.

        Raises ShapeError for an input of another shape or dtype, UsageError for a missing or unknown one. If the
        program was traced from a module with dict, list or tuple arguments, nested arguments are accepted too.
        """
        try:
            found = self._flat(args, named)
        except UsageError:
            inputs = unfolded(args, named, self.input_names)
            if inputs is None:
                raise
            found = self._flat((), inputs)
        structure = self.manifest.structure
        return found[0] if structure is None else filled(structure, found)

    def flat(self, /, *args: Any, **named: Any) -> Sequence[Any]:
        """Run the program and return its outputs as a flat sequence, without the graph's structure."""
        return self._flat(args, named)

    def _flat(self, args: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        if not named:
            if self._direct is not None and args and (results := self._launched(self._direct, args)) is not None:
                return results
            quick, called, program, direct = self._quick, self._called, self, self._direct_calls
            if quick is None and self.manifest.sizes and len(args) == len(self.input_names):
                if self._new_sizes is not None and (results := self._at_new_size(args)) is not None:
                    return results
                _, quick, form, program, direct = self._at(args)
                called = form.called
                if direct.call is not None and direct.call is not self._direct:
                    self._direct = direct.call
                    if (results := self._launched(self._direct, args)) is not None:
                        return results
            if quick is not None and (found := quick(args)) is not None:
                taken, converted = found
                results = called(taken)
                direct.wait -= 1
                if not direct.wait:
                    self._direct = direct.learn(partial(program._make_direct, args))
                    if program._new_sizes is not None and direct.call is None:
                        program._learn_sizes(args)
                return results if converted is None else converted(results)
        given = args if not named and len(args) == len(self.input_names) else by_name(args, named, self.input_names)
        return self._exchange.hand_out(self.flat_near(*given), given)

    def _launched(self, direct: Callable[..., Sequence[Any] | None], args: Sequence[Any]) -> Sequence[Any] | None:
        """The results of a direct call; None where the emitted program has to make it."""
        try:
            return direct(*args)
        except RuntimeError as error:
            if (found := self._programs.fault(error, f"running {self.manifest.name}")) is None:
                raise
            raise found from error

    def flat_near(self, *given: Any) -> Sequence[Any]:
        """Run the program and return its outputs as a flat sequence, left on the program's device. `given`: all of the
        program's inputs."""
        if self._direct is not None and (found := self._launched(self._direct, given)) is not None:
            return found
        specs: Sequence[Any] = self.manifest.inputs
        program, direct = self, self._direct_calls
        if self.manifest.sizes:
            specs, _, _, program, direct = self._at(given)
        results = program.called([self._exchange.accept(x, spec) for x, spec in zip(given, specs)])
        direct.wait -= 1
        if not direct.wait:
            self._direct = direct.learn(partial(program._make_direct, given))
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

    def _make_direct(self, given: Sequence[Any]) -> Direct | None:
        """The direct function of calls with inputs like `given`, after such a call (`DevicePrograms.direct`)."""
        return None if self._bound is None else self._programs.direct(self._bound, given, self._lock)

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
        except LookupError as error:
            if type(error).__name__ == "NotStored":
                return self._compiled_again(taken, str(error))
            if not isinstance(error, IndexError):
                raise
            full = "a state that is full? reset() starts over" if self.manifest.states else ""
            raise UsageError(f"written past the end of an axis: {error}", where=self.manifest.name, hint=full) from None
        except ValueError as error:
            if type(error).__name__ != "SizeError":
                raise
            raise ShapeError(str(error), where=self.manifest.name) from None
        except RuntimeError as error:
            found = self._programs.fault(error, f"running {self.manifest.name}")
            if found is None:
                raise
            raise found from error

    def _specs(self, given: Sequence[Any]) -> Sequence[Spec]:
        """The inputs' specs at the sizes that the arguments have. Raises ShapeError for sizes outside their ranges."""
        return self._at(given).specs

    def _compiled_again(self, taken: Sequence[Any], why: str) -> Sequence[Any]:
        """Run the program with kernels compiled from source, because the saved kernels do not suffice (`why`, for the
        warning)."""
        warnings.warn(f"{self.manifest.name}: kernels are compiled again: {why}", RuntimeWarning, stacklevel=5)
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

    # ------------------------------------------------------------ inspection
    def memory(self) -> dict[str, int]:
        """Bytes of memory that the program takes, by device name: for its device, the sum of `memory_by_kind`."""
        return {self.manifest.device: sum(self.memory_by_kind().values())}

    def memory_by_kind(self) -> dict[str, int]:
        """Bytes on the program's device, by purpose, known before anything is allocated.

        Keys: weights, states and workspace (intermediate values), held from binding to `unbind`; results, the outputs
        of one call; staging, the peak of further memory in binding or in a call, for copies of inputs, packed weights
        and results that library kernels allocate. Programs with free sizes are counted at the sizes for which the plan
        was chosen.
        """
        found = memory_of(self.manifest)
        for plan in self.plans.values():
            own = memory_of(plan.manifest)
            own["weights"] = sum(bytes_of(s) for s in plan.manifest.weights if s[0] not in plan.manifest.borrowed)
            for kind, nbytes in own.items():
                found[kind] = found[kind] + nbytes if kind in ("weights", "workspace") else max(found[kind], nbytes)
        return found

    def __repr__(self) -> str:
        return described(self.manifest)

    def _repr_html_(self) -> str:
        return html_table(self.manifest, self.memory(), self.source)

    # ------------------------------------------------------------ saving
    def save(self, folder: str | Path) -> Path:
        """Write the program as a folder and return its path.

        An existing program is replaced atomically. States are saved with their initial values, not their current ones.
        For a GPU, the kernels that were compiled for calls so far are saved, too: loaded on the same kind of GPU, the
        program needs no compiler. A loaded program returns named tuples of the original type if it is imported by then,
        else of an equal type, and dicts in place of other types (`egraph/ir/structure.py`).

        Raises UsageError if the folder holds something else. Raises UnwritableError if writing fails; an existing
        program is kept then.
        """
        target = named_path(folder)
        refuse_occupied(target)
        with replacing_folder(
            target, needed=sum(len(p.source) + stored_bytes(p.manifest) for p in (self, *self.plans.values()))
        ) as part:
            self._write(part)
            for name, plan in self.plans.items():
                (part / FOLDER / name).mkdir(parents=True)
                plan._write(part / FOLDER / name)
        return target

    def _write(self, part: Path) -> None:
        """Write this plan's files into an empty folder."""
        self._collect()
        manifest = replace(self.manifest, way=getattr(self._run, "way", "") or self.manifest.way)
        write_program(part, manifest, self.source, self._weights, self._binaries)
        if self.report is not None:
            (part / "report.json").write_text(json.dumps(self.report.to_json()), encoding="utf-8")
        if self.attached is not None:
            self.attached(part)


def _data(name: str, value: Any, wanted: Type | None) -> Data:
    """Data of a param or state from an array, tensor, lazy source or nested list. Raises UsageError if its type is not
    `wanted`."""
    data: Data = array_of(value) if is_torch(value) else value if hasattr(value, "load") else np.asarray(value)
    if wanted is not None and (tuple(data.shape) != wanted.shape or dtypes.name_of(data.dtype) != wanted.dtype):
        raise UsageError(f"{name!r} is {wanted}, its data {data.dtype}{list(data.shape)}")
    return data


def _known(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise UsageError for names that are not in `known`."""
    if unknown := sorted(set(names) - set(known)):
        raise UsageError(f"no {kind} is called {unknown}", hint=f"the program has {sorted(known)}")
