"""Checks the JSON texts of a stored key's fields: whether they have the form that `KernelKey` writes, on which
prediction and schedule searches rely."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ...egraph.types.dtypes import DTYPES

_MOST = 1 << 62  # of sizes and steps


def _whole(value: Any) -> bool:
    return type(value) is int and -_MOST < value < _MOST


def _each(value: Any, test: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(test, value))


def _parameter(value: Any) -> bool:
    """Whether a value is a pair of a name and a number or text."""
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


#: Field -> test of its decoded text.
_FORMS: dict[str, Callable[[Any], bool]] = {
    "constants": lambda v: isinstance(v, list),
    "shapes": lambda v: _each(v, lambda s: _each(s, lambda d: _whole(d) and d >= 0)),
    "dtypes": lambda v: _each(v, lambda d: isinstance(d, str) and d in DTYPES),
    "strides": lambda v: _each(v, lambda s: _each(s, _whole)),
    "schedule": lambda v: _each(v, _parameter),
}

FIELDS = tuple(_FORMS)
"""Fields of a key that are stored as JSON."""


def well_formed(field: str, text: str) -> bool:
    """Whether `text` is JSON of the form that the field of a key has."""
    try:
        return _FORMS[field](json.loads(text))
    except (ValueError, RecursionError):
        return False


__all__ = ["FIELDS", "well_formed"]
