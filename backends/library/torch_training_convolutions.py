"""Declares Torch kernels of the gradients of convolutions, for the CPU and for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel, identify
from ..ir.precision import LIBRARY_TF32, TF32
from .torch_calls import FLOATS, GEOMETRY, both, channels_last, dtypes_of, extents, filled, half_pads, symmetric
from .torch_rows import one_float
from .torch_training_rows import cpu_row, gpu_row

#: op -> (its two operands, index of its result among those of ATen's function)
_CONVOLUTIONS: dict[str, tuple[str, int]] = {"conv_input_gradient": ("gw", 0), "conv_weight_gradient": ("xg", 1)}


def _conv_gradient(helper: str, operands: str) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        names, a = ", ".join(call.names[o] for o in operands), call.attrs
        return f"{helper}({names}, {a['shape']}, {a['strides']}, {half_pads(call)}, {a['dilations']}, {a['groups']})"

    identify(code, f"torch.{helper}")
    return code


def cpu_convolutions() -> Iterator[LibraryKernel]:
    more: dict[str, Any] = {"family": "conv", "dense": ("*",), "applies": both(one_float, symmetric, filled)}
    for name, (operands, _) in _CONVOLUTIONS.items():
        pattern = f"{name}({', '.join(operands)}, shape=shape, {GEOMETRY})"
        yield cpu_row(name, pattern, _conv_gradient(name, operands), setup=(name, "never_read"), **more)


def _images(call: Call) -> tuple[str, str]:
    """Names of the two image tensors of a convolution's gradient; its third tensor is the weight, or the gradient of
    the weight."""
    return ("g", "out") if "w" in call.operands else ("x", "g")


def _images_alike(call: Call) -> bool:
    """Condition on calls: images have one float dtype. The weight, or its gradient, may have another one, as that of a
    1x1 convolution has, whose rows are one element long."""
    return len({call.buffers[n].type.dtype for n in _images(call)}) == 1 and dtypes_of(call) <= set(FLOATS)


def _one_clear_layout(call: Call) -> bool:
    """Condition on calls: images have two spatial axes, and no axis has size 1, so that channels-last is unambiguous;
    cuDNN has no float64 in this layout."""
    shapes = [extents(call.buffers[n]) for n in _images(call)]
    return all(len(s) == 4 and min(s[1:]) > 1 for s in shapes) and "float64" not in dtypes_of(call)


def _gpu_conv_gradient(name: str, last: bool, tuned: bool, tf32: bool) -> Callable[[Call], str]:
    operands, index = _CONVOLUTIONS[name]

    def code(call: Call) -> str:
        g, other = call.names["g"], call.names[operands.replace("g", "")]
        a, kind = call.attrs, call.output.type.dtype
        geometry = f"{a['shape']}, {a['strides']}, {half_pads(call)}, {a['dilations']}, {a['groups']}"
        made = f"cudnn_conv_gradient({index}, {g}, {other}, {geometry}, {last}, {tuned}, {tf32})"
        return made if kind == call.operands["g"].type.dtype else f"{made}.to(torch.{kind})"

    identify(code, f"torch_cuda.conv_gradient[{name},{last},{tuned},{tf32}]")
    return code


def gpu_convolutions() -> Iterator[LibraryKernel]:
    for (name, (operands, index)), (last, tuned, tf32) in product(
        _CONVOLUTIONS.items(), product((False, True), repeat=3)
    ):
        style: dict[str, Any] = {"dense": ("*",)}
        if last:
            style = {"dense": ("w",), "layout": channels_last} if index == 0 else {}
        if tf32:
            style |= {"loss": LIBRARY_TF32, "rate": TF32.rate}
        fits = both(_images_alike, symmetric, filled, _one_clear_layout if last else None, _single if tf32 else None)
        yield gpu_row(
            f"{name}{'_last' * last}{'_tuned' * tuned}{'_tf32' * tf32}",
            f"{name}({', '.join(operands)}, shape=shape, {GEOMETRY})", _gpu_conv_gradient(name, last, tuned, tf32),
            setup=("cudnn_conv_gradient",), family="conv", applies=fits, searches=tuned, **style,
        )  # fmt: skip


def _single(call: Call) -> bool:
    """Condition on calls: all values are float32."""
    return dtypes_of(call) == {"float32"}
