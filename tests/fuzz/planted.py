"""Faults planted in the library, each of which a test must notice: `python -m tests.fuzz.planted [NAME...]`.

Each fault replaces one function by one that does less: a check that does not look, a limit that is none. The test named beside it runs in
a process of its own with the fault (by way of a pytest plugin) and must fail; without the fault it must pass. The exit code is 1 if a
test fails without its fault, or passes with it.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIME = 150.0  # seconds for a test


@dataclass(frozen=True)
class Fault:
    """A function `module.name` that becomes `instead` (a Python expression), and the test that notices."""

    row: int  # of docs/reliability/faults.md; 0: of docs/reliability/files.md
    module: str
    name: str
    instead: str
    test: str


FAULTS = {
    "external data may be anywhere": Fault(
        2, "tensor_graphs.models.files.inside", "inside", 'lambda folder, name, *, trust=False: Path(folder) / name',
        "tests/models/test_onnx_faults.py::test_external_data_that_escapes",
    ),
    "the structure of ONNX graphs is not checked": Fault(
        3, "tensor_graphs.models.onnx.load", "_check_structure", 'lambda *a: None',
        "tests/models/test_onnx_faults.py::test_broken_structure",
    ),
    "initializers are not measured against their data": Fault(
        4, "tensor_graphs.models.onnx.load", "_check_tensor", 'lambda *a: None',
        "tests/models/test_onnx_faults.py::test_initializer_dims",
    ),
    "unsupported operators are not listed": Fault(
        6, "tensor_graphs.models.onnx.load", "_unsupported", 'lambda model: {}',
        "tests/models/test_onnx_faults.py::test_everything_unsupported_is_listed_at_once",
    ),
    "overlaps and gaps of safetensors pass": Fault(
        7, "tensor_graphs.models.files.safetensors", "_check_cover", 'lambda *a: None',
        "tests/models/test_safetensors.py::test_malformed_files_are_refused",
    ),
    "unread tensors of a checkpoint pass": Fault(
        7, "tensor_graphs.models.huggingface.checkpoint", "Weights.finish", 'lambda self: None',
        "tests/models/test_hf.py",
    ),
    "broken caches are not set aside": Fault(
        21, "tensor_graphs.costdb.store.cache", "set_aside", 'lambda file: file',
        "tests/costdb/test_faults.py::test_a_broken_cache_is_set_aside_and_rebuilt",
    ),
    "shards are read without their hash": Fault(
        22, "tensor_graphs.costdb.store.shards", "read", 'lambda path: decode(path.read_bytes())',
        "tests/costdb/test_faults.py::test_every_single_flipped_byte_is_noticed",
    ),
    "bad shards stay where they are": Fault(
        22, "tensor_graphs.costdb.store.shards", "quarantine", 'lambda *a: False',
        "tests/costdb/test_faults.py::test_a_bad_shard_is_set_aside_and_the_others_are_used",
    ),
    "foreign folders are safe": Fault(
        25, "tensor_graphs.private", "unsafe_folder", "lambda folder: ''",
        "tests/costdb/test_faults.py::test_a_foreign_cache_folder_is_refused",
    ),
    "links are safe": Fault(
        25, "tensor_graphs.private", "unsafe_folder", "lambda folder: ''",
        "tests/costdb/test_faults.py::test_a_link_in_place_of_the_cache_folder_is_refused",
    ),
    "checksums are not compared": Fault(
        0, "tensor_graphs.private", "read_sealed", "lambda path, most=0, name='': path.read_bytes()[:-72]",
        "tests/test_private.py::test_a_damaged_library_is_compiled_again",
    ),
    "checksums do not know the file's name": Fault(
        0, "tensor_graphs.private", "sealed", "lambda content, name='': plain(content)",
        "tests/test_private.py::test_a_library_in_another_s_place_is_compiled_again",
    ),
}  # fmt: skip


def plant(fault: Fault) -> None:
    """Put a fault in place of its function (a method: `Class.name`), in every module that has imported it."""
    module: Any = importlib.import_module(fault.module)
    *outer, name = fault.name.split(".")
    owner = module
    for one in outer:
        owner = getattr(owner, one)
    plain = getattr(owner, name)
    wrong = eval(fault.instead, {"Path": Path, **vars(module), "plain": plain})
    setattr(owner, name, wrong)
    for other in list(sys.modules.values()):
        if (
            not outer
            and getattr(other, name, None) is plain
            and str(getattr(other, "__name__", "")).startswith("tensor_graphs")
        ):
            setattr(other, name, wrong)


def pytest_collection_finish() -> None:
    """As a plugin of pytest: plant the fault that TENSOR_GRAPHS_PLANTED names, after tests have imported the library."""
    if named := os.environ.get("TENSOR_GRAPHS_PLANTED"):
        plant(FAULTS[named])


def passes(fault: str, test: str) -> tuple[bool, str]:
    """(whether a test passes with a fault planted, "": none; what pytest says last)."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "tests.fuzz.planted", "-p", "no:cacheprovider", test]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=TIME, env={**os.environ, "TENSOR_GRAPHS_PLANTED": fault}
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest did not run: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.returncode == 0, done.stdout.strip().splitlines()[-1]


def main() -> int:
    """See above."""
    bad = 0
    for name in sys.argv[1:] or FAULTS:
        fault = FAULTS[name]
        try:
            fine, _ = passes("", fault.test)
            unnoticed, said = passes(name, fault.test)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            fine, unnoticed, said = False, True, str(error)[-800:]
        state = "noticed" if fine and not unnoticed else "NOT NOTICED" if fine else "FAILS WITHOUT THE FAULT"
        bad += state != "noticed"
        print(f"row {fault.row:2d}: {name}: {state} ({said})", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
