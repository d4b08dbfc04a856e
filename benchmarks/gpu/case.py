"""Measuring one workload on a GPU in its variants: eager PyTorch, torch.compile, XLA and our programs, replayed in
turn.

`Case` is shared by the benchmarks of the table (`gpu.py`) and of variants and models (`suite.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu.again import SPELLED
from benchmarks.run import commit

BACKENDS = {"ours": "gpu", "generated": "generated", "triton": "triton-only"}
EXPLAIN_S = 30.0  # of explaining: after it no further form of a block is explained
ROUNDS, REPLAY_US, MOST_SETS = 15, 1500.0, 64
RESTS, REST_S = 9, 0.1  # replays after a pause, and its seconds: the power limit has forgotten the last one by then
HELD = 0xEC  # of NVML's reasons for a clock: held by the power cap, slowed for heat or power
OURS = ("ours", "generated")

Record = dict[str, Any]
Run = Callable[[], Any]


class Case:
    """A workload measured in this process; its record is written to `target` after every step."""

    def __init__(self, full: Any, work: Any, target: Path, device: str, budget: float, store: Path) -> None:
        """`work` is what is measured: the workload `full` itself, or the same workload at small sizes."""
        import torch

        from benchmarks.models import workloads
        from tensor_graphs.backends.tuning.gpu_device import device_of

        self.torch, self.target, self.budget, self.store = torch, target, budget, store
        self.full, self.work, small = full, work, work is not full
        self.tolerance = getattr(work, "tolerance", None)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.tolerance is not None
        self.device = device_of(device)
        self.inputs, self.weights = self.work.arguments(device)
        arguments = [*self.inputs, *self.weights]
        nbytes = sum(x.numel() * x.itemsize for x in arguments)
        count = min(MOST_SETS, -(-5 * self.device.cache_bytes // nbytes), max(1, (16 << 30) // nbytes))
        self.sets = [arguments, *([x.clone() for x in arguments] for _ in range(count - 1))]
        with torch.no_grad():
            wide = [x.double() if x.is_floating_point() else x for x in arguments]
            self.exact = [x.cpu() if small else x for x in workloads.flat(self.work.call(*wide))]
        self.calls: dict[str, list[Run]] = {}
        self.record: Record = {
            "name": full.name,
            "device": device,
            "small": small,
            "sets": count,
            "tolerance": self.tolerance,
            "variants": {},
            **machine(self.device),
        }
        self.record["limit_us"] = limit_us(full, self.record)

    def write(self) -> None:
        """Write the record to its file, atomically."""
        part = self.target.with_suffix(".tmp")
        part.write_text(json.dumps(self.record, indent=1, default=str) + "\n")
        part.replace(self.target)

    @contextlib.contextmanager
    def variant(self, name: str) -> Iterator[Record]:
        """Context manager for one way to run the workload; yields its part of the record.

        An exception is recorded as its failure, and the case continues. While it runs, the record's `running` names it,
        for failures that end the process.
        """
        found: Record = self.record["variants"].setdefault(name, {})
        print(f"{self.work.name}: {name}", file=sys.stderr, flush=True)
        self.record["running"] = name
        self.write()
        try:
            yield found
        except Exception as problem:
            traceback.print_exc()
            found["failed"] = f"{type(problem).__name__}: {problem}"[:400]
            self.calls.pop(name, None)
        self.record.pop("running", None)
        self.write()

    # ------------------------------------------------------------ ways to run it
    def add(self, name: str, found: Record, calls: list[Run]) -> None:
        """Compare the result of the first call with the exact one, and register the calls (one per set of arguments)
        for timing.
        """
        from benchmarks.models.workloads import flat

        results = flat(calls[0]())
        found["error"] = max(error(got, want) for got, want in zip(results, self.exact, strict=True))
        self.calls[name] = calls

    def eager(self) -> None:
        """Add the workload in eager PyTorch."""
        with self.variant("eager") as found:
            self.add("eager", found, [lambda s=s: self.work.call(*s) for s in self.sets])

    def peers(self, modes: Sequence[str] = ("default", "max-autotune")) -> None:
        """Add the workload under `torch.compile` in each of the modes."""
        torch, work = self.torch, self.work
        for name in modes:
            with self.variant(name) as found:
                compiled = compiled_as(work.call, name)
                start = time.monotonic()
                for _ in range(2):
                    compiled(*self.sets[0])
                self.device.synchronize()
                found["seconds"] = time.monotonic() - start
                self.add(name, found, [lambda s=s, f=compiled: f(*s) for s in self.sets])
                torch._dynamo.reset()

    def xla(self) -> None:
        """Time the workload in XLA: one program over all argument sets, by wall clock."""
        if not self.work.jax or not installed("jax"):
            return
        with self.variant("xla") as found:
            from benchmarks.models.jax_workloads import on_all
            from tensor_graphs.backends.tuning.gpu_worker import with_gpu_lock

            rounds = max(1, 32 // len(self.sets))
            start = time.monotonic()
            run, first = on_all(self.work.jax, self.sets * rounds)
            found["seconds"] = time.monotonic() - start
            results = [self.torch.from_dlpack(x) for x in (first if isinstance(first, tuple) else (first,))]
            found["error"] = max(error(got, want) for got, want in zip(results, self.exact, strict=True))
            samples = []
            with with_gpu_lock():
                for _ in range(ROUNDS):
                    began = time.perf_counter_ns()
                    run()
                    samples.append((time.perf_counter_ns() - began) / 1e3 / len(self.sets) / rounds)
            found |= {"us": median(samples), "fastest_us": min(samples)}

    def ours(self, names: Sequence[str] = OURS) -> None:
        """Add our program with all kernels, then with generated kernels only.

        Each is optimized twice: cold, then with the measurements of the first time. Both share a store, so the second
        program's cold seconds are not those of an empty store.
        """
        import tensor_graphs as tg

        module = self.work.module([w.cpu() for w in self.weights])
        inputs = tuple(x.cpu() for x in self.inputs)
        more: dict[str, Any] = {} if self.tolerance is None else {"tolerance": self.tolerance}
        for name in names:
            with self.variant(name) as found:
                chosen = BACKENDS[name] if self.device.name == "cuda" else "torch"
                for label in ("cold_s", "warm_s"):
                    start = time.monotonic()
                    program = tg.optimize(module, inputs, backend=chosen, costdb=self.store, budget=self.budget, **more)
                    found[label] = time.monotonic() - start - program.report.seconds.get("time", 0.0)
                    found.setdefault("stages", {})[label] = dict(program.report.seconds)
                    found.setdefault("measured", {})[label] = program.report.measured_now
                    found.setdefault("measuring", {})[label] = program.report.measuring
                    self.write()
                found |= described(program)
                self.target.with_name(f"{self.full.name}-{name}.py").write_text(program.source)
                self.add(name, found, self.instances(program))
                if name == "ours":
                    keep_origin(
                        program.attached, program.report.searched, origin_in(self.target.parent, self.full.name)
                    )

    def explain(self) -> None:
        """Record by which rules our program was found. It comes last, because the table is about times."""
        folder = origin_in(self.target.parent, self.full.name)
        if folder.is_dir():
            self.record["variants"]["ours"] |= explained(folder, replay=False)  # values are for when there is time

    def instances(self, program: Any) -> list[Run]:
        """One call of the program per set of arguments, each bound to its own copy of the weights."""
        if program.manifest.device != "cuda":
            return [lambda s=s: program.flat(*s[: len(self.inputs)]) for s in self.sets]
        from tensor_graphs.backends.program.launch.emission import executed

        module = executed(program.source, program.manifest.name)
        bind = module["bind"]
        uploads = {key: module["uploaded"](program._weights[key], "cuda") for key, _, _ in program.manifest.weights}
        states: dict[str, Any] = {}
        if program.manifest.states:
            program.bind()
            states = {n: module["uploaded"](program.get_state(n), "cuda") for n, _, _ in program.manifest.states}
            program.unbind()
        calls: list[Run] = []
        for given in self.sets:
            own = {n: x.clone() for n, x in states.items()}
            replay = bind({key: x.clone() for key, x in uploads.items()}, own, "cuda", graph=False)
            calls.append(lambda replay=replay, given=given: replay(*given[: len(self.inputs)]))
        return calls

    # ------------------------------------------------------------ time
    def time(self, rests: int = 0) -> None:
        """Replay all variants in turn; before each replay the cache is filled with other data.

        `rests`: further rounds with a pause before each replay, because products without pauses reach the chip's power
        limit, which lowers its clock.
        """
        from tensor_graphs.backends.tuning.gpu_worker import with_gpu_lock

        replays: dict[str, tuple[Run, int]] = {}
        with self.torch.no_grad(), with_gpu_lock():
            for name, calls in list(self.calls.items()):
                with self.variant(name):
                    for call in calls[:2]:
                        call()
                    self.device.synchronize()
                    once = self.device.capture(calls)
                    once()
                    lap = min(
                        self.device.laps(once, 2)
                    )  # by a graph: calls one by one are bound by the host's launches
                    laps = max(1, min(40, round(REPLAY_US / lap)))
                    replays[name] = self.device.capture(calls * laps), laps * len(calls)
            samples, capped = self._in_turn(replays, ROUNDS)
            rested, still = self._in_turn(replays, rests, REST_S) if rests else ({}, {})
        for name, found in samples.items():
            middle = median(found)
            spread = median(abs(s - middle) for s in found)
            record = self.record["variants"][name]
            record |= {"us": middle, "mad_us": spread, "fastest_us": min(found), "capped": capped[name] / len(found)}
        for name, found in rested.items():
            record = self.record["variants"][name]
            record |= {"rested_us": median(found), "rested_capped": still[name] / len(found)}
        self.write()

    def _in_turn(
        self, replays: Mapping[str, tuple[Run, int]], rounds: int, rest: float = 0.0
    ) -> tuple[dict[str, list[float]], Counter[str]]:
        """Returns (samples in µs per call of each variant, number of replays after which the driver limited the clock
        for power).

        Two rounds warm up. `rest`: seconds of pause before each replay.
        """
        from tensor_graphs.backends.tuning.gpu_bench import reference

        samples: dict[str, list[float]] = {name: [] for name in replays}
        capped: Counter[str] = Counter()
        for turn in range(rounds + 2):
            for name, (replay, count) in replays.items():
                time.sleep(rest)
                reference(self.device)()
                took = self.device.elapsed(replay) / count
                if turn >= 2:
                    capped[name] += held_for_power()
                    samples[name].append(took)
        return samples, capped


@cache
def power_handle() -> tuple[Any, Any] | None:
    """NVML and its handle of the current device; None if NVML is not available."""
    import torch

    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(0).uuid)
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
    except Exception:  # an optional library, no device, a driver that does not tell: one meaning
        return None


def held_for_power() -> bool:
    """Whether the driver reports that the clock is limited now because of power or heat."""
    if (found := power_handle()) is None:
        return False
    nvml, handle = found
    try:
        reasons = int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except nvml.NVMLError:
        return False
    return bool(reasons & HELD)


def compiled_as(call: Callable[..., Any], mode: str) -> Callable[..., Any]:
    """The call under `torch.compile` in a mode, without CUDA graphs, which this benchmark captures itself."""
    import torch

    more = {"mode": "max-autotune-no-cudagraphs"} if mode == "max-autotune" else {}
    if more:
        torch._inductor.config.coordinate_descent_tuning = True
    return torch.compile(call, fullgraph=True, dynamic=False, **more)


def described(program: Any) -> Record:
    """What a program consists of: kernels, sizes of the search, bounds, verification."""
    report = program.report
    steps = [
        {"kernel": s.template.name, "backend": s.template.backend, "pattern": s.template.pattern[:SPELLED], "us": s.cost.us,
         "source": s.cost.source, "schedule": dict(s.call.schedule), **found_as(s)}
        for s in program.plan.steps if not s.is_view
    ]  # fmt: skip
    return {
        "kernels": steps, "candidates": report.candidates, "estimated_us": report.cost_us, "optimal": report.optimal,
        "stopped": report.search_stopped, "warnings": report.warnings, "verification": report.verification,
        "e_nodes": report.e_nodes,
    }  # fmt: skip


def found_as(step: Any) -> Record:
    """How a kernel was found, for the record.

    `generated`: whether it is a generated kernel. `transformations`: names of those of its kernel IR (DEFER, ROLL, ...:
    docs/glossary.md). `named`: composite ops in its pattern.
    """
    from tensor_graphs.backends.generate.template import GeneratedKernel
    from tensor_graphs.egraph.ops.ops import OPS

    template = step.template
    generated = isinstance(template, GeneratedKernel)
    named = {op for op in re.findall(r"(\w+)\(", step.template.pattern) if op in OPS and OPS[op].kind == "composite"}
    made = transformations(template, step.call) if generated else []
    return {"generated": generated, "transformations": made, "named": sorted(named)}


def transformations(template: Any, call: Any) -> list[str]:
    """Names of the transformations of a generated kernel's IR, sorted."""
    from tensor_graphs.backends.ir.loop_fusion import shared_maximum

    found = template.lower(call)
    if found is None:
        return []
    rolled = any(shared_maximum(e, e.axis) is not None for e in found.kernel.reductions)
    split = template.scheduled(call, found).scratch_parts > 1
    return sorted({*found.kernel.builder.transformations, *["ROLL"] * rolled, *["SPLIT"] * split})


def origin_in(folder: Path, name: str) -> Path:
    """Folder of a workload's provenance (what its program was made from), beside its record."""
    return folder / f"{name}.origin"


def keep_origin(write: Callable[[Path], None] | None, searched: Record, folder: Path) -> None:
    """Write what is needed to explain a program: its graph, the terms of its kernels, the limits of its search."""
    folder.mkdir(parents=True, exist_ok=True)
    if write is not None:
        write(folder)
    told = {"kernels": [], "blocks": [], "rules": {}, "verification": None, "searched": searched}
    (folder / "report.json").write_text(json.dumps(told) + "\n")


def explained(folder: Path, replay: bool | None = None) -> Record:
    """By which rules a workload becomes what its kernels compute, from the provenance in a folder. Needs no GPU.

    `rules` in order of first use; `steps`: number of steps and a verdict (steps without a rule, whether values were
    compared); `rounded`: dtypes in which values are stored between kernels.
    """
    from tensor_graphs.cli.explain import explain_steps

    try:
        found, _ = explain_steps(folder, seconds=EXPLAIN_S, replay=replay)
    except Exception as problem:
        return {"rules": [], "steps": {"verdict": f"not explained ({getattr(problem, 'message', problem)})"}}
    steps = [s["rule"] for b in found["blocks"] for o in b["outputs"] for s in o["steps"]]
    verdicts = dict.fromkeys(b["verdict"] for b in found["blocks"])
    return {
        "rules": list(dict.fromkeys(steps)), "rounded": [s["dtype"] for s in found["stored"]],
        "steps": {"count": len(steps), "verdict": "; ".join(verdicts)},
    }  # fmt: skip


def error(got: Any, want: Any) -> float:
    """Relative Frobenius error; infinite for NaN and for a wrong shape."""
    if tuple(got.shape) != tuple(want.shape):
        return float("inf")
    found = got.to(want.device).double()
    off = float((found - want).norm() / want.norm())
    return off if off == off else float("inf")


def installed(name: str) -> bool:
    """Whether a package is installed."""
    from importlib.util import find_spec

    return find_spec(name) is not None


def machine(device: Any) -> Record:
    """The device with its rates, measured now: bytes and operations per µs, µs of a launch."""
    from tensor_graphs.backends.tuning.gpu_calibrate import calibrate
    from tensor_graphs.backends.tuning.gpu_worker import warm_up_clock, with_gpu_lock
    from tensor_graphs.costdb.keys.device import gpu_machine

    with with_gpu_lock():
        warm_up_clock(device)
        probes = calibrate(device, 0.7)
    rates = {(p["name"], p["dtype"]): max(p["flops"], p["bytes"]) / median(p["samples"]) for p in probes}
    found = gpu_machine()
    return {
        "machine": found.device, "driver": found.driver, "toolchain": found.toolchain,
        "copy_bytes_per_us": rates["copy", "float32"], "read_bytes_per_us": rates["read", "float32"],
        "flops_per_us": rates["gemm", "bfloat16"], "flops_float32_per_us": rates["gemm", "float32"],
        "launch_us": next(median(p["samples"]) for p in probes if p["name"] == "launch"),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S"), "commit": os.environ.get("BENCH_COMMIT") or commit(),
    }  # fmt: skip


def limit_us(work: Any, record: Record) -> float:
    """Lower bound on the time in µs: compulsory bytes at the measured bandwidth, or arithmetic at the measured rate."""
    bandwidth = max(record["copy_bytes_per_us"], record["read_bytes_per_us"])
    rate = record["flops_float32_per_us" if str(getattr(work, "dtype", "")) == "torch.float32" else "flops_per_us"]
    if getattr(work, "tolerance", None) is not None:
        rate = record["flops_per_us"] / 2  # TF32
    return float(max(work.bytes / bandwidth, work.flops / rate))


def share_the_gpu() -> None:
    """Make Inductor's timing of kernels take the GPU lock, as our timing of kernels and programs does."""
    from tensor_graphs.backends.tuning.gpu_worker import with_gpu_lock

    def locked(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **named: Any) -> Any:
            with with_gpu_lock():
                return call(*args, **named)

        return run

    with contextlib.suppress(ImportError, AttributeError):  # other versions of Torch keep it elsewhere
        from torch._inductor.runtime.benchmarking import benchmarker

        benchmarker.benchmark_gpu = locked(benchmarker.benchmark_gpu)
