"""Stores the compiled kernels of a saved program, cubins and the metadata of launches, so that loading needs no
compiler.

`binaries/launches.json` names the GPU and has a record for each launch of a generated kernel (see `StoredLaunch` in
gpu_launches.py); `binaries/N.cubin` are the kernels' code; of a program with C kernels, `binaries/kernels.so` is the
library. The manifest has the checksum of each file. The files are used on the same kind of GPU or CPU. Elsewhere, or if
a file is missing or damaged, kernels are compiled from source, with a warning except on another CPU.
"""

from __future__ import annotations

import builtins
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from ....plain import decode, read_bytes, strict_json
from ....private import read_sealed
from ...c.helpers import c_processor

FOLDER, LAUNCHES, C_LIBRARY = "binaries", "launches.json", "kernels.so"
MAX_BINARY_BYTES = 1 << 28  # maximum bytes of one file
COMPILERS = ("triton",)  # packages that a program with compiled kernels does not import


@dataclass(frozen=True)
class _Record:
    """Content of the file `LAUNCHES` (launches.json) in a saved program: fields of `Binaries`."""

    gpu: str
    launches: list[dict[str, Any]]
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Binaries:
    """Compiled kernels of a program for one kind of processor: code by file name (`files`), and records of a call's
    launches in order (`launches`).

    `gpu`: the processor, a GPU ("NVIDIA H200 sm_90") or a CPU (`processor`); a CPU has `C_LIBRARY` as the only file. Of
    a program with free sizes: `variants` (Triton kernel and alignment of operands -> record of its launch) and
    `modules` (alignment in bytes -> file with all CUDA C++ kernels).
    """

    gpu: str
    files: Mapping[str, bytes]
    launches: list[dict[str, Any]]
    # of a program with free sizes instead of launches: Triton's kernels by name and alignment -> facts with the file,
    # files of CUDA C++ kernels by alignment
    variants: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)

    def texts(self) -> dict[str, bytes]:
        """Content of the files to write into a saved program's folder, by file name."""
        parts = ("gpu", "launches", "variants", "modules")
        return {**self.files, LAUNCHES: json.dumps({part: getattr(self, part) for part in parts}).encode()}

    def install(self, space: Mapping[str, Any]) -> None:
        """Hand the compiled code to the helper classes of a GPU program, so that they need no compiler. `space`: the
        namespace of its executed source."""
        if self.variants or self.modules:
            found = {key: (self.files[facts["binary"]], facts) for key, facts in self.variants.items()}
            for name, stored in (("Variants", found), ("SizedCudaKernel", {int(a): self.files[f] for a, f in self.modules.items()})):  # fmt: skip
                if name in space:
                    space[name].stored = stored
        else:
            space["Launches"].stored = self.files, self.launches


def collected(run: Any, here: str, space: Mapping[str, Any] | None = None) -> Binaries | None:
    """The compiled kernels of the bound program `run` (ready to be called): those that its calls launched on this GPU,
    or the C library of its namespace `space` on this CPU. None if there are no kernels, or if not all of them can be
    stored.

    `here`: name of the GPU or CPU, "" for none.
    """
    space = space or {}
    if not here:
        return None
    if "C_SOURCE" in space:
        return _library(space, space["kernels"], here)
    if hasattr(run, "kept"):
        return _of_every_size(space, run, here)
    launches = getattr(run, "kernels", None)
    found = launches.compiled() if launches is not None and launches.table else None
    if found is None:
        return None
    names: dict[bytes, str] = {}
    records = [{**one, "binary": names.setdefault(code, f"{len(names)}.cubin")} for code, one in found]
    return Binaries(here, {name: code for code, name in names.items()}, records)


def _of_every_size(space: Mapping[str, Any], run: Any, here: str) -> Binaries | None:
    """All kernels that a program with free sizes has compiled; None if there are none or if one cannot be stored."""
    variants = {} if run.variants is None else {**(run.variants.stored or {}), **run.variants.known}
    sized = space.get("SizedCudaKernel")
    modules = {} if sized is None else dict(sized.stored)
    for (*_, aligned), module in ({} if sized is None else sized.modules).items():
        modules[aligned] = module.code
    if (
        not (variants or modules)
        or not all(variants.values())
        or not all(isinstance(c, bytes) for c in modules.values())
    ):
        return None
    names: dict[bytes, str] = {}

    def place(code: bytes) -> str:
        return names.setdefault(code, f"{len(names)}.cubin")

    facts = {key: {**known, "binary": place(code)} for key, (code, known) in variants.items()}
    libraries = {str(aligned): place(code) for aligned, code in modules.items()}
    return Binaries(here, {name: code for code, name in names.items()}, [], facts, libraries)


def _library(space: Mapping[str, Any], library: Any, here: str) -> Binaries | None:
    """The file of a program's C library: the file that the program was loaded with, or that in the cache of compiled
    kernels; None if there is none."""
    code = space.get("C_BINARY")
    if code is None:
        path = Path(library._name)
        try:
            code = read_sealed(path, MAX_BINARY_BYTES, path.name)
        except (OSError, ValueError):  # compiled in a temporary folder
            return None
    return Binaries(here, {C_LIBRARY: code}, [])


processor = cache(c_processor)


def write_binaries(folder: Path, binaries: Binaries | None) -> dict[str, str]:
    """Write the files of `binaries`, if there are any, into a program's folder; returns the checksum of each by file
    name."""
    if binaries is None:
        return {}
    (folder / FOLDER).mkdir()
    texts = binaries.texts()
    for name, text in texts.items():
        (folder / FOLDER / name).write_bytes(text)
    return {name: sha256(text).hexdigest() for name, text in texts.items()}


def read_binaries(folder: Path, checksums: Mapping[str, str]) -> Binaries | None:
    """The compiled kernels in the folder of a saved program; None if it has none. `checksums`: those of the manifest,
    by file name.

    If a file is missing or damaged, warns (RuntimeWarning) and returns None.
    """
    if not checksums:
        return None
    try:
        texts = {}
        for name, checksum in checksums.items():
            texts[name] = read_bytes(folder / FOLDER / Path(name).name, MAX_BINARY_BYTES)
            if sha256(texts[name]).hexdigest() != checksum:
                raise ValueError(f"{name} is not the file that was saved")
        return binaries_of(texts)
    except (OSError, ValueError, KeyError) as error:
        warnings.warn(f"{folder}: kernels are compiled again: {error}", RuntimeWarning, stacklevel=3)
        return None


def binaries_of(texts: Mapping[str, bytes]) -> Binaries:
    """The compiled kernels whose files `Binaries.texts` gave (name -> content). Raises ValueError or KeyError if they
    are malformed."""
    files = dict(texts)
    record = decode(_Record, strict_json(files.pop(LAUNCHES)))
    named = [one.get("binary") for one in (*record.launches, *record.variants.values())]
    if missing := [n for n in (*named, *record.modules.values()) if not isinstance(n, str) or n not in files]:
        raise ValueError(f"{LAUNCHES} names {str(missing[0])[:80]!r}, which is not there")
    return Binaries(record.gpu, files, record.launches, record.variants, record.modules)


class AbsentCompiler:
    """Stand-in for a compiler's Python module in programs whose kernels are compiled already: any attribute and any
    call of it gives another stand-in.

    `base`: the first argument of the call that gave this object; for tensor descriptors, the tensor. `shape` and
    `strides`: further arguments, those of a tensor descriptor.
    """

    def __init__(self, base: Any = None, shape: Any = (), strides: Any = ()) -> None:
        self.base, self.shape, self.strides = base, shape, strides

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return AbsentCompiler()

    def __getitem__(self, key: Any) -> Any:
        return AbsentCompiler()

    def __call__(self, base: Any = None, *given: Any, **named: Any) -> Any:
        return AbsentCompiler(base, *given[:2])

    def __bool__(self) -> bool:
        return False


def without_compilers() -> dict[str, Any]:
    """Built-in functions for a program's namespace, in which `import` gives an `AbsentCompiler` for each compiler
    module."""

    def imported(name: str, *given: Any, **named: Any) -> Any:
        if name.partition(".")[0] in COMPILERS:
            return AbsentCompiler()
        return builtins.__import__(name, *given, **named)

    return {**vars(builtins), "__import__": imported}


__all__ = [
    "C_LIBRARY",
    "Binaries",
    "binaries_of",
    "collected",
    "processor",
    "read_binaries",
    "without_compilers",
    "write_binaries",
]
