"""Generalizes emitted text to text with sizes as parameters, from the texts that one schedule (tuning parameters) gives
at several choices of sizes, which are equal up to integers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...egraph.types.dims import Dim, DimExpr
from .size_fit import Fitted, LimitedFit, Sizes, fit, value_at

_NUMBER = re.compile(r"(?<![\w.])(?<!\de[-+])(\d+)(?=(?:LL|u)?(?![\w.]))")
REDUCED = re.compile(r"\br\d+\w*\b")
_WORD = re.compile(r"[A-Za-z_]\w*")
PLACEHOLDER = "operand__{}__"
SIZE = "size__{}__"
Bounds = Mapping[str, tuple[int, int]]  # size -> (least, largest)


class NoForm(Exception):
    """Raised when a kernel's texts at several sizes cannot be generalized to one text with sizes as parameters.

    The message is the reason.
    """


@dataclass(frozen=True)
class Text:
    """Emitted text with holes for numbers that depend on sizes: the texts `pieces` alternate with `values`, functions
    of the sizes."""

    pieces: tuple[str, ...]
    values: tuple[Fitted, ...]

    def spelled(self, spell: Callable[[Fitted], str]) -> str:
        """The text with each hole filled with `spell(value)`, where `value` is the hole's function of the sizes."""
        return "".join([*(p + spell(v) for p, v in zip(self.pieces, self.values)), self.pieces[-1]])

    def at(self, sizes: Sizes) -> str:
        """The text with each hole filled with the number that it has at the given sizes."""
        return self.spelled(lambda value: str(value_at(value, sizes)))

    @staticmethod
    def of(texts: Sequence[str], points: Sequence[Sizes]) -> Text:
        """Generalize `texts`, emitted at the choices of sizes `points`, to one text with holes. Raises NoForm if they
        differ in more than integers that are functions of the sizes."""
        pieces = tuple(_NUMBER.split(texts[0])[::2])
        rows = [list(map(int, _NUMBER.findall(t))) for t in texts]
        values = []
        for column in zip(*rows, strict=True):
            found = fit(column, points)
            if found is None:
                raise NoForm(f"{column[:4]} follows no known function of the sizes")
            values.append(found)
        return Text(pieces, tuple(values))


def skeleton(text: str) -> str:
    """`text` with its integers replaced by `#`; only texts with equal skeletons can be generalized to one."""
    return _NUMBER.sub("#", text)


def python(value: Fitted, names: Mapping[str, str] | None = None) -> str:
    """Python expression of `value`, a function of sizes that `fit` has found; `names`: size -> Python expression of its
    value (by default its name)."""
    if isinstance(value, LimitedFit):
        return f"{value.op}({python(value.value, names)}, {value.limit})"
    if not isinstance(value, DimExpr):
        return str(value)
    return f"({_WORD.sub(lambda m: (names or {}).get(m[0], m[0]), str(value))})"


@dataclass(frozen=True)
class EmittedTexts:
    """The texts that one schedule emits at one choice of sizes: the statements of a call, with placeholders for
    operands and kernels (`kernel0_`, …), bytes of scratch memory, and definitions as (name, source)."""

    statement: str
    scratch: int
    definitions: tuple[tuple[str, str], ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """Statement, bytes of scratch memory (as text) and sources of definitions, in an order that does not depend on
        the sizes."""
        return (self.statement, str(self.scratch), *(text for _, text in self.definitions))


@dataclass(frozen=True)
class SizedForm:
    """A form of a kernel for every size: what one schedule emits, with sizes as parameters, correct for sizes within
    `bounds` (size -> least, largest).

    `statement`: the call; `scratch`: bytes of scratch memory; `definitions`: name -> source.
    """

    statement: Text
    scratch: Dim
    definitions: Mapping[str, str]  # final texts by final name
    bounds: Bounds
