"""Stores verdicts (proved, tested, refuted or unknown) on the built-in rules, so that listing the rules needs no
checking.

    python -m tensor_graphs.rules.check.verdicts [NAME ...]     checks every rule (a few minutes) or the named ones, and
                                                                writes verdicts.json beside this file

A verdict is stored under a hash of the rule's sides, guards and claims: a new or changed rule is checked on demand.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

from ...egraph.patterns.rule import Rule
from .check import STATUSES, Status, Verdict, verdict

FILE = Path(__file__).with_name("verdicts.json")
SAMPLES = 24


def key(rule: Rule) -> str:
    """Hash of everything that a rule's verdict (proved, tested, refuted or unknown) depends on.

    Sides, guards, directions, and whether the rule claims to preserve every bit.
    """
    text = json.dumps([rule.left, rule.right, rule.when, rule.both, rule.exact])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@cache
def stored() -> dict[str, Verdict]:
    """The verdicts (proved, tested, refuted or unknown) in verdicts.json by key; empty if the file is missing or
    damaged."""
    try:
        found = json.loads(FILE.read_text(encoding="utf-8"))
        return {k: Verdict(v["status"], v["detail"]) for k, v in found.items() if v["status"] in STATUSES}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def of(rule: Rule, *, samples: int = 6) -> Verdict:
    """The stored verdict (proved, tested, refuted or unknown) on a rule, or one computed now from `samples` random
    instances."""
    return stored().get(key(rule)) or verdict(rule, samples=samples)


def table(rules: Sequence[Rule]) -> str:
    """Markdown table: number of rules per family and verdict (proved, tested, refuted or unknown)."""
    families = list(dict.fromkeys(r.family for r in rules))
    rows = [(f, [of(r).status for r in rules if r.family == f]) for f in families]
    rows.append(("**all**", [s for _, found in rows for s in found]))
    lines = [f"| family | rules | {' | '.join(STATUSES)} |", "|---" * (len(STATUSES) + 2) + "|"]
    lines += [f"| {f} | {len(found)} | {' | '.join(str(found.count(s)) for s in STATUSES)} |" for f, found in rows]
    return "\n".join(lines) + "\n"


def update(rules: Iterable[Rule], say: Callable[[str], None] = print, *, keep: bool = False) -> dict[str, Status]:
    """Check rules and write verdicts.json; returns statuses by rule name.

    `keep`: retain the stored verdicts (proved, tested, refuted or unknown) of other rules. `say` gets one line of text
    per rule.
    """
    rules, statuses = list(rules), {}
    found: dict[str, dict[str, str]] = {}
    for rule in rules:
        seen = verdict(rule, samples=SAMPLES)
        found[key(rule)] = {"rule": rule.name, "status": seen.status, "detail": seen.detail}
        statuses[rule.name] = seen.status
        say(f"{seen.status:>8}  {rule.name}")
    if keep:  # read late, since other processes may have written meanwhile
        known = json.loads(FILE.read_text(encoding="utf-8"))
        found = {k: v for k, v in known.items() if v["rule"] not in statuses} | found
    FILE.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    stored.cache_clear()
    return statuses


if __name__ == "__main__":
    import sys

    from .. import EVERY

    asked = set(sys.argv[1:])
    if unknown := asked - {rule.name for rule in EVERY}:
        raise SystemExit(f"no rules are called {', '.join(sorted(unknown))}")
    update([rule for rule in EVERY if not asked or rule.name in asked], keep=bool(asked))
