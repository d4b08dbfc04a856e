"""Rules and terms of TASO's and Tensat's languages as data: tensor variables, numbers, operators with parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

Param = int | str | tuple[int, ...]  # a number, the name of a parameter variable, or a vector


@dataclass(frozen=True)
class Input:
    """Tensor variable of a text rule."""

    name: str

    def __str__(self) -> str:
        return f"?{self.name}"


@dataclass(frozen=True)
class Number:
    """Number in a text rule, used as a scalar tensor."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:g}"


@dataclass(frozen=True)
class TextApply:
    """Operator of a text rule with its parameters, pairs (name, value), and its operands `args`.

    The halves of a split are `split_0` and `split_1` of a tensor along `axis`.
    """

    op: str
    params: tuple[tuple[str, Param], ...]
    args: tuple[Term, ...]

    def param(self, name: str) -> Param | None:
        """The value of the parameter `name`; None if the operator, as it is written here, has no such parameter."""
        return next((v for n, v in self.params if n == name), None)

    def __str__(self) -> str:
        shown = ["_".join(map(str, v)) if isinstance(v, tuple) else f"?{v}" if isinstance(v, str) else str(v)
                 for _, v in self.params]  # fmt: skip
        return f"({' '.join([self.op, *shown, *map(str, self.args)])})"


Term = Input | Number | TextApply


@dataclass(frozen=True)
class TextRule:
    """A rule in TASO's or Tensat's language: `lefts[i]` equals `rights[i]` for every i, once all left sides match.

    `both` is set for equations. `problem` says why a well-formed rule cannot be interpreted (an unknown operator or
    code); it then has no sides. `text` is the rule as written in the file, with the lines of a pair joined by a
    newline; `line` is the number of the first line.
    """

    text: str
    line: int
    lefts: tuple[Term, ...] = ()
    rights: tuple[Term, ...] = ()
    both: bool = False
    problem: str = ""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Tensor variables in order of first use."""
        return tuple(dict.fromkeys(n.name for n in self._nodes() if isinstance(n, Input)))

    @property
    def attributes(self) -> dict[str, str]:
        """Parameter variables, each with the parameter that it stands for ('act', 'stride_h', …)."""
        calls = [n for n in self._nodes() if isinstance(n, TextApply)]
        return {v: k for c in calls for k, v in c.params if isinstance(v, str)}

    def at(self, values: Mapping[str, Param]) -> TextRule:
        """The rule with values substituted for parameter variables."""

        def put(term: Term) -> Term:
            if not isinstance(term, TextApply):
                return term
            params = tuple((n, values.get(v, v) if isinstance(v, str) else v) for n, v in term.params)
            return TextApply(term.op, params, tuple(map(put, term.args)))

        return replace(self, lefts=tuple(map(put, self.lefts)), rights=tuple(map(put, self.rights)))

    @property
    def convolutions(self) -> int:
        """The number of distinct convolutions."""
        return len({n for n in self._nodes() if isinstance(n, TextApply) and n.op == "conv2d"})

    def _nodes(self) -> Iterator[Term]:
        for side in (*self.lefts, *self.rights):
            yield from nodes(side)


def nodes(term: Term) -> Iterator[Term]:
    """The subterms of a term, operands first."""
    if isinstance(term, TextApply):
        for a in term.args:
            yield from nodes(a)
    yield term


__all__ = ["Input", "Number", "Param", "Term", "TextApply", "TextRule", "nodes"]
