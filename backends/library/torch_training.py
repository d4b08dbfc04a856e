"""Declares Torch CPU kernels of training steps: ATen's functions of the gradients that eager PyTorch computes, and
norms and attention with the statistics that their gradients read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel, identify
from .torch_calls import GEOMETRY, extents, filled, half_pads, symmetric
from .torch_rows import one_float, row, usable_if

RANKS = (2, 3, 4, 5)  # of operands of norms


def all_float(call: Call) -> bool:
    """Condition on calls: operands and all results have the same float dtype."""
    return one_float(call) and all(o.type.dtype == call.output.type.dtype for o in call.more)


# ---------------------------------------------------------------- convolutions
def _conv_gradient(helper: str, operands: str) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        names, a = ", ".join(call.names[o] for o in operands), call.attrs
        return f"{helper}({names}, {a['shape']}, {a['strides']}, {half_pads(call)}, {a['dilations']}, {a['groups']})"

    identify(code, f"torch.{helper}")
    return code


def _convolutions() -> Iterator[LibraryKernel]:
    more: dict[str, Any] = {"family": "conv", "dense": ("*",), "applies": usable_if(one_float, symmetric, filled)}
    for name, operands in (("conv_input_gradient", "gw"), ("conv_weight_gradient", "xg")):
        pattern = f"{name}({', '.join(operands)}, shape=shape, {GEOMETRY})"
        yield row(name, pattern, _conv_gradient(name, operands), setup=(name, "never_read"), **more)


# ---------------------------------------------------------------- norms
def _vector(name: str, rank: int) -> str:
    """Pattern of a vector along the channels, as a tensor of a rank."""
    return f"reshape({name}, shape=(1, size(x, 1), {', '.join('1' * (rank - 2))}))".replace(", )", ",)")


def _layer_norms() -> Iterator[LibraryKernel]:
    more: dict[str, Any] = {"family": "reduction", "dense": ("*",), "applies": usable_if(all_float, filled)}
    last = "(rank(x) - 1,)"
    centred = f"(x - mean(x, axes={last}))"
    deviation = (
        f"rsqrt(mean({centred} * {centred}, axes={last}) + full(value=eps, shape=ones(rank(x)), dtype=dtype(x)))"
    )
    yield row(
        "norm_with_statistics", f"layer_norm(x, g, b, eps=eps); mean(x, axes={last}); {deviation}",
        "torch.ops.aten.native_layer_norm.out({x}, {g}.shape, {g}, {b}, {eps}, out0={out}, out1={out1}, out2={out2})", **more,
    )  # fmt: skip
    gradient = "layer_norm_gradient(x, g, w, m, r)"
    yield row("layer_norm_gradient", gradient, "layer_norm_gradient({g}, {x}, {w}, {m}, {r}, {out})",
              setup=("copied", "layer_norm_gradient"), **more)  # fmt: skip
    for rank in RANKS:
        axes = repr(tuple(range(rank - 1)))
        yield row(
            f"layer_norm_gradients{rank}", f"{gradient}; sum(g * ((x - m) * r), axes={axes}); sum(g, axes={axes})",
            "layer_norm_gradient({g}, {x}, {w}, {m}, {r}, {out}, {out1}, {out2})",
            when=(f"rank(x) == {rank}",), setup=("copied", "layer_norm_gradient"), **more,
        )  # fmt: skip


def _batch_norms() -> Iterator[LibraryKernel]:
    more: dict[str, Any] = {"family": "reduction", "dense": ("*",), "applies": usable_if(all_float, filled)}
    gradient = "batch_norm_gradient(x, g, w, m, r)"
    yield row("batch_norm_gradient", gradient, "batch_norm_gradient({g}, {x}, {w}, {m}, {r}, {out})",
              setup=("copied", "batch_norm_gradient"), **more)  # fmt: skip
    for rank in RANKS:
        axes, (m, r) = repr((0, *range(2, rank))), (_vector(v, rank) for v in "mr")
        yield row(
            f"batch_norm_gradients{rank}", f"{gradient}; sum(g * ((x - {m}) * {r}), axes={axes}); sum(g, axes={axes})",
            "batch_norm_gradient({g}, {x}, {w}, {m}, {r}, {out}, {out1}, {out2})",
            when=(f"rank(x) == {rank}",), setup=("copied", "batch_norm_gradient"), **more,
        )  # fmt: skip


def _group_norms() -> Iterator[LibraryKernel]:
    more: dict[str, Any] = {"family": "reduction", "dense": ("*",), "applies": usable_if(all_float, filled)}
    yield row(
        "group_norm_with_statistics",
        "group_norm(x, w, b, groups=groups, eps=eps); group_mean(x, groups=groups); group_deviation(x, groups=groups, eps=eps)",
        "group_norm_statistics({x}, {w}, {b}, {groups}, {eps}, {out}, {out1}, {out2})", setup=("copied", "group_norm_statistics"), **more,
    )  # fmt: skip
    gradient, gain = (
        "group_norm_gradient(x, g, w, m, r, groups=groups)",
        "group_norm_gain_gradient(x, g, m, r, groups=groups)",
    )
    yield row("group_norm_gradient", gradient, "group_norm_gradient({g}, {x}, {w}, {m}, {r}, {groups}, {out})",
              setup=("copied", "group_norm_gradient"), **more)  # fmt: skip
    for rank in RANKS:
        yield row(
            f"group_norm_gradients{rank}", f"{gradient}; {gain}; sum(g, axes={(0, *range(2, rank))!r})",
            "group_norm_gradient({g}, {x}, {w}, {m}, {r}, {groups}, {out}, {out1}, {out2})",
            when=(f"rank(x) == {rank}",), setup=("copied", "group_norm_gradient"), **more,
        )  # fmt: skip


# ---------------------------------------------------------------- softmax, attention
def _softmaxes() -> Iterator[LibraryKernel]:
    more: dict[str, Any] = {"family": "reduction", "applies": usable_if(one_float, filled)}
    for name in ("softmax", "log_softmax"):
        function = f"torch.ops.aten._{name}_backward_data.out({{g}}, {{y}}, {{axis}}, {{g}}.dtype, "
        result = "grad_input={out})" if name == "softmax" else "out={out})"
        yield row(f"{name}_gradient", f"{name}_gradient(g, y, axis=axis)", function + result, **more)


def _four_axes(call: Call) -> bool:
    """Condition on calls: query, key and value are [batch, heads, T, D] with equal widths, as fused attention needs;
    with a causal mask, which it aligns at the first position, also with equal lengths. Last axes are contiguous: fused
    attention does not look at their strides. Halves are excluded: their statistics are float32."""
    if any(o.strides[-1] != 1 or o.type.dtype not in ("float32", "float64") for o in call.operands.values()):
        return False
    q, k, v = (extents(call.operands[n]) for n in "qkv")
    aligned = not call.attrs["causal"] or q[-2] == k[-2]
    return aligned and len(q) == 4 and q[:2] == k[:2] == v[:2] and q[-1] == v[-1]


def _attentions() -> Iterator[LibraryKernel]:
    more: dict[str, Any] = {"family": "attention", "applies": usable_if(all_float, filled, _four_axes)}
    plain, attrs = "scale=scale, causal=causal", "scale=scale, causal=causal, window=0, softcap=0.0"
    for masked in (False, True):
        prefix, m, value = ("masked_", ", a", "{a}") if masked else ("", "", "None")
        yield row(
            f"{prefix}attention_with_statistics",
            f"{prefix}attention(q, k, v{m}, {attrs}); {prefix}attention_statistics(q, k{m}, {plain})",
            f"attention_statistics({{q}}, {{k}}, {{v}}, {value}, {{scale}}, {{causal}}, {{out}}, {{out1}})",
            setup=("copied", "attention_statistics"), **more,
        )  # fmt: skip
        orders = {"query": "q, k, v", "key": "k, q, v", "value": "v, q, k"}
        terms = [f"{prefix}attention_gradient({o}, y, g, s{m}, of='{of}', {plain})" for of, o in orders.items()]
        yield row(
            f"{prefix}attention_gradients", "; ".join(terms),
            f"attention_gradients({{g}}, {{q}}, {{k}}, {{v}}, {{y}}, {{s}}, {value}, {{scale}}, {{causal}}, {{out}}, {{out1}}, "
            "{out2})",
            setup=("copied", "attention_gradients"), **more,
        )  # fmt: skip


def training() -> list[LibraryKernel]:
    """Library kernels of training steps that run Torch code on the CPU."""
    return [
        *_convolutions(), *_layer_norms(), *_batch_norms(), *_group_norms(), *_softmaxes(), *_attentions(),
    ]  # fmt: skip


__all__ = ["training"]
