"""Makes random operators of a traced graph independent of its values, so that they do not divide its programs.

Random operators run eagerly, in the order of the graph, and draw the numbers that eager calls draw. Of dropout's
operand they need only shape, dtype and memory layout: they get an uninitialized tensor of these, run before the
programs, and their results (masks, noise) are inputs of the programs of both passes. Nothing random is in a program.
"""

from __future__ import annotations

import operator
from typing import Any

#: Random operators that read only shape, dtype and memory layout of their first operand.
DRAWN_LIKE = frozenset(f"aten.{name}" for name in (
    "bernoulli.p", "cauchy.default", "exponential.default", "geometric.default", "log_normal.default",
    "normal_functional.default", "rand_like.default", "randint_like.default", "randint_like.low_dtype",
    "randn_like.default", "random.default", "random.from", "random.to", "uniform.default",
))  # fmt: skip
DROPOUT = "aten.native_dropout.default"


def draw_first(module: Any) -> None:
    """Change random operators of a traced graph module, which has a graph of its own, so that they do not depend on
    values. Those of tensors whose sizes are free stay as they are."""
    for node in list(module.graph.nodes):
        name = str(node.target)
        if node.op != "call_function" or not (name in DRAWN_LIKE or (name == DROPOUT and _drops(node))):
            continue
        like = node.args[0]
        value = like.meta.get("val")
        if value is None or str(value.layout) != "torch.strided" or not _known(value):
            continue
        room = _uninitialized(module.graph, node, value)
        if name == DROPOUT:
            _mask_only(module.graph, node, like)
        node.replace_input_with(like, room)
    module.graph.eliminate_dead_code()


def _drops(node: Any) -> bool:
    """Whether a call of dropout draws a mask."""
    _, probability, *rest = node.args
    return rest == [True] and bool(0.0 < probability < 1.0)


def _known(value: Any) -> bool:
    return all(type(n) is int for n in (*value.shape, *value.stride()))


def _uninitialized(graph: Any, before: Any, value: Any) -> Any:
    """A new node, before another one: a tensor like a traced value, of undefined elements."""
    import torch

    size, stride = list(value.shape), list(value.stride())
    with graph.inserting_before(before):
        more = {"dtype": value.dtype, "device": value.device}
        made = graph.call_function(torch.ops.aten.empty_strided.default, (size, stride), more)
    made.meta = {"val": value.new_empty_strided(size, stride)}
    return made


def _mask_only(graph: Any, node: Any, x: Any) -> None:
    """Compute a dropout's result from its mask, as ATen does: x * mask / (1 - probability)."""
    import torch

    value, aten = x.meta["val"], torch.ops.aten
    with graph.inserting_before(node.next):
        mask = graph.call_function(operator.getitem, (node, 1))
        kept = graph.call_function(aten._to_copy.default, (mask,), {"dtype": value.dtype})
        product = graph.call_function(aten.mul.Tensor, (x, kept))
        scaled = graph.call_function(aten.mul.Tensor, (product, 1.0 / (1.0 - node.args[1])))
    mask.meta = {"val": node.meta["val"][1]}
    for made in (kept, product, scaled):
        made.meta = {"val": value.new_empty_strided(value.shape, value.stride())}
    for user in [u for u in node.users if u is not mask]:
        user.replace_all_uses_with((scaled, mask)[user.args[1]])
        graph.erase_node(user)


__all__ = ["draw_first"]
