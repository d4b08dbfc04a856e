"""Index notation of a term: one result element as sums over elements of the operands.

Views are index maps and disappear into the index expressions. An index is a linear form in loop variables; division and
remainder are simplified where the ranges of the variables allow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from tensor_graphs.egraph.composites.composite import expand
from tensor_graphs.egraph.ir.tensor import LEAVES, Tensor
from tensor_graphs.egraph.ops.index_maps import AffineMap, BroadcastMap, ReshapeMap
from tensor_graphs.egraph.types.dims import concrete

_INFIX = {"add": " + ", "sub": " − ", "mul": "·", "div": " / "}
_LOOPS = {"sum": "Σ", "max": "max", "min": "min", "mean": "mean"}
_NAMES = "ijkl"


@dataclass(frozen=True)
class Index:
    """A linear form of loop variables plus a constant."""

    terms: tuple[tuple[str, int, int], ...] = ()  # (variable, coefficient, number of values)
    constant: int = 0

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.constant + other)
        known = {v: (c, n) for v, c, n in self.terms}
        for v, c, n in other.terms:
            known[v] = (known.get(v, (0, n))[0] + c, n)
        return Index(tuple((v, c, n) for v, (c, n) in known.items() if c), self.constant + other.constant)

    def __mul__(self, factor: int) -> Index:
        """This index times a factor."""
        return Index(tuple((v, c * factor, n) for v, c, n in self.terms if factor), self.constant * factor)

    @property
    def below(self) -> int:
        """Exclusive upper bound of the value (for positive coefficients)."""
        return 1 + self.constant + sum(c * (n - 1) for _, c, n in self.terms)

    def divided(self, n: int) -> tuple[Index, Index]:
        """Returns (quotient, remainder) of division by n."""
        if n == 1:
            return self, Index()
        whole = Index(tuple((v, c // n, m) for v, c, m in self.terms if c % n == 0), self.constant // n)
        rest = Index(tuple(t for t in self.terms if t[1] % n), self.constant % n)
        if rest.below <= n and all(c > 0 for _, c, _ in rest.terms):
            return whole, rest
        text = str(rest) if len(rest.terms) < 2 and not rest.constant else f"({rest})"
        return whole + Index(((f"⌊{text}/{n}⌋", 1, -(-rest.below // n)),)), Index(((f"({text} mod {n})", 1, n),))

    def __str__(self) -> str:
        parts = [v if c == 1 else f"-{v}" if c == -1 else f"{c}·{v}" for v, c, _ in self.terms]
        parts += [str(self.constant)] if self.constant or not parts else []
        return "+".join(parts).replace("+-", "−")


@dataclass
class _Writer:
    """Writes terms as text; names loop variables in the order in which loops occur."""

    fresh: int = 0
    depth: dict[str, int] = field(default_factory=dict)

    def variable(self, size: int) -> Index:
        """A new loop variable with `size` values; the constant 0 if `size` is 1."""
        if size == 1:
            return Index()
        name = _NAMES[self.fresh] if self.fresh < len(_NAMES) else f"{_NAMES[2]}{self.fresh - len(_NAMES) + 1}"
        self.fresh += 1
        return Index(((name, 1, size),))

    def element(self, term: Tensor, at: Sequence[Index]) -> tuple[str, int]:
        """One element as (text, binding strength of its outermost operator: 0 atom, 1 product, 2 sum or loop)."""
        op, attrs = term.op, dict(term.attrs)
        if op in LEAVES[:3]:
            return f"{attrs['name']}[{', '.join(map(str, at))}]", 0
        if op == "full":
            return f"{attrs['value']:g}", 0
        if term.entry.index_map is not None:
            return self.view(term, at)
        if term.entry.pointwise and not term.entry.composite:
            return self.pointwise(term, at)
        if op in _LOOPS:
            return self.reduction(term, at)
        if op == "matmul":
            k = self.variable(int(concrete(term.args[0].shape)[-1]))
            left, right = ([*_unused(a, at)[:-2]] for a in term.args)
            return self.loop("Σ", [k], self.product(
                self.element(term.args[0], [*left, at[-2], k]), self.element(term.args[1], [*right, k, at[-1]])
            ))  # fmt: skip
        if op == "conv":
            return self.convolution(term, at)
        if term.entry.composite:
            return self.element(expand(term), at)
        return f"{op}(…)[{', '.join(map(str, at))}]", 0

    def pointwise(self, term: Tensor, at: Sequence[Index]) -> tuple[str, int]:
        parts = [self.element(a, _unused(a, at)) for a in term.args]
        if term.op == "mul":
            return self.product(*parts)
        if term.op in _INFIX:
            (a, _), (b, loose) = parts
            loose_too = loose > (1 if term.op == "add" else 0)
            left = f"({a})" if term.op == "div" and parts[0][1] > 1 else a
            return f"{left}{_INFIX[term.op]}{f'({b})' if loose_too else b}", 1 if term.op == "div" else 2
        return f"{term.op}({', '.join(t for t, _ in parts)})", 0

    @staticmethod
    def product(a: tuple[str, int], b: tuple[str, int]) -> tuple[str, int]:
        """Product of two factors."""
        left, right = (f"({t})" if loose > 1 else t for t, loose in (a, b))
        return f"{left}·{right}", 1

    @staticmethod
    def loop(sign: str, variables: Sequence[Index], body: tuple[str, int]) -> tuple[str, int]:
        """An accumulating loop over a body."""
        used = [f"{v.terms[0][0]}<{v.terms[0][2]}" for v in variables if v.terms]
        text = f"({body[0]})" if body[1] > 1 and not body[0].startswith(tuple(_LOOPS.values())) else body[0]
        return (f"{sign}[{', '.join(used)}] {text}", 2) if used else body

    def reduction(self, term: Tensor, at: Sequence[Index]) -> tuple[str, int]:
        axes = dict(term.attrs)["axes"]
        sizes = concrete(term.args[0].shape)
        loops = {a: self.variable(sizes[a]) for a in axes}
        body = self.element(term.args[0], [loops.get(i, x) for i, x in enumerate(at)])
        return self.loop(_LOOPS[term.op], list(loops.values()), body)

    def convolution(self, term: Tensor, at: Sequence[Index]) -> tuple[str, int]:
        attrs, (x, w) = dict(term.attrs), term.args
        if attrs["groups"] != 1:
            return "conv(…)", 0
        kernel = concrete(w.shape)
        c, *inner = [self.variable(n) for n in kernel[1:]]
        space = [
            at[2 + i] * attrs["strides"][i] + k * attrs["dilations"][i] + Index((), -attrs["pads"][i])
            for i, k in enumerate(inner)
        ]
        return self.loop(
            "Σ", [c, *inner], self.product(self.element(x, [at[0], c, *space]), self.element(w, [at[1], c, *inner]))
        )

    # ------------------------------------------------------------ index maps
    def view(self, term: Tensor, at: Sequence[Index]) -> tuple[str, int]:
        """An op with an index map."""
        assert term.entry.index_map is not None
        found = term.entry.index_map(dict(term.attrs), [concrete(a.shape) for a in term.args])
        if isinstance(found, AffineMap):
            return self.element(term.args[0], [along.at(at) for along in found.axes])
        if isinstance(found, ReshapeMap):
            return self.reshape(term, at)
        if isinstance(found, BroadcastMap):
            return self.element(term.args[0], _unused(term.args[0], at))
        if len(found.parts) > 1:
            return f"{term.op}(…)[{', '.join(map(str, at))}]", 0
        ((operand, start, _),) = found.parts  # indices outside the operand read the padding value
        return self.element(term.args[operand], [*at[: found.axis], at[found.axis] + -start, *at[found.axis + 1 :]])

    def reshape(self, term: Tensor, at: Sequence[Index]) -> tuple[str, int]:
        """Index map of a reshape: flatten and unflatten the shortest groups of axes of equal volume."""
        old, new = concrete(term.args[0].shape), concrete(term.shape)
        found: list[Index] = []
        i = j = 0
        while i < len(old) or j < len(new):  # shortest runs of axes with equal element counts
            a, b = i, j
            i, j = min(i + 1, len(old)), min(j + 1, len(new))
            while prod(old[a:i]) != prod(new[b:j]):
                if prod(old[a:i]) < prod(new[b:j]):
                    i += 1
                else:
                    j += 1
            flat = Index()
            for size, index in zip(new[b:j], at[b:j]):
                flat = flat * size + (index if size > 1 else Index())
            for k in range(a, i):
                quotient, flat = flat.divided(prod(old[k + 1 : i]))
                found.append(quotient)
        return self.element(term.args[0], found)


def _unused(operand: Tensor, at: Sequence[Index]) -> list[Index]:
    """Indices for a broadcast operand: 0 along its axes of size 1."""
    return [Index() if size == 1 else x for size, x in zip(concrete(operand.shape), at)]


def notation(term: Tensor) -> str:
    """One element of a term as loops over elements of its leaves. Out-of-range indices of an operand read its padding
    value.

    Common subterms are written out at each use, so this suits terms of a few dozen nodes.
    """
    writer = _Writer()
    at = [writer.variable(size) for size in concrete(term.shape)]
    text, _ = writer.element(term, at)
    return f"[{', '.join(map(str, at))}] = {text}"


__all__ = ["Index", "notation"]
