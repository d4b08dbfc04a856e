"""Lowers complex tensors in exported programs to pairs of real tensors (rotary embeddings, Fourier layers).

A graph has only real values, so a complex value is a `Complex` while the program is imported. Linear and data-movement
overloads apply to both parts; the others are listed in `TABLE`. Inputs and outputs of a program are real.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...errors import UnsupportedError
from ..common.complex_parts import LONGEST_DFT, Array, Parts, bilinear, real_inverse_roots, unit_roots
from ..common.sampling import whole_sizes
from . import aten_create, aten_views
from . import aten_pointwise as p
from . import aten_reduce as r

#: Complex dtype -> dtype of its parts.
PARTS = {"complex64": "float32", "complex128": "float64"}


@dataclass(frozen=True)
class Complex:
    """A complex value: real and imaginary part, of equal shape and dtype."""

    re: Tensor
    im: Tensor

    @property
    def dtype(self) -> str:
        """Name of the complex dtype."""
        return "complex128" if self.re.dtype == "float64" else "complex64"


def lifted(value: Any) -> Complex:
    """`Complex` form of a real tensor, a number or a complex value."""
    if isinstance(value, Complex):
        return value
    if isinstance(value, Tensor):
        real = p.as_float(value)
        return Complex(real, t.full(real.shape, 0.0, real.dtype))
    number = complex(value)
    return Complex(t.full((), number.real), t.full((), number.imag))


def _pair(re: Tensor, im: Tensor) -> Complex:
    """Return a `Complex` of two parts, broadcast to a common shape and dtype."""
    re, im = p.lift(re, im)
    shape = (re + im).shape
    return Complex(t.broadcast_to(re, shape), t.broadcast_to(im, shape))


def is_complex(item: Any) -> bool:
    """Return whether an argument is or contains a complex value or number."""
    if isinstance(item, list | tuple):
        return any(map(is_complex, item))
    if isinstance(item, dict):
        return is_complex(list(item.values()))
    return isinstance(item, Complex | complex)


def _part(item: Any, part: str) -> Any:
    if isinstance(item, list | tuple):
        return [_part(v, part) for v in item]
    floating = isinstance(item, Tensor) and dtypes.is_float(item.dtype)
    return getattr(lifted(item), part) if floating or isinstance(item, Complex | complex) else item


def on_both(build: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that applies `build`, which is linear, to the real and to the imaginary parts. Integer operands
    (indices) are passed to both."""

    def run(*args: Any, **named: Any) -> Any:
        re, im = (build(*_part(args, part), **{k: _part(v, part) for k, v in named.items()}) for part in ("re", "im"))
        return [Complex(a, b) for a, b in zip(re, im, strict=True)] if isinstance(re, list) else Complex(re, im)

    return run


# ---------------------------------------------------------------- to complex and back
def view_as_complex(x: Tensor) -> Complex:
    """x[..., 2] as complex values [...]."""
    return Complex(aten_views.select(x, -1, 0), aten_views.select(x, -1, 1))


def view_as_real(x: Complex) -> Tensor:
    """Complex values [...] as reals [..., 2]."""
    return t.stack([x.re, x.im], -1)


def polar(size: Tensor, angle: Tensor) -> Complex:
    """Return complex values of magnitude `size` and phase `angle` (radians)."""
    return _pair(size * t.cos(angle), size * t.sin(angle))


def to(x: Any, dtype: str | None = None, *_: Any) -> Any:
    """x cast to another dtype. A real dtype drops the imaginary part, as in PyTorch."""
    if dtype is None:
        return x
    if dtype not in PARTS:
        return t.cast(lifted(x).re, dtype)
    value = lifted(x)
    parts = [t.cast(v, PARTS[dtype]) for v in (value.re, value.im)]
    return _pair(*parts)


def filled(value: Any, like: bool = False) -> Callable[..., Complex]:
    """Return a function that builds complex tensors filled with `value`; their shape is its first argument: a size, or
    another tensor if `like`."""

    def run(size: Any, dtype: str | None = None) -> Complex:
        shape, kind = (lifted(size).re.shape, dtype or size.dtype) if like else (size, dtype)
        return Complex(*(t.full(shape, v, PARTS[kind or "complex64"]) for v in (value, 0.0)))

    return run


def copied(x: Complex, source: Any, non_blocking: bool = False) -> Complex:
    """Return source broadcast to x's shape and cast to x's dtype."""
    value = lifted(source)
    return Complex(*(aten_create.copy(x.re, part) for part in (value.re, value.im)))


def absolute(x: Complex) -> Tensor:
    """Return the absolute value; the squares do not overflow."""
    return p.hypot(x.re, x.im)


# ---------------------------------------------------------------- arithmetic
def _add(sign: int) -> Callable[..., Complex]:
    def run(x: Any, y: Any, alpha: Any = 1) -> Complex:
        a, b = lifted(x), lifted(y)
        return _pair(p.add(a.re, b.re, sign * alpha), p.add(a.im, b.im, sign * alpha))

    return run


def _parts(value: Any) -> Parts:
    if not is_complex(value):
        return value, None
    number = lifted(value)
    return number.re, number.im


def _product(build: Callable[[Any, Any], Tensor]) -> Callable[..., Complex]:
    """Return a builder of a bilinear map of operands, one of which is complex."""
    return lambda x, y: Complex(*bilinear(build, _parts(x), _parts(y)))


multiply = _product(lambda x, y: t.mul(*p.lift(x, y)))


def conjugate(x: Complex) -> Complex:
    """Return the complex conjugate."""
    return Complex(x.re, -x.im)


def divide(x: Any, y: Any) -> Complex:
    """Return x / y."""
    if not is_complex(y):
        return Complex(*(p.div(part, y) for part in (x.re, x.im)))
    below = lifted(y)
    size = below.re * below.re + below.im * below.im
    above = multiply(x, conjugate(below))
    return Complex(p.div(above.re, size), p.div(above.im, size))


def exponential(x: Complex) -> Complex:
    """Return e**x of a complex x."""
    return polar(t.exp(x.re), x.im)


def _equal(x: Any, y: Any) -> Tensor:
    a, b = lifted(x), lifted(y)
    return t.logical_and(t.eq(*p.lift(a.re, b.re)), t.eq(*p.lift(a.im, b.im)))


# ---------------------------------------------------------------- Fourier transforms
def _refuse_long(size: int) -> None:
    if size > LONGEST_DFT:
        raise UnsupportedError(f"a Fourier transform over {size} elements (at most {LONGEST_DFT})")


def _matrix(size: int, count: int, forward: bool) -> tuple[Array, Array]:
    """Return (cosines, sines) of the DFT matrix's first `count` columns, [size, count] each."""
    _refuse_long(size)
    return unit_roots(size, count, size, -1 if forward else 1)


def _norm(shape: Sequence[int], mode: int) -> float:
    """Return the normalization factor of PyTorch's mode: 0 is 1, 1 is 1 / sqrt(n), 2 is 1 / n."""
    count = float(np.prod([float(d) for d in shape]))
    return (1.0, 1 / sqrt(count), 1 / count)[mode]


def _along(x: Tensor, matrix: Array, dim: int) -> Tensor:
    """Return the product of x's axis `dim` and a constant matrix, [x's size there, result's size there]."""
    return t.swapaxes(t.matmul(t.swapaxes(x, dim, -1), t.constant(matrix.astype(dtypes.numpy_dtype(x.dtype)))), dim, -1)


def _scaled(x: Complex, factor: float) -> Complex:
    return Complex(x.re * factor, x.im * factor)


def _transform(x: Complex, dim: int, size: int, forward: bool) -> Complex:
    return Complex(*bilinear(lambda v, m: _along(v, m, dim), (x.re, x.im), _matrix(size, size, forward)))


def fft_complex(x: Complex, dims: Sequence[int], mode: int, forward: bool) -> Complex:
    """Return the complex-to-complex Fourier transform over `dims`.

    `mode`: factor on the result, 0 for none, 1 for 1 / sqrt(n), 2 for 1 / n. `forward`: the sign of the exponent is
    negative.
    """
    sizes = whole_sizes([x.re.shape[d] for d in dims], "a Fourier transform")
    for dim, size in zip(dims, sizes):
        x = _transform(x, dim, size, forward)
    return _scaled(x, _norm(sizes, mode))


def fft_real(x: Tensor, dims: Sequence[int], mode: int, onesided: bool) -> Complex:
    """Return the real-to-complex Fourier transform over `dims`; `onesided` omits the redundant half of the last axis.

    `mode`: factor on the result, 0 for none, 1 for 1 / sqrt(n), 2 for 1 / n.
    """
    sizes = whole_sizes([x.shape[d] for d in dims], "a Fourier transform")
    last, size = dims[-1], sizes[-1]
    matrix = _matrix(size, size // 2 + 1 if onesided else size, True)
    out = Complex(*bilinear(lambda v, m: _along(v, m, last), (x, None), matrix))
    for dim, length in zip(dims[:-1], sizes):
        out = _transform(out, dim, length, True)
    return _scaled(out, _norm(sizes, mode))


def fft_to_real(x: Complex, dims: Sequence[int], mode: int, last_size: int) -> Tensor:
    """Return the inverse of a one-sided transform over `dims`, with `last_size` real values along the last axis.

    `mode`: factor on the result, 0 for none, 1 for 1 / sqrt(n), 2 for 1 / n.
    """
    sizes = whole_sizes([x.re.shape[d] for d in dims[:-1]], "a Fourier transform")
    for dim, size in zip(dims[:-1], sizes):
        x = _transform(x, dim, size, False)
    last, (have,) = dims[-1], whole_sizes((x.re.shape[dims[-1]],), "a Fourier transform")
    used = min(have, last_size // 2 + 1)
    _refuse_long(last_size)
    re, im = (
        _along(t.slice_axis(v, last, 0, used), matrix, last)
        for v, matrix in zip((x.re, x.im), real_inverse_roots(used, last_size))
    )
    out = re - im
    return out * _norm((*sizes, last_size), mode)


_MOVES = [
    "view",
    "reshape",
    "_unsafe_view",
    "view_copy",
    "_reshape_copy",
    "unsqueeze",
    "squeeze.default",
    "squeeze.dim",
    "squeeze.dims",
    "permute",
    "transpose.int",
    "t",
    "expand",
    "slice.Tensor",
    "select.int",
    "narrow",
    "split.Tensor",
    "split_with_sizes",
    "chunk",
    "unbind.int",
    "flatten.using_ints",
    "cat",
    "stack",
    "repeat",
    "repeat_interleave.self_int",
    "roll",
    "flip",
    "constant_pad_nd",
    "index_select",
    "gather",
    "index.Tensor",
    "slice_scatter",
    "select_scatter",
    "clone",
    "contiguous",
    "detach",
    "alias",
    "lift_fresh",
    "lift_fresh_copy",
    "neg",
    "sum",
    "sum.dim_IntList",
    "mean",
    "mean.dim",
    "cumsum",
]

#: Overloads that are linear or move data: their real builders are applied to both parts.
ALIKE = frozenset(name if "." in name else f"{name}.default" for name in _MOVES)

#: Overload -> builder, for overloads that create, consume or return complex values.
TABLE: dict[str, Callable[..., Any]] = {
    "view_as_complex.default": view_as_complex,
    "view_as_real.default": view_as_real,
    "polar.default": polar,
    "complex.default": _pair,
    "real.default": lambda x: x.re,
    "imag.default": lambda x: x.im,
    **{f"{name}.default": filled(value) for name, value in (("zeros", 0.0), ("ones", 1.0))},
    **{f"{name}_like.default": filled(value, True) for name, value in (("zeros", 0.0), ("ones", 1.0), ("empty", 0.0))},
    "copy.default": copied,
    "abs.default": absolute,
    "angle.default": lambda x: p.atan2(x.im, x.re),
    **dict.fromkeys(("_to_copy.default", "to.dtype", "to.dtype_layout"), to),
    **dict.fromkeys(("_conj.default", "conj.default", "conj_physical.default", "_conj_physical.default"), conjugate),
    **dict.fromkeys(("resolve_conj.default", "resolve_neg.default"), lambda x: x),
    **dict.fromkeys(("add.Tensor", "add.Scalar"), _add(1)),
    **dict.fromkeys(("sub.Tensor", "sub.Scalar"), _add(-1)),
    **dict.fromkeys(("mul.Tensor", "mul.Scalar"), multiply),
    **dict.fromkeys(("div.Tensor", "div.Scalar"), divide),
    **dict.fromkeys(("eq.Tensor", "eq.Scalar"), _equal),
    **dict.fromkeys(("mm.default", "bmm.default"), _product(t.matmul)),
    "matmul.default": _product(r.matmul),
    "reciprocal.default": lambda x: divide(1.0 + 0j, x),
    "exp.default": exponential,
    "_fft_r2c.default": fft_real,
    "_fft_c2c.default": fft_complex,
    "_fft_c2r.default": fft_to_real,
}

#: Overloads of `TABLE` whose operands are real tensors.
FROM_REAL = frozenset({"view_as_complex.default", "polar.default", "complex.default", "_fft_r2c.default"})

__all__ = ["ALIKE", "FROM_REAL", "PARTS", "TABLE", "Complex", "is_complex", "lifted", "on_both"]
