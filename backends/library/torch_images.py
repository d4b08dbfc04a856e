"""Declares Torch CPU kernels for convolutions and pooling, oneDNN convolutions with packed weights and fused epilogues
among them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel, identified, identify
from .torch_calls import (
    CONVOLUTIONS,
    GEOMETRY,
    SINGLE,
    channel_bias,
    channels_last,
    extents,
    filled,
    half_pads,
    is_weight_gradient,
    one_block,
    planar,
    pool_pads,
    relu_after,
    residual_fits_last,
    symmetric,
    weight_gradient_code,
)
from .torch_rows import one_float, row, usable_if


def _clearly_channels_last(call: Call) -> bool:
    """Whether x is unambiguously channels-last: no axis has size 1."""
    sizes = (*extents(call.operands["x"])[1:], *extents(call.output)[1:])
    return planar(call) and min(sizes) > 1 and one_block(call) and not call.operands["x"].dense


def _conv_code(bias: bool) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        n, a = call.names, call.attrs
        zeros = (0,) * len(a["strides"])
        return (
            f"torch.convolution({n['x']}, {n['w']}, {n['b'] if bias else None}, {a['strides']}, {half_pads(call)}, "
            f"{a['dilations']}, False, {zeros}, {a['groups']})"
        )

    identify(code, f"torch.conv[{bias}]")
    return code


@identified("torch._uneven_conv")
def _uneven_conv(call: Call) -> str:
    n, a = call.names, call.attrs
    return f"conv_uneven({n['x']}, {n['w']}, {a['strides']}, {a['pads']}, {a['dilations']}, {a['groups']})"


@identified("torch._conv_pack")
def _conv_pack(call: Call) -> str:
    a, w = call.attrs, call.names["w"]
    return (
        f"torch.ops.mkldnn._reorder_convolution_weight({w}, {half_pads(call)}, {a['strides']}, {a['dilations']}, "
        f"{a['groups']}, {call.packed_for('x')})"
    )


def _onednn_conv(bias: bool, act: str, algorithm: str, residual: bool, copied: bool) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        n, a = call.names, call.attrs
        geometry = f"{half_pads(call)}, {a['strides']}, {a['dilations']}, {a['groups']}"
        b = n["b"] if bias else None
        if residual:
            text = (
                f"torch.ops.mkldnn._convolution_pointwise.binary({n['x']}, {n['r']}, {n['w']}, {b}, {geometry}, 'add', 1.0, "
                "None, [], None)"
            )
        else:
            fused = "none" if act == "relu" else act
            text = (
                f"torch.ops.mkldnn._convolution_pointwise.default({n['x']}, {n['w']}, {b}, {geometry}, {fused!r}, [], "
                f"{algorithm!r})"
            )
        text = relu_after(text) if act == "relu" else text
        return f"{n['out']}.copy_({text})" if copied else text

    version = ",relu_after" if act == "relu" else ""
    identify(code, f"torch.onednn_conv[{bias},{act},{algorithm},{residual},{copied}{version}]")
    return code


def convolutions() -> list[LibraryKernel]:
    """Library kernels for convolutions that run Torch code on the CPU."""
    base = (symmetric, channel_bias)
    gradient = usable_if(one_float, is_weight_gradient)
    eager: dict[str, Any] = {"family": "conv", "dense": ("*",), "applies": usable_if(one_float, *base)}
    onednn: dict[str, Any] = {"family": "conv", "dense": ("w", "b"), "prep": {"w": _conv_pack}}
    rows = [
        row("weight_gradient", f"conv(x, w, {GEOMETRY})", weight_gradient_code, setup=("weight_gradient",), family="conv",
            applies=gradient),
    ]  # fmt: skip
    for suffix, pattern, bias in CONVOLUTIONS:
        rows.append(row(f"conv{suffix}", pattern, _conv_code(bias), **eager))
        if not bias:
            uneven = usable_if(one_float, lambda call: not symmetric(call))
            rows.append(
                row("conv_uneven", pattern, _uneven_conv, setup=("conv_uneven",), **{**eager, "applies": uneven})
            )
        spelled = {"{}": ("none", ""), "relu({})": ("relu", ""), "silu({})": ("swish", "")}
        for (epilogue, (act, algorithm)), copied in product(spelled.items(), (False, True)):
            name = "_" + epilogue.partition("(")[0] if act != "none" else ""
            style = {**onednn, "applies": usable_if(SINGLE, planar, one_block, filled, *base)}
            style |= {} if copied else {"layout": channels_last}
            rows.append(
                row(f"onednn_conv{suffix}{name}{'_rows' if copied else ''}", epilogue.format(pattern),
                    _onednn_conv(bias, act, algorithm, residual=False, copied=copied), **style)
            )  # fmt: skip
        for (form, side), (act, outer) in product(
            ((f"{pattern} + r", ""), (f"r + {pattern}" if not bias else f"r + ({pattern})", "_left")),
            (("none", "{}"), ("relu", "relu({})")),
        ):
            style = {
                **onednn,
                "applies": usable_if(SINGLE, planar, one_block, filled, residual_fits_last, *base),
                "layout": channels_last,
            }
            name = f"onednn_conv{suffix}_residual{side}{'_relu' if act == 'relu' else ''}"
            rows.append(
                row(name, outer.format(form), _onednn_conv(bias, act, "", residual=True, copied=False), **style)
            )
    return rows


def _pool_code(function: str, more: str) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        a = call.attrs
        return f"{function}({call.names['x']}, {a['kernel']}, {a['strides']}, {half_pads(call)}{more})"

    identify(code, f"torch.pool[{function}]")
    return code


def pools() -> list[LibraryKernel]:
    """Library kernels for pooling that run Torch code on the CPU."""
    attrs = "kernel=kernel, strides=strides, pads=pads, dilations=dilations"
    found = []
    for name, function, more in (
        ("max_pool", "torch.max_pool2d", ", 1, False"), ("avg_pool", "torch._C._nn.avg_pool2d", ", False, True")
    ):  # fmt: skip
        code, pattern = _pool_code(function, more), f"{name}(x, {attrs})"
        found += [
            row(name, pattern, code, family="reduction", dense=("x",), applies=usable_if(one_float, pool_pads)),
            row(f"{name}_channels_last", pattern, code, family="reduction", layout=channels_last,
                applies=usable_if(one_float, pool_pads, _clearly_channels_last)),
        ]  # fmt: skip
    return found
