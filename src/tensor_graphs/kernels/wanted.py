"""The briefs of a model: optimize it, and find the regions of its plan with the largest gaps."""

from __future__ import annotations

from typing import Any

from ..errors import UsageError
from ..options import Options
from ..pipeline.optimize import optimize
from ..pipeline.session import Session, open_store
from ..progress import Progress
from .briefs import Brief
from .regions import regions_of


def wanted(source: Any, example_inputs: Any = None, *, count: int = 5, **options: Any) -> list[Brief]:
    """Briefs of the `count` regions of a model's plan with the largest gap between time and roofline limit, largest first.

    `source`, `example_inputs`, `options`: as for `optimize`; free dimensions are fixed at the sizes it searches at.
    Errors are those of `optimize`; UsageError if the model has no plan to look at.
    """
    known = {**options, "fixed": options.get("fixed") or True, "allow_caller": False}
    program = optimize(source, example_inputs, **known)
    if program.plan is None or program.report is None:
        raise UsageError("the program has no plan", hint="give a model, not a saved program")
    session = Session(Options(**{k: v for k, v in known.items() if k in ("costdb", "backend")}), Progress())
    with open_store(session) as store:
        regions = regions_of(program.plan, store, count)
    return [Brief(n, program.report.model, r) for n, r in enumerate(regions, 1)]


__all__ = ["wanted"]
