"""Compares error with time: the programs that `optimize` finds at several tolerances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from ..backends.program.program import Program
from ..errors import NoPlanError, UsageError
from ..option_checks import is_budget, of_kind
from ..pipeline.optimize import optimize
from ..report import charts
from ..wording import counted

TOLERANCES: tuple[str | float, ...] = ("exact", "eager", "fast", 1e-3, 1e-2)
MOST_TOLERANCES = 32


@dataclass(frozen=True)
class ParetoPoint:
    """Program found at one tolerance.

    `error`: its relative error against float64; `us`: time of a call in µs, measured if `measured`, else estimated;
    `best`: no other point has less error and takes less time. `kernels`: number of its kernel calls. `why`: reason if
    there is no program.
    """

    tolerance: str | float
    error: float = math.nan
    us: float = math.nan
    measured: bool = False
    best: bool = False
    kernels: int = 0
    why: str = ""
    program: Program | None = field(default=None, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """The point as plain JSON values, without its program."""
        names = ("tolerance", "error", "us", "measured", "best", "kernels", "why")
        return {n: None if (v := getattr(self, n)) != v else v for n in names}


class Pareto(list[ParetoPoint]):
    """Programs found at several tolerances, in the order of the tolerances.

    Shown as a table, in a notebook with a plot.
    """

    @property
    def front(self) -> list[ParetoPoint]:
        """Points that no other point beats (less error and less time), by rising error."""
        return sorted((p for p in self if p.best), key=lambda p: (p.error, p.us))

    def to_json(self) -> list[dict[str, Any]]:
        """The points as plain JSON values, without their programs."""
        return [p.to_json() for p in self]

    def __str__(self) -> str:
        return "\n".join(
            f"{p.tolerance!s:>8}  " + (p.why or f"{p.error:.2e} error  {p.us:>10.1f} µs {'measured' if p.measured else 'estimated'}  "
            f"{counted(p.kernels, 'kernel')}{'  best' if p.best else ''}") for p in self
        )  # fmt: skip

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(str(p.tolerance))}</td><td>{'' if p.why else f'{p.error:.2e}'}</td>"
            f"<td>{escape(p.why) if p.why else charts.us(p.us)}</td><td>{p.kernels}</td><td>{'best' if p.best else ''}</td></tr>"
            for p in self
        )
        head = "<tr><th>tolerance</th><th>error</th><th>time</th><th>kernels</th><th></th></tr>"
        found = [p for p in self if not p.why]
        return f"<table>{head}{rows}</table>" + (_plot(found) if len(found) > 1 else "")


def pareto(
    source: Any, example_inputs: Any = None, *, tolerances: Sequence[str | float] = TOLERANCES, budget: float = 120.0,
    **options: Any,
) -> Pareto:  # fmt: skip
    """Programs at several tolerances, found within about `budget` seconds in all, with error and time of each.

    Measurements are shared through the cost store, so later tolerances need fewer. A tolerance that no plan meets has
    a point without a program. Other arguments as for `optimize`. Raises UsageError for the argument `tolerance`,
    and for no or too many `tolerances`.
    """
    is_budget("budget", budget)
    of_kind("a list of tolerances", list, tuple)("tolerances", tolerances)
    if "tolerance" in options or not 0 < len(tolerances) <= MOST_TOLERANCES:
        raise UsageError(
            f"pareto takes tolerances=[...], 1 to {MOST_TOLERANCES} of them", hint='tolerances=("eager", 1e-3)'
        )
    found: list[ParetoPoint] = []
    for tolerance in tolerances:
        try:
            program = optimize(source, example_inputs, tolerance=tolerance, budget=budget / len(tolerances), **options)
        except NoPlanError as missing:
            found.append(ParetoPoint(tolerance, why=f"no plan: {missing.message}"))
            continue
        report = program.report
        error = float(report.verification["error_after"]) if report.verification else math.nan
        found.append(ParetoPoint(tolerance, error, report.cost_us, False, False, report.kernels_after, "", program))
    times = {i: p.program.report.latency_after_us for i, p in enumerate(found) if p.program is not None}
    measured = {i: us for i, us in times.items() if us is not None}
    if len(measured) == len(times):  # else all times are sums of kernel times: one kind only
        found = [replace(p, us=measured[i], measured=True) if i in measured else p for i, p in enumerate(found)]
    return marked(found)


def marked(points: Sequence[ParetoPoint]) -> Pareto:
    """The points with `best` set on those that no other point beats (less or equal error and time, one of them
    less)."""

    def beaten(p: ParetoPoint) -> bool:
        return any(o.error <= p.error and o.us <= p.us and (o.error < p.error or o.us < p.us) for o in points)

    return Pareto(replace(p, best=not p.why and p.error == p.error and not beaten(p)) for p in points)


def _plot(points: Sequence[ParetoPoint]) -> str:
    """Error (logarithmic) against time as SVG with colours of its own, for notebooks."""
    left, width, height = 80.0, 560.0, 200.0
    errors = [math.log10(max(p.error, 1e-20)) for p in points if p.error == p.error] or [0.0]
    low, high = math.floor(min(errors)), math.ceil(max(errors) + 1e-9) or 1
    most = 1.1 * max(p.us for p in points) or 1.0
    shapes = [f'<path d="M{left} 0 V{height} H{left + width}" fill="none" stroke="gray"/>']
    for p in points:
        if p.error != p.error:
            continue
        x = left + width * (math.log10(max(p.error, 1e-20)) - low) / max(high - low, 1)
        y = height * (1 - p.us / most)
        label = escape(f"{p.tolerance}: {p.error:.1e}, {charts.us(p.us)}")
        shapes.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{"#1f8a55" if p.best else "gray"}"><title>{label}</title></circle>'
        )
        shapes.append(
            f'<text x="{x + 9:.1f}" y="{y - 6:.1f}" font-size="12" fill="currentColor">{escape(str(p.tolerance))}</text>'
        )
    shapes += [
        f'<text x="{left - 6}" y="12" text-anchor="end" font-size="12" fill="currentColor">{charts.us(most)}</text>',
        f'<text x="{left}" y="{height + 16}" font-size="12" fill="currentColor">error 1e{low}</text>',
        f'<text x="{left + width}" y="{height + 16}" text-anchor="end" font-size="12" fill="currentColor">1e{high}</text>',
    ]
    return f'<svg viewBox="0 0 {left + width + 80:.0f} {height + 22:.0f}" style="max-width:720px;width:100%">{"".join(shapes)}</svg>'


__all__ = ["Pareto", "ParetoPoint", "marked", "pareto"]
