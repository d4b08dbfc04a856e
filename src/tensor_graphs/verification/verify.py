"""Verifies a program's outputs against a float64 run of the original graph, within the requested tolerance.

The error of a float output is the relative Frobenius norm ‖y − r‖ / ‖r‖ against the float64 result r of the original.
The allowed error is relative to the error of the original graph in its own dtypes: 1.25 times that for "eager", 2 times
for "fast", plus two units in the last place of the output dtype. In addition every element and every slice has a limit
of its own (`backends/verification/compare.py`), so that errors in small values are not hidden by large values. NaN and
infinities must be where the reference, or the unoptimized graph in its own dtypes, has them. Integers and booleans must
be equal.

Elements may differ only where rounding decides them (near ties, values next to a discontinuity, cancellation).
Additional float64 runs with every value perturbed by the size of its rounding error find these elements
(`backends/verification/rounding_noise.py`); they run only if something differs, and the exempt elements are counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backends.runtime.marshalling import is_torch
from ..backends.verification.index_bounds import index_bounds
from ..backends.verification.inputs import random_indices
from ..backends.verification.rounding_noise import RoundingSensitivity
from ..backends.verification.uniform_lines import WHOLE, decides_by_whole_tensors
from ..egraph.evaluate.strips import StripAxes
from ..egraph.ir.graph import Graph
from ..extract.model.clock import Halted
from .comparison import (
    FACTORS,
    MISCOMPILE,
    ODD,
    WRONG,
    OutputError,
    Tolerance,
    Verification,
    allowed_error,
    have_other_bits,
    in_later_call,
    misplaced,
    refuse_writes,
    relative_error,
    rounding_allowance,
    worst_of_inputs,
)
from .judge import Judge
from .memory_checks import input_output_bytes
from .reference import (
    KEPT_BYTES,
    LARGE_BYTES,
    LARGE_FLOPS,
    Reference,
    compute_reference,
    expected_seconds,
    first_reference,
    fits_device,
    has_unsigned,
    sample_inputs,
    sampled_near,
    weights_on_device,
    with_atomic_ops,
)

#: Seconds of a program's first call up to which its later calls, five at most, are made whatever time is left.
LATER_S = 0.25

#: Results of later calls on a first input, as `verify` takes them (`again`): None at the end if calls were left out.
LaterCalls = Callable[[Mapping[str, Any], bool, Callable[[], bool]], Iterable[Sequence[Any] | None]]


def planned_inputs(graph: Graph, flops: float) -> int:
    """Number of inputs that verification of a graph with `flops` wants: one if the model is large, else three, and
    four more if it decides by whole tensors."""
    if flops > LARGE_FLOPS or input_output_bytes(graph) > LARGE_BYTES:
        return 1
    return 3 + (len(WHOLE) if decides_by_whole_tensors(graph) else 0)


def verify(
    graph: Graph,
    run: Callable[[Mapping[str, Any]], Sequence[Any]],
    *,
    tolerance: Tolerance = "eager",
    again: LaterCalls = lambda values, alone, ended: (),
    seed: int = 0,
    flops: float = 0.0,
    seeds: int | None = None,
    references: dict[int, Reference] | None = None,
    disturbed: dict[int, RoundingSensitivity] | None = None,
    tolerated: float = 1.0,
    device: str = "",
    enough: Callable[[], bool] = lambda: False,
    poll: Callable[[], object] = lambda: None,
    allowed_s: float = math.inf,
    cuts: Sequence[StripAxes | None] | None = None,
) -> Verification:
    """Compare a program, `run`, with its graph on random inputs (`planned_inputs` many); returns the verdict (whether
    outputs are within tolerance).

    `run`: maps inputs and states by name to outputs, then updated states. `again`: results of later calls on the first
    values, compared as well if they have other bits; its second argument says whether no further input follows. It asks
    the third, `ended()`, before each call, and gives None at the end if calls were left out, which happens if
    `enough()` and one takes more than LATER_S. `seeds`: number of inputs. `flops`: of the graph. `references`: cache of
    (inputs, float64 run, own-dtype run) per seed, shared between attempts. `disturbed`: cache of runs with rounding
    noise on these inputs, likewise. `tolerated`: multiple of the limits up to which the caller still accepts an output.
    `device`: Torch device of the tensors that `run` takes and returns, where everything is computed; "": host arrays.
    Graphs with more than LARGE_BYTES of inputs and outputs, or in one value, are compared in strips if possible
    (strips.py), also those that are expected to take far longer than `allowed_s` seconds on one input
    (partial_comparison.py). `cuts`: the axes of these, if known (`affordable_cuts`). `enough()`: asked after each seed
    but the last; if True, the remaining seeds are skipped and counted in `left_out`. `poll()`: called before every
    operation of a reference run; if it raises Halted, verification ends, and the exception propagates unless a seed is
    complete. Raises VerificationError if the program writes to its inputs, TooLargeError before a reference run on the
    host whose values exceed the available memory (outputs that cannot be cut into strips, or tolerance "exact").
    """
    size = input_output_bytes(graph)
    planned = seeds or planned_inputs(graph, flops)
    if tolerance == "exact" or (device and (has_unsigned(graph) or not fits_device(device, graph, planned * size))):
        device = ""
    if not device and tolerance != "exact":
        from .strips import verify_strips

        if cuts := cuts or _cuts(graph, allowed_s, poll):
            return verify_strips(
                graph, run, cuts, tolerance=tolerance, seed=seed, enough=enough, poll=poll, seeds=seeds,
                allowed_s=allowed_s,
            )  # fmt: skip
    comparison = _Comparison(
        graph, run, tolerance, seed, device, poll,
        references={} if references is None else references, noise={} if disturbed is None else disturbed,
    )  # fmt: skip
    outputs, seeds, later_omitted = _compare_inputs(comparison, planned, tolerated, again, enough)
    note = _note(seeds, planned, flops, size)
    return Verification(outputs, seeds, tolerance, note, left_out=planned - seeds, later_omitted=later_omitted)


@dataclass
class _Comparison:
    """References and judges of a program's whole outputs, one for each random input. Fields: parameters of `verify`;
    inputs have indices (0, 1, ...), and `references` and `noise` are caches by index."""

    graph: Graph
    run: Callable[[Mapping[str, Any]], Sequence[Any]]
    tolerance: Tolerance
    seed: int
    device: str
    poll: Callable[[], object]
    references: dict[int, Reference]
    noise: dict[int, RoundingSensitivity]

    def __post_init__(self) -> None:
        known = next((d.kept for d in self.noise.values()), None)
        self._weights = known or weights_on_device(self.graph, self.device)
        self._atomic = with_atomic_ops(self.graph)
        self.names = [*self.graph.names, *(f"update of {u}" for u in self.graph.updates)]

    def make_reference(self, index: int) -> None:
        """Draw the input `index` and compute its reference, unless `references` has it. Raises what `poll` raises."""
        if index not in self.references:
            draw, exact = np.random.default_rng((self.seed, index)), self.tolerance == "exact"
            self.references[index] = compute_reference(
                self.graph, draw, self.device, exact, self.poll, self._weights, index
            )

    def copied_inputs(self, index: int) -> dict[str, Any]:
        """A copy of the input `index`: values by name."""
        return {n: v.clone() if is_torch(v) else v.copy() for n, v in self.references[index][0].items()}

    def call(self, index: int) -> tuple[Sequence[Any], float]:
        """(results, seconds) of a call of the program on a copy of the input `index`.

        Raises VerificationError if the program writes to it.
        """
        given, began = self.copied_inputs(index), time.perf_counter()
        found = self.run(given)
        seconds = time.perf_counter() - began
        refuse_writes(have_other_bits(list(given.values()), list(self.references[index][0].values())))
        return found, seconds

    def judge(self, index: int) -> Judge:
        """The judge of results on the input `index`."""
        inputs, exact, own = self.references[index]
        there = self.device if any(map(is_torch, inputs.values())) else ""
        noise = self.noise.setdefault(index, RoundingSensitivity(self._atomic, inputs, there, self._weights))
        noise.poll = self.poll
        slack = ODD if index == 1 and self.tolerance in FACTORS else 1.0
        return Judge(
            self._atomic, inputs, exact, own, self.tolerance, slack, index > 0, there, self._weights, self.poll, noise
        )


def _compare_inputs(
    comparison: _Comparison, planned: int, tolerated: float, again: LaterCalls, enough: Callable[[], bool]
) -> tuple[tuple[OutputError, ...], int, bool]:
    """Compare on up to `planned` inputs: (largest error of each output, number of inputs compared, whether later calls
    were left out). Raises Halted if the first input is not compared to its end. Parameters as those of `verify`."""
    worst: dict[str, list[OutputError]] = {n: [] for n in comparison.names}
    seeds, last, later_omitted = 0, False, False
    while seeds < planned and not last:
        try:
            comparison.make_reference(seeds)
            found, seconds = comparison.call(seeds)
            judge = comparison.judge(seeds)
            judged = judge.all_judged(comparison.names, found, tolerated)
            last = seeds + 1 == planned or enough()
            if not seeds and all(one.passed for one in judged):
                later = again(comparison.copied_inputs(0), last, enough if seconds > LATER_S else _never)
                errors, later_omitted = _later_errors(judge, comparison.names, found, later, tolerated)
                judged += errors
        except Halted:
            if not seeds:
                raise
            break
        for one in judged:
            worst[one.name].append(one)
        seeds += 1
    return tuple(worst_of_inputs(worst[n]) for n in comparison.names), seeds, later_omitted


def _note(seeds: int, planned: int, flops: float, bytes_: int) -> str:
    """Remark of the verdict on the number of inputs, `seeds` of `planned`; "" if all of several were compared.
    `bytes_`: of the model's inputs and outputs."""
    if seeds < planned:
        return f"{seeds} of {planned} inputs, no time was left for more"
    return f"one input, the model has {flops / 1e9:.0f} GFLOP, {bytes_ >> 20} MiB in and out" if planned == 1 else ""


def _cuts(graph: Graph, allowed_s: float, poll: Callable[[], object]) -> Sequence[StripAxes | None] | None:
    """The axes along which outputs are compared in strips, None for an output that is left out; None altogether if
    whole outputs are compared. `allowed_s`: seconds that comparing one input may take."""
    from .partial_comparison import affordable_cuts, takes_too_long
    from .strips import has_large_values, strips_of

    large = has_large_values(graph, LARGE_BYTES)
    if not large and not takes_too_long(graph, allowed_s):
        return None
    some = affordable_cuts(graph, allowed_s, poll) if allowed_s < math.inf else None
    return some or (strips_of(graph) if large else None)


def _never() -> bool:
    return False


def _later_errors(
    judge: Judge, names: Sequence[str], found: Sequence[Any], later: Iterable[Sequence[Any] | None], tolerated: float
) -> tuple[list[OutputError], bool]:
    """Errors of the results of later calls on the same values that have other bits than `found`, and whether calls were
    left out."""
    errors: list[OutputError] = []
    for results in later:
        if results is None:
            return errors, True
        if have_other_bits(results, found):
            errors += [in_later_call(one) for one in judge.all_judged(names, results, tolerated)]
    return errors, False


__all__ = ["FACTORS", "KEPT_BYTES", "MISCOMPILE", "WRONG", "OutputError", "Tolerance", "Verification", "allowed_error", "expected_seconds",
           "first_reference", "index_bounds", "misplaced", "planned_inputs", "random_indices", "relative_error", "rounding_allowance", "sample_inputs",
           "sampled_near", "verify"]  # fmt: skip
