"""Checkpoint folders: how names may be spelled, and every way in which config and weights can be wrong."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.file_array import FileArray
from tensor_graphs.egraph.ir.weight_data import Data
from tensor_graphs.errors import BadModelError, BadWeightsError, TooLargeError, UnsupportedError
from tensor_graphs.models import random_checkpoints
from tensor_graphs.models.files.safetensors import read_folder, write_arrays
from tensor_graphs.models.huggingface.checkpoint import Config, UnusedWeightsWarning
from tensor_graphs.models.huggingface.families import layer_windows
from tensor_graphs.models.huggingface.load import load_folder

SIZES: dict[str, Any] = {"layers": 2, "hidden": 16, "heads": 2, "vocab": 20, "positions": 32}
ROTARY: dict[str, Any] = {**SIZES, "kv_heads": 1, "intermediate": 24}
WRITERS: dict[str, Callable[[Path], Path]] = {
    "gpt2": lambda f: random_checkpoints.write_gpt2(f, **SIZES),
    "llama": lambda f: random_checkpoints.write_llama(f, **ROTARY, dtype="float32", tie_word_embeddings=False),
    "qwen3": lambda f: random_checkpoints.write_qwen3(f, **ROTARY, head_dim=8, dtype="float32"),
    "gemma3": lambda f: random_checkpoints.write_gemma3(f, **ROTARY, head_dim=8, window=3, dtype="float32"),
    "bert": lambda f: random_checkpoints.write_bert(f, **SIZES, intermediate=24),
}
KINDS = list(WRITERS)


def edit(folder: Path, **changes: Any) -> None:
    """Change config fields; None removes a field."""
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def respell(folder: Path, rename: Callable[[str], str | None], more: dict[str, Data] | None = None) -> None:
    """Rewrite the weights under other names; None drops a tensor."""
    arrays = {new: a.load().copy() for n, a in read_folder(folder).items() if (new := rename(n)) is not None}
    write_arrays(folder / "model.safetensors", {**arrays, **(more or {})})


def run(folder: Path) -> list[np.ndarray[Any, Any]]:
    graph = load_folder(folder).bind({"batch": 1, "sequence": 5})
    return evaluate(graph, {str(n.attr("name")): np.arange(5).reshape(1, 5) % 2 for n in graph.inputs})


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return WRITERS[request.param](tmp_path)


# ---------------------------------------------------------------- what is taken
def test_nothing_is_read_and_everything_is_bound(folder: Path) -> None:
    graph = load_folder(folder)
    assert all(isinstance(data, FileArray) for data in graph.params.values())
    assert {n.attr("name") for n in graph.leaves("param")} == set(graph.params) == set(read_folder(folder))
    assert set(graph.names) <= {"logits", "last_hidden_state", "pooler_output"}
    assert all(n.dtype == "int64" and [str(d) for d in n.shape] == ["batch", "sequence"] for n in graph.inputs)


def test_prefixes_are_optional(folder: Path) -> None:
    before = run(folder)
    respell(folder, lambda n: n.removeprefix("model.").removeprefix("transformer.").removeprefix("bert."))
    for a, b in zip(run(folder), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_shards_give_the_same(folder: Path) -> None:
    before, arrays = run(folder), {n: a.load().copy() for n, a in read_folder(folder).items()}
    (folder / "model.safetensors").unlink()
    places = {n: f"part-{i % 3}.safetensors" for i, n in enumerate(sorted(arrays))}
    for shard in set(places.values()):
        write_arrays(folder / shard, {n: arrays[n] for n in places if places[n] == shard})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    for a, b in zip(run(folder), before, strict=True):
        np.testing.assert_array_equal(a, b)
    (folder / "part-1.safetensors").unlink()
    with pytest.raises(BadWeightsError, match=r"'part-1\.safetensors' is missing"):
        load_folder(folder)


def test_config_dtype_decides_over_the_file(folder: Path) -> None:
    edit(folder, torch_dtype="bfloat16")
    graph = load_folder(folder)
    assert {o.dtype for o in graph.outputs} == {"bfloat16"}
    assert {n.dtype for n in graph.leaves("param")} == {"float32"}
    edit(folder, torch_dtype=None)
    assert {o.dtype for o in load_folder(folder).outputs} == {"float32"}


def test_nan_weights_are_data(folder: Path) -> None:
    name = next(n for n in sorted(read_folder(folder)) if "embed" in n or "wte" in n)
    array = read_folder(folder)[name].load().copy()
    array[1] = np.nan
    respell(folder, lambda n: None if n == name else n, {name: array})
    assert np.isnan(run(folder)[0]).any()


def test_older_spellings(tmp_path: Path) -> None:
    folder = WRITERS["bert"](tmp_path)
    before = run(folder)
    older = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    respell(folder, lambda n: next((n.removesuffix(a) + b for a, b in older.items() if n.endswith(a)), n))
    np.testing.assert_array_equal(run(folder)[0], before[0])


def unused(folder: Path) -> list[str]:
    """What loading a folder says of tensors that are not used."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_folder(folder)
    assert {w.category for w in caught} <= {UnusedWeightsWarning}
    return [str(w.message) for w in caught]


def test_a_whole_file_is_used_without_a_word(folder: Path) -> None:
    assert unused(folder) == []


def zeros(*shape: int) -> Data:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("kind", "changes", "more", "words"),
    [
        ("gpt2", {}, {f"transformer.h.{i}.attn.bias": zeros(1, 1, 32, 32) for i in range(2)},
         "as the program computes it: 'transformer.h.*.attn.bias' ×2"),
        ("llama", {}, {"model.layers.1.self_attn.rotary_emb.inv_freq": zeros(4)},
         "as the program computes it: 'model.layers.*.self_attn.rotary_emb.inv_freq'"),
        ("llama", {}, {"score.weight": zeros(2, 16)}, "no part of LlamaForCausalLM: 'score.weight'"),
        ("gpt2", {}, {"lm_head.weight": zeros(20, 16)}, "the embedding table stands for it: 'lm_head.weight'"),
        ("gemma3", {}, {"lm_head.weight": zeros(20, 16)}, "the embedding table stands for it: 'lm_head.weight'"),
        ("qwen3", {"architectures": ["Qwen3Model"], "tie_word_embeddings": False}, {"lm_head.weight": zeros(20, 16)},
         "no part of Qwen3Model: 'lm_head.weight'"),
        ("bert", {}, {"bert.embeddings.position_ids": np.zeros((1, 32), np.int64)},
         "as the program computes it: 'bert.embeddings.position_ids'"),
        ("bert", {}, {"cls.predictions.bias": zeros(20), "cls.seq_relationship.bias": zeros(2)},
         "no part of BertModel: 'cls.predictions.bias', 'cls.seq_relationship.bias'"),
        ("bert", {"architectures": None}, {"cls.predictions.bias": zeros(20)},
         "no part of this architecture: 'cls.predictions.bias'"),
        ("bert", {}, {f"cls.{'abcdefghijklmn'[i]}": zeros(1) for i in range(14)}, " and 2 more"),
    ],
)  # fmt: skip
def test_unused_tensors_are_named(
    tmp_path: Path, kind: str, changes: dict[str, Any], more: dict[str, Data], words: str
) -> None:
    folder = WRITERS[kind](tmp_path)
    edit(folder, **changes)
    respell(folder, lambda n: n, more)
    (found,) = unused(folder)
    assert found.startswith("not used, ") and words in found


@pytest.mark.filterwarnings("ignore::tensor_graphs.models.huggingface.checkpoint.UnusedWeightsWarning")
def test_a_checkpoint_of_pre_training_serves_each_class(tmp_path: Path) -> None:
    """One file as the first release had it, with all heads and the copies of the tied ones."""
    folder = random_checkpoints.write_bert(tmp_path, **SIZES, intermediate=24, architectures=["BertForPreTraining"])
    respell(
        folder,
        lambda n: n,
        {"cls.predictions.decoder.weight": zeros(20, 16), "cls.predictions.decoder.bias": zeros(20)},
    )
    listed = {}
    for name in ("BertForPreTraining", "BertForMaskedLM", "BertModel", "BertForNextSentencePrediction"):
        edit(folder, architectures=[name])
        listed[name] = " ".join(unused(folder))
        assert "'cls.predictions.decoder.weight'" in listed[name] and "'cls.predictions.decoder.bias'" in listed[name]
    assert "seq_relationship" not in listed["BertForPreTraining"] and "pooler" not in listed["BertForPreTraining"]
    assert (
        "'cls.seq_relationship.weight'" in listed["BertForMaskedLM"]
        and "'bert.pooler.dense.weight'" in listed["BertForMaskedLM"]
    )
    assert "'cls.predictions.bias'" in listed["BertModel"] and "pooler" not in listed["BertModel"]
    edit(folder, architectures=["BertForMaskedLM"])
    before = run(folder)
    bias = read_folder(folder)["cls.predictions.bias"].load().copy()
    respell(folder, lambda n: None if n == "cls.predictions.bias" else n, {"cls.predictions.decoder.bias": bias})
    np.testing.assert_array_equal(run(folder)[0], before[0])  # under its other name
    at, table = "cls.predictions", read_folder(folder)["bert.embeddings.word_embeddings.weight"].load().copy()
    edit(folder, tie_word_embeddings=False)
    respell(folder, lambda n: n, {f"{at}.decoder.weight": table, f"{at}.decoder.bias": bias + 1, f"{at}.bias": bias})
    np.testing.assert_allclose(run(folder)[0], before[0] + 1, atol=1e-5)  # a matrix of its own has a bias of its own


def test_pooler_may_lack_only_where_the_class_has_none(tmp_path: Path) -> None:
    folder = WRITERS["bert"](tmp_path)
    respell(folder, lambda n: None if "pooler" in n else n)
    with pytest.raises(BadWeightsError, match=r"'pooler\.dense\.weight'"):
        load_folder(folder)
    edit(folder, architectures=None)
    assert load_folder(folder).names == ("last_hidden_state",)
    edit(folder, architectures=["BertForMaskedLM"])
    with pytest.raises(BadWeightsError, match=r"'cls\.predictions\.transform\.dense\.weight'"):
        load_folder(folder)


@pytest.mark.parametrize(
    ("kind", "bare"), [("gpt2", "GPT2Model"), ("llama", "LlamaModel"), ("gemma3", "Gemma3TextModel")]
)
def test_classes_without_a_head_give_the_last_state(tmp_path: Path, kind: str, bare: str) -> None:
    folder = WRITERS[kind](tmp_path)
    edit(folder, architectures=[bare])
    respell(folder, lambda n: None if n == "lm_head.weight" else n.removeprefix("model.").removeprefix("transformer."))
    graph = load_folder(folder)
    assert graph.names == ("last_hidden_state",) and graph.outputs[0].rank == 3


@pytest.mark.parametrize("name", ["ForSequenceClassification", "ForMultipleChoice", "Anything"])
def test_classes_without_a_builder_are_refused(folder: Path, name: str) -> None:
    bert = json.loads((folder / "config.json").read_text())["model_type"] == "bert"
    if bert and name == "ForSequenceClassification":
        pytest.skip("BERT has it")
    edit(folder, architectures=[f"Some{name}"])
    with pytest.raises(UnsupportedError, match=f"Some{name}") as caught:
        load_folder(folder)
    assert ("ForMaskedLM" if bert else "ForCausalLM") in caught.value.hint


def test_sequence_is_bounded_by_the_positions(folder: Path) -> None:
    assert load_folder(folder).free_dims["sequence"].max == 32


@pytest.mark.parametrize(
    ("kind", "changes", "windows"),
    [
        ("llama", {"sliding_window": 7}, [0, 0]),  # llama has none, whatever the field says
        ("mistral", {}, [4096, 4096]),
        ("mistral", {"sliding_window": None}, [0, 0]),
        ("qwen2", {"sliding_window": 7, "max_window_layers": 0}, [0, 0]),  # off unless use_sliding_window
        ("qwen3", {"use_sliding_window": True, "max_window_layers": 1}, [0, 4096]),
        ("gemma3_text", {"sliding_window": 7}, [7, 7]),
        ("gemma3_text", {"sliding_window": 7, "sliding_window_pattern": 2}, [7, 0]),
        ("gemma3_text", {"layer_types": ["full", "sliding"]}, [0, 4096]),
    ],
)
def test_windows_of_layers(kind: str, changes: dict[str, Any], windows: list[int]) -> None:
    assert layer_windows(Config(changes), kind, 2) == windows


def test_gemma_needs_its_window() -> None:
    with pytest.raises(BadModelError, match="sliding_window is null"):
        layer_windows(Config({"sliding_window": None}), "gemma3_text", 2)


# ---------------------------------------------------------------- what is refused
def test_each_missing_tensor_is_named(folder: Path) -> None:
    arrays = {n: a.load().copy() for n, a in read_folder(folder).items()}
    assert len(arrays) > 10
    for name in arrays:
        write_arrays(folder / "model.safetensors", {n: a for n, a in arrays.items() if n != name})
        with pytest.raises(BadWeightsError) as caught:
            load_folder(folder)
        short = name.removeprefix("model.").removeprefix("transformer.").removeprefix("bert.")
        assert f"'{short}'" in str(caught.value) and "missing" in str(caught.value)


def test_each_misshaped_tensor_is_named(folder: Path) -> None:
    arrays = {n: a.load().copy() for n, a in read_folder(folder).items()}
    for name, good in arrays.items():
        wrong = np.zeros((*good.shape[:-1], good.shape[-1] + 1), np.float32)
        write_arrays(folder / "model.safetensors", {**arrays, name: wrong})
        with pytest.raises(BadWeightsError) as caught:
            load_folder(folder)
        assert f"'{name}'" in str(caught.value) and "shape" in str(caught.value)


def test_extra_tensors_are_named(folder: Path) -> None:
    respell(folder, lambda n: n, {"adapter.\nweight": np.zeros(2, np.float32)})
    with pytest.raises(BadWeightsError, match=r"1 tensors.*'adapter\.\\nweight'"):
        load_folder(folder)


def test_a_tensor_spelled_twice_is_refused(folder: Path) -> None:
    name, source = next((n, a) for n, a in sorted(read_folder(folder).items()) if not n.startswith("lm_head"))
    respell(folder, lambda n: n, {name.partition(".")[2]: source.load().copy()})
    with pytest.raises(BadWeightsError, match="twice"):
        load_folder(folder)


def test_integer_weights_are_unsupported(folder: Path) -> None:
    name = next(n for n in sorted(read_folder(folder)) if n.endswith("weight"))
    respell(folder, lambda n: n, {name: read_folder(folder)[name].load().astype(np.int8)})
    with pytest.raises(UnsupportedError, match="int8"):
        load_folder(folder)


CONFIGS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"auto_map": {"AutoModel": "modeling_evil.Evil"}}, UnsupportedError, "auto_map"),
    ({"model_type": "evil"}, UnsupportedError, "model_type='evil'"),
    ({"model_type": None}, BadModelError, "no model_type"),
    ({"model_type": ["llama"]}, BadModelError, "model_type"),
    ({"quantization_config": {"bits": 4}}, UnsupportedError, "quantized"),
    ({"hidden_size": None}, BadModelError, "'hidden_size' is missing"),
    ({"hidden_size": "16"}, BadModelError, "hidden_size"),
    ({"hidden_size": True}, BadModelError, "hidden_size"),
    ({"hidden_size": -16}, BadModelError, "hidden_size"),
    ({"hidden_size": 1 << 50}, TooLargeError, "hidden_size"),
    ({"hidden_size": 1 << 31}, BadWeightsError, "embed_tokens"),
    ({"head_dim": 1 << 31}, TooLargeError, "head_dim"),
    ({"head_dim": 7}, BadModelError, "do not fit"),
    ({"num_hidden_layers": 10**9}, TooLargeError, "num_hidden_layers"),
    ({"num_hidden_layers": 3}, BadWeightsError, r"layers\.2\."),
    ({"num_hidden_layers": 1}, BadWeightsError, "have no place"),
    ({"num_attention_heads": 3, "num_key_value_heads": 2}, BadModelError, "do not fit"),
    ({"hidden_act": "quick_gelu"}, UnsupportedError, "quick_gelu"),
    ({"rms_norm_eps": "small"}, BadModelError, "rms_norm_eps"),
    ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, UnsupportedError, "spiral"),
    ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, BadModelError, "short_factor"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 0}}, BadModelError, "not positive"),
    (
        {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 0, "high_freq_factor": 4}},
        BadModelError,
        "no rotary frequencies",
    ),
    (
        {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 0}},
        BadModelError,
        "no rotary frequencies",
    ),
    (
        {"rope_scaling": {"rope_type": "llama3", "factor": 8, "high_freq_factor": 4}},
        BadModelError,
        "'low_freq_factor' is missing",
    ),
    ({"rope_scaling": {"rope_type": "linear", "factor": None}}, BadModelError, "'factor' is missing"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2, "beta_fast": -1}}, BadModelError, "no rotary frequencies"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, BadModelError, "not finite"),
    ({"rope_theta": 0}, BadModelError, "not finite"),
    (
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 3}},
        UnsupportedError,
        "original",
    ),
    ({"rope_scaling": [1]}, BadModelError, "rope_scaling"),
    ({"rope_theta": 10**400}, BadModelError, "rope_theta"),
    ({"rope_scaling": {"rope_type": "longrope", "short_factor": [10**400] * 2}}, BadModelError, "short_factor"),
    ({"torch_dtype": "float8_e4m3fn"}, UnsupportedError, "float8_e4m3fn"),
    ({"tie_word_embeddings": "no"}, BadModelError, "tie_word_embeddings"),
    ({"attention_bias": True}, BadWeightsError, r"q_proj\.bias"),
    ({"pretraining_tp": 2}, UnsupportedError, "pretraining_tp"),
]


@pytest.mark.parametrize(("changes", "error", "words"), CONFIGS)
def test_wrong_configs(tmp_path: Path, changes: dict[str, Any], error: type[Exception], words: str) -> None:
    folder = WRITERS["llama"](tmp_path)
    edit(folder, **changes)
    with pytest.raises(error, match=words) as caught:
        load_folder(folder)
    assert type(caught.value) is error and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "changes", "error", "words"),
    [
        ("gemma3", {"layer_types": ["full_attention"]}, BadModelError, "layer_types"),
        ("gemma3", {"layer_types": ["full_attention", ["x"]]}, BadModelError, "layer_types"),
        ("gemma3", {"layer_types": ["full_attention", "chunked"]}, UnsupportedError, "chunked ×1"),
        ("gemma3", {"use_bidirectional_attention": True}, UnsupportedError, "use_bidirectional_attention"),
        ("gemma3", {"sliding_window": "wide"}, BadModelError, "sliding_window"),
        ("gemma3", {"query_pre_attn_scalar": 0}, BadModelError, "query_pre_attn_scalar"),
        ("gpt2", {"n_embd": 15}, BadModelError, "multiple"),
        ("gpt2", {"reorder_and_upcast_attn": True}, UnsupportedError, "reorder_and_upcast_attn"),
        ("bert", {"position_embedding_type": "relative_key"}, UnsupportedError, "relative_key"),
        ("bert", {"is_decoder": True}, UnsupportedError, "is_decoder"),
        ("bert", {"architectures": 5}, BadModelError, "architectures"),
        ("qwen3", {"max_window_layers": "all"}, BadModelError, "max_window_layers"),
    ],
)
def test_wrong_options(tmp_path: Path, kind: str, changes: dict[str, Any], error: type[Exception], words: str) -> None:
    folder = WRITERS[kind](tmp_path)
    edit(folder, **changes)
    if kind == "bert":
        respell(folder, lambda n: None if "pooler" in n else n)
    with pytest.raises(error, match=words):
        load_folder(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "nul", '{"a": 1, "a": 2}', '{"a": NaN}', "\ufeff{}", "[" * 100_000])
def test_configs_that_are_not_json_objects(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(BadModelError, match=r"config\.json"):
        load_folder(tmp_path)


def test_code_beside_the_weights_is_never_run(tmp_path: Path) -> None:
    folder = WRITERS["llama"](tmp_path)
    (folder / "modeling_llama.py").write_text("open('ran', 'w')")
    (folder / "__init__.py").write_text("open('ran', 'w')")
    load_folder(folder)
    assert not (folder / "ran").exists() and not Path("ran").exists()
