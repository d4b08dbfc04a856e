"""Makes the briefs (requests for kernels) of a model: optimizes it, and finds the regions of its plan with the largest
gaps to the roofline (lower bound of time)."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from ..errors import UsageError
from ..options import Options
from ..pipeline.context.session import Session, open_store
from ..pipeline.costs.prices import CostPricer, at_stored_prices
from ..pipeline.optimize import optimize
from ..progress import Progress
from .briefs import Brief
from .regions import reason_without_regions, regions_of


class Briefs(list[Brief]):
    """The briefs of a model, largest gap first. `why`: reason why there are none; "" if there are some."""

    def __init__(self, briefs: Iterable[Brief] = (), why: str = "") -> None:
        super().__init__(briefs)
        self.why = why

    def __repr__(self) -> str:
        return super().__repr__() if self else f"[] ({self.why})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{b.region.us:.1f} µs</td><td>{b.region.limit_us:.1f} µs</td><td>{b.region.count}</td>"
            f"<td><code>{escape(b.region.pattern)}</code></td></tr>"
            for b in self
        )
        head = "<tr><th>time of a call</th><th>limit</th><th>calls</th><th>computes</th></tr>"
        return f"<table>{head}{rows}</table>" if self else f"<p>{escape(self.why)}</p>"


def wanted(source: Any, example_inputs: Any = None, *, count: int = 5, **options: Any) -> Briefs:
    """Briefs of the `count` regions of a model's plan with the largest gap between time and roofline limit, largest
    first.

    `source`, `example_inputs`, `options`: a model with its inputs, and options, as `tensor_graphs.optimize` takes them;
    free dimensions are fixed at the sizes it searches at. If the graph runs as it is written, its kernels count at
    their prices in the cost store. If no region is found, the result is empty, and its `why` gives the reason.

    Raises the errors of `optimize`, and UsageError if `count` is below 1, or the search returned no plan.
    """
    if count < 1:
        raise UsageError(f"count must be at least 1, not {count}")
    known = {**options, "fixed": options.get("fixed") or True, "allow_caller": False}
    program = optimize(source, example_inputs, **known)
    if program.plan is None or program.report is None:
        raise UsageError("the program has no plan", hint="give a model, not a saved program")
    session = Session(Options(**{k: v for k, v in known.items() if k in ("costdb", "backend")}), Progress())
    with open_store(session) as store:
        plan = program.plan if program.plan.cost else at_stored_prices(program.plan, CostPricer(store))
        regions = regions_of(plan, store, count)
        why = "" if regions else reason_without_regions(plan, store)
    return Briefs([Brief(n, program.report.model, r) for n, r in enumerate(regions, 1)], why)


__all__ = ["Briefs", "wanted"]
