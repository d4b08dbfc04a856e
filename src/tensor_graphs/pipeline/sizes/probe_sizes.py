"""Chooses sizes at which a size-polymorphic search checks or generates kernels, besides the generic sizes (those that
the search runs at)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...egraph.ir.graph import Graph
from ...egraph.ir.size_conditions import NO_LIMIT
from ...egraph.saturate.lift import is_prime
from ...egraph.types.dims import DimExpr, bind
from ...errors import ShapeError
from .size_ranges import Sizes, ranges

PROBES = (2, 63)  # sizes at which the kernels' applicability is probed
STEPS = 64  # how far a probe may lie from these or from a range's end


def probe_sizes(graph: Graph, generic: Mapping[str, int]) -> Iterator[Sizes]:
    """Yields sizes, spread over the ranges of the free dimensions, at which kernels are checked; the generic ones
    first.

    Those at which a size of the graph, such as n // 2, is 0 or 1 are excluded, because kernels may treat it as a
    special case: the next sizes are taken, unless none of the next `STEPS` will do.
    """
    atoms = ranges(graph)
    sizes = [d for d in dict.fromkeys(d for n in graph.nodes() for d in n.shape) if isinstance(d, DimExpr)]

    def inside(name: str, n: int) -> int:
        return min(max(n, atoms[name].min, 2), max(atoms[name].max, 2))

    def plain(found: Sizes) -> bool:
        try:
            return not {bind(d, found) for d in sizes} & {0, 1}
        except ShapeError:  # out of a range, or divided by 0
            return False

    def nearest(choices: list[Sizes]) -> Sizes:
        return next(filter(plain, choices), choices[0])

    yield {**generic}
    for n in PROBES:
        yield nearest([{name: inside(name, n + i + k) for i, name in enumerate(atoms)} for k in range(STEPS)])
    for name in atoms:
        if atoms[name].max < NO_LIMIT:
            yield nearest([{**generic, name: inside(name, atoms[name].max - k)} for k in range(STEPS)])


def general_sizes(graph: Graph, generic: Mapping[str, int]) -> list[Sizes]:
    """One odd and one even choice of sizes, other than the generic one, at which loops are rarely unrolled or blocked.

    Kernels generated at these sizes have all loops and masks that any size needs. Empty if a range has no other sizes.
    """
    fits = {
        name: sorted(set(range(max(2, a.min), min(a.max, 1 << 10) + 1)) - {generic[name]}, key=_plainness)
        for name, a in ranges(graph).items()
    }
    found: list[Sizes] = []
    if all(len(sizes) > 1 for sizes in fits.values()):
        for parity in (1, 0):
            some = {name: [s for s in sizes if s % 2 == parity] or sizes for name, sizes in fits.items()}
            found.append({name: sizes[i % len(sizes)] for i, (name, sizes) in enumerate(some.items())})
    return found


def _plainness(n: int) -> tuple[bool, bool, int]:
    """Sort key: primes from 11 on and twice such primes first, then other primes, then the rest."""
    half = n if n % 2 else n // 2
    return not is_prime(half), half < 11, n
