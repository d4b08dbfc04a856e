"""Determines sizes and names of the inputs of an ONNX file: ints or free dimensions."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from ...egraph.types import dims as _dims
from ...egraph.types.dims import Dim
from ...errors import BadModelError, ShapeError, UsageError
from .names import short

#: Names that exporters of decoders give to sums of other sizes, by convention -> the sum.
SUMS = {"total_sequence_length": "past_sequence_length + sequence_length"}


def named_sizes(graph: Any, given: Mapping[str, int] | None, file: Path) -> dict[tuple[str, int], Dim]:
    """Return the size of each (input, axis) of an ONNX graph: an int, or a free dimension with a name derived from the
    file's. A name that spells an expression of other names ("past + 1") is that expression, and so is one of `SUMS`.

    `given`: sizes of free dimensions by name. Raises UsageError for unknown names and negative sizes in it,
    BadModelError for negative sizes in the file.
    """
    given = dict(given or {})
    found: dict[tuple[str, int], Dim] = {}
    raw: dict[tuple[str, int], str] = {}
    weights = {i.name for i in graph.initializer}
    for info in graph.input:
        for axis, size in enumerate(info.type.tensor_type.shape.dim if info.name not in weights else ()):
            if size.HasField("dim_value"):
                if size.dim_value < 0:
                    raise BadModelError(f"input {short(info.name)} has a negative size", where=str(file))
                found[info.name, axis] = size.dim_value
            else:
                raw[info.name, axis] = size.dim_param or f"{info.name}_{axis}"
    names: dict[str, str] = {}
    for text in raw.values():
        names.setdefault(text, _identifier(text, names.values()))
    sizes: dict[str, Dim] = {}
    for text, name in names.items():
        asked = given.get(text, given.get(name))
        if asked is not None and asked < 0:
            raise UsageError(f"dimension {short(text)} cannot be {asked}", where=str(file))
        sizes[text] = _dims.dim(name) if asked is None else int(asked)
    free = {text for text, name in names.items() if text not in given and name not in given}
    for some in (free & SUMS.keys(), free - SUMS.keys()):  # sums first: other names may spell them
        sizes |= {text: total for text in some if (total := _expression(text, sizes)) is not None}
    unknown = sorted(set(given) - set(names) - set(names.values()))
    if unknown:
        raise UsageError(
            f"the model has no dimension called {unknown}",
            where=str(file),
            hint=f"it has {sorted(names.values())[:20]}",
        )
    return found | {place: sizes[text] for place, text in raw.items()}


def _expression(text: str, sizes: Mapping[str, Dim]) -> Dim | None:
    """The size that a name spells as an expression of other names; None if it does not."""
    spelled, others = SUMS.get(text, text), {name: size for name, size in sizes.items() if name != text}
    if not others.keys() & {*re.findall(r"\w+", spelled)}:
        return None
    try:
        return _dims.parse(spelled, others)
    except ShapeError:
        return None


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
