"""Functions that translate ONNX GridSample and Col2Im."""

from __future__ import annotations

from math import prod

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...errors import ShapeError
from ..common.sampling import grid_sample, whole_sizes
from .node import Node, Result, operator

#: Mode names before and since opset 20 -> interpolation mode.
_MODES = {
    "bilinear": "linear", "linear": "linear", "nearest": "nearest", "bicubic": "cubic", "cubic": "cubic",
}  # fmt: skip


@operator("GridSample")
def _grid_sample(n: Node) -> Result:
    mode = n.choice("mode", "linear", *_MODES)
    padding = n.choice("padding_mode", "zeros", "border", "reflection")
    align = bool(n.attr("align_corners", 0))
    return grid_sample(n.x(0), n.x(1), _MODES[mode], padding, align, rounded_first=True)


@operator("Col2Im")
def _col2im(n: Node) -> Result:
    """Lower Col2Im: sum the columns x[N, C prod(block), L] at their source positions in an image [N, C, *image]."""
    x, image, block = n.x(), n.ints(1), n.ints(2)
    count = len(image)
    strides, dilations = (n.attr(name) or [1] * count for name in ("strides", "dilations"))
    pads = n.attr("pads") or [0] * (2 * count)
    room = [image[i] + pads[i] + pads[count + i] for i in range(count)]
    starts = [
        np.arange(0, room[i] - dilations[i] * (block[i] - 1), strides[i]) for i in range(count)
    ]  # window starts along each axis
    batch, columns, windows = whole_sizes(x.shape, "Col2Im")
    if windows != prod(map(len, starts)) or columns % prod(block):
        raise ShapeError(f"columns {list(x.shape)} do not fit the image {list(image)} and blocks {list(block)}")
    inside = np.meshgrid(*(np.arange(b) * d for b, d in zip(block, dilations)), indexing="ij")
    outside = np.meshgrid(*starts, indexing="ij")
    place = np.zeros((prod(block), windows), np.int64)
    for size, near, far in zip(room, inside, outside):
        place = place * size + near.reshape(-1, 1) + far.reshape(1, -1)
    channels = columns // prod(block)
    flat = t.reshape(x, (batch, channels, prod(block) * windows))
    index = t.broadcast_to(t.reshape(t.constant(place), (1, 1, -1)), flat.shape)
    out: Tensor = t.scatter_elements(t.zeros((batch, channels, prod(room)), x.dtype), index, flat, 2, "add")
    out = t.reshape(out, (batch, channels, *room))
    for i in range(count):
        out = t.slice_axis(out, 2 + i, pads[i], pads[i] + image[i])
    return out
