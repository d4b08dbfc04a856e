"""Helper functions of emitted programs with C kernels. Their source is copied into emitted programs.

C source is compiled once per processor and compiler, into the folder `c` of `TENSOR_GRAPHS_HOME` or of the user's cache
folder; the file name is a hash of everything that affects the result. `CC` overrides the compiler `cc`.
"""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .. import private
from ..private import code_folder, read_sealed, sealed


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


def c_compiler() -> list[str]:
    """The C compiler's command."""
    return shlex.split(os.environ.get("CC") or "cc")


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


def c_library(source: str, threads: bool = True) -> Any:
    """The functions of a C source, compiled for this machine's processor unless they were before. `threads`: whether long
    loops are shared by threads (not beside NumPy's own, which wait for work on all cores)."""
    command = [*c_compiler(), *c_flags()]
    machine = c_output([*command, "-dM", "-E", "-x", "c", os.devnull])  # compiler's version, processor's features
    command += ["-fopenmp-simd"] if "__clang__" in machine or not threads else c_threads()
    name = hashlib.blake2b(repr((source, command, machine)).encode(), digest_size=16).hexdigest()
    folder = code_folder("c")
    if folder is not None:
        return c_loaded(folder / f"{name}.so", source, command)
    with tempfile.TemporaryDirectory(prefix="tensor_graphs-c-") as own:  # what is loaded needs no file any more
        return c_loaded(Path(own) / f"{name}.so", source, command)


def c_loaded(path: Path, source: str, command: list[str]) -> Any:
    """The library at a path in a private folder; compiled if it is not there, belongs to somebody else, or is damaged. RuntimeError if
    what was compiled cannot be loaded."""
    problem: Exception | None = None
    for _ in range(3):
        try:
            read_sealed(path)
            return ctypes.CDLL(str(path))
        except (OSError, ValueError) as error:
            problem = error
        with tempfile.TemporaryDirectory(dir=path.parent) as part:
            text, made = Path(part) / "kernels.c", Path(part) / "kernels.so"
            text.write_text(source, encoding="utf-8")
            # no library but these: what OpenMP's loops call is found in the one that c_threads has loaded
            c_output([*command, "-shared", "-fPIC", "-nostdlib", "-o", str(made), str(text), "-lm", "-lgcc"])
            whole = Path(part) / "sealed.so"
            with open(os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(sealed(made.read_bytes()))
                os.fsync(file.fileno())
            whole.replace(path)
    raise RuntimeError(f"compiled kernels cannot be loaded: {problem}")


def c_function(library: Any, name: str) -> Any:
    """A kernel of a library, to be called with places in memory."""
    found = getattr(library, name)
    found.restype = None
    return found


def address(x: Any) -> Any:
    """Where an array or a tensor begins in memory, for kernels in C; keeps it."""
    place = ctypes.c_void_p(x.data_ptr() if hasattr(x, "data_ptr") else x.__array_interface__["data"][0])
    place.array = x  # type: ignore[attr-defined]
    return place


#: helper name -> source
HELPERS: dict[str, str] = {
    name: inspect.getsource(value).rstrip()
    for module in (private, sys.modules[__name__])
    for name, value in vars(module).items()
    if inspect.isfunction(value) and value.__module__ == module.__name__
}

__all__ = [
    "HELPERS",
    "address",
    "c_compiler",
    "c_flags",
    "c_function",
    "c_library",
    "c_loaded",
    "c_output",
    "c_threads",
]
