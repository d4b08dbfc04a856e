"""Strip-wise verification of outputs that are too large for a float64 reference of the whole.

The program runs once on complete inputs. Its outputs are compared with references of slices (strips) along one axis,
each computed from the slices of the inputs that it depends on. The first, the last and LEAST random strips are always
compared, all others while time is left; the verdict gives the fraction of elements compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..backends.runtime.marshalling import array_of, is_torch
from ..backends.verification import inputs as drawing
from ..backends.verification.compare import Worst
from ..egraph.ir import dtypes
from ..egraph.ir.dims import concrete
from ..egraph.ir.graph import Graph, Tensor, load_data
from ..egraph.ir.interpret import evaluate
from ..egraph.ir.strips import Axes, axes_of, stretch
from ..errors import VerificationError
from .comparison import Array, OutputError, Tolerance, Verification, compare_output, of_all

PIECE = 1 << 22  # maximum elements of a strip
LEAST = 6  # random strips of each output that are compared even without remaining time, besides the first and last


def strips_of(graph: Graph) -> list[Axes] | None:
    """Per root: the axis along which it can be computed in strips; None if a root cannot."""
    found = []
    for root in graph.roots:
        if (axes := axes_of(root)) is None:
            return None
        found.append(axes)
    return found


def verify_strips(
    graph: Graph,
    run: Callable[[Mapping[str, Any]], Sequence[Any]],
    cuts: Sequence[Axes],
    *,
    tolerance: Tolerance,
    seed: int,
    enough: Callable[[], bool],
    poll: Callable[[], object],
) -> Verification:
    """Compare `run` with the graph on one random input, strip by strip until `enough()`; see `verify`.

    VerificationError if the program writes to its inputs, which are not copied for it.
    """
    rng = np.random.default_rng((seed, 0))
    inputs = drawing.inputs(graph, rng)
    before = _fingerprint(inputs)
    found = [array_of(y) if is_torch(y) else np.asarray(y) for y in run(inputs)]
    if _fingerprint(inputs) != before:
        raise VerificationError("the program writes to its inputs", hint="report this with the model")
    names = [*graph.names, *(f"update of {u}" for u in graph.updates)]
    roots = [
        _Root(name, root, axes, y, rng, tolerance)
        for name, root, axes, y in zip(names, graph.roots, cuts, found, strict=True)
    ]
    turns = max(len(r.todo) for r in roots)
    for turn in range(turns):
        if turn >= LEAST + 2 and enough():
            break
        for root in roots:
            root.compare(turn, graph, inputs, poll)
    compared = min(r.compared for r in roots)
    how = "all elements" if compared == 1 else f"{100 * compared:.3g} % of the elements of each output"
    note = f"one input, {how} compared, in strips of up to {max(r.count for r in roots)} places"
    return Verification(tuple(r.error() for r in roots), 1, tolerance, note, compared=compared)


def _fingerprint(arrays: Mapping[str, Array]) -> list[int]:
    """Checksum of each array: sum of its bytes as 64-bit words."""
    flat = [a.reshape(-1).view(np.uint8) for a in arrays.values()]
    return [int(np.add.reduce(f[: f.size // 8 * 8].view(np.uint64))) + int(f[f.size // 8 * 8 :].sum()) for f in flat]


@dataclass
class _Root:
    """One output under comparison, and the errors of the strips so far."""

    name: str
    root: Tensor
    axes: Axes
    value: Array
    rng: np.random.Generator
    tolerance: Tolerance
    errors: list[OutputError] = field(default_factory=list)  # one per strip
    places: int = 0  # number of compared indices of the strip axis

    def __post_init__(self) -> None:
        shape = concrete(self.root.shape)
        self.count = max(1, min(self.axes.size, PIECE * self.axes.size // max(1, int(np.prod(shape)))))
        starts = range(0, self.axes.size, self.count)
        inner = self.rng.permutation(starts[1:-1]).tolist()
        self.todo: list[int] = list(dict.fromkeys([starts[0], starts[-1], *inner]))
        self.strip = self.axes.strip(self.count)
        self.fits = self.value.shape == shape

    @property
    def compared(self) -> float:
        """Fraction of the elements that were compared."""
        return self.places / self.axes.size

    def compare(self, turn: int, graph: Graph, inputs: Mapping[str, Array], poll: Callable[[], object]) -> None:
        """Compare strip number `turn`, if there is one."""
        if turn >= len(self.todo) or not self.fits:
            return
        start = self.todo[turn]
        stop = min(start + self.count, self.axes.size)
        strip = self.strip if stop - start == self.count else self.axes.strip(stop - start)
        values = dict(inputs)
        for name, (leaf, axis) in strip.reads.items():
            values[name] = stretch(_data(leaf, graph, inputs), axis, start, stop)
        with np.errstate(all="ignore"):
            (wide,) = evaluate([strip.term], values, params=graph.params, float64=True, poll=poll)
            (own,) = evaluate([strip.term], values, params=graph.params, poll=poll)
        y = stretch(self.value, self.axes.axis, start, stop)
        self.places += stop - start
        self.errors.append(compare_output(self.name, self.root.dtype, y, wide, own, self.tolerance))

    def error(self) -> OutputError:
        """The output's error: that of its worst strip."""
        if not self.fits:
            shape, discrete = tuple(self.value.shape), not dtypes.is_float(self.root.dtype)
            where = Worst(where=f"its shape is {shape}, not {concrete(self.root.shape)}")
            return OutputError(self.name, float("inf"), 0.0, 0.0, False, discrete=discrete, worst=where)
        return of_all(self.errors)


def _data(leaf: Tensor, graph: Graph, inputs: Mapping[str, Array]) -> Array:
    """The whole array of a leaf."""
    if leaf.op == "constant":
        assert leaf.data is not None
        return leaf.data
    name = leaf.attr("name")
    return load_data(graph.params[name]) if leaf.op == "param" else inputs[name]


__all__ = ["LEAST", "strips_of", "verify_strips"]
