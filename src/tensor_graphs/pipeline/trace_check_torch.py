"""Comparison of a traced graph with the caller's own Torch module, or function of tensors: see trace_check.py."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ..backends.runtime.marshalling import tensor_of
from ..egraph.ir import dtypes
from ..egraph.ir.dims import concrete
from ..egraph.ir.graph import Graph
from ..egraph.ir.interpret import evaluate
from ..egraph.ir.tensor import Tensor
from ..errors import TensorGraphsError, TraceError
from ..extract.model.work import graph_flops
from .arguments import torch_leaves
from .trace_agreement import Array, Rounding, near, refuse, title_of
from .trace_check_large import CallFails, compare_large, is_large, judge_torch, lacking_memory, near_torch
from .trace_randomness import MORE, OptionalTime, call_again, extreme_draws, random_state_kept

MODULE_FLOPS, MODULE_BYTES = 2e9, 1 << 27  # flops and weight bytes above which a module is not run


def compare_torch(
    module: Any, examples: Sequence[Any], kwargs: Mapping[str, Any], graph: Graph, seed: int, time: OptionalTime
) -> str:
    """Text that says how a graph was compared with a module run on its examples.

    The text says why if it was not. `kwargs`: named arguments of the example call. Raises TraceError if the graph gives
    something else, or if the module is not deterministic.
    """
    import torch

    tensors = [e for e in torch_leaves((tuple(examples), dict(kwargs))) if isinstance(e, torch.Tensor)]
    sizes = _sizes(graph, [tuple(e.shape) for e in tensors])
    if len(tensors) != len(graph.inputs) or sizes is None:
        return "compared with its graph only: the module's arguments are not the graph's inputs"
    graph = graph.bind(sizes) if sizes else graph
    weights = sum(n.type.nbytes for n in graph.leaves("param"))
    if graph.updates or graph.leaves("state"):
        return "compared with its graph only: the module has state"
    if graph_flops(list(graph.roots)) > MODULE_FLOPS or weights > MODULE_BYTES:
        return "compared with its graph only: the module is large"
    from ..models.torch_export.arrays import to_numpy

    if is_large(graph):

        def call(values: Mapping[str, Array]) -> list[Array]:
            left = iter(values.values())
            like = lambda v: tensor_of(next(left)) if isinstance(v, torch.Tensor) else v
            given = torch.utils._pytree.tree_map(like, (tuple(examples), dict(kwargs)))
            try:
                found = [to_numpy(v) for v in _run_torch(module, *given)]
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
    except Exception as error:
        if isinstance(error, TensorGraphsError):
            raise
        return f"compared with its graph only: called with its examples it raises {type(error).__name__}: {error}"
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
    return "compared with the module itself, on its examples" + time.said


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


def _torch_outputs(module: Any, examples: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    import torch

    copied = torch.utils._pytree.tree_map(
        lambda v: v.clone() if isinstance(v, torch.Tensor) else v, (tuple(examples), dict(kwargs))
    )
    return _run_torch(module, *copied)


def _run_torch(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Tensors that a module returns, in order, on the CPU."""
    import torch

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torch_leaves(module(*args, **kwargs))
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
