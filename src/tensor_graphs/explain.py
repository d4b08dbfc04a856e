"""The commands that look rather than change: explain, profile, doctor."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from . import settings
from .errors import DeviceUnavailableError

PACKAGES = ("numpy", "egglog", "ortools", "duckdb", "pyarrow", "safetensors", "torch", "triton", "onnx", "cuda-core")


def explain(target: str, dims: Mapping[str, int], backend: str) -> tuple[dict[str, Any], str]:
    """A saved program's kernels and costs, or what a model consists of and what would be made of it."""
    folder = Path(target)
    if (folder / "manifest.json").is_file():
        return _explain_program(folder)
    from . import pipeline
    from .egraph.blocks import find_blocks

    graph = pipeline.as_graph(target, dims=dims)
    session = pipeline.Session(pipeline.Options(backend=backend))
    prepared = pipeline.prepare(session, graph, dims)
    blocks = find_blocks(prepared.work)
    counts = dict(sorted(graph.counts().items(), key=lambda r: -r[1]))
    document = {
        "model": graph.name, "inputs": [f"{t.attr('name')}: {t.type}" for t in graph.inputs], "dims": prepared.sizes,
        "outputs": [f"{n}: {t.type}" for n, t in zip(graph.names, graph.outputs)], "ops": counts, "blocks": repr(blocks),
        "parameters": sum(int(__import__("math").prod(d.shape)) for d in graph.params.values()),
    }  # fmt: skip
    lines = [f"{graph.name}: {', '.join(document['inputs'])} -> {', '.join(document['outputs'])}"]
    if prepared.sizes:
        lines.append("sizes: " + ", ".join(f"{n}={s}" for n, s in prepared.sizes.items()))
    lines += [f"{document['parameters']:,} parameters", str(document["blocks"])]
    lines += [f"{n:>6}  {op}" for op, n in counts.items()]
    return document, "\n".join(lines)


def _explain_program(folder: Path) -> tuple[dict[str, Any], str]:
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    source = (folder / "program.py").read_text(encoding="utf-8")
    report = folder / "report.json"
    saved = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else {}
    document = {"manifest": manifest, "report": saved, "source": str(folder / "program.py")}
    lines = [f"{manifest.get('name')}: {manifest.get('kernels')} kernels, {manifest.get('cost', 0):.1f} µs estimated"]
    for kernel in saved.get("kernels", [])[:30]:
        lines.append(f"{kernel['us']:>10.1f} µs  {kernel['count']:>4} x {kernel['name']} ({kernel['source']})")
    rules = sorted(saved.get("rules", {}).items(), key=lambda r: -r[1]["matches"])[:15]
    if rules:
        lines.append("rules that matched most: " + ", ".join(f"{n} ×{r['matches']}" for n, r in rules))
    lines += [f"source: {folder / 'program.py'}, {len(source.splitlines())} lines"]
    return document, "\n".join(lines)


def profile(
    model: str, count: int, dims: Mapping[str, int], backend: str, budget: float, costdb: Path | None, progress: Any
) -> tuple[dict[str, Any], str]:
    """Optimize (which measures what is missing), then time the best few plans whole."""
    import numpy as np

    from . import pipeline
    from .timing import interleaved
    from .verify import index_bounds, sample_inputs

    first = pipeline.optimize(model, dims=dims, backend=backend, budget=budget, costdb=costdb, progress=progress)
    found = list(pipeline.paths(model, dims=dims, backend=backend, costdb=costdb, count=count))
    graph = found[0].graph
    inputs = sample_inputs(graph.inputs, np.random.default_rng(0), index_bounds(graph))
    programs = {f"path {p.rank}": p.program() for p in found}
    calls = {n: (lambda p=p: p.flat(*(inputs[i] for i in p.input_names))) for n, p in programs.items()}
    times = interleaved(calls, seconds=min(10.0, budget))
    rows = [
        {"path": n, "estimated_us": p.cost, "measured_us": times[n], "kernels": p.plan.kernels}
        for n, p in zip(times, found)
    ]
    text = "\n".join(
        f"{r['path']:>8}  {r['estimated_us']:>10.1f} µs estimated  {r['measured_us']:>10.1f} µs measured  {r['kernels']} kernels"
        for r in rows
    )
    return {"paths": rows, "measured_now": first.report.measured_now}, text


def doctor() -> dict[str, Any]:
    """What this machine has. Nothing is loaded that is not needed to answer."""
    found: dict[str, Any] = {
        "tensor_graphs": _version("tensor-graphs"),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
    }
    found |= {name: _version(name) for name in PACKAGES}
    from .backends.registry import describe, select
    from .costdb.device import device_key
    from .costdb.store import Store, default_root

    found["device"] = device_key()
    try:
        found["backends"] = describe(select("auto"))
    except DeviceUnavailableError as error:
        found["backends"] = error.message
    found["gpu"] = _gpu()
    root = settings.current().costdb or default_root()
    found["cost store"] = str(root)
    stats = Store(root).stats()
    found["cost rows"] = repr(stats).splitlines()[0] if repr(stats) else "empty"
    found["settings"] = {k: v for k, v in os.environ.items() if k.startswith("TENSOR_GRAPHS_")} or "defaults"
    return found


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _gpu() -> str:
    if find_spec("torch") is None:
        return "unknown (torch is not installed)"
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
