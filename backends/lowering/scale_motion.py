"""Rewrites scale factors in kernels: exponentials to base two, sums of exponentials shared between softmax and
logsumexp, factors hoisted out of loops."""

from __future__ import annotations

import math

from ..ir.expr import Builder, Expr, factors, walk
from ..ir.kernel import Kernel

LOG2E = math.log2(math.e)
FLOAT32_MAX = (2 - 2**-23) * 2.0**127  # of float32


def beside_softmax(kernel: Kernel) -> Kernel:
    """`kernel` with the sums of exponentials in logsumexp shared with those of softmax.

    logsumexp replaces an infinite max(a) by 0; its exp(a - m) becomes exp(a - max(a)) if the kernel has that
    expression. If the maximum is infinite, softmax is NaN anyway.
    """
    b, there = kernel.builder, {e for e in kernel.exprs if e.op == "sub" and _of_itself(e)}

    def change(e: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if e.op != "sub" or args[1].op != "where" or args[1].args[0].op != "is_inf":
            return None
        (top,), (_, zero, kept) = args[1].args[0].args, args[1].args
        shift = b.pointwise("sub", (args[0], top)) if top is kept and zero.op == "const" and zero.value == 0 else None
        return shift if shift in there else None

    return kernel.with_values(b.rebuilt([s.value for s in kernel.stores], change)) if there else kernel


def _of_itself(e: Expr) -> bool:
    """Whether a difference is a value minus its own maximum."""
    a, m = e.args
    return m.op == "reduce" and m.value[0] == "max" and m.args[0] is a


def base_two(kernel: Kernel) -> Kernel:
    """`kernel` with every exp(a - max(a)) as 2 ** (a' - max(a')), where a' = a * log2(e), because the hardware's
    exponential is to base 2.

    The factor is folded into an existing one. Other uses of the maximum read max(a') / log2(e).
    """
    b = kernel.builder
    scaled = {
        m: b.make("reduce", (_scaled(b, m.args[0]),), m.value, m.kind) for m in kernel.reductions if _shifts(kernel, m)
    }

    def change(e: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if e.op == "exp" and e.args[0].op == "sub" and e.args[0].args[1] in scaled:
            m = scaled[e.args[0].args[1]]
            return b.make("exp2", (b.pointwise("sub", (m.args[0], m)),))
        return b.mul(scaled[e], b.const(1 / LOG2E)) if e in scaled else None

    return kernel.with_values(b.rebuilt([s.value for s in kernel.stores], change)) if scaled else kernel


def _shifts(kernel: Kernel, m: Expr) -> bool:
    """Whether a maximum is subtracted only from its own body, only under `exp`, and its body has no other maximum."""
    if m.op != "reduce" or m.value[0] != "max" or any(x.op == "reduce" and x.value[0] == "max" for x in walk(m.args)):
        return False
    shifted = {e for e in kernel.exprs if e.op == "sub" and e.args == (m.args[0], m)}
    read = [e for e in kernel.exprs if any(x in shifted for x in e.args)]
    others = [e for e in kernel.exprs if e.op == "exp" and e.args[0].op == "sub" and e.args[0].args[1] is m]
    return bool(read) and all(e.op == "exp" for e in read) and all(e.args[0] in shifted for e in others)


def _scaled(b: Builder, e: Expr) -> Expr:
    """e * log2(e), with the factor folded into an existing constant.

    Finite constants, such as masks of the least float, stay finite: 0 times them is 0.
    """
    if e.op == "const":
        return b.const(_finite(e.value * LOG2E))
    if e.op == "mul" and e.args[1].op == "const":
        return b.mul(e.args[0], b.const(_finite(e.args[1].value * LOG2E)))
    if e.op in ("add", "sub"):
        return b.pointwise(e.op, (_scaled(b, e.args[0]), _scaled(b, e.args[1])))
    if e.op == "where":
        return _outside(b, b.pointwise("where", (e.args[0], _scaled(b, e.args[1]), _scaled(b, e.args[2]))))
    return b.mul(e, b.const(LOG2E))


def _outside(b: Builder, e: Expr) -> Expr:
    """where(c, -inf, k * sum) as k * where(c, -inf, sum) for a constant k > 0 (and with both sides exchanged); other
    expressions as they are. Emitters apply the factor of scores to their maximum alone, and in one operation with the
    difference from it."""
    if e.op == "where":
        for i, x in ((1, e.args[1]), (2, e.args[2])):
            gone = e.args[3 - i]
            scaled = x.op == "mul" and _sum(x.args[0]) and x.args[1].op == "const" and x.args[1].value > 0
            if scaled and gone.op == "const" and gone.value == -math.inf:
                sides = (x.args[0], gone) if i == 1 else (gone, x.args[0])
                return b.mul(b.pointwise("where", (e.args[0], *sides)), x.args[1])
    return e


def _sum(e: Expr) -> bool:
    """Whether a value is a sum, or one side of a select of constants and a sum."""
    return e.op == "reduce" or (e.op == "where" and any(map(_sum, e.args[1:])))


def _finite(value: float) -> float:
    return value if math.isinf(value) else max(-FLOAT32_MAX, min(FLOAT32_MAX, value))


def scaled_early(kernel: Kernel) -> Kernel:
    """`kernel` with loop-invariant factors of a matrix product moved to its loop-invariant operand (the inverse of
    DEFER, which moves factors out of sums).

    Queries are multiplied by their norm and the softmax scale once, not the scores of every tile. A constant factor is
    not moved to an operand that is a plain load, since that would round the operand to save one multiplication. Powers
    of a product (the cube in the tanh form of GELU) stay as they are: it would be computed twice, with and without the
    factor.
    """
    b, held = kernel.builder, set(kernel.axes)

    def change(e: Expr, args: tuple[Expr, ...]) -> Expr | None:
        if e.op != "mul":
            return None
        over, under = factors(b.make("mul", args))
        for d in over:
            around = d.axes - held
            if d.op != "reduce" or d.value[0] != "sum" or d.kind != "float" or not around or over.count(d) > 1:
                continue
            sides, below = factors(d.args[0])
            still = [f for f in sides if not f.axes & around]
            moved = [f for f in over if f is not d and not f.axes & around]
            lowered = [f for f in under if not f.axes & around]
            plain = all(f.op == "load" or (f.op == "cast" and f.args[0].op == "load") for f in still)
            if below or not still or len(still) == len(sides) or not [*moved, *lowered]:
                continue
            if plain and all(f.op == "const" for f in (*moved, *lowered)):
                continue
            side = b.product([*still, *moved], lowered)
            body = b.mul(side, b.product([f for f in sides if f not in still], []))
            rest = [f for f in over if f is not d and f not in moved], [f for f in under if f not in lowered]
            return b.product([b.make("reduce", (body,), d.value, d.kind), *rest[0]], rest[1])
        return None

    return kernel.with_values(b.rebuilt([s.value for s in kernel.stores], change))
