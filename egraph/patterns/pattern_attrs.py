"""Defines attribute expressions of patterns and guards: variables, constants and calls of the functions in
`FUNCTIONS`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ..ops.ops import Type

MAX_RANK = 64  # NumPy's limit


@dataclass(frozen=True)
class Name:
    """Variable in an attribute expression.

    It is an attribute variable, or a tensor variable as an argument of `size`, `rank`, `shape`, `weight` and similar
    functions.
    """

    name: str


@dataclass(frozen=True)
class AttrConstant:
    """Constant in an attribute expression: int, float, str or bool."""

    value: Any


@dataclass(frozen=True)
class Apply:
    """Function call in an attribute expression; operators are functions too ('add', 'lt', …); 'vec' builds a tuple.

    `FUNCTIONS` lists the functions.
    """

    function: str
    args: tuple[Attr, ...]


Attr = Name | AttrConstant | Apply


@dataclass(frozen=True)
class Fact:
    """The properties of a matched tensor that guards can test: its type, and whether it depends on weights only."""

    type: Type
    weight: bool


Env = Mapping[str, Any]  # attribute variable -> value, tensor variable -> Fact


def _size(fact: Fact, axis: int) -> Any:
    return fact.type.shape[axis]


def _replace(v: Sequence[Any], i: int, value: Any) -> tuple[Any, ...]:
    i %= len(v)
    return (*v[:i], value, *v[i + 1 :])


def _times(a: Any, b: Any) -> Any:
    if isinstance(a, tuple | str) or isinstance(b, tuple | str):
        raise ValueError("a product of numbers")  # not a vector of any length
    return a * b


def _of_rank(rank: int) -> range:
    """The axes of a tensor; ValueError beyond the largest rank."""
    if rank > MAX_RANK:
        raise ValueError(f"rank {rank}")
    return range(rank)


def _swap_last(rank: int) -> tuple[int, ...]:
    return (*_of_rank(rank)[:-2], rank - 1, rank - 2)


#: Python semantics. Vector functions are specialized per rank when lowered to egglog (see language.py).
FUNCTIONS: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": _times,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "neg": lambda a: -a,
    "min": min,
    "max": max,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "vec": lambda *items: tuple(items),
    "len": len,
    "at": lambda v, i: v[i],
    "replace": _replace,  # v with element i changed
    "drop": lambda v, i: (*v[: i % len(v)], *v[i % len(v) + 1 :]),
    "insert": lambda v, i, item: (*v[:i], item, *v[i:]),
    "compose": lambda p, q: tuple(p[i] for i in q),  # permute(permute(x, p), q) == permute(x, compose(p, q))
    "inverse": lambda p: tuple(sorted(range(len(p)), key=lambda i: p[i])),
    "index": lambda v, item: list(v).index(item),  # position of an element
    "permuted": lambda v, p: tuple(v[i] for i in p),  # a shape after a permutation
    "ones": lambda rank: (1,) * len(_of_rank(rank)),
    "identity": lambda rank: tuple(_of_rank(rank)),  # the identity permutation
    "swap_last": _swap_last,  # the permutation that transposes the last two of `rank` axes
    "contains": lambda v, item: item in v,
    "rank": lambda fact: fact.type.rank,
    "size": _size,
    "shape": lambda fact: fact.type.shape,
    "volume": lambda fact: prod(fact.type.shape),
    "fits": lambda a, b: (
        len(a.type.shape) == len(b.type.shape)  # a broadcasts to b's shape
        and all(p in (1, q) for p, q in zip(a.type.shape, b.type.shape))
    ),
    "dtype": lambda fact: fact.type.dtype,
    "weight": lambda fact: fact.weight,  # depends on params and constants only: folded when weights are loaded
    "active": lambda fact: not fact.weight,  # depends on an input or a state
    "scalar": lambda fact: all(d == 1 for d in fact.type.shape),  # one element, any rank
    "floating": lambda fact: fact.type.dtype in ("float16", "bfloat16", "float32", "float64"),
    # an original weight or a merge of such weights: may be merged further (bounds growth)
    "chained": lambda fact: True,
    "original": lambda fact: True,  # a weight of the model, not created by rules (bounds growth)
    # (x, a, b): weight b is the next one after chain a that is multiplied with x; (a, b): weight b comes after chain
    # a. These bound the growth of merges; the rules are true without them.
    "ordered": lambda *tensors: True,
}


def evaluate(attr: Attr, env: Env) -> Any:
    """Value of an attribute expression; `env` gives the values of names. Raises KeyError for an unbound name."""
    if isinstance(attr, AttrConstant):
        return attr.value
    if isinstance(attr, Name):
        return env[attr.name]
    return FUNCTIONS[attr.function](*(evaluate(a, env) for a in attr.args))


def holds(guards: Sequence[Attr], env: Env) -> bool:
    """Whether all guards hold under a binding `env` of names to values.

    A guard that cannot be evaluated (such as an index out of range, or the length of a number) does not hold.
    """
    try:
        return all(bool(evaluate(g, env)) for g in guards)
    except (IndexError, TypeError, ValueError, ZeroDivisionError):
        return False


def attr_names(attr: Attr) -> Iterator[str]:
    """Names used in an attribute expression."""
    if isinstance(attr, Name):
        yield attr.name
    elif isinstance(attr, Apply):
        for a in attr.args:
            yield from attr_names(a)


def show_attr(attr: Attr) -> str:
    """An attribute expression as text in the rule language."""
    if isinstance(attr, AttrConstant):
        return repr(attr.value)
    if isinstance(attr, Name):
        return attr.name
    return f"{attr.function}({', '.join(map(show_attr, attr.args))})"
