"""Estimates the cost of e-nodes for pruning during saturation: one roofline formula (lower bound of time), available in
Python and as egglog text.

Costs are integer nanoseconds computed from result and operand sizes. Views and pointwise ops are nearly free, because
extraction fuses them into their neighbors. The Python function and the egglog text are generated from the same
expression, so pruning in egglog and ranking in Python cannot disagree; integer division truncates in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from ..ir.tensor import Tensor
from ..ops.ops import OPS, Op, Type
from ..types import dtypes
from ..types.dims import concrete
from ..view.view import EGraphView

CAP = 10**17  # upper bound of tree costs, which grow exponentially with depth; an overflow is an error in egglog


@dataclass(frozen=True)
class Cost:
    """A non-negative integer expression over the sizes of result and operands.

    `function` is one of: 'int' (`value` itself); 'elements' and 'bytes' of a value (`value` = -1 is the result,
    otherwise an operand index); 'size' (of operand `value`, along the axis counted from the end by `args[0].value`: 1
    is the last axis); 'first' (size of operand `value`'s first axis); '+', '*', '/'.
    """

    function: str
    value: int = 0
    args: tuple[Cost, ...] = ()

    def __add__(self, other: Cost) -> Cost:
        return Cost("+", args=(self, other))

    def __mul__(self, other: Cost) -> Cost:
        return Cost("*", args=(self, other))

    def __floordiv__(self, other: Cost) -> Cost:
        return Cost("/", args=(self, other))

    def evaluate(self, out: Type, operands: Sequence[Type]) -> int:
        """The cost in nanoseconds for concrete types of the result (`out`) and the operands."""
        if self.function == "int":
            return self.value
        if self.function in ("elements", "bytes"):
            kind = out if self.value < 0 else operands[self.value]
            return prod(concrete(kind.shape)) * (dtypes.itemsize(kind.dtype) if self.function == "bytes" else 1)
        if self.function == "size":
            return concrete(operands[self.value].shape)[-self.args[0].value]
        if self.function == "first":
            return concrete(operands[self.value].shape)[0]
        a, b = (x.evaluate(out, operands) for x in self.args)
        return {"+": lambda: a + b, "*": lambda: a * b, "/": lambda: a // b if b else 0}[self.function]()

    def text(self) -> str:
        """Egglog text of the expression over the result `e` and the operands `x0`, `x1`, …"""
        name = "e" if self.value < 0 else f"x{self.value}"
        if self.function == "int":
            return str(self.value)
        if self.function in ("elements", "bytes"):
            return f"({'nel' if self.function == 'elements' else 'nby'} {name})"
        if self.function == "size":
            return f"(vec-get (shape {name}) (- (vec-length (shape {name})) {self.args[0].value}))"
        if self.function == "first":
            return f"(vec-get (shape {name}) 0)"
        return f"({self.function} {' '.join(a.text() for a in self.args)})"


def number(value: int) -> Cost:
    """Cost expression of the integer constant `value`."""
    return Cost("int", value)


def elements(operand: int = -1) -> Cost:
    """Cost expression: number of elements of an operand, or of the result (-1)."""
    return Cost("elements", operand)


def nbytes(operand: int = -1) -> Cost:
    """Cost expression: bytes of an operand, or of the result (-1)."""
    return Cost("bytes", operand)


def size(operand: int, back: int) -> Cost:
    """Cost expression: size of an operand's axis `back`, counted from the end (1 is the last)."""
    return Cost("size", operand, (number(back),))


class Pricing(Protocol):
    """Protocol of cost models that price e-nodes for pruning."""

    @property
    def launch(self) -> int:
        """Cost of one kernel launch in nanoseconds; the unit of pruning slack."""
        ...

    def formula(self, op: Op) -> Cost:
        """Expression of the cost of an op in nanoseconds over the sizes of its result and operands.

        E-nodes that depend on weights alone are free regardless.
        """
        ...


@dataclass(frozen=True)
class Roofline:
    """Default cost model: nanoseconds per kernel launch and per view op (reshape, slice, ...), femtoseconds per byte
    (`byte_fs`) and per floating-point operation (`flop_fs`).

    The defaults match the order of magnitude of one large GPU; `pipeline` passes values calibrated from the cost store.
    """

    launch: int = 2000
    byte_fs: int = 300
    flop_fs: int = 3
    pointwise: int = 100  # nanoseconds of a pointwise e-node, which is nearly always fused
    view: int = 20

    def formula(self, op: Op) -> Cost:
        """Expression of the cost of an op in nanoseconds over the sizes of its result and operands
        (`Pricing.formula`)."""
        if op.kind == "leaf":
            return number(0)
        if op.kind == "view":
            return number(self.view)
        if op.pointwise:
            return number(self.pointwise) + self._time(nbytes(), self.byte_fs // 10 + 1)
        flops = contraction_flops(op)
        if flops is not None:
            return number(self.launch) + self._time(self._traffic(op), self.byte_fs) + self._time(flops, self.flop_fs)
        return number(self.launch) + self._time(self._traffic(op), self.byte_fs)

    @staticmethod
    def _time(amount: Cost, femtoseconds: int) -> Cost:
        return amount // number(1000) * number(femtoseconds) // number(1000)

    @staticmethod
    def _traffic(op: Op) -> Cost:
        if op.law in ("gather", "gather_elements"):
            return nbytes() + nbytes()
        total = nbytes()
        for i in range(op.arity):
            total = total + nbytes(i)
        return total


def contraction_flops(op: Op) -> Cost | None:
    """Cost expression of a contraction's floating-point operations; None for other ops."""
    two = number(2)
    if op.law in ("matmul", "linear", "integer_matmul"):
        return two * elements() * size(0, 1)
    if op.law in ("conv", "integer_conv"):  # each result element uses the weights of one output channel
        return two * elements() * (elements(1) // Cost("first", 1))
    if op.law == "recurrent":  # each weight is used once per batch row and step
        return two * elements(2) * size(0, 3) * size(0, 2)
    if op.law == "attention":
        return two * elements() * size(1, 2) * two
    return None


@dataclass(frozen=True)
class OpCosts:
    """Egglog commands that compute the least tree cost of each e-class and subsume e-nodes that exceed it by more than
    `slack` nanoseconds.

    `r_cost` relaxes `best` downwards to a fixpoint; `r_dom` marks dominated e-nodes, once per round; `r_sub` subsumes
    those that are not protected; `r_reach`, `r_new` and `r_gc` delete new e-nodes that are unreachable from the roots
    through live e-nodes; `r_seen` marks the remaining e-nodes, which stay in all later views. An e-node whose operands
    all depend on weights alone costs nothing, because it is folded when weights are loaded.
    """

    pricing: Pricing
    slack: int

    def shared(self) -> Iterator[str]:
        """The commands that come before those of all ops."""
        from .language import DTYPE_ID

        yield from (f"(ruleset {name})" for name in ("r_cost", "r_dom", "r_sub", "r_reach", "r_new", "r_gc", "r_seen"))
        yield "(function now () i64 :merge (max old new))"  # the current round
        # the last round in which this e-class was reachable from a root through live e-nodes
        yield "(function reached (T) i64 :merge (max old new))"
        yield "(rule ((= w (wk e))) ((set (reached e) 0)) :ruleset r_shape)"
        yield "(function nby (T) i64 :merge old)"
        yield "(function itemsize (i64) i64 :no-merge)"
        yield "(rule ((= n (nel e)) (= b (itemsize (dt e)))) ((set (nby e) (* n b))) :ruleset r_shape)"
        yield "(rule ((= 0 (wk e))) ((set (best e) 0)) :ruleset r_cost)"
        yield "(rule ((= e (Leaf n))) ((set (best e) 0)) :ruleset r_cost)"
        yield from (f"(set (itemsize {i}) {dtypes.itemsize(name)})" for name, i in DTYPE_ID.items())

    def of(self, op: str) -> Iterator[str]:
        """The commands of an op."""
        from .language import STATUS_NEW, STATUS_PROTECTED, STATUS_SEEN, operands, pattern

        entry, term = OPS[op], pattern(op)
        status, dominated = (term.replace(f"(o_{op}", f"({prefix}_{op}", 1) for prefix in ("st", "d"))
        xs = operands(entry)
        yield f"(rule ((= e {term})) ((set {status} {STATUS_NEW})) :ruleset r_new)"
        yield f"(rule ((= e {term})) ((set {status} {STATUS_SEEN})) :ruleset r_seen)"
        yield (
            f"(rule ((= e {term}) (= {STATUS_NEW} {status}) (< (reached e) (now)))"
            f" ((delete {term}) (delete {status})) :ruleset r_gc)"
        )
        if not xs:
            return
        weight, total = f"(wk {xs[0]})", f"(best {xs[0]})"
        for x in xs[1:]:
            weight, total = f"(max {weight} (wk {x}))", f"(+ {total} (best {x}))"
        own = f"(= p {self.pricing.formula(entry).text()})"
        body = f"(= e {term}) {own} (= c (min {CAP} (+ (* {weight} p) {total})))"
        free = entry.pointwise or entry.kind == "view"
        allowed = f"(/ (* p {self.slack}) {self.pricing.launch})" if free else str(self.slack)
        yield f"(rule ({body}) ((set (best e) c)) :ruleset r_cost)"
        yield f"(rule ({body} (> c (+ (best e) {allowed}))) ({dominated} (set {status} {STATUS_NEW})) :ruleset r_dom)"
        yield (
            f"(rule ((= z (now)) (= z (reached e)) (= e {term})) ({' '.join(f'(set (reached {x}) z)' for x in xs)})"
            " :ruleset r_reach)"
        )
        yield f"(rule ({dominated} (= s {status}) (< s {STATUS_PROTECTED})) ((subsume {term})) :ruleset r_sub)"


class _Prices:
    """Memo of costs by op and types."""

    def __init__(self, pricing: Pricing) -> None:
        self.pricing = pricing
        self.formulas: dict[str, Cost] = {}
        self.known: dict[tuple[Any, ...], int] = {}

    def of(self, op: str, out: Type, operands: Sequence[Type]) -> int:
        key = (op, out, *operands)
        found = self.known.get(key)
        if found is None:
            formula = self.formulas.get(op)
            if formula is None:
                formula = self.formulas[op] = self.pricing.formula(OPS[op])
            found = self.known[key] = formula.evaluate(out, operands)
        return found


def tree_costs(nodes: Sequence[Tensor], weights: set[Tensor], pricing: Pricing) -> list[int]:
    """Tree cost in nanoseconds of each node (operands must come first), equal to that of `OpCosts`.

    `weights`: the weight-only nodes, which cost nothing.
    """
    prices, found = _Prices(pricing), dict[Tensor, int]()
    for node in nodes:
        if node in weights or not node.args:
            found[node] = 0
            continue
        own = 0
        if not all(a in weights for a in node.args):
            own = prices.of(node.op, node.type, [a.type for a in node.args])
        found[node] = min(CAP, own + sum([found[a] for a in node.args]))
    return [found[n] for n in nodes]


def node_prices(view: EGraphView, pricing: Pricing) -> list[float]:
    """Cost in nanoseconds of every e-node of an e-graph, without that of its operands; 0 if these all depend on weights
    alone."""
    prices, found = _Prices(pricing), []
    weight, types = view.weight.tolist(), view.types
    cls, off, child = view.cls.tolist(), view.off.tolist(), view.child.tolist()
    for i, op in enumerate(view.op):
        children = child[off[i] : off[i + 1]]
        free = all(weight[k] for k in children)
        found.append(0.0 if free else float(prices.of(op, types[cls[i]], [types[k] for k in children])))
    return found


__all__ = [
    "CAP",
    "Cost",
    "OpCosts",
    "Pricing",
    "Roofline",
    "contraction_flops",
    "elements",
    "nbytes",
    "node_prices",
    "number",
    "size",
]  # fmt: skip
