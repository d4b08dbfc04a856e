"""Whole models with random weights, for benchmarks/gpu/whole_models.py.

The models of peer_models.py at their own depth, decode steps with a cache, image and audio models, and classes of
Hugging Face's `transformers`; without that package, these fail with its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.models import peer_models as peers
from benchmarks.models.variant import Below, Inputs, Make, Table, brain, half, variant
from benchmarks.models.workloads import flat

Made = tuple[nn.Module, Inputs]

MODELS: Table = {}
TINY: Table = {}
"""The models at small sizes, to see whether everything runs."""


def model(name: str, dtype: torch.dtype, full: str, tiny: str, **more: Any) -> Callable[[Make], Make]:
    """Decorator that adds a model to the tables (`variants.variant`)."""
    return variant(name, dtype, full, tiny, (MODELS, TINY), **more)


# ---------------------------------------------------------------- language
@model("gemma3_270m_t128", brain, "layers=18 t=128 vocab=262144", "layers=2 t=8 vocab=50", unread=("embed.weight",))
def gemma(layers: int, t: int, vocab: int) -> Made:
    """Prefill of Gemma: tokens in, hidden states out."""
    return peers.Gemma(layers, vocab=vocab), {"tokens": Below((1, t), vocab)}


class GemmaStep(peers.Gemma):
    """Decode step of Gemma over caches of `context` positions: logits out."""

    def __init__(self, context: int, layers: int, vocab: int) -> None:
        super().__init__(layers, vocab=vocab)
        self.context, size = context, self.layers[0].size
        for i in range(layers):
            self.register_buffer(f"keys{i}", torch.randn(1, 1, context, size))
            self.register_buffer(f"values{i}", torch.randn(1, 1, context, size))

    def forward(self, tokens: Tensor, at: Tensor | None = None) -> Tensor:
        """Logits of the next token; `at`: position of the token, of shape (1,)."""
        assert at is not None
        x = self.embed(tokens) * self.width**0.5
        cos, sin = self.turns(at, x.dtype)
        hidden = torch.arange(self.context, device=x.device)[None] > at[:, None]
        mask = torch.zeros_like(hidden, dtype=x.dtype).masked_fill(hidden, torch.finfo(x.dtype).min)
        for i, layer in enumerate(self.layers):
            x = layer(x, cos, sin, mask, getattr(self, f"keys{i}"), getattr(self, f"values{i}"), at=at)
        return F.linear(self.norm(x), self.embed.weight)


@model("gemma3_270m_decode", brain, "c=1024 layers=18 vocab=262144", "c=8 layers=2 vocab=50")
def gemma_step(c: int, layers: int, vocab: int) -> Made:
    """Decode step of Gemma with caches and language-model head."""
    return GemmaStep(c, layers, vocab), {"tokens": Below((1, 1), vocab), "at": Below((1,), c)}


@model("gpt2_t128", brain, "layers=12 t=128 vocab=50257", "layers=2 t=8 vocab=50")
@model("gpt2_t1000", brain, "layers=12 t=1000 vocab=50257", "layers=2 t=9 vocab=50")
def gpt2(layers: int, t: int, vocab: int) -> Made:
    """GPT-2 (124 million weights) with its language-model head."""
    return peers.Gpt2(layers, vocab=vocab), {"tokens": Below((1, t), vocab)}


@model(
    "bert_base_fp16_b8_t128",
    half,
    "layers=12 b=8 t=128 vocab=30522",
    "layers=2 b=2 t=8 vocab=50",
    unread=("tokens.weight",),
)
def bert(layers: int, b: int, t: int, vocab: int) -> Made:
    """BERT-base with a padding mask."""
    return peers.Bert(layers, vocab=vocab), {"tokens": Below((b, t), vocab), "mask": Below((b, t), 2)}


@model(
    "bert_base_onnx_t128",
    half,
    "layers=12 b=1 t=128 vocab=30522",
    "layers=2 b=1 t=8 vocab=50",
    onnx=True,
    unread=("tokens.weight",),
)
def bert_onnx(layers: int, b: int, t: int, vocab: int) -> Made:
    """BERT-base for one text; ours is made from an ONNX file."""
    return bert(layers, b, t, vocab)


@model(
    "llama_1b_4_layers_decode", brain, "layers=4 d=2048 n=8192 c=1024 vocab=128256", "layers=2 d=256 n=40 c=8 vocab=50"
)
def llama_step(layers: int, d: int, n: int, c: int, vocab: int) -> Made:
    """A decode step of Hugging Face's Llama (heads of 64, four queries a key) with a static cache."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.cache_utils import StaticCache

    config = LlamaConfig(
        hidden_size=d, intermediate_size=n, num_attention_heads=d // 64, num_key_value_heads=d // 256, num_hidden_layers=layers,
        vocab_size=vocab, head_dim=64, max_position_embeddings=c,
    )  # fmt: skip

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = LlamaForCausalLM(config)
            for i in range(layers):
                for part in ("keys", "values"):
                    self.register_buffer(f"{part}{i}", torch.randn(1, d // 256, c, 64))

        def forward(self, tokens: Tensor, at: Tensor) -> Tensor:
            cache = StaticCache(config=config, max_cache_len=c)
            for i, layer in enumerate(cache.layers):
                layer.keys, layer.values = getattr(self, f"keys{i}"), getattr(self, f"values{i}")
                layer.dtype, layer.device, layer.is_initialized = layer.keys.dtype, layer.keys.device, True
            hidden = torch.arange(c, device=at.device)[None] > at[:, None]
            mask = torch.zeros_like(hidden, dtype=self.keys0.dtype).masked_fill(
                hidden, torch.finfo(self.keys0.dtype).min
            )
            out = self.model(
                tokens, past_key_values=cache, position_ids=at[None], attention_mask=mask[None, None], cache_position=at
            )
            found: Tensor = out.logits
            return found

    return Step(), {"tokens": Below((1, 1), vocab), "at": Below((1,), c)}


@model(
    "t5_small_encoder_t128",
    brain,
    "layers=6 t=128 vocab=32128",
    "layers=2 t=8 vocab=50",
    unread=("inner.shared.weight",),
)
def t5(layers: int, t: int, vocab: int) -> Made:
    """T5's encoder with relative position biases."""
    from transformers import T5Config, T5EncoderModel

    found = T5EncoderModel(T5Config(vocab_size=vocab, num_layers=layers))
    return First(found), {"tokens": Below((1, t), vocab)}


@model(
    "mamba_130m_4_layers_t16",
    brain,
    "layers=4 t=16 d=768 vocab=50280",
    "layers=1 t=3 d=32 vocab=50",
    unread=("inner.embeddings.weight",),
)
def mamba(layers: int, t: int, d: int, vocab: int) -> Made:
    """Mamba, its recurrence unrolled."""
    from transformers import MambaConfig, MambaModel

    found = MambaModel(MambaConfig(vocab_size=vocab, hidden_size=d, num_hidden_layers=layers, use_cache=False))
    return First(found), {"tokens": Below((1, t), vocab)}


class First(nn.Module):
    """Module that returns the first result of a model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return flat(self.inner(x, return_dict=False))[0]


# ---------------------------------------------------------------- pictures and sound
@model("vit_b16_fp16_b8", half, "layers=12 b=8", "layers=1 b=1")
def vit(layers: int, b: int) -> Made:
    """A vision transformer."""
    from transformers import ViTConfig, ViTModel

    found = ViTModel(ViTConfig(num_hidden_layers=layers), add_pooling_layer=False)
    return First(found), {"pixels": (b, 3, 224, 224)}


@model("whisper_base_encoder_fp16", half, "layers=6 t=1500", "layers=1 t=8")
def whisper(layers: int, t: int) -> Made:
    """Whisper's encoder for 30 seconds of sound."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=512, encoder_layers=layers, encoder_attention_heads=8, encoder_ffn_dim=2048, max_source_positions=t
    )
    return First(WhisperEncoder(config)), {"sound": (1, 80, 2 * t)}


@model("resnet50_fp16_b1", half, "b=1 blocks=3463", "b=1 blocks=1111", layout=torch.channels_last)
@model("resnet50_fp16_b32", half, "b=32 blocks=3463", "b=2 blocks=1111", layout=torch.channels_last)
def resnet50(b: int, blocks: int) -> Made:
    """ResNet-50 for 224 x 224 images; peers run channels last."""
    found = peers.ResNet50(blocks=tuple(map(int, str(blocks))))
    with torch.no_grad():
        peers.trained(found)
    return found, {"pixels": (b, 3, 224, 224)}


class UNet(nn.Module):
    """A small diffusion U-Net: residual blocks with a time embedding, attention at the coarsest level, skips."""

    def __init__(self, width: int, levels: int = 3) -> None:
        super().__init__()
        widths = [width << i for i in range(levels)]
        time = 4 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.stem = nn.Conv2d(4, width, 3, padding=1)
        self.down = nn.ModuleList(ResBlock(a, b, time) for a, b in zip([width, *widths], widths))
        self.smaller = nn.ModuleList(nn.Conv2d(c, c, 3, 2, 1) for c in widths[:-1])
        self.middle, self.attention = ResBlock(widths[-1], widths[-1], time), Attention(widths[-1])
        above = [*widths[-2::-1], width]
        self.up = nn.ModuleList(ResBlock(2 * a, b, time) for a, b in zip(widths[::-1], above))
        self.larger = nn.ModuleList(nn.Conv2d(c, c, 3, padding=1) for c in above[:-1])
        self.last = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Output of the U-Net for `x` (batch, 4, height, width) and `time`, the time embedding (batch, width)."""
        t, x, skips = self.time(time), self.stem(x), []
        for i, block in enumerate(self.down):
            x = block(self.smaller[i - 1](x) if i else x, t)
            skips.append(x)
        x = self.attention(self.middle(x, t))
        for i, block in enumerate(self.up):
            x = self.larger[i - 1](F.interpolate(x, scale_factor=2.0, mode="nearest")) if i else x
            x = block(torch.cat((x, skips.pop()), 1), t)
        found: Tensor = self.last(x)
        return found


class ResBlock(nn.Module):
    """Residual block: norm, SiLU, convolution, twice; the time embedding is added in between."""

    def __init__(self, before: int, after: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, before), nn.GroupNorm(8, after)
        self.conv1, self.conv2 = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
        self.time = nn.Linear(time, after)
        self.skip = nn.Identity() if before == after else nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        found: Tensor = self.skip(x) + self.conv2(F.silu(self.norm2(h)))
        return found


class Attention(nn.Module):
    """Self-attention over all positions of an image, with norm and residual."""

    def __init__(self, width: int, heads: int = 8) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(8, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, c, height, width = x.shape
        places = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(places).view(b, -1, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, -1, c)
        return x + self.out(mixed).transpose(1, 2).reshape(b, c, height, width)


@model("unet_fp16_b2", half, "b=2 width=128 s=64", "b=1 width=16 s=8", layout=torch.channels_last)
def unet(b: int, width: int, s: int) -> Made:
    """Diffusion U-Net of three levels for latent images of 64 x 64."""
    return UNet(width), {"x": (b, 4, s, s), "time": (b, width)}
