"""Decoding of language models beside PyTorch in CUDA graphs: `python -m benchmarks.decoding.llm [NAMES] [--budget S]
[--limit S] [--quantize F] [--parts ...]`.

Each model has random weights, drawn in memory. Parts of a row, each in a process of its own:

- `peers`: µs of the same layers in PyTorch with static caches (peers.py): eager, captured in a CUDA graph, compiled
  and captured, and `torch.compile(mode="reduce-overhead")`; with `--quantize int4` or `fp8` by PyTorch's own products.
- `step`: µs of a decode step (wall clock, the caches half full; `full_us`: nearly full), the launch mode and µs of
  the others (`modes_us`), number of kernels, share of the device's memory bandwidth, a table of kernels (calls, µs,
  share of the step, share of the bandwidth, roofline limit), seconds of the search and its stages.
- `generate`: tokens per second of `generate`, greedy and drawn, and seconds until the first token of a prompt.
- `prefill`: µs of a prefill of 512 tokens, by programs with searches of `--budget` seconds; kernels as for a step.
- `prefill_peers`: µs of it in PyTorch: eager, compiled (default and max-autotune), and captured in a CUDA graph. What
  is not done in time is left out.

`--limit` bounds the seconds of the whole run: each part gets what is left, and those that get nothing are named. A
failure is an entry of the row. Results: standard output, and out/bench/llm.json (BENCH_WORK).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tensor_graphs.backends.program.program import Program
from tensor_graphs.generation import Generator
from tensor_graphs.models.common.random_weights import RandomArray
from tensor_graphs.models.huggingface.step import Folder
from tensor_graphs.models.random_checkpoints import random_checkpoint
from tensor_graphs.progress import Progress
from tensor_graphs.report.report import Report

from ..common import WORK
from .peers import peers
from .queued_time import timed

LENGTH, PROMPT, NEW, PREFILL = 1024, 48, 64, 512
PARTS = ("peers", "step", "generate", "prefill", "prefill_peers")
STEPS = 100  # positions that are left for the steps timed with nearly full caches
LEAST = 10.0  # seconds below which a part is not begun
STAGES = 80  # lines of a part's progress that are kept
TERM = 400  # characters of a kernel's term in its row
PATTERN = 1_048_583  # random numbers that the weights repeat; a prime, so that no two rows are equal
_LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "max_position_embeddings": 8192,
}  # fmt: skip
_LLAMA_8B = {
    **_LLAMA, "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama-1b": {
        **_LLAMA, "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    },
    "gemma-270m": {
        "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 18, "hidden_size": 640,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 2048, "vocab_size": 262144,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 256, "sliding_window": 512,
        "layer_types": ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(18)], "torch_dtype": "bfloat16",
    },
    "llama-8b": _LLAMA_8B,
    "llama-8b-16": _LLAMA_8B,
    "small": {
        **_LLAMA, "num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64,
        "intermediate_size": 1024, "vocab_size": 8192, "tie_word_embeddings": True, "torch_dtype": "float32",
    },
}  # fmt: skip
BATCH = {"llama-8b-16": 16}  # rows of a step; 1 for others


@dataclass(frozen=True)
class Repeated:
    """A lazy weight whose random numbers repeat after `PATTERN` elements, because drawing billions takes minutes."""

    weight: RandomArray

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self.weight.shape

    @property
    def dtype(self) -> str:
        """Name of the dtype."""
        return self.weight.dtype

    def load(self) -> np.ndarray[Any, Any]:
        """The weight as an array."""
        if np.prod(self.shape) <= PATTERN:
            return self.weight.load()
        return np.resize(_pattern(self.weight.dtype, self.weight.scale, self.weight.mean), self.shape)


@cache
def _pattern(dtype: str, scale: float, mean: float) -> np.ndarray[Any, Any]:
    return RandomArray((PATTERN,), dtype, scale, mean, name="pattern").load()


# ---------------------------------------------------------------- this library
def generator(name: str, budget: float, quantize: str = "", **options: Any) -> Generator:
    """A generator of a model with random weights.

    `quantize`: format of its weights. `options`: further options of `Generator`.
    """
    config = CONFIGS[name]
    weights = {n: Repeated(w).load() for n, w in random_checkpoint(config).items()}  # type: ignore[arg-type]
    batch = BATCH.get(name, 1)
    return Generator(
        Folder.of(config, weights), budget=budget, max_length=LENGTH, batch=batch, quantize=quantize or None, **options
    )


def stages_shown() -> Progress:
    """Receiver of progress messages that prints stages to standard error, with seconds since it was made."""
    begun = time.monotonic()

    def say(stage: str, message: str) -> None:
        print(f"{time.monotonic() - begun:7.1f} s {stage} {message}"[:160], file=sys.stderr, flush=True)

    return Progress(say)


def kernel_table(report: Report, bytes_per_us: float) -> list[dict[str, Any]]:
    """Kernels of a plan grouped by name and result type, the most expensive first.

    Fields: `calls`, `us` (of all calls), `share` (of the plan's time), `terms` (what they compute -> number of calls
    and µs per call), `bandwidth` (share of the device's bandwidth, for the bytes that must move), `limit_us` (roofline
    of all calls).
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for step in report.steps:
        row = rows.setdefault((step.name, step.type), {
            "kernel": step.name, "result": step.type, "calls": 0, "us": 0.0, "limit_us": 0.0, "bytes": 0.0, "source": step.source,
            "terms": {},
        })  # fmt: skip
        calls, _ = row["terms"].get(step.computes[:TERM], (0, 0.0))
        row["terms"][step.computes[:TERM]] = calls + 1, round(step.us, 2)
        row["calls"] += 1
        row["us"] += step.us
        row["limit_us"] += step.limit_us or 0.0
        row["bytes"] += step.bytes or 0.0
    total = sum(r["us"] for r in rows.values())
    found = sorted(rows.values(), key=lambda r: -r["us"])
    for row in found:
        row["share"] = round(row["us"] / max(total, 1e-9), 4)
        row["bandwidth"] = round(row.pop("bytes") / max(row["us"], 1e-9) / bytes_per_us, 3)
        row |= {k: round(row[k], 2) for k in ("us", "limit_us")}
    return found


def program_row(program: Program, bytes_per_us: float) -> dict[str, Any]:
    """Figures from a program's report: kernels, prices, stages of the search."""
    report = program.report
    assert report is not None
    return {
        "kernels": program.manifest.kernels, "plan_us": round(report.cost_us, 1), "bound_us": round(report.lower_bound_us, 1),
        "priced": report.priced, "runs": report.runs, "candidates": report.candidates, "stopped": report.search_stopped,
        "omitted": report.omitted, "warnings": [w[:200] for w in report.warnings], "verification": report.verification,
        "seconds": {k: round(v, 2) for k, v in report.seconds.items()}, "measuring": report.measuring,
        "finalists": [
            (f.kernels, round(f.predicted_us, 1), round(f.measured_us, 1), f.chosen, f.launching, f.changed)
            for f in report.finalists
        ],
        "curve": [tuple(round(v, 1) for v in p) for p in report.curve[-40:]],
        "table": kernel_table(report, bytes_per_us),
    }  # fmt: skip


def step(name: str, budget: float, quantize: str = "") -> dict[str, Any]:
    """Figures of a decode step."""
    from tensor_graphs.generation.bandwidth import memory_bandwidth

    begun = time.perf_counter()
    made = generator(name, budget, quantize, progress=stages_shown())
    loaded = time.perf_counter()
    decode = made._programs.decode()
    searched = time.perf_counter()
    rows = BATCH.get(name, 1)

    def step_us(length: int) -> float:
        made._programs.set("length", [length] * rows, "int64")
        return timed(decode.flat_near, lambda: decode.wait("a decode step"))

    us, full_us, bytes_per_us = step_us(LENGTH // 2), step_us(LENGTH - STEPS), memory_bandwidth(decode.tensors)
    calls = decode._run
    return {
        "step_us": us, "full_us": full_us, "launch_mode": getattr(calls, "launch_mode", ""),
        "modes_us": {k: round(1e6 * v, 1) for k, v in getattr(calls, "times", {}).items()}, "bandwidth_share": made.bandwidth_share(us), "limit_us": made._programs.read_bytes() / bytes_per_us,
        "weights_s": loaded - begun, "search_s": searched - loaded, **program_row(decode, bytes_per_us),
    }  # fmt: skip


def generate(name: str, budget: float, quantize: str = "") -> dict[str, Any]:
    """Figures of generated text; programs come from the plan cache if it has them."""
    made = generator(name, budget, quantize)
    prompt = [int(v) for v in np.random.default_rng(0).integers(0, CONFIGS[name]["vocab_size"], PROMPT)]
    made.generate(prompt, 4)
    found = made.generate(prompt, NEW)
    drawn = made.generate(prompt, NEW, temperature=0.8, top_p=0.95)
    kernels = {k: r.kernels_after for k, r in made.report.items() if r is not None}
    return {
        "tokens_per_second": found.tokens_per_second, "drawn_tokens_per_second": drawn.tokens_per_second,
        "first_token_s": found.first_token_s, "programs_s": made.seconds, "programs_kernels": kernels, "tokens": found.tokens[0][:8],
    }  # fmt: skip


def prefill(name: str, budget: float, quantize: str = "") -> dict[str, Any]:
    """Figures of a prefill of 512 tokens; the kernels are those of the first program, if there are several."""
    from tensor_graphs.generation.bandwidth import memory_bandwidth

    batch = BATCH.get(name, 1)
    made = generator(name, 2 * budget, quantize, progress=stages_shown())
    ids = np.random.default_rng(0).integers(0, CONFIGS[name]["vocab_size"], (batch, PREFILL))
    prompts = [[int(v) for v in row] for row in ids]
    begun = time.perf_counter()
    made._model.ready(prompts)
    searched = time.perf_counter()
    first = made._model._program(made._model.plan(prompts), 0)
    us = timed(lambda: made._model.prefill(prompts), lambda: first.wait("a prefill"), calls=2)
    row = program_row(first, memory_bandwidth(first.tensors))
    return {"prefill_us": us, **{f"prefill_{k}": v for k, v in {"search_s": searched - begun, **row}.items()}}


# ---------------------------------------------------------------- the table
def one(name: str, part: str, budget: float, quantize: str) -> dict[str, Any]:
    """One part of a model's row; if it fails, the row has the error in place of figures."""
    try:
        if part in ("peers", "prefill_peers"):
            tokens, begin = (1, "") if part == "peers" else (PREFILL, "prefill_")
            named = lambda row: {f"{begin}{k}": v for k, v in row.items()}
            show = lambda row: print(json.dumps(named(row)), flush=True)
            return named(peers(CONFIGS[name], BATCH.get(name, 1), LENGTH, tokens, show, quantize))
        return {"step": step, "generate": generate, "prefill": prefill}[part](name, budget, quantize)
    except Exception as error:
        return {f"{part}_error": f"{type(error).__name__}: {str(error)[:400]}", "trace": traceback.format_exc()[-1500:]}


def in_process(name: str, part: str, budget: float, limit: float, quantize: str) -> dict[str, Any]:
    """Same as `one`, in a process of its own, which is killed after `limit` seconds."""
    if limit < LEAST:
        return {f"{part}_error": "no time was left"}
    command = [
        sys.executable,
        "-m",
        "benchmarks.decoding.llm",
        name,
        "--part",
        part,
        "--budget",
        str(budget),
        "--quantize",
        quantize,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        stages = {f"{part}_stages": done.stderr.strip().splitlines()[:STAGES]}
        return {**json.loads(done.stdout.strip().splitlines()[-1]), **stages}
    except subprocess.TimeoutExpired as ended:
        lines = (ended.stdout or b"").decode(errors="replace").strip().splitlines()
        known = dict(json.loads(lines[-1])) if lines and lines[-1].startswith("{") else {}
        stages = (ended.stderr or b"").decode(errors="replace").strip().splitlines()[-12:]
        return {**known, f"{part}_error": f"not done after {limit:.0f} s", "stages": stages}
    except (IndexError, ValueError):
        return {f"{part}_error": done.stderr[-800:]}


def text_table(rows: list[dict[str, Any]]) -> str:
    """A kernel table as text."""
    lines = [f"{'calls':>5} {'µs':>8} {'limit':>8} {'share':>6} {'of bw':>6}  kernel"]
    for r in rows:
        lines.append(
            f"{r['calls']:5} {r['us']:8.1f} {r['limit_us']:8.1f} {r['share']:6.1%} {r['bandwidth']:6.0%}  {r['kernel']} {r['result']}"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the models named on the command line: those of a GPU if there is one, else the small one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=[*CONFIGS, []])
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of search of a decode program")
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds of the whole run")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["peers", "step", "generate"])
    parser.add_argument(
        "--quantize", default="", help="format of the weights: int8, int4, fp8, mxfp4; as they are by default"
    )
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(one(options.names[0], options.part, options.budget, options.quantize), default=str))
        return
    from tensor_graphs.backends.registry import backend

    rows, until = [], time.monotonic() + options.limit
    for name in options.names or (["small"] if backend("torch_cuda").unavailable() else ["gemma-270m", "llama-1b"]):
        row: dict[str, Any] = {
            "model": name,
            "batch": BATCH.get(name, 1),
            "budget": options.budget,
            "quantize": options.quantize,
        }
        rows.append(row)
        for part in options.parts:
            begun = time.monotonic()
            found = in_process(name, part, options.budget, until - begun, options.quantize)
            row |= found | {f"{part}_s": round(time.monotonic() - begun, 1)}
            print(
                json.dumps({k: v for k, v in found.items() if not k.endswith(("table", "curve", f"{part}_stages"))}),
                flush=True,
            )
            for table in (v for k, v in found.items() if k.endswith("table")):
                print(text_table(table), flush=True)
            WORK.mkdir(parents=True, exist_ok=True)
            (WORK / "llm.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
