"""Represents free sizes while a function is traced: Python decisions about them are made only if they hold for every
size."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NoReturn

from ...egraph.types.dims import Dim, DimExpr, Shape, bounds
from ...errors import TraceError

_HINT = "give an example with known sizes, or write it without the size's value"


class FreeSize(DimExpr):
    """Size of a traced array's axis that is not known while the function is traced (`tg.dim`).

    Arithmetic gives further sizes. Comparisons give a bool if their result is the same for every size in range; other
    comparisons, truth values, hashes and conversions to numbers raise TraceError, because tracing would fix their
    result for all sizes.
    """

    def __bool__(self) -> bool:
        return bool(operator.ne(self, 0))


def free(value: Dim) -> Dim:
    """A dimension of a graph as a size that the caller's function may see (`FreeSize`); ints unchanged."""
    return FreeSize(value.terms) if isinstance(value, DimExpr) else value


def free_shape(shape: Shape) -> Shape:
    """A shape of a graph as sizes that the caller's function may see (`free` of each dimension)."""
    return tuple([free(d) for d in shape])


def known(value: Any) -> Any:
    """The inverse of `free`: a `FreeSize`, also as a bound of a slice, becomes a plain dimension of graphs; other
    values unchanged."""
    if type(value) is FreeSize:
        return DimExpr(value.terms)
    if type(value) is slice:
        return slice(known(value.start), known(value.stop), known(value.step))
    return value


def _arithmetic(name: str) -> Callable[..., Any]:
    compute = getattr(DimExpr, name)

    def method(size: FreeSize, *others: Any) -> Any:
        if not all(isinstance(v, int | DimExpr) for v in others):
            return NotImplemented
        return free(compute(known(size), *map(known, others)))

    return method


def _comparison(name: str) -> Callable[..., Any]:
    relation = getattr(operator, name)

    def method(size: FreeSize, other: Any) -> Any:
        """Result of the relation for the difference of both, if it is the same at both ends of its range."""
        if not isinstance(other, int | float | DimExpr):
            return NotImplemented
        low, high = (
            (end - other for end in bounds(known(size))) if isinstance(other, float)
            else bounds(known(size) - known(other))
        )  # fmt: skip
        least, most = relation(low, 0), relation(high, 0)
        inner = name in ("eq", "ne") and low <= 0 <= high and low != high
        if inner or least != most or not low <= high:
            raise TraceError(f"a Python condition on the free size {size} is not the same for all sizes", hint=_HINT)
        return least

    return method


def _refusal(what: str) -> Callable[..., NoReturn]:
    def method(size: FreeSize, *_: Any) -> NoReturn:
        raise TraceError(f"the free size {size} has no value while a function is traced: Python asks for {what}", hint=_HINT)  # fmt: skip

    return method


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv", "mod", "rmod", "neg"):
    setattr(FreeSize, f"__{_name}__", _arithmetic(f"__{_name}__"))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(FreeSize, f"__{_name}__", _comparison(_name))
for _name in ("int", "float", "index", "complex", "round", "trunc", "floor", "ceil"):
    setattr(FreeSize, f"__{_name}__", _refusal("a number"))
for _name in ("truediv", "rtruediv", "pow", "rpow", "divmod", "rdivmod"):
    setattr(FreeSize, f"__{_name}__", _refusal("a quotient or power"))
FreeSize.__hash__ = _refusal("a hash")  # type: ignore[method-assign]

__all__ = ["free", "free_shape", "known"]
