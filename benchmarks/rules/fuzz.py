"""Verdicts on random right and wrong rules: `python -m benchmarks.rules.fuzz COUNT [--seed N] [--forms] [--derive]`.

A right rule is a random typed term and the result of one to four applications of identities in `axioms.txt`; some
rules are pairs of lines, which merge two operators. A wrong rule is a right one with one thing changed: operands, an
axis, an activation, a stride, a padding, a kernel, a side of a split, a variable, an operator dropped or moved. The
truth is decided here, by evaluation in float64 at shapes that fit, with nothing of the package. Rules whose sides never
have a type together count as untyped. `--forms` adds the handwritten rules of rules/forms.txt, which state their truth.
Prints a table of kinds by verdict, and every disagreement.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rules.maker import Maker, Retry
from benchmarks.rules.terms import (
    UNARY,
    Pairs,
    Term,
    Value,
    compared,
    filled,
    line,
    match,
    names,
    parse,
    positions,
    put,
    size,
    variables,
)

SIZE = 34  # largest number of nodes of a term that a step makes


# ---------------------------------------------------------------- typed terms


def sorted_shape(name: str, rng: random.Random, pool: tuple[int, ...]) -> tuple[int, ...]:
    """A random shape for a variable, whose number says its kind as in TASO (matrix, image, kernel, scalar)."""
    number = int(name[7:])
    sizes = (rng.choice(pool), rng.choice(pool))
    if number < 7 or number > 19:
        return sizes if number < 7 else ()
    return (*sizes, *(rng.choice(((5, 5), (6, 7))) if number < 10 else rng.choice(((1, 1), (3, 3), (3, 3), (5, 5)))))


def truth(pairs: Pairs, maker: Maker, arrays: np.random.Generator) -> str:
    """ "right", "wrong" or "untyped", by evaluation at random shapes, first those for which the rule was made."""
    rng, names = maker.rng, list(dict.fromkeys(v for a, b in pairs for v in variables(a) + variables(b)))
    seen: Counter[str] = Counter()
    for i in range(100):
        shapes = (maker.shapes(i % 4 == 3) if i < 24 else None) or {}
        pool = rng.choice(((2,), (2, 4), (3, 2), (2, 3, 5), (1, 2, 3), (2, 4, 6)))
        env = {}
        for name in names:
            shape = shapes[name] if name in shapes else sorted_shape(name, rng, pool)
            array = arrays.standard_normal(shape)
            if i % 3 == 2:  # all of one sign: otherwise the maximum of a large window is hardly ever negative
                array = np.abs(array) * rng.choice((-1, 1))
            env[name] = Value(array, [rng.randint(1, d - 1) if d > 1 else None for d in shape])
        found = {compared(a, b, env, rng) for a, b in pairs}
        seen[next(x for x in ("untyped", "shape", "differ", "equal") if x in found)] += 1
        if seen["differ"]:
            return "wrong"
    return "wrong" if seen["shape"] else "right" if seen["equal"] else "untyped"


# ---------------------------------------------------------------- right rules
def axioms() -> list[tuple[Term, Term]]:
    """The identities of axioms.txt, each in both directions."""
    text = (Path(__file__).parent / "axioms.txt").read_text(encoding="utf-8")
    found = [tuple(map(parse, each.split(" == "))) for each in text.splitlines() if not each.startswith("#")]
    return [pair for a, b in found for pair in ((a, b), (b, a))]


def steps(term: Term, rng: random.Random, laws: list[tuple[Term, Term]]) -> list[Term]:
    """The terms that one application of an axiom to some subterm gives.

    Axioms whose left side is a variable match everywhere and are applied rarely.
    """
    found = []
    for (at, inner), (left, right) in itertools.product(positions(term), laws):
        bound: dict[str, Term] = {}
        if (isinstance(left, str) and rng.random() > 0.03) or not match(left, inner, bound):
            continue
        free = names(right) - names(left)
        if free <= {"$k", "$l"}:
            k = rng.choice((3, 3, 5, 1))
            found.append(put(term, at, filled(right, {"$k": k, "$l": k, **bound})))
    return [t for t in found if size(t) < SIZE]


def single(rng: random.Random, laws: list[tuple[Term, Term]]) -> tuple[Maker, Pairs] | None:
    """A random rule of one pair; right, unless an axiom about matrices was applied to an image.

    None if no step applies.
    """
    maker = Maker(rng)
    first = last = maker.start()
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
        options = steps(last, rng, laws)
        if options:
            last = rng.choice(options)
    if first == last or size(first) > SIZE:
        return None
    return maker, [(first, last) if rng.random() < 0.5 else (last, first)]


def merged(rng: random.Random) -> tuple[Maker, Pairs]:
    """A random rule of two pairs: two equal operators on different operands become one on their concatenation."""
    maker, axis = Maker(rng), rng.choice((0, 1))
    stride, pad, act = rng.choice((1, 2)), rng.choice((0, 1)), rng.choice((0, 0, 2, 3))
    rank = rng.choice((2, 4))
    kind, space = ("matrix", ()) if rank == 2 else ("image", ((),))

    def two(kind: str, shape: Any, axis: int) -> tuple[Term, Term]:
        made = [tuple(maker.size() if i == axis else s for i, s in enumerate(shape)) for _ in (0, 1)]
        first, second = (maker.term(kind, s, rng.choice((0, 0, 1))) for s in made)
        return first, second

    inner, outer = maker.size(), maker.size()
    case = rng.choice(("unary", "smul", "transpose", "left", "right", "kernels", "images", "pool"))
    if case in ("unary", "smul"):
        x, y = two(kind, (inner, outer, *space), axis)
        op, scalar = rng.choice(list(UNARY)), maker.scalar()
        make, cut, joined = (lambda t: (op, t) if case == "unary" else ("smul", t, scalar)), axis, axis
    elif case == "transpose":
        rank, (x, y) = 2, two("matrix", (inner, outer), axis)
        make, cut, joined = (lambda t: ("transpose", t)), 1 - axis, axis
    elif case in ("left", "right"):
        rank, cut, joined = 2, int(case == "left"), int(case == "left")
        x, y = two("matrix", (inner, inner), joined)
        other = maker.term("matrix", (outer, inner) if case == "left" else (inner, outer), rng.choice((0, 1)))
        make = lambda t: ("matmul", act, *((other, t) if case == "left" else (t, other)))
    elif case == "kernels":
        rank, cut, joined = 4, 1, 0
        x, y = two("kernel", (inner, inner, "o1", "o2"), 0)
        other = maker.term("image", (outer, inner, ()), rng.choice((0, 1)))
        make = lambda t: ("conv2d", stride, stride, pad, act, other, t)
    elif case == "images":
        rank, cut, joined = 4, 0, 0
        x, y = two("image", (inner, inner, ()), 0)
        other = maker.term("kernel", (outer, inner, "o1", "o2"), 0)
        make = lambda t: ("conv2d", stride, stride, pad, act, t, other)
    else:
        rank, cut, joined, k = 4, axis, axis, rng.choice((2, 3))
        x, y = two("image", (inner, outer, ()), axis)
        op = rng.choice(("poolavg", "poolmax"))
        make = lambda t: (op, k, k, stride, stride, pad, t)
    both = ("split", cut, make(("concat", joined, rank, x, y)))
    return maker, [(make(x), ("split_0", both)), (make(y), ("split_1", both))]


# ---------------------------------------------------------------- wrong rules
def changed(term: Term) -> Iterator[tuple[str, Term]]:
    """Yields (kind of error, term) for wrong variants of a term's outermost operator."""
    op, *rest = term
    other = {
        "ewadd": "ewmul",
        "poolavg": "poolmax",
        "Iconv": "Cpool",
        "split_0": "split_1",
        "relu": "tanh",
        "tanh": "sigmoid",
    }
    swap = other | {b: a for a, b in other.items()}
    if op in ("matmul", "ewadd", "ewmul", "concat"):
        yield "operands", (op, *rest[:-2], rest[-1], rest[-2])
    if op in swap:
        yield "side" if op.startswith("split") else "operator", (swap[op], *rest)
    if op in ("matmul", "conv2d"):
        at = {"matmul": 0, "conv2d": 3}[op]
        yield from (("activation", (op, *rest[:at], act, *rest[at + 1 :])) for act in range(4) if act != rest[at])
    if op in ("concat", "split_0", "split_1"):
        new = (op, 1 - rest[0], *rest[1:]) if op == "concat" else (op, ("split", 1 - rest[0][1], rest[0][2]))
        yield "axis", new
    if op in ("relu", "tanh", "sigmoid", "transpose", "smul", "enlarge"):
        yield "dropped", rest[0] if op != "enlarge" else rest[2]
    if op in ("conv2d", "poolavg", "poolmax"):
        at = 0 if op == "conv2d" else 2
        yield from (("stride", (op, *rest[:i], 3 - rest[i], *rest[i + 1 :])) for i in (at, at + 1))
        yield "padding", (op, *rest[: at + 2], 1 - rest[at + 2], *rest[at + 3 :])
    if op in ("poolavg", "poolmax", "enlarge", "Iconv", "Cpool"):
        yield "kernel", (op, rest[0] + 2, *rest[1:])
    inner = rest[0] if rest else None
    if (
        op in UNARY
        and isinstance(inner, tuple)
        and inner[0] in ("matmul", "ewadd", "ewmul", "conv2d", "poolavg", "concat")
    ):
        yield "moved", (*inner[:-1], (op, inner[-1]))


def mutants(pairs: Pairs) -> Iterator[tuple[str, Pairs]]:
    """Yields (kind of error, rule) for variants of a rule with one thing changed."""
    for k, side in itertools.product(range(len(pairs)), (0, 1)):
        known = sorted(set(variables(pairs[k][side])))
        for at, inner in positions(pairs[k][side]):
            if isinstance(inner, tuple):
                options = list(changed(inner))
            else:
                options = [("variable", v) for v in known if inner.startswith("?") and v != inner]
            for kind, new in options:
                both = list(pairs[k])
                both[side] = put(pairs[k][side], at, new)
                yield kind, [*pairs[:k], (both[0], both[1]), *pairs[k + 1 :]]


def rules(count: int, seed: int) -> Iterator[tuple[str, str, str]]:
    """Yields (kind, truth, text) of `count` random rules."""
    rng, arrays, laws = random.Random(seed), np.random.default_rng(seed), axioms()
    seen: set[str] = set()
    made = 0
    while made < count:
        try:
            found = merged(rng) if rng.random() < 0.15 else single(rng, laws)
        except Retry:
            continue
        if found is None or line(found[1]) in seen:
            continue
        maker, pairs = found
        seen.add(line(pairs))
        if truth(pairs, maker, arrays) != "right":
            continue
        yield "pair" if len(pairs) == 2 else "chain", "right", line(pairs)
        made += 1
        options = list(mutants(pairs))
        rng.shuffle(options)
        kinds: set[str] = set()
        for kind, mutant in options:
            if kind not in kinds and len(kinds) < 2 and line(mutant) not in seen:
                kinds.add(kind)
                seen.add(line(mutant))
                yield kind, truth(mutant, maker, arrays), line(mutant)
                made += 1


def forms() -> Iterator[tuple[str, str, str]]:
    """Yields (kind, truth, text) of the handwritten rules of rules/forms.txt, for forms that are not generated here."""
    text = (Path(__file__).parent / "forms.txt").read_text(encoding="utf-8")
    for section in text.split("\n## ")[1:]:
        heading, *lines = section.split("\n")
        lines, step = [each for each in lines if each], 1 + heading.endswith("pairs")
        for i in range(0, len(lines), step):
            yield ("form", heading.split()[0], "\n".join(lines[i : i + step]))


# ---------------------------------------------------------------- tables
def check(found: list[tuple[str, str, str]]) -> None:
    """Print the verdicts by kind and truth, and the disagreements."""
    from tensor_graphs.rules.files import rule_file

    table: dict[tuple[str, str], Counter[str]] = {}
    odd, seconds = [], []
    for kind, true, text in found:
        begin = time.perf_counter()
        (rule,) = rule_file.read(text, pairs="\n" in text)
        verdict = rule_file.verdict(rule).status
        seconds.append(time.perf_counter() - begin)
        table.setdefault((true, kind), Counter())[verdict] += 1
        if verdict != ("proved" if true == "right" else "refuted"):
            odd.append(f"{true}, {verdict}: {text}")
    print("| truth | kind | rules | proved | tested | refuted | unknown |\n|---|---|---|---|---|---|---|")
    for (true, kind), row in sorted(table.items()):
        print(
            f"| {true} | {kind} | {row.total()} | {' | '.join(str(row[s]) for s in ('proved', 'tested', 'refuted', 'unknown'))} |"
        )
    seconds.sort()
    print(f"\n{sum(seconds):.0f} s, median {seconds[len(seconds) // 2]:.2f}, largest {seconds[-1]:.2f}\n")
    print("\n".join(odd))


def derive(found: list[tuple[str, str, str]]) -> None:
    """Print how many right rules are derived, and those that are not."""
    from tensor_graphs.egraph.saturate.worker import Pool
    from tensor_graphs.rules.files import derive_file, rule_file

    texts = [text for _, true, text in found if true == "right"]
    lines = [rule_file.read(text, pairs="\n" in text)[0] for text in texts]
    pool = Pool(2)
    try:
        done = list(derive_file.derive_all(lines, pool))
    finally:
        pool.close()
    print(derive_file.counts(done))
    print("\n".join(f"{d.detail}: {d.text}" for d in done if not d.derived))


def main() -> None:
    """Generate rules, and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, help="rules to make, right and wrong ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--forms", action="store_true", help="also those of rules/forms.txt")
    parser.add_argument("--derive", action="store_true", help="derive the right ones too")
    given = parser.parse_args()
    found = [*rules(given.count, given.seed), *(forms() if given.forms else ())]
    check(found)
    if given.derive:
        derive(found)


if __name__ == "__main__":
    main()
