"""Gradients of PyTorch's own operator samples (OpInfo): AOTAutograd's graphs, imported and interpreted, against
autograd.

    python -m tests.fuzz.opinfo_backward --samples 3 --results FILE [--shard 0/2] [--only NAME]
    python -m tests.fuzz.opinfo_backward --table FILE...

Entries with autograd, in float32. A sample is `right` where the results and the gradients of all floating-point
operands agree with eager's as `tests.fuzz.opinfo` asks of results; `refused` with the operators of the forward and the
backward graph that stay eager; or `wrong`.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._functorch.aot_autograd import aot_function

from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.models.torch_export.arrays import to_numpy
from tensor_graphs.models.torch_export.traced import read_traced, unsupported
from tensor_graphs.torch_compile.decompositions import decompositions

from .opinfo import RTOL, UNDEFINED, Sample, Verdict, apart, entries, samples_of, title_of


class Refused(Exception):
    """Raised for a traced graph with operators that cannot be imported; names them."""


def imported(module: Any, _: Any) -> Callable[..., Any]:
    """A traced graph as a boxed function that the reference interpreter evaluates. Refused if operators stay eager."""
    reasons = {
        why if why.startswith(str(n.target).removeprefix("aten.")) else f"{n.target}: {why}"
        for n, why in unsupported(module).items()
    }
    if reasons:
        raise Refused("; ".join(sorted(reasons))[:200])
    results = module.graph.output_node().args[0]
    if not any(hasattr(r, "op") for r in results):  # no gradients at all
        return _boxed(lambda args: [None] * len(results))
    try:
        graph, _ = read_traced(module)
    except TensorGraphsError as error:
        raise Refused(error.message[:200]) from error
    names = [n.name for n in module.graph.find_nodes(op="placeholder")]
    wanted = {str(leaf.attr("name")) for leaf in graph.inputs}

    def run(args: Sequence[Any]) -> list[Any]:
        with np.errstate(all="ignore"):
            made = evaluate(graph, {n: to_numpy(v.detach()) for n, v in zip(names, args, strict=True) if n in wanted})
        found = iter([torch.from_numpy(np.array(v)) for v in made])
        return [None if r is None else next(found) for r in results]

    return _boxed(run)


def _boxed(run: Callable[..., Any]) -> Callable[..., Any]:
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def gradients(call: Callable[..., Any], tensors: Sequence[Any], wide: bool = False) -> tuple[list[Any], list[Any]]:
    """Floating-point results of a call, and the gradients of its floating-point operands for seeded random weights."""
    cast: Callable[[Any], Any] = lambda v: v.double() if wide else v
    given = [cast(v).clone().requires_grad_() if v.is_floating_point() else v.clone() for v in tensors]
    results = [y for y in call(*given) if y.is_floating_point()]
    random = torch.Generator().manual_seed(0)
    roots = [(y, torch.randn(y.shape, generator=random).to(y.dtype)) for y in results if y.requires_grad]
    leaves = [v for v in given if v.requires_grad]
    found = torch.autograd.grad([y for y, _ in roots], leaves, [w for _, w in roots], allow_unused=True)
    return [y.detach() for y in results], [torch.zeros_like(v) if g is None else g for v, g in zip(leaves, found)]


def verdict(sample: Sample) -> Verdict | None:
    """The verdict of a sample; None if eager has no gradient for it."""
    if any(v.is_complex() for v in sample.tensors) or not any(v.is_floating_point() for v in sample.tensors):
        return None
    try:
        eager = gradients(sample.function, sample.tensors)
    except Exception:
        return None
    try:
        exact: Any = gradients(sample.function, sample.tensors, wide=True)
    except Exception:
        exact = eager
    traced = aot_function(
        lambda *v: tuple(sample.function(*v)),
        fw_compiler=imported,
        bw_compiler=imported,
        decompositions=decompositions(),
    )
    try:
        found = gradients(traced, sample.tensors)
    except Exception as error:
        chain = [error, error.__cause__, error.__context__]
        refusal = next((e for e in chain if isinstance(e, Refused)), None)
        if refusal is not None:
            return Verdict("refused", str(refusal))
        if isinstance(error, TensorGraphsError):
            return Verdict("wrong", f"{sample.text}: {type(error).__name__}: {error.message[:200]}")
        return Verdict("refused", f"not traced: {type(error).__name__}: {str(error).partition(chr(10))[0][:80]}")
    for kind, ours, own, right in zip(("result", "gradient"), found, eager, exact):
        for i, (x, y, z) in enumerate(zip(ours, own, right)):
            if x.shape != y.shape or x.dtype != y.dtype:
                return Verdict(
                    "wrong", f"{sample.text}: {kind} {i} is {x.dtype}{list(x.shape)}, not {y.dtype}{list(y.shape)}"
                )
            bad = apart(*(v.detach().numpy() for v in (x, y, z)), 4 * RTOL["float32"])
            if bad.any():
                at = tuple(int(k) for k in np.argwhere(bad)[0])
                return Verdict(
                    "wrong",
                    f"{sample.text}: {kind} {i} at {at} is {x[at]}, eager's {y[at]} ({int(bad.sum())} of {bad.size})",
                )
    return Verdict("right")


def table(files: Sequence[str]) -> str:
    """The results of the given files as a Markdown table."""
    rows = {r["entry"]: r for f in files for r in map(json.loads, Path(f).read_text().splitlines())}
    counts = {k: sum(r.get(k, 0) for r in rows.values()) for k in ("right", "refused", "wrong")}
    reasons: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for r in rows.values():
        for why, count in r["why"].items():
            reasons[why.replace("|", "/")][r["entry"]] += count
    lines = [
        f"Gradients (`python -m tests.fuzz.opinfo_backward`), float32: {len(rows)} entries, {sum(counts.values())} samples with a "
        f"gradient, {counts['right']} right, {counts['refused']} refused, {counts['wrong']} wrong.", "",
        "| refused: operators that stay eager | samples | entries |", "|---|---|---|",
    ]  # fmt: skip
    for why, by in sorted(reasons.items(), key=lambda p: -sum(p[1].values()))[:40]:
        lines.append(f"| {why} | {sum(by.values())} | {', '.join(f'`{n}`' for n in list(by)[:3])} |")
    return "\n".join([*lines, *(f"- wrong: {r['entry']}: {w}" for r in rows.values() for w in r["faults"])]) + "\n"


def main() -> None:
    """Run the command line described above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=3, help="of each entry, spread over all")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--only", default="", help="one entry")
    parser.add_argument("--results", default="", help="JSON lines are added to this file; entries in it are skipped")
    parser.add_argument("--table", nargs="+", help="print the table of these files")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.table:
        print(table(given.table))
        return
    part, parts = map(int, given.shard.split("/"))
    path = Path(given.results) if given.results else None
    done = {json.loads(line)["entry"] for line in path.read_text().splitlines()} if path and path.exists() else set()
    wrong = 0
    for entry in entries(given.only, (part, parts)):
        title = title_of(entry)
        if title in done or not entry.supports_autograd or torch.float32 not in entry.dtypes or UNDEFINED.search(title):
            continue
        try:
            samples = samples_of(entry, torch.float32, given.samples)
        except Exception:  # samples that need a device or a library that is not here
            continue
        torch._dynamo.reset()
        found = [v for v in map(verdict, samples) if v is not None]
        why = Counter(v.why for v in found if v.status == "refused")
        row = {
            "entry": title,
            **Counter(v.status for v in found),
            "why": dict(why),
            "faults": [v.why for v in found if v.status == "wrong"],
        }
        wrong += len(row["faults"])
        for fault in row["faults"]:
            print(f"{title}: {fault}", flush=True)
        if path:
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
