"""Direct launches and graphs whose kernels use the caller's memory, with a driver that computes on the host
(driver_host.c)."""

from __future__ import annotations

import ctypes
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tensor_graphs.backends.program.helpers import gpu_calls, gpu_launches, library_addresses
from tensor_graphs.backends.program.launch import binaries
from tensor_graphs.backends.program.launch.emission import executed

from .. import driver_host
from ..driver_host import Kernel

torch = pytest.importorskip("torch")
TorchDispatchMode = pytest.importorskip("torch.utils._python_dispatch").TorchDispatchMode
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
N = Kernel.count


def calls(
    driver: Any, launch_mode: str = "", *, with_library: bool = False, reuse: bool = False, states: Any = None
) -> Any:
    """A program for 2 x[:N] + (x[N:] + y), given whole and as a view; with a kernel of a library, also y + y."""
    kernels, memory = gpu_launches.Launches(), torch.zeros(2 * N)
    fixed = torch.zeros(N)

    add, twice = (kernels.of(Kernel(driver.library, name)) for name in ("add", "twice"))

    def launch(x: Any, y: Any, *more: Any) -> Any:
        out = fixed if reuse else more[0]
        add(x[N:], y, memory[N:])
        twice(memory[:N], boxes=[(x[:N], (1, N), (1, N))])
        add(memory[:N], memory[N:], out)
        results = (out, out.view(2, N // 2))
        if with_library:
            results = (*results, torch.empty(N))
            Kernel(driver.library, "add")(y, y, results[2])  # not wrapped: like a library's
        if states:
            states["n"].add_(1)
        return results

    spec = [((2 * N,), torch.float32), ((N,), torch.float32)]
    results = [] if reuse else [((N,), torch.float32, None)]
    made = gpu_calls.Calls(launch, kernels, spec, results, "cpu", True, reuse=reuse, strict=False, states=states,
                           library=[1] if with_library else [], launch_mode=launch_mode)  # fmt: skip
    return driver_host.as_on_gpu(made)


def inputs(count: int) -> list[Any]:
    made = torch.Generator().manual_seed(0)
    return [(torch.randn(2 * N, generator=made), torch.randn(N, generator=made)) for _ in range(count)]


def wanted(x: Any, y: Any) -> Any:
    return 2 * x[:N] + (x[N:] + y)


@pytest.mark.parametrize("mode", ["flat", "graph", "copying"])
def test_kernels_use_the_callers_memory(driver: Any, mode: str) -> None:
    run, kept = calls(driver, mode), []
    for x, y in inputs(6):
        given = x.clone(), y.clone()
        kept.append((x, y, run(*given)))
        assert torch.equal(given[0], x) and torch.equal(given[1], y)
    for x, y, (whole, halves) in kept:
        torch.testing.assert_close(whole, wanted(x, y))
        assert halves.data_ptr() == whole.data_ptr() or mode == "copying"
        torch.testing.assert_close(halves.reshape(-1), wanted(x, y))
    assert len({whole.data_ptr() for _, _, (whole, _) in kept}) == 6
    assert run.complete and [one.touches for one in run.kernels.table] == [True, True, True]
    launches, updates = (ctypes.c_int.in_dll(driver.library, n).value for n in ("launches", "updates"))
    assert (launches, updates) == {"flat": (18, 0), "graph": (3, 15), "copying": (3, 3)}[mode]


def hidden(*given: Any) -> Any:
    """In place of `library_launches`: a driver that does not tell the parameters of library kernels."""
    raise LookupError


@pytest.mark.parametrize("mode", ["flat", "graph"])
def test_what_a_library_reads_has_its_place_in_a_graph(driver: Any, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_addresses, "library_launches", hidden)
    run = calls(driver, mode, with_library=True)
    for x, y in inputs(4):
        found = run(x, y)
        torch.testing.assert_close(found[0], wanted(x, y))
        torch.testing.assert_close(found[2], y * 2)
    assert not run.complete
    assert set(run.places) == ({1} if mode == "graph" else set())


def test_kernels_read_what_a_library_returned_in_this_call(driver: Any) -> None:
    """A library kernel allocates its result, at another address in each call than in the recorded one."""
    kernels, held = gpu_launches.Launches(), []
    add, twice = (kernels.of(Kernel(driver.library, name)) for name in ("add", "twice"))

    def launch(x: Any, out: Any, more: Any) -> Any:
        held.append(found := torch.empty(N))
        Kernel(driver.library, "add")(x, x, found)  # not wrapped: like a library's
        add(found, x, out)
        twice(more, boxes=[(found, (1, N), (1, N))])
        return out, more

    result = ((N,), torch.float32, None)
    run = gpu_calls.Calls(
        launch, kernels, [result[:2]], [result] * 2, "cpu", True, strict=False, library=[0], launch_mode="flat"
    )
    driver_host.as_on_gpu(run)
    for x, _ in inputs(4):
        three, four = run(x[:N])
        torch.testing.assert_close(three, 3 * x[:N])
        torch.testing.assert_close(four, 4 * x[:N])


def test_a_graph_keeps_what_a_library_returned_when_it_was_recorded(
    driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flat calls, which are timed before graphs, write the addresses of what the library returned in their calls."""
    kernels, held = gpu_launches.Launches(), []
    add = kernels.of(Kernel(driver.library, "add"))

    def launch(x: Any, out: Any) -> Any:
        held.append(found := torch.empty(N))
        Kernel(driver.library, "add")(x, x, found)  # not wrapped: like a library's
        add(found, x, out)
        return (out,)

    measured = gpu_calls.Calls.fastest

    def fastest(*given: Any) -> str:
        measured(*given)
        for result in held[2:]:  # of all calls but the recorded one: freed, and reused by others
            result.fill_(torch.nan)
        return "graph"

    monkeypatch.setattr(gpu_calls.Calls, "fastest", fastest)
    result = ((N,), torch.float32, None)
    run = gpu_calls.Calls(launch, kernels, [result[:2]], [result], "cpu", True, strict=False, library=[0])
    driver_host.as_on_gpu(run)
    for x, _ in inputs(4):
        torch.testing.assert_close(run(x[:N])[0], 3 * x[:N])


def copies(call: Any) -> int:
    """Number of tensors that a call copies."""

    class Counting(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), options: Any = None) -> Any:
            self.count += function in (torch.ops.aten.copy_.default, torch.ops.aten.clone.default)
            return function(*given, **(options or {}))

    with Counting() as counting:
        call()
    return counting.count


def test_a_graph_reads_steady_inputs_in_place(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters of a model that is trained are read where they are, also by library kernels."""
    monkeypatch.setattr(library_addresses, "library_launches", hidden)
    (x, y), (_, other), (_, last), *more = inputs(6)
    run = calls(driver, "graph", with_library=True)
    run(x, y)
    assert copies(lambda: run(x, y)) == 2  # the library's input, and its result
    run = calls(driver, "graph", with_library=True)
    run.steady = frozenset({1})
    parameter = y.clone()
    run(x, parameter)
    assert not run.places and run.pinned == {1: parameter.data_ptr()}
    for step, (fresh, _) in enumerate([(x, y), *more]):
        parameter += step  # as an optimizer does
        found: list[Any] = []
        assert copies(lambda x=fresh, y=parameter, found=found: found.extend(run(x, y))) == 1  # the library's result
        torch.testing.assert_close(found[0], wanted(fresh, parameter))
        torch.testing.assert_close(found[2], 2 * parameter)
    for moved in (other, last, parameter, other):
        found = run(x, moved)
        torch.testing.assert_close(found[0], wanted(x, moved))
        torch.testing.assert_close(found[2], 2 * moved)
    assert run.pinned == {} and set(run.places) == {1} and run.launch_mode == "graph"


def test_inputs_that_kernels_cannot_read_are_copied(driver: Any) -> None:
    for mode in ("flat", "graph"):
        run = calls(driver, mode)
        for x, y in inputs(3):
            wide = torch.zeros(N, 2)
            wide[:, 0] = y
            odd = torch.zeros(2 * N + 1)[1:].copy_(x)
            for given in ((x, wide[:, 0]), (odd, y), (x.clone().requires_grad_(), y)):
                torch.testing.assert_close(run(*given)[0], wanted(x, y))


def test_copies_have_the_form_that_kernels_read(driver: Any) -> None:
    """Of tensors that begin at an odd place, are transposed, need a gradient or are the program's own state."""
    state, flat = torch.arange(4.0), torch.arange(5.0)
    run = gpu_calls.Calls(
        tuple, gpu_launches.Launches(), [((4,), torch.float32)], [], "cpu", False, states={"n": state}
    )
    for x in (
        flat[1:],
        torch.arange(4.0).view(2, 2).T,
        torch.ones(4, requires_grad=True),
        state,
        torch._neg_view(flat[:4]),
    ):
        found = run.dense(x)
        assert not run.fits(x) and run.fits(found) and torch.equal(found, x)
        assert found.untyped_storage().data_ptr() != state.untyped_storage().data_ptr()
    assert run.fits(flat) and run.dense(flat).data_ptr() == flat.data_ptr()


def test_a_way_to_launch_is_timed_until_nobody_else_uses_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph takes a third of the time of single launches, but others use the device in the first turns."""
    now, busy = [0.0], iter([2000.0] * 12)

    def takes(us: float) -> Any:
        return lambda *given: now.__setitem__(0, now[0] + 1e-6 * (us if us > 300 else next(busy, us)))

    monkeypatch.setattr(gpu_calls, "perf_counter", lambda: now[0])
    run: Any = gpu_calls.Calls.__new__(gpu_calls.Calls)
    run.kernels = run.stream_object = SimpleNamespace(restore=lambda: None, synchronize=lambda: None)
    run.states, run.flat, run.graph = {}, takes(600), takes(180)
    assert run.fastest(["flat", "graph"], (), 0) == "graph" and now[0] < 1.0


def test_the_fastest_way_is_kept_and_states_are_not_advanced(driver: Any) -> None:
    states = {"n": torch.zeros(1)}
    run = calls(driver, states=states)
    (x, y), *_ = inputs(1)
    torch.testing.assert_close(run(x, y)[0], wanted(x, y))
    assert set(run.times) == {"flat", "graph", "copying"} and run.launch_mode in run.times and run.ready


def test_reused_results_are_fixed_and_may_be_given_back(driver: Any) -> None:
    run = calls(driver, "flat", reuse=True)
    (x, y), *_ = inputs(1)
    want = y
    for _ in range(3):
        y, want = run(x, y)[0], wanted(x, want)
        torch.testing.assert_close(y, want)
    assert run(x, want)[0].data_ptr() == y.data_ptr()


def test_a_thread_without_a_context_gets_the_programs(driver: Any) -> None:
    for mode in ("flat", "graph"):
        run = calls(driver, mode)
        (x, y), *_ = inputs(1)
        run(x, y)
        driver.library.lose_context()
        torch.testing.assert_close(run(x, y)[0], wanted(x, y))


def test_the_callers_recording_gets_plain_launches(driver: Any) -> None:
    run = calls(driver, "graph")
    (x, y), *_ = inputs(1)
    run(x, y)
    driver.capturing = True
    before = ctypes.c_int.in_dll(driver.library, "launches").value
    torch.testing.assert_close(run(x, y)[0], wanted(x, y))
    assert ctypes.c_int.in_dll(driver.library, "launches").value == before + 3


@pytest.mark.parametrize("mode", ["flat", "graph", "copying"])
def test_stored_launches_need_no_kernels(
    driver: Any, mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Launches, written to a folder and read back, are made without the kernels' own interface."""
    first = calls(driver, mode)
    (x, y), *more = inputs(4)
    first(x, y)
    kept = binaries.collected(first, "GPU sm_90")
    assert kept is not None and len(kept.files) == 2 and len(kept.launches) == 3
    checksums = binaries.write_binaries(tmp_path, kept)
    read = binaries.read_binaries(tmp_path, checksums)
    assert read is not None and read.texts() == kept.texts()

    def fails(*given: Any, **options: Any) -> None:
        raise AssertionError("a kernel's own interface was used")

    monkeypatch.setattr(Kernel, "__call__", fails)
    run = calls(driver, mode)
    run.kernels.stored = read.files, read.launches
    for x, y in more:
        whole, halves = run(x, y)
        torch.testing.assert_close(whole, wanted(x, y))
        torch.testing.assert_close(halves.reshape(-1), wanted(x, y))
    assert run.complete and run.launch_mode == mode
    (tmp_path / binaries.FOLDER / "0.cubin").write_bytes(b"other")
    with pytest.warns(RuntimeWarning, match=r"compiled again: 0.cubin is not the file that was saved"):
        assert binaries.read_binaries(tmp_path, checksums) is None


def test_each_gpu_captures_on_a_stream_of_its_own(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own stream for captures stays on the device of the first capture in the process."""
    for device in (0, 1, 1):
        monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda there=device: there)
        run = calls(driver)
        run.index = device
        x, y = inputs(1)[0]
        torch.testing.assert_close(run(x, y)[0], wanted(x, y))
    assert [stream.device for stream in driver.captured_on] == [0, 1, 1]
    assert driver.captured_on[1] is driver.captured_on[2]


@pytest.mark.parametrize("at", ["memory", "time_modes"])
def test_calls_work_where_memory_for_recording_runs_out(driver: Any, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """Recording needs memory for inputs and results once more, timing for results."""
    states = {"n": torch.zeros(1)}
    run, attempts = calls(driver, states=states), []

    def exhausted(*given: Any) -> None:
        attempts.append(given)
        states["n"].add_(10)
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    if at == "memory":
        states["n"].sub_(10)
        monkeypatch.setattr(run, "maker", exhausted)
    else:
        monkeypatch.setattr(run, "time_modes", exhausted)
    for count, (x, y) in enumerate(inputs(4)):
        with nullcontext() if count else pytest.warns(RuntimeWarning, match="kernel by kernel: CUDA out of memory"):
            torch.testing.assert_close(run(x, y)[0], wanted(x, y))
    assert len(attempts) == 1 and not run.ready and not run.places and run.recorded is run.executable is None
    assert states["n"].item() == 4 + (at == "time_modes")  # the emulated capture runs operations of Torch


def test_memory_of_a_call_on_another_stream_outlives_the_program(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_addresses, "library_launches", hidden)
    run = calls(driver, "graph", with_library=True, states={"n": torch.zeros(1)})
    run.memory = torch.zeros(4)
    fixed = [run.memory.data_ptr(), run.states["n"].data_ptr()]
    for stream in (7, 8, 8, 7, 8):
        driver.stream = stream
        run(*inputs(1)[0])
    places = [x.data_ptr() for x in run.places.values()]
    assert places and driver.kept == [*((x, 7) for x in fixed), *((x, 8) for x in (*fixed, *places))]


def test_a_source_runs_without_its_compilers() -> None:
    text = """import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def kernel(x, N: tl.constexpr):
    tl.store(x, N)

class Launches:
    stored = None

box = TensorDescriptor([1], [2], [3])
"""
    space = executed(text, "p", binaries.Binaries("g", {"0.cubin": b""}, []))
    assert space["Launches"].stored == ({"0.cubin": b""}, []) and space["box"].base == [1] and not space["kernel"]


def test_an_old_driver_means_copies_and_a_warning(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_launches.DirectLaunch, "spans", lambda self: [])
    run = calls(driver)
    with pytest.warns(RuntimeWarning, match="copy inputs"):
        for x, y in inputs(3):
            torch.testing.assert_close(run(x, y)[0], wanted(x, y))
    assert run.launch_mode == "copying" and driver.replays == 2
