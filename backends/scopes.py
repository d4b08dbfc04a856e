"""Nested blocks of emitted source: what is known in each, found from the inside out. Emitters add what they keep beside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

from .index import Axis
from .kir import Expr

V = TypeVar("V")


@dataclass
class Block(Generic[V]):
    """A block of the source: its lines, the values known in it, the axes bound in it."""

    indent: int
    bound: set[Axis]
    lines: list[str] = field(default_factory=list)
    known: dict[Expr, V] = field(default_factory=dict)
    outside: Self | None = None

    def outward(self) -> Iterator[Self]:
        """This block and those around it, the innermost first."""
        block: Self | None = self
        while block is not None:
            yield block
            block = block.outside

    def find(self, e: Expr) -> V | None:
        """The value of an expression that is known here."""
        return next((b.known[e] for b in self.outward() if e in b.known), None)
