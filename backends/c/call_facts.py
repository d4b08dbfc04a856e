"""Sizes, conditions and names that several C library kernels read from a call: images, windows, pads, endings."""

from __future__ import annotations

from math import prod

from ...extract.model.kernel import Call, Operand
from ..library.torch_calls import extents, is_channels_last

LARGEST = 1 << 31  # elements of an operand that 32-bit sizes can describe

SIDES = {"": "{}", "_residual": "{} + r", "_residual_left": "r + {}"}
"""Suffix of a kernel's name -> pattern of a residual that is added before the activation."""


# ---------------------------------------------------------------- sizes
def image(operand: Operand) -> tuple[int, int, int, int]:
    """(batch, channels, height, width) of an image; a line of values has height 1."""
    n, c, *space = extents(operand)
    h, w = (1, *space)[-2:]
    return n, c, h, w


def pair(call: Call, attr: str) -> tuple[int, int]:
    """(vertical, horizontal) stride or dilation; 1 along the height of a line of values."""
    down, across = (1, *call.attrs[attr])[-2:]
    return down, across


def window_of(call: Call) -> tuple[int, int]:
    """(height, width) of a convolution's window."""
    height, width = (1, *extents(call.operands["w"])[2:])[-2:]
    return height, width


def pads_before(call: Call) -> tuple[int, int]:
    """(rows above, columns before) the image."""
    pads = call.attrs["pads"]
    return (0, pads[0]) if len(pads) == 2 else (pads[0], pads[1])


def channels_last_x(call: Call) -> bool:
    """Whether the image `x` of a convolution's call lies in memory with its channels innermost (NHWC)."""
    return is_channels_last(call.operands["x"])


def few_elements(call: Call) -> bool:
    """Condition on calls: sizes fit into 32 bits."""
    return all(prod(map(int, extents(o))) < LARGEST for o in call.buffers.values())


def ending(spelled: str) -> str:
    """Suffix of a kernel's name for an activation pattern."""
    return "" if spelled == "{}" else f"_{spelled.partition('(')[0]}"
