"""Determines the order of the axes of traced tensors in memory, and brings tensors into that order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def axis_order(value: Any) -> list[int] | None:
    """The axes of a traced tensor from the outermost to the innermost in memory; the tensor may have gaps, as a part of
    a fused projection. A dense tensor with this order has every view that the traced one has.

    None if the layout is row-major, for a sparse or expanded tensor, and for a value that is no tensor.
    """
    if not hasattr(value, "is_contiguous") or str(value.layout) != "torch.strided" or value.is_contiguous():
        return None
    strides = [s if isinstance(s, int) else s.node.hint or 0 for s in value.stride()]
    if any(not s for s, n in zip(strides, value.shape) if n != 1):
        return None
    order = sorted(range(value.dim()), key=lambda i: -strides[i])
    return None if order == sorted(order) else order


def arranged(x: Any, order: Sequence[int] | None) -> Any:
    """The tensor with its axes in the order `order` (outermost first) in memory, None for contiguous: `x` itself if it
    has that order, else a copy."""
    if order is None:
        return x if x.is_contiguous() else x.contiguous()
    moved = x.permute(order)
    return x if moved.is_contiguous() else moved.contiguous().permute([order.index(i) for i in range(len(order))])


class TracedLayouts:
    """Memory layouts that the placeholders of a graph module were traced with.

    Tensors that a forward program saves are contiguous, also where the traced ones were not. Operators that run eagerly
    must get the traced layout, because some views exist in that layout only.
    """

    def __init__(self, module: Any) -> None:
        orders = [axis_order(n.meta.get("val")) for n in module.graph.find_nodes(op="placeholder")]
        self._orders = [(i, order) for i, order in enumerate(orders) if order is not None]

    def of(self, args: Sequence[Any]) -> Sequence[Any]:
        """The arguments of a call, each in the memory layout that its placeholder was traced with."""
        if not self._orders:
            return args
        found = list(args)
        for i, order in self._orders:
            found[i] = arranged(found[i], order)
        return found


def copy_where_views_fail(module: Any) -> None:
    """Make reshapes of the views of a traced graph module: an eager operator may give a result another memory layout
    than it had when it was traced, as PyTorch's batch norm of transposed tensors does, in which the view does not
    exist."""
    import torch

    aten = torch.ops.aten
    for node in (found := module.graph.find_nodes(op="call_function", target=aten.view.default)):
        node.target = aten.reshape.default
    if found:
        module.recompile()


def sharing(values: Sequence[Any]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """How strided tensors share memory: for each storage that more than one of the `values` has, the positions of these
    values and their offsets in bytes, relative to the first one."""
    import torch

    groups: dict[int, list[tuple[int, int]]] = {}
    for i, x in enumerate(values):
        if isinstance(x, torch.Tensor) and x.layout == torch.strided:
            groups.setdefault(x.untyped_storage()._cdata, []).append((i, x.storage_offset() * x.element_size()))
    shared = [group for group in groups.values() if len(group) > 1]
    return tuple(tuple((i, at - group[0][1]) for i, at in group) for group in shared)


__all__ = ["TracedLayouts", "arranged", "axis_order", "copy_where_views_fail", "sharing"]
