"""Random instances of a rule: types for its tensor variables and values for its attribute variables, such that every
left side is well typed and every guard holds.

The left sides are walked from the root down and left to right. Each subterm is sampled under a `Want`: for every axis
the sizes that its surroundings allow, so that most choices fit at once. `sample_ops.py` says per shape law what an op
wants of its operands and draws its attributes. Guards of the form `variable == …` are solved as soon as the other side
can be evaluated, guards on shapes narrow the sizes of a variable before it is drawn, and the rest is rejection: a
choice that contradicts a guard is drawn again, a dead end starts the instance over. What comes out was built and typed
by the real shape laws, so this file can only miss instances, never yield a wrong one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..egraph import api, dtypes
from ..egraph.graph import Tensor
from ..egraph.ops import OPS, Type, infer
from ..egraph.pattern import (
    Apply,
    Attr,
    Call,
    Fact,
    Literal,
    Name,
    Term,
    Value,
    Var,
    attr_names,
    build,
    evaluate,
    holds,
    subterms,
)
from ..egraph.rule import Rule
from ..errors import RuleError, ShapeError

Sizes = frozenset[Any] | None  # what one axis may be; None is any size
SIZES = (1, 2, 3, 4, 6)
FLOATS = ("float32", "float32", "float32", "float64", "float16")
INTS = ("int64", "int32", "int8", "uint8")
FAILURES = (
    IndexError,
    ValueError,
    KeyError,
    ZeroDivisionError,
    TypeError,
)  # of an attribute expression without a value


class Reject(Exception):
    """This attempt cannot become an instance."""


class NotYet(Exception):
    """An attribute expression reads a variable that has no value yet."""


@dataclass(frozen=True)
class Instance:
    """One way to fill a rule: types of tensor variables, attribute values, which tensors are weights, and for integer
    tensors used as indices the size that they must stay below."""

    types: Mapping[str, Type]
    attrs: Mapping[str, Any]
    weights: frozenset[str]
    bounds: Mapping[str, int] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        """A leaf per tensor variable: params for weights, inputs otherwise."""
        return {n: (api.param if n in self.weights else api.input)(n, t.shape, t.dtype) for n, t in self.types.items()}

    def env(self) -> dict[str, Any]:
        """What attribute expressions and guards are evaluated in."""
        return {**self.attrs, **{n: Fact(t, n in self.weights) for n, t in self.types.items()}}

    def sides(self, rule: Rule) -> list[tuple[Tensor, Tensor]]:
        """(left, right) of each pair of sides. ShapeError or an expression's error where a side has no type."""
        tensors = self.tensors()
        return [(build(a, tensors, self.attrs), build(b, tensors, self.attrs)) for a, b in zip(rule.lefts, rule.rights)]

    def __str__(self) -> str:
        tensors = [f"{n}: {t}{' (weight)' if n in self.weights else ''}" for n, t in sorted(self.types.items())]
        return "; ".join([*tensors, *(f"{n} = {v!r}" for n, v in sorted(self.attrs.items()))])


@dataclass(frozen=True)
class Want:
    """What a subterm's surroundings allow: sizes per axis (None: any rank) and the dtype."""

    shape: tuple[Sizes, ...] | None
    dtype: str


def exactly(shape: Sequence[Any]) -> tuple[Sizes, ...]:
    """Exactly this shape."""
    return tuple(frozenset((d,)) for d in shape)


def upto(shape: Sequence[Any]) -> tuple[Sizes, ...]:
    """Any shape that broadcasts to this one."""
    return tuple(frozenset((1, d)) for d in shape)


def meet(a: Sizes, b: Sizes) -> Sizes:
    """Sizes that both allow."""
    return b if a is None else a if b is None else a & b


class Sampler:
    """One attempt at an instance."""

    def __init__(self, rule: Rule, guards: Sequence[Attr], rng: random.Random) -> None:
        self.rule, self.guards, self.rng = rule, list(guards), rng
        self.reads = [frozenset(attr_names(g)) for g in self.guards]
        self.attrs: dict[str, Any] = {}
        self.types: dict[str, Type] = {}
        self.bounds: dict[str, int] = {}
        self.pool = rng.sample(SIZES, rng.randint(1, 4)) + ([0] if rng.random() < 0.07 else [])
        self.floating = {
            n for g in self.guards if isinstance(g, Apply) and g.function == "floating" for n in attr_names(g)
        }
        self.float = rng.choice(FLOATS)
        self.thin = rng.choice((0.0, 0.08, 0.08, 0.4))  # how often an axis is narrower than its surroundings allow
        self.ranks = _least_ranks(self.guards)
        self.dtypes = {
            g.args[0].args[0].name: g.args[1].value
            for g in self.guards
            if isinstance(g, Apply) and g.function == "eq" and isinstance(g.args[0], Apply) and g.args[0].function == "dtype"
            and isinstance(g.args[0].args[0], Name) and isinstance(g.args[1], Value)
        }  # fmt: skip
        self.weights = {
            v.name for t in rule.lefts for v in subterms(t) if isinstance(v, Var) and self.is_weight(v.name)
        }

    def is_weight(self, name: str) -> bool:
        """What the guards say, else a coin."""
        for g in self.guards:
            if isinstance(g, Apply) and g.function in ("weight", "active") and g.args == (Name(name),):
                return g.function == "weight"
        return self.rng.random() < 0.25

    # ------------------------------------------------------------ what is known so far
    @property
    def env(self) -> dict[str, Any]:
        """Values of everything chosen so far."""
        return {**self.attrs, **{n: Fact(t, n in self.weights) for n, t in self.types.items()}}

    def value(self, attr: Attr) -> Any:
        """The value of an expression; NotYet, or Reject where it can have none."""
        env = self.env
        if any(n not in env for n in attr_names(attr)):
            raise NotYet
        try:
            return evaluate(attr, env)
        except FAILURES as error:
            raise Reject from error

    def known(self, term: Term, rank: int | None = None) -> Type | None:
        """The type of a subterm whose variables all have values, else None. Reject if it is ill typed."""
        if isinstance(term, Var):
            return self.types.get(term.name)
        if isinstance(term, Literal):
            return None
        found = [self.known(a) for a in term.args]
        if any(t is None and not isinstance(a, Literal) for t, a in zip(found, term.args)):
            return None
        like = next((t for t in found if t is not None), None)
        if found and like is None:
            return None
        types = [t or Type((1,) * like.rank, like.dtype) for t in found] if like else []
        try:
            return infer(OPS[term.op], types, {n: self.value(a) for n, a in term.attrs})
        except NotYet:
            return None
        except (ShapeError, *FAILURES) as error:
            raise Reject from error

    def accept(self, name: str) -> bool:
        """Whether no guard that can now be evaluated, and reads this variable, fails."""
        env = self.env
        return all(
            holds([g], env) for g, reads in zip(self.guards, self.reads) if name in reads and reads <= env.keys()
        )

    # ------------------------------------------------------------ choices
    def pick(self, sizes: Sizes) -> int:
        """One of the sizes allowed; larger ones mostly, so that broadcasting stays the exception."""
        if sizes is None:
            return self.rng.choice(self.pool)
        if not sizes:
            raise Reject
        return int(min(sizes) if self.rng.random() < self.thin else max(sizes))

    def regroup(self, volume: int, rank: int | None = None) -> tuple[int, ...]:
        """A random shape of a given number of elements."""
        rank = rank if rank is not None else self.rng.randint(1, 4)
        shape = [1] * rank
        if not rank:
            return ()
        if volume == 0:
            shape = [self.rng.choice(self.pool) for _ in range(rank)]
            shape[self.rng.randrange(rank)] = 0
            return tuple(shape)
        factor = 2
        while volume > 1:
            while volume % factor:
                factor += 1
            shape[self.rng.randrange(rank)] *= factor
            volume //= factor
        return tuple(shape)

    def attr(self, call: Call, name: str, propose: Callable[[], Any]) -> Any:
        """The value of an attribute: given, solved from a guard, or proposed until the guards accept it."""
        attr = dict(call.attrs)[name]
        if not isinstance(attr, Name) or attr.name in self.attrs:
            return self.value(attr)
        for _ in range(24):
            found, value = self.solved(attr.name)
            self.attrs[attr.name] = value if found else propose()
            if self.accept(attr.name):
                return self.attrs[attr.name]
            if found:
                break
        self.attrs.pop(attr.name, None)
        raise Reject

    def solved(self, name: str) -> tuple[bool, Any]:
        """(True, value) where a guard `name == …` gives an attribute variable's value."""
        for g, reads in zip(self.guards, self.reads):
            if name in reads and isinstance(g, Apply) and g.function == "eq":
                for mine, other in (g.args, g.args[::-1]):
                    if mine == Name(name) and name not in set(attr_names(other)):
                        try:
                            return True, self.value(other)
                        except NotYet:
                            continue
        return False, None

    def variable(self, name: str, want: Want) -> Type:
        """A type for a tensor variable."""
        for _ in range(16):
            self.types.pop(name, None)
            shape = self.narrowed(name, want)
            if shape is None:
                shape = (None,) * max(self.ranks.get(name, 0), self.rng.choices((0, 1, 2, 3, 4), (1, 6, 10, 8, 6))[0])
                shape = self.narrowed(name, Want(shape, want.dtype)) or ()
            self.types[name] = Type(tuple(map(self.pick, shape)), want.dtype)
            if self.accept(name):
                return self.types[name]
        self.types.pop(name, None)
        raise Reject

    def narrowed(self, name: str, want: Want) -> tuple[Sizes, ...] | None:
        """The wanted shape after what guards say of this variable in terms of the others."""
        shape = want.shape
        for g, reads in zip(self.guards, self.reads):
            if name not in reads or not isinstance(g, Apply):
                continue
            for args in (g.args, g.args[::-1]) if g.function == "eq" else (g.args,):
                with suppress(NotYet):
                    shape = self.narrow(name, shape, g.function, args)
        return shape

    def narrow(self, name: str, shape: Any, function: str, args: tuple[Attr, ...]) -> Any:
        """One guard's effect on a variable's shape; NotYet if it says nothing now."""
        me = Name(name)
        if function == "scalar":
            return tuple(meet(d, frozenset((1,))) for d in shape) if shape is not None else None
        if function == "fits":
            other = next(a for a in args if a != me) if args != (me, me) else me
            sizes = self.value(Apply("shape", (other,)))
            fitting = upto(sizes) if args[0] == me else tuple(None if d == 1 else frozenset((d,)) for d in sizes)
            return self.both(shape, fitting)
        if function != "eq" or not isinstance(args[0], Apply):
            return shape
        left, right = args[0], args[1]
        f, of = left.function, left.args
        if left == Apply("volume", (me,)) and isinstance(right, Apply) and right.args[:1] == (me,) and shape:
            return self.line(shape, self.value(right.args[1]))
        if left == Apply("shape", (me,)):
            return self.both(shape, exactly(self.value(right)))
        if left == Apply("rank", (me,)):
            return self.both(shape, (None,) * self.value(right))
        if f == "size" and of[0] == me and shape:
            return self.at(shape, self.value(of[1]), self.value(right))
        if f in ("drop", "replace") and of[0] == Apply("shape", (me,)):
            sizes, i = list(self.value(right)), self.value(of[1])
            spot = i % (len(sizes) + (f == "drop"))
            head, tail = exactly(sizes[:spot]), exactly(sizes[spot + (f == "replace") :])
            return self.both(shape, (*head, None, *tail))
        return shape

    def line(self, shape: tuple[Sizes, ...], axis: int) -> tuple[Sizes, ...]:
        """Every axis but one of size 1."""
        ones = tuple(meet(d, frozenset((1,))) for d in shape)
        if not -len(shape) <= axis < len(shape):
            raise Reject
        return (*ones[: axis % len(shape)], shape[axis], *ones[axis % len(shape) + 1 :])

    def both(self, a: tuple[Sizes, ...] | None, b: tuple[Sizes, ...]) -> tuple[Sizes, ...]:
        """Shapes that satisfy both."""
        if a is None:
            return b
        if len(a) != len(b):
            raise Reject
        return tuple(map(meet, a, b))

    def at(self, shape: tuple[Sizes, ...], axis: int, size: int) -> tuple[Sizes, ...]:
        """The shape with one axis narrowed to one size."""
        if not -len(shape) <= axis < len(shape):
            raise Reject
        axis %= len(shape)
        return (*shape[:axis], meet(shape[axis], frozenset((size,))), *shape[axis + 1 :])

    # ------------------------------------------------------------ terms
    def term(self, term: Term, want: Want) -> Type:
        """Sample what a term still lacks; its type. Reject where the surroundings do not allow it."""
        from .sample_ops import HANDLERS

        found = self.known(term)
        if found is None:
            if isinstance(term, Var):
                return self.fit(self.variable(term.name, want), want)
            if isinstance(term, Literal):
                return self.fit(Type((1,) * len(want.shape or ()), want.dtype), want)
            HANDLERS[OPS[term.op].law](self, term, want)
            found = self.known(term)
            if found is None:
                raise Reject
        return self.fit(found, want)

    def fit(self, found: Type, want: Want) -> Type:
        """The type, if it is what was wanted."""
        if found.dtype != want.dtype:
            raise Reject
        if want.shape is not None and (
            len(want.shape) != found.rank or any(s is not None and d not in s for s, d in zip(want.shape, found.shape))
        ):
            raise Reject
        return found

    def dtype_for(self, *terms: Term) -> str:
        """A dtype that all these subterms can have: theirs if known, else a float or now and then an int or bool."""
        for t in terms:
            found = self.known(t)
            if found is not None:
                return found.dtype
            if isinstance(t, Var) and t.name in self.dtypes:
                return str(self.dtypes[t.name])
            if isinstance(t, Call) and isinstance(given := dict(t.attrs).get("dtype"), Value):
                return str(given.value)
        if any(_needs_float(t, self.floating) for t in terms) or self.rng.random() < 0.7:
            return self.float
        return self.rng.choice(INTS) if self.rng.random() < 0.8 else "bool"


def _least_ranks(guards: Sequence[Attr]) -> dict[str, int]:
    """For each variable whose axes guards name by number, the rank that it must have for them to hold."""
    found: dict[str, int] = {}
    stack = list(guards)
    while stack:
        attr = stack.pop()
        if isinstance(attr, Apply):
            stack += attr.args
            if attr.function == "size":
                variable, axis = attr.args
                if isinstance(variable, Name) and isinstance(axis, Value):
                    need = axis.value + 1 if axis.value >= 0 else -axis.value
                    found[variable.name] = max(found.get(variable.name, 0), need)
    return found


def _needs_float(term: Term, floating: set[str]) -> bool:
    """Whether a subterm's dtype must be a floating one."""
    if isinstance(term, Var):
        return term.name in floating
    if isinstance(term, Literal):
        return term.value != term.value or abs(term.value) == float("inf") or term.value != int(term.value)
    entry = OPS[term.op]
    if entry.law in ("compare", "arg_reduce", "along_index", "cast", "leaf"):
        return False
    args = term.args[1:] if entry.law == "where" else term.args[:1] if entry.kind == "index" else term.args
    return entry.floats_only or any(_needs_float(a, floating) for a in args)


def least_rank(term: Term) -> int:
    """A lower bound on a subterm's rank that follows from its ops."""
    if not isinstance(term, Call):
        return 0
    law = OPS[term.op].law
    own = {"matmul": 2, "linear": 2, "conv": 3, "pool": 3, "channel_norm": 2, "attention": 3, "concat": 1, "slice": 1,
           "pad": 1, "same": 1, "along": 1, "norm": 1, "rope": 1}.get(law, 0)  # fmt: skip
    follows = OPS[term.op].pointwise or law in (
        "reduce",
        "slice",
        "pad",
        "concat",
        "permute",
        "same",
        "broadcast_to",
        "along",
    )
    return int(max([own, *(map(least_rank, term.args) if follows else ())]))


def attempt(rule: Rule, guards: Sequence[Attr], rng: random.Random) -> Instance | None:
    """One try; None if it led nowhere. `rule` is one-way; `guards` are those that must hold."""
    from .sample_ops import result_dtype

    s = Sampler(rule, guards, rng)
    try:
        for left in rule.lefts:
            s.term(left, Want(None, result_dtype(s, left)))
        found = Instance(dict(s.types), dict(s.attrs), frozenset(s.weights), dict(s.bounds))
        tensors = found.tensors()
        for left in rule.lefts:
            build(left, tensors, found.attrs)
    except (Reject, NotYet, ShapeError, *FAILURES):
        return None
    return found if holds(list(guards), found.env()) else None


def instances(
    rule: Rule,
    rng: random.Random,
    count: int,
    *,
    guards: Sequence[Attr] | None = None,
    accept: Callable[[Instance], bool] | None = None,
    attempts: int = 4000,
) -> Iterator[Instance]:
    """`count` random instances of a one-way rule (of `rule.directions`), fewer if `attempts` tries for one find none.

    `guards` replaces the rule's own conditions, `accept` filters (both for testing what a guard is needed for).
    RuleError for a rule that is both ways, or malformed.
    """
    if rule.both:
        raise RuleError("instances are drawn of one direction at a time", where=rule.name, hint="use rule.directions")
    rule.check()
    wanted = rule.guards if guards is None else guards
    for _ in range(count):
        for _ in range(attempts):
            found = attempt(rule, wanted, rng)
            if found is not None and (accept is None or accept(found)):
                yield found
                break
        else:
            return


def is_int(dtype: str) -> bool:
    """Whether a dtype is an integer one."""
    return dtypes.category(dtype) == "int"
