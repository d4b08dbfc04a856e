"""Measures the rates of a GPU's roofline (lower bound of a kernel's time): bandwidths, GEMM rates per dtype, and the
gap between launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .gpu_device import MeasuringDevice

# bytes of a copied buffer, rows of a square product, consecutive launches
LARGE, ORDER, LAUNCHES = 256 << 20, 8192, 500
_SMALL = {"cpu": (1 << 14, 64, 20)}  # the same if the CPU replaces a GPU

Probe = dict[str, Any]  # name, dtype, flops, bytes, samples in µs


def calibrate(device: MeasuringDevice, seconds: float) -> list[Probe]:
    """Time probes of a GPU within `seconds`: a copy, a read, an in-cache copy, square GEMMs of random values, and empty
    launches."""
    import torch

    large, order, launches = _SMALL.get(device.name, (LARGE, ORDER, LAUNCHES))
    source, target = (torch.randn(large // 4, device=device.name) for _ in range(2))
    near, far = (torch.randn(device.cache_bytes // 32, device=device.name) for _ in range(2))
    total = torch.empty(1, device=device.name)
    probes: list[tuple[str, str, float, float, int, Callable[[], object]]] = [
        ("copy", "float32", 0.0, 2.0 * large, 4, lambda: target.copy_(source)),
        ("read", "float32", large / 4.0, 1.0 * large, 4, lambda: torch.sum(source, 0, keepdim=True, out=total)),
        ("cache", "float32", 0.0, 2.0 * near.numel() * 4, 50, lambda: far.copy_(near)),
        ("launch", "float32", 0.0, 1.0, launches, device.nothing),
    ]
    for dtype in ("bfloat16", "float16", "float32"):
        a, b = (torch.randn(order, order, device=device.name, dtype=getattr(torch, dtype)) for _ in range(2))
        out = torch.empty_like(a)
        run = lambda a=a, b=b, out=out: torch.mm(a, b, out=out)
        probes.append(("gemm", dtype, 2.0 * order**3, 3.0 * order**2 * a.itemsize, 1, run))
    return [
        {"name": name, "dtype": dtype, "flops": flops, "bytes": moved,
         "samples": _samples(device, run, repeats, seconds / len(probes))}
        for name, dtype, flops, moved, repeats, run in probes
    ]  # fmt: skip


def _samples(device: MeasuringDevice, run: Callable[[], object], repeats: int, seconds: float) -> list[float]:
    """Times in µs per call, from replays of `repeats` calls each; 5 to 40 samples, as `seconds` allow."""
    run()
    device.synchronize()
    replay = device.capture([run] * repeats)
    once = device.elapsed(replay)
    count = int(min(max(seconds * 0.7e6 / once, 5), 40))
    return [device.elapsed(replay) / repeats for _ in range(count)]
