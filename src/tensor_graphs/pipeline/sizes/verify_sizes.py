"""Verifies a size-polymorphic program at sizes other than those at which it was optimized."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

from ...backends.program.program import Program
from ...egraph.ir.graph import Graph
from ...egraph.types.dims import Atom
from ...errors import ShapeError, TensorGraphsError
from ...extract.model.work import graph_flops
from ...report.omissions import Omission
from ...verification.comparison import FACTORS, OutputError, Tolerance
from ...verification.reference import KEPT_BYTES
from ...verification.verify import verify
from ...wording import spelled_values
from ..execution.run_program import run_flat
from .size_ranges import Sizes, ranges

ODD = (3, 5, 7, 11, 13, 17, 19, 23)  # sizes at which programs are verified
EVEN = (4, 6, 10, 14, 16, 22, 26)
EXTRA, EXTRA_SECONDS = 10, 1.0  # additional random choices of sizes, within this many seconds
SLACK = 10.0  # allowed error multiple at sizes other than the searched ones
# flops of the model and bytes of a value above which it is verified only slightly above the searched size
LARGE_FLOPS, LARGE_BYTES = 4e9, 1 << 26


@dataclass
class SizeVerifier:
    """Verifier of programs of a graph with free dimensions; references of small sizes are kept for further programs.
    `largest`: whether the largest sizes are verified, too."""

    graph: Graph
    searched: Sizes  # the sizes that `verify` covers
    largest: bool = (
        False  # whether programs are also verified at the largest sizes possible: kernels have forms by size
    )
    failed: list[str] = field(default_factory=list)  # sizes at which a program failed, with the error
    _references: dict[tuple[int, ...], dict[int, Any]] = field(default_factory=dict)

    def required(self) -> list[Sizes]:
        """Sizes at which a program is verified besides the searched ones, as far as they are valid.

        Minimal, small odd, small even, larger, largest.
        """
        atoms = ranges(self.graph)
        found: list[Sizes] = []
        for wanted in (
            self._minimal(atoms),
            self._from_list(atoms, ODD),
            self._from_list(atoms, EVEN),
            self._larger(atoms),
            self._largest(atoms) if self.largest else (),
        ):
            sizes = next((s for s in wanted if self._is_valid(s)), None)
            if sizes is not None and sizes not in found and sizes != self.searched:
                found.append(sizes)
        return found

    def _is_valid(self, sizes: Sizes) -> bool:
        try:
            self.graph.bind(sizes)
        except ShapeError:
            return False
        return True

    def _minimal(self, atoms: Mapping[str, Atom]) -> Iterator[Sizes]:
        low = {name: atom.min for name, atom in atoms.items()}
        while any(low[n] < self.searched[n] for n in low):
            yield dict(low)
            low = {n: min(2 * s, self.searched[n]) for n, s in low.items()}

    def _from_list(self, atoms: Mapping[str, Atom], among: Sequence[int]) -> Iterator[Sizes]:
        for start in range(len(among)):
            yield {n: min(max(among[(start + i) % len(among)], a.min), a.max) for i, (n, a) in enumerate(atoms.items())}
        yield {n: max(s - 1, atoms[n].min) for n, s in self.searched.items()}

    def _larger(self, atoms: Mapping[str, Atom]) -> Iterator[Sizes]:
        grown: list[Callable[[int], int]] = [lambda s: 2 * s + 1, lambda s: s + s // 2 + 1, lambda s: s + 1]
        for grow in grown:
            sizes = {n: min(grow(s), atoms[n].max) for n, s in self.searched.items()}
            if self._is_valid(sizes) and self._is_small(sizes):
                yield sizes
        for name, size in self.searched.items():  # large models: one dimension plus one, the others minimal
            yield {n: min(size + 1, a.max) if n == name else min(a.min, self.searched[n]) for n, a in atoms.items()}

    def _largest(self, atoms: Mapping[str, Atom]) -> Iterator[Sizes]:
        """The largest sizes that are not slow to verify."""
        high = {name: atom.max for name, atom in atoms.items()}
        while any(s > self.searched[n] for n, s in high.items()):
            if self._is_valid(high) and self._is_small(high):
                yield dict(high)
            high = {n: max(s // 2, self.searched[n]) for n, s in high.items()}

    def _random(self, seed: int) -> Iterator[Sizes]:
        """Additional random sizes, mostly small; only valid ones with little computation."""
        rng, atoms = random.Random(seed), ranges(self.graph)
        for k in range(EXTRA):
            most = 16 << k
            sizes = {n: rng.randint(a.min, max(a.min, min(a.max, most))) for n, a in atoms.items()}
            if self._is_valid(sizes) and self._is_small(sizes, LARGE_FLOPS / 8, LARGE_BYTES / 8):
                yield sizes

    def _is_small(self, sizes: Sizes, flops: float = LARGE_FLOPS, size: float = LARGE_BYTES) -> bool:
        """Whether the graph at these sizes stays below the given flops and bytes per value."""
        there = self.graph.bind(sizes)
        return graph_flops(list(there.roots)) <= flops and all(n.type.nbytes <= size for n in there.nodes() if n.args)

    def problem(
        self, program: Program, tolerance: Tolerance, seed: int, enough: Callable[[], bool] = lambda: False,
        poll: Callable[[], object] = lambda: None, allowed_s: float = math.inf, omitted: list[Omission] | None = None,
    ) -> str:  # fmt: skip
        """Verify a program at other sizes; returns the first problem found, as text, or "" if there is none.

        `enough()`: whether to skip the remaining optional sizes. `seed`: of the random sizes and inputs. `poll` is
        called before every operation of a reference run and may raise. `allowed_s`: seconds that verification at one
        choice of sizes may take; outputs that are expected to take far longer are compared in part. `omitted`: what was
        left out of the comparison of a right program is added to it.
        """
        left_out: list[Omission] = []
        start = time.monotonic()
        for number, sizes in enumerate(chain(needed := self.required(), self._random(seed))):
            if number >= len(needed) and (enough() or time.monotonic() - start > EXTRA_SECONDS):
                break
            there = self.graph.bind(sizes)
            small = number < len(needed) and sum(r.type.nbytes for r in there.roots) <= KEPT_BYTES
            known = self._references.setdefault(tuple(sizes.values()), {}) if small else {}
            try:
                verdict = verify(
                    there, partial(run_flat, program), tolerance=tolerance, seed=seed, references=known, seeds=1,
                    tolerated=SLACK, poll=poll, allowed_s=allowed_s,
                )  # fmt: skip
            except (TensorGraphsError, ValueError, TypeError, IndexError, RuntimeError) as error:
                return self._failure(sizes, f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
            if wrong := [o for o in verdict.outputs if not _tolerable(o, tolerance)]:
                return self._failure(sizes, wrong[0].message)
            if omission := Omission.of(verdict.omitted):
                left_out.append(replace(omission, detail=f"{omission.detail} at {spelled_values(sizes)}"))
        if omitted is not None:
            omitted += left_out
        return ""

    def _failure(self, sizes: Sizes, what: str) -> str:
        self.failed.append(f"at {spelled_values(sizes)}: {what}")
        return self.failed[-1]


def _tolerable(output: OutputError, tolerance: Tolerance) -> bool:
    """Whether an output is correct at another size than the searched one.

    Uses SLACK: the unoptimized graph's rounding error is a reliable measure only for large outputs, and minimal sizes
    have few elements.
    """
    if output.discrete and tolerance != "exact":
        return not output.miscompiled
    slack = SLACK if tolerance in FACTORS else 1.0
    return output.finite and output.excess <= slack


__all__ = ["SizeVerifier"]
