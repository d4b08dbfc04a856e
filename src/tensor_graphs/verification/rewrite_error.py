"""Computes the error of the rewrites in a plan (choice of kernels): its term against the model, both evaluated in
float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backends.verification import compare
from ..backends.verification import inputs as drawing
from ..egraph.evaluate.interpret import evaluate
from ..egraph.ir.graph import Graph
from ..egraph.ir.tensor import Tensor
from ..egraph.types import dtypes
from ..extract.model.plan import Plan
from .memory_checks import input_output_bytes
from .plan_terms import meaning
from .reference import fits_device, has_unsigned, weights_on_device

Value = Any  # np.ndarray or torch.Tensor
TOLERABLE = 1e-4  # relative error in float64 that reordered arithmetic may explain
CANCELS = 1e-10  # the same, relative to the largest intermediate value, where the result cancels to nearly zero
TURNS = (0, 1)  # indices of the input distributions that verification draws


def rewrite_error(
    graph: Graph, plan: Plan, seed: int = 0, *, device: str = "", poll: Callable[[], object] = lambda: None
) -> float:
    """Relative error of the plan's term against the graph, both run in float64 on inputs drawn as verification draws
    them; 0 if another order of sums explains it.

    `device`: Torch device of the two runs if its memory suffices; "": the host. `poll` is called before each operation;
    an exception from it ends the runs.
    """
    if device and (has_unsigned(graph) or not fits_device(device, graph, 2 * input_output_bytes(graph))):
        device = ""
    if device:
        import torch

        with suppress(torch.OutOfMemoryError):
            return _worst(_Run(graph, device, poll, weights_on_device(graph, device)), plan, seed)
        torch.cuda.empty_cache()
    return _worst(_Run(graph, "", poll, None), plan, seed)


def _worst(run: _Run, plan: Plan, seed: int) -> float:
    return max(_error(run, plan, np.random.default_rng((seed, turn)), turn) for turn in TURNS)


@dataclass(frozen=True)
class _Run:
    """Float64 runs of terms over a graph's inputs and weights, on the host or on a device."""

    graph: Graph
    device: str
    poll: Callable[[], object]
    kept: dict[str, Any] | None  # weights on the device, by name

    def drawn(self, rng: np.random.Generator, turn: int) -> Mapping[str, Value]:
        """Random inputs and states. `turn`: index of the verification input, which selects the kind of values."""
        if not self.device:
            return drawing.inputs(self.graph, rng, turn)
        from .on_device import draw

        return draw(self.graph, rng, self.device, turn)

    def values(self, roots: Sequence[Tensor], inputs: Mapping[str, Value], around: Any = None) -> list[Value]:
        """Values of the roots. `around`: as for `egraph.evaluate.interpret.evaluate`."""
        graph = self.graph.with_roots(roots)
        if not self.device:
            with np.errstate(all="ignore"):
                return list(evaluate(graph, inputs, float64=True, poll=self.poll, around=around))
        from ..backends.verification.torch_reference import evaluate_tensors

        found = evaluate_tensors(
            graph, inputs, self.device, float64=True, poll=self.poll, kept=self.kept, around=around
        )
        return list(found)

    def peak(self, inputs: Mapping[str, Value]) -> float:
        """Largest finite float among the inputs and all intermediate values, by magnitude."""
        found = max((_largest(compare.wide(v)) for v in inputs.values()), default=0.0)

        def seen(node: Tensor, operands: Sequence[Value], compute: Callable[[Sequence[Value]], Value]) -> Value:
            nonlocal found
            value = compute(operands)
            if dtypes.is_float(node.dtype):
                found = max(found, _largest(value))
            return value

        self.values(self.graph.roots, inputs, seen)
        return found


def _error(run: _Run, plan: Plan, rng: np.random.Generator, turn: int) -> float:
    graph, inputs = run.graph, run.drawn(rng, turn)
    roots, _ = meaning(plan)
    exact, rewritten = run.values(graph.roots, inputs), run.values(roots, inputs)
    rewritten = [s.reshape(tuple(e.shape)) for s, e in zip(rewritten, exact, strict=True)]
    gaps = [_gap(s, e, r.dtype) for s, e, r in zip(rewritten, exact, graph.roots)]
    if max(gaps, default=0.0) <= TOLERABLE:
        return 0.0
    peak = run.peak(inputs)
    return max(
        (g for g, s, e in zip(gaps, rewritten, exact) if g > TOLERABLE and not _cancels(s, e, peak)), default=0.0
    )


def _gap(value: Value, exact: Value, dtype: str) -> float:
    if not math.prod(exact.shape):
        return 0.0
    if not dtypes.is_float(dtype):
        return float((value != exact).sum().item() / math.prod(exact.shape))
    errors = compare.MeasuredErrors(value, exact, None)
    place = errors.worst("float64", TOLERABLE / compare.PLACE)
    return max(errors.errors[0], min(place.relative, 1.0) if place.ratio > 1 else 0.0)


def _cancels(value: Value, exact: Value, peak: float) -> bool:
    with np.errstate(all="ignore"):
        return _largest(compare.wide(value) - compare.wide(exact)) <= CANCELS * peak


def _largest(value: Value) -> float:
    """Largest finite element, by magnitude; 0 if there is none."""
    if not math.prod(value.shape):
        return 0.0
    xp = compare.module_of(value)
    size = abs(value)
    return float(xp.where(xp.isfinite(size), size, xp.zeros_like(size)).max().item())
