"""Reports on compiled graphs: which parts have programs, which operators stay eager and why, and what calls took."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from ..wording import counted

KEPT = 256  # graphs of which a process keeps reports

#: What runs a graph: not decided yet, the graph itself, or programs.
SEARCHING, EAGER, PROGRAM = "searching", "eager", "program"
SEARCHED = "searched"  # state of a part between the end of its search and the next call of its graph


@dataclass
class PartReport:
    """Report on one subgraph for which a program is searched."""

    nodes: int  # operators
    inputs_bytes: int  # bytes of its operands at the traced sizes, weights excluded
    outputs_bytes: int
    state: str = SEARCHING  # "searching", "searched", "program of N kernels" or the reason why there is none


@dataclass
class IslandReport:
    """Report on the operators of one kind that stay eager (islands between programs): their name, their `count` and the
    `reason`."""

    operator: str
    count: int
    reason: str
    bytes: int  # bytes of tensors that cross between these operators and programs, at the traced sizes


@dataclass
class TracedReport:
    """Report on one graph of `nodes` operators that AOTAutograd traced. `kind`: "inference", "forward" or "backward".
    `parts`: subgraphs with a program; `islands`: operators that stay eager."""

    kind: str
    nodes: int
    frozen: int = 0  # parameters and buffers that are constants in the programs
    parts: list[PartReport] = field(default_factory=list)
    islands: list[IslandReport] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The report as text."""
        own = sum(p.nodes for p in self.parts)
        frozen = f", {counted(self.frozen, 'frozen weight')}" if self.frozen else ""
        lines = [
            f"  {self.kind}: {counted(self.nodes, 'operator')}, {own} in {counted(len(self.parts), 'program')}{frozen}"
        ]
        for i, p in enumerate(self.parts):
            lines.append(
                f"    part {i}: {counted(p.nodes, 'operator')}, {p.inputs_bytes} B in, {p.outputs_bytes} B out: {p.state}"
            )
        for r in self.islands:
            lines.append(f"    eager: {r.operator} ×{r.count}: {r.reason} ({r.bytes} B cross)")
        return lines


@dataclass
class GraphReport:
    """Report on one graph that Dynamo captured.

    `inputs`: names of its inputs that are no weights. `runs`: "searching" (eager until a program is ready), "eager" or
    "program". `why`: the reason, as text. `eager_us`, `program_us`: medians of whole calls in µs, with gradients both
    passes; None before they are timed.
    """

    name: str
    inputs: Sequence[str] = ()
    runs: str = SEARCHING
    why: str = "the search has not ended"
    eager_us: float | None = None
    program_us: float | None = None
    calls: str = (
        ""  # where whole calls of the newest signature go, for callables of `tg.compile`; "" before that is known
    )
    traced: list[TracedReport] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.name}({', '.join(self.inputs)}): {self.runs}: {self._why()}"]
        if self.calls:
            lines.append(f"  calls {self.calls}")
        for one in self.traced:
            lines += one.lines()
        return "\n".join([*lines, *(f"  warning: {w}" for w in self.warnings)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return {**asdict(self), "why": self._why()}

    def _why(self) -> str:
        """The reason for what runs: `why`, unless the searches have ended and no call has come since."""
        states = {part.state for traced in self.traced for part in traced.parts}
        if self.runs == SEARCHING and SEARCHED in states and SEARCHING not in states:
            return "the search has ended: the next call of this graph decides"
        return self.why


_reports: deque[GraphReport] = deque(maxlen=KEPT)


def reports() -> list[GraphReport]:
    """Reports of the graphs that this process compiled, the oldest first, at most 256."""
    return list(_reports)


def last_report() -> GraphReport | None:
    """Report of the graph compiled last; None before the first."""
    return _reports[-1] if _reports else None


def register(report: GraphReport) -> None:
    """Add a report to those of the process."""
    _reports.append(report)


__all__ = [
    "EAGER", "PROGRAM", "SEARCHED", "SEARCHING", "GraphReport", "IslandReport", "PartReport", "TracedReport", "last_report", "register", "reports",
]  # fmt: skip
