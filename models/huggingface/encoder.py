"""Builds the graph of BERT: bidirectional encoder with learned positions and post-norm layers, and its task heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.composites import composite_ops as c
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import dim
from ...errors import BadModelError
from .checkpoint import Config, Weights
from .layers import ACTIVATIONS, MAX_LAYERS, dense, heads, joined, layer_norm

#: Regexes of non-weight tensors: position ids (the program computes them) and a copy of the tied head's bias.
BERT_UNUSED: Mapping[str, str] = {
    r"embeddings\.position_ids$": "as the program computes it",
    r"^cls\.predictions\.decoder\.bias$": "'cls.predictions.bias' stands for it",
}
#: Layer norm suffixes: (current, that of checkpoints converted from the first release).
BERT_ALIASES = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
BERT_HEADS = ("cls.", "classifier.", "qa_outputs.")
BERT_PARTS = r"^(cls|classifier|qa_outputs|(bert\.)?pooler)\."
BERT_COPY = r"^cls\.predictions\.decoder\.weight$"


@dataclass(frozen=True)
class Encoded:
    """Output of the encoder and the values that task heads need.

    `states` is [batch, sequence, hidden], `words` the token embedding table [vocabulary, hidden]. `weights`: the
    checkpoint's, from which heads take theirs. `eps`: of layer normalizations; `activation`: of the model's MLPs.
    """

    config: Config
    weights: Weights
    states: Tensor
    words: Tensor  # token embedding table
    eps: float
    activation: Callable[[Tensor], Tensor]

    def dense(self, name: str, x: Tensor, outputs: int) -> Tensor:
        """Linear layer with bias and `outputs` results: x[..., inputs] @ weight.T + bias with the weights `name.weight`
        and `name.bias`."""
        return dense(self.weights, name, x, outputs, bias=True, dtype=x.dtype)

    def pooled(self) -> Tensor:
        """Return the pooled first position: tanh of a linear layer, [batch, hidden]."""
        first = t.squeeze(t.slice_axis(self.states, 1, 0, 1), 1)
        return t.tanh(self.dense("pooler.dense", first, int(first.shape[-1])))  # type: ignore[arg-type]

    def vocabulary(self) -> Tensor:
        """Logits over the vocabulary, [batch, sequence, vocabulary].

        The output matrix is the embedding table if weights are tied.
        """
        w, at, (vocab, hidden) = self.weights, "cls.predictions", self.words.shape
        x = self.activation(self.dense(f"{at}.transform.dense", self.states, int(hidden)))  # type: ignore[arg-type]
        x = layer_norm(w, f"{at}.transform.LayerNorm", x, self.eps)
        tied = self.config.flag("tie_word_embeddings", True)
        table = self.words if tied else w.take(f"{at}.decoder.weight", (vocab, hidden), x.dtype)
        # tied weights share one bias under two names; a decoder matrix of its own has a bias of its own
        names = (f"{at}.bias", f"{at}.decoder.bias")[:: 1 if tied else -1]
        bias = names[0] if w.has(names[0]) else names[1]
        return c.linear(x, t.transpose(table), w.take(bias, (vocab,), x.dtype))

    def follows(self) -> Tensor:
        """Logits [batch, 2] of whether the second sentence follows the first."""
        return self.dense("cls.seq_relationship", self.pooled(), 2)

    def labels(self, x: Tensor) -> Tensor:
        """Logits over the config's labels, a linear layer ("classifier") of x.

        The label count is `num_labels`, else the size of `id2label`, else 2.
        """
        named = len(self.config.section("id2label").fields)
        return self.dense("classifier", x, self.config.size("num_labels", named or 2))

    def spans(self) -> dict[str, Tensor]:
        """Logits of answer spans by output name: `start_logits` and `end_logits`, each [batch, sequence]."""
        ends = t.split(self.dense("qa_outputs", self.states, 2), (1, 1), -1)
        return {n: t.squeeze(v, 2) for n, v in zip(("start_logits", "end_logits"), ends, strict=True)}


#: Suffix of the model class name -> function that builds the class's outputs.
HEADS: Mapping[str, Callable[[Encoded], dict[str, Tensor]]] = {
    "Model": lambda e: {"last_hidden_state": e.states, "pooler_output": e.pooled()},
    "ForMaskedLM": lambda e: {"logits": e.vocabulary()},
    "LMHeadModel": lambda e: {"logits": e.vocabulary()},
    "ForPreTraining": lambda e: {"prediction_logits": e.vocabulary(), "seq_relationship_logits": e.follows()},
    "ForNextSentencePrediction": lambda e: {"logits": e.follows()},
    "ForSequenceClassification": lambda e: {"logits": e.labels(e.pooled())},
    "ForTokenClassification": lambda e: {"logits": e.labels(e.states)},
    "ForQuestionAnswering": Encoded.spans,
}


def build_bert(config: Config, w: Weights) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Return (outputs by name, inputs) of a BERT model; the outputs are those of the config's model class (HEADS).

    Without a class in the config, the outputs are `last_hidden_state` [batch, sequence, hidden] and, if the checkpoint
    has a pooler, `pooler_output` [batch, hidden]. Inputs are int64 [batch, sequence]: `input_ids`, `attention_mask` (0
    masks a position), `token_type_ids`. Raises BadModelError if heads do not divide the hidden size.
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
    lowest = float(_finfo_min(dtype))  # the reference implementation adds the lowest finite number, not -inf
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
    if not config.model_class and not w.has("pooler.dense.weight"):
        return {"last_hidden_state": x}, [ids, mask, kinds]
    found = config.by_class(HEADS, "Model")(Encoded(config, w, x, words, eps, activation))
    return found, [ids, mask, kinds]


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
