"""Converts kernel calls between concrete and free (symbolic) sizes.

A call at generic sizes is lifted to free sizes, a call in free sizes is bound to concrete ones, and a kernel's source
at two choices of sizes is compared: it holds at all sizes if only numbers differ.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...egraph.ir.tensor import Tensor, make, rebuild
from ...egraph.ops.ops import OPS, Type
from ...egraph.patterns.pattern import PatternCall, Term
from ...egraph.patterns.pattern_attrs import Name
from ...egraph.saturate.lift import Numbers
from ...egraph.types.dims import Dim, DimExpr, bind
from ...errors import TensorGraphsError
from .kernel import Call, Operand, Strides, Template, contiguous, output_names
from .meaning import output_terms

Sizes = Mapping[str, Dim]


# ---------------------------------------------------------------- to a choice of sizes
def bound_value(value: Any, sizes: Sizes) -> Any:
    """The value with `sizes` (name -> number) substituted in dimension expressions, also inside tuples; other values
    are returned unchanged."""
    if isinstance(value, tuple):
        return tuple([bound_value(v, sizes) for v in value])
    return bind(value, sizes) if isinstance(value, DimExpr) else value


def _bound_operand(operand: Operand, sizes: Sizes) -> Operand:
    kind = Type(bound_value(operand.type.shape, sizes), operand.type.dtype)
    return Operand(kind, bound_value(operand.strides, sizes))


def bound_call(call: Call, sizes: Sizes) -> Call:
    """The call with free sizes substituted; shapes for packed weights (`tuned`) are unchanged."""
    return replace(
        call,
        operands={k: _bound_operand(o, sizes) for k, o in call.operands.items()},
        output=_bound_operand(call.output, sizes),
        attrs={k: bound_value(v, sizes) for k, v in call.attrs.items()},
        more=tuple(_bound_operand(o, sizes) for o in call.more),
    )


def bound_terms(terms: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
    """The terms with `sizes` (name -> number) substituted for free sizes in their attributes."""

    def change(node: Tensor, args: tuple[Tensor, ...]) -> Tensor:
        return make(node.op, args, {k: bound_value(v, sizes) for k, v in node.attrs}, data=node.data)

    return rebuild(terms, change)


# ---------------------------------------------------------------- to all sizes
def _kinds(term: Term) -> dict[str, tuple[str, str]]:
    """Attribute variable -> (name, kind) of the attribute that it stands for."""
    if not isinstance(term, PatternCall):
        return {}
    found: dict[str, tuple[str, str]] = {}
    for arg in term.args:
        found |= _kinds(arg)
    for name, spelled in term.attrs:
        if isinstance(spelled, Name):
            found[spelled.name] = name, OPS[term.op].attrs[name]
    return found


def lifted_call(template: Template, call: Call, numbers: Numbers) -> Call | None:
    """A call at generic sizes rewritten in free sizes by `numbers` (generic number -> expression); None if the output
    types of the pattern then differ.
    """
    kinds = {name: kind for term in template.terms for name, kind in _kinds(term).items()}
    operand = partial(_lifted_operand, numbers)
    found = replace(
        call,
        operands={k: operand(o) for k, o in call.operands.items()},
        output=operand(call.output),
        attrs={k: numbers.attr(*kinds[k], v) if k in kinds else v for k, v in call.attrs.items()},
        more=tuple(map(operand, call.more)),
    )
    try:
        made = [t.type for t in output_terms(template, found)]
    except (TensorGraphsError, TypeError, ValueError):
        return None
    return found if all(t.shape == o.type.shape for t, o in zip(made, found.outputs, strict=True)) else None


def _lifted_operand(numbers: Numbers, o: Operand) -> Operand:
    found: Operand | None = numbers.made.get(o)
    if found is None:
        kind = numbers.type(o.type)
        row_major: Strides = contiguous(kind.shape)  # type: ignore[arg-type]
        found = Operand(kind, row_major if o.dense else numbers.shape(o.strides))  # type: ignore[arg-type]
        numbers.made[o] = found
    return found


def holds_at_all_sizes(template: Template, call: Call, elsewhere: Iterable[Mapping[str, int]]) -> bool:
    """Whether one source of a kernel serves all sizes: it applies at each of the sizes `elsewhere` (name -> number),
    and its code there equals its code in free sizes with these sizes substituted."""
    if template.source is not None or template.space is not None:
        return False  # generated for specific sizes
    names = {o: f"_{o}_" for o in (*template.operands, *output_names(len(call.outputs)), "scratch")}
    try:
        text = template.write(replace(call, names=names))
        if template.layout is not None and tuple(template.layout(call)) != call.output.strides:
            return False
        for sizes in elsewhere:
            there = bound_call(call, sizes)
            if template.applies is not None and not template.applies(there):
                return False
            if any(not there.operands[o].dense for o in _dense(template)):
                return False
            if not _same_code(text, template.write(replace(there, names=names)), sizes):
                return False
            if template.scratch is not None and bind(template.scratch(call), sizes) != template.scratch(there):
                return False
    except (TensorGraphsError, TypeError, ValueError, SyntaxError):
        return False
    return True


def _dense(template: Template) -> Sequence[str]:
    return [o for o in template.operands if o in template.dense or "*" in template.dense]


_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


class _SizeSubstitution(ast.NodeTransformer):
    """AST transformer that substitutes sizes for names and folds arithmetic on constants."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(self.sizes[node.id]) if node.id in self.sizes else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        node = ast.UnaryOp(node.op, self.visit(node.operand))
        number = isinstance(node.operand, ast.Constant) and isinstance(node.op, ast.USub)
        return ast.Constant(-node.operand.value) if number else node  # type: ignore[attr-defined]

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        left, right = self.visit(node.left), self.visit(node.right)
        if isinstance(left, ast.Constant) and isinstance(right, ast.Constant) and type(node.op) in _ARITHMETIC:
            return ast.Constant(_ARITHMETIC[type(node.op)](left.value, right.value))
        return ast.BinOp(left, node.op, right)


def _same_code(free: str, there: str, sizes: Mapping[str, int]) -> bool:
    """Whether code in free sizes, with `sizes` substituted, equals code written for these sizes."""
    if free == there:
        return True
    if not any(re.search(rf"\b{name}\b", free) for name in sizes):
        return False
    first, second = (ast.dump(_SizeSubstitution(sizes).visit(ast.parse(text))) for text in (free, there))
    return first == second


__all__ = ["bound_call", "bound_terms", "bound_value", "holds_at_all_sizes", "lifted_call"]
