"""Formats names from an ONNX file for messages."""

from __future__ import annotations

import re
from typing import Any

#: Domain of the operators that ONNX Runtime adds to ONNX.
MICROSOFT = "com.microsoft"


def short(name: object, limit: int = 80) -> str:
    """Return a name from a file for use in messages: quoted, escaped, truncated to `limit` characters."""
    text = str(name)
    return repr(text if len(text) <= limit else text[:limit] + "…")


def plain(name: str) -> str:
    """Return an operator name unchanged if it is a plain identifier; otherwise quoted, escaped and truncated."""
    return name if re.fullmatch(r"[A-Za-z0-9_.]{1,80}", str(name)) else short(name)


def operator_key(node: Any) -> str:
    """Key of a node's operator in the table of operators: its name, after its domain (`com.microsoft.Gelu`) if that is
    not the default one."""
    return str(node.op_type) if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def node_label(node: Any) -> str:
    """Operator and name of a node, for messages."""
    return f"{plain(node.op_type)} {short(node.name or next(iter(node.output), ''))}"


__all__ = ["MICROSOFT", "node_label", "operator_key", "plain", "short"]
