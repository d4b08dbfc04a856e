"""Identifies the processor, operating system and tool versions under which a time is measured."""

from __future__ import annotations

import ctypes
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

from ... import settings
from ...processes.commands import command_output

_KERNEL_MODULE = Path("/proc/driver/nvidia/version")  # version file of NVIDIA's kernel module
_ISA_LEVELS = (
    ("avx512", {"X86_V4", "AVX512_SKX", "AVX512F"}),
    ("avx2", {"X86_V3", "AVX2"}),
    ("sse4", {"X86_V2", "SSE42"}),
    ("sve", {"SVE"}),
    ("neon", {"ASIMD", "NEON"}),
    ("vsx", {"VSX3", "VSX2", "VSX"}),
)


#: Name of NVIDIA GPUs as devices: in plans, in saved programs, in calibration rows of the store, and in Torch.
GPU_KIND = "cuda"


def cores() -> int:
    """Number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def device_key(threads: int = 0) -> str:
    """The CPU as a key: model, stepping, ISA level, usable cores and threads used (0: the setting `threads`)."""
    available = cores()
    used = threads or settings.current().threads or available
    return f"cpu:{_cpu_model()}:{_isa_level()}:cores={available}:threads={used}"


def driver_key() -> str:
    """Key field "driver" of a CPU: operating system and machine, without patch level."""
    return f"{sys.platform}-{platform.machine()}"


def toolchain_key(backend: str = "numpy") -> str:
    """Versions that can affect a kernel's time: Python, NumPy and its BLAS; also those of the backend's own tools.

    Independent of other imported modules, so that a kernel has the same key in every process.
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
    """The first line of `cc --version` (or $CC); empty without a C compiler."""
    try:
        command = [*shlex.split(os.environ.get("CC") or "cc"), "--version"]
        return command_output(command, 10.0).partition("\n")[0]
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""


class MachineKey(NamedTuple):
    """The three key fields that identify where a time was measured: device, driver and toolchain."""

    device: str
    driver: str
    toolchain: str


def host_key(toolchain: str) -> MachineKey:
    """Machine key of this CPU, with the threads that the settings allow and a toolchain."""
    return MachineKey(device_key(), driver_key(), toolchain)


def gpu_machine() -> MachineKey:
    """Machine key of the GPU that plans target.

    The setting `gpu` (three fields joined by "|", for a machine elsewhere), otherwise the first local GPU, otherwise
    this CPU as an interpreter of GPU kernels.
    """
    return _gpu_machine(settings.current().gpu)


def machine_here() -> MachineKey:
    """Machine key of the first local GPU, regardless of the setting `gpu`; otherwise of this CPU as an interpreter."""
    return _gpu_machine("")


@lru_cache(maxsize=8)
def _gpu_machine(chosen: str) -> MachineKey:
    if chosen:
        return MachineKey(*chosen.split("|"))
    facts = gpu_facts()
    versions = f"torch={_version('torch')};cuda={facts.get('cuda', 'none')};triton={_version('triton')}"
    if not facts:
        return MachineKey(f"interpreter:{device_key()}", driver_key(), versions)
    name = f"gpu:{facts['name']}:sm{facts['capability']}:multiprocessors={facts['multiprocessors']}"
    return MachineKey(name, f"nvidia-{facts['driver']}", versions)


@lru_cache(maxsize=1)
def gpu_facts() -> dict[str, Any]:
    """Properties of the first NVIDIA GPU from Torch, by name (sizes in bytes, registers and threads per
    multiprocessor, threads per warp); empty if there is none. The driver version has no patch level.
    """
    if "torch" not in sys.modules and not _has_driver():  # without importing Torch, which takes seconds
        return {}
    try:
        import torch
    except ImportError:
        return {}
    if not hasattr(torch, "cuda") or not torch.cuda.is_available():  # no `cuda`: a user's own folder `torch`
        return {}
    found = torch.cuda.get_device_properties(0)
    return {
        "name": found.name,
        "capability": 10 * found.major + found.minor,
        "multiprocessors": found.multi_processor_count,
        "cache_bytes": int(found.L2_cache_size),
        "memory_bytes": int(found.total_memory),
        "shared_per_block": int(found.shared_memory_per_block_optin),
        "shared_per_multiprocessor": int(found.shared_memory_per_multiprocessor),
        "registers": int(found.regs_per_multiprocessor),
        "threads": int(found.max_threads_per_multi_processor),
        "warp": int(getattr(found, "warp_size", 32)),
        "bytes_per_us": 2e-3 * found.memory_clock_rate * found.memory_bus_width / 8,  # kHz, bits; two transfers a clock
        "driver": _nvidia_driver(),
        "cuda": torch.version.cuda,
    }


def _has_driver() -> bool:
    """Whether CUDA's driver library, which Torch needs for any GPU, can be loaded; True on platforms where the
    library's name is not known.
    """
    if sys.platform != "linux":
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _nvidia_driver() -> str:
    """Major driver version: from the kernel module's version file (fast), otherwise from nvidia-smi (may take a
    second)."""
    with suppress(OSError):
        text = _KERNEL_MODULE.read_text(encoding="ascii", errors="replace")
        if found := re.search(r"^NVRM version:.*?\s(\d+)\.\d+", text, re.MULTILINE):
            return found[1]
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return output.strip().partition(".")[0] or "unknown"


@lru_cache(maxsize=16)
def _version(distribution: str) -> str:
    """Version of an installed distribution, "none" if it is not installed. Kept, because each look-up parses the
    distribution's metadata (6 ms for NumPy's)."""
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
    """CPU model name with family, model and stepping if available: cloud machines share marketing names."""
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
