"""Comparison of a traced graph with the caller's own Torch module, or function of tensors: see trace_check.py."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ..backends.runtime.marshalling import is_torch, tensor_of
from ..egraph.ir import dtypes
from ..egraph.ir.dims import concrete
from ..egraph.ir.graph import Graph
from ..egraph.ir.interpret import evaluate
from ..egraph.ir.tensor import Tensor
from ..egraph.ir.weight_data import load_data
from ..errors import TensorGraphsError, TraceError
from ..extract.model.work import graph_flops
from ..models.functions.numpy_array import OwnFunction, on_arrays
from ..verification.reference import expected_seconds
from .arguments import torch_leaves
from .trace_agreement import Array, Rounding, near, refuse, title_of
from .trace_check_large import CallFails, compare_large, is_large, judge_torch, lacking_memory, near_torch
from .trace_randomness import MORE, OptionalTime, call_again, extreme_draws, random_state_kept

MODULE_FLOPS, MODULE_BYTES = 2e9, 1 << 27  # flops and weight bytes above which a module is run only if time suffices
STEPS = 2  # calls of a module with state: a counter of its own shows in the second one
LAYOUTS = "a call on the same inputs in another memory layout"  # an optional part
WHOLE = "the comparison with the module"  # an optional part


def compare_torch(
    module: Any, examples: Sequence[Any], kwargs: Mapping[str, Any], graph: Graph, seed: int, time: OptionalTime
) -> str:
    """Run a module on its examples and compare the results with its graph; returns text that says how, or why it was
    not done.

    `kwargs`: named arguments of the example call. `seed`: of the random inputs for modules of large results. `time`:
    limits the optional parts. Raises TraceError if the graph gives something else, if the module raises for its
    examples, or if it is not deterministic.
    """
    import torch

    tensors = [e for e in torch_leaves((tuple(examples), dict(kwargs))) if isinstance(e, torch.Tensor)]
    sizes = _sizes(graph, [tuple(e.shape) for e in tensors])
    if len(tensors) != len(graph.inputs) or sizes is None:
        return "compared with its graph only: the module's arguments are not the graph's inputs"
    graph = graph.bind(sizes) if sizes else graph
    weights = sum(n.type.nbytes for n in graph.leaves("param"))
    flops = graph_flops(list(graph.roots))
    states = bool(graph.updates or graph.leaves("state"))
    if flops > MODULE_FLOPS or weights > MODULE_BYTES:
        if states or not time.suffices(WHOLE, expected_seconds(graph, flops, on_gpu=False)):
            return f"compared with its graph only: the module is large{' and has state' if states else time.said}"
    if states:
        return _compare_states(module, examples, kwargs, graph)
    from ..models.torch_export.arrays import to_numpy

    if is_large(graph):

        def call(values: Mapping[str, Array]) -> list[Array]:
            left = iter(values.values())
            like = lambda v: tensor_of(next(left)) if isinstance(v, torch.Tensor) else v
            given = torch.utils._pytree.tree_map(like, (tuple(examples), dict(kwargs)))
            try:
                found = [to_numpy(v) for v in _run_torch(module, *given)]
            except OwnFunction:
                raise
            except Exception as error:
                raise CallFails(f"{type(error).__name__}: {error}") from error
            if len(found) != len(graph.outputs):
                raise CallFails("nothing, and its results are not the graph's outputs")
            return found

        return compare_large(module, call, graph, seed, partial(judge_torch, module), "module", time)
    if missing := lacking_memory(graph):
        return f"compared with its graph only: {missing}"
    try:
        began = perf_counter()
        run = _torch_outputs(module, examples, kwargs)
        took = perf_counter() - began
    except OwnFunction as called:
        return f"compared with its graph only: the function calls tg.{called}, which has no meaning for tensors"
    except TensorGraphsError:
        raise
    except Exception as error:
        raise TraceError(
            f"the module can be traced, but called with the example inputs it raises {type(error).__name__}: {error}",
            hint="give examples that it takes", where=title_of(module),
        ) from error  # fmt: skip
    if len(run) != len(graph.outputs):
        return "compared with its graph only: the module's results are not the graph's outputs"
    outputs = [to_numpy(v) for v in run]

    def again() -> None:
        _refuse_others(module, graph, outputs, [to_numpy(v) for v in _torch_outputs(module, examples, kwargs)])

    if call_again(module, again, took, time):
        for largest in (True, False):
            if not time.suffices(MORE, took):
                break
            try:
                with random_state_kept(), extreme_draws(largest):
                    again()
            except TraceError:
                raise
            except Exception:  # an extreme is no permutation, for example
                continue
    values = {str(n.attr("name")): to_numpy(e.detach().cpu()) for n, e in zip(graph.inputs, tensors)}
    with np.errstate(all="ignore"):
        found, sharp = evaluate(graph, values), evaluate(graph, values, float64=True)
    _refuse_difference(module, graph, outputs, found, sharp, values)
    if any(e.dim() > 1 and e.is_contiguous() and e.numel() for e in tensors) and time.suffices(LAYOUTS, took):
        try:
            other = [to_numpy(v) for v in _torch_outputs(module, examples, kwargs, _turned)]
        except Exception:  # `view` needs the memory layout of the examples, for one
            return "compared with the module itself, on its examples" + time.said
        _refuse_difference(module, graph, other, found, sharp, values)
    return "compared with the module itself, on its examples" + time.said


def _compare_states(module: Any, examples: Sequence[Any], kwargs: Mapping[str, Any], graph: Graph) -> str:
    """Text that says how a graph with states was compared with calls of a copy of its module, one after the other.

    Raises TraceError if an output of a call differs.
    """
    from ..models.torch_export.arrays import to_numpy

    if missing := lacking_memory(graph):
        return f"compared with its graph only: {missing}"
    tensors = [v for v in torch_leaves((tuple(examples), dict(kwargs))) if is_torch(v)]
    values = {str(n.attr("name")): to_numpy(e.detach().cpu()) for n, e in zip(graph.inputs, tensors)}
    names = {str(n.attr("name")): n for n in graph.leaves("state")}
    states = {name: load_data(graph.params[name]) if name in graph.params else np.zeros(concrete(n.shape), dtypes.numpy_dtype(n.dtype))
              for name, n in names.items()}  # fmt: skip
    try:
        copied = copy.deepcopy(module)
    except Exception as error:  # whatever its own code raises
        return f"compared with its graph only: the module has state, and copying it raises {type(error).__name__}"
    for _ in range(STEPS):
        try:
            own = [to_numpy(v) for v in _torch_outputs(copied, examples, kwargs)]
        except Exception as error:
            return f"compared with its graph only: called with its examples it raises {type(error).__name__}: {error}"
        if len(own) != len(graph.outputs):
            return "compared with its graph only: the module's results are not the graph's outputs"
        given = {**values, **states}
        with np.errstate(all="ignore"):
            found, sharp = evaluate(graph, given), evaluate(graph, given, float64=True)
        _refuse_difference(module, graph, own, found, sharp, given)
        states |= dict(zip(graph.updates, found[len(graph.outputs) :]))
    return f"compared with the module itself, in {STEPS} calls on its examples"


def _refuse_difference(
    module: Any, graph: Graph, outputs: Sequence[Array], found: Sequence[Array], sharp: Sequence[Array],
    values: Mapping[str, Array],
) -> None:  # fmt: skip
    """Raise TraceError if a module's outputs differ from the graph's (`found`; in float64 `sharp`) on inputs and states
    `values`.
    """
    rounding = Rounding(graph, values)
    for i, (name, root) in enumerate(zip(graph.names, graph.outputs)):
        own = outputs[i]
        if own.shape != found[i].shape or dtypes.name_of(own.dtype) != root.dtype:
            raise TraceError(
                f"output {name!r} of the module is {own.dtype}{list(own.shape)}, of its graph {root.type}",
                where=title_of(module),
            )
        if not near_torch(root, own, found[i], sharp[i]) and not rounding.explains(i, own, found[i]):
            refuse(module, name, own, found[i], values)


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


def _torch_outputs(
    module: Any, examples: Sequence[Any], kwargs: Mapping[str, Any], copied: Callable[[Any], Any] | None = None
) -> list[Any]:
    """Tensors that a module returns for copies of its examples, made by `copied` (None: clones)."""
    import torch

    made = copied or torch.clone
    copies = torch.utils._pytree.tree_map(
        lambda v: made(v) if isinstance(v, torch.Tensor) else v, (tuple(examples), dict(kwargs))
    )
    return _run_torch(module, *copies)


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
