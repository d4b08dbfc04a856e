"""Which rules of a file follow from ours: `tensor-graphs rules derive FILE`.

A rule is derived if at every instance tried its two sides meet in one e-class (prove.py). The instances of a rule in Tensat's
language are those that its reader finds (text_shapes.py): of each family of shapes the ones that are least special; those
of a rule in our own language are sampled (sample.py). Files are read as by `rules check`. Searches run in worker processes
that can be killed; rules over the same ops, one after another in a file, share what egglog was told.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

from ..egraph.engine import Stop, never
from ..egraph.graph import Tensor, topological
from ..egraph.rule import Rule
from ..egraph.saturate import Limits, Session, Sessions
from ..errors import RuleError, ShapeError
from .check_file import Line, OwnRule
from .derive import chosen
from .prove import LIMITS, Claim, Prover, size_one_axes
from .tensat import TextRule
from .text_check import check_text
from .text_shapes import instances

FAMILIES, EACH = 4, 2
"""Families of shapes (ranks, parameters, groups) at which a rule must be proved, and instances of each."""


@dataclass(frozen=True)
class Derived:
    """A rule of a file: whether it was derived, at how many instances, in which wall-clock seconds and rounds. `index`
    counts from 0 in file order; `detail` says what ended the search ("proved" or what stopped it)."""

    index: int
    text: str
    derived: bool
    instances: int
    seconds: float
    rounds: int
    detail: str

    def to_json(self) -> dict[str, object]:
        """The rule's entry in the JSON document."""
        return dict(self.__dict__)


def claims(line: Line) -> list[Claim]:
    """A rule at the sizes at which it must be proved; none if no sizes fit both sides."""
    if isinstance(line, OwnRule):
        return [] if line.rule is None else [x.sides(one) for one in line.rule.directions[:1] for x in chosen(one)]
    families: dict[int, list[Claim]] = {}
    for found in instances(line):
        try:
            families.setdefault(id(found.typing), []).append(found.sides())
        except ShapeError:  # this member only: its sizes do not fit after all
            continue
    plain = [members for members in families.values() if not any(map(_groups, members))]
    meant = plain or [members for members in families.values() if not any(map(_groups_constants, members))]
    best = [sorted(members, key=size_one_axes)[:EACH] for members in meant or families.values()]
    return [claim for members in best[:FAMILIES] for claim in members]


def _groups(claim: Claim) -> list[Tensor]:
    """The kernels of convolutions in groups: a rule is meant for one group where it can be."""
    nodes = topological([side for pair in claim for side in pair])
    return [n.args[1] for n in nodes if n.op == "conv" and n.attr("groups") > 1]


def _groups_constants(claim: Claim) -> bool:
    """Whether a convolution in groups has a constant kernel: identities and averages are meant for all channels at once."""
    return any(all(leaf.op != "input" for leaf in topological([kernel])) for kernel in _groups(claim))


def derive(
    index: int, line: Line, prover: Prover, session: Session, limits: Limits = LIMITS, stop: Stop = never
) -> Derived:
    """One rule, at all its instances together; one with parameter variables must not be refuted at other values of them. The
    seconds reported also hold reading the shapes and telling egglog the rules, where the session does not know them yet."""
    begin = time.perf_counter()

    def answer(derived: bool, count: int, rounds: int, detail: str) -> Derived:
        return Derived(index, line.text, derived, count, time.perf_counter() - begin, rounds, detail)

    try:
        found = [] if line.problem else claims(line)
        if not found:
            return answer(False, 0, 0, line.problem or "no sizes fit both sides")
        proof = prover.prove(found, session, limits, stop)
    except RuleError as error:
        return answer(False, 0, 0, error.message)
    if proof and isinstance(line, TextRule) and line.attributes and check_text(line).status == "refuted":
        return answer(False, len(found), proof.rounds, "it holds at some values of its parameters only")
    return answer(bool(proof), len(found), proof.rounds, proof.stopped)


def derive_all(
    lines: Sequence[Line],
    pool: Sessions,
    limits: Limits = LIMITS,
    ours: Iterable[Rule] | None = None,
    stop: Stop = never,
) -> Iterator[Derived]:
    """Every rule of a file, in order, as many at a time as the pool has sessions; `ours`: from these rules (default: all).
    Once asked to stop, no more come: neither the unfinished ones nor those behind them."""
    prover = Prover(ours)

    def one(item: tuple[int, Line]) -> Derived | None:
        if stop():
            return None
        with pool.session() as session:
            found = derive(*item, prover, session, limits, stop)
        return None if stop() and not found.derived else found

    with ThreadPoolExecutor(pool.size) as threads:
        for found in threads.map(one, enumerate(lines)):
            if found is None:
                return
            yield found


def counts(found: Sequence[Derived]) -> dict[str, int | float]:
    """Rules, how many were derived and not, and the median and largest seconds of a rule."""
    seconds = [d.seconds for d in found] or [0.0]
    derived = sum(d.derived for d in found)
    return {"rules": len(found), "derived": derived, "not_derived": len(found) - derived,
            "seconds_median": median(seconds), "seconds_max": max(seconds)}  # fmt: skip
