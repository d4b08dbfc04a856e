"""Saved programs with C kernels: their library is used without a compiler, on the same kind of CPU."""

from __future__ import annotations

import errno
import json
import os
import runpy
import warnings
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends.program.launch import binaries, emission, host_programs
from tensor_graphs.backends.registry import backend
from tensor_graphs.errors import DeviceUnavailableError

pytestmark = pytest.mark.skipif(bool(backend("c").unavailable()), reason="there is no C compiler")
X = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
T = tg.dim("T", max=100)


@pytest.fixture(params=[8, T], ids=["one size", "every size"])
def saved(request: Any, tmp_path: Path) -> Path:
    x = tg.input("x", (request.param, 64))
    program = tg.optimize(tg.softmax(x * 0.5), backend="c", measure=False, budget=20)
    program(X)
    folder = program.save(tmp_path / "saved")
    assert sorted(p.name for p in (folder / "binaries").iterdir()) == ["kernels.so", "launches.json"]
    return folder


def no_compiler(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("CC", "/no/compiler")
    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(home))


def right(program: Any) -> None:
    want = np.exp(X * 0.5 - (X * 0.5).max(1, keepdims=True))
    np.testing.assert_allclose(program(X), want / want.sum(1, keepdims=True), rtol=1e-5)


def test_a_loaded_program_needs_no_compiler(saved: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_compiler(monkeypatch, tmp_path / "home")
    loaded = tg.load_program(saved)
    right(loaded)
    right(tg.load_program(loaded.save(tmp_path / "again")))


def test_an_imported_program_needs_no_compiler(saved: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`import program` finds the library beside the file, unless it is another one or somebody else may have put it
    there."""
    no_compiler(monkeypatch, tmp_path / "home")
    source, library = saved / "program.py", saved / "binaries" / "kernels.so"
    assert "bind" in runpy.run_path(str(source))

    def refused() -> None:
        with pytest.raises(RuntimeError, match="the C compiler cannot be used"):
            runpy.run_path(str(source))

    library.chmod(0o666)
    refused()
    library.chmod(0o600)
    library.rename(saved / "whole")
    os.mkfifo(library)
    refused()
    os.replace(saved / "whole", library)
    (saved / "binaries" / "launches.json").write_text("[" * 200_000)
    refused()
    source.write_text(source.read_text() + "# changed\n")
    refused()


def test_a_program_that_was_not_called_is_saved_with_its_kernels(saved: Path, tmp_path: Path) -> None:
    """As one that was recalled from the plan cache."""
    program = tg.load_program(saved)
    program.take_binaries(None)
    again = program.save(tmp_path / "again")
    assert (again / "binaries" / "kernels.so").read_bytes() == (saved / "binaries" / "kernels.so").read_bytes()


def test_on_another_cpu_or_with_a_damaged_file_it_is_compiled(
    saved: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as other:
        other.setattr(host_programs, "processor", lambda: "x86_64 of another kind")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            right(tg.load_program(saved))
        no_compiler(other, tmp_path / "home")
        with pytest.raises(DeviceUnavailableError, match="the C compiler cannot be used"):
            tg.load_program(saved)(X)
    (saved / "binaries" / "kernels.so").write_bytes(b"damaged")
    with pytest.warns(RuntimeWarning, match=r"kernels\.so is not the file that was saved"):
        loaded = tg.load_program(saved)
    right(loaded)


def test_a_cpu_is_named_by_what_compiled_code_depends_on() -> None:
    name = binaries.processor()
    assert name == "" or len(name.split()[-1]) == 16


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"gpu": 3, "launches": []}', '{"gpu": "", "launches": [{"binary": "x"}]}', "1", "["]
)
def test_a_malformed_record_of_kernels_is_a_warning(saved: Path, content: str) -> None:
    manifest = json.loads((saved / "manifest.json").read_text())
    (saved / "binaries" / "launches.json").write_text(content)
    manifest["binaries"]["launches.json"] = sha256(content.encode()).hexdigest()
    (saved / "manifest.json").write_text(json.dumps(manifest))
    with pytest.warns(RuntimeWarning, match="kernels are compiled again"):
        program = tg.load_program(saved)
    right(program)


def test_a_full_disk_while_compiling_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(text: str, file: str, space: dict[str, Any]) -> None:
        space["C_SOURCE"] = ""
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(emission, "execute", fails)
    with pytest.raises(DeviceUnavailableError, match=r"kernels cannot be compiled.*No space left"):
        emission.executed("", "m")
