"""Computes the roofline of a kernel: the lower bound of its time from launch overhead, memory traffic and
arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..keys import rates
from ..keys.device import GPU_KIND
from ..keys.key import Work
from .numpy_loops import loops_us

if TYPE_CHECKING:
    from ..store.snapshot import Snapshot

# Kernels that move so many times the bytes of the cache tell the bandwidth, too; the third fastest counts, lest one
# wrong row decide. On an H200 products of one row read at 4.5 TB/s where a copy moves 4.2, and a sum reads 3.9.
MOVING, RANK = 3.0, 3
CALIBRATION = "calibration"
"""Family of the rows stored by `calibrate`."""


@dataclass(frozen=True)
class DeviceRoofline:
    """Limits of one device, backend and dtype: µs per launch, bytes per µs, flops per µs.

    The first `cache_bytes` of traffic move at `cache_bytes_per_us`: otherwise data in cache could beat the bound.
    S. Williams, A. Waterman, D. Patterson: Roofline (CACM 52(4), 2009), with launch overhead added.
    """

    launch_us: float
    bytes_per_us: float
    flops_per_us: float
    cache_bytes: float = 0.0
    cache_bytes_per_us: float = float("inf")

    def us(self, work: Work) -> float:
        """Lower bound in µs of the time of a kernel with this work; increases with flops and bytes."""
        near = min(work.bytes, self.cache_bytes)
        traffic = near / self.cache_bytes_per_us + (work.bytes - near) / self.bytes_per_us
        return self.launch_us + max(traffic, work.flops / self.flops_per_us)


def _stated(known: rates.Rates) -> DeviceRoofline:
    return DeviceRoofline(
        known.launch_us, known.bytes_per_us, known.flops_per_us, known.cache_bytes, known.cache_bytes_per_us
    )


_CPU, _GPU = _stated(rates.HOST), _stated(rates.GPU)

DEFAULTS: dict[str, DeviceRoofline] = {
    "numpy": _CPU,
    "torch": replace(_CPU, launch_us=2.0),
    "triton": _GPU,
    GPU_KIND: _GPU,
}
"""Stated limits per backend where nothing was calibrated (`costdb.keys.rates`)."""

_FLOPS_SCALE: dict[str, Mapping[str, float]] = {
    "numpy": rates.HOST.dtype_factors,
    "torch": {**rates.HOST.dtype_factors, "bfloat16": 2.0, "float16": 2.0},
    "triton": rates.GPU.dtype_factors,
    GPU_KIND: rates.GPU.dtype_factors,
}
"""Flops rate of a dtype relative to float32; 1 where not listed."""

_SANE = {"launch": (1e-2, 1e3), "copy": (1e2, 2e7), "read": (1e2, 2e7), "cache": (1e2, 5e7), "gemm": (1e2, 1e10)}
"""Plausible ranges (µs, bytes per µs, flops per µs); calibration rows outside are ignored."""


_LABELS = {("gemm", dtype): f"gemm:{dtype}" for dtype in ("float64", "bfloat16", "float16", "int8")}
"""Names of measured GEMM rates in other dtypes than float32, which take precedence over the scaled float32 rate."""


def _dtype(text: str) -> str:
    """The dtype of a calibration key, from its JSON text."""
    return text.strip('[]"')


class Rooflines:
    """The rooflines of all devices in a snapshot, calibrated where it has calibration rows."""

    def __init__(self, snapshot: Snapshot, regime: str = "hot") -> None:
        self._regime = regime
        self._facts = _calibrations(snapshot, regime)
        for device, rate in _fastest(snapshot, regime).items():
            self._facts.setdefault(device, {})["kernels"] = rate
        self._made: dict[tuple[str, str, str], DeviceRoofline] = {}

    def of(self, device: str, backend: str, dtype: str = "float32") -> DeviceRoofline:
        """The roofline of a device, backend and dtype (the first dtype of the key)."""
        place = (device, backend, dtype)
        if place not in self._made:
            self._made[place] = self._make(device, backend, dtype)
        return self._made[place]

    def bound_us(self, columns: Mapping[str, Any], work: Work) -> float:
        """Lower bound in µs of a key (a kernel at one shape, layout, schedule and machine), by its `columns` and work:
        its roofline; for a NumPy reduction the estimate of numpy_loops.py, which may be too high (`SPREAD` there)."""
        found = self.of(columns["device"], columns["backend"], first_dtype(columns["dtypes"]))
        loops = loops_us(columns)
        return max(found.us(work), found.launch_us + loops) if loops else found.us(work)

    def _make(self, device: str, backend: str, dtype: str) -> DeviceRoofline:
        base = DEFAULTS.get(backend, _GPU if backend not in DEFAULTS and not device.startswith("cpu") else _CPU)
        facts = self._facts.get(device, {})
        scale = _FLOPS_SCALE.get(backend, _FLOPS_SCALE[GPU_KIND] if base is _GPU else {}).get(dtype, 1.0)
        traffic = max((facts[name] for name in ("copy", "read", "kernels") if name in facts), default=base.bytes_per_us)
        launch = facts.get("launch:cuda", base.launch_us) if base is _GPU else base.launch_us
        return DeviceRoofline(
            launch_us=facts.get(f"launch:{backend}", launch),
            bytes_per_us=traffic,
            flops_per_us=facts.get(f"gemm:{dtype}", facts.get("gemm", base.flops_per_us) * scale),
            cache_bytes=0.0 if self._regime == "cold" else base.cache_bytes,
            cache_bytes_per_us=max(facts.get("cache", base.cache_bytes_per_us), traffic),
        )

    def measured(self) -> dict[str, dict[str, float]]:
        """Device -> calibration -> its figure: µs for launches, bytes or flops per µs for the others. "kernels": bytes
        per µs of the fastest measured kernels (`_fastest`)."""
        return {device: dict(sorted(facts.items())) for device, facts in sorted(self._facts.items())}


def first_dtype(text: str) -> str:
    """The first dtype of a key (a kernel at one shape, layout, schedule and machine), parsed from JSON text; float32 if
    the text is not a list of dtypes."""
    first = text.removeprefix("[").partition(",")[0].removesuffix("]").strip('"')
    return first or "float32"


def _calibrations(snapshot: Snapshot, regime: str) -> dict[str, dict[str, float]]:
    """Calibrated figures per device, from the fast end of each spread, since a lower bound must not be pessimistic."""
    families = snapshot.column("timing", "family")
    if CALIBRATION not in families:
        return {}
    rates: dict[str, dict[str, float]] = {}
    digests = snapshot.column("timing", "digest")
    for digest in sorted({digest for digest, family in zip(digests, families) if family == CALIBRATION}):
        row, measurement = snapshot.first_row(digest), snapshot.measurement(digest, regime)
        if measurement is None or row["name"] not in _SANE:
            continue
        name, us = row["name"], measurement.low
        figure = us if name == "launch" else max(row["flops"], row["bytes"]) / us
        low, high = _SANE[name]
        if not low <= figure <= high:
            continue
        facts = rates.setdefault(row["device"], {})
        label = f"launch:{row['backend']}" if name == "launch" else _LABELS.get((name, _dtype(row["dtypes"])), name)
        better = min if name == "launch" else max
        facts[label] = better(figure, facts.get(label, figure))
    return rates


def _fastest(snapshot: Snapshot, regime: str) -> dict[str, float]:
    """Bytes per µs of the fastest measured kernels of each GPU that move many times the bytes of its cache. Empty for
    times with data in the cache."""
    if regime != "cold":
        return {}
    found: dict[str, list[float]] = {}
    columns = (snapshot.column("timing", name) for name in ("digest", "device", "family", "bytes"))
    for digest, device, family, nbytes in {row[0]: row for row in zip(*columns, strict=True)}.values():
        base = _CPU if device.startswith("cpu") else _GPU
        if family == CALIBRATION or base is _CPU or nbytes < MOVING * base.cache_bytes:
            continue
        if (measurement := snapshot.measurement(digest, regime)) is not None:
            found.setdefault(device, []).append(nbytes / measurement.us)
    low, high = _SANE["read"]
    ranked = {device: sorted((r for r in rates if r <= high), reverse=True) for device, rates in found.items()}
    return {
        device: rates[RANK - 1] for device, rates in ranked.items() if len(rates) >= RANK and rates[RANK - 1] >= low
    }
