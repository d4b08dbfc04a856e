"""How many plans of whole models are proved to be the cheapest: `python -m benchmarks.extraction.proved`.

Prices are the stated roofline, nothing is measured, so the problems are the same on every machine; the time to solve
them is not. A block counts as proved where the whole plan is, or where its own problem (the block alone) is solved to
the optimum. Some models are planned for a GPU as well, with generated kernels of several outputs among the candidates;
none is needed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.models import zoo
from benchmarks.models.taso import load_field_json
from tensor_graphs.backends.registry import backend, select
from tensor_graphs.egraph.blocks.blocks import find_blocks
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.extract.model.backend import Backend
from tensor_graphs.extract.search.search import search
from tensor_graphs.options import Options
from tensor_graphs.pipeline.context.session import Session
from tensor_graphs.pipeline.stages.match import hypergraph
from tensor_graphs.pipeline.stages.prepare import prepare

from ..common import QUICK, data, row
from ..saturation.stages import run, stated_prices

SECONDS = 5.0

MODELS: dict[str, Callable[[], Graph]] = {
    "transformer, 12 layers": lambda: zoo.transformer(12, hidden=256, heads=4),
    "ResNet-50": lambda: zoo.resnet50(),
    "U-Net": lambda: zoo.unet(),
    "DiT, 4 blocks": lambda: zoo.dit_block(blocks=4, hidden=256, heads=4, tokens=64),
    "NasRNN": lambda: zoo.nasrnn(),
    "BERT (Tensat)": lambda: load_field_json(data("models/bert_tensat.json")),
    "SqueezeNet": lambda: load_field_json(data("models/squeezenet.json")),
}
FIRST = 2 if QUICK else len(MODELS)
GPU = ("transformer, 12 layers", "ResNet-50", "DiT, 4 blocks", "NasRNN")


def measure(graph: Graph, backends: Sequence[Backend]) -> dict[str, Any]:
    """Whether the whole plan of a model is proved optimal, and each of its unique blocks alone, with costs and
    bounds.
    """
    pricer = stated_prices()
    found = run(graph, pricer=pricer, solve_seconds=SECONDS, backends=backends)
    whole = found.choice.extraction
    session = Session(Options(measure=False))
    blocks = find_blocks(prepare(session, graph, None).work, max_nodes=96)
    alone = [
        search(hypergraph(session, view, backends), pricer, solve_seconds=SECONDS).extraction for view in found.views
    ]
    counts = [sum(i.block == k for i in blocks.instances) for k in range(len(alone))]
    proved = [whole.optimal or e.optimal for e in alone]
    return {
        "candidates": len(found.choice.hypergraph.candidates),
        "several": sum(bool(c.more) for c in found.choice.hypergraph.candidates), "proved": whole.optimal, "gap": whole.gap,
        "seconds": found.seconds["solve"],
        "method": whole.method, "blocks": sum(counts), "proved_blocks": sum(n for n, p in zip(counts, proved) if p),
        "open_gaps": [e.gap for e, p in zip(alone, proved) if not p],
    }  # fmt: skip


def main() -> dict[str, Any]:
    """Result for the figures: one row per model, and the share of all blocks."""
    rows, details = [], {}
    cpu, gpu = select("auto"), [backend("torch_cuda"), backend("triton")]
    asked = [(name, name, cpu) for name in list(MODELS)[:FIRST]]
    asked += [] if QUICK else [(f"{name}, for a GPU", name, gpu) for name in GPU]
    for name, model, backends in asked:
        details[name] = one = measure(MODELS[model](), backends)
        state = "proved" if one["proved"] else f"gap {one['gap']:.2%}"
        rows.append(
            row(f"plan of {name} proved", "optimum at stated prices",
                f"{state} in {one['seconds']:.1f} s ({one['candidates']} kernels, {one['several']} of several outputs; {one['method']}); "
                f"{one['proved_blocks']} of {one['blocks']} blocks", one["proved"])
        )  # fmt: skip
        print(rows[-1]["figure"], rows[-1]["measured"], sep=": ", flush=True)
    blocks, proved = (sum(one[k] for one in details.values()) for k in ("blocks", "proved_blocks"))
    rows.append(row("blocks whose plan is proved", "", f"{proved} of {blocks} ({proved / max(blocks, 1):.0%})"))
    print(rows[-1]["measured"])
    return {"rows": rows, "details": details}


if __name__ == "__main__":
    main()
