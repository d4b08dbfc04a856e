"""Equations between small terms, enumerated as TASO does: `python -m benchmarks.rules.equations --count N [--derive]`.

A world is a few variables with shapes, constants with sizes, and operators with parameters. Terms are built by number
of operators, over one term of each value; two terms with equal values in all random draws (by the evaluator of
terms.py) are an equation. Instances of other equations are dropped. Terms with one operator are all enumerated; of
those with more, `--sample` random ones are. An equation that `rules check` refutes holds only at these sizes. Prints
the equations that are not refuted, or with `--derive` how many of them `rules derive` proves, and which it does not.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensor_graphs.rules.files import rule_file

from .terms import Evaluator, Ill, Term, Value, match, show, size, variables

DIGITS = 9
DRAWS = 3


@dataclass
class World:
    """Operands and operators of an enumeration: variables with shapes, constants with sizes, operators with parameters.

    `splits`: axes along which terms are split into halves.
    """

    inputs: dict[str, tuple[int, ...]]
    constants: list[tuple[Term, tuple[int, ...]]]
    unary: list[tuple[Any, ...]]
    binary: list[tuple[Any, ...]]
    splits: tuple[int, ...] = ()


def _images(*windows: tuple[int, ...]) -> list[tuple[Any, ...]]:
    return [(op, *w) for op in ("poolavg", "poolmax") for w in windows]


_MATRIX, _IMAGE, _KERNEL = (2, 2), (3, 2, 5, 6), (2, 2, 3, 3)  # batches are multiples of 3, filters are not
WORLDS = {
    "matrices": lambda: World(
        {"?input_1": _MATRIX, "?input_2": _MATRIX, "?input_3": _MATRIX, "?input_20": (), "?input_21": ()},
        [(("Imatmul",), (2,)), (("Imatmul",), (4,)), (("Iewmul",), _MATRIX), (("Iewmul",), (4, 2))],
        [("relu",), ("tanh",), ("sigmoid",), ("transpose",)],
        [("matmul", 0), ("matmul", 2), ("matmul", 3), ("ewadd",), ("ewmul",), ("smul",), ("concat", 0, 2), ("concat", 1, 2)],
        (0, 1),
    ),
    "images": lambda: World(
        {"?input_7": _IMAGE, "?input_8": _IMAGE, "?input_10": _KERNEL, "?input_11": _KERNEL, "?input_13": (2, 2, 1, 1), "?input_20": ()},
        [(("Iconv", k, k), (2,)) for k in (1, 3, 5)] + [(("Cpool", 3, 3), (2,)), (("Cpool", 2, 2), (2,)), (("Iewmul",), _IMAGE)],
        [("relu",), ("tanh",), ("enlarge", 3, 3), ("enlarge", 5, 5),
         *_images((3, 3, 1, 1, 0), (3, 3, 2, 2, 0), (2, 2, 2, 2, 1), (3, 3, 1, 1, 1), (1, 1, 2, 2, 0))],
        [("conv2d", 1, 1, 0, 0), ("conv2d", 1, 1, 0, 2), ("conv2d", 2, 2, 0, 0), ("conv2d", 1, 1, 1, 0), ("conv2d", 2, 2, 1, 3),
         ("conv2d", 2, 1, 0, 0), ("ewadd",), ("ewmul",), ("smul",), ("concat", 0, 4), ("concat", 1, 4)],
        (0, 1),
    ),
    "windows": lambda: World(  # what strides and windows do to one another
        {"?input_7": _IMAGE, "?input_10": _KERNEL, "?input_20": ()},
        [(("Iconv", k, l), (2,)) for k, l in ((1, 1), (3, 3), (3, 1), (5, 5))]
        + [(("Cpool", k, l), (2,)) for k, l in ((1, 1), (3, 3), (1, 3), (2, 2))],
        [("relu",), ("enlarge", 3, 3), ("enlarge", 5, 3), *_images((3, 3, 1, 1, 0), (3, 3, 2, 2, 0), (2, 2, 2, 2, 1), (3, 3, 1, 1, 1),
         (1, 1, 2, 2, 0), (1, 1, 2, 1, 0), (1, 1, 1, 1, 1), (1, 3, 1, 1, 0), (3, 1, 1, 1, 0), (1, 1, 2, 2, 1), (1, 3, 1, 2, 0), (3, 3, 3, 3, 0))],
        [("conv2d", *w, a) for w in ((1, 1, 0), (2, 2, 0), (1, 1, 1), (2, 2, 1), (1, 2, 0), (2, 1, 0), (3, 3, 0)) for a in (0, 2)]
        + [("ewadd",), ("smul",)],
    ),
}  # fmt: skip


class Book:
    """The terms of a world by number of operators, one per value, and the equations found between them."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.rng, arrays = world, random.Random(seed), np.random.default_rng(seed)
        self.by_value: dict[bytes, Term] = {}
        self.levels: list[list[tuple[Term, tuple[Value, ...]]]] = [[]]
        self.dots: dict[tuple[int, ...], Any] = {}
        self.arrays = arrays
        for name, shape in world.inputs.items():
            drawn = [arrays.standard_normal(shape) for _ in range(DRAWS)]
            self.enter(0, name, tuple(Value(np.asarray(d if i != 1 else -np.abs(d))) for i, d in enumerate(drawn)))
        for term, sizes in world.constants:
            shapes = [sizes] if term[0] == "Iewmul" else [sizes[:1]]
            self.enter(0, term, tuple(Evaluator({}, shapes)(term) for _ in range(DRAWS)))

    def key(self, values: tuple[Value, ...]) -> bytes:
        """Key of a term's values, equal for equal values: shape and rounded random projections.

        Where axes were concatenated (`Value.cuts`) does not count.
        """
        shape = values[0].array.shape
        if shape not in self.dots:
            self.dots[shape] = self.arrays.standard_normal(shape)
        dots = [float(np.sum(v.array * self.dots[shape])) for v in values]
        return repr((shape, [f"{d + 0.0:.{DIGITS}g}" if abs(d) > 1e-9 else "0" for d in dots])).encode()

    def enter(self, level: int, term: Term, values: tuple[Value, ...]) -> tuple[Term, Term] | None:
        """Add a term if its value is new; otherwise return the equation with the term that has this value."""
        if not all(np.isfinite(v.array).all() for v in values):
            return None
        key = self.key(values)
        if key not in self.by_value:
            self.by_value[key] = term
            while len(self.levels) <= level:
                self.levels.append([])
            self.levels[level].append((term, values))
            return None
        first = self.by_value[key]
        return (first, term) if first != term else None

    def grown(self, level: int, limit: int | None) -> Iterator[tuple[Term, Term]]:
        """Equations of terms with `level` operators: all such terms, or a random `limit` of them."""
        options = list(self.options(level))
        if limit is not None and len(options) > limit:
            options = self.rng.sample(options, limit)
        for head, *operands in options:
            envs = [{f"#{i}": v[1][d] for i, v in enumerate(operands)} for d in range(DRAWS)]
            names = [f"#{i}" for i in range(len(operands))]
            term = _made(head, [o[0] for o in operands])
            try:
                values = tuple(Evaluator(e, ())(_made(head, names)) for e in envs)
            except Ill:
                continue
            if any(d > 12 for d in values[0].array.shape):
                continue
            found = self.enter(level, term, values)
            if found:
                yield found

    def options(self, level: int) -> Iterator[tuple[Any, ...]]:
        """(head, operands …) of the terms with `level` operators."""
        world, below = self.world, self.levels[level - 1]
        splits = [(op, ("split", axis)) for op in ("split_0", "split_1") for axis in world.splits]
        for head, x in itertools.product([*world.unary, *splits], below):
            if x[1][0].array.ndim and _sensible(head, x):
                yield head, x
        for i in range(level):
            for head, x, y in itertools.product(world.binary, self.levels[i], self.levels[level - 1 - i]):
                a, b = x[1][0].array, y[1][0].array
                if (a.ndim and (head[0] == "smul" or a.ndim == b.ndim)) and _sensible(head, x, y):
                    yield head, x, y


def _sensible(head: tuple[Any, ...], first: Any, second: Any = None) -> bool:
    """Whether images are used as images and kernels as kernels; constants may be pooled too, as in TASO."""
    shape, *others = (x[1][0].array.shape for x in (first, second) if x)
    if head[0] == "conv2d":
        return shape[0] % 3 == 0 and others[0][0] % 3 != 0
    if head[0] in ("poolavg", "poolmax"):
        return shape[0] % 3 == 0 or not variables(first[0])
    return head[0] != "enlarge" or shape[0] % 3 != 0


def _made(head: tuple[Any, ...], operands: list[Term]) -> Term:
    if head[0].startswith("split_"):
        return (head[0], ("split", head[1][1], operands[0]))
    return (*head, *operands)


def instance(general: tuple[Term, Term], left: Term, right: Term) -> bool:
    """Whether an equation is an instance of a more general one."""
    for a, b in (general, general[::-1]):
        bound: dict[str, Term] = {}
        if match(a, left, bound) and match(b, right, bound):
            return True
    return False


def equations(name: str, seed: int = 0, depth: int = 3, sample: int = 20_000) -> Iterator[tuple[Term, Term]]:
    """The equations of a world, smallest first, without instances of others."""
    book = Book(WORLDS[name](), seed)
    kept: dict[Any, list[tuple[Term, Term]]] = {}
    for level in range(1, depth + 1):
        found = list(book.grown(level, None if level < 2 else sample))
        for left, right in sorted(
            found, key=lambda e: (size(e[0]) + size(e[1]), -len({*variables(e[0]), *variables(e[1])}))
        ):
            heads = _head(left), _head(right)
            if not any(instance(e, left, right) for h in _wider(heads) for e in kept.get(h, ())):
                kept.setdefault(heads, []).append((left, right))
                yield left, right


def _head(term: Term) -> str:
    return term[0] if isinstance(term, tuple) else "?"


def _wider(heads: tuple[str, str]) -> Iterable[tuple[str, str]]:
    """Pairs of operators of the sides of equations that may be more general."""
    return {(a, b) for p, q in (heads, heads[::-1]) for a in (p, "?") for b in (q, "?")}


def drawn(name: str, seed: int, depth: int, sample: int, count: int | None) -> list[str]:
    """A random `count` of a world's equations (None: all), as text."""
    found = [f"{show(b)}=>{show(a)}" for a, b in equations(name, seed, depth, sample)]
    return found if count is None or count >= len(found) else random.Random(seed).sample(found, count)


def judged(texts: list[str], derive: bool) -> tuple[str, list[str]]:
    """(counts by verdict, and with `derive` of derived equations; equations that are not refuted, or not derived)."""
    from tensor_graphs.egraph.saturate.worker import Pool
    from tensor_graphs.rules.files import derive_file

    lines = [line for text in texts for line in rule_file.read(text)]
    status = [rule_file.verdict(line).status for line in lines]
    right = [line for line, s in zip(lines, status) if s in ("proved", "tested")]
    message = f"{len(texts)} | " + " | ".join(str(status.count(s)) for s in ("proved", "tested", "refuted"))
    if not derive:
        return message, [line.text for line in right]
    pool = Pool(2)
    try:
        done = list(derive_file.derive_all(right, pool))
    finally:
        pool.close()
    return f"{message} | {sum(d.derived for d in done)}", [f"{d.detail}: {d.text}" for d in done if not d.derived]


def main() -> None:
    """Print the equations, or with `--derive` a table and the equations that are not derived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", choices=list(WORLDS), action="append")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--depth", type=int, default=2, help="operators of the larger side")
    parser.add_argument("--sample", type=int, default=20_000, help="terms of one size that are looked at")
    parser.add_argument("--count", type=int, help="so many equations of each world, drawn")
    parser.add_argument("--derive", action="store_true")
    given = parser.parse_args()
    if given.derive:
        print(f"| world | equations | proved | tested | refuted | derived |\n{'|---' * 6}|", flush=True)
    for name in given.world or WORLDS:
        message, left = judged(drawn(name, given.seed, given.depth, given.sample, given.count), given.derive)
        print(f"| {name} | {message} |" if given.derive else f"# {name}", flush=True)
        print("\n".join(left), file=sys.stderr if given.derive else sys.stdout, flush=True)


if __name__ == "__main__":
    main()
