"""Verifies outputs strip by strip that are too large for a float64 reference of the whole.

The program runs on complete inputs. Its outputs are compared with references of slices (strips) along one axis, each
computed from the slices of the inputs that it depends on. On an ordinary input the first, the last and MIN_STRIPS
random strips are always compared, unless they are expected to take longer than they may (`least_strips`), all others
while time is left; the verdict (whether outputs are within tolerance) gives the fraction of elements compared. Before
that, while time is left, FEW strips are compared on each of the further
kinds of inputs (special and nonpositive values) that whole outputs are compared on.

Outputs whose float64 reference would take far longer than a verification may are compared in strips as well, which are
then as short as that time demands (`partial_comparison.py`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..backends.runtime.marshalling import array_of, is_torch
from ..backends.verification import inputs as drawing
from ..backends.verification.compare import WorstError
from ..egraph.evaluate.interpret import evaluate
from ..egraph.evaluate.strips import StripAxes, axes_of, interval_view
from ..egraph.ir.graph import Graph
from ..egraph.ir.tensor import Tensor
from ..egraph.ir.weight_data import load_data
from ..egraph.types import dtypes
from ..egraph.types.dims import concrete
from .comparison import FACTORS, ODD, Array, OutputError, Tolerance, Verification, refuse_writes, worst_of_inputs
from .judge import Judge
from .memory_checks import eager_bytes, input_output_bytes, largest_value_bytes, refuse_more_than_available, run_bytes
from .partial_comparison import FAR_OVER, run_seconds, strip_seconds

PIECE = 1 << 22  # maximum elements of a strip
REPEATED = 2.0  # work of all strips of an output, as a multiple of that of the whole, up to which a large value is cut
MAX_STRIP_BYTES = 1 << 28  # of a strip's float64 reference with its intermediates, if a strip can be divided
#: Random strips of each output, besides the first and last, that are compared even if no time is left; fewer only where
#: they are expected to take longer than verification may (`least_strips`).
MIN_STRIPS = 6
LEAST = MIN_STRIPS + 2  # with the first and the last
FEW = 3  # strips of each output on a further input, or of expensive ones: the last, the first, a random one
FURTHER = (1, 2)  # further inputs, by their index (`drawing.inputs`)


def strips_of(graph: Graph) -> list[StripAxes] | None:
    """For each root of a graph the axis along which it can be computed in strips; None if some root cannot be."""
    found = []
    for root in graph.roots:
        if (axes := axes_of(root)) is None:
            return None
        found.append(axes)
    return found


def has_large_values(graph: Graph, bytes_: int) -> bool:
    """Whether inputs and outputs of a graph take more than `bytes_`, or one of its values does although strips of the
    outputs have small values only, and all strips together hardly more work than the whole."""
    if input_output_bytes(graph) > bytes_:
        return True
    if largest_value_bytes(graph) <= bytes_ or (cuts := strips_of(graph)) is None:
        return False
    places = [OutputStrips(graph, r, axes, np.random.default_rng(0)) for r, axes in zip(graph.roots, cuts)]
    return all(p.taken <= MAX_STRIP_BYTES and p.work <= REPEATED * eager_bytes(Graph.of(p.root)) for p in places)


def verify_strips(
    graph: Graph,
    run: Callable[[Mapping[str, Any]], Sequence[Any]],
    cuts: Sequence[StripAxes | None],
    *,
    tolerance: Tolerance,
    seed: int,
    enough: Callable[[], bool],
    poll: Callable[[], object],
    seeds: int | None = None,
    allowed_s: float = math.inf,
) -> Verification:
    """Compare `run` with the graph on up to three random inputs (`seeds`: at most so many), strip by strip until
    `enough()`; returns the verdict (whether outputs are within tolerance).

    `poll` is called before every operation of a reference run and may raise. `cuts`: axis of each output (`strips_of`),
    None for an output that is not compared: the verdict names it, in a warning, too. `allowed_s`: seconds within which
    LEAST strips of each output should be compared; after these no further strip is begun, once `least_strips` of each
    output are compared.
    The ordinary input comes last: it is the one that is compared whatever time is left, and whose compared fraction of
    elements the verdict gives.

    Raises VerificationError if the program writes to its inputs, which are not copied for it. Raises TooLargeError if
    inputs, outputs and the references of one strip exceed the available memory.
    """
    rng = np.random.default_rng((seed, 0))
    share = allowed_s / max(1, sum(axes is not None for axes in cuts)) / LEAST
    places = [
        None if axes is None else OutputStrips(graph, root, axes, rng, share)
        for root, axes in zip(graph.roots, cuts, strict=True)
    ]
    refuse_more_than_available(
        input_output_bytes(graph) + max((p.taken for p in places if p), default=0),
        "verification",
        graph,
        hint="verify=False leaves it out",
    )
    errors: list[list[OutputError]] = [[] for _ in places]
    inputs = 1
    for number in FURTHER[: None if seeds is None else seeds - 1]:
        if enough():
            break
        draw = np.random.default_rng((seed, number))
        for found, root in zip(errors, _compared(graph, run, places, draw, number, tolerance, FEW, 1, enough, poll)):
            found.append(root.error())
        inputs += 1
    until = time.monotonic() + allowed_s
    ended = lambda: enough() or time.monotonic() > until
    least = least_strips([p for p in places if p], allowed_s)
    roots = _compared(graph, run, places, rng, 0, tolerance, None, least, ended, poll)
    outputs = tuple(worst_of_inputs([*found, root.error()]) for found, root in zip(errors, roots))
    return _verdict(roots, outputs, inputs, tolerance)


def _verdict(
    roots: Sequence[_Root], outputs: tuple[OutputError, ...], inputs: int, tolerance: Tolerance
) -> Verification:
    """The verdict with the errors `outputs`. `roots`: the outputs on the ordinary input; `inputs`: number of inputs."""
    compared = min((r.compared for r in roots if r.places), default=0.0)
    how = "all elements" if compared == 1 else f"{100 * compared:.3g} % of the elements of each output"
    more = f", up to {FEW} strips of each on {inputs - 1} more" if inputs > 1 else ""
    longest = max((r.places.count for r in roots if r.places), default=0)
    note = f"one input, {how} compared, in strips of up to {longest} places{more}"
    left = tuple(root.name for root in roots if not root.places)
    return Verification(
        outputs, inputs, tolerance, note, compared=compared, uncompared=left, warning=_why_uncompared(left)
    )


def least_strips(places: Sequence[OutputStrips], allowed_s: float) -> int:
    """Number of strips of each output that are compared even if no time is left, by the time that they are expected to
    take: LEAST if that is at most `allowed_s` seconds; else as many as take at most `allowed_s`, but no fewer than FEW,
    unless FEW take more than FAR_OVER times `allowed_s`: then one, the last.
    """
    one = sum(place.seconds for place in places)
    if LEAST * one <= allowed_s:
        return LEAST
    return max(FEW, int(allowed_s / one)) if FEW * one <= FAR_OVER * allowed_s else 1


def _why_uncompared(names: Sequence[str]) -> str:
    """Warning that names the outputs that were not compared; "" if there are none."""
    if not names:
        return ""
    what = " and ".join(map(repr, names))
    why = "any part of it needs nearly the whole float64 reference, which takes far longer than the budget"
    return f"not verified at these sizes: {what}: {why}"


def _compared(
    graph: Graph, run: Callable[[Mapping[str, Any]], Sequence[Any]], places: Sequence[OutputStrips | None], rng: np.random.Generator,
    number: int, tolerance: Tolerance, most: int | None, least: int, enough: Callable[[], bool], poll: Callable[[], object],
) -> list[_Root]:  # fmt: skip
    """Outputs of `run` on input `number`, compared in at most `most` strips each (None: all), `least` before `enough()`
    is asked."""
    inputs = drawing.inputs(graph, rng, number)
    before = fingerprint(inputs)
    found = [array_of(y) if is_torch(y) else np.asarray(y) for y in run(inputs)]
    refuse_writes(fingerprint(inputs) != before)
    names = [*graph.names, *(f"update of {u}" for u in graph.updates)]
    roots = [_Root(name, p, y, tolerance, number) for name, p, y in zip(names, places, found, strict=True)]
    turns = max((len(p.starts) for p in places if p), default=0)
    for turn in range(turns if most is None else min(most, turns)):
        if turn >= least and enough():
            break
        for root in roots:
            root.compare(turn, inputs, poll)
    return roots


def fingerprint(arrays: Mapping[str, Array]) -> list[int]:
    """Checksum of each array: sum of its bytes as 64-bit words."""
    flat = [a.reshape(-1).view(np.uint8) for a in arrays.values()]
    return [int(np.add.reduce(f[: f.size // 8 * 8].view(np.uint64))) + int(f[f.size // 8 * 8 :].sum()) for f in flat]


class OutputStrips:
    """The strips of one output of a graph, in the order of their comparison: the last, the first, then the others in
    random order. The last one comes first because errors at the end of an axis, where tiles are not full, are the most
    common, and only one may be compared.

    `starts`: first index of each strip. `count`: number of indices of the axis in a strip. `taken`: bytes that the
    references of one strip take at least.
    """

    def __init__(
        self, graph: Graph, root: Tensor, axes: StripAxes, rng: np.random.Generator, seconds: float = math.inf
    ) -> None:
        self.graph, self.root, self.axes = graph, root, axes
        self.shape = concrete(root.shape)
        self.count = max(1, min(axes.size, PIECE * axes.size // max(1, int(np.prod(self.shape)))))
        while (taken := self._bytes(self.count)) > MAX_STRIP_BYTES and self.count > 1:
            self.count = max(1, min(self.count // 2, self.count * MAX_STRIP_BYTES // taken))
        while self.count > 1 and seconds < math.inf and strip_seconds(axes, self.count) > seconds:
            self.count //= 2
            taken = self._bytes(self.count)
        self.taken = taken
        starts = range(0, axes.size, self.count)
        inner = rng.permutation(starts[1:-1]).tolist()
        self.starts: list[int] = list(dict.fromkeys([starts[-1], starts[0], *inner]))
        self._strip = axes.strip(self.count)

    def _bytes(self, count: int) -> int:
        return run_bytes(Graph.of(self.axes.strip(count).term), float64=True)

    @property
    def seconds(self) -> float:
        """Estimate of the seconds that comparing one strip takes on the host."""
        return run_seconds(Graph.of(self._strip.term))

    @property
    def work(self) -> int:
        """Bytes of the values that all strips compute."""
        return eager_bytes(Graph.of(self._strip.term)) * len(self.starts)

    def part(self, start: int, inputs: Mapping[str, Array]) -> StripPart:
        """The strip that begins at index `start` of the axis, with the slices of leaves that it reads, cut from
        `inputs`."""
        stop = min(start + self.count, self.axes.size)
        strip = self._strip if stop - start == self.count else self.axes.strip(stop - start)
        values = dict(inputs)
        for name, (leaf, axis) in strip.reads.items():
            values[name] = interval_view(_data(leaf, self.graph, inputs), axis, start, stop)
        return StripPart(replace(Graph.of(strip.term), params=self.graph.params), values, self.axes.axis, start, stop)


@dataclass(frozen=True)
class StripPart:
    """One strip: indices `start` to `stop` of an output's `axis`, as a graph of one output with its input values."""

    graph: Graph
    values: Mapping[str, Array]
    axis: int
    start: int
    stop: int

    def of(self, value: Array) -> Array:
        """The strip's elements of `value`, the array of the whole output."""
        found: Array = interval_view(value, self.axis, self.start, self.stop)
        return found

    def run(self, *, float64: bool, poll: Callable[[], object] = lambda: None) -> Array:
        """The strip's elements as the interpreter computes them (`evaluate`), with `float64` without rounding to the
        graph's dtypes.
        """
        with np.errstate(all="ignore"):
            found = evaluate(self.graph, self.values, float64=float64, poll=poll)
        return found[0]


class WholeOutput(StripPart):
    """The output `root` of a graph as a whole, as a graph of its own, on `values`: for one that has no strips."""

    def __init__(self, graph: Graph, root: Tensor, values: Mapping[str, Array]) -> None:
        super().__init__(replace(Graph.of(root), params=graph.params), values, axis=0, start=0, stop=1)

    def of(self, value: Array) -> Array:
        """`value` itself, the array of the output."""
        return value


@dataclass
class _Root:
    """One output under comparison, and the errors of the strips so far. `number`: index of the input."""

    name: str
    places: OutputStrips | None  # None: it is not compared
    value: Array
    tolerance: Tolerance
    number: int = 0
    errors: list[OutputError] = field(default_factory=list)  # one per strip
    done: int = 0  # number of compared indices of the strip axis

    def __post_init__(self) -> None:
        self.fits = self.places is None or self.value.shape == self.places.shape

    @property
    def compared(self) -> float:
        """Fraction of the elements that were compared."""
        return self.done / self.places.axes.size if self.places else 0.0

    def compare(self, turn: int, inputs: Mapping[str, Array], poll: Callable[[], object]) -> None:
        """Compare strip number `turn`, if there is one; `poll` is called before each operation and may raise."""
        if self.places is None or turn >= len(self.places.starts) or not self.fits:
            return
        part = self.places.part(self.places.starts[turn], inputs)
        wide, own = part.run(float64=True, poll=poll), part.run(float64=False, poll=poll)
        self.done += part.stop - part.start
        slack = ODD if self.number == 1 and self.tolerance in FACTORS else 1.0
        judge = Judge(part.graph, part.values, [wide], [own], self.tolerance, slack, self.number > 0, poll=poll)
        self.errors.append(judge.judged(0, self.name, part.of(self.value)))

    def error(self) -> OutputError:
        """The output's error: that of its worst strip."""
        if self.places is None:
            return OutputError(self.name, 0.0, 0.0, 0.0, worst=WorstError(where="not compared"))
        if not self.fits:
            shape, discrete = tuple(self.value.shape), not dtypes.is_float(self.places.root.dtype)
            where = WorstError(where=f"its shape is {shape}, not {self.places.shape}")
            return OutputError(self.name, float("inf"), 0.0, 0.0, False, discrete=discrete, worst=where)
        return worst_of_inputs(self.errors)


def _data(leaf: Tensor, graph: Graph, inputs: Mapping[str, Array]) -> Array:
    """Array of a leaf as a whole: the input of its name, or the data of a weight or constant."""
    if leaf.op == "constant":
        assert leaf.data is not None
        return leaf.data
    name = leaf.attr("name")
    return load_data(graph.params[name]) if leaf.op == "param" else inputs[name]


__all__ = [
    "MIN_STRIPS", "OutputStrips", "StripPart", "WholeOutput", "fingerprint", "has_large_values", "least_strips", "strips_of", "verify_strips",
]  # fmt: skip
