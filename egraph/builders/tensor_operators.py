"""Defines the operators and methods of `Tensor`, and checked builders for callers (loaders use the unchecked
builders.py).

The checks are NumPy's: an int must fit into the dtype of the other, tensor operand, and bitwise operations take no
floats. Importing `egraph.ir` installs the operators.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import UsageError
from ..ir.graph import Graph
from ..ir.refused_values import refuse_value
from ..ir.tensor import Tensor, make
from ..types import dtypes
from ..types.dims import Dim, volume
from . import builders as t
from .elementwise_builders import elementwise
from .numpy_indexing import getitem
from .operand_alignment import Operand, align, as_operand


def _outside(operands: Sequence[Any]) -> tuple[int, str] | None:
    """An int among the operands and the integer dtype of the tensors beside it, if the dtype cannot hold the int."""
    kinds = [o.dtype for o in operands if isinstance(o, Tensor)]
    if not kinds or any(dtypes.is_float(k) for k in kinds):
        return None
    if any(isinstance(o, float | np.floating) for o in operands):
        return None
    dtype = functools.reduce(dtypes.promote, kinds)
    dtype = "int64" if dtype == "bool" else dtype
    numbers = [int(o) for o in operands if isinstance(o, int | np.integer) and not isinstance(o, bool)]
    return next(((n, dtype) for n in numbers if not dtypes.least(dtype) <= n <= dtypes.greatest(dtype)), None)


def refuse_outside(operands: Sequence[Any]) -> None:
    """Raise UsageError for an int among the operands that the dtype of the tensor operands cannot hold."""
    if found := _outside(operands):
        raise UsageError(f"{found[0]} is outside the range of {found[1]}", hint="cast the tensor to a wider dtype")


def _is_kind(operand: Any, kind: str) -> bool:
    """Whether an operand is a tensor or number of a dtype category ("bool", "int" or "float")."""
    if isinstance(operand, Tensor):
        return dtypes.category(operand.dtype) == kind
    own = {bool: "bool", int: "int", float: "float"}.get(type(operand))
    own = own or {"b": "bool", "i": "int", "u": "int", "f": "float"}.get(
        getattr(getattr(operand, "dtype", None), "kind", "")
    )
    return own == kind


def _checked(build: Callable[..., Tensor], refused: str = "") -> Callable[..., Tensor]:
    """A builder for callers. The built function raises UsageError for an int that the tensors' dtype cannot hold, and
    if all operands are of the dtype category `refused`. (Builders themselves wrap such ints, as PyTorch does.)
    """

    @functools.wraps(build)
    def checked(*operands: Any) -> Tensor:
        if refused and all(_is_kind(o, refused) for o in operands):
            raise UsageError(
                f"{build.__name__} is not defined for {refused} operands", hint="cast first, or use a logical operation"
            )
        refuse_outside(operands[-2:])  # the condition of `where` comes first
        return build(*operands)

    return checked


def _checked_compare(build: Callable[..., Tensor], answer: Callable[[int, int], bool]) -> Callable[..., Tensor]:
    """A comparison for callers; constant for an int that the tensors' dtype cannot hold, as in NumPy."""

    @functools.wraps(build)
    def checked(x: Any, y: Any) -> Tensor:
        if not _outside((x, y)):
            return build(x, y)
        tensor = x if isinstance(x, Tensor) else y
        return t.full(tensor.shape, answer(*(0 if o is tensor else int(o) for o in (x, y))), "bool")

    return checked


def _bitwise(name: str) -> Callable[..., Tensor]:
    """`&`, `|` or `^`: bitwise for integers, logical for bools. Raises UsageError for floats."""
    build = _checked(elementwise(name))

    def checked(x: Any, y: Any) -> Tensor:
        if _is_kind(x, "float") or _is_kind(y, "float"):
            raise UsageError(f"bitwise {name} is not defined for floats", hint=f"tg.logical_{name}, or compare first")
        return build(x, y)

    return checked


def _logical(name: str) -> Callable[..., Tensor]:
    """Logical operation of truth values: every nonzero number is true."""

    def build(x: Any, y: Any) -> Tensor:
        return make(
            name, align(*(t.cast(o, "bool") if isinstance(o, Tensor) else bool(o) for o in map(as_operand, (x, y))))
        )

    build.__name__, build.__doc__ = f"logical_{name}", f"Logical {name}; every nonzero number counts as true."
    return build


def _power(x: Any, y: Any) -> Tensor:
    """x ** y. Raises UsageError for integers to a negative integer power, and as in `_checked`."""
    if isinstance(y, int | np.integer) and y < 0 and not _is_kind(x, "float"):
        raise UsageError(
            "integers cannot be raised to a negative integer power",
            hint="cast to a float dtype, or use a float exponent",
        )
    if (
        isinstance(y, int | float)
        and not isinstance(y, bool)
        and y == 2
        and not (isinstance(y, float) and _is_kind(x, "int"))
    ):
        return t.square(x)
    return _checked(t.pow)(x, y)


#: Builders for callers, in place of those of the same name above, which loaders use.
PUBLIC: dict[str, Callable[..., Tensor]] = {
    **{f.__name__: _checked(f) for f in (t.add, t.mul, t.mod, t.floordiv, t.maximum, t.minimum, t.where)},
    "sub": _checked(t.sub, "bool"), "neg": _checked(t.neg, "bool"), "pow": _power,
    "eq": _checked_compare(t.eq, operator.eq), "ne": _checked_compare(t.ne, operator.ne),
    "lt": _checked_compare(t.lt, operator.lt), "le": _checked_compare(t.le, operator.le),
    "gt": _checked_compare(t.gt, operator.gt), "ge": _checked_compare(t.ge, operator.ge),
    "logical_and": _logical("and"), "logical_or": _logical("or"), "logical_xor": _logical("xor"),
}  # fmt: skip


def _power_operator(x: Any, y: Any, modulus: Any = None) -> Tensor:
    if modulus is not None:
        raise UsageError("pow() with a modulus is not supported", hint="tg.mod(x ** y, modulus)")
    return PUBLIC["pow"](x, y)


def _formatted(x: Tensor, spec: str) -> str:
    return repr(x) if not spec else str(_as_values(x))


def _swapped(f: Callable[[Operand, Operand], Tensor]) -> Callable[[Tensor, Operand], Tensor]:
    return lambda x, y: f(y, x)


def _length(x: Tensor) -> int:
    if not x.rank or not isinstance(x.shape[0], int):
        raise UsageError(f"{x.type} has no length that is known", hint="x.shape has its sizes")
    return x.shape[0]


def _as_values(x: Tensor, *_: Any, **__: Any) -> Any:
    refuse_value(
        UsageError("a tensor expression has no values yet", hint="tg.optimize makes a program that computes them")
    )


def _immutable(x: Tensor, *_: Any) -> None:
    raise UsageError(
        "a tensor expression cannot be changed", hint="tg.where, tg.concat or tg.scatter_elements make another"
    )


def _shape_args(shape: tuple[Any, ...]) -> tuple[Dim, ...]:
    return tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else tuple(shape)


def _inverted(x: Tensor) -> Tensor:
    """`~x`: bitwise not for integers, logical not for bool."""
    if dtypes.is_float(x.dtype):
        raise UsageError(f"~ is not defined for {x.dtype}", hint="tg.logical_not, or compare first")
    return t.logical_not(x) if x.dtype == "bool" else t.sub(t.neg(x), 1)


_PACKAGE = __name__.partition(".")[0]


def _compared(build: Callable[..., Tensor], equal: bool) -> Callable[[Any, Any], Any]:
    """`==` or `!=`: an elementwise comparison in the caller's code, identity in this package's own modules.

    Terms are hash-consed, so the package compares them (in tuples, lists and dataclasses too) by identity, as dicts and
    sets do."""

    def compare(x: Any, y: Any) -> Any:
        module = str(sys._getframe(1).f_globals.get("__name__", ""))
        if module.partition(".")[0] == _PACKAGE:
            return (x is y) is equal
        return build(x, y)

    return compare


_METHODS: dict[str, Any] = {
    **{f"__{n}__": PUBLIC[n] for n in ("add", "sub", "mul", "mod", "floordiv", "neg", "lt", "le", "gt", "ge")},
    **{f"__r{n}__": _swapped(PUBLIC[n]) for n in ("add", "sub", "mul", "mod", "floordiv", "pow")},
    **{f"__{n}__": _bitwise(n) for n in ("and", "or", "xor")},
    **{f"__r{n}__": _swapped(_bitwise(n)) for n in ("and", "or", "xor")},
    "__truediv__": t.div, "__rtruediv__": _swapped(t.div),
    "__divmod__": lambda x, y: (PUBLIC["floordiv"](x, y), PUBLIC["mod"](x, y)),
    "__rdivmod__": lambda x, y: (PUBLIC["floordiv"](y, x), PUBLIC["mod"](y, x)),
    "__matmul__": t.matmul, "__rmatmul__": _swapped(t.matmul),  # type: ignore[arg-type]
    "__pow__": _power_operator, "__abs__": t.abs, "__invert__": _inverted, "__format__": _formatted,
    "__eq__": _compared(PUBLIC["eq"], True), "__ne__": _compared(PUBLIC["ne"], False),
    "__getitem__": getitem, "__len__": _length, "__array__": _as_values, "__float__": _as_values, "__int__": _as_values,
    "__index__": _as_values, "__complex__": _as_values, "__round__": _as_values, "__trunc__": _as_values,
    "__setitem__": _immutable, "__delitem__": _immutable,
    "sum": t.sum, "mean": t.mean, "max": t.max, "min": t.min, "astype": t.cast,
    "transpose": lambda x, *perm: t.permute(x, _shape_args(perm)) if perm else t.transpose(x),  # type: ignore[arg-type]
    "flatten": lambda x: t.reshape(x, (-1,)), "size": property(lambda x: volume(x.shape)),
    "reshape": lambda x, *shape: t.reshape(x, _shape_args(shape)),
    "permute": lambda x, *perm: t.permute(x, _shape_args(perm)),  # type: ignore[arg-type]
    "_repr_html_": lambda x: Graph.of(x)._repr_html_(),
    "T": property(lambda x: t.permute(x, tuple(reversed(range(x.rank))))), "mT": property(t.transpose),
}  # fmt: skip
for _name, _method in _METHODS.items():
    setattr(Tensor, _name, _method)

__all__ = ["PUBLIC", "refuse_outside"]
