"""Declares Torch kernels of training steps, for the CPU and for GPUs side by side: ATen's functions of the gradients
that eager PyTorch computes, and norms, pooling and attention with the statistics that their gradients read.

Kernels with several results return new tensors, so that nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import prod
from typing import Any

from ...egraph.types import dtypes
from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel, identified, identify
from ..ir.source_text import literal
from .numpy_rows import spell
from .torch_calls import (
    FLOATS,
    Applies,
    both,
    channels_last,
    extents,
    filled,
    half_pads,
    is_channels_last,
    symmetric,
)
from .torch_rows import one_float
from .torch_training_attention import cpu_attentions, gpu_attentions
from .torch_training_convolutions import cpu_convolutions, gpu_convolutions
from .torch_training_rows import Row, all_float, cpu_row, gpu_row

RANKS = (2, 3, 4, 5)  # of operands of norms


def _kinds(call: Call, names: str) -> set[str]:
    """The dtypes of a call's operands and results called `names` (separated by spaces); absent ones are left out."""
    return {call.buffers[n].type.dtype for n in names.split() if n in call.buffers}


def _norm_gradient(function: str, wide: bool, shape: Callable[[Call], str] | None = None) -> Callable[[Call], str]:
    """Make the code of a norm's gradient by the helper `function`. `shape`: source of the shape of the gradients of
    gain and shift, where they are wanted. With `wide`, 16-bit operands beside float32 are widened; results are rounded
    to their dtypes where these are others than ATen's."""

    def code(call: Call) -> str:
        kinds = {n: call.operands[n].type.dtype for n in "gxw"}
        mixed = wide and len({*kinds.values()}) > 1
        given = ", ".join(
            f"{call.names[n]}.float()" if mixed and kinds.get(n) in dtypes.HALVES else call.names[n] for n in "gxwmr"
        )
        text = f"{function}({given}, {'None' if shape is None else shape(call)})"
        natural = ["float32"] * 3 if mixed else [kinds["x"], kinds["w"], kinds["w"]]
        wanted = [o.type.dtype for o in call.outputs]
        if wanted == natural[: len(wanted)]:
            return text
        return f"rounded({text}, {', '.join(f'torch.{kind}' for kind in wanted)})"

    return identify(code, f"torch.norm_gradient[{function},{wide},{shape is not None}]")


def accumulated(values: str, lines: str, statistics: str, results: str = "") -> Applies:
    """Make the condition on calls of a norm on a GPU, about dtypes of operands and results (names, separated by
    spaces): `values` have one float dtype, or with `lines` being "" any of float32 and 16-bit floats; `lines` (gain,
    shift) have this dtype or float32; `statistics` are float32, or float64 if the values are; `results` are no
    wider."""

    def condition(call: Call) -> bool:
        kinds, beside = _kinds(call, values), _kinds(call, lines)
        if kinds == {"float64"}:
            return beside | _kinds(call, statistics) | _kinds(call, results) <= kinds
        narrow = {"float32", *dtypes.HALVES}
        alike = len(kinds) == 1 and beside <= {*kinds, "float32"} if lines else kinds <= narrow
        return alike and kinds <= narrow and _kinds(call, results) <= narrow and _kinds(call, statistics) <= {"float32"}

    return condition


# ---------------------------------------------------------------- norms
def _vector(name: str, rank: int) -> str:
    """Pattern of a vector along the channels, as a tensor of a rank."""
    return f"reshape({name}, shape=(1, size(x, 1), {', '.join('1' * (rank - 2))}))".replace(", )", ",)")


def _shape_of(result: int) -> Callable[[Call], str]:
    """Make the function that gives the shape of a call's further result number `result` as source."""
    return lambda call: literal(extents(call.more[result]))


@identified("torch.norm_with_statistics")
def _norm_with_statistics(call: Call) -> str:
    n, kinds = call.names, [o.type.dtype for o in call.outputs]
    text = (
        f"torch.ops.aten.native_layer_norm({n['x']}, {n['g']}.shape, {n['g']}, {n['b']}, {literal(call.attrs['eps'])})"
    )
    narrower = kinds[0] != call.operands["x"].type.dtype
    return f"rounded({text}, {', '.join(f'torch.{kind}' for kind in kinds)})" if narrower else text


def _norms(row: Row, forward: Applies, backward: Applies) -> Iterator[LibraryKernel]:
    """Layer norms; `forward`, `backward`: conditions on dtypes of norms with statistics, and of gradients."""
    more: dict[str, Any] = {"family": "reduction", "dense": ("*",)}
    last = "(rank(x) - 1,)"
    centred = f"(x - mean(x, axes={last}))"
    deviation = (
        f"rsqrt(mean({centred} * {centred}, axes={last}) + full(value=eps, shape=ones(rank(x)), dtype=dtype(x)))"
    )
    yield row(
        "norm_with_statistics", f"layer_norm(x, g, b, eps=eps); mean(x, axes={last}); {deviation}",
        _norm_with_statistics, setup=("rounded",), applies=both(forward, filled), **more,
    )  # fmt: skip
    more |= {"setup": ("layer_norm_gradient", "rounded"), "applies": both(backward, filled)}
    gradient, function = "layer_norm_gradient(x, g, w, m, r)", "layer_norm_gradient"
    yield row("layer_norm_gradient", gradient, _norm_gradient(function, True), **more)
    for rank in RANKS:
        axes = repr(tuple(range(rank - 1)))
        yield row(
            f"layer_norm_gradients{rank}", f"{gradient}; sum(g * ((x - m) * r), axes={axes}); sum(g, axes={axes})",
            _norm_gradient(function, True, _shape_of(0)), when=(f"rank(x) == {rank}",), **more,
        )  # fmt: skip


def _batch_norms(row: Row, backward: Applies) -> Iterator[LibraryKernel]:
    """Gradients of batch norms; `backward`: condition on dtypes."""
    more: dict[str, Any] = {"family": "reduction", "dense": ("*",), "applies": both(backward, filled)}
    more |= {"setup": ("batch_norm_gradient", "rounded")}
    gradient, function = "batch_norm_gradient(x, g, w, m, r)", "batch_norm_gradient"
    yield row("batch_norm_gradient", gradient, _norm_gradient(function, False), **more)
    for rank in RANKS:
        axes, (m, r) = repr((0, *range(2, rank))), (_vector(v, rank) for v in "mr")
        yield row(
            f"batch_norm_gradients{rank}", f"{gradient}; sum(g * ((x - {m}) * {r}), axes={axes}); sum(g, axes={axes})",
            _norm_gradient(function, False, _shape_of(0)), when=(f"rank(x) == {rank}",), **more,
        )  # fmt: skip


def _several_each(call: Call) -> bool:
    """Condition on calls: channels have more than one element, so that their variance can be divided by one less."""
    shape = extents(call.operands["x"])
    return len(shape) >= 2 and prod(shape) > shape[1]


def _gpu_batch_norms() -> Iterator[LibraryKernel]:
    """Batch norms of a training step by PyTorch's kernels and by cuDNN, whose gains are float32 (with bfloat16 images
    PyTorch 2.11 refuses them)."""
    alike, images = accumulated("x out", "g b", "out1 out2 out3"), {"float32", "float16"}
    wide: Applies = lambda c: _kinds(c, "g b") == {"float32"} and _kinds(c, "x") <= images and c.attrs["eps"] >= 1e-5
    pattern = (
        "batch_norm_training(x, g, b, eps=eps); channel_mean(x); channel_variance(x); channel_deviation(x, eps=eps)"
    )
    for (prefix, condition), last in product({"": None, "cudnn_": wide}.items(), (False, True)):
        yield gpu_row(
            f"{prefix}batch_norm_training{'_last' * last}", pattern,
            f"batch_norm_statistics({{x}}, {{g}}, {{b}}, {{eps}}, {bool(prefix)})", setup=("batch_norm_statistics",),
            family="reduction", applies=both(alike, filled, _several_each, condition, _turned if last else None),
            **({"layout": channels_last} if last else {"dense": ("*",)}),
        )  # fmt: skip
    for last in (False, True):  # what normalizes then adds a residual and applies ReLU in the same kernel
        yield gpu_row(
            f"channel_statistics{'_last' * last}", "channel_mean(x); channel_variance(x)",
            "torch.batch_norm_update_stats({x}, None, None, 0.0)", family="reduction",
            applies=both(accumulated("x", "", "out out1"), filled, _turned if last else None),
            **({} if last else {"dense": ("*",)}),
        )  # fmt: skip


def _turned(call: Call) -> bool:
    """Condition on calls: the image is channels-last, without doubt."""
    x = call.operands["x"]
    return x.type.rank == 4 and is_channels_last(x) and min(extents(x)[1:]) > 1


def _group_norms(row: Row) -> Iterator[LibraryKernel]:
    more: dict[str, Any] = {"family": "reduction", "dense": ("*",), "applies": both(all_float, filled)}
    yield row(
        "group_norm_with_statistics",
        "group_norm(x, w, b, groups=groups, eps=eps); group_mean(x, groups=groups); group_deviation(x, groups=groups, eps=eps)",
        "group_norm_statistics({x}, {w}, {b}, {groups}, {eps})", setup=("group_norm_statistics",), **more,
    )  # fmt: skip
    gradient, gain = (
        "group_norm_gradient(x, g, w, m, r, groups=groups)",
        "group_norm_gain_gradient(x, g, m, r, groups=groups)",
    )
    function = "group_norm_gradient({g}, {x}, {w}, {m}, {r}, {groups}, "
    yield row("group_norm_gradient", gradient, function + "None)", setup=("group_norm_gradient",), **more)
    for rank in RANKS:
        yield row(
            f"group_norm_gradients{rank}", f"{gradient}; {gain}; sum(g, axes={(0, *range(2, rank))!r})",
            spell(function + "{shift})", shift=_shape_of(1)), when=(f"rank(x) == {rank}",),
            setup=("group_norm_gradient",), **more,
        )  # fmt: skip


# ---------------------------------------------------------------- activations, softmax, pooling, embeddings
def _alike(call: Call) -> bool:
    """Condition on calls: operands and result have the same shape and float dtype."""
    return len({(extents(o), o.type.dtype) for o in call.buffers.values()}) == 1 and one_float(call)


def _gpu_relu_gradient() -> LibraryKernel:
    """Gradient of a ReLU with the result y, in one kernel; as a comparison and a choice it takes several."""
    return gpu_row(
        "relu_gradient", "where(le(y, 0.0), 0.0, g)",
        "torch.ops.aten.threshold_backward.grad_input({g}, {y}, 0.0, grad_input={out})", applies=both(_alike, filled),
        family="pointwise", inplace=("g",),
    )  # fmt: skip


def _softmaxes(row: Row) -> Iterator[LibraryKernel]:
    more: dict[str, Any] = {"family": "reduction", "applies": both(one_float, filled)}
    for name in ("softmax", "log_softmax"):
        function = f"torch.ops.aten._{name}_backward_data.out({{g}}, {{y}}, {{axis}}, {{g}}.dtype, "
        result = "grad_input={out})" if name == "softmax" else "out={out})"
        yield row(f"{name}_gradient", f"{name}_gradient(g, y, axis=axis)", function + result, **more)


def _float_images(call: Call) -> bool:
    """Condition on calls: values of one float dtype, indices of int64."""
    kinds = {n: o.type.dtype for n, o in call.buffers.items()}
    floats = {d for d in kinds.values() if d != "int64"}
    return len(floats) == 1 and floats <= set(FLOATS) and kinds.get("i", "int64") == "int64"


def _torch_windows(call: Call) -> bool:
    """Condition on calls: Torch has this max pooling over two axes: symmetric padding of at most half a window."""
    a = call.attrs
    return symmetric(call) and len(a["kernel"]) == 2 and all(2 * p <= k for p, k in zip(a["pads"], a["kernel"]))


def _gpu_pools() -> Iterator[LibraryKernel]:
    attrs = "kernel=kernel, strides=strides, pads=pads, dilations=dilations"
    more: dict[str, Any] = {"family": "reduction", "dense": ("*",)}
    yield gpu_row(
        "max_pool_with_indices", f"max_pool(x, {attrs}); max_pool_indices(x, {attrs})",
        spell("torch.ops.aten.max_pool2d_with_indices({x}, {kernel}, {strides}, {half}, {dilations})",
              half=lambda call: repr(half_pads(call))),
        applies=both(_float_images, filled, _torch_windows), **more,
    )  # fmt: skip
    yield gpu_row("max_pool_gradient", "max_pool_gradient(g, i, shape=shape)", "max_pool_gradient({g}, {i}, {shape})",
                  setup=("max_pool_gradient",), applies=both(_float_images, filled), **more)  # fmt: skip


def _rows_of_table(call: Call) -> bool:
    """Condition on calls: gradients of one float dtype, or 16-bit ones of a float32 table, and indices that ATen
    takes."""
    kinds = {n: o.type.dtype for n, o in call.buffers.items()}
    alike = kinds["g"] == kinds["out"] or (kinds["g"] in dtypes.HALVES and kinds["out"] == "float32")
    return kinds["i"] in ("int32", "int64") and alike and kinds["g"] in FLOATS


def _of_result(name: str) -> Callable[[Call], str]:
    """Make the function that gives an operand, widened if the result is wider, as source."""
    return lambda call: (
        f"{call.names[name]}.float()" if call.operands[name].type.dtype != call.output.type.dtype else call.names[name]
    )


def _embeddings(row: Row, index: str) -> Iterator[LibraryKernel]:
    """Gradients of tables. `index`: source of the indices, which must lie inside of the table on a GPU."""
    yield row(
        "embedding_gradient", "embedding_gradient(g, i, shape=shape, skipped=skipped)",
        spell(f"torch.ops.aten.embedding_dense_backward({{wide}}, {index}, {{rows}}, {{skipped}}, False)",
              rows=lambda call: literal(call.attrs["shape"][0]), wide=_of_result("g")),
        family="scatter", dense=("*",), applies=both(_rows_of_table, filled),
    )  # fmt: skip


def training() -> list[LibraryKernel]:
    """Library kernels of training steps that run Torch code on the CPU."""
    return [
        *cpu_convolutions(), *_norms(cpu_row, all_float, all_float), *_batch_norms(cpu_row, all_float), *_group_norms(cpu_row),
        *_softmaxes(cpu_row), *_embeddings(cpu_row, "{i}"), *cpu_attentions(),
    ]  # fmt: skip


def gpu_training() -> list[LibraryKernel]:
    """Library kernels of training steps that run Torch code on a GPU."""
    norm = accumulated("x g b", "x", "out1 out2", "out")
    layer, channels = accumulated("x g w", "", "m r", "out out1 out2"), accumulated("x g", "w", "m r", "out out1 out2")
    return [
        *gpu_convolutions(), *_norms(gpu_row, norm, layer),
        *_batch_norms(gpu_row, channels), *_gpu_batch_norms(),
        *_group_norms(gpu_row), *_softmaxes(gpu_row), _gpu_relu_gradient(), *_gpu_pools(),
        *_embeddings(gpu_row, "{i}.clamp(0, {rows} - 1)"), *gpu_attentions(),
    ]  # fmt: skip


__all__ = ["gpu_training", "training"]
