"""Builds the graph of decoder-only language models: GPT-2, and the decoders with rotary position embeddings of
families.py.

Each model is stated once over a `TokenAccess` (sequences.py): whole sequences [batch, sequence] with logits [batch,
sequence, vocabulary], or the next tokens of cached sequences with the logits of one token each [batch, vocabulary].
Models without a head return `last_hidden_state`. Masks and positions are computed in the graph. Low-precision models
compute norms in float32 and cast back, as the reference eager code does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...errors import BadModelError
from .checkpoint import Config, Weights
from .experts import routed
from .families import FAMILIES, Family, Sizes, layer_windows, read_by, ropes_of, rotated_layers, sizes_of, softcap
from .layers import ACTIVATIONS, MAX_LAYERS, conv1d, dense, layer_norm, rms_norm
from .rotary import rotated, tables
from .sequences import Scoring, TokenAccess, WholeSequence

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
    config.refuse(use_bidirectional_attention=False, pretraining_tp=1, qk_layernorm=False)
    s = sizes_of(config, family, MAX_LAYERS)
    activation = ACTIVATIONS[config.choice(family.activation_field, family.activation, list(ACTIVATIONS))]
    dtype = config.dtype(w.dtype_of("embed_tokens.weight"))
    table = w.take("embed_tokens.weight", (s.vocab, s.hidden), dtype)
    x = scaled(t.gather(table, access.ids), s.embedding)
    full, local = (
        tuple(access.table(wave, s.each > 0) for wave in tables(access.positions(), rope, access.length, dtype))
        for rope in ropes_of(config, family, s)
    )
    layers = Layers(config, w, family, s, access, activation)
    windows = layer_windows(config, kind, s.layers)
    for i, (window, turned) in enumerate(zip(windows, rotated_layers(config, family, windows))):
        x = layers.layer(i, x, window, (local if window else full) if turned else ())
    x = layers.norm("norm", access.wanted(x))
    if not config.by_class(HEADS, "ForCausalLM"):
        return {"last_hidden_state": x}
    logits = scaled(_head(config, w, x, table, tied=family.tied), s.logits)
    cap = softcap(config, "final_logit_softcapping", family.softcaps[1])
    return {"logits": t.tanh(logits / cap) * cap if cap else logits}


def scaled(x: Tensor, factor: float) -> Tensor:
    """`x` times a constant; `x` itself for the factor 1."""
    return x if factor == 1.0 else x * factor


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


@dataclass(frozen=True)
class Layers:
    """The layers of a rotary decoder: their options, and access to its weights and tokens."""

    config: Config
    weights: Weights
    family: Family
    sizes: Sizes
    access: TokenAccess
    activation: Callable[[Tensor], Tensor]

    def layer(self, i: int, x: Tensor, window: int, waves: tuple[Tensor, ...]) -> Tensor:
        """The residual stream x after layer i; `window` and `waves` as for `attention`."""
        s, names = self.sizes, self.family.norms
        given = self.norm(names.attention_input, x, i)
        x = x + scaled(self.norm(names.attention_output, self.attention(i, given, window, waves), i), s.residual)
        given = given if s.parallel else self.norm(names.mlp_input, x, i)
        return x + scaled(self.norm(names.mlp_output, self.mlp(i, given), i), s.residual)

    def norm(self, name: str, x: Tensor, layer: int | None = None) -> Tensor:
        """x normalized with the weights `name` of a layer (None: of no layer); x itself without a name."""
        if not name:
            return x
        name = name if layer is None else f"layers.{layer}.{name}"
        if self.family.norm == "rms":
            return rms_norm(self.weights, name, x, self.sizes.eps, self.family.gain)
        return layer_norm(self.weights, name, x, self.sizes.eps, bias=self.family.norm == "layer")

    def attention(self, layer: int, x: Tensor, window: int, waves: tuple[Tensor, ...]) -> Tensor:
        """Causal self-attention over the latest `window` positions (0: all), with rotary positions if there are tables
        `waves` of them.

        Grouped queries get an axis of their own beside the key-value heads.
        """
        s, family, access = self.sizes, self.family, self.access
        widths = {"q": s.heads * s.head, "k": s.kv * s.head, "v": s.kv * s.head}
        if family.fused:
            merged = self._attention_part(layer, "qkv_proj", x, sum(widths.values()), bias=s.qkv_bias)
            flat = dict(zip(widths, t.split(merged, tuple(widths.values()), -1)))
        else:
            flat = {n: self._attention_part(layer, f"{n}_proj", x, k, bias=s.qkv_bias) for n, k in widths.items()}

        def turned(name: str, per: int) -> Tensor:
            norm = f"self_attn.{name}_norm"
            whole = self.norm(norm if family.qk_norm == "all" else "", flat[name], layer)
            split = self.norm(norm if family.qk_norm == "head" else "", access.split(whole, s.kv, per, s.head), layer)
            return rotated(split, *waves, interleaved=family.interleaved) if waves else split

        q, k = turned("q", s.each), turned("k", min(s.each, 1))
        v = access.split(flat["v"], s.kv, min(s.each, 1), s.head)
        sinks = self.weights.take(f"layers.{layer}.self_attn.sinks", (s.heads,), x.dtype) if family.sinks else None
        out = access.attend(layer, q, k, v, Scoring(s.scale, window, s.softcap, sinks))
        return self._attention_part(layer, "o_proj", out, s.hidden, bias=s.out_bias)

    def mlp(self, layer: int, x: Tensor) -> Tensor:
        """The MLP of a layer: routed experts, down(activation(gate(x)) * up(x)), or down(activation(up(x))) without a
        gate."""
        s, family = self.sizes, self.family
        if family.experts is not None and routes(self.config, family, layer):
            return routed(self.config, self.weights, f"layers.{layer}", x, s, family.experts, self.activation)
        *first, down = family.mlp
        if family.fused:
            gate, up = t.split(self._mlp_part(layer, "gate_up_proj", x, 2 * s.inner), (s.inner, s.inner), -1)
            return self._mlp_part(layer, down, self.activation(gate) * up, s.hidden)
        inner = self.activation(self._mlp_part(layer, first[0], x, s.inner))
        if len(first) > 1:
            inner = inner * self._mlp_part(layer, first[1], x, s.inner)
        return self._mlp_part(layer, down, inner, s.hidden)

    def _attention_part(self, layer: int, name: str, x: Tensor, outputs: int, *, bias: bool) -> Tensor:
        return dense(self.weights, f"layers.{layer}.self_attn.{name}", x, outputs, bias=bias, dtype=x.dtype)

    def _mlp_part(self, layer: int, name: str, x: Tensor, outputs: int) -> Tensor:
        return dense(self.weights, f"layers.{layer}.mlp.{name}", x, outputs, bias=self.sizes.mlp_bias, dtype=x.dtype)


COMPUTED = "as the program computes it"
#: Regexes of checkpoint tensors that are not weights -> reason for the warning.
GPT2_UNUSED: Mapping[str, str] = {r"\.attn\.(masked_)?bias$": COMPUTED}
ROTARY_UNUSED: Mapping[str, str] = {r"rotary_emb\.inv_freq$": COMPUTED}
