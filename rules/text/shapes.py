"""Shape inference for text rules: families of shapes at which all sides are well typed.

The operators' shape laws give linear equations between unknown sizes. Open choices are enumerated: ranks of variables,
values of parameter variables, the group count of a convolution (channels / second size of the weight), the remainder of
a strided axis. `typings` enumerates the consistent choices; each is a family of shapes, whose members
`Typing.instances` draws. A constant of the language (`Imatmul`, `Iconv`, …) has the size that its context requires.

Semantics, as in TASO unless TASO leaves something open:
- Padding 0 ("same") gives ceil(size / stride) positions, with (kernel - 1) // 2 elements before the first and the rest
  of kernel - 1 after the last; a variable kernel under it has odd size. Average pooling counts padding; in max pooling
  padding never wins.
- The groups of a convolution follow from the shapes.
- `split` undoes the latest concat along its axis, wherever that concat is: axes record their concatenation through
  operators that keep an axis. A variable's axis may be cut anywhere, at one position per rule. Other axes cannot be
  split. If two operands were concatenated at different positions, the split is undefined.
- `enlarge` pads a kernel with zeros, (K - k) // 2 of them before; `Iconv(h, w)` is the identity kernel [n, n, h, w],
  `Cpool(h, w)` the averaging kernel; `merge(w, c)` is the dense kernel of a convolution in c groups.
- `smul` multiplies by a scalar of rank 0, or by a number.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import inf
from time import perf_counter
from typing import NamedTuple

from .instance import TextInstance
from .linear_equations import Inconsistent
from .scopes import SCOPES, AxisScope, scopes
from .shape_families import Typing
from .terms import Choices, Untypable
from .text_rule import TextRule
from .typer import Typer


class Families(NamedTuple):
    """Families of shapes at which a rule is well typed (`found`). `why`: reason if there is none. `complete`: no limit
    cut the enumeration off."""

    found: list[Typing]
    why: str
    complete: bool


def typings(
    rule: TextRule,
    scope: AxisScope = SCOPES[0],
    *,
    only_left: bool = False,
    symbolic: bool = False,
    limit: int = 400,
    until: float = inf,
) -> Families:
    """The families of shapes at which all sides are well typed.

    Tries at most `limit` combinations of choices, and none after `until` (`perf_counter`). With `only_left`, right
    sides are not typed. With `symbolic`, variable strides and kernels stay unknown, and no members can be drawn.
    """
    choices, found, why = Choices(), [], ""
    for _ in range(limit):
        choices.at = 0
        try:
            found.append(Typer(rule, choices, scope, symbolic).run(only_left))
        except Inconsistent:
            why = why or "no sizes fit all its operators"
        except Untypable as error:
            why = why or str(error)
        if not choices.next():
            return Families(found, why, True)
        if perf_counter() > until:
            break
    return Families(found, why, False)


def members(families: Sequence[Typing], *, seed: int = 0, count: int = 12) -> list[TextInstance]:
    """Random instances of several families of shapes: at least two per family, `count` in total if available."""
    rng = random.Random(seed)
    each = -(-count // max(1, len(families)))
    return [x for family in families for x in family.instances(rng, max(2, each))]


def instances(rule: TextRule, *, seed: int = 0, count: int = 12) -> list[TextInstance]:
    """A text rule at `count` random shapes, sizes and parameters, with sides of equal shape if possible.

    Of the scopes under which a rule's text can be read (`scopes`), the narrowest one with any such instance is taken:
    at its shapes a sound rule holds under every reading. `seed`: of the random numbers.
    """
    for scope in reversed(scopes(rule)):
        families = typings(rule, scope).found
        if found := members([f for f in families if f.agrees()] or families, seed=seed, count=count):
            return found
    return []


__all__ = ["Families", "instances", "members", "typings"]
