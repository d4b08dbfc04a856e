"""Derives the rules of a file from the built-in rules: `tensor-graphs rules derive FILE`.

A rule counts as derived if its two sides end up in one e-class at every instance tried (prove.py). For a rule in
Tensat's language, the instances come from shape inference (text/shapes.py): of each family of shapes, those with the
fewest axes of size 1; for a rule in this project's language, they are sampled (sample.py). Files are parsed as by
`rules check`. Saturation runs in worker processes that can be killed. Consecutive rules over the same ops reuse the
declarations that a worker's egglog already holds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

from ...egraph.ir.tensor import Tensor, topological
from ...egraph.patterns.rule import Rule
from ...egraph.saturate.engine_bounds import Stop, never
from ...egraph.saturate.saturate import Limits
from ...egraph.saturate.sessions import SaturationSession, Sessions
from ...errors import RuleError, ShapeError
from ..derive.independent import chosen
from ..derive.prove import LIMITS, Claim, Prover, size_one_axes
from ..text.check import check_text
from ..text.shapes import instances
from ..text.text_rule import TextRule
from .rule_file import Line, OwnRule

FAMILIES, EACH = 4, 2
"""Number of shape families (ranks, parameters, groups) at which a rule must be proved, and of instances per family."""


@dataclass(frozen=True)
class Derived:
    """Result of deriving a rule: whether it was, at how many instances, in how many seconds and saturation rounds.

    `index` counts from 0 in file order. `detail` is "proved" or the reason why the search stopped.
    """

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
    """Equalities that together state a rule, one claim per instance; empty if no sizes fit both sides."""
    if isinstance(line, OwnRule):
        return [] if line.rule is None else [x.sides(one) for one in line.rule.directions[:1] for x in chosen(one)]
    families: dict[int, list[Claim]] = {}
    for found in instances(line):
        try:
            families.setdefault(id(found.typing), []).append(found.sides())
        except ShapeError:  # only this instance: its concrete sizes do not fit after all
            continue
    plain = [members for members in families.values() if not any(map(_groups, members))]
    meant = plain or [members for members in families.values() if not any(map(_groups_constants, members))]
    best = [sorted(members, key=size_one_axes)[:EACH] for members in meant or families.values()]
    return [claim for members in best[:FAMILIES] for claim in members]


def _groups(claim: Claim) -> list[Tensor]:
    """The kernels of grouped convolutions in a claim; instances without groups are preferred."""
    nodes = topological([side for pair in claim for side in pair])
    return [n.args[1] for n in nodes if n.op == "conv" and n.attr("groups") > 1]


def _groups_constants(claim: Claim) -> bool:
    """Whether a grouped convolution has a constant kernel.

    Identity and averaging kernels are meant for all channels at once.
    """
    return any(all(leaf.op != "input" for leaf in topological([kernel])) for kernel in _groups(claim))


def derive(
    index: int, line: Line, prover: Prover, session: SaturationSession, limits: Limits = LIMITS, stop: Stop = never
) -> Derived:
    """Result of the attempt to derive one rule, at all its instances together.

    A rule with parameter variables must in addition not be refuted at other values of the parameters. The reported
    seconds include shape inference and, for ops that the session has not seen, declaring the rules to egglog.
    """
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
    """Results for the rules of a file in order, `pool.size` rules in parallel.

    `ours` is the rule set to derive from (default: all rules). After `stop` returns True, no further results are
    yielded, including those of unfinished rules.
    """
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
    """Number of rules, of derived and of other rules, with the median and maximum seconds per rule."""
    seconds = [d.seconds for d in found] or [0.0]
    derived = sum(d.derived for d in found)
    return {"rules": len(found), "derived": derived, "not_derived": len(found) - derived,
            "seconds_median": median(seconds), "seconds_max": max(seconds)}  # fmt: skip
