"""Implements the read-only commands `explain` and `doctor`."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..backends.program.saved_program import load_program
from ..errors import BadModelError, DeviceUnavailableError
from ..plain import decode, read_bytes
from ..wording import counted, rewriting_end, spelled_bytes, spelled_values

if TYPE_CHECKING:
    from ..explorer.explain_rewrites import BlockRewrites

# time limit per block when rewriting is repeated: longer than in the search, since this machine may be slower
SECONDS = 60.0
LARGEST_REPORT = 1 << 28  # bytes
PACKAGES = ("numpy", "egglog", "ortools", "duckdb", "pyarrow", "safetensors", "torch", "triton", "onnx", "cuda-core")


def explain(
    target: str, dims: Mapping[str, int], backend: str, *, trust: bool = False, steps: bool = False
) -> tuple[dict[str, Any], str]:
    """A saved program (kernels, costs) or a model (operators, sizes, blocks), as (JSON document, text).

    With `steps`: for each block (repeated subgraph) the rule applications that lead from its original term to the
    chosen one, each checked by replaying it.
    """
    folder = Path(target)
    if (folder / "manifest.json").is_file():
        return explain_steps(folder) if steps else _explain_program(folder)
    if steps:
        from ..explorer.explain_rewrites import explain_rewrites

        found = explain_rewrites(target, dims=dims, backend=backend, trust=trust)
        return {"blocks": [b.to_json() for b in found]}, "\n".join(map(str, found))
    from ..egraph.blocks.blocks import find_blocks
    from ..options import Options
    from ..pipeline.context.session import Session
    from ..pipeline.sources.source import as_graph
    from ..pipeline.stages.prepare import prepare

    graph = as_graph(target, dims=dims, trust=trust)
    session = Session(Options(backend=backend))
    prepared = prepare(session, graph, dims)
    blocks = find_blocks(prepared.work)
    counts = dict(sorted(graph.counts().items(), key=lambda r: -r[1]))
    inputs = [f"{t.attr('name')}: {t.type}" for t in prepared.graph.inputs]
    outputs = [f"{n}: {t.type}" for n, t in zip(graph.names, prepared.graph.outputs)]
    parameters = sum(math.prod(d.shape) for d in graph.params.values())
    document = {
        "model": graph.name, "inputs": inputs, "outputs": outputs, "dims": prepared.sizes, "parameters": parameters,
        "nodes": len(graph.nodes()), "simplified_nodes": len(prepared.work.nodes()), "ops": counts,
        "unique_blocks": len(blocks.unique), "block_instances": len(blocks.instances),
    }  # fmt: skip
    lines = [f"{graph.name}({', '.join(inputs)}) -> {', '.join(outputs)}"]
    if prepared.sizes:
        lines.append("sizes: " + spelled_values(prepared.sizes))
    lines += [
        f"{parameters:,} parameters, {counted(len(graph.nodes()), 'node')}, {document['simplified_nodes']} once simplified",
        f"{counted(len(blocks.unique), 'unique block')} of {len(blocks.instances)}",
        *(f"{n:>8}  {op}" for op, n in counts.items()),
    ]
    return document, "\n".join(lines)


def steps_of(
    folder: Path, *, seconds: float = math.inf, saturation_s: float = SECONDS, replay: bool | None = None
) -> list[BlockRewrites]:
    """Per block of a saved program, the rule applications that lead from its original graph to its kernels.

    Rewriting is repeated within the limits of the original search, for at most `saturation_s` a block. Blocks that are
    not explained within `seconds` are listed without steps. `folder` needs the program's origin and report files only.
    `replay`: evaluate every step numerically; None: only for small blocks (repeated subgraphs). Raises the errors of
    `explain_saved`, and BadModelError for a malformed report.
    """
    from ..egraph.patterns.rule import Rule
    from ..egraph.saturate.saturate import Limits
    from ..explorer.explain_rewrites import explain_saved

    searched = _report(folder / "report.json").get("searched", {})
    try:
        named = {n: searched["limits"][n] for n in ("nodes", "beam", "slack") if n in searched.get("limits", {})}
        limits = Limits(iterations=int(searched.get("rounds", Limits().iterations)), seconds=saturation_s, **named)
        effort = int(searched.get("effort", 1))
        rules = [Rule(**{**r, "when": tuple(r["when"])}) for r in searched.get("rules", [])]
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        raise BadModelError(f"the report is malformed: {error!r}", where=str(folder / "report.json")) from None
    exact = bool(searched.get("exact"))
    return explain_saved(
        folder, limits=limits, effort=effort, exact=exact, rules=rules, replay=replay, seconds=seconds
    )  # fmt: skip


def explain_steps(folder: Path, *, seconds: float = math.inf, replay: bool | None = None) -> tuple[dict[str, Any], str]:
    """The steps of a saved program (`steps_of`), as (JSON document, text).

    Also lists the values that kernels round when storing them, which no rule expresses. Blocks (repeated subgraphs)
    that are not explained within `seconds` are listed without steps. `replay`: evaluate every step numerically; None:
    only for small blocks.
    """
    from ..egraph.explain.explain import spelled
    from ..pipeline.stages.provenance import read_origin

    found = steps_of(folder, seconds=seconds, replay=replay)
    origin = read_origin(folder)
    inputs = [f"{t.attr('name')}: {t.type}" for t in origin.graph.inputs]
    stored = [{"dtype": t.dtype, "term": spelled(t.args[0])} for t in origin.stored]
    text = [f"inputs: {', '.join(inputs)}", *map(str, found)]
    for dtype in dict.fromkeys(s["dtype"] for s in stored):
        terms = [s["term"] for s in stored if s["dtype"] == dtype]
        text.append(f"rounded to {dtype} when stored (not a rewrite step, but part of the program's error):")
        text += [f"    {term}" for term in terms]
    return {"inputs": inputs, "blocks": [b.to_json() for b in found], "stored": stored}, "\n".join(text)


def _explain_program(folder: Path) -> tuple[dict[str, Any], str]:
    from ..egraph.view.saturation_report import rule_table
    from ..pipeline.sizes.size_ranges import range_text

    program = load_program(folder, device="cpu")  # the program is not run, so no GPU is needed
    saved = _report(folder / "report.json")
    ranges = [f"{name}: {range_text(*spread)}" for name, spread in program.manifest.sizes.items()]
    memory = "memory: " + ", ".join(f"{spelled_bytes(n)} on {device}" for device, n in program.memory().items())
    kinds = [f"{spelled_bytes(n)} {kind}" for kind, n in program.memory_by_kind().items() if n]
    memory += f" ({', '.join(kinds)})" if kinds else ""
    lines = [repr(program), *([f"sizes: {', '.join(ranges)}"] if ranges else []), memory]
    for kernel in saved.get("kernels", []):
        lines.append(f"{kernel['us']:>10.1f} µs  {kernel['count']:>4} x {kernel['name']} ({kernel['source']})")
    if verdict := saved.get("verification"):
        lines.append(
            f"error {verdict['error_after']:.2e}, allowed {verdict['allowed']:.2e}, over {counted(verdict['seeds'], 'seed')}"
        )
    for block in saved.get("blocks", []):
        lines.append(
            f"block x{block['instances']}: {counted(block['nodes'], 'node')} -> {counted(block['e_nodes'], 'e-node')}, "
            f"{rewriting_end(block['stopped'])} after {counted(block['iterations'], 'iteration')}"
        )
    rules = saved.get("rules", {})
    if any(r["matches"] for r in rules.values()):
        lines += ["rules by time:", rule_table({n: (r["matches"], r["seconds"]) for n, r in rules.items()})]
    lines.append(f"source: {folder / 'program.py'}, {len(program.source.splitlines())} lines")
    document = {
        "program": program.manifest.to_json(),
        "memory": program.memory(),
        "memory_by_kind": kinds,
        "report": saved,
        "source": str(folder / "program.py"),
    }
    return document, "\n".join(lines)


@dataclass(frozen=True)
class _Kernel:
    name: str
    source: str
    count: int
    us: float


@dataclass(frozen=True)
class _Block:
    instances: int
    nodes: int
    e_nodes: int
    iterations: int
    stopped: str


@dataclass(frozen=True)
class _RuleTime:
    matches: int
    seconds: float


@dataclass(frozen=True)
class _Verdict:
    error_after: float
    allowed: float
    seeds: int


@dataclass(frozen=True)
class _Saved:
    """The members of report.json that `explain` shows."""

    kernels: list[_Kernel]
    blocks: list[_Block]
    rules: dict[str, _RuleTime]
    verification: _Verdict | None
    searched: dict[str, Any] = field(default_factory=dict)


def _report(file: Path) -> dict[str, Any]:
    """The saved report's JSON; empty if the program has none. Raises BadModelError if it is malformed."""
    if not file.is_file():
        return {}
    try:
        found = json.loads(read_bytes(file, LARGEST_REPORT))
        decode(_Saved, found)
    except (ValueError, OSError, RecursionError) as error:
        raise BadModelError(f"the report is malformed: {error}", where=str(file)) from None
    return dict(found)


def doctor() -> dict[str, Any]:
    """Versions, devices, backends and the cost store's state of this machine, by label. Imports as little as
    possible."""
    found: dict[str, Any] = {
        "tensor_graphs": _version("tensor-graphs"),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
    }
    found |= {name: _version(name) for name in PACKAGES}
    from ..backends.gpu import facts
    from ..backends.registry import describe, select
    from ..costdb.keys.device import c_compiler, device_key
    from ..costdb.store.store import Store, default_root

    found["device"] = device_key()
    try:
        found["backends"] = describe(select("auto"))
    except DeviceUnavailableError as error:
        found["backends"] = error.message
    found |= facts()
    found["C compiler"] = c_compiler() or "none: no kernels in C (install gcc, or set CC)"
    root = default_root()
    found["cost store"] = str(root)
    stats = Store(root).stats()
    found["cost rows"] = f"{sum(stats.rows.values())} in {stats.shards} shards, {stats.keys} kernel calls"
    found["settings"] = {k: v for k, v in os.environ.items() if k.startswith("TENSOR_GRAPHS_")} or "defaults"
    return found


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
