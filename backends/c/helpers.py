"""Helper functions of emitted programs with C kernels. Their source is copied into emitted programs.

C source is compiled once per processor and compiler, into the folder `c` of `TENSOR_GRAPHS_HOME` or of the user's cache
folder; the file name is a hash of everything that affects the result. `CC` overrides the compiler `cc`.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import Any

from ... import private
from ...private import code_folder, read_sealed, sealed, temporary_place
from ...processes import commands
from ...processes.commands import command_output
from ..ir.definitions import sources_of
from ..runtime.compile_clock import compiler_seconds

C_SECONDS = compiler_seconds  # of emitted programs: in their namespace (`emission.executed`)


def c_flags() -> list[str]:
    """Flags for the fastest code that follows IEEE arithmetic: no flag changes a value. Sums are reassociated only
    where the source requests it."""
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
    """Command of the C compiler. RuntimeError if CC is no command."""
    try:
        return shlex.split(os.environ.get("CC") or "cc")
    except ValueError as error:
        raise RuntimeError(f"CC is not a command: {error}") from None


def c_output(command: list[str], seconds: float = 120.0, temporary: str = "") -> str:
    """Output of a compiler command, which keeps its temporary files in the folder `temporary` (default: the system's).
    RuntimeError if the compiler is missing, fails or takes longer than `seconds`."""
    try:
        return command_output(command, seconds, {**os.environ, "TMPDIR": temporary} if temporary else None)
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"the C compiler failed: {error.stderr[:2000]}") from None
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the C compiler {command[0]} timed out after {seconds:.3g} s") from None
    except OSError as error:
        raise RuntimeError(f"the C compiler cannot be used (set CC to another one): {error}") from None


def c_seconds(source: str) -> float:
    """Seconds that the compiler may take for a source: the function C_SECONDS of its length says so, where a search
    sets one."""
    return float(globals().get("C_SECONDS", lambda characters: 120.0)(len(source)))


def c_machine(command: tuple[str, ...]) -> str:
    """The macros that a compiler command defines, which identify the compiler's version and the processor's features;
    asked once for all programs of a process, which share the dict C_MACHINES. RuntimeError as of `c_output`."""
    known, key = globals().setdefault("C_MACHINES", {}), (command, os.environ.get("PATH"))
    if key not in known:
        known[key] = c_output([*command, "-dM", "-E", "-x", "c", os.devnull], c_seconds(""))
    return str(known[key])


def c_threads() -> list[str]:
    """Compiler flags for OpenMP loops. Loads the OpenMP library that PyTorch loads when it is imported, now or later,
    since two thread pools would compete for the cores; else one that the process has, else the system's. One that is
    not in use yet gets as many threads as PyTorch would give it: TENSOR_GRAPHS_THREADS, OMP_NUM_THREADS, or one for
    each core."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        loaded = [line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line]
        path = next(iter([*c_openmp_of_torch(), *loaded, "libgomp.so.1"]))
        library = ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        number = int(os.environ.get("TENSOR_GRAPHS_THREADS") or 0)
        if not number and "OMP_NUM_THREADS" not in os.environ:
            number = c_cores()
        if number and os.path.realpath(path) not in loaded:
            library.omp_set_num_threads(number)
    except OSError:
        return ["-fopenmp-simd"]
    return ["-fopenmp"]


def c_openmp_of_torch() -> list[str]:
    """Path of the OpenMP library in the folder of the installed PyTorch, which need not be imported for it; empty if
    there is none."""
    import importlib.util

    try:
        found = importlib.util.find_spec("torch")
    except (ImportError, ValueError):  # a module that was made by hand
        return []
    folder = Path(found.origin).parent if found is not None and found.origin is not None else None
    return [] if folder is None else sorted(map(str, folder.glob("lib/libgomp*.so*")))


def c_cores() -> int:
    """Number of cores that this process may use; processors that share one (hyperthreads) count once. 0 if unknown."""
    place = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    try:
        return len({Path(place.format(i)).read_text() for i in os.sched_getaffinity(0)})
    except (AttributeError, OSError):
        return 0


def c_library(source: str, threads: bool = True, parts: tuple[str, ...] = ()) -> Any:
    """The compiled library of a C source for this machine's processor, from the cache if possible. `threads`: whether
    long loops run in parallel (not beside NumPy's threads, which spin on all cores). `parts`: texts of functions that
    the source declares; each is compiled by itself and kept for other libraries."""
    command = [*c_compiler(), *c_flags()]
    machine = c_machine(tuple(command))
    words = machine.split()
    gcc = 0 if "__clang__" in words or "__GNUC__" not in words else int(words[words.index("__GNUC__") + 1])
    if gcc > 11 and "__AVX2__" in words and "__AVX512F__" not in words:
        command += ["-mmove-max=256", "-mstore-max=256"]  # else GCC copies vectors in pieces and waits for their stores
    command += ["-fopenmp-simd"] if "__clang__" in machine or not threads else c_threads()
    # "named": the name is part of the checksum in the file (emitted programs of other versions have their own files)
    name = c_name("named", source, command, machine, *parts)
    kept = {f"{c_name('named', part, command, machine)}.o": part for part in parts}
    folder = code_folder("c")
    if folder is not None:
        try:
            return c_loaded(folder / f"{name}.so", source, command, kept)
        except (OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and shutil.disk_usage(folder).free > 1 << 20:  # the compiler has failed
                raise
            warnings.warn(f"compiled kernels are not kept in {folder}: {error}", stacklevel=2)
    with tempfile.TemporaryDirectory(
        prefix="tensor_graphs-c-", dir=temporary_place()
    ) as own:  # a loaded library needs no file
        return c_loaded(Path(own) / f"{name}.so", source, command, kept)


def c_name(*content: object) -> str:
    """File name of what is compiled from `content`: a hash of it."""
    return hashlib.blake2b(repr(content).encode(), digest_size=16).hexdigest()


def c_loaded(path: Path, source: str, command: list[str], parts: dict[str, str] | None = None) -> Any:
    """The library at a path in a private folder; compiled if missing, foreign or damaged, with the compiled `parts`
    (file name in the same folder -> C source). RuntimeError if the compiled library cannot be loaded."""
    problem: Exception | None = None
    for _ in range(3):
        try:
            read_sealed(path, name=path.name)
            return c_opened(path)
        except (OSError, ValueError) as error:
            problem = error
        c_clean(path.parent)
        with tempfile.TemporaryDirectory(prefix=".compile-", dir=path.parent) as part:
            c_sealed(path, c_compiled(path.parent, source, command, parts or {}, Path(part)), Path(part))
    raise RuntimeError(f"compiled kernels cannot be loaded: {problem}")


def c_compiled(folder: Path, source: str, command: list[str], parts: dict[str, str], temporary: Path) -> bytes:
    """Content of the shared library that a C source and its parts make. They are compiled at the same time, parts only
    where `folder` does not have them. RuntimeError as of `c_output`."""
    from concurrent.futures import ThreadPoolExecutor

    made, texts = temporary / "kernels.so", {"kernels.o": source, **parts}
    # link nothing else: OpenMP symbols resolve to the library that c_threads has loaded
    command, shared = [*command, "-fPIC"], ["-shared", "-nostdlib", "-lm", "-lgcc"]

    def compiled(name: str, seconds: float) -> None:
        try:
            (temporary / name).write_bytes(read_sealed(folder / name, name=name))
        except (OSError, ValueError):  # missing, foreign or damaged
            c_made(temporary / name, texts[name], [*command, "-c"], [], seconds)
            if name in parts:
                c_sealed(folder / name, (temporary / name).read_bytes(), temporary)

    if parts:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(compiled, texts, [c_seconds(text) for text in texts.values()]))
        objects = [str(temporary / name) for name in texts]
        c_output([*command, "-o", str(made), *objects, *shared], c_seconds(""), temporary=str(temporary))
    else:
        c_made(made, source, command, shared, c_seconds(source))
    return made.read_bytes()


def c_made(made: Path, source: str, command: list[str], ends: list[str], seconds: float) -> None:
    """Compile a C source to the file `made`, whose folder holds intermediate files; `ends` are arguments after the
    source. RuntimeError as of `c_output`.

    The compiler reads the headers of `c_short_headers` first. If it rejects them, it compiles the source as it is."""
    text, temporary = made.with_name(f"{made.name}.c"), str(made.parent)
    command = [*command, "-o", str(made), str(text), *ends]
    if (short := c_short_headers(source)) != source:
        text.write_text(short, encoding="utf-8")
        try:
            # undeclared functions are errors: else they would be missing when the library is loaded
            c_output([*command, "-Werror=implicit-function-declaration"], seconds, temporary)
            return
        except RuntimeError as error:
            if not isinstance(error.__context__, subprocess.CalledProcessError):  # missing, or out of time
                raise
    text.write_text(source, encoding="utf-8")
    c_output(command, seconds, temporary)


def c_short_headers(source: str) -> str:
    """A C source that includes, with GCC, only the parts of immintrin.h whose vector instructions kernels use.

    The whole header declares those of every x86 processor, which takes half a second of each compilation. GCC lets the
    header of one instruction set be included where a macro says that immintrin.h is."""
    parts = ("f", "vl", "bw", "dq", "vlbw", "vldq", "vbmi", "vnni")
    headers = (
        "#define _IMMINTRIN_H_INCLUDED\n#include <smmintrin.h>\n#include <avxintrin.h>\n"
        "#ifdef __AVXVNNI__\n#include <avxvnniintrin.h>\n#endif\n#include <avx2intrin.h>\n#ifdef __AVX512F__\n"
        + "".join(f"#include <avx512{part}intrin.h>\n" for part in parts)
        + "#endif\n#include <fmaintrin.h>\n#include <f16cintrin.h>\n"
    )
    whole = "#include <immintrin.h>\n"
    return source.replace(whole, f"#if defined(__GNUC__) && !defined(__clang__)\n{headers}#else\n{whole}#endif\n")


def c_sealed(path: Path, content: bytes, temporary: Path) -> None:
    """Write a file with its checksum to a private folder at once, by way of the folder `temporary`."""
    whole = temporary / f"{path.name}.sealed"
    with open(os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(sealed(content, path.name))
        os.fsync(file.fileno())
    whole.replace(path)


def c_opened(path: Path) -> Any:
    """Load a compiled library. The first one with a thread pool exports its symbols, so that libraries loaded later
    share the pool, and stays loaded, since the pool's threads run in it."""
    pool = "tensor_graphs_region_1"
    has_one = hasattr(ctypes.CDLL(None), pool)  # before: another thread may load the first one while this one is loaded
    library = ctypes.CDLL(str(path))
    is_first = hasattr(library, pool) and not has_one
    return ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL) if is_first else library


def c_clean(folder: Path, seconds: float = 600.0) -> None:
    """Remove compile folders of killed processes: folders of this user named `.compile-*` whose last change is longer
    ago than `seconds` (a compiler gets 120 s)."""
    import time

    for left in folder.glob(".compile-*"):
        try:
            facts = os.lstat(left)
        except OSError:  # another process has removed it
            continue
        own = not hasattr(os, "getuid") or facts.st_uid == os.getuid()
        if own and time.time() - facts.st_mtime > seconds:
            shutil.rmtree(left, ignore_errors=True)  # leaves links alone


def c_processor() -> str:
    """Name of this CPU for compiled C code: its architecture, and a hash of its instruction set extensions and of the C
    library's version. "" if unknown."""
    import platform

    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    found = next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), "")
    facts = " ".join((*sorted(found.split()), *platform.libc_ver()))
    return f"{platform.machine()} {hashlib.sha256(facts.encode()).hexdigest()[:16]}" if found else ""


def c_beside(file: str | None) -> bytes | None:
    """The machine code that a saved program's folder has beside its source `file`. None without a file, if the code is
    that of another source or processor, or if others than the owner of the source can change it."""
    import stat

    if file is None:
        return None
    source = Path(file).absolute()
    folder = source.parent / "binaries"
    code = folder / "kernels.so"

    def content(path: Path) -> bytes:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as opened:
            facts = os.fstat(opened.fileno())
            if not stat.S_ISREG(facts.st_mode) or facts.st_size > 1 << 28:
                raise ValueError("it is a pipe or a device, or too large")
            return opened.read(1 << 28)

    try:
        manifest = json.loads(content(source.with_name("manifest.json")))
        known = {code: manifest["binaries"]["kernels.so"], source: manifest["source_sha256"]}
        texts = {path: content(path) for path in known}
        whole = all(hashlib.sha256(texts[path]).hexdigest() == digest for path, digest in known.items())
        facts = [os.lstat(path) for path in (folder, code)]
        safe = all(f.st_uid == os.lstat(source).st_uid and not f.st_mode & 0o022 for f in facts)
        here = json.loads(content(folder / "launches.json"))["gpu"] == c_processor()
        return texts[code] if whole and safe and here else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def c_kept(binary: bytes | None, threads: bool = True) -> Any:
    """Load the library from the machine code that a saved program contains; None without code, or if it cannot be
    loaded here."""
    if binary is None:
        return None
    if threads:
        c_threads()  # loads the OpenMP library that the code refers to
    with tempfile.TemporaryDirectory(prefix="tensor_graphs-c-", dir=temporary_place()) as own:
        path = Path(own) / "kernels.so"
        path.write_bytes(binary)
        try:
            return c_opened(path)  # a loaded library needs no file
        except OSError:
            return None


def c_function(library: Any, name: str) -> Any:
    """A kernel of a library, callable with memory addresses."""
    found = getattr(library, name)
    found.restype = None
    return found


def address(x: Any) -> Any:
    """Memory address of an array or tensor, for C kernels; keeps the array alive."""
    place = ctypes.c_void_p(x.data_ptr() if hasattr(x, "data_ptr") else x.__array_interface__["data"][0])
    place.array = x  # type: ignore[attr-defined]
    return place


#: helper name -> source
HELPERS: dict[str, str] = {
    **sources_of(private.__name__),
    **sources_of(commands.__name__),
    **sources_of(__name__),
}

__all__ = [
    "HELPERS",
    "address",
    "c_beside",
    "c_clean",
    "c_compiled",
    "c_compiler",
    "c_cores",
    "c_flags",
    "c_function",
    "c_kept",
    "c_library",
    "c_loaded",
    "c_machine",
    "c_made",
    "c_name",
    "c_opened",
    "c_openmp_of_torch",
    "c_output",
    "c_processor",
    "c_sealed",
    "c_short_headers",
    "c_threads",
]
