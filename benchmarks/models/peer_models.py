"""Well-known models as plain PyTorch modules, written as their reference implementations are, with random weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


# ---------------------------------------------------------------- BERT
class BertLayer(nn.Module):
    """Post-norm encoder layer with separate query, key and value projections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = lambda y: y.view(batch, length, self.heads, -1).transpose(1, 2)
        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = self.norm1(x + self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    """BERT-base without its pooler: tokens and a padding mask in, hidden states out."""

    def __init__(self, layers: int = 4, width: int = 768, heads: int = 12, vocab: int = 30522) -> None:
        super().__init__()
        self.tokens, self.positions, self.types = (
            nn.Embedding(vocab, width),
            nn.Embedding(512, width),
            nn.Embedding(2, width),
        )
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(BertLayer(width, heads) for _ in range(layers))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.positions.weight[:length] + self.types.weight[0]
        x = self.norm(x)
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, bias)
        return x


# ---------------------------------------------------------------- GPT-2
class Gpt2Block(nn.Module):
    """Pre-norm causal attention from one qkv projection, then a tanh-GELU feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            y.view(batch, length, self.heads, -1).transpose(1, 2) for y in self.qkv(self.ln_1(x)).split(width, dim=2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2 with its language-model head tied to the token table."""

    def __init__(self, layers: int = 4, width: int = 768, heads: int = 12, vocab: int = 50257) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Gpt2Block(width, heads) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        nn.init.normal_(self.wte.weight, std=width**-0.5)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.ln_f(x))


# ---------------------------------------------------------------- Gemma 3
class RmsNorm(nn.Module):
    """RMS norm computed in float32, with gain 1 + weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.05 * torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (wide * (1.0 + self.weight.float())).to(x.dtype)


class GemmaLayer(nn.Module):
    """Four norms, grouped-query attention with rotary positions and query and key norms, a tanh-GELU gate."""

    def __init__(self, width: int, heads: int, size: int, inner: int) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        linear = lambda a, b: nn.Linear(a, b, bias=False)
        self.q, self.k, self.v = linear(width, heads * size), linear(width, size), linear(width, size)
        self.o = linear(heads * size, width)
        self.gate, self.up, self.down = linear(width, inner), linear(width, inner), linear(inner, width)
        self.before1, self.after1, self.before2, self.after2 = (RmsNorm(width) for _ in range(4))
        self.q_norm, self.k_norm = RmsNorm(size), RmsNorm(size)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, *kept: Tensor, at: Tensor | None = None
    ) -> Tensor:
        """Output of the layer; `kept`: keys and values of earlier positions, into which new ones are written at
        positions `at`.
        """
        batch, length, _ = x.shape
        y = self.before1(x)
        q, k, v = (p(y).view(batch, length, -1, self.size).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = self.q_norm(q), self.k_norm(k)
        q, k = q * cos + _turned(q) * sin, k * cos + _turned(k) * sin
        if at is not None:
            k, v = (old.index_copy_(2, at, new) for old, new in zip(kept, (k, v), strict=True))
        k, v = (z.expand(batch, self.heads, -1, self.size) for z in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.size**-0.5)
        x = x + self.after1(self.o(mixed.transpose(1, 2).reshape(batch, length, -1)))
        y = self.before2(x)
        return x + self.after2(self.down(F.gelu(self.gate(y), approximate="tanh") * self.up(y)))


def _turned(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class Gemma(nn.Module):
    """Layers of Gemma-3-270M: tokens in, hidden states out, without the head (its 262,144 columns would dominate the
    time).
    """

    def __init__(
        self,
        layers: int = 4,
        width: int = 640,
        heads: int = 4,
        size: int = 256,
        inner: int = 2048,
        vocab: int = 262_144,
    ) -> None:
        super().__init__()
        self.embed, self.norm, self.width = nn.Embedding(vocab, width), RmsNorm(width), width
        nn.init.normal_(self.embed.weight, std=width**-0.5)
        self.layers = nn.ModuleList(GemmaLayer(width, heads, size, inner) for _ in range(layers))
        self.register_buffer("frequencies", 10000.0 ** (-torch.arange(0, size, 2).float() / size), persistent=False)

    def turns(self, places: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(cosines, sines) of rotary embeddings at positions."""
        angles = places.float()[:, None] * self.frequencies.float()
        angles = torch.cat((angles, angles), -1)
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.embed(tokens) * self.width**0.5
        cos, sin = self.turns(torch.arange(length, device=tokens.device), x.dtype)
        mask = torch.full((length, length), torch.finfo(x.dtype).min, dtype=x.dtype, device=x.device).triu(1)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.norm(x)


# ---------------------------------------------------------------- ResNet-50
class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride), 1x1, each with batch norm; a projected shortcut where shapes differ."""

    def __init__(self, before: int, features: int, stride: int) -> None:
        super().__init__()
        after = 4 * features
        conv = lambda a, b, size, by=1: nn.Conv2d(a, b, size, by, size // 2, bias=False)
        self.conv1, self.conv2, self.conv3 = (
            conv(before, features, 1),
            conv(features, features, 3, stride),
            conv(features, after, 1),
        )
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm2d(features), nn.BatchNorm2d(features), nn.BatchNorm2d(after)
        same = stride == 1 and before == after
        self.project = nn.Identity() if same else nn.Sequential(conv(before, after, 1, stride), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.project(x))


class ResNet50(nn.Module):
    """ResNet-50 for 224 x 224 images."""

    def __init__(self, width: int = 64, blocks: tuple[int, ...] = (3, 4, 6, 3)) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.pool, layers, before = nn.MaxPool2d(3, 2, 1), [], width
        for stage, count in enumerate(blocks):
            for i in range(count):
                layers.append(Bottleneck(before, width << stage, 2 if stage and not i else 1))
                before = 4 * (width << stage)
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(before, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.pool(F.relu(self.bn(self.stem(x)))))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


# ---------------------------------------------------------------- MobileNetV2
class InvertedResidual(nn.Module):
    """1x1 to more channels, depthwise 3x3 (with the stride), 1x1 back, with batch norms; ReLU6 after the first two."""

    def __init__(self, before: int, after: int, stride: int, expand: int) -> None:
        super().__init__()
        wide, self.same = before * expand, stride == 1 and before == after
        part = lambda a, b, size, by, groups, act: nn.Sequential(
            nn.Conv2d(a, b, size, by, size // 2, groups=groups, bias=False), nn.BatchNorm2d(b), nn.ReLU6() if act else nn.Identity()
        )  # fmt: skip
        first = [part(before, wide, 1, 1, 1, True)] if expand > 1 else []
        self.parts = nn.Sequential(*first, part(wide, wide, 3, stride, wide, True), part(wide, after, 1, 1, 1, False))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.parts(x)
        return x + y if self.same else y


class MobileNetV2(nn.Module):
    """MobileNetV2 for 224 x 224 images; `blocks`: (expansion, channels, count, stride) of each stage."""

    BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))

    def __init__(self, blocks: tuple[tuple[int, int, int, int], ...] = BLOCKS) -> None:
        super().__init__()
        self.stem, self.bn, layers, before = nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), [], 32
        for expand, width, count, stride in blocks:
            for i in range(count):
                layers.append(InvertedResidual(before, width, 1 if i else stride, expand))
                before = width
        self.layers, self.last = nn.Sequential(*layers), nn.Conv2d(before, 1280, 1, bias=False)
        self.last_bn, self.head = nn.BatchNorm2d(1280), nn.Linear(1280, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(F.relu6(self.bn(self.stem(x))))
        x = F.relu6(self.last_bn(self.last(x)))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


# ---------------------------------------------------------------- NasRNN
class NasRnn(nn.Module):
    """NAS recurrent cell (Zoph & Le 2017) over five steps, each with its own weights."""

    def __init__(self, steps: int = 5, width: int = 512) -> None:
        super().__init__()
        weight = lambda: nn.ParameterList(
            nn.Parameter(torch.randn(width, width) / width**0.5) for _ in range(8 * steps)
        )
        self.from_x, self.from_h, self.steps = weight(), weight(), steps
        self.start = nn.Parameter(torch.randn(1, width))

    def forward(self, *xs: Tensor) -> Tensor:
        h = self.start
        for step, x in enumerate(xs):
            g = [x @ self.from_x[8 * step + k] + h @ self.from_h[8 * step + k] for k in range(8)]
            a, b = F.relu(g[0]) + torch.sigmoid(g[3]), torch.sigmoid(g[1]) + torch.tanh(g[2])
            d, e = torch.sigmoid(g[4]) * torch.tanh(g[5]), torch.sigmoid(g[6]) * F.relu(g[7])
            h = torch.tanh(torch.tanh(torch.sigmoid(b) + torch.tanh(d)) * torch.tanh(torch.tanh(a) * torch.tanh(e)))
        return h


def trained(module: nn.Module) -> None:
    """Give batch norms random statistics as after training, instead of means 0 and variances 1."""
    for m in module.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean.normal_(0, 0.05)
            m.running_var.uniform_(0.8, 1.2)
            m.weight.data.normal_(0.5, 0.05)
            m.bias.data.normal_(0, 0.02)


def _tokens(length: int, vocab: int) -> tuple[Tensor, ...]:
    return (torch.randint(vocab, (1, length)),)


Made = tuple[nn.Module, tuple[Tensor, ...]]


def _unet(width: int, size: int) -> Made:
    """The diffusion U-Net of whole_models.py for one image of `size` x `size`."""
    from benchmarks.models.whole_models import UNet

    return UNet(width), (torch.randn(1, 4, size, size), torch.randn(1, width))


#: title -> builder of (module, inputs); `quick` makes it small
MODELS: dict[str, Callable[[bool], Made]] = {
    "BERT-base, 4 layers, T 128": lambda q: (
        Bert(1 if q else 4), (*_tokens(128, 30522), torch.ones(1, 128, dtype=torch.long))),
    "GPT-2, 4 layers, T 128, with lm_head": lambda q: (Gpt2(1 if q else 4, vocab=1000 if q else 50257), _tokens(128, 1000)),
    "Gemma-3-270M, 4 layers, T 64": lambda q: (Gemma(1 if q else 4, vocab=1000 if q else 262_144), _tokens(64, 1000)),
    "ResNet-50": lambda q: (ResNet50(blocks=(1, 1, 1, 1) if q else (3, 4, 6, 3)), (torch.randn(1, 3, 224, 224),)),
    "MobileNetV2": lambda q: (MobileNetV2(MobileNetV2.BLOCKS[: 2 if q else None]), (torch.randn(1, 3, 224, 224),)),
    "U-Net, 64 channels, 32 x 32": lambda q: _unet(16 if q else 64, 8 if q else 32),
    "NasRNN, 5 steps": lambda q: (NasRnn(1 if q else 5), tuple(torch.randn(1, 512) for _ in range(1 if q else 5))),
    "Gemma-3-270M, 4 layers, T 64, bfloat16": lambda q: (
        Gemma(1 if q else 4, vocab=1000 if q else 262_144).bfloat16(), _tokens(64, 1000)),
}  # fmt: skip


def build(title: str, *, quick: bool = False, seed: int = 0) -> Made:
    """(module in inference mode, its inputs) of a model by title; reproducible by `seed`. `quick`: small sizes."""
    torch.manual_seed(seed)
    module, inputs = MODELS[title](quick)
    with torch.no_grad():
        trained(module)
    return module.eval().requires_grad_(False), inputs
