"""Small PyTorch models of well-known architectures, written plainly, for tests of loading and of block discovery.

Every class takes its sizes as arguments, has no training-only behaviour after `.eval()`, and `EXAMPLES` gives for each
a builder of (module, example inputs) with fixed random weights. Import this only where torch is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


# ---------------------------------------------------------------- encoder (BERT-like)
class EncoderLayer(nn.Module):
    """Self-attention written out with softmax, then a GELU feed-forward; post-norm."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.norm1 = nn.Linear(width, width), nn.LayerNorm(width, eps=1e-12)
        self.up, self.down, self.norm2 = (
            nn.Linear(width, inner),
            nn.Linear(inner, width),
            nn.LayerNorm(width, eps=1e-12),
        )
        self.dropout = nn.Dropout(0.1)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = q @ k.transpose(-1, -2) / (q.shape[-1] ** 0.5) + bias
        mixed = self.dropout(scores.softmax(-1)) @ v
        mixed = mixed.permute(0, 2, 1, 3).contiguous().view(x.shape)
        x = self.norm1(x + self.dropout(self.out(mixed)))
        return self.norm2(x + self.dropout(self.down(F.gelu(self.up(x)))))


class Encoder(nn.Module):
    """BERT: token, position and type embeddings, an additive padding mask shared by all layers, a tanh pooler."""

    def __init__(self, vocab: int = 50, width: int = 32, heads: int = 4, layers: int = 2, length: int = 16) -> None:
        super().__init__()
        self.tokens, self.positions, self.types = (
            nn.Embedding(vocab, width),
            nn.Embedding(length, width),
            nn.Embedding(2, width),
        )
        self.norm, self.pooler = nn.LayerNorm(width, eps=1e-12), nn.Linear(width, width)
        self.layers = nn.ModuleList(EncoderLayer(width, heads, 4 * width) for _ in range(layers))
        self.register_buffer("position_ids", torch.arange(length).unsqueeze(0), persistent=False)

    def forward(self, input_ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        positions = self.position_ids[:, : input_ids.shape[1]]
        x = self.tokens(input_ids) + self.positions(positions) + self.types(torch.zeros_like(input_ids))
        x = self.norm(x)
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, bias)
        return {"last_hidden_state": x, "pooler_output": torch.tanh(self.pooler(x[:, 0]))}


# ---------------------------------------------------------------- GPT-2
class Gpt2Block(nn.Module):
    """Pre-norm causal attention with one fused qkv projection, then a tanh-GELU feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(width, dim=2)
        q, k, v = (y.view(batch, length, self.heads, -1).transpose(1, 2) for y in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2 with its output layer tied to the token table."""

    def __init__(self, vocab: int = 50, width: int = 32, heads: int = 4, layers: int = 2, length: int = 16) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(Gpt2Block(width, heads) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.wte(input_ids) + self.wpe(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


# ---------------------------------------------------------------- Llama and Gemma
class RmsNorm(nn.Module):
    """The root-mean-square norm spelled out as exported decoders spell it, in float32; `plus_one` is Gemma's gain."""

    def __init__(self, width: int, eps: float = 1e-6, plus_one: bool = False) -> None:
        super().__init__()
        self.weight, self.eps, self.plus_one = nn.Parameter(torch.ones(width)), eps, plus_one

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        if self.plus_one:
            return (wide * (1.0 + self.weight.float())).to(x.dtype)
        return self.weight * wide.to(x.dtype)


def rotate_half(x: Tensor) -> Tensor:
    """[-second half, first half] of the last axis."""
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def repeat_kv(x: Tensor, times: int) -> Tensor:
    """Key heads repeated for grouped queries, by expand and reshape."""
    batch, heads, length, size = x.shape
    if times == 1:
        return x
    return x[:, :, None].expand(batch, heads, times, length, size).reshape(batch, heads * times, length, size)


class Rotary(nn.Module):
    """cos and sin of position times inverse frequency, computed in float32."""

    def __init__(self, size: int, base: float = 10000.0) -> None:
        super().__init__()
        self.register_buffer("inv_freq", base ** (-torch.arange(0, size, 2).float() / size), persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        frequencies = self.inv_freq[None, :, None].float().expand(position_ids.shape[0], -1, 1)
        with torch.autocast(device_type=x.device.type, enabled=False):
            angles = (frequencies @ position_ids[:, None, :].float()).transpose(1, 2)
            angles = torch.cat((angles, angles), dim=-1)
            return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class DecoderLayer(nn.Module):
    """Grouped-query attention with rotary positions, then a gated feed-forward. `gemma` adds its extra norms."""

    def __init__(self, width: int, heads: int, kv_heads: int, inner: int, size: int, gemma: bool, sdpa: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size, self.gemma, self.sdpa = heads, kv_heads, size, gemma, sdpa
        self.q_proj, self.o_proj = (
            nn.Linear(width, heads * size, bias=False),
            nn.Linear(heads * size, width, bias=False),
        )
        self.k_proj, self.v_proj = (nn.Linear(width, kv_heads * size, bias=False) for _ in range(2))
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        norm = lambda n: RmsNorm(n, plus_one=gemma)
        self.norm1, self.norm2 = norm(width), norm(width)
        if gemma:
            self.post1, self.post2, self.q_norm, self.k_norm = norm(width), norm(width), norm(size), norm(size)

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.size).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        if self.gemma:
            q, k = self.q_norm(q), self.k_norm(k)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        k, v = repeat_kv(k, self.heads // self.kv_heads), repeat_kv(v, self.heads // self.kv_heads)
        if self.sdpa:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.size**-0.5)
        else:
            scores = q @ k.transpose(2, 3) * self.size**-0.5 + mask
            mixed = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        mixed = self.attend(self.norm1(x), cos, sin, mask)
        x = x + (self.post1(mixed) if self.gemma else mixed)
        y = self.norm2(x)
        gate = F.gelu(self.gate(y), approximate="tanh") if self.gemma else F.silu(self.gate(y))
        y = self.down(gate * self.up(y))
        return x + (self.post2(y) if self.gemma else y)


class Llama(nn.Module):
    """A decoder with `mask` [B, S] (1 = real token) and `position_ids` [B, S] inputs and an explicit causal mask.

    `gemma=True` gives Gemma-3's scaled embeddings, norms with 1 + gain, query and key norms and tanh-GELU gate.
    """

    def __init__(
        self, vocab: int = 50, width: int = 32, heads: int = 4, kv_heads: int = 2, layers: int = 2, inner: int = 64,
        size: int = 8, gemma: bool = False, sdpa: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embed, self.rotary = nn.Embedding(vocab, width), Rotary(size)
        self.layers = nn.ModuleList(
            DecoderLayer(width, heads, kv_heads, inner, size, gemma, sdpa) for _ in range(layers)
        )
        self.norm, self.gemma = RmsNorm(width, plus_one=gemma), gemma
        self.lm_head = nn.Linear(width, vocab, bias=False)
        if gemma:
            self.lm_head.weight = self.embed.weight
            self.register_buffer("embed_scale", torch.tensor(width**0.5), persistent=False)

    def forward(self, input_ids: Tensor, mask: Tensor, position_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        if self.gemma:
            x = x * self.embed_scale.to(x.dtype)
        length = input_ids.shape[1]
        lowest = torch.finfo(x.dtype).min
        causal = torch.triu(torch.full((length, length), lowest, dtype=x.dtype, device=x.device), diagonal=1)
        hidden = (mask == 0)[:, None, None, :]
        bias = causal[None, None].expand(input_ids.shape[0], 1, -1, -1).masked_fill(hidden, lowest)
        cos, sin = self.rotary(x, position_ids)
        for layer in self.layers:
            x = layer(x, cos, sin, bias)
        return self.lm_head(self.norm(x))


def Gemma(**sizes: Any) -> Llama:
    """A Llama with what Gemma has besides: norms that scale by 1 + weight, scaled embeddings, GELU."""
    return Llama(gemma=True, **sizes)


# ---------------------------------------------------------------- convolutions
class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch norm and a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        plain = stride == 1 and channels_in == channels
        self.shortcut = nn.Identity() if plain else nn.Sequential(
            nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNetStage(nn.Module):
    """A stem with max pooling, a stage of residual blocks, global pooling and a classifier."""

    def __init__(self, channels: int = 8, blocks: int = 3, classes: int = 5) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels)
        self.pool = nn.MaxPool2d(3, 2, 1)
        sizes = [(channels, 2 * channels, 2), *[(2 * channels, 2 * channels, 1)] * (blocks - 1)]
        self.blocks = nn.Sequential(*(ResidualBlock(*s) for s in sizes))
        self.average, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(2 * channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.pool(F.relu(self.bn(self.stem(x)))))
        return self.fc(torch.flatten(self.average(x), 1))


def timestep_embedding(t: Tensor, size: int) -> Tensor:
    """Sines and cosines of a step number at geometrically spaced frequencies."""
    half = size // 2
    frequencies = torch.exp(-9.210340371976184 * torch.arange(half, device=t.device).float() / half)
    angles = t[:, None].float() * frequencies[None]
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)


class UNetBlock(nn.Module):
    """Group norm, SiLU and convolution twice, the time embedding added between, with a shortcut."""

    def __init__(self, channels_in: int, channels: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, channels_in), nn.GroupNorm(4, channels)
        self.conv1, self.conv2 = (
            nn.Conv2d(channels_in, channels, 3, padding=1),
            nn.Conv2d(channels, channels, 3, padding=1),
        )
        self.time = nn.Linear(time, channels)
        self.shortcut = nn.Conv2d(channels_in, channels, 1) if channels_in != channels else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class UNet(nn.Module):
    """A denoiser: two levels down and up with skips, nearest upsampling, a time embedding read by every block."""

    def __init__(self, channels: int = 8, levels: int = 2, channels_in: int = 3) -> None:
        super().__init__()
        time = 4 * channels
        self.channels = channels
        self.time = nn.Sequential(nn.Linear(channels, time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(channels_in, channels, 3, padding=1)
        widths = [channels * 2**i for i in range(levels + 1)]
        self.down = nn.ModuleList(UNetBlock(a, a, time) for a in widths[:-1])
        self.shrink = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in pairwise(widths))
        self.middle = UNetBlock(widths[-1], widths[-1], time)
        self.grow = nn.ModuleList(nn.Conv2d(b, a, 3, padding=1) for a, b in pairwise(widths))
        self.up = nn.ModuleList(UNetBlock(2 * a, a, time) for a in widths[:-1])
        self.norm, self.leave = nn.GroupNorm(4, channels), nn.Conv2d(channels, channels_in, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        time = self.time(timestep_embedding(t, self.channels))
        x, skips = self.enter(x), []
        for block, shrink in zip(self.down, self.shrink):
            x = block(x, time)
            skips.append(x)
            x = shrink(x)
        x = self.middle(x, time)
        for block, grow in zip(reversed(self.up), reversed(self.grow)):
            x = grow(F.interpolate(x, scale_factor=2.0, mode="nearest"))
            x = block(torch.cat([x, skips.pop()], dim=1), time)
        return self.leave(F.silu(self.norm(x)))


class DiTBlock(nn.Module):
    """Attention and feed-forward, each shifted, scaled and gated by the condition (adaLN-zero)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        batch, length, width = x.shape
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(F.silu(condition)).chunk(6, dim=1)
        y = self.norm1(x) * (1 + scale1.unsqueeze(1)) + shift1.unsqueeze(1)
        q, k, v = (
            self.qkv(y).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + gate1.unsqueeze(1) * self.out(mixed)
        y = self.norm2(x) * (1 + scale2.unsqueeze(1)) + shift2.unsqueeze(1)
        return x + gate2.unsqueeze(1) * self.down(F.gelu(self.up(y), approximate="tanh"))


class DiT(nn.Module):
    """A diffusion transformer: patches, condition of time and class, blocks, patches back to an image."""

    def __init__(
        self, width: int = 32, heads: int = 4, layers: int = 2, size: int = 8, patch: int = 2, classes: int = 4
    ) -> None:
        super().__init__()
        self.patch, self.grid, self.width = patch, size // patch, width
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(torch.randn(1, self.grid**2, width))
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(classes, width)
        self.blocks = nn.ModuleList(DiTBlock(width, heads) for _ in range(layers))
        self.norm, self.modulation = (
            nn.LayerNorm(width, elementwise_affine=False, eps=1e-6),
            nn.Linear(width, 2 * width),
        )
        self.out = nn.Linear(width, patch * patch * 3)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        condition = self.time(timestep_embedding(t, self.width)) + self.label(y)
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.modulation(F.silu(condition)).chunk(2, dim=1)
        x = self.out(self.norm(x) * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1))
        x = x.reshape(x.shape[0], self.grid, self.grid, self.patch, self.patch, 3)
        x = torch.einsum("nhwpqc->nchpwq", x)
        return x.reshape(x.shape[0], 3, self.grid * self.patch, self.grid * self.patch)


# ---------------------------------------------------------------- recurrent
class Recurrent(nn.Module):
    """LSTM and GRU cells unrolled over the steps of a sequence."""

    def __init__(self, width: int = 8, steps: int = 3) -> None:
        super().__init__()
        self.lstm, self.gru, self.steps, self.width = nn.LSTMCell(width, width), nn.GRUCell(width, width), steps, width

    def forward(self, x: Tensor) -> Tensor:
        h = c = g = torch.zeros(x.shape[0], self.width, dtype=x.dtype)
        for step in range(self.steps):
            h, c = self.lstm(x[:, step], (h, c))
            g = self.gru(h, g)
        return g


def _decoder_inputs(batch: int = 2, length: int = 6, vocab: int = 50) -> tuple[Tensor, ...]:
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, -2:] = 0
    return torch.randint(vocab, (batch, length)), mask, torch.arange(length).expand(batch, length).contiguous()


_IMAGE = lambda size: torch.randn(2, 3, size, size)
_STEPS = lambda: torch.tensor([3, 700])

#: name -> builder of (module, example inputs)
_BUILDERS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "encoder": lambda: (Encoder(), _decoder_inputs()[:2]),
    "gpt2": lambda: (Gpt2(), _decoder_inputs()[:1]),
    "llama": lambda: (Llama(), _decoder_inputs()),
    "llama_sdpa": lambda: (Llama(sdpa=True), _decoder_inputs()),
    "gemma": lambda: (Gemma(), _decoder_inputs()),
    "resnet": lambda: (ResNetStage(), (_IMAGE(32),)),
    "unet": lambda: (UNet(), (_IMAGE(8), _STEPS())),
    "dit": lambda: (DiT(), (_IMAGE(8), _STEPS(), torch.tensor([1, 3]))),
    "recurrent": lambda: (Recurrent(), (torch.randn(2, 3, 8),)),
}


def example(name: str, seed: int = 0) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """One of EXAMPLES with fixed weights and inputs; batch-norm statistics and norm gains are not trivial."""
    torch.manual_seed(seed)
    module, inputs = _BUILDERS[name]()
    module.eval()
    with torch.no_grad():
        for key, value in [*module.named_parameters(), *module.named_buffers()]:
            if value.is_floating_point() and ("norm" in key or "bn" in key) and "running_var" not in key:
                value.add_(torch.randn_like(value) * 0.1)
            elif "running_var" in key:
                value.mul_(torch.rand_like(value) + 0.5)
    return module, inputs


EXAMPLES = tuple(_BUILDERS)
