"""Saved programs with C kernels: their library is used without a compiler, on the same kind of CPU."""

from __future__ import annotations

import errno
import json
import os
import runpy
import shutil
import subprocess
import sys
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

IN_A_PROCESS = """
import ctypes, importlib.util, runpy, sys
import numpy as np
import tensor_graphs as tg

x, given = tg.input("x", (256, 512)), np.ones((256, 512), np.float32)
recalled = [tg.optimize(tg.softmax(x * 0.5), backend="c", budget=5) for _ in range(2)][1]
assert recalled.report.from_plan_cache
program = tg.load_program(recalled.save("saved"))
imported = runpy.run_path("saved/program.py")["bind"]({})
for call in (recalled, program, imported):
    np.testing.assert_allclose(np.asarray(call(given)).ravel(), 1 / 512, rtol=1e-5)
assert "torch" not in sys.modules
if importlib.util.find_spec("torch"):
    before = ctypes.CDLL(None).omp_get_max_threads()
    import torch
    assert torch.get_num_threads() == before
    torch.ones(1 << 20).exp()
    with open("/proc/self/maps") as maps:
        assert len({line.split()[-1] for line in maps if "libgomp" in line}) == 1
    torch.set_num_threads(before + 1)
    assert ctypes.CDLL(None).omp_get_max_threads() == before + 1
"""


@pytest.fixture(scope="module", params=[8, T], ids=["one size", "every size"])
def written(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    x = tg.input("x", (request.param, 64))
    program = tg.optimize(tg.softmax(x * 0.5), backend="c", measure=False, budget=20)
    program(X)
    folder = program.save(tmp_path_factory.mktemp("written") / "saved")
    assert sorted(p.name for p in (folder / "binaries").iterdir()) == ["kernels.so", "launches.json"]
    return folder


@pytest.fixture
def saved(written: Path, tmp_path: Path) -> Path:
    """A copy of the saved program for each test."""
    return Path(shutil.copytree(written, tmp_path / "saved"))


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


def test_programs_in_c_import_no_torch_and_share_the_threads_of_one_that_is_imported_later(tmp_path: Path) -> None:
    """A search, a program recalled from the plan cache, a loaded and an imported one, in a process of its own, since
    PyTorch cannot be unloaded."""
    (tmp_path / "run.py").write_text(IN_A_PROCESS)
    known = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "TENSOR_GRAPHS_HOME": str(tmp_path)}
    known.pop("OMP_NUM_THREADS", None)
    done = subprocess.run(
        [sys.executable, "run.py"], cwd=tmp_path, env=known, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


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


def test_a_malformed_record_of_kernels_is_a_warning(saved: Path) -> None:
    manifest = json.loads((saved / "manifest.json").read_text())
    for content in ("[]", "{}", '{"gpu": 3, "launches": []}', '{"gpu": "", "launches": [{"binary": "x"}]}', "1", "["):
        (saved / "binaries" / "launches.json").write_text(content)
        manifest["binaries"]["launches.json"] = sha256(content.encode()).hexdigest()
        (saved / "manifest.json").write_text(json.dumps(manifest))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            program = tg.load_program(saved)
        assert any("kernels are compiled again" in str(w.message) for w in told), content
        right(program)


def test_a_full_disk_while_compiling_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(text: str, file: str, space: dict[str, Any]) -> None:
        space["C_SOURCE"] = ""
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(emission, "execute", fails)
    with pytest.raises(DeviceUnavailableError, match=r"kernels cannot be compiled.*No space left"):
        emission.executed("", "m")
