"""Conditions on calls under which the convolutions and poolings in C support the operands' sizes and layouts."""

from __future__ import annotations

from math import prod

from ...extract.model.kernel import Call
from ..library.torch_calls import extents, planar
from .call_facts import LARGEST, channels_last_x, pair
from .tiled_products import FEW_CHANNELS, MAX_TAPS, PANEL

LEAST_IN_GROUP = 4  # output channels of a group from which a vector of 16 is worth computing


def has_one_or_two_axes(call: Call) -> bool:
    """Condition on calls: images have one or two spatial axes."""
    return call.operands["x"].type.rank in (3, 4)


def has_contiguous_channels(call: Call) -> bool:
    """Whether the channels of a pixel of x are neighbours in memory: x is channels-last, or some of the channels of a
    channels-last image."""
    x = call.operands["x"]
    return x.strides[1] == 1 and min(x.strides) >= 0 and max(x.strides) < LARGEST


def is_copied(call: Call) -> bool:
    """Whether x is copied with its padding: it has few channels."""
    return int(call.attrs["groups"]) == 1 and extents(call.operands["x"])[1] < FEW_CHANNELS


def is_direct(call: Call) -> bool:
    """Condition on calls: the direct convolution supports the operands' sizes and layouts."""
    k, c, *window = extents(call.operands["w"])
    groups = int(call.attrs["groups"])
    if not all(isinstance(d, int) for d in (k, c, *window)) or prod(window) > MAX_TAPS:
        return False
    if is_copied(call):
        return pair(call, "dilations")[1] == 1 and min(call.operands["x"].strides) >= 0
    wide = groups == 1 or (min(c, k // groups) >= PANEL and not is_grouped(call))
    return (channels_last_x(call) or has_contiguous_channels(call)) and wide


def is_grouped(call: Call) -> bool:
    """Condition on calls: several groups of 2 to 16 channels of results, which read more than one channel each."""
    k, own, *window = extents(call.operands["w"])
    groups = int(call.attrs["groups"])
    if not all(isinstance(d, int) for d in (k, own, *window)) or prod(window) > MAX_TAPS or groups == 1:
        return False
    return own > 1 and LEAST_IN_GROUP <= k // groups <= PANEL and channels_last_x(call)


def is_winograd(call: Call) -> bool:
    """Condition on calls: Winograd's convolution supports the filter, its attributes, sizes and layouts."""
    k, c, *window = extents(call.operands["w"])
    a = call.attrs
    return (
        window == [3, 3]
        and a["groups"] == 1
        and {*a["strides"], *a["dilations"]} == {1}
        and k % PANEL == c % PANEL == 0
        and channels_last_x(call)
    )


def is_depthwise(call: Call) -> bool:
    """Condition on calls of the depthwise convolution: one output channel for each input channel."""
    k, c, *window = extents(call.operands["w"])
    whole = all(isinstance(d, int) for d in (k, *window))
    return whole and c == 1 and k == call.attrs["groups"] and prod(window) <= MAX_TAPS and channels_last_x(call)


def is_pool(call: Call) -> bool:
    """Condition on calls of pooling: two window axes of few elements in all, channels-last images of known channels,
    and each window begins inside of the image."""
    a = call.attrs
    fits = len(a["kernel"]) == 2 and prod(a["kernel"]) <= MAX_TAPS and isinstance(extents(call.operands["x"])[1], int)
    inside = all(p < (k - 1) * d + 1 for p, k, d in zip(a["pads"], (*a["kernel"],) * 2, (*a["dilations"],) * 2))
    return fits and inside and planar(call) and channels_last_x(call)


__all__ = ["has_one_or_two_axes", "is_copied", "is_depthwise", "is_direct", "is_grouped", "is_pool", "is_winograd"]
