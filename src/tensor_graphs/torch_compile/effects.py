"""Finds what keeps programs from replacing a graph: operators that have effects besides their results and written
arguments, and arguments whose memory is managed elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: Namespaces of operators that communicate with other processes: each call waits for a call there.
COLLECTIVE = ("c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem")

#: Operators whose only effect is that they raise an error: that a matrix has no inverse, for example.
CHECKS = ("aten._linalg_check_errors.default",)


def effects(module: Any) -> str:
    """Name of the first operator of a graph module that has an effect, which a repeated call would repeat: a
    collective, or an operator with registered effects. "" if there is none."""
    for node in module.graph.nodes:
        if node.op == "call_function":
            space = getattr(node.target, "namespace", "")
            inner = node.args[1] if str(node.target) == "with_effects" else None
            if space in COLLECTIVE or (inner is not None and str(inner) not in CHECKS):
                return str(inner or node.target)
    return ""


def flat_parameter(args: Sequence[Any]) -> bool:
    """Whether an argument of a call is part of a flat parameter of `FullyShardedDataParallel`, whose memory is freed
    and allocated again between calls: the arrays of it that programs read would forbid that."""
    return any(getattr(getattr(x, "_base", None), "_is_flat_param", False) for x in args)


__all__ = ["COLLECTIVE", "effects", "flat_parameter"]
