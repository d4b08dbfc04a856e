"""Decoders against transformers: recorded logits, cached steps of ragged batches, bfloat16, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.types.dtypes import numpy_dtype
from tensor_graphs.errors import BadModelError, BadWeightsError, UnsupportedError, UsageError
from tensor_graphs.models import random_checkpoints
from tensor_graphs.models.files.safetensors import read_folder, write_arrays
from tensor_graphs.models.huggingface.families import FAMILIES, sizes_of
from tensor_graphs.models.huggingface.load import load_folder
from tensor_graphs.models.huggingface.step import Caches, Folder, build_step, positions_of

from .decoder_cases import CASES, LENGTH, PLACES, VOCAB, recorded, tokens, transformers_logits, write

Array = np.ndarray[Any, Any]
CHUNK, STEPS = 8, 24  # tokens of a prefill step; decode steps that are compared: rings of 16 wrap around twice
LONG_STEPS = 64  # of Phi-3: beyond the length from which its rotary embeddings have other frequencies
PROMPTS = np.array([13, 3])  # tokens of the two prompts: several chunks, and less than one


def whole(folder: Path, ids: Array, **options: Any) -> Array:
    """Logits [rows, length, vocabulary] of the graph over whole sequences."""
    graph = load_folder(folder).bind({"batch": ids.shape[0], "sequence": ids.shape[1]})
    return evaluate(graph, {"input_ids": ids}, **options)[0]


def steps(folder: Path, ids: Array, count: int, *, float64: bool = True) -> list[Array]:
    """Logits [rows, vocabulary] after the prompts and after each of `count` further tokens of `ids`."""
    opened, caches = Folder(folder), Caches(len(ids), LENGTH, CHUNK)

    def graph(size: int, **more: Any) -> Graph:
        return build_step(opened.config, opened.weights(), caches, size, **more)

    first, further, decode = graph(CHUNK, fresh=True), graph(CHUNK), graph(1)
    states = {n.attr("name"): np.zeros(n.shape, numpy_dtype(n.dtype)) for n in decode.leaves("state")}
    found = []

    def run(step: Graph, **values: Array) -> Array:
        logits, *new = evaluate(step, {**values, **states}, float64=float64)
        states.update({n: x.astype(states[n].dtype) if not float64 else x for n, x in zip(step.updates, new)})
        return logits

    rows = np.arange(len(ids))
    for i in range(-(-int(PROMPTS.max()) // CHUNK)):
        start = np.clip(i * CHUNK, 0, np.maximum(PROMPTS - CHUNK, 0))
        chunk = np.stack([ids[r, s : s + CHUNK] for r, s in zip(rows, start)])
        chunk = np.where(start[:, None] + np.arange(CHUNK) < PROMPTS[:, None], chunk, 0)
        values = {"input_ids": chunk, "last": np.minimum(PROMPTS - start - 1, CHUNK - 1)}
        logits = run(further, start=start, **values) if i else run(first, **values)
    found.append(logits)
    for k in range(count):
        found.append(run(decode, input_ids=ids[rows, PROMPTS + k][:, None], start=PROMPTS + k))
    return found


@pytest.mark.parametrize("case", CASES)
def test_whole_sequences_give_the_recorded_logits(tmp_path: Path, case: str) -> None:
    found = whole(write(tmp_path, case), tokens(1), float64=True)[0, list(PLACES)]
    np.testing.assert_allclose(found, recorded(case), rtol=1e-4, atol=1e-4)
    assert recorded(case).std() > 0.3  # logits that differ


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("mistral", {"attn_logit_softcapping": 1.0, "final_logit_softcapping": 0.5}),
        ("mixtral", {"mlp_only_layers": [0], "decoder_sparse_step": 2}),
        ("gemma2", {"sliding_window_pattern": 1}),
        ("qwen2", {"attention_bias": True, "mlp_bias": True}),
        ("stablelm", {"attention_bias": True, "rms_norm_eps": 0.5, "logit_scale": 3.0, "embedding_multiplier": 2.0}),
        ("cohere2", {"use_parallel_residual": False, "no_rope_layers": [0, 0, 0]}),
        ("llama", {"rope_theta": None, "rope_scaling": {"rope_theta": 500.0}}),
        ("phi3", {"rope_scaling": {**CASES["phi3"]["rope_scaling"], "original_max_position_embeddings": 128}}),
    ],
)
def test_fields_that_a_family_does_not_read_change_nothing(tmp_path: Path, case: str, changes: dict[str, Any]) -> None:
    found = whole(write(tmp_path, case, **changes), tokens(1), float64=True)[0, list(PLACES)]
    np.testing.assert_allclose(found, recorded(case), rtol=1e-4, atol=1e-4)


def test_fields_that_are_missing_have_the_family_s_default(tmp_path: Path) -> None:
    for case, eps, positions in (("mixtral", 1e-5, 131_072), ("phi3", 1e-5, 4096), ("llama", 1e-6, 2048)):
        config = Folder(write(tmp_path / case, case, rms_norm_eps=None, max_position_embeddings=None)).config
        assert (sizes_of(config, FAMILIES[case], 9).eps, positions_of(config)) == (eps, positions)


@pytest.mark.parametrize("case", CASES)
def test_cached_steps_of_a_ragged_batch_are_those_of_whole_sequences(tmp_path: Path, case: str) -> None:
    folder, ids = write(tmp_path, case), tokens()
    wanted, rows = whole(folder, ids, float64=True), np.arange(len(ids))
    for k, logits in enumerate(steps(folder, ids, LONG_STEPS if case.startswith("phi3") else STEPS)):
        np.testing.assert_allclose(logits, wanted[rows, PROMPTS + k - 1], rtol=1e-5, atol=1e-5, err_msg=str(k))


@pytest.mark.parametrize("case", ["gemma3", "gpt_oss", "mistral", "gpt2"])
def test_steps_in_bfloat16_are_within_its_rounding(tmp_path: Path, case: str) -> None:
    folder, ids = write(tmp_path, case, torch_dtype="bfloat16"), tokens()
    wanted, rows = whole(folder, ids, float64=True), np.arange(len(ids))
    for k, logits in enumerate(steps(folder, ids, 12, float64=False)):
        exact = wanted[rows, PROMPTS + k - 1]
        assert logits.dtype.name == "bfloat16"
        assert np.linalg.norm(logits.astype(np.float64) - exact) < 0.06 * np.linalg.norm(exact)


@pytest.mark.parametrize("case", CASES)
def test_transformers_gives_the_same_today(tmp_path: Path, case: str) -> None:
    pytest.importorskip("transformers", reason="compares with the package transformers, if installed")
    folder, ids = write(tmp_path, case), tokens()
    np.testing.assert_allclose(whole(folder, ids, float64=True), transformers_logits(folder, ids), rtol=1e-4, atol=1e-4)


def test_frequencies_for_long_sequences_follow_the_length(tmp_path: Path) -> None:
    """longrope: short factors up to the original length, long ones beyond, in one graph of free sizes."""
    folder, ids = write(tmp_path, "phi3"), tokens(1)
    short, long = whole(folder, ids[:, :64], float64=True), whole(folder, ids, float64=True)
    assert np.abs(short - long[:, :64]).max() > 0.01
    edited = json.loads((folder / "config.json").read_text())
    edited["rope_scaling"]["long_factor"] = edited["rope_scaling"]["short_factor"]
    (folder / "config.json").write_text(json.dumps(edited))
    np.testing.assert_allclose(whole(folder, ids, float64=True)[:, :64], short, rtol=1e-6, atol=1e-6)


def test_the_factor_of_yarn_is_that_of_the_lengths(tmp_path: Path) -> None:
    """It was 1 where the config does not name it."""
    of = lambda factor: {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": 32}
    folders = [write(tmp_path / str(factor), "llama", rope_scaling=of(factor)) for factor in (None, 4.0, 1.0)]
    logits = [evaluate(load_folder(f).bind({"batch": 1, "sequence": 40}), {"input_ids": tokens(1)[:, :40]})[0] for f in folders]  # fmt: skip
    np.testing.assert_array_equal(logits[0], logits[1])
    assert np.abs(logits[0] - logits[2]).max() > 1e-2


def test_windows_keep_rings_and_other_layers_everything(tmp_path: Path) -> None:
    opened = Folder(write(tmp_path, "gemma3"))
    graph = build_step(opened.config, opened.weights(), Caches(2, LENGTH, CHUNK), 1)
    shapes = {n.attr("name"): n.shape for n in graph.leaves("state")}
    assert [shapes[f"keys.{i}"] for i in range(3)] == [(2, 2, 16, 8), (2, 2, LENGTH, 8), (2, 2, 16, 8)]


def test_few_tokens_read_their_own_experts_only(tmp_path: Path) -> None:
    opened = Folder(write(tmp_path, "mixtral"))
    counts = [
        build_step(opened.config, opened.weights(), Caches(batch, 8, 1), 1).counts()["gather"] for batch in (1, 3)
    ]
    assert counts == [1 + 3 * 3, 1]  # the embedding, and three matrices in each of three layers


# ---------------------------------------------------------------- what is refused
def test_models_without_logits_are_refused(tmp_path: Path) -> None:
    caches = Caches(1, 8, 4)
    opened = Folder(write(tmp_path / "a", "llama", architectures=["LlamaModel"]))
    with pytest.raises(UnsupportedError, match="no logits"):
        build_step(opened.config, opened.weights(), caches, 1)
    bert = Folder(
        random_checkpoints.write_bert(tmp_path / "b", layers=1, hidden=8, heads=2, intermediate=8, vocab=9, positions=8)
    )
    with pytest.raises(UnsupportedError, match="generates no text"):
        build_step(bert.config, bert.weights(), caches, 1)


@pytest.mark.parametrize(
    ("caches", "size"), [(Caches(1, 8, 4), 5), (Caches(1, 8, 4), 0), (Caches(0, 8, 4), 1), (Caches(1, 2, 4), 3)]
)
def test_steps_that_do_not_fit_are_refused(tmp_path: Path, caches: Caches, size: int) -> None:
    opened = Folder(write(tmp_path, "llama"))
    with pytest.raises(UsageError, match="tokens in a step"):
        build_step(opened.config, opened.weights(), caches, size)


@pytest.mark.parametrize(
    ("case", "changes", "error", "words"),
    [
        ("mixtral", {"num_experts_per_tok": 5}, BadModelError, "num_experts_per_tok=5 of 4"),
        ("mixtral", {"num_local_experts": 3}, BadWeightsError, "router|gate"),
        ("qwen3_moe", {"mlp_only_layers": "all"}, BadModelError, "mlp_only_layers"),
        ("qwen3_moe", {"mlp_only_layers": []}, BadWeightsError, "missing"),
        ("gpt_oss", {"swiglu_limit": "large"}, BadModelError, "swiglu_limit"),
        ("gpt_oss", {"rope_scaling": None}, UnsupportedError, "rope_scaling=None"),
        ("phi3", {"partial_rotary_factor": 0.4}, UnsupportedError, "partial_rotary_factor"),
        ("llama", {"partial_rotary_factor": 0.5}, UnsupportedError, "partial_rotary_factor"),
        ("gemma2", {"sliding_window": None}, BadModelError, "sliding_window is null"),
        ("smollm3", {"no_rope_layers": [1, 0]}, BadModelError, "no_rope_layers is no list of 3"),
        ("smollm3", {"no_rope_layers": [1, 0, 2]}, BadModelError, "no_rope_layers is no list of 3"),
        ("granite", {"logits_scaling": 0}, BadModelError, "logits_scaling is 0"),
        ("stablelm", {"qk_layernorm": True}, UnsupportedError, "qk_layernorm=True"),
        ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 5.0}}}, UnsupportedError, "sections"),
        ("gemma3", {"rope_parameters": {"rope_type": "linear", "factor": 3.0}}, UnsupportedError, "without them"),
        (
            "llama",
            {"rope_parameters": {"rope_theta": 5.0}, "rope_scaling": {"factor": 2.0}},
            UnsupportedError,
            "differ",
        ),
    ],
)
def test_wrong_options(tmp_path: Path, case: str, changes: dict[str, Any], error: type[Exception], words: str) -> None:
    folder = write(tmp_path, case)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(error, match=words):
        load_folder(folder)


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, "mixtral")
    arrays = {n: a.load().copy() for n, a in read_folder(folder).items()}
    name = "model.layers.1.block_sparse_moe.experts.2.w3.weight"
    write_arrays(folder / "model.safetensors", {n: a for n, a in arrays.items() if n != name})
    with pytest.raises(BadWeightsError, match=r"layers\.1\.block_sparse_moe\.experts\.2\.w3\.weight'.*missing"):
        load_folder(folder)
    write_arrays(folder / "model.safetensors", {**arrays, name: arrays[name].astype(np.float16)})
    with pytest.raises(BadWeightsError, match="several dtypes"):
        load_folder(folder)
    assert arrays["lm_head.weight"].shape[0] == VOCAB
