"""Finds the arguments of an example call that are no tensors: the trace has their values as constants."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...backends.runtime.fixed_arguments import FixedArgument, spelled
from ...backends.runtime.marshalling import is_torch
from .arguments import array_leaves
from .source import as_tuple, is_module

_PLAIN = (type(None), bool, int, float, complex, str)  # whose text has type and value
_TORCH = ("dtype", "device", "layout", "memory_format")  # as well
_Row = tuple[str, int, Any]  # name of an argument, its position or -1, its value


def fixed_arguments(source: Any, example_inputs: Any, kwargs: Mapping[str, Any] | None) -> tuple[FixedArgument, ...]:
    """The fixed arguments of a function or module called with the examples, defaults of its parameters included; () for
    other sources. Items of nested arguments are found if an example is a Torch tensor."""
    if not callable(source) or isinstance(source, type) or type(source).__name__ == "ExportedProgram":
        return ()
    args, named = as_tuple(example_inputs), dict(kwargs or {})
    nested = any(is_torch(x) for x in array_leaves((args, named)))  # else a tuple is a type: (shape, dtype)
    return tuple(
        FixedArgument(name, position, path, spelled(value))
        for name, position, argument in _arguments(source.forward if is_module(source) else source, args, named)
        for path, value in _items(argument, (), nested)
        if type(value) in _PLAIN or (type(value).__module__ == "torch" and type(value).__name__ in _TORCH)
    )


def given_values(
    fixed: tuple[FixedArgument, ...], example_inputs: Any, kwargs: Mapping[str, Any] | None
) -> dict[str, str]:
    """The fixed arguments that the examples have, without defaults: title -> value as text."""
    given = len(as_tuple(example_inputs))
    return {f.title: f.value for f in fixed if 0 <= f.position < given or f.name in (kwargs or {})}


def _arguments(function: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]) -> Iterator[_Row]:
    """The arguments of a call by the function's signature; by position where it has none."""
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*args, **named)
    except (TypeError, ValueError):  # a builtin
        yield from ((f"input{i}", i, x) for i, x in enumerate(args))
        yield from ((name, -1, x) for name, x in named.items())
        return
    bound.apply_defaults()
    for position, parameter in enumerate(signature.parameters.values()):
        name, value = parameter.name, bound.arguments[parameter.name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            yield from ((f"{name}{i}", position + i, x) for i, x in enumerate(value))
        elif parameter.kind is parameter.VAR_KEYWORD:
            yield from ((key, -1, x) for key, x in value.items())
        else:
            yield name, -1 if parameter.kind is parameter.KEYWORD_ONLY else position, value


def _items(value: Any, path: tuple[int | str, ...], nested: bool) -> Iterator[tuple[tuple[int | str, ...], Any]]:
    """(path, item) of each innermost item of a nested value whose keys are text; the value itself if not `nested`."""
    if nested and isinstance(value, Mapping | list | tuple):
        rows = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in rows:
            if isinstance(key, int | str):
                yield from _items(item, (*path, key), nested)
    else:
        yield path, value


__all__ = ["fixed_arguments", "given_values"]
