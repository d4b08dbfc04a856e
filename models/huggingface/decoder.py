"""Builds the graph of decoder-only language models: GPT-2, and the decoders with rotary position embeddings of
families.py.

Each model is stated once over a `TokenAccess` (sequences.py): whole sequences [batch, sequence] with logits [batch,
sequence, vocabulary], or the next tokens of cached sequences with the logits of one token each [batch, vocabulary].
Models without a head return `last_hidden_state`. Masks and positions are computed in the graph. Low-precision models
compute norms in float32 and cast back, as the reference eager code does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...errors import BadModelError
from .checkpoint import Config, Weights
from .experts import routed
from .families import FAMILIES, Family, Sizes, layer_windows, read_by, ropes_of, sizes_of, softcap
from .layers import ACTIVATIONS, MAX_LAYERS, conv1d, dense, layer_norm, rms_norm
from .rotary import rotated, tables
from .sequences import Scoring, TokenAccess, WholeSequence

Norm = Callable[[str, Tensor], Tensor]
Outputs = dict[str, Tensor]
#: Suffix of the model class name -> whether the model has a language modelling head.
HEADS: Mapping[str, bool] = {"ForCausalLM": True, "LMHeadModel": True, "Model": False}


# ---------------------------------------------------------------- gpt2
def build_gpt2(config: Config, w: Weights) -> tuple[Outputs, list[Tensor]]:
    """Return (outputs by name, inputs) of a GPT-2 model over whole sequences."""
    access = WholeSequence.of_any_length(config.size("n_positions", 1024))
    return gpt2(config, w, access), [access.ids]


def gpt2(config: Config, w: Weights, access: TokenAccess) -> Outputs:
    """Return the outputs of a GPT-2 model by name, for the tokens that `access` gives (whole sequences, or the next
    tokens of cached ones). Raises BadModelError if heads do not divide the hidden size."""
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
    table = w.take("wte.weight", (vocab, hidden), dtype)
    places = w.take("wpe.weight", (positions, hidden), dtype)
    x = t.gather(table, access.ids) + access.by_position(places)
    for i in range(config.size("n_layer", most=MAX_LAYERS)):
        at = f"h.{i}"
        scale = (1 / sqrt(hidden // n_heads) if scaled else 1.0) / (i + 1 if by_layer else 1)
        merged = conv1d(w, f"{at}.attn.c_attn", layer_norm(w, f"{at}.ln_1", x, eps), 3 * hidden)
        q, k, v = (access.split(part, n_heads, 0, hidden // n_heads) for part in t.split(merged, (hidden,) * 3, -1))
        x = x + conv1d(w, f"{at}.attn.c_proj", access.attend(i, q, k, v, Scoring(scale)), hidden)
        inside = activation(conv1d(w, f"{at}.mlp.c_fc", layer_norm(w, f"{at}.ln_2", x, eps), inner))
        x = x + conv1d(w, f"{at}.mlp.c_proj", inside, hidden)
    x = layer_norm(w, "ln_f", access.wanted(x), eps)
    if not config.by_class(HEADS, "ForCausalLM"):
        return {"last_hidden_state": x}
    return {"logits": _head(config, w, x, table, tied=True)}


def _head(config: Config, w: Weights, x: Tensor, table: Tensor, *, tied: bool) -> Tensor:
    """Return logits; the output matrix is the embedding table `table` if weights are tied, else `lm_head.weight`."""
    if not config.flag("tie_word_embeddings", tied):
        table = w.take("lm_head.weight", table.shape, x.dtype)
    return t.matmul(x, t.transpose(table))


# ---------------------------------------------------------------- rotary decoders
def build_rotary(kind: str, config: Config, w: Weights) -> tuple[Outputs, list[Tensor]]:
    """Return (outputs by name, inputs) of a rotary decoder over whole sequences; `kind` is a key of FAMILIES."""
    access = WholeSequence.of_any_length(config.size("max_position_embeddings", FAMILIES[kind].positions))
    return rotary(kind, config, w, access), [access.ids]


def rotary(kind: str, config: Config, w: Weights, access: TokenAccess) -> Outputs:
    """Return the outputs of a rotary decoder by name, for the tokens that `access` gives (whole sequences, or the next
    tokens of cached ones); `kind` is a key of FAMILIES."""
    family = FAMILIES[kind]
    config = read_by(family, config)
    config.refuse(use_bidirectional_attention=False, pretraining_tp=1)
    s = sizes_of(config, family, MAX_LAYERS)
    activation = ACTIVATIONS[config.choice(family.activation_field, family.activation, list(ACTIVATIONS))]
    dtype = config.dtype(w.dtype_of("embed_tokens.weight"))
    table = w.take("embed_tokens.weight", (s.vocab, s.hidden), dtype)
    x = t.gather(table, access.ids)
    if family.scaled_embedding:
        x = x * sqrt(s.hidden)
    full, local = (
        tuple(access.table(wave, s.each > 0) for wave in tables(access.positions(), rope, access.length, dtype))
        for rope in ropes_of(config, family, s)
    )
    norm: Norm = lambda name, value: rms_norm(w, name, value, s.eps, family.gain)
    for i, window in enumerate(layer_windows(config, kind, s.layers)):
        at = f"layers.{i}"
        after, before = ("post_attention_layernorm", "pre_feedforward_layernorm") if family.post_norms else (
            "", "post_attention_layernorm")  # fmt: skip
        waves = local if window else full
        y = _self_attention(w, i, norm(f"{at}.input_layernorm", x), s, family, access, window, waves, norm)
        x = x + (norm(f"{at}.{after}", y) if after else y)
        y = norm(f"{at}.{before}", x)
        if family.experts is not None and routes(config, family, i):
            y = routed(config, w, at, y, s, family.experts, activation)
        else:
            y = _gated(w, f"{at}.mlp", y, s, activation, fused=family.fused)
        x = x + (norm(f"{at}.post_feedforward_layernorm", y) if family.post_norms else y)
    x = norm("norm", access.wanted(x))
    if not config.by_class(HEADS, "ForCausalLM"):
        return {"last_hidden_state": x}
    logits = _head(config, w, x, table, tied=family.tied)
    cap = softcap(config, "final_logit_softcapping", family.softcaps[1])
    return {"logits": t.tanh(logits / cap) * cap if cap else logits}


def routes(config: Config, family: Family, layer: int) -> bool:
    """Whether a layer has routed experts; a config may except some layers.

    Raises BadModelError for fields that do not name layers.
    """
    alone = config.fields.get("mlp_only_layers") or []
    if not isinstance(alone, list) or not all(type(i) is int for i in alone):
        raise BadModelError("mlp_only_layers is no list of layer numbers", where=config.where)
    return (
        family.experts is not None and layer not in alone and (layer + 1) % config.size("decoder_sparse_step", 1) == 0
    )


def _self_attention(
    w: Weights, layer: int, x: Tensor, s: Sizes, family: Family, access: TokenAccess, window: int,
    waves: tuple[Tensor, ...], norm: Norm,
) -> Tensor:  # fmt: skip
    """Causal self-attention with rotary positions.

    Grouped queries get an axis of their own beside the key-value heads.
    """
    at = f"layers.{layer}.self_attn"
    widths = {"q": s.heads * s.head, "k": s.kv * s.head, "v": s.kv * s.head}
    if family.fused:
        merged = dense(w, f"{at}.qkv_proj", x, sum(widths.values()), bias=s.qkv_bias, dtype=x.dtype)
        flat = dict(zip(widths, t.split(merged, tuple(widths.values()), -1)))
    else:
        flat = {n: dense(w, f"{at}.{n}_proj", x, k, bias=s.qkv_bias, dtype=x.dtype) for n, k in widths.items()}

    def turned(name: str, per: int) -> Tensor:
        split = access.split(flat[name], s.kv, per, s.head)
        return rotated(norm(f"{at}.{name}_norm", split) if family.qk_norm else split, *waves)

    q, k = turned("q", s.each), turned("k", min(s.each, 1))
    v = access.split(flat["v"], s.kv, min(s.each, 1), s.head)
    sinks = w.take(f"{at}.sinks", (s.heads,), x.dtype) if family.sinks else None
    out = access.attend(layer, q, k, v, Scoring(s.scale, window, s.softcap, sinks))
    return dense(w, f"{at}.o_proj", out, s.hidden, bias=s.out_bias, dtype=x.dtype)


def _gated(
    w: Weights, at: str, x: Tensor, s: Sizes, activation: Callable[[Tensor], Tensor], *, fused: bool
) -> Tensor:  # fmt: skip
    """Gated MLP: down(activation(gate(x)) * up(x)); `fused`: one tensor holds gate and up."""
    part: Callable[[str, Tensor, int], Tensor] = lambda name, value, n: dense(
        w, f"{at}.{name}_proj", value, n, bias=s.mlp_bias, dtype=x.dtype
    )
    if fused:
        gate, up = t.split(part("gate_up", x, 2 * s.inner), (s.inner, s.inner), -1)
    else:
        gate, up = part("gate", x, s.inner), part("up", x, s.inner)
    return part("down", activation(gate) * up, s.hidden)


_COMPUTED = "as the program computes it"
#: Regexes of checkpoint tensors that are not weights -> reason for the warning.
GPT2_UNUSED: Mapping[str, str] = {r"\.attn\.(masked_)?bias$": _COMPUTED}
ROTARY_UNUSED: Mapping[str, str] = {r"rotary_emb\.inv_freq$": _COMPUTED}
