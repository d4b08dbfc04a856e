"""Containers in which an exported module returns its outputs, and names of the outputs."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...egraph.ir.structure import Record


@dataclasses.dataclass(frozen=True)
class _Remake:
    """Function from the children of a container to the container, of a type that is registered with PyTorch."""

    kind: Any
    context: Any

    def __call__(self, values: list[Any]) -> Any:
        from torch.utils import _pytree

        return _pytree.SUPPORTED_NODES[self.kind].unflatten_fn(values, self.context)


def structure_of(spec: Any, leaves: Sequence[int | None]) -> Any:
    """The containers of the outputs, with output indices as leaves; None for a single output.

    `spec`: the nesting as PyTorch describes it (a pytree TreeSpec). `leaves`: for each of its leaves the index of the
    output, or None for a result that is None, which is kept.
    """
    left = iter(leaves)

    def nested(spec: Any) -> Any:
        if spec.is_leaf():
            return next(left)
        parts = [nested(child) for child in _children(spec)]
        made: Any = _Remake(spec.type, spec.context)
        if spec.type in (tuple, list):
            return spec.type(parts)
        if spec.type is namedtuple or issubclass(spec.type, tuple):
            return made(parts)
        names = _child_names(made, len(parts))
        if spec.type is dict and all(type(n) in (str, int) for n in names):
            return dict(zip(names, parts))
        texts = [str(n) for n in names]
        return Record(dict(zip(texts if len(set(texts)) == len(texts) else map(str, range(len(texts))), parts)), made)

    found = nested(spec)
    return None if isinstance(found, int) else found


def _children(spec: Any) -> Sequence[Any]:
    found: Sequence[Any] = spec.children() if hasattr(spec, "children") else spec.children_specs
    return found


def _child_names(make: Callable[[list[Any]], Any], count: int) -> list[Any]:
    """Names of a container's children: keys of a mapping, fields of a dataclass, else their positions."""
    marks = [object() for _ in range(count)]
    known: Any = ()
    try:
        made = make(list(marks))
    except Exception:  # a class that takes only tensors
        return list(range(count))
    if isinstance(made, Mapping):
        known = made.items()
    elif dataclasses.is_dataclass(made):
        known = ((f.name, getattr(made, f.name, None)) for f in dataclasses.fields(made))
    names = {id(value): key for key, value in known}
    return [names.get(id(mark), i) for i, mark in enumerate(marks)]


def output_names(structure: Any, count: int) -> list[str]:
    """A name for each of `count` outputs: its path in the containers that `structure` describes, or its index."""
    names = [f"output{i}" for i in range(count)] if structure is not None else ["output"]

    def walk(item: Any, path: str) -> None:
        if isinstance(item, dict):
            for key, value in item.items():
                walk(value, f"{path}.{key}" if path else key)
        elif isinstance(item, list | tuple):
            for i, value in enumerate(item):
                walk(value, f"{path}.{i}" if path else f"output{i}")
        elif isinstance(item, int):
            names[item] = path

    if structure is not None:
        walk(structure, "")
    return names
