"""BERT: bidirectional encoder with learned positions, post-norm layers and an optional pooler."""

from __future__ import annotations

from math import sqrt

import numpy as np

from ..egraph import api as t
from ..egraph import composite as c
from ..egraph import dtypes
from ..egraph.dims import dim
from ..egraph.graph import Tensor
from ..errors import BadModelError
from .checkpoint import Config, Weights
from .decoder import ACTIVATIONS, MAX_LAYERS, dense, heads, joined, layer_norm

#: Heads of pre-training, position numbers: not part of the encoder
BERT_IGNORED = (r"^cls\.", r"embeddings\.position_ids$")
#: Endings of layer norms in files converted from the first release
BERT_ALIASES = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
#: Classes whose checkpoints may come without a pooler
_POOLERLESS = {"BertForMaskedLM", "BertForTokenClassification", "BertForQuestionAnswering", "BertLMHeadModel"}


def build_bert(config: Config, w: Weights) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Outputs `last_hidden_state` [batch, sequence, hidden] and `pooler_output` [batch, hidden], and the inputs.

    Inputs, all int64 [batch, sequence]: `input_ids`, `attention_mask` (0 hides a position), `token_type_ids`.
    """
    config.refuse(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    hidden, n_heads = config.size("hidden_size"), config.size("num_attention_heads")
    inner, positions = config.size("intermediate_size"), config.size("max_position_embeddings", 512)
    eps = config.number("layer_norm_eps", 1e-12)
    activation = ACTIVATIONS[config.choice("hidden_act", "gelu", list(ACTIVATIONS))]
    if hidden % n_heads:
        raise BadModelError(f"hidden_size={hidden} is not a multiple of {n_heads} heads", where=config.where)
    dtype = config.dtype(w.dtype_of("embeddings.word_embeddings.weight"))
    shape = (dim("batch"), dim("sequence", max=positions))
    ids, mask, kinds = (t.input(n, shape, "int64") for n in ("input_ids", "attention_mask", "token_type_ids"))
    tables = {"word": config.size("vocab_size"), "token_type": config.size("type_vocab_size", 2), "position": positions}
    words, types, places = (
        w.take(f"embeddings.{n}_embeddings.weight", (size, hidden), dtype) for n, size in tables.items()
    )
    x = t.gather(words, ids) + t.gather(types, kinds) + t.slice_axis(places, 0, 0, ids.shape[1])
    x = layer_norm(w, "embeddings.LayerNorm", x, eps)
    lowest = float(_finfo_min(dtype))  # the original adds the lowest finite number, not -inf
    hide = t.where(t.eq(t.reshape(mask, (shape[0], 1, 1, shape[1])), 0), t.full((1,) * 4, lowest, dtype),
                   t.full((1,) * 4, 0.0, dtype))  # fmt: skip
    for i in range(config.size("num_hidden_layers", most=MAX_LAYERS)):
        at = f"encoder.layer.{i}"
        y = _attend(w, f"{at}.attention.self", x, n_heads, hide)
        y = dense(w, f"{at}.attention.output.dense", y, hidden, bias=True, dtype=dtype)
        x = layer_norm(w, f"{at}.attention.output.LayerNorm", y + x, eps)
        y = activation(dense(w, f"{at}.intermediate.dense", x, inner, bias=True, dtype=dtype))
        y = dense(w, f"{at}.output.dense", y, hidden, bias=True, dtype=dtype)
        x = layer_norm(w, f"{at}.output.LayerNorm", y + x, eps)
    outputs = {"last_hidden_state": x}
    if w.has("pooler.dense.weight") or not set(config.texts("architectures") or ()) & _POOLERLESS:
        first = t.squeeze(t.slice_axis(x, 1, 0, 1), 1)
        outputs["pooler_output"] = t.tanh(dense(w, "pooler.dense", first, hidden, bias=True, dtype=dtype))
    return outputs, [ids, mask, kinds]


def _attend(w: Weights, at: str, x: Tensor, n_heads: int, hide: Tensor) -> Tensor:
    size = int(x.shape[-1]) // n_heads  # type: ignore[arg-type]
    q, k, v = (
        heads(dense(w, f"{at}.{n}", x, n_heads * size, bias=True, dtype=x.dtype), n_heads, 0, size)
        for n in ("query", "key", "value")
    )
    return joined(c.masked_attention(q, k, v, hide, scale=1 / sqrt(size)))


def _finfo_min(dtype: str) -> float:
    if dtype == "bfloat16":
        import ml_dtypes

        return float(ml_dtypes.finfo(ml_dtypes.bfloat16).min)
    return float(np.finfo(dtypes.numpy_dtype(dtype)).min)
