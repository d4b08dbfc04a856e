"""Defines tolerances and verdicts (whether outputs are within tolerance), and compares a program's output with its
references."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..backends.runtime.marshalling import array_of, is_torch
from ..backends.verification import compare
from ..backends.verification.compare import WorstError
from ..egraph.types import dtypes
from ..errors import UsageError, VerificationError
from ..plain import as_float

Array = np.ndarray[Any, Any]


Tolerance = str | float


Values = dict[str, Any]  # inputs and states by name: arrays, or tensors on one device


FACTORS = {"eager": 1.25, "fast": 2.0}


MISCOMPILE = 1e3  # a miscompile has more than this multiple of the allowed error


WRONG = 0.02  # and more than this error in absolute terms


FAR = 10.0  # multiple of the allowed norm error above which elements are not reconsidered


# slack for values inside of a training step: eager kernels round by as much more than the reference run
INNER = 4.0
ODD = 4.0  # slack for inputs with a few large values, which dominate an output's norm


NOWHERE = WorstError()


@dataclass(frozen=True)
class OutputError:
    """Errors of the output `name`, the worst over the inputs (seeds) it was verified on, with the error `allowed`."""

    name: str
    plan: float  # relative Frobenius error of the program against float64
    original: float  # the same of the unoptimized graph in its own dtypes
    allowed: float
    finite: bool = True  # NaN and infinities are only where allowed
    discrete: bool = False  # integers, bools, or bitwise comparison: `plan` is the fraction of unequal elements
    off: float | None = None  # relative error of floats that are compared bitwise
    worst: WorstError = NOWHERE  # the element or slice with the largest error relative to its own limit

    @property
    def passed(self) -> bool:
        """Whether the norm, every slice and every element are within tolerance, and NaN and infinities where
        allowed."""
        return self.finite and self.excess <= 1

    @property
    def excess(self) -> float:
        """Error divided by the allowed error: of the norm, or of the worst element or slice if larger.

        Above 1 it fails.
        """
        whole = self.plan / self.allowed if self.allowed else (math.inf if self.plan else 0.0)
        return whole if self.discrete else max(whole, self.worst.ratio)

    @property
    def message(self) -> str:
        """Text for messages: by how much the output is off, how much is allowed, and where it is worst."""
        away = f"is off by {self.plan:.3g}" if self.finite else "has NaN or infinities where they may not be"
        place = f" ({self.worst.message if not self.discrete else self.worst.where})" if self.worst.where else ""
        return f"output {self.name!r} {away}, allowed {self.allowed:.3g}{place}"

    @property
    def miscompiled(self) -> bool:
        """Whether the error is larger than rounding explains."""
        if not self.finite:
            return True
        if self.off is not None:
            return not self.off <= max(MISCOMPILE * self.original, WRONG)
        if self.discrete:
            return self.plan > 0
        local = self.worst.ratio > MISCOMPILE and self.worst.relative > WRONG
        return local or not self.plan <= max(MISCOMPILE * self.allowed, WRONG)


@dataclass(frozen=True)
class FailedAttempt:
    """A plan that failed verification: its worst output, and the rules or kernels that were excluded from the next plan
    for it."""

    output: OutputError
    excluded: tuple[str, ...] = ()
    elsewhere: str = ""  # text: the problem at other sizes, if the plan failed there

    def to_json(self) -> dict[str, Any]:
        """The attempt as JSON values."""
        o = self.output
        return {
            "output": o.name, "error_before": o.original, "error": o.plan, "allowed": o.allowed,
            "place": o.worst.where, "place_over_limit": o.worst.ratio, "message": self.elsewhere or o.message,
            "excluded": list(self.excluded),
        }  # fmt: skip


@dataclass(frozen=True)
class Verification:
    """Verdict on one program: errors of its outputs against float64, and the errors allowed.

    `seeds`: number of inputs. `note`: text about how it was verified. `attempts`: number of plans tried, this one
    included.
    """

    outputs: tuple[OutputError, ...]
    seeds: int
    tolerance: Tolerance
    note: str = ""
    attempts: int = 1
    dropped: tuple[str, ...] = field(default_factory=tuple)  # what earlier attempts excluded
    failed: tuple[FailedAttempt, ...] = ()  # earlier attempts, in order
    left_out: int = 0  # number of inputs skipped for lack of time
    later_omitted: bool = False  # whether later calls were skipped for lack of time
    compared: float = 1.0  # smallest fraction of the elements of an output that was compared
    uncompared: tuple[str, ...] = ()  # outputs that were not compared at all, for lack of time
    warning: str = ""  # text if the unoptimized graph is accepted far beyond its limits, or kernels were wrong

    @property
    def passed(self) -> bool:
        """Whether every output is within tolerance."""
        return all(o.passed for o in self.outputs)

    @property
    def miscompiled(self) -> bool:
        """Whether some output is wrong beyond rounding."""
        return any(o.miscompiled for o in self.outputs)

    @property
    def omitted(self) -> str:
        """Text that names the part of verification skipped for lack of time; "" if none was."""
        if self.compared < 1.0 or self.uncompared:
            part = f"{100 * (1 - self.compared):.3g} % of the outputs' elements" if self.compared < 1.0 else ""
            return f"verification of {' and '.join([*filter(None, [part]), *map(repr, self.uncompared)])}"
        inputs = f"verification on {self.left_out} of {self.left_out + self.seeds} inputs" if self.left_out else ""
        return " and ".join(filter(None, [inputs, "verification of later calls" if self.later_omitted else ""]))

    @property
    def worst(self) -> OutputError:
        """The output with the largest excess."""
        return max(self.outputs, key=lambda o: (not o.finite, o.excess))

    def of_unoptimized(self) -> Verification:
        """The verdict (whether outputs are within tolerance) on a program that is the unoptimized graph itself: its own
        error on this backend becomes the allowed error.

        The error of the reference interpreter, from which limits are otherwise derived, may be smaller by chance, for
        example for an output of one element. From FAR times those limits on, the verdict has a warning.
        """
        worst = self.worst
        beyond = f"the unoptimized graph runs, {worst.excess:.0f} times beyond its limits: {worst.message}"
        outputs = tuple(
            replace(o, original=max(o.original, o.plan), allowed=max(o.allowed, o.plan),
                    worst=replace(o.worst, ratio=min(o.worst.ratio, 1.0)))
            for o in self.outputs
        )  # fmt: skip
        note = "the unoptimized graph: rewritten ones lost more than the interpreter's rounding allows"
        note = "; ".join(filter(None, (self.note, note)))
        return replace(self, outputs=outputs, note=note, warning=beyond if worst.excess > FAR else "")

    def to_json(self) -> dict[str, Any]:
        """The verdict (whether outputs are within tolerance) as JSON values."""
        w = self.worst
        return {
            "passed": self.passed, "error_before": w.original, "error_after": w.plan, "allowed": w.allowed,
            "seeds": self.seeds, "tolerance": self.tolerance, "note": self.note, "dropped": list(self.dropped),
            "worst_place": w.worst.where, "worst_place_over_limit": w.worst.ratio,
            "places_that_rounding_decides": sum(o.worst.exempt for o in self.outputs),
            "compared": self.compared, "uncompared": list(self.uncompared), "failed": [f.to_json() for f in self.failed],
        }  # fmt: skip


PIECE = 1 << 20  # elements compared at a time, to avoid float64 copies of whole outputs


def pieces(*arrays: Array) -> Iterator[list[Array]]:
    """Yields corresponding slices (at most PIECE elements) of equally shaped arrays, flattened and in float64."""
    flat = [np.asarray(a).reshape(-1) for a in arrays]
    for start in range(0, flat[0].size, PIECE):
        yield [a[start : start + PIECE].astype(np.float64) for a in flat]


def relative_error(value: Array, reference: Array) -> float:
    """Relative error ‖value − reference‖ / ‖reference‖ in float64 over the finite elements.

    ‖value‖ for a reference of zeros.
    """
    return compare.MeasuredErrors(np.asarray(value), np.asarray(reference, np.float64), None).errors[0]


def misplaced(value: Array, reference: Array, original: Array) -> bool:
    """Whether NaN, +inf, -inf or a finite number is where neither the reference nor the original run has it."""
    dtype = dtypes.name_of(np.asarray(original).dtype)
    return any(compare.misplaced(np, v, r, o, dtype).any() for v, r, o in pieces(value, reference, original))


def allowed_error(tolerance: Tolerance, original: float, dtype: str) -> float:
    """Largest relative error that the tolerance allows for an output of `dtype`.

    `original`: relative error of the unoptimized graph. Raises UsageError for an invalid tolerance.
    """
    if not isinstance(tolerance, bool) and (error := as_float(tolerance)) >= 0:
        return error
    if isinstance(tolerance, str) and tolerance == "exact":
        return 0.0
    if not isinstance(tolerance, str) or tolerance not in FACTORS:
        raise UsageError(
            f"unknown tolerance {repr(tolerance)[:80]}", hint='one of "eager", "fast", "exact", or a number'
        )
    ulp = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 2.0**-52}.get(dtype, 2.0**-23)
    return FACTORS[tolerance] * original + 2 * ulp


def rounding_allowance(tolerance: Tolerance) -> float:
    """Relative error that kernels which round operands to fewer digits (TF32, 16-bit products) may add under a
    tolerance: the tolerance itself if it is a number, two float32 ulps for "eager" and "fast", 0 for "exact"."""
    return allowed_error(tolerance, 0.0, "float32")


def worst_of_inputs(found: Sequence[OutputError]) -> OutputError:
    """The largest of one output's errors over several inputs, with the exempt elements of all of them."""
    worst = max(found, key=lambda o: (not o.finite, o.excess))
    return replace(worst, worst=replace(worst.worst, exempt=sum(o.worst.exempt for o in found)))


def in_later_call(error: OutputError) -> OutputError:
    """The error of an output of a later call on the same input, which its text says."""
    where = f"{error.worst.where} in a later call".strip()
    return replace(error, worst=replace(error.worst, where=where))


def have_other_bits(found: Sequence[Any], before: Sequence[Any]) -> bool:
    """Whether any of the results `found` differs in shape or in a bit from the result `before` it; NaNs are equal."""
    for x, y in zip(found, before, strict=True):
        floating = dtypes.is_float(dtypes.name_of(y.dtype))
        if tuple(x.shape) != tuple(y.shape) or not bool(compare.equal_bits(x, y, floating).all()):
            return True
    return False


def refuse_writes(changed: bool) -> None:
    """Raise VerificationError if a program `changed` its inputs."""
    if changed:
        raise VerificationError("the program writes to its inputs", hint="report this with the model")


def in_form_of(y: Any, like: Any) -> Any:
    """Convert an output `y` to the kind of its reference `like`: a NumPy array, or a tensor on the reference's
    device."""
    if is_torch(like):
        from .on_device import near

        return near(y, like)
    return array_of(y) if is_torch(y) else np.asarray(y)


def compare_output(
    name: str, dtype: str, y: Any, exact: Any, own: Any, tolerance: Tolerance, slack: float = 1.0
) -> OutputError:
    """Compare the output `name` with its float64 reference, as device tensors or as arrays; returns its errors.

    `y`: the program's result, of dtype `dtype`; `exact`: the reference; `own`: result of the unoptimized graph in its
    own dtypes. `slack`: factor on the allowed error.
    """
    unequal: Any = _unequal
    if is_torch(exact):
        from . import on_device

        unequal = on_device.unequal
    y = in_form_of(y, exact)
    if y.shape != exact.shape:
        shapes = WorstError(where=f"its shape is {tuple(y.shape)}, not {tuple(exact.shape)}")
        return OutputError(name, math.inf, 0.0, 0.0, False, discrete=not dtypes.is_float(dtype), worst=shapes)
    if not dtypes.is_float(dtype):
        place = compare.differing(y, own, None if tolerance == "exact" else exact)
        return OutputError(name, place.ratio, 0.0, 0.0, discrete=True, worst=place)
    if tolerance == "exact":
        share = unequal(y, own)
        if not share:
            return OutputError(name, share, 0.0, 0.0, discrete=True)
        off, original, finite = _errors(y, exact, own)
        return OutputError(name, share, original, 0.0, finite, discrete=True, off=off)
    found = _measured(y, exact, own)
    plan, original = found.errors
    allowed = slack * allowed_error(tolerance, original, dtype)
    return OutputError(name, plan, original, allowed, found.finite, worst=found.worst(dtype, allowed))


def _measured(y: Any, exact: Any, own: Any) -> compare.MeasuredErrors:
    """Error measurement, on the host if device memory is insufficient."""
    if is_torch(exact):
        import torch

        with suppress(torch.OutOfMemoryError):
            return compare.MeasuredErrors(y, exact, own)
        y, exact, own = y.cpu(), exact.cpu(), own.cpu()
    return compare.MeasuredErrors(y, exact, own)


def _unequal(y: Array, own: Array) -> float:
    """Fraction of bitwise unequal elements, all NaNs being equal; 1 for different shapes."""
    if y.shape != own.shape:
        return 1.0
    same = compare.equal_bits(y, own, dtypes.is_float(dtypes.name_of(own.dtype)))
    return float(np.mean(~same)) if own.size else 0.0


def _errors(y: Any, exact: Any, own: Any) -> tuple[float, float, bool]:
    """Return (relative error of `y`, relative error of `own`, whether NaN and infinities are only where allowed)."""
    found = _measured(y, exact, own)
    return (*found.errors, found.finite)
