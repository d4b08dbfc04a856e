"""Speculative decoding and reuse of prompts on this machine: `python -m benchmarks.decoding.speculation [--budget S]
[--counts 2 4 ...]`.

The model has random weights; the draft is its first layers with the same embeddings. What the other layers add is
scaled by `--late`, so that the draft agrees more or less often: a trained pair would be needed for a figure of its own.
Rows: ms of a token of plain decoding, and with a draft of that many tokens a round, in turns, CPU time and wall clock;
the median ratio; the share of accepted proposals. Then the seconds until the first token of a long prompt that
continues the one before, computed as a whole and from where the caches hold it. Set OMP_NUM_THREADS=1 and
OPENBLAS_NUM_THREADS=1 on a busy machine, where CPU times count.
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median
from typing import Any

import numpy as np

from tensor_graphs.generation import Generator
from tensor_graphs.models.huggingface.step import Folder
from tensor_graphs.models.random_checkpoints import random_checkpoint

from .llm import CONFIGS

LENGTH, NEW, PROMPT, ROUNDS = 1024, 65, 32, 5
LATE = ("self_attn.o_proj.weight", "mlp.down_proj.weight")  # what a layer adds to its input


def pair(layers: int, drafted: int, late: float) -> tuple[Folder, Folder]:
    """(model, draft made of its first layers); the contribution of the model's later layers is scaled by `late`."""
    config = {**CONFIGS["small"], "num_hidden_layers": layers, "tie_word_embeddings": False}
    weights = {name: w.load() for name, w in random_checkpoint(config).items()}
    first = {f"layers.{i}." for i in range(drafted)}
    for name in weights:
        if "layers." in name and not any(part in name for part in first) and name.endswith(LATE):
            weights[name] = weights[name] * np.float32(late)
    kept = {n: w for n, w in weights.items() if "layers." not in n or any(part in n for part in first)}
    return Folder.of(config, weights), Folder.of({**config, "num_hidden_layers": drafted}, kept)


def token_ms(made: Generator, prompt: list[int]) -> tuple[float, float, list[int]]:
    """(CPU ms, wall-clock ms) per token after the first one, and the generated tokens."""
    tokens, begun = list[int](), (0.0, 0.0)
    for piece in made.stream(prompt, NEW):
        begun = begun if tokens else (time.process_time(), time.perf_counter())
        tokens.append(piece.token)
    cpu, wall = time.process_time() - begun[0], time.perf_counter() - begun[1]
    return cpu * 1e3 / (NEW - 1), wall * 1e3 / (NEW - 1), tokens


def speculation(folder: Folder, draft: Folder, counts: list[int], options: dict[str, Any]) -> None:
    """Print times per token of plain decoding and of speculative decoding with each number of proposals."""
    prompt = [int(v) for v in np.random.default_rng(0).integers(0, CONFIGS["small"]["vocab_size"], PROMPT)]
    plain = Generator(folder, **options)
    for count in counts:
        made = Generator(folder, draft=draft, draft_tokens=count, **options)
        acceptance = made.generate(prompt, NEW).acceptance
        plain.generate(prompt, NEW)
        turns = [(token_ms(plain, prompt), token_ms(made, prompt)) for _ in range(ROUNDS)]
        ratios = [before[0] / after[0] for before, after in turns]
        row = {
            "count": count, "acceptance": acceptance, "cpu_ratio": median(ratios), "least": min(ratios), "most": max(ratios),
            "wall_ratio": median(before[1] / after[1] for before, after in turns),
            "plain_cpu_ms": median(t[0][0] for t in turns), "drafted_cpu_ms": median(t[1][0] for t in turns),
            "plain_ms": median(t[0][1] for t in turns), "drafted_ms": median(t[1][1] for t in turns),
            "same_tokens": all(before[2] == after[2] for before, after in turns), "programs_s": made.seconds,
        }  # fmt: skip
        print(json.dumps(row), flush=True)


def reuse(folder: Folder, options: dict[str, Any], held: int = 700, further: int = 14) -> None:
    """Print the seconds until the first token of a prompt: computed as a whole, and with its first `held` tokens in the
    caches.
    """
    random, words = np.random.default_rng(1), CONFIGS["small"]["vocab_size"]
    found: dict[str, Any] = {"held": held, "further": further}
    for name, kept in (("whole", False), ("reused", True)):
        made, times = Generator(folder, reuse=kept, **options), []
        for _ in range(ROUNDS + 1):
            prompt = [int(v) for v in random.integers(0, words, held)]
            output = made.generate(prompt, 2).tokens[0]
            stream = made.stream([*prompt, *output, *prompt[: further - 2]], 2)
            begun = time.process_time(), time.perf_counter()
            next(stream)
            times.append((time.process_time() - begun[0], time.perf_counter() - begun[1]))
        found |= {f"{name}_cpu_s": median(t[0] for t in times[1:]), f"{name}_s": median(t[1] for t in times[1:])}
        found[f"{name}_tokens"] = made._model.computed
    print(json.dumps(found), flush=True)


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of search of a decode program")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--drafted", type=int, default=1, help="layers of the draft")
    parser.add_argument("--late", type=float, default=0.2, help="factor on what the other layers add")
    parser.add_argument(
        "--counts", type=int, nargs="*", default=[2, 4, 7], help="tokens that the draft proposes a round"
    )
    parser.add_argument("--verify", action=argparse.BooleanOptionalAction, default=True)
    given = parser.parse_args()
    folder, draft = pair(given.layers, given.drafted, given.late)
    options = {"budget": given.budget, "max_length": LENGTH, "verify": given.verify}
    speculation(folder, draft, given.counts, options)
    reuse(folder, options)


if __name__ == "__main__":
    main()
