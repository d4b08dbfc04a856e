"""Samples one random instance of a rule: types and attribute values drawn from the root of each left side down."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...egraph.ops.ops import OPS, Type
from ...egraph.ops.type_laws import infer
from ...egraph.patterns.pattern import Literal, PatternCall, Term, Var, subterms
from ...egraph.patterns.pattern_attrs import Apply, Attr, AttrConstant, Fact, Name, attr_names, evaluate, holds
from ...egraph.patterns.rule import Rule
from ...errors import ShapeError
from .instance import FAILURES
from .ranks import least_ranks, needs_float

Sizes = frozenset[Any] | None  # allowed sizes of one axis; None allows any
SIZES = (1, 2, 3, 4, 6)  # sizes that the axes of an instance are drawn from
FLOATS = ("float32", "float32", "float32", "float64", "float16")  # float dtypes that one is drawn from for an instance
INTS = ("int64", "int32", "int8", "uint8")


class Reject(Exception):
    """Raised when the current attempt cannot be completed to an instance."""


class NotYet(Exception):
    """Raised when an attribute expression reads a variable that has no value yet."""


@dataclass(frozen=True)
class Want:
    """Requirements of a subterm's context: for each axis the allowed sizes (`shape` None: any rank), and the dtype."""

    shape: tuple[Sizes, ...] | None
    dtype: str


def exactly(shape: Sequence[Any]) -> tuple[Sizes, ...]:
    """For each axis the set of allowed sizes, for exactly this shape."""
    return tuple(frozenset((d,)) for d in shape)


def upto(shape: Sequence[Any]) -> tuple[Sizes, ...]:
    """For each axis the set of allowed sizes, for shapes that broadcast to this one."""
    return tuple(frozenset((1, d)) for d in shape)


def meet(a: Sizes, b: Sizes) -> Sizes:
    """Intersection of two sets of allowed sizes; None allows all."""
    return b if a is None else a if b is None else a & b


class Sampler:
    """One attempt at sampling an instance of a rule under some guards.

    `handlers`: type law (rule for an op's result type) -> function that draws types of a call's operands such that its
    result has the shape and dtype that a `Want` requires. `dtype`: of the operands that need not be floats ("": any).
    `empty`: whether axes of no elements are among the choices in any case.
    """

    def __init__(
        self,
        rule: Rule,
        guards: Sequence[Attr],
        rng: random.Random,
        handlers: Mapping[str, Callable[[Sampler, PatternCall, Want], object]],
        dtype: str = "",
        empty: bool = False,
    ) -> None:
        self.rule, self.guards, self.rng, self.handlers, self.dtype = rule, list(guards), rng, handlers, dtype
        self.reads = [frozenset(attr_names(g)) for g in self.guards]
        self.attrs: dict[str, Any] = {}
        self.types: dict[str, Type] = {}
        self.bounds: dict[str, int] = {}
        self.pool = rng.sample(SIZES, rng.randint(1, 4)) + ([0] if empty or rng.random() < 0.07 else [])
        self.floating = {
            n for g in self.guards if isinstance(g, Apply) and g.function == "floating" for n in attr_names(g)
        }
        self.float = rng.choice(FLOATS)
        self.thin = rng.choice((0.0, 0.08, 0.08, 0.4))  # probability that an axis is smaller than its context allows
        self.ranks = least_ranks(self.guards)
        self.dtypes = {
            g.args[0].args[0].name: g.args[1].value
            for g in self.guards
            if isinstance(g, Apply) and g.function == "eq" and isinstance(g.args[0], Apply) and g.args[0].function == "dtype"
            and isinstance(g.args[0].args[0], Name) and isinstance(g.args[1], AttrConstant)
        }  # fmt: skip
        self.weights = {
            v.name for t in rule.lefts for v in subterms(t) if isinstance(v, Var) and self.is_weight(v.name)
        }

    def is_weight(self, name: str) -> bool:
        """Whether a tensor variable is sampled as a parameter: as the rule's guards demand, else at random."""
        for g in self.guards:
            if isinstance(g, Apply) and g.function in ("weight", "active") and g.args == (Name(name),):
                return g.function == "weight"
        return self.rng.random() < 0.25

    # ------------------------------------------------------------ what is known so far
    @property
    def env(self) -> dict[str, Any]:
        """Values of all variables drawn so far by name, as attribute expressions and guards read them."""
        return {**self.attrs, **{n: Fact(t, n in self.weights) for n, t in self.types.items()}}

    def value(self, attr: Attr) -> Any:
        """The value of an attribute expression; raises NotYet if a variable has no value yet, Reject if the expression
        has no value."""
        if isinstance(attr, AttrConstant):
            return attr.value
        if any(n not in self.types and n not in self.attrs for n in attr_names(attr)):
            raise NotYet
        if isinstance(attr, Name) and attr.name not in self.types:
            return self.attrs[attr.name]
        try:
            return evaluate(attr, self.env)
        except FAILURES as error:
            raise Reject from error

    def known(self, term: Term) -> Type | None:
        """The type of a subterm whose variables all have values, else None.

        Raises Reject if the subterm is ill typed.
        """
        if isinstance(term, Var):
            return self.types.get(term.name)
        if isinstance(term, Literal):
            return None
        found = [self.known(a) for a in term.args]
        if any(t is None and not isinstance(a, Literal) for t, a in zip(found, term.args)):
            return None
        like = next((t for t in reversed(found) if t is not None), None)  # as `patterns.build` does
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
        """Whether all guards hold that read the variable `name` and whose variables all have values."""
        asked = [(g, reads) for g, reads in zip(self.guards, self.reads) if name in reads]
        env = self.env if asked else {}
        return all(holds([g], env) for g, reads in asked if reads <= env.keys())

    # ------------------------------------------------------------ choices
    def pick(self, sizes: Sizes) -> int:
        """One of the allowed sizes, mostly the largest, so that broadcasting stays the exception.

        Raises Reject if there is none.
        """
        if sizes is None:
            return self.rng.choice(self.pool)
        if not sizes:
            raise Reject
        return int(min(sizes) if self.rng.random() < self.thin else max(sizes))

    def regroup(self, volume: int, rank: int | None = None) -> tuple[int, ...]:
        """Random shape with `volume` elements, of the given rank (by default 1 to 4, at random)."""
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

    def attr(self, call: PatternCall, name: str, propose: Callable[[], Any]) -> Any:
        """The value of the attribute `name` of a call: given, solved from a guard, or drawn by `propose` until the
        guards accept it.

        Raises Reject if none is accepted.
        """
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
        """(True, value) if a guard `name == …` determines an attribute variable, else (False, None)."""
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
        """Draw a type for the tensor variable `name` that fits `want`, record and return it. Raises Reject if no draw
        satisfies the guards."""
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
        """The shape that `want` allows for the variable `name`, narrowed by the guards that relate this variable to
        known ones. None: any rank is allowed."""
        shape = want.shape
        for g, reads in zip(self.guards, self.reads):
            if name not in reads or not isinstance(g, Apply):
                continue
            for args in (g.args, g.args[::-1]) if g.function == "eq" else (g.args,):
                with suppress(NotYet):
                    shape = self.narrow(name, shape, g.function, args)
        return shape

    def narrow(self, name: str, shape: Any, function: str, args: tuple[Attr, ...]) -> Any:
        """The wanted shape of the variable `name`, narrowed by the guard `function(args)`.

        Raises NotYet if the guard cannot be used yet.
        """
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
        """The allowed sizes of a shape with every axis except one restricted to size 1.

        Raises Reject if that is not allowed.
        """
        ones = tuple(meet(d, frozenset((1,))) for d in shape)
        if not -len(shape) <= axis < len(shape):
            raise Reject
        return (*ones[: axis % len(shape)], shape[axis], *ones[axis % len(shape) + 1 :])

    def both(self, a: tuple[Sizes, ...] | None, b: tuple[Sizes, ...]) -> tuple[Sizes, ...]:
        """Intersection of the allowed sizes of two shapes, `a` and `b`. Raises Reject if the ranks differ."""
        if a is None:
            return b
        if len(a) != len(b):
            raise Reject
        return tuple(map(meet, a, b))

    def at(self, shape: tuple[Sizes, ...], axis: int, size: int) -> tuple[Sizes, ...]:
        """The allowed sizes of a shape with one axis restricted to one size. Raises Reject if that is not allowed."""
        if not -len(shape) <= axis < len(shape):
            raise Reject
        axis %= len(shape)
        return (*shape[:axis], meet(shape[axis], frozenset((size,))), *shape[axis + 1 :])

    # ------------------------------------------------------------ terms
    def term(self, term: Term, want: Want) -> Type:
        """Draw values for the variables of a term that have none yet, such that it fits `want`; returns its type.

        Raises Reject if that fails.
        """
        found = self.known(term)
        if found is None:
            if isinstance(term, Var):
                return self.fit(self.variable(term.name, want), want)
            if isinstance(term, Literal):
                return self.fit(Type((1,) * len(want.shape or ()), want.dtype), want)
            self.handlers[OPS[term.op].law](self, term, want)
            found = self.known(term)
            if found is None:
                raise Reject
        return self.fit(found, want)

    def fit(self, found: Type, want: Want) -> Type:
        """The type `found`, if it satisfies the wanted sizes and dtype. Raises Reject otherwise."""
        if found.dtype != want.dtype:
            raise Reject
        if want.shape is not None and (
            len(want.shape) != found.rank or any(s is not None and d not in s for s, d in zip(want.shape, found.shape))
        ):
            raise Reject
        return found

    def dtype_for(self, *terms: Term) -> str:
        """Dtype for subterms that must agree: that of one whose type is known, else a random float, integer or bool
        dtype (mostly float)."""
        for t in terms:
            found = self.known(t)
            if found is not None:
                return found.dtype
            if isinstance(t, Var) and t.name in self.dtypes:
                return str(self.dtypes[t.name])
            if isinstance(t, PatternCall) and isinstance(given := dict(t.attrs).get("dtype"), AttrConstant):
                return str(given.value)
        if any(needs_float(t, self.floating) for t in terms):
            return self.float
        if self.dtype:
            return self.dtype
        if self.rng.random() < 0.7:
            return self.float
        return self.rng.choice(INTS) if self.rng.random() < 0.8 else "bool"
