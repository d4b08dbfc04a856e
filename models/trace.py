"""Python functions of our own tensors as graphs: the function is called once with inputs in place of arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..egraph import api as t
from ..egraph import dtypes
from ..egraph.graph import Graph, Tensor
from ..egraph.ops import Type
from ..errors import ShapeError, UsageError
from . import numpy_calls

assert numpy_calls  # functions may call NumPy's


def trace(
    function: Callable[..., Any],
    example_tensors: Sequence[Any],
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Graph:
    """The graph of `function(*example_tensors, **example_kwargs)`.

    An example is an array (NumPy or torch; only its shape and dtype count), a `Type`, a pair (shape, dtype) or a
    tensor expression, whose type is taken; numbers, strings, bools and None are passed through as they are. Inputs are
    named after the function's parameters. The function may return a tensor, or nested tuples, lists and dicts of
    tensors; None is kept. UsageError for anything else.
    """
    inputs: list[Tensor] = []

    def leaf(title: str, example: Any) -> Any:
        found = _type_of(example)
        if found is None:
            return example
        inputs.append(t.input(title, found.shape, found.dtype))
        return inputs[-1]

    args = [leaf(title, value) for title, value in zip(_names(function, len(example_tensors)), example_tensors)]
    kwargs = {key: leaf(key, value) for key, value in (example_kwargs or {}).items()}
    _refuse_missing(function, args, kwargs)
    try:
        returned = function(*args, **kwargs)
    except TypeError as error:  # Torch's functions, and some of NumPy's, take their own arrays only
        if "Tensor" not in str(error) and "ufunc" not in str(error):
            raise
        raise UsageError(f"{_title(function)} cannot be traced: {error}",
                         hint="write it with tg.* functions and operators, or put Torch code into an nn.Module") from error  # fmt: skip
    outputs: list[Tensor] = []
    names: list[str] = []
    structure = _template(returned, "", outputs, names)
    if not outputs:
        raise UsageError(f"{_title(function)} returned no tensor")
    if isinstance(structure, int):
        structure, names = None, ["output"]
    graph = Graph(tuple(outputs), tuple(names), tuple(inputs), {}, {}, structure, name or _title(function))
    foreign = sorted({n.attr("name") for n in graph.leaves("input") if n not in set(inputs)})
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
    if example is None or isinstance(example, bool | int | float | str):
        return None
    if isinstance(example, tuple) and len(example) == 2 and isinstance(example[0], list | tuple):
        return Type(tuple(example[0]), dtypes.name_of(example[1]))
    if hasattr(example, "shape") and hasattr(example, "dtype"):
        return Type(tuple(int(d) for d in example.shape), dtypes.name_of(example.dtype))
    raise UsageError(f"a {type(example).__name__} is no example of a tensor", hint="give an array or (shape, dtype)")


def _template(item: Any, path: str, outputs: list[Tensor], names: list[str]) -> Any:
    """The structure of a result, its tensors collected in order with a name each: their path."""
    if isinstance(item, Mapping):
        return {str(k): _template(v, f"{path}.{k}" if path else str(k), outputs, names) for k, v in item.items()}
    if isinstance(item, list | tuple):
        parts = [_template(v, f"{path}.{i}" if path else f"output{i}", outputs, names) for i, v in enumerate(item)]
        return parts if isinstance(item, list) else tuple(parts)
    if item is None:
        return None
    if not isinstance(item, Tensor):
        try:
            item = t.as_tensor(np.asarray(item))
        except (TypeError, ValueError, ShapeError) as error:
            raise UsageError(f"the function returned a {type(item).__name__}, not tensors") from error
    outputs.append(item)
    names.append(path or "output")
    return len(outputs) - 1


__all__ = ["trace"]
