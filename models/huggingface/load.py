"""Imports Hugging Face model folders (config.json and safetensors weights) of a fixed list of architectures.

Only data is read: a config that refers to its own Python code is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor
from ...egraph.ir.weight_data import Data
from ...errors import BadModelError, BadWeightsError, UnsupportedError
from ...writing.files import named_path
from ..files.inside import inside
from ..files.safetensors import read_folder, read_json_file
from . import decoder, encoder
from .checkpoint import Config, Weights
from .families import FAMILIES
from .gguf import opened_gguf
from .quantized import dequantized

Builder = Callable[[Config, Weights], tuple[dict[str, Tensor], list[Tensor]]]


@dataclass(frozen=True)
class Architecture:
    """Registry entry of a `model_type`: the function that builds its graph, and the tensor naming scheme of its
    checkpoints.

    `prefixes`, `aliases`: as for `Weights`.
    """

    build: Builder
    prefixes: Sequence[str]
    unused: Mapping[str, str] = field(default_factory=dict)  # regex of non-weight tensors -> reason for the warning
    aliases: Sequence[tuple[str, str]] = ()
    tied: bool = False  # default of tie_word_embeddings
    heads: tuple[str, ...] = ("lm_head.",)  # name prefixes of head tensors, which take no `prefixes`
    parts: str = r"^(lm_head|score)\."  # tensors that only some model classes use
    copy: str = r"^lm_head\.weight$"  # copy of the embedding table stored for a tied head
    inputs_first: str = ""  # regex of weights that are [inputs, outputs] unless they are quantized

    def without(self, config: Config) -> dict[str, str]:
        """Patterns of the tensors that the config's model class does not use, each with the reason (text of the
        warning)."""
        tied = {self.copy: "the embedding table stands for it"} if config.flag("tie_word_embeddings", self.tied) else {}
        return {**self.unused, **tied, self.parts: f"no part of {config.model_class or 'this architecture'}"}


_POSITIONS = {r"embeddings\.position_ids$": decoder.COMPUTED}
ARCHITECTURES: dict[str, Architecture] = {
    "gpt2": Architecture(
        decoder.build_gpt2,
        ("transformer.",),
        decoder.GPT2_UNUSED,
        tied=True,
        inputs_first=r"\.c_(attn|fc|proj)\.weight$",
    ),
    **{
        kind: Architecture(partial(decoder.build_rotary, kind), ("model.",), decoder.ROTARY_UNUSED, tied=family.tied)
        for kind, family in FAMILIES.items()
    },
    "bert": Architecture(
        partial(encoder.build_encoder, "bert"),
        ("bert.",),
        {**_POSITIONS, r"^cls\.predictions\.decoder\.bias$": "'cls.predictions.bias' stands for it"},
        # layer norm suffixes: (current, that of checkpoints converted from the first release)
        (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")),
        tied=True,
        heads=("cls.", "classifier.", "qa_outputs."),
        parts=r"^(cls|classifier|qa_outputs|(bert\.)?pooler)\.",
        copy=r"^cls\.predictions\.decoder\.weight$",
    ),
    **{
        kind: Architecture(
            partial(encoder.build_encoder, kind),
            ("roberta.",),
            {**_POSITIONS, r"^lm_head\.decoder\.bias$": "'lm_head.bias' stands for it"},
            tied=True,
            heads=("lm_head.", "classifier.", "qa_outputs."),
            parts=r"^(lm_head|classifier|qa_outputs|(roberta\.)?pooler)\.",
            copy=r"^lm_head\.decoder\.weight$",
        )
        for kind in ("roberta", "xlm-roberta")
    },
    "distilbert": Architecture(
        partial(encoder.build_encoder, "distilbert"),
        ("distilbert.",),
        _POSITIONS,
        tied=True,
        heads=("vocab_", "classifier.", "pre_classifier.", "qa_outputs."),
        parts=r"^(vocab_\w+|classifier|pre_classifier|qa_outputs)\.",
        copy=r"^vocab_projector\.weight$",
    ),
}


def architecture(config: Config) -> Architecture:
    """Return the registry entry of a config.

    Raises UnsupportedError for unknown model types, configs with Python code (auto_map), and configs with a
    quantization_config, which `dequantized` removes. Raises BadModelError without a model_type.
    """
    kind = config.text("model_type", "")
    if config.fields.get("auto_map"):
        raise UnsupportedError(
            "the config's auto_map asks for code from the model's folder, which is never run",
            where=config.where,
            hint="export the model to ONNX or with torch.export",
        )
    if config.fields.get("quantization_config"):
        raise UnsupportedError(
            "a quantization_config is read with the tensors of its folder, not alone",
            where=config.where,
            hint="load the folder, or remove quantization_config for float weights",
        )
    if not kind:
        raise BadModelError("the config has no model_type", where=config.where)
    if kind not in ARCHITECTURES:
        raise UnsupportedError(
            f"model_type={kind[:80]!r} has no builder here",
            where=config.where,
            hint=f"known: {', '.join(ARCHITECTURES)}; others come in as ONNX or torch.export files",
        )
    return ARCHITECTURES[kind]


def build(config: Config, weights: Weights) -> Graph:
    """Return the graph of a config over the given weights. The batch and sequence dimensions are free."""
    outputs, inputs = architecture(config).build(config, weights)
    try:
        weights.finish()
    except BadWeightsError as error:
        if config.model_class:
            error.hint = (
                f"config.json names {config.model_class[:80]}, a {config.text('model_type', '')}: is this its file?"
            )
        raise
    return Graph.of(outputs, params=weights.params, inputs=inputs, name=config.text("model_type", "graph"))


def load_folder(path: Path | str, *, trust: bool = False) -> Graph:
    """Return the graph of a folder with config.json and *.safetensors. Weights are lazy.

    The graph computes what the model class named in config.json computes. Tensors which that class does not use are
    reported by an UnusedWeightsWarning. Raises BadModelError for a malformed config or a link out of the folder (unless
    `trust`), BadWeightsError for a tensor that is missing, has another shape or belongs to no model class, and
    UnsupportedError for an architecture, class or option that is not implemented.
    """
    config, data = opened(path, trust=trust)
    return build(config, weights_of(config, data, str(path)))


def opened(path: Path | str, *, trust: bool = False) -> tuple[Config, Mapping[str, Data]]:
    """Open a folder or GGUF file: its config, and its tensors by name, which are read when they are needed. With
    `trust`, links may lead out of the folder. Raises the errors of `load_folder`."""
    folder = named_path(path)
    if folder.suffix.lower() == ".gguf":
        config, tensors = opened_gguf(folder)
        architecture(config)
        return config, tensors
    config_file = folder / "config.json"
    if not folder.exists():
        raise BadModelError("there is no file or folder of this name", where=str(folder))
    if not folder.is_dir():
        raise BadModelError("it is no folder with config.json, and no .gguf file", where=str(folder))
    if not config_file.is_file():
        saved = (folder / "manifest.json").is_file()
        hint = "it is a saved program: tg.load_program runs it" if saved else ""
        raise BadModelError("the folder has no config.json", where=str(folder), hint=hint)
    config = Config(read_json_file(inside(folder, config_file.name, trust=trust)), str(config_file))
    quantized = config.fields.get("quantization_config") and not config.fields.get("auto_map")
    if not quantized:
        architecture(config)
        return config, read_folder(folder, trust=trust)
    known = ARCHITECTURES.get(config.text("model_type", ""))
    plain, data = dequantized(config, read_folder(folder, trust=trust), known.inputs_first if known else "")
    architecture(plain)
    return plain, data


def weights_of(config: Config, data: Mapping[str, Data], where: str = "") -> Weights:
    """Return access to a checkpoint's tensors `data` by the names of the config's architecture. `where`: path for
    messages."""
    entry = architecture(config)
    return Weights(data, entry.prefixes, entry.without(config), entry.aliases, where)
