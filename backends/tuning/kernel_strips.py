"""Computes strips of a kernel's outputs, which are checked instead of whole outputs if the float64 reference would take
much longer than the kernel.

A product of one row with a matrix of 10^8 packed numbers takes milliseconds; its float64 reference takes seconds and
gigabytes. The whole program that uses the kernel is verified later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...egraph.evaluate.interpret import evaluate
from ...egraph.evaluate.strips import StripAxes, axes_of, interval_view
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor, topological
from ...egraph.types import dtypes
from ..verification.rounding_noise import RoundingSensitivity

Array = np.ndarray[Any, Any]
LARGE = 1 << 25  # elements of the largest operand from which strips are compared
STRIPS = 8  # of an output: the first and the last one, the others at random
READ = 1 << 22  # elements of the largest operand that the strips of an output read together, about


@dataclass(frozen=True)
class KernelStrip:
    """A slice to be compared: indices `start` to `stop` of an axis of output number `output`.

    `axes`: that axis, and those of the operands that it corresponds to. `params`: all operands by name, as they are
    stored; slices of them are converted to the dtypes of the terms' leaves. `whole`: operands that every strip reads as
    a whole, converted.
    """

    output: int
    axes: StripAxes
    start: int
    stop: int
    params: Mapping[str, Array]
    whole: Mapping[str, Array]

    def of(self, value: Array) -> Array:
        """The part of a whole output that the strip selects."""
        found: Array = interval_view(value, self.axes.axis, self.start, self.stop)
        return found

    def reference(self) -> tuple[Array, RoundingSensitivity]:
        """Compute the strip in float64; returns (its values, its sensitivity to rounding)."""
        strip = self.axes.strip(self.stop - self.start)
        values = {
            name: _declared(interval_view(self.params[str(leaf.attr("name"))], axis, self.start, self.stop), leaf)
            for name, (leaf, axis) in strip.reads.items()
        }
        graph = Graph.of([strip.term], params=self.whole)
        return evaluate(graph, values, float64=True)[0], RoundingSensitivity(graph, values)


def strips_of(roots: Sequence[Tensor], params: Mapping[str, Array]) -> list[KernelStrip] | None:
    """Choose strips of each output to compare; None if no operand is large (whole outputs are then compared), or some
    output cannot be divided.

    `roots`: the terms that the kernel computes. `params`: operands by name, in any float dtypes; a large one is never
    converted as a whole.
    """
    largest = max((a.size for a in params.values()), default=0)
    cuts = [axes_of(root) for root in roots] if largest >= LARGE else [None]
    if any(axes is None or max(_sliced(axes, params)) < largest for axes in cuts):
        return None
    return [s for k, axes in enumerate(cuts) if axes is not None for s in _strips(k, axes, largest, params)]


def _sliced(axes: StripAxes, params: Mapping[str, Array]) -> list[int]:
    """Sizes (elements) of the operands of which a strip reads only a part, after a 0, so that they have a maximum."""
    return [0, *(params[str(leaf.attr("name"))].size for leaf, _ in axes.strip(1).reads.values())]


def _strips(output: int, axes: StripAxes, largest: int, params: Mapping[str, Array]) -> Iterator[KernelStrip]:
    count = max(1, axes.size * READ // (largest * STRIPS))
    last = axes.size - count
    whole = {str(n.attr("name")): n for n in topological([axes.strip(1).term]) if n.op == "param"}
    converted = {name: _declared(params[name], leaf) for name, leaf in whole.items()}
    starts = [0, last, *np.random.default_rng(0).integers(0, last + 1, STRIPS - 2).tolist()]
    for start in dict.fromkeys(starts):
        yield KernelStrip(output, axes, start, start + count, params, converted)


def _declared(array: Array, leaf: Tensor) -> Array:
    """An operand, or a slice of it, in the dtype of the terms' leaf, which differs from that in memory where storage
    dtypes are mixed."""
    return array.astype(dtypes.numpy_dtype(leaf.dtype), copy=False)


__all__ = ["KernelStrip", "strips_of"]
