"""The GPU benchmark's workloads in plain PyTorch: functions of inputs and weights, bf16, weights [in, out].

A workload is written as its user would write it; rewrites (moving a norm behind a product, merging products that share
an operand, reordering a chain) are left to the optimizer. Statistics are computed in float32, or in the arguments'
dtype if it is wider.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Workload:
    """A function of inputs and weights (in this order, by name), with its unavoidable flops.

    `seen` and `wanted`: best time of peers seen before and wanted time, in µs on an H200. `jax`: name of the same
    function in `jax_workloads`. `states`: weights that a call writes to. `tiny`: shapes of all arguments for `small`,
    where shrinking each size by itself is invalid.
    """

    name: str
    call: Callable[..., Any]
    inputs: Mapping[str, Shape]
    weights: Mapping[str, Shape]
    flops: float
    seen: float | None = None
    wanted: float | None = None
    jax: str = ""
    layout: torch.memory_format = torch.contiguous_format
    states: tuple[str, ...] = ()
    tiny: Mapping[str, Shape] = field(default_factory=dict)

    def arguments(
        self, device: str, dtype: torch.dtype = torch.bfloat16, seed: int = 0
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Random (inputs, weights) on a device: normal numbers, weights of products scaled by 1 / sqrt of the
        contracted size.

        Positions (`at`) are consecutive integers.
        """
        generator = torch.Generator(device=device).manual_seed(seed)

        def draw(name: str, shape: Shape) -> Tensor:
            if name == "at":
                return torch.arange(5, 5 + shape[0], device=device)
            x = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
            if len(shape) == 1:  # gains near one, variances positive, shifts small
                x = 1 + 0.1 * x if name.startswith(("g", "var")) else 0.1 * x
            elif name in self.weights and name not in self.states:
                x = x * (prod(shape[1:]) if len(shape) == 4 else shape[-2]) ** -0.5
            x = x.to(dtype)
            return x.contiguous(memory_format=self.layout) if x.dim() == 4 else x

        inputs = [draw(n, s) for n, s in self.inputs.items()]
        return inputs, [draw(n, s) for n, s in self.weights.items()]

    def module(self, weights: list[Tensor]) -> nn.Module:
        """The workload as a module that holds its weights."""
        return _Module(self.call, dict(zip(self.weights, weights, strict=True)), self.states)

    @property
    def bytes(self) -> float:
        """Compulsory traffic in bytes: arguments read once, results written once."""
        return _bytes(self.name)


@cache
def _bytes(name: str) -> float:
    work = WORKLOADS[name]
    arguments = [
        torch.empty(s, device="meta", dtype=torch.bfloat16) for s in (*work.inputs.values(), *work.weights.values())
    ]
    results = flat(work.call(*arguments))
    return float(sum(x.numel() * x.itemsize for x in (*arguments, *results)))


def flat(results: Any) -> list[Tensor]:
    """Results of a call as a list."""
    return list(results) if isinstance(results, list | tuple) else [results]


class _Module(nn.Module):
    def __init__(self, call: Callable[..., Any], weights: Mapping[str, Tensor], states: Sequence[str]) -> None:
        super().__init__()
        self.call, self.names = call, list(weights)
        for name, value in weights.items():
            if name in states:
                self.register_buffer(name, value)
            else:
                self.register_parameter(name, nn.Parameter(value, requires_grad=False))

    def forward(self, *inputs: Tensor) -> Any:
        return self.call(*inputs, *(getattr(self, n) for n in self.names))


# ---------------------------------------------------------------- parts
def wide(x: Tensor) -> Tensor:
    """x in float32, or unchanged if its dtype is wider."""
    return x.float() if x.itemsize < 4 else x


def rms_norm(x: Tensor, gain: Tensor, eps: float = 1e-6) -> Tensor:
    """x over its root mean square along the last axis, times a gain."""
    h = wide(x)
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * gain


def unit(x: Tensor) -> Tensor:
    """x scaled to length 1 along the last axis."""
    h = wide(x)
    return (h * torch.rsqrt(h.pow(2).sum(-1, keepdim=True))).to(x.dtype)


# ---------------------------------------------------------------- workloads
def rmsnorm_linear(x: Tensor, gain: Tensor, w: Tensor) -> Tensor:
    """RMS norm and a product."""
    return rms_norm(x, gain) @ w


def gated_mlp_up(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """First half of a gated MLP: two products and the gate."""
    return F.silu(x @ w1) * (x @ w2)


def rmsnorm_qkv(x: Tensor, gain: Tensor, wq: Tensor, wk: Tensor, wv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """RMS norm and three products (queries, keys, values)."""
    h = rms_norm(x, gain)
    return h @ wq, h @ wk, h @ wv


def lora(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """A product with a low-rank update."""
    return x @ w + (x @ a) @ b


def gqa_decode(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one decode step over a cache, with grouped queries."""
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def decode_step(
    x: Tensor, cos: Tensor, sin: Tensor, at: Tensor, gain: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, keys: Tensor, values: Tensor,
) -> Tensor:  # fmt: skip
    """Attention block of one decode step from the norm on: rotary embedding, and writes to the caches."""
    batch, tokens, _ = x.shape
    h = rms_norm(x, gain)
    q, k, v = ((h @ w).view(batch, tokens, -1, cos.shape[-1]).transpose(1, 2) for w in (wq, wk, wv))
    keys.index_copy_(2, at.long(), _rotated(k, cos, sin))
    values.index_copy_(2, at.long(), v)
    return F.scaled_dot_product_attention(_rotated(q, cos, sin), keys, values, enable_gqa=True)


def gemma_mlp(x: Tensor, gain: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
    """Gemma's MLP with norm and residual."""
    h = rms_norm(x, 1 + gain)
    return x + (F.gelu(h @ w1, approximate="tanh") * (h @ w2)) @ w3


def qknorm_attention(q: Tensor, k: Tensor, v: Tensor, gain_q: Tensor, gain_k: Tensor) -> Tensor:
    """Causal attention written step by step, with norms of queries and keys."""
    q, k = rms_norm(q, gain_q), rms_norm(k, gain_k)
    scores = wide(q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    ahead = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(scores.masked_fill(ahead, float("-inf")), -1).to(v.dtype) @ v


def layernorm_mlp(x: Tensor, gain: Tensor, shift: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """MLP block of a GPT-2-like model."""
    h = F.layer_norm(x, x.shape[-1:], gain, shift, 1e-5)
    return x + (F.gelu(h @ w1 + b1) @ w2 + b2)


def normalised_update(h: Tensor, y: Tensor, alpha: Tensor) -> Tensor:
    """Residual step of a normalised transformer: towards a unit vector, then scaled back to length 1."""
    return unit(h + alpha * (unit(y) - h))


def softmax(x: Tensor) -> Tensor:
    """Softmax along rows."""
    return torch.softmax(x, -1)


def pointwise(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Chain of elementwise ops."""
    return F.gelu(x * y + z, approximate="tanh") * y + torch.sigmoid(z) * x


def matmul_chain(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Product of three matrices, the large ones first."""
    return a @ (b @ c)


def shared_factor(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a @ x + b @ x: two products with one right operand."""
    return a @ x + b @ x


def nasrnn(x: Tensor, h: Tensor, *weights: Tensor) -> Tensor:
    """NAS recurrent cell (Zoph & Le 2017): eight gates, combined in a tree."""
    g = [x @ weights[2 * i] + h @ weights[2 * i + 1] for i in range(8)]
    first = torch.relu(g[0]) + torch.sigmoid(g[3])
    second = torch.sigmoid(g[1]) + torch.tanh(g[2])
    third = torch.sigmoid(g[4]) * torch.tanh(g[5])
    fourth = torch.sigmoid(g[6]) * torch.relu(g[7])
    left, right = torch.sigmoid(second) + torch.tanh(third), torch.tanh(first) * torch.tanh(fourth)
    return torch.tanh(torch.tanh(left) * torch.tanh(right))


def gated_mlp_block(x: Tensor, gain: Tensor, w1: Tensor, w2: Tensor, w3: Tensor) -> Tensor:
    """Gated MLP block with norm and residual."""
    h = rms_norm(x, gain)
    return x + (F.silu(h @ w1) * (h @ w2)) @ w3


def dit_block(
    x: Tensor, c: Tensor, wm: Tensor, bm: Tensor, wqkv: Tensor, bqkv: Tensor, wo: Tensor, bo: Tensor, w1: Tensor, b1: Tensor,
    w2: Tensor, b2: Tensor,
) -> Tensor:  # fmt: skip
    """Block of a diffusion transformer: norms shifted, scaled and gated by a condition, attention, MLP."""
    batch, tokens, width = x.shape
    modulation = (F.silu(c) @ wm + bm).reshape(batch, 6, 1, width)
    shift1, scale1, gate1, shift2, scale2, gate2 = (modulation[:, i] for i in range(6))
    h = F.layer_norm(x, (width,), eps=1e-6) * (1 + scale1) + shift1
    q, k, v = (h @ wqkv + bqkv).reshape(batch, tokens, 3, 16, width // 16).permute(2, 0, 3, 1, 4).unbind(0)
    attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width)
    x = x + gate1 * (attended @ wo + bo)
    h = F.layer_norm(x, (width,), eps=1e-6) * (1 + scale2) + shift2
    return x + gate2 * (F.gelu(h @ w1 + b1, approximate="tanh") @ w2 + b2)


def _norm(x: Tensor, mean: Tensor, var: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    return F.batch_norm(x, mean, var, gain, shift, False, 0.0, 1e-5)


def bottleneck(x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, *norms: Tensor) -> Tensor:
    """ResNet bottleneck in inference: convolutions with batch norms, and the shortcut."""
    h = torch.relu(_norm(F.conv2d(x, w1), *norms[0:4]))
    h = torch.relu(_norm(F.conv2d(h, w2, padding=1), *norms[4:8]))
    return torch.relu(x + _norm(F.conv2d(h, w3), *norms[8:12]))


def unet_resblock(
    x: Tensor, t: Tensor, gain1: Tensor, shift1: Tensor, w1: Tensor, b1: Tensor, wt: Tensor, bt: Tensor, gain2: Tensor,
    shift2: Tensor, w2: Tensor, b2: Tensor,
) -> Tensor:  # fmt: skip
    """Residual block of a latent diffusion U-Net with the time embedding."""
    h = F.conv2d(F.silu(F.group_norm(x, 32, gain1, shift1)), w1, b1, padding=1)
    h = h + (F.silu(t) @ wt + bt)[:, :, None, None]
    return x + F.conv2d(F.silu(F.group_norm(h, 32, gain2, shift2)), w2, b2, padding=1)


# ---------------------------------------------------------------- the table
def _norms(*widths: int) -> dict[str, Shape]:
    """Shapes of mean, variance, gain and shift of batch norms."""
    return {f"{part}{i}": (n,) for i, n in enumerate(widths) for part in ("mean", "var", "gain", "shift")}


def _table() -> list[Workload]:
    d = 4096
    found: list[Workload] = []

    def add(name: str, call: Callable[..., Any], inputs: dict[str, Shape], weights: dict[str, Shape], flops: float,
            seen: float | None, wanted: float | None, **more: Any) -> None:  # fmt: skip
        found.append(Workload(name, call, inputs, weights, flops, seen, wanted, **more))

    for b, seen in ((1, (16.2, 25.4, 31.3, 20.3)), (16, (15.8, 25.4, 32.1, 18.9))):
        x = {"x": (b, d)}
        add(f"rmsnorm_linear_b{b}", rmsnorm_linear, x, {"gain": (d,), "w": (d, d)}, 2 * b * d * d, seen[0], 12,
            jax="rmsnorm_linear")  # fmt: skip
        add(f"gated_mlp_up_b{b}", gated_mlp_up, x, {"w1": (d, d), "w2": (d, d)}, 4 * b * d * d, seen[1], 19,
            jax="gated_mlp_up")  # fmt: skip
        add(f"rmsnorm_qkv_b{b}", rmsnorm_qkv, x, {"gain": (d,), "wq": (d, d), "wk": (d, 1024), "wv": (d, 1024)},
            2 * b * d * (d + 2048), seen[2], 16, jax="rmsnorm_qkv")  # fmt: skip
        add(f"lora_b{b}", lora, x, {"w": (d, d), "a": (d, 16), "b": (16, d)}, 2 * b * d * (d + 32), seen[3], 12,
            jax="lora")  # fmt: skip
        add(f"gqa_decode_b{b}", gqa_decode, {"q": (b, 32, 1, 128), "k": (b, 8, d, 128), "v": (b, 8, d, 128)}, {},
            4 * b * 32 * d * 128, *((22.6, 8) if b == 1 else (70, 68)))  # fmt: skip
    for b in (1, 16):
        cache = (b, 8, d, 128)
        add(f"decode_step_b{b}", decode_step,
            {"x": (b, 1, d), "cos": (1, 1, 1, 128), "sin": (1, 1, 1, 128), "at": (1,)},
            {"gain": (d,), "wq": (d, d), "wk": (d, 1024), "wv": (d, 1024), "keys": cache, "values": cache},
            2 * b * d * (d + 2048) + 4 * b * 32 * d * 128, None, None, states=("keys", "values"),
            tiny={"x": (b, 1, 64), "cos": (1, 1, 1, 16), "sin": (1, 1, 1, 16), "at": (1,), "gain": (64,), "wq": (64, 64),
                  "wk": (64, 32), "wv": (64, 32), "keys": (b, 2, 32, 16), "values": (b, 2, 32, 16)})  # fmt: skip
    add("gemma_mlp_b1", gemma_mlp, {"x": (1, 640)}, {"gain": (640,), "w1": (640, 2048), "w2": (640, 2048), "w3": (2048, 640)},
        6 * 640 * 2048, 17.5, 9, jax="gemma_mlp")  # fmt: skip
    heads = (1, 32, 2048, 128)
    add("qknorm_attention_t2048", qknorm_attention, {"q": heads, "k": heads, "v": heads}, {"gain_q": (128,), "gain_k": (128,)},
        2 * 32 * 2048 * 2049 * 128, 502, 75, jax="qknorm_attention")  # fmt: skip
    add("layernorm_mlp_t4096", layernorm_mlp, {"x": (4096, 768)},
        {"gain": (768,), "shift": (768,), "w1": (768, 3072), "b1": (3072,), "w2": (3072, 768), "b2": (768,)},
        4 * 4096 * 768 * 3072, 91, 70, jax="layernorm_mlp")  # fmt: skip
    add("normalised_update_4096", normalised_update, {"h": (d, d), "y": (d, d)}, {"alpha": (d,)}, 10 * d * d, 31.9, 27,
        jax="normalised_update")  # fmt: skip
    add("softmax_8192x8192", softmax, {"x": (8192, 8192)}, {}, 0, 93, 70, jax="softmax")
    add("softmax_131072x128", softmax, {"x": (131072, 128)}, {}, 0, 19.7, 18, jax="softmax")
    add("pointwise_64mi", pointwise, dict.fromkeys("xyz", (8192, 8192)), {}, 0, 187, 150, jax="pointwise")
    add("matmul_chain_16", matmul_chain, {"a": (16, d)}, {"b": (d, d), "c": (d, d)}, 4 * 16 * d * d, 189, 24,
        jax="matmul_chain")  # fmt: skip
    add("shared_factor_4096", shared_factor, {"x": (d, d)}, {"a": (d, d), "b": (d, d)}, 2 * d**3, 360, 200,
        jax="shared_factor")  # fmt: skip
    add("nasrnn_b16", nasrnn, {"x": (16, 1024), "h": (16, 1024)}, {f"w{i}": (1024, 1024) for i in range(16)},
        2 * 16 * 16 * 1024**2, 16.3, 12, jax="nasrnn")  # fmt: skip
    add("gated_mlp_t2048", gated_mlp_block, {"x": (2048, d)},
        {"gain": (d,), "w1": (d, 14336), "w2": (d, 14336), "w3": (14336, d)}, 6 * 2048 * d * 14336, 975, 975,
        jax="gated_mlp_block")  # fmt: skip
    w = 1152
    add("dit_block_b8", dit_block, {"x": (8, 256, w), "c": (8, w)},
        {"wm": (w, 6 * w), "bm": (6 * w,), "wqkv": (w, 3 * w), "bqkv": (3 * w,), "wo": (w, w), "bo": (w,),
         "w1": (w, 4 * w), "b1": (4 * w,), "w2": (4 * w, w), "b2": (w,)},
        2048 * w * w * 24 + 4 * 2048 * 256 * w + 12 * 8 * w * w, None, None)  # fmt: skip
    last = {"layout": torch.channels_last}
    add("bottleneck_b32", bottleneck, {"x": (32, 256, 56, 56)},
        {"w1": (64, 256, 1, 1), "w2": (64, 64, 3, 3), "w3": (256, 64, 1, 1), **_norms(64, 64, 256)},
        2 * 32 * 56 * 56 * (256 * 64 * 2 + 64 * 64 * 9), None, None, **last)  # fmt: skip
    add("unet_resblock_b2", unet_resblock, {"x": (2, 320, 64, 64), "t": (2, 1280)},
        {"gain1": (320,), "shift1": (320,), "w1": (320, 320, 3, 3), "b1": (320,), "wt": (1280, 320), "bt": (320,),
         "gain2": (320,), "shift2": (320,), "w2": (320, 320, 3, 3), "b2": (320,)},
        2 * 2 * 2 * 64 * 64 * 320 * 320 * 9, None, None, **last)  # fmt: skip
    return found


WORKLOADS: dict[str, Workload] = {w.name: w for w in _table()}


def small(work: Workload) -> Workload:
    """The workload with small sizes, for a quick check that everything runs."""
    limit = 64

    def shrunk(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        return {n: work.tiny.get(n) or tuple(_shrunk(d, limit) for d in shape) for n, shape in shapes.items()}

    return replace(work, name=f"{work.name}-small", inputs=shrunk(work.inputs), weights=shrunk(work.weights))


def _shrunk(size: int, limit: int) -> int:
    """A small size in place of `size`; equal sizes stay equal, and multiples stay multiples where workloads need it."""
    known = {4096: 64, 14336: 96, 1024: 32, 8192: 64, 131072: 128, 2048: 48, 640: 32, 3072: 64, 768: 48, 256: 32, 56: 6}
    scaled = {1152: 32, 6912: 192, 3456: 96, 4608: 128, 320: 32, 1280: 40, 64: 8}
    return {**known, **scaled}.get(size, min(size, limit))
