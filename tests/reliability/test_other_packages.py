"""Packages of other contents under the names of those that this one uses, such as a folder beside the user's script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensor_graphs import imported
from tensor_graphs.errors import ShapeError, UsageError


def test_a_folder_without_code_is_not_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder_of_data").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [name for name in ("folder_of_data", "numpy", "no.such") if imported.installed(name)] == ["numpy"]


def test_another_package_called_as_a_known_one_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "known").mkdir()
    (tmp_path / "known" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(imported.MARKS, "known", "Tensor")
    assert imported.installed("known")  # as far as known before it is imported
    module = __import__("known")
    assert "another package called known" in imported.other_package("known")
    assert imported.imported("known") is None and not imported.installed("known")
    with pytest.raises(UsageError, match="called known"), imported.other_packages_named():
        raise AttributeError("module 'known' has no attribute 'ones'")
    with pytest.raises(ShapeError), imported.other_packages_named():
        raise ShapeError("1 is not 2")
    module.Tensor = int
    assert imported.imported("known") is module and imported.installed("known")


def test_another_numpy_is_named(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("")
    code = "import tensor_graphs as tg\ntry: tg.optimize\nexcept tg.errors.UsageError as error: print(error)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "another package called numpy" in done.stdout
