"""Scopes of text rules: assumptions on how convolutions are grouped (channels divided into groups), which the format
leaves open."""

from __future__ import annotations

from dataclasses import dataclass

from .text_rule import TextApply, TextRule, nodes


@dataclass(frozen=True)
class AxisScope:
    """Restriction of a text rule to some shapes, where the format leaves a convolution's groups open.

    `groups` lists the group counts to try. With `plain`, a convolution of two variables has one group. With `kin`, all
    kernel variables have the same shape. With `constants`, constant kernels have as many outputs as the variable
    kernels, and groups are chosen so that the sides have equal shapes. `description` describes the scope in verdicts
    (proved, tested, refuted or unknown).
    """

    description: str
    groups: tuple[int, ...] = (1,)
    plain: bool = False
    kin: bool = False
    constants: bool = False


_PLAIN = "convolutions of variables, and those whose groups the shapes leave open, have one group"
_OPEN = "convolutions whose groups the shapes leave open have one group"
#: From the widest to the narrowest. TASO's rules were verified for one group and kernels of one shape, and some of them
#: hold for no others: joining two convolutions into a grouped one needs as many outputs in each.
SCOPES = (
    AxisScope("", (1, 2, 3)),
    AxisScope(_PLAIN, plain=True),
    AxisScope(f"{_PLAIN}, kernels one shape", plain=True, kin=True),
    AxisScope(_OPEN),
    AxisScope(f"{_OPEN}, kernels one shape", kin=True),
    AxisScope(f"{_PLAIN} or two, all kernels one shape", (1, 2), plain=True, kin=True, constants=True),
)
GROUPED = 3  # for rules with more convolutions, at most two group counts are tried


def scopes(rule: TextRule) -> tuple[AxisScope, ...]:
    """The scopes to try for a rule, widest first; the last one is for constant kernels only."""
    ops = {n.op for side in (*rule.lefts, *rule.rights) for n in nodes(side) if isinstance(n, TextApply)}
    if "conv2d" not in ops:
        return SCOPES[:1]
    return SCOPES if ops & {"Iconv", "Cpool"} else SCOPES[:-1]


def group_counts(rule: TextRule, scope: AxisScope) -> tuple[int, ...]:
    """The group counts to try under a scope for a convolution whose groups do not follow from the shapes."""
    return scope.groups if rule.convolutions <= GROUPED else scope.groups[:2]


__all__ = ["GROUPED", "SCOPES", "AxisScope", "group_counts", "scopes"]
