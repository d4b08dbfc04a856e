"""Verdicts on the rules of a file: `tensor-graphs rules check FILE`.

Each line holds rules in one of two languages; the language is detected per line. Blank lines and lines that begin with
`#` are skipped.

    (matmul 0 (matmul 0 ?a ?b) ?c)=>(matmul 0 ?a (matmul 0 ?b ?c))      TASO's and Tensat's (tensat.py)
    f(x,y)==g(y,x)

    x @ (y @ z) <=> (x @ y) @ z                                         ours (egraph/ir/pattern.py)
    name: recip(x) * y => y / x if rank(x) == 2, floating(x); exact
    x @ a, x @ b => slice(m, …), slice(n, …) if …                       multi-pattern rule: all sides must match at once

In our language the arrow is `=>` or `->` for a one-way rule and `<=>` or `<->` for a two-way rule. Optional parts: a
name before a colon, guards after `if` or `when` (separated by commas or `and`), and `; exact`, which claims bitwise
equality. With `pairs`, two consecutive lines of Tensat's language form one multi-pattern rule; rules in our language
stay single.
"""

from __future__ import annotations

import ast
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass

from ...egraph.ir.ops import OPS
from ...egraph.ir.rule import Rule
from ...errors import RuleError
from ..check.check import STATUSES, Verdict
from ..check.check import verdict as own_verdict
from ..text.check import check_text
from ..text.tensat import TextRule, blank, is_text, paired, parse_line

SAMPLES = 16
MANY = 200  # number of rules from which starting worker processes pays off
_ARROW = re.compile(r"<=>|<->|=>|->")
_NAMED = re.compile(r"\s*([A-Za-z][\w-]*)\s*:\s*(?=\S)")
_GUARDS = re.compile(r"\s(?:if|when)\s")


@dataclass(frozen=True)
class OwnRule:
    """A rule in our own language, parsed from one line. `problem` says why it cannot be checked; `rule` is None
    then."""

    text: str
    line: int
    rule: Rule | None
    problem: str = ""


Line = TextRule | OwnRule


@dataclass(frozen=True)
class Checked:
    """A rule of a file with its verdict. `index` counts from 0 in file order, `line` from 1."""

    index: int
    line: int
    text: str
    verdict: Verdict

    def to_json(self) -> dict[str, object]:
        """The rule's entry in the JSON document; the detail of a refuted rule includes the counterexample."""
        found = self.verdict
        detail = f"{found.detail}\n{found.counterexample}" if found.counterexample else found.detail
        return {"index": self.index, "text": self.text, "verdict": found.status, "detail": detail}


# ---------------------------------------------------------------- our own language
def _split(text: str, separators: tuple[str, ...]) -> list[str]:
    """The text split at separators outside of brackets, parts stripped."""
    parts, depth, start, i = [], 0, 0, 0
    while i < len(text):
        depth += (text[i] in "([") - (text[i] in ")]")
        here = next((s for s in separators if depth == 0 and text.startswith(s, i)), "")
        if here:
            parts.append(text[start:i])
            start = i + len(here)
        i += len(here) or 1
    return [p.strip() for p in (*parts, text[start:])]


def _unknown_op(sides: Sequence[str], line: int) -> str:
    """The first op of the sides that is not in the op table, or ''. RuleError if a side is not an expression."""
    for side in sides:
        try:
            tree = ast.parse(side.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise RuleError(f"line {line}: cannot parse {side!r}: {error}", hint="a side is one expression") from None
        inside = {
            id(n) for c in ast.walk(tree) if isinstance(c, ast.Call) for k in c.keywords for n in ast.walk(k.value)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and id(node) not in inside:
                if node.func.id.rstrip("_") not in OPS and node.func.id != "lit":
                    return node.func.id
    return ""


def parse_own(text: str, line: int) -> OwnRule:
    """Parses a line in our own language. RuleError names the line."""
    rest, _, claims = text.strip().partition(";")
    if claims.strip() not in ("", "exact"):
        raise RuleError(
            f"line {line}: {claims.strip()!r} after ';'", where=text.strip(), hint="only `exact` may stand there"
        )
    named = _NAMED.match(rest)
    body = rest[named.end() :] if named else rest
    arrows = _ARROW.findall(body)
    if len(arrows) != 1:
        raise RuleError(
            f"line {line}: {len(arrows)} arrows where one was expected", where=text.strip(), hint="left => right"
        )
    left, right = _ARROW.split(body)
    right, *guards = _GUARDS.split(right, maxsplit=1)
    lefts, rights = _split(left, (",",)), _split(right, (",",))
    if problem := _unknown_op([*lefts, *rights], line):
        return OwnRule(text.strip(), line, None, f"no op is called {problem!r}")
    when = tuple(g for g in _split(guards[0], (",", " and ")) if g) if guards else ()
    single = len(lefts) == len(rights) == 1
    rule = Rule(named.group(1) if named else f"line-{line}", lefts[0] if single else tuple(lefts),
                rights[0] if single else tuple(rights), when=when, exact=bool(claims.strip()),
                both=arrows[0].startswith("<"))  # fmt: skip
    try:
        rule.check()
    except RuleError as error:
        raise RuleError(f"line {line}: {error.message}", where=text.strip(), hint=error.hint) from None
    return OwnRule(text.strip(), line, rule)


# ---------------------------------------------------------------- files
def read(text: str, *, pairs: bool = False) -> list[Line]:
    """The rules of a file in both languages, in file order. RuleError names the line that cannot be parsed.

    With `pairs`, consecutive rules in Tensat's language are joined two by two.
    """
    found: list[Line] = []
    waiting: TextRule | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if blank(line):
            continue
        if not is_text(line):
            found.append(parse_own(line, number))
            continue
        for rule in parse_line(line, number):
            if not pairs:
                found.append(rule)
            elif waiting is None:
                waiting = rule
            else:
                found.append(paired(waiting, rule))
                waiting = None
    if waiting is not None:
        raise RuleError(f"line {waiting.line}: this line has no second one to make a pair", where=waiting.text,
                        hint="leave --pairs out if every line is a rule")  # fmt: skip
    return found


def verdict(rule: Line, *, seed: int = 0, samples: int = SAMPLES) -> Verdict:
    """The verdict on one rule of a file."""
    if isinstance(rule, TextRule):
        return check_text(rule, seed=seed)
    if rule.rule is None:
        return Verdict("unknown", rule.problem)
    return own_verdict(rule.rule, seed=seed, samples=samples)


def check_all(
    rules: Sequence[Line],
    *,
    seed: int = 0,
    samples: int = SAMPLES,
    say: Callable[[str], None] = lambda text: None,
    stop: Callable[[], bool] = lambda: False,
    processes: int = 1,
) -> Iterator[Checked]:
    """Yields every rule of a file with its verdict, in file order, until `stop` returns True.

    Rules with equal text are checked once. With at least `MANY` distinct rules, `processes` worker processes check in
    parallel.
    """
    known: dict[str, Verdict] = {}
    begin = time.perf_counter()
    distinct = list({rule.text: rule for rule in reversed(rules)}.values())[::-1]
    with ExitStack() as open_:
        coming: dict[str, Future[Verdict]] = {}
        if processes > 1 and len(distinct) >= MANY:
            from .worker import Judges

            judges = open_.enter_context(Judges(processes, seed, samples))
            coming = dict(zip((rule.text for rule in distinct), judges.all(distinct)))
        for index, rule in enumerate(rules):
            if stop():
                return
            if rule.text not in known:
                if coming:
                    while not (found := coming[rule.text]).done():
                        wait([found], timeout=0.1)
                        if stop():
                            return
                    known[rule.text] = found.result()
                else:
                    known[rule.text] = verdict(rule, seed=seed, samples=samples)
            say(f"{index + 1} of {len(rules)} rules, {time.perf_counter() - begin:.0f} s")
            yield Checked(index, rule.line, rule.text, known[rule.text])


def counts(found: Sequence[Checked]) -> dict[str, int]:
    """Number of rules per verdict."""
    total = Counter[str](c.verdict.status for c in found)
    return {status: total[status] for status in STATUSES}
