"""For which shapes a rule of Tensat's language is read, where its format says too little: how convolutions may be grouped."""

from __future__ import annotations

from dataclasses import dataclass

from .tensat import Apply, TextRule, nodes


@dataclass(frozen=True)
class Scope:
    """Which shapes a rule is read for, where the format says too little: how convolutions may be grouped.

    `groups` are the counts tried where the shapes leave them open; with `plain`, a convolution of two variables has one
    group; with `kin`, the variables that are kernels of convolutions share a shape, and with `constants` constant kernels have
    as many outputs as they, and groups are chosen so that the sides have one shape.
    """

    said: str
    groups: tuple[int, ...] = (1,)
    plain: bool = False
    kin: bool = False
    constants: bool = False


_PLAIN = "convolutions of variables, and those whose groups the shapes leave open, have one group"
_OPEN = "convolutions whose groups the shapes leave open have one group"
#: From the widest to the narrowest. The rules of TASO were verified for one group and kernels of one shape, and some of
#: them hold for no others: joining two convolutions into a grouped one needs as many outputs in each.
SCOPES = (
    Scope("", (1, 2, 3)),
    Scope(_PLAIN, plain=True),
    Scope(f"{_PLAIN}, kernels one shape", plain=True, kin=True),
    Scope(_OPEN),
    Scope(f"{_OPEN}, kernels one shape", kin=True),
    Scope(f"{_PLAIN} or two, all kernels one shape", (1, 2), plain=True, kin=True, constants=True),
)
GROUPED = 3  # of more convolutions, two numbers of groups are tried at most


def scopes(rule: TextRule) -> tuple[Scope, ...]:
    """The scopes under which a rule is read, the widest first; the last one is for kernels that are constants."""
    ops = {n.op for side in (*rule.lefts, *rule.rights) for n in nodes(side) if isinstance(n, Apply)}
    if "conv2d" not in ops:
        return SCOPES[:1]
    return SCOPES if ops & {"Iconv", "Cpool"} else SCOPES[:-1]


def group_counts(rule: TextRule, scope: Scope) -> tuple[int, ...]:
    """How many groups a convolution is tried with where the shapes leave it open."""
    return scope.groups if rule.convolutions <= GROUPED else scope.groups[:2]


__all__ = ["GROUPED", "SCOPES", "Scope", "group_counts", "scopes"]
