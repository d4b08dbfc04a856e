"""Diagnoses a plan (choice of kernels) that failed verification: wrong rewrites, wrong kernels, or rounding.

Rewrites are wrong if the plan's term, evaluated in float64, differs from the model. A kernel is wrong if the terms
agree but the kernel alone differs from its own term. Everything else is rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..backends.tuning.single_kernel import in_layout, run_outputs
from ..backends.verification import compare
from ..backends.verification import inputs as drawing
from ..backends.verification.rounding_noise import RoundingSensitivity
from ..egraph.evaluate.interpret import evaluate
from ..egraph.ir.graph import Graph
from ..egraph.patterns.rule import Rule
from ..egraph.types import dtypes
from ..errors import TensorGraphsError
from ..extract.model.clock import Halted
from ..extract.model.meaning import output_terms
from ..extract.model.plan import Plan, Step
from .comparison import FAR, WRONG, allowed_error, misplaced, relative_error
from .rewrite_error import TURNS, rewrite_error

Array = np.ndarray[Any, Any]
SAMPLES = 12  # random instances per fired rule


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of a plan that failed verification. Maps are keyed by kernel template name.

    `kernels`: error of the kernel alone, as a multiple of the rounding error that the reference interpreter is allowed.
    `errors`: the same error as a relative error. Of several calls of a kernel, both are of the worst one: a wrong one,
    else the one with the largest multiple.
    """

    rewrites: float  # relative error of the plan's term in float64; 0 if it agrees with the model
    kernels: Mapping[str, float]
    errors: Mapping[str, float]
    steps: tuple[str, ...]  # template names of the plan's kernels, sorted

    @property
    def wrong(self) -> list[str]:
        """Names of the kernels that are wrong beyond rounding: for inputs with which the interpreter is far off itself,
        every kernel is (attention of large scores)."""
        return [n for n, e in self.errors.items() if _is_wrong(e, self.kernels[n])]

    @property
    def miscompiled(self) -> bool:
        """Whether rewrites or a kernel are wrong beyond rounding."""
        return self.rewrites > 0 or bool(self.wrong)

    @property
    def inaccurate(self) -> list[str]:
        """Names of the kernels that are less accurate than the interpreter's rounding allows, worst first."""
        return sorted((n for n, x in self.kernels.items() if x > 1), key=lambda n: -self.kernels[n])

    def blame(self, fired: Sequence[Rule] = ()) -> str:
        """A sentence that names what is suspected: the rewrites with the rules that random instances refute, or wrong
        kernels.

        `fired`: the rules that matched.
        """
        if self.rewrites:
            who = refuted(fired) or [f"none of {len(fired)} rules that matched is refuted by itself"]
            return (
                f"the rewrites: evaluated in float64, the plan's term is off by {self.rewrites:.3g}; {'; '.join(who)}; "
                f"its kernels are {', '.join(self.steps)}"
            )
        return f"the kernels: {', '.join(self.wrong) or 'none alone is wrong; the memory plan or the emitter'}"


def diagnose(
    graph: Graph, plan: Plan, seed: int = 0, *, rewritten: bool = True, ended: Callable[[], bool] = lambda: False,
    device: str = "",
) -> Diagnosis | None:  # fmt: skip
    """Compare the plan's term with the graph in float64, and each kernel alone with its own term; returns what was
    found, or None if time was up during the comparison of the terms.

    `rewritten`: whether the plan may compute another term than the graph. `ended`: returns True when time is up; it is
    called before each operation of the terms, and before each kernel but the first, when the remaining kernels are left
    out. `device`: Torch device on which the terms run if its memory suffices; "": the host.
    """

    def poll() -> None:
        if ended():
            raise Halted

    try:
        rewrites = rewrite_error(graph, plan, seed, device=device, poll=poll) if rewritten else 0.0
    except Halted:
        return None
    worst: dict[str, tuple[float, float]] = {}
    rng = np.random.default_rng(seed)
    for number, step in enumerate(_distinct(plan)):
        if number and ended():
            break
        name, found = step.template.name, kernel_error(step, rng)
        worst[name] = max(worst.get(name, found), found, key=_badness)
    steps = tuple(sorted({s.template.name for s in plan.steps if not s.is_view}))
    kernels = {name: _badness(pair)[1] for name, pair in worst.items()}
    return Diagnosis(rewrites, kernels, {name: error for name, (error, _) in worst.items()}, steps)


def _is_wrong(error: float, ratio: float) -> bool:
    """Whether rounding does not explain a kernel's relative error, `ratio` times the error that it is allowed."""
    return not (error <= WRONG or ratio <= FAR)


def _badness(pair: tuple[float, float]) -> tuple[bool, float]:
    """(whether a kernel with this error and allowed error is wrong, ratio of the two), larger for worse kernels. Where
    both are infinite, nothing is known against the kernel."""
    error, allowed = pair
    ratio = 1.0 if error == allowed else error / allowed
    return _is_wrong(error, ratio), ratio


def _distinct(plan: Plan) -> list[Step]:
    """The kernels of a plan without duplicate calls."""
    seen: dict[Any, Step] = {}
    for step in plan.steps:
        key = (
            step.template.name,
            tuple((o, step.call.operands[o]) for o in step.template.operands),
            tuple(step.call.attrs.items()),
        )
        if not step.is_view:
            seen.setdefault(key, step)
    return list(seen.values())


def kernel_error(step: Step, rng: np.random.Generator) -> tuple[float, float]:
    """Run a kernel alone; returns (its error, the error that rounding explains), of the output that is wrong, else of
    the one with the largest ratio of the two.

    Both are against a float64 run of the kernel's term. The second is the error of the reference interpreter in the
    kernel's dtypes plus some ulps. Errors are relative for floats (of the whole output, or of the worst element if that
    exceeds its limit), infinite if NaN or infinities are misplaced, or if any integer or bool is wrong.
    """
    graph = Graph.of(output_terms(step.template, step.call))
    return max((_kernel_error(step, graph, rng, turn) for turn in TURNS), key=_badness)


def _kernel_error(step: Step, graph: Graph, rng: np.random.Generator, turn: int) -> tuple[float, float]:
    call, roots = step.call, list(graph.outputs)
    operands = drawing.inputs(graph, rng, turn, ("param",))
    with np.errstate(all="ignore"):
        # as they lie in memory: elements of a broadcast or overlapping layout share their values
        operands = {
            n: np.array(in_layout(_stored(a, call.operands[n].type.dtype), call.operands[n]))
            for n, a in operands.items()
        }
        exact = evaluate(roots, {}, params=operands, float64=True)
        own = evaluate(roots, {}, params=operands)
        found = run_outputs(step.template, call, operands)
    kinds = [o.type.dtype for o in call.outputs]
    disturbed = RoundingSensitivity(replace(graph, params=operands), {})
    errors = [
        _error(f, e, _stored(o, k), k, k_th, disturbed)
        for k_th, (f, e, o, k) in enumerate(zip(found, exact, own, kinds, strict=True))
    ]
    return max(errors, key=_badness)


def _error(
    found: Array, exact: Array, own: Array, dtype: str, k: int, disturbed: RoundingSensitivity
) -> tuple[float, float]:
    """Return (error, fair error) of output number `k` of a kernel.

    `disturbed` gives the effect of rounding on that output.
    """
    if not dtypes.is_float(dtype):
        place = compare.differing(found, own, exact)
        for moved in disturbed.refined() if place.ratio > 0 else ():
            place = compare.differing(found, own, exact, moved[k])
            if place.ratio <= 0:
                break
        return (float("inf") if place.ratio > 0 else 0.0), 0.5
    fair = allowed_error("fast", relative_error(own, exact), dtype)
    if misplaced(found, exact, own):
        return float("inf"), fair
    error, place = relative_error(found, exact), compare.worst(found, exact, own, dtype, fair)
    for moved in disturbed.refined() if place.ratio > 1 and error <= FAR * fair else ():
        place = compare.worst(found, exact, own, dtype, fair, moved[k])
        if place.ratio <= 1:
            break
    return (max(error, min(place.relative, 1.0)) if place.ratio > 1 else error), fair


def _stored(array: Array, dtype: str) -> Array:
    """Round an array's values to a storage dtype, keeping the array's own dtype."""
    return array.astype(dtypes.numpy_dtype(dtype)).astype(array.dtype) if dtypes.is_float(dtype) else array


def refuted(rules: Sequence[Rule], samples: int = SAMPLES) -> list[str]:
    """Sentences that name the rules that random instances (`samples` of each) refute, with the reason.

    A rule that cannot be checked is among them.
    """
    from ..rules.check.check import check

    found = []
    for rule in rules:
        try:
            verdict = check(rule, samples=samples)
        except TensorGraphsError as error:
            found.append(f"rule {rule.name} cannot be checked ({error.message})")
            continue
        if verdict.status == "refuted":
            found.append(f"rule {rule.name} is refuted ({verdict.detail})")
    return found
