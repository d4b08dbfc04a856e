"""Which rules of a file in Tensat's format follow from ours: each at several sizes, ranks and parameters, by the e-graph.

A rule is derived if at every instance tried its two sides meet (prove.py). The instances are those that the reader finds
(text_shapes.py): of each family of shapes the ones that are least special. Rules go to worker processes that can be killed,
those over the same ops one after another.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..egraph.rule import Rule
from ..egraph.saturate import Limits, Session, Sessions
from ..errors import ShapeError
from .prove import LIMITS, Claim, Prover, size_one_axes
from .tensat import TextRule
from .text_shapes import instances

FAMILIES, EACH = 4, 2  # families of shapes per rule, and instances of each


@dataclass(frozen=True)
class Derived:
    """Whether a rule was derived, at how many instances, in which wall-clock seconds; `detail` says what stopped it."""

    index: int
    rule: TextRule
    derived: bool
    instances: int
    seconds: float
    detail: str
    rounds: int = 0


def claims(rule: TextRule) -> list[Claim]:
    """A rule at the shapes at which it must be proved: of up to `FAMILIES` families `EACH`, with few axes of size 1."""
    families: dict[int, list[Claim]] = {}
    for found in instances(rule):
        try:
            families.setdefault(id(found.typing), []).append(found.sides())
        except ShapeError:
            continue
    best = [sorted(members, key=size_one_axes)[:EACH] for members in families.values()]
    return [claim for members in best[:FAMILIES] for claim in members]


def derive(index: int, rule: TextRule, prover: Prover, session: Session, limits: Limits = LIMITS) -> Derived:
    """One rule; `limits.seconds` is for all its instances together. The seconds reported include reading the shapes and
    telling egglog the rules, where the session does not know them yet."""
    begin = time.perf_counter()
    found = [] if rule.problem else claims(rule)
    if not found:
        return Derived(index, rule, False, 0, time.perf_counter() - begin, rule.problem or "no shapes fit both sides")
    proof = prover.prove(found, session, limits)
    return Derived(index, rule, bool(proof), len(found), time.perf_counter() - begin, proof.stopped, proof.rounds)


def derive_all(
    rules: Sequence[TextRule], pool: Sessions, limits: Limits = LIMITS, ours: Iterable[Rule] | None = None
) -> Iterator[Derived]:
    """Every rule of a file, in order, as many at a time as the pool has sessions; `ours`: from these rules (default: all)."""
    prover = Prover(ours)

    def one(item: tuple[int, TextRule]) -> Derived:
        with pool.session() as session:
            return derive(*item, prover, session, limits)

    with ThreadPoolExecutor(pool.size) as threads:
        yield from threads.map(one, enumerate(rules))
