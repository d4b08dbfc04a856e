"""Formats names from an ONNX file for messages."""

from __future__ import annotations

import re
from typing import Any


def short(name: object, limit: int = 80) -> str:
    """Return a name from a file for use in messages: quoted, escaped, truncated to `limit` characters."""
    text = str(name)
    return repr(text if len(text) <= limit else text[:limit] + "…")


def plain(name: str) -> str:
    """Return an operator name unchanged if it is a plain identifier; otherwise quoted, escaped and truncated."""
    return name if re.fullmatch(r"[A-Za-z0-9_.]{1,80}", str(name)) else short(name)


def node_label(node: Any) -> str:
    """Operator and name of a node, for messages."""
    return f"{plain(node.op_type)} {short(node.name or next(iter(node.output), ''))}"


__all__ = ["node_label", "plain", "short"]
