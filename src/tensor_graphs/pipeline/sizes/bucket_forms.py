"""Times the forms (alternatives) that may run the calls of a bucket (range of sizes): the program for all sizes, a
program optimized for the bucket, and the caller's function.

Whole calls of each form are timed at chosen sizes. Where different forms are fastest at the two ends of a bucket,
bisection finds the size at which it is divided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite, isqrt
from statistics import median

import numpy as np

from ...backends.program.program import Program
from ...backends.runtime.marshalling import is_torch, tensor_of
from ...egraph.ir.graph import Graph
from ...verification.reference import sampled_near
from ..execution import timing
from ..sources.caller import Caller
from .size_ranges import Sizes

MAX_TIMED_SIZE = 4096  # size up to which forms are timed
NOISE = 0.03  # relative difference of times below which the plan for all sizes is preferred
TIMED_S, SETTLED_S = 0.1, 0.02  # seconds of timing forms at one size: at most, and once medians are settled
QUEUED = 8  # calls in a row on a GPU without waiting for their results
HALVINGS = 4  # sizes tried between the ends of a bucket at which different forms are fastest
ALL, OWN, CALLER = "all sizes", "own plan", "caller"  # forms, in the order of preference


def fastest(samples: Mapping[str, Sequence[float]]) -> str:
    """Name of the form (plan for all sizes, own plan, caller's function) to run, given µs of calls of each: a form
    later in `samples` only if it is faster than those before it by more than noise."""
    best, *others = samples
    for form in others:
        if timing.is_surely_faster(samples[form], samples[best], NOISE):
            best = form
    return best


def winners(
    least: int, most: int, fastest_at: Callable[[int], str], halvings: int = HALVINGS
) -> list[tuple[int, int, str]]:  # fmt: skip
    """The range of sizes `least`..`most` divided by the fastest form (plan for all sizes, own plan, caller's function),
    as (least, largest size, form) in ascending order.

    `fastest_at` names the fastest form at a size. If it differs at the two ends, `halvings` steps of bisection
    approximate the size from which the second form is fastest; with 0 steps that is the geometric mean.
    """
    low, high = fastest_at(least), fastest_at(min(most, max(MAX_TIMED_SIZE, least)))
    if low == high:
        return [(least, most, low)]
    below, above = least, min(most, max(MAX_TIMED_SIZE, least))
    for _ in range(halvings):
        between = isqrt(below * above)
        if not below < between < above:
            break
        if fastest_at(between) == low:
            below = between
        else:
            above = between
    above = above if halvings else max(below + 1, isqrt(below * above))
    return [(least, above - 1, low), (above, most, high)]


@dataclass
class Forms:
    """The forms of a bucket (plan for all sizes, own plan, caller's function), and µs of whole calls of each at each
    timed size.

    `programs`: the program of each plan, by form. `dimension`: the free dimension that the buckets divide. `seed`: of
    the inputs. `ended`: polled; True ends the timing. `us`: size -> form -> µs of its calls.
    """

    graph: Graph
    sizes: Sizes  # the searched ones; those of other dimensions stay
    dimension: str
    programs: dict[str, Program]
    caller: Caller | None
    seed: int
    ended: Callable[[], bool]
    us: dict[int, dict[str, list[float]]] = field(default_factory=dict)

    def timed(self, size: int) -> dict[str, list[float]]:
        """µs of whole calls of each form (plan for all sizes, own plan, caller's function) at a size, measured if they
        are not known; infinite for a form that does not run there."""
        if not self.programs.keys() <= self.us.get(size, {}).keys():
            there = self.graph.bind({**self.sizes, self.dimension: size})
            program = next(iter(self.programs.values()))
            given = sampled_near(there, np.random.default_rng(self.seed), program.tensors)
            values = program.near([given[n] for n in program.input_names])
            if self.caller is not None and self.caller.torch:
                values = [x if is_torch(x) else tensor_of(x) for x in values]
            calls: dict[str, timing.Run] = {n: partial(p.flat, *values) for n, p in self.programs.items()}
            if self.caller is not None:
                calls[CALLER] = partial(self.caller.outputs, values)
            runs = {name: call for name, call in calls.items() if _works(call)}
            self.us[size] = {n: [inf] for n in calls} | timed_calls(runs, program.tensors, self.ended)
        return self.us[size]

    def fastest_at(self, size: int) -> str:
        """Name of the form (plan for all sizes, own plan, caller's function) that should run calls at a size: the
        fastest one (`fastest`)."""
        return fastest(self.timed(size))

    def compiled(self, sizes: Sequence[int]) -> str:
        """OWN if a bucket's own plan is faster than the plan for all sizes at each of these sizes, else ALL.

        This is the choice for a saved program, which does not have the caller's function.
        """
        found = {fastest({n: us for n, us in self.timed(size).items() if n != CALLER}) for size in sizes}
        return OWN if found == {OWN} else ALL

    def medians(self, least: int, most: int) -> dict[str, dict[str, float]]:
        """Median µs of each form (plan for all sizes, own plan, caller's function) at each timed size from `least` to
        `most`: size -> form -> µs, for the report."""
        rows = {
            str(n): {f: median(us) for f, us in of.items()} for n, of in sorted(self.us.items()) if least <= n <= most
        }
        return {n: {f: round(us, 2) for f, us in of.items() if isfinite(us)} for n, of in rows.items()}


def _works(call: timing.Run) -> bool:
    """Whether a form runs at a size: there may be too little memory for it."""
    try:
        call()
    except Exception:  # any error that the caller's function raises at these sizes
        return False
    return True


def timed_calls(calls: Mapping[str, timing.Run], device: str, ended: Callable[[], bool]) -> dict[str, list[float]]:
    """Samples in µs per whole call of each form (plan for all sizes, own plan, caller's function) on `device`,
    interleaved; on a GPU each sample is QUEUED calls and one wait. `ended`: polled; ends the sampling."""
    clock, count = timing.wall_us, 1
    if device not in ("", "cpu"):
        import torch

        count = QUEUED

        def clock(call: timing.Run) -> float:
            torch.cuda.synchronize()
            return timing.wall_us(lambda: ([call() for _ in range(QUEUED)], torch.cuda.synchronize()))

    if not calls:
        return {}
    taken = timing.sampled(calls, seconds=TIMED_S, settled=SETTLED_S, clock=clock, ended=ended)
    return {name: [us / count for us in samples] for name, samples in taken.items()}


__all__ = ["ALL", "CALLER", "HALVINGS", "MAX_TIMED_SIZE", "OWN", "Forms", "fastest", "timed_calls", "winners"]
