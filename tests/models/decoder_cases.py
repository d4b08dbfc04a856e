"""Small decoders of every architecture, and their logits as transformers computes them.

    PYTHONPATH=src:FOLDER_OF_TRANSFORMERS python -m tests.models.decoder_cases

records tests/data/decoder_logits.npz. The weights are drawn by `random_checkpoints.write_checkpoint`, so that a
test needs the logits only.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.egraph.simplify.simplify import simplify
from tensor_graphs.generation import cached_model, programs
from tensor_graphs.models import random_checkpoints

Array = np.ndarray[Any, Any]
VOCAB, LENGTH, SEED = 24, 80, 5
PLACES = (3, 30, LENGTH - 1)  # positions whose logits are recorded
RECORD = Path(__file__).parents[1] / "data" / "decoder_logits.npz"

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "torch_dtype": "float32",
}  # fmt: skip
_LONGROPE = {
    "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0, 1.2], "long_factor": [2.0, 3.0]},
    "partial_rotary_factor": 0.5, "original_max_position_embeddings": 64,
}  # fmt: skip


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random tokens of the vocabulary."""
    return [int(v) for v in np.random.default_rng(seed).integers(0, VOCAB, length)]


def unfused_programs(patch: pytest.MonkeyPatch, buckets: tuple[int, ...]) -> None:
    """Make generators use programs of NumPy calls in place of optimized ones, and prefill steps of these sizes."""
    planned = lambda graph, **_: Program(direct_plan(simplify(graph), [backend("numpy")]))
    patch.setattr(programs, "optimize", planned)
    patch.setattr(cached_model, "BUCKETS", buckets)


def _config(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"model_type": kind, "architectures": [f"{name}ForCausalLM"], **_SIZES, **more}


CASES: dict[str, dict[str, Any]] = {
    "llama": _config("llama", "Llama", rope_theta=500.0),
    "granite": _config("granite", "Granite", embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.7,
                       logits_scaling=0.5),
    "smollm3": _config("smollm3", "SmolLM3", no_rope_layers=[1, 0, 1], use_sliding_window=True, sliding_window=9),
    "olmo2": _config("olmo2", "Olmo2"),
    "starcoder2": _config("starcoder2", "Starcoder2", sliding_window=9),
    "stablelm": _config("stablelm", "StableLm", partial_rotary_factor=0.5, use_qkv_bias=True),
    "stablelm-parallel": _config("stablelm", "StableLm", partial_rotary_factor=0.5, use_parallel_residual=True),
    "cohere2": _config("cohere2", "Cohere2", sliding_window=9, sliding_window_pattern=2, logit_scale=1.5),
    "gemma": _config("gemma", "Gemma", head_dim=8, tie_word_embeddings=True),
    "mistral": _config("mistral", "Mistral", sliding_window=9),
    "qwen2": _config("qwen2", "Qwen2"),
    "qwen3": _config("qwen3", "Qwen3", head_dim=8),
    "gemma2": _config("gemma2", "Gemma2", head_dim=8, sliding_window=9, query_pre_attn_scalar=16, tie_word_embeddings=True,
                      attn_logit_softcapping=2.0, final_logit_softcapping=1.5),
    "gemma3": _config("gemma3_text", "Gemma3", head_dim=8, sliding_window=9, query_pre_attn_scalar=16,
                      tie_word_embeddings=True, layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "gpt2": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": VOCAB, "n_embd": 32, "n_head": 4,
             "n_layer": 3, "n_positions": 128, "bos_token_id": None, "eos_token_id": None, "torch_dtype": "float32"},
    "phi3": _config("phi3", "Phi3", **_LONGROPE),
    "phi3-window": _config("phi3", "Phi3", sliding_window=7),
    "mixtral": _config("mixtral", "Mixtral", num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": _config("qwen3_moe", "Qwen3Moe", num_experts=6, num_experts_per_tok=3, moe_intermediate_size=24, head_dim=8,
                         norm_topk_prob=True, mlp_only_layers=[1]),
    "gpt_oss": _config("gpt_oss", "GptOss", num_local_experts=4, num_experts_per_tok=2, head_dim=8, sliding_window=9),
}  # fmt: skip


def write(folder: Path, case: str, **more: Any) -> Path:
    """A checkpoint of a case."""
    return random_checkpoints.write_checkpoint(folder, {**CASES[case], **more}, seed=SEED)


def tokens(rows: int = 2) -> Array:
    """Token ids [rows, LENGTH]; the first row is that of the record."""
    return np.random.default_rng(SEED).integers(0, VOCAB, (rows, LENGTH))


def transformers_logits(folder: Path, ids: Array) -> Array:
    """Logits [rows, length, vocabulary] as transformers computes them in float64."""
    import torch
    from transformers import AutoModelForCausalLM

    options = {"attn_implementation": "eager", "experts_implementation": "eager", "dtype": torch.float32}
    model = AutoModelForCausalLM.from_pretrained(folder, **options).double().eval()
    with torch.no_grad():
        return np.asarray(model(torch.from_numpy(ids)).logits.numpy())


def recorded(case: str) -> Array:
    """Logits at PLACES of the first row, [places, vocabulary]."""
    with np.load(RECORD) as record:
        return np.asarray(record[case])


def main() -> None:
    """Record the logits of all cases."""
    found = {}
    for case in CASES:
        with TemporaryDirectory() as folder:
            logits = transformers_logits(write(Path(folder), case), tokens())
        found[case] = logits[0, list(PLACES)].astype(np.float32)
        print(f"{case:12} {np.abs(logits).max():.3f}")
    np.savez_compressed(RECORD, **found)


if __name__ == "__main__":
    main()
