"""Each architecture against an eager PyTorch version written here from the published models, tensor by tensor name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.models import random_checkpoints
from tensor_graphs.models.huggingface.load import load_folder

torch = pytest.importorskip("torch")
F = torch.nn.functional

BATCH, LENGTH, VOCAB = 2, 9, 50
DECODER: dict[str, Any] = {"layers": 3, "hidden": 32, "heads": 4, "kv_heads": 2, "intermediate": 48, "vocab": VOCAB,
                           "positions": 64}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "gpt2-by-layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "n_inner": 40, "activation_function": "relu"}),
    "gpt2-untied": ("gpt2", {"tie_word_embeddings": False, "scale_attn_weights": False}),
    "llama": ("llama", {}),
    "llama-multihead": ("llama", {"kv_heads": 4, "tie_word_embeddings": False, "attention_bias": True,
                                  "mlp_bias": True}),
    "llama-linear": ("llama", {"rope_scaling": {"type": "linear", "factor": 4.0}, "head_dim": 16}),
    "llama3": ("llama", {"rope_theta": 100.0, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}}),
    "llama-yarn": ("llama", {"head_dim": 16, "rope_theta": 100.0, "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}}),
    "llama-yarn-options": ("llama", {"head_dim": 16, "rope_theta": 100.0, "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "beta_fast": 4, "beta_slow": 2, "truncate": False, "attention_factor": 0.8}}),
    "llama-yarn-scales": ("llama", {"rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.4}}),
    "llama-dynamic": ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}),
    "mistral": ("llama", {"model_type": "mistral", "sliding_window": 3}),
    "mistral-full": ("llama", {"model_type": "mistral", "sliding_window": None}),
    "qwen2": ("llama", {"model_type": "qwen2"}),
    "qwen3": ("qwen3", {"head_dim": 8}),
    "qwen3-window": ("qwen3", {"head_dim": 16, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1,
                               "attention_bias": True}),
    "gemma3": ("gemma3", {"head_dim": 16, "kv_heads": 1, "window": 4,
                          "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    "gemma3-caps": ("gemma3", {"head_dim": 8, "window": 3, "attn_logit_softcapping": 2.0, "layer_types": None,
                               "final_logit_softcapping": 1.5, "sliding_window_pattern": 2,
                               "query_pre_attn_scalar": 20, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "gemma3-nested": ("gemma3", {"head_dim": 8, "window": 3, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}}),
    "bert": ("bert", {}),
    "bert-relu": ("bert", {"hidden_act": "relu"}),
    "bert-words": ("bert", {"architectures": ["BertForMaskedLM"]}),
    "bert-words-untied": ("bert", {"architectures": ["BertLMHeadModel"], "tie_word_embeddings": False}),
    "bert-both": ("bert", {"architectures": ["BertForPreTraining"]}),
    "bert-next": ("bert", {"architectures": ["BertForNextSentencePrediction"]}),
    "bert-text": ("bert", {"architectures": ["BertForSequenceClassification"], "num_labels": 3}),
    "bert-tokens": ("bert", {"architectures": ["BertForTokenClassification"],
                             "id2label": {str(i): f"L{i}" for i in range(5)}}),
    "bert-answers": ("bert", {"architectures": ["BertForQuestionAnswering"]}),
}  # fmt: skip


# ---------------------------------------------------------------- the eager versions
ACTIVATIONS = {
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
}


def softmax_attention(q: Any, k: Any, v: Any, scale: float, hidden: Any, softcap: float | None = None) -> Any:
    """q, k, v [B, H, T, D]; `hidden` True where a score is not seen; softmax in float32."""
    scores = q @ k.transpose(2, 3) * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v


def causal(length: int, window: int = 0) -> Any:
    i, j = torch.arange(length)[:, None], torch.arange(length)[None, :]
    hidden = j > i
    return hidden | (j <= i - window) if window else hidden


def gpt2(cfg: dict[str, Any], sd: dict[str, Any], ids: Any) -> list[Any]:
    n, width = cfg["n_head"], cfg["n_embd"]
    norm = lambda x, at: F.layer_norm(x, (width,), sd[f"transformer.{at}.weight"], sd[f"transformer.{at}.bias"], 1e-5)
    conv1d = lambda x, at: x @ sd[f"transformer.{at}.weight"] + sd[f"transformer.{at}.bias"]
    x = sd["transformer.wte.weight"][ids] + sd["transformer.wpe.weight"][: ids.shape[1]]
    for i in range(cfg["n_layer"]):
        qkv = conv1d(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn").split(width, dim=2)
        q, k, v = (p.view(*p.shape[:2], n, width // n).transpose(1, 2) for p in qkv)
        scale = 1 / math.sqrt(width // n) if cfg.get("scale_attn_weights", True) else 1.0
        if cfg.get("scale_attn_by_inverse_layer_idx"):
            scale /= i + 1
        out = softmax_attention(q, k, v, scale, causal(ids.shape[1])).transpose(1, 2).reshape(x.shape)
        x = x + conv1d(out, f"h.{i}.attn.c_proj")
        inside = ACTIVATIONS[cfg["activation_function"]](conv1d(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"))
        x = x + conv1d(inside, f"h.{i}.mlp.c_proj")
    head = sd["transformer.wte.weight"] if cfg.get("tie_word_embeddings", True) else sd["lm_head.weight"]
    return [norm(x, "ln_f") @ head.T]


def linear(sd: dict[str, Any], name: str, x: Any) -> Any:
    return F.linear(x, sd[f"{name}.weight"], sd.get(f"{name}.bias"))


def rope_angles(length: int, size: int, theta: float, scaling: dict[str, Any] | None) -> Any:
    freq = 1.0 / theta ** (torch.arange(0, size, 2).float() / size)
    kind = (scaling or {}).get("rope_type", (scaling or {}).get("type", "default"))
    if kind == "linear":
        freq = freq / scaling["factor"]
    if kind == "llama3":
        old, factor = scaling["original_max_position_embeddings"], scaling["factor"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        wave = 2 * math.pi / freq
        out = []
        for f, w in zip(freq.tolist(), wave.tolist()):
            smooth = (old / w - low) / (high - low)
            out.append(f / factor if w > old / low else f if w < old / high else (1 - smooth) * f / factor + smooth * f)
        freq = torch.tensor(out)
    magnitude = 1.0
    if kind == "yarn":
        old, factor = scaling.get("original_max_position_embeddings", DECODER["positions"]), scaling["factor"]
        turns = lambda count: size * math.log(old / (count * 2 * math.pi)) / (2 * math.log(theta))
        first, last = turns(scaling.get("beta_fast", 32)), turns(scaling.get("beta_slow", 1))
        if scaling.get("truncate", True):
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, size - 1)
        slowed = [min(max((i - first) / (last - first), 0.0), 1.0) for i in range(size // 2)]
        freq = torch.tensor([f / factor * s + f * (1 - s) for f, s in zip(freq.tolist(), slowed)])
        grown = lambda by: 0.1 * by * math.log(factor) + 1
        magnitude = grown(1)
        if scaling.get("mscale") and scaling.get("mscale_all_dim"):
            magnitude = grown(scaling["mscale"]) / grown(scaling["mscale_all_dim"])
        magnitude = scaling.get("attention_factor", magnitude)
    angle = torch.arange(length).float()[:, None] * freq[None, :]
    return torch.cat([angle, angle], -1), magnitude


def rotate(x: Any, rope: tuple[Any, float]) -> Any:
    angle, magnitude = rope
    a, b = x.chunk(2, dim=-1)
    cos, sin = ((f * magnitude).to(x.dtype) for f in (angle.cos(), angle.sin()))
    return x * cos + torch.cat([-b, a], -1) * sin


def rotary_model(cfg: dict[str, Any], sd: dict[str, Any], ids: Any) -> list[Any]:
    """llama, mistral, qwen2, qwen3, gemma3_text: biases wherever the weights have them."""
    gemma, qk_norm = cfg["model_type"] == "gemma3_text", cfg["model_type"] in ("qwen3", "gemma3_text")
    n, kv, width, length = cfg["num_attention_heads"], cfg["num_key_value_heads"], cfg["hidden_size"], ids.shape[1]
    size = cfg.get("head_dim", width // n)

    def norm(name: str, x: Any) -> Any:
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + cfg["rms_norm_eps"])
        weight = sd[f"model.{name}.weight"]
        return (y * (1.0 + weight.float())).to(x.dtype) if gemma else weight * y.to(x.dtype)

    nested = cfg.get("rope_parameters", {})
    wide = nested.get("full_attention", {"rope_theta": cfg["rope_theta"], **(cfg.get("rope_scaling") or {})})
    local = nested.get("sliding_attention", {"rope_theta": cfg.get("rope_local_base_freq", 1.0)})
    full_angle = rope_angles(length, size, wide["rope_theta"], wide)
    x = sd["model.embed_tokens.weight"][ids]
    if gemma:
        x = x * torch.tensor(width**0.5).to(x.dtype)
    for i in range(cfg["num_hidden_layers"]):
        window = window_of(cfg, i)
        angle = rope_angles(length, size, local["rope_theta"], local) if gemma and window else full_angle
        at, y = f"model.layers.{i}", norm(f"layers.{i}.input_layernorm", x)
        q, k, v = (linear(sd, f"{at}.self_attn.{p}_proj", y).view(*ids.shape, -1, size).transpose(1, 2) for p in "qkv")
        if qk_norm:
            q, k = norm(f"layers.{i}.self_attn.q_norm", q), norm(f"layers.{i}.self_attn.k_norm", k)
        k, v = rotate(k, angle).repeat_interleave(n // kv, 1), v.repeat_interleave(n // kv, 1)
        scale = cfg["query_pre_attn_scalar"] ** -0.5 if gemma else size**-0.5
        cap = cfg.get("attn_logit_softcapping")
        y = softmax_attention(rotate(q, angle), k, v, scale, causal(length, window), cap)
        y = linear(sd, f"{at}.self_attn.o_proj", y.transpose(1, 2).reshape(*ids.shape, -1))
        x = x + (norm(f"layers.{i}.post_attention_layernorm", y) if gemma else y)
        y = norm(f"layers.{i}.{'pre_feedforward' if gemma else 'post_attention'}_layernorm", x)
        act = ACTIVATIONS[cfg["hidden_activation" if gemma else "hidden_act"]]
        y = act(linear(sd, f"{at}.mlp.gate_proj", y)) * linear(sd, f"{at}.mlp.up_proj", y)
        y = linear(sd, f"{at}.mlp.down_proj", y)
        x = x + (norm(f"layers.{i}.post_feedforward_layernorm", y) if gemma else y)
    tied = cfg.get("tie_word_embeddings", gemma)
    logits = norm("norm", x) @ sd["model.embed_tokens.weight" if tied else "lm_head.weight"].T
    cap = cfg.get("final_logit_softcapping")
    return [torch.tanh(logits / cap) * cap if cap else logits]


def window_of(cfg: dict[str, Any], layer: int) -> int:
    if cfg["model_type"] in ("llama", "mistral"):
        return int(cfg.get("sliding_window") or 0)
    if cfg["model_type"] in ("qwen2", "qwen3"):
        on = cfg.get("use_sliding_window") and layer >= cfg["max_window_layers"]
        return int(cfg["sliding_window"]) if on else 0
    kinds = cfg.get("layer_types")
    full = kinds[layer] == "full_attention" if kinds else (layer + 1) % cfg["sliding_window_pattern"] == 0
    return 0 if full else int(cfg["sliding_window"])


def bert(cfg: dict[str, Any], sd: dict[str, Any], ids: Any, mask: Any, kinds: Any) -> list[Any]:
    n, width = cfg["num_attention_heads"], cfg["hidden_size"]
    norm = lambda x, at: F.layer_norm(x, (width,), sd[f"bert.{at}.weight"], sd[f"bert.{at}.bias"], 1e-12)
    part = lambda name: sd[f"bert.embeddings.{name}_embeddings.weight"]
    x = norm(part("word")[ids] + part("token_type")[kinds] + part("position")[: ids.shape[1]], "embeddings.LayerNorm")
    for i in range(cfg["num_hidden_layers"]):
        at = f"encoder.layer.{i}"
        q, k, v = (linear(sd, f"bert.{at}.attention.self.{p}", x).view(*ids.shape, n, -1).transpose(1, 2)
                   for p in ("query", "key", "value"))  # fmt: skip
        y = softmax_attention(q, k, v, (width // n) ** -0.5, mask[:, None, None, :] == 0)
        y = linear(sd, f"bert.{at}.attention.output.dense", y.transpose(1, 2).reshape(x.shape))
        x = norm(y + x, f"{at}.attention.output.LayerNorm")
        y = ACTIVATIONS[cfg["hidden_act"]](linear(sd, f"bert.{at}.intermediate.dense", x))
        x = norm(linear(sd, f"bert.{at}.output.dense", y) + x, f"{at}.output.LayerNorm")
    return bert_head(cfg, sd, x)


def bert_head(cfg: dict[str, Any], sd: dict[str, Any], x: Any) -> list[Any]:
    pooled = lambda: torch.tanh(linear(sd, "bert.pooler.dense", x[:, 0]))

    def words() -> Any:
        y = ACTIVATIONS[cfg["hidden_act"]](linear(sd, "cls.predictions.transform.dense", x))
        norm = [sd[f"cls.predictions.transform.LayerNorm.{p}"] for p in ("weight", "bias")]
        y = F.layer_norm(y, (cfg["hidden_size"],), *norm, 1e-12)
        tied = cfg.get("tie_word_embeddings", True)
        table = sd["bert.embeddings.word_embeddings.weight" if tied else "cls.predictions.decoder.weight"]
        return F.linear(y, table, sd["cls.predictions.bias" if tied else "cls.predictions.decoder.bias"])

    match cfg["architectures"][0].removeprefix("Bert"):
        case "ForMaskedLM" | "LMHeadModel":
            return [words()]
        case "ForPreTraining":
            return [words(), linear(sd, "cls.seq_relationship", pooled())]
        case "ForNextSentencePrediction":
            return [linear(sd, "cls.seq_relationship", pooled())]
        case "ForSequenceClassification":
            return [linear(sd, "classifier", pooled())]
        case "ForTokenClassification":
            return [linear(sd, "classifier", x)]
        case "ForQuestionAnswering":
            return list(linear(sd, "qa_outputs", x).unbind(-1))
    return [x, pooled()]


# ---------------------------------------------------------------- comparing
def write(folder: Path, case: str, dtype: str) -> Path:
    kind, more = CASES[case]
    sizes = DECODER if kind not in ("gpt2", "bert") else {k: v for k, v in DECODER.items() if k != "kv_heads"}
    if kind == "gpt2":
        sizes = {k: v for k, v in sizes.items() if k != "intermediate"}
    path: Path = getattr(random_checkpoints, f"write_{kind}")(folder, **{**sizes, **more}, dtype=dtype, seed=3)
    return path


def inputs_for(kind: str) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    values = {"input_ids": rng.integers(0, VOCAB, (BATCH, LENGTH))}
    if kind == "bert":
        values["attention_mask"] = (np.arange(LENGTH)[None, :] < np.array([[LENGTH], [4]])).astype(np.int64)
        values["token_type_ids"] = rng.integers(0, 2, (BATCH, LENGTH))
    return values


def reference(folder: Path, values: dict[str, np.ndarray[Any, Any]], dtype: Any) -> list[np.ndarray[Any, Any]]:
    from safetensors.torch import load_file

    cfg = json.loads((folder / "config.json").read_text())
    sd = {name: value.to(dtype) for name, value in load_file(folder / "model.safetensors").items()}
    model = {"gpt2": gpt2, "bert": bert}.get(cfg["model_type"], rotary_model)
    with torch.no_grad():
        return [o.double().numpy() for o in model(cfg, sd, *(torch.from_numpy(v) for v in values.values()))]


@pytest.mark.parametrize("case", CASES)
def test_float32_matches_eager_code(tmp_path: Path, case: str) -> None:
    folder, values = write(tmp_path, case, "float32"), inputs_for(CASES[case][0])
    graph = load_folder(folder)
    assert set(graph.free_dims) == {"batch", "sequence"}
    found = evaluate(graph.bind({"batch": BATCH, "sequence": LENGTH}), values)
    for ours, theirs in zip(found, reference(folder, values, torch.float32), strict=True):
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("case", CASES)
def test_bfloat16_matches_eager_code_up_to_rounding(tmp_path: Path, case: str) -> None:
    folder, values = write(tmp_path, case, "bfloat16"), inputs_for(CASES[case][0])
    graph = load_folder(folder).bind({"batch": BATCH, "sequence": LENGTH})
    assert {n.dtype for n in graph.outputs} == {"bfloat16"}
    for ours, theirs in zip(evaluate(graph, values), reference(folder, values, torch.bfloat16), strict=True):
        assert np.linalg.norm(ours.astype(np.float64) - theirs) < 0.03 * np.linalg.norm(theirs)
    exact = evaluate(graph, values, float64=True)  # the same weights, without rounding in between
    for ours, theirs in zip(exact, reference(folder, values, torch.float64), strict=True):
        assert np.linalg.norm(ours - theirs) < 2e-4 * np.linalg.norm(theirs)
