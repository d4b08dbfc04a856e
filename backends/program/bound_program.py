"""Defines how a program is bound: weights prepared, states allocated, emitted source executed, other plans and pools
attached."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import numpy as np

from ...costdb.keys import rates
from ...costdb.keys.device import GPU_KIND
from ...egraph.ir.weight_data import Data
from ...egraph.ops.ops import Type
from ...egraph.types import dtypes
from ...errors import DeviceUnavailableError, ShapeError, UsageError
from ...extract.model.plan import Plan
from ...private import code_folder
from ..device import HOST
from ..runtime.computed_indices import ComputedIndices
from ..runtime.heap import trim
from ..runtime.index_limits import IndexLimit
from ..runtime.marshalling import array_of, is_torch
from .buckets import BucketForm, Buckets
from .launch.binaries import Binaries, collected
from .launch.emission import executed
from .manifest import STATE, Spec, initial_states
from .manifest_summary import memory_of
from .program_calls import ProgramCalls
from .stored_weights import StoredWeights
from .torch_modes import in_plain_modes, mode_to_leave
from .weights import Array, EvaluatedWeights, SharedWeights, bytes_of

LimitsOfWeights = Callable[[Mapping[str, Data]], tuple[Sequence[IndexLimit], ComputedIndices]]


class BoundProgram(ProgramCalls):
    """Base of `Program`: its weights, states and compiled kernels, from binding to release."""

    plan: Plan | None  # None for a program from a saved folder
    _params: dict[str, Data]
    _limits_of_weights: LimitsOfWeights | None = None  # by weights by name: limits of indices, computed indices

    def bind(self, params: Mapping[str, Data] | None = None) -> Self:
        """Read and prepare the weights now, if not yet done; `params` replaces params by name.

        Resets states. Returns itself.

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
                if (of_weights := self._limits_of_weights) is not None:
                    self.checking(*of_weights(self._params), of_weights)
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
        self, buckets: Buckets, plans: Mapping[str, BoundProgram], forms: Mapping[int, BucketForm] | None = None
    ) -> Self:
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

    def pooled(self, weights: SharedWeights) -> Self:
        """Take weights from `weights`, a pool that programs over the same params share, from the next binding on.
        Returns itself."""
        self._pool = weights
        return self

    def checking(
        self, limits: Sequence[IndexLimit], computed: ComputedIndices, of_weights: LimitsOfWeights | None = None
    ) -> Self:
        """Refuse indices outside of their axes in calls from now on: inputs that are indices (`limits`), and those from
        which indices are computed. `of_weights`: the same two for other weights, which `bind` gets. Returns itself."""
        with self._lock:
            self.manifest = replace(self.manifest, index_limits=tuple(limits), computed_indices=computed)
            self._limits_of_weights = of_weights
            self._forget_direct()
        return self

    @property
    def launch_mode(self) -> str:
        """How calls launch the kernels on a GPU ("flat", "graph" or "copying", see gpu_calls.py); "" until the first
        calls have timed it."""
        return getattr(self._run, "launch_mode", "") or self.manifest.launch_mode

    @property
    def break_even(self) -> int:
        """Of a GPU program with free sizes: number of calls at some sizes after which recording their launches pays
        (`CallsBySize`); 0 for others."""
        return getattr(self._run, "break_even", 0) or self.manifest.break_even

    def launching(self, mode: str, break_even: int = 0) -> Self:
        """Use a launch mode, and the number `break_even` of calls, from the next binding on, without timing the modes,
        unless the mode is "". Returns itself."""
        if mode:
            self.manifest = replace(self.manifest, launch_mode=mode, break_even=break_even)
        return self

    def launching_as(self, other: BoundProgram) -> Self:
        """Use the launch mode of `other`, a program like this one, from the next binding on (`launching`)."""
        return self.launching(other.launch_mode, other.break_even)

    def steady(self, inputs: Iterable[int]) -> Self:
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

    def check_free_memory(self) -> None:
        """Check, without allocating, that the program fits into the free memory of its device.

        Raises DeviceMemoryError if `missing_bytes` are not free.
        """
        self._programs.check_free_memory(self.device, self.missing_bytes())

    def preparing_s(self) -> float:
        """Estimated seconds of preparing the weights for the program, except those that the pool shared with other
        programs holds already."""
        weights, pool = self._weights, self._pool
        if isinstance(weights, EvaluatedWeights):
            missing = [n for n, _, _ in self.manifest.weights if pool is None or not pool.holds(weights, n)]
            return weights.preparing_s(missing, "" if pool is None else self.tensors)  # a pool computes on the device
        nbytes = sum(map(bytes_of, self.manifest.weights)) - (0 if pool is None else pool.held(weights))
        return nbytes / rates.HOST.reference_bytes_per_s

    def compile(self) -> None:
        """Compile the C kernels of a program that is not bound yet, so that binding finds them in the folder of
        compiled code; does nothing without such a folder, or for a program without C kernels. Raises
        DeviceUnavailableError as `bind` does."""
        if self._run is None and "C_SOURCE" in self.source and code_folder("c") is not None:
            executed(self.source, self.manifest.name, self._usable())

    def _bind(self) -> None:
        self.check_free_memory()
        space = executed(self.source, self.manifest.name, self._usable())
        self._space, self._tensors = space, self._tensor_calls(space)
        self._in_mode = mode_to_leave(space.get("torch"), bool(self.manifest.sizes))
        self.states = {spec[0]: self._state_memory(spec) for spec in self.manifest.states}
        self._reset()
        weights: Mapping[str, Any] = self._weights
        if self._pool is not None:
            weights = self._pool.of(self._weights, self._exchange, self.tensors)
        elif isinstance(self._weights, StoredWeights) and self.tensors.startswith(GPU_KIND):
            weights = self._weights.on_device(self.device)
        self._quick = None if self.manifest.sizes else self.quick(self.manifest.inputs)  # type: ignore[arg-type]
        with in_plain_modes(self.tensors):
            self._run = self._programs.bound(
                space["bind"], weights, self.states, self.device, self.manifest.launch_mode
            )
        if self._steady and hasattr(self._run, "steady"):
            self._run.steady = self._steady
        if self.manifest.launch_mode and self.manifest.break_even and hasattr(self._run, "break_even"):
            self._run.break_even = self.manifest.break_even

    def share(self, states: dict[str, Any], weights: SharedWeights | None = None) -> Self:
        """Bind the program to states that other programs read and write, and to weights that they hold. Returns itself.

        `states`: memory by name, as other programs got or made it; states that are missing are allocated and added.
        Values of existing states are kept, and so is the launch mode; from here on, `reset` and `bind` do not change
        shared states. `weights`: a pool of the programs' prepared weights. Raises ShapeError for a state of another
        shape or dtype.
        """
        with self._lock:
            self._collect()
            known = weights.adopt(self._pool) if weights is not None and self._pool is not None else []
            self._shared, self._pool = states, weights
            self.launching_as(self)
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

    def _compile_for_saving(self) -> None:
        """Compile the C kernels of a program for CPUs that has not been called yet, so that they are saved with it.
        Without a C compiler none are saved."""
        if self._run is None and self._binaries is None and "C_SOURCE" in self.source:
            try:
                space = executed(self.source, self.manifest.name)
            except DeviceUnavailableError:
                return
            self._binaries = collected(None, self._programs.present(self.device), space)

    # ------------------------------------------------------------ compiled kernels
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
        """Release the prepared weights and the states; the next call reads the weights again."""
        with self._lock:
            self._collect()
            self._run, self.states, self._space = None, {}, {}
        for plan in self.plans.values():
            plan.unbind()
        trim()

    def reset(self) -> None:
        """Set all states to their initial values, except those shared with other programs."""
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
        """Overwrite the state `name` with `value`, an array or tensor of its shape.

        Raises UsageError for an unknown name, ShapeError for another shape.
        """
        try:
            with self._lock:
                state = self._state(name)
                self._exchange.write(state, value)
        except (ValueError, RuntimeError) as error:
            raise ShapeError(f"state {name!r} is {list(state.shape)}: {error}") from None

    def get_state(self, name: str) -> Array:
        """A copy of the values of the state `name`. Raises UsageError for an unknown name."""
        with self._lock:
            return self._exchange.read(self._state(name))

    def _state(self, name: str) -> Any:
        """The memory of a state; binds the program if needed."""
        if self._run is None:
            self._bind()
        _known("state", [name], [spec[0] for spec in self.manifest.states])
        return self.states[name]

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
