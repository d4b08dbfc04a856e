"""Declares Torch GPU convolutions and pools: cuDNN in both layouts, in TF32 where the tolerance allows it, and
compositions of several Torch calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...egraph.types import dtypes
from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel, code_identity, identified, identify
from ..ir.precision import LIBRARY_TF32, TF32
from .numpy_rows import spell
from .torch_calls import (
    CONVOLUTIONS,
    GEOMETRY,
    Applies,
    both,
    channel_bias,
    channels_last,
    extents,
    half_pads,
    one_block,
    planar,
    pool_pads,
    residual_fits_last,
    symmetric,
)
from .torch_cuda_rows import FLOAT, floats, row, single, uniform


def _conv_code(tuned: bool, bias: bool, tf32: bool = False) -> Callable[[Call], str]:
    """Code of cuDNN's convolution.

    `tuned`: cuDNN benchmarks its algorithms in the first call. `bias`: adds a bias. `tf32`: rounds float32 operands
    to TF32, which cuDNN otherwise must not do.
    """

    def code(call: Call) -> str:
        n, a = call.names, call.attrs
        zeros = (0,) * len(a["strides"])
        geometry = f"{a['strides']}, {half_pads(call)}, {a['dilations']}, False, {zeros}, {a['groups']}"
        return f"torch._convolution({_image(call)}, {n['w']}, {n['b'] if bias else None}, {geometry}, {tuned}, False, True, {tf32})"

    identify(code, f"torch_cuda_images.cuda_conv[{tuned},{bias}{',tf32' if tf32 else ''}]")
    return code


def _image(call: Call) -> str:
    """Source of the image, converted to channels-last if the result is channels-last."""
    x = call.names["x"]
    return x if call.output.dense else f"{x}.contiguous(memory_format=torch.channels_last)"


def _clear(call: Call) -> bool:
    """Whether a channels-last layout is unambiguous (no axis of size 1) and cuDNN supports it (not for float64)."""
    return "float64" not in floats(call) and min(*extents(call.operands["x"])[1:], *extents(call.output)[1:]) > 1


def _fused_conv(residual: bool) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        n, a = call.names, call.attrs
        geometry = f"{a['strides']}, {half_pads(call)}, {a['dilations']}, {a['groups']}"
        if residual:
            return f"torch.cudnn_convolution_add_relu({_image(call)}, {n['w']}, {n['r']}, 1.0, {n['b']}, {geometry})"
        return f"torch.cudnn_convolution_relu({_image(call)}, {n['w']}, {n['b']}, {geometry})"

    identify(code, f"torch_cuda_images.fused_conv[{residual}]")
    return code


def _all_but_weight(condition: Applies) -> Applies:
    """Condition on calls: all floats but the weight have one dtype, to which the weight is cast at load time, and
    `condition` holds. (The storage dtype of 1x1 convolution weights is float32, because their rows are one element
    long.)"""

    def fits(call: Call) -> bool:
        others = {n: o for n, o in call.operands.items() if n != "w"}
        return uniform(replace(call, operands=others)) and condition(call)

    return fits


def _weight_as(text: str) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        return text.format(w=call.names["w"], x=f"torch.{call.operands['x'].type.dtype}")

    identify(code, f"torch_cuda_images.weight[{text}]")
    return code


def _live(code: Callable[[Call], str], last: bool) -> Callable[[Call], str]:
    """The code of a convolution whose weight changes between calls: each call converts it to the image's dtype, and
    with `last` to channels-last."""

    def written(call: Call) -> str:
        w, dtype = call.names["w"], f"torch.{call.operands['x'].type.dtype}"
        text = f"channels_innermost({w}, {dtype})" if last else f"{w}.to({dtype})"
        return code(replace(call, names={**call.names, "w": text}))

    return identify(written, f"torch_cuda_images.live[{code_identity(code)},{last}]")


def convolutions() -> list[LibraryKernel]:
    """Library kernels for convolutions that run Torch code on the GPU."""
    base = both(FLOAT, symmetric, channel_bias)
    dense: dict[str, Any] = {"family": "conv", "dense": ("*",), "applies": base}
    weights: dict[str, Any] = {**dense, "prep": {"w": _weight_as("{w}.to({x})")}, "applies": _all_but_weight(base)}
    weights |= {"mixed": True}
    last: dict[str, Any] = {
        **weights, "prep": {"w": _weight_as("channels_innermost({w}, {x})")}, "setup": ("channels_innermost",),
        "dense": ("w", "b"), "layout": channels_last,
        "applies": both(weights["applies"], planar, one_block, _clear),
    }  # fmt: skip
    found = [
        row("conv_uneven", f"conv(x, w, {GEOMETRY})", _uneven_conv, setup=("padded_conv",), family="conv", dense=("*",),
            applies=both(FLOAT, lambda call: not symmetric(call))),
    ]  # fmt: skip
    for suffix, pattern, bias in CONVOLUTIONS:
        for tuned in (False, True):
            how = "_tuned" if tuned else ""
            first = len(found)
            found.append(row(f"conv{suffix}{how}", pattern, _conv_code(tuned, bias), **dense))
            narrowing = {**weights, "applies": both(weights["applies"], lambda c: not uniform(c))}
            live, live_last = ({**style, "prep": {}, "when": ("active(w)",)} for style in (narrowing, last))
            found.append(row(f"conv{suffix}_live{how}", pattern, _live(_conv_code(tuned, bias), last=False), **live))
            found.append(
                row(f"conv{suffix}_last_live{how}", pattern, _live(_conv_code(tuned, bias), last=True), **live_last)
            )
            found.append(row(f"conv{suffix}_weights{how}", pattern, _conv_code(tuned, bias), **narrowing))
            found.append(row(f"conv{suffix}_last{how}", pattern, _conv_code(tuned, bias), **last))
            for order, style in (("", dense), ("_last", last)):
                rounding = {**style, "applies": both(style["applies"], single), "loss": LIBRARY_TF32, "rate": TF32.rate}
                found.append(
                    row(f"conv{suffix}{order}{how}_tf32", pattern, _conv_code(tuned, bias, tf32=True), **rounding)
                )
            found[first:] = [replace(made, searches=tuned) for made in found[first:]]
        if bias:
            fused = {**last, "applies": both(last["applies"], lambda c: c.output.type.dtype in dtypes.HALVES)}
            found.append(row("conv_bias_relu_last", f"relu({pattern})", _fused_conv(residual=False), **fused))
            for side, form in (("", f"{pattern} + r"), ("_left", f"r + ({pattern})")):
                style = {**fused, "applies": both(fused["applies"], residual_fits_last)}
                found.append(
                    row(f"conv_bias_residual{side}_relu_last", f"relu({form})", _fused_conv(residual=True), **style)
                )
    return found


@identified("torch_cuda_images._uneven_conv")
def _uneven_conv(call: Call) -> str:
    n, a = call.names, call.attrs
    return f"padded_conv({n['x']}, {n['w']}, {a['strides']}, {a['pads']}, {a['dilations']}, {a['groups']})"


def pools() -> list[LibraryKernel]:
    """Library kernels for pools that are composed of several Torch calls on the GPU, since Torch has no kernel for
    them."""
    attrs = "kernel=kernel, strides=strides, pads=pads, dilations=dilations"
    windows = "pooled({x}, {kernel}, {strides}, {pads}, {dilations}, "

    def last_axes(call: Call) -> str:
        n = len(call.attrs["kernel"])
        return repr(tuple(range(-n, 0)))

    general: dict[str, Any] = {
        "family": "reduction", "setup": ("pooled",), "applies": both(FLOAT, lambda call: not pool_pads(call)),
    }  # fmt: skip
    return [
        row("max_pool_any", f"max_pool(x, {attrs})", spell("torch.amax(" + windows + "-torch.inf), {axes}, out={out})",
            axes=last_axes), **general),
        row("avg_pool_any", f"avg_pool(x, {attrs})", spell("torch.mean(" + windows + "0), {axes}, out={out})", axes=last_axes),
            **general),
    ]  # fmt: skip
