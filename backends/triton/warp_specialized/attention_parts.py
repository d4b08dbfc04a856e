"""Components of attention in the reductions of a kernel: scores, their maximum, sums relative to it, the product with
values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.expr import Expr, walk
from ...ir.loop_fusion import shared_maximum
from ...ir.unfusable import Unfusable
from .attention_frame import AttentionFrame


def _positive(e: Expr) -> bool:
    """Whether a factor is certainly not negative, so that it may be applied after a maximum."""
    if e.op in ("mul", "div"):
        return all(map(_positive, e.args))
    return e.op in ("rsqrt", "sqrt", "exp", "exp2") or (e.op == "const" and e.value > 0)


def _scales(e: Expr, score: Expr) -> bool:
    """Whether the softmax argument `e` is the score, possibly masked, so that a factor of the score is a factor of the
    argument."""
    if e is score:
        return True
    hidden = (-math.inf, 0.0)
    if e.op == "add":
        masks = [
            x for x in e.args if x.op == "where" and all(a.op == "const" and a.value in hidden for a in x.args[1:])
        ]
        return len(masks) == 1 and any(_scales(x, score) for x in e.args if x is not masks[0])
    if e.op == "where":
        kept = [x for x in e.args[1:] if not (x.op == "const" and x.value == -math.inf)]
        return len(kept) == 1 and _scales(kept[0], score)
    return False


@dataclass(frozen=True)
class AttentionParts:
    """Components of attention in a loop over keys.

    `ready`: all reductions of the loop, among them `product`, the product with the values, and `top`, the maximum.
    `score`: the product of queries and keys. `own`: per-row factors of the scores, which are applied after that
    product.
    """

    ready: Sequence[Expr]
    product: Expr
    score: Expr
    top: Expr
    own: Sequence[Expr]


def parts_of(frame: AttentionFrame, ready: Sequence[Expr]) -> AttentionParts:
    """The components of attention among the reductions `ready`, which one loop of the kernel in `frame` (the emitter's
    state) computes. Raises Unfusable unless they form attention."""
    dots, axis = frame.shape.dots, frame.axis
    products = [e for e in ready if e in dots]
    scores = [e for e in walk(x for r in ready for x in r.args) if e in dots and axis in e.axes]
    maxima = [e for e in ready if e.value[0] == "max"]
    if frame.rings or len(products) != 1 or len(scores) != 1 or len(maxima) != 1:
        raise Unfusable("not one product of weights and values over one product of queries and keys")
    (product,), (score,), (top,) = products, scores, maxima
    if any(shared_maximum(e, axis) is not top for e in ready if e is not top) or score.axis in frame.walked:
        raise Unfusable("sums that are not relative to the running maximum")
    if any(e.op == "reduce" and e not in (score, *ready) and axis in e.axes for r in ready for e in walk(r.args)):
        raise Unfusable("a further reduction over keys in the loop")
    own: list[Expr] = []
    if _scales(top.args[0], score):
        own = [f for f in dots[score].left if score.axis not in f.axes and _positive(f)]
    return AttentionParts(ready, product, score, top, own if any(f.axes for f in own) else [])
