"""What a training step on a GPU consists of: times on the host, and kernels on the device, of several forms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import nn

STEPS, PROFILED, MOST = (
    12,
    3,
    16,
)  # steps whose phases are timed, steps whose kernels are recorded, kernels that are listed
PHASES = ("forward", "backward", "optimizer", "wait")
CALLS = ("cudaMalloc", "cudaFree", "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpyAsync")


def phases_us(step: Callable[[], Sequence[float]]) -> dict[str, float]:
    """Median µs until the host returns from each phase of a step, and of waiting for the device afterwards."""
    samples = []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        at = [*step()]
        torch.cuda.synchronize()
        at.append(perf_counter())
        samples.append([1e6 * (b - a) for a, b in pairwise(at)])
    return {name: round(median(column), 1) for name, column in zip(PHASES, zip(*samples))}


def kernels_of(step: Callable[[], Any]) -> dict[str, Any]:
    """Kernels and copies of a step on the device: their number, their µs, the longest by name, and how often the host
    called functions that wait or allocate."""
    kinds = torch.profiler.ProfilerActivity
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profile:
        for _ in range(PROFILED):
            step()
            torch.cuda.synchronize()
    by_name: dict[str, list[float]] = defaultdict(list)
    host: dict[str, int] = defaultdict(int)
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            by_name[event.name].append(event.time_range.elapsed_us())
        elif event.name in CALLS:
            host[event.name] += 1
    longest = sorted(
        ([round(sum(us) / PROFILED, 1), len(us) / PROFILED, name[:90]] for name, us in by_name.items()), reverse=True
    )
    return {
        "kernels": sum(map(len, by_name.values())) / PROFILED, "busy_us": round(sum(sum(us) for us in by_name.values()) / PROFILED, 1),
        "host": {name: count / PROFILED for name, count in host.items()}, "longest": longest[:MOST],
    }  # fmt: skip


def profiled(
    forms: Mapping[str, tuple[Callable[..., Any], nn.Module]], batch: Sequence[torch.Tensor], rate: float,
    say: Callable[[str], None],
) -> dict[str, Any]:  # fmt: skip
    """Phases and kernels of a step of SGD with each form: (function that computes the loss, module that owns the
    parameters). `rate`: of SGD. `say` prints a line."""
    found: dict[str, Any] = {}
    for name, (call, module) in forms.items():
        optimizer = torch.optim.SGD(module.parameters(), rate)

        def step(call: Any = call, optimizer: Any = optimizer) -> list[float]:
            optimizer.zero_grad()
            at = [perf_counter()]
            loss = call(*batch)
            at.append(perf_counter())
            loss.backward()
            at.append(perf_counter())
            optimizer.step()
            return [*at, perf_counter()]

        found[name] = {"phases_us": phases_us(step), **kernels_of(step)}
        say(
            f"{name}: host {found[name]['phases_us']}, device {found[name]['busy_us']} us in {found[name]['kernels']:.0f}, calls {found[name]['host']}"
        )
        for us, count, kernel in found[name]["longest"]:
            say(f"  {us:9.1f} us {count:6.1f} x {kernel}")
    return found
