"""Computes verdicts (proved, tested, refuted or unknown) on the rules of a file: `tensor-graphs rules check FILE`.

Each line holds rules in one of two languages; the language is detected per line. Blank lines and lines that begin with
`#` are skipped.

    (matmul 0 (matmul 0 ?a ?b) ?c)=>(matmul 0 ?a (matmul 0 ?b ?c))      TASO's and Tensat's (tensat.py)
    f(x,y)==g(y,x)

    x @ (y @ z) <=> (x @ y) @ z                                         this project's (pattern_parser.py)
    name: recip(x) * y => y / x if rank(x) == 2, floating(x); exact x @ a, x @ b => slice(m, …), slice(n, …) if …
    multi-pattern rule: all sides must match at once

In this project's language the arrow is `=>` or `->` for a one-way rule and `<=>` or `<->` for a two-way rule. Optional
parts: a name before a colon, guards after `if` or `when` (separated by commas or `and`), and `; exact`, which claims
bitwise equality. With `pairs`, two consecutive lines of Tensat's language form one multi-pattern rule; rules in this
project's language are not joined.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass

from ..check.check import STATUSES, Verdict
from .rule_file import SAMPLES, Line, verdict

MANY = 200  # number of rules from which starting worker processes pays off


@dataclass(frozen=True)
class Checked:
    """A rule of a file with its verdict (proved, tested, refuted or unknown). `index` counts from 0 in file order,
    `line` from 1."""

    index: int
    line: int
    text: str
    verdict: Verdict

    def to_json(self) -> dict[str, object]:
        """The rule's entry in the JSON document; the detail of a refuted rule includes the counterexample."""
        found = self.verdict
        detail = f"{found.detail}\n{found.counterexample}" if found.counterexample else found.detail
        return {"index": self.index, "text": self.text, "verdict": found.status, "detail": detail}


def check_all(
    rules: Sequence[Line],
    *,
    seed: int = 0,
    samples: int = SAMPLES,
    say: Callable[[str], None] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
    processes: int = 1,
) -> Iterator[Checked]:
    """Yields every rule of a file with its verdict (proved, tested, refuted or unknown), in file order, until `stop`
    returns True.

    Rules with equal text are checked once. With at least `MANY` distinct rules, `processes` worker processes check in
    parallel. `say` gets a line on the progress after each rule. `seed`, `samples`: of the random tests (`check`).
    """
    known: dict[str, Verdict] = {}
    begin = time.perf_counter()
    distinct = list({rule.text: rule for rule in reversed(rules)}.values())[::-1]
    with ExitStack() as open_:
        coming: dict[str, Future[Verdict]] = {}
        if processes > 1 and len(distinct) >= MANY:
            from .worker import RuleCheckPool

            judges = open_.enter_context(RuleCheckPool(processes, seed, samples))
            coming = dict(zip((rule.text for rule in distinct), judges.all(distinct)))
        for index, rule in enumerate(rules):
            if stop():
                return
            if rule.text not in known:
                if coming and not _done(coming[rule.text], stop):
                    return
                known[rule.text] = coming[rule.text].result() if coming else verdict(rule, seed=seed, samples=samples)
            say(f"{index + 1} of {len(rules)} rules, {time.perf_counter() - begin:.0f} s")
            yield Checked(index, rule.line, rule.text, known[rule.text])


def _done(found: Future[Verdict], stop: Callable[[], bool]) -> bool:
    """Wait for a verdict; False if `stop` returns True first."""
    while not found.done():
        wait([found], timeout=0.1)
        if stop():
            return False
    return True


def counts(found: Sequence[Checked]) -> dict[str, int]:
    """Number of rules by verdict (proved, tested, refuted or unknown)."""
    total = Counter[str](c.verdict.status for c in found)
    return {status: total[status] for status in STATUSES}
