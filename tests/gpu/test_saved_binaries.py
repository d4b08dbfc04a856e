"""Saved programs start without compilers: their kernels are saved with them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.program.saved_program import load_program

from . import test_generated_programs as generated

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="generated kernels are Triton's")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(generated.NO_GPU), reason=generated.NO_GPU or "there is a GPU"),
]

SECOND = """
import sys, time
BLOCKED = sys.argv[3:]
for name in BLOCKED:
    sys.modules[name] = None
import numpy as np, torch
torch.cuda.init(); torch.zeros(1, device="cuda")
start = time.perf_counter()
from tensor_graphs.backends.program.saved_program import load_program
x, *want = (torch.from_numpy(a).cuda() for a in np.load(sys.argv[2]).values())
program = load_program(sys.argv[1])
found = program.flat(x.bfloat16())
torch.cuda.synchronize()
print(f"first result after {time.perf_counter() - start:.2f} s")
for turn in range(4):
    assert all(torch.equal(a.float(), b) for a, b in zip(found, want, strict=True)), turn
    found = program.flat(x.bfloat16())
print("equal", program._run.launch_mode, len(program._run.kernels.table))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program, inputs and results."""
    folder = tmp_path_factory.mktemp("saved")
    program = Program(generated.plan_of("bfloat16", True), dict(generated.weights("bfloat16")))
    x = torch.randn((generated.ROWS, generated.WIDTH), generator=torch.Generator().manual_seed(0)).bfloat16().cuda()
    found = program.flat(x)
    np.savez(folder / "values.npz", *(a.float().cpu().numpy() for a in (x, *found)))
    program.save(folder / "program")
    return folder


def second(folder: Path, blocked: list[str]) -> str:
    """What a second process prints."""
    given = [str(folder / "program"), str(folder / "values.npz"), *blocked]
    done = subprocess.run([sys.executable, "-c", SECOND, *given], capture_output=True, text=True, timeout=90)
    assert not done.returncode, done.stderr[-3000:]
    return done.stdout + done.stderr


def test_a_second_process_needs_no_compiler(saved: Path) -> None:
    assert (saved / "program" / "binaries" / "launches.json").is_file()
    without = second(saved, ["triton", "cuda.core", "cuda.bindings.nvrtc"])
    assert "equal" in without and "compiled again" not in without
    print("\ncompilers blocked:", without)


def test_damaged_binaries_are_compiled_again(saved: Path, tmp_path: Path) -> None:
    for name in ("program", "values.npz"):
        (shutil.copytree if name == "program" else shutil.copy)(saved / name, tmp_path / name)
    shutil.rmtree(tmp_path / "program" / "binaries")
    found = second(tmp_path, [])
    assert "equal" in found and "compiled again" in found
    print("\ncompiled again:", found)


def test_a_loaded_program_is_saved_with_its_binaries(saved: Path, tmp_path: Path) -> None:
    again = load_program(saved / "program").save(tmp_path / "again")
    for one in (saved / "program" / "binaries").iterdir():
        assert (again / "binaries" / one.name).read_bytes() == one.read_bytes()
