"""Record everything that a refactoring must not change, and compare two records.

    python -m benchmarks.fingerprint record OUT.json.gz [--only NAME] [--full] [--device cpu|gpu]
    python -m benchmarks.fingerprint compare BEFORE.json.gz AFTER.json.gz [--common]

Recorded, without measuring and without a GPU: rules with their guards, identities of library kernels, operators of the importers, and
for every benchmark workload, variant and whole model at small sizes (`--full`: workloads at their own sizes too) the e-graph's size,
all candidate kernels (identity, operand types, layouts, first schedules, emitted source), and the plan and program chosen with
`deterministic=True` on an empty cost store. The file is written after each workload; `--common` compares what both
records have. Fields that differ are printed with both values; the exit code is 1 if any does.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Any
from unittest import mock

import tensor_graphs as tg

GPU = "gpu:NVIDIA H200:sm90:multiprocessors=132|none|none"
SCHEDULES = 2  # candidate schedules of a generated kernel whose source is recorded
Json = dict[str, Any]


def digest(text: str) -> str:
    """16 hex digits of a text."""
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()


def workloads(full: bool) -> Iterator[tuple[str, Any]]:
    """Names and workloads: all tables at small sizes, and the GPU workloads at their own with `full`."""
    from benchmarks import variants, whole_models
    from benchmarks import workloads as table

    for name, work in table.WORKLOADS.items():
        yield f"workload/{name}/small", table.small(work)
        if full:
            yield f"workload/{name}", work
    for title, tiny in (("variant", variants.TINY), ("model", whole_models.TINY)):
        for name, work in tiny.items():
            yield f"{title}/{name}/small", work


def rule_base() -> Json:
    """Text of every rule by name."""
    from tensor_graphs.rules import ALL

    return {rule.name: digest(repr(rule)) for rule in ALL}


def library_kernels() -> Json:
    """Identity of every kernel of every library backend, by backend and name (a name may have several)."""
    from tensor_graphs.backends.registry import backends

    return {name: sorted(f"{t.name} {t.identity}" for t in b.templates) for name, b in backends().items()}


def emitted_text(template: Any, call: Any) -> str:
    """Source of a kernel with the call's schedule, or why it cannot be emitted."""
    from tensor_graphs.backends.generate.kernel_text import kernel_text
    from tensor_graphs.backends.ir.kernel import Unfusable

    try:
        return kernel_text(template, call).text
    except Unfusable as reason:
        return f"not emitted: {reason}"


def candidate_records(graph: Any) -> Iterator[str]:
    """One line a candidate: kernel, operands, and a digest of the emitted source of its first schedules."""
    from dataclasses import replace

    for candidate in graph.candidates:
        template, call = candidate.template, candidate.call
        operands = ", ".join(f"{n}:{o.type}{list(o.strides)}" for n, o in call.places.items())
        schedules = list(template.space(call))[:SCHEDULES] if template.space is not None else [{}]
        texts = "" if candidate.is_view else "".join(
            emitted_text(template, replace(call, schedule=s)) for s in schedules
        )  # fmt: skip
        yield f"{template.backend} {template.name} {template.identity} ({operands}) {[dict(sorted(s.items())) for s in schedules]} {digest(texts)}"


def record_workload(work: Any, device: str) -> Json:
    """Size of the e-graph, candidates, and the deterministic plan with its program."""
    from tensor_graphs.backends.generate.generator import KernelGenerator
    from tensor_graphs.backends.library.torch_cuda import TorchCudaBackend
    from tensor_graphs.backends.program.emission import emit_for
    from tensor_graphs.backends.registry import select
    from tensor_graphs.costdb.store.store import Store
    from tensor_graphs.extract.search.plan import plan_of
    from tensor_graphs.options import Options
    from tensor_graphs.pipeline.choose import choose
    from tensor_graphs.pipeline.match import hypergraph
    from tensor_graphs.pipeline.prepare import prepare
    from tensor_graphs.pipeline.prices import CostPricer
    from tensor_graphs.pipeline.rewrite import rewrite
    from tensor_graphs.pipeline.session import Session
    from tensor_graphs.pipeline.source import as_graph

    inputs, weights = work.arguments("cpu")
    with ExitStack() as stack:
        if device == "gpu":
            stack.enter_context(mock.patch.object(TorchCudaBackend, "unavailable", lambda self: ""))
            stack.enter_context(mock.patch.object(KernelGenerator, "unavailable", lambda self: ""))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        backend = "gpu" if device == "gpu" else "auto"
        session = Session(Options(backend=backend, budget=math.inf, deterministic=True, costdb=Path(folder)))
        graph = as_graph(work.module(weights), tuple(inputs))
        prepared = prepare(session, graph, None)
        view = rewrite(session, prepared.work).view
        found = hypergraph(session, view, select(backend))
        lines = sorted(candidate_records(found))
        choice = choose(session, found, CostPricer(Store(Path(folder), frozen=True)), None)
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


def record(file: Path, only: str, full: bool, devices: list[str]) -> None:
    """Write the record, anew after each workload; a workload that cannot be made has the error's text."""
    found: Json = {"rules": rule_base(), "library_kernels": library_kernels()}
    for name, work in workloads(full):
        if only not in name:
            continue
        for device in devices:
            try:
                found[f"{name} {device}"] = record_workload(work, device)
            except Exception as error:
                found[f"{name} {device}"] = {"error": f"{type(error).__name__}: {error}"[:300]}
            print(f"{name} {device}: {found[f'{name} {device}'].get('candidates', 'no')} candidates", file=sys.stderr)
        write(file, found)
    write(file, found)


def differences(before: Json, after: Json, at: str = "") -> Iterator[str]:
    """Paths at which two records differ, with both values; sets of lines by the lines that only one of them has."""
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
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--only", default="", help="part of a workload's name")
    parser.add_argument("--common", action="store_true", help="compare the workloads that both records have")
    parser.add_argument("--full", action="store_true", help="workloads at their own sizes too")
    parser.add_argument("--device", choices=["cpu", "gpu", "both"], default="both")
    options = parser.parse_args()
    if options.action == "record":
        os.environ.setdefault("TENSOR_GRAPHS_GPU", GPU)
        devices = ["cpu", "gpu"] if options.device == "both" else [options.device]
        record(options.files[0], options.only, options.full, devices)
        return
    before, after = (json.loads(gzip.decompress(path.read_bytes())) for path in options.files)
    if options.common:
        before = {name: value for name, value in before.items() if name in after}
        after = {name: value for name, value in after.items() if name in before}
    found_differences = list(differences(before, after))
    print("\n".join(found_differences) or f"no difference in {len(before)} records")
    sys.exit(bool(found_differences))


if __name__ == "__main__":
    print(f"tensor_graphs {tg.__version__}", file=sys.stderr)
    main()
