"""PyTorch's own operator samples (OpInfo) through `load_module`, the interpreter and `optimize`, against eager.

    python -m tests.fuzz.opinfo --dtype float32 --samples 0 --results FILE [--shard 0/2] [--only NAME]
    python -m tests.fuzz.opinfo --table docs/reliability/opinfo.md FILE...

Every sample of every entry ends as one of three: `right`, `refused` with the name of what is missing, or `wrong`. A
result is right where it has eager's shape and dtype and its error against eager in float64 is within that dtype's
rounding or a few times eager's own error; integers and bools must be equal to eager's. Samples of an entry are exported
together, since exporting costs far more than evaluating; what fails is halved until single samples are left. One entry
in four (`--share`) also goes through `optimize` (without measuring), with the same comparison.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch.utils import _pytree

import tensor_graphs as tg
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.errors import ExportError, TensorGraphsError, UnsupportedError, UsageError
from tensor_graphs.models.torch_export.arrays import to_numpy
from tensor_graphs.models.torch_export.export import load_module
from tensor_graphs.pipeline.execution.run_program import run_flat

Array = np.ndarray[Any, Any]
DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "bool")
RTOL = {"float32": 2e-5, "float64": 1e-10, "bfloat16": 2e-2, "float16": 3e-3}  # of an error, beside eager's own
BATCH = 12  # samples in one program

#: Entries whose values are random or left as the memory was: no result of theirs is right or wrong.
UNDEFINED = re.compile(
    r"empty|rand|bernoulli|multinomial|^normal|dropout|uniform|exponential|geometric|cauchy|log_normal|rrelu|fractional_max_pool"
    r"|fake_quantize_learnable"
)


#: Entries that say where values stand (argsort in its one result, the others in the second): of equal ones PyTorch may
#: name any.
POSITIONS = ("topk", "kthvalue", "median", "nanmedian", "mode", "sort", "msort", "argsort", "max", "min")


@dataclass(frozen=True)
class Sample:
    """One call of an operator: its tensors, and the operator as a function of them that returns a flat list of
    tensors."""

    text: str
    tensors: tuple[Any, ...]
    function: Callable[..., list[Any]]
    positions: int | None = None  # the result from which on integers are places of values, equal ones in any order


@dataclass(frozen=True)
class Verdict:
    """Verdict of a sample: `right`, `refused` or `wrong`, and the reason."""

    status: str
    why: str = ""


def samples_of(entry: Any, dtype: Any, count: int = 0) -> list[Sample]:
    """The entry's samples of a dtype, `count` of them spread over all (0: all)."""
    torch.manual_seed(0)
    found = drawn(entry, dtype, 400)
    return [sample_of(entry, s) for s in (found[:: max(1, len(found) // count)][:count] if count else found)]


def drawn(entry: Any, dtype: Any, count: int) -> list[Any]:
    """The first samples of an entry, at most `count`. (`entry.sample_inputs` looks through the caller's frames for each
    sample, which takes more time than exporting it.)"""
    return list(islice(entry.sample_inputs_func(entry, "cpu", dtype, False), count))


def sample_of(entry: Any, sample: Any) -> Sample:
    """A sample as a function of its tensors alone."""
    flat, spec = _pytree.tree_flatten((sample.input, list(sample.args), dict(sample.kwargs)))
    places = [i for i, v in enumerate(flat) if isinstance(v, torch.Tensor)]

    def function(*values: Any) -> list[Any]:
        given = list(flat)
        for place, value in zip(places, values, strict=True):
            given[place] = value
        first, args, kwargs = _pytree.tree_unflatten(given, spec)
        return [v for v in _pytree.tree_leaves(entry.op(first, *args, **kwargs)) if isinstance(v, torch.Tensor)]

    words = [
        f"{v.dtype}{list(v.shape)}".removeprefix("torch.") if isinstance(v, torch.Tensor) else repr(v) for v in flat
    ]
    return Sample(f"({', '.join(words)})", tuple(flat[i].detach() for i in places), function, places_of(entry.name))


def places_of(name: str) -> int | None:
    """Number of the first result of an operator that holds positions of values, which ties make ambiguous; None for
    other operators.
    """
    return None if name not in POSITIONS else int(name != "argsort")


# ---------------------------------------------------------------- running
def load(samples: Sequence[Sample], title: str) -> Graph:
    """The samples' calls as one graph."""

    def together(*values: Any) -> list[list[Any]]:
        rest, results = list(values), []
        for s in samples:
            results.append(s.function(*(rest.pop(0) for _ in s.tensors)))
        return results

    return load_module(together, tuple(v for s in samples for v in s.tensors), name=title)


def verdicts(samples: Sequence[Sample], title: str, *, optimized: bool = False) -> list[Verdict]:
    """The verdict of each sample."""
    if len(samples) > BATCH:
        parts = [samples[i : i + BATCH] for i in range(0, len(samples), BATCH)]
        return [v for part in parts for v in verdicts(part, title, optimized=optimized)]
    try:
        return _run(samples, title, optimized)
    except TensorGraphsError as error:
        if len(samples) == 1:
            refused = isinstance(error, (UnsupportedError, ExportError, UsageError)) or "unknown dtype" in error.message
            return [
                Verdict("refused" if refused else "wrong", ("" if refused else samples[0].text + ": ") + reason(error))
            ]
    except Exception as error:
        if len(samples) == 1:
            return [Verdict("wrong", f"{type(error).__name__}: {error} {traceback.format_exc(limit=-2)}"[:900])]
    half = len(samples) // 2
    return [v for part in (samples[:half], samples[half:]) for v in verdicts(part, title, optimized=optimized)]


def _run(samples: Sequence[Sample], title: str, optimized: bool) -> list[Verdict]:
    graph = load(samples, title)
    tensors = [v for s in samples for v in s.tensors]
    values = {str(leaf.attr("name")): to_numpy(v) for leaf, v in zip(graph.inputs, tensors, strict=True)}
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [evaluate(graph, values)]
        if any(v.dtype in (torch.bfloat16, torch.float16) for v in tensors):
            results = [
                evaluate(graph, values, float64=True)
            ]  # programs compute 16 bits in 32: rounding is not the loader's
        if optimized:
            made = tg.optimize(graph, backend="auto", measure=False, verify=False, budget=20.0,
                               limits=tg.Limits(nodes=600, iterations=2, seconds=3.0))  # fmt: skip
            results.append(run_flat(made, values))
        found = []
        for s in samples:
            eager, exact = eager_of(s)
            taken = [[r.pop(0) for _ in eager] for r in results]
            why = next((w for t in taken for w in [different(t, eager, exact, s)] if w), "")
            found.append(Verdict("wrong" if why else "right", why and f"{s.text}: {why}"))
    return found


def eager_of(s: Sample) -> tuple[list[Any], list[Any] | None]:
    """Eager's results, and those in float64 (None where the operator has none)."""
    eager = s.function(*(v.clone() for v in s.tensors))
    try:
        exact = s.function(*(v.double() if v.dtype.is_floating_point else v.clone() for v in s.tensors))
    except Exception:
        return eager, None
    return eager, exact if [e.shape for e in exact] == [e.shape for e in eager] else None


def different(found: Sequence[Array], eager: Sequence[Any], exact: Sequence[Any] | None, s: Sample) -> str:
    """Description of how results differ from eager's; '' if they agree."""
    coarse = [str(v.dtype).removeprefix("torch.") for v in (*s.tensors, *eager) if v.dtype.is_floating_point]
    rtol = max([RTOL.get(d, 0.0) for d in coarse], default=0.0)
    for number, (got, own) in enumerate(zip(found, eager, strict=True)):
        want = to_numpy(own)
        if got.shape != want.shape or (got.dtype != want.dtype and not (got.dtype == np.float64 and rtol)):
            return f"result {number} is {got.dtype}{list(got.shape)}, eager's {want.dtype}{list(want.shape)}"
        if not got.size or (s.positions is not None and number >= s.positions and not own.dtype.is_floating_point):
            continue
        if not own.dtype.is_floating_point:
            other = to_numpy(exact[number]) if exact is not None and rtol else want
            bad = (got != want) & (got != other.astype(got.dtype))
        else:
            bad = apart(got, want, to_numpy(exact[number]) if exact is not None else want, rtol)
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            return f"result {number} at {at} is {got[at]!r}, eager's {want[at]!r} ({int(bad.sum())} of {bad.size})"
    return ""


def apart(got: Array, own: Array, exact: Array, rtol: float) -> Array:
    """Boolean mask of the elements that differ from eager's by more than rounding explains."""
    g, o, e = (v.astype(np.float64) for v in (got, own, exact))
    same = (g == o) | (np.isnan(g) & np.isnan(o)) | (g == e) | (np.isnan(g) & np.isnan(e))
    finite = np.isfinite(g) & np.isfinite(o) & np.isfinite(e)
    scale = float(np.abs(o[np.isfinite(o)]).max(initial=0.0))
    allowed = rtol * (np.abs(o) + scale) + 8 * np.abs(o - e)
    near = finite & ((np.abs(g - e) <= allowed) | (np.abs(g - o) <= allowed))
    return ~(same | near)


def reason(error: TensorGraphsError) -> str:
    """The missing feature that an error names, without the numbers and names of one sample."""
    missing = getattr(error, "missing", None)
    if missing:
        return "; ".join(sorted(missing))
    return re.sub(r"\s+", " ", re.sub(r"\d+", "N", error.message))[:140]


# ---------------------------------------------------------------- the whole database
def entries(only: str = "", shard: tuple[int, int] = (0, 1)) -> Iterator[Any]:
    """The entries of a shard. PyTorch's module of them takes seconds to import."""
    from torch.testing._internal.common_methods_invocations import op_db

    for n, entry in enumerate(op_db):
        if n % shard[1] == shard[0] and (not only or entry.name == only):
            yield entry


def title_of(entry: Any) -> str:
    """The entry's name with its variant."""
    return f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else str(entry.name)


def looked_at(entry: Any, dtype: str, count: int, share: int) -> dict[str, Any]:
    """An entry's verdicts at a dtype, counted."""
    title, found = title_of(entry), list[Verdict]()
    optimized = crc32(title.encode()) % share == 0
    try:
        samples = samples_of(entry, getattr(torch, dtype), count)
    except Exception as error:
        return {"entry": title, "dtype": dtype, "unavailable": f"{type(error).__name__}: {str(error)[:80]}"}
    if samples and UNDEFINED.search(title):
        found = [Verdict("refused", "random, or undefined memory: not compared")] * len(samples)
    elif samples and (first := verdicts(samples[:1], title)[0]).status == "refused" and len(samples) > 6:
        rest = verdicts(samples[1::4], title, optimized=optimized)  # most often all are refused
        if any(v.status != "refused" for v in rest):
            rest = verdicts(samples[1:], title, optimized=optimized)
        else:
            rest = [Verdict("refused", rest[0].why)] * (len(samples) - 1)
        found = [first, *rest]
    elif samples:
        found = verdicts(samples, title, optimized=optimized)
    counts = Counter(v.status for v in found)
    why = Counter(v.why for v in found if v.status == "refused")
    wrong = [v.why for v in found if v.status == "wrong"]
    return {"entry": title, "dtype": dtype, **counts, "why": dict(why), "faults": wrong[:5], "optimized": optimized}


def table(files: Sequence[str]) -> str:
    """The results of the given files as a Markdown table."""
    rows = [json.loads(line) for file in files for line in Path(file).read_text().splitlines()]
    last = {(r["entry"], r["dtype"]): r for r in rows}
    lines = [
        __doc__.split("\n\n")[0],
        "",
        "| dtype | entries | samples | right | refused | wrong | entries through `optimize` |",
        "|---|---|---|---|---|---|---|",
    ]
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    wrong = []
    for dtype in DTYPES:
        own = [r for (_, d), r in last.items() if d == dtype and "unavailable" not in r]
        if not own:
            continue
        right, refused, bad = (sum(r.get(k, 0) for r in own) for k in ("right", "refused", "wrong"))
        through = sum(bool(r.get("optimized")) and r.get("right", 0) > 0 for r in own)
        lines.append(f"| {dtype} | {len(own)} | {right + refused + bad} | {right} | {refused} | {bad} | {through} |")
        for r in own:
            for why, count in r.get("why", {}).items():
                reasons[why][r["entry"]] += count
            wrong += [f"{r['entry']} {dtype}: {w}" for w in r.get("faults", [])]
    lines += ["", "Refused, by what the error names:", "", "| reason | samples | entries |", "|---|---|---|"]
    for why, by in sorted(reasons.items(), key=lambda p: -sum(p[1].values())):
        names = ", ".join(f"`{n}`" for n in list(by)[:4]) + (f" and {len(by) - 4} more" if len(by) > 4 else "")
        lines.append(f"| {why.replace('|', '/')} | {sum(by.values())} | {names} |")
    if wrong:
        lines += ["", "Wrong:", "", *[f"- {w}" for w in wrong]]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the command line described above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=DTYPES, action="append")
    parser.add_argument("--samples", type=int, default=8, help="of each entry, spread over all (0: all)")
    parser.add_argument("--share", type=int, default=4, help="one entry in so many goes through `optimize`")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--only", default="", help="one entry")
    parser.add_argument("--results", default="", help="JSON lines are added to this file; entries in it are skipped")
    parser.add_argument("--table", default="", help="write the table of the files given to this one")
    parser.add_argument("files", nargs="*")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.table:
        Path(given.table).write_text(table(given.files))
        return
    part, parts = map(int, given.shard.split("/"))
    path = Path(given.results) if given.results else None
    lines = path.read_text().splitlines() if path and path.exists() else []
    done = {(r["entry"], r["dtype"]) for r in map(json.loads, lines)}
    total: Counter[str] = Counter()
    for dtype in given.dtype or DTYPES:
        for entry in entries(given.only, (part, parts)):
            if getattr(torch, dtype) not in entry.dtypes or (title_of(entry), dtype) in done:
                continue
            row = looked_at(entry, dtype, given.samples, given.share)
            total.update({k: row.get(k, 0) for k in ("right", "refused", "wrong")})
            for fault in row.get("faults", []):
                print(f"{row['entry']} {dtype}: {fault}", flush=True)
            if path:
                with path.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    print(dict(total))
    sys.exit(bool(total["wrong"]))


if __name__ == "__main__":
    main()
