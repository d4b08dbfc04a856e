"""Builds the task heads of encoders, and names the tensors that they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...egraph.builders import builders as t
from ...egraph.composites import composite_ops as c
from ...egraph.ir.tensor import Tensor
from .checkpoint import Config, Weights
from .layers import dense, layer_norm


@dataclass(frozen=True)
class VocabularyHead:
    """Names of the tensors of a masked language model's head: a layer, a norm, and the output matrix with its bias.

    `tied`, `untied`: names under which the bias is looked for with and without a tied output matrix. `activation`: that
    of the layer; None: the config's.
    """

    layer: str
    norm: str
    matrix: str
    tied: tuple[str, ...]
    untied: tuple[str, ...]
    activation: Callable[[Tensor], Tensor] | None = None


BERT_WORDS = VocabularyHead(
    "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.decoder.weight",
    ("cls.predictions.bias", "cls.predictions.decoder.bias"), ("cls.predictions.decoder.bias", "cls.predictions.bias"),
)  # fmt: skip
ROBERTA_WORDS = VocabularyHead(
    "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder.weight", ("lm_head.bias", "lm_head.decoder.bias"),
    ("lm_head.decoder.bias", "lm_head.bias"), c.gelu,
)  # fmt: skip
DISTILBERT_WORDS = VocabularyHead(
    "vocab_transform",
    "vocab_layer_norm",
    "vocab_projector.weight",
    ("vocab_projector.bias",),
    ("vocab_projector.bias",),
)


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

    def square(self, name: str, x: Tensor) -> Tensor:
        """Linear layer with as many results as inputs."""
        return self.dense(name, x, int(x.shape[-1]))  # type: ignore[arg-type]

    def first(self) -> Tensor:
        """The hidden states at the first position, [batch, hidden]."""
        return t.squeeze(t.slice_axis(self.states, 1, 0, 1), 1)

    def pooled(self) -> Tensor:
        """Return the pooled first position: tanh of a linear layer, [batch, hidden]."""
        return t.tanh(self.square("pooler.dense", self.first()))

    def whole(self) -> dict[str, Tensor]:
        """Outputs of the model without a head. A checkpoint whose class has a head may lack the pooler."""
        pooled = {"pooler_output": self.pooled()} if self.weights.has("pooler.dense.weight") else {}
        return {"last_hidden_state": self.states, **pooled}

    def vocabulary(self, head: VocabularyHead) -> Tensor:
        """Logits over the vocabulary, [batch, sequence, vocabulary].

        The output matrix is the embedding table if weights are tied.
        """
        w, (vocab, hidden) = self.weights, self.words.shape
        x = (head.activation or self.activation)(self.square(head.layer, self.states))
        x = layer_norm(w, head.norm, x, self.eps)
        tied = self.config.flag("tie_word_embeddings", True)
        table = self.words if tied else w.take(head.matrix, (vocab, hidden), x.dtype)
        # tied weights share one bias under two names; an output matrix of its own has a bias of its own
        first, *others = head.tied if tied else head.untied
        bias = next((name for name in (first, *others) if w.has(name)), first)
        return c.linear(x, t.transpose(table), w.take(bias, (vocab,), x.dtype))

    def follows(self) -> Tensor:
        """Logits [batch, 2] of whether the second sentence follows the first."""
        return self.dense("cls.seq_relationship", self.pooled(), 2)

    def labels(self, x: Tensor, name: str = "classifier") -> Tensor:
        """Logits over the config's labels, a linear layer of x with the weights `name`.

        The label count is `num_labels`, else the size of `id2label`, else 2.
        """
        named = len(self.config.section("id2label").fields)
        return self.dense(name, x, self.config.size("num_labels", named or 2))

    def spans(self) -> dict[str, Tensor]:
        """Logits of answer spans by output name: `start_logits` and `end_logits`, each [batch, sequence]."""
        ends = t.split(self.dense("qa_outputs", self.states, 2), (1, 1), -1)
        return {n: t.squeeze(v, 2) for n, v in zip(("start_logits", "end_logits"), ends, strict=True)}


#: Suffix of the model class name -> function that builds the class's outputs.
Tasks = Mapping[str, Callable[[Encoded], dict[str, Tensor]]]
_COMMON: Tasks = {
    "ForTokenClassification": lambda e: {"logits": e.labels(e.states)},
    "ForQuestionAnswering": Encoded.spans,
}
BERT_TASKS: Tasks = {
    **_COMMON,
    "Model": lambda e: {"last_hidden_state": e.states, "pooler_output": e.pooled()},
    "ForMaskedLM": lambda e: {"logits": e.vocabulary(BERT_WORDS)},
    "LMHeadModel": lambda e: {"logits": e.vocabulary(BERT_WORDS)},
    "ForPreTraining": lambda e: {"prediction_logits": e.vocabulary(BERT_WORDS), "seq_relationship_logits": e.follows()},
    "ForNextSentencePrediction": lambda e: {"logits": e.follows()},
    "ForSequenceClassification": lambda e: {"logits": e.labels(e.pooled())},
}
ROBERTA_TASKS: Tasks = {
    **_COMMON,
    "Model": Encoded.whole,
    "ForMaskedLM": lambda e: {"logits": e.vocabulary(ROBERTA_WORDS)},
    "ForSequenceClassification": lambda e: {
        "logits": e.labels(t.tanh(e.square("classifier.dense", e.first())), "classifier.out_proj")
    },
}
DISTILBERT_TASKS: Tasks = {
    **_COMMON,
    "Model": lambda e: {"last_hidden_state": e.states},
    "ForMaskedLM": lambda e: {"logits": e.vocabulary(DISTILBERT_WORDS)},
    "ForSequenceClassification": lambda e: {"logits": e.labels(c.relu(e.square("pre_classifier", e.first())))},
}
