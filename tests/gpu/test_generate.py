"""Generation on a GPU: logits and tokens of small decoders against the interpreter, states shared on the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensor_graphs.backends.registry import backend
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.generation import Generator
from tensor_graphs.models.huggingface.load import load_folder
from tensor_graphs.models.random_checkpoints import write_checkpoint

pytest.importorskip("torch")

NO_GPU = backend("torch_cuda").unavailable()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU or "there is a GPU")]

VOCAB = 96
#: Options of searches that measure nothing: the tests are about results, and each of a dozen searches would wait for
#: the processes that measure.
QUICK: dict[str, Any] = {"max_length": 128, "batch": 2, "budget": 4, "measure": False}
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512, "tie_word_embeddings": False,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "gemma3": {**_COMMON, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "sliding_window": 24},
    "llama": {**_COMMON, "model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "gpt_oss": {**_COMMON, "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "sliding_window": 24,
                "num_local_experts": 4, "num_experts_per_tok": 2},
}  # fmt: skip


def exact_logits(folder: Path, ids: list[int]) -> np.ndarray[Any, Any]:
    """Logits after a sequence, by the graph over whole sequences in float64."""
    graph = load_folder(folder).bind({"batch": 1, "sequence": len(ids)})
    return np.asarray(evaluate(graph, {"input_ids": np.array([ids])}, float64=True)[0][0, -1])


@pytest.mark.parametrize(("case", "dtype"), [("gemma3", "bfloat16"), ("llama", "float32"), ("gpt_oss", "float32")])
def test_logits_after_decoding_are_those_of_whole_sequences(tmp_path: Path, case: str, dtype: str) -> None:
    folder = write_checkpoint(tmp_path, {**CONFIGS[case], "torch_dtype": dtype}, seed=2)
    made = Generator(folder, **QUICK)
    rng = np.random.default_rng(0)
    prompts = [[int(v) for v in rng.integers(0, VOCAB, n)] for n in (5, 40)]
    found = made.generate(prompts, 30)
    states = made._programs.states
    assert states["keys.0"].is_cuda and states["logits"].is_cuda
    logits = states["logits"].float().cpu().numpy()
    for row, prompt in enumerate(prompts):
        wanted = exact_logits(folder, prompt + found.tokens[row][:-1])
        error = np.linalg.norm(logits[row] - wanted) / np.linalg.norm(wanted)
        assert error < {"float32": 1e-4, "bfloat16": 0.06}[dtype]
    drawn = [made.generate(prompts, 12, temperature=0.9, top_k=20, top_p=0.9, seed=3).tokens for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert made.generate(prompts, 30).tokens == found.tokens


@pytest.mark.parametrize("case", ["gemma3", "llama"])
def test_drafts_and_held_prompts_give_the_same_tokens(tmp_path: Path, case: str) -> None:
    """In float32, where no two logits tie: greedy tokens with a draft of one layer, and of prompts that go on."""
    (tmp_path / "draft").mkdir()
    first = {"num_hidden_layers": 1, "layer_types": ["sliding_attention"], "torch_dtype": "float32"}
    folder = write_checkpoint(tmp_path, {**CONFIGS[case], "torch_dtype": "float32"}, seed=2)
    draft = write_checkpoint(tmp_path / "draft", {**CONFIGS[case], **first}, seed=2)
    rng = np.random.default_rng(0)
    prompts = [[int(v) for v in rng.integers(0, VOCAB, n)] for n in (5, 40)]
    plain, made = Generator(folder, **QUICK), Generator(folder, **QUICK, draft=draft, draft_tokens=3, reuse=True)
    for _ in range(2):
        wanted, found = plain.generate(prompts, 24), made.generate(prompts, 24)
        assert found.tokens == wanted.tokens and 0 <= found.acceptance <= 1
        prompts = [[*p, *t] for p, t in zip(prompts, found.tokens)]
    assert made._model.computed < plain._model.computed
    drawn = [made.generate(prompts, 12, temperature=0.9, top_k=20, seed=3) for _ in range(2)]
    assert all(0 <= token < VOCAB for result in drawn for row in result.tokens for token in row)
