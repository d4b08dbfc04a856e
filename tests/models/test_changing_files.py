"""Files that change between the time when they are opened and the time when their weights are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tensor_graphs.errors import BadWeightsError
from tensor_graphs.models.files.safetensors import read_folder, read_header, write_arrays

SIZES = {"small": 64, "mapped": 1 << 19}


def longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def shorter(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - 8])


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"no weights")
    other.replace(path)


def gone(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("change", [longer, shorter, replaced, gone])
def test_weights_of_a_file_that_changes(size: str, change: Callable[[Path], None], tmp_path: Path) -> None:
    """They are what they were, or a named error; also those of a folder."""
    path = tmp_path / "model.safetensors"
    values = np.arange(SIZES[size], dtype=np.float32)
    write_arrays(path, {"w": values})
    found = [read_header(path).tensors["w"], read_folder(tmp_path)["w"]]
    change(path)
    for array in found:
        if change is longer:
            np.testing.assert_array_equal(array.load(), values)
        else:
            with pytest.raises(BadWeightsError):
                array.load()
