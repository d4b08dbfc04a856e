"""Determines sizes and names of the inputs of an ONNX file: ints or free dimensions."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from ...egraph.types import dims as _dims
from ...egraph.types.dims import Dim
from ...errors import BadModelError, UsageError
from .names import short


def named_sizes(graph: Any, given: Mapping[str, int] | None, file: Path) -> dict[tuple[str, int], Dim]:
    """Return the size of each (input, axis) of an ONNX graph: an int, or a free dimension with a name derived from the
    file's.

    `given`: sizes of free dimensions by name. Raises UsageError for unknown names and negative sizes in it,
    BadModelError for negative sizes in the file.
    """
    given = dict(given or {})
    weights = {i.name for i in graph.initializer}
    names: dict[str, str] = {}
    found: dict[tuple[str, int], Dim] = {}
    for info in graph.input:
        if info.name in weights:
            continue
        for axis, size in enumerate(info.type.tensor_type.shape.dim):
            if size.HasField("dim_value"):
                if size.dim_value < 0:
                    raise BadModelError(f"input {short(info.name)} has a negative size", where=str(file))
                found[info.name, axis] = size.dim_value
                continue
            raw = size.dim_param or f"{info.name}_{axis}"
            name = names.setdefault(raw, _identifier(raw, names.values()))
            asked = given.get(raw, given.get(name))
            if asked is not None and asked < 0:
                raise UsageError(f"dimension {short(raw)} cannot be {asked}", where=str(file))
            found[info.name, axis] = _dims.dim(name) if asked is None else int(asked)
    unknown = sorted(set(given) - set(names) - set(names.values()))
    if unknown:
        raise UsageError(
            f"the model has no dimension called {unknown}",
            where=str(file),
            hint=f"it has {sorted(names.values())[:20]}",
        )
    return found


def _identifier(raw: str, taken: Iterable[str]) -> str:
    name = re.sub(r"[^A-Za-z0-9_]+", "_", raw)[:60].strip("_") or "dim"
    name = f"d{name}" if name[0].isdigit() else name
    return unique(name, set(taken))


def unique(name: str, taken: Container[str]) -> str:
    """Return the name, with the first numeric suffix from 2 on that is not taken if the name is taken."""
    found, number = name, 2
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    return found


__all__ = ["named_sizes", "unique"]
