"""Compares a traced graph with the caller's own Torch module, or function of tensors (part of trace_check.py).

The graph runs where the module does: a module on a GPU is compared with runs of its graph on this GPU, which take
milliseconds where those of the host take seconds.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ...backends.gpu import is_gpu
from ...backends.runtime.marshalling import is_torch, tensor_of
from ...backends.verification.torch_reference import evaluate_graph
from ...egraph.evaluate.interpret import evaluate
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor
from ...egraph.ir.weight_data import load_data
from ...egraph.simplify.wide_numbers import numbers_kept_wide
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from ...errors import TensorGraphsError, TraceError, UsageError
from ...extract.model.work import graph_flops
from ...models.functions.plain_runs import OwnFunction, on_arrays
from ...verification.reference import (
    call_seconds,
    expected_seconds,
    has_unsigned,
    interpreter_threads,
    with_atomic_ops,
)
from ..sources.arguments import torch_leaves
from ..sources.index_limits import takes_along_free_axis
from .trace_agreement import Array, Rounding, near, refuse, refuse_type, title_of
from .trace_check_large import CallFails, compare_large, is_large, lacking_memory
from .trace_randomness import MORE, OptionalTime, call_again, extreme_draws, random_state_kept

MODULE_FLOPS, MODULE_BYTES = 2e9, 1 << 27  # flops and weight bytes above which a module is run only if time suffices
STEPS = 2  # calls of a module with state: a counter of its own shows in the second one
LAYOUTS = "a call on the same inputs in another memory layout"  # an optional part
WHOLE = "the comparison with the module"  # an optional part
LEAST = "a call with the least size of one free dimension"  # an optional part


GRAPH_ONLY = "compared with its graph only: "  # begins the text of a comparison that was left out


def compare_torch(
    module: Any, examples: Sequence[Any], kwargs: Mapping[str, Any], graph: Graph, seed: int, time: OptionalTime
) -> str:
    """Run a module on its examples and compare the results with its graph; returns text that says how, or why it was
    not done.

    `kwargs`: named arguments of the example call. `seed`: of the random inputs for modules of large results. `time`:
    limits the optional parts. Raises TraceError if the graph gives something else, if the module raises for its
    examples, or if it is not deterministic.
    """
    call = ExampleCall(module, tuple(examples), dict(kwargs))
    sizes = _sizes(graph, [tuple(e.shape) for e in call.tensors])
    if len(call.tensors) != len(graph.inputs) or sizes is None:
        return f"{GRAPH_ONLY}the module's arguments are not the graph's inputs"
    free, graph = graph, graph.bind(sizes) if sizes else graph
    states = bool(graph.updates or graph.leaves("state"))
    if reason := _too_much_work(graph, states, bool(call.device), time):
        return GRAPH_ONLY + reason
    if states:
        return _compare_states(call, graph)
    if is_large(graph):
        at = partial(_outputs_at, call, len(graph.outputs))
        return compare_large(module, at, graph, seed, "module", time)
    if missing := lacking_memory(graph) or time.too_long(0.0 if call.device else call_seconds(graph)):
        return f"{GRAPH_ONLY}a call of the module is left out, {missing}"
    began = perf_counter()
    try:
        outputs = call.outputs()
    except OwnFunction as called:
        return f"{GRAPH_ONLY}the function calls tg.{called}, which has no meaning for tensors"
    except TensorGraphsError:
        raise
    except Exception as error:
        raise TraceError(
            f"the module can be traced, but called with the example inputs it raises {type(error).__name__}: {error}",
            hint="give examples that it takes", where=title_of(module),
        ) from error  # fmt: skip
    if len(outputs) != len(graph.outputs):
        return f"{GRAPH_ONLY}the module's results are not the graph's outputs"
    took = perf_counter() - began
    _refuse_random(call, graph, outputs, took, time)
    _compare_values(call, graph, outputs, took, time)
    _compare_least_sizes(call, free, sizes, took, time)
    return "compared with the module itself, on its examples" + time.omission_text


@dataclass(frozen=True)
class ExampleCall:
    """The call of a module, or function of tensors, with its example arguments."""

    module: Any
    examples: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def tensors(self) -> list[Any]:
        """The tensors in the arguments, in order."""
        return [e for e in torch_leaves((self.examples, dict(self.kwargs))) if is_torch(e)]

    @property
    def device(self) -> str:
        """The GPU on which all tensors in the arguments are; "" if there is none such."""
        found = {str(e.device) if is_gpu(e.device) else "" for e in self.tensors}
        return found.pop() if len(found) == 1 else ""

    def outputs(self, copied: Callable[[Any], Any] | None = None) -> list[Array]:
        """Results of a call with copies of the tensors, made by `copied` (None: clones). Raises what the module
        raises."""
        import torch

        return self._run(copied or torch.clone)

    def outputs_at(self, values: Iterable[Array]) -> list[Array]:
        """Results of a call with other values in place of the tensors, in their order."""
        left = iter(values)
        return self._run(lambda _: tensor_of(next(left)))

    def _run(self, replaced: Callable[[Any], Any]) -> list[Array]:
        import torch

        from ...models.torch_export.arrays import to_numpy

        tree = (self.examples, dict(self.kwargs))
        args, kwargs = torch.utils._pytree.tree_map(lambda v: replaced(v) if isinstance(v, torch.Tensor) else v, tree)
        return [to_numpy(v) for v in _run_torch(self.module, args, kwargs)]


def _too_much_work(graph: Graph, states: bool, on_gpu: bool, time: OptionalTime) -> str:
    """Why running the module would take too long, "" if it does not; `states`: whether it has state; `on_gpu`: whether
    it runs on a GPU."""
    flops, weights = graph_flops(list(graph.roots)), sum(n.type.nbytes for n in graph.leaves("param"))
    if flops <= MODULE_FLOPS and weights <= MODULE_BYTES:
        return ""
    if states:
        return "the module is large and has state"
    return (
        ""
        if time.suffices(WHOLE, expected_seconds(graph, flops, on_gpu))
        else f"the module is large{time.omission_text}"
    )


def _outputs_at(call: ExampleCall, count: int, values: Mapping[str, Array]) -> list[Array]:
    """Results of a module for inputs by name. Raises CallFails if it raises or does not return `count` results."""
    try:
        found = call.outputs_at(values.values())
    except OwnFunction:
        raise
    except Exception as error:
        raise CallFails(f"{type(error).__name__}: {error}") from error
    if len(found) != count:
        raise CallFails("nothing, and its results are not the graph's outputs")
    return found


def _refuse_random(call: ExampleCall, graph: Graph, outputs: Sequence[Array], took: float, time: OptionalTime) -> None:
    """Raise TraceError if further calls with the examples return other outputs; a call takes about `took` seconds."""

    def again() -> None:
        _refuse_others(call.module, graph, outputs, call.outputs())

    if not call_again(call.module, again, took, time):
        return
    for largest in (True, False):
        if not time.suffices(MORE, took):
            return
        try:
            with random_state_kept(), extreme_draws(largest):
                again()
        except TraceError:
            raise
        except Exception:  # an extreme is no permutation, for example
            continue


def _compare_values(call: ExampleCall, graph: Graph, outputs: Sequence[Array], took: float, time: OptionalTime) -> None:
    """Raise TraceError if the graph's outputs differ from the module's, also for tensors in another memory layout."""
    from ...models.torch_export.arrays import to_numpy

    values = {str(n.attr("name")): to_numpy(e.detach().cpu()) for n, e in zip(graph.inputs, call.tensors)}
    graph = with_atomic_ops(graph)
    found, sharp = _graph_runs(graph, values, call.device)
    _refuse_difference(call.module, graph, outputs, found, sharp, values)
    if any(e.dim() > 1 and e.is_contiguous() and e.numel() for e in call.tensors) and time.suffices(LAYOUTS, took):
        try:
            other = call.outputs(_turned)
        except Exception:  # `view` needs the memory layout of the examples, for one
            return
        _refuse_difference(call.module, graph, other, found, sharp, values)


def _compare_least_sizes(
    call: ExampleCall, graph: Graph, known: Mapping[str, int], took: float, time: OptionalTime
) -> None:
    """Raise TraceError if the graph's outputs differ from the module's on its examples cut to the least sizes of the
    free dimensions: all of them, then each alone, the others as in the examples (`known`).

    torch.export traces free sizes as if they were 2 at least: a branch by `x.shape[0] == 1` and `x.squeeze(0)` are
    those of larger sizes in its graph, without a guard. Left out: sizes at which the module raises or the graph is not
    valid, and on a GPU all of a graph that takes elements along a free axis, since indices beyond it end the process's
    use of the GPU.
    """
    if call.device and takes_along_free_axis(graph):
        return
    least = {name: atom.min for name, atom in graph.free_dims.items()}
    alone = [{**known, name: size} for name, size in least.items()] if len(least) > 1 else []
    for number, sizes in enumerate([least, *alone]):
        if sizes == known or (number and not time.suffices(LEAST, took)):
            continue
        try:
            there = graph.bind(sizes)
            cut = [e[tuple(map(slice, concrete(n.shape)))] for n, e in zip(there.inputs, call.tensors)]
            parts = iter(cut)
            outputs = call.outputs(lambda _, parts=parts: next(parts).clone())  # type: ignore[misc]
        except Exception:  # any error of the module's own code
            continue
        _refuse_at_sizes(call, there, cut, outputs, sizes)


def _refuse_at_sizes(
    call: ExampleCall, graph: Graph, tensors: Sequence[Any], outputs: Sequence[Array], sizes: Mapping[str, int]
) -> None:
    """Raise TraceError if a graph's outputs on `tensors` are not the module's `outputs`; `sizes`: of what were free
    dimensions."""
    from ...models.torch_export.arrays import to_numpy

    graph, values = with_atomic_ops(graph), {str(n.attr("name")): to_numpy(e) for n, e in zip(graph.inputs, tensors)}
    found, sharp = _graph_runs(graph, values, call.device)
    try:
        if len(outputs) != len(graph.outputs):
            raise TraceError(f"it returns {len(outputs)} results, its graph {len(graph.outputs)}")
        _refuse_difference(call.module, graph, outputs, found, sharp, values)
    except TraceError as error:
        raise TraceError(
            f"the module decides by a free size: its graph, traced with the examples, differs at {dict(sizes)}: {error.message}",
            where=title_of(call.module),
            hint="leave that size out of dynamic_shapes, or begin its range with a size at which the module does what "
            'it does with the examples: torch.export.Dim("n", min=2)',
        ) from error  # fmt: skip


def _graph_runs(graph: Graph, values: Mapping[str, Array], device: str) -> tuple[list[Array], list[Array]]:
    """Outputs of a graph on the inputs and states `values`, in its own dtypes and in float64; computed on the Torch
    `device`, on the host if that is "", lacks memory or has no function for one of the graph's ops."""
    if device and not has_unsigned(graph):
        import torch

        rounded = graph.with_roots(numbers_kept_wide(graph.roots))  # as the interpreter and the module multiply
        with suppress(torch.OutOfMemoryError, UsageError):
            return evaluate_graph(rounded, values, device=device), evaluate_graph(
                graph, values, float64=True, device=device
            )
        torch.cuda.empty_cache()
    with np.errstate(all="ignore"), interpreter_threads(graph):
        return evaluate(graph, values), evaluate(graph, values, float64=True)


def _compare_states(call: ExampleCall, graph: Graph) -> str:
    """Text that says how a graph with states was compared with calls of a copy of its module, one after the other.

    Raises TraceError if an output of a call differs.
    """
    from ...models.torch_export.arrays import to_numpy

    if missing := lacking_memory(graph):
        return GRAPH_ONLY + missing
    values = {str(n.attr("name")): to_numpy(e.detach().cpu()) for n, e in zip(graph.inputs, call.tensors)}
    names = {str(n.attr("name")): n for n in graph.leaves("state")}
    states = {name: load_data(graph.params[name]) if name in graph.params else np.zeros(concrete(n.shape), dtypes.numpy_dtype(n.dtype))
              for name, n in names.items()}  # fmt: skip
    try:
        copied = replace(call, module=copy.deepcopy(call.module))
    except Exception as error:  # any error of the module's own code
        return f"{GRAPH_ONLY}the module has state, and copying it raises {type(error).__name__}"
    graph = with_atomic_ops(graph)
    for _ in range(STEPS):
        try:
            own = copied.outputs()
        except Exception as error:
            return f"{GRAPH_ONLY}called with its examples it raises {type(error).__name__}: {error}"
        if len(own) != len(graph.outputs):
            return f"{GRAPH_ONLY}the module's results are not the graph's outputs"
        given = {**values, **states}
        found, sharp = _graph_runs(graph, given, copied.device)
        _refuse_difference(call.module, graph, own, found, sharp, given)
        states |= dict(zip(graph.updates, found[len(graph.outputs) :]))
    return f"compared with the module itself, in {STEPS} calls on its examples"


def _refuse_difference(
    module: Any, graph: Graph, outputs: Sequence[Array], found: Sequence[Array], sharp: Sequence[Array],
    values: Mapping[str, Array],
) -> None:  # fmt: skip
    """Raise TraceError if a module's outputs differ from the graph's (`found`; in float64 `sharp`) on inputs and states
    `values`.
    """
    rounding = Rounding(graph, values, found, sharp)
    for i, (name, root) in enumerate(zip(graph.names, graph.outputs)):
        refuse_type(module, name, root, outputs[i], found[i].shape)
        if not rounding.accepts(i, outputs[i]):
            refuse(module, name, outputs[i], found[i], values)


def _refuse_others(module: Any, graph: Graph, outputs: Sequence[Array], again: Sequence[Array]) -> None:
    """Raise TraceError if a second call with the same arguments has returned other outputs."""
    for name, root, own, other in zip(graph.names, graph.outputs, outputs, again):
        if not _same(root, own, other):
            raise TraceError(f"output {name!r} is not the same when the module is called twice with the same arguments",
                             where=title_of(module), hint="call module.eval(); random numbers cannot be traced")  # fmt: skip


def _same(root: Tensor, own: Array, other: Array) -> bool:
    if own.shape != other.shape or own.dtype != other.dtype:
        return False
    return np.array_equal(own, other, equal_nan=own.dtype.kind == "f") or near(root, own, other, other)


def _turned(x: Any) -> Any:
    """A copy of a tensor whose last two axes are exchanged in memory."""
    import torch

    return x.mT.clone(memory_format=torch.contiguous_format).mT if x.dim() > 1 else x.clone()


def _run_torch(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Tensors that a module returns, in order, on the CPU; numbers as the tensors that its graph has for them.

    Raises OwnFunction if it calls a function of this package, which takes expressions only.
    """
    import torch

    def tensor(value: Any) -> Any:
        if isinstance(value, bool | int | float):
            return torch.tensor(value, dtype=torch.float32 if isinstance(value, float) else None)
        return value

    token = on_arrays.set(True)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [tensor(v) for v in torch_leaves(module(*args, **kwargs))]
    finally:
        on_arrays.reset(token)
    return [v.detach().cpu() for v in found if isinstance(v, torch.Tensor)]


def _sizes(graph: Graph, shapes: Sequence[tuple[int, ...]]) -> dict[str, int] | None:
    """Sizes of the free dimensions that give the inputs these shapes; None if there are none."""
    free = graph.free_dims
    found = {
        name: size
        for leaf, shape in zip(graph.inputs, shapes) for d, size in zip(leaf.shape, shape)
        for name, atom in free.items() if isinstance(size, int) and str(d) == str(atom)
    }  # fmt: skip
    if set(found) != set(free):
        return None
    bound_shapes = [concrete(n.shape) for n in graph.bind(found).inputs] if found else [n.shape for n in graph.inputs]
    return found if bound_shapes == [tuple(s) for s in shapes] else None


__all__ = ["compare_torch"]
