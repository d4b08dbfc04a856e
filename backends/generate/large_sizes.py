"""Checks generated kernels for every size: whether their terms lower to the same kernel at the largest sizes.

A kernel is lowered at generic sizes (numbers that the search runs at), where ranges of indices decide comparisons with
constants (`i < 1000` is true if i < 131) and simplify divisions. Ranges grow with sizes, so a decision that holds at
the largest sizes holds at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ...egraph.ir.size_conditions import NO_LIMIT
from ...errors import ShapeError
from ...extract.model.kernel import Call
from ...extract.model.sizes import bound_call
from ..ir.structure import structure
from .size_text import Bounds
from .template import GeneratedKernel

FARTHEST = 1 << 28  # size at which a dimension without a maximum is checked


def largest_sizes(ranges: Bounds, generic: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yields choices of free sizes at which decisions may change: all sizes at their maximum (`ranges`), then each size
    alone with the others at their `generic` values."""
    most = {n: high if high < NO_LIMIT else FARTHEST for n, (_, high) in ranges.items()}
    yield most
    if len(most) > 1:
        yield from ({**generic, n: size} for n, size in most.items())


def changes_at_large_sizes(
    template: GeneratedKernel, call: Call, at: Callable[[Mapping[str, int]], GeneratedKernel], free_call: Call,
    ranges: Bounds, generic: Mapping[str, int],
) -> bool:  # fmt: skip
    """Whether the terms of `template` lower to another kernel where sizes are largest (`ranges`: least and largest
    value of each) than for `call`, which is at the `generic` sizes (primes that stand for free sizes).

    `at(sizes)`: the template (a kernel's pattern and code) at other sizes, which are called as `free_call`. Sizes at
    which the terms are not valid or not lowered are left out.
    """
    here = template.kernel(call)
    if here is None:
        return True
    wanted = structure(here)
    for sizes in largest_sizes(ranges, generic):
        try:
            there = at(sizes).kernel(replace(bound_call(free_call, sizes), schedule={}, attrs={}))
        except ShapeError:
            continue
        if there is not None and structure(there) != wanted:
            return True
    return False


__all__ = ["changes_at_large_sizes"]
