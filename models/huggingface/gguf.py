"""Imports GGUF models of the families llama, qwen and gemma: metadata as a config, tensors under Hugging Face names,
quantized ones packed.

Quantized tensors become codes with scales (gguf_blocks.py); F32, F16 and BF16 stay as they are. The tokenizer is read
by `generation/gguf_tokenizer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...egraph.ir.weight_data import Data, load_data
from ...errors import BadModelError, BadWeightsError, UnsupportedError
from ...plain import as_int
from ..common.packed_weight import LazyPart
from ..files.gguf import GgufFile, StoredTensor, read_gguf
from .checkpoint import Config
from .gguf_blocks import packed_weight

Array = np.ndarray[Any, Any]
DTYPE = "bfloat16"  # dtype of activations, which the metadata of a GGUF file does not name

#: Name in the file, without "blk.N." and ending -> name in a checkpoint.
_LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
}  # fmt: skip
#: Tensor names of blocks whose attention and MLP results are normalized, in addition.
_LAYER_OF_FOUR_NORMS = _LAYER | {
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip


@dataclass(frozen=True)
class GgufFamily:
    """How files of an architecture differ from a Hugging Face folder of `model_type` and `model_class`.

    `layer`: names of a layer's tensors. `paired`: rows of a head's queries and keys are pairs, not two halves.
    `shifted`: norms are stored as 1 + weight. `windows`: layers may have attention windows. `theta`: default of the
    base of the rotary frequencies. `fields`: metadata name -> config field that it becomes. `largest`: number of layers
    of the model whose scores are divided by the root of hidden / heads, not of the head size.
    """

    model_type: str
    model_class: str
    layer: Mapping[str, str] = field(default_factory=lambda: _LAYER)
    paired: bool = False
    shifted: bool = False
    windows: bool = False
    theta: float = 10_000.0
    fields: Mapping[str, str] = field(default_factory=dict)
    largest: int = 0


_CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
#: Architecture in a file -> how it is read.
GGUF_FAMILIES = {
    "llama": GgufFamily("llama", "LlamaForCausalLM", paired=True),
    "qwen2": GgufFamily("qwen2", "Qwen2ForCausalLM"),
    "qwen3": GgufFamily("qwen3", "Qwen3ForCausalLM"),
    "gemma": GgufFamily("gemma", "GemmaForCausalLM", shifted=True),
    "gemma2": GgufFamily(
        "gemma2", "Gemma2ForCausalLM", _LAYER_OF_FOUR_NORMS, shifted=True, windows=True, fields=_CAPS, largest=46
    ),
    "gemma3": GgufFamily(
        "gemma3_text", "Gemma3ForCausalLM", _LAYER_OF_FOUR_NORMS, shifted=True, windows=True, theta=1_000_000.0, largest=62
    ),
}  # fmt: skip
_TOP = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
FREQUENCIES = "rope_freqs.weight"
#: Metadata that change what a model computes and that this package does not follow -> values that change nothing.
#: Names of the architecture's own metadata are without its name.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,), "attention.clamp_kqv": (0.0,), "attention.kv_lora_rank": (0,), "attention.max_alibi_bias": (0.0,),
    "attention.output_scale": (0.0, 1.0), "attention.q_lora_rank": (0,), "attention.scale": (0.0,), "attention.shared_kv_layers": (0,),
    "attention.temperature_length": (0,), "attention.temperature_scale": (0.0,), "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0), "final_logit_softcapping": (0.0,), "logit_scale": (0.0, 1.0), "nextn_predict_layers": (0,),
    "residual_scale": (0.0, 1.0), "rope.freq_base_swa": (10_000.0,), "rope.scaling.attn_factor": (0.0, 1.0), "swin_norm": (False,),
    "use_parallel_residual": (False,),
}  # fmt: skip
_WINDOWED = {True: "sliding_attention", False: "full_attention"}
_NEUTRAL_OF_FILES: dict[str, tuple[Any, ...]] = {"general.type": ("model",), "split.count": (0, 1)}


def opened_gguf(path: Path | str) -> tuple[Config, dict[str, Data]]:
    """Return the config and the tensors of a file by Hugging Face name.

    Raises the errors of `read_gguf`, UnsupportedError for other architectures, and BadModelError for metadata that is
    missing or of another kind.
    """
    file = read_gguf(path)
    where = str(file.path)
    kind = Config(file.metadata, where).text("general.architecture", "")
    if kind not in GGUF_FAMILIES:
        raise UnsupportedError(f"the architecture {kind[:80]!r} of a GGUF file has no builder here", where=where,
                               hint=f"known: {', '.join(GGUF_FAMILIES)}")  # fmt: skip
    family = GGUF_FAMILIES[kind]
    config = _config(file, kind, family)
    heads, kv = config.size("num_attention_heads"), config.size("num_key_value_heads")
    found: dict[str, Data] = {}
    for name, tensor in file.tensors.items():
        if name == FREQUENCIES:
            continue
        target = _renamed(name, family, where)
        count = {"self_attn.q_proj": heads, "self_attn.k_proj": kv}.get(target.split(".", 2)[-1].rsplit(".", 1)[0], 0)
        found[target] = _weight(tensor, _halves(count, tensor.shape, name, where) if family.paired and count else None)
        if family.shifted and target.endswith("norm.weight"):
            found[target] = _unshifted(tensor, target)
    return config, found


def _config(file: GgufFile, kind: str, family: GgufFamily) -> Config:
    """The metadata of a file of the architecture `kind` as the fields of a config.json."""
    where, meta = str(file.path), Config(file.metadata, str(file.path))
    if meta.fields.get(f"{kind}.expert_count"):
        raise UnsupportedError("routed experts of GGUF files are not supported", where=where)
    _refuse_unfollowed(meta, kind, family)
    epsilon = f"{kind}.attention.layer_norm_rms_epsilon"
    if meta.fields.get(epsilon) is None:
        raise BadModelError(f"config field {epsilon!r} is missing", where=where)
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise BadWeightsError("there is no matrix token_embd.weight", where=where)

    def size(name: str, default: int | None = None) -> int:
        return meta.size(f"{kind}.{name}", default)

    hidden, heads = size("embedding_length"), size("attention.head_count")
    head = size("attention.key_length", max(hidden // heads, 1))
    if size("rope.dimension_count", head) != head:
        raise UnsupportedError("a rotation of a part of each head is not supported in GGUF files", where=where)
    if size("attention.value_length", head) != head:
        raise UnsupportedError("values of another length than keys are not supported in GGUF files", where=where)
    positions = size("context_length")
    layers = size("block_count")
    fields: dict[str, Any] = {
        "model_type": family.model_type, "architectures": [family.model_class], "torch_dtype": DTYPE, "vocab_size": table.shape[0],
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": size("attention.head_count_kv", heads), "head_dim": head,
        "intermediate_size": size("feed_forward_length"), "max_position_embeddings": positions,
        "rms_norm_eps": meta.number(epsilon, 1e-6),
        "rope_theta": meta.number(f"{kind}.rope.freq_base", family.theta), "tie_word_embeddings": "output.weight" not in file.tensors,
        "hidden_act": "silu", "rope_scaling": _scaling(meta, kind),
        "query_pre_attn_scalar": hidden / heads if layers == family.largest else head,
    }  # fmt: skip
    fields |= {
        name: meta.fields[key] for stored, name in family.fields.items() if (key := f"{kind}.{stored}") in meta.fields
    }
    if not family.windows:
        fields["sliding_window"] = None
    elif f"{kind}.attention.sliding_window" in meta.fields:
        fields["sliding_window"] = size("attention.sliding_window")
    pattern = meta.fields.get(f"{kind}.attention.sliding_window_pattern")
    if family.windows and pattern is not None:  # a flag for each layer, or the number of layers to the next without one
        flags = isinstance(pattern, list)
        fields |= (
            {"layer_types": [_WINDOWED[bool(v)] for v in pattern]} if flags else {"sliding_window_pattern": pattern}
        )
    if "tokenizer.ggml.eos_token_id" in meta.fields:
        fields["eos_token_id"] = meta.size("tokenizer.ggml.eos_token_id", least=0)
    if FREQUENCIES in file.tensors:
        if fields["rope_scaling"] is not None:
            raise UnsupportedError(f"{FREQUENCIES} beside a linear rotary scaling is not supported", where=where)
        fields["rope_scaling"] = _frequencies(file.tensors[FREQUENCIES], head // 2, positions, where)
    return Config(fields, where)


def _refuse_unfollowed(meta: Config, kind: str, family: GgufFamily) -> None:
    """Raise UnsupportedError for metadata that would have to change the graph and do not."""
    own = {f"{kind}.{name}": values for name, values in _NEUTRAL.items() if name not in family.fields}
    for name, values in {**own, **_NEUTRAL_OF_FILES}.items():
        value = meta.fields.get(name)
        if value is not None and not (isinstance(value, bool | int | float | str) and value in values):
            raise UnsupportedError(f"{name}={str(value)[:80]} of a GGUF file is not supported", where=meta.where)


def _scaling(meta: Config, kind: str) -> dict[str, Any] | None:
    """The scaling rule of rotary frequencies: linear, or None. Without a type a factor means linear scaling. Raises
    UnsupportedError for other types."""
    scaling = meta.text(f"{kind}.rope.scaling.type", "linear")
    if scaling not in ("none", "linear"):
        raise UnsupportedError(f"the rotary scaling {scaling[:80]!r} of GGUF files is not supported", where=meta.where)
    factors = [meta.number(f"{kind}.rope.{name}", 1.0) for name in ("scaling.factor", "scale_linear")]
    factor = next((f for f in factors if f not in (0.0, 1.0)), 1.0)
    return None if factor == 1.0 or scaling == "none" else {"rope_type": "linear", "factor": factor}


def _frequencies(stored: StoredTensor, pairs: int, positions: int, where: str) -> dict[str, Any]:
    """The divisors of the rotary frequencies as a scaling rule."""
    if stored.shape != (pairs,) or stored.encoding.name != "F32":
        raise BadWeightsError(
            f"{FREQUENCIES} is {stored.encoding.name}{list(stored.shape)}, not F32[{pairs}]", where=where
        )
    factors = [float(v) for v in load_data(stored.data)]
    if not all(np.isfinite(f) and f > 0 for f in factors):
        raise BadWeightsError(f"{FREQUENCIES} has numbers that are not positive", where=where)
    return {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "attention_factor": 1.0,
            "original_max_position_embeddings": positions, "factor": 1.0}  # fmt: skip


def _renamed(name: str, family: GgufFamily, where: str) -> str:
    """The name of a tensor in a checkpoint. Raises BadModelError for an unknown one."""
    stem, _, ending = name.rpartition(".")
    first, _, rest = stem.partition(".")
    if ending in ("weight", "bias"):
        if stem in _TOP:
            return f"{_TOP[stem]}.{ending}"
        layer, _, part = rest.partition(".")
        number = as_int(layer)
        if first == "blk" and part in family.layer and str(number) == layer:  # not 00: it would replace layer 0
            return f"layers.{layer}.{family.layer[part]}.{ending}"
    raise BadModelError(f"tensor {name[:200]!r} has no place in this architecture", where=where)


def _halves(heads: int, shape: tuple[int, ...], name: str, where: str) -> Array:
    """Order of rows that puts the first numbers of a head's pairs before the second ones."""
    if not shape or shape[0] % (2 * heads):
        raise BadWeightsError(
            f"{name[:200]!r} has {shape[0] if shape else 0} rows, which are not pairs in {heads} heads", where=where
        )
    return np.asarray(np.arange(shape[0]).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1))


def _weight(stored: StoredTensor, order: Array | None) -> Data:
    """A tensor's data, its rows in another order if one is given."""
    rows = (lambda x: x) if order is None else (lambda x: x[order])
    if not stored.encoding.dtype:
        return packed_weight(stored, rows)
    return stored.data if order is None else LazyPart(stored.shape, stored.encoding.dtype, (stored.data,), rows)


def _unshifted(stored: StoredTensor, name: str) -> Data:
    """The weight of a norm that is stored as 1 + weight."""
    if not stored.encoding.dtype:
        raise UnsupportedError(f"the quantized norm {name!r} is not supported", where=str(stored.data.path))
    return LazyPart(stored.shape, "float32", (stored.data,), lambda x: x.astype(np.float32) - np.float32(1))


__all__ = ["GGUF_FAMILIES", "GgufFamily", "opened_gguf"]
