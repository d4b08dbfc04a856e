"""Times of loading, saturating and joining: `python benchmarks/saturation.py [--layers N]`.

Loading: a chain of n nodes as tables, and from tables into egglog. Saturation: the unique blocks of a Llama-like stack
under all rules, in worker processes, first with and then without their start-up.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tensor_graphs.egraph.blocks.blocks import Blocks, find_blocks
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.saturate.engine import Engine
from tensor_graphs.egraph.saturate.program import make_program
from tensor_graphs.egraph.saturate.saturate import saturate_blocks
from tensor_graphs.egraph.saturate.term_cost import Roofline
from tensor_graphs.egraph.simplify.simplify import simplify
from tensor_graphs.egraph.view.joined_view import join_blocks
from tensor_graphs.models import random_checkpoints
from tensor_graphs.models.huggingface.load import load_folder
from tensor_graphs.rules import ALL

HERE = Path(__file__).parent
Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """(result, wall-clock seconds) of a function."""
    begin = time.perf_counter()
    found = work()
    return found, time.perf_counter() - begin


def chain(n: int) -> Graph:
    """Graph of about `n` nodes in a chain."""
    x = t.input("x", (4, 4))
    for i in range(n // 3):
        x = t.tanh(x) + t.full((1, 1), float(i))
    return Graph.of(x)


def loading(n: int) -> str:
    """Line of the table: seconds to make the tables of `n` nodes, and to load them with shapes and costs."""
    graph, engine = chain(n), Engine()
    program = make_program([graph], (), Roofline(), 0)
    engine.declare(program.declaration)
    lowered, lower_seconds = timed(lambda: program.lower(graph))
    _, load_seconds = timed(lambda: engine.start(program.job(lowered, 10 * n)))
    return f"| {len(lowered.nodes):,} | {lower_seconds:.3f} | {load_seconds:.3f} |"


def stack(layers: int) -> Blocks:
    """The blocks of a small Llama-like model at 128 tokens."""
    with tempfile.TemporaryDirectory() as folder:
        path = random_checkpoints.write_llama(Path(folder) / "model", layers=layers, hidden=512, heads=8, kv_heads=4,
                               intermediate=1024, vocab=1000)  # fmt: skip
        graph = load_folder(path)
        return find_blocks(simplify(graph.bind({"batch": 1, "sequence": 128})))


def saturation(blocks: Blocks) -> list[str]:
    """Lines of the table: saturating all unique blocks twice (workers cold, then warm), and joining."""
    graphs = [b.graph for b in blocks.unique]
    _, cold = timed(lambda: saturate_blocks(graphs, ALL))
    views, warm = timed(lambda: saturate_blocks(graphs, ALL))
    view, seconds = timed(lambda: join_blocks(blocks, views))
    lines = [f"| {blocks} | {cold:.2f} | {warm:.2f} | {seconds:.3f} | {len(view):,} |"]
    return lines + [f"- block {i}: {v.report}" for i, v in enumerate(views)]


def main() -> None:
    """Print the tables and write them to results/saturation.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=16)
    layers = parser.parse_args().layers
    lines = [
        "# Saturation",
        "",
        "| nodes | tables, s | loading, s |",
        "|---|---|---|",
        *map(loading, (1_000, 10_000, 100_000)),
    ]
    lines += [
        "",
        "| model | cold, s | warm, s | join, s | e-nodes |",
        "|---|---|---|---|---|",
        *saturation(stack(layers)),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results/saturation.md").write_text(text)


if __name__ == "__main__":
    main()
