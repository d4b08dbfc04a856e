"""Reads and checks the folder of a saved program that `Program.save` wrote."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import BadModelError
from ...plain import read_bytes
from ...writing.files import named_path
from ...writing.folders import recover
from ..user.files import require_file
from .buckets import FOLDER
from .launch.binaries import read_binaries
from .launch.emission import programs_of
from .manifest import Manifest, read_manifest
from .program import Program
from .stored_weights import BorrowedWeights, StoredWeights
from .weights import Array

MAX_TEXT_BYTES = 1 << 28  # maximum bytes of program.py and of manifest.json
TRIES = 50  # attempts to read a program that another process replaces


def load_program(folder: str | Path, *, device: str | None = None) -> Program:
    """Load a program that `Program.save` wrote, without optimization. Calls execute its `program.py`: load only what
    you trust.

    The program's `report` is None: `pipeline/load_program.py` reads it. A program for a GPU requires a GPU of the same
    name; `device` ("cuda", "cuda:1") skips that check.

    Raises BadModelError if the folder is incomplete or was changed since it was saved, BadWeightsError for its weights,
    DeviceUnavailableError without a matching GPU, KernelMissingError if a file of user kernels in Python is missing or
    has changed.
    """
    path = named_path(folder)
    recover(Path(os.path.realpath(path)))
    weights, found = _loaded(path, device)
    divided = found.manifest.buckets
    if divided is not None:
        around = found.manifest, weights
        found.divide(divided, {name: _loaded(path / FOLDER / name, device, around)[1] for name in divided.plans})
    return found


def _loaded(
    path: Path, device: str | None, around: tuple[Manifest, StoredWeights] | None = None
) -> tuple[StoredWeights, Program]:
    """(stored weights, program without its plans for buckets).

    `around`: (manifest, stored weights) of the whole program if the folder is one of its plans. Raises as
    `load_program` does.
    """
    record, source = _texts(path)
    try:
        manifest = read_manifest(record, source)
        if around is not None:
            _refuse_foreign(manifest, around[0])
        elif manifest.borrowed:
            raise BadModelError("this file is a part of a saved program", hint="load the folder of the whole program")
    except BadModelError as error:
        error.where = str(path)
        raise
    if device is None:
        programs_of(manifest.device).check_hardware(manifest.hardware, where=str(path))
    for file, digest in manifest.kernel_files.items():
        require_file(file, digest, where=str(path))
    specs = (*manifest.weights, *manifest.initial)
    stored = StoredWeights(path / "weights.safetensors", [s for s in specs if s[0] not in manifest.borrowed])
    weights: Mapping[str, Array] = stored
    if manifest.borrowed and around is not None:
        weights = BorrowedWeights(stored, manifest.borrowed, around[1], manifest.weights)
    return stored, Program.from_saved(manifest, source, weights, read_binaries(path, manifest.binaries), device)


def _refuse_foreign(plan: Manifest, around: Manifest) -> None:
    """Raise BadModelError unless `plan` can be the manifest of a plan for some sizes of the program `around`."""
    same = all(
        [(n, len(shape), dtype) for n, shape, dtype in specs] == [(n, len(shape), dtype) for n, shape, dtype in others]
        for specs, others in ((plan.inputs, around.inputs), (plan.outputs, around.outputs))
    )
    if not same or plan.device != around.device or plan.sizes.keys() != around.sizes.keys() or plan.buckets is not None:
        raise BadModelError("a plan in the folder belongs to another program", hint="save the program again")


def _why_unread(path: Path, parts: Sequence[str], error: Exception) -> str:
    """Why `parts`, files of a saved program, could not be read (`error`), for the message."""
    if not os.path.lexists(path):
        return f"there is no folder {path.name!r}"
    if not path.is_dir():
        return f"not a saved program: {path.name!r} is not a folder"
    missing = next((f"it has no {part}" for part in parts if not (path / part).is_file()), str(error))
    return f"not a saved program: {missing}"


def _texts(path: Path) -> tuple[str, str]:
    """Texts of manifest.json and program.py.

    Both are of the same saved program even if another process replaces the folder meanwhile.
    """
    parts = ("manifest.json", "program.py")
    try:
        for _ in range(TRIES):
            before = path.stat().st_ino
            manifest, source = (read_bytes(path / part, MAX_TEXT_BYTES).decode("utf-8") for part in parts)
            if path.stat().st_ino == before:
                break
    except (OSError, ValueError) as error:
        raise BadModelError(
            _why_unread(path, parts, error), where=str(path), hint="give a folder made by save()"
        ) from None
    return manifest, source
