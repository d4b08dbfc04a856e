"""Implements `tensor-graphs rules`: commands that check, derive, synthesize and list rewrite rules."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import Interrupted, RuleError, TensorGraphsError, UsageError, VerificationError
from ..writing.files import write_text
from .console import Answer, Json, Verbose, text_of, working, writable

if TYPE_CHECKING:
    from ..rules.files import rule_file

app = typer.Typer(no_args_is_help=True, help="The rewrite rules.", rich_markup_mode=None)

RuleFile = Annotated[
    Path, typer.Argument(help="rule file, one rule per line, in Tensat's text format or this project's syntax")
]
Pairs = Annotated[bool, typer.Option("--pairs", help="two consecutive lines of Tensat's format are one rule")]


def rules_of(file: Path, *, pairs: bool = False) -> list[rule_file.Line]:
    """The rules of a file. Raises RuleError, which names file and line, and the errors of `text_of`."""
    from ..rules.files import rule_file

    try:
        return rule_file.read(text_of(file), pairs=pairs)
    except RuleError as error:
        raise RuleError(f"{error.message}: {error.where}", where=str(file), hint=error.hint) from None


@app.command("check")
def check_rules(
    file: RuleFile,
    pairs: Pairs = False,
    strict: Annotated[bool, typer.Option("--strict", help="exit with 5 if a rule is refuted")] = False,
    guards: Annotated[bool, typer.Option("--guards", help="also test which conditions of a rule are necessary")] = False,
    seed: Annotated[int, typer.Option(help="random seed of the sampled shapes and values")] = 0,
    as_json: Json = False, verbose: Verbose = False,
) -> Answer:  # fmt: skip
    """Check every rule of a file: proved, tested, refuted (with a counterexample) or unknown."""
    from ..rules.files import check_file

    begin = time.perf_counter()
    rules = rules_of(file, pairs=pairs)
    with working(verbose, as_json) as progress:
        found = list(check_file.check_all(rules, seed=seed, say=partial(progress.say, "check"),
                                          stop=lambda: progress.stopped, processes=min(8, os.cpu_count() or 1)))  # fmt: skip
        needed = _needed(rules[: len(found)], seed) if guards else {}
    counts = check_file.counts(found)
    rows: list[dict[str, Any]] = [
        c.to_json() | ({"guards": needed[c.index]} if c.index in needed else {}) for c in found
    ]
    document = {"rules": rows, "counts": counts, "seconds": time.perf_counter() - begin}
    shown = [
        f"{r['index']:>5}  {r['verdict']:<8} {' ; '.join(r['text'].splitlines())}\n{'':>16}{r['detail']}"
        + "".join(f"\n{'':>16}if {g['condition']}: {g['without']}, {g['detail']}" for g in r.get("guards", []))
        for r in rows
    ]
    summary = ", ".join(f"{n} {status}" for status, n in counts.items())
    text = "\n".join([*shown, summary])
    wrong = VerificationError(f"{counts['refuted']} of {len(found)} rules are refuted", where=str(file))
    return Answer(document, text, _unfinished(found, rules) or (wrong if strict and counts["refuted"] else None))


def _needed(rules: Sequence[rule_file.Line], seed: int) -> dict[int, list[dict[str, str]]]:
    """Conditions of the rules that have any, by index of the rule: each with the verdict on the rule with that
    condition violated.
    """
    from ..rules.check.check import mutate_guards
    from ..rules.files.rule_file import OwnRule

    return {
        i: [{"condition": text, "without": v.status, "detail": v.detail} for text, v in mutate_guards(line.rule, seed=seed)]
        for i, line in enumerate(rules) if isinstance(line, OwnRule) and line.rule is not None and line.rule.when
    }  # fmt: skip


@app.command("derive")
def derive_rules(
    file: RuleFile,
    pairs: Pairs = False,
    time_limit: Annotated[float, typer.Option(help="time limit per rule in seconds, for all its sizes together")] = 5.0,
    rounds: Annotated[int, typer.Option(help="maximum number of saturation iterations per rule")] = 16,
    nodes: Annotated[int, typer.Option(help="maximum number of e-nodes per rule, for all its sizes together")] = 60_000,
    jobs: Annotated[int, typer.Option(help="worker processes; 0: one per core, at most 8")] = 0,
    as_json: Json = False, verbose: Verbose = False,
) -> Answer:  # fmt: skip
    """Test whether the built-in rules prove each rule of a file: both sides reach one e-class at several sizes."""
    from dataclasses import replace

    from ..egraph.saturate.worker import Pool
    from ..rules.derive import prove
    from ..rules.files import derive_file

    if jobs < 0:
        raise UsageError(f"--jobs {jobs} is negative")
    limits = replace(prove.LIMITS, seconds=time_limit, iterations=rounds, nodes=nodes)
    lines = rules_of(file, pairs=pairs)
    found = []
    with closing(Pool(jobs or min(8, os.cpu_count() or 1))) as pool, working(verbose, as_json) as progress:
        for one in derive_file.derive_all(lines, pool, limits, stop=lambda: progress.stopped):
            found.append(one)
            progress.say("derive", f"{len(found)} of {len(lines)}")
    counts = derive_file.counts(found)
    document = {"rules": [d.to_json() for d in found], "counts": counts,
                "limits": {n: getattr(limits, n) for n in ("seconds", "iterations", "nodes", "bytes")}}  # fmt: skip
    shown = [f"{d.index:>5}  {'derived' if d.derived else f'not derived ({d.detail})':<12} {d.seconds:6.2f} s  {' ; '.join(d.text.splitlines())}"
             for d in found]  # fmt: skip
    summary = f"{counts['derived']} of {len(found)} derived, {counts['seconds_median']:.2f} s a rule (at most {counts['seconds_max']:.2f} s)"
    return Answer(document, "\n".join([*shown, summary]), _unfinished(found, lines))


def _unfinished(found: Sequence[Any], rules: Sequence[Any]) -> TensorGraphsError | None:
    """Error for a rule file that was not processed completely; None if it was."""
    return None if len(found) == len(rules) else Interrupted(f"stopped after {len(found)} of {len(rules)} rules")


@app.command("synthesize")
def synthesize_rules(
    ops: Annotated[str, typer.Option(help="comma-separated ops and numbers, for example matmul,add,transpose,concat,split,relu,0")],
    size: Annotated[int, typer.Option(help="maximum number of ops in a side of a rule")] = 2,
    variables: Annotated[int, typer.Option(help="number of tensor variables, 1 to 4")] = 3,
    broadcast: Annotated[bool, typer.Option("--broadcast", help="also use a row, a column and a scalar as variables")] = False,
    time_limit: Annotated[float, typer.Option(help="time limit of the search in seconds; rules found until then are kept")] = 600.0,
    seed: Annotated[int, typer.Option(help="random seed of the values on which terms are compared")] = 0,
    compare: Annotated[Path | None, typer.Option(help="rule file: report how many of its rules the found rules derive")] = None,
    pairs: Annotated[bool, typer.Option("--pairs", help="two consecutive lines of the --compare file are one rule")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="file to write the rules to")] = None,
    as_json: Json = False, verbose: Verbose = False,
) -> Answer:  # fmt: skip
    """Find rules over the given ops by enumerating terms.

    Found rules are tested, generalized, and not derivable from each other.
    """
    from ..egraph.saturate.worker import Pool
    from ..rules import ALL
    from ..rules.files import derive_file
    from ..rules.synthesize.synthesize import synthesize

    if output is not None:
        writable(output)
    names = tuple(op.strip() for op in ops.split(",") if op.strip())
    lines = rules_of(compare, pairs=pairs) if compare is not None else []
    with working(verbose, as_json) as progress:
        found = synthesize(
            names, size, variables=variables, seed=seed, broadcast=broadcast, base=ALL, time_limit=time_limit,
            say=partial(progress.say, "synthesize"), stop=lambda: progress.stopped,
        )  # fmt: skip
        if output is not None:
            write_text(output, found.text())
        document = found.to_json()
        text = found.text()
        if lines and not progress.stopped:
            with closing(Pool(os.cpu_count() or 1)) as pool:
                derived = list(derive_file.derive_all(lines, pool, ours=found.rules))
            document["compared"] = {"rules": [d.to_json() for d in derived], "counts": derive_file.counts(derived)}
            text += f"\n# derives {sum(d.derived for d in derived)} of {len(derived)} rules of {compare}\n"
    if output is not None:
        document["output"] = str(output)
    stopped = Interrupted("stopped on request; what was found so far was kept", where=str(output or ""))
    return Answer(document, text, stopped if progress.stopped else None)


@app.command("list")
def list_rules(as_json: Json = False) -> Answer:
    """List every built-in rewrite rule with its verdict."""
    from ..rules import ALL
    from ..rules.check import verdicts
    from ..rules.check.check import STATUSES

    found = [verdicts.of(r) for r in ALL]
    rows = [
        {"name": r.name, "family": r.family, "left": r.left, "right": r.right, "when": list(r.when), "growth": r.growth,
         "exact": r.exact, "both": r.both, "shortcut": r.shortcut, "doc": r.doc, "verdict": v.status, "detail": v.detail}
        for r, v in zip(ALL, found)
    ]  # fmt: skip
    counts = {s: sum(v.status == s for v in found) for s in STATUSES}
    text = "\n".join(f"{r['family']:>16}  {r['name']:<34} {r['verdict']:<8} {r['doc']}" for r in rows)
    return Answer({"rules": rows, "counts": counts}, text)
