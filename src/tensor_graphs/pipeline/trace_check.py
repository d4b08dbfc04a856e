"""Comparison of a traced graph with the caller's own function or module.

`optimize` verifies a program against the traced graph. This module verifies the graph against the function itself,
which it calls with arrays: the examples, where they are arrays, and random inputs, both in the inputs' dtypes and with
smaller floats widened to float64. A function of large arrays is called once, on random inputs, and its outputs are
compared in strips (strips.py), so that memory for one set of inputs and outputs suffices.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

import numpy as np

from ..backends.runtime.marshalling import tensor_of
from ..backends.verification import inputs as drawing
from ..backends.verification.inputs import index_bounds
from ..backends.verification.rounding_noise import Disturbed
from ..egraph.ir import dtypes
from ..egraph.ir.dims import concrete
from ..egraph.ir.graph import Graph, Tensor, topological
from ..egraph.ir.interpret import evaluate, expand_all
from ..errors import TensorGraphsError, TraceError
from ..extract.model.work import graph_flops
from ..models.functions.numpy_array import OwnFunction, on_arrays
from ..models.functions.trace import is_passed_through
from ..verification.comparison import allowed_error, misplaced, relative_error
from ..verification.memory_checks import eager_bytes, in_and_out, lacking, run_bytes
from ..verification.reference import sample_inputs
from ..verification.strips import LEAST, Part, Places, fingerprint, strips_of
from .source import bound, is_module

Array = np.ndarray[Any, Any]
Judge = Callable[[str, Tensor, Part, Array], None]
DRAWN = 2  # number of random inputs; 1 for large graphs
LARGE_FLOPS = 1e9  # flops of a graph above which one input is used
HUGE_FLOPS = 2e10  # flops of a graph above which the float64 comparison is skipped
MODULE_FLOPS, MODULE_BYTES = 2e9, 1 << 27  # flops and weight bytes above which a module is not run
SHARP = 1e-6  # float64 tolerance: relative to the element, and
FINE = 1e-10  # relative to the largest element
#: Relative tolerance of a Torch module by dtype: Torch sums in another order and has other elementary functions.
LOOSE = {"float64": 1e-9, "float32": 2e-3}
ENLARGED = 1e5  # growth of a rounding error that later operations may cause
ROUNDINGS = 16.0  # allowed multiple of a program's tolerance when both run in their own dtypes
LARGE_BYTES = 1 << 28  # bytes of inputs and outputs above which one input is used, and outputs are compared in strips
_HELD = 12  # sets of inputs and outputs that a comparison as a whole holds at most, float64 copies counted twice
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
class _Fails(Exception):
    """The function raised for some arguments."""


def _compare_function(function: Callable[..., Any], examples: Sequence[Any], graph: Graph, seed: int) -> str:
    if is_large(graph):
        call = lambda values: _outputs(_called(function, examples, values, copied=False), graph, function)
        return _compare_large(_title(function), call, graph, seed, partial(_judged, function), "function")
    if missing := lacking(_HELD * in_and_out(graph) + max(eager_bytes(graph), run_bytes(graph, float64=True))):
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
        except _Fails as problem:
            if shown and not number:
                raise TraceError(
                    f"the function can be traced, but called with the example inputs it raises {problem}",
                    hint="give examples that it takes", where=_title(function),
                ) from problem.__cause__  # fmt: skip
            failed = f"; for {len(cases) - compared} others it raises {problem}"
    return SAME.format(compared) + failed


# ---------------------------------------------------------------- large inputs and outputs
def is_large(graph: Graph) -> bool:
    """Whether inputs and outputs are compared once and in strips: they take more than LARGE_BYTES."""
    return in_and_out(graph) > LARGE_BYTES


def _compare_large(
    title: str, call: Callable[[Mapping[str, Array]], list[Array]], graph: Graph, seed: int, judge: Judge, kind: str,
) -> str:  # fmt: skip
    """Compare a graph with one call of its function on random inputs: some strips of each output.

    Raises TraceError through `judge`. The returned text says what was compared, or why nothing was.
    """
    cuts = strips_of(graph)
    if cuts is None:
        return f"compared with its graph only: the outputs of the {kind} are large, and mix all indices of every axis"
    rng = np.random.default_rng((seed, 77))
    places = [Places(graph, root, axes, rng) for root, axes in zip(graph.outputs, cuts)]
    given = sum(n.type.nbytes for n in graph.inputs)
    needed = max(in_and_out(graph), given + eager_bytes(graph)) + max(p.taken for p in places)
    if problem := lacking(needed):
        return f"compared with its graph only: a call of the {kind} is left out, {problem}"
    values = drawing.inputs(graph, rng)
    before = fingerprint(values)
    try:
        with _random_state_kept():
            found = call(values)
    except OwnFunction as called:
        return f"compared with its graph only: the function calls tg.{called}, which has no meaning for arrays"
    except _Fails as problem:
        return f"compared with its graph only: called with random inputs the {kind} raises {problem}"
    if fingerprint(values) != before:
        return f"compared with its graph only: the {kind} writes to its inputs"
    for name, root, own in zip(graph.names, graph.outputs, found, strict=True):
        _same_type(title, name, root, own, kind)
    compared = 1.0
    for name, own, place in zip(graph.names, found, places):
        done = 0
        for start in place.starts[: LEAST + 2]:
            part = place.part(start, values)
            judge(name, place.root, part, part.of(own))
            done += part.stop - part.start
        compared = min(compared, done / place.axes.size)
    return f"compared with the {kind} itself, on one input, {100 * compared:.3g} % of the elements of each output"


def _same_type(title: str, name: str, root: Tensor, own: Array, kind: str) -> None:
    if own.shape != concrete(root.shape) or dtypes.name_of(own.dtype) != root.dtype:
        raise TraceError(
            f"output {name!r} of the {kind} is {own.dtype}{list(own.shape)}, of its graph {root.type}", where=title,
            hint="a Python condition on shapes, types or values was decided while tracing",
        )  # fmt: skip


def _judged(function: Any, name: str, root: Tensor, part: Part, own: Array) -> None:
    """Raise TraceError if a strip of a function's output differs from the graph's by more than rounding."""
    found, sharp = part.run(float64=False), part.run(float64=True)
    if not _near(root, found, own, own, sharp) and not _Rounding(part.graph, part.values).explains(0, own, found):
        _refuse(function, name, own, found, part.values)


def _judged_torch(module: Any, name: str, root: Tensor, part: Part, own: Array) -> None:
    """The same for a Torch module or function, which may differ by LOOSE."""
    found, sharp = part.run(float64=False), part.run(float64=True)
    if not _alike_torch(root, own, found, sharp) and not _Rounding(part.graph, part.values).explains(0, own, found):
        _refuse(module, name, own, found, part.values)


# ---------------------------------------------------------------- small inputs and outputs
def _compare_on(
    function: Callable[..., Any], examples: Sequence[Any], graph: Graph, values: Mapping[str, Array], in_float64: bool
) -> None:
    """Raise TraceError if a function and its graph differ on the given inputs."""
    own = _called(function, examples, values)
    again = _called(function, examples, values)
    outputs = _outputs(own, graph, function)
    for name, a, b in zip(graph.names, outputs, _outputs(again, graph, function)):
        if a.shape != b.shape or (
            a.tobytes() != b.tobytes() and not np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        ):
            raise TraceError(
                f"output {name!r} is not the same when the function is called twice with the same arguments",
                where=_title(function),
                hint="random numbers, clocks and state cannot be traced: pass them as arguments",
            )
    exact: list[Array] | None = None
    with np.errstate(all="ignore"):
        sharp = found = evaluate(graph, values)
    if in_float64:
        wide = {n: v.astype(np.float64) if _narrow(v) else v for n, v in values.items()}
        with suppress(_Fails, TraceError):  # the function rejects float64: compare in its own dtypes only
            exact = _outputs(_called(function, examples, wide), graph, function)
        with np.errstate(all="ignore"):
            sharp = evaluate(graph, values, float64=True)
    rounding = _Rounding(graph, values)
    for i, (name, root) in enumerate(zip(graph.names, graph.outputs)):
        in_wide = exact[i] if exact else None
        if not _agrees(function, name, root, outputs[i], in_wide, found[i], sharp[i]) and not rounding.explains(
            i, outputs[i], found[i]
        ):
            _refuse(function, name, outputs[i], found[i], values)


def _narrow(values: Array) -> bool:
    return dtypes.is_float(dtypes.name_of(values.dtype)) and values.dtype.itemsize < 8


class _Rounding:
    """Which elements of a graph's outputs rounding decides on given inputs (cancellation, ties, discontinuities)."""

    def __init__(self, graph: Graph, values: Mapping[str, Array]) -> None:
        self._disturbed = Disturbed(graph.with_roots(expand_all(graph.roots, wide_means=True)), values)

    def explains(self, output: int, own: Array, found: Array) -> bool:
        """Whether every difference between the function's output `own` and the graph's `found` is of rounding's size.

        The graph runs up to eleven times with noise of its dtypes' rounding (`backends/verification/rounding_noise.py`).
        """
        with np.errstate(all="ignore"):
            same = (own == found) | ((own != own) & (found != found))
            gap = np.where(same, 0.0, np.abs(np.asarray(found, np.float64) - np.asarray(own, np.float64)))
            floats = dtypes.is_float(dtypes.name_of(found.dtype))
            fine = np.abs(np.asarray(own, np.float64)) * allowed_error("fast", 0.0, found.dtype.name) if floats else 0.0
            off = ~same & ~(gap <= fine)
            while off.any() and self._disturbed.further():
                moved = self._disturbed.moved[output]
                off &= ~(gap <= moved) & (moved != np.inf) if floats else ~moved
        return not off.any()


def _agrees(
    function: Any, name: str, root: Tensor, own: Array, exact: Array | None, found: Array, sharp: Array
) -> bool:
    """Whether an output of the graph (`found`; `sharp` in float64) agrees with the function's (`own`; `exact` in
    float64).

    Raises TraceError for another shape or dtype.
    """
    if own.shape != found.shape or dtypes.name_of(own.dtype) != root.dtype:
        raise TraceError(
            f"output {name!r} of the function is {own.dtype}{list(own.shape)}, of its graph {root.type}", where=_title(function),
            hint="a Python condition on shapes, types or values was decided while tracing",
        )  # fmt: skip
    if (
        exact is not None
        and exact.shape == sharp.shape
        and _equal(root.dtype, sharp, exact)
        and _roughly(root, found, own)
    ):
        return True
    return _near(root, found, own, exact if exact is not None and exact.shape == own.shape else own, sharp)


def _refuse(function: Any, name: str, own: Array, found: Array, values: Mapping[str, Array]) -> NoReturn:
    """Raise TraceError for an output, with the index of the largest difference."""
    gap = np.abs(np.asarray(found, np.float64) - np.asarray(own, np.float64))
    gap = np.where((found == own) | ((found != found) & (own != own)), 0, np.where(gap == gap, gap, np.inf))
    place = tuple(map(int, np.unravel_index(int(np.argmax(gap)), gap.shape))) if gap.ndim else ()
    raise TraceError(
        f"output {name!r} of the function differs from that of its graph: at {list(place)} the function gives {own[place]!s},"
        f" the graph {found[place]!s}",
        where=f"{_title(function)} called with {', '.join(f'{n}: {v.dtype}{list(v.shape)}' for n, v in values.items())}",
        hint="something in the function was decided while tracing (a condition, a captured value, state): use np.where, or pass it as an"
        " argument",
    )


def _equal(dtype: str, y: Array, exact: Array) -> bool:
    """Whether the graph's and the function's float64 results agree."""
    if not dtypes.is_float(dtype):
        return bool(np.array_equal(y, exact))
    if misplaced(y, exact, exact):
        return False
    fine = np.isfinite(exact)
    a, b = np.asarray(y, np.float64)[fine], np.asarray(exact, np.float64)[fine]
    scale = np.abs(b).max() if b.size else 0.0
    return bool(np.all(np.abs(a - b) <= SHARP * np.abs(b) + FINE * scale))


def _roughly(root: Tensor, y: Array, own: Array) -> bool:
    """Whether an output in the graph's own dtypes agrees with the function's, up to amplified rounding (ENLARGED)."""
    if not dtypes.is_float(root.dtype):
        return True
    return bool(relative_error(y, own) <= allowed_error("fast", 0.0, root.dtype) * ENLARGED)


def _near(root: Tensor, y: Array, own: Array, exact: Array, sharp: Array | None = None) -> bool:
    """Whether a graph's output `y` in its own dtypes equals the function's output `own` up to rounding.

    Integers and booleans must be equal, except elements computed from floats whose value differs between a run in the graph's dtypes
    and one in float64 (`exact` of the function, `sharp` of the graph)."""
    if not dtypes.is_float(root.dtype):
        if not any(dtypes.is_float(n.dtype) for n in topological([root])):
            return bool(np.array_equal(y, own))
        unstable = (own != exact) | (y != (y if sharp is None else sharp))  # rounding decides these elements
        return not bool(np.any((y != own) & ~unstable))
    if misplaced(y, own, exact):
        return False
    return bool(relative_error(y, own) <= allowed_error("fast", 2 * relative_error(own, exact), root.dtype) * ROUNDINGS)


def _called(
    function: Callable[..., Any], examples: Sequence[Any], values: Mapping[str, Array], copied: bool = True
) -> Any:
    """Call a function with arrays in place of its examples: copies, or read-only views. _Fails if it raises."""
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
        raise _Fails(f"{type(error).__name__}: {error}") from error
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
    found: list[Array] = []

    def walk(item: Any, template: Any) -> bool:
        if isinstance(template, Mapping):
            same = isinstance(item, Mapping) and list(item) == list(template)
            return same and all(walk(item[k], v) for k, v in template.items())
        if isinstance(template, list | tuple):
            return type(item) is type(template) and len(item) == len(template) and all(map(walk, item, template))
        if template is None:
            return item is None
        if isinstance(item, Tensor):
            raise OwnFunction("functions of tensor expressions")
        if item is None or isinstance(item, Mapping | list | tuple):
            return False
        found.append(np.asarray(item))
        return bool(found[-1].dtype != object)

    if not walk(returned, 0 if graph.structure is None else graph.structure):
        raise TraceError("the function does not return what it returned while it was traced", where=_title(function),
                         hint="a Python condition on values was decided while tracing")  # fmt: skip
    return found


def _title(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


# ---------------------------------------------------------------- modules and functions of Torch
def _compare_torch(module: Any, examples: Sequence[Any], kwargs: Mapping[str, Any], graph: Graph, seed: int) -> str:
    """Run a module on its examples. TraceError if its graph gives something else, or if the module is not
    deterministic.
    """
    import torch

    tensors = [
        e for e in torch.utils._pytree.tree_leaves((tuple(examples), dict(kwargs))) if isinstance(e, torch.Tensor)
    ]
    sizes = _sizes(graph, [tuple(e.shape) for e in tensors])
    if len(tensors) != len(graph.inputs) or sizes is None:
        return "compared with its graph only: the module's arguments are not the graph's inputs"
    graph = graph.bind(sizes) if sizes else graph
    weights = sum(n.type.nbytes for n in graph.leaves("param"))
    if graph.updates or graph.leaves("state") or getattr(module, "training", False):
        return "compared with its graph only: the module has state, or is in training"
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
                raise _Fails(f"{type(error).__name__}: {error}") from error
            if len(found) != len(graph.outputs):
                raise _Fails("nothing, and its results are not the graph's outputs")
            return found

        return _compare_large(_title(module), call, graph, seed, partial(_judged_torch, module), "module")
    if missing := lacking(_HELD * in_and_out(graph) + max(eager_bytes(graph), run_bytes(graph, float64=True))):
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
    rounding = _Rounding(graph, values)
    for i, (name, root) in enumerate(zip(graph.names, graph.outputs)):
        own, again = to_numpy(runs[0][i]), to_numpy(runs[1][i])
        if not np.array_equal(own, again, equal_nan=own.dtype.kind == "f") and not _near(root, own, again, again):
            raise TraceError(f"output {name!r} is not the same when the module is called twice with the same arguments",
                             where=_title(module), hint="call module.eval(); random numbers cannot be traced")  # fmt: skip
        if own.shape != found[i].shape or dtypes.name_of(own.dtype) != root.dtype:
            raise TraceError(
                f"output {name!r} of the module is {own.dtype}{list(own.shape)}, of its graph {root.type}",
                where=_title(module),
            )
        if not _alike_torch(root, own, found[i], sharp[i]) and not rounding.explains(i, own, found[i]):
            _refuse(module, name, own, found[i], values)
    return "compared with the module itself, on its examples"


def _alike_torch(root: Tensor, own: Array, found: Array, sharp: Array) -> bool:
    """Whether a module's output `own` is the graph's (`found`; `sharp` in float64) up to LOOSE."""
    if not dtypes.is_float(root.dtype):
        return _near(root, found, own, own, sharp)
    return relative_error(own, sharp) <= LOOSE.get(root.dtype, 5e-2)


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
        found = torch.utils._pytree.tree_leaves(module(*args, **kwargs))
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
