"""Bytecode of PyTorch in the cache folder, where its installation has none and Python writes none."""

from __future__ import annotations

import importlib
import json
import marshal
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

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
    folder = tmp_path / "installed" / name
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("from . import part\n")
    (folder / "part.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setattr(bytecode, "PACKAGE", name)
    finder = bytecode._Finder()
    monkeypatch.setattr(bytecode, "_finder", finder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    yield name
    forget(name)
    if finder in sys.meta_path:
        sys.meta_path.remove(finder)


def forget(package: str) -> None:
    """Remove the package's modules, so that they are imported anew."""
    for module in [m for m in sys.modules if m.partition(".")[0] == package]:
        del sys.modules[module]


def compiled(home: Path) -> set[str]:
    """Names of the modules with bytecode in the cache folder."""
    return {path.name.partition(".")[0] for path in home.rglob("*.pyc")}


def test_imports_keep_bytecode_where_there_is_none(home: Path, package: str, tmp_path: Path) -> None:
    with bytecode_kept():
        with bytecode_kept():
            pass
        importlib.import_module(package)
        assert bytecode_environment(), "of a process that is started meanwhile"
    assert compiled(home) == {"__init__", "part"} and not list((tmp_path / "installed").rglob("*.pyc"))
    sys.pycache_prefix = str(home / "bytecode")  # the setting of worker processes
    assert Path(importlib.util.cache_from_source(str(tmp_path / "installed" / package / "part.py"))).is_file()


def test_python_settings_are_the_user_s(home: Path, package: str, tmp_path: Path, monkeypatch: Any) -> None:
    """They stay as they are during calls, and as the user sets them meanwhile after calls that overlap, one of which
    fails. Modules that are not beside PyTorch are imported as ever."""
    (tmp_path / "module_of_the_user.py").write_text("VALUE = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    first, second = bytecode_kept(), bytecode_kept()
    first.__enter__()
    second.__enter__()
    assert sys.dont_write_bytecode and sys.pycache_prefix is None
    importlib.import_module("module_of_the_user")
    forget("module_of_the_user")
    sys.pycache_prefix = str(tmp_path / "chosen")
    with suppress(KeyboardInterrupt):
        first.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    importlib.import_module(f"{package}.part")
    assert compiled(home) == {"__init__", "part"}, "while the second call runs"
    second.__exit__(None, None, None)
    assert sys.dont_write_bytecode and sys.pycache_prefix == str(tmp_path / "chosen")
    shutil.rmtree(home / "bytecode")
    forget(package)
    importlib.import_module(package)
    assert not compiled(home), "after all calls"


@pytest.mark.parametrize("damage", ["older", "cut", "not code"])
def test_bytecode_of_other_sources_is_not_used(damage: str, home: Path, package: str, tmp_path: Path) -> None:
    part = tmp_path / "installed" / package / "part.py"
    with bytecode_kept():
        importlib.import_module(package)
        forget(package)
        if damage == "older":
            part.write_text("VALUE = 10\n")
        else:
            (kept,) = home.rglob("part.*.pyc")
            kept.write_bytes(kept.read_bytes()[: bytecode.HEADER] + (b"" if damage == "cut" else marshal.dumps(1)))
        expected = 10 if damage == "older" else 1
        found = importlib.import_module(f"{package}.part").VALUE
        assert found == expected


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
        cached = Path(importlib.util.cache_from_source(str(tmp_path / "installed" / package / "__init__.py")))
        cached.parent.mkdir()
        cached.touch()
    else:
        monkeypatch.setattr(sys, "dont_write_bytecode", False)
        monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "prefix") if how == "prefix" else None)
    with bytecode_kept():
        importlib.import_module(package)
    assert bytecode_environment() == {} and not compiled(home)


def test_python_writes_none_where_it_may_not_fit(home: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 3.12.8, Python kept the begin of such a file, and its module could not be imported any more."""
    monkeypatch.setattr(bytecode, "ROOM", 1 << 62)
    assert bytecode_environment() == {}


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytecode, "PACKAGE", "no_such_package")
    assert bytecode_environment() == {}
