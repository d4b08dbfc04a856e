"""Holds the state of one simplification pass, the memo of simplified nodes, and the signature of a simplification
rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..ir.tensor import Tensor, make, topological
from ..types.dims import Shape
from .fills import fill

#: Largest result (in bytes) of constant folding.
FOLD_BYTES = 1 << 14
Rule = Callable[["Simplifier", str, tuple[Tensor, ...], dict[str, Any]], Tensor | None]


@dataclass
class Simplifier:
    """State of one simplification pass.

    `rules` gives the rules of an op, tried in order. `exact`: only steps that change no bit of a value are taken.
    `fold_bytes`: size limit of a folded constant. `done`: node -> its simplified form. `spelling`: the operand order
    first seen of commutative ops. `sharp`: nodes whose rounding decides a whole number or a truth value (jumps.py);
    `at_sharp`: whether the node that is visited is one.
    """

    rules: Callable[[str], Iterable[Rule]]
    exact: bool = False
    fold_bytes: int = FOLD_BYTES
    done: dict[Tensor, Tensor] = field(default_factory=dict)
    spelling: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)
    sharp: frozenset[Tensor] = frozenset()
    at_sharp: bool = False

    def visit(self, root: Tensor) -> Tensor:
        """The simplified term that equals `root`."""
        for node in topological([root]):
            if node not in self.done:
                args = tuple(self.done[a] for a in node.args)
                self.at_sharp = node in self.sharp
                new = self.build(node.op, args, dict(node.attrs), node.data)
                self.done[node] = self.done[new] = new
        return self.done[root]

    def build(self, op: str, args: Sequence[Tensor], attrs: dict[str, Any] | None = None, data: Any = None) -> Tensor:
        """Make a node (`make`) and simplify it; the operands must already be simplified."""
        args, attrs = tuple(args), attrs or {}
        plain = make(op, args, attrs, data=data)
        if plain in self.done:
            return self.done[plain]
        if plain.op in ("input", "param", "state"):
            return plain
        found = self._rewrite(plain, dict(plain.attrs))
        self.done[plain] = found
        return found

    def _rewrite(self, node: Tensor, attrs: dict[str, Any]) -> Tensor:
        """Apply the first simplification rule that changes the node."""
        for rule in self.rules(node.op):
            found = rule(self, node.op, node.args, attrs)
            if found is not None and found is not node:
                # a rule may change how a zero-size or broadcast result is computed, never its type
                assert found.type == node.type, f"{rule.__name__}: {node.type} became {found.type}"
                return found
        return node

    def scalar(self, value: float, like: Tensor) -> Tensor:
        """Fill with the number `value`, with the rank and dtype of `like`, and size 1 along every axis."""
        return fill((1,) * like.rank, value, like.dtype)

    def stretched(self, x: Tensor, shape: Shape) -> Tensor:
        """A tensor broadcast to a shape of the same rank; unchanged if it has that shape."""
        return self.build("broadcast_to", (x,), {"shape": shape})


__all__ = ["FOLD_BYTES", "Rule", "Simplifier"]
