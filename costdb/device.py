"""The names of the processor, the system and the tool versions that a measurement was made with."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from .. import settings
from ..errors import UsageError

_KERNEL_MODULE = Path("/proc/driver/nvidia/version")  # what NVIDIA's kernel module says of itself
_ISA_LEVELS = (
    ("avx512", {"X86_V4", "AVX512_SKX", "AVX512F"}),
    ("avx2", {"X86_V3", "AVX2"}),
    ("sse4", {"X86_V2", "SSE42"}),
    ("sve", {"SVE"}),
    ("neon", {"ASIMD", "NEON"}),
    ("vsx", {"VSX3", "VSX2", "VSX"}),
)


def machine_memory() -> int:
    """Physical memory in bytes, 2**40 where the platform does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 1 << 40


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
    if backend == "c":
        parts.append(f"cc={c_compiler()}")
    return ";".join(parts)


@lru_cache(maxsize=1)
def c_compiler() -> str:
    """The first line of the C compiler's version, "" without one."""
    command = [*shlex.split(os.environ.get("CC") or "cc"), "--version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout.partition("\n")[0]


class Machine(NamedTuple):
    """The three fields of a key that say where a time was taken."""

    device: str
    driver: str
    toolchain: str


def gpu_machine() -> Machine:
    """The GPU that plans are made for: the setting `gpu` (a machine elsewhere: its three fields, joined by "|"), else the
    first one here, else this CPU interpreting its kernels. UsageError for a setting of another form."""
    return _gpu_machine(settings.current().gpu)


def machine_here() -> Machine:
    """The first GPU here, whatever plans are made for; else this CPU interpreting its kernels."""
    return _gpu_machine("")


@lru_cache(maxsize=8)
def _gpu_machine(chosen: str) -> Machine:
    if chosen:
        fields = chosen.split("|")
        if len(fields) != 3 or not all(fields):
            raise UsageError(
                f"the setting gpu is {chosen!r}", where="TENSOR_GRAPHS_GPU", hint="device|driver|toolchain"
            )
        return Machine(*fields)
    facts = gpu_facts()
    versions = f"torch={_version('torch')};cuda={facts.get('cuda', 'none')};triton={_version('triton')}"
    if not facts:
        return Machine(f"interpreter:{device_key()}", driver_key(), versions)
    name = f"gpu:{facts['name']}:sm{facts['capability']}:multiprocessors={facts['multiprocessors']}"
    return Machine(name, f"nvidia-{facts['driver']}", versions)


@lru_cache(maxsize=1)
def gpu_facts() -> dict[str, Any]:
    """The first NVIDIA GPU as Torch sees it; empty where there is none. The driver's version without its patch level."""
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    found = torch.cuda.get_device_properties(0)
    return {
        "name": found.name,
        "capability": 10 * found.major + found.minor,
        "multiprocessors": found.multi_processor_count,
        "cache_bytes": int(found.L2_cache_size),
        "memory_bytes": int(found.total_memory),
        "driver": _nvidia_driver(),
        "cuda": torch.version.cuda,
    }


def _nvidia_driver() -> str:
    """The driver's version without its patch level: as the kernel says, which takes no time, else as the driver's own tool does,
    which may take a second."""
    with suppress(OSError):
        told = _KERNEL_MODULE.read_text(encoding="ascii", errors="replace")
        if found := re.search(r"^NVRM version:.*?\s(\d+)\.\d+", told, re.MULTILINE):
            return found[1]
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return said.strip().partition(".")[0] or "unknown"


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
