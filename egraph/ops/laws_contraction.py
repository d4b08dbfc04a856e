"""Holds type laws (rules for a result's shape and dtype) of matrix products, convolutions and pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...errors import ShapeError
from ..types.dims import Dim
from .law_text import (
    BYTES,
    D0,
    DTYPE_ID,
    S0,
    S1,
    Cases,
    LawCase,
    broadcast,
    has_rank,
    same_dtype,
    vec_get,
    vec_of,
    vec_set,
)
from .ops import Attrs, Op, Type


def matmul(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type: contracts a's last axis with b's second-last; b has a's rank (leading sizes broadcast) or rank 2.

    Raises ShapeError if the operands do not fit.
    """
    a, b = types
    if a.rank < 2 or b.rank not in (2, a.rank):
        raise ShapeError("matmul needs operands of rank >= 2, the second of equal rank or of rank 2")
    if a.shape[-1] != b.shape[-2]:
        sizes = a.shape[-1], b.shape[-2]
        raise ShapeError(f"contracted sizes differ: {sizes[0]} and {sizes[1]}", sizes=sizes)
    batch = a.shape[:-2] if b.rank == 2 else broadcast(a.shape[:-2], b.shape[:-2])
    return Type((*batch, a.shape[-2], b.shape[-1]), same_dtype(types))


def matmul_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `matmul` as egglog text: one case for a second operand of rank 2, and one for each of `ranks`
    (operand ranks that may occur) from 3."""
    last = f"(- (vec-length {S0}) 1)"
    yield LawCase(vec_set(S0, last, vec_get(S1, 1)), D0, (has_rank(S1, 2),))
    for r in ranks:
        if r >= 3:
            batch = [f"(max {vec_get(S0, i)} {vec_get(S1, i)})" for i in range(r - 2)]
            yield LawCase(
                vec_of([*batch, vec_get(S0, r - 2), vec_get(S1, r - 1)]), D0, (has_rank(S0, r), has_rank(S1, r))
            )


LONGEST_STEP = 1 << 31  # strides and dilations are below this, so that offsets in memory fit 64 bits


def conv_size(size: Dim, kernel: Dim, stride: int, lo: int, hi: int, dilation: int) -> Dim:
    """Number of window positions along one axis (convolution arithmetic), padded by `lo` and `hi` elements.

    Raises ShapeError for a stride, dilation or window below 1 or of at least LONGEST_STEP, for negative padding, and
    for a window that does not fit.
    """
    sizes = {"stride": stride, "dilation": dilation, "window": kernel}
    for name, value in sizes.items():
        if isinstance(value, int) and not 1 <= value < LONGEST_STEP:
            raise ShapeError(f"a {name} of {value} is not between 1 and {LONGEST_STEP - 1}")
    if lo < 0 or hi < 0:
        raise ShapeError(f"negative padding {lo}, {hi}", hint="slice instead")
    found = (size + lo + hi - dilation * (kernel - 1) - 1) // stride + 1
    if isinstance(found, int) and found <= 0:
        raise ShapeError(f"a window of {kernel} (dilation {dilation}) does not fit into {size} + {lo} + {hi}")
    return found


def conv(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of x[N, C, *S] with w[O, C/groups, *K]; pads = all low sides, then all high sides.

    Raises ShapeError if the operands do not fit.
    """
    x, w = types
    n = x.rank - 2
    if n < 1 or w.rank != x.rank:
        raise ShapeError("conv needs x[N, C, ...] and w[O, C/groups, ...] of equal rank >= 3")
    groups, pads = attrs["groups"], attrs["pads"]
    if len(attrs["strides"]) != n or len(attrs["dilations"]) != n or len(pads) != 2 * n:
        raise ShapeError(f"strides, dilations and pads do not match {n} spatial axes")
    if groups < 1 or x.shape[1] != w.shape[1] * groups or (isinstance(w.shape[0], int) and w.shape[0] % groups):
        raise ShapeError(f"channels {x.shape[1]} and weight {w.shape} do not match groups={groups}")
    space = [
        conv_size(x.shape[2 + i], w.shape[2 + i], attrs["strides"][i], pads[i], pads[n + i], attrs["dilations"][i])
        for i in range(n)
    ]
    return Type((x.shape[0], w.shape[0], *space), same_dtype(types))


def window_text(size: str, kernel: str, stride: str, lo: str, hi: str, dilation: str) -> str:
    """Egglog text of the number of window positions along one axis.

    All arguments are egglog texts: the axis's size, the window's size (`kernel`) and stride, the padding before and
    after (`lo`, `hi`), the dilation.
    """
    return f"(+ (/ (- (+ {size} (+ {lo} {hi})) (+ (* {dilation} (- {kernel} 1)) 1)) {stride}) 1)"


def _windowed(spatial: int, kernel: Callable[[int], str]) -> list[str]:
    return [
        window_text(
            vec_get(S0, 2 + i),
            kernel(i),
            vec_get("a_strides", i),
            vec_get("a_pads", i),
            vec_get("a_pads", spatial + i),
            vec_get("a_dilations", i),
        )
        for i in range(spatial)
    ]


def conv_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `conv` as egglog text: one case for each of `ranks` (operand ranks that may occur) from 3."""
    for r in ranks:
        if r >= 3:
            space = _windowed(r - 2, lambda i: vec_get(S1, 2 + i))
            yield LawCase(vec_of([vec_get(S0, 0), vec_get(S1, 0), *space]), D0, (has_rank(S0, r),))


def integer_conv(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of a convolution of bytes, with zero points: one of x, and one of w or one for each output channel.

    Raises ShapeError if the operands do not fit.
    """
    x, w, x_zero, w_zero = types
    if any(t.dtype not in BYTES for t in types) or (x.dtype, w.dtype) != (x_zero.dtype, w_zero.dtype):
        raise ShapeError("integer_conv needs operands of 8 bits, and zero points of their dtypes")
    if x_zero.shape != (1,) * x.rank or w_zero.shape not in ((1,) * w.rank, (w.shape[0], *(1,) * (w.rank - 1))):
        raise ShapeError(f"zero points {x_zero} of {x}, {w_zero} of {w}")
    return conv(op, (Type(x.shape, "int32"), Type(w.shape, "int32")), attrs)


def integer_conv_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `integer_conv` as egglog text: the cases of `conv_text`, with results of int32."""
    for case in conv_text(op, ranks):
        yield case._replace(dtype=str(DTYPE_ID["int32"]))


def integer_matmul(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of a product of matrices of bytes, with zero points: one of x, and one of w or one for each column.

    Raises ShapeError if the operands do not fit.
    """
    x, w, x_zero, w_zero = types
    if any(t.dtype not in BYTES for t in types) or (x.dtype, w.dtype) != (x_zero.dtype, w_zero.dtype):
        raise ShapeError("integer_matmul needs operands of 8 bits, and zero points of their dtypes")
    found = matmul(op, (Type(x.shape, "int32"), Type(w.shape, "int32")), attrs)
    if x_zero.shape != (1,) * x.rank or w_zero.shape not in ((1,) * w.rank, (*(1,) * (w.rank - 1), w.shape[-1])):
        raise ShapeError(f"zero points {x_zero} of {x}, {w_zero} of {w}")
    return found


def integer_matmul_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `integer_matmul` as egglog text: the cases of `matmul_text`, with results of int32."""
    for case in matmul_text(op, ranks):
        yield case._replace(dtype=str(DTYPE_ID["int32"]))


def pool(op: Op, types: tuple[Type, ...], attrs: Attrs) -> Type:
    """Result type of x[N, C, *S] with a window of `kernel` sizes; pads = all low sides, then all high sides.

    Raises ShapeError if the operands do not fit.
    """
    x, kernel, pads = types[0], attrs["kernel"], attrs["pads"]
    n = len(kernel)
    if x.rank != n + 2 or len(attrs["strides"]) != n or len(attrs["dilations"]) != n or len(pads) != 2 * n:
        raise ShapeError(f"kernel {kernel}, strides, dilations and pads do not match {x}")
    space = [
        conv_size(x.shape[2 + i], kernel[i], attrs["strides"][i], pads[i], pads[n + i], attrs["dilations"][i])
        for i in range(n)
    ]
    return Type((*x.shape[:2], *space), x.dtype)


def pool_text(op: Op, ranks: Sequence[int]) -> Cases:
    """Yields the type law `pool` as egglog text: one case for each of `ranks` (operand ranks that may occur) from 3."""
    for r in ranks:
        if r >= 3:
            space = _windowed(r - 2, lambda i: vec_get("a_kernel", i))
            yield LawCase(vec_of([vec_get(S0, 0), vec_get(S0, 1), *space]), D0, (has_rank(S0, r),))


__all__ = [
    "LONGEST_STEP",
    "conv",
    "conv_size",
    "conv_text",
    "integer_conv",
    "integer_conv_text",
    "integer_matmul",
    "integer_matmul_text",
    "matmul",
    "matmul_text",
    "pool",
    "pool_text",
    "window_text",
]
