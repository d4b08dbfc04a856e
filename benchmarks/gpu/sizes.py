"""Programs of every size on a GPU: `python -m benchmarks.gpu.sizes [--only CASE ...] [--budget S] [--seconds S]`.

Each case in a process of its own: one program for all lengths T, beside eager and `torch.compile(dynamic=True)`, and
beside programs searched for one length. Cases: gated feed forward, softmax over the free axis, a layer with causal
attention, reductions over the free axis, a convolution of a free number of images. Per length: µs of a call (wall clock
of calls in a row, then synchronized; median of rounds), and the relative error against eager in float64. Then lengths
that nobody has met before: µs of the first call at each, and of a call at a length that recurs. The results are
printed, one JSON line per case, and kept in results/raw/gpu_sizes.json.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import tensor_graphs as tg

from .call_overhead import Gated

LENGTHS = (1, 2, 3, 7, 16, 17, 63, 127, 128, 1000, 4096)
WRONG = 2e-2  # relative error against float64 from which a result is wrong
NEW = tuple(range(701, 761, 4))  # lengths that are called once
LATER = 100  # further calls at a new length
FIXED = (128, 1024)  # lengths with a program of their own
LARGEST = 4096
ROUNDS, ROUND_S = 15, 0.01
BEGUN = time.monotonic()
HERE = Path(__file__).parents[1]


class MLP(Gated):
    """Norm, gated feed-forward block, residual."""

    def __init__(self, width: int = 1024, inner: int = 2816) -> None:
        super().__init__(width, inner)


class Layer(nn.Module):
    """Llama-like layer: norm, attention with a causal mask and rotary positions, residual, gated feed-forward block."""

    def __init__(self, width: int = 1024, heads: int = 16, inner: int = 2816) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.gain = nn.Parameter(torch.ones(width))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = MLP(width, inner)
        angles = torch.outer(torch.arange(LARGEST), 10000.0 ** -(torch.arange(0, self.size, 2) / self.size))
        self.register_buffer("cos", torch.cat([angles.cos()] * 2, 1))
        self.register_buffer("sin", torch.cat([angles.sin()] * 2, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.shape[0]
        h = self.qkv(nn.functional.rms_norm(x, (x.shape[-1],), self.gain, 1e-6))
        q, k, v = h.view(tokens, 3, self.heads, self.size).permute(1, 2, 0, 3)
        q, k = (self.turned(z, tokens) for z in (q, k))
        a = nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
        return self.mlp(x + self.out(a.transpose(0, 1).reshape(tokens, -1)))

    def turned(self, z: torch.Tensor, tokens: int) -> torch.Tensor:
        """Rotary positions."""
        a, b = z.chunk(2, -1)
        return z * self.cos[:tokens] + torch.cat([-b, a], -1) * self.sin[:tokens]


class Softmax(nn.Module):
    """Softmax over T of rows of length T."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 0.125, -1)


class Reductions(nn.Module):
    """Mean, maximum and sum of squares over T."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.mean(0), x.amax(0), (x * x).sum(0)


class Convolution(nn.Module):
    """Convolution of T images, with a bias and a rectifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(32, 64, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x))


#: Case -> (module, shape of its input at a length, axis of the length).
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[int, ...]], int]] = {
    "mlp": (MLP, lambda t: (t, 1024), 0),
    "softmax": (Softmax, lambda t: (2048, t), 1),
    "layer": (Layer, lambda t: (t, 1024), 0),
    "reductions": (Reductions, lambda t: (t, 1024), 0),
    "conv": (Convolution, lambda t: (t, 32, 14, 14), 0),
}


def inputs(case: str, length: int, device: str) -> torch.Tensor:
    """The input of a case at a length; the same at every call."""
    values = torch.Generator(device="cpu").manual_seed(length)
    return torch.randn(CASES[case][1](length), generator=values).to(torch.bfloat16).to(device)


def wait(device: str) -> None:
    """Wait until the device is idle."""
    if device == "cuda":
        torch.cuda.synchronize()


def call_us(call: Callable[[], Any], device: str) -> float:
    """µs per call in a row of calls: the median of several rounds."""
    for _ in range(4):
        call()
    wait(device)
    begun = time.perf_counter()
    call()
    wait(device)
    count = max(3, min(200, math.ceil(ROUND_S / max(time.perf_counter() - begun, 1e-6))))
    rounds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        for _ in range(count):
            call()
        wait(device)
        rounds.append(1e6 * (time.perf_counter() - begun) / count)
    return round(median(rounds), 1)


def first_us(call: Callable[[], Any], device: str) -> tuple[float, float]:
    """µs of one call: (until it returns, until its results are there)."""
    wait(device)
    begun = time.perf_counter()
    call()
    returned = time.perf_counter()
    wait(device)
    return round(1e6 * (returned - begun), 1), round(1e6 * (time.perf_counter() - begun), 1)


def new_lengths(case: str, run: Callable[[torch.Tensor], Any], device: str, lengths: Sequence[int]) -> dict[str, Any]:
    """Times in µs at lengths that were not met before, until calls return.

    First calls at each length, second calls, the slowest first call, and `LATER` further calls at some of the lengths.
    """
    given = [inputs(case, t, device) for t in lengths]
    firsts = [first_us(lambda x=x: run(x), device) for x in given]
    seconds = [first_us(lambda x=x: run(x), device) for x in given]
    later = sorted(first_us(lambda x=x: run(x), device)[0] for x in given[::5] for _ in range(LATER))
    return {
        "firsts_returned": [a for a, _ in firsts], "later_returned": median(later), "slowest_later": later[-5:],
        "first_returned": median(a for a, _ in firsts), "first": median(b for _, b in firsts),
        "slowest_first": max(b for _, b in firsts), "second_returned": median(a for a, _ in seconds),
        "second": median(b for _, b in seconds),
    }  # fmt: skip


def shown(stage: str, message: str) -> None:
    """Print a stage with the seconds since the start of this process."""
    print(f"{time.monotonic() - BEGUN:6.1f} {stage}: {message}", flush=True)


def named(program: Any) -> list[str]:
    """Names of a program's kernels."""
    return [s.template.name for s in program.plan.steps if not s.is_view]


def error(got: Any, want: Any) -> float:
    """The largest relative Frobenius error of the results."""
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    return float(f"{max(((a.double() - b).norm() / b.norm()).item() for a, b in pairs):.2e}")


class CaseMeasurement:
    """Measurement of one case, part by part; a part that fails leaves its error in the record."""

    def __init__(self, case: str, device: str, budget: float) -> None:
        torch.manual_seed(0)
        self.case, self.device, self.budget = case, device, budget
        self.backend = "gpu" if device == "cuda" else "torch"
        self.module = CASES[case][0]().to(torch.bfloat16).to(device).eval()
        self.exact = CASES[case][0]().double().to(device).eval()
        self.exact.load_state_dict({k: v.double() for k, v in self.module.state_dict().items()})
        self.record: dict[str, Any] = {"case": case, "us": {}, "error": {}, "new": {}}
        self.callables: dict[str, Callable[[torch.Tensor], Any]] = {}

    def inputs(self, length: int) -> torch.Tensor:
        """Random input of a length."""
        return inputs(self.case, length, self.device)

    def part(self, name: str, work: Callable[[], Any]) -> Any:
        """The result of `work`, None if it raises; its seconds and its error are recorded under `name`."""
        begun = time.perf_counter()
        try:
            return work()
        except Exception as problem:  # the other parts go on
            self.record.setdefault("failed", {})[name] = f"{type(problem).__name__}: {problem}"[:600]
            traceback.print_exc()
        finally:
            self.record.setdefault("seconds", {})[name] = round(time.perf_counter() - begun, 1)
        return None

    def search(self) -> None:
        """Search the program of every length."""
        length, record = torch.export.Dim("T", min=1, max=LARGEST), self.record
        program = tg.optimize(
            self.module, (self.inputs(128),), dynamic_shapes=({CASES[self.case][2]: length},), dims={"T": 128},
            budget=self.budget, backend=self.backend, again=True, progress=tg.Progress(shown),
        )  # fmt: skip
        print(program.report, flush=True)
        record["sizes"], record["kernels"] = program.report.sizes, named(program)
        record["buckets"] = [str(b) for b in program.report.buckets]
        record["warnings"] = [w[:300] for w in program.report.warnings]
        record["spent"] = {n: round(s, 1) for n, s in program.report.seconds.items()}
        for name, plan in {"all sizes": program, **program.plans}.items():
            print(f"---- {name}: {named(plan)}\n{plan.source[plan.source.index('def bind') :]}", flush=True)
        self.callables["ours"] = program

    def saved_error(self) -> float:
        """Error of the program after it was saved and loaded."""
        with tempfile.TemporaryDirectory() as folder:
            program: Any = self.callables["ours"]
            program.save(folder)
            loaded, x = tg.load_program(folder), self.inputs(128)
            return error(loaded(x), self.exact(x.double()))

    def compile_backend(self) -> dict[str, Any]:
        """Compile the module by `torch.compile(backend="tensor_graphs")` with a free size; returns its report."""
        torch._dynamo.reset()
        options = {"wait": True, "budget": self.budget}
        self.callables["backend"] = torch.compile(self.module, backend="tensor_graphs", options=options)
        for t in (128, 128, 16, 16, 16, 1000, 1000, 1000, 4096, 4096):
            x = self.inputs(t)
            torch._dynamo.mark_dynamic(x, CASES[self.case][2])
            self.callables["backend"](x)
        return {"report": str(tg.torch_compile.last_report())}

    def time_length(self, t: int) -> None:
        """Time and compare all callables at a length."""
        x, record = self.inputs(t), self.record
        want = self.part(f"exact {t}", lambda: self.exact(x.double()))
        for name, run in self.callables.items():
            key = f"{name} {t}"
            got = self.part(key, lambda run=run: first_us(lambda: run(x), self.device))
            record.setdefault("first_met", {})[key] = got
            us = self.part(f"{key} timed", lambda run=run: call_us(lambda: run(x), self.device))
            record["us"].setdefault(name, {})[t] = us
            if want is not None and us is not None:
                record["error"].setdefault(name, {})[t] = found = error(run(x), want)
                if not found < WRONG:
                    record.setdefault("wrong", []).append(f"{key}: {found}")
        times = (f"{n} {of.get(t)} µs {record['error'].get(n, {}).get(t)}" for n, of in record["us"].items())
        shown(f"T = {t}", ", ".join(times))

    def time_fixed(self, t: int) -> None:
        """Search a program of one length, and time it."""
        x, record = self.inputs(t), self.record
        search = lambda: tg.optimize(self.module, (x,), budget=self.budget / 2, backend=self.backend)
        found = self.part(f"fixed {t} search", search)
        if found is not None:
            us = self.part(f"fixed {t}", lambda: call_us(lambda: found(x), self.device))
            record["us"].setdefault("fixed", {})[t] = us
            record.setdefault("fixed_kernels", {})[t] = named(found)


def measured(
    case: str, device: str, budget: float, lengths: Sequence[int], fixed: Sequence[int], rivals: Sequence[str]
) -> dict[str, Any]:
    """All results of one case; a part that fails leaves its error.

    `lengths`: lengths to time. `fixed`: those for which a program of one length is searched as well. `rivals`: peers to
    time.
    """
    found = CaseMeasurement(case, device, budget)
    found.part("search", found.search)
    with torch.no_grad():
        found.callables["eager"] = found.module
        if "compile" in rivals:
            found.callables["compile"] = torch.compile(found.module, dynamic=True)
        if "saved" in rivals and "ours" in found.callables:
            found.record["saved_error"] = found.part("saved", found.saved_error)
        if "backend" in rivals:
            found.record["backend"] = found.part("backend", found.compile_backend)
        print(json.dumps(found.record), flush=True)
        for t in lengths:
            found.time_length(t)
        for name, run in found.callables.items():
            if all(t <= LARGEST for t in NEW):
                new = partial(new_lengths, case, run, device, NEW)
                found.record["new"][name] = found.part(f"{name} new", new)
        print(json.dumps(found.record), flush=True)
        for t in fixed:
            found.time_fixed(t)
    return found.record


def main() -> int:
    """Run each case in a process of its own; returns how many failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of a search; half of it for one length")
    parser.add_argument("--seconds", type=float, default=140.0, help="limit of a case")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--lengths", nargs="*", type=int, default=list(LENGTHS))
    parser.add_argument("--fixed", nargs="*", type=int, default=list(FIXED))
    parser.add_argument("--rivals", nargs="*", default=["compile"], help="compile, backend (torch.compile), saved")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "raw" / "gpu_sizes.json")
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args()
    if options.child:
        (case,) = options.only
        found = measured(case, options.device, options.budget, options.lengths, options.fixed, options.rivals)
        print(json.dumps(found), flush=True)
        return 0
    records: list[dict[str, Any]] = []
    for case in options.only:
        given = ["--child", "--only", case, "--budget", str(options.budget), "--device", options.device]
        given += ["--lengths", *map(str, options.lengths), "--fixed", *map(str, options.fixed)]
        given += ["--rivals", *options.rivals]
        command = [sys.executable, "-m", "benchmarks.gpu.sizes", *given]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            text, _ = child.communicate(timeout=options.seconds)
        except subprocess.TimeoutExpired:
            child.terminate()
            try:
                text, _ = child.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                child.kill()
                text, _ = child.communicate()
            text += f"\n{case}: ended after {options.seconds:g} s\n"
        print(f"==== {case}: exit status {child.returncode}\n{text}", flush=True)
        records += [json.loads(line) for line in text.splitlines() if line.startswith('{"case"')][-1:]
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(records, indent=1) + "\n")
    print("\n".join(map(table, records)))
    return 0


def table(record: dict[str, Any]) -> str:
    """A case as a table: µs per call by form and length, then failures and wrong results."""
    lengths = list(dict.fromkeys(t for of in record["us"].values() for t in of))
    rows = [f"{record['case']:12}" + "".join(f"{t:>9}" for t in lengths)]
    rows += [f"{form:12}" + "".join(f"{of.get(t) or '-':>9}" for t in lengths) for form, of in record["us"].items()]
    words = [f"{what}: {record[what]}" for what in ("sizes", "buckets", "warnings", "wrong", "failed", "saved_error", "backend") if record.get(what)]  # fmt: skip
    return "\n".join([*rows, *words, ""])


if __name__ == "__main__":
    sys.exit(main())
