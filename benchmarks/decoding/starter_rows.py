"""Starter rows of decode steps: `python -m benchmarks.decoding.starter_rows --keep STORE [--only CASE ...]
[--seconds S] [--limit S]`, on a GPU; `--export FOLDER` writes a starter file of the rows in STORE and of the shipped
ones, anywhere.

Each case is a decode step of a published decoder's sizes with few layers (an inner layer has the kernels of all),
in 16 bits or with quantized weights, of one or more rows. Its kernels are matched and measured as a search of such a
step does, for `--seconds` (`extract.search.search`), without making a program. So the rows are those of kernels that
searches look at, in the forms that they have there, of decoders of many families and sizes; kernels of other decoders
are predicted from them (decision 36). Printed is each case's plan: µs, and kernels with their schedules.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensor_graphs.backends.registry import select
from tensor_graphs.backends.tuning.measure_gpu import GpuMeasurer
from tensor_graphs.costdb.store import shards, starter
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.extract.search.search import Choice, search
from tensor_graphs.generation.cached_model import caches_of
from tensor_graphs.generation.programs import step_graph
from tensor_graphs.models.common.quantized_graph import quantized
from tensor_graphs.models.huggingface.step import Folder
from tensor_graphs.models.random_checkpoints import random_checkpoint
from tensor_graphs.options import Options
from tensor_graphs.pipeline.context.session import Session
from tensor_graphs.pipeline.costs.prices import CostPricer
from tensor_graphs.pipeline.stages.match import hypergraph
from tensor_graphs.pipeline.stages.prepare import prepare
from tensor_graphs.pipeline.stages.rewrite import rewrite
from tensor_graphs.progress import Progress

from .llm import LENGTH, Repeated

MATCHING_S = 24.0  # budget of a session that matches; half of it is for forming kernels
SOLVE_S = 1.0


@dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder: fields of its config.json by their short names; `more`: further fields."""

    kind: str
    hidden: int
    inner: int
    heads: int
    groups: int
    head: int
    vocabulary: int
    tied: bool = False
    layers: int = 3
    eps: float = 1e-6
    more: Mapping[str, Any] | None = None

    @property
    def config(self) -> dict[str, Any]:
        """The fields of config.json."""
        return {
            "model_type": self.kind, "hidden_size": self.hidden, "intermediate_size": self.inner, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.groups, "head_dim": self.head, "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.tied, "rms_norm_eps": self.eps, "max_position_embeddings": 8192, "rope_theta": 10000.0,
            "torch_dtype": "bfloat16", "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, **(self.more or {}),
        }  # fmt: skip


_LOCAL = {"sliding_window": 512, "query_pre_attn_scalar": 256,
          "layer_types": [*["sliding_attention"] * 5, "full_attention", "sliding_attention"]}  # fmt: skip
DECODERS = {
    "llama-3.2-1b": Decoder("llama", 2048, 8192, 32, 8, 64, 128256, tied=True, eps=1e-5),
    "gemma-3-270m": Decoder("gemma3_text", 640, 2048, 4, 1, 256, 262144, tied=True, layers=7, more=_LOCAL),
    "qwen2.5-1.5b": Decoder("qwen2", 1536, 8960, 12, 2, 128, 151936, tied=True),
    "qwen3-0.6b": Decoder("qwen3", 1024, 3072, 16, 8, 128, 151936, tied=True),
    "llama-3-8b": Decoder("llama", 4096, 14336, 32, 8, 128, 128256, eps=1e-5),
    "smollm2-360m": Decoder("llama", 960, 2560, 15, 5, 64, 49152, tied=True, eps=1e-5),
    "gemma-3-1b": Decoder("gemma3_text", 1152, 6912, 4, 1, 256, 262144, tied=True, layers=7, more=_LOCAL),
    "mistral-7b": Decoder("mistral", 4096, 14336, 32, 8, 128, 32768, eps=1e-5, more={"sliding_window": None}),
    "phi-3-mini": Decoder("phi3", 3072, 8192, 32, 32, 96, 32064, eps=1e-5),
    "qwen2.5-0.5b": Decoder("qwen2", 896, 4864, 14, 2, 64, 151936, tied=True),
    "llama-3.2-3b": Decoder("llama", 3072, 8192, 24, 8, 128, 128256, tied=True, eps=1e-5),
    "qwen3-4b": Decoder("qwen3", 2560, 9728, 32, 8, 128, 151936, tied=True),
}
#: Case -> decoder, format of quantized weights ("" for 16 bits), rows.
CASES: dict[str, tuple[str, str, int]] = {
    **{name: (name, "", 1) for name in DECODERS},
    **{f"{name} {form} x {rows}": (name, form, rows)
       for name, form, rows in (("llama-3-8b", "int4", 1), ("llama-3-8b", "int4", 16), ("qwen2.5-1.5b", "int4", 1), ("llama-3-8b", "fp8", 1),
                                ("llama-3.2-3b", "int4", 16), ("llama-3-8b", "", 16), ("qwen3-4b", "int4", 1), ("mistral-7b", "int4", 4))},
}  # fmt: skip


def searched(case: str, store: Store, measurer: GpuMeasurer, seconds: float) -> Choice:
    """The choice of a search of a case, whose kernels are matched in a session of its own."""
    name, form, rows = CASES[case]
    config = DECODERS[name].config
    weights: dict[str, Any] = {n: Repeated(w) for n, w in random_checkpoint(config).items()}  # type: ignore[arg-type]
    folder = Folder.of(config, weights)
    graph = step_graph(folder, caches_of(folder.config, rows, LENGTH, gpu=True), 1)
    graph = quantized(graph, form)[0] if form else graph
    session, backends = Session(Options(backend="gpu", budget=MATCHING_S), Progress()), select("gpu")
    with session.running():
        session.lowerings.pool.begin()
        try:
            view = rewrite(session, prepare(session, graph, None).work).view
            found = hypergraph(session, view, backends)
            return search(found, CostPricer(store), measurer, seconds=seconds, solve_seconds=SOLVE_S)
        finally:
            session.lowerings.close()


def measured(options: argparse.Namespace) -> None:
    """Measure the cases until the limit, each as long as it is to be."""
    end, store = time.monotonic() + options.limit, Store(options.keep)
    measurer = GpuMeasurer(store)
    measurer.start()
    try:
        for case in options.only or CASES:
            begun = time.monotonic()
            if begun + options.seconds + 10 > end:
                print(f"{case}: no time was left", flush=True)
                continue
            choice = searched(case, store, measurer, options.seconds)
            store.flush()
            print(f"{case}: {choice.cost:.1f} µs, {choice.measured} calls measured, {choice.stopped}, "
                  f"{len(choice.hypergraph.candidates)} candidates, {time.monotonic() - begun:.1f} s", flush=True)  # fmt: skip
            for i in choice.chosen:
                c, price = choice.hypergraph.candidates[i], choice.prices[i]
                if not c.is_view:
                    print(f"  {price.us:8.2f} {price.source} {c.template.name} {c.call.output.type} {dict(price.schedule)} "
                          f"{c.template.pattern[:120]}", flush=True)  # fmt: skip
    finally:
        measurer.close()
        store.flush()


def exported(root: Path, folder: Path) -> None:
    """Write starter files of the rows in a store and of the shipped ones."""
    with tempfile.TemporaryDirectory() as top:
        merged = Store(Path(top))
        print(merged.merge(root))
        for path in starter.files_for(folder, {str(d) for d in merged.snapshot.column("timing", "device")}):
            table = starter.read(path)
            shards.write(Path(top), table.column("device")[0].as_py(), table)
        for file in starter.export_starter(Path(top), folder):
            print(file)


def main() -> None:
    """Parse the command line; measure or export."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, required=True, help="cost store of the rows")
    parser.add_argument("--only", nargs="*", choices=list(CASES), help="these cases, in this order")
    parser.add_argument("--seconds", type=float, default=16.0, help="measuring of a case")
    parser.add_argument("--limit", type=float, default=600.0, help="no case is begun that would end later")
    parser.add_argument("--export", type=Path, help="folder of the starter files")
    options = parser.parse_args()
    if options.export is not None:
        exported(options.keep, options.export)
    else:
        measured(options)


if __name__ == "__main__":
    main()
