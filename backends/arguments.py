"""Calling a program as the module that it was made of: dicts, lists and tuples of tensors become its flat inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """The arrays and tensors in a value with their paths; other leaves were part of the program when it was made."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _leaves(item, (*path, str(i)))
    elif hasattr(value, "shape"):
        yield "_".join(path), value


def unfolded(args: Sequence[Any], named: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any] | None:
    """Inputs by name from nested arguments; None if nothing is nested or if they are not as many as the inputs.

    An input of a nested argument is called by its path (`batch_x`, `pair_0`). Arguments are taken in their order; in a
    dict the keys decide, whatever their order.
    """
    if not any(isinstance(v, Mapping | list | tuple) for v in (*args, *named.values())):
        return None
    left, found = list(names), {}
    leaves = [leaf for v in args for leaf in _leaves(v, ())] + [
        leaf for k, v in named.items() for leaf in _leaves(v, (k,))
    ]
    if len(leaves) != len(names):
        return None
    for path, value in leaves:
        name = next((n for n in left if path and (n == path or n.endswith(f"_{path}"))), left[0])
        left.remove(name)
        found[name] = value
    return found


__all__ = ["unfolded"]
