"""Calls of GPU programs as one C function, with a driver that computes on the host (driver_host.c)."""

from __future__ import annotations

import ctypes
import gc
from types import SimpleNamespace
from typing import Any

import pytest

from tensor_graphs.backends.program.helpers import any_size_gpu_helpers, gpu_calls, gpu_launches, library_addresses
from tensor_graphs.backends.program.launch import direct_calls
from tensor_graphs.backends.program.manifest import Manifest
from tensor_graphs.backends.program.program import Program
from tensor_graphs.egraph.types.dims import dim
from tensor_graphs.errors import ShapeError

from ...only_in import only_in
from .. import driver_host
from .test_direct_launches import N, calls, hidden, inputs, pytestmark, wanted  # noqa: F401

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def compiled() -> None:
    if direct_calls.c_function("direct_call") is None:
        pytest.skip("Python's headers or a C compiler are missing")


def direct(run: Any, *given: Any) -> Any:
    """The direct function after calls that settle the launch mode."""
    for _ in range(3):
        run(*given)
    found = direct_calls.direct_call(run, given, run.lock)
    assert found is not None
    return found


@pytest.mark.parametrize("mode", ["flat", "graph"])
def test_launches_are_on_the_callers_stream(driver: Any, mode: str) -> None:
    """By the C function and by the emitted code, in turns, on two streams."""
    run = calls(driver, mode)
    given = inputs(6)
    run(*given[0])
    function = direct_calls.direct_call(run, given[0], run.lock)
    assert function is not None
    for (x, y), stream, by_function in zip(
        given, (7, 0, 7, 0, 0, 7), (True, False, True, False, True, False), strict=True
    ):
        driver.stream = stream
        if by_function and run.stream == stream:
            found = function(x, y)
            assert found is not None
        else:
            assert run.stream == stream or function(x, y) is None
            found = run(x, y)
        torch.testing.assert_close(found[0], wanted(x, y))
        assert run.stream == stream
        if mode == "flat":
            assert {one.config.stream or 0 for one in run.kernels.table} == {stream}


def test_launches_of_two_streams_are_put_on_the_callers(driver: Any) -> None:
    """As after a Ctrl-C while the emitted code set their stream."""
    run = calls(driver, "flat")
    ((x, y),) = inputs(1)
    call = direct(run, x, y)
    driver.stream = run.stream = 7
    run.kernels.table[0].config.stream = 7
    assert call(x, y) is not None and {one.config.stream for one in run.kernels.table} == {7}

    class Interrupted:
        @property
        def config(self) -> Any:
            raise KeyboardInterrupt

    run.kernels.table.append(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        run.kernels.on(5)
    run.kernels.table.pop()
    run.kernels.on(7)
    assert {one.config.stream for one in run.kernels.table} == {7}


def count(driver: Any, name: str) -> int:
    return ctypes.c_int.in_dll(driver.library, name).value


@pytest.mark.parametrize("mode", ["flat", "graph"])
def test_results_are_fresh_and_launches_are_those_of_the_program(driver: Any, mode: str) -> None:
    run, kept = calls(driver, mode), []
    ((x, y), *more) = inputs(6)
    call, launched = direct(run, x, y), count(driver, "launches")
    for a, b in more:
        kept.append((a, b, call(a, b)))
    for a, b, (whole, halves) in kept:
        torch.testing.assert_close(whole, wanted(a, b))
        assert halves.shape == (2, N // 2) and halves.data_ptr() == whole.data_ptr()
    assert count(driver, "launches") == launched + (15 if mode == "flat" else 0)
    torch.testing.assert_close(run(x, y)[0], wanted(x, y))  # both in turn
    torch.testing.assert_close(call(*more[0])[0], wanted(*more[0]))


def test_only_nodes_with_other_addresses_are_updated(driver: Any) -> None:
    run, fixed = calls(driver, "graph", reuse=True), inputs(2)
    call = direct(run, *fixed[0])
    torch.testing.assert_close(call(*fixed[0])[0], wanted(*fixed[0]))
    before = count(driver, "updates")
    torch.testing.assert_close(call(*fixed[0])[0], wanted(*fixed[0]))
    assert count(driver, "updates") == before
    torch.testing.assert_close(call(fixed[0][0], fixed[1][1])[0], wanted(fixed[0][0], fixed[1][1]))
    assert count(driver, "updates") == before + 1  # the only kernel that reads the second input
    torch.testing.assert_close(run(*fixed[1])[0], wanted(*fixed[1]))  # by the program's own code
    torch.testing.assert_close(call(*fixed[0])[0], wanted(*fixed[0]))


def test_inputs_and_results_of_libraries_are_copied(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_addresses, "library_launches", hidden)
    run = calls(driver, "graph", with_library=True)
    ((x, y), *more) = inputs(4)
    call = direct(run, x, y)
    kept = [(a, b, call(a, b)) for a, b in more]
    for a, b, found in kept:
        torch.testing.assert_close(found[0], wanted(a, b))
        torch.testing.assert_close(found[2], 2 * b)
    assert direct_calls.direct_call(calls(driver, "flat", with_library=True), (x, y), run.lock) is None


def test_steady_inputs_are_read_in_place_and_elsewhere_left_to_the_program(
    driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_addresses, "library_launches", hidden)
    run = calls(driver, "graph", with_library=True)
    run.steady = frozenset({1})
    ((x, y), (a, b)) = inputs(2)
    call = direct(run, x, y)
    for given in (x, a, x):
        y += 1
        found = call(given, y)
        assert not run.places  # to which it could be copied
        torch.testing.assert_close(found[0], wanted(given, y))
        torch.testing.assert_close(found[2], 2 * y)
    assert call(x, b) is None
    torch.testing.assert_close(run(x, b)[2], 2 * b)
    assert call(x, y) is None  # of the graph before
    torch.testing.assert_close(direct(run, x, y)(a, b)[2], 2 * b)


def test_a_call_may_have_hundreds_of_tensors(driver: Any) -> None:
    """A training step has as many inputs as the model has parameters."""
    count, kernels = 500, gpu_launches.Launches()
    twice = kernels.of(driver_host.Kernel(driver.library, "twice"))

    def launch(*given: Any) -> Any:
        for x, out in zip(given[:count], given[count:], strict=True):
            twice(out, boxes=[(x, (1, N), (1, N))])
        return given[count:]

    spec = ((N,), torch.float32)
    run = driver_host.as_on_gpu(
        gpu_calls.Calls(launch, kernels, [spec] * count, [(*spec, None)] * count, "cpu", True, launch_mode="flat")
    )
    given = [torch.full((N,), float(i)) for i in range(count)]
    call = direct(run, *given)
    found = call(*reversed(given))
    assert all(torch.equal(x, 2 * y) for x, y in zip(found, reversed(given), strict=True))


def test_other_arguments_are_left_to_the_program(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for mode in ("flat", "graph"):
        run = calls(driver, mode)
        ((x, y), (a, b)) = inputs(2)
        call, launched = direct(run, x, y), count(driver, "launches")
        odd = torch.zeros(2 * N + 1)[1:]
        strided = torch.zeros(N, 2)[:, 0]
        others = [(x,), (odd, y), (x, strided), (y, y), (x.double(), y), (x.clone().requires_grad_(), y),
                  (x, torch._neg_view(y)), (None, y), (x.tolist(), y), (torch.nn.Parameter(x, False), y)]  # fmt: skip
        for given in others:
            assert call(*given) is None
        with monkeypatch.context() as other:
            run.stream = 8
            assert call(x, y) is None
            run.stream = 7
            other.setattr(driver, "capturing", True)
            assert (call(x, y) is None) == (mode == "graph")
        with run.lock:
            assert call(x, y) is None
        driver.library.lose_context()
        assert call(x, y) is None
        torch.testing.assert_close(run(x, y)[0], wanted(x, y))  # sets the context
        torch.testing.assert_close(call(a, b)[0], wanted(a, b))
        assert count(driver, "launches") <= launched + 12
        run.kernels.table, run.executable = list(run.kernels.table), None  # recorded anew
        assert call(x, y) is None


def test_inputs_in_the_programs_memory_are_left_to_the_program(driver: Any) -> None:
    run = calls(driver, "flat", reuse=True)
    ((x, y), *_) = inputs(1)
    call = direct(run, x, y)
    result = call(x, y)[0]
    assert call(x, result) is None and call(x, result.clone()) is not None


@pytest.mark.usefixtures("new_garbage_only")
def test_errors_of_the_driver_are_raised_and_references_do_not_leak(driver: Any) -> None:
    run = calls(driver, "flat")
    ((x, y), *_) = inputs(1)
    call = direct(run, x, y)
    for _ in range(3):
        call(x, y)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(50):
        call(x, y)
        call(y, x)
    gc.collect()
    assert len(gc.get_objects()) <= before + 5
    driver.library.fail_launch(2)
    with pytest.raises(RuntimeError, match="CUDA error: cuLaunchKernelEx failed with code 700"):
        call(x, y)
    torch.testing.assert_close(call(x, y)[0], wanted(x, y))
    kept = [call]
    del run, call
    gc.collect()
    assert kept[0](x, y) is None  # the program is gone


# ---------------------------------------------------------------- programs
def bound(run: Any, shape: Any, sizes: Any = None) -> Program:
    """A program of one input and one output around bound calls."""
    manifest = Manifest("host", (("x", shape, "float32"),), (("y", shape, "float32"),), None, (), (), 0, 0, 1, 0.0, 0.0,
                        device="cuda", sizes=sizes or {})  # fmt: skip
    made = Program.from_saved(manifest, "", {}, None, "cpu")
    made._run, made._quick = run, None if sizes else made.quick(manifest.inputs)  # type: ignore[arg-type]
    made._direct_calls.wait = 1
    return made


def twofold(driver: Any) -> Any:
    kernels = gpu_launches.Launches()
    add = kernels.of(driver_host.Kernel(driver.library, "add"))

    def launch(x: Any, out: Any) -> Any:
        add(x, x, out)
        return (out,)

    spec = ((N,), torch.float32)
    return driver_host.as_on_gpu(
        gpu_calls.Calls(launch, kernels, [spec], [(*spec, None)], "cpu", True, strict=False, launch_mode="flat")
    )


def test_a_program_calls_its_direct_function(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = twofold(driver)
    program, x = bound(run, (N,)), torch.randn(N)
    for _ in range(3):
        torch.testing.assert_close(program(x), 2 * x)
    assert program._direct is not None
    with monkeypatch.context() as broken:
        broken.setattr(gpu_calls.Calls, "__call__", lambda self, *given: pytest.fail("not direct"))
        y = torch.randn(N)
        torch.testing.assert_close(program(y), 2 * y)
        torch.testing.assert_close(program.flat(y)[0], 2 * y)
    torch.testing.assert_close(program(torch.stack([y, y], 1)[:, 0]), 2 * y)  # strided
    torch.testing.assert_close(program(x=y), 2 * y)
    with pytest.raises(ShapeError):
        program(torch.zeros(N + 1))
    assert isinstance(program(y.numpy()), type(y.numpy()))
    program._run = None
    assert program._direct is None


def test_a_program_without_inputs_calls_its_direct_function(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of text generation: it reads and writes states only."""
    kernels, state = gpu_launches.Launches(), torch.ones(N)
    add = kernels.of(driver_host.Kernel(driver.library, "add"))

    def launch(out: Any) -> Any:
        add(state, state, state)
        add(state, state, out)
        return (out,)

    result = ((N,), torch.float32, None)
    calls = gpu_calls.Calls(
        launch, kernels, [], [result], "cpu", True, strict=False, states={"n": state}, launch_mode="graph"
    )
    manifest = Manifest("step", (), (("y", (N,), "float32"),), None, (), (), 0, 0, 1, 0.0, 0.0, device="cuda")
    program = Program.from_saved(manifest, "", {}, None, "cpu")
    program._run = driver_host.as_on_gpu(calls)
    program._direct_calls.wait = 1
    for k in range(2):
        assert program.flat_near()[0][0] == 4 * 2**k
    assert program._direct is not None
    with monkeypatch.context() as broken:
        broken.setattr(gpu_calls.Calls, "__call__", lambda self, *given: pytest.fail("not direct"))
        assert program.flat_near()[0][0] == 16
    assert type(program()).__name__ == "ndarray"


def test_functions_are_not_made_without_end(driver: Any) -> None:
    program = bound(twofold(driver), (N,))
    for k in range(40):
        x = torch.randn(N, requires_grad=bool(k % 2))
        with torch.no_grad():
            found = program(x)
        torch.testing.assert_close(found, 2 * x.detach())
    assert program._direct_calls.made <= direct_calls.DirectCalls.MOST
    waiting = direct_calls.DirectCalls(1)
    attempts = []
    for k in range(100):
        waiting.wait -= 1
        if not waiting.wait:
            attempts.append(k)
            waiting.learn(lambda: None)
    assert attempts == [0, 1, 3, 7, 15, 31, 63]


def test_programs_of_every_size_have_a_function_at_each(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace, add = any_size_gpu_helpers.Workspace("cpu"), driver_host.SizedKernel(driver.library, "add")

    def at(shape: Any) -> Any:
        (n,) = shape
        memory = workspace.take(4 * n)[torch.float32].as_strided((n,), (1,), 0)
        kernels = gpu_launches.Launches()
        own = kernels.of(add)

        def launch(x: Any, out: Any) -> Any:
            own(x, x, memory, sizes=(n,), grid=n)
            own(memory, x, out, sizes=(n,), grid=n)
            return (out,)

        spec = ((n,), torch.float32)
        return driver_host.as_on_gpu(
            gpu_calls.Calls(launch, kernels, [spec], [(*spec, None)], "cpu", True, strict=False)
        )

    run = any_size_gpu_helpers.CallsBySize(at, workspace, "cpu", True, launch_mode="flat")
    run.gpu, run.index = True, -1
    run.warm([((2,),), ((700,),)], {})
    monkeypatch.setattr(Program, "_tries", 1)
    program = bound(run, (dim("T", max=9000),), {"T": (1, 9000, 64)})
    inner, seen = run.__class__.__call__, []
    monkeypatch.setattr(
        run.__class__, "__call__", lambda self, *given: (seen.append(len(given[0])), inner(self, *given))[1]
    )
    for _ in range(6):
        for n in (33, 9, 500):
            x = torch.randn(n)
            torch.testing.assert_close(program(x), 3 * x)
    assert sorted(seen) == [9, 9, 33, 33, 500, 500]  # later calls are direct ones, also at alternating sizes
    assert [shape[0] for (shape,) in run.kept] == [33, 9, 500]
    torch.testing.assert_close(program(torch.ones(9)), torch.full((9,), 3.0))
    assert [shape[0] for (shape,) in run.kept] == [33, 500, 9] and run.last is run.kept[(9,),]
    driver.capturing = True
    program(torch.ones(9))
    driver.capturing = False
    assert seen[6:] == [9] and len(run.held) == 1
    big = torch.randn(8000)  # a larger workspace: what used the smaller one is made again
    for x in (big, torch.ones(9), big, torch.ones(9)):
        torch.testing.assert_close(program(x), 3 * x)
    assert seen[7:] == [8000, 9, 8000, 9]


def test_without_python_headers_the_program_makes_all_calls(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    only_in(monkeypatch, direct_calls, "sysconfig", get_path=lambda name: "/nowhere")
    assert direct_calls.c_function.__wrapped__("direct_call") is None
    monkeypatch.setattr(direct_calls, "c_function", lambda name: None)
    run = calls(driver, "flat")
    ((x, y), *_) = inputs(1)
    run(x, y)
    assert direct_calls.direct_call(run, (x, y), run.lock) is None
    assert direct_calls.final(SimpleNamespace(ready=True)) is None
