"""Speculative decoding and reuse of prompts on this machine: `python -m benchmarks.speculation [--budget S] [--counts 2 4 ...]`.

The model has random weights; the draft is its first layers with the same embeddings. What the other layers add is scaled by
`--late`, so that the draft agrees more or less often: a trained pair would be needed for a figure of its own. Rows: tokens per second
of plain decoding, and with a draft of that many tokens a round, in turns; the median ratio; the share of accepted proposals. Then the
seconds until the first token of a long prompt that continues the one before, computed as a whole and from where the caches hold it.
"""

from __future__ import annotations

import argparse
import json
from statistics import median
from typing import Any

import numpy as np

from tensor_graphs.generation import Generator
from tensor_graphs.models.huggingface.step import Folder
from tensor_graphs.models.zoo import random_checkpoint

from .llm import CONFIGS

LENGTH, NEW, PROMPT, ROUNDS = 1024, 65, 32, 5
LATE = ("self_attn.o_proj.weight", "mlp.down_proj.weight")  # what a layer adds to its input


def pair(layers: int, drafted: int, late: float) -> tuple[Folder, Folder]:
    """A model, and a draft of its first layers; what later layers add is scaled by `late`."""
    config = {**CONFIGS["small"], "num_hidden_layers": layers}
    weights = {name: w.load() for name, w in random_checkpoint(config).items()}
    first = {f"layers.{i}." for i in range(drafted)}
    for name in weights:
        if "layers." in name and not any(part in name for part in first) and name.endswith(LATE):
            weights[name] = weights[name] * np.float32(late)
    kept = {n: w for n, w in weights.items() if "layers." not in n or any(part in n for part in first)}
    return Folder.of(config, weights), Folder.of({**config, "num_hidden_layers": drafted}, kept)


def speculation(folder: Folder, draft: Folder, counts: list[int], options: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of tokens per second, plain and with drafts."""
    prompt = [int(v) for v in np.random.default_rng(0).integers(0, CONFIGS["small"]["vocab_size"], PROMPT)]
    plain = Generator(folder, **options)
    rows = []
    for count in counts:
        made = Generator(folder, draft=draft, draft_tokens=count, **options)
        rates, ratios, found = [], [], None
        for turn in range(ROUNDS + 1):
            before, found = plain.generate(prompt, NEW), made.generate(prompt, NEW)
            if turn:
                rates.append((before.tokens_per_second, found.tokens_per_second))
                ratios.append(found.tokens_per_second / before.tokens_per_second)
        assert found is not None
        rows.append({
            "count": count, "plain": median(r[0] for r in rates), "drafted": median(r[1] for r in rates),
            "ratio": median(ratios), "least": min(ratios), "most": max(ratios), "acceptance": found.acceptance,
            "same_tokens": found.tokens == before.tokens, "programs_s": made.seconds,
        })  # fmt: skip
        print(json.dumps(rows[-1]), flush=True)
    return rows


def reuse(folder: Folder, options: dict[str, Any], held: int = 700, further: int = 14) -> dict[str, Any]:
    """Seconds until the first token of a prompt of which all but the last tokens are in the caches."""
    random, words = np.random.default_rng(1), CONFIGS["small"]["vocab_size"]
    found: dict[str, Any] = {"held": held, "further": further}
    for name, kept in (("whole", False), ("reused", True)):
        made, times = Generator(folder, reuse=kept, **options), []
        for _ in range(ROUNDS + 1):
            prompt = [int(v) for v in random.integers(0, words, held)]
            output = made.generate(prompt, 2).tokens[0]
            times.append(made.generate([*prompt, *output, *prompt[: further - 2]], 2).first_token_s)
        found[f"{name}_s"] = median(times[1:])
        found[f"{name}_tokens"] = made._model.computed
    print(json.dumps(found), flush=True)
    return found


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of search of a decode program")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--drafted", type=int, default=1, help="layers of the draft")
    parser.add_argument("--late", type=float, default=0.1, help="factor on what the other layers add")
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
