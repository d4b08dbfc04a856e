"""Defines plans: the values and steps (kernel calls) of a program, in execution order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor
from ...egraph.ops.ops import Type
from ...errors import Unpicklable
from ...wording import counted
from .kernel import Call, Strides, Template
from .pricing import Priced


@dataclass(frozen=True)
class Value:
    """One value of a plan, with its storage type and origin.

    `id`: index into `Plan.values`. `origin`: input, state, weight, kernel, or view (an alias of the value `base`; -1
    for the others). `strides` are in elements. `carried`: the compute dtype in the graph, if the storage dtype differs
    (model/storage_dtypes.py).
    """

    id: int
    type: Type  # sizes may be expressions in free dimensions
    strides: Strides
    origin: str
    name: str = ""  # name of the input or state; a label for readers of the source
    base: int = -1
    carried: str = ""


@dataclass(frozen=True)
class Step:
    """One kernel call or view of a plan.

    `inputs` maps the template's operands to value ids; `output` is the id of the first output, `more` are those of the
    others. `cost`: the price of the call, with its origin.
    """

    template: Template
    call: Call
    inputs: tuple[tuple[str, int], ...]
    output: int
    cost: Priced
    doc: str = ""  # the computed term, as a comment of the emitted source
    more: tuple[int, ...] = ()

    @property
    def outputs(self) -> tuple[int, ...]:
        """Value ids of all outputs."""
        return (self.output, *self.more)

    @property
    def is_view(self) -> bool:
        """Whether the step only creates an alias."""
        return self.template.family == "view"


@dataclass(frozen=True, repr=False)
class Plan(Unpicklable):
    """An executable plan of a graph: a list of steps, in order, over values.

    `weights` maps each weight value to the expression over params and constants evaluated at load. `outputs` and
    `updates` are value ids, in the graph's order. `cost` is the sum of the steps' prices in µs, `lower_bound` (µs) a
    bound that no plan of the same candidates and prices can be below. `stats`: numbers about the search, for reports.
    The shapes, strides and attributes of a plan with free `sizes` are expressions in these sizes; the plan runs at
    every size. `launching`: how the kernels of a program on a GPU follow each other
    (backends/program/launch/launching.py).
    """

    graph: Graph
    values: tuple[Value, ...]
    steps: tuple[Step, ...]
    weights: Mapping[int, Tensor]
    outputs: tuple[int, ...]
    updates: Mapping[str, int]
    cost: float
    lower_bound: float
    stats: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)  # free sizes -> value when the plan was chosen
    priced: Mapping[str, int] = field(default_factory=dict)  # free sizes -> value when it was priced, if another
    launching: str = ""

    @property
    def kernels(self) -> int:
        """Number of kernel launches (views do not count)."""
        return sum(not s.is_view for s in self.steps)

    def __repr__(self) -> str:
        return f"Plan of {self.graph.name}: {counted(self.kernels, 'kernel')}, {self.cost:.1f} µs, lower bound {self.lower_bound:.1f} µs"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{', '.join(f'%{v}' for v in s.outputs)}</td><td>{escape(s.template.name)}({', '.join(f'{o}=%{i}' for o, i in s.inputs)})</td>"
            f"<td>{escape(str(self.values[s.output].type))}</td>"
            f"<td>{'view' if s.is_view else f'{s.cost.us:.2f} µs, {escape(s.cost.source)}'}</td></tr>"
            for s in self.steps
        )
        head = "<tr><th>value</th><th>kernel</th><th>type</th><th>cost</th></tr>"
        return f"<b>{escape(repr(self))}</b><table>{head}{rows}</table>"
