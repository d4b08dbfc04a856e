"""Variants of the GPU benchmark's workloads: other sizes (odd ones too), dtypes, batches and ways to write them, and
blocks of other models.

A variant is a module with its parameters, written as in a user's model and not for the optimizer.

Blocks of Hugging Face's models need `transformers`; without it, they fail with its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.models import workloads
from benchmarks.models.unrolled import PROGRAMS
from benchmarks.models.variant import TINY as TINY
from benchmarks.models.variant import VARIANTS as VARIANTS
from benchmarks.models.variant import Below, Inputs, Of, Variant, brain, half, single, variant
from benchmarks.models.workloads import flat, wide


# ---------------------------------------------------------------- products and norms
class NormLinear(nn.Module):
    """A norm followed by linear layers with weights [out, in]."""

    def __init__(self, d: int, *outs: int, bias: bool = False) -> None:
        super().__init__()
        self.norm, self.outs = nn.RMSNorm(d, eps=1e-6), outs
        self.layer = nn.Linear(d, sum(outs), bias=bias)

    def forward(self, x: Tensor) -> Any:
        """The layers' results: one tensor, or one per layer."""
        y = self.layer(self.norm(x))
        return y if len(self.outs) == 1 else y.split(self.outs, -1)


@variant("norm_linear_fp16_b4", half, "b=4 d=3072 n=8192", "b=2 d=24 n=40")
def norm_linear(b: int, d: int, n: int) -> tuple[nn.Module, Inputs]:
    """F.rms_norm and one linear layer."""
    return NormLinear(d, n), {"x": (b, d)}


@variant("norm_qkv_bias_b64", brain, "b=64 d=896 kv=128", "b=3 d=24 kv=8")
def norm_qkv(b: int, d: int, kv: int) -> tuple[nn.Module, Inputs]:
    """RMS norm, then one linear layer with bias for queries, keys and values, split."""
    return NormLinear(d, d, kv, kv, bias=True), {"x": (b, d)}


class Gated(nn.Module):
    """Gated MLP; the weights of gate and up projection are in one layer or two."""

    def __init__(self, d: int, n: int, packed: bool) -> None:
        super().__init__()
        self.up = (
            nn.Linear(d, 2 * n, bias=False) if packed else nn.ModuleList(nn.Linear(d, n, bias=False) for _ in range(2))
        )
        self.down = nn.Linear(n, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The MLP's value."""
        gate, up = self.up(x).chunk(2, -1) if isinstance(self.up, nn.Linear) else (layer(x) for layer in self.up)
        return self.down(F.silu(gate) * up)


@variant("gated_mlp_896_b32", brain, "b=32 d=896 n=4864 packed=0", "b=3 d=24 n=40 packed=0")
@variant("packed_mlp_fp16_b64", half, "b=64 d=3072 n=8192 packed=1", "b=3 d=24 n=40 packed=1")
def gated(b: int, d: int, n: int, packed: int) -> tuple[nn.Module, Inputs]:
    """SwiGLU MLP, with packed gate and up weights if `packed`."""
    return Gated(d, n, bool(packed)), {"x": (b, d)}


@variant("lora_fp32_b4", single, "b=4 d=2048 r=8", "b=2 d=24 r=4")
@variant("lora_tf32_t512", single, "b=512 d=2048 r=8", "b=2 d=24 r=4", tolerance=1e-3)
def lora(b: int, d: int, r: int) -> tuple[nn.Module, Inputs]:
    """Linear layer with a scaled low-rank update."""
    return Of(lambda x, w, a, b: F.linear(x, w) + 2.0 * F.linear(F.linear(x, a), b), w=(d, d), a=(r, d), b=(d, r)), {
        "x": (b, d)
    }


@variant("linear_fp32_b16", single, "b=16 d=2048 n=4096", "b=3 d=24 n=40")
@variant("linear_tf32_b64", single, "b=64 d=2048 n=4096", "b=3 d=24 n=40", tolerance=1e-3)
def skinny(b: int, d: int, n: int) -> tuple[nn.Module, Inputs]:
    """Linear layer with bias and ReLU over few rows."""
    return nn.Sequential(nn.Linear(d, n), nn.ReLU()), {"x": (b, d)}


@variant("einsum_chain_fp32", single, "m=4 d=3000", "m=2 d=20")
@variant("einsum_chain_tf32", single, "m=512 d=3000", "m=2 d=20", tolerance=1e-3)
def chain(m: int, d: int) -> tuple[nn.Module, Inputs]:
    """Product of three matrices by einsum, the large ones first; sizes are no multiples of 16."""
    call = lambda a, b, c: torch.einsum("ij,jl->il", a, torch.einsum("jk,kl->jl", b, c))
    return Of(call, b=(d, d), c=(d, d)), {"a": (m, d)}


@variant("normalised_update_fp16", half, "n=1000 d=3072", "n=5 d=24")
def update(n: int, d: int) -> tuple[nn.Module, Inputs]:
    """Residual step of a normalised transformer, with F.normalize."""
    call = lambda h, y, alpha: F.normalize(h + alpha * (F.normalize(y, dim=-1) - h), dim=-1)
    return Of(call, alpha=(d,)), {"h": (n, d), "y": (n, d)}


@variant("softmax_odd_fp16", half, "n=1001 d=32001", "n=3 d=65")
def softmax(n: int, d: int) -> tuple[nn.Module, Inputs]:
    """Softmax along rows of odd length, to which no vector load is aligned."""
    return Of(lambda x: torch.softmax(x / 0.7, -1)), {"x": (n, d)}


@variant("pointwise_odd_fp32", single, "a=7 b=1001 c=777", "a=2 b=5 c=7")
def pointwise(a: int, b: int, c: int) -> tuple[nn.Module, Inputs]:
    """Chain of elementwise ops with broadcasts along each axis."""
    call = lambda x, y, z: F.gelu(x * y + z, approximate="tanh") * y + torch.sigmoid(z) * x
    return Of(call), {"x": (a, b, c), "y": (b, 1), "z": (a, 1, c)}


@variant("lstm_cell_fp16_b32", half, "b=32 d=896", "b=2 d=16")
def lstm(b: int, d: int) -> tuple[nn.Module, Inputs]:
    """One step of an LSTM."""

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTMCell(d, d)

        def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Any:
            return self.cell(x, (h, c))

    return Step(), dict.fromkeys("xhc", (b, d))


class Residual(nn.Module):
    """Residual block: x + inner(norm(x)), or norm(x + inner(x))."""

    def __init__(self, norm: nn.Module, inner: nn.Module, after: bool = False) -> None:
        super().__init__()
        self.norm, self.inner, self.after = norm, inner, after

    def forward(self, x: Tensor) -> Tensor:
        """The block's value."""
        return self.norm(x + self.inner(x)) if self.after else x + self.inner(self.norm(x))


def mlp(d: int, n: int, approximate: str = "none") -> nn.Sequential:
    """Two linear layers with a GELU between them."""
    return nn.Sequential(nn.Linear(d, n), nn.GELU(approximate), nn.Linear(n, d))


@variant("layernorm_mlp_fp32_t1000", single, "t=1000 d=896 after=0", "t=5 d=24 after=0")
@variant("layernorm_mlp_tf32_t1000", single, "t=1000 d=896 after=0", "t=5 d=24 after=0", tolerance=1e-3)
@variant("bert_mlp_fp16_t1000", half, "t=1000 d=768 after=1", "t=5 d=24 after=1")
def norm_mlp(t: int, d: int, after: int) -> tuple[nn.Module, Inputs]:
    """MLP block of a GPT (norm first), or of BERT (norm last, with `after`)."""
    return Residual(nn.LayerNorm(d), mlp(d, 4 * d), bool(after)), {"x": (t, d)}


# ---------------------------------------------------------------- attention
def _decode(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    b, h, d = q.shape
    grouped = q.reshape(b, k.shape[1], h // k.shape[1], d)
    scores = torch.einsum("bgrd,bgtd->bgrt", grouped, k) / d**0.5
    return torch.einsum("bgrt,bgtd->bgrd", scores.softmax(-1), v).reshape(b, h, d)


@variant("gqa_einsum_decode_fp16_b4", half, "b=4 h=14 g=2 t=1000 d=64", "b=2 h=4 g=2 t=9 d=8")
def gqa(b: int, h: int, g: int, t: int, d: int) -> tuple[nn.Module, Inputs]:
    """One decoding step of grouped-query attention by einsum."""
    return Of(_decode), {"q": (b, h, d), "k": (b, g, t, d), "v": (b, g, t, d)}


def attention(kind: str) -> Callable[..., Tensor]:
    """Builder of causal attention written step by step, with additions to the scores by `kind`."""

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads, t, d = q.shape[-3:]
        if kind == "sdpa":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = torch.matmul(q, k.transpose(-1, -2)) / d**0.5
        i, j = torch.arange(t, device=q.device)[:, None], torch.arange(t, device=q.device)[None, :]
        hidden = j > i
        if kind == "window":
            hidden = hidden | (j <= i - 256)
        if kind == "softcap":
            scores = torch.tanh(scores / 50.0) * 50.0
        if kind == "alibi":
            slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=q.device) / heads)
            scores = scores + (slopes[:, None, None] * (j - i)).to(q.dtype)
        weights = wide(scores.masked_fill(hidden, torch.finfo(scores.dtype).min)).softmax(-1)
        return weights.to(q.dtype) @ v

    return call


def _attention(kind: str, name: str, dtype: torch.dtype, full: str, **more: Any) -> None:
    @variant(name, dtype, full, "b=1 h=2 t=12 d=8", **more)
    def make(b: int, h: int, t: int, d: int) -> tuple[nn.Module, Inputs]:
        return Of(attention(kind)), dict.fromkeys("qkv", (b, h, t, d))


_attention("sdpa", "sdpa_causal_fp16_t1000", half, "b=4 h=12 t=1000 d=64")
_attention("window", "window_attention_d96", brain, "b=2 h=12 t=1000 d=96")
_attention("softcap", "softcap_attention_d128", brain, "b=2 h=8 t=1000 d=128")
_attention("alibi", "alibi_attention_fp16", half, "b=2 h=12 t=1000 d=64")
_attention("plain", "naive_attention_fp32", single, "b=1 h=12 t=500 d=64")
_attention("plain", "naive_attention_tf32", single, "b=1 h=12 t=500 d=64", tolerance=1e-3)


@variant("multihead_fp16_b4", half, "b=4 t=197 d=768 h=12", "b=2 t=7 d=16 h=2")
def multihead(b: int, t: int, d: int, h: int) -> tuple[nn.Module, Inputs]:
    """Self-attention by torch.nn.MultiheadAttention."""

    class Self(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(d, h, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.attention(x, x, x, need_weights=False)[0]
            return found

    return Self(), {"x": (b, t, d)}


class Attend(nn.Module):
    """Self-attention as ViT and GPT-2 write it: one layer for queries, keys and values."""

    def __init__(self, d: int, h: int, causal: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.heads, self.causal = nn.Linear(d, 3 * d), nn.Linear(d, d), h, causal

    def forward(self, x: Tensor) -> Tensor:
        """Attention over the tokens of each batch."""
        b, t, d = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * (d // self.heads) ** -0.5) @ k.transpose(-2, -1)
        if self.causal:
            ahead = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(ahead, float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


@variant("gpt2_block_t1000", brain, "b=1 t=1000 d=768 h=12 causal=1", "b=1 t=9 d=16 h=2 causal=1")
@variant("vit_block_fp16_b8", half, "b=8 t=197 d=768 h=12 causal=0", "b=2 t=9 d=16 h=2 causal=0")
def block(b: int, t: int, d: int, h: int, causal: int) -> tuple[nn.Module, Inputs]:
    """Transformer block: attention and MLP, each with a norm before it."""
    parts = Attend(d, h, bool(causal)), mlp(d, 4 * d, "tanh" if causal else "none")
    return nn.Sequential(*(Residual(nn.LayerNorm(d), part) for part in parts)), {"x": (b, t, d)}


# ---------------------------------------------------------------- Hugging Face's Llama
def _llama(d: int, h: int, g: int, n: int, how: str = "sdpa") -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=d, intermediate_size=n, num_attention_heads=h, num_key_value_heads=g, num_hidden_layers=1, vocab_size=64,
        attn_implementation=how,
    )  # fmt: skip


@variant("hf_llama_mlp_fp16_t64", half, "t=64 d=2048 n=5632", "t=5 d=16 n=24")
def llama_mlp(t: int, d: int, n: int) -> tuple[nn.Module, Inputs]:
    """Hugging Face's LlamaRMSNorm and LlamaMLP with the residual."""
    from transformers.models.llama import modeling_llama as llama

    return Residual(llama.LlamaRMSNorm(d), llama.LlamaMLP(_llama(d, 2, 2, n))), {"x": (1, t, d)}


@variant("hf_llama_layer_t128", brain, "t=128 d=896 h=14 g=2 n=4864", "t=5 d=32 h=4 g=2 n=40")
def llama_layer(t: int, d: int, h: int, g: int, n: int) -> tuple[nn.Module, Inputs]:
    """Hugging Face's LlamaDecoderLayer with its rotary embedding."""
    from transformers.models.llama import modeling_llama as llama

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = _llama(d, h, g, n)
            self.rotary, self.layer = llama.LlamaRotaryEmbedding(config), llama.LlamaDecoderLayer(config, 0)

        def forward(self, x: Tensor) -> Tensor:
            places = torch.arange(x.shape[1], device=x.device)[None]
            return flat(self.layer(x, position_embeddings=self.rotary(x, places)))[0]

    return Layer(), {"x": (1, t, d)}


@variant("hf_llama_attention_t1000", brain, "t=1000 d=2048 h=32 g=8", "t=5 d=32 h=4 g=2")
def llama_attention(t: int, d: int, h: int, g: int) -> tuple[nn.Module, Inputs]:
    """Hugging Face's LlamaAttention ("eager") with an additive mask."""
    from transformers.models.llama import modeling_llama as llama

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = llama.LlamaAttention(_llama(d, h, g, d, "eager"), 0)

        def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            ahead = torch.full((t, t), torch.finfo(x.dtype).min, device=x.device, dtype=x.dtype).triu(1)
            found: Tensor = self.layer(x, position_embeddings=(cos, sin), attention_mask=ahead[None, None])[0]
            return found

    return Layer(), {"x": (1, t, d), "cos": (1, t, d // h), "sin": (1, t, d // h)}


# ---------------------------------------------------------------- convolutions
class ConvNext(nn.Module):
    """ConvNeXt's block: a wide depthwise convolution, then an MLP over channels."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.depthwise, self.norm, self.mlp = (
            nn.Conv2d(c, c, 7, padding=3, groups=c),
            nn.LayerNorm(c, eps=1e-6),
            mlp(c, 4 * c),
        )
        self.gamma = nn.Parameter(torch.ones(c))

    def forward(self, x: Tensor) -> Tensor:
        """The block's value; x has channels first."""
        h = self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
        return x + (self.gamma * h).permute(0, 3, 1, 2)


@variant("convnext_block_fp16_b8", half, "b=8 c=96 s=56", "b=1 c=8 s=9")
def convnext(b: int, c: int, s: int) -> tuple[nn.Module, Inputs]:
    """Block of the first stage of ConvNeXt-T."""
    return ConvNext(c), {"x": (b, c, s, s)}


@variant("inverted_residual_b16", brain, "b=16 c=32 n=192 s=28", "b=1 c=4 n=8 s=7")
def inverted(b: int, c: int, n: int, s: int) -> tuple[nn.Module, Inputs]:
    """MobileNet's inverted bottleneck with batch norms."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(c, n, 1, bias=False), nn.BatchNorm2d(n), nn.ReLU6(),
                nn.Conv2d(n, n, 3, padding=1, groups=n, bias=False), nn.BatchNorm2d(n), nn.ReLU6(),
                nn.Conv2d(n, c, 1, bias=False), nn.BatchNorm2d(c),
            )  # fmt: skip

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = x + self.body(x)
            return found

    return Block(), {"x": (b, c, s, s)}


@variant("groupnorm_conv_fp32", single, "b=2 c=96 s=33", "b=1 c=8 s=5")
@variant("groupnorm_conv_tf32", single, "b=2 c=96 s=33", "b=1 c=8 s=5", tolerance=1e-3)
def groupnorm(b: int, c: int, s: int) -> tuple[nn.Module, Inputs]:
    """Group norm, SiLU and a convolution on images of odd size."""
    return nn.Sequential(nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, c, 3, padding=1)), {"x": (b, c, s, s)}


# ---------------------------------------------------------------- states, experts, vocabularies
def _scan(x: Tensor, delta: Tensor, b: Tensor, c: Tensor, a: Tensor) -> Tensor:
    steps, decay = F.softplus(delta), -torch.exp(a)
    state = x.new_zeros(x.shape[0], x.shape[2], b.shape[2])
    outputs = []
    for t in range(x.shape[1]):
        state = torch.exp(steps[:, t, :, None] * decay) * state + (steps[:, t] * x[:, t])[..., None] * b[:, t, None, :]
        outputs.append((state * c[:, t, None, :]).sum(-1))
    return torch.stack(outputs, 1)


@variant("selective_scan_fp32_t16", single, "b=4 t=16 d=512 n=16", "b=1 t=3 d=8 n=4")
def scan(b: int, t: int, d: int, n: int) -> tuple[nn.Module, Inputs]:
    """Mamba's selective scan, unrolled."""
    return Of(_scan, a=(d, n)), {"x": (b, t, d), "delta": (b, t, d), "b": (b, t, n), "c": (b, t, n)}


def _experts(x: Tensor, router: Tensor, up: Tensor, down: Tensor) -> Tensor:
    chosen, which = torch.topk(torch.softmax(x @ router, -1), 2, -1)
    gates = torch.zeros(x.shape[0], router.shape[1], dtype=x.dtype, device=x.device).scatter(1, which, chosen)
    h = F.silu(torch.einsum("td,edn->etn", x, up))
    return torch.einsum("te,etn,end->td", gates, h, down)


@variant("experts_top2_t64", brain, "t=64 d=896 n=1024 e=8", "t=5 d=16 n=24 e=4")
def experts(t: int, d: int, n: int, e: int) -> tuple[nn.Module, Inputs]:
    """Mixture of experts, top 2 for each token, all of them computed."""
    return Of(_experts, router=(d, e), up=(e, d, n), down=(e, n, d)), {"x": (t, d)}


@variant("embedding_layernorm", brain, "b=4 t=1000 v=32000 d=896", "b=2 t=5 v=50 d=16", listed=False)
def embedding(b: int, t: int, v: int, d: int) -> tuple[nn.Module, Inputs]:
    """BERT's embedding: word and position embeddings, then a norm."""

    class Embed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places, self.norm = nn.Embedding(v, d), nn.Embedding(t, d), nn.LayerNorm(d)

        def forward(self, ids: Tensor) -> Tensor:
            found: Tensor = self.norm(self.words(ids) + self.places(torch.arange(t, device=ids.device)))
            return found

    return Embed(), {"ids": Below((b, t), v)}


@variant("cross_entropy_32000", brain, "t=1000 v=32000", "t=5 v=50")
def entropy(t: int, v: int) -> tuple[nn.Module, Inputs]:
    """Cross entropy of each token over a vocabulary."""
    call = lambda logits, ids: F.cross_entropy(wide(logits), ids, reduction="none")
    return Of(call), {"logits": (t, v), "ids": Below((t,), v)}


@variant("lm_head_log_softmax_fp16_b16", half, "b=16 d=896 v=32000", "b=2 d=16 v=50")
def head(b: int, d: int, v: int) -> tuple[nn.Module, Inputs]:
    """Language-model head: log-probabilities of the vocabulary."""
    return Of(lambda x, w: F.log_softmax(wide(F.linear(x, w)), -1), w=(v, d)), {"x": (b, d)}


# ---------------------------------------------------------------- programs of very many small operations
def _unrolled(name: str) -> None:
    call, full, small = PROGRAMS[name]
    for table, shapes in ((VARIANTS, full), (TINY, small)):
        make = lambda shapes=shapes: (Of(call), {f"x{n}": s for n, s in enumerate(shapes)})
        table[name] = Variant(name, make, {}, single)


for _name in PROGRAMS:
    _unrolled(_name)

assert workloads.WORKLOADS.keys().isdisjoint(VARIANTS)  # records of both lie in one folder
