"""Calls of programs of every size, with a driver that computes on the host (driver_host.c)."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tensor_graphs.backends.program import any_size_binaries, any_size_gpu_helpers, binaries, gpu_calls, gpu_launches

from .test_direct_launches import Kernel, driver, library, pytestmark  # noqa: F401

torch = pytest.importorskip("torch")


class Sized(Kernel):
    """A kernel that gets its size as an argument."""

    def __call__(self, *given: Any, sizes: Any = (), boxes: Any = ()) -> None:
        values = [*(ctypes.c_uint64(x.data_ptr()) for x in given), *map(ctypes.c_int, sizes)]
        parameters = (ctypes.c_void_p * 8)(*map(ctypes.addressof, values))
        config = gpu_launches.DriverConfig()
        assert not self.library.cuLaunchKernelEx(ctypes.byref(config), ctypes.c_void_p(self.function), parameters, None)


@pytest.fixture
def run(driver: Any, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: F811
    """A program for 3 x of every length; `made`: the lengths that were prepared."""
    monkeypatch.setattr(any_size_gpu_helpers, "torch", torch, raising=False)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda index=None: None)
    workspace, add, made = any_size_gpu_helpers.Workspace("cpu"), Sized(driver.library, "add"), []

    def at(shape: Any) -> Any:
        n = shape[0]
        made.append(n)
        spaces, kernels = workspace.take(4 * n), gpu_launches.Launches()
        launched = kernels.of(add)
        memory = spaces[torch.float32].as_strided((n,), (1,), 0)

        def launch(x: Any, out: Any) -> Any:
            launched(x, x, memory, sizes=(n,))
            launched(memory, x, out, sizes=(n,))
            return (out,)

        types = [((n,), torch.float32)]
        calls = gpu_calls.Calls(launch, kernels, types, [(*types[0], None)], "cpu", True, strict=False)
        calls.gpu, calls.index = True, -1
        monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: -1, raising=False)
        return calls

    found = any_size_gpu_helpers.CallsBySize(at, workspace, "cpu", True)
    found.gpu, found.made_at, found.state = True, made, driver
    return found


def right(run: Any, n: int) -> None:
    x = torch.randn(n)
    torch.testing.assert_close(run(x)[0], 3 * x)


def test_each_size_is_prepared_once_and_recorded_when_it_recurs(run: Any) -> None:
    for _ in range(4):
        for n in (96, 5, 17):
            right(run, n)
    assert run.made_at == [96, 5, 17]
    assert all(calls.ready and calls.way == run.way for calls in run.kept.values())
    assert [hasattr(calls, "times") for calls in run.kept.values()].count(True) == 1  # ways are timed once
    right(run, 33)
    assert not run.kept[(33,),].ready  # a size that occurs once is not recorded


def test_a_larger_workspace_replaces_what_used_the_smaller_one(run: Any) -> None:
    for n in (4, 4, 4, 5000, 4, 5000, 5000, 4):
        right(run, n)
    assert run.made_at == [4, 5000, 4] and len(run.kept) == 2


def test_the_sizes_used_last_are_kept(run: Any) -> None:
    run.KEPT = 3
    for n in (9, 8, 7, 9, 6, 9, 8):
        right(run, n)
    assert run.made_at == [9, 8, 7, 6, 8] and [shape[0] for (shape,) in run.kept] == [6, 9, 8]


def test_what_a_callers_graph_contains_is_kept_and_no_other_call_uses_it(run: Any) -> None:
    right(run, 3)
    run.state.capturing = True
    right(run, 3)
    right(run, 11)
    run.state.capturing = False
    assert run.made_at == [3, 11] and len(run.held) == 2
    right(run, 11)  # what `at` computes during the capture has no values outside of it
    assert run.made_at == [3, 11, 11]


def test_kernels_run_at_all_shapes_given_before_the_first_call(run: Any) -> None:
    run.warm([((2,),), ((700,),)], {})
    assert run.made_at == [2, 700] and not run.kept
    right(run, 2)
    assert run.workspace.grown == 1 or run.workspace.size >= 2800


# ---------------------------------------------------------------- saved kernels
class Function:
    """A Triton function of the host's driver, launched with a grid, tensors and a size."""

    __name__ = "add"

    def __init__(self, library: Any) -> None:  # noqa: F811
        self.inner, self.compiled = Sized(library, "add"), 0

    def __getitem__(self, grid: Any) -> Any:
        def launch(*given: Any, num_warps: int) -> Any:
            self.inner(*given[:-1], sizes=given[-1:])
            self.compiled += 1
            facts = SimpleNamespace(name="add", num_warps=num_warps, shared=0)
            return SimpleNamespace(asm={"cubin": b"add"}, metadata=facts)

        return launch


@pytest.fixture
def saved(driver: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:  # noqa: F811
    """Variants that a program noted, as a saved program's files."""
    monkeypatch.setattr(any_size_binaries, "torch", torch, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    variants, function = any_size_binaries.Variants(), Function(driver.library)
    launched = gpu_launches.Launches(variants).of(function)
    x, out = torch.randn(8), torch.empty(8)
    launched[(1,)](x, x, out, 8, num_warps=4)
    torch.testing.assert_close(out, 2 * x)
    assert function.compiled == 1 and list(variants.known) == ["add+++"]
    found = binaries.collected(SimpleNamespace(kept={}, variants=variants), "GPU sm_90")
    checksums = binaries.write_binaries(tmp_path, found)
    return SimpleNamespace(files=binaries.read_binaries(tmp_path, checksums), driver=driver)


def test_saved_kernels_of_every_size_are_launched_without_their_compiler(
    saved: Any, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    class Stored(any_size_binaries.Variants):
        pass

    saved.files.install({"Variants": Stored})
    unseen = binaries.Absent()(Function(saved.driver.library))  # what is left of a decorated function
    launched = gpu_launches.Launches(Stored()).of(unseen)
    for n in (8, 5):
        x, y, out = (torch.randn(n) for _ in range(3))
        launched[(1,)](x, y, out, n, num_warps=4)
        torch.testing.assert_close(out, x + y)
    with pytest.raises(any_size_binaries.NotStored, match=r"add-\+\+"):
        launched[(1,)](torch.randn(9)[1:], y, out, 5, num_warps=4)
