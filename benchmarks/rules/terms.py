"""Terms of TASO's rule language as nested tuples, and their evaluation with NumPy, independent of the package.

Semantics as in `rules/text/shapes.py`, implemented independently, so that verdicts of the package can be checked
against it.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

Term = Any  # a variable, a number, or a tuple of an operator and its arguments
Pairs = list[tuple[Term, Term]]
ACTIVATIONS = [lambda x: x, lambda x: 1 / (1 + np.exp(-x)), lambda x: np.maximum(x, 0), np.tanh]
UNARY = {"sigmoid": 1, "relu": 2, "tanh": 3}
CONSTANTS = ("Imatmul", "Iewmul", "Iconv", "Cpool")


class Ill(Exception):
    """Raised for a term without a value at the given shapes."""


def parse(text: str) -> Term:
    """Parse an S-expression."""
    stack: list[list[Term]] = [[]]
    for token in re.findall(r"[()]|[^\s()]+", text):
        if token == "(":
            stack.append([])
        elif token == ")":
            done = tuple(stack.pop())
            stack[-1].append(done)
        else:
            stack[-1].append(int(token) if re.fullmatch(r"-?\d+", token) else token)
    return stack[0][0]


def show(term: Term) -> str:
    """A term as an S-expression."""
    return f"({' '.join(map(show, term))})" if isinstance(term, tuple) else str(term)


def line(pairs: Pairs) -> str:
    """A rule as text, one line per pair of sides."""
    return "\n".join(f"{show(a)}=>{show(b)}" for a, b in pairs)


def positions(term: Term, at: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Term]]:
    """Yields (path of operand indices, subterm) for all subterms."""
    yield at, term
    if isinstance(term, tuple):
        for i, x in enumerate(term[1:], 1):
            if isinstance(x, tuple | str):
                yield from positions(x, (*at, i))


def put(term: Term, at: tuple[int, ...], new: Term) -> Term:
    """The term with the subterm at a path replaced."""
    return new if not at else tuple(put(x, at[1:], new) if i == at[0] else x for i, x in enumerate(term))


def variables(term: Term) -> list[str]:
    """Variables of a term in order of use, with repetitions."""
    return [s for _, s in positions(term) if isinstance(s, str) and s.startswith("?")]


def constants(term: Term) -> list[str]:
    """Constants of a term in the order of evaluation."""
    if not isinstance(term, tuple):
        return []
    return [term[0]] if term[0] in CONSTANTS else [c for x in term[1:] for c in constants(x)]


def size(term: Term) -> int:
    """Number of operators and leaves of a term."""
    return 1 + sum(map(size, term[1:])) if isinstance(term, tuple) else 1


class Value:
    """An array, and for each axis the position at which it was last concatenated (None: nowhere, -1: at two
    positions).
    """

    def __init__(self, array: Any, cuts: Any = ()) -> None:
        self.array, self.cuts = array, list(cuts) or [None] * array.ndim


def _either(p: int | None, q: int | None) -> int | None:
    return q if p is None else p if q is None or p == q else -1


def _windows(x: Any, kernel: tuple[int, int], strides: tuple[int, int], pad: int, fill: float) -> Any:
    if pad == 0:
        low = [(k - 1) // 2 for k in kernel]
        rims = [(p, k - 1 - p) for p, k in zip(low, kernel)]
        x = np.pad(x, ((0, 0), (0, 0), *rims), constant_values=fill)
    if x.shape[2] < kernel[0] or x.shape[3] < kernel[1]:
        raise Ill
    found = np.lib.stride_tricks.sliding_window_view(x, kernel, (2, 3))
    return found[:, :, :: strides[0], :: strides[1]]


class Evaluator:
    """Evaluator of terms at given arrays for the variables.

    `sizes`: shapes of the constants, in the order of evaluation.
    """

    def __init__(self, env: dict[str, Value], sizes: Any) -> None:
        self.env, self.sizes = env, iter(sizes)

    def __call__(self, term: Term) -> Value:
        """The value of a term. Raises Ill if it has none."""
        if isinstance(term, str):
            return self.env[term]
        op, *rest = term
        if op in UNARY:
            x = self(rest[0])
            return Value(ACTIVATIONS[UNARY[op]](x.array), x.cuts)
        law = getattr(self, f"_{re.sub(r'[345]$', '', op)}")
        found: Value = law(op, *rest)
        return found

    def _matmul(self, op: str, act: int, left: Term, right: Term) -> Value:
        a, b = self(left), self(right)
        if a.array.ndim != b.array.ndim or a.array.ndim < 2 or a.array.shape[:-2] != b.array.shape[:-2]:
            raise Ill
        if a.array.shape[-1] != b.array.shape[-2]:
            raise Ill
        lead = map(_either, a.cuts[:-2], b.cuts[:-2])
        return Value(ACTIVATIONS[act](a.array @ b.array), [*lead, a.cuts[-2], b.cuts[-1]])

    def _ewadd(self, op: str, left: Term, right: Term) -> Value:
        a, b = self(left), self(right)
        if a.array.shape != b.array.shape:
            raise Ill
        return Value(a.array + b.array if op == "ewadd" else a.array * b.array, map(_either, a.cuts, b.cuts))

    _ewmul = _ewadd

    def _smul(self, op: str, left: Term, right: Term) -> Value:
        a, b = self(left), self(right)
        if b.array.ndim:
            raise Ill
        return Value(a.array * b.array, a.cuts)

    def _transpose(self, op: str, inner: Term) -> Value:
        x = self(inner)
        if x.array.ndim != 2:
            raise Ill
        return Value(x.array.T, x.cuts[::-1])

    def _concat(self, op: str, axis: int, rank: int, *parts: Term) -> Value:
        found, *others = map(self, parts)
        for other in (found, *others):
            if other.array.ndim != rank or axis >= rank:
                raise Ill
        for other in others:
            a, b = found.array, other.array
            if any(p != q for i, (p, q) in enumerate(zip(a.shape, b.shape)) if i != axis):
                raise Ill
            cuts = [a.shape[axis] if i == axis else _either(found.cuts[i], other.cuts[i]) for i in range(rank)]
            found = Value(np.concatenate((a, b), axis), cuts)
        return found

    def _split_0(self, op: str, pair: Term) -> Value:
        x, axis = self(pair[2]), pair[1]
        cut = x.cuts[axis] if axis < x.array.ndim else None
        if cut is None or cut < 0:
            raise Ill
        part = np.split(x.array, [cut], axis)[op == "split_1"]
        return Value(part, [None if i == axis else c for i, c in enumerate(x.cuts)])

    _split_1 = _split_0

    def _conv2d(self, op: str, sh: int, sw: int, pad: int, act: int, image: Term, kernel: Term) -> Value:
        x, w = self(image), self(kernel)
        if x.array.ndim != 4 or w.array.ndim != 4 or x.array.shape[1] != w.array.shape[1]:
            raise Ill
        read = _windows(x.array, w.array.shape[2:], (sh, sw), pad, 0.0)
        found = np.einsum("nchwij,ocij->nohw", read, w.array)
        return Value(ACTIVATIONS[act](found), [x.cuts[0], w.cuts[0], None, None])

    def _poolavg(self, op: str, kh: int, kw: int, sh: int, sw: int, pad: int, image: Term) -> Value:
        x = self(image)
        if x.array.ndim != 4:
            raise Ill
        read = _windows(x.array, (kh, kw), (sh, sw), pad, 0.0 if op == "poolavg" else -np.inf)
        return Value(read.mean((4, 5)) if op == "poolavg" else read.max((4, 5)), [*x.cuts[:2], None, None])

    _poolmax = _poolavg

    def _enlarge(self, op: str, kh: int, kw: int, kernel: Term) -> Value:
        w = self(kernel)
        if w.array.ndim != 4 or w.array.shape[2] > kh or w.array.shape[3] > kw:
            raise Ill
        more = [k - n for k, n in zip((kh, kw), w.array.shape[2:])]
        rims = [(m // 2, m - m // 2) for m in more]
        return Value(np.pad(w.array, ((0, 0), (0, 0), *rims)), [*w.cuts[:2], None, None])

    def _Imatmul(self, op: str) -> Value:
        return Value(np.eye(next(self.sizes)[0]))

    def _Iewmul(self, op: str) -> Value:
        return Value(np.ones(next(self.sizes)))

    def _Iconv(self, op: str, kh: int, kw: int) -> Value:
        n = next(self.sizes)[0]
        found = np.zeros((n, n, kh, kw))
        if op == "Iconv":
            found[range(n), range(n), (kh - 1) // 2, (kw - 1) // 2] = 1
        else:
            found[range(n), range(n)] = 1 / (kh * kw)
        return Value(found)

    _Cpool = _Iconv


def values(term: Term, env: dict[str, Value], rng: random.Random) -> list[Any]:
    """The possible values of a term: a constant may have any size that fits."""
    dims = sorted({d for v in env.values() for d in v.array.shape} | {1})
    shapes = sorted({v.array.shape for v in env.values() if v.array.ndim >= 2})
    options = [shapes if c == "Iewmul" else [(d,) for d in dims] for c in constants(term)]
    chosen = list(itertools.islice(itertools.product(*options), 4000))
    rng.shuffle(chosen)
    found = []
    for sizes in chosen[:400]:
        try:
            found.append(Evaluator(env, sizes)(term).array)
        except Ill:
            continue
    return found


def compared(left: Term, right: Term, env: dict[str, Value], rng: random.Random) -> str:
    """Comparison of two terms at given arrays: "equal", "differ", "shape" (shapes differ) or "untyped" (no value)."""
    a, b = values(left, env, rng), values(right, env, rng)
    if not a or not b:
        return "untyped"
    same = [(x, y) for x in a for y in b if x.shape == y.shape]
    if not same:
        return "shape"
    near = all(
        np.all(np.abs(x - y) <= 1e-8 * max(1.0, np.abs(x).max(initial=0), np.abs(y).max(initial=0))) for x, y in same
    )
    return "equal" if near else "differ"


def match(pattern: Term, term: Term, bound: dict[str, Term]) -> bool:
    """Whether a pattern matches a term under `bound`, which is extended."""
    if isinstance(pattern, str) and pattern[0] in "?$":
        if (pattern[0] == "$") != isinstance(term, int):
            return False
        return bool(bound.setdefault(pattern, term) == term)
    if not isinstance(pattern, tuple):
        return bool(pattern == term)
    return (
        isinstance(term, tuple) and len(term) == len(pattern) and all(match(p, t, bound) for p, t in zip(pattern, term))
    )


def filled(pattern: Term, bound: dict[str, Term]) -> Term:
    """The instance of a pattern under a binding."""
    if isinstance(pattern, tuple):
        return tuple(filled(p, bound) for p in pattern)
    return bound[pattern] if isinstance(pattern, str) and pattern[0] in "?$" else pattern


def names(pattern: Term) -> set[str]:
    """Variables of a pattern."""
    if isinstance(pattern, tuple):
        return set().union(*map(names, pattern))
    return {pattern} if isinstance(pattern, str) and pattern[0] in "?$" else set()
