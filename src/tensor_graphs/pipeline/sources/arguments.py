"""Converts nested arguments and results of a Python function to flat lists of tensors or arrays, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...backends.runtime.marshalling import is_torch


def array_leaves(value: Any, *, numbers: bool = False) -> Iterator[Any]:
    """Tensors and arrays in nested mappings, lists and tuples, in order, with `numbers` those of Python, too; other
    values are skipped."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from array_leaves(item, numbers=numbers)
    elif _is_array(value) or (numbers and isinstance(value, int | float)):
        yield value


def with_arrays(value: Any, arrays: Iterator[Any]) -> Any:
    """Copy of a nested value with its tensors and arrays replaced by the next items of `arrays`."""
    if isinstance(value, Mapping):
        return {k: with_arrays(v, arrays) for k, v in value.items()}
    if isinstance(value, list | tuple):
        parts = [with_arrays(v, arrays) for v in value]
        return parts if isinstance(value, list) else tuple(parts)
    return next(arrays) if _is_array(value) else value


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def torch_leaves(value: Any) -> list[Any]:
    """Leaves other than None of a value nested in the containers of `torch.utils._pytree` (dicts, lists, tuples,
    registered classes), in order."""
    if is_torch(value):
        return [value]
    from torch.utils import _pytree

    return [x for x in _pytree.tree_leaves(value) if x is not None]


def result_leaves(returned: Any, *, torch: bool) -> list[Any]:
    """Results of a function (`returned`) as a flat list, in order: the tensors if `torch`, else the arrays and numbers
    as arrays."""
    return torch_leaves(returned) if torch else [np.asarray(x) for x in array_leaves(returned, numbers=True)]


def has_structure(returned: Any, structure: Any, *, torch: bool) -> bool:
    """Whether a returned value has exactly the nesting and container types of a program's results, `structure`.

    Leaves are tensors (`torch`) or arrays.
    """
    if structure is None or isinstance(structure, int):
        return is_torch(returned) if torch else type(returned) is np.ndarray
    if type(returned) is not type(structure) or len(returned) != len(structure):
        return False
    if isinstance(returned, dict):
        same = list(returned) == list(structure)
        return same and all(has_structure(returned[k], structure[k], torch=torch) for k in returned)
    return all(s is not None and has_structure(r, s, torch=torch) for r, s in zip(returned, structure))


def leaves_of_structure(returned: Any, structure: Any) -> list[Any] | None:
    """Leaves of a returned value in the order of `structure`, the nesting of a program's results; None if the value is
    nested differently.

    Mappings of other types with equal keys match; None matches None only.
    """
    found: list[Any] = []

    def walk(item: Any, template: Any) -> bool:
        if isinstance(template, Mapping):
            same = isinstance(item, Mapping) and list(item) == list(template)
            return same and all(walk(item[k], v) for k, v in template.items())
        if isinstance(template, list | tuple):
            return type(item) is type(template) and len(item) == len(template) and all(map(walk, item, template))
        if template is None or item is None or isinstance(item, Mapping | list | tuple):
            return template is None and item is None
        found.append(item)
        return True

    return found if walk(returned, structure) else None


__all__ = ["array_leaves", "has_structure", "leaves_of_structure", "result_leaves", "torch_leaves", "with_arrays"]
