"""Emits interleaved stores: results that are adjacent in memory are joined in registers and written at once.

A multi-output kernel (lowering/concat_split.py) stores the first, the second, … element of each row separately. Every
such store writes a few bytes of each cache line, so each line is written once per element of a row. (Matrices of nine
elements each were written at 0.5 TB/s on an H200.) Joined along an additional axis, the elements are written as whole
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...ir.index import Index
from ...ir.kernel import Kernel, OutputStore
from ...ir.tiling import padded

MAX_JOINED_ELEMENTS = 16  # maximum elements that are joined


class RowStore(NamedTuple):
    """Stores of one element each that write consecutive memory positions, in this order; `at`: position of the first
    one."""

    stores: tuple[OutputStore, ...]
    at: Index


def rows(kernel: Kernel) -> list[RowStore]:
    """Sequences of a kernel's stores that write consecutive memory positions, at most `MAX_JOINED_ELEMENTS` stores
    each.

    Left out are sequences longer than the distance to the same results of the next row, which they would overlap.
    """
    alike: dict[tuple[str, Index], dict[int, OutputStore]] = {}
    for s in kernel.stores:
        if s.at.terms and not (s.guards or s.parts):
            alike.setdefault((s.buffer, s.at - s.at.const), {}).setdefault(s.at.const, s)
    found = []
    for (_, at), stores in alike.items():
        apart = min(abs(c) for _, c in at.terms)
        for run in _runs(sorted(stores)):
            if apart >= len(run):
                for n in range(0, len(run), MAX_JOINED_ELEMENTS):
                    part = run[n : n + MAX_JOINED_ELEMENTS]
                    found += [RowStore(tuple(stores[p] for p in part), at + part[0])] if len(part) > 1 else []
    return found


def _runs(places: Sequence[int]) -> list[list[int]]:
    """Sorted positions divided into runs of consecutive positions."""
    found: list[list[int]] = []
    for p in places:
        if found and found[-1][-1] + 1 == p:
            found[-1].append(p)
        else:
            found.append([p])
    return found


def joined_tiles(texts: Sequence[str]) -> str:
    """Triton expression that joins the tiles `texts` (`tl.join`) along new last axes of two elements each, which
    flatten to the tiles' order.

    The last tile is repeated up to a power of two.
    """
    whole = [*texts, *[texts[-1]] * (padded(len(texts)) - len(texts))]
    return whole[0] if len(whole) == 1 else f"tl.join({joined_tiles(whole[::2])}, {joined_tiles(whole[1::2])})"
