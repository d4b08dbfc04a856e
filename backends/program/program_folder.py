"""Writes the files of a saved program, and decides whether a folder may be written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ...errors import UsageError
from ...writing.folders import recover
from .helpers.cuda_helpers import cuda_text
from .launch.binaries import Binaries, write_binaries
from .manifest import Manifest, manifest_json
from .stored_weights import write_weights
from .weights import Array, bytes_of


def refuse_occupied(target: Path) -> None:
    """Raise UsageError unless the path `target` is free, an empty folder or a saved program."""
    recover(Path(os.path.realpath(target)))
    if target.exists() and not (target / "manifest.json").is_file() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} exists and is not a saved program", hint="name another folder")


def stored_bytes(manifest: Manifest) -> int:
    """Bytes of the weights that are in the saved program's own weight file."""
    return sum(bytes_of(s) for s in (*manifest.weights, *manifest.initial) if s[0] not in manifest.borrowed)


def write_program(
    part: Path, manifest: Manifest, source: str, weights: Mapping[str, Array], binaries: Binaries | None
) -> None:
    """Write the files of one plan into the empty folder `part`: source, weights, manifest, and the compiled kernels
    `binaries` if they are known."""
    stored = [s for s in (*manifest.weights, *manifest.initial) if s[0] not in manifest.borrowed]
    (part / "program.py").write_text(source, encoding="utf-8")
    if text := cuda_text(source):
        (part / "kernels.cu").write_text(text, encoding="utf-8")
    write_weights(part / "weights.safetensors", stored, weights)
    manifest = replace(manifest, binaries=write_binaries(part, binaries))
    (part / "manifest.json").write_text(manifest_json(manifest, source), encoding="utf-8")
