"""ROWS: results that lie side by side in memory are put together in registers and written at once.

A kernel of pieces (kir_pieces.py) stores the first, the second, … element of each row by itself: every store writes a few bytes of
each line of memory, and lines are written as often as rows have elements. (Matrices of nine elements each were written at 0.5 TB/s on an
H200.) Put together along an axis of its own, they are written as rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .index import Index
from .kir import Kernel, Store
from .tiling import padded

MOST = 16  # elements of a row that are put together at once


class Row(NamedTuple):
    """Stores of neighbours in memory, in their order there; the first one's place."""

    stores: tuple[Store, ...]
    at: Index


def rows(kernel: Kernel) -> list[Row]:
    """The stores of a kernel that lie side by side, at most `MOST` at a time: what is written elsewhere for each of its elements lies
    as far apart."""
    alike: dict[tuple[str, Index], dict[int, Store]] = {}
    for s in kernel.stores:
        if s.at.terms and not (s.guards or s.parts):
            alike.setdefault((s.buffer, s.at - s.at.const), {}).setdefault(s.at.const, s)
    found = []
    for (_, at), stores in alike.items():
        apart = min(abs(c) for _, c in at.terms)
        for run in _runs(sorted(stores)):
            if apart >= len(run):
                for n in range(0, len(run), MOST):
                    part = run[n : n + MOST]
                    found += [Row(tuple(stores[p] for p in part), at + part[0])] if len(part) > 1 else []
    return found


def _runs(places: Sequence[int]) -> list[list[int]]:
    """Places in runs of neighbours."""
    found: list[list[int]] = []
    for p in places:
        if found and found[-1][-1] + 1 == p:
            found[-1].append(p)
        else:
            found.append([p])
    return found


def joined(texts: Sequence[str]) -> str:
    """The text of tiles put together along new last axes of two elements each, which as one axis are in the tiles' order; the last tile
    again and again where they are not as many as a power of two."""
    whole = [*texts, *[texts[-1]] * (padded(len(texts)) - len(texts))]
    return whole[0] if len(whole) == 1 else f"tl.join({joined(whole[::2])}, {joined(whole[1::2])})"
