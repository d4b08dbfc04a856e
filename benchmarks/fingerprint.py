"""Record everything that a refactoring must not change, and compare two records.

    python -m benchmarks.fingerprint record OUT.json.gz [--only NAME] [--full] [--device cpu|gpu] [--store FOLDER]
        [--texts FOLDER]
    python -m benchmarks.fingerprint compare BEFORE.json.gz AFTER.json.gz [--common]
    python -m benchmarks.fingerprint summarize RECORD.json.gz SUMMARY.json.gz

Recorded, without measuring and without a GPU: rules with their guards and stored verdicts, identities of library
kernels, operators of the importers, and for every benchmark workload, variant, whole model, architecture of the zoo and
decode step at small sizes (`--full`: workloads at their own sizes too) the e-graph's size, all candidate kernels
(identity, operand types, layouts, first schedules, digest of the emitted source), and the plan and the program's source
chosen with `deterministic=True`, priced by a frozen cost store (`--store`; an empty folder above the starter rows
without it). `--texts` writes every emitted kernel into a folder, one file a digest, for `diff`. The record is written
after each workload; `--common` compares what both records have. Fields that differ are printed with both values; the
exit code is 1 if any does. `summarize` replaces lists of kernels by a digest a backend, and programs by theirs;
`compare` summarizes the other record if one is a summary. `benchmarks/results/fingerprint.json.gz` is the summary of
one tree; `benchmarks/results/fingerprint.md` says what changed since the record before, and why.

Recorded with one BLAS thread: predicted times differ in the seventh digit with the number of threads, and such a
difference decides between plans of equal cost, which differ in the order of views.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any
from unittest import mock

import tensor_graphs as tg
from benchmarks.models import zoo
from tensor_graphs.backends.generate.generator import KernelGenerator
from tensor_graphs.backends.generate.kernel_text import kernel_text
from tensor_graphs.backends.ir.unfusable import Unfusable
from tensor_graphs.backends.library.torch_cuda import TorchCudaBackend
from tensor_graphs.backends.program.launch.emission import emit_for
from tensor_graphs.backends.registry import backends, select
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ops.ops import OPS
from tensor_graphs.extract.search.plan import plan_of
from tensor_graphs.generation.programs import step_graph
from tensor_graphs.models import random_checkpoints
from tensor_graphs.models.huggingface.step import Caches, Folder
from tensor_graphs.models.load import load
from tensor_graphs.models.onnx.ops import OPERATORS
from tensor_graphs.models.torch_export.aten_ops import IGNORED, TABLE
from tensor_graphs.options import Options
from tensor_graphs.pipeline.context.session import Session, store_of
from tensor_graphs.pipeline.costs.prices import CostPricer
from tensor_graphs.pipeline.sources.source import as_graph
from tensor_graphs.pipeline.stages.choose import choose
from tensor_graphs.pipeline.stages.match import hypergraph
from tensor_graphs.pipeline.stages.prepare import prepare
from tensor_graphs.pipeline.stages.rewrite import rewrite
from tensor_graphs.rules import ALL
from tensor_graphs.rules.check import verdicts

GPU = "gpu:NVIDIA H200:sm90:multiprocessors=132|none|none"
SCHEDULES = 2  # candidate schedules of a generated kernel whose source is recorded
LAYERS = {"layers": 2, "hidden": 32, "heads": 4, "vocab": 40, "positions": 64}
ZOO_GRAPHS: Mapping[str, Mapping[str, int]] = {
    "transformer": {"layers": 2, "hidden": 32, "heads": 4, "tokens": 8},
    "resnet50": {"image": 32, "width": 8, "classes": 10},
    "unet": {"image": 16, "channels": 8, "levels": 1},
    "dit_block": {"tokens": 4, "hidden": 32, "heads": 4},
    "nasrnn": {"hidden": 16, "steps": 2},
}
ZOO_FOLDERS: Mapping[str, Mapping[str, int]] = {
    "gpt2": LAYERS,
    "llama": {**LAYERS, "kv_heads": 2, "intermediate": 64},
    "qwen3": {**LAYERS, "kv_heads": 2, "intermediate": 64, "head_dim": 8},
    "gemma3": {**LAYERS, "kv_heads": 1, "intermediate": 64, "head_dim": 16, "window": 4},
    "bert": {**LAYERS, "intermediate": 64},
}
Json = dict[str, Any]
Source = Callable[[Path], Graph]  # makes a graph, perhaps with files in a folder


def digest(text: str) -> str:
    """16 hex digits of a text."""
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()


def cases(full: bool) -> Iterator[tuple[str, Source]]:
    """Names and graphs, made when called: benchmark tables at small sizes (workloads also at their own with `full`),
    zoo, decode steps."""
    from benchmarks.models import whole_models
    from benchmarks.models import workload_variants as variants
    from benchmarks.models import workloads as table

    for name, work in table.WORKLOADS.items():
        yield f"workload/{name}/small", partial(graph_of_workload, table.small(work))
        if full:
            yield f"workload/{name}", partial(graph_of_workload, work)
    for title, tiny in (("variant", variants.TINY), ("model", whole_models.TINY)):
        for name, work in tiny.items():
            yield f"{title}/{name}/small", partial(graph_of_workload, work)
    for name, sizes in ZOO_GRAPHS.items():
        yield f"zoo/{name}/small", partial(graph_of_zoo, name, sizes)
    for name, sizes in ZOO_FOLDERS.items():
        yield f"zoo/{name}/small", partial(graph_of_folder, name, sizes, False)
        if name != "bert":
            yield f"zoo/{name}_step/small", partial(graph_of_folder, name, sizes, True)


def graph_of_workload(work: Any, folder: Path) -> Graph:
    """The graph of a benchmark's workload with random arguments; `folder` is not used."""
    inputs, weights = work.arguments("cpu")
    return as_graph(work.module(weights), tuple(inputs))


def graph_of_zoo(name: str, sizes: Mapping[str, int], folder: Path) -> Graph:
    """The graph of an architecture of the zoo that is not read from a folder."""
    return zoo.GRAPHS[name](**sizes)


def graph_of_folder(name: str, sizes: Mapping[str, int], step: bool, folder: Path) -> Graph:
    """The graph of an architecture of the zoo, written to a folder: six tokens of two sequences, or a decode step over
    caches of 16."""
    path = getattr(random_checkpoints, f"write_{name}")(folder, **sizes)
    return step_graph(Folder(path), Caches(1, 16, 1), 1) if step else load(path, dims={"batch": 2, "sequence": 6})


def rule_base() -> Json:
    """By rule: digest of its text, and its stored verdict."""
    known = verdicts.stored()
    found = {rule: known.get(verdicts.key(rule)) for rule in ALL}
    return {
        r.name: f"{digest(repr(r))} {f'{v.status}: {v.detail}' if v else 'no stored verdict'}" for r, v in found.items()
    }


def operators() -> Json:
    """Facts of every op of the op table (no documentation, no memory addresses), and the names that the importers of
    ONNX and ATen know."""
    facts = {
        name: sorted(f"{k}={v}" for k, v in vars(op).items() if k != "doc" and " at 0x" not in repr(v))
        for name, op in OPS.items()
    }
    return {
        "ops": {name: digest("\n".join(lines)) for name, lines in facts.items()},
        "onnx": {name: entry.limits for name, entry in OPERATORS.items()}, "aten": sorted({*TABLE, *IGNORED}),
    }  # fmt: skip


def library_kernels() -> Json:
    """Identity of every kernel of every library backend, by backend and name (a name may have several)."""
    return {name: sorted(f"{t.name} {t.identity}" for t in b.templates) for name, b in backends().items()}


def emitted_text(template: Any, call: Any) -> str:
    """Source of a kernel with the call's schedule, or why it cannot be emitted."""
    try:
        return kernel_text(template, call).text
    except Unfusable as reason:
        return f"not emitted: {reason}"


def candidate_records(graph: Any, texts_folder: Path | None) -> Iterator[str]:
    """One line a candidate: kernel, operands, and a digest of the emitted source of its first schedules, which is the
    text's file name."""
    for candidate in graph.candidates:
        template, call = candidate.template, candidate.call
        operands = ", ".join(f"{n}:{o.type}{list(o.strides)}" for n, o in call.buffers.items())
        schedules = list(template.space(call))[:SCHEDULES] if template.space is not None else [{}]
        texts = "" if candidate.is_view else "".join(
            emitted_text(template, replace(call, schedule=s)) for s in schedules
        )  # fmt: skip
        if texts_folder is not None and texts:
            (texts_folder / digest(texts)).write_text(texts, encoding="utf-8", errors="backslashreplace")
        yield f"{template.backend} {template.name} {template.identity} ({operands}) {[dict(sorted(s.items())) for s in schedules]} {digest(texts)}"


def record_graph(source: Source, device: str, store: Path | None, texts: Path | None) -> Json:
    """Size of the e-graph, candidates, and the deterministic plan with its program."""
    with ExitStack() as stack:
        if device == "gpu":
            stack.enter_context(mock.patch.object(TorchCudaBackend, "unavailable", lambda self: ""))
            stack.enter_context(mock.patch.object(KernelGenerator, "unavailable", lambda self: ""))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        backend = "gpu" if device == "gpu" else "auto"
        options = Options(backend=backend, budget=math.inf, deterministic=True, costdb=store or folder / "store")
        session = Session(options)
        graph = source(folder / "model")
        prepared = prepare(session, graph, None)
        view = rewrite(session, prepared.work).view
        found = hypergraph(session, view, select(backend))
        lines = sorted(candidate_records(found, texts))
        choice = choose(session, found, CostPricer(store_of(session)), None)
        plan = plan_of(choice, prepared.work)
        return {
            "nodes": len(graph.nodes()), "e_classes": len(view), "candidates": len(lines), "kernels": lines,
            "cost": round(choice.cost, 6), "plan": [s.template.name for s in plan.steps],
            "program": emit_for(plan).source,
        }  # fmt: skip


def write(file: Path, found: Json) -> None:
    """Replace the record in a file."""
    part = file.with_name(f"{file.name}.part")
    with gzip.open(part, "wt", encoding="utf-8") as out:
        json.dump(found, out, indent=0, sort_keys=True)
    part.replace(file)


def read(file: Path) -> Json:
    """The record in a file."""
    found: Json = json.loads(gzip.decompress(file.read_bytes()))
    return found


def record(file: Path, only: str, full: bool, devices: list[str], store: Path | None, texts: Path | None) -> None:
    """Write the record, again after each graph; a graph that cannot be made has the error's text."""
    if texts is not None:
        texts.mkdir(parents=True, exist_ok=True)
    found: Json = {"rules": rule_base(), "operators": operators(), "library_kernels": library_kernels()}
    for name, source in cases(full):
        if only not in name:
            continue
        for device in devices:
            try:
                found[f"{name} {device}"] = record_graph(source, device, store, texts)
            except Exception as error:
                found[f"{name} {device}"] = {"error": f"{type(error).__name__}: {error}"[:300]}
            print(f"{name} {device}: {found[f'{name} {device}'].get('candidates', 'no')} candidates", file=sys.stderr)
        write(file, found)
    write(file, found)


def summary(found: Json) -> Json:
    """A record with digests in place of lists of kernels (by backend) and programs; of a summary the same."""
    return {name: _summarized(value) if "kernels" in value else value for name, value in found.items()}


def _summarized(graph: Json) -> Json:
    if isinstance(graph["kernels"], dict):
        return graph
    backends_: dict[str, list[str]] = {}
    for line in graph["kernels"]:
        backends_.setdefault(line.partition(" ")[0], []).append(line)
    kernels = {name: f"{len(lines)} {digest(chr(10).join(lines))}" for name, lines in backends_.items()}
    return {**graph, "kernels": kernels, "program": digest(graph["program"])}


def is_summary(found: Json) -> bool:
    """Whether a record is a summary (`summary`)."""
    return any(isinstance(value.get("kernels"), dict) for value in found.values())


def differences(before: Json, after: Json, at: str = "") -> Iterator[str]:
    """Paths at which two records differ, with both values; of lists of lines only those that one record lacks."""
    for key in sorted({*before, *after}):
        old, new, path = before.get(key), after.get(key), f"{at}/{key}"
        if isinstance(old, dict) and isinstance(new, dict):
            yield from differences(old, new, path)
        elif isinstance(old, list) and isinstance(new, list) and old != new:
            gone, come = sorted({*old} - {*new}), sorted({*new} - {*old})
            yield f"{path}: {len(gone)} gone, {len(come)} new; {[g[:200] for g in gone[:2]]} {[c[:200] for c in come[:2]]}"
        elif old != new:
            yield f"{path}: {str(old)[:200]!r} -> {str(new)[:200]!r}"


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("action", choices=["record", "compare", "summarize"])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--only", default="", help="part of a workload's name")
    parser.add_argument("--common", action="store_true", help="compare the workloads that both records have")
    parser.add_argument("--full", action="store_true", help="workloads at their own sizes too")
    parser.add_argument("--store", type=Path, help="cost store, read frozen")
    parser.add_argument("--texts", type=Path, help="folder for the text of every emitted kernel")
    parser.add_argument("--device", choices=["cpu", "gpu", "both"], default="both")
    options = parser.parse_args()
    if options.action == "record":
        os.environ.setdefault("TENSOR_GRAPHS_GPU", GPU)
        devices = ["cpu", "gpu"] if options.device == "both" else [options.device]
        record(options.files[0], options.only, options.full, devices, options.store, options.texts)
        return
    if options.action == "summarize":
        write(options.files[1], summary(read(options.files[0])))
        return
    before, after = map(read, options.files)
    if is_summary(before) or is_summary(after):
        before, after = summary(before), summary(after)
    if options.common:
        before = {name: value for name, value in before.items() if name in after}
        after = {name: value for name, value in after.items() if name in before}
    found_differences = list(differences(before, after))
    print("\n".join(found_differences) or f"no difference in {len(before)} records")
    sys.exit(bool(found_differences))


if __name__ == "__main__":
    if sys.argv[1:2] == ["record"] and os.environ.get("OMP_NUM_THREADS") != "1":  # read when NumPy is imported
        command = [sys.executable, "-m", "benchmarks.fingerprint", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "OMP_NUM_THREADS": "1"})
    print(f"tensor_graphs {tg.__version__}", file=sys.stderr)
    main()
