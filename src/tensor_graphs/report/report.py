"""Defines the report of an optimization: plain fields, JSON, a text table, and a self-contained HTML page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from ..errors import BadModelError
from ..extract.model.plan import Plan
from ..plain import Natural, decode, read_bytes
from ..wording import counted, spelled_us, spelled_values
from .older_reports import FIELDS, renamed
from .records import (
    Amount,
    BlockReport,
    BucketReport,
    BufferReport,
    Difference,
    FinalistReport,
    KernelReport,
    OperationReport,
    StepReport,
    UserKernelReport,
    kernel_rows,
    step_rows,
)
from .timeline import Rows, is_span

#: What a program's calls run: the plan that was found, the unfused graph by library kernels, or the caller's module
#: or function.
PROGRAM, AS_WRITTEN, CALLER = "program", "as written", "caller"
MAX_REPORT_BYTES = 1 << 28  # bytes of a report.json
FEW_DIGITS = 0.1  # relative error of the graph as written from which the report has a note


def _plain(value: Any) -> Any:
    """A value with dataclasses as dicts, and new containers; `dataclasses.asdict` copies every leaf as well."""
    if is_dataclass(value):
        return {name: _plain(x) for name, x in vars(value).items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(x) for x in value)
    return {k: _plain(x) for k, x in value.items()} if isinstance(value, dict) else value


@dataclass
class Report:
    """The result of `optimize` as data. Times in µs unless the name says seconds.

    `nodes`: operations of the model; `e_nodes`, `classes`: size of its e-graph; `stopped`: which limits ended
    saturation. `candidates`: kernels that match. `kernels_before`: calls if each operation were one kernel (0:
    unknown); `kernels_after`: calls of the program. `cost_us`: sum of the plan's prices; `lower_bound_us`: bound that
    no plan of this e-graph at these prices is below; `method`: solvers that found and proved the plan. `measured_now`:
    kernel calls measured by this search; `optimism_us`: how far optimistic prices of unmeasured kernels are below their
    predictions; `search_stopped`: "measured", "budget" or "prices only". `latency_before_us`, `latency_after_us`: calls
    of the unfused baseline and of the program. `snapshot`: id of the cost store's content.
    """

    model: str
    backend: str
    dims: dict[str, Natural] = field(default_factory=dict)  # sizes that free dimensions were bound to, or searched at
    nodes: Natural = 0
    e_nodes: Natural = 0
    classes: Natural = 0
    blocks: list[BlockReport] = field(default_factory=list)
    stopped: str = ""
    rules: dict[str, tuple[Natural, Amount]] = field(default_factory=dict)  # rule name -> (matches, seconds)
    candidates: Natural = 0
    kernels_before: Natural = 0
    kernels_after: Natural = 0
    kernels: list[KernelReport] = field(default_factory=list)
    cost_us: Amount = 0.0
    lower_bound_us: Difference = 0.0
    optimal: bool = False
    method: str = ""
    # origin of the price (measured, shipped, predicted, bound) -> number of kernels in the plan
    priced: dict[str, Natural] = field(default_factory=dict)
    measured_now: Natural = 0
    optimism_us: Difference = 0.0
    search_stopped: str = ""
    from_plan_cache: bool = False
    plan_cache_notes: list[str] = field(
        default_factory=list
    )  # why a cached plan was not used; why this plan was not cached
    finalists: list[FinalistReport] = field(default_factory=list)  # the predicted best plan first; [] if none was timed
    latency_before_us: Amount | None = None
    latency_after_us: Amount | None = None
    caller_us: Amount | None = None  # whole calls of the caller's module or function, if compared
    program_us: Amount | None = None  # whole calls of the program, timed alongside
    compared: str = ""  # outcome of that comparison, or why there was none
    runs: str = PROGRAM  # what calls of the program run: PROGRAM, AS_WRITTEN or CALLER
    verification: dict[str, Any] | None = None
    seconds: dict[str, Amount] = field(default_factory=dict)
    measuring: dict[str, Amount] = field(default_factory=dict)  # GPU only: seconds by part, and counts
    timeline: Rows = field(default_factory=dict)  # spans of each activity, in seconds since the call
    omitted: list[str] = field(default_factory=list)  # work omitted because of the budget or a request to stop
    interrupted: bool = False  # whether there was such a request: Ctrl-C, `Progress.stopped`
    # saturation limits, effort, rules, and the largest iteration count of a block
    searched: dict[str, Any] = field(default_factory=dict)
    snapshot: str = ""
    source: str = ""  # path of the emitted source, once saved
    warnings: list[str] = field(default_factory=list)
    steps: list[StepReport] = field(default_factory=list)  # kernel calls of the plan, in order
    buffers: list[BufferReport] = field(default_factory=list)  # the workspace's memory map
    workspace: Natural = 0  # bytes
    operations: list[OperationReport] = field(default_factory=list)  # the simplified model, if it is not large
    # the best plan over time: seconds since the call, µs at optimistic prices, µs at current prices
    curve: list[tuple[Amount, Amount, Amount]] = field(default_factory=list)
    sizes: dict[str, str] = field(default_factory=dict)  # dimensions that stayed free: "1..2048 (searched at 128)"
    buckets: list[BucketReport] = field(default_factory=list)  # of one of these dimensions; [] for one plan
    quantization: str = ""  # what `quantize=` did to the weights, and their error
    fixed_arguments: dict[str, str] = field(default_factory=dict)  # examples that are no tensors: name -> value
    user_kernels: list[UserKernelReport] = field(default_factory=list)  # that took part in the search

    @classmethod
    def of_plan(cls, plan: Plan) -> Report:
        """Report of a plan that was made without a search: its kernels and their prices."""
        kernels = kernel_rows((s.template, s.cost) for s in plan.steps)
        priced: dict[str, int] = {}
        for k in kernels:
            priced[k.source] = priced.get(k.source, 0) + k.count
        return cls(
            plan.graph.name, " + ".join(dict.fromkeys(k.backend for k in kernels)), nodes=len(plan.graph.nodes()),
            kernels_after=plan.kernels, kernels=kernels, cost_us=plan.cost, lower_bound_us=plan.lower_bound,
            optimal=plan.lower_bound >= plan.cost * (1 - 1e-6), priced=priced, steps=step_rows(plan),
        )  # fmt: skip

    def fields(self) -> dict[str, Any]:
        """All fields as JSON values, the input of `of_json`."""
        return {name: _plain(value) for name, value in vars(self).items()}

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Report:
        """Report from the JSON values of `fields`. Raises KeyError, TypeError or ValueError for anything else."""
        data = renamed(data)
        blocks = [BlockReport(**b) for b in data["blocks"]]
        kernels = [KernelReport(**k) for k in data["kernels"]]
        rules = {str(name): (int(matches), float(seconds)) for name, (matches, seconds) in data["rules"].items()}
        rows = {
            "steps": [StepReport(**x) for x in data.get("steps", [])],
            "buffers": [BufferReport(**x) for x in data.get("buffers", [])],
            "operations": [OperationReport(**x) for x in data.get("operations", [])],
            "curve": [(float(t), float(low), float(us)) for t, low, us in data.get("curve", [])],
        }
        finalists = [FinalistReport(**f) for f in data.get("finalists", ())]
        lists = {"blocks": blocks, "kernels": kernels, "finalists": finalists, "omitted": list(data["omitted"])}
        lists["buckets"] = [BucketReport(**b) for b in data.get("buckets", ())]
        lists["user_kernels"] = [UserKernelReport(**k) for k in data.get("user_kernels", ())]
        return cls(**{**data, **lists, **rows, "rules": rules})

    @classmethod
    def read(cls, path: Path) -> Report:
        """The report of a `report.json`. Raises BadModelError if the file is not a report."""
        try:
            data = renamed(json.loads(read_bytes(path, MAX_REPORT_BYTES)))
            rules = {n: [r["matches"], r["seconds"]] for n, r in data.get("rules", {}).items()}
            found: Report = decode(cls, {**data, "rules": rules})
            if (v := found.verification) is not None:
                found.verification = v | {k: float(v[k]) for k in ("error_before", "error_after", "allowed")}
                found.verification |= {"passed": bool(v["passed"]), "seeds": int(v["seeds"])}
                failed = [
                    f | {"message": str(f["message"]), "excluded": [*map(str, f["excluded"])]}
                    for f in v.get("failed", ())
                ]
                found.verification |= {"failed": failed}
            if any(not 0 <= r < i for i, o in enumerate(found.operations) for r in o.reads):
                raise ValueError("an operation reads one that does not come before it")
            if not all(is_span(span) for spans in found.timeline.values() for span in spans):
                raise ValueError("a span of the timeline has no begin and end")
        except (OSError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise BadModelError(f"the file is not a report: {error!r}"[:300], where=str(path)) from None
        return found

    @property
    def instances(self) -> int:
        """Number of occurrences, in the model, of its blocks (repeated subgraphs)."""
        return sum(b.instances for b in self.blocks)

    @property
    def gap(self) -> float:
        """Relative gap between the plan's cost and its proven lower bound: (cost - bound) / cost."""
        return (self.cost_us - self.lower_bound_us) / self.cost_us if self.cost_us > 0 else 0.0

    @property
    def _end(self) -> str:
        return "a request to stop" if self.interrupted else "the budget"

    @property
    def speedup(self) -> float | None:
        """Measured latency before divided by after; None if not measured."""
        if not self.latency_before_us or not self.latency_after_us:
            return None
        return self.latency_before_us / self.latency_after_us

    def to_json(self) -> dict[str, Any]:
        """All fields and derived values as plain data; fields that were renamed also under their old names."""
        from dataclasses import asdict

        found = asdict(self)
        found["rules"] = {n: {"matches": m, "seconds": s} for n, (m, s) in self.rules.items()}
        found |= {old: found[new] for old, new in FIELDS.items()}
        found |= {"gap": self.gap, "speedup": self.speedup, "total_seconds": sum(self.seconds.values())}
        return found

    def rows(self) -> list[tuple[str, str]]:
        """The summary as (label, text) pairs."""
        rest = [
            ("weights", self.quantization),
            ("sizes", ", ".join(f"{name}: {text}" for name, text in self.sizes.items())),
            ("fixed", spelled_values(self.fixed_arguments)),
            *(("bucket", str(b)) for b in self.buckets),
            *(("user", str(k)) for k in self.user_kernels),
            ("seconds", f"{sum(self.seconds.values()):.1f}: "
                        + ", ".join(f"{n} {s:.1f}" for n, s in self.seconds.items() if s >= 0.05)),
            ("omitted", f"{'the search was stopped' if self.interrupted else 'out of time'}: {', '.join(self.omitted)}"
                        if self.omitted else ""),
            ("source", self.source),
        ]  # fmt: skip
        notes = [*(("cache", why) for why in self.plan_cache_notes), *(("note", w) for w in self.warnings)]
        said = [(label, text) for label, text in rest if text]
        return [*self._search_rows(), *self._time_rows(), *self._error_rows(), *said, *notes]

    def _search_rows(self) -> Iterator[tuple[str, str]]:
        """Rows about the model, its e-graph and the chosen plan."""
        dims = "".join(f", {n}={s}" for n, s in self.dims.items())
        yield "model", f"{self.model}, {counted(self.nodes, 'node')}{dims}"
        yield "backend", self.backend
        classes = counted(self.classes, "class", "classes")
        yield "e-graph", f"{counted(self.e_nodes, 'e-node')} in {classes}; {self.stopped}"
        yield "blocks", f"{len(self.blocks)} unique of {self.instances}"
        before = f"; {self.kernels_before} where each op of the simplified graph is one" if self.kernels_before else ""
        yield "kernels", f"{counted(self.kernels_after, 'call')} in the program ({_counted(self.priced)}){before}"
        gap = "optimal" if self.optimal else f"gap {100 * self.gap:.1f} %"
        ended = f"; {self._end} ended the search" if self.search_stopped == "budget" else ""
        cached = "; from the plan cache" if self.from_plan_cache else ""
        yield (
            "plan",
            (
                f"{spelled_us(self.cost_us)}, proven bound {spelled_us(self.lower_bound_us)} "
                f"({gap} within this e-graph, {self.method}{ended}{cached})"
            ),
        )

    def _time_rows(self) -> Iterator[tuple[str, str]]:
        """Rows about the times of the program, and of other plans and programs that were compared with it."""
        if self.latency_before_us and self.latency_after_us:
            before, after = self.latency_before_us, self.latency_after_us
            yield "latency", f"{spelled_us(before)} before, {spelled_us(after)} after ({before / after:.2f}x)"
        if self.finalists:
            timed = (
                f"{spelled_us(f.measured_us)} (predicted {spelled_us(f.predicted_us)}{f', {f.launching}' if f.launching else ''})"
                f"{', chosen' * f.chosen}"
                for f in self.finalists
                if f.chosen or not f.changed
            )
            yield "plans", f"timed as programs: {'; '.join(timed)}"
            if tried := sum(bool(f.changed) for f in self.finalists):
                yield "schedules", f"{counted(tried, 'other schedule')} timed in the program"
        if self.compared:
            yield "caller", self.compared

    def _error_rows(self) -> Iterator[tuple[str, str]]:
        """Rows about the verification."""
        v = self.verification
        if not v:
            yield "error", "not verified" + ": the search was stopped before" * self.interrupted
            return
        yield (
            "error",
            (
                f"{v['error_before']:.2e} before, {v['error_after']:.2e} after, {v['allowed']:.2e} allowed "
                f"({'passed' if v['passed'] else 'FAILED'}, {counted(v['seeds'], 'seed')})"
            ),
        )
        if not v["error_before"] < FEW_DIGITS:
            yield "note", "the graph as written, in its own dtypes, is far from its float64 result (error before)"
        for f in v.get("failed", ()):
            then = f"; next plan without {', '.join(f['excluded'])}" if f["excluded"] else ""
            yield "failed", f"a plan before: {f['message']}{then}"

    def __str__(self) -> str:
        return "\n".join(f"{label:>8}  {text}" for label, text in self.rows())

    __repr__ = __str__

    def __getattr__(self, name: str) -> Any:
        """Value of a field that was renamed, under its old name. Raises AttributeError for other names."""
        if name not in FIELDS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self, FIELDS[name])

    def _repr_html_(self) -> str:
        from .notebook import notebook_html

        return notebook_html(self)

    def html(self, sections: Mapping[str, str] | None = None) -> str:
        """The report as a self-contained HTML page: no script, no network. `sections`: further ones, title -> HTML."""
        from .page import report_page

        return report_page(self, sections or {})


def _counted(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in parts.items()) or "none"
