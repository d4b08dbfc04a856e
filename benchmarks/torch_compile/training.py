"""Training under `tg.compile` beside eager: `python -m benchmarks.torch_compile.training [--steps N] [--budget S]
[--device D] [--scale small] [names]`.

On a GPU within 70 s: `--device cuda --scale small --budget 3 --no-peer --seconds 66`.

Models: GPT-2 of 4 layers, ResNet-18, ViT-S, each with its loss. Each row: the relative error of all gradients of the
first step against eager in float64 (programs, eager), the losses of the first and the last step of both curves, the
largest difference of each from the curve of eager in float64 (relative to the first loss), µs of a training step
(forward, backward, optimizer), the operators that are in programs, and what runs after whole steps were compared. For
the errors, the curves and the column of programs they run even where they are slower. Times are lower quartiles of
alternating steps, without the time for which the thread waited for a core.

Every phase prints what it found at once. A phase that is not done when `--seconds` have passed ends there.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
from torch import nn

import tensor_graphs as tg
from benchmarks.models.training_models import Autocast, cases
from benchmarks.torch_compile.training_profile import profiled
from tensor_graphs.pipeline.execution.timing import wall_us
from tensor_graphs.torch_compile import compiled_graph, judge, whole_calls

RATE = 0.01  # of SGD
ROUNDS = 30  # timed steps of each form, alternating; fewer if they take longer than TIMED_S
TIMED_S = 4.0
BEGUN = time.monotonic()


def say(text: str) -> None:
    """Print a result as soon as it is known."""
    print(f"{time.monotonic() - BEGUN:6.1f} s  {text}", flush=True)


class TimeUp(BaseException):
    """Raised when the time of the whole run has passed; no Exception, because searches catch these."""


GRACE_S = 4.0  # after which the process ends, if it is in a backward pass: a search there sees no signal


@contextmanager
def bounded(until: float, last: Callable[[], None]) -> Iterator[None]:
    """Context manager that raises TimeUp when the monotonic clock reaches `until`.

    If the exception cannot be delivered, `last()` is called and the process ends.
    """
    if until == math.inf:
        yield
        return

    def end(*_: Any) -> None:
        raise TimeUp

    def end_process() -> None:
        last()
        os._exit(1)

    left = max(until - time.monotonic(), 1e-3)
    before, timer = signal.signal(signal.SIGALRM, end), threading.Timer(left + GRACE_S, end_process)
    timer.daemon = True
    timer.start()
    signal.setitimer(signal.ITIMER_REAL, left)
    try:
        yield
    finally:
        timer.cancel()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def always() -> Iterator[None]:
    """Context manager in which programs run even where they are slower: they are timed, but win whatever the times, and
    whole calls are not compared."""
    decided = judge.faster
    judge.faster = lambda *given: decided(*given)._replace(won=True, why="")
    begin = whole_calls.WholeCalls._begin
    whole_calls.WholeCalls._begin = lambda calls, key: calls._choose(key, calls.compiled, "")  # type: ignore[method-assign]
    try:
        yield
    finally:
        judge.faster = decided
        whole_calls.WholeCalls._begin = begin  # type: ignore[method-assign]


def losses(call: Callable[..., Any], module: nn.Module, batches: Sequence[Sequence[torch.Tensor]]) -> list[float]:
    """The loss of each step of SGD; `call` computes the loss, `module` owns the parameters."""
    optimizer = torch.optim.SGD(module.parameters(), RATE, momentum=0.9)
    found = []
    for batch in batches:
        optimizer.zero_grad()
        loss = call(*batch)
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def gradients(call: Callable[..., Any], module: nn.Module, batch: Sequence[torch.Tensor]) -> torch.Tensor:
    """All gradients of the loss as one float64 vector; parameters and buffers stay as they are."""
    kept = {n: b.clone() for n, b in module.named_buffers()}
    module.zero_grad()
    call(*batch).backward()
    found = torch.cat([p.grad.double().flatten() for p in module.parameters() if p.grad is not None])
    module.zero_grad()
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(kept[name])
    return found


def errors(call: Callable[..., Any], module: nn.Module, batch: Sequence[torch.Tensor]) -> tuple[float, float]:
    """(error of `call`, error of eager): relative errors of all gradients against eager in float64."""
    wide = copy.deepcopy(module).double()
    exact = gradients(wide, wide, [x.double() if x.is_floating_point() else x for x in batch])
    found = [gradients(c, module, batch) for c in (call, module)]
    ours, eager = (float((g - exact).norm() / exact.norm()) for g in found)
    return ours, eager


def wide(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors with floats as float64."""
    return [x.double() if x.is_floating_point() else x for x in tensors]


def operands(
    name: str, scale: str, device: str, dtype: torch.dtype, count: int, autocast: bool = False
) -> tuple[nn.Module, list[list[torch.Tensor]]]:
    """(a model with reproducible weights, `count` batches of its operands)."""
    torch.manual_seed(0)
    make, batch = cases(scale)[name]
    module = make().to(device, dtype)
    return Autocast(module) if autocast else module, [
        [x.to(device, dtype) if x.is_floating_point() else x.to(device) for x in batch()] for _ in range(count)
    ]


def steps_us(
    forms: Mapping[str, Callable[..., Any]], module: nn.Module, batch: Sequence[torch.Tensor], rounds: int = ROUNDS
) -> dict[str, float]:
    """µs of a training step with each form's loss: lower quartiles of alternating steps, after two untimed ones."""
    optimizer = torch.optim.SGD(module.parameters(), RATE)

    def step(call: Callable[..., Any]) -> None:
        optimizer.zero_grad()
        call(*batch).backward()
        optimizer.step()
        if batch[0].is_cuda:
            torch.cuda.synchronize()

    samples: dict[str, list[float]] = {f: [] for f in forms}
    begin = time.monotonic()
    for turn in range(2 + rounds):
        for form, call in forms.items():
            samples[form].append(wall_us(lambda call=call: step(call)))
        if turn > 4 and time.monotonic() - begin > TIMED_S:
            break
    return {form: round(quantiles(us[2:], n=4)[0], 1) for form, us in samples.items()}


def programs_of(report: Any) -> list[dict[str, Any]]:
    """Of each program of a graph: its pass, kernels, on a GPU the launch mode with the µs of a call in each mode,
    and what its report says about kernels and seconds."""
    found = []
    traced = next(g.traced for g in compiled_graph._graphs if g.report is report)
    for kind, runner in [(t.kind, r) for t in traced for v in t.variants for r in v._runners]:
        calls = runner.program._run
        modes = {n: round(1e6 * s, 1) for n, s in getattr(calls, "times", {}).items()}
        report_ = runner.program.report
        message = {} if report_ is None else {
            "runs": report_.runs, "seconds": dict(report_.seconds), "omitted": list(report_.omitted),
            "by_time": sorted([[round(k.us, 1), k.count, k.name, k.source] for k in report_.kernels], reverse=True)[:30],
        }  # fmt: skip
        found.append({
            "pass": kind, "report": message, "kernels": runner.program.manifest.kernels, "launch_mode": getattr(calls, "launch_mode", ""), "modes_us": modes,
            "copied": len(getattr(calls, "copied", ())), "set": len(getattr(calls, "found", ())), "why": getattr(calls, "why_copied", ""),
        })  # fmt: skip
    return found


def save_sources(report: Any, folder: Path) -> None:
    """Write the source of each program of a graph, and what its report says, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    traced = next(g.traced for g in compiled_graph._graphs if g.report is report)
    for kind, runner in [(t.kind, r) for t in traced for v in t.variants for r in v._runners]:
        (folder / f"{kind}.py").write_text(runner.program.source, encoding="utf-8")
        (folder / f"{kind}.txt").write_text(str(runner.program.report), encoding="utf-8")


def trained(
    name: str, *, scale: str, steps: int, device: str = "cpu", dtype: torch.dtype = torch.float32, untimed: bool = True,
    autocast: bool = False, profile: bool = False, sources: Path | None = None, row: dict[str, Any] | None = None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Errors of gradients, times of steps and both loss curves of a model, with programs for all that can be imported.

    They are written into `row` as they are found, and returned.
    """
    module, batches = operands(name, scale, device, dtype, min(steps, 4), autocast)
    batches = [batches[i % len(batches)] for i in range(steps)]
    reference = copy.deepcopy(module)
    row = {"case": name} if row is None else row
    with always():
        compiled = tg.compile(module, wait=True, **options)
        for phase in ("forward", "backward"):  # the first call searches one, the second the other
            gradients(compiled, module, batches[0])
            say(f"{name}: {phase} pass searched")
        gradients(compiled, module, batches[0])  # programs are tried and come into use
        report = tg.torch_compile.last_report()
        assert report is not None
        report.why = report.why.replace("programs are faster", "programs run in any case")
        row |= {
            "runs": report.runs, "report": report.to_json(), "operators": sum(x.nodes for x in report.traced),
            "in_programs": sum(p.nodes for x in report.traced for p in x.parts if p.state.startswith("program")),
        }  # fmt: skip
        say(str(report))
        row["programs"] = programs_of(report)
        if sources is not None:
            save_sources(report, sources / name)
        for one in row["programs"]:
            say(f"{name}: { ({k: v for k, v in one.items() if k != 'report'}) }")
            say(f"  {one['report'].get('seconds')} {one['report'].get('by_time', [])[:12]}")
        row["error"], row["eager_error"] = errors(compiled, module, batches[0])
        say(f"{name}: error of gradients {row['error']:.2g}, eager {row['eager_error']:.2g}")
        if not untimed:
            row |= steps_us(
                {"eager_us": reference, "programs_us": compiled}, nn.ModuleList([module, reference]), batches[0]
            )
            say(f"{name}: a step {row['programs_us']} µs with programs, {row['eager_us']} µs eager")
            if profile:
                forms = {"eager": (reference, reference), "programs": (compiled, module)}
                row["profile"] = profiled(forms, batches[0], RATE, lambda text: say(f"{name}: {text}"))
            module.load_state_dict(operands(name, scale, device, dtype, 0, autocast)[0].state_dict())
            reference.load_state_dict(module.state_dict())
        row["losses"] = losses(compiled, module, batches)
    double = copy.deepcopy(reference).double()
    exact = losses(double, double, [wide(b) for b in batches])
    row["eager_losses"] = losses(reference, reference, batches)
    row["apart"], row["eager_apart"] = (
        max(abs(a - b) for a, b in zip(row[c], exact)) / exact[0] for c in ("losses", "eager_losses")
    )
    return row


def timed(
    name: str,
    *,
    scale: str,
    device: str,
    dtype: torch.dtype,
    peer: bool = True,
    autocast: bool = False,
    row: dict[str, Any],
    **options: Any,
) -> dict[str, Any]:
    """µs of a training step: eager, `torch.compile` (with `peer`), and `tg.compile` with its own decision.

    The times are written into `row` when they are measured.
    """
    torch._dynamo.reset()
    module, (batch,) = operands(name, scale, device, dtype, 1, autocast)
    forms: dict[str, Callable[..., Any]] = {"us": tg.compile(module, wait=True, **options)}
    for _ in range(4 + 2 * whole_calls.MOST_CALLS):  # both passes are searched and judged, then whole steps
        gradients(forms["us"], module, batch)
        report = tg.torch_compile.last_report()
        if report is not None and report.calls:
            break
    forms["eager_us"] = module
    if peer:
        forms["peer_us"] = torch.compile(module)
        try:
            gradients(forms["peer_us"], module, batch)
        except Exception as error:  # no C++ compiler, for example: no figure
            say(f"torch.compile: {type(error).__name__}: {str(error)[:200]}")
            del forms["peer_us"]
    row |= steps_us(forms, module, batch)
    if report is not None:
        row["decided"] = "program" if "the compiled one" in report.calls else "eager"
        row["why"] = f"{report.why}; calls {report.calls}"
        say(f"{name}: {row['why']}")
    return row


COLUMNS = (
    "model", "operators in programs", "error of gradients: programs, eager", "first loss", "last loss: programs, eager",
    "largest difference from float64: programs, eager", "eager step, µs", "step with programs, µs", "torch.compile step, µs", "tg.compile step, µs", "runs",
)  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown; parts that failed or were omitted are empty, and the error follows the name."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for row in rows:
        cells: list[Any] = [" ".join([row["case"], *row.get("failed", ())])]
        cells.append(f"{row['in_programs']} of {row['operators']}" if "operators" in row else "")
        cells.append(f"{row['error']:.2g}, {row['eager_error']:.2g}" if "eager_error" in row else "")
        if "apart" in row:
            ours, eager = row["losses"], row["eager_losses"]
            cells += [
                f"{ours[0]:.5f}",
                f"{ours[-1]:.5f}, {eager[-1]:.5f}",
                f"{row['apart']:.2g}, {row['eager_apart']:.2g}",
            ]
        else:
            cells += [""] * 3
        cells += [
            row.get("eager_us", ""),
            row.get("programs_us", ""),
            row.get("peer_us", ""),
            row.get("us", ""),
            row.get("decided", row.get("runs", "")),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    """Measure the curves of all models, then the times of all; results are kept after each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="gpt2, resnet18, vit_s; all if none is given")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--budget", type=float, default=10.0, help="seconds for each program")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--autocast", action="store_true", help="forward passes under bfloat16 autocast")
    parser.add_argument("--scale", choices=("full", "medium", "small", "tiny"), default="full")
    parser.add_argument("--untimed", action="store_true", help="errors and curves only")
    parser.add_argument("--no-peer", action="store_true", help="do not time torch.compile")
    parser.add_argument("--profile", action="store_true", help="kernels and host times of steps, on a GPU")
    parser.add_argument("--sources", type=Path, help="folder for the programs' sources")
    parser.add_argument("--seconds", type=float, default=math.inf, help="the run ends after so many")
    parser.add_argument("--json", help="file for the rows")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    names = given.names or list(cases(given.scale))
    common = {
        "scale": given.scale,
        "device": given.device,
        "dtype": getattr(torch, given.dtype),
        "autocast": given.autocast,
        "budget": given.budget,
    }
    rows: dict[str, dict[str, Any]] = {name: {"case": name} for name in names}
    parts: list[Callable[[str], Any]] = [
        lambda name: trained(
            name,
            steps=given.steps,
            untimed=given.untimed,
            profile=given.profile,
            sources=given.sources,
            row=rows[name],
            **common,
        )
    ]
    parts += [] if given.untimed else [lambda name: timed(name, peer=not given.no_peer, row=rows[name], **common)]
    last = lambda: print(table(list(rows.values())), flush=True)
    try:
        with bounded(BEGUN + given.seconds, last):
            for part in parts:
                for name in names:
                    try:
                        part(name)
                    except Exception as error:  # the other models still have figures
                        rows[name].setdefault("failed", []).append(f"{type(error).__name__}: {str(error)[:300]}")
                    finally:
                        say(table([rows[name]]).splitlines()[2])
                        if given.json:
                            Path(given.json).write_text(
                                json.dumps(list(rows.values()), indent=1) + "\n", encoding="utf-8"
                            )
    except TimeUp:
        say("the time is up")
    last()


if __name__ == "__main__":
    main()
