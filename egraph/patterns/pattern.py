"""Defines patterns of rules and kernels: terms over tensor variables, their traversal and their instantiation.

The text form is described in pattern_parser.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..builders import builders as api
from ..ir.tensor import Tensor, make
from .pattern_attrs import Attr, Env, Fact, Name, evaluate, show_attr


@dataclass(frozen=True)
class Var:
    """Tensor variable of a pattern; it matches any tensor."""

    name: str


@dataclass(frozen=True)
class Literal:
    """Scalar constant of a pattern (a `full` of this value).

    On a right side `like` names the tensor that gives rank and dtype.
    """

    value: float
    like: str = ""


@dataclass(frozen=True)
class PatternCall:
    """An op applied to terms, with attribute expressions."""

    op: str
    args: tuple[Term, ...]
    attrs: tuple[tuple[str, Attr], ...]


Term = Var | Literal | PatternCall


def subterms(term: Term) -> Iterator[Term]:
    """The term and all its subterms, operands first, repeated as often as they occur."""
    if isinstance(term, PatternCall):
        for a in term.args:
            yield from subterms(a)
    yield term


def shared(term: Term) -> Iterator[Term]:
    """The term and all its subterms, operands first, each object once. Iterative."""
    seen: set[int] = set()
    stack = [(term, False)]
    while stack:
        found, ready = stack.pop()
        if ready:
            yield found
        elif id(found) not in seen:
            seen.add(id(found))
            if isinstance(found, PatternCall):
                stack.append((found, True))
                stack += [(a, False) for a in found.args[::-1]]
            else:
                yield found


def variables(term: Term) -> list[str]:
    """Tensor variables in order of first use."""
    return list(dict.fromkeys(t.name for t in shared(term) if isinstance(t, Var)))


def attr_variables(term: Term) -> list[str]:
    """Attribute variables that a left side binds (attributes given as a bare name), in order."""
    found = [a.name for t in shared(term) if isinstance(t, PatternCall) for _, a in t.attrs if isinstance(a, Name)]
    return list(dict.fromkeys(found))


def attributes(term: Term) -> Iterator[Attr]:
    """The attribute expressions of a term's op calls, those of each distinct call once."""
    return (a for t in shared(term) if isinstance(t, PatternCall) for _, a in t.attrs)


def build(term: Term, tensors: Mapping[str, Tensor], attrs: Env) -> Tensor:
    """Build the tensor that a term stands for, with `tensors` (name -> tensor) substituted for its variables.

    `attrs` gives attribute variables; sizes come from the tensors. Literals without `like` take rank and dtype of a
    sibling operand. Raises ShapeError if operands do not fit.
    """
    env = {**attrs, **{n: Fact(x.type, False) for n, x in tensors.items()}}
    made: dict[int, Tensor] = {}
    for t in shared(term):
        made[id(t)] = _built(t, made, tensors, env)
    return made[id(term)]


def _built(term: Term, made: Mapping[int, Tensor], tensors: Mapping[str, Tensor], env: Env) -> Tensor:
    """Instantiate one term whose operands are in `made`, by id."""
    if isinstance(term, Var):
        return tensors[term.name]
    if isinstance(term, Literal):
        like = tensors[term.like] if term.like else None
        return api.full(
            (1,) * (like.rank if like is not None else 0), term.value, like.dtype if like is not None else "float32"
        )
    built = [None if isinstance(a, Literal) and not a.like else made[id(a)] for a in term.args]
    # the last one, because the condition of `where` comes first
    sibling = next((b for b in reversed(built) if b is not None), None)
    args = []
    for part, item in zip(built, term.args):
        if part is None:
            assert isinstance(item, Literal)
            rank, dtype = (sibling.rank, sibling.dtype) if sibling is not None else (0, "float32")
            part = api.full((1,) * rank, item.value, dtype)
        args.append(part)
    return make(term.op, args, {name: evaluate(a, env) for name, a in term.attrs})


def show(term: Term) -> str:
    """A pattern as text in the rule language."""
    if isinstance(term, Var):
        return term.name
    if isinstance(term, Literal):
        return f"{term.value:g}"
    parts = [*map(show, term.args), *(f"{n}={show_attr(a)}" for n, a in term.attrs)]
    return f"{term.op}({', '.join(parts)})"
