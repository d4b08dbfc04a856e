"""Finds elements whose value depends on the order of summation in a sum that overflows.

A sum of large terms of both signs is +inf, -inf, NaN or finite in the graph's own dtypes, depending on which partial
sums overflow: different libraries give different results for the same product of matrices. The elements are found by
runs in the graph's dtypes, in each of which every such sum is replaced by one of its possible results. Sums of terms of
one sign, and overflow in other operations, do not depend on an order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...egraph.evaluate.interpret import evaluate
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from .compare import LARGEST, module_of, wide
from .rounding_noise import Compute, of_tensors

SUMS = ("sum", "cumsum", "matmul", "conv")  # atomic ops that add up products of their operands' elements
RUNS = 8


def changed_by_order(
    graph: Graph, values: Mapping[str, Any], own: Sequence[Any], *, device: str = "",
    kept: dict[str, Any] | None = None, poll: Callable[[], object] = lambda: None,
) -> list[Any]:  # fmt: skip
    """For each output, a bool array or tensor: the elements whose value may differ from `own` if overflowing sums are
    taken in another order.

    `values`: inputs and states by name. `own`: outputs of a run in the graph's dtypes. `device`: Torch device of the
    runs; "": the host. `kept`: params already on the device, by name; newly copied ones are added. `poll` is called
    between operations and may raise to interrupt a run.
    """
    found = [module_of(o).zeros_like(o == o) for o in own]
    for number in range(RUNS):
        around = _AnyOrder(number, of_tensors(number, device) if device else np.random.default_rng(number).random)
        with np.errstate(all="ignore"):
            if device:
                from .torch_reference import evaluate_tensors

                run = evaluate_tensors(graph, values, device, poll=poll, kept=kept, around=around)
            else:
                run = evaluate(graph, values, poll=poll, around=around)
        if not around.overflows:
            break
        for k, (a, b, root) in enumerate(zip(own, run, graph.roots, strict=True)):
            found[k] = found[k] | (_class_differs(a, b) if dtypes.is_float(root.dtype) else a != b)
    return found


def _class_differs(a: Any, b: Any) -> Any:
    """Mask of the elements in which two arrays are not both NaN, the same infinity, or both finite."""
    xp = module_of(a)
    finite = xp.isfinite(a) & xp.isfinite(b)
    return ~(finite | (a == b) | (xp.isnan(a) & xp.isnan(b)))


@dataclass
class _AnyOrder:
    """Evaluator of a node that replaces elements of overflowing sums by one of their possible results: by +inf, -inf
    and NaN everywhere in the first three runs, by a random one of them later. `random`: function from a shape to
    uniform numbers in [0, 1). `overflows`: whether there was such an element."""

    number: int
    random: Callable[[Any], Any]
    overflows: bool = False

    def __call__(self, node: Tensor, operands: Sequence[Any], compute: Compute) -> Any:
        """The node's value as `compute` gives it, except for elements whose overflow depends on the order of a sum:
        each such element becomes one of its possible results (see the class)."""
        value = compute(operands)
        if node.op not in SUMS or not dtypes.is_float(node.dtype):
            return value
        xp = module_of(value)
        if bool(xp.isfinite(value).all()):
            return value
        exact = wide(compute([wide(x) for x in operands]))
        size = wide(compute([abs(wide(x)) for x in operands]))
        above, below = (size + exact) / 2 > LARGEST[node.dtype], (size - exact) / 2 > LARGEST[node.dtype]
        free = above & below & xp.isfinite(size)  # both signs overflow: any result
        if not bool(free.any()):
            return value
        self.overflows = True
        draw = self.random(value.shape) if self.number > 2 else (self.number + 0.5) / 3 + xp.zeros_like(exact)
        infinity = xp.full_like(exact, np.inf)
        other = xp.where(draw < 1 / 3, infinity, xp.where(draw < 2 / 3, -infinity, infinity - infinity))
        other = other.astype(value.dtype) if xp is np else other.to(value.dtype)
        return xp.where(free, other, value)


__all__ = ["changed_by_order"]
