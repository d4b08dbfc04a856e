"""Stores the compiled kernels of a plan (choice of kernels) in the plan cache, in a file beside the plan, so that
another process needs no compiler, nor its imports.

They are stored with the hash of the emitted program's text, and are used for equal text only. The key of the plan cache
already contains the machine, its driver and the versions of the compilers; a program uses them on the same kind of GPU
only.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path

from ...backends.program.launch.binaries import Binaries, binaries_of
from ...backends.program.program import Program
from ...backends.registry import device
from ...plain import decode
from ...private import read_sealed, sealed
from ...writing.files import replacing_raw

SUFFIX = ".kernels"
MAX_KERNEL_FILE_BYTES = 1 << 28  # maximum bytes of a file
RESERVED = 1 << 20  # bytes of a file kept for names and facts, beside the kernels


@dataclass(frozen=True)
class _Stored:
    """Content of a file: hash of the program's text, and `Binaries.texts` in base64."""

    source: str
    files: dict[str, str]


def write_kernels(plan: Path, program: Program, source: str) -> str:
    """Store the compiled kernels of a program that has run, beside its plan; `source`: hash of the program's text.

    Returns the reason if they could not be stored, else "" (also if there are none: programs of a CPU have a cache of
    their own, and those with free sizes compile further kernels at the first call at a size).
    """
    found = None if program.manifest.sizes or not device(program.manifest.device).on_gpu else program.binaries
    if found is None:
        return ""
    if (size := sum(map(len, found.files.values())) * 4 // 3) > MAX_KERNEL_FILE_BYTES - RESERVED:  # in base64
        return f"they take {size:,} bytes, more than the {MAX_KERNEL_FILE_BYTES:,} that are read"
    texts = {name: base64.b64encode(text).decode() for name, text in found.texts().items()}
    content = json.dumps({"source": source, "files": texts}, separators=(",", ":")).encode()
    path = plan.with_suffix(SUFFIX)
    try:
        with replacing_raw(path, own=True) as file:
            file.write(sealed(content, path.name))
    except OSError as error:
        return f"{error.strerror or error}"
    return ""


def read_kernels(plan: Path, source: str) -> Binaries | None:
    """The compiled kernels beside a plan file; None if there are none for the program text `source`.

    Raises ValueError or OSError if the file is damaged or cannot be read.
    """
    path = plan.with_suffix(SUFFIX)
    try:
        stored = decode(_Stored, json.loads(read_sealed(path, MAX_KERNEL_FILE_BYTES, path.name)))
    except FileNotFoundError:
        return None
    except (TypeError, LookupError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    if stored.source != source:
        return None
    try:
        return binaries_of({name: base64.b64decode(text, validate=True) for name, text in stored.files.items()})
    except (TypeError, LookupError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


__all__ = ["SUFFIX", "read_kernels", "write_kernels"]
