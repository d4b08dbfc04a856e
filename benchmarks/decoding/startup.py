"""CPU seconds of a second process from its start to the first token, by stage: `python -m benchmarks.decoding.startup
[--runs N] [--budget S] [--unchecked] [--threads N]`.

The model has Gemma-3's shape with 6 layers (hidden 640, vocabulary 32,768, 109 MB in bfloat16) and random weights. A
first process searches its programs with `--budget` seconds into a home of its own, and completes their checks; with
`--unchecked` it leaves those for which its searches had no time. Then, after one that does not count, `--runs`
processes generate one token, one after another, from the remembered plans. Printed is a table of cumulative CPU seconds
of a process and its workers: Python, the package, each program, the first token; median, least and most of the runs, of
wall clock the median, and the load of the machine before and after. Results: standard output, and
out/bench/llm_startup/llm_startup.json (BENCH_WORK). An earlier search in the same folder is reused; `--again` searches
anew.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

BEGUN = time.perf_counter()
LAYERS, PROMPT = 6, [5, 17, 301]
CONFIG: dict[str, Any] = {
    "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": LAYERS, "hidden_size": 640,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 2048, "vocab_size": 32768,
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 256, "sliding_window": 512,
    "layer_types": ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(LAYERS)], "torch_dtype": "bfloat16",
}  # fmt: skip
SECONDS = 1200.0  # limit of a process


def run(folder: Path, budget: float, search: bool, unchecked: bool) -> list[tuple[str, float, float]]:
    """Generate one token in this process; (stage, CPU seconds, wall-clock seconds) since it began, cumulative.

    `search`: the first process, which may search; others raise RuntimeError if a plan is not remembered.
    """
    from ..common import cpu_seconds

    found: list[tuple[str, float, float]] = []

    def reached(stage: str) -> None:
        found.append((stage, sum(cpu_seconds()), time.perf_counter() - BEGUN))

    reached("Python, benchmark imported")
    from tensor_graphs.generation import Generator
    from tensor_graphs.generation.programs import Programs

    reached("package imported")
    made: Callable[..., Any] = Programs._program

    def timed(programs: Programs, name: str, *rest: Any) -> Any:
        new = name not in programs._made
        program = made(programs, name, *rest)
        if new:
            reached(f"{name} program")
            if not search and not program.report.from_plan_cache:
                raise RuntimeError(f"{name} was not remembered: {program.report.plan_cache_notes}")
        return program

    with mock.patch.object(Programs, "_program", timed):
        generator = Generator(folder, budget=budget, backend="auto", max_length=1024)
        for _ in generator.stream(PROMPT, max_new_tokens=2):
            reached("first token")
            break
    if search and not unchecked:
        generator.complete_checks()
    if search:
        print("checks left:", generator.unchecked, file=sys.stderr)
    return found


def child(arguments: list[str], home: Path, threads: int) -> Any:
    """Result of a process of this module with a home of its own. Raises CalledProcessError if it fails."""
    from ..common import with_bytecode

    known = with_bytecode(TENSOR_GRAPHS_HOME=str(home), OMP_NUM_THREADS=str(threads))
    command = [sys.executable, "-m", "benchmarks.decoding.startup", *arguments]
    done = subprocess.run(command, env=known, timeout=SECONDS, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def table(runs: list[list[tuple[str, float, float]]]) -> str:
    """The table of stages: CPU seconds (median, least, most) and median wall-clock seconds of the runs."""
    lines = ["| | CPU seconds | least | most | wall clock |", "|---|---|---|---|---|"]
    for stage, *_ in runs[0]:
        cpu, wall = ([one[i] for r in runs for one in r if one[0] == stage] for i in (1, 2))
        lines.append(f"| {stage} | {median(cpu):.1f} | {min(cpu):.1f} | {max(cpu):.1f} | {median(wall):.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line; search, then run and print the table."""
    from ..common import WORK

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--budget", type=float, default=30.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--unchecked", action="store_true", help="leave the checks that searches had no time for")
    parser.add_argument("--again", action="store_true", help="search anew")
    parser.add_argument("--child", choices=["search", "run"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    work = WORK / "llm_startup"
    if options.child:
        search = options.child == "search"
        print(json.dumps(run(work / "model", options.budget, search, options.unchecked)))
        return
    home = work / ("home-unchecked" if options.unchecked else "home")
    if options.again:
        shutil.rmtree(home, ignore_errors=True)
    if not (work / "model" / "config.json").exists():
        from tensor_graphs.models.random_checkpoints import write_checkpoint

        write_checkpoint(work / "model", CONFIG)
    flags = ["--budget", str(options.budget), *(["--unchecked"] if options.unchecked else [])]
    searched = home / "searched"
    if not searched.exists():
        first = child(["--child", "search", *flags], home, options.threads)
        print("search:", json.dumps(first), file=sys.stderr, flush=True)
        searched.touch()
    child(["--child", "run", *flags], home, options.threads)  # compiles bytecode; does not count
    before = os.getloadavg()[0]
    runs = [child(["--child", "run", *flags], home, options.threads) for _ in range(options.runs)]
    load = f"load {before:.1f} to {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs"
    print(f"{table(runs)}\n\n{len(runs)} runs, {load}")
    (work / "llm_startup.json").write_text(json.dumps({"runs": runs, "load": load}, indent=1) + "\n")


if __name__ == "__main__":
    main()
