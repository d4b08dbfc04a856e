"""Verification: a program's outputs against a float64 run of the original graph, within the requested tolerance.

The error of a float output is the relative Frobenius norm ‖y − r‖ / ‖r‖ against the float64 result r of the original.
The allowed error is relative to the error of the original graph in its own dtypes: 1.25 times that for "eager", 2 times
for "fast", plus two units in the last place of the output dtype. In addition every element and every slice has a limit
of its own (`backends/verification/compare.py`), so that errors in small values are not hidden by large values. NaN and infinities
must be where the reference, or the unoptimized graph in its own dtypes, has them. Integers and booleans must be equal.

Elements may differ only where rounding decides them (near ties, values next to a discontinuity, cancellation).
Additional float64 runs with every value perturbed by the size of its rounding error find these elements
(`backends/verification/rounding_noise.py`); they run only if something differs, and the exempt elements are counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from ..backends.runtime.marshalling import is_torch
from ..backends.verification import compare
from ..backends.verification.inputs import index_bounds, random_indices
from ..backends.verification.overflow import changed_by_order
from ..backends.verification.rounding_noise import Disturbed
from ..egraph.ir import dtypes
from ..egraph.ir.graph import Graph
from ..extract.model.clock import Halted
from .comparison import (
    FACTORS,
    FAR,
    MISCOMPILE,
    ODD,
    WRONG,
    OutputError,
    Tolerance,
    Verification,
    allowed_error,
    compare_output,
    in_form_of,
    misplaced,
    of_all,
    relative_error,
    spare,
)
from .memory_checks import in_and_out
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


def verify(
    graph: Graph,
    run: Callable[[Mapping[str, Any]], Sequence[Any]],
    *,
    tolerance: Tolerance = "eager",
    seed: int = 0,
    flops: float = 0.0,
    seeds: int | None = None,
    references: dict[int, Reference] | None = None,
    disturbed: dict[int, Disturbed] | None = None,
    tolerated: float = 1.0,
    device: str = "",
    enough: Callable[[], bool] = lambda: False,
    poll: Callable[[], object] = lambda: None,
) -> Verification:
    """Verdict on a program: `run` compared with the graph on random inputs.

    On one input if the model is large, else on three, or on `seeds`.

    `run`: maps inputs and states by name to outputs, then updated states. `flops`: of the graph. `references`: cache of
    (inputs, float64 run, own-dtype run) per seed, shared between attempts. `disturbed`: cache of runs with rounding
    noise on these inputs, likewise. `tolerated`: multiple of the limits up to which the caller still accepts an output.
    `device`: Torch device of the tensors that `run` takes and returns, where everything is computed; "": host arrays. Graphs with more than LARGE_BYTES of inputs
    and outputs are compared in strips if possible (strips.py). `enough()`: polled before each seed but the first; the
    rest is then skipped and counted in `left_out`. `poll()`: called before every operation of a reference run; Halted
    raised by it ends the verification, and propagates if no seed is complete. TooLargeError before a reference on the
    host whose values exceed the available memory (outputs that cannot be cut into strips, or tolerance "exact").
    """
    size = in_and_out(graph)
    planned = seeds or (1 if flops > LARGE_FLOPS or size > LARGE_BYTES else 3)
    if tolerance == "exact" or (device and (has_unsigned(graph) or not fits_device(device, planned * size))):
        device = ""
    if not device and size > LARGE_BYTES and tolerance != "exact":
        from .strips import strips_of, verify_strips

        if cuts := strips_of(graph):
            return verify_strips(graph, run, cuts, tolerance=tolerance, seed=seed, enough=enough, poll=poll)
    known = references if references is not None else {}
    noise = disturbed if disturbed is not None else {}
    weights = next((d.kept for d in noise.values()), None) or weights_on_device(graph, device)
    atomic = with_atomic_ops(graph)
    names = [*graph.names, *(f"update of {u}" for u in graph.updates)]
    worst: dict[str, list[OutputError]] = {n: [] for n in names}
    seeds = 0
    while seeds < planned and not (seeds and enough()):
        if seeds not in known:
            draw = np.random.default_rng((seed, seeds))
            try:
                known[seeds] = compute_reference(graph, draw, device, tolerance == "exact", poll, weights, seeds)
            except Halted:
                if not seeds:
                    raise
                break
        inputs, exact, own = known[seeds]
        found = run({n: v.clone() if is_torch(v) else v.copy() for n, v in inputs.items()})
        there = device if any(map(is_torch, inputs.values())) else ""
        moved = noise.setdefault(seeds, Disturbed(atomic, inputs, there, weights))
        moved.poll = poll
        any_order = cache(partial(changed_by_order, atomic, inputs, own, device=there, kept=weights, poll=poll))
        slack = ODD if seeds == 1 and tolerance in FACTORS else 1.0
        try:
            judged, values = [], list(found)
            for k, (name, root, y, r, o) in enumerate(zip(names, graph.roots, found, exact, own, strict=True)):
                one = compare_output(name, root.dtype, y, r, o, tolerance, slack)
                if tolerance != "exact" and not one.passed and not (one.finite and dtypes.is_float(root.dtype)):
                    values[k], free = _as_in_own_order(in_form_of(y, r), o, any_order, k)
                    one = compare_output(name, root.dtype, values[k], r, o, tolerance, slack)
                    one = replace(one, worst=replace(one.worst, exempt=one.worst.exempt + free))
                judged.append(one)
            norm = 0.0 if seeds else max(map(_norm, judged), default=0.0)
            for k, (one, root, y, r, o) in enumerate(zip(judged, graph.roots, values, exact, own, strict=True)):
                if norm > tolerated and not one.miscompiled:  # the verdict is known
                    one = replace(one, worst=replace(one.worst, ratio=min(one.worst.ratio, norm)))
                else:
                    one = _reconsidered(one, k, y, r, o, moved, root.dtype, adversarial=seeds > 0)
                worst[one.name].append(one)
        except Halted:
            if not seeds:
                raise
            break
        seeds += 1
    outputs = tuple(of_all(worst[n][:seeds]) for n in names)
    note = f"one input, the model has {flops / 1e9:.0f} GFLOP, {size >> 20} MiB in and out" if planned == 1 else ""
    note = f"{seeds} of {planned} inputs, no time was left for more" if seeds < planned else note
    return Verification(outputs, seeds, tolerance, note, left_out=planned - seeds)


def _norm(judged: OutputError) -> float:
    """A float output's norm as a multiple of its limit, if it is over the limit and rounding may explain that; else 0.

    Where it is over the limit on the first input, no element needs to be reconsidered, which takes up to eleven runs of the graph.
    """
    if judged.discrete or judged.miscompiled or judged.plan <= judged.allowed:
        return 0.0
    return judged.plan / judged.allowed if judged.allowed else math.inf


def _as_in_own_order(y: Any, own: Any, any_order: Callable[[], Sequence[Any]], k: int) -> tuple[Any, int]:
    """(output `k` with the own run's elements where sums overflow and their order decides the result, their number).

    A float must be infinite or NaN in both: overflow explains no finite number. `any_order()`: see `changed_by_order`.
    """
    if tuple(y.shape) != tuple(own.shape):
        return y, 0
    xp = compare.module_of(own)
    differs = y != own if not dtypes.is_float(dtypes.name_of(own.dtype)) else ~(xp.isfinite(y) | xp.isfinite(own))
    if not bool(differs.any()):
        return y, 0
    free = differs & any_order()[k]
    return xp.where(free, own, y), int(free.sum())


def _reconsidered(
    judged: OutputError, k: int, y: Any, exact: Any, own: Any, disturbed: Disturbed, dtype: str, adversarial: bool
) -> OutputError:
    """An output's error without the elements that rounding decides, if it is over a limit.

    On `adversarial` inputs (large values, ties) the norm is also taken without these elements: a softmax of logits around 1e3 moves
    by 1e-4 when one of them is rounded. On the first input the limit of the norm is unchanged."""
    if judged.passed or judged.off is not None or tuple(y.shape) != tuple(exact.shape):
        return judged
    discrete = not dtypes.is_float(dtype)
    far = max(MISCOMPILE * judged.allowed, WRONG) if adversarial else FAR * judged.allowed
    if not discrete and (not judged.finite or judged.plan > far):
        return judged
    if judged.discrete and not discrete:
        return judged  # bitwise comparison
    y = in_form_of(y, exact)
    for moved in disturbed.refined():
        if discrete:
            place = compare.differing(y, own, exact, moved[k])
            judged = replace(judged, plan=place.ratio, worst=place)
        else:
            found = compare.MeasuredErrors(y, exact, own, moved[k])
            plan = found.errors[0] if adversarial else judged.plan
            judged = replace(judged, plan=plan, worst=found.worst(dtype, judged.allowed))
        if judged.passed:
            break
    return judged


__all__ = ["FACTORS", "KEPT_BYTES", "MISCOMPILE", "WRONG", "OutputError", "Tolerance", "Verification", "allowed_error", "expected_seconds",
           "first_reference", "index_bounds", "misplaced", "random_indices", "relative_error", "sample_inputs", "sampled_near",
           "spare", "verify"]  # fmt: skip
