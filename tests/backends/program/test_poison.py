"""Poisoned memory: what a call reads without having written it is NaN. With a driver that computes on the host
(driver_host.c)."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.program.helpers import gpu_calls, gpu_launches
from tensor_graphs.backends.program.launch.poison import poisoned
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.pipeline.execution import run_program
from tensor_graphs.verification import verify as verify_module
from tensor_graphs.verification.verify import verify

from .. import driver_host
from ..driver_host import Kernel

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
N = Kernel.count
GRAPH = Graph.of(t.input("x", (N,)) * 3.0 + t.input("y", (N,)), name="sum")
MODES = ["flat", "graph", "copying"]


class Bound:
    """A program for 3 x + y on the emulated driver: x + x by a library, which allocates its result.

    `fault`: "unwritten": the result is written in the first call only; "early": a kernel reads the workspace before
    another one writes it.
    """

    def __init__(self, driver: Any, mode: str, fault: str = "") -> None:
        kernels, memory, calls = gpu_launches.Launches(), torch.zeros(N), []
        self.returned: list[Any] = []  # kept, as a graph keeps those of its recording
        add = kernels.of(Kernel(driver.library, "add"))

        def launch(x: Any, y: Any, out: Any) -> Any:
            calls.append(1)
            self.returned.append(twice := torch.empty(N))
            Kernel(driver.library, "add")(x, x, twice)  # not wrapped: like a library's
            if fault != "early":
                add(twice, x, memory)
            if fault != "unwritten" or len(calls) == 1:
                add(memory, y, out)
            if fault == "early":
                add(twice, x, memory)
            return (out,)

        spec = ((N,), torch.float32)
        run = gpu_calls.Calls(launch, kernels, [spec, spec], [(*spec, None)], "cpu", True, strict=False, library=[0],
                              launch_mode=mode, memory=memory)  # fmt: skip
        self.calls = driver_host.as_on_gpu(run)

    @property
    def tensors(self) -> str:
        return "cuda"

    def poisoned(self) -> Any:
        return poisoned(self.calls)

    def run(self, values: Any) -> list[Any]:
        """Results on named values, as `run_flat`."""
        return [*self.calls(torch.as_tensor(values["x"]), torch.as_tensor(values["y"]))]


def verdict(program: Any, monkeypatch: pytest.MonkeyPatch, enough: Any = lambda: False) -> Any:
    """The verdict on a program, with its first and its later calls."""
    monkeypatch.setattr(run_program, "run_flat", lambda program, values: program.run(values))
    first, again = run_program.run_first, run_program.run_again
    return verify(GRAPH, lambda v: first(program, v), again=partial(again, program), seeds=1, enough=enough)


@pytest.mark.parametrize("mode", MODES)
def test_a_right_program_passes_and_is_as_before(driver: Any, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Bound(driver, mode)
    makers = program.calls.fresh
    assert verdict(program, monkeypatch).passed and program.calls.fresh is makers and program.calls.launch_mode == mode


@pytest.mark.parametrize("fault", ["unwritten", "early"])
def test_what_is_read_before_it_is_written_is_nan(driver: Any, fault: str) -> None:
    """The second call on the same values: without poison, an early read gives the right result of the first call."""
    program = Bound(driver, "", fault)
    program.calls.wanted = False
    x, y = np.ones(N, np.float32), np.arange(N, dtype=np.float32)
    program.run({"x": x, "y": y})
    if fault == "early":
        np.testing.assert_array_equal(program.run({"x": x, "y": y})[0], 3 * x + y)
    with program.poisoned():
        assert np.isnan(program.run({"x": x, "y": y})[0]).all()


@pytest.mark.parametrize("fault", ["unwritten", "early"])
def test_verification_refuses_stale_memory(driver: Any, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Bound(driver, "", fault)
    program.calls.wanted = False
    found = verdict(program, monkeypatch)
    assert not found.passed and (fault == "early" or "in a later call" in found.worst.message)


def test_verification_refuses_graphs_that_read_what_a_library_returned_before(
    driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph whose parameters flat calls have changed reads freed memory, which holds the right values of the call
    before: the first call is right, and so are later ones on the same values."""
    monkeypatch.setattr(gpu_launches.Launches, "restore", lambda self: None)
    measured = gpu_calls.Calls.fastest
    monkeypatch.setattr(gpu_calls.Calls, "fastest", lambda *given: (measured(*given), "graph")[1])
    found = verdict(Bound(driver, ""), monkeypatch)
    assert not found.passed and "in a later call" in found.worst.message
    first = lambda v: Bound(driver, "").run(v)
    assert verify(GRAPH, first, seeds=1).passed  # what verification saw before


def test_later_calls_end_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of a slow program are left out once no time is left, and the verdict says so; short ones are all made."""
    made: list[float] = []

    class Right:
        tensors = "cuda"
        poisoned = staticmethod(nullcontext)

        def run(self, values: Any) -> list[Any]:
            made.append(1)
            return [3 * values["x"] + values["y"]]

    for limit, allowed, calls in ((60.0, 0, 6), (-1.0, 0, 1), (-1.0, 2, 3), (-1.0, 9, 6)):
        monkeypatch.setattr(verify_module, "LATER_S", limit)
        made.clear()
        asked = iter(range(99))
        found = verdict(Right(), monkeypatch, lambda: next(asked) >= allowed)  # noqa: B023
        assert found.passed and len(made) == calls
        assert found.omitted == ("" if calls == 6 else "verification of later calls")


def test_programs_of_every_size_are_poisoned(driver: Any) -> None:
    """A kernel that reads a workspace which nothing writes."""
    text = """
    T, = x_shape
    kernels, memory = Launches(), workspace.take(4 * T)[torch.float32][:T]
    own = kernels.of(add)
    def launch(x, out, *, own=own):
        own(memory, x, out, sizes=(T,), grid=1)
        return (out,)
    return Calls(launch, kernels, [((T,), torch.float32)], [((T,), torch.float32, None)], device, True, strict=False)
    """
    run, x = driver_host.sized_program(driver.library, text), torch.ones(16)
    run(x)
    run.workspace.views[torch.float32].zero_()
    assert torch.equal(run(x)[0], x)
    with poisoned(run):
        assert run(x)[0].isnan().all()
