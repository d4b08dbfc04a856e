"""Writes checkpoint folders in the Hugging Face layout (config.json, model.safetensors) with random weights, for tests,
benchmarks and examples.

The default sizes are those of the published models. Weights are lazy and scaled so that activations stay near 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from typing import Any

from ..egraph.ir.weight_data import Data
from ..writing.files import replacing
from .common.random_weights import RandomArray
from .files.safetensors import write_arrays
from .huggingface.checkpoint import Config, Weights
from .huggingface.families import FAMILIES
from .huggingface.load import architecture

_LAYERS = {"gpt2": "n_layer", "distilbert": "n_layers"}  # config fields of the number of layers
_RESIDUAL = ("o_proj.weight", "down_proj.weight", "c_proj.weight", "output.dense.weight")
_NORMS = ("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight", "LayerNorm.weight")


def write_checkpoint(folder: Path | str, config: Mapping[str, Any], *, seed: int = 0) -> Path:
    """Write a checkpoint folder for a config of a known model_type and return its path.

    The weights are random, in the config's dtype.
    """
    folder = Path(folder)
    arrays = random_checkpoint(config, seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    write_arrays(folder / "model.safetensors", arrays, {"format": "pt"})
    with replacing(folder / "config.json") as file:
        file.write(json.dumps(dict(config), indent=2).encode() + b"\n")
    return folder


def random_checkpoint(config: Mapping[str, Any], *, seed: int = 0) -> dict[str, Data]:
    """Return the tensors of a checkpoint for a config of a known model_type, by name: random and lazy."""
    checked = Config(config)
    entry = architecture(checked)
    wanted = Weights({}, invented=checked.dtype("float32"))
    entry.build(checked, wanted)
    layers = checked.size(_LAYERS.get(str(config["model_type"]), "num_hidden_layers"))
    tied = checked.flag("tie_word_embeddings", entry.tied)
    arrays: dict[str, Data] = {}
    for name, shape in wanted.taken.items():
        spelled = name if name.startswith(entry.heads) else entry.prefixes[0] + name
        scale, mean = _spread(name, shape, str(config["model_type"]), layers, tied)
        arrays[spelled] = RandomArray(shape, wanted.invented, scale, mean, seed, name)
    return arrays


def _spread(name: str, shape: tuple[int, ...], kind: str, layers: int, tied: bool) -> tuple[float, float]:
    """Return (scale, mean) of a tensor's random numbers."""
    plus_one = kind in FAMILIES and FAMILIES[kind].gain == "plus one"  # gains are 1 + weight
    if name.endswith(("bias", "sinks")):
        return 0.02, 0.0
    if "post_" in name and plus_one:  # this norm precedes the residual sum
        return 0.02, 1 / sqrt(2 * layers) - 1
    if name.endswith(_NORMS) or "norm" in name.rsplit(".", 2)[-2]:
        return 0.05, 0.0 if plus_one else 1.0
    if "embed" in name or name.startswith(("wte", "wpe")):
        return (1 / sqrt(shape[1]) if tied or plus_one else 1.0), 0.0
    inputs = shape[0] if kind == "gpt2" and not name.startswith("lm_head") else shape[1]
    return (1 / sqrt(2 * layers * inputs) if name.endswith(_RESIDUAL) else 1 / sqrt(inputs)), 0.0


def write_gpt2(
    folder: Path | str, *, layers: int = 12, hidden: int = 768, heads: int = 12, vocab: int = 50257,
    positions: int = 1024, dtype: str = "float32", seed: int = 0, **more: Any,
) -> Path:  # fmt: skip
    """Write a GPT-2 checkpoint (124 M parameters at the default sizes) and return its path.

    `dtype` is that of weights and activations; `seed` draws the weights; `more` are further config fields.
    """
    config = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": layers, "n_embd": hidden,
        "n_head": heads, "vocab_size": vocab, "n_positions": positions, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "torch_dtype": dtype, **more,
    }  # fmt: skip
    return write_checkpoint(folder, config, seed=seed)


def write_llama(
    folder: Path | str, *, layers: int = 16, hidden: int = 2048, heads: int = 32, kv_heads: int = 8,
    intermediate: int = 8192, vocab: int = 128256, positions: int = 131072, dtype: str = "bfloat16", seed: int = 0,
    **more: Any,
) -> Path:  # fmt: skip
    """Write a Llama checkpoint at the sizes of Llama-3.2-1B (1.2 B parameters) and return its path.

    `dtype` is that of weights and activations; `seed` draws the weights; `more` are further config fields.
    """
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": layers,
        "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate, "vocab_size": vocab, "max_position_embeddings": positions,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True,
        "torch_dtype": dtype, **more,
    }  # fmt: skip
    return write_checkpoint(folder, config, seed=seed)


def write_qwen3(
    folder: Path | str, *, layers: int = 28, hidden: int = 1024, heads: int = 16, kv_heads: int = 8,
    head_dim: int = 128, intermediate: int = 3072, vocab: int = 151936, positions: int = 40960,
    dtype: str = "bfloat16", seed: int = 0, **more: Any,
) -> Path:  # fmt: skip
    """Write a Qwen3 checkpoint at the sizes of Qwen3-0.6B and return its path.

    `dtype` is that of weights and activations; `seed` draws the weights; `more` are further config fields.
    """
    config = {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": layers,
        "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
        "intermediate_size": intermediate, "vocab_size": vocab, "max_position_embeddings": positions,
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": True,
        "torch_dtype": dtype, **more,
    }  # fmt: skip
    return write_checkpoint(folder, config, seed=seed)


def write_gemma3(
    folder: Path | str, *, layers: int = 18, hidden: int = 640, heads: int = 4, kv_heads: int = 1,
    head_dim: int = 256, intermediate: int = 2048, vocab: int = 262144, positions: int = 32768,
    window: int = 512, dtype: str = "bfloat16", seed: int = 0, **more: Any,
) -> Path:  # fmt: skip
    """Write a Gemma 3 checkpoint at the sizes of gemma-3-270m (268,098,176 parameters) and return its path.

    `dtype` is that of weights and activations; `seed` draws the weights; `more` are further config fields.
    """
    config = {
        "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": layers,
        "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
        "intermediate_size": intermediate, "vocab_size": vocab, "max_position_embeddings": positions,
        "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "query_pre_attn_scalar": head_dim,
        "sliding_window": window, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
        "layer_types": ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(layers)],
        "attention_bias": False, "torch_dtype": dtype, **more,
    }  # fmt: skip
    return write_checkpoint(folder, config, seed=seed)


def write_bert(
    folder: Path | str, *, layers: int = 12, hidden: int = 768, heads: int = 12, intermediate: int = 3072,
    vocab: int = 30522, positions: int = 512, dtype: str = "float32", seed: int = 0, **more: Any,
) -> Path:  # fmt: skip
    """Write a BERT checkpoint with random weights (by default BERT-base, 109 M parameters) and return its path.

    `dtype` is that of weights and activations; `seed` draws the weights; `more` are further config fields, such as
    `architectures` for the task head (["BertForMaskedLM"]).
    """
    config = {
        "model_type": "bert", "architectures": ["BertModel"], "num_hidden_layers": layers, "hidden_size": hidden,
        "num_attention_heads": heads, "intermediate_size": intermediate, "vocab_size": vocab,
        "max_position_embeddings": positions, "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
        "torch_dtype": dtype, **more,
    }  # fmt: skip
    return write_checkpoint(folder, config, seed=seed)
