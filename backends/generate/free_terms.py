"""Converts terms and calls of generated kernels from generic sizes (numbers that the search runs at) to free (symbolic)
sizes (egraph/saturate/lift.py)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...egraph.ir.tensor import Tensor, make, rebuild
from ...egraph.saturate.lift import Numbers
from ...errors import ShapeError
from ...extract.model.kernel import Call, Operand, Template, contiguous

__all__ = ["SizedCall", "free_call", "free_terms"]


@dataclass(frozen=True)
class SizedCall:
    """A generated kernel for every size (`free_template`) with its call in free sizes (`free_call`).

    `template`, `call`: the kernel and call whose measured time is its price.
    """

    template: Template
    call: Call
    free_template: Template
    free_call: Call


def free_terms(roots: Iterable[Tensor], numbers: Numbers) -> list[Tensor]:
    """The terms `roots`, which are at generic sizes (primes that stand for free sizes), rewritten in free sizes by
    `numbers` (generic size -> size expression).

    Raises ShapeError if a term holds at one size only.
    """

    def change(node: Tensor, args: tuple[Tensor, ...]) -> Tensor:
        if node.op == "full" and numbers.fill(node.attr("value")) is not None:
            raise ShapeError("a constant was computed from sizes, so it holds at one size only")
        made = make(node.op, args, dict(numbers.attrs(node.entry, node.attrs)), data=node.data)
        if made.type != numbers.type(node.type):
            raise ShapeError(f"{node.op} is valid at one size only")
        return made

    return rebuild(list(roots), change)


def free_call(call: Call, numbers: Numbers) -> Call:
    """`call`, which is at generic sizes (primes that stand for free sizes), rewritten in free sizes and without its
    schedule; `numbers`: generic size -> size expression."""

    def operand(o: Operand) -> Operand:
        kind = numbers.type(o.type)
        return Operand(kind, contiguous(kind.shape) if o.dense else numbers.shape(o.strides))  # type: ignore[arg-type]

    return replace(
        call, operands={n: operand(o) for n, o in call.operands.items()}, output=operand(call.output),
        more=tuple(map(operand, call.more)), schedule={},
    )  # fmt: skip
