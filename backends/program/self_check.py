"""Writes and compares what `load_program(folder, check=True)` checks: checksums of the weight files, and results of a
call on fixed random inputs.

Results are recorded for programs on the CPU, without states and free sizes, that have run before they are saved and
whose calls are short. The check finds damage, and machines on which the program computes something else; it is no
protection against someone who changes both.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from ...errors import BadModelError, BadWeightsError, VerificationError
from ...plain import Malformed, decode, file_digest, is_file, read_bytes, strict_json
from ..runtime.marshalling import array_of, is_torch
from .buckets import FOLDER
from .program_folder import stored_bytes

if TYPE_CHECKING:
    from .program import Program

FILE, WEIGHTS = "check.json", "weights.safetensors"
LONG_US = 1e6  # estimated µs of a call above which no results are recorded
SAMPLED = 256  # elements of each result that are recorded
SEED = 20
MAX_FILE_BYTES = 1 << 26  # bytes of the file
MAX_HEADER_BYTES = 1 << 27  # bytes of a weight file besides its weights
#: Allowed error, relative to the element and to the root mean square of the sampled ones.
ERRORS = {"float64": 1e-8, "float32": 1e-3, "float16": 5e-2, "bfloat16": 2e-1}
UNEQUAL = 0.02  # fraction of integers and bools that may differ where rounding decides them

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class CheckRecord:
    """Content of the file `FILE` of a saved program. `files`: path of each weight file in the folder -> SHA-256.
    `results`: sampled elements of each result as hexadecimal floats; None if no call was recorded."""

    files: dict[str, str]
    results: list[list[str]] | None


def write_check(folder: Path, program: Program) -> None:
    """Write the record of a program into the folder that its other files are in."""
    files = _digests(folder, program)
    results = None
    if program._run is not None:
        with suppress(Exception):  # it may refuse the inputs, such as indices
            results = _sampled_results(program)
    encoded = None if results is None else [[float(x).hex() for x in r] for r in results]
    record = {"files": files, "results": encoded}
    (folder / FILE).write_text(json.dumps(record), encoding="utf-8")


def check_program(folder: Path, program: Program) -> None:
    """Compare a loaded program and its folder with the record. Raises BadWeightsError for weights that changed,
    VerificationError for other results, BadModelError where there is no record or a damaged one."""
    hint = "save the program again"
    try:
        record: CheckRecord = decode(CheckRecord, strict_json(read_bytes(folder / FILE, MAX_FILE_BYTES)))
        wanted = [np.array([float.fromhex(x) for x in r]) for r in record.results or ()]
        files = _digests(folder, program)
    except (OSError, ValueError, OverflowError, Malformed) as error:
        raise BadModelError(f"the program cannot be checked: {error}", where=str(folder), hint=hint) from None
    if record.files != files:
        raise BadWeightsError("the weights are not those that were saved", where=str(folder), hint=hint)
    if record.results is None:
        return
    found = _sampled_results(program) or []
    names = [name for name, _, _ in program.manifest.outputs]
    kinds = [dtype for _, _, dtype in program.manifest.outputs]
    if len(found) != len(wanted):
        raise BadModelError("the program cannot be checked: it was called on another device", where=str(folder))
    for name, dtype, y, r in zip(names, kinds, found, wanted, strict=True):
        if not _alike(y, r, dtype):
            raise VerificationError(f"output {name!r} is not what it was when the program was saved", where=str(folder),
                                    hint="optimize the model again on this machine")  # fmt: skip


def _digests(folder: Path, program: Program) -> dict[str, str]:
    """SHA-256 of each weight file of a program and its plans by its path in `folder`.

    Raises OSError or Malformed for a file that cannot be read, or is larger than the weights in it.
    """
    stored = {Path(): program.manifest, **{Path(FOLDER, name): p.manifest for name, p in program.plans.items()}}
    return {
        str(place / WEIGHTS): file_digest(folder / place / WEIGHTS, stored_bytes(manifest) + MAX_HEADER_BYTES)
        for place, manifest in stored.items()
        if is_file(folder / place / WEIGHTS)
    }


def _sampled_results(program: Program) -> list[Array] | None:
    """Sampled elements of each result of a call on fixed random inputs; None where no call is made."""
    manifest = program.manifest
    if program.device != "cpu" or manifest.states or manifest.sizes or not manifest.cost <= LONG_US:
        return None
    draw = np.random.default_rng(SEED)
    given = [_drawn(concrete(shape), dtype, draw) for _, shape, dtype in manifest.inputs]
    with np.errstate(all="ignore"):
        results = [np.asarray(array_of(y) if is_torch(y) else y) for y in program.flat(*given)]
    places = np.random.default_rng(SEED)
    return [
        y.reshape(-1)[places.integers(0, y.size, min(SAMPLED, y.size))].astype(np.float64) if y.size else np.zeros(0)
        for y in results
    ]


def _drawn(shape: tuple[int, ...], dtype: str, draw: np.random.Generator) -> Array:
    values = draw.standard_normal(shape) if dtypes.is_float(dtype) else draw.integers(0, 2, shape)
    return np.asarray(values).astype(dtypes.numpy_dtype(dtype))


def _alike(y: Array, r: Array, dtype: str) -> bool:
    if y.shape != r.shape:
        return False
    with np.errstate(all="ignore"):
        same = (y == r) | ((y != y) & (r != r))
        if dtype not in ERRORS:
            return bool(np.mean(~same) <= UNEQUAL) if y.size else True
        fine = np.isfinite(r)
        size = float(np.sqrt(np.mean(r[fine] ** 2))) if fine.any() else 0.0
        return bool((same | (np.abs(y - r) <= ERRORS[dtype] * (np.abs(r) + size))).all())


__all__ = ["check_program", "write_check"]
