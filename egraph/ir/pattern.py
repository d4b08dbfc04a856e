"""The pattern language of rules and kernels: a Python expression over tensor variables, ops and attributes.

    matmul(x, concat(a, b, axis=i))      an op call; lower-case names are tensor variables; `axis=i` binds attribute i
    (x + y) * 0.5                        operators are add, sub, mul, div, matmul, neg; a number is a scalar constant
    slice(m, axis=1, start=0, stop=size(a, 1))     attributes on a right side are expressions
    lit(0.5, x)                          on a right side: a scalar constant with x's rank and dtype

Attribute expressions and guards are built from ints, tuples, names of attribute variables, + - * // %, comparisons and
the functions in `FUNCTIONS`. In a left side, an attribute given as a name is bound at its first occurrence and must be
equal at later ones. An attribute given as a constant must equal it. An omitted attribute must have the op's default; if
the op has none, omitting it is an error. Nothing is evaluated as Python: the text is parsed into the classes below.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ...errors import RuleError
from . import builders as api
from . import composite_ops as composite
from . import quantized_ops
from .memo import memo
from .ops import OPS, Type
from .tensor import Tensor, make


# ---------------------------------------------------------------- attribute expressions
@dataclass(frozen=True)
class Name:
    """Variable in an attribute expression.

    An attribute variable, or a tensor variable as an argument of `size`, `rank`, `shape`, `weight` and similar
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


assert composite and quantized_ops  # register the composite ops, which patterns may name
Attr = Name | AttrConstant | Apply


# ---------------------------------------------------------------- terms
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


@dataclass(frozen=True)
class Fact:
    """Facts about a matched tensor: its type, and whether it depends on weights only."""

    type: Type
    weight: bool


Env = Mapping[str, Any]  # attribute variable -> value, tensor variable -> Fact


# ---------------------------------------------------------------- functions in attribute expressions
def _size(fact: Fact, axis: int) -> Any:
    return fact.type.shape[axis]


def _replace(v: Sequence[Any], i: int, value: Any) -> tuple[Any, ...]:
    i %= len(v)
    return (*v[:i], value, *v[i + 1 :])


def _swap_last(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


#: Python semantics. Vector functions are specialized per rank when lowered to egglog (see language.py).
FUNCTIONS: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
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
    "ones": lambda rank: (1,) * rank,
    "identity": lambda rank: tuple(range(rank)),  # the identity permutation
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

    A guard that cannot be evaluated (such as an index out of range) does not hold.
    """
    try:
        return all(bool(evaluate(g, env)) for g in guards)
    except (IndexError, ValueError, ZeroDivisionError):
        return False


# ---------------------------------------------------------------- parsing
_BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.MatMult: "matmul"}
_INTEGER = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "floordiv", ast.Mod: "mod"}
_COMPARE = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le"}


_NAMED = {"inf": float("inf"), "nan": float("nan")}  # numbers that are names in Python syntax


def _number(node: ast.expr) -> float | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return node.value
    return None


def _term(node: ast.expr, text: str, known: Mapping[str, Term] = {}) -> Term:
    """Convert a parsed Python expression to a term. `known` holds named subterms."""
    number = _number(node)
    if number is not None:
        return Literal(float(number))
    match node:
        case ast.Name(id=name) if name in _NAMED:
            return Literal(_NAMED[name])
        case ast.Name(id=name):
            return known.get(name) or Var(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return PatternCall(_BINARY[type(op)], (_term(left, text, known), _term(right, text, known)), ())
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
            return Literal(float("-inf"))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return PatternCall("neg", (_term(operand, text, known),), ())
        case ast.Call(func=ast.Name(id="lit"), args=[value, ast.Name(id=like)]):
            number = _number(value)
            if number is None:
                raise RuleError(f"lit needs a number: {text}")
            return Literal(float(number), like)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            op_name = name.rstrip("_")  # and_, or_, not_ avoid Python keywords
            if op_name not in OPS:
                raise RuleError(f"no op is called {op_name!r}", where=text)
            attrs = tuple((str(k.arg), _attr(k.value, text)) for k in keywords)
            return _completed(op_name, tuple(_term(a, text, known) for a in args), attrs, text)
    raise RuleError(f"cannot read {ast.unparse(node)!r} as a term", where=text)


def _completed(op: str, args: tuple[Term, ...], attrs: tuple[tuple[str, Attr], ...], text: str) -> PatternCall:
    """A call with its attributes completed by the op's defaults. Raises RuleError for wrong operands or attributes."""
    entry, given = OPS[op], dict(attrs)
    if len(args) != entry.arity:
        raise RuleError(f"{op} takes {entry.arity} operands, not {len(args)}", where=text)
    unknown = set(given) - set(entry.attrs)
    if unknown:
        raise RuleError(f"{op} has no attribute {sorted(unknown)}", where=text)
    full = []
    for name in entry.attrs:
        if name in given:
            full.append((name, given[name]))
        elif name in entry.defaults:
            full.append((name, AttrConstant(entry.defaults[name])))
        else:
            raise RuleError(f"{op} needs the attribute {name!r}", where=text)
    return PatternCall(op, args, tuple(full))


def _attr(node: ast.expr, text: str) -> Attr:
    """Convert a parsed Python expression to an attribute expression."""
    match node:
        case ast.Constant(value=value) if isinstance(value, int | float | str | bool):
            return AttrConstant(value)
        case ast.Name(id=name) if name in _NAMED:
            return AttrConstant(_NAMED[name])
        case ast.Name(id=name):
            return Name(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _attr(operand, text)
            return AttrConstant(-inner.value) if isinstance(inner, AttrConstant) else Apply("neg", (inner,))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _INTEGER:
            return Apply(_INTEGER[type(op)], (_attr(left, text), _attr(right, text)))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            if type(op) in _COMPARE:
                return Apply(_COMPARE[type(op)], (_attr(left, text), _attr(right, text)))
            if isinstance(op, ast.Gt | ast.GtE):
                return Apply("lt" if isinstance(op, ast.Gt) else "le", (_attr(right, text), _attr(left, text)))
        case ast.Tuple(elts=items):
            return Apply("vec", tuple(_attr(i, text) for i in items))
        case ast.Subscript(value=value, slice=index):
            return Apply("at", (_attr(value, text), _attr(index, text)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            return Apply(name, tuple(_attr(a, text) for a in args))
    raise RuleError(f"cannot read {ast.unparse(node)!r} as an attribute expression", where=text)


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise RuleError(f"cannot parse {text!r}: {error.msg}", hint="a pattern is one Python expression") from None


@memo(4096)
def parse_term(text: str) -> Term:
    """The term that a text spells. Raises RuleError if the text is malformed."""
    return _term(_parsed(text), text)


@memo(4096)
def parse_terms(text: str) -> tuple[Term, ...]:
    """The terms of a text that are separated by semicolons.

    `name := term` defines a name for use in later parts, so that subterms that large kernels use more than once are
    written once and are one object. Raises RuleError if the text is malformed.
    """
    known: dict[str, Term] = {}
    found: list[Term] = []
    for part in text.split(";"):
        name, defines, rest = part.partition(":=")
        if not defines:
            found.append(_term(_parsed(part), part, known))
        elif not name.strip().isidentifier():
            raise RuleError(f"{name.strip()!r} is no name for a term", where=part)
        else:
            known[name.strip()] = _term(_parsed(rest), rest, known)
    return tuple(found)


@memo(4096)
def parse_guard(text: str) -> Attr:
    """The attribute expression that the text of a guard spells. Raises RuleError if the text is malformed."""
    return _attr(_parsed(text), text)


# ---------------------------------------------------------------- traversal and instantiation
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
            stack.append((found, True))
            stack += [(a, False) for a in reversed(found.args)] if isinstance(found, PatternCall) else []


def variables(term: Term) -> list[str]:
    """Tensor variables in order of first use."""
    return list(dict.fromkeys(t.name for t in shared(term) if isinstance(t, Var)))


def attr_names(attr: Attr) -> Iterator[str]:
    """Names used in an attribute expression."""
    if isinstance(attr, Name):
        yield attr.name
    elif isinstance(attr, Apply):
        for a in attr.args:
            yield from attr_names(a)


def attr_variables(term: Term) -> list[str]:
    """Attribute variables that a left side binds (attributes given as a bare name), in order."""
    found = [a.name for t in shared(term) if isinstance(t, PatternCall) for _, a in t.attrs if isinstance(a, Name)]
    return list(dict.fromkeys(found))


def build(term: Term, tensors: Mapping[str, Tensor], attrs: Env) -> Tensor:
    """The tensor that a term stands for, with tensors substituted for its variables.

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


def show_attr(attr: Attr) -> str:
    """An attribute expression as text in the rule language."""
    if isinstance(attr, AttrConstant):
        return repr(attr.value)
    if isinstance(attr, Name):
        return attr.name
    return f"{attr.function}({', '.join(map(show_attr, attr.args))})"
