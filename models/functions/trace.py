"""Traces Python functions: the function is called once with traced arrays as arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from traceback import walk_tb
from types import TracebackType
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.graph import Graph
from ...egraph.ir.refused_values import uncaught
from ...egraph.ir.structure import tuple_like
from ...egraph.ir.tensor import Tensor
from ...egraph.ops.ops import Type
from ...egraph.types import dtypes
from ...errors import ShapeError, TensorGraphsError, TooLargeError, TraceError, UsageError
from ...wording import with_article
from ..files.limits import seconds_of
from . import numpy_calls
from .array_memory import Memory
from .complex_array import ComplexArray
from .float_errors import as_before
from .numpy_array import expression, is_traced, traced
from .trace_bounds import bounded

assert numpy_calls  # importing installs the operators and NumPy dispatch of traced arrays


def trace(
    function: Callable[..., Any],
    example_tensors: Sequence[Any],
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    arrays: bool = True,
    budget: float | None = None,
) -> Graph:
    """Return the graph of `function(*example_tensors, **example_kwargs)`.

    The function is called with traced arrays, which follow NumPy semantics, or with tensor expressions if `arrays` is
    false.

    An example is an array (NumPy or torch; only shape and dtype matter), a `Type`, a pair (shape, dtype) or a tensor
    expression, whose type is used. Subclasses of np.ndarray (matrices, masked arrays) are refused. Numbers, strings,
    bools and None are passed to the function unchanged. Inputs are named after the function's parameters. The function
    may return an array, or nested tuples, lists and dicts (string keys) of arrays; None is kept. `budget` is that of
    `optimize` in seconds; it bounds tracing (`trace_bounds`). Raises UsageError for invalid examples, TraceError if the
    function returns anything else or does something that cannot be represented in a graph, ExportTimeError if tracing
    takes too long, TooLargeError if it makes too many arrays or memory runs out.
    """
    inputs: list[Tensor] = []

    def leaf(title: str, example: Any) -> Any:
        found = _type_of(example)
        if found is None:
            return example
        inputs.append(t.input(title, found.shape, found.dtype))
        scalar = isinstance(example, np.generic)
        memory = Memory(f"its argument {title!r}")
        return traced(inputs[-1], scalar=scalar, memory=memory) if arrays else inputs[-1]

    args = [leaf(title, value) for title, value in zip(_names(function, len(example_tensors)), example_tensors)]
    kwargs = {key: leaf(key, value) for key, value in (example_kwargs or {}).items()}
    _refuse_missing(function, args, kwargs)
    with _translated_errors(function), bounded(_title(function), seconds_of(budget)), as_before(), uncaught():
        returned = function(*args, **kwargs)
    return _graph_of(function, returned, inputs, name)


@contextmanager
def _translated_errors(function: Callable[..., Any]) -> Iterator[None]:
    """Context manager of the call of a traced function: errors that come from tracing become TraceError or
    TooLargeError, with the line of the function as `where`. Other errors pass as they are."""
    try:
        yield
    except MemoryError as error:
        raise TooLargeError(
            f"memory ran out while {_title(function)} was traced: {error}", hint="smaller arrays"
        ) from error
    except TypeError as error:  # torch functions, and some NumPy functions, accept only their own arrays
        if not any(name in str(error) for name in ("Tensor", "TracedArray", "ArrayAttributes", "ufunc")):
            raise
        refused = TraceError(f"{_title(function)} cannot be traced: {error}",
                             hint="write it with NumPy's or tg.* functions, or put Torch code into an nn.Module")  # fmt: skip
        _located(refused, error.__traceback__)
        raise refused from error
    except ValueError as error:  # NumPy wraps the TraceError of an element access in a ValueError of its own
        if not isinstance(error.__cause__, TraceError):
            raise
        _located(error.__cause__, error.__traceback__)
        raise error.__cause__ from error
    except TensorGraphsError as error:
        _located(error, error.__traceback__)
        raise


def _graph_of(function: Callable[..., Any], returned: Any, inputs: Sequence[Tensor], name: str | None) -> Graph:
    """The graph of what the traced `function` returned. Raises TraceError if that contains no tensor or depends on
    values that cannot be in a graph, UsageError if it uses inputs that are not its arguments."""
    outputs: list[Tensor] = []
    names: list[str] = []
    structure = _template(returned, "", outputs, names)
    if not outputs:
        raise TraceError(f"{_title(function)} returned no tensor", where=_defined(function))
    if isinstance(structure, int):
        structure, names = None, ["output"]
    graph = Graph(tuple(outputs), tuple(names), tuple(inputs), {}, {}, structure, name or _title(function))
    known = set(inputs)
    foreign = sorted({n.attr("name") for n in graph.leaves("input") if n not in known})
    if foreign:
        raise UsageError(f"the function uses the inputs {foreign}, which are not its arguments",
                         hint="pass them as arguments")  # fmt: skip
    graph.check()
    return graph


def _defined(function: Callable[..., Any]) -> str:
    """The line at which a function is defined; "" for one without Python code."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def _located(error: TensorGraphsError, raised: TracebackType | None) -> None:
    """Add to an error's `where` the line of the caller's code that raised it, if there is one: the innermost that is
    none of this package, NumPy or Torch."""
    lines = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in walk_tb(raised)
        if frame.f_globals.get("__name__", "").partition(".")[0]
        not in ("tensor_graphs", "numpy", "torch", "contextlib")
    ]
    if lines:
        error.where = ", ".join(part for part in (error.where, lines[-1]) if part)


def _refuse_missing(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise UsageError if the examples do not match the function's signature."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(f"{_title(function)} cannot be called with {len(args)} examples: {error}",
                         hint="example_inputs has one for each argument") from None  # fmt: skip


def _title(function: Callable[..., Any]) -> str:
    found = getattr(function, "__name__", type(function).__name__)
    return found if found.isidentifier() else "traced"


def _names(function: Callable[..., Any], count: int) -> list[str]:
    """Return the names of the first `count` positional parameters; `*args` yields args0, args1, …"""
    fallback = [f"input{i}" for i in range(count)]
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return fallback
    found: list[str] = []
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            found += [f"{p.name}{i}" for i in range(count - len(found))]
        elif p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            found.append(p.name)
    if len(found) < count:
        raise UsageError(f"{_title(function)} takes {len(found)} positional arguments, not {count}")
    return found[:count]


def _type_of(example: Any) -> Type | None:
    """Return the shape and dtype that an example stands for; None if the example is passed through unchanged."""
    if isinstance(example, Type):
        return example
    if isinstance(example, Tensor):
        return example.type
    if example is None or (isinstance(example, bool | int | float | str) and not isinstance(example, np.generic)):
        return None
    if isinstance(example, tuple) and len(example) == 2 and isinstance(example[0], list | tuple):
        return Type(tuple(example[0]), dtypes.name_of(example[1]))
    if isinstance(example, np.ndarray) and type(example) not in (np.ndarray, np.memmap):
        raise UsageError(
            f"{with_article(type(example).__name__)} has operators of its own, which a program does not follow",
            hint="np.asarray(...) makes an array of it",
        )
    if hasattr(example, "shape") and hasattr(example, "dtype"):
        return Type(tuple(int(d) for d in example.shape), dtypes.name_of(example.dtype))
    raise UsageError(
        f"{with_article(type(example).__name__)} is no example of a tensor", hint="give an array or (shape, dtype)"
    )


def is_passed_through(example: Any) -> bool:
    """Whether an example is passed to the function unchanged: a number, string, bool or None."""
    return _type_of(example) is None


def _template(item: Any, path: str, outputs: list[Tensor], names: list[str]) -> Any:
    """Return the structure of a result with output indices as leaves.

    The tensors are appended to `outputs` and their paths to `names`. Raises TraceError for a leaf that is not a tensor,
    array or number, and for containers other than plain and named tuples, lists and dicts with string keys.
    """
    if is_traced(item) or isinstance(item, Tensor):
        outputs.append(expression(item))
        names.append(path or "output")
        return len(outputs) - 1
    if type(item) in (list, tuple) or (isinstance(item, tuple) and hasattr(item, "_fields")):
        parts = [_template(v, f"{path}.{i}" if path else f"output{i}", outputs, names) for i, v in enumerate(item)]
        return parts if isinstance(item, list) else tuple_like(item, parts)
    if isinstance(item, Mapping):
        if wrong := [k for k in item if not isinstance(k, str)]:
            raise TraceError(f"the function returned a dict with the keys {wrong[:3]}, which are no strings")
        return {k: _template(v, f"{path}.{k}" if path else k, outputs, names) for k, v in item.items()}
    if item is None:
        return None
    if type(item) is ComplexArray:
        raise TraceError("the function returned an array of complex numbers", hint="return its parts: x.real, x.imag")
    if isinstance(item, tuple | list):
        raise TraceError(
            f"the function returned {with_article(type(item).__name__)}", hint="return a plain tuple, list or dict"
        )
    if isinstance(item, str | bytes | complex):
        raise TraceError(f"the function returned {with_article(type(item).__name__)}, not tensors")
    try:
        outputs.append(t.as_tensor(np.asarray(item)))
    except (TypeError, ValueError, ShapeError) as error:
        raise TraceError(f"the function returned {with_article(type(item).__name__)}, not tensors") from error
    names.append(path or "output")
    return len(outputs) - 1


__all__ = ["is_passed_through", "trace"]
