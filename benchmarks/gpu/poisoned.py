"""Programs on a GPU whose memory holds NaN before each call: `python -m benchmarks.gpu.poisoned gpt2 resnet18 [--plans
4] [--rounds 6] [--busy 2] [--seconds 120] [--scale full] [--json FILE] [--texts FOLDER]`.

For the forward graph of each training model, several plans are chosen by prices with random factors and with random
schedules, without measurements. The program of each plan, launched as chosen and with overlapping kernels, is called in
every launch mode (`Calls`: kernel by kernel through the kernels' own interfaces, kernel by kernel by the driver, as a
CUDA graph, as a CUDA graph on copies). Before each call all memory that the call must write before it reads it is
filled with 0xff (NaN): the workspace, results, and the tensors on which the graph was recorded. Inputs alternate
between two sets. Results are compared with a float64 run of the graph, and bit by bit with the first call on the same
inputs.

`--busy`: processes that keep the GPU busy meanwhile, so that kernels are preempted. A row for each plan and overlap
of launches: kernels, those with programmatic dependent launch, and for each mode the wrong results of the first calls,
and the later calls with other bits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tensor_graphs as tg
from benchmarks.torch_compile import training
from tensor_graphs.backends.generate.kernel_text import KernelText, kernel_text
from tensor_graphs.backends.program.launch.launching import plan_for_launching
from tensor_graphs.backends.program.launch.poison import poisoned
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import select
from tensor_graphs.backends.tuning.compile_pool import CompilePool
from tensor_graphs.backends.verification.index_bounds import index_bounds
from tensor_graphs.backends.verification.torch_reference import evaluate_tensors
from tensor_graphs.egraph.evaluate.interpret import expand_all
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.extract.model.kernel import Call, Operand
from tensor_graphs.extract.model.plan import Plan
from tensor_graphs.extract.search.plan import plan_of
from tensor_graphs.options import Options
from tensor_graphs.pipeline.context.session import Session, store_of
from tensor_graphs.pipeline.costs.prices import CostPricer
from tensor_graphs.pipeline.stages.choose import choose
from tensor_graphs.pipeline.stages.match import hypergraph
from tensor_graphs.pipeline.stages.prepare import prepare
from tensor_graphs.pipeline.stages.rewrite import rewrite
from tensor_graphs.torch_compile import traced_graph
from tensor_graphs.verification.comparison import have_other_bits
from tensor_graphs.verification.on_device import sample_tensors

BEGUN = time.monotonic()
WRONG = 1e-2  # relative error from which a result is wrong, not rounded otherwise
PREFERRED = 0.01  # factor on prices of preferred kernels
SPREAD = 0.4  # standard deviation of the logarithm of a price's factor
CHOICES = 12  # schedules of a kernel that plans choose among
MODES = ("plain", "flat", "graph", "copying")
BUSY = "import torch\nx = torch.randn(6144, 6144, device='cuda')\nwhile True:\n    x @ x\n    torch.cuda.synchronize()"
Row = dict[str, Any]


def say(text: str) -> None:
    """Print a line with the seconds since the start."""
    print(f"{time.monotonic() - BEGUN:6.1f} s  {text}", flush=True)


# ---------------------------------------------------------------- plans
class RandomPricer(CostPricer):
    """Prices of a store, each times a factor that depends on the kernel and on `seed`; those of library kernels also
    times `library`, and those of kernels whose names match `preferred` times PREFERRED."""

    seed, library, preferred = 0, 1.0, ""

    def price(self, found: Sequence[Any]) -> list[Any]:
        """One price per candidate (`CostPricer.price`)."""
        return [self._scaled(c, p) for c, p in zip(found, super().price(found), strict=True)]

    def _scaled(self, candidate: Any, price: Any) -> Any:
        if not math.isfinite(price.us):
            return price
        key = repr((self.seed, candidate.template.identity, candidate.call.operands))
        factor = math.exp(random.Random(hashlib.blake2b(key.encode()).digest()).gauss(0.0, SPREAD))
        factor *= self.library if candidate.template.space is None and not candidate.is_view else 1.0
        if self.preferred and re.search(self.preferred, candidate.template.name):
            factor *= PREFERRED
        return replace(price, us=price.us * factor, low=price.low * factor, high=price.high * factor)


def forward_graph(name: str, scale: str, device: str) -> Graph:
    """The forward graph of a training model, as `tg.compile` imports it."""
    found: list[Any] = []
    submit = traced_graph.submit
    traced_graph.submit = found.append  # type: ignore[assignment]
    try:
        module, batches = training.operands(name, scale, device, torch.float32, 1)
        tg.compile(module, budget=1)(*batches[0])
    finally:
        traced_graph.submit = submit
    graph: Graph = found[0].graph
    return graph


def plans_of(graph: Graph, store: Path, options: argparse.Namespace) -> Iterator[Plan]:
    """Different plans of a graph for a GPU."""
    session = Session(Options(backend="gpu", budget=30.0, deterministic=True, costdb=store))
    with session.running():
        prepared = prepare(session, graph, None)
        view = rewrite(session, prepared.work).view
        found = hypergraph(session, view, select("gpu"))
        say(f"{len(found.candidates)} candidates")
        for seed in range(options.seed, options.seed + options.plans):
            pricer = RandomPricer(store_of(session))
            pricer.seed, pricer.library, pricer.preferred = seed, options.library, options.prefer
            session.budget_start = session.now()
            plan = varied(plan_of(choose(session, found, pricer, None), prepared.work), seed)
            yield replace(
                plan, graph=replace(plan.graph, names=graph.names, structure=graph.structure, name=graph.name)
            )


def varied(plan: Plan, seed: int) -> Plan:
    """The plan with another one of its first schedules for half of the generated kernels; seed 0: the plan itself."""
    draw, steps = random.Random(seed), []
    for step in plan.steps:
        if seed and not step.is_view and step.template.space is not None and draw.random() < 0.5:
            space = list(step.template.space(step.call))[:CHOICES]
            step = replace(step, call=replace(step.call, schedule=dict(draw.choice(space)))) if space else step
        steps.append(step)
    return replace(plan, steps=tuple(steps))


def kernels_of(program: Program) -> list[Any]:
    """The steps of a program's plan that run kernels, with the schedules of its overlap of launches."""
    assert program.plan is not None
    return [s for s in plan_for_launching(program.plan).steps if not s.is_view]


def compile_all(pool: CompilePool, programs: Sequence[Program], seconds: float) -> None:
    """Compile the kernels of programs in parallel; their first calls find them in the caches."""
    empty = Call({}, Operand(Type((1,), "float32"), (1,)), {})
    texts: dict[str, tuple[KernelText, Call]] = {}
    for program in programs:
        if "CudaKernel(" in program.source:
            text = KernelText(program.source, (), (), False, 0, True)
            texts[text.digest] = text, empty
        for step in kernels_of(program):
            if step.template.space is not None and "CudaKernel" not in step.template.setup:
                text = kernel_text(step.template, step.call)
                texts[text.digest] = text, step.call
    wait([pool.submit(text, call) for text, call in texts.values()], timeout=max(seconds, 0.0))


# ---------------------------------------------------------------- calls on poisoned memory
class Poisoned:
    """Calls of a bound program in a given launch mode, on poisoned memory. `inputs`: sets of inputs by name."""

    def __init__(self, program: Program, inputs: Sequence[Mapping[str, Any]]) -> None:
        program.bind()
        self.calls: Any = program._run
        self.given = [[x[n] for n in program.input_names] for x in inputs]
        self.same = [x.clone() for x in self.given[0]]  # tensors that have the values of each set in turn

    def use(self, mode: str) -> None:
        """Make later calls in a mode; all but "plain" record a CUDA graph, after which calls in all modes are timed."""
        calls = self.calls
        calls.ready = calls.flat_ready = False
        calls.wanted, calls.launch_mode, calls.places = mode != "plain", "", {}
        if mode != "plain":
            calls.fastest = partial(self._timed, mode)
            calls(*self.given[0])

    def _timed(self, mode: str, *given: Any) -> str:
        type(self.calls).fastest(self.calls, *given)
        return mode

    def __call__(self, number: int, moved: bool) -> list[Any]:
        """Results of a call on input set `number`: with `moved`, on tensors of its own."""
        given = self.given[number]
        if not moved:
            for x, y in zip(self.same, given, strict=True):
                x.copy_(y)
            given = self.same
        with poisoned(self.calls):
            return list(self.calls(*given))


def errors_of(found: Sequence[Any], exact: Sequence[Any]) -> dict[int, float]:
    """Results with a relative error above WRONG (integers: share of different elements; infinite where NaN is), by
    number."""
    errors = []
    for x, y in zip(found, exact, strict=True):
        if not y.is_floating_point():
            errors.append((x != y).double().mean())
            continue
        d = x.double() - y.double()
        errors.append(torch.where(d.isnan().any(), math.inf, d.norm() / y.double().norm().clamp_min(1e-30)))
    every: list[float] = torch.stack(errors).tolist()
    return {k: e for k, e in enumerate(every) if not e <= WRONG}


@dataclass
class Case:
    """A graph with sets of inputs, and its results for each in float64."""

    graph: Graph
    inputs: list[dict[str, Any]] = field(default_factory=list)
    exact: list[list[Any]] = field(default_factory=list)

    def draw(self, count: int) -> None:
        """Draw `count` sets of inputs and compute their results."""
        graph = self.graph
        wide = graph.with_roots(expand_all(graph.roots, wide_means=True))
        for n in range(count):
            draw = np.random.default_rng(n + 1)
            self.inputs.append(sample_tensors(graph.inputs, draw, index_bounds(graph), "cuda", graph.typical))
            found = evaluate_tensors(wide, self.inputs[-1], "cuda", float64=True)
            self.exact.append([y.float() if y.is_floating_point() else y for y in found])

    def tested(self, row: Row, program: Program, rounds: int, until: float) -> None:
        """Fill a row with what calls of a program on poisoned memory show: "first": wrong results by input set; for
        each mode the calls that were made, those with other bits than the first call on the same inputs, and their
        wrong results."""
        calls, sets = Poisoned(program, self.inputs), range(len(self.inputs))
        calls.use("plain")
        first = [calls(n, True) for n in sets]
        row |= {"first": [errors_of(first[n], self.exact[n]) for n in sets]}
        for mode in MODES:
            calls.use(mode)
            seen: Row = {"calls": 0, "other": [], "wrong": []}
            for turn in range(rounds):
                if time.monotonic() > until:
                    break
                n = turn % len(sets)
                found = calls(n, turn >= rounds // 2)
                seen["calls"] += 1
                if have_other_bits(found, first[n]):
                    seen["other"].append(turn)
                    seen["wrong"].append(errors_of(found, self.exact[n]))
            row[mode] = seen


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Context manager with processes that keep the GPU busy."""
    running = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def is_right(row: Row) -> bool:
    """Whether a row has neither wrong results nor other bits."""
    later = (row[mode]["other"] for mode in MODES if mode in row)
    return "error" not in row and not any(row.get("first", ())) and not any(later)


def write_texts(folder: Path, name: str, program: Program) -> None:
    """Write a program's source, and a list of its kernels and outputs."""
    folder.mkdir(parents=True, exist_ok=True)
    assert program.plan is not None
    lines = [f"{s.template.name} {dict(s.call.schedule)} {s.doc[:300]} {s.outputs}" for s in kernels_of(program)]
    (folder / f"{name}.py").write_text(program.source, encoding="utf-8")
    (folder / f"{name}.txt").write_text("\n".join([*lines, f"outputs {program.plan.outputs}"]), encoding="utf-8")


def rows_of(name: str, options: argparse.Namespace, pool: CompilePool, store: Path) -> Iterator[Row]:
    """The rows of one model, until the time is up."""
    until = BEGUN + options.seconds
    case = Case(forward_graph(name, options.scale, "cuda"))
    case.draw(2)
    for number, plan in enumerate(plans_of(case.graph, store, options)):
        if time.monotonic() > until:
            return
        forms = {
            name: Program(replace(plan, launching=overlap))
            for name, overlap in (("measured", ""), ("overlapping",) * 2)
        }
        compile_all(pool, list(forms.values()), until - time.monotonic())
        if options.without:  # a planted fault
            forms["planted"] = Program(plan)
            for text in options.without:
                forms["planted"].source = forms["planted"].source.replace(text, "pass")
        for launching, form in forms.items():
            steps = kernels_of(form)
            early = sum(bool(s.call.schedule.get("early")) for s in steps)
            row: Row = {"model": name, "plan": number, "launching": launching, "kernels": len(steps), "early": early}
            row["library"] = sum(s.template.space is None for s in steps)
            try:
                case.tested(row, form, options.rounds, until)
            except Exception as error:
                row["error"] = f"{type(error).__name__}: {error}"[:300]
            if options.texts and not is_right(row):
                write_texts(options.texts, f"{name}-{number}-{launching}", form)
            form.unbind()
            torch.cuda.empty_cache()
            yield row


def main() -> None:
    """Parse the command line; print and write the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("names", nargs="+")
    parser.add_argument("--plans", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=6, help="calls in each mode")
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--scale", default="full")
    parser.add_argument("--library", type=float, default=1.0, help="factor on prices of library kernels")
    parser.add_argument("--prefer", default="", help="pattern of names of kernels that plans prefer")
    parser.add_argument("--without", nargs="*", default=[], help="statements to leave out, in a third form")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--texts", type=Path, help="folder for the sources of programs with a wrong result")
    options = parser.parse_args()
    rows: list[Row] = []
    store = Path(tempfile.mkdtemp()) / "store"
    major, minor = torch.cuda.get_device_capability()
    pool = CompilePool(max(1, min(16, (os.cpu_count() or 2) - 1)), 10 * major + minor)
    pool.start()
    with busy(options.busy):
        for name in options.names:
            for row in rows_of(name, options, pool, store):
                rows.append(row)
                say(json.dumps(row)[:900])
                if options.json:
                    options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    pool.close()
    print(
        f"| model | plan | launching | kernels | early | library | wrong at first | other bits later ({', '.join(MODES)}) |"
    )
    for r in rows:
        later = [f"{len(r[w]['other'])}/{r[w]['calls']}" if w in r else "-" for w in MODES]
        first = r.get("error") or sum(map(len, r.get("first", ())))
        cells = (r["model"], r["plan"], r["launching"], r["kernels"], r["early"], r["library"], first, " ".join(later))
        print("|", " | ".join(map(str, cells)), "|")


if __name__ == "__main__":
    main()
