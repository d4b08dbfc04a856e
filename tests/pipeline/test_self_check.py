"""`load_program(check=True)`: a saved program is compared with what it was when it was saved."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.errors import BadModelError, BadWeightsError, VerificationError

X, W = np.ones((4, 8), np.float32), np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)


def saved(folder: Path, **options: Any) -> Path:
    x, i = tg.input("x", (4, 8)), tg.input("i", (4,), "int64")
    terms = {"y": tg.tanh(x @ tg.param("w", (8, 8))), "z": tg.gather(x, i), "n": tg.argmax(x, 1)}
    program = tg.optimize(terms, params={"w": W}, backend="numpy", measure=False, budget=2, **options)
    return program.save(folder / "p")


def test_a_program_as_it_was_saved_passes(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    record = json.loads((folder / "check.json").read_text())
    assert [len(r) for r in record["results"]] == [32, 32, 4]
    program = tg.load_program(folder, check=True)
    assert np.allclose(program(X, np.arange(4))["y"], np.tanh(X @ W))
    again = program.save(tmp_path / "q")
    tg.load_program(again, check=True)


def test_changed_weights_are_found(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    data = bytearray((folder / "weights.safetensors").read_bytes())
    data[-3] ^= 1
    (folder / "weights.safetensors").write_bytes(data)
    tg.load_program(folder)  # not noticed without the check
    with pytest.raises(BadWeightsError, match="not those that were saved"):
        tg.load_program(folder, check=True)


def test_other_results_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that compute something else on this machine: here NumPy's."""
    folder = saved(tmp_path)
    tanh = np.tanh
    monkeypatch.setattr(np, "tanh", lambda x, out=None: np.multiply(tanh(x), 1.01, out=out))
    with pytest.raises(VerificationError, match="'y' is not what it was"):
        tg.load_program(folder, check=True)


@pytest.mark.parametrize("damage", ["missing", "no json", "another form", "no floats", "fewer results"])
def test_records_that_cannot_be_compared_are_named(damage: str, tmp_path: Path) -> None:
    folder = saved(tmp_path)
    file = folder / "check.json"
    record = json.loads(file.read_text())
    if damage == "missing":
        file.unlink()
    else:
        record["results"] = {"no json": [], "another form": 3, "no floats": [["x"]], "fewer results": [["0x1p0"]]}[
            damage
        ]
        file.write_text("{" if damage == "no json" else json.dumps(record))
    with pytest.raises(BadModelError, match="cannot be checked"):
        tg.load_program(folder, check=True)
    tg.load_program(folder)


@pytest.mark.parametrize("place", ["weights.safetensors", "plans/other/weights.safetensors"])
def test_files_that_are_no_weights_are_not_read(place: str, tmp_path: Path) -> None:
    """A file beyond the size of the weights is refused; others of that name are nobody's."""
    folder = saved(tmp_path)
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    if place == "weights.safetensors":
        os.truncate(folder / place, 1 << 40)  # takes no room
        with pytest.raises(BadModelError, match="more than"):
            tg.load_program(folder, check=True)
    else:
        os.mkfifo(folder / place)
        tg.load_program(folder, check=True)


def test_programs_that_have_not_run_have_checksums_only(tmp_path: Path) -> None:
    folder = saved(tmp_path, verify=False)
    assert json.loads((folder / "check.json").read_text())["results"] is None
    tg.load_program(folder, check=True)
