"""Generated CUDA C++ on a CPU: the text that a GPU would run, compiled by the host's compiler against cuda_host.h."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensor_graphs.backends.cuda.clustered_attention.kernel import CLUSTER_INTRINSICS
from tensor_graphs.backends.cuda.emit.spelling import CudaLaunch
from tensor_graphs.backends.cuda.emit.tensor_cores import SHARED_ACCESS
from tensor_graphs.backends.cuda.tiled_fp32.kernel import TILE_INTRINSICS
from tensor_graphs.backends.program.helpers import cuda_helpers
from tensor_graphs.backends.program.helpers.cuda_helpers import CUDA_LIBRARY

HERE, BACKENDS = Path(__file__).parent, Path(cuda_helpers.__file__).parent
INTRINSICS = (BACKENDS / "cuda_intrinsics.cuh").read_text(encoding="utf-8")
NAME = re.compile(
    r'extern "C" __global__ void __launch_bounds__\(\d+(?:, 1)?\)(?: __cluster_dims__\(\d+, 1, 1\))?\n(\w+)\('
)
CLUSTER = re.compile(r"__cluster_dims__\((\d+), 1, 1\)\n(\w+)\(")
GUARD = 256  # bytes of poison before and after each array

Kernel = Callable[[Sequence[int], int, int], None]


def compiler() -> str:
    """The host's C++ compiler; skips the test where there is none."""
    found = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if found is None:
        pytest.skip("no C++ compiler to run CUDA C++ with")
    return found


def source_of(launches: Iterable[CudaLaunch]) -> str:
    """A complete CUDA source: the common library, the further definitions of the launches once each, and their
    kernels.
    """
    listed = list(launches)
    beside = {name: text for launch in listed for name, text in launch.beside.items()}
    return "\n".join([CUDA_LIBRARY, *beside.values(), *(launch.text for launch in listed)])


def library_of(text: str, file: Path, *options: str) -> ctypes.CDLL:
    """A shared library of C++ text, which is written to `file`."""
    file.write_text(text, encoding="utf-8")
    built, common = file.with_suffix(".so"), ["-std=c++17", "-w", "-U_FORTIFY_SOURCE", "-fPIC", *options]
    headers = standard_headers(*(o for o in common if not o.startswith("-D")))
    # as C kernels are linked: the process has all that they call, and looking for it takes a fifth of the time
    command = [compiler(), *common, "-include", headers, "-shared", "-nostdlib", "-o", built, file, "-lm", "-lgcc"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(built))


@cache
def standard_headers(*options: str) -> Path:
    """A precompiled header of the standard headers that the *_host.h files include, which take most of the time of a
    compilation. GNU's <cmath> leaves out its special functions (Bessel's and others), which would be a third of it.
    """
    lines = [
        line for file in sorted(HERE.glob("cuda_*host.h")) for line in file.read_text(encoding="utf-8").splitlines()
    ]
    stem = sha256(repr(options).encode()).hexdigest()[:16]
    header = Path(tempfile.mkdtemp(dir=os.environ["TENSOR_GRAPHS_HOME"])) / f"{stem}.h"
    first = ["#include <cstddef>", "#undef _GLIBCXX_USE_STD_SPEC_FUNCS"]
    text = "\n".join([*first, *(line for line in lines if line.startswith("#include <"))])
    header.write_text(f"{text}\n", encoding="utf-8")
    made = [compiler(), *options, "-x", "c++-header", header, "-o", f"{header}.gch"]
    subprocess.run(made, capture_output=True)  # without it, the header itself is included
    return header


def compiled(source: str, folder: Path, macros: Sequence[str] = ()) -> dict[str, Kernel]:
    """The kernels of a complete CUDA source by name: functions of operand addresses, number of blocks, and threads
    per block.
    """
    text = source.replace(INTRINSICS, (HERE / "cuda_host.h").read_text(encoding="utf-8"))
    assert text != source
    text = text.replace(TILE_INTRINSICS, (HERE / "cuda_tiles_host.h").read_text(encoding="utf-8"))
    text = text.replace(SHARED_ACCESS, (HERE / "cuda_shared_host.h").read_text(encoding="utf-8"))
    text = text.replace(CLUSTER_INTRINSICS, (HERE / "cuda_clusters_host.h").read_text(encoding="utf-8"))
    names, clusters = NAME.findall(text), {n: size for size, n in CLUSTER.findall(text)}
    text += "".join(
        f'extern "C" bool run_{n}(void** args, int blocks, int threads) {{ return host::run({n}, args, blocks, threads, {clusters.get(n, 1)}); }}\n'
        for n in names
    )
    stem = sha256((text + repr(macros)).encode()).hexdigest()[:16]
    loaded = library_of(text, folder / f"{stem}.cpp", "-O0", *(f"-D{m}" for m in macros))

    def kernel(name: str) -> Kernel:
        function = getattr(loaded, f"run_{name}")
        function.restype = ctypes.c_bool

        def run(places: Sequence[int], blocks: int, threads: int) -> None:
            assert function((ctypes.c_void_p * len(places))(*places), blocks, threads), (
                "threads part at a meeting point"
            )

        return run

    return {n: kernel(n) for n in names}


@dataclass
class Guarded:
    """An array aligned to 64 bytes between margins filled with a known pattern, which show writes out of bounds."""

    raw: np.ndarray
    array: np.ndarray

    @staticmethod
    def of(size: int, dtype: Any) -> Guarded:
        """An uninitialized array: filled with the pattern of the margins, NaN for floats."""
        nbytes = size * np.dtype(dtype).itemsize
        raw = np.full(nbytes + 2 * GUARD + 64, 255, np.uint8)
        start = -raw.ctypes.data % 64 + GUARD
        return Guarded(raw, raw[start : start + nbytes].view(dtype))

    @property
    def intact(self) -> bool:
        """Whether the margins are unchanged."""
        start = self.array.ctypes.data - self.raw.ctypes.data
        return bool((self.raw[:start] == 255).all() and (self.raw[start + self.array.nbytes :] == 255).all())


def emulate(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make emitted source compile for and launch on this CPU, which counts as a GPU of compute capability 9.0.

    Skips the test without PyTorch or a compiler.
    """
    torch = pytest.importorskip("torch")
    compiler()
    for name, module in cuda_core(folder).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))


def cuda_core(folder: Path) -> dict[str, ModuleType]:
    """Replacements of cuda-core's modules, by name, with which emitted source compiles for and launches on this CPU."""

    class Program:
        def __init__(self, source: str, kind: str, options: Any) -> None:
            self.source, self.options = source, options

        def compile(self, target: str, cache: Any = None) -> Any:
            kernels = compiled(self.source, folder, ["=".join(self.options.define_macro)])
            return SimpleNamespace(get_kernel=kernels.__getitem__, code=b"")

    def launch(stream: Any, config: Any, kernel: Kernel, *places: int) -> None:
        kernel(places, config.grid, config.block)

    device = SimpleNamespace(set_current=lambda: None)
    core, utils, package = ModuleType("cuda.core"), ModuleType("cuda.core.utils"), ModuleType("cuda")
    core.__dict__.update(Program=Program, ProgramOptions=SimpleNamespace, LaunchConfig=SimpleNamespace, launch=launch,
                         Device=lambda index: device)  # fmt: skip
    utils.__dict__.update(FileStreamProgramCache=lambda path: None)
    return {"cuda": package, "cuda.core": core, "cuda.core.utils": utils}
