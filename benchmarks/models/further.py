"""Further variants: kinds of programs that the workloads and the other variants lack.

Losses, routers, caches, hand-written gradients, segment sums, window attention, int8 weights. They register themselves
in `variants.VARIANTS`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.models.variant import Below, Inputs, Of, brain, half, single, variant
from benchmarks.models.workloads import wide


# ---------------------------------------------------------------- positions and caches
def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def _cached(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, at: Tensor) -> Any:
    q, k = _turned(q, cos, sin), _turned(k, cos, sin)
    return q, keys.index_copy(2, at, k), values.index_copy(2, at, v)


@variant("rope_cache_write", brain, "b=8 h=32 g=8 t=1024 d=128", "b=2 h=4 g=2 t=7 d=8")
def rope_cache(b: int, h: int, g: int, t: int, d: int) -> tuple[nn.Module, Inputs]:
    """Decode step's rotary embedding, with keys and values written into the cache."""
    own, cache, turn = (b, g, 1, d), (b, g, t, d), (b, 1, 1, d)
    return Of(_cached), {
        "q": (b, h, 1, d), "k": own, "v": own, "cos": turn, "sin": turn, "keys": cache, "values": cache, "at": Below((1,), t),
    }  # fmt: skip


def _axial(x: Tensor, angles: Tensor) -> Tensor:
    pairs = x.unflatten(-1, (-1, 2))
    a, b = pairs.unbind(-1)
    cos, sin = torch.cos(angles), torch.sin(angles)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


@variant("axial_rope_fp16", half, "b=8 h=12 s=14 d=64", "b=1 h=2 s=3 d=8")
def axial(b: int, h: int, s: int, d: int) -> tuple[nn.Module, Inputs]:
    """Rotary embedding of image patches: by row in one half of a head, by column in the other; pairs are
    interleaved.
    """

    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            step = 100.0 ** (-torch.arange(0, d // 4) / (d // 4))
            place = torch.arange(s)[:, None] * step
            both = (place[:, None].expand(s, s, -1), place[None].expand(s, s, -1))
            self.register_buffer("angles", torch.cat(both, -1).reshape(s * s, d // 2))

        def forward(self, q: Tensor, k: Tensor) -> Any:
            return _axial(q, self.angles), _axial(k, self.angles)

    return Rotary(), dict.fromkeys("qk", (b, h, s * s, d))


@variant("gqa_window_prefill", brain, "b=1 h=16 g=4 t=1500 d=128", "b=1 h=4 g=2 t=13 d=8")
def prefill(b: int, h: int, g: int, t: int, d: int) -> tuple[nn.Module, Inputs]:
    """Grouped-query attention over a sliding window, with keys repeated for each query head, as in many models."""

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(h // g, 1) for x in (k, v))
        i, j = torch.arange(t, device=q.device)[:, None], torch.arange(t, device=q.device)[None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=(j <= i) & (j > i - t // 3))

    return Of(call), {"q": (b, h, t, d), "k": (b, g, t, d), "v": (b, g, t, d)}


# ---------------------------------------------------------------- losses
@variant("smoothed_entropy", brain, "t=2000 v=8192", "t=5 v=50")
def smoothed(t: int, v: int) -> tuple[nn.Module, Inputs]:
    """Cross entropy with label smoothing and ignored labels, as one number."""

    def call(logits: Tensor, ids: Tensor) -> Tensor:
        ids = torch.where(ids < v // 10, -100, ids)
        return F.cross_entropy(wide(logits), ids, label_smoothing=0.1)

    return Of(call), {"logits": (t, v), "ids": Below((t,), v)}


@variant("focal_loss", single, "b=8 n=8732 c=21", "b=2 n=7 c=5")
def focal(b: int, n: int, c: int) -> tuple[nn.Module, Inputs]:
    """Focal loss of a detector's anchors, each of one class."""

    def call(logits: Tensor, ids: Tensor) -> Tensor:
        wanted = F.one_hot(ids, c).to(logits.dtype)
        p = torch.sigmoid(logits)
        entropy = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        missed = 1 - (p * wanted + (1 - p) * (1 - wanted))
        weight = 0.25 * wanted + 0.75 * (1 - wanted)
        return (weight * missed**2 * entropy).sum((1, 2)).mean()

    return Of(call), {"logits": (b, n, c), "ids": Below((b, n), c)}


@variant("contrastive_loss", half, "b=512 d=768", "b=4 d=16")
def contrastive(b: int, d: int) -> tuple[nn.Module, Inputs]:
    """CLIP's contrastive loss: images and texts, each the other's label, in both directions."""

    def call(x: Tensor, y: Tensor) -> Tensor:
        scores = wide(F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).T) * 14.3
        labels = torch.arange(b, device=x.device)
        return (F.cross_entropy(scores, labels) + F.cross_entropy(scores.T, labels)) / 2

    return Of(call), {"x": (b, d), "y": (b, d)}


# ---------------------------------------------------------------- norms
def _backward(x: Tensor, g: Tensor, dy: Tensor) -> Any:
    a, b = wide(x), wide(dy)
    r = torch.rsqrt(a.square().mean(-1, keepdim=True) + 1e-6)
    n, scaled = a * r, b * wide(g)
    dx = r * (scaled - n * (scaled * n).mean(-1, keepdim=True))
    return dx.to(x.dtype), (b * n).sum(0).to(g.dtype)


@variant("rms_norm_backward", brain, "t=4000 d=1536", "t=5 d=24")
def backward(t: int, d: int) -> tuple[nn.Module, Inputs]:
    """Hand-written gradients of an RMS norm: of its input, and of its gain (a sum over rows)."""
    return Of(_backward), {"x": (t, d), "g": (d,), "dy": (t, d)}


@variant("modulated_norm_fp16", half, "b=4 t=1000 d=1152", "b=2 t=5 d=24")
def modulated(b: int, t: int, d: int) -> tuple[nn.Module, Inputs]:
    """Modulation step of a diffusion transformer: gated residual, then a norm with scale and shift from the
    condition.
    """

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.of_condition = nn.Linear(d, 3 * d)

        def forward(self, x: Tensor, y: Tensor, condition: Tensor) -> Any:
            shift, scale, gate = self.of_condition(F.silu(condition))[:, None].chunk(3, -1)
            x = x + gate * y
            return x, F.layer_norm(x, (d,)) * (1 + scale) + shift

    return Step(), {"x": (b, t, d), "y": (b, t, d), "condition": (b, d)}


@variant("batchnorm_relu_pool_fp16", half, "b=16 c=64 s=111", "b=2 c=4 s=9", layout=torch.channels_last)
def stem(b: int, c: int, s: int) -> tuple[nn.Module, Inputs]:
    """Batch norm with trained statistics, ReLU and pooling, on images of odd size."""
    return nn.Sequential(nn.BatchNorm2d(c), nn.ReLU(), nn.MaxPool2d(3, 2, 1)), {"x": (b, c, s, s)}


# ---------------------------------------------------------------- layers
@variant("gru_cell_b16", brain, "b=16 d=1024", "b=2 d=16")
def gru(b: int, d: int) -> tuple[nn.Module, Inputs]:
    """One step of a GRU."""
    return nn.GRUCell(d, d), dict.fromkeys("xh", (b, d))


@variant("separable_conv_fp32", single, "b=4 c=48 n=96 s=61", "b=1 c=4 n=8 s=7")
def separable(b: int, c: int, n: int, s: int) -> tuple[nn.Module, Inputs]:
    """Depthwise convolution of stride two and pointwise convolution, each with batch norm and hardswish."""
    return nn.Sequential(
        nn.Conv2d(c, c, 5, 2, 2, groups=c, bias=False), nn.BatchNorm2d(c), nn.Hardswish(),
        nn.Conv2d(c, n, 1, bias=False), nn.BatchNorm2d(n), nn.Hardswish(),
    ), {"x": (b, c, s, s)}  # fmt: skip


@variant("conv3d_fp16", half, "b=1 c=32 n=64 f=8 s=56", "b=1 c=4 n=6 f=3 s=5")
def volume(b: int, c: int, n: int, f: int, s: int) -> tuple[nn.Module, Inputs]:
    """Convolution of videos (3-D) with batch norm and ReLU."""
    return nn.Sequential(nn.Conv3d(c, n, 3, padding=1, bias=False), nn.BatchNorm3d(n), nn.ReLU()), {
        "x": (b, c, f, s, s)
    }


@variant("geglu_bias_t333", brain, "t=333 d=1000 n=2600", "t=5 d=24 n=40")
def geglu(t: int, d: int, n: int) -> tuple[nn.Module, Inputs]:
    """GEGLU layer with biases, at sizes that are no multiple of a tile."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(d, 2 * n), nn.Linear(n, d)

        def forward(self, x: Tensor) -> Tensor:
            value, gate = self.up(x).chunk(2, -1)
            found: Tensor = self.down(value * F.gelu(gate))
            return found

    return Layer(), {"x": (t, d)}


@variant("int8_linear_b8", brain, "b=8 d=3072 n=8192", "b=2 d=24 n=40", listed=False)
def quantised(b: int, d: int, n: int) -> tuple[nn.Module, Inputs]:
    """Linear layer whose weight is int8 with a scale for each row."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randint(-127, 128, (n, d), dtype=torch.int8))
            self.register_buffer("scale", 0.01 * (1 + torch.rand(n)))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight.to(x.dtype)) * self.scale

    return Layer(), {"x": (b, d)}


@variant("window_bias_attention_fp16", half, "b=64 w=49 d=96 h=3", "b=2 w=4 d=16 h=2")
def shifted(b: int, w: int, d: int, h: int) -> tuple[nn.Module, Inputs]:
    """Swin's window attention with a learned bias for each relative position."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
            side = round(w**0.5)
            self.table = nn.Parameter(0.5 * torch.randn((2 * side - 1) ** 2, h))
            y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
            place = torch.stack((y.flatten(), x.flatten()))
            far = place[:, :, None] - place[:, None, :] + side - 1
            self.register_buffer("which", far[0] * (2 * side - 1) + far[1])

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).reshape(b, w, 3, h, d // h).permute(2, 0, 3, 1, 4).unbind(0)
            bias = self.table[self.which].permute(2, 0, 1)
            scores = q @ k.transpose(-1, -2) * (d // h) ** -0.5 + bias
            return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, w, d))

    return Layer(), {"x": (b, w, d)}


# ---------------------------------------------------------------- choices and segments
@variant("router_top4", single, "t=2048 d=1024 e=64", "t=5 d=16 e=8")
def router(t: int, d: int, e: int) -> tuple[nn.Module, Inputs]:
    """Top-4 expert routing: experts and weights of each token, and the load-balancing loss."""

    def call(x: Tensor, w: Tensor) -> Any:
        p = torch.softmax(x @ w, -1)
        chosen, which = torch.topk(p, 4, -1)
        share = F.one_hot(which, e).sum(1).to(p.dtype).mean(0)
        return chosen / chosen.sum(-1, keepdim=True), e * (share * p.mean(0)).sum()

    return Of(call, w=(d, e)), {"x": (t, d)}


@variant("segment_mean_fp32", single, "n=200000 d=32 s=1000", "n=30 d=4 s=5")
def segments(n: int, d: int, s: int) -> tuple[nn.Module, Inputs]:
    """Aggregation of a graph network: the mean of each node's messages."""

    def call(x: Tensor, where: Tensor) -> Tensor:
        sums = x.new_zeros(s, d).index_add(0, where, x)
        counts = x.new_zeros(s).index_add(0, where, x.new_ones(n))
        return sums / counts.clamp(min=1)[:, None]

    return Of(call), {"x": (n, d), "where": Below((n,), s)}


@variant("embedding_bag", brain, "b=2048 n=20 v=100000 d=64", "b=3 n=4 v=50 d=8", listed=False)
def bag(b: int, n: int, v: int, d: int) -> tuple[nn.Module, Inputs]:
    """Weighted sum of table rows for each example, and a layer above it."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layer = nn.Embedding(v, d), nn.Linear(d, d)

        def forward(self, ids: Tensor, weights: Tensor) -> Tensor:
            found: Tensor = F.relu(self.layer((self.table(ids) * weights[..., None]).sum(1)))
            return found

    return Model(), {"ids": Below((b, n), v), "weights": (b, n)}


@variant("discounted_sums", single, "b=512 t=1000", "b=3 t=9")
def discounted(b: int, t: int) -> tuple[nn.Module, Inputs]:
    """Discounted returns by a cumulative sum, and their normalised advantages."""

    def call(rewards: Tensor, values: Tensor) -> Tensor:
        scale = 0.99 ** torch.arange(t, device=rewards.device, dtype=rewards.dtype)
        left = (rewards * scale).flip(-1).cumsum(-1).flip(-1) / scale
        advantage = left - values
        return (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-6)

    return Of(call), {"rewards": (b, t), "values": (b, t)}


@variant("rotated_points", single, "b=64 n=4096", "b=2 n=7")
def rotated(b: int, n: int) -> tuple[nn.Module, Inputs]:
    """Point clouds rotated by a rotation vector each (Rodrigues' formula), translated, and projected by a camera."""

    def call(points: Tensor, turn: Tensor, shift: Tensor) -> Tensor:
        angle = turn.norm(dim=-1, keepdim=True)
        axis = (turn / angle)[:, None].expand_as(points)
        cos, sin = torch.cos(angle)[..., None], torch.sin(angle)[..., None]
        along = (axis * points).sum(-1, keepdim=True)
        p = points * cos + torch.linalg.cross(axis, points) * sin + axis * along * (1 - cos) + shift[:, None]
        return 500.0 * p[..., :2] / (p[..., 2:].abs() + 1) + 320.0

    return Of(call), {"points": (b, n, 3), "turn": (b, 3), "shift": (b, 3)}
