"""Free sizes of an exported program, some of which only fit if they are multiples of a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..egraph import dims as dims_
from ..egraph.dims import Dim
from ..egraph.graph import Graph
from ..errors import ShapeError, warned
from .export_graph import ExportReader
from .export_writes import Writes

#: Sizes are taken as multiples of at most this number.
MAX_PART = 64


def read_exported(program: Any, sizes: Sequence[Mapping[int, str]], name: str, writes: Writes) -> Graph:
    """The graph. A model may mean something at some sizes only: a U-Net joins what it has halved and doubled again with what
    it had before. PyTorch keeps guards for that; here such a size is written as a multiple of another one, of the least number
    that divides the example's size and lets the model's sizes meet, with a warning that names it."""
    parts: dict[str, int] = {}
    error: ShapeError | None = None
    loose: Graph | None = None  # what was read first, with reshapes that fit at some sizes only
    while True:
        reader = ExportReader(program, sizes, parts, writes)
        try:
            graph = reader.graph(name)
            apart = _reshapes_apart(graph)
        except ShapeError as problem:
            error, apart = error or problem, problem.sizes
        else:
            if not apart:
                break
            loose = loose or graph
        names = {n for d in apart for n in dims_.symbols(d)}
        if not _step(parts, {title: n for title, (d, n) in reader.examples.items() if names & dims_.symbols(d).keys()}):
            if loose is None:
                assert error is not None
                raise error
            return loose
    for title in parts:
        warned(f"the model's sizes meet at multiples only: {title} is {reader.examples[title][0]}")
    return graph


def _reshapes_apart(graph: Graph) -> tuple[Dim, ...]:
    """The numbers of elements before and after the first reshape for which they differ at some sizes."""
    for node in graph.nodes():
        if node.op == "reshape":
            before, after = dims_.volume(node.args[0].shape), dims_.volume(node.shape)
            if before != after and _differ(before, after):
                return before, after
    return ()


def _differ(a: Dim, b: Dim) -> bool:
    """Whether two sizes differ anywhere among small ones."""
    atoms = {**dims_.symbols(a), **dims_.symbols(b)}
    tried = ({n: min(s.min + k + i, s.max) for i, (n, s) in enumerate(atoms.items())} for k in range(2 * MAX_PART))
    return any(dims_.bind(a, sizes) != dims_.bind(b, sizes) for sizes in tried)


def _step(parts: dict[str, int], examples: Mapping[str, int]) -> bool:
    """Take those of the named sizes whose examples it divides as multiples of the next number that divides one. False where
    there is none."""
    least = max((parts.get(title, 1) for title in examples), default=1) + 1
    for part in range(least, MAX_PART + 1):
        if found := [title for title, size in examples.items() if size % part == 0]:
            parts |= dict.fromkeys(found, part)
            return True
    return False
