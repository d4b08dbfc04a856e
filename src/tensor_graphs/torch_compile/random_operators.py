"""Moves random operators of a traced graph before its programs, which then need not be split where one occurs.

Random operators run eagerly, in the order of the graph, and draw the numbers that eager calls draw. Of dropout's
operand they need only shape, dtype and memory layout: they get an uninitialized tensor of these, run before the
programs, and their results (masks, noise) are inputs of the programs of both passes. Nothing random is in a program.
AOTAutograd's partition of a training graph merges equal calls of those random operators that it does not know, as of
`randn_like`, which would give equal noise: `partition` keeps all calls.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
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
        if value is None or str(value.layout) != "torch.strided" or not _known(value) or returns_operand(node):
            continue
        if name == DROPOUT:
            _draw_mask(module.graph, node, like)
        else:
            node.replace_input_with(like, _uninitialized(module.graph, node, value, value.dtype))
    module.graph.eliminate_dead_code()


def returns_operand(node: Any) -> bool:
    """Whether an operator is dropout of a tensor without elements, which gives the tensor itself and not a new one."""
    value = node.args[0].meta.get("val") if str(node.target) == DROPOUT else None
    return value is not None and any(type(n) is int and n == 0 for n in value.shape)


def may_draw(node: Any) -> bool:
    """Whether an operator may draw random numbers: those of PyTorch that say so, all custom and higher-order ones."""
    import torch

    if isinstance(node.target, torch._ops.OpOverload):
        return torch.Tag.nondeterministic_seeded in node.target.tags or node.target.namespace not in ("aten", "prims")
    return isinstance(node.target, torch._ops.HigherOrderOperator)


def partition(joint: Any, inputs: Sequence[Any], **named: Any) -> tuple[Any, Any]:
    """Forward and backward graph of a joint graph: AOTAutograd's partition with the smallest saved activations.

    Its merging of equal operators is left out in graphs with random operators that it would merge.
    """
    from torch._functorch import compile_utils, config
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    known = compile_utils.rand_ops
    drawn = [n for n in joint.graph.nodes if n.op == "call_function" and may_draw(n)]
    merged = any(compile_utils.get_aten_target(n) not in known for n in drawn)
    with config.patch(cse=config.cse and not merged):
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **named)
        return forward, backward


def _drops(node: Any) -> bool:
    """Whether a call of dropout draws a mask."""
    _, probability, *rest = node.args
    return rest == [True] and bool(0.0 < probability < 1.0)


def _known(value: Any) -> bool:
    return all(type(n) is int for n in (*value.shape, *value.stride()))


def _uninitialized(graph: Any, before: Any, value: Any, dtype: Any) -> Any:
    """Insert a node before `before`: an uninitialized tensor with a traced value's sizes, strides and device."""
    import torch

    size, stride = list(value.shape), list(value.stride())
    with graph.inserting_before(before):
        more = {"dtype": dtype, "device": value.device}
        made = graph.call_function(torch.ops.aten.empty_strided.default, (size, stride), more)
    made.meta = {"val": value.new_empty_strided(size, stride, dtype=dtype)}
    return made


def _draw_mask(graph: Any, node: Any, x: Any) -> None:
    """Compute a dropout of x from a mask that is drawn without x, as ATen does: x * mask / (1 - probability).

    On a CPU the mask is all that ATen draws, in the order of memory, which `bernoulli` takes to be contiguous. Else the
    numbers are those of the operator itself, whose other result is not used.
    """
    import torch

    value, aten, kept = x.meta["val"], torch.ops.aten, 1.0 - node.args[1]
    if value.device.type == "cpu" and value.is_contiguous():
        room = _uninitialized(graph, node, value, torch.bool)
        with graph.inserting_before(node):
            mask = graph.call_function(aten.bernoulli.p, (room, kept))
    else:
        node.replace_input_with(x, _uninitialized(graph, node, value, value.dtype))
        with graph.inserting_before(node.next):
            mask = graph.call_function(operator.getitem, (node, 1))
    with graph.inserting_before((node if mask.target is not operator.getitem else mask).next):
        cast = graph.call_function(aten._to_copy.default, (mask,), {"dtype": value.dtype})
        product = graph.call_function(aten.mul.Tensor, (x, cast))
        scaled = graph.call_function(aten.mul.Tensor, (product, 1.0 / kept))
    mask.meta = {"val": node.meta["val"][1]}
    for made in (cast, product, scaled):
        made.meta = {"val": value.new_empty_strided(value.shape, value.stride())}
    for user in [u for u in node.users if u is not mask]:
        user.replace_all_uses_with((scaled, mask)[user.args[1]])
        graph.erase_node(user)


__all__ = ["draw_first", "may_draw", "partition", "returns_operand"]
