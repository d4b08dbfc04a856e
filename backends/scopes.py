"""Nested blocks of emitted source: what is known in each, found from the inside out. Emitters add what they keep beside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from .index import Axis
from .kir import Expr, walk

V = TypeVar("V")
B = TypeVar("B", bound="Block[Any]")


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


class Writer(Generic[B]):
    """Lines of source, written into the block that is open; `top` is the outermost one."""

    top: B
    scope: B
    counter = 0

    def line(self, text: str, scope: B | None = None) -> None:
        """Write a line into a block, the open one if none is named."""
        scope = scope or self.scope
        scope.lines.append("    " * scope.indent + text)

    def fresh(self, stem: str = "t") -> str:
        """A name that was not there before."""
        self.counter += 1
        return f"{stem}{self.counter}"

    @contextmanager
    def inside(self, scope: B) -> Iterator[None]:
        """Write into another block for a while."""
        before, self.scope = self.scope, scope
        yield
        self.scope = before

    def home(self, e: Expr) -> B:
        """The outermost block in which an expression can be computed: all its axes are bound there, and it reads no running
        value of a loop around this one."""
        scope = self.scope
        while scope.outside is not None and e.axes <= scope.outside.bound:
            if any(x in scope.known and x.op == "reduce" for x in walk([e])):
                break
            scope = scope.outside
        return scope
