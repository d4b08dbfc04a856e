"""Builds the graphs of BERT, RoBERTa, XLM-RoBERTa and DistilBERT: bidirectional encoders with learned positions and
norms after each sum, and their task heads (encoder_heads.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import sqrt

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.composites import composite_ops as c
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import Dim, dim
from ...errors import BadModelError
from .checkpoint import Config, Weights
from .encoder_heads import BERT_TASKS, DISTILBERT_TASKS, ROBERTA_TASKS, Encoded, Tasks
from .layers import ACTIVATIONS, MAX_LAYERS, dense, heads, joined, layer_norm

_SIZES = {
    "hidden": "hidden_size", "heads": "num_attention_heads", "inner": "intermediate_size", "layers": "num_hidden_layers",
    "activation": "hidden_act",
}  # fmt: skip
_BERT_LAYER = {
    "query": "attention.self.query", "key": "attention.self.key", "value": "attention.self.value",
    "attention": "attention.output.dense", "attention norm": "attention.output.LayerNorm", "inner": "intermediate.dense",
    "outer": "output.dense", "norm": "output.LayerNorm",
}  # fmt: skip


@dataclass(frozen=True)
class EncoderFamily:
    """Options in which encoders of one `model_type` differ, and how their tensors are called.

    `layer`: names of a layer's tensors by part, each behind `at` and the number of the layer. `fields`: config fields
    of sizes and the activation. `tasks`: task heads of its model classes. `kinds`: the input `token_type_ids` selects a
    row of the embeddings of token types ("input"), or all tokens have the first one ("first"), or there are none
    (empty). `eps`: default of the config field `layer_norm_eps`; None: always 1e-12. `counted`: positions count the
    tokens that are not padding, from the padding token's id on.
    """

    tasks: Tasks
    layer: Mapping[str, str]
    at: str = "encoder.layer"
    fields: Mapping[str, str] = field(default_factory=lambda: _SIZES)
    kinds: str = "input"
    eps: float | None = 1e-12
    counted: bool = False


_ROBERTA = EncoderFamily(ROBERTA_TASKS, _BERT_LAYER, kinds="first", counted=True)
ENCODERS: Mapping[str, EncoderFamily] = {
    "bert": EncoderFamily(BERT_TASKS, _BERT_LAYER),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "distilbert": EncoderFamily(
        DISTILBERT_TASKS,
        {
            "query": "attention.q_lin", "key": "attention.k_lin", "value": "attention.v_lin", "attention": "attention.out_lin",
            "attention norm": "sa_layer_norm", "inner": "ffn.lin1", "outer": "ffn.lin2", "norm": "output_layer_norm",
        },
        "transformer.layer",
        {"hidden": "dim", "heads": "n_heads", "inner": "hidden_dim", "layers": "n_layers", "activation": "activation"},
        kinds="",
        eps=None,
    ),
}  # fmt: skip


def build_encoder(kind: str, config: Config, w: Weights) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Return (outputs by name, inputs) of an encoder; `kind` is a key of ENCODERS. The outputs are those of the
    config's model class.

    Without a class in the config, the outputs are `last_hidden_state` [batch, sequence, hidden] and, if the checkpoint
    has a pooler, `pooler_output` [batch, hidden]. Inputs are int64 [batch, sequence]: `input_ids`, `attention_mask` (0
    masks a position), and `token_type_ids` for BERT. Raises BadModelError if heads do not divide the hidden size or if
    there are no positions.
    """
    family = ENCODERS[kind]
    config.refuse(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    hidden, n_heads = config.size(family.fields["hidden"]), config.size(family.fields["heads"])
    inner = config.size(family.fields["inner"])
    eps = 1e-12 if family.eps is None else config.number("layer_norm_eps", family.eps)
    activation = ACTIVATIONS[config.choice(family.fields["activation"], "gelu", list(ACTIVATIONS))]
    if hidden % n_heads:
        raise BadModelError(
            f"{family.fields['hidden']}={hidden} is not a multiple of {n_heads} heads", where=config.where
        )
    dtype = config.dtype(w.dtype_of("embeddings.word_embeddings.weight"))
    x, words, inputs = _embedded(config, w, family, hidden, eps, dtype)
    hide = _hidden_positions(inputs[1], dtype)
    for i in range(config.size(family.fields["layers"], most=MAX_LAYERS)):
        at = {part: f"{family.at}.{i}.{name}" for part, name in family.layer.items()}
        y = dense(w, at["attention"], _attend(w, at, x, n_heads, hide), hidden, bias=True, dtype=dtype)
        x = layer_norm(w, at["attention norm"], y + x, eps)
        y = activation(dense(w, at["inner"], x, inner, bias=True, dtype=dtype))
        y = dense(w, at["outer"], y, hidden, bias=True, dtype=dtype)
        x = layer_norm(w, at["norm"], y + x, eps)
    if not config.model_class and not w.has("pooler.dense.weight"):
        return {"last_hidden_state": x}, inputs
    return config.by_class(family.tasks, "Model")(Encoded(config, w, x, words, eps, activation)), inputs


def _embedded(
    config: Config, w: Weights, family: EncoderFamily, hidden: int, eps: float, dtype: str
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """(Normalized embeddings of the tokens [batch, sequence, hidden], table of the token embeddings, inputs)."""
    positions, vocab = config.size("max_position_embeddings", 512), config.size("vocab_size")
    padding = config.size("pad_token_id", 1, least=0) if family.counted else -1
    if positions <= padding + 1:
        raise BadModelError(f"max_position_embeddings={positions} leaves no positions", where=config.where)
    shape: tuple[Dim, ...] = (dim("batch"), dim("sequence", max=positions - padding - 1))
    names = ["input_ids", "attention_mask"] + ["token_type_ids"] * (family.kinds == "input")
    inputs = [t.input(n, shape, "int64") for n in names]
    ids = inputs[0]
    table: Callable[[str, int], Tensor] = lambda name, rows: w.take(
        f"embeddings.{name}_embeddings.weight", (rows, hidden), dtype
    )
    words, places = table("word", vocab), table("position", positions)
    x = t.gather(words, ids)
    if family.kinds:
        types = table("token_type", config.size("type_vocab_size", 2))
        x = x + (t.gather(types, inputs[2]) if family.kinds == "input" else t.slice_axis(types, 0, 0, 1))
    if family.counted:
        text = t.cast(t.ne(ids, padding), "int64")
        x = x + t.gather(places, t.cumsum(text, 1) * text + padding)
    else:
        x = x + t.slice_axis(places, 0, 0, ids.shape[1])
    return layer_norm(w, "embeddings.LayerNorm", x, eps), words, inputs


def _hidden_positions(mask: Tensor, dtype: str) -> Tensor:
    """Additive mask [batch, 1, 1, sequence] of an attention mask [batch, sequence]. The reference implementation adds
    the lowest finite number, not -inf."""
    batch, length = mask.shape
    hidden = t.eq(t.reshape(mask, (batch, 1, 1, length)), 0)
    return t.where(hidden, t.full((1,) * 4, float(_finfo_min(dtype)), dtype), t.full((1,) * 4, 0.0, dtype))


def _attend(w: Weights, at: Mapping[str, str], x: Tensor, n_heads: int, hide: Tensor) -> Tensor:
    """Merged attention heads of x [batch, sequence, hidden]; `at`: names of the projections."""
    size = int(x.shape[-1]) // n_heads  # type: ignore[arg-type]
    q, k, v = (
        heads(dense(w, at[n], x, n_heads * size, bias=True, dtype=x.dtype), n_heads, 0, size)
        for n in ("query", "key", "value")
    )
    return joined(c.masked_attention(q, k, v, hide, scale=1 / sqrt(size)))


def _finfo_min(dtype: str) -> float:
    if dtype == "bfloat16":
        import ml_dtypes

        return float(ml_dtypes.finfo(ml_dtypes.bfloat16).min)
    return float(np.finfo(dtypes.numpy_dtype(dtype)).min)
