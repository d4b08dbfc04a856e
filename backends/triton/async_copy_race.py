"""Detects async-copy races in compiled Triton kernels: copies that overwrite shared memory that wgmma still reads.

Works on the text of Triton's GPU IR (TTGIR). A software-pipelined loop copies later tiles into a ring of shared-memory
buffers while its last asynchronous products are in flight. A copy into a buffer that such a product still reads is a
race: some elements are wrong, different ones at each run, or none on an idle machine. Triton 3.6 allocates one buffer
too few if operations besides products read a tile as well. emit/products.py emits kernels that avoid this; every
compiled kernel is checked here before it runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

_RING = re.compile(r"(%\S+) = ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x\d+x\d+x")
_VIEW = re.compile(r"(%\S+) = ttg\.memdesc_\w+ (%[\w.]+)")
_COPY = re.compile(
    r"ttng\.async_tma_copy_global_to_local %\S+?\[[^]]*\] (%\S+?),|ttg\.async_copy_global_to_local %\S+, (%\S+)"
)
_DOT = re.compile(r"ttng\.warp_group_dot (%[\w.]+)(?:#\d+)?, (%[\w.]+)(?:#\d+)?, .*isAsync = true")
_WAIT = re.compile(r"ttng\.warp_group_dot_wait .*pendings = (\d+)")
SIMULATED_ITERATIONS = 4  # loop iterations that are simulated: more than products stay in flight


@dataclass
class _Loop:
    """Events in a loop's own body (not in inner loops), as (line number, event): `copies` into a ring, asynchronous
    products (`dots`) that read rings, and `waits` until at most a number of products is pending. `first` is the loop's
    first line."""

    first: int
    copies: list[tuple[int, str]] = field(default_factory=list)
    dots: list[tuple[int, frozenset[str]]] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)


def async_copy_races(ttgir: str) -> list[str]:
    """Find async-copy races in `ttgir`, a compiled kernel's GPU IR text. Returns a sentence for each shared-memory ring
    in which a copy overwrites data that a product may still read; empty if there is no race."""
    lines = ttgir.splitlines()
    places = {m[1]: int(m[2]) for line in lines if (m := _RING.search(line))}
    if not places or "isAsync = true" not in ttgir:
        return []
    views = {m[1]: m[2] for line in lines if (m := _VIEW.search(line))}

    def ring(name: str) -> str:
        while name in views:
            name = views[name]
        return name

    loops, before = _loops(lines, ring)
    found = []
    for loop in loops:
        for at, name in loop.copies:
            ahead = sum(copied == name and line < loop.first for line, copied in before)
            if name in places and ahead and any(
                name in read and (ahead - back) % places[name] == 0 for back, read in _in_flight(loop, at)
            ):  # fmt: skip
                found.append(
                    f"a copy {ahead} rounds ahead into {places[name]} places overtakes a product that reads {name}"
                )
    return list(dict.fromkeys(found))


def _loops(lines: Sequence[str], ring: Callable[[str], str]) -> tuple[list[_Loop], list[tuple[int, str]]]:
    """(loops, all copies as (line number, ring)).

    Copies before a loop's first line are its prologue, which fills rings.
    """
    loops: list[_Loop] = []
    before: list[tuple[int, str]] = []
    around: list[tuple[int, _Loop]] = []  # enclosing loops with their indentation
    for at, line in enumerate(lines):
        deep = len(line) - len(line.lstrip())
        if "scf.for " in line:
            around.append((deep, _Loop(at)))
            loops.append(around[-1][1])
        elif around and line.startswith("}", deep) and deep == around[-1][0]:
            around.pop()
        elif m := _COPY.search(line):
            into = at, ring(m[1] or m[2])
            (around[-1][1].copies if around else before).append(into)
            if around:
                before.append(into)
        elif around and (m := _DOT.search(line)):
            around[-1][1].dots.append((at, frozenset(map(ring, m.groups()))))
        elif around and (m := _WAIT.search(line)):
            around[-1][1].waits.append((at, int(m[1])))
    return loops, before


def _in_flight(loop: _Loop, at: int) -> Iterator[tuple[int, frozenset[str]]]:
    """Products that may be in flight at a line of a loop's body, as (iteration that issued the product, relative to the
    current one, at most 0; rings that it reads)."""
    events: list[tuple[int, frozenset[str] | int]] = sorted([*loop.dots, *loop.waits], key=lambda event: event[0])
    in_flight: list[tuple[int, frozenset[str]]] = []
    for back in range(1 - SIMULATED_ITERATIONS, 1):
        for line, what in events:
            if back == 0 and line > at:
                break
            if isinstance(what, int):
                in_flight = in_flight[max(0, len(in_flight) - what) :] if what else []
            else:
                in_flight.append((back, what))
    yield from in_flight
