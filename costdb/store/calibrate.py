"""Measures the rates of a CPU's roofline (lower bound of a kernel's time): memory bandwidths, float32 flops rate and
NumPy call overhead.

GPU probes run in backends/tuning/gpu_calibrate.py; `calibration_rows` turns their results into rows of the store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ..keys.device import GPU_KIND, cores, device_key, driver_key, gpu_machine, toolchain_key
from ..keys.key import KernelKey, Work
from ..keys.source import source_hash
from ..price.roofline import CALIBRATION
from .schema import REGIMES, Row, TimingRow

VERSION, GPU_VERSION = "1", "1"
_LARGE = 8 << 20  # float32 values: 32 MiB per array, so that a copy's two arrays exceed the usual last-level cache
_SMALL = 32 << 10  # 128 KiB per array: fits a core's L2 cache
_ORDER = 768


def measure(threads: int = 0, *, seconds: float = 0.6) -> list[TimingRow]:
    """Timings, within `seconds`, of a large copy, a large read, a copy in cache, a float32 GEMM and a tiny ufunc.

    `threads`: number of threads used; 0: the setting `threads`.
    """
    random = np.random.default_rng(0)
    large, target = random.random(_LARGE, dtype=np.float32), np.zeros(_LARGE, dtype=np.float32)
    small, near = large[:_SMALL].copy(), np.zeros(_SMALL, dtype=np.float32)
    left, right = (large[:: _LARGE // _ORDER**2][: _ORDER**2].reshape(_ORDER, _ORDER).copy() for _ in range(2))
    product = np.empty((_ORDER, _ORDER), dtype=np.float32)
    tiny, sink = np.ones(4, dtype=np.float32), np.empty(4, dtype=np.float32)
    probes: list[tuple[str, Work, int, Callable[[], object]]] = [
        ("copy", Work(0.0, 8.0 * _LARGE), 1, lambda: np.copyto(target, large)),
        ("read", Work(2.0 * _LARGE, 4.0 * _LARGE), 1, lambda: np.dot(large, large)),
        ("cache", Work(0.0, 8.0 * _SMALL), 20, lambda: np.copyto(near, small)),
        ("gemm", Work(2.0 * _ORDER**3, 12.0 * _ORDER**2), 1, lambda: np.matmul(left, right, out=product)),
        ("launch", Work(4.0, 48.0), 200, lambda: np.add(tiny, tiny, out=sink)),
    ]
    return [
        TimingRow(
            key=_key(name, threads),
            work=work,
            samples=_sample(call, repeats, seconds / len(probes)),
            threads=threads or cores(),
        )
        for name, work, repeats, call in probes
    ]


def calibration_rows(probes: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Rows of the cost store for the results of a GPU's probes, repeated for every cache regime.

    A probe is (name, dtype, flops, bytes, samples in µs).
    """
    return [row for probe in probes for row in _rows(probe)]


def _rows(probe: Mapping[str, Any]) -> list[Row]:
    machine = gpu_machine()
    key = KernelKey(
        kernel=f"{CALIBRATION}/{probe['name']}", name=probe["name"], family=CALIBRATION, backend=GPU_KIND,
        emitter=GPU_VERSION, source=source_hash(f"{probe['name']}-{probe['flops']}-{probe['bytes']}", "text"),
        dtypes=(probe["dtype"],), device=machine.device, driver=machine.driver, toolchain=machine.toolchain,
    )  # fmt: skip
    work = Work(probe["flops"], probe["bytes"])
    return [TimingRow(key=key, work=work, samples=probe["samples"], regime=regime) for regime in REGIMES]


def _key(name: str, threads: int) -> KernelKey:
    return KernelKey(
        kernel=f"{CALIBRATION}/{name}",
        name=name,
        family=CALIBRATION,
        backend="numpy",
        emitter=VERSION,
        source=source_hash(f"{name}-{_LARGE}-{_SMALL}-{_ORDER}", "text"),
        dtypes=("float32",),
        device=device_key(threads),
        driver=driver_key(),
        toolchain=toolchain_key("numpy"),
    )


def _sample(call: Callable[[], object], repeats: int, seconds: float) -> tuple[float, ...]:
    """Samples in µs per call: 3 to 50, of `repeats` calls each, after one warm-up, within `seconds`."""
    call()
    samples: list[float] = []
    deadline = time.perf_counter() + seconds * 0.7
    while len(samples) < 3 or (time.perf_counter() < deadline and len(samples) < 50):
        start = time.perf_counter_ns()
        for _ in range(repeats):
            call()
        samples.append((time.perf_counter_ns() - start) / 1000 / repeats)
    return tuple(samples)
