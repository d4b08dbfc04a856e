"""The JSON document that a command prints. Imports nothing that takes time, since Ctrl-C may come first."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

SCHEMA = 1


def _plain(value: Any) -> Any:
    """Convert to plain JSON data: NaN and infinities become null, array scalars numbers, other objects text."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if hasattr(value, "to_json"):
        return _plain(value.to_json())
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def dumped(document: Mapping[str, Any]) -> str:
    """The text of a document, on one line."""
    return json.dumps(_plain({"schema": SCHEMA, **document}), allow_nan=False)


__all__ = ["dumped"]
