"""Describes the structure of a program's results, nested containers whose leaves are output indices, and converts it to
its stored form and back.

Containers are tuples, lists, dicts, named tuples, and a `Record` for every other type. A stored structure names the
type of a named tuple by module and name. No module is imported for it: where none that is loaded has this type, the
results are named tuples of an equal type.
"""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from keyword import iskeyword
from typing import Any

DEPTH = 64  # maximum nesting of a stored structure
MOST_FIELDS = 1000  # maximum fields of a stored named tuple


class Record(dict[str, Any]):
    """Children by name of a container that is not a tuple, list or dict (a dataclass, a mapping registered with
    PyTorch).

    `make` makes the container from a list of the children's values. Stored as a dict.
    """

    def __init__(self, children: Mapping[str, Any], make: Callable[[list[Any]], Any]) -> None:
        super().__init__(children)
        self.make = make

    def __reduce__(self) -> Any:
        return Record, (dict(self), self.make)


def field_names(kind: type) -> tuple[str, ...] | None:
    """Names of the fields of a type of named tuples, those of torch.return_types and os included; None for other
    types."""
    if not issubclass(kind, tuple) or kind is tuple:
        return None
    names = getattr(kind, "_fields", getattr(kind, "__match_args__", None))
    return tuple(names) if isinstance(names, tuple | list) else None


def tuple_like(like: tuple[Any, ...], parts: Iterable[Any]) -> tuple[Any, ...]:
    """A tuple of `parts`, of the type of `like`: plain, named (namedtuple, NamedTuple), or of torch.return_types."""
    made: tuple[Any, ...] = type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)
    return made


def filled(structure: Any, results: Sequence[Any]) -> Any:
    """The results, put into the containers of a structure; a structure of None stands for a single result."""
    return results[0] if structure is None else _filled(structure, results)


def _filled(item: Any, results: Sequence[Any]) -> Any:
    if item is None or isinstance(item, int):
        return None if item is None else results[item]
    if isinstance(item, Record):
        return item.make([_filled(v, results) for v in item.values()])
    if isinstance(item, Mapping):
        return {k: _filled(v, results) for k, v in item.items()}
    parts = [_filled(v, results) for v in item]
    return parts if isinstance(item, list) else tuple_like(item, parts)


# ---------------------------------------------------------------- the stored form
def pack(structure: Any) -> Any:
    """JSON data of a structure.

    Raises TypeError for leaves that are not indices, and for keys that are neither texts nor integers.
    """
    if structure is None or type(structure) is int:
        return structure
    if isinstance(structure, Mapping):
        if wrong := [k for k in structure if type(k) not in (str, int)]:
            raise TypeError(f"a dict with the key {wrong[0]!r}")
        return {"dict": [[k, pack(v)] for k, v in structure.items()]}
    if isinstance(structure, list):
        return {"list": [pack(v) for v in structure]}
    if not isinstance(structure, tuple):
        raise TypeError(f"a value of type {type(structure).__name__}")
    parts = [pack(v) for v in structure]
    names = field_names(type(structure))
    if names is None or len(names) != len(parts):
        return {"tuple": parts}
    kind = type(structure)
    return {"named": [f"{kind.__module__}:{kind.__qualname__}", *map(list, zip(names, parts))]}


def unpack(packed: Any, outputs: int, depth: int = 0) -> Any:
    """The inverse of `pack`. `outputs`: number of outputs; `depth`: nesting depth so far.

    Raises ValueError for data that `pack` does not give.
    """
    if packed is None:
        return None
    if type(packed) is int:
        if not 0 <= packed < outputs:
            raise ValueError(f"the structure names output {packed} of {outputs}")
        return packed
    if not isinstance(packed, dict) or len(packed) != 1:
        raise ValueError(f"the structure has {str(packed)[:80]!r}")
    ((kind, items),) = packed.items()
    if depth > DEPTH:
        raise ValueError("the structure is nested too deeply")
    if not isinstance(items, list):
        raise ValueError(f"the structure's {str(kind)[:40]!r} is no list")
    inner: Callable[[Any], Any] = lambda v: unpack(v, outputs, depth + 1)
    match kind:
        case "dict":
            return {k: inner(v) for k, v in _pairs(items, (str, int))}
        case "named":
            return _named(items, inner)
        case "tuple" | "list":
            return {"tuple": tuple, "list": list}[kind](map(inner, items))
    raise ValueError(f"the structure has a {str(kind)[:40]!r}")


def _pairs(items: Sequence[Any], keys: tuple[type, ...]) -> list[tuple[Any, Any]]:
    """(key, value) of each item; no key occurs twice."""
    for item in items:
        if not isinstance(item, list) or len(item) != 2 or type(item[0]) not in keys:
            raise ValueError(f"the structure has the entry {str(item)[:80]!r}")
    if len({k for k, _ in items}) != len(items):
        raise ValueError("the structure has a key twice")
    return [(k, v) for k, v in items]


def _named(items: Sequence[Any], inner: Callable[[Any], Any]) -> tuple[Any, ...]:
    """A named tuple: of the type of that name if it is loaded and has these fields, else of one that is made here."""
    if not items or not isinstance(items[0], str) or len(items) > MOST_FIELDS:
        raise ValueError("the structure has a named tuple without a type, or of too many fields")
    pairs = _pairs(items[1:], (str,))
    names, parts = tuple(k for k, _ in pairs), [inner(v) for _, v in pairs]
    module, _, path = items[0].partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    result: tuple[Any, ...]
    if isinstance(found, type) and field_names(found) == names:
        result = tuple.__new__(found, parts) if hasattr(found, "_fields") else found(parts)
    else:
        name = path.rpartition(".")[2]
        made = namedtuple(name if name.isidentifier() and not iskeyword(name) else "Result", names, rename=True)  # type: ignore[misc]
        result = made(*parts)
    return result


__all__ = ["DEPTH", "Record", "field_names", "filled", "pack", "tuple_like", "unpack"]
