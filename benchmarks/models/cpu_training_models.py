"""Blocks of typical models whose kernels are the starter rows of a CPU (benchmarks/cpu/starter_rows.py); float32, batch
1 unless named otherwise.

None of them is a module of `benchmarks/search/small_budgets.py`, and no size of theirs is one of these."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Made = tuple[nn.Module, tuple[Tensor, ...]]


class Of(nn.Module):
    """Module that applies a function to its inputs."""

    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.call(*inputs)


class GPTBlock(nn.Module):
    """Causal attention and feed-forward with layer norms before both."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, width = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class LlamaBlock(nn.Module):
    """Grouped-query attention and gated feed-forward with RMS norms before both."""

    def __init__(self, width: int, heads: int, groups: int, inner: int) -> None:
        super().__init__()
        self.heads, self.groups, size = heads, groups, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, n * size, bias=False) for n in (heads, groups, groups))
        self.o, self.down = nn.Linear(width, width, bias=False), nn.Linear(inner, width, bias=False)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        b, t, width = x.shape
        y = self.norm1(x)
        q = self.q(y).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = (p(y).view(b, t, self.groups, -1).transpose(1, 2) for p in (self.k, self.v))
        k, v = (p.repeat_interleave(self.heads // self.groups, 1) for p in (k, v))
        scores = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1)
        x = x + self.o((scores @ v).transpose(1, 2).reshape(b, t, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Separable(nn.Module):
    """Inverted residual: pointwise, depthwise and pointwise convolution with batch norms."""

    def __init__(self, channels: int, factor: int, act: type[nn.Module] = nn.ReLU6) -> None:
        super().__init__()
        wide = factor * channels
        self.layers = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), act(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), act(),
            nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Residual(nn.Module):
    """Residual block of convolutions with batch norms: two of 3x3, or a bottleneck."""

    def __init__(self, channels: int, inner: int = 0) -> None:
        super().__init__()
        ends = (
            ((channels, inner, 1), (inner, inner, 3), (inner, channels, 1)) if inner else ((channels, channels, 3),) * 2
        )
        parts: list[nn.Module] = []
        for a, b, k in ends:
            parts += [nn.Conv2d(a, b, k, padding=k // 2, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.layers = nn.Sequential(*parts[:-1])

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.layers(x))


class Excite(nn.Module):
    """Inverted bottleneck with a 5x5 depthwise convolution, and channels weighted by their means."""

    def __init__(self, width: int, factor: int, act: type[nn.Module] = nn.Hardswish) -> None:
        super().__init__()
        inner, few = factor * width, max(8, factor * width // 8)
        self.enter = nn.Sequential(nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner), act())
        depthwise = nn.Conv2d(inner, inner, 5, padding=2, groups=inner, bias=False)
        self.spread = nn.Sequential(depthwise, nn.BatchNorm2d(inner), act())
        squeeze = [
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(inner, few, 1),
            nn.ReLU(),
            nn.Conv2d(few, inner, 1),
            nn.Hardsigmoid(),
        ]
        self.weigh = nn.Sequential(*squeeze)
        self.leave = nn.Sequential(nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.spread(self.enter(x))
        return x + self.leave(y * self.weigh(y))


class ConvNext(nn.Module):
    """Depthwise convolution of 7x7, layer norm over channels, and feed-forward."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm, self.up, self.down = (
            nn.LayerNorm(channels),
            nn.Linear(channels, 4 * channels),
            nn.Linear(4 * channels, channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(self.mix(x).permute(0, 2, 3, 1))))).permute(0, 3, 1, 2)


def _layer(width: int, heads: int, inner: int, first: bool, act: str = "gelu") -> nn.Module:
    return nn.TransformerEncoderLayer(width, heads, inner, activation=act, batch_first=True, norm_first=first)


def _mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Module:
    parts = [p for a, b in pairwise(widths) for p in (nn.Linear(a, b), act())]
    return nn.Sequential(*parts[:-1])


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _chain(x: Tensor, y: Tensor) -> Tensor:
    return torch.sigmoid(x * y) * torch.tanh(x + y) + torch.exp(-x.abs())


def _standard(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)


def models() -> dict[str, Callable[[], Made]]:
    """Name -> function that makes (module, example inputs)."""
    r = torch.randn
    return {
        "bert_base_t128": lambda: (_layer(768, 12, 3072, False), (r(1, 128, 768),)),
        "bert_small_t64": lambda: (_layer(256, 4, 1024, False), (r(1, 64, 256),)),
        "encoder_384_t197": lambda: (_layer(384, 6, 1536, True), (r(1, 197, 384),)),
        "encoder_192_b4_t50": lambda: (_layer(192, 3, 768, True), (r(4, 50, 192),)),
        "gpt2_t64": lambda: (GPTBlock(768, 12), (r(1, 64, 768),)),
        "gpt_320_t32": lambda: (GPTBlock(320, 5), (r(1, 32, 320),)),
        "gpt_1024_t1": lambda: (GPTBlock(1024, 16), (r(1, 1, 1024),)),
        "llama_512_t48": lambda: (LlamaBlock(512, 8, 2, 1376), (r(1, 48, 512),)),
        "llama_1024_t1": lambda: (LlamaBlock(1024, 16, 4, 2816), (r(1, 1, 1024),)),
        "mlp_digits_b64": lambda: (_mlp(784, 512, 256, 10), (r(64, 784),)),
        "mlp_1024_b1": lambda: (_mlp(1024, 4096, 1024, act=nn.GELU), (r(1, 1024),)),
        "mlp_768_b16": lambda: (_mlp(768, 3072, 768, act=nn.GELU), (r(16, 768),)),
        "mlp_320_b200": lambda: (_mlp(320, 1280, 320, act=nn.SiLU), (r(200, 320),)),
        "layer_norm_128x768": lambda: (nn.LayerNorm(768), (r(128, 768),)),
        "layer_norm_1024x384": lambda: (nn.LayerNorm(384), (r(1024, 384),)),
        "rms_norm_64x2048": lambda: (nn.RMSNorm(2048), (r(64, 2048),)),
        "group_norm_64": lambda: (nn.GroupNorm(8, 64), (r(1, 64, 48, 48),)),
        "standard_300x500": lambda: (Of(_standard), (r(300, 500),)),
        "softmax_12x128x128": lambda: (nn.Softmax(-1), (r(12, 128, 128),)),
        "log_softmax_16x32000": lambda: (nn.LogSoftmax(-1), (r(16, 32000),)),
        "attention_12x128x64": lambda: (Of(_attention), (r(1, 12, 128, 64), r(1, 12, 128, 64), r(1, 12, 128, 64))),
        "attention_6x320x32": lambda: (Of(_attention), (r(1, 6, 320, 32), r(1, 6, 320, 32), r(1, 6, 320, 32))),
        "attention_8x1x250x64": lambda: (Of(_attention), (r(1, 8, 1, 64), r(1, 8, 250, 64), r(1, 8, 250, 64))),
        "chain_1m": lambda: (Of(_chain), (r(1024, 1024), r(1024, 1024))),
        "chain_20k": lambda: (Of(_chain), (r(40, 512), r(40, 512))),
        "gelu_128x3072": lambda: (nn.GELU(), (r(128, 3072),)),
        "residual_128_28": lambda: (Residual(128), (r(1, 128, 28, 28),)),
        "residual_32_96": lambda: (Residual(32), (r(1, 32, 96, 96),)),
        "bottleneck_256_28": lambda: (Residual(256, 64), (r(1, 256, 28, 28),)),
        "bottleneck_512_14_b2": lambda: (Residual(512, 128), (r(2, 512, 14, 14),)),
        "separable_24_56": lambda: (Separable(24, 6), (r(1, 24, 56, 56),)),
        "separable_64_14": lambda: (Separable(64, 4, nn.SiLU), (r(1, 64, 14, 14),)),
        "excite_32_20": lambda: (Excite(32, 4), (r(1, 32, 20, 20),)),
        "excite_56_10": lambda: (Excite(56, 3, nn.SiLU), (r(1, 56, 10, 10),)),
        "convnext_96_28": lambda: (ConvNext(96), (r(1, 96, 28, 28),)),
        "stem_224": lambda: (
            nn.Sequential(nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
            (r(1, 3, 128, 128),),
        ),
        "head_1280": lambda: (nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)), (r(1, 1280, 7, 7),)),
        "lm_head_4x512": lambda: (nn.Linear(512, 16000, bias=False), (r(4, 512),)),
    }  # fmt: skip
