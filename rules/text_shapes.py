"""What a rule of Tensat's language says at concrete shapes: its sides as tensors of this project.

The operators' shape laws give linear equations between unknown sizes. What they leave open is chosen: the ranks of variables,
values of parameter variables, how many groups a convolution has (channels / second size of the weight), the remainder of a
strided axis. `typings` enumerates the choices that are consistent; each is a family of shapes, of which `Typing.instances`
draws members. A constant of the language (`Imatmul`, `Iconv`, …) has whatever size its surroundings want.

Semantics, as in TASO unless it leaves something open:
- padding 0 ("same") gives ceil(size / stride) positions, (kernel - 1) // 2 elements before the first and the rest of
  kernel - 1 behind the last; the kernel of a variable under it is odd. Average pooling counts padding; in max pooling it
  never wins.
- the groups of a convolution follow from the shapes.
- `split` undoes the latest concat along its axis, wherever that came from: the operand's axes remember where they were put
  together, through operators that keep an axis. A variable's axis may be cut anywhere, at one place per rule. Any other axis
  cannot be split. Where two operands were put together at different places, the split has no meaning.
- `enlarge` puts zeros around a kernel, (K - k) // 2 of them before; `Iconv(h, w)` is the kernel [n, n, h, w] that changes
  nothing, `Cpool(h, w)` the one that averages; `merge(w, c)` is the dense kernel of a convolution in c groups.
- `smul` multiplies by a scalar of rank 0, or by a number.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import inf
from time import perf_counter
from typing import NamedTuple

from .linear import Inconsistent
from .tensat import TextRule
from .text_families import Typing
from .text_instance import TextInstance
from .text_scopes import SCOPES, Scope, scopes
from .text_terms import Choices, NoMeaning
from .text_typer import Typer


class Families(NamedTuple):
    """The families of shapes of a rule; where there is none, why. `complete` unless the limit ended the enumeration."""

    found: list[Typing]
    why: str
    complete: bool


def typings(
    rule: TextRule,
    scope: Scope = SCOPES[0],
    *,
    only_left: bool = False,
    symbolic: bool = False,
    limit: int = 400,
    until: float = inf,
) -> Families:
    """The families of shapes at which all sides have types, `limit` combinations of choices tried at most, and none
    after `until` (`perf_counter`). With `only_left`
    the right sides are not typed; with `symbolic` strides and kernels that are variables stay unknown, and no members can be
    drawn."""
    choices, found, why = Choices(), [], ""
    for _ in range(limit):
        choices.at = 0
        try:
            found.append(Typer(rule, choices, scope, symbolic).run(only_left))
        except Inconsistent:
            why = why or "no sizes fit all its operators"
        except NoMeaning as error:
            why = why or str(error)
        if not choices.next():
            return Families(found, why, True)
        if perf_counter() > until:
            break
    return Families(found, why, False)


def members(families: Sequence[Typing], *, seed: int = 0, count: int = 12) -> list[TextInstance]:
    """Members of families at different sizes, ranks and parameters: two at least of each, `count` in all if there are that
    many."""
    rng = random.Random(seed)
    each = -(-count // max(1, len(families)))
    return [x for family in families for x in family.instances(rng, max(2, each))]


def instances(rule: TextRule, *, seed: int = 0, count: int = 12) -> list[TextInstance]:
    """`members` under the narrowest scope that has any, with sides of one shape if possible: shapes at which a right rule is
    right however it is read."""
    for scope in reversed(scopes(rule)):
        families = typings(rule, scope).found
        if found := members([f for f in families if f.agrees()] or families, seed=seed, count=count):
            return found
    return []


__all__ = ["Families", "instances", "members", "typings"]
