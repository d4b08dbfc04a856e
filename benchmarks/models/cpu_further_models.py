"""Networks of benchmarks/cpu/one_thread.py of further architectures: dense connections, groups of channels, transposed
and asymmetric convolutions, dilated pyramids, upsampling, encoders of speech. No kernel was written or tuned for
them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .torch_architectures import conv

Made = tuple[nn.Module, tuple[Tensor, ...]]


class DenseBlock(nn.Module):
    """Each layer reads the channels of all earlier ones: batch norm, ReLU, 1 x 1, batch norm, ReLU, 3 x 3."""

    def __init__(self, channels: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(channels + i * growth), nn.ReLU(), nn.Conv2d(channels + i * growth, 4 * growth, 1, bias=False),
                nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            )
            for i in range(layers)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


class GroupedBlock(nn.Module):
    """1 x 1, 3 x 3 in groups of 16 channels, squeeze and excitation, 1 x 1, shortcut: a block of RegNetY."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.last = conv(channels, channels, 1), nn.Conv2d(channels, channels, 1)
        self.grouped = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, groups=channels // 16, bias=False),
                                     nn.BatchNorm2d(channels), nn.ReLU())  # fmt: skip
        self.down, self.up = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.grouped(self.first(x))
        y = y * torch.sigmoid(self.up(F.relu(self.down(y.mean((2, 3), keepdim=True)))))
        return F.relu(x + self.last(y))


class SpeechEncoder(nn.Module):
    """Two convolutions over time with GELU, then pre-norm transformer layers: the encoder of Whisper."""

    def __init__(self, width: int, layers: int, frames: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(80, width, 3, padding=1), nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.places = nn.Parameter(0.1 * torch.randn(frames // 2, width))
        layer = lambda: nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers, self.norm = nn.ModuleList(layer() for _ in range(layers)), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.second(F.gelu(self.first(x)))).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Vocoder(nn.Module):
    """Transposed convolutions over time, each followed by dilated convolutions with shortcuts: HiFi-GAN."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, channels, 7, padding=3)
        sizes = [channels // 2**i for i in range(3)]
        self.ups = nn.ModuleList(nn.ConvTranspose1d(c, c // 2, 8, 4, 2) for c in sizes)
        self.parts = nn.ModuleList(
            nn.ModuleList(nn.Conv1d(c // 2, c // 2, 3, padding=d, dilation=d) for d in (1, 3, 5)) for c in sizes
        )
        self.last = nn.Conv1d(sizes[-1] // 2, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for up, parts in zip(self.ups, self.parts):
            x = up(F.leaky_relu(x, 0.1))
            for part in parts:
                x = x + part(F.leaky_relu(x, 0.1))
        return torch.tanh(self.last(F.leaky_relu(x, 0.1)))


class Detector(nn.Module):
    """Split and joined bottlenecks with SiLU, pooling pyramid, upsampling and a head at two sizes: YOLO."""

    def __init__(self, c: int) -> None:
        super().__init__()
        block = lambda a, b, k=1, s=1: conv(a, b, k, s, act=nn.SiLU)
        self.stem, self.split, self.inner = block(3, c, 3, 2), block(c, 2 * c, 3, 2), block(c, c, 3)
        self.joined, self.down, self.after = block(3 * c, 2 * c), block(2 * c, 4 * c, 3, 2), block(16 * c, 4 * c)
        self.small, self.large = nn.Conv2d(4 * c, 24, 1), nn.Conv2d(6 * c, 24, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.split(self.stem(x))
        a, b = x.chunk(2, 1)
        x = self.joined(torch.cat([a, b, b + self.inner(b)], 1))
        y = self.down(x)
        pools = [y]
        for _ in range(3):
            pools.append(F.max_pool2d(pools[-1], 5, 1, 2))
        y = self.after(torch.cat(pools, 1))
        up = torch.cat([F.interpolate(y, scale_factor=2.0, mode="nearest"), x], 1)
        return torch.cat([self.small(y).flatten(2), self.large(up).flatten(2)], 2)


class Inception(nn.Module):
    """Four branches side by side, two of them with 1 x 7 and 7 x 1 convolutions: a block of InceptionV3."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        line = lambda a, b, size: nn.Sequential(
            nn.Conv2d(a, b, size, padding=(size[0] // 2, size[1] // 2), bias=False), nn.BatchNorm2d(b), nn.ReLU()
        )
        self.one, self.pooled = line(channels, 192, (1, 1)), line(channels, 192, (1, 1))
        self.two = nn.Sequential(line(channels, inner, (1, 1)), line(inner, inner, (1, 7)), line(inner, 192, (7, 1)))
        sizes = [(7, 1), (1, 7), (7, 1), (1, 7)]
        self.three = nn.Sequential(
            line(channels, inner, (1, 1)), *(line(inner, 192 if i == 3 else inner, s) for i, s in enumerate(sizes))
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.two(x), self.three(x), self.pooled(F.avg_pool2d(x, 3, 1, 1))], 1)


class Pyramid(nn.Module):
    """Convolutions with several dilations and a global mean side by side, upsampled by bilinear interpolation: the head
    of DeepLab."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        dilated = lambda d: nn.Sequential(
            nn.Conv2d(channels, inner, 3, padding=d, dilation=d, bias=False), nn.BatchNorm2d(inner), nn.ReLU()
        )
        self.parts = nn.ModuleList([conv(channels, inner, 1), dilated(2), dilated(4), dilated(6)])
        self.mean, self.joined = nn.Conv2d(channels, inner, 1), conv(5 * inner, inner, 1)
        self.last = nn.Conv2d(inner, 21, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = F.relu(self.mean(x.mean((2, 3), keepdim=True))).expand(-1, -1, *x.shape[2:])
        y = self.last(self.joined(torch.cat([*(part(x) for part in self.parts), mean], 1)))
        return F.interpolate(y, scale_factor=4.0, mode="bilinear", align_corners=False)


FURTHER: dict[str, Callable[[], Made]] = {
    "DenseNet block, 6 layers, 28 x 28": lambda: (DenseBlock(64, 32, 6), (torch.randn(1, 64, 28, 28),)),
    "RegNetY, 3 blocks of 128, 28 x 28": lambda: (nn.Sequential(*(GroupedBlock(128) for _ in range(3))), (torch.randn(1, 128, 28, 28),)),
    "Whisper encoder, 2 layers of 256, 200 frames": lambda: (SpeechEncoder(256, 2, 200), (torch.randn(1, 80, 200),)),
    "HiFi-GAN, 128 channels, 32 frames": lambda: (Vocoder(128), (torch.randn(1, 80, 32),)),
    "YOLO-like, 128 x 128": lambda: (Detector(24), (torch.randn(1, 3, 128, 128),)),
    "Inception block, 17 x 17": lambda: (Inception(256, 96), (torch.randn(1, 256, 17, 17),)),
    "DeepLab head, 24 x 24": lambda: (Pyramid(128, 64), (torch.randn(1, 128, 24, 24),)),
}  # fmt: skip
"""Title -> builder of (module, inputs)."""
