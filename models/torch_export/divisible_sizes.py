"""Infers divisibility constraints on the free sizes of an exported program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...egraph.ir.graph import Graph
from ...egraph.types import dims as dims_
from ...egraph.types.dims import Dim
from ...errors import ShapeError, UnsupportedError, warned
from .graph import ExportReader
from .symbolic_sizes import SymbolicSizes
from .writes import Writes

#: Largest divisor that is tried.
MAX_PART = 64


def read_exported(program: Any, sizes: Sequence[Mapping[int, str]], name: str, writes: Writes) -> Graph:
    """The graph of an ExportedProgram, with free sizes constrained to multiples where necessary.

    `sizes`: for each input, axis -> name of its free size. `writes`: how inputs that the program writes to are handled.

    Some models are valid only at some sizes: a U-Net concatenates a tensor that was halved and upsampled again with the
    original. PyTorch keeps such constraints as guards. Here such a size is replaced by n times a new size, where n is
    the least divisor of the example's size for which the shapes match; a warning names the size.
    """
    parts: dict[str, int] = {}
    error: ShapeError | None = None
    loose: Graph | None = None  # graph of the first attempt, with reshapes that are valid at some sizes only
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
        if not _step(
            parts, {title: n for title, (d, n) in reader.sizes.examples.items() if names & dims_.symbols(d).keys()}
        ):
            if loose is None:
                assert error is not None
                raise error
            return loose
    for title in parts:
        warned(f"the model's sizes meet at multiples only: {title} is {reader.sizes.examples[title][0]}")
    _refuse_decisions(reader.sizes, name)
    return graph


def _refuse_decisions(free: SymbolicSizes, name: str) -> None:
    """Raise UnsupportedError if the traced module has taken a branch that depends on a free size and is not taken at
    all sizes."""
    for text, relation, left, right in free.assumed():
        for sizes in _sampled(left, right):
            if not relation(dims_.bind(left, sizes), dims_.bind(right, sizes)):
                raise UnsupportedError(
                    f"the module decides by a free size: {text} holds for the examples, not at {sizes}", where=name,
                    hint="leave that size out of dynamic_shapes, or give examples of that size",
                )  # fmt: skip


def _reshapes_apart(graph: Graph) -> tuple[Dim, ...]:
    """Return (elements before, elements after) of the first reshape whose counts differ at some sizes.

    () if none does.
    """
    for node in graph.nodes():
        if node.op == "reshape":
            before, after = dims_.volume(node.args[0].shape), dims_.volume(node.shape)
            if before != after and _differ(before, after):
                return before, after
    return ()


def _differ(a: Dim, b: Dim) -> bool:
    """Return whether two dimensions differ at any of a sample of small sizes."""
    return any(dims_.bind(a, sizes) != dims_.bind(b, sizes) for sizes in _sampled(a, b))


def _sampled(a: Dim, b: Dim) -> Iterator[dict[str, int]]:
    """Yields sizes of the names in two dimensions, different for each name: small ones, and powers of 2."""
    atoms = {**dims_.symbols(a), **dims_.symbols(b)}
    for k in (*range(2 * MAX_PART), *(1 << power for power in range(7, 17))):
        yield {n: min(s.min + k + i, s.max) for i, (n, s) in enumerate(atoms.items())}


def _step(parts: dict[str, int], examples: Mapping[str, int]) -> bool:
    """Constrain the sizes whose examples are divisible by the next larger divisor.

    False if there is no further divisor.

    `parts` (size name -> divisor) is updated; `examples` maps the names in question to their example sizes.
    """
    least = max((parts.get(title, 1) for title in examples), default=1) + 1
    for part in range(least, MAX_PART + 1):
        if found := [title for title, size in examples.items() if size % part == 0]:
            parts |= dict.fromkeys(found, part)
            return True
    return False
