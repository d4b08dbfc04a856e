"""Compares a traced graph of large arrays with the caller's function: one call, outputs compared in strips
(runs of indices along an axis).

Memory for one set of inputs and outputs and one strip's float64 run suffices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any
from zlib import crc32

import numpy as np

from ...backends.verification import inputs as drawing
from ...egraph.ir.graph import Graph
from ...egraph.types.dims import concrete
from ...errors import TraceError
from ...models.functions.plain_runs import OwnFunction
from ...verification.memory_checks import eager_bytes, input_output_bytes, memory_shortage, run_bytes
from ...verification.reference import call_seconds, with_atomic_ops
from ...verification.strips import (
    MIN_STRIPS,
    OutputStrips,
    StripPart,
    WholeOutput,
    fingerprint,
    has_large_values,
    strips_of,
)
from .trace_agreement import Array, Rounding, refuse, refuse_type, title_of
from .trace_randomness import MORE, OptionalTime, random_state_kept, random_states

HELD_SETS = 12  # sets of inputs and outputs that comparing whole outputs holds; float64 copies count twice
LARGE_DRAWING_CALLS = 4  # further calls of a large function that draws random numbers, to see whether they matter
WHOLE_RUNS = 4  # calls of the function that take as long as comparing a whole output with its graph, at least
LARGE_BYTES = 1 << 28  # bytes of inputs and outputs above which one input is used, and outputs are compared in strips


class CallFails(Exception):
    """Raised when the caller's function raised for some arguments."""


def is_large(graph: Graph) -> bool:
    """Whether inputs and outputs, or one value of a graph whose outputs can be computed in strips (runs of indices
    along an axis), take more than LARGE_BYTES: then strips are compared, for one input only."""
    return has_large_values(graph, LARGE_BYTES)


def lacking_memory(graph: Graph) -> str:
    """Text that names the memory missing for a comparison of whole outputs; "" if it suffices."""
    return memory_shortage(
        HELD_SETS * input_output_bytes(graph) + max(eager_bytes(graph), run_bytes(graph, float64=True))
    )


def compare_large(
    function: Any, call: Callable[[Mapping[str, Array]], list[Array]], graph: Graph, seed: int, kind: str,
    time: OptionalTime,
) -> str:  # fmt: skip
    """Text that says how a graph was compared with one call of its function on random inputs, or why it was not.

    Some strips (runs of indices along an axis) of each output are compared; all outputs as a whole, while time is left,
    if one of them mixes all indices of every axis (a shuffle, a sum over all elements). A function that draws random
    numbers is called a second time, and must give the same results. `call` maps inputs by name to the function's
    outputs; `kind`: "function" or "module", for texts. `time`:
    limits what is optional. Raises TraceError also for an output of another shape or dtype.
    """
    cuts = strips_of(graph)
    rng = np.random.default_rng((seed, 77))
    places = [OutputStrips(graph, root, axes, rng) for root, axes in zip(graph.outputs, cuts or ())]
    given = sum(n.type.nbytes for n in graph.inputs)
    references = max(p.taken for p in places) if places else run_bytes(graph, float64=True)
    needed = max(input_output_bytes(graph), given + eager_bytes(graph)) + references
    if problem := memory_shortage(needed):
        return f"compared with its graph only: a call of the {kind} is left out, {problem}"
    if problem := time.too_long(call_seconds(graph)):
        return f"compared with its graph only: a call of the {kind} is left out, {problem}"
    values = drawing.inputs(graph, rng)
    before, states, title = fingerprint(values), random_states(function), title_of(function)
    drew = False
    try:
        with random_state_kept():
            began = perf_counter()
            found = call(values)
            took = perf_counter() - began
            drew = random_states(function) != states
    except OwnFunction as called:
        return f"compared with its graph only: the function calls tg.{called}, which has no meaning for arrays"
    except CallFails as error:
        return f"compared with its graph only: called with random inputs the {kind} raises {error}"
    if fingerprint(values) != before:
        return f"compared with its graph only: the {kind} writes to its inputs"
    for name, root, own in zip(graph.names, graph.outputs, found, strict=True):
        refuse_type(function, name, root, own, concrete(root.shape))
    if cuts is None and not time.suffices("the comparison", len(found) * WHOLE_RUNS * took):
        return f"compared with its graph only: the outputs of the {kind} are large, and mix all indices of every axis{time.omission_text}"
    atomic = with_atomic_ops(graph)
    for name, root, own in zip(graph.names, atomic.outputs, () if cuts else found):
        judge_strip(function, name, WholeOutput(atomic, root, values), own)
    compared = _judge_strips(function, graph, found, places, values)
    if drew:
        first = _checksums(found)
        del found, own
        _refuse_random(lambda: _checksums(call(values)) == first, time, took, kind, title)
    return f"compared with the {kind} itself, on one input, {100 * compared:.3g} % of the elements of each output{time.omission_text}"


def _judge_strips(
    function: Any, graph: Graph, found: Sequence[Array], places: Sequence[OutputStrips], values: Mapping[str, Array]
) -> float:
    """Judge some strips of each output in `found`; returns the smallest share of an output's elements that they
    contain. Raises TraceError as `judge_strip`."""
    compared = 1.0
    for name, own, place in zip(graph.names, found, places):
        done = 0
        for start in place.starts[: MIN_STRIPS + 2]:
            part = place.part(start, values)
            judge_strip(function, name, part, part.of(own))
            done += part.stop - part.start
        compared = min(compared, done / place.axes.size)
    return compared


def _refuse_random(
    same_again: Callable[[], bool], time: OptionalTime, seconds: float, kind: str, title: str
) -> None:  # fmt: skip
    """Raise TraceError if a call that takes `seconds` does not give the first call's results again, in as many further
    calls as there is time for. `same_again`: makes a call and says whether its results are those of the first one."""
    with random_state_kept():
        for _ in range(1 + LARGE_DRAWING_CALLS):  # the first draws the same numbers again
            if not time.suffices(MORE, seconds):
                return
            if not same_again():
                raise TraceError(f"the {kind} does not return the same when it is called again with the same arguments",
                                 where=title, hint="random numbers cannot be traced: pass them as arguments")  # fmt: skip


def _checksums(arrays: Sequence[Array]) -> list[int]:
    return [crc32(np.ascontiguousarray(a).reshape(-1).view(np.uint8).data) for a in arrays]


def judge_strip(function: Any, name: str, part: StripPart, own: Array) -> None:
    """Raise TraceError if a strip of the output `name` of a function or module differs from the graph's by more than
    rounding.

    `part`: the strip (a run of indices along an axis); `own`: its elements in the function's output.
    """
    found = part.run(float64=False)
    if np.array_equal(found, own):  # as shuffles are
        return
    if not Rounding(part.graph, part.values, [found], [part.run(float64=True)]).accepts(0, own):
        refuse(function, name, own, found, part.values)


__all__ = ["CallFails", "compare_large", "is_large", "judge_strip", "lacking_memory"]
