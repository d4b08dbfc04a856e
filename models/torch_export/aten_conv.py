"""Functions that build the graph of ATen convolution and bilinear overloads. They take the arguments of the ATen
schema."""

from __future__ import annotations

from collections.abc import Sequence

from ...egraph.builders import builders as t
from ...egraph.builders.contraction_builders import transposed_conv
from ...egraph.ir.tensor import Tensor
from ...egraph.types.dims import volume
from .aten_layout import constant_pad
from .aten_reduce import linear, refuse_free

Ints = int | Sequence[int]


def each(value: Ints, n: int) -> tuple[int, ...]:
    """One number for each of n axes, from a number for all of them or a list."""
    found = (value,) if isinstance(value, int) else tuple(value)
    return found * n if len(found) == 1 else found


def convolution(
    x: Tensor, w: Tensor, b: Tensor | None, stride: Ints, padding: Ints, dilation: Ints, transposed: bool = False,
    output_padding: Ints = 0, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolution of x[N, C, *S] or x[C, *S] with w[O, C / groups, *K], or transposed convolution (`transposed`) with
    w[C, O / groups, *K]."""
    n = w.rank - 2
    if x.rank == n + 1:
        return t.squeeze(convolution(t.expand_dims(x, 0), w, b, stride, padding, dilation, transposed, output_padding,
                                     groups), 0)  # fmt: skip
    strides, pads, dilations = each(stride, n), each(padding, n), each(dilation, n)
    if transposed:
        for size in w.shape[2:]:
            refuse_free(size, "a kernel size")
        high = [cut - more for cut, more in zip(pads, each(output_padding, n))]
        return transposed_conv(x, w, b, strides, pads, high, dilations, groups)
    return t.conv(x, w, b, strides=strides, pads=(*pads, *pads), dilations=dilations, groups=groups)


def conv(
    x: Tensor, w: Tensor, b: Tensor | None = None, stride: Ints = 1, padding: Ints | str = 0, dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:  # fmt: skip
    """Convolution of x[N, C, *S] or x[C, *S] with w[O, C / groups, *K].

    `padding` may be text: "valid" pads nothing, "same" keeps the sizes (odd excess at the high end).
    """
    if not isinstance(padding, str):
        return convolution(x, w, b, stride, padding, dilation, groups=groups)
    n = w.rank - 2
    if padding == "same":
        whole = [d * (refuse_free(w.shape[2 + i], "a kernel size") - 1) for i, d in enumerate(each(dilation, n))]
        x = constant_pad(x, [v for total in reversed(whole) for v in (total // 2, total - total // 2)])
    return convolution(x, w, b, stride, 0, dilation, groups=groups)


def conv_transpose(
    x: Tensor, w: Tensor, b: Tensor | None = None, stride: Ints = 1, padding: Ints = 0, output_padding: Ints = 0,
    groups: int = 1, dilation: Ints = 1,
) -> Tensor:  # fmt: skip
    """Transposed convolution of x[N, C, *S] or x[C, *S] with w[C, O / groups, *K]."""
    return convolution(x, w, b, stride, padding, dilation, True, output_padding, groups)


def bilinear(x: Tensor, y: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """Bilinear layer: sum_ij x[..., i] w[o, i, j] y[..., j] + b[o]."""
    rows, columns = w.shape[1:]
    pairs = t.expand_dims(x, x.rank) * t.expand_dims(y, y.rank - 1)
    flat = t.reshape(pairs, (*x.shape[:-1], volume((rows, columns))))
    return linear(flat, t.reshape(w, (w.shape[0], volume((rows, columns)))), b)
