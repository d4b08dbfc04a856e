"""Converts an optimization source (expression, function, module, path) to a graph with its weights and sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor
from ...egraph.types.dims import symbols
from ...errors import ExportError, ShapeError, TensorGraphsError, UsageError
from ...models.files.limits import check_count
from ...wording import with_article
from .misfits import misfit

DEFAULT_SEQUENCE = 128
FREE = "free dimensions"
_BATCH = re.compile(r"b|bs|bsz|.*batch.*", re.IGNORECASE)  # names of a batch on any axis
_SEQUENCE = re.compile(r"[tsl]|.*(seq|len|time|token|step|pos).*", re.IGNORECASE)  # names of a length
IMAGES = 4  # rank from which axis 0 is the batch unless its name is that of a length


def as_graph(
    source: Any,
    example_inputs: Any = None,
    *,
    params: Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
    dynamic_shapes: Any = None,
    example_kwargs: Mapping[str, Any] | None = None,
    trust: bool = False,
    budget: float | None = None,
) -> Graph:
    """Convert a source (expression(s), Graph, function, nn.Module, ExportedProgram or path) to a graph.

    `params` are bound by name; `dims` fix free dimensions of a loaded file or an exported module. `dynamic_shapes`:
    argument of `torch.export`. `trust`: load files that may execute code. Raises UsageError for other sources and for
    unknown names, TooLargeError for more operations than the setting `max_nodes`. `budget`: seconds for the whole
    optimization, from which the time limit of torch.export is derived (ExportTimeError).
    """
    module = is_module(source)
    if example_kwargs and not module:
        raise UsageError("example_kwargs are for an nn.Module", hint="give a function its example_inputs by position")
    if isinstance(source, Graph):
        graph = source
    elif _is_expression(source):
        graph = Graph.of(source)
    elif isinstance(source, str | Path):
        from ...models.load import load

        graph = load(source, dims=dims, trust=trust)
    elif type(source).__name__ == "ExportedProgram":
        from ...models.torch_export.export import from_exported

        graph = from_exported(source, budget=budget)
    elif type(source).__module__.startswith("torch") or module:
        from ...models.torch_export.export import load_module

        args = as_tuple(example_inputs)
        graph = load_module(
            source, args, example_kwargs=example_kwargs, dims=dims, dynamic_shapes=dynamic_shapes, budget=budget
        )
    elif callable(source):
        graph = _of_function(source, as_tuple(example_inputs), dynamic_shapes, budget)
    else:
        raise UsageError(
            f"cannot optimize {with_article(type(source).__name__)}",
            hint="give an expression, a function with example_inputs, an nn.Module with example_inputs, or a model's path",
        )
    if not (isinstance(source, str | Path) or module):  # loaders have bound these names, or refused them
        _refuse_unknown("no dimension is called", dims or {}, graph.free_dims, FREE)
    check_count(len(graph.nodes()), where=graph.name)
    return _with_params(graph, params) if params else graph


def _is_expression(source: Any) -> bool:
    parts = source.values() if isinstance(source, dict) else source if isinstance(source, list | tuple) else [source]
    return bool(parts) and all(isinstance(t, Tensor) for t in parts)


def _refuse_unknown(message: str, names: Iterable[str], known: Iterable[str], what: str) -> None:
    if unknown := sorted(set(names) - set(known)):
        raise UsageError(f"{message} {unknown}", hint=f"the graph has {sorted(known) or f'no {what}'}")


def _with_params(graph: Graph, params: Mapping[str, Any]) -> Graph:
    """The graph with weights and states bound by name, and type-checked."""
    leaves = {str(n.attr("name")) for op in ("param", "state") for n in graph.leaves(op)}
    _refuse_unknown("no params are called", params, leaves, "params")
    graph = replace(graph, params={**graph.params, **{n: _array(v) for n, v in params.items()}})
    graph.check()
    return graph


def _of_function(function: Callable[..., Any], examples: tuple[Any, ...], shapes: Any, budget: float | None) -> Graph:
    """Trace a function: with tensor_graphs' traced arrays, or by torch.export if the examples are Torch tensors.

    Export keeps Torch semantics (a sum of bools counts, `==` compares elementwise). If export fails, tracing is tried,
    for functions that pass their arguments to functions of this package.
    """
    from ...models.functions.trace import trace

    if not any(type(e).__module__.partition(".")[0] == "torch" for e in examples):
        if shapes is not None:
            raise UsageError(
                "dynamic_shapes are torch.export's", hint='give an example as a type, ((tg.dim("T"), 8), "float32")'
            )
        return trace(function, examples, budget=budget)
    from ...models.torch_export.export import load_module

    try:
        return load_module(function, examples, dynamic_shapes=shapes, budget=budget)
    except ExportError as error:
        if shapes is not None or isinstance(error.__cause__, RuntimeError):  # of torch: no call of this package
            raise
        try:
            return trace(function, examples, arrays=False, budget=budget)
        except Exception as problem:
            # an error of this package inside export: a missing attribute of a Torch tensor, or a named error
            cause = error.__cause__
            ours = isinstance(cause, TensorGraphsError | AttributeError) and isinstance(problem, TensorGraphsError)
            raise (problem if ours else error) from None


def refuse_non_integer_sizes(sizes: Mapping[str, int] | None) -> None:
    """Raise UsageError for sizes that are not integers."""
    if wrong := {n: s for n, s in (sizes or {}).items() if not isinstance(s, Integral) or isinstance(s, bool)}:
        raise UsageError(f"sizes that are not integers: {wrong}", hint="give each dimension an integer")


def sizes_of(graph: Graph, sizes: Mapping[str, int] | None) -> dict[str, int]:
    """The given sizes by the graph's names of its free dimensions. In these names, "_" replaces characters that no
    identifier may have; a size may be given by either name.

    Raises UsageError for unknown names.
    """
    free = graph.free_dims
    refuse_non_integer_sizes(sizes)
    found = {n if n in free else re.sub(r"\W+", "_", n).strip("_"): s for n, s in (sizes or {}).items()}
    _refuse_unknown("no dimension is called", found, free, FREE)
    return found


def is_module(source: Any) -> bool:
    """Whether a source is an nn.Module, without importing Torch."""
    return any(c.__module__ == "torch.nn.modules.module" and c.__name__ == "Module" for c in type(source).__mro__)


def as_tuple(values: Any) -> tuple[Any, ...]:
    """Example inputs as a tuple of positional arguments: None is none, a list or tuple holds them, another value is the
    only one."""
    if values is None:
        return ()
    return tuple(values) if isinstance(values, list | tuple) else (values,)


def _array(value: Any) -> Any:
    if type(value).__module__.startswith("torch"):
        from ...models.torch_export.arrays import to_numpy

        return to_numpy(value)
    return value if hasattr(value, "load") else np.asarray(value)


def is_batch(graph: Graph, name: str) -> bool:
    """Whether a free dimension of a graph is taken for a batch: its name is b, bs or bsz or contains "batch"; or,
    on axis 0 of each input that has it, its name is n, or an input has at least `IMAGES` axes and the name is not that
    of a length (t, s, l, or with seq, len, time, token, step or pos)."""
    if _BATCH.fullmatch(name):
        return True
    inputs = [n for n in graph.inputs if any(name in symbols(d) for d in n.shape)]
    if any(name in symbols(d) for n in inputs for d in n.shape[1:]):
        return False
    images = any(n.rank >= IMAGES for n in inputs) and not _SEQUENCE.fullmatch(name)
    return images or name.lower() == "n"


def bound(graph: Graph, sizes: Mapping[str, int] | None) -> tuple[Graph, dict[str, int]]:
    """(Graph at concrete sizes, sizes of all its dimensions). Sizes that are not given: 1 for a batch (`is_batch`), 128
    for others, clamped to the dimension's range.

    Raises ShapeError, for a file BadModelError, if an operation does not fit at these sizes.
    """
    chosen = dict(sizes or {})
    for name, atom in graph.free_dims.items():
        if name not in chosen:
            wanted = 1 if is_batch(graph, name) else DEFAULT_SEQUENCE
            chosen[name] = min(max(wanted, atom.min), atom.max)
    used = {n: s for n, s in chosen.items() if n in graph.free_dims}
    try:
        return (graph.bind(used) if used else graph), chosen
    except ShapeError as error:
        raise misfit(graph, used, error) from error
