"""Converts the reference function of a user kernel to patterns, which are matched in e-graphs and against which the
kernel is checked.

A reference function is traced with symbolic sizes, once for each rank of starred axes. In the trace, casts between
floats disappear (values of 16-bit models are rewritten in float32, and storage dtypes are chosen later), scalars become
literals, and attributes that depend on sizes become attribute variables with a guard.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ...egraph.builders.builders import input as placeholder
from ...egraph.ir.tensor import Tensor, topological
from ...egraph.patterns.pattern import attr_variables, variables
from ...egraph.patterns.pattern_attrs import Env, evaluate
from ...egraph.patterns.pattern_parser import parse_guard, parse_terms
from ...egraph.types import dtypes
from ...egraph.types.dims import DimExpr, dim
from ...errors import KernelError, TensorGraphsError
from ...extract.model.library_kernel import OUTPUT_SEPARATOR
from .declare import Kernel

RANKS = 5  # starred axes are traced with 0 to 4 axes
LONGEST = 20_000  # characters of a pattern


@dataclass(frozen=True)
class ReferenceForm:
    """One of the patterns that a kernel's reference was traced to.

    `when`: guards. `derived`: (attribute variable, its value as an expression in the operands' sizes). `ranks`:
    (starred name in the operand specifications, number of axes that it stands for in this pattern); empty if the
    pattern holds for every number of axes.
    """

    pattern: str
    when: tuple[str, ...] = ()
    derived: tuple[tuple[str, str], ...] = ()
    ranks: tuple[tuple[str, int], ...] = ()

    def attributes(self, env: Env) -> dict[str, Any]:
        """Values of the derived attributes by name; `env` maps operands to `Fact`s (type, whether a weight)."""
        return {name: evaluate(parse_guard(text), env) for name, text in self.derived}


def forms(kernel: Kernel) -> list[ReferenceForm]:
    """The patterns of a kernel's reference.

    Raises KernelError if the reference cannot be traced or written as a pattern.
    """
    try:
        found = [ReferenceForm(kernel.reference)] if isinstance(kernel.reference, str) else list(_traced_forms(kernel))
        for form in found:
            _check(kernel, form)
        return found
    except KernelError:
        raise
    except (TensorGraphsError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        why = error.message if isinstance(error, TensorGraphsError) else f"{type(error).__name__}: {error}"
        raise KernelError(f"the reference of {kernel.name!r} cannot be used: {why}", where=str(kernel.file)) from None


def pattern_of(terms: Sequence[Tensor]) -> str:
    """Write terms over inputs as a pattern, with constants as literals. Raises KernelError if they have other
    leaves."""
    inputs = {str(t.attr("name")): t for t in topological(terms) if t.op == "input"}
    return _Writer(inputs, {}).form(terms, ()).pattern


def _check(kernel: Kernel, form: ReferenceForm) -> None:
    terms = parse_terms(form.pattern)
    used = {v for t in terms for v in variables(t)}
    if len(form.pattern) > LONGEST:
        raise KernelError(
            f"the reference of {kernel.name!r} takes {len(form.pattern)} characters as a pattern, more than {LONGEST}",
            where=str(kernel.file),
        )
    if len(terms) != kernel.outputs:
        raise KernelError(f"the reference of {kernel.name!r} makes {len(terms)} values, not {kernel.outputs}",
                          where=str(kernel.file), hint="outputs=")  # fmt: skip
    if used != {*kernel.inputs}:
        odd = min(used ^ {*kernel.inputs})
        raise KernelError(f"the reference of {kernel.name!r} and its inputs differ in {odd!r}", where=str(kernel.file))
    if kernel.outputs > 1 and any({*variables(t)} - {*variables(terms[0])} for t in terms[1:]):
        raise KernelError(
            f"an output of {kernel.name!r} after the first reads an input that the first does not read",
            where=str(kernel.file),
        )
    free = {a for t in terms for a in attr_variables(t)} - {n for n, _ in form.derived}
    if odd := min(free ^ {*kernel.constants}, default=""):
        raise KernelError(f"the constant {odd!r} of {kernel.name!r} has no test values, or is not in the reference",
                          where=str(kernel.file), hint="constants={name: values}")  # fmt: skip


def _traced_forms(kernel: Kernel) -> list[ReferenceForm]:
    """One pattern for each combination of ranks of starred axes; a single one if all patterns are equal."""
    stars = [a.lstrip("*") for s in kernel.inputs.values() for a in s.axes if isinstance(a, str) and a[0] == "*"]
    stars = list(dict.fromkeys(stars))
    found = [_traced(kernel, dict(zip(stars, ranks))) for ranks in product(range(RANKS), repeat=len(stars))]
    known = [f for f in found if f is not None]
    if not known:
        raise KernelError(f"the reference of {kernel.name!r} cannot be traced at any rank", where=str(kernel.file))
    if len(known) == len(found) and len({(f.pattern, f.when, f.derived) for f in known}) == 1:
        return [replace(known[0], ranks=())]
    return known


def _traced(kernel: Kernel, ranks: Mapping[str, int]) -> ReferenceForm | None:
    """The pattern for given ranks of starred axes; None if the reference does not take these ranks."""
    sizes: dict[str, Any] = {a: dim(a) for a in kernel.axes if a not in ranks}
    sizes |= {s: tuple(dim(f"{s}{i}_") for i in range(r)) for s, r in ranks.items()}
    kinds = {n: kernel.types.get(s.dtype, (s.dtype,)) for n, s in kernel.inputs.items()}
    traced = {
        n: placeholder(n, s.shape(sizes), _traced_dtype(kinds[n])) for n, s in kernel.inputs.items()
    }  # fmt: skip
    marks = {n: 0.618033988749 + 0.0136719 * i for i, n in enumerate(kernel.constants)}
    assert callable(kernel.reference)
    try:
        made = kernel.reference(**traced, **marks)
    except TensorGraphsError:
        if ranks and any(r < 2 for r in ranks.values()):
            return None
        raise
    outputs = list(made) if isinstance(made, tuple | list) else [made]
    if not all(isinstance(t, Tensor) for t in outputs):
        raise KernelError(f"the reference of {kernel.name!r} returns no tensors", where=str(kernel.file))
    return _Writer(traced, marks).form(outputs, tuple(ranks.items()))


def _traced_dtype(kinds: Sequence[str]) -> str:
    floats = {"float16", "bfloat16", "float32"}
    return "float32" if {*kinds} & floats else kinds[0]


class _Writer:
    """Writer of traced terms as a pattern.

    `marks`: constant -> the number that stands for the constant in the trace.
    """

    def __init__(self, inputs: Mapping[str, Tensor], marks: Mapping[str, float]) -> None:
        self.marks = {value: name for name, value in marks.items()}
        self.derived: dict[str, str] = {}  # attribute variable -> expression
        self.floating = next((n for n, t in inputs.items() if dtypes.is_float(t.dtype)), "")
        self.ranks = {t.rank: n for n, t in reversed([*inputs.items()])}
        self.sizes = {
            str(d): f"size({n}, {i})" for n, t in reversed([*inputs.items()]) for i, d in enumerate(t.shape)
            if isinstance(d, DimExpr)
        }  # fmt: skip

    def form(self, outputs: Sequence[Tensor], ranks: tuple[tuple[str, int], ...]) -> ReferenceForm:
        """The pattern of the outputs' terms."""
        texts: dict[Tensor, str] = {}
        for node in topological(outputs):
            texts[node] = self._node(node, texts)
        when = tuple(f"{name} == {text}" for name, text in self.derived.items() if "size(" in text)
        return ReferenceForm(OUTPUT_SEPARATOR.join(texts[t] for t in outputs), when, tuple(self.derived.items()), ranks)

    def _node(self, node: Tensor, texts: Mapping[Tensor, str]) -> str:
        if node.op == "input":
            return str(node.attr("name"))
        if node.op == "cast" and dtypes.is_float(node.dtype) and dtypes.is_float(node.args[0].dtype):
            return texts[node.args[0]]
        if node.op == "full" and node.attr("value") not in self.marks and all(d == 1 for d in node.shape):
            return repr(float(node.attr("value")))
        if node.op in ("constant", "param", "state"):
            raise KernelError(f"the reference has a {node.op} of its own", hint="make it an input of the kernel")
        mark = self.marks.get(node.attr("value")) if node.op == "full" else None
        attrs = [f"{k}={self._attr(v, bool(mark) and k != 'value')}" for k, v in node.attrs]
        name = f"{node.op}_" if node.op in ("and", "or", "not") else node.op
        return f"{name}({', '.join([*(texts[a] for a in node.args), *attrs])})"

    def _attr(self, value: Any, free: bool) -> str:
        """An attribute as text. `free`: any value matches."""
        if isinstance(value, float) and value in self.marks:
            return self.marks[value]
        parts = value if isinstance(value, tuple) else (value,)
        if not free and not any(isinstance(p, DimExpr) for p in parts):
            return repr(value)
        if free:  # shape or dtype of a constant
            text = self._free(value)
        else:
            text = re.sub(r"[A-Za-z_]\w*", lambda m: self.sizes.get(m[0], m[0]), repr(value))
        name = f"attr{len(self.derived)}_"
        self.derived[name] = text
        return name

    def _free(self, value: Any) -> str:
        """Text of a constant's shape or dtype as an expression in the inputs, because inputs in memory may have other
        float dtypes than in the trace."""
        if isinstance(value, tuple):
            return f"ones(rank({self.ranks[len(value)]}))" if value and len(value) in self.ranks else repr(value)
        return f"dtype({self.floating})" if self.floating and dtypes.is_float(value) else repr(value)


__all__ = ["ReferenceForm", "forms", "pattern_of"]
