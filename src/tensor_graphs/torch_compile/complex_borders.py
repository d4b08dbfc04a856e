"""Splits the complex values that enter and leave programs into real and imaginary parts, as programs have no complex
inputs and results. What splits the inputs and joins the results runs eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

#: Why the operators at the border stay eager.
BORDER = "it joins or splits a complex value of a program"
#: Rounds of looking for operators that can be imported once their operands are split.
ROUNDS = 4

Probe = Callable[[Any], Mapping[Any, str]]


def with_real_borders(module: Any, probe: Probe) -> dict[Any, str]:
    """Reasons of the operators of a traced graph module that stay eager, which `probe` finds.

    Changes the graph if values are complex: one that an operator gets that can be imported, from elsewhere, is split
    and joined again before it, and one that leaves such operators is split behind them and joined again.
    """
    reasons, borders, split = dict(probe(module)), dict[Any, Any](), set[Any]()  # borders: joined value -> value
    for _ in range(ROUNDS if any(map(_complex, module.graph.nodes)) else 0):
        outside = {n for n in module.graph.nodes if _complex(n) and _outside(n, reasons)} - split
        # operators over values that are not split yet may be importable once these are split
        if not (new := [n for n in outside if outside.isdisjoint(n.all_input_nodes)]):
            break
        for node in new:
            pair = _split(node, list(node.users))
            borders[pair[-1]] = node
            split |= {node, *pair}
        reasons = dict(probe(module)) | {n: BORDER for joined in borders for n in _splitting(joined)}
    _remove_unused(module, borders, reasons)
    for node in [n for n in module.graph.nodes if _complex(n) and not _outside(n, reasons)]:
        if outer := [u for u in node.users if _outside(u, reasons)]:
            reasons[_split(node, outer)[-1]] = BORDER
    return reasons


def split_between(parts: Sequence[list[Any]]) -> None:
    """Split the complex values that one part, the nodes of a future program, has from another one; the nodes for that
    join the parts."""
    owner = {node: part for part in parts for node in part}
    for node, part in list(owner.items()):
        if not _complex(node):
            continue
        for other in parts:
            users = [u for u in node.users if owner.get(u) is other]
            if other is not part and users:
                *before, joined = _split(node, users)
                part += before
                other.append(joined)


def _complex(node: Any) -> bool:
    value = node.meta.get("val")
    return hasattr(value, "is_complex") and bool(value.is_complex()) and str(value.layout) == "torch.strided"


def _outside(node: Any, reasons: Mapping[Any, str]) -> bool:
    return node.op != "call_function" or node in reasons


def _split(node: Any, users: Iterable[Any]) -> list[Any]:
    """Insert behind a complex value what resolves its conjugation, views it as real numbers, and joins these;
    `users` take the joined value. Returns the three nodes."""
    import torch

    aten, found, value = torch.ops.aten, [node], node.meta["val"]
    for operator in (aten.resolve_conj.default, aten.view_as_real.default, aten.view_as_complex.default):
        with node.graph.inserting_after(found[-1]):
            found.append(node.graph.call_function(operator, (found[-1],)))
        value = operator(value)
        found[-1].meta = {"val": value}
    for user in users:
        user.replace_input_with(node, found[-1])
    return found[1:]


def _splitting(joined: Any) -> list[Any]:
    real = joined.args[0]
    return [real, real.args[0]]


def _remove_unused(module: Any, borders: Mapping[Any, Any], reasons: dict[Any, str]) -> None:
    """Remove the splits of values that only operators outside of programs take."""
    for joined, node in borders.items():
        for user in [u for u in joined.users if _outside(u, reasons)]:
            user.replace_input_with(joined, node)
        if not joined.users:
            for left in (joined, *_splitting(joined)):
                reasons.pop(left, None)
                module.graph.erase_node(left)


__all__ = ["BORDER", "split_between", "with_real_borders"]
