"""Networks of benchmarks/cpu/one_thread.py whose shapes no other benchmark has: no kernel was written or tuned for
them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .torch_architectures import conv, head, mobile

Made = tuple[nn.Module, tuple[Tensor, ...]]


class Block(nn.Module):
    """Pre-norm transformer block; `length`, if not 0: attention has a learned bias for each distance of two positions;
    `causal`: positions attend to none after them (only without biases)."""

    def __init__(
        self,
        width: int,
        heads: int,
        length: int = 0,
        act: type[nn.Module] = nn.GELU,
        ratio: int = 4,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, ratio * width), act(), nn.Linear(ratio * width, width))
        self.table = nn.Parameter(0.1 * torch.randn(2 * length - 1, heads)) if length else None
        self.register_buffer("apart", torch.arange(length)[:, None] - torch.arange(length) + length - 1)

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        bias = None if self.table is None else self.table[self.apart].permute(2, 0, 1)[None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, c))
        return x + self.mlp(self.norm2(x))


class MobileVit(nn.Module):
    """Convolutions, then a transformer over the pixels of patches that have the same place, fused with the input."""

    def __init__(self, channels: int, width: int, patch: int = 2) -> None:
        super().__init__()
        self.patch, self.enter = patch, conv(channels, channels, 3, act=nn.SiLU)
        self.widen, self.narrow = nn.Conv2d(channels, width, 1), conv(width, channels, 1, act=nn.SiLU)
        self.blocks = nn.Sequential(*(Block(width, 4, act=nn.SiLU, ratio=2) for _ in range(2)))
        self.norm, self.fuse = nn.LayerNorm(width), conv(2 * channels, channels, 3, act=nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        y, p = self.widen(self.enter(x)), self.patch
        n, c, h, w = y.shape
        y = y.view(n, c, h // p, p, w // p, p).permute(0, 3, 5, 2, 4, 1).reshape(n * p * p, -1, c)
        y = self.norm(self.blocks(y)).view(n, p, p, h // p, w // p, c)
        y = y.permute(0, 5, 3, 1, 4, 2).reshape(n, c, h, w)
        return self.fuse(torch.cat((x, self.narrow(y)), 1))


class Conformer(nn.Module):
    """Half a feed-forward, attention, a gated depthwise convolution over time, half a feed-forward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = lambda: nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
        )
        self.first, self.last, self.attention = half(), half(), Block(width, 4)
        self.norm, self.final = nn.LayerNorm(width), nn.LayerNorm(width)
        self.convolutions = nn.Sequential(
            nn.Conv1d(width, 2 * width, 1), nn.GLU(1), nn.Conv1d(width, width, 15, padding=7, groups=width),
            nn.BatchNorm1d(width), nn.SiLU(), nn.Conv1d(width, width, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(x + 0.5 * self.first(x))
        x = x + self.convolutions(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return self.final(x + 0.5 * self.last(x))


class Dlrm(nn.Module):
    """Sums of embeddings of several features and a dense vector, products of all pairs, a perceptron."""

    def __init__(self, tables: int, width: int, rows: int = 5000) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(width + pairs, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1)
        )
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def summed(self, table: nn.EmbeddingBag, ids: Tensor) -> Tensor:
        """Sum of the rows `ids` (batch, count) of a table: (batch, width)."""
        return F.embedding(ids, table.weight).sum(1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        x = self.bottom(dense)
        all_ = torch.stack([x, *(self.summed(t, ids[:, i]) for i, t in enumerate(self.tables))], 1)
        products = all_ @ all_.transpose(1, 2)
        return torch.sigmoid(self.top(torch.cat((x, products[:, self.pairs[0], self.pairs[1]]), 1)))


class TabNet(nn.Module):
    """Decision steps: a mask of features by softmax, a gated perceptron with batch norms, sums of the steps."""

    def __init__(self, features: int, width: int, steps: int) -> None:
        super().__init__()
        glu = lambda a: nn.Sequential(nn.Linear(a, 2 * width, bias=False), nn.BatchNorm1d(2 * width), nn.GLU(1))
        self.first = nn.BatchNorm1d(features)
        self.masks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, features, bias=False), nn.BatchNorm1d(features)) for _ in range(steps)
        )
        self.enter, self.more = (
            nn.ModuleList(glu(features) for _ in range(steps)),
            nn.ModuleList(glu(width) for _ in range(steps)),
        )
        self.start, self.last = nn.Linear(features, width), nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        state, prior = self.start(x), torch.ones_like(x)
        total = torch.zeros_like(state)
        for mask, enter, more in zip(self.masks, self.enter, self.more, strict=True):
            chosen = torch.softmax(mask(state) * prior, -1)
            prior = prior * (1.3 - chosen)
            y = enter(x * chosen)
            state = (y + more(y)) * 0.7071
            total = total + F.relu(state)
        return self.last(total)


class Decoder(nn.Module):
    """A decoder of latent images: residual blocks with group norms, upsampling by nearest neighbours."""

    def __init__(self, width: int) -> None:
        super().__init__()
        part = lambda a, b: nn.Sequential(nn.GroupNorm(8, a), nn.SiLU(), nn.Conv2d(a, b, 3, padding=1))
        self.enter = nn.Conv2d(4, width, 3, padding=1)
        self.levels = nn.ModuleList(
            nn.ModuleList((part(a, b), part(b, b), nn.Conv2d(a, b, 1), nn.Conv2d(b, b, 3, padding=1)))
            for a, b in ((width, width), (width, width // 2))
        )
        self.last = part(width // 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for first, second, shortcut, after in self.levels:  # type: ignore[misc]
            x = shortcut(x) + second(first(x))
            x = after(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return torch.tanh(self.last(x))


class PointNet(nn.Module):
    """A perceptron of each point, the maximum over all points beside each point's own features."""

    def __init__(self) -> None:
        super().__init__()
        mlp = lambda *sizes: nn.Sequential(
            *(m for a, b in pairwise(sizes) for m in (nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU()))
        )
        self.own, self.all, self.each = mlp(3, 64, 64), mlp(64, 128, 256), mlp(320, 128, 64)
        self.last = nn.Conv1d(64, 13, 1)

    def forward(self, x: Tensor) -> Tensor:
        own = self.own(x)
        whole = self.all(own).amax(2, keepdim=True).expand(-1, -1, x.shape[2])
        return self.last(self.each(torch.cat((own, whole), 1)))


class GruEncoder(nn.Module):
    """Embedding, a GRU in both directions, a projection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.gru = nn.Embedding(3000, width), nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.project = nn.Linear(2 * width, width)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.project(self.gru(self.embed(ids))[0]))


class Gated(nn.Module):
    """A decoder layer with RMS norms and a gated SiLU perceptron."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.ones(width))
        self.gate, self.up, self.down = (
            nn.Linear(*s, bias=False) for s in ((width, inner), (width, inner), (inner, width))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.norm
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Mixer(nn.Module):
    """Perceptrons over tokens and over channels in turn."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        mlp = lambda a, b: nn.Sequential(nn.Linear(a, b), nn.GELU(), nn.Linear(b, a))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens, self.channels = mlp(tokens, 2 * tokens), mlp(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


def _super_resolution() -> Made:
    parts = (nn.Conv2d(3, 32, 5, padding=2), nn.Tanh(), nn.Conv2d(32, 32, 3, padding=1), nn.Tanh())
    return nn.Sequential(*parts, nn.Conv2d(32, 12, 3, padding=1), nn.PixelShuffle(2)), (torch.randn(1, 3, 64, 64),)


def _efficient() -> Made:
    blocks = [mobile(16, 24, 2, nn.SiLU, True), mobile(24, 24, 1, nn.SiLU, True), mobile(24, 48, 2, nn.SiLU, True)]
    return nn.Sequential(conv(3, 16, 3, 2, act=nn.SiLU), *blocks, *head(48)), (torch.randn(1, 3, 96, 96),)


def _halves() -> Made:
    module = nn.Sequential(Gated(256, 704), Gated(256, 704)).half()
    return module, (torch.randn(64, 256).half(),)


def _tokens(module: nn.Module, *shape: int) -> Made:
    return module, (torch.randn(*shape),)


UNSEEN: dict[str, Callable[[], Made]] = {
    "MobileViT block, 64 channels, 32 x 32": lambda: _tokens(MobileVit(64, 96), 1, 64, 32, 32),
    "Conformer, 2 layers of 144, 100 frames": lambda: _tokens(nn.Sequential(Conformer(144), Conformer(144)), 1, 100, 144),
    "DLRM, 8 tables of 32, 64 rows": lambda: (Dlrm(8, 32), (torch.randn(64, 13), torch.randint(5000, (64, 8, 4)))),
    "TabNet, 3 steps, 256 rows": lambda: _tokens(TabNet(54, 64, 3), 256, 54),
    "VAE decoder, 64 channels, 16 x 16 to 64 x 64": lambda: _tokens(Decoder(64), 1, 4, 16, 16),
    "PointNet, 1024 points": lambda: _tokens(PointNet(), 1, 3, 1024),
    "Super-resolution by pixel shuffle, 64 x 64": _super_resolution,
    "Transformer with relative positions, 3 layers of 192, 99 tokens": lambda: _tokens(
        nn.Sequential(*(Block(192, 6, 99) for _ in range(3))), 1, 99, 192
    ),
    "GRU encoder, both directions, 128, 40 tokens": lambda: (GruEncoder(128), (torch.randint(3000, (1, 40)),)),
    "Gated perceptrons in float16, 64 rows": _halves,
    "Gated perceptrons, 2 of 320, 37 rows": lambda: _tokens(nn.Sequential(Gated(320, 864), Gated(320, 864)), 37, 320),
    "MLP-Mixer, 2 blocks of 128, 196 tokens": lambda: _tokens(nn.Sequential(Mixer(196, 128), Mixer(196, 128)), 1, 196, 128),
    "Small EfficientNet, 96 x 96": _efficient,
}  # fmt: skip
"""Title -> builder of (module, inputs)."""
