"""Finds the operators of a traced graph that have effects besides their results and written arguments."""

from __future__ import annotations

from typing import Any

#: Namespaces of operators that communicate with other processes: each call waits for a call there.
COLLECTIVE = ("c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem")


def effects(module: Any) -> str:
    """Name of the first operator of a graph module that has an effect, which a repeated call would repeat: a
    collective, or an operator with registered effects. "" if there is none."""
    for node in module.graph.nodes:
        if node.op == "call_function":
            space = getattr(node.target, "namespace", "")
            if space in COLLECTIVE or str(node.target) == "with_effects":
                return str(node.target)
    return ""


__all__ = ["COLLECTIVE", "effects"]
