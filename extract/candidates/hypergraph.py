"""Holds the problem of choosing kernels as a hypergraph: vertices are values in a layout (strides in memory),
hyperedges are candidate kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...egraph.ops.ops import Type
from ...egraph.view.view import EGraphView
from ..model.kernel import Candidate, Operand, Strides, Vertex
from ..model.scc import strongly_connected_components

#: Layout of a view of an operand, or None where the view needs a copy (see backends/runtime/views.py).
ViewStrides = Callable[[str, dict[str, Any], Operand], "Strides | None"]


class NumberedHypergraph(NamedTuple):
    """A hypergraph of candidate kernels as integer ids.

    `made`: output id of each candidate; `needs`: input ids of each candidate in rising order, without values that are
    in memory from the start. The set of outputs of a multi-output candidate (a bundle) has an id of its own, after
    those of the vertices.
    """

    vertices: dict[Vertex, int]
    made: list[int]
    needs: list[tuple[int, ...]]
    roots: list[int]
    bundles: list[tuple[int, ...]]  # bundle -> its vertices

    @property
    def size(self) -> int:
        """Number of ids: vertices and bundles."""
        return len(self.vertices) + len(self.bundles)

    @property
    def parts(self) -> Iterator[tuple[int, int]]:
        """Pairs (vertex, id of a bundle that contains the vertex)."""
        for number, bundle in enumerate(self.bundles, len(self.vertices)):
            yield from ((v, number) for v in bundle)

    def outputs(self, candidate: int) -> tuple[int, ...]:
        """The vertices that a candidate writes."""
        made = self.made[candidate] - len(self.vertices)
        return self.bundles[made] if made >= 0 else (self.made[candidate],)


@dataclass
class Hypergraph:
    """The problem of choosing kernels.

    Vertices (values in layouts), candidate kernels (hyperedges from input to output vertices), and root vertices, which
    a plan must produce. `view`: the e-graph whose e-classes are the values. `stats`: counts about how the candidates
    were made, for the report. `repeats`: e-class -> how often its kernels occur in the whole model for each time that
    they occur here (others: 1): the short form of a model has few of many equal layers.
    """

    view: EGraphView
    candidates: list[Candidate]
    given: dict[int, Strides]  # classes available without a kernel (inputs, states, weights) -> layout
    roots: list[Vertex]
    stats: dict[str, int] = field(default_factory=dict)
    types: Sequence[Type] = ()  # storage type of each class, if any differs from the view's types
    repeats: Mapping[int, float] = field(default_factory=dict)

    def type_of(self, cls: int) -> Type:
        """Storage type (dtype and shape in memory) of an e-class."""
        return self.types[cls] if self.types else self.view.types[cls]

    @property
    def stores_other_types(self) -> bool:
        """Whether some value is stored in another dtype than the e-graph's, as float32 values in 16 bits."""
        return bool(self.types) and list(self.types) != list(self.view.types)

    @cached_property
    def weights(self) -> list[float]:
        """How often each candidate occurs in the model for each time that it occurs here (`repeats` of its first
        result)."""
        known = self.repeats.get
        return [known(c.outputs[0].cls, 1.0) for c in self.candidates]

    @cached_property
    def numbered(self) -> NumberedHypergraph:
        """The hypergraph as integer ids, assigned in the order of the candidates, of each its inputs before its
        output."""
        numbers: dict[Vertex, int] = {}
        known = numbers.get
        unneeded = {Vertex(c, s) for c, s in self.given.items()}
        outputs: list[tuple[int, ...]] = []
        needs = []
        for candidate in self.candidates:
            children = set()
            for _, vertex in candidate.inputs:
                number = known(vertex)
                if number is None:
                    if vertex in unneeded:
                        continue
                    number = numbers[vertex] = len(numbers)
                children.add(number)
            needs.append(tuple(sorted(children)))
            outputs.append(tuple([numbers.setdefault(v, len(numbers)) for v in candidate.outputs]))
        roots = [numbers.setdefault(r, len(numbers)) for r in dict.fromkeys(self.roots)]
        bundles = dict.fromkeys([o for o in outputs if len(o) > 1])
        place = {bundle: len(numbers) + n for n, bundle in enumerate(bundles)}
        made = [o[0] if len(o) == 1 else place[o] for o in outputs]
        return NumberedHypergraph(numbers, made, needs, roots, list(bundles))

    @cached_property
    def alike(self) -> list[int]:
        """For each candidate the id of its group: candidates with equal inputs and outputs have equal ids.

        Ids count in order of first occurrence.
        """
        groups: dict[tuple[int, tuple[int, ...]], int] = {}
        return [groups.setdefault(key, len(groups)) for key in zip(self.numbered.made, self.numbered.needs)]

    @cached_property
    def grouped(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(Candidate indices sorted by group id (`alike`), index in that array at which each group begins)."""
        group = np.array(self.alike, np.int64)
        order = np.argsort(group, kind="stable")
        return order, np.flatnonzero(np.diff(group[order], prepend=-1))

    @cached_property
    def flat(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The candidates as arrays (made, off, child): candidate i writes the vertex made[i] and reads the vertices
        child[off[i]:off[i+1]] (ids: `numbered`)."""
        needs = self.numbered.needs
        off = np.concatenate([[0], np.cumsum([len(n) for n in needs])]).astype(np.int64)
        child = np.fromiter(chain.from_iterable(needs), np.int64, int(off[-1]))
        return np.array(self.numbered.made, np.int64), off, child

    @cached_property
    def views(self) -> list[int]:
        """Indices of the candidates that are views (aliases of their operand, without work)."""
        return [i for i, c in enumerate(self.candidates) if c.is_view]

    @cached_property
    def calls(self) -> tuple[list[int], list[int]]:
        """Distinct kernel calls, as (one candidate per call, index into that list for each candidate, -1 for a
        candidate that only makes a view).

        Repeated layers make the same call many times.
        """
        first: dict[tuple[int, int], int] = {}
        found: list[int] = []
        which: list[int] = []
        for i, c in enumerate(self.candidates):
            if c.is_view:
                which.append(-1)
                continue
            number = first.setdefault((id(c.template), id(c.call)), len(first))
            if number == len(found):
                found.append(i)
            which.append(number)
        return found, which


def in_value_order(graph: Hypergraph, chosen: Sequence[int]) -> list[int]:
    """The candidates `chosen` (indices) without those multi-output ones that would close a cycle through other values.

    Values are ordered by the single-output kernels, operands first. A multi-output kernel is kept if all its inputs
    precede all its outputs that a kernel reads in that order. The others are dropped because a kernel that computes,
    say, a table read by every layer together with a value of the last layer would put all layers into one cycle, for
    which no plan can be proved optimal.
    """
    numbered = graph.numbered
    below: list[list[int]] = [[] for _ in range(len(numbered.vertices))]
    for i in chosen:
        if (made := numbered.made[i]) < len(below):
            below[made] += numbered.needs[i]
    of, members = strongly_connected_components(below)
    level = [0] * len(members)
    for n, member in enumerate(members):  # components come children first
        level[n] = 1 + max([level[of[k]] for v in member for k in below[v] if of[k] != n], default=0)
    read = {k for i in chosen for k in numbered.needs[i]}

    def fits(i: int) -> bool:
        first = min([level[of[v]] for v in numbered.outputs(i) if v in read], default=len(level) + 1)
        return first > max([level[of[k]] for k in numbered.needs[i]], default=0)

    return [i for i in chosen if not graph.candidates[i].more or fits(i)]


def _makers(numbered: NumberedHypergraph, chosen: Sequence[int]) -> list[list[int]]:
    """For each vertex, the chosen candidates that write it and whose inputs the chosen ones can all produce."""
    needs, size = numbered.needs, len(numbered.vertices)
    waiting: list[list[int]] = [[] for _ in range(size)]
    for i in chosen:
        for v in needs[i]:
            waiting[v].append(i)
    makers: list[list[int]] = [[] for _ in range(size)]
    missing = [len(children) for children in needs]
    ready = [i for i in chosen if not missing[i]]
    while ready:
        i = ready.pop()
        for v in numbered.outputs(i):
            if not makers[v]:
                for j in waiting[v]:
                    missing[j] -= 1
                    if not missing[j]:
                        ready.append(j)
            makers[v].append(i)
    return makers


def reachable(graph: Hypergraph, chosen: Sequence[int]) -> list[int]:
    """The candidates of `chosen` (indices, in rising order) that a plan for some root may contain and whose inputs can
    all be produced by candidates of `chosen`."""
    numbered = graph.numbered
    makers = _makers(numbered, chosen)
    wanted, seen, keep = list(numbered.roots), bytearray(len(numbered.vertices)), bytearray(len(numbered.needs))
    for v in wanted:
        seen[v] = 1
    while wanted:
        for i in makers[wanted.pop()]:
            keep[i] = 1
            for v in numbered.needs[i]:
                if not seen[v]:
                    seen[v] = 1
                    wanted.append(v)
    # without kernels with an output that nothing can read: a smaller kernel omits it
    return [i for i in chosen if keep[i] and all(seen[v] for v in numbered.outputs(i))]
