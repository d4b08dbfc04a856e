"""graph: 2 kernels, estimated 37.6 us (at least 37.6)."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch


def address(x: Any) -> Any:
    """Where an array or a tensor begins in memory, for kernels in C; keeps it."""
    place = ctypes.c_void_p(x.data_ptr() if hasattr(x, "data_ptr") else x.__array_interface__["data"][0])
    place.array = x  # type: ignore[attr-defined]
    return place


def c_compiler() -> list[str]:
    """The C compiler's command."""
    return shlex.split(os.environ.get("CC") or "cc")


def c_flags() -> list[str]:
    """As fast as IEEE's arithmetic allows: none of these changes a value. Sums are reordered only where a source says so."""
    return [
        "-std=gnu11",
        "-O3",
        "-march=native",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-ffp-contract=off",
        "-fwrapv",
    ]


def c_folder() -> Path | None:
    """Where compiled kernels are kept; None where that cannot be written."""
    home = os.environ.get("TENSOR_GRAPHS_HOME")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tensor_graphs"
    folder = (Path(home) if home else cache) / "c"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return None


def c_function(library: Any, name: str) -> Any:
    """A kernel of a library, to be called with places in memory."""
    found = getattr(library, name)
    found.restype = None
    return found


def c_library(source: str, threads: bool = True) -> Any:
    """The functions of a C source, compiled for this machine's processor unless they were before. `threads`: whether long
    loops are shared by threads (not beside NumPy's own, which wait for work on all cores)."""
    command = [*c_compiler(), *c_flags()]
    machine = c_output([*command, "-dM", "-E", "-x", "c", os.devnull])  # compiler's version, processor's features
    command += ["-fopenmp-simd"] if "__clang__" in machine or not threads else c_threads()
    name = hashlib.blake2b(repr((source, command, machine)).encode(), digest_size=16).hexdigest()
    folder = c_folder()
    if folder is not None:
        return c_loaded(folder / f"{name}.so", source, command)
    with tempfile.TemporaryDirectory(prefix="tensor_graphs-c-") as own:  # what is loaded needs no file any more
        return c_loaded(Path(own) / f"{name}.so", source, command)


def c_loaded(path: Path, source: str, command: list[str]) -> Any:
    """The library at a path, made where it is not there or damaged."""
    for _ in range(2):
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=path.parent) as part:
                text, made = Path(part) / "kernels.c", Path(part) / "kernels.so"
                text.write_text(source, encoding="utf-8")
                # no library but these: what OpenMP's loops call is found in the one that c_threads has loaded
                c_output([*command, "-shared", "-fPIC", "-nostdlib", "-o", str(made), str(text), "-lm", "-lgcc"])
                made.replace(path)
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            damaged = error
            path.unlink(missing_ok=True)
    raise RuntimeError(f"compiled kernels cannot be loaded: {damaged}")


def c_output(command: list[str], seconds: float = 120.0) -> str:
    """What a compiler prints; RuntimeError where there is none, or it fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"the C compiler cannot be used (set CC to another one): {error}") from None
    if done.returncode:
        raise RuntimeError(f"the C compiler failed: {done.stderr[:2000]}")
    return done.stdout


def c_threads() -> list[str]:
    """The compiler's flag for loops that threads share: Torch's, if it is loaded, since two pools of threads would take the
    cores from each other; else those of the system's library, as many as TENSOR_GRAPHS_THREADS says."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        loaded = [line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line]
        library = ctypes.CDLL(loaded[0] if loaded else "libgomp.so.1", ctypes.RTLD_GLOBAL)
        if not loaded and int(os.environ.get("TENSOR_GRAPHS_THREADS") or 0):
            library.omp_set_num_threads(int(os.environ["TENSOR_GRAPHS_THREADS"]))
    except OSError:
        return ["-fopenmp-simd"]
    return ["-fopenmp"]


def place(memory, offset, shape, dtype, strides=None):
    """An array in the workspace; strides in elements."""
    if strides is not None:
        strides = [s * np.dtype(dtype).itemsize for s in strides]
    return np.ndarray(shape, dtype, memory, offset, strides)


def tensor(x):
    """The same memory as a Torch tensor."""
    if not x.flags.writeable:  # Torch has no read-only tensors; nothing here writes to what it was given
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return tensor_of(x)
    return tensor_of(x)


def tensor_of(x):
    """The same memory as a Torch tensor; bfloat16 by way of its bits."""
    if min(x.strides, default=0) < 0:  # an axis of one element of what runs backwards: Torch wants no such stride
        x = np.lib.stride_tricks.as_strided(x, strides=[abs(s) for s in x.strides])
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


def workspace(size, align=64):
    """Bytes that start at a multiple of `align`."""
    raw = np.empty(size + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start:start + size]


C_SOURCE = r"""#include <math.h>
#include <stdint.h>

#ifdef __FP_FAST_FMAF
#define FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif

static inline float erf_f(float x)
{
    float z = FMA(x * x, 0.1301541f, -1.0f);
    float p = -8.439246234e-04f;
    p = FMA(p, z, 2.098755710e-03f); p = FMA(p, z, -1.394548579e-03f); p = FMA(p, z, 1.919981060e-03f);
    p = FMA(p, z, -7.660516278e-03f); p = FMA(p, z, 1.420993878e-02f); p = FMA(p, z, -1.999503510e-02f);
    p = FMA(p, z, 2.969757509e-02f); p = FMA(p, z, -4.343686006e-02f); p = FMA(p, z, 5.839599349e-02f);
    p = FMA(p, z, -7.401981794e-02f); p = FMA(p, z, 9.059697230e-02f); p = FMA(p, z, -1.091792251e-01f);
    p = FMA(p, z, 1.340845550e-01f); p = FMA(p, z, -1.801086282e-01f); p = FMA(p, z, 3.607368113e-01f);
    return __builtin_fabsf(x) > 3.92f ? __builtin_copysignf(1.0f, x) : p * x;
}

/* for i0<64, i1<128:
  v0 = x0[i0 * 128 + i1]
  v1 = x1[i0 * 128 + r128]
  v3 = sum(mul(v1, v1) for r128<128)
  v9 = mul(v0, rsqrt(add(mul(v3, 0.0078125), 1e-05)))
  v18 = x1[i0 * 128 + i1]
  out[i0 * 128 + i1] = add(mul(mul(v9, 0.5), add(erf(mul(v9, 0.7071067811865476)), 1.0)), v18) */
void rows_564f8ca356(const float *restrict x0, const float *restrict x1, float *restrict out)
{
    for (long i0 = 0; i0 < 64; i0++) {
        float v0 = 0.0f;
        #pragma omp simd reduction(+:v0)
        for (long r128 = 0; r128 < 128; r128++) {
            const float v1 = x1[i0 * 128 + r128];
            v0 = FMA(v1, v1, v0);
        }
        const float v3 = 1.0f / __builtin_sqrtf(((v0 * 0.0078125f) + 1e-05f));
        #pragma omp simd
        for (long i1 = 0; i1 < 128; i1++) {
            const float v2 = x0[i0 * 128 + i1];
            const float v4 = v2 * v3;
            const float v5 = x1[i0 * 128 + i1];
            const float v6 = ((v4 * 0.5f) * ((erf_f((v4 * 0.7071067811865476f))) + 1.0f)) + v5;
            out[i0 * 128 + i1] = v6;
        }
    }
}
"""
kernels = c_library(C_SOURCE)
rows_564f8ca356 = c_function(kernels, "rows_564f8ca356")


def bind(weights):
    """Makes the program for given weights."""
    memory = workspace(32768)
    w1_prepared = tensor(weights['w1']).t().contiguous()
    v2 = place(memory, 0, (64, 128), np.float32)
    v2_t = tensor(v2)
    v2_a = address(v2)

    @np.errstate(all="ignore")
    def run(x):
        """(x: float32[64, 128]) -> (output: float32[64, 128])"""
        x_t = tensor(x)
        # matmul(x, w)
        torch._C._nn.linear(x_t, w1_prepared, None, out=v2_t)
        x_a = address(x)
        # add(gelu(div(x0, sqrt(add(mean(mul(x1, x1), axes=(1,)), full(value=1e-05, shape=(1, 1), dtype='float32'))))), x1)
        v3 = np.empty((64, 128), np.float32)
        v3_a = address(v3)
        rows_564f8ca356(v2_a, x_a, v3_a)
        return v3,

    return run
