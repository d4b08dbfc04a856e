"""Finds the indices that a part of a traced graph reads or writes at, so that calls with indices outside of an axis run
eagerly: eager operators raise errors for them, while programs take the element at the end of the axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .partition import tensors_of


class IndexArguments(NamedTuple):
    """How an operator takes indices: positions among its arguments of the operand, of its axis (None: the first one)
    and of the indices; whether negative ones count from the end; the position of a value that is no index."""

    operand: int
    axis: int | None
    indices: int
    negative: bool = False
    ignored: int | None = None


_ALONG = IndexArguments(0, 1, 2)
_LOSS = IndexArguments(0, None, 1, ignored=4)
READS: dict[str, IndexArguments] = {
    "embedding.default": IndexArguments(0, None, 1), "_embedding_bag.default": IndexArguments(0, None, 1), "_embedding_bag_forward_only.default": IndexArguments(0, None, 1),
    "index_fill.int_Scalar": IndexArguments(0, 1, 2, True), "index_fill.int_Tensor": IndexArguments(0, 1, 2, True),
    "nll_loss_forward.default": _LOSS, "nll_loss2d_forward.default": _LOSS,
    **dict.fromkeys(("index_select.default", "gather.default", "index_add.default", "index_copy.default", "scatter.src", "scatter.value",
                     "scatter.reduce", "scatter.value_reduce", "scatter_add.default", "scatter_reduce.two"), _ALONG),
}  # fmt: skip
#: Operators with a list of indices, one for each axis; None for an axis that is taken whole.
LISTS = ("index.Tensor", "index_put.default")
#: Operators whose results have some of their operand's values.
VIEWS = frozenset((
    "_to_copy", "_unsafe_view", "alias", "clone", "detach", "expand", "flatten", "permute", "reshape", "select", "slice", "squeeze", "t",
    "transpose", "unsqueeze", "view",
))  # fmt: skip
#: Operators of integers, at most, that compute indices which are checked.
MOST = 12


class IndexBounds(NamedTuple):
    """Valid indices: `low` <= index < `high`, and `ignored` if it is not None."""

    low: int
    high: int
    ignored: int | None


def outside_of(module: Any) -> Callable[[Sequence[Any]], bool] | None:
    """Function of the arguments of a part, whose graph module is `module`: whether an index is outside of the axis that
    an operator of the part indexes with it. None if the part has no indices that are checked.

    Checked are indices on a CPU that are arguments, views of these, or computed from integers in few operators. On a
    GPU the host would wait for their values.
    """
    found: dict[Any, set[IndexBounds]] = {}
    for node in [n for n in module.graph.nodes if n.op == "call_function"]:
        for indices, bounds in _reads(node):
            if (base := _without_views(indices)) is not None:
                found.setdefault(base, set()).add(bounds)
    if not found:
        return None
    computed = _computing(module, list(found))
    rows = [tuple(bounds) for bounds in found.values()]

    def outside(args: Sequence[Any]) -> bool:
        return any(_exceeds(x, b) for x, bounds in zip(computed(*args), rows, strict=True) for b in bounds)

    return outside


def _exceeds(x: Any, bounds: IndexBounds) -> bool:
    """Whether an integer tensor has elements outside of the bounds."""
    if not x.numel():
        return False
    low, high = x.aminmax()
    if low.item() >= bounds.low and high.item() < bounds.high:
        return False
    if bounds.ignored is None:
        return True
    return bool((((x < bounds.low) | (x >= bounds.high)) & (x != bounds.ignored)).any())


def _reads(node: Any) -> list[tuple[Any, IndexBounds]]:
    """Indices that an operator takes, with their bounds."""
    name = str(node.target).removeprefix("aten.")
    operand = node.args[0].meta.get("val") if node.args and hasattr(node.args[0], "meta") else None
    if operand is None or not hasattr(operand, "shape") or operand.device.type != "cpu":
        return []
    taken: list[tuple[Any, int, bool, int | None]] = []
    if name in LISTS:
        taken = [(x, axis, True, None) for axis, x in enumerate(node.args[1]) if x is not None]
    elif row := READS.get(name):
        given = [node.args[i] if i is not None and i < len(node.args) else None for i in row[1:3]]
        axis = given[0] if row.axis is not None else 1 if row.ignored is not None and len(operand.shape) > 1 else 0
        ignored = node.args[row.ignored] if row.ignored is not None and row.ignored < len(node.args) else None
        if isinstance(axis, int):
            taken = [(given[1], axis, row.negative, ignored)]
    found = []
    for indices, axis, negative, ignored in taken:
        size = operand.shape[axis] if operand.shape else 1
        if _whole(indices) and isinstance(size, int):
            found.append((indices, IndexBounds(-size if negative else 0, size, ignored)))
    return found


def _whole(node: Any) -> bool:
    """Whether a node is a tensor of integers."""
    value = getattr(node, "meta", {}).get("val")
    kind = str(getattr(value, "dtype", "")).removeprefix("torch.")
    return kind in ("uint8", "int8", "int16", "int32", "int64")


def _without_views(node: Any) -> Any:
    """The value that a node is a view or a copy of; None if it is not computed from integer arguments in few
    operators."""
    while node.op == "call_function" and _name(node) in VIEWS and _whole(node.args[0]):
        node = node.args[0]
    inner, todo, arguments = set[Any](), [node], False
    while todo:
        one = todo.pop()
        if one.op == "placeholder":
            arguments = True
        if one.op == "call_function" and one not in inner:
            if len(inner) == MOST or not _plain(one):
                return None
            inner.add(one)
            todo += one.all_input_nodes
    return node if arguments else None


def _plain(node: Any) -> bool:
    """Whether a node is an operator of PyTorch that draws no random numbers, on integers or truth values."""
    import torch

    if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace != "aten":
        return False
    values = [v for n in (node, *node.all_input_nodes) for v in tensors_of(n.meta.get("val"))]
    kinds = all(v.dtype == torch.bool or not (v.dtype.is_floating_point or v.dtype.is_complex) for v in values)
    return kinds and torch.Tag.nondeterministic_seeded not in node.target.tags


def _name(node: Any) -> str:
    return str(node.target).removeprefix("aten.").partition(".")[0]


def _computing(module: Any, values: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """Function of a graph module's arguments that computes some of its values."""
    import torch

    graph, copies = torch.fx.Graph(), dict[Any, Any]()
    wanted, todo = set[Any](), list(values)
    while todo:
        if (one := todo.pop()) not in wanted:
            wanted.add(one)
            todo += one.all_input_nodes
    for node in module.graph.nodes:
        if node.op == "placeholder" or node in wanted:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[v] for v in values))
    return torch.fx.GraphModule(module, graph).forward  # type: ignore[no-any-return]


__all__ = ["outside_of"]
