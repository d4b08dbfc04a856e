"""Converts symbolic sizes of an exported program to dimensions of the graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...egraph.types import dims as dims_
from ...egraph.types.dims import Dim
from ...errors import UnsupportedError

#: SymPy's class of a relation -> its operator in Python, as text and as function.
_RELATIONS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "Equality": ("==", operator.eq), "Unequality": ("!=", operator.ne), "StrictLessThan": ("<", operator.lt),
    "LessThan": ("<=", operator.le), "StrictGreaterThan": (">", operator.gt), "GreaterThan": (">=", operator.ge),
}  # fmt: skip


class SymbolicSizes:
    """The dimensions of an exported program's size symbols, created when the shapes of its inputs are read.

    `ranges`: SymPy symbol -> range of the size, as PyTorch found it. `parts`: name of a free size -> a divisor of it.
    `symbols`: name of a symbol -> its dimension or value. `examples`: for free sizes that the user has not named, name
    -> (dimension, size in the example inputs; 0 if unknown).
    """

    def __init__(self, ranges: Mapping[Any, Any], parts: Mapping[str, int]) -> None:
        self.ranges, self.parts = ranges, parts
        self.symbols: dict[str, Dim] = {}
        self.examples: dict[str, tuple[Dim, int]] = {}
        self._guards: Sequence[Any] = ()  # what torch.export has assumed about sizes

    def bind(self, name: str, shape: Sequence[Any], hints: Mapping[int, str]) -> None:
        """Create a dimension for each size symbol in `shape`, the shape of the input `name`, unless it already has one.

        `hints`: axis -> name of its size; other sizes are named after the input and the axis, and after their symbols
        where an axis has several (a product).
        """
        for axis, size in enumerate(shape):
            expression = getattr(getattr(size, "node", None), "expr", None)
            for symbol in sorted(getattr(expression, "free_symbols", ()), key=str):
                if str(symbol) in self.symbols:
                    continue
                self._guards = getattr(getattr(size.node, "shape_env", None), "guards", ())
                limits = self.ranges.get(symbol)
                low, high = (int(limits.lower), limits.upper) if limits is not None else (1, None)
                top = int(high) if high is not None and high.is_finite and high < 1 << 31 else 1 << 31
                title = self._unused(hints.get(axis, f"{name}_{axis}"), str(symbol))
                self.symbols[str(symbol)] = self._free(title, max(low, 1), top)
                if axis not in hints and expression == symbol:  # torch.export has verified all sizes of named ranges
                    self.examples[title] = self.symbols[str(symbol)], getattr(size.node, "hint", None) or 0

    def assumed(self) -> Iterator[tuple[str, Callable[[Any, Any], bool], Dim, Dim]]:
        """Relations between sizes that the module's Python code has tested while it was traced, as (text, relation,
        left, right); the graph is valid only where they hold.

        Left out are relations other than between polynomials, quotients and remainders, and those that Torch's private
        modules have tested, where an operator's result gets its shape and strides.
        """
        asked = (guard.expr for guard in self._guards if not str(getattr(guard, "sloc", "(_")).startswith("(_"))
        for expression in dict.fromkeys(asked):
            relation = _RELATIONS.get(type(expression).__name__)
            if relation is not None:
                with suppress(UnsupportedError):
                    left, right = (dimension(a, self.symbols) for a in expression.args)
                    yield f"{left} {relation[0]} {right}", relation[1], left, right

    def _unused(self, title: str, symbol: str) -> str:
        """A name that no dimension of another symbol has: dimensions of one name are equal."""
        used = {n for d in self.symbols.values() for n in dims_.symbols(d)}
        taken = not used.isdisjoint((title, self._named(title)))
        return f"{title}_{symbol}" if taken else title

    def _named(self, title: str) -> str:
        """Name of the dimension of a free size: its own, or that of what a known divisor leaves of it."""
        part = self.parts.get(title, 1)
        return title if part == 1 else f"{title}_by_{part}"

    def _free(self, title: str, low: int, high: int) -> Dim:
        """The dimension of a free size; a multiple of its divisor if it has one."""
        part = self.parts.get(title, 1)
        return part * dims_.dim(self._named(title), min=-(-low // part), max=high // part)

    def dim(self, size: Any) -> Dim:
        """The dimension of a size of a traced shape. Raises UnsupportedError for a size that depends on data, and for
        operators that dimensions lack."""
        if isinstance(size, int) and not hasattr(size, "node"):
            return size
        return dimension(size.node.expr, self.symbols)


def dimension(expression: Any, symbols: Mapping[str, Dim]) -> Dim:
    """Convert a SymPy size expression to a dimension, given the dimensions of its symbols.

    Raises UnsupportedError for a symbol that no input's shape has (a size that depends on data), and for operators that
    dimensions lack.
    """
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        if str(expression) not in symbols:
            raise UnsupportedError(f"the size {expression} depends on data")
        return symbols[str(expression)]
    parts = [dimension(a, symbols) for a in expression.args]
    kind = type(expression).__name__
    if kind in ("FloorDiv", "CleanDiv"):
        return parts[0] // parts[1]
    if kind in ("Mod", "PythonMod"):
        return parts[0] % parts[1]
    if kind == "Pow" and isinstance(parts[1], int) and parts[1] >= 0:
        return dims_.volume((parts[0],) * parts[1])
    if kind not in ("Add", "Mul"):
        raise UnsupportedError(f"the size {expression} cannot be expressed by sums, products, quotients and remainders")
    total: Dim = parts[0]
    for part in parts[1:]:
        total = total + part if kind == "Add" else total * part
    return total
