"""The names of the processor, the system and the tool versions that a CPU measurement was made with."""

from __future__ import annotations

import os
import platform
import sys
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from .. import settings

_ISA_LEVELS = (
    ("avx512", {"X86_V4", "AVX512_SKX", "AVX512F"}),
    ("avx2", {"X86_V3", "AVX2"}),
    ("sse4", {"X86_V2", "SSE42"}),
    ("sve", {"SVE"}),
    ("neon", {"ASIMD", "NEON"}),
    ("vsx", {"VSX3", "VSX2", "VSX"}),
)


def cores() -> int:
    """CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def device_key(threads: int = 0) -> str:
    """The CPU as a key: model, stepping, ISA level, cores usable and threads used (0: as the settings say)."""
    available = cores()
    used = threads or settings.current().threads or available
    return f"cpu:{_cpu_model()}:{_isa_level()}:cores={available}:threads={used}"


def driver_key() -> str:
    """What plays the part of a driver for a CPU: operating system and machine, without its patch level."""
    return f"{sys.platform}-{platform.machine()}"


def toolchain_key(backend: str = "numpy") -> str:
    """Versions that can change a kernel's time: Python, NumPy and its BLAS; torch too for backends built on it.

    What else happens to be imported does not count, so one kernel has one key in every process.
    """
    parts = [f"python={platform.python_version()}", *_numpy_parts()]
    if backend != "numpy":
        parts.append(f"torch={_version('torch')}")
    if backend == "triton":
        parts.append(f"triton={_version('triton')}")
    return ";".join(parts)


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "none"


@lru_cache(maxsize=1)
def _numpy_config() -> dict[str, Any]:
    import numpy as np

    return dict(np.show_config(mode="dicts") or {})


@lru_cache(maxsize=1)
def _numpy_parts() -> tuple[str, str]:
    blas = _numpy_config().get("Build Dependencies", {}).get("blas", {})
    return f"numpy={_version('numpy')}", f"blas={blas.get('name', 'none')}-{blas.get('version', '')}"


def _isa_level() -> str:
    simd = _numpy_config().get("SIMD Extensions", {})
    present = set(simd.get("baseline", ())) | set(simd.get("found", ()))
    return next((level for level, names in _ISA_LEVELS if names & present), platform.machine())


@lru_cache(maxsize=1)
def _cpu_model() -> str:
    """Model name with family, model and stepping where the system tells: cloud machines share marketing names."""
    wanted = ("model name", "cpu family", "model", "stepping")
    facts: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines():
            name, _, value = line.partition(":")
            if name.strip() in wanted:
                facts[name.strip()] = value.strip()
    except OSError:
        pass
    if "model name" not in facts:
        return platform.processor() or platform.machine()
    return f"{facts['model name']} {'-'.join(facts.get(part, '?') for part in wanted[1:])}"
