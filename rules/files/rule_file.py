"""Reads rules in text form, in this project's own syntax and that of TASO and Tensat, and computes the verdict (proved,
tested, refuted or unknown) of one rule."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...egraph.ops.ops import OPS
from ...egraph.patterns.rule import Rule
from ...errors import RuleError
from ..check.check import Verdict
from ..check.check import verdict as own_verdict
from ..text.check import check_text
from ..text.tensat import blank, is_text, paired, parse_line
from ..text.text_rule import TextRule

DEPTH = 100  # levels of nesting of a rule; checks recurse over them
SAMPLES = 16


_ARROW = re.compile(r"<=>|<->|=>|->")
_NAMED = re.compile(r"\s*([A-Za-z][\w-]*)\s*:\s*(?=\S)")
_GUARDS = re.compile(r"\s(?:if|when)\s")


@dataclass(frozen=True)
class OwnRule:
    """A rule in the project's own language, parsed from one line.

    `problem` says why it cannot be checked; `rule` is None then.
    """

    text: str
    line: int
    rule: Rule | None
    problem: str = ""


Line = TextRule | OwnRule


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


def _depth(tree: ast.AST) -> int:
    """Levels of nesting of a syntax tree, counted without recursion."""
    level, depth = [tree], 0
    while level:
        level, depth = [child for node in level for child in ast.iter_child_nodes(node)], depth + 1
    return depth


def _tree(text: str, line: int, what: str) -> ast.Expression:
    """Syntax tree of a side or a condition. Raises RuleError if it is not an expression or is nested too deeply."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RuleError(f"line {line}: cannot parse {text!r}: {error}", hint=f"a {what} is one expression") from None
    if _depth(tree) > DEPTH:
        raise RuleError(f"line {line}: a {what} is nested deeper than {DEPTH} levels", hint="split the rule")
    return tree


def _unknown_op(sides: Sequence[str], line: int) -> str:
    """The first op of the sides that is not in the op table, or ''. Raises RuleError if a side is not an expression."""
    for side in sides:
        tree = _tree(side, line, "side")
        inside = {
            id(n) for c in ast.walk(tree) if isinstance(c, ast.Call) for k in c.keywords for n in ast.walk(k.value)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and id(node) not in inside:
                if node.func.id.rstrip("_") not in OPS and node.func.id != "lit":
                    return node.func.id
    return ""


def parse_own(text: str, line: int) -> OwnRule:
    """The rule that a line in the project's own language spells. Raises RuleError if the line is malformed."""
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
    for guard in when:
        _tree(guard, line, "condition")
    single = len(lefts) == len(rights) == 1
    rule = Rule(named.group(1) if named else f"line-{line}", lefts[0] if single else tuple(lefts),
                rights[0] if single else tuple(rights), when=when, exact=bool(claims.strip()),
                both=arrows[0].startswith("<"))  # fmt: skip
    try:
        rule.check()
    except RuleError as error:
        raise RuleError(f"line {line}: {error.message}", where=text.strip(), hint=error.hint) from None
    return OwnRule(text.strip(), line, rule)


def read(text: str, *, pairs: bool = False) -> list[Line]:
    """The rules of a file in both languages, in file order. Raises RuleError for a malformed line.

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
    """The verdict (proved, tested, refuted or unknown) on one rule of a file, in either language, from `samples` random
    instances drawn from `seed`."""
    if isinstance(rule, TextRule):
        return check_text(rule, seed=seed)
    if rule.rule is None:
        return Verdict("unknown", rule.problem)
    return own_verdict(rule.rule, seed=seed, samples=samples)
