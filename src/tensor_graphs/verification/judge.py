"""Compares a run's outputs with their references; elements whose value depends on rounding or on the order of a sum are
exempt.

For whole outputs (`verify.py`) and for strips of large ones (`strips.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..backends.verification import compare
from ..backends.verification.overflow import changed_by_order
from ..backends.verification.rounding_noise import TIMES, RoundingSensitivity
from ..egraph.ir.graph import Graph
from ..egraph.types import dtypes
from .comparison import FACTORS, FAR, INNER, MISCOMPILE, WRONG, OutputError, Tolerance, compare_output, in_form_of

FEW = 16  # elements of an output up to which the error of one run says little about its rounding
RARE = 1e-3  # share of wrong integers or bools up to which runs with more noise are made
#: Magnitude of the noise of `RoundingSensitivity` in units of the largest rounding error of 16-bit floats.
HALF_ULPS = 4.0


@dataclass
class Judge:
    """Comparison of the outputs of one run of a program with their references.

    `graph`: the program's original graph, composite ops decomposed. `values`: the inputs and states of the run by name.
    `exact`, `own`: outputs of the graph in float64 and in its own dtypes. `tolerance`: the user's option. `slack`:
    factor on the allowed error. `adversarial`: whether the values are large numbers or ties. `device`: Torch device of
    the values; "": the host. `weights`: params already on it, by name. `poll` is called between operations and may
    raise to interrupt a run. `noise`: known runs with rounding noise on these values.
    """

    graph: Graph
    values: Mapping[str, Any]
    exact: Sequence[Any]
    own: Sequence[Any]
    tolerance: Tolerance
    slack: float = 1.0
    adversarial: bool = False
    device: str = ""
    weights: dict[str, Any] | None = None
    poll: Callable[[], object] = lambda: None
    noise: RoundingSensitivity | None = None

    @cached_property
    def _disturbed(self) -> RoundingSensitivity:
        return self.noise or RoundingSensitivity(self.graph, self.values, self.device, self.weights, self.poll)

    @cached_property
    def _any_order(self) -> Sequence[Any]:
        return changed_by_order(
            self.graph, self.values, self.own, device=self.device, kept=self.weights, poll=self.poll
        )

    def judged(self, k: int, name: str, y: Any) -> OutputError:
        """Error of the value `y` that a program gave for output `k`, which is called `name`. Halted raised by `poll`
        propagates."""
        return self._reconsidered(*self._first(k, name, y), k)

    def all_judged(self, names: Sequence[str], found: Sequence[Any], tolerated: float) -> list[OutputError]:
        """Errors of all outputs: `found` are the program's values, `names` their names. `tolerated`: multiple of the
        limits up to which the caller still accepts an output.

        Looking for elements that rounding decides takes up to eleven runs of the graph; it is omitted if the norm of
        some output is over its limit anyway.
        """
        first = [self._first(k, name, y) for k, (name, y) in enumerate(zip(names, found, strict=True))]
        norm = 0.0 if self.adversarial else max((_norm(e) for e, _ in first), default=0.0)
        errors = []
        for k, (error, y) in enumerate(first):
            if norm > tolerated and not error.miscompiled:  # the verdict is known
                errors.append(replace(error, worst=replace(error.worst, ratio=min(error.worst.ratio, norm))))
            else:
                errors.append(self._reconsidered(error, y, k))
        return errors

    def _first(self, k: int, name: str, y: Any) -> tuple[OutputError, Any]:
        """(error of output `k` before elements are reconsidered, the output in its own order of sums)."""
        dtype, tolerance, slack = self.graph.roots[k].dtype, self.tolerance, self.slack
        if name in self.graph.inner and tolerance in FACTORS:
            slack = max(slack, INNER)
        exact, own = self.exact[k], self.own[k]
        judged = compare_output(name, dtype, y, exact, own, tolerance, slack)
        if tolerance in FACTORS and judged.allowed < judged.plan <= WRONG and self._by_chance(k):
            usual = FACTORS[str(tolerance)] * self._disturbed.relative(k) / (TIMES * HALF_ULPS)
            judged = compare_output(name, dtype, y, exact, own, max(judged.allowed, slack * usual))
        if tolerance != "exact" and not judged.passed and not (judged.finite and dtypes.is_float(dtype)):
            y, free = self._as_in_own_order(in_form_of(y, exact), k)
            judged = compare_output(name, dtype, y, exact, own, tolerance, slack)
            judged = replace(judged, worst=replace(judged.worst, exempt=judged.worst.exempt + free))
        return judged, y

    def _by_chance(self, k: int) -> bool:
        """Whether the own run's error of output `k` may be small by chance: it has few elements, of a wider dtype than
        16-bit values of the graph, as the loss of a training step under autocast has. How far such rounding moves it
        says more than the error of one run."""
        few = 0 < math.prod(self.exact[k].shape) <= FEW and self.graph.roots[k].dtype not in dtypes.HALVES
        return few and any(n.dtype in dtypes.HALVES for n in self.graph.nodes())

    def _as_in_own_order(self, y: Any, k: int) -> tuple[Any, int]:
        """(output `k` with the own run's elements where sums overflow and their order decides the result, their
        number).

        A float must be infinite or NaN in both: overflow explains no finite number.
        """
        own = self.own[k]
        if tuple(y.shape) != tuple(own.shape):
            return y, 0
        xp = compare.module_of(own)
        differs = y != own if not dtypes.is_float(dtypes.name_of(own.dtype)) else ~(xp.isfinite(y) | xp.isfinite(own))
        if not bool(differs.any()):
            return y, 0
        free = differs & self._any_order[k]
        return xp.where(free, own, y), int(free.sum())

    def _reconsidered(self, judged: OutputError, y: Any, k: int) -> OutputError:
        """An output's error without the elements that rounding decides, if it is over a limit.

        On adversarial inputs (large values, ties) the norm is also taken without these elements: a softmax of logits
        around 1e3 moves by 1e-4 when one of them is rounded. Otherwise the limit of the norm is unchanged."""
        exact, own, dtype = self.exact[k], self.own[k], self.graph.roots[k].dtype
        if judged.passed or judged.off is not None or tuple(y.shape) != tuple(exact.shape):
            return judged
        discrete = not dtypes.is_float(dtype)
        far = max(MISCOMPILE * judged.allowed, WRONG) if self.adversarial else FAR * judged.allowed
        if not discrete and (not judged.finite or judged.plan > far):
            return judged
        if judged.discrete and not discrete:
            return judged  # bitwise comparison
        y = in_form_of(y, exact)
        for moved in self._disturbed.refined():
            if discrete:
                judged = _places(judged, compare.differing(y, own, exact, moved[k]))
            else:
                found = compare.MeasuredErrors(y, exact, own, moved[k])
                plan = found.errors[0] if self.adversarial else judged.plan
                judged = replace(judged, plan=plan, worst=found.worst(dtype, judged.allowed))
            if judged.passed:
                return judged
        for changed in self._disturbed.refined_wider() if discrete and judged.plan <= RARE else ():
            judged = _places(judged, compare.differing(y, own, exact, changed[k]))
            if judged.passed:
                break
        return judged


def _places(judged: OutputError, place: compare.WorstError) -> OutputError:
    """The error of an output of integers or bools whose wrong elements are `place`."""
    return replace(judged, plan=place.ratio, worst=place)


def _norm(error: OutputError) -> float:
    """Relative error of a float output as a multiple of its limit, if it exceeds the limit and rounding may explain
    that; else 0."""
    if error.discrete or error.miscompiled or error.plan <= error.allowed:
        return 0.0
    return error.plan / error.allowed if error.allowed else math.inf


__all__ = ["Judge"]
