"""Comparison of a traced graph with the caller's own function or module.

`optimize` verifies a program against the traced graph. This module verifies the graph against the function itself,
which it calls with arrays: the examples, where they are arrays, and random inputs, both in the inputs' dtypes and with
smaller floats widened to float64. A function of large arrays is called once (trace_check_large.py).
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

from ..backends.runtime.marshalling import tensor_of
from ..backends.verification.inputs import index_bounds
from ..egraph.ir import dtypes
from ..egraph.ir.dims import concrete
from ..egraph.ir.graph import Graph, Tensor
from ..egraph.ir.interpret import evaluate
from ..errors import TensorGraphsError, TraceError
from ..extract.model.work import graph_flops
from ..models.functions.numpy_array import OwnFunction, on_arrays
from ..models.functions.trace import is_passed_through
from ..verification.memory_checks import eager_bytes, in_and_out, lacking, run_bytes
from ..verification.reference import sample_inputs
from .arguments import leaves_of_structure, torch_leaves
from .source import bound, is_module
from .trace_agreement import Array, Rounding, agrees, near, refuse, title_of
from .trace_check_large import CallFails, compare_large, is_large, judge_function, judge_torch, near_torch

DRAWN = 2  # number of random inputs; 1 for large graphs
LARGE_FLOPS = 1e9  # flops of a graph above which one input is used
HUGE_FLOPS = 2e10  # flops of a graph above which the float64 comparison is skipped
MODULE_FLOPS, MODULE_BYTES = 2e9, 1 << 27  # flops and weight bytes above which a module is not run
HELD = 12  # sets of inputs and outputs that a comparison holds at most, float64 copies counted twice
SAME = "compared with the function itself, on {} inputs"


def compare(
    source: Any, examples: Any, graph: Graph, *, sizes: Mapping[str, int] | None = None, kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> str:  # fmt: skip
    """Compare a graph with the function or module that it was traced from; return a text that says how, "" for other
    sources.

    `examples`: the positional arguments of the trace. `sizes`: values of free dimensions. Raises TraceError (with
    output, worst index and hint) if the source returns other values, shapes or dtypes than the graph, raises for its
    examples, or is not deterministic.
    """
    given = () if examples is None else tuple(examples) if isinstance(examples, list | tuple) else (examples,)
    if isinstance(source, Graph | Tensor | str) or not callable(source):
        return ""
    if is_module(source) or any(type(e).__module__.partition(".")[0] == "torch" for e in given):
        return _compare_torch(source, given, kwargs or {}, graph, seed)
    return _compare_function(source, given, bound(graph, sizes)[0], seed)


# ---------------------------------------------------------------- functions of arrays
def _compare_function(function: Callable[..., Any], examples: Sequence[Any], graph: Graph, seed: int) -> str:
    if is_large(graph):

        def call(values: Mapping[str, Array]) -> list[Array]:
            with _random_state_kept():
                return _outputs(_called(function, examples, values, copied=False), graph, function)

        return compare_large(title_of(function), call, graph, seed, partial(judge_function, function), "function")
    if missing := _lacking_memory(graph):
        return f"compared with its graph only: {missing}"
    leaves, bounds = list(graph.inputs), index_bounds(graph)
    rng = np.random.default_rng((seed, 77))
    flops = graph_flops(list(graph.roots))
    count, wide = (1, flops <= HUGE_FLOPS) if flops > LARGE_FLOPS else (DRAWN, True)
    cases = [sample_inputs(leaves, rng, bounds) for _ in range(count)]
    tensors = [e for e in examples if not is_passed_through(e)]
    shown = len(tensors) == len(leaves) and all(
        isinstance(e, np.ndarray | np.generic) and np.shape(e) == n.shape for e, n in zip(tensors, leaves)
    )
    if shown:
        own = {str(n.attr("name")): np.asarray(e) for n, e in zip(leaves, tensors)}
        cases = [own] if flops > LARGE_FLOPS else [own, *cases]
    compared, failed = 0, ""
    for number, values in enumerate(cases):
        try:
            with _random_state_kept():
                _compare_on(function, examples, graph, values, wide)
            compared += 1
        except OwnFunction as called:
            return f"compared with its graph only: the function calls tg.{called}, which has no meaning for arrays"
        except CallFails as problem:
            if shown and not number:
                raise TraceError(
                    f"the function can be traced, but called with the example inputs it raises {problem}",
                    hint="give examples that it takes", where=title_of(function),
                ) from problem.__cause__  # fmt: skip
            failed = f"; for {len(cases) - compared} others it raises {problem}"
    return SAME.format(compared) + failed


def _lacking_memory(graph: Graph) -> str:
    """Text that names the memory missing for a comparison of whole outputs; "" if it suffices."""
    return lacking(HELD * in_and_out(graph) + max(eager_bytes(graph), run_bytes(graph, float64=True)))


def _compare_on(
    function: Callable[..., Any], examples: Sequence[Any], graph: Graph, values: Mapping[str, Array], in_float64: bool
) -> None:
    """Raise TraceError if a function and its graph differ on the given inputs."""
    own = _called(function, examples, values)
    again = _called(function, examples, values)
    outputs = _outputs(own, graph, function)
    for name, a, b in zip(graph.names, outputs, _outputs(again, graph, function)):
        if a.shape != b.shape or (
            not np.array_equal(a, b, equal_nan=a.dtype.kind == "f") and a.tobytes() != b.tobytes()
        ):
            raise TraceError(
                f"output {name!r} is not the same when the function is called twice with the same arguments",
                where=title_of(function),
                hint="random numbers, clocks and state cannot be traced: pass them as arguments",
            )
    exact: list[Array] | None = None
    with np.errstate(all="ignore"):
        sharp = found = evaluate(graph, values)
    if in_float64:
        wide = {n: v.astype(np.float64) if _narrow(v) else v for n, v in values.items()}
        with suppress(CallFails, TraceError):  # the function rejects float64: compare in its own dtypes only
            exact = _outputs(_called(function, examples, wide), graph, function)
        with np.errstate(all="ignore"):
            sharp = evaluate(graph, values, float64=True)
    rounding = Rounding(graph, values)
    for i, (name, root) in enumerate(zip(graph.names, graph.outputs)):
        in_wide = exact[i] if exact else None
        if not agrees(function, name, root, outputs[i], in_wide, found[i], sharp[i]) and not rounding.explains(
            i, outputs[i], found[i]
        ):
            refuse(function, name, outputs[i], found[i], values)


def _narrow(values: Array) -> bool:
    return dtypes.is_float(dtypes.name_of(values.dtype)) and values.dtype.itemsize < 8


def _called(
    function: Callable[..., Any], examples: Sequence[Any], values: Mapping[str, Array], copied: bool = True
) -> Any:
    """Call a function with arrays in place of its examples: copies, or read-only views. CallFails if it raises."""
    left = iter(values.values())
    like = _like if copied else _view_like
    args = [e if is_passed_through(e) else like(e, next(left)) for e in examples]
    token = on_arrays.set(True)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*args)
    except OwnFunction:
        raise
    except Exception as error:
        raise CallFails(f"{type(error).__name__}: {error}") from error
    finally:
        on_arrays.reset(token)


def _like(example: Any, values: Array) -> Any:
    return values.copy()[()] if isinstance(example, np.generic) else np.array(values)


def _view_like(example: Any, values: Array) -> Any:
    view = values.view()
    view.flags.writeable = False
    return view[()] if isinstance(example, np.generic) else view


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Restore the global random generators of Python and NumPy afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _outputs(returned: Any, graph: Graph, function: Any) -> list[Array]:
    """Arrays in a function's return value, in the order of the graph's outputs. TraceError for another structure."""
    leaves = leaves_of_structure(returned, 0 if graph.structure is None else graph.structure)
    if any(isinstance(leaf, Tensor) for leaf in leaves or ()):
        raise OwnFunction("functions of tensor expressions")
    found = [np.asarray(leaf) for leaf in leaves or ()]
    if leaves is None or any(array.dtype == object for array in found):
        raise TraceError("the function does not return what it returned while it was traced", where=title_of(function),
                         hint="a Python condition on values was decided while tracing")  # fmt: skip
    return found


# ---------------------------------------------------------------- modules and functions of Torch
def _compare_torch(module: Any, examples: Sequence[Any], kwargs: Mapping[str, Any], graph: Graph, seed: int) -> str:
    """Run a module on its examples. TraceError if its graph gives something else, or if the module is not
    deterministic.
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
                with _random_state_kept():
                    found = [to_numpy(v) for v in _run_torch(module, *given)]
            except Exception as error:
                raise CallFails(f"{type(error).__name__}: {error}") from error
            if len(found) != len(graph.outputs):
                raise CallFails("nothing, and its results are not the graph's outputs")
            return found

        return compare_large(title_of(module), call, graph, seed, partial(judge_torch, module), "module")
    if missing := _lacking_memory(graph):
        return f"compared with its graph only: {missing}"
    try:
        runs = [_torch_outputs(module, examples, kwargs) for _ in range(2)]
    except Exception as error:
        if isinstance(error, TensorGraphsError):
            raise
        return f"compared with its graph only: called with its examples it raises {type(error).__name__}: {error}"
    if len(runs[0]) != len(graph.outputs):
        return "compared with its graph only: the module's results are not the graph's outputs"
    values = {str(n.attr("name")): to_numpy(e.detach().cpu()) for n, e in zip(graph.inputs, tensors)}
    with np.errstate(all="ignore"):
        found, sharp = evaluate(graph, values), evaluate(graph, values, float64=True)
    rounding = Rounding(graph, values)
    for i, (name, root) in enumerate(zip(graph.names, graph.outputs)):
        own, again = to_numpy(runs[0][i]), to_numpy(runs[1][i])
        if not np.array_equal(own, again, equal_nan=own.dtype.kind == "f") and not near(root, own, again, again):
            raise TraceError(f"output {name!r} is not the same when the module is called twice with the same arguments",
                             where=title_of(module), hint="call module.eval(); random numbers cannot be traced")  # fmt: skip
        if own.shape != found[i].shape or dtypes.name_of(own.dtype) != root.dtype:
            raise TraceError(
                f"output {name!r} of the module is {own.dtype}{list(own.shape)}, of its graph {root.type}",
                where=title_of(module),
            )
        if not near_torch(root, own, found[i], sharp[i]) and not rounding.explains(i, own, found[i]):
            refuse(module, name, own, found[i], values)
    return "compared with the module itself, on its examples"


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


__all__ = ["compare"]
