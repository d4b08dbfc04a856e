"""The GPU table: `python -m benchmarks.gpu [--only NAME ...] [--seconds 540] [--ours-only] [--render | --explain]`.

Prepare a bare machine with `. benchmarks/gpu_setup.sh`. Each workload runs in a process of its own, in several
variants: eager PyTorch, torch.compile (default and max-autotune), XLA if JAX is installed, our program, and our program
of generated kernels only. All variants are captured in CUDA graphs over rotating arguments, so that weights come from
memory, and replayed in turn. Each result is written at once to results/gpu/NAME.json; results/gpu.md is made from all
of them. A run begins with the workloads measured longest ago and ends after `--seconds`: several short runs replace a
long one. The provenance of our program is stored beside each record, in NAME.origin/: `--explain` derives from it,
without a GPU, by which rules the program was found. With `--ours-only`, the peers' times of an earlier run on the same
kind of machine are kept, and marked.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu_again import SPELLED
from benchmarks.run import commit

HERE = Path(__file__).parent
RESULTS = HERE / "results/gpu"
TABLE = HERE / "results/gpu.md"
PEERS = ("eager", "default", "max-autotune", "xla")
OURS = ("ours", "generated")
BACKENDS = {"ours": "gpu", "generated": "generated", "triton": "triton-only"}
CASE_S, WARM_S = 240.0, 150.0  # most seconds of a case, of compiling ahead
LAST_S = 45.0  # least seconds to begin a case with
EXPLAIN_S = 30.0  # from here on no further form of a block is explained
ROUNDS, REPLAY_US, MOST_SETS = 15, 1500.0, 64
RESTS, REST_S = 9, 0.1  # replays after a pause, and its seconds: the power limit has forgotten the last one by then
HELD = 0xEC  # of NVML's reasons for a clock: held by the power cap, slowed for heat or power

Record = dict[str, Any]
Run = Callable[[], Any]


# ---------------------------------------------------------------- one case
class Case:
    """A workload measured in this process; its record is written to `target` after every step."""

    def __init__(self, full: Any, work: Any, target: Path, device: str, budget: float, store: Path) -> None:
        """`work` is what is measured: the workload `full` itself, or the same workload at small sizes."""
        import torch

        from benchmarks import workloads
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

        An exception is recorded as its failure, and the case continues.
        """
        found: Record = self.record["variants"].setdefault(name, {})
        print(f"{self.work.name}: {name}", file=sys.stderr, flush=True)
        try:
            yield found
        except Exception as problem:
            traceback.print_exc()
            found["failed"] = f"{type(problem).__name__}: {problem}"[:400]
            self.calls.pop(name, None)
        self.write()

    # ------------------------------------------------------------ ways to run it
    def add(self, name: str, found: Record, calls: list[Run]) -> None:
        """Compare the result of the first call with the exact one, and register the calls (one per set of arguments)
        for timing.
        """
        from benchmarks.workloads import flat

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
            from benchmarks.jax_workloads import on_all
            from tensor_graphs.backends.tuning.gpu_worker import alone

            rounds = max(1, 32 // len(self.sets))
            start = time.monotonic()
            run, first = on_all(self.work.jax, self.sets * rounds)
            found["seconds"] = time.monotonic() - start
            results = [self.torch.from_dlpack(x) for x in (first if isinstance(first, tuple) else (first,))]
            found["error"] = max(error(got, want) for got, want in zip(results, self.exact, strict=True))
            samples = []
            with alone():
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
        from tensor_graphs.backends.program.emission import executed

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
        from tensor_graphs.backends.tuning.gpu_worker import alone

        replays: dict[str, tuple[Run, int]] = {}
        with self.torch.no_grad(), alone():
            for name, calls in list(self.calls.items()):
                with self.variant(name):
                    for call in calls[:2]:
                        call()
                    self.device.synchronize()
                    once = self.device.capture(calls)
                    once()
                    lap = min(self.device.laps(once, 2))  # one by one, the host's launches would be timed
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

    `generated`: whether it is a generated kernel. `ways`: transformations of its kernel IR. `named`: composite ops in
    its pattern.
    """
    from tensor_graphs.egraph.ir.ops import OPS

    ways = getattr(step.template, "ways", None)
    named = {op for op in re.findall(r"(\w+)\(", step.template.pattern) if op in OPS and OPS[op].kind == "composite"}
    return {"generated": ways is not None, "ways": list(ways(step.call)) if ways else [], "named": sorted(named)}


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


def explain_all(names: Sequence[str]) -> int:
    """Explain the stored results of workloads; returns how many were explained.

    If the provenance of a program was not kept, its plan is found again (`again`).
    """
    count = 0
    for name in names:
        folder, found = origin_in(RESULTS, name), stored(name)
        ours: Record = {} if found is None else found["variants"].get("ours", {})
        if found is None or not ours.get("kernels") or not (folder.is_dir() or again(name, ours, folder)):
            continue
        ours |= explained(folder)
        (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        count += 1
    return count


def again(name: str, ours: Record, folder: Path) -> bool:
    """Find the plan of a record again (gpu_again.py) and write its provenance; returns whether it was found."""
    from benchmarks.gpu_again import found_again, kernel
    from benchmarks.workloads import WORKLOADS
    from tensor_graphs.pipeline.provenance import write_origin

    inputs, weights = WORKLOADS[name].arguments("cpu")
    plan = found_again(WORKLOADS[name].module(weights), inputs, ours["kernels"])
    if plan is None:
        return False
    keep_origin(partial(write_origin, origin=plan.origin), plan.searched, folder)
    ways = {kernel(s.template): found_as(s) for s in plan.steps}
    for k in ours["kernels"]:
        k |= ways[k["kernel"], k["pattern"]]
    ours["found_again"] = True
    return True


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
    from tensor_graphs.backends.tuning.gpu_worker import alone, keep_busy
    from tensor_graphs.costdb.keys.device import gpu_machine

    with alone():
        keep_busy(device)
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


def child(options: argparse.Namespace) -> None:
    """Measure one case in this process, or only compile its peers' kernels into the caches on disk."""
    if options.child == "warm":
        warm(options.case, options.device, options.small)
        return
    from benchmarks.workloads import WORKLOADS, small

    share_the_gpu()
    full = WORKLOADS[options.case]
    work = small(full) if options.small else full
    case = Case(full, work, options.to, options.device, options.budget, options.store)
    case.record["together"] = options.together
    case.write()
    with case.torch.no_grad():
        case.eager()
        if not options.ours_only:
            case.peers()
    case.time()
    if not options.ours_only:
        case.xla()
    case.ours()
    case.time(RESTS)
    case.explain()
    case.record["finished"] = True
    case.write()


def warm(name: str, device: str, small: bool) -> None:
    """Compile a workload in the modes of torch.compile, which fills the caches on disk.

    Processes of several workloads share the GPU, but each measurement has the GPU alone.
    """
    import torch

    from benchmarks import workloads

    share_the_gpu()
    work = workloads.small(workloads.WORKLOADS[name]) if small else workloads.WORKLOADS[name]
    inputs, weights = work.arguments(device)
    with torch.no_grad():
        for mode in ("default", "max-autotune"):
            compiled_as(work.call, mode)(*inputs, *weights)
            torch._dynamo.reset()


def share_the_gpu() -> None:
    """Make Inductor's timing of kernels and our timing of programs take the GPU lock, as our timing of kernels does."""
    from tensor_graphs.backends.tuning.gpu_worker import alone
    from tensor_graphs.pipeline import timing

    def locked(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **named: Any) -> Any:
            with alone():
                return call(*args, **named)

        return run

    timing.gpu_us = locked(timing.gpu_us)
    with contextlib.suppress(ImportError, AttributeError):  # other versions of Torch keep it elsewhere
        from torch._inductor.runtime.benchmarking import benchmarker

        benchmarker.benchmark_gpu = locked(benchmarker.benchmark_gpu)


# ---------------------------------------------------------------- all cases
def stored(name: str) -> Record | None:
    """The stored record of a case; None if there is none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def started(
    arguments: Sequence[str], options: argparse.Namespace, module: str = "benchmarks.gpu"
) -> subprocess.Popen[bytes]:
    """Start a process of `module` with these arguments, with the device, sizes and folders of the options."""
    more = ["--device", options.device, *(["--small"] if options.small else [])]
    lock = options.work / "gpu.lock"
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TENSOR_GRAPHS_GPU_LOCK": str(lock)}
    environment.setdefault("TENSOR_GRAPHS_HOME", str(options.work / "home"))
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments, *more],
        cwd=HERE.parent,
        start_new_session=True,
        env=environment,
    )


def waited(process: subprocess.Popen[bytes], seconds: float) -> str:
    """Wait for a process; returns "" if it succeeded, else how it ended.

    It is killed with all its children after `seconds`.
    """
    try:
        code = process.wait(max(seconds, 0.1))
        return "" if code == 0 else f"the process ended with code {code}"
    except subprocess.TimeoutExpired:
        return f"stopped after {seconds:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_case(name: str, options: argparse.Namespace, seconds: float) -> Record:
    """Measure a case in a process of its own; returns its record, with the reason if the process failed."""
    target = options.work / f"{name}.json"
    target.unlink(missing_ok=True)
    shutil.rmtree(origin_in(options.work, name), ignore_errors=True)
    arguments = ["--child", "time", "--case", name, "--to", str(target), "--budget", str(options.budget),
                 "--store", str(options.store / name), "--together", str(options.together),
                 *(["--ours-only"] if options.ours_only else [])]  # fmt: skip
    return recorded(name, target, waited(started(arguments, options), seconds))


def recorded(name: str, target: Path, ended: str) -> Record:
    """The record that the process of a case wrote; `ended` (if not empty) is added as its failure."""
    found: Record = json.loads(target.read_text()) if target.exists() else {"name": name, "variants": {}}
    return {**found, "failed": ended} if ended else found


def merged(old: Record | None, new: Record) -> Record:
    """A new record, completed with times of an old one for variants that the new one did not measure.

    Only if both are of the same machine and sizes.
    """
    if old is None or any(old.get(k) != new.get(k) for k in ("machine", "small")):
        return new
    for name in (*PEERS, *OURS):
        found, before = new["variants"].get(name), old["variants"].get(name)
        if before and "us" in before and "us" not in (found or {}):
            kept = {**before, "kept_from": before.get("kept_from", f"{old['date']}, {old['toolchain']}")}
            new["variants"][name] = {**kept, **({"failed": found["failed"]} if found and "failed" in found else {})}
    return new


def run(options: argparse.Namespace) -> int:
    """Measure cases, those measured longest ago first, until the time is up; returns how many failed.

    Raises SystemExit for an unknown name.
    """
    from benchmarks.workloads import WORKLOADS

    RESULTS.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    names = options.only or list(WORKLOADS)
    if unknown := set(names) - set(WORKLOADS):
        raise SystemExit(f"no workloads are called {sorted(unknown)}; there are {', '.join(WORKLOADS)}")
    names = sorted(names, key=lambda n: (stored(n) or {}).get("date", ""))
    until, failed = time.monotonic() + options.seconds, 0
    while names and until - time.monotonic() > LAST_S:
        count = max(options.parallel, options.together)
        batch, names = names[:count], names[count:]
        if not options.ours_only:
            compiling = [started(["--child", "warm", "--case", n], options) for n in batch]
            end = time.monotonic() + min(WARM_S, 0.4 * (until - time.monotonic()))
            for process in compiling:
                waited(process, end - time.monotonic())
        with ThreadPoolExecutor(options.together) as threads:
            failed += sum(threads.map(lambda name: finished(name, options, until), batch))
    return failed


def finished(name: str, options: argparse.Namespace, until: float) -> bool:
    """Measure a case if time is left, and write its record and the table; returns whether it failed."""
    left = until - time.monotonic()
    if left < LAST_S:
        return False
    print(f"== {name} ({left:.0f} s left)", file=sys.stderr, flush=True)
    found = merged(stored(name), run_case(name, options, min(options.case_seconds, left)))
    if found.get("date"):
        (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        if (origin := origin_in(options.work, name)).is_dir() and "kept_from" not in found["variants"].get("ours", {}):
            shutil.copytree(origin, origin_in(RESULTS, name), dirs_exist_ok=True)
    with _writing:
        TABLE.write_text(render())
        print(line(found), flush=True)
    return "failed" in found or any("failed" in found["variants"].get(n, {}) for n in OURS)


_writing = threading.Lock()


# ---------------------------------------------------------------- the table
def best_peer(record: Record) -> tuple[str, float] | None:
    """(name, µs) of the fastest peer: of those timed in this record, and of the best time known from before."""
    from benchmarks.workloads import WORKLOADS

    times = {n: record["variants"][n]["us"] for n in PEERS if "us" in record["variants"].get(n, {})}
    if WORKLOADS[record["name"]].seen:
        times["seen"] = WORKLOADS[record["name"]].seen
    return min(times.items(), key=lambda item: item[1]) if times else None


def how(found: Record) -> str:
    """The kernels of a plan as text, with counts; the failure if there is no plan."""
    if "kernels" not in found:
        return str(found.get("failed", ""))[:80]
    names: dict[str, int] = {}
    for k in found["kernels"]:
        names[k["kernel"]] = names.get(k["kernel"], 0) + 1
    return ", ".join(f"{n} x{count}" if count > 1 else n for n, count in names.items())


def way(record: Record) -> str:
    """How a workload's plan was found, as a line of Markdown.

    The rules applied, and for each kernel whether it is a library kernel, or generated from which ops by which
    transformations of the kernel IR.
    """
    ours = record["variants"].get("ours", {})
    kernels = [k for k in ours.get("kernels", ()) if "generated" in k]
    if not kernels:
        return ""
    texts = [
        f"`{k['kernel']}`: " + (", ".join(filter(None, [
            "generated", f"of {', '.join(k['named'])}" if k["named"] else "of single operations", *k["ways"]
        ])) if k["generated"] else "library")
        for k in kernels
    ]  # fmt: skip
    rules, steps = ", ".join(ours.get("rules", ())) or "none", ours.get("steps", {})
    if steps:
        count = f"{steps['count']} step{'s' * (steps['count'] != 1)}, " if "count" in steps else ""
        whose = ", of a plan of the same kernels, found again" if ours.get("found_again") else ""
        rules += f" ({count}{steps['verdict']}{whose})"
    rounded = ours.get("rounded", ())
    texts += [f"rounded to {d} where it is stored: {rounded.count(d)} of its values" for d in dict.fromkeys(rounded)]
    return f"- {record['name']}: rules {rules}; {'; '.join(dict.fromkeys(texts))}"


def line(record: Record) -> str:
    """A record as one row of the table."""
    from benchmarks.workloads import WORKLOADS

    work, variants = WORKLOADS[record["name"]], record["variants"]

    def us(name: str) -> str:
        found = variants.get(name, {})
        if "us" not in found:
            return "failed" if "failed" in found else ""
        return f"{found['us']:.1f}" + ("†" if "kept_from" in found else "")

    ours, peer, limit = variants.get("ours", {}), best_peer(record), record.get("limit_us")
    mine = ours.get("us")
    share = f"{100 * limit / mine:.0f} %" if mine and limit else ""
    ratio = f"{peer[1] / mine:.2f}{'‡' if peer[0] == 'seen' else ''}" if mine and peer else ""
    seconds = " / ".join(f"{ours[n]:.3g}" for n in ("cold_s", "warm_s") if n in ours)
    errors = " / ".join(f"{variants[n]['error']:.1e}" for n in ("ours", "eager") if "error" in variants.get(n, {}))
    wanted = f"{work.wanted:g}" if work.wanted else ""
    mark = reached(ours, work.wanted) if mine and work.wanted else ""
    seen = f"{work.seen:g}" if work.seen else ""
    cells = [record["name"], f"{limit:.1f}" if limit else "", *map(us, PEERS), seen, us("ours"), share, ratio, us("generated"),
             wanted + mark, rested(variants), seconds, errors, how(ours)]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def reached(ours: Mapping[str, Any], wanted: float) -> str:
    """Text that says whether our time is the wanted one.

    If the driver limits the clock for power only without pauses, both states are named: the wanted time may be met
    after pauses and missed at the power limit.
    """
    if ours["us"] <= wanted:
        return " yes"
    if ours.get("capped", 0.0) > 0.5 > ours.get("rested_capped", 1.0) and ours["rested_us"] <= wanted:
        return " yes rested, **no** at the power limit"
    return " **no**"


def rested(variants: Mapping[str, Record]) -> str:
    """Times in µs after a pause, as text: the fastest peer of this run / ours; "" if either is missing."""
    peers = [x["rested_us"] for n in PEERS if "rested_us" in (x := variants.get(n, {})) and "kept_from" not in x]
    mine = variants.get("ours", {}).get("rested_us")
    return f"{min(peers):.1f} / {mine:.1f}" if peers and mine else ""


HEAD = ("workload", "limit µs", "eager", "compile", "max-autotune", "XLA", "best peer seen before", "ours µs", "of limit", "× best peer", "generated only",
        "wanted", "rested: best peer / ours", "optimize s cold / warm", "error ours / eager", "our kernels")  # fmt: skip


def render() -> str:
    """The table of all stored results as Markdown."""
    from benchmarks.workloads import WORKLOADS

    found = [r for n in WORKLOADS if (r := stored(n)) is not None]
    rows = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD), *map(line, found)]
    notes = [
        _machine_note([r for r in found if r.get("machine") == m])
        for m in dict.fromkeys(r["machine"] for r in found if "machine" in r)
    ]
    legend = (
        "µs a call: median of replays of CUDA graphs over rotating arguments, more than five times the L2 cache, all variants in "
        "turn; rested: the same after a pause of 0.1 s before each replay (products without one reach the chip's power limit, and its "
        "clock sinks). Optimization seconds leave out timing the finished program. XLA: wall clock of one program over many argument sets. The limit is the larger of compulsory bytes over "
        "measured bandwidth and arithmetic over the measured rate. Errors are relative to float64 (Frobenius). † kept from an "
        "earlier run (until 40ad811 replays of what the host launches slowly were short, ours and theirs: some 0.5 µs a call more). "
        '"Best peer seen before": the best of the same peers on this kind of machine the day before, with torch 2.11; '
        "‡ the ratio is to that. Products of weights alone (the chain's, the shared factor's, LoRA's) may be folded when weights are bound."
    )
    notes += [f"- {r['name']}: {r['note']}" for r in found if r.get("note")]
    ways = [text for r in found if (text := way(r))]
    if ways:
        notes += ["", "## How each was found", "", *ways]
    return "\n".join(["# Workloads on a GPU", "", *rows, "", legend, "", *notes]) + "\n"


def _machine_note(records: Sequence[Record]) -> str:
    """Line of Markdown on a machine: its rates as the cases found them, dates and commits."""

    def between(key: str, unit: float, digits: int) -> str:
        values = [r[key] / unit for r in records]
        return f"{min(values):.{digits}f}-{max(values):.{digits}f}"

    r = records[0]
    dates, commits = (", ".join(sorted({str(x[k])[:10] for x in records})) for k in ("date", "commit"))
    return (
        f"- {r['machine']}, {r['driver']}, {r['toolchain']}: copy {between('copy_bytes_per_us', 1e6, 2)} TB/s, "
        f"read {between('read_bytes_per_us', 1e6, 2)} TB/s, {between('flops_per_us', 1e6, 0)} bf16 TFLOP/s, "
        f"{between('launch_us', 1, 2)} µs a launch ({dates}; commits {commits})"
    )


def main() -> int:
    """Parse the command line, measure, and write the table; returns how many cases failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--seconds", type=float, default=540.0, help="of the whole run")
    parser.add_argument("--case-seconds", type=float, default=CASE_S, help="of one workload")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of each optimization")
    parser.add_argument("--ours-only", action="store_true", help="keep compiled peers' times of an earlier run")
    parser.add_argument("--parallel", type=int, default=4, help="workloads whose peers compile side by side")
    parser.add_argument("--together", type=int, default=1, help="workloads optimized side by side (timing stays alone)")
    parser.add_argument("--store", type=Path, help="folder of cost stores, one per workload (default: new ones)")
    parser.add_argument("--work", type=Path, default=HERE.parent / "out/bench/gpu", help="folder for caches and parts")
    parser.add_argument("--results", type=Path, help="folder for records and the table (default: benchmarks/results)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: does everything run?")
    parser.add_argument("--small", action="store_true", help="small sizes")
    parser.add_argument("--render", action="store_true", help="only write the table again")
    parser.add_argument(
        "--explain", action="store_true", help="only explain stored results again, and replay the steps (no GPU)"
    )
    parser.add_argument("--child", choices=("time", "warm"), help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return 0
    options.store = options.store or options.work / f"stores-{int(time.time())}"
    global RESULTS, TABLE
    if options.results:
        RESULTS, TABLE = options.results / "gpu", options.results / "gpu.md"
    elif options.small or options.device == "cpu":  # not for the table
        RESULTS, TABLE = options.work / "small", options.work / "small.md"
    if options.explain:
        from benchmarks.workloads import WORKLOADS

        explain_all(options.only or list(WORKLOADS))
    failed = 0 if options.render or options.explain else run(options)
    TABLE.write_text(render())
    return failed


if __name__ == "__main__":
    sys.exit(main())
