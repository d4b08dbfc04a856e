"""Implements NumPy's ufuncs, functions and operators on complex numbers while a function is traced: each is written in
real arithmetic on the parts, as NumPy computes it. Others raise TraceError."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import mul
from typing import Any

import numpy as np

from ...egraph.ir.refused_values import refuse_value
from ...errors import TraceError
from ..common.complex_parts import Parts, bilinear
from . import numpy_functions
from .complex_array import HINT, PARTS, ComplexArray, is_complex, is_complex_kind, kind_of_parts, parts_of
from .fourier import FOURIER
from .numpy_array import deep, traced
from .numpy_builders import Build

_where: Any = np.where  # untyped, because NumPy's annotations do not know traced arrays


# ---------------------------------------------------------------- ufuncs, on the parts of operands of one dtype
def _divided(x: Parts, y: Parts) -> Parts:
    """Smith's algorithm, as in NumPy: no product of two parts overflows."""
    (a, b), (c, d) = x, y
    wide = np.abs(c) >= np.abs(d)
    large, small = _where(wide, c, d), _where(wide, d, c)
    ratio = small / large
    scale = 1 / (large + small * ratio)
    re = _where(wide, a + b * ratio, a * ratio + b) * scale
    im = _where(wide, b - a * ratio, b * ratio - a) * scale
    none = (c == 0) & (d == 0)
    return _where(none, a / np.abs(c), re), _where(none, b / np.abs(c), im)


def _exponential(x: Parts) -> Parts:
    """The exponential; where the angle is no number, that of C99, annex G."""
    size = np.exp(x[0])
    flat = x[1] == 0
    re, im = _where(flat, size, size * np.cos(x[1])), _where(flat, x[1], size * np.sin(x[1]))
    lost = ~np.isfinite(x[1])
    high, none = lost & np.isposinf(x[0]), lost & np.isneginf(x[0])
    return _where(high, np.inf, _where(none, 0, re)), _where(none, 0, im)


def _square_root(x: Parts) -> Parts:
    """The root with a real part from 0 on; of infinite parts that of C99, annex G."""
    kind = np.finfo(x[0].dtype)
    large = np.maximum(np.abs(x[0]), np.abs(x[1]))
    up, down = large < kind.tiny * 2.0**54, large > kind.max / 4  # denormal numbers, and those whose sum overflows
    scale, root = (
        _where(up, x[0].dtype.type(u), _where(down, x[0].dtype.type(d), 1)) for u, d in ((2.0**54, 0.25), (2.0**-27, 2))
    )
    a, b = x[0] * scale, x[1] * scale
    size = np.sqrt((np.abs(a) + np.hypot(a, b)) * 0.5)
    other = np.abs(b) / (2 * size)
    none = (a == 0) & (b == 0)
    re = _where(none, 0, _where(a >= 0, size, other)) * root
    im = np.copysign(_where(none, 0, _where(a >= 0, other, size)), b) * root
    high, low, zero = np.isposinf(a), np.isneginf(a), b - b  # NaN if b is infinite or NaN
    re = _where(np.isinf(b) | high, np.inf, _where(low, np.abs(zero), re))
    im = _where(np.isinf(b), b, _where(high | low, np.copysign(_where(low, np.inf, zero), b), im))
    return re, im


def _sign(x: Parts) -> Parts:
    """x divided by its size; of one infinite part its sign."""
    size = np.hypot(*x)
    infinite = [np.isinf(part) for part in x]
    one = infinite[0] ^ infinite[1]
    re, im = (
        _where(size == 0, 0, _where(one, _where(infinite[i], np.copysign(1, part), 0), part / size))
        for i, part in enumerate(x)
    )
    return re, im


def _either(test: Callable[[Any], Any]) -> Build:
    return lambda x: test(x[0]) | test(x[1])


#: Ufunc -> its builder on (real, imaginary) parts, which returns such a pair or a real array.
_UFUNCS: dict[np.ufunc, Build] = {
    np.add: lambda x, y: (x[0] + y[0], x[1] + y[1]), np.subtract: lambda x, y: (x[0] - y[0], x[1] - y[1]),
    np.multiply: partial(bilinear, mul), np.divide: _divided, np.negative: lambda x: (-x[0], -x[1]), np.positive: lambda x: x,
    np.conjugate: lambda x: (x[0], -x[1]), np.square: lambda x: bilinear(mul, x, x), np.absolute: lambda x: np.hypot(*x),
    np.exp: _exponential, np.log: lambda x: (np.log(np.hypot(*x)), np.arctan2(x[1], x[0])), np.sqrt: _square_root, np.sign: _sign,
    np.equal: lambda x, y: (x[0] == y[0]) & (x[1] == y[1]), np.not_equal: lambda x, y: (x[0] != y[0]) | (x[1] != y[1]),
    np.isnan: _either(np.isnan), np.isinf: _either(np.isinf), np.isfinite: lambda x: np.isfinite(x[0]) & np.isfinite(x[1]),
}  # fmt: skip


def _powered(x: Any, power: Any) -> Any:
    """x to a known power: a whole number of at most 100 in magnitude by products, or one half."""
    if type(power) is float and power == 0.5:
        return np.sqrt(x)
    whole = isinstance(power, int | float) and not isinstance(power, bool) and float(power).is_integer()
    if not whole or abs(power) > 100:
        raise TraceError(f"complex numbers to the power {power!r} cannot be traced", hint="np.exp(y * np.log(x))")
    found, square, left = None, x, abs(int(power))
    while left:
        if left & 1:
            found = square if found is None else found * square
        square, left = square * square if left > 1 else square, left >> 1
    found = np.ones_like(x) if found is None else found  # of infinities and NaN, too
    return _where(x == 0, np.nan * (1 + 1j), 1 / found) if power < 0 else found  # NumPy: 0 to -1 is no number


def ufunc(function: np.ufunc, method: str, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Trace a call of a ufunc on complex operands, some of them traced. Raises TraceError for those that cannot be."""
    title = function.__name__ + (f".{method}" if method != "__call__" else "")
    if method == "reduce" and function is np.add:
        return call(np.sum, inputs, {"axis": 0, **named})
    if method != "__call__" or any(v is not None for v in named.values()):
        refuse_value(TraceError(f"np.{title} of complex numbers with these options cannot be traced", hint=HINT))
    if function is np.power:
        return _powered(*inputs)
    if function is np.matmul:
        return _product(np.matmul)(*inputs)
    build = _UFUNCS.get(function)
    if build is None:
        refuse_value(TraceError(f"np.{title} of complex numbers cannot be traced", hint=HINT))
    kind = kind_of_parts(*inputs)
    found = build(*(parts_of(v, kind) for v in inputs))
    return ComplexArray(*(traced(v._node) for v in found)) if isinstance(found, tuple) else found


def in_place(function: np.ufunc) -> Callable[..., ComplexArray]:
    """The operator `x += y` of complex arrays: x gets the new values; of a scalar, which is immutable, a new one is
    returned."""

    def operator(x: ComplexArray, y: Any) -> ComplexArray:
        found: ComplexArray = ufunc(function, "__call__", (x, y), {})
        if x._re._scalar:
            return found
        x[...] = found
        return x

    return operator


# ---------------------------------------------------------------- functions
def _part(value: Any, kind: str, part: int) -> Any:
    return parts_of(value, kind)[part]


def _refuse_complex(name: str, values: Iterable[Any]) -> None:
    """Raise TraceError if one of `values`, the arguments beside the arrays (axes, options), is complex."""
    if any(map(is_complex, values)):
        raise TraceError(f"np.{name} takes complex numbers as its arrays only, not as its other arguments", hint=HINT)


def _on_both(name: str, places: Sequence[int] = (0,)) -> Build:
    """A linear function, which is applied to the real and to the imaginary parts of its arguments at `places`."""
    function: Any = np
    for part in name.split("."):
        function = getattr(function, part)

    def run(*args: Any, **named: Any) -> Any:
        _refuse_complex(name, [*(v for i, v in enumerate(args) if i not in places), *named.values()])
        data = [args[i] for i in places if i < len(args)]
        kind = kind_of_parts(*(leaf for v in data for leaf in (v if type(v) in (list, tuple) else [v])))
        re, im = (
            function(
                *(deep(v, partial(_part, kind=kind, part=part)) if i in places else v for i, v in enumerate(args)),
                **named,
            )
            for part in (0, 1)
        )
        return type(re)(map(ComplexArray, re, im)) if isinstance(re, list | tuple) else ComplexArray(re, im)

    return run


def _product(function: Callable[..., Any], conjugated: bool = False) -> Build:
    """A bilinear function of two arrays; with one real operand it takes two real products, not four."""

    def run(x: Any, y: Any, *rest: Any, **named: Any) -> Any:
        _refuse_complex(function.__name__, [*rest, *named.values()])
        kind = kind_of_parts(x, y)
        (a, b), (c, d) = (parts_of(v, kind) for v in (x, y))
        b = (-b if conjugated else b) if is_complex(x) else None
        d = d if is_complex(y) else None
        return ComplexArray(*bilinear(lambda v, w: function(v, w, *rest, **named), (a, b), (c, d)))

    return run


def _einsum(equation: Any, *operands: Any, optimize: Any = False) -> Any:
    if not isinstance(equation, str) or len(operands) > 2:
        raise TraceError(
            "np.einsum of more than two arrays of complex numbers cannot be traced", hint="one product after the other"
        )
    if len(operands) == 1:
        return _on_both("einsum", (1,))(equation, *operands)
    return _product(lambda x, y: np.einsum(equation, x, y))(*operands)


def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    vector = np.ndim(x) == 1 if axis is None else isinstance(axis, int | np.integer) or len(axis) == 1
    if ord in (None, "fro") or (ord == 2 and vector):  # other than by sizes where one part is infinite, the other NaN
        return np.sqrt(np.sum(x.real * x.real + x.imag * x.imag, axis, keepdims=keepdims))
    return np.linalg.norm(np.hypot(x.real, x.imag), ord, axis, keepdims)


def _mean(a: Any, axis: Any = None, dtype: Any = None, *, keepdims: bool = False) -> Any:
    """The sum, divided by a complex number as in NumPy: of an infinite part the other one is NaN."""
    total = np.sum(a, axis, dtype, keepdims=keepdims)
    return total / complex(a.size // max(total.size, 1))


def _zeros_like(a: Any, dtype: Any = None, *rest: Any, **named: Any) -> Any:
    kind = a.dtype if dtype is None else np.dtype(dtype)
    parts = [np.zeros_like(a.real, PARTS.get(kind, kind), *rest, **named) for _ in range(2)]
    return ComplexArray(*parts) if kind in PARTS else parts[0]


_LINEAR = (
    "reshape", "ravel", "transpose", "matrix_transpose", "swapaxes", "moveaxis", "expand_dims", "squeeze", "broadcast_to", "flip", "fliplr",
    "flipud", "rot90", "roll", "tile", "repeat", "split", "array_split", "concatenate", "stack", "hstack", "vstack", "take", "take_along_axis",
    "tril", "triu", "diagonal", "diag", "trace", "sum", "cumsum", "diff", "copy", "fft.fftshift", "fft.ifftshift",
    "atleast_1d", "atleast_2d",
)  # fmt: skip
_FUNCTIONS: dict[str, Build] = {
    **{name: _on_both(name) for name in _LINEAR}, "where": _on_both("where", (1, 2)),
    **{name: _product(getattr(np, name)) for name in ("dot", "inner", "outer", "tensordot", "kron", "convolve")},
    "mean": _mean, "vdot": _product(np.vdot, True), "einsum": _einsum, "real": lambda val: val.real, "imag": lambda val: val.imag,
    "angle": lambda z, deg=False: np.arctan2(z.imag, z.real) * (180 / np.pi if deg else 1), "linalg.norm": _norm,
    "iscomplexobj": lambda x: True, "isrealobj": lambda x: False, "shape": lambda a: a.shape, "ndim": lambda a: a.ndim,
    "size": lambda a: a.size, "zeros_like": _zeros_like, "empty_like": _zeros_like,
    "ones_like": lambda a, *rest, **named: _zeros_like(a, *rest, **named) + 1, **FOURIER,
}  # fmt: skip


def is_traceable(function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether a function takes real arrays to complex ones, so that it is traced here."""
    name, dtype = numpy_functions.title(function), named.get("dtype", args[1] if len(args) > 1 else None)
    return name in FOURIER or (name in ("zeros_like", "ones_like", "empty_like") and is_complex_kind(dtype))


def call(function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Trace NumPy's `function(*args, **named)` of complex arguments, or one of `FOURIER`.

    Raises TraceError for functions and arguments that cannot be traced.
    """
    name = numpy_functions.title(function)
    build = _FUNCTIONS.get(name)
    if build is None:
        refuse_value(TraceError(f"np.{name} of complex numbers cannot be traced", hint=HINT))
    wanted = numpy_functions.probed(name, function, args, named)
    try:
        args, named = numpy_functions.in_places(function, args, named)
        found = build(*args, **named)
    except (TypeError, ValueError, LookupError) as error:
        raise TraceError(f"np.{name} of complex numbers: {error}", hint="leave that argument out") from error
    if type(found) is not ComplexArray or not isinstance(wanted, np.ndarray | np.generic):
        return numpy_functions.agreeing(name, found, wanted)
    if found.shape != wanted.shape or wanted.dtype not in PARTS:
        raise TraceError(f"np.{name} of complex numbers makes {found.shape}, NumPy makes {wanted.shape}")
    return found if found.dtype == wanted.dtype else found.astype(wanted.dtype)  # a view stays one


def _method(name: str) -> Callable[..., Any]:
    return lambda x, *args, **named: call(getattr(np, name), (x, *args), named)


for _name in ("sum", "mean", "cumsum", "ravel", "squeeze", "swapaxes", "repeat", "take", "diagonal", "trace", "dot"):
    setattr(ComplexArray, _name, _method(_name))
for _name in ("conj", "conjugate"):
    setattr(ComplexArray, _name, lambda x: ufunc(np.conjugate, "__call__", (x,), {}))
ComplexArray.__array_ufunc__ = lambda self, function, method, *inputs, **named: ufunc(function, method, inputs, named)
ComplexArray.__array_function__ = lambda self, function, types, args, named: call(function, args, named)
__all__ = ["call", "is_traceable", "ufunc"]
