"""Estimates how sensitive a graph's values are to rounding, by float64 runs in which every computed value gets random
noise of the magnitude of its dtype's rounding (as in Monte Carlo arithmetic). Where the runs agree, a value is well
conditioned and must match. Where they differ (an argmax of nearly equal numbers, the floor of a sum near an integer, a
difference of nearly equal sums, a row of NaN, a value that a cast cannot hold), rounding decides, and correct programs
may differ as well. Runs are made only if an element of a result exceeds its limit, and only until all such elements are
explained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...egraph.evaluate.interpret import evaluate
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor
from ...egraph.ops.ops import Op
from ...egraph.types import dtypes
from . import compare
from .compare import module_of, wide

NOISE = {"float64": 4e-15, "float32": 1e-6, "float16": 2e-3, "bfloat16": 1.6e-2}  # maximum relative noise per dtype
ROUNDS_TO = {"to_float16": "float16", "to_bfloat16": "bfloat16"}
RUNS = 10  # runs besides the first, which the others are compared with
TIMES = 8.0  # an element may be off by this multiple of the largest observed movement
WIDER = 3.0  # multiple of the noise in further runs for integers and bools, which have no such margin
MOVES = ("view", "layout", "index", "leaf")  # kinds of ops that do not round
LOW_BITS = (1 << 46) - 1  # of a float64: all but the sign, the exponent and the first seven significand bits
Compute = Callable[[Sequence[Any]], Any]


@dataclass
class RoundingSensitivity:
    """Rounding sensitivity of a graph's outputs on given values (arrays, or tensors on `device`); refined by each run.

    `kept`: params already on the device, by name; newly copied ones are added. `poll` is called between operations, and
    may raise to interrupt a run. `runs`: number of runs besides the first, whose outputs are `first`. `moved`, for each
    output: how far rounding may move each element; for integers and bools, whether it changes the element.
    `multiplied`: the 16-bit dtype in which a kernel multiplies on tensor cores: it rounds the operands of products that
    it computes (dequantized weights, a norm), also where the graph, widened to float32, does not.
    """

    graph: Graph
    values: Mapping[str, Any]
    device: str = ""
    kept: dict[str, Any] | None = None  # weights already on the device
    poll: Callable[[], object] = lambda: None
    multiplied: str = ""
    runs: int = 0
    first: list[Any] = field(default_factory=list)
    moved: list[Any] = field(default_factory=list)
    wider: int = 0  # number of runs with `WIDER` times the noise
    changed: list[Any] = field(default_factory=list)  # as `moved`, with these runs: for integers and bools only

    def further(self) -> bool:
        """Make one more run with rounding noise; returns False, and does nothing, after `RUNS` runs."""
        if self.runs == RUNS:
            return False
        if not self.first:
            self.first = self._run(0)
            self.moved = [_nothing(x, r) for x, r in zip(self.first, self.graph.roots)]
        self.runs += 1
        with np.errstate(all="ignore"):
            for k, (a, b) in enumerate(zip(self.first, self._run(self.runs))):
                self.moved[k] = self._more(k, a, b)
        return True

    def refined(self) -> Iterator[list[Any]]:
        """Yields `moved`: first as known from earlier runs, if any, then after each further run with noise, until
        `RUNS` are made."""
        if self.runs:
            yield self.moved
        while self.further():
            yield self.moved

    def refined_wider(self) -> Iterator[list[Any]]:
        """Yields `changed`, which begins as `moved` after all of its runs: first as known from earlier runs, if any,
        then after each of `RUNS` further runs with `WIDER` times the noise. These show elements that the noise of a few
        runs happens to leave as they are."""
        if self.wider:
            yield self.changed
        else:
            self.changed = list(self.moved)
        while self.wider < RUNS:
            self.wider += 1
            for k, (a, b) in enumerate(zip(self.first, self._run(RUNS + self.wider, WIDER))):
                if not dtypes.is_float(self.graph.roots[k].dtype):
                    self.changed[k] = self.changed[k] | (a != b)
            yield self.changed

    def relative(self, k: int) -> float:
        """How far rounding may move output `k`, relative to its norm, after all runs. Elements without a finite value
        or movement do not count."""
        for _ in self.refined():
            pass
        xp, first, moved = module_of(self.first[k]), wide(self.first[k]), self.moved[k]
        fine = xp.isfinite(first) & xp.isfinite(moved)
        far, size = (float((xp.where(fine, x, xp.zeros_like(x)) ** 2).sum()) ** 0.5 for x in (moved, first))
        return far / size if size else math.inf if far else 0.0

    def _more(self, k: int, a: Any, b: Any) -> Any:
        if not dtypes.is_float(self.graph.roots[k].dtype):
            return self.moved[k] | (a != b)
        xp = module_of(a)
        gap = TIMES * xp.abs(wide(a) - wide(b))
        gap = xp.where(xp.isnan(gap), xp.full_like(gap, np.inf), gap)
        gap = xp.where((a == b) | (xp.isnan(a) & xp.isnan(b)), xp.zeros_like(gap), gap)
        return xp.maximum(self.moved[k], gap)

    def _run(self, number: int, times: float = 1.0) -> list[Any]:
        """Outputs of run `number`, with `times` the noise.

        Odd runs use the previous run's noise with opposite sign, which separates values that are equal up to
        rounding.
        """
        if self.device:
            from .torch_reference import evaluate_tensors

            around = _Around(of_tensors(number // 2, self.device), bool(number % 2), times, self.multiplied)
            return evaluate_tensors(
                self.graph, self.values, self.device, float64=True, poll=self.poll, kept=self.kept, around=around
            )
        with np.errstate(all="ignore"):
            around = _Around(of_arrays(number // 2), bool(number % 2), times, self.multiplied)
            return evaluate(self.graph, self.values, float64=True, poll=self.poll, around=around)


def _accumulates(op: Op) -> bool:
    """Whether an op rounds internally, so that its operands get noise as well."""
    return op.kind in ("reduction", "contraction") and op.rounding != "never"


@dataclass(frozen=True)
class KernelFault:
    """Why a kernel's result is not acceptable. `ratio`: its largest error as a multiple of what is allowed there;
    infinite for integers and bools."""

    message: str
    ratio: float = math.inf


def kernel_fault(
    got: Any, want: Any, k: int, dtype: str, allowed: float, disturbed: RoundingSensitivity
) -> KernelFault | None:
    """Judge a kernel's result `got`, of dtype `dtype`, against its float64 reference `want`; returns None if the result
    is acceptable.

    `k`: index of the output in `disturbed`. `allowed`: relative error of the whole (see `compare.KERNEL`).
    """
    discrete = not dtypes.is_float(dtype)
    limit = 0.0 if discrete else 1.0

    def judge(unstable: Any | None = None) -> compare.WorstError:
        if discrete:
            return compare.differing(got, want, unstable=unstable)
        return compare.worst(got, want, None, dtype, allowed, unstable)

    place = judge()
    for moved in disturbed.refined() if place.ratio > limit else ():
        place = judge(moved[k])
        if place.ratio <= limit:
            return None
    if place.ratio <= limit:
        return None
    return (
        KernelFault(f"integers or bools differ: {place.where}") if discrete else KernelFault(place.message, place.ratio)
    )


def _nothing(x: Any, root: Tensor) -> Any:
    if dtypes.is_float(root.dtype):
        return wide(module_of(x).zeros_like(x))
    return x != x


def of_arrays(seed: int) -> Callable[[Any], Any]:
    """Makes a function from a shape to an array of uniform float64 numbers in [0, 1), drawn from `seed`."""
    drawing = np.random.default_rng(seed)
    return lambda shape: np.asarray(drawing.random(shape))


def of_tensors(seed: int, device: str) -> Callable[[Any], Any]:
    """Makes a function from a shape to a tensor on a device of uniform float64 numbers in [0, 1), drawn from `seed`."""
    import torch

    drawing = torch.Generator(device).manual_seed(seed)
    return lambda shape: torch.rand(tuple(shape), generator=drawing, device=device, dtype=torch.float64)


@dataclass(frozen=True)
class _Around:
    """Evaluator of a node that adds rounding noise.

    `random`: function from a shape to uniform numbers in [0, 1). `mirrored`: whether the noise has opposite sign.
    `times`: multiple of the noise. `multiplied`: as in `RoundingSensitivity`.
    """

    random: Callable[[Any], Any]
    mirrored: bool = False
    times: float = 1.0
    multiplied: str = ""

    def __call__(self, node: Tensor, operands: Sequence[Any], compute: Compute) -> Any:
        """The node's value as `compute` gives it, with random relative noise of the size of its rounding."""
        if _accumulates(node.entry):
            operands = [self._summed(node, x, a) for x, a in zip(operands, node.args)]
        if node.op in ("floordiv", "mod") and dtypes.is_float(node.dtype):  # x // x is next to a discontinuity
            operands = [self._noisy(x, a.dtype, None) for x, a in zip(operands, node.args)]
        value = compute(operands)
        if (undefined := _undefined(node, operands)) is not None:
            return self._anything(value, undefined)
        if node.entry.kind in MOVES or node.entry.rounding == "never" or not dtypes.is_float(node.dtype):
            return value
        exact = None if node.entry.rounding == "always" else _exact(node, value, operands)
        return self._noisy(value, ROUNDS_TO.get(node.op, node.dtype), exact)

    def _summed(self, node: Tensor, x: Any, a: Tensor) -> Any:
        """The operand `x` of a sum or product, the value of `a`, with noise: that of its dtype, or that of one rounding
        to `multiplied` if it is a computed operand of a product and this is more."""
        exact, size = _short(x, a.dtype), NOISE.get(a.dtype, 0.0)
        if self.multiplied and node.entry.kind == "contraction" and _is_computed(a):
            size = max(size, compare.UNITS[self.multiplied])
        return self._noisy(x, a.dtype, exact, size)

    def _noisy(self, x: Any, dtype: str, exact: Any | None, size: float | None = None) -> Any:
        """Floats with relative noise except where they are `exact`; other dtypes unchanged. `size`: largest noise, that
        of the dtype by default."""
        if not dtypes.is_float(dtype):
            return x
        size = self.times * (NOISE[dtype] if size is None else size) * (-1 if self.mirrored else 1)
        factor = self.random(x.shape)  # in place: large weights are bound by memory
        factor *= 2 * size
        factor += 1.0 - size
        if exact is not None:
            if module_of(x) is np:
                np.copyto(factor, 1.0, where=exact)
            else:
                factor.masked_fill_(exact, 1.0)
        factor *= wide(x)
        return factor

    def _anything(self, value: Any, places: Any) -> Any:
        """Integers, with the elements in the mask `places` replaced by random numbers."""
        xp = module_of(value)
        chance = 100 * (1.0 - self.random(value.shape) if self.mirrored else self.random(value.shape))
        other = chance.astype(value.dtype) if xp is np else chance.to(value.dtype)
        return xp.where(places, other, value)


def _is_computed(value: Tensor) -> bool:
    """Whether a value is more than elements of one in memory, moved or cast."""
    while value.args and (value.entry.kind in MOVES or value.op == "cast"):
        value = value.args[0]
    return bool(value.args)


def _short(x: Any, dtype: str) -> Any:
    """Mask of the floats with at most seven significand bits, which every float dtype holds exactly; all elements for
    other dtypes."""
    if not dtypes.is_float(dtype):
        return x == x
    x = wide(x)
    bits = x.view(np.int64) if module_of(x) is np else x.view(module_of(x).int64)
    return bits & LOW_BITS == 0


def _exact(node: Tensor, value: Any, operands: Sequence[Any]) -> Any:
    """Mask of the elements that are not rounded: results with few significand bits (`_short`) of operands with few
    bits."""
    found = _short(value, node.dtype)
    for x, a in zip(operands, node.args):
        there = _short(x, a.dtype)
        found = found & (there if node.entry.pointwise else bool(there.all()))
    return found


def _undefined(node: Tensor, operands: Sequence[Any]) -> Any | None:
    """Mask of the elements whose integer result is undefined (a cast of a float outside the range, a division by zero);
    None if there are none."""
    if node.op == "cast" and dtypes.category(node.dtype) == "int" and dtypes.is_float(node.args[0].dtype):
        x = operands[0]
        off = ~((x > float(dtypes.least(node.dtype)) - 1.0) & (x < float(dtypes.greatest(node.dtype)) + 1.0))
    elif node.op in ("floordiv", "mod") and dtypes.category(node.dtype) == "int":
        off = operands[1] == 0
    else:
        return None
    return off if bool(off.any()) else None


__all__ = ["KernelFault", "RoundingSensitivity", "kernel_fault"]
