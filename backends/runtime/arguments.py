"""Flattens nested arguments of a traced module (dicts, lists, tuples of tensors) to a program's flat inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...errors import UsageError


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yields (path, array or tensor) of the leaves of a nested value.

    Other leaves are left out, because they were constants during tracing.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _leaves(item, (*path, str(i)))
    elif hasattr(value, "shape"):
        yield "_".join(path), value


def unfolded(args: Sequence[Any], named: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any] | None:
    """Inputs by name from nested arguments: positional (`args`) and named ones. `names`: the inputs' names in order.

    A nested tensor belongs to the first remaining input whose name is its path (`batch_x`, `pair_0`) or ends with `_`
    and its path; if there is none, to the first remaining input. Returns None if nothing is nested, or if the number of
    tensors is not that of the inputs.
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


def by_name(args: Sequence[Any], named: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """The inputs in the order of `names`, from positional (`args`) and named arguments.

    Raises UsageError for too many, unknown, repeated or missing arguments.
    """
    if len(args) > len(names):
        hint = "give an array as one argument: program(x), not program(*x)" if len(names) == 1 else ""
        raise UsageError(f"{len(args)} inputs given, the program has {len(names)}: {names}", hint=hint)
    found = dict(zip(names, args))
    twice, unknown = sorted(set(found) & set(named)), sorted(set(named) - set(names))
    if twice or unknown:
        what = f"inputs {twice} are given twice" if twice else f"no inputs are called {unknown}"
        raise UsageError(what, hint=f"the inputs are {names}")
    found |= named
    missing = [n for n in names if n not in found]
    if missing:
        raise UsageError(f"inputs {missing} are missing", hint=f"the inputs are {names}")
    return [found[n] for n in names]


__all__ = ["by_name", "unfolded"]
