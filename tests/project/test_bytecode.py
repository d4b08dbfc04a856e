"""Bytecode of PyTorch in the cache folder, where its installation has none and Python writes none."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensor_graphs import bytecode, settings
from tensor_graphs.backends.tuning import worker_process
from tensor_graphs.bytecode import bytecode_environment, bytecode_kept


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    with settings.override(home=str(tmp_path / "home")):
        yield tmp_path / "home"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Name of a package without bytecode that stands for PyTorch, in a process that writes none."""
    name = "stand_in_for_torch"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("from . import part\n")
    (tmp_path / name / "part.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(bytecode, "PACKAGE", name)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    yield name
    for module in [m for m in sys.modules if m.partition(".")[0] == name]:
        del sys.modules[module]


def compiled(home: Path) -> set[str]:
    """Names of the modules with bytecode in the cache folder."""
    return {path.name.partition(".")[0] for path in home.rglob("*.pyc")}


def test_imports_keep_bytecode_where_there_is_none(home: Path, package: str, tmp_path: Path) -> None:
    with bytecode_kept():
        with bytecode_kept():
            importlib.import_module(package)
        assert bytecode_environment(), "of a process that is started meanwhile"
    assert compiled(home) == {"__init__", "part"} and not list((tmp_path / package).rglob("*.pyc"))
    assert sys.dont_write_bytecode and sys.pycache_prefix is None


def test_a_worker_process_reads_and_writes_it(home: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, str] = {}
    started = lambda module, arguments, environment: given.update(environment)
    monkeypatch.setattr(worker_process, "start_line_worker", started)
    worker_process.started("none")
    code = f"import {package}, json, sys; print(json.dumps([sys.pycache_prefix, {package}.part.__cached__]))"
    known = {"PATH": "", **given, "PYTHONPATH": str(Path(str(importlib.util.find_spec(package).origin)).parents[1])}
    printed = subprocess.run([sys.executable, "-c", code], env=known, capture_output=True, text=True, check=True).stdout
    prefix, cached = json.loads(printed)
    assert prefix == str(home / "bytecode") and Path(cached).is_relative_to(prefix) and Path(cached).is_file()


@pytest.mark.parametrize("how", ["compiled", "compiles", "prefix"])
def test_python_own_bytecode_is_preferred(
    how: str, home: Path, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If PyTorch has bytecode, or Python will write it beside its sources or where the user wants it."""
    if how == "compiled":
        cached = Path(importlib.util.cache_from_source(str(tmp_path / package / "__init__.py")))
        cached.parent.mkdir()
        cached.touch()
    else:
        monkeypatch.setattr(sys, "dont_write_bytecode", False)
        monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "prefix") if how == "prefix" else None)
    with bytecode_kept():
        importlib.import_module(package)
    assert bytecode_environment() == {} and not compiled(home)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytecode, "PACKAGE", "no_such_package")
    assert bytecode_environment() == {}
