"""Replaces arithmetic that decides a whole number or a truth value by operations that round once each, as IEEE
arithmetic and the caller's function do: GPU compilers contract `x * y + z`, and fast quotients and roots are off by a
bit."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...egraph.ir.memo import memo
from ...egraph.ir.tensor import Tensor, topological
from ...egraph.simplify.jumps import COMPARISONS, JUMPS, REMAINDERS, STEPS, before_jumps
from ..ir.expr import Expr
from ..ir.kernel import Kernel

ROUNDED = ".ieee1"  # of the version of such kernels: raise it when only their text changes
STARTS = STEPS | REMAINDERS | COMPARISONS | {"cast", "to_float16", "to_bfloat16"}
ENDS = frozenset({"exp", "exp2", "log", "log1p", "expm1", "tanh", "erf", "sin", "cos", "atan", "pow", "round"})
EXACT = {"div": "exact_div", "sqrt": "exact_sqrt"}
INEXACT = frozenset({"div", "recip", "sqrt", "rsqrt"})


def rounded_once(kernel: Kernel) -> Kernel:
    """`kernel` with `exact_div`, `exact_sqrt` and `exact_mul` in place of the quotients, roots and summed products that
    reach a decision through arithmetic; float64 quotients and roots are exact anyway."""
    b, single = kernel.builder, all(x.dtype != "float64" for x in kernel.buffers.values())
    deciding = _deciding(kernel)
    summed = {a for e in deciding if e.op in ("add", "sub") for a in e.args if a.op == "mul" and a.kind == "float"}

    def change(e: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if e in summed:
            return b.make("exact_mul", args)
        if e not in deciding or not single:
            return None
        if e.op == "recip":
            return b.make("exact_div", (b.const(1.0), *args))
        return b.make(EXACT[e.op], args) if e.op in EXACT else None

    if not summed and not (single and any(e.op in EXACT or e.op == "recip" for e in deciding)):
        return kernel
    return kernel.with_values(b.rebuilt([s.value for s in kernel.stores], change))


@memo(4096)  # the forms of a kernel have equal terms, in several backends
def may_round_once(roots: tuple[Tensor, ...]) -> bool:
    """Whether a kernel that computes the terms `roots` may contain arithmetic that decides a whole number or a truth
    value (such as a quotient that is compared or rounded down). `rounded_once` may change only such kernels."""
    if (JUMPS | STARTS).isdisjoint(n.op for n in topological(roots)):
        return False
    return any(
        n.op in INEXACT or n.entry.composite or (n.op in ("add", "sub") and any(a.op == "mul" for a in n.args))
        for n in before_jumps(roots)
    )


def _deciding(kernel: Kernel) -> set[Expr]:
    """The float expressions that reach a decision through arithmetic and reductions."""
    chosen = _of_activations(kernel)
    stack = [a for e in kernel.exprs if e.op in STARTS and e not in chosen for a in _operands(e)]
    found: set[Expr] = set()
    while stack:
        e = stack.pop()
        if e.kind == "float" and e.op not in ENDS and e not in found:
            found.add(e)
            stack += e.args if e.op not in ("load", "cast") else ()
    return found


def _operands(e: Expr) -> Sequence[Expr]:
    """The floats that a decision depends on."""
    if e.op == "cast" and e.kind == "float":
        return ()
    infinite = any(a.op == "const" and math.isinf(a.value) for a in e.args)
    return () if infinite else [a for a in e.args if a.kind == "float"]


def _of_activations(kernel: Kernel) -> set[Expr]:
    """The comparisons of a value x with 0 of which each use is a choice between x and another value."""
    chosen: dict[Expr, bool] = {}
    for e in kernel.exprs:
        for a in e.args:
            if a.op in COMPARISONS:
                zero = any(x.op == "const" and x.value == 0 for x in a.args)
                here = zero and e.op == "where" and not set(a.args).isdisjoint(e.args[1:])
                chosen[a] = chosen.get(a, True) and here
    return {e for e, only in chosen.items() if only}


__all__ = ["ROUNDED", "may_round_once", "rounded_once"]
