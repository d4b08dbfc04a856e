"""Where the time of a first call at a new size goes on a GPU: `python -m benchmarks.gpu.first_calls [--budget S]
[--case CASE]`.

First, products of PyTorch's BLAS libraries: µs until a call returns, of the first call at a number of rows, of the
second, and of the first where another number of rows with the same multiple of 64 was multiplied before. Then a program
of every size: why some of its plans have no functions of sizes (`backends/program/launch/size_calls.py`), µs of its
first and later calls, with these functions and without, and of the parts of the latter.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

import tensor_graphs as tg

from .sizes import CASES, LARGEST, inputs

NEW = tuple(range(701, 1001, 4))


def returned_us(call: Callable[[], Any]) -> float:
    """µs until a call on an idle device returns."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - begun)


def shown(name: str, us: Sequence[float]) -> None:
    """Print the median and the quartiles of some times."""
    ordered = sorted(us)
    quarter = len(ordered) // 4
    print(f"{name:60} {median(us):8.1f} µs ({ordered[quarter]:.1f} to {ordered[-1 - quarter]:.1f})", flush=True)


def products(library: str) -> None:
    """Print times of products with a 1024 x 2816 matrix in a BLAS library: first and second calls at new numbers of
    rows.
    """
    torch.backends.cuda.preferred_blas_library(library)
    w, x, y = (
        torch.randn(s, dtype=torch.bfloat16, device="cuda") for s in ((1024, 2816), (LARGEST, 1024), (LARGEST, 2816))
    )
    torch.mm(x, w, out=y)
    for _ in range(2):
        torch.mm(x[:64], w, out=y[:64])
    times: dict[str, list[float]] = {"first": [], "second": [], "first, rows rounded up to 64": []}
    for rows in NEW:
        call = lambda rows=rows: torch.mm(x[:rows], w, out=y[:rows])
        times["first"].append(returned_us(call))
        times["second"].append(returned_us(call))
    for rows in range(NEW[0] + 1024, NEW[-1] + 1024, 4):
        padded = -(-rows // 64) * 64
        times["first, rows rounded up to 64"].append(returned_us(lambda n=padded: torch.mm(x[:n], w, out=y[:n])))
    for name, us in times.items():
        shown(f"{library} product, {name}", us)


class Parts:
    """Time that is spent in wrapped functions, by name."""

    def __init__(self) -> None:
        self.us: dict[str, float] = {}

    def wrap(self, owner: Any, name: str, label: str) -> None:
        """Replace a function of an object by one that adds its time under the name `label`."""
        inner = getattr(owner, name)

        def timed(*given: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return inner(*given, **named)
            finally:
                self.us[label] = self.us.get(label, 0.0) + 1e6 * (time.perf_counter() - begun)

        setattr(owner, name, timed)


def program(case: str, budget: float) -> None:
    """Print the times of first and later calls of a size-polymorphic program, and of their parts."""
    torch.manual_seed(0)
    module = CASES[case][0]().to(torch.bfloat16).cuda().eval()
    length = torch.export.Dim("T", min=1, max=LARGEST)
    found = tg.optimize(
        module, (inputs(case, 128, "cuda"),), dynamic_shapes=({CASES[case][2]: length},), dims={"T": 128}, budget=budget,
        backend="gpu", again=True,
    )  # fmt: skip
    print([s.template.name for s in found.plan.steps if not s.is_view], flush=True)
    given = [inputs(case, t, "cuda") for t in NEW]
    for x in given[::10]:
        found(x)
    fresh = [x for i, x in enumerate(given) if i % 10]
    plans = {"all sizes": found, **found.plans}
    functions = {name: plan._new_sizes for name, plan in plans.items()}
    for name, plan in plans.items():
        known = functions[name]
        print(f"plan {name}: way {getattr(plan._run, 'way', '')!r}, "
              f"{0 if known is None else len(known.made)} functions of sizes, "
              f"sizes without: {[] if known is None else known.why}", flush=True)  # fmt: skip
        for one in [] if known is None else known.made[:1]:
            print(one.text, flush=True)
    errors = []
    for t in range(NEW[0] + 1, NEW[-1], 28):
        x = inputs(case, t, "cuda")
        with torch.no_grad():
            got, want = found(x).float(), module(x).float()
        errors.append(float((got - want).norm() / want.norm()))
    print(f"largest relative error against the module at new lengths: {max(errors):.2g}", flush=True)
    for label, used, lengths in (("", functions, fresh[:32]), (" of the emitted code", {}, fresh[32:48])):
        for name, plan in plans.items():
            plan._new_sizes = used.get(name)
        for name in ("first", "second", "third", "fourth"):
            shown(f"program, {name} call{label}", [returned_us(lambda x=x: found(x)) for x in lengths])
    parts, whole = Parts(), []
    for calls in [x for x in gc.get_objects() if type(x).__name__ == "CallsBySize"]:
        parts.wrap(calls, "at", "prepare a size")
        parts.wrap(calls, "made", "prepare a size, with bookkeeping")
        parts.wrap(calls.known, "call", "all launches")
        parts.wrap(calls.known, "launch", "launches of generated kernels")
    for name in ("mm", "addmm", "bmm"):
        parts.wrap(torch, name, "products of libraries")
    parts.us.clear()
    for x in fresh[48:]:
        whole.append(returned_us(lambda x=x: found(x)))
    shown("program, first call of the emitted code, with clocks around its parts", whole)
    print(json.dumps({name: round(us / len(whole), 1) for name, us in parts.us.items()}), flush=True)


def main() -> None:
    """Time products of the BLAS libraries, then a program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=list(CASES), default="mlp")
    parser.add_argument("--budget", type=float, default=8.0)
    given = parser.parse_args()
    for library in ("cublas", "cublaslt"):
        products(library)
    torch.backends.cuda.preferred_blas_library("default")
    program(given.case, given.budget)


if __name__ == "__main__":
    main()
