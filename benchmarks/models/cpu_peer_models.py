"""Networks of benchmarks/cpu/one_thread.py as plain PyTorch modules with random weights: blocks of common
architectures, which are not the models on which kernels were tuned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cpu_further_models import FURTHER
from .cpu_unseen_models import UNSEEN
from .peer_models import trained
from .torch_architectures import LayerNorm2d, Net, conv, excite, head, mobile, residual, shuffle

Made = tuple[nn.Module, tuple[Tensor, ...]]


class NormedBlock(nn.Module):
    """Two 3x3 convolutions with group norms and a shortcut: a block of a ResNet without batch statistics."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        part = lambda a, by: [nn.Conv2d(a, after, 3, by, 1, bias=False), nn.GroupNorm(32, after)]
        self.parts = nn.Sequential(*part(before, stride), nn.ReLU(), *part(after, 1))
        self.project = (
            nn.Identity()
            if stride == 1
            else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(32, after))
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.parts(x) + self.project(x))


class ConvNextBlock(nn.Module):
    """7x7 depthwise convolution, layer norm over channels, two linear layers with GELU, layer scale, shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(0.1 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


class SwinBlock(nn.Module):
    """Attention in windows of `size` x `size` positions with relative biases, shifted by `shift`, and an MLP."""

    def __init__(self, width: int, heads: int, side: int, size: int, shift: int) -> None:
        super().__init__()
        self.heads, self.size, self.shift, self.side = heads, size, shift, side
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.table = nn.Parameter(0.02 * torch.randn((2 * size - 1) ** 2, heads))
        at = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")).flatten(1)
        apart = at[:, :, None] - at[:, None, :] + size - 1
        self.register_buffer("index", apart[0] * (2 * size - 1) + apart[1])
        region = torch.zeros(side, side)
        for i, rows in enumerate((slice(0, -size), slice(-size, -shift), slice(-shift, None))):
            for j, columns in enumerate((slice(0, -size), slice(-size, -shift), slice(-shift, None))):
                region[rows, columns] = 3 * i + j
        of = self.windows(region[None, :, :, None])[..., 0]
        mask = torch.where(of[:, None, :] == of[:, :, None], 0.0, -100.0)[:, None]
        self.register_buffer("mask", mask if shift else torch.zeros(1))

    def windows(self, x: Tensor) -> Tensor:
        """Positions of windows: [batch * windows, size * size, channels]."""
        n, h, w, c = x.shape
        y = x.view(n, h // self.size, self.size, w // self.size, self.size, c).transpose(2, 3)
        return y.reshape(-1, self.size**2, c)

    def forward(self, x: Tensor) -> Tensor:
        n, length, c = x.shape
        y = self.norm1(x).view(n, self.side, self.side, c)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        windows = self.windows(y)
        q, k, v = self.qkv(windows).view(windows.shape[0], -1, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index].permute(2, 0, 1)[None] + self.mask
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(windows.shape)
        many = self.side // self.size
        y = self.proj(y).view(n, many, many, self.size, self.size, c).transpose(2, 3)
        y = y.reshape(n, self.side, self.side, c)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y.reshape(n, length, c)
        return x + self.mlp(self.norm2(x))


class WaveNet(nn.Module):
    """Gated causal convolutions with doubling dilations, residual and skip connections."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(1, width, 1), nn.Conv1d(width, 256, 1)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 3, dilation=2**i) for i in range(layers))
        self.outs = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        skips = torch.zeros_like(x)
        for i, (gate, out) in enumerate(zip(self.gates, self.outs, strict=True)):
            a, b = gate(F.pad(x, (2 * 2**i, 0))).chunk(2, 1)
            more, skip = out(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            x, skips = x + more, skips + skip
        return self.last(F.relu(skips))


class LstmModel(nn.Module):
    """A language model: embedding, two LSTM layers, head."""

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab, width), nn.Linear(width, vocab)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(tokens))[0])


def _images(module: nn.Module, side: int, channels: int = 3) -> Made:
    return module, (torch.randn(1, channels, side, side),)


def _convnext() -> Made:
    blocks = lambda width: [ConvNextBlock(width) for _ in range(3)]
    return _images(
        nn.Sequential(
            nn.Conv2d(3, 96, 4, 4), *blocks(96), LayerNorm2d(96), nn.Conv2d(96, 192, 2, 2), *blocks(192), *head(192)
        ),
        128,
    )


def _resnet() -> Made:
    return _images(
        nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.GroupNorm(32, 64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
            NormedBlock(64, 64, 1), NormedBlock(64, 64, 1), NormedBlock(64, 128, 2), NormedBlock(128, 128, 1),
            NormedBlock(128, 256, 2), NormedBlock(256, 256, 1), *head(256),
        ), 128,
    )  # fmt: skip


def _squeezed(act: Any, window: int) -> list[nn.Module]:
    """Inverted residuals with squeeze and excitation, as MobileNetV3 and EfficientNet have them."""

    def block(before: int, after: int, wide: int, stride: int) -> nn.Module:
        layers = nn.Sequential(
            nn.Conv2d(before, wide, 1, bias=False), nn.BatchNorm2d(wide), act(),
            nn.Conv2d(wide, wide, window, stride, window // 2, groups=wide, bias=False), nn.BatchNorm2d(wide), act(),
            excite(wide), nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        return residual(layers) if stride == 1 and before == after else layers

    return [
        block(40, 40, 240, 1),
        block(40, 80, 240, 2),
        block(80, 80, 480, 1),
        block(80, 112, 480, 1),
        block(112, 112, 672, 1),
    ]


def _shufflenet() -> Made:
    unit = lambda: Net(
        shuffle,
        body=nn.Sequential(
            conv(58, 58, 1), nn.Conv2d(58, 58, 3, padding=1, groups=58, bias=False), nn.BatchNorm2d(58), conv(58, 58, 1)
        ),
    )
    return _images(nn.Sequential(*(unit() for _ in range(6)), *head(116)), 28, 116)


MODELS: dict[str, Callable[[], Made]] = {
    "ResNet-14 with group norm, 128 x 128": _resnet,
    "ConvNeXt, 6 blocks, 128 x 128": _convnext,
    "Swin, 2 blocks, 28 x 28, windows of 7": lambda: (
        nn.Sequential(SwinBlock(96, 3, 28, 7, 0), SwinBlock(96, 3, 28, 7, 3)),
        (torch.randn(1, 784, 96),),
    ),
    "WaveNet, 8 layers, 64 channels, 1024 samples": lambda: (WaveNet(64, 8), (torch.randn(1, 1, 1024),)),
    "LSTM language model, 2 layers of 256, 32 tokens": lambda: (LstmModel(5000, 256), (torch.randint(5000, (1, 32)),)),
    "MobileNetV3-like, 5 blocks, 28 x 28": lambda: _images(
        nn.Sequential(*_squeezed(nn.Hardswish, 5), *head(112)), 28, 40
    ),
    "EfficientNet-like, 5 blocks, 28 x 28": lambda: _images(nn.Sequential(*_squeezed(nn.SiLU, 5), *head(112)), 28, 40),
    "ShuffleNetV2-like, 6 units, 28 x 28": _shufflenet,
    "MobileNetV2-like, 4 blocks, 56 x 56": lambda: _images(
        nn.Sequential(mobile(24, 24, 1), mobile(24, 32, 2), mobile(32, 32, 1), mobile(32, 64, 2), *head(64)), 56, 24
    ),
    **UNSEEN,
    **FURTHER,
}
"""Title -> builder of (module, inputs)."""


def build(title: str, seed: int = 0) -> Made:
    """(module in inference mode, its inputs) of a model by title; reproducible by `seed`."""
    torch.manual_seed(seed)
    module, inputs = MODELS[title]()
    with torch.no_grad():
        trained(module)
    return module.eval().requires_grad_(False), inputs
