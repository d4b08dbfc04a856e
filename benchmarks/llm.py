"""Decoding of language models beside eager PyTorch and `torch.compile`: `python -m benchmarks.llm [NAMES] [--budget S]`.

Each model has random weights, drawn in memory. Columns: µs of a decode step (wall clock, batch 1, the caches half full), tokens per second
of `generate`, share of the device's memory bandwidth, seconds until the first token of a prompt, seconds that each program took to make; then
µs of a step of the same layers in PyTorch with static caches, eager and compiled (in CUDA graphs on a GPU). Every model runs in a process of
its own under a time limit; a failure is one row. Results: standard output, and out/bench/llm.json (BENCH_WORK).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.models.huggingface.step import Folder
from tensor_graphs.models.zoo import random_checkpoint

from .common import WORK

LENGTH, PROMPT, NEW = 1024, 48, 64
_LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "tie_word_embeddings": True, "max_position_embeddings": 8192,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama-1b": {
        **_LLAMA, "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "intermediate_size": 8192, "vocab_size": 128256, "torch_dtype": "bfloat16",
    },
    "gemma-270m": {
        "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 18, "hidden_size": 640,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 2048, "vocab_size": 262144,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 256, "sliding_window": 512,
        "layer_types": ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(18)], "torch_dtype": "bfloat16",
    },
    "small": {
        **_LLAMA, "num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64,
        "intermediate_size": 1024, "vocab_size": 8192, "torch_dtype": "float32",
    },
}  # fmt: skip


# ---------------------------------------------------------------- this library
def ours(name: str, budget: float) -> dict[str, Any]:
    """Figures of a model's generation."""
    config = CONFIGS[name]
    weights = {name: data.load() for name, data in random_checkpoint(config).items()}  # type: ignore[union-attr]
    made = tg.Generator(Folder.of(config, weights), budget=budget, max_length=LENGTH)
    prompt = [int(v) for v in np.random.default_rng(0).integers(0, config["vocab_size"], PROMPT)]
    made.generate(prompt, 4)
    found = made.generate(prompt, NEW)
    drawn = made.generate(prompt, NEW, temperature=0.8, top_p=0.95)
    decode = made._programs.decode()
    made._programs.set("length", [LENGTH // 2], "int64")
    step = timed(decode.flat_near, lambda: decode.wait("a decode step"))
    return {
        "step_us": step, "tokens_per_second": found.tokens_per_second, "drawn_tokens_per_second": drawn.tokens_per_second,
        "bandwidth_share": made.bandwidth_share(step), "first_token_s": found.first_token_s, "kernels": decode.manifest.kernels,
        "seconds": made.seconds, "tokens": found.tokens[0][:8],
    }  # fmt: skip


def timed(call: Callable[[], object], wait: Callable[[], object], *, calls: int = 12, rounds: int = 7) -> float:
    """µs of a call: the median of rounds of calls that are queued one behind another."""
    call()
    wait()
    found = []
    for _ in range(rounds):
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        wait()
        found.append((time.perf_counter() - begun) / calls * 1e6)
    return median(found)


# ---------------------------------------------------------------- PyTorch
def torch_step(config: dict[str, Any]) -> tuple[Callable[[], Any], Callable[[], None]]:
    """(a decode step of the same layers in PyTorch with static caches, a function that waits for the device)."""
    import torch
    from torch.nn import functional as F

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, config["torch_dtype"])
    gemma = config["model_type"] == "gemma3_text"
    hidden, heads, kv, size = (
        config[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    )

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype, device=device) * shape[-1] ** -0.5

    names = {"q": (heads * size, hidden), "k": (kv * size, hidden), "v": (kv * size, hidden), "o": (hidden, heads * size),
             "gate": (config["intermediate_size"], hidden), "up": (config["intermediate_size"], hidden),
             "down": (hidden, config["intermediate_size"])}  # fmt: skip
    layers = [{n: weight(*s) for n, s in names.items()} for _ in range(config["num_hidden_layers"])]
    caches = [torch.zeros(2, 1, kv, LENGTH, size, dtype=dtype, device=device) for _ in layers]
    gain, short, table = (torch.ones(n, dtype=dtype, device=device) for n in (hidden, size, 1))
    table = weight(config["vocab_size"], hidden)
    inverse = 1.0 / config.get("rope_theta", 1e6) ** (torch.arange(0, size, 2, device=device).float() / size)
    places = torch.arange(LENGTH, device=device)

    def norm(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], by, 1e-6)

    def turned(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return x * angle.cos().to(x.dtype) + torch.cat((-b, a), -1) * angle.sin().to(x.dtype)

    def step(token: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x = F.embedding(token, table)
        angle = at.float()[:, None] * torch.cat((inverse, inverse))
        seen = (places <= at)[None, None, None]
        for layer, cache in zip(layers, caches):
            y = norm(x, gain)
            q, k, v = (F.linear(y, layer[n]).view(1, 1, -1, size).transpose(1, 2) for n in "qkv")
            if gemma:
                q, k = norm(q, short), norm(k, short)
            cache[0].index_copy_(2, at, turned(k, angle))
            cache[1].index_copy_(2, at, v)
            y = F.scaled_dot_product_attention(turned(q, angle), cache[0], cache[1], attn_mask=seen, enable_gqa=True)
            y = F.linear(y.transpose(1, 2).reshape(1, 1, -1), layer["o"])
            x = x + (norm(y, gain) if gemma else y)
            y = norm(x, gain)
            inside = (
                F.gelu(F.linear(y, layer["gate"]), approximate="tanh") if gemma else F.silu(F.linear(y, layer["gate"]))
            )
            y = F.linear(inside * F.linear(y, layer["up"]), layer["down"])
            x = x + (norm(y, gain) if gemma else y)
        return F.linear(norm(x, gain), table).argmax(-1)

    token, at = torch.zeros(1, 1, dtype=torch.int64, device=device), torch.tensor([LENGTH // 2], device=device)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    bound = torch.no_grad()(lambda: step(token, at))
    bound.step = torch.no_grad()(lambda compiled: compiled(token, at))  # type: ignore[attr-defined]
    bound.plain = step  # type: ignore[attr-defined]
    return bound, wait


def peers(name: str) -> dict[str, Any]:
    """µs of a step in PyTorch: eager, and compiled."""
    import torch

    call, wait = torch_step(CONFIGS[name])
    found: dict[str, Any] = {"eager_us": timed(call, wait)}
    try:
        mode = "reduce-overhead" if torch.cuda.is_available() else "default"
        compiled = torch.compile(call.plain, mode=mode, dynamic=False)  # type: ignore[attr-defined]
        for _ in range(3):
            call.step(compiled)  # type: ignore[attr-defined]
        found["compile_us"] = timed(lambda: call.step(compiled), wait)  # type: ignore[attr-defined]
    except Exception as error:
        found["compile_error"] = f"{type(error).__name__}: {str(error)[:200]}"
    return found


# ---------------------------------------------------------------- the table
def one(name: str, part: str, budget: float) -> dict[str, Any]:
    """One part of one model's row; an error in place of figures."""
    try:
        return ours(name, budget) if part == "ours" else peers(name)
    except Exception as error:
        return {f"{part}_error": f"{type(error).__name__}: {str(error)[:400]}", "trace": traceback.format_exc()[-1500:]}


def in_process(name: str, part: str, budget: float, limit: float) -> dict[str, Any]:
    """The same in a process of its own, which ends after `limit` seconds."""
    command = [sys.executable, "-m", "benchmarks.llm", name, "--part", part, "--budget", str(budget)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return {f"{part}_error": f"not done after {limit:.0f} s"}
    except (IndexError, ValueError):
        return {f"{part}_error": done.stderr[-800:]}


def main() -> None:
    """Run the models named on the command line: those of a GPU if there is one, else the small one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--limit", type=float, default=400.0, help="seconds for one part of one model")
    parser.add_argument("--part", choices=("ours", "peers"))
    options = parser.parse_args()
    if options.part:
        print(json.dumps(one(options.names[0], options.part, options.budget)))
        return
    from tensor_graphs.backends.registry import backend

    rows = []
    for name in options.names or (["small"] if backend("torch_cuda").unavailable() else ["gemma-270m", "llama-1b"]):
        row: dict[str, Any] = {"model": name}
        for part in ("peers", "ours"):
            row |= in_process(name, part, options.budget, options.limit)
            print(json.dumps(row), flush=True)
        rows.append(row)
        WORK.mkdir(parents=True, exist_ok=True)
        (WORK / "llm.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
