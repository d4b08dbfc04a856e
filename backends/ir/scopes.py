"""Nested scopes of emitted source, each with the values that are in variables in it.

A lookup searches a scope, then its enclosing scopes. Emitters derive their own scope classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from .expr import Expr, walk
from .index import Axis

V = TypeVar("V")
B = TypeVar("B", bound="SourceScope[Any]")


@dataclass
class SourceScope(Generic[V]):
    """Scope (block) of emitted source: the lines written into it, the values that are in variables in it (`known`), the
    axes whose values are set in it (`bound`), and the scope around it (`outside`, None for the outermost one)."""

    indent: int
    bound: set[Axis]
    lines: list[str] = field(default_factory=list)
    known: dict[Expr, V] = field(default_factory=dict)
    outside: Self | None = None

    def outward(self) -> Iterator[Self]:
        """Yields this scope and its enclosing scopes, innermost first."""
        block: Self | None = self
        while block is not None:
            yield block
            block = block.outside

    def find(self, e: Expr) -> V | None:
        """The variable that holds the value of `e` in this scope or one around it; None if there is none."""
        for block in self.outward():
            if e in block.known:
                return block.known[e]
        return None


class Writer(Generic[B]):
    """Writer of emitted source into nested scopes: `scope` is the open one, `top` the outermost one."""

    top: B
    scope: B
    counter = 0

    def line(self, text: str, scope: B | None = None) -> None:
        """Write the line `text` of source into `scope`, by default the open one, with the scope's indentation."""
        scope = scope or self.scope
        scope.lines.append("    " * scope.indent + text)

    def fresh(self, stem: str = "t") -> str:
        """A variable name that is not used yet: `stem` and a number."""
        self.counter += 1
        return f"{stem}{self.counter}"

    @contextmanager
    def inside(self, scope: B) -> Iterator[None]:
        """Context manager in which `scope` is the open scope, into which lines are written."""
        before, self.scope = self.scope, scope
        yield
        self.scope = before

    def home(self, e: Expr) -> B:
        """The outermost scope in which the expression `e` can be computed: it binds all axes of the expression, and
        encloses no scope in which a reduction that the expression reads has its current value."""
        scope = self.scope
        while scope.outside is not None and e.axes <= scope.outside.bound:
            if any(x in scope.known and x.op == "reduce" for x in walk([e])):
                break
            scope = scope.outside
        return scope
