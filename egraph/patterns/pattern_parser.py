"""Parses the pattern language of rules and kernels: a Python expression over tensor variables, ops and attributes.

    matmul(x, concat(a, b, axis=i))      an op call; lower-case names are tensor variables; `axis=i` binds attribute i
    (x + y) * 0.5                        operators are add, sub, mul, div, matmul, neg; a number is a scalar constant
    slice(m, axis=1, start=0, stop=size(a, 1))     attributes on a right side are expressions
    lit(0.5, x)                          on a right side: a scalar constant with x's rank and dtype

Attribute expressions and guards are built from ints, tuples, names of attribute variables, + - * // %, comparisons and
the functions in `FUNCTIONS` (pattern_attrs.py). In a left side, an attribute given as a name is bound at its first
occurrence and must be equal at later ones. An attribute given as a constant must equal it. An omitted attribute must
have the op's default; if the op has none, omitting it is an error. Nothing is evaluated as Python: the text is parsed
into the classes of pattern.py and pattern_attrs.py.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from ...errors import RuleError
from ..composites import composite_ops as composite
from ..composites import quantized_ops, training_ops
from ..ir.memo import memo
from ..ops.ops import OPS
from .pattern import Literal, PatternCall, Term, Var
from .pattern_attrs import FUNCTIONS, Apply, Attr, AttrConstant, Name

assert composite and quantized_ops and training_ops  # register the composite ops, which patterns may name
_BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.MatMult: "matmul"}
_INTEGER = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "floordiv", ast.Mod: "mod"}
_COMPARE = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le"}


_NAMED = {"inf": float("inf"), "nan": float("nan")}  # numbers that are names in Python syntax


def _number(node: ast.expr) -> float | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        try:
            return float(node.value)
        except OverflowError:
            raise RuleError("a number is beyond floats", hint="inf") from None
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
            _refuse_negative_axes(op, name, given[name], text)
            full.append((name, given[name]))
        elif name in entry.defaults:
            full.append((name, AttrConstant(entry.defaults[name])))
        else:
            raise RuleError(f"{op} needs the attribute {name!r}", where=text)
    return PatternCall(op, args, tuple(full))


def _refuse_negative_axes(op: str, name: str, value: Attr, text: str) -> None:
    """Raise RuleError for an axis below 0: the axes of e-nodes are counted from 0, so that it would match nothing."""
    parts = value.args if isinstance(value, Apply) and value.function == "vec" else (value,)
    for part in parts if name in ("axis", "axes", "perm") else ():
        if isinstance(part, AttrConstant) and isinstance(part.value, int) and part.value < 0:
            last = (
                "axis=i and the condition i == rank(x) - 1"
                if name == "axis"
                else f"{name}=k and the condition k == (rank(x) - 1,)"
            )
            hint = f"{last} stand for the last axis"
            raise RuleError(f"{op}: axes of patterns are counted from 0, {part.value} is none", where=text, hint=hint)


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
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RuleError(f"cannot parse {text[:200]!r}: {error}", hint="a pattern is one Python expression") from None


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
