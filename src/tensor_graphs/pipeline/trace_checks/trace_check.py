"""Compares a traced graph with the caller's own function or module.

`optimize` verifies a program against the traced graph. This module verifies the graph against the function itself,
which it calls with arrays: the examples, where they are arrays, and random inputs, both in the inputs' dtypes and with
smaller floats widened to float64. A function of large arrays is called once (trace_check_large.py). One call and one
run of the graph are mandatory; optional parts for which too little time is left are omitted, and the text says so.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any

import numpy as np

from ...backends.verification.index_bounds import index_bounds
from ...egraph.evaluate.interpret import evaluate
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from ...errors import ShapeError, TraceError
from ...extract.model.work import graph_flops
from ...models.functions.plain_runs import OwnFunction, on_arrays
from ...models.functions.trace import is_passed_through
from ...verification.memory_checks import memory_shortage
from ...verification.reference import call_seconds, interpreter_threads, sample_inputs, with_atomic_ops
from ..sources.arguments import leaves_of_structure
from ..sources.source import bound, is_module
from .trace_agreement import Array, Rounding, refuse, refuse_type, title_of
from .trace_check_large import (
    CallFails,
    compare_large,
    is_large,
    lacking_memory,
)
from .trace_check_torch import compare_torch
from .trace_randomness import OptionalTime, call_again, random_state_kept

DRAWN = 2  # number of random inputs; 1 for large graphs
LARGE_FLOPS = 1e9  # flops of a graph above which one input is used
HUGE_FLOPS = 2e10  # flops of a graph above which the float64 comparison is skipped
SAME = "compared with the function itself, on {} inputs"
WIDER = (
    8.0  # seconds of a call and a run in float64 per second in the inputs' dtypes: for large weights, mostly new memory
)
WIDE = "the comparison in float64"  # an optional part


def compare(
    source: Any, examples: Any, graph: Graph, *, sizes: Mapping[str, int] | None = None, kwargs: Mapping[str, Any] | None = None,
    seed: int = 0, spare: Callable[[], float] = lambda: math.inf,
) -> str:  # fmt: skip
    """Compare a traced graph with the function or module that it was traced from; returns text about the comparison for
    the report, "" for sources that are neither.

    `examples`, `kwargs`: the positional and named arguments of the trace. `sizes`: values of free dimensions. `seed`:
    of random inputs. `spare`: seconds that each optional part may take now; parts of up to `trace_randomness.LEAST_S`
    run in any case. Raises TraceError (with output, worst index and hint) if the source returns other values, shapes or
    dtypes than the graph, raises for its examples, or is not deterministic.
    """
    given = () if examples is None else tuple(examples) if isinstance(examples, list | tuple) else (examples,)
    if isinstance(source, Graph | Tensor | str) or not callable(source):
        return ""
    if is_module(source) or any(type(e).__module__.partition(".")[0] == "torch" for e in given):
        with random_state_kept():
            return compare_torch(source, given, kwargs or {}, graph, seed, OptionalTime(spare))
    here, found = bound(graph, sizes)
    compared = _compare_function(source, given, here, seed, OptionalTime(spare))
    if graph.free_dims and compared.startswith(SAME.partition("{")[0]):
        compared += _compare_other_sizes(source, given, graph, found, seed, OptionalTime(spare))
    return compared


def _compare_other_sizes(
    function: Callable[..., Any], examples: Sequence[Any], graph: Graph, known: Mapping[str, int], seed: int, time: OptionalTime
) -> str:  # fmt: skip
    """Text that says at how many other sizes a graph with free dimensions was compared with its function.

    The least sizes, and those after the `known` ones, of another parity. Left out: sizes at which the function
    raises or the graph is not valid.
    """
    free, done = graph.free_dims, 0
    for sizes in ({n: a.min for n, a in free.items()}, {n: min(known[n] + 1, a.max) for n, a in free.items()}):
        with suppress(CallFails, ShapeError):
            there = graph.bind({**known, **sizes})
            if sizes == known or graph_flops(list(there.roots)) > LARGE_FLOPS or is_large(there):
                continue
            values = sample_inputs(list(there.inputs), np.random.default_rng((seed, 78)), index_bounds(there))
            with random_state_kept():
                _compare_on(function, examples, there, values, in_float64=True, time=time)
            done += 1
    return f", and at {done} other sizes" + time.omission_text


# ---------------------------------------------------------------- functions of arrays
def _compare_function(
    function: Callable[..., Any], examples: Sequence[Any], graph: Graph, seed: int, time: OptionalTime
) -> str:  # fmt: skip
    if is_large(graph):

        def call(values: Mapping[str, Array]) -> list[Array]:
            return _outputs(_called(function, examples, values, copied=False), graph, function)

        return compare_large(function, call, graph, seed, "function", time)
    if missing := lacking_memory(graph) or time.too_long(call_seconds(graph)):
        return f"compared with its graph only: a call of the function is left out, {missing}"
    leaves, bounds = list(graph.inputs), index_bounds(graph)
    rng = np.random.default_rng((seed, 77))
    flops = graph_flops(list(graph.roots))
    count, wide = (1, flops <= HUGE_FLOPS) if flops > LARGE_FLOPS else (DRAWN, True)
    cases = [sample_inputs(leaves, rng, bounds) for _ in range(count)]
    cases[1:] = [{n: np.array(v, order="F") for n, v in values.items()} for values in cases[1:]]  # may decide an order
    tensors = [e for e in examples if not is_passed_through(e)]
    shown = len(tensors) == len(leaves) and all(
        isinstance(e, np.ndarray | np.generic) and np.shape(e) == n.shape for e, n in zip(tensors, leaves)
    )
    if shown:
        own = {str(n.attr("name")): np.asarray(e) for n, e in zip(leaves, tensors)}
        cases = [own] if flops > LARGE_FLOPS else [own, *cases]
    compared, failed, took = 0, "", 0.0
    for number, values in enumerate(cases):
        if number and not time.suffices(f"{len(cases) - number} further inputs", took):
            break
        try:
            began = perf_counter()
            with random_state_kept():
                _compare_on(function, examples, graph, values, wide, time)
            compared, took = compared + 1, perf_counter() - began
        except OwnFunction as called:
            return f"compared with its graph only: the function calls tg.{called}, which has no meaning for arrays"
        except CallFails as problem:
            if shown and not number:
                raise TraceError(
                    f"the function can be traced, but called with the example inputs it raises {problem}",
                    hint="give examples that it takes", where=title_of(function),
                ) from problem.__cause__  # fmt: skip
            failed = f"; for {len(cases) - compared} others it raises {problem}"
    return SAME.format(compared) + failed + time.omission_text


def _compare_on(
    function: Callable[..., Any], examples: Sequence[Any], graph: Graph, values: Mapping[str, Array], in_float64: bool,
    time: OptionalTime,
) -> None:  # fmt: skip
    """Raise TraceError if a function and its graph differ on the given inputs."""
    began = perf_counter()
    own = _called(function, examples, values)
    took = perf_counter() - began
    outputs = _outputs(own, graph, function)

    def again() -> None:
        _refuse_others(function, graph, outputs, _outputs(_called(function, examples, values), graph, function))

    call_again(function, again, took, time)
    exact: list[Array] | None = None
    began = perf_counter()
    atomic = with_atomic_ops(graph)
    with np.errstate(all="ignore"), interpreter_threads(graph):
        sharp = found = evaluate(atomic, values)
    took += perf_counter() - began
    if in_float64 and not memory_shortage(_widened_bytes(graph)) and time.suffices(WIDE, WIDER * took):
        wide = {n: v.astype(np.float64) if _narrow(v) else v for n, v in values.items()}
        with suppress(CallFails, TraceError):  # the function rejects float64: compare in its own dtypes only
            exact = _outputs(_called(function, examples, wide), graph, function)
        with np.errstate(all="ignore"), interpreter_threads(graph):
            sharp = evaluate(atomic, values, float64=True)
    rounding = Rounding(atomic, values, found, sharp)
    for i, (name, root) in enumerate(zip(graph.names, graph.outputs)):
        refuse_type(function, name, root, outputs[i], found[i].shape)
        if not rounding.accepts(i, outputs[i], exact[i] if exact else None):
            refuse(function, name, outputs[i], found[i], values)


def _refuse_others(
    function: Callable[..., Any], graph: Graph, outputs: Sequence[Array], again: Sequence[Array]
) -> None:
    """Raise TraceError if a second call with the same arguments has returned other outputs."""
    for name, a, b in zip(graph.names, outputs, again):
        if a.shape != b.shape or (
            not np.array_equal(a, b, equal_nan=a.dtype.kind == "f") and a.tobytes() != b.tobytes()
        ):
            raise TraceError(
                f"output {name!r} is not the same when the function is called twice with the same arguments",
                where=title_of(function),
                hint="random numbers, clocks and state cannot be traced: pass them as arguments",
            )


def _widened_bytes(graph: Graph) -> int:
    """Bytes of the graph's weights in float64, which a function called with float64 arrays may make all at once."""
    return sum(8 * math.prod(concrete(n.shape)) for op in ("constant", "param") for n in graph.leaves(op))


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


def _outputs(returned: Any, graph: Graph, function: Any) -> list[Array]:
    """Arrays in a function's return value, in the order of the graph's outputs.

    Raises TraceError for another structure.
    """
    leaves = leaves_of_structure(returned, 0 if graph.structure is None else graph.structure)
    if any(isinstance(leaf, Tensor) for leaf in leaves or ()):
        raise OwnFunction("functions of tensor expressions")
    found = [np.asarray(leaf) for leaf in leaves or ()]
    if leaves is None or any(array.dtype == object for array in found):
        raise TraceError("the function does not return what it returned while it was traced", where=title_of(function),
                         hint="a Python condition on values was decided while tracing")  # fmt: skip
    return found


__all__ = ["compare"]
