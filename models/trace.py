"""Python functions as graphs: the function is called once with traced arrays in place of its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..egraph import api as t
from ..egraph import dtypes
from ..egraph.graph import Graph, Tensor
from ..egraph.ops import Type
from ..errors import ShapeError, TraceError, UsageError
from . import numpy_calls
from .numpy_array import Memory, expression, is_traced, traced

assert numpy_calls  # makes operators and NumPy's functions take traced arrays


def trace(
    function: Callable[..., Any],
    example_tensors: Sequence[Any],
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    arrays: bool = True,
) -> Graph:
    """The graph of `function(*example_tensors, **example_kwargs)`.

    The function gets traced arrays, which mean what NumPy's arrays mean, or with `arrays=False` tensor expressions.

    An example is an array (NumPy or torch; only its shape and dtype count), a `Type`, a pair (shape, dtype) or a
    tensor expression, whose type is taken; numbers, strings, bools and None are passed through as they are. Inputs are
    named after the function's parameters. The function may return an array, or nested tuples, lists and dicts (with strings
    as keys) of arrays; None is kept. UsageError for anything else, TraceError where the function does something without a meaning in a
    graph.
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
    try:
        returned = function(*args, **kwargs)
    except TypeError as error:  # Torch's functions, and some of NumPy's, take their own arrays only
        if not any(said in str(error) for said in ("Tensor", "TracedArray", "ufunc")):
            raise
        raise TraceError(f"{_title(function)} cannot be traced: {error}",
                         hint="write it with NumPy's or tg.* functions, or put Torch code into an nn.Module") from error  # fmt: skip
    except ValueError as error:  # where NumPy reads elements of an array, it raises an error of its own for ours
        if not isinstance(error.__cause__, TraceError):
            raise
        raise error.__cause__ from error
    outputs: list[Tensor] = []
    names: list[str] = []
    structure = _template(returned, "", outputs, names)
    if not outputs:
        raise TraceError(f"{_title(function)} returned no tensor")
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


def _refuse_missing(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """UsageError where the examples are not the arguments that a function takes."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin that does not say
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
    """The names of the first `count` positional parameters; `*args` gives args0, args1, …"""
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
    """The shape and dtype that an example stands for; None where it is passed through."""
    if isinstance(example, Type):
        return example
    if isinstance(example, Tensor):
        return example.type
    if example is None or (isinstance(example, bool | int | float | str) and not isinstance(example, np.generic)):
        return None
    if isinstance(example, tuple) and len(example) == 2 and isinstance(example[0], list | tuple):
        return Type(tuple(example[0]), dtypes.name_of(example[1]))
    if hasattr(example, "shape") and hasattr(example, "dtype"):
        return Type(tuple(int(d) for d in example.shape), dtypes.name_of(example.dtype))
    raise UsageError(f"a {type(example).__name__} is no example of a tensor", hint="give an array or (shape, dtype)")


def is_passed_through(example: Any) -> bool:
    """Whether an example is given to the function as it is: a number, a string, a bool or None."""
    return _type_of(example) is None


def _template(item: Any, path: str, outputs: list[Tensor], names: list[str]) -> Any:
    """The structure of a result, its tensors collected in order with a name each: their path. UsageError for a part that is no tensor,
    no array or number, and no plain tuple, list or dict with strings as keys."""
    if is_traced(item) or isinstance(item, Tensor):
        outputs.append(expression(item))
        names.append(path or "output")
        return len(outputs) - 1
    if type(item) in (list, tuple):
        parts = [_template(v, f"{path}.{i}" if path else f"output{i}", outputs, names) for i, v in enumerate(item)]
        return parts if type(item) is list else tuple(parts)
    if isinstance(item, Mapping):
        if wrong := [k for k in item if not isinstance(k, str)]:
            raise TraceError(f"the function returned a dict with the keys {wrong[:3]}, which are no strings")
        return {k: _template(v, f"{path}.{k}" if path else k, outputs, names) for k, v in item.items()}
    if item is None:
        return None
    if isinstance(item, tuple | list):
        raise TraceError(f"the function returned a {type(item).__name__}", hint="return a plain tuple, list or dict")
    if isinstance(item, str | bytes | complex):
        raise TraceError(f"the function returned a {type(item).__name__}, not tensors")
    try:
        outputs.append(t.as_tensor(np.asarray(item)))
    except (TypeError, ValueError, ShapeError) as error:
        raise TraceError(f"the function returned a {type(item).__name__}, not tensors") from error
    names.append(path or "output")
    return len(outputs) - 1


__all__ = ["is_passed_through", "trace"]
