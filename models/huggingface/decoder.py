"""Builders of decoder-only language models: GPT-2, and llama, mistral, qwen2, qwen3, gemma3 with rotary positions.

Both builders map `input_ids` [batch, sequence] (int64) to `logits` [batch, sequence, vocabulary], or to
`last_hidden_state` if the config names the class without a head. Masks and positions are computed in the graph.
Low-precision models compute norms in float32 and cast back, as the reference eager code does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, floor, log, pi, sqrt
from typing import Any

import numpy as np

from ...egraph.ir import builders as t
from ...egraph.ir import composite_ops as c
from ...egraph.ir.dims import Dim, dim
from ...egraph.ir.dtypes import HALVES
from ...egraph.ir.graph import Tensor
from ...errors import BadModelError, UnsupportedError
from .checkpoint import Config, Weights

#: Limits on graph size, needed because shapes of weights are checked only while the graph is built.
MAX_LAYERS, MAX_HEAD = 10_000, 65_536
Norm = Callable[[str, Tensor], Tensor]
#: Suffix of the model class name -> whether the model has a language modelling head.
HEADS: Mapping[str, bool] = {"ForCausalLM": True, "LMHeadModel": True, "Model": False}
#: Activation names in config files -> builders.
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": c.gelu, "gelu_python": c.gelu, "gelu_new": c.gelu_tanh, "gelu_pytorch_tanh": c.gelu_tanh,
    "relu": c.relu, "silu": c.silu, "swish": c.silu, "tanh": t.tanh, "mish": c.mish,
}  # fmt: skip


def token_input(max_length: int) -> Tensor:
    """Return the input `input_ids` [batch, sequence], int64.

    Both axes are free; the sequence is at most `max_length`.
    """
    return t.input("input_ids", (dim("batch"), dim("sequence", max=max_length)), "int64")


def dense(w: Weights, name: str, x: Tensor, outputs: int, *, bias: bool, dtype: str) -> Tensor:
    """Return x @ weight.T (+ bias); the weight is stored as [outputs, inputs]."""
    weight = t.transpose(w.take(f"{name}.weight", (outputs, x.shape[-1]), dtype))
    return c.linear(x, weight, w.take(f"{name}.bias", (outputs,), dtype)) if bias else t.matmul(x, weight)


def layer_norm(w: Weights, name: str, x: Tensor, eps: float) -> Tensor:
    """Layer normalization over the last axis, computed in float32 for 16-bit dtypes."""
    size, wide = x.shape[-1], _wide(x.dtype)
    gain, shift = (t.cast(w.take(f"{name}.{part}", (size,), x.dtype), wide) for part in ("weight", "bias"))
    return t.cast(c.layer_norm(t.cast(x, wide), gain, shift, eps=eps), x.dtype)


def _wide(dtype: str) -> str:
    return "float32" if dtype in HALVES else dtype


def heads(x: Tensor, groups: int, each: int, size: int) -> Tensor:
    """Split attention heads: [B, T, groups*each*size] -> [B, groups, each, T, size].

    `groups` counts key-value heads, `each` the query heads per group. With each = 0: [B, groups, T, size].
    """
    batch, length = x.shape[:2]
    if each == 0:
        return t.permute(t.reshape(x, (batch, length, groups, size)), (0, 2, 1, 3))
    return t.permute(t.reshape(x, (batch, length, groups, each, size)), (0, 2, 3, 1, 4))


def joined(x: Tensor) -> Tensor:
    """Merge attention heads, the inverse of `heads`. Returns [B, T, features]."""
    perm = (0, 2, 1, 3) if x.rank == 4 else (0, 3, 1, 2, 4)
    x = t.permute(x, perm)
    features: Dim = 1
    for d in x.shape[2:]:
        features = features * d
    return t.reshape(x, (*x.shape[:2], features))


# ---------------------------------------------------------------- gpt2
def build_gpt2(config: Config, w: Weights) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Return (outputs by name, inputs) of a GPT-2 model."""
    config.refuse(reorder_and_upcast_attn=False, add_cross_attention=False)
    hidden, n_heads, vocab = config.size("n_embd"), config.size("n_head"), config.size("vocab_size")
    positions, inner = config.size("n_positions", 1024), config.size("n_inner", 4 * hidden)
    eps = config.number("layer_norm_epsilon", 1e-5)
    activation = ACTIVATIONS[config.choice("activation_function", "gelu_new", list(ACTIVATIONS))]
    if hidden % n_heads:
        raise BadModelError(f"n_embd={hidden} is not a multiple of n_head={n_heads}", where=config.where)
    dtype = config.dtype(w.dtype_of("wte.weight"))
    scaled = config.flag("scale_attn_weights", True)
    by_layer = config.flag("scale_attn_by_inverse_layer_idx", False)
    ids = token_input(positions)
    table = w.take("wte.weight", (vocab, hidden), dtype)
    places = t.slice_axis(w.take("wpe.weight", (positions, hidden), dtype), 0, 0, ids.shape[1])
    x = t.gather(table, ids) + places

    # Conv1D of the reference: weight stored as [inputs, outputs]
    def conv1d(name: str, value: Tensor, outputs: int) -> Tensor:
        weight = w.take(f"{name}.weight", (value.shape[-1], outputs), dtype)
        return c.linear(value, weight, w.take(f"{name}.bias", (outputs,), dtype))

    for i in range(config.size("n_layer", most=MAX_LAYERS)):
        at = f"h.{i}"
        scale = (1 / sqrt(hidden // n_heads) if scaled else 1.0) / (i + 1 if by_layer else 1)
        merged = conv1d(f"{at}.attn.c_attn", layer_norm(w, f"{at}.ln_1", x, eps), 3 * hidden)
        q, k, v = (heads(part, n_heads, 0, hidden // n_heads) for part in t.split(merged, (hidden,) * 3, -1))
        x = x + conv1d(f"{at}.attn.c_proj", joined(c.attention(q, k, v, scale=scale, causal=True)), hidden)
        inside = activation(conv1d(f"{at}.mlp.c_fc", layer_norm(w, f"{at}.ln_2", x, eps), inner))
        x = x + conv1d(f"{at}.mlp.c_proj", inside, hidden)
    x = layer_norm(w, "ln_f", x, eps)
    if not config.by_class(HEADS, "ForCausalLM"):
        return {"last_hidden_state": x}, [ids]
    return {"logits": _head(config, w, x, table, tied=True)}, [ids]


def _head(config: Config, w: Weights, x: Tensor, table: Tensor, *, tied: bool) -> Tensor:
    """Return logits; the output matrix is the embedding table `table` if weights are tied, else `lm_head.weight`."""
    if not config.flag("tie_word_embeddings", tied):
        table = w.take("lm_head.weight", table.shape, x.dtype)
    return t.matmul(x, t.transpose(table))


# ---------------------------------------------------------------- rotary decoders (llama family)
@dataclass(frozen=True)
class Family:
    """Options in which members of the rotary decoder family differ."""

    gain_plus_one: bool = False  # RMS norms multiply by 1 + weight, in float32
    qk_norm: bool = False
    qkv_bias: bool = False  # biases on the query, key and value projections only
    post_norms: bool = False  # norms after attention and MLP, before the residual sum
    scaled_embedding: bool = False  # token embeddings are multiplied by sqrt(hidden)
    tied: bool = False
    activation: str = "silu"
    rope_theta: float = 10_000.0
    head_dim: int | None = None  # default head size; None: hidden / heads


FAMILIES = {
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_norm=True, head_dim=128),
    "gemma3_text": Family(
        gain_plus_one=True, qk_norm=True, post_norms=True, scaled_embedding=True, tied=True,
        activation="gelu_pytorch_tanh", rope_theta=1_000_000.0, head_dim=256,
    ),
}  # fmt: skip


def rms_norm(w: Weights, name: str, x: Tensor, eps: float, plus_one: bool) -> Tensor:
    """RMS normalization x / rms(x), computed in float32.

    With `plus_one` the gain is 1 + weight, applied before the cast back; otherwise the weight is applied after the
    cast.
    """
    wide = _wide(x.dtype)
    gain = w.take(f"{name}.weight", x.shape[-1:], x.dtype)
    if plus_one:
        return t.cast(c.rms_norm(t.cast(x, wide), t.cast(gain, wide) + 1.0, eps=eps), x.dtype)
    if wide == x.dtype:
        return c.rms_norm(x, gain, eps=eps)
    return t.cast(c.rms_norm(t.cast(x, wide), t.ones(gain.shape, wide), eps=eps), x.dtype) * gain


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding: radians per position of each pair of a head, and a factor on cos and sin."""

    frequencies: np.ndarray[Any, Any]
    magnitude: float = 1.0


def rotary(length: Dim, rope: Rope, dtype: str, rank: int) -> tuple[Tensor, Tensor]:
    """Return (cos, sin) tables of position * frequency, [1, …, T, 2 * frequencies].

    Computed in float32, cast to `dtype`.
    """
    angle = t.cast(t.iota((length, 1), 0), "float32") * t.constant(rope.frequencies.reshape(1, -1))
    waves = [f(t.concat([angle, angle], -1)) for f in (t.cos, t.sin)]
    waves = waves if rope.magnitude == 1.0 else [w * rope.magnitude for w in waves]
    cos, sin = (t.with_rank(t.cast(w, dtype), rank) for w in waves)
    return cos, sin


def rope_of(theta: float, size: int, scaling: Config, positions: int) -> Rope:
    """Return the rotary frequencies theta**(-2i/size), scaled according to `rope_scaling`.

    `positions` is the longest sequence of the model. The type `dynamic` rescales only sequences longer than that. Such
    sequences are refused here, so `dynamic` equals the default.
    """
    scaling.refuse(partial_rotary_factor=1.0)
    base = np.float32(theta) ** (np.arange(0, size, 2).astype(np.float32) / np.float32(size))
    found = (np.float32(1.0) / base).astype(np.float32)
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind == "dynamic":
        scaling.refuse(original_max_position_embeddings=positions)
    if kind in ("default", "dynamic"):
        return Rope(found)
    if kind == "linear":
        return Rope((found / np.float32(scaling.number("factor", 1.0))).astype(np.float32))
    if kind == "llama3":
        return Rope(_llama3(found, scaling))
    if kind == "yarn":
        return _yarn(found, theta, scaling, positions)
    raise UnsupportedError(f"rope_type={kind!r} is not supported", where=scaling.where,
                           hint="known: default, dynamic, linear, llama3, yarn")  # fmt: skip


def _yarn(found: np.ndarray[Any, Any], theta: float, scaling: Config, positions: int) -> Rope:
    """Return YaRN-scaled rotary frequencies (arXiv 2309.00071).

    Pairs with many rotations over the original length keep their frequency; pairs with few rotations are slowed by
    `factor`; a linear ramp blends the pairs between.
    """
    factor, length = scaling.number("factor", 1.0), scaling.size("original_max_position_embeddings", positions)
    if factor <= 0 or theta <= 1:
        raise BadModelError("factor is not positive, or rope_theta not above 1", where=scaling.where)
    size = 2 * len(found)
    ends = [
        size * log(length / (scaling.number(name, default) * 2 * pi)) / (2 * log(theta))
        for name, default in (("beta_fast", 32.0), ("beta_slow", 1.0))
    ]
    low, high = (floor(ends[0]), ceil(ends[1])) if scaling.flag("truncate", True) else ends
    low, high = max(low, 0), min(high, size - 1)
    ramp = np.clip((np.arange(len(found), dtype=np.float32) - low) / (high - low or 0.001), 0, 1)
    above, below = scaling.number("mscale", 0.0), scaling.number("mscale_all_dim", 0.0)
    if not (above and below):
        above, below = 1.0, 0.0
    grown = max(log(factor), 0.0) / 10
    magnitude = (above * grown + 1) / (below * grown + 1)
    frequencies = (found / np.float32(factor) * ramp + found * (1 - ramp)).astype(np.float32)
    return Rope(frequencies, scaling.number("attention_factor", magnitude))


def _llama3(found: np.ndarray[Any, Any], scaling: Config) -> np.ndarray[Any, Any]:
    """Return Llama-3-scaled frequencies: low ones divided by `factor`, high ones kept, the rest blended."""
    factor, low = scaling.number("factor", 8.0), scaling.number("low_freq_factor", 1.0)
    high, length = scaling.number("high_freq_factor", 4.0), scaling.size("original_max_position_embeddings", 8192)
    if high == low:
        raise BadModelError("low_freq_factor equals high_freq_factor", where=scaling.where)
    waves = 2 * pi / found
    share = (length / waves - low) / (high - low)
    blended = (1 - share) * found / factor + share * found
    slow, fast = waves > length / low, waves < length / high
    return np.where(slow, found / factor, np.where(fast, found, blended)).astype(np.float32)


def layer_windows(config: Config, kind: str, layers: int) -> list[int]:
    """Return the sliding window of each layer; 0 means full attention. A null `sliding_window` disables all windows."""
    off = "sliding_window" in config.fields and config.fields["sliding_window"] is None
    window = 0 if off else config.size("sliding_window", 4096)
    if kind == "llama":
        return [0] * layers
    if kind == "mistral":
        return [window] * layers
    if kind == "gemma3_text":
        if off:  # a window of 0 would select the rotary table of full-attention layers
            raise BadModelError("sliding_window is null", where=config.where)
        pattern = config.size("sliding_window_pattern", config.size("_sliding_window_pattern", 6))
        default = ["full" if (i + 1) % pattern == 0 else "sliding" for i in range(layers)]
    else:
        window = window if config.flag("use_sliding_window", False) else 0
        first = config.size("max_window_layers", 28, least=0)
        default = ["sliding" if window and i >= first else "full" for i in range(layers)]
    found = config.texts("layer_types") or default
    if len(found) != layers:
        raise BadModelError(f"layer_types does not list {layers} layers", where=config.where)
    known = {"full_attention": 0, "full": 0, "sliding_attention": window, "sliding": window}
    unknown = {name: found.count(name) for name in found if name not in known}
    if unknown:
        raise UnsupportedError("layer_types that are not supported", missing=unknown, where=config.where)
    return [known[name] for name in found]


@dataclass(frozen=True)
class _Sizes:
    hidden: int
    heads: int
    kv: int
    head: int
    inner: int
    eps: float
    scale: float
    softcap: float
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool


def _sizes(config: Config, family: Family, kind: str) -> _Sizes:
    hidden, n_heads = config.size("hidden_size"), config.size("num_attention_heads")
    kv = config.size("num_key_value_heads", n_heads)
    head = config.size("head_dim", family.head_dim or max(hidden // n_heads, 1), most=MAX_HEAD)
    if n_heads % kv or head % 2:
        raise BadModelError(f"{n_heads} heads on {kv} key-value heads of size {head} do not fit", where=config.where)
    query = config.number("query_pre_attn_scalar", 256.0) if kind == "gemma3_text" else float(head)
    if query <= 0:
        raise BadModelError("query_pre_attn_scalar is not positive", where=config.where)
    bias = config.flag("attention_bias", False)
    return _Sizes(
        hidden, n_heads, kv, head, config.size("intermediate_size"), config.number("rms_norm_eps", 1e-6), query**-0.5,
        config.number("attn_logit_softcapping", 0.0), bias or family.qkv_bias, bias, config.flag("mlp_bias", False),
    )  # fmt: skip


def _rope_tables(config: Config, family: Family, s: _Sizes, kind: str, positions: int) -> tuple[Rope, Rope]:
    """Return the rotary embeddings of (full attention layers, sliding-window layers).

    Newer configs nest them by layer kind in `rope_parameters`.
    """
    nested = config.section("rope_parameters")
    full = nested.section("full_attention") if "full_attention" in nested.fields else nested
    local = nested.section("sliding_attention")
    theta = full.number("rope_theta", config.number("rope_theta", family.rope_theta))
    scaling = full if full.fields else config.section("rope_scaling")
    table = rope_of(theta, s.head, scaling, positions)
    if kind != "gemma3_text":
        return table, table
    base = local.number("rope_theta", config.number("rope_local_base_freq", 10_000.0))
    return table, rope_of(base, s.head, local, positions)


def build_rotary(kind: str, config: Config, w: Weights) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Return (outputs by name, inputs) of a rotary decoder; `kind` is a key of FAMILIES."""
    family = FAMILIES[kind]
    config.refuse(use_bidirectional_attention=False, pretraining_tp=1, partial_rotary_factor=1.0)
    s, layers = _sizes(config, family, kind), config.size("num_hidden_layers", most=MAX_LAYERS)
    act_field = "hidden_activation" if kind == "gemma3_text" else "hidden_act"
    activation = ACTIVATIONS[config.choice(act_field, family.activation, list(ACTIVATIONS))]
    dtype = config.dtype(w.dtype_of("embed_tokens.weight"))
    positions = config.size("max_position_embeddings", 131_072)
    ids = token_input(positions)
    table = w.take("embed_tokens.weight", (config.size("vocab_size"), s.hidden), dtype)
    x = t.gather(table, ids)
    if family.scaled_embedding:
        x = x * sqrt(s.hidden)
    rank = 4 if s.heads == s.kv else 5
    full, local = (rotary(ids.shape[1], r, dtype, rank) for r in _rope_tables(config, family, s, kind, positions))
    norm: Norm = lambda name, value: rms_norm(w, name, value, s.eps, family.gain_plus_one)
    for i, window in enumerate(layer_windows(config, kind, layers)):
        at = f"layers.{i}"
        after, before = ("post_attention_layernorm", "pre_feedforward_layernorm") if family.post_norms else (
            "", "post_attention_layernorm")  # fmt: skip
        y = _self_attention(w, f"{at}.self_attn", norm(f"{at}.input_layernorm", x), s, local if window else full,
                            window, norm if family.qk_norm else None)  # fmt: skip
        x = x + (norm(f"{at}.{after}", y) if after else y)
        y = _gated(w, f"{at}.mlp", norm(f"{at}.{before}", x), s, activation)
        x = x + (norm(f"{at}.post_feedforward_layernorm", y) if family.post_norms else y)
    x = norm("norm", x)
    if not config.by_class(HEADS, "ForCausalLM"):
        return {"last_hidden_state": x}, [ids]
    logits = _head(config, w, x, table, tied=family.tied)
    cap = config.number("final_logit_softcapping", 0.0)
    return {"logits": t.tanh(logits / cap) * cap if cap else logits}, [ids]


def _self_attention(
    w: Weights, at: str, x: Tensor, s: _Sizes, tables: tuple[Tensor, Tensor], window: int,
    norm: Norm | None,
) -> Tensor:  # fmt: skip
    """Causal self-attention with rotary positions.

    Grouped queries get an axis of their own beside the key-value heads.
    """
    each = 0 if s.heads == s.kv else s.heads // s.kv

    def project(name: str, count: int, per: int) -> Tensor:
        flat = dense(w, f"{at}.{name}_proj", x, count * s.head, bias=s.qkv_bias, dtype=x.dtype)
        split = heads(flat, s.kv, per, s.head)
        if name == "v":
            return split
        return c.rope(norm(f"{at}.{name}_norm", split) if norm else split, *tables)

    q, k, v = (project(n, count, per) for n, count, per in (
        ("q", s.heads, each), ("k", s.kv, min(each, 1)), ("v", s.kv, min(each, 1))))  # fmt: skip
    out = c.attention(q, k, v, scale=s.scale, causal=True, window=window, softcap=s.softcap)
    return dense(w, f"{at}.o_proj", joined(out), s.hidden, bias=s.out_bias, dtype=x.dtype)


def _gated(w: Weights, at: str, x: Tensor, s: _Sizes, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """Gated MLP: down(activation(gate(x)) * up(x))."""
    part: Callable[[str, Tensor, int], Tensor] = lambda name, value, n: dense(
        w, f"{at}.{name}_proj", value, n, bias=s.mlp_bias, dtype=x.dtype
    )
    return part("down", activation(part("gate", x, s.inner)) * part("up", x, s.inner), s.hidden)


_COMPUTED = "as the program computes it"
#: Regexes of checkpoint tensors that are not weights -> reason for the warning.
GPT2_UNUSED: Mapping[str, str] = {r"\.attn\.(masked_)?bias$": _COMPUTED}
ROTARY_UNUSED: Mapping[str, str] = {r"rotary_emb\.inv_freq$": _COMPUTED}
