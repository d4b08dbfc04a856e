"""Makes Triton functions for free sizes: sizes are integer parameters without specialization, so that a new size needs
no compilation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ....egraph.types.dims import DimExpr
from ...generate.size_fit import Fitted, LimitedFit

_WORD = re.compile(r"[A-Za-z_]\w*")
_HEAD = re.compile(r"@triton\.jit\ndef (\w+)\(([^)]*)\):")
#: Function -> index of its first argument that must be a constant.
_CONSTANTS = {
    "arange": 0, "zeros": 0, "full": 0, "static_range": 0, "reshape": 1, "broadcast_to": 1, "view": 1,
}  # fmt: skip


def sized_launch(launch: Any, statement: str) -> str:
    """Insert `SIZES_<kernel name>`, a placeholder for the size arguments, after the arguments of the launch
    `statement`; returns the statement."""
    pattern = rf"^({launch.name}\[.*)(, num_warps=\d+, num_stages=\d+)"
    return re.sub(pattern, rf"\1SIZES_{launch.name}\2", statement, flags=re.MULTILINE)


def with_sizes(text: Any, name: str, sizes: Sequence[str], prefix: str) -> tuple[str, list[str]] | None:
    """Add an integer parameter, called `prefix` + size, to the kernel function `name` for each of `sizes` that occurs
    in `text`. Returns (kernel text, the sizes that occur).

    None if a size is used where Triton needs a constant (in the shape of a tile, or as a keyword argument), or if the
    text has several functions.
    """
    found = str(text.spelled(lambda value: _spelled(value, prefix)))
    used = [n for n in sizes if re.search(rf"\b{prefix}{n}\b", found)]
    if not used:
        return found, []
    head = _HEAD.search(found)
    if head is None or len(_HEAD.findall(found)) > 1 or any(_constants(found, prefix)):
        return None
    own = [f"{prefix}{n}" for n in used]
    unspecialized = ", ".join(f'"{n}"' for n in own)
    parameters = ", ".join([head[2], *own])
    new = f"@triton.jit(do_not_specialize=[{unspecialized}])\ndef {head[1]}({parameters}):"
    return found[: head.start()] + new + found[head.end() :], used


def _spelled(value: Fitted, prefix: str) -> str:
    if isinstance(value, LimitedFit):
        return f"tl.{value.op}imum({_spelled(value.value, prefix)}, {value.limit})"
    return f"({_WORD.sub(lambda m: prefix + m[0], str(value))})" if isinstance(value, DimExpr) else str(value)


def _constants(text: str, prefix: str) -> Iterator[bool]:
    """For each use of a size: whether Triton needs a constant there."""

    def walk(node: ast.AST, constant: bool) -> Iterator[bool]:
        if isinstance(node, ast.Name) and node.id.startswith(prefix):
            yield constant
        first = _first_constant(node)
        for child in ast.iter_child_nodes(node):
            place = node.args.index(child) if isinstance(node, ast.Call) and child in node.args else -1
            fixed = isinstance(child, ast.Tuple | ast.List) or 0 <= first <= place
            fixed |= isinstance(child, ast.keyword) and child.arg not in ("mask", "other")
            yield from walk(child, constant or fixed)

    yield from walk(ast.parse(text), constant=False)


def _first_constant(node: ast.AST) -> int:
    """Index of the first argument that must be a constant, if a node is a call that has one; else -1."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
        return -1
    return _CONSTANTS.get(node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id, -1)


__all__ = ["sized_launch", "with_sizes"]
