"""Library kernels that read and write the caller's memory in a CUDA graph, with a driver that computes on the host
(driver_host.c)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from tensor_graphs.backends.program.helpers import gpu_calls, gpu_launches, library_addresses, library_launches
from tensor_graphs.backends.program.helpers.cuda_driver import KernelNode
from tensor_graphs.backends.program.launch import direct_calls

from .. import driver_host
from ..driver_host import Kernel
from .test_direct_launches import N, copies, pytestmark  # noqa: F401

torch = pytest.importorskip("torch")


def program(launch: Callable[..., Any], driver: Any, results: int = 1, used: int = 3, **options: Any) -> Any:
    """A program of `launch(kernels, x, y, results ...)` with vectors of N numbers, the first `used` of them for library
    kernels."""
    kernels, kind = gpu_launches.Launches(), ((N,), torch.float32, None)
    own = {name: kernels.of(Kernel(driver.library, name)) for name in ("add", "twice")}
    made = gpu_calls.Calls(
        lambda *given: launch(own, *given), kernels, [kind[:2]] * 2, [kind] * results, "cpu", True, strict=False,
        library=range(used), **{"launch_mode": "graph", **options},
    )  # fmt: skip
    return driver_host.as_on_gpu(made)


def aligned(x: Any, offset: int = 0) -> Any:
    """A copy of a vector at a multiple of 256 bytes, and `offset` bytes."""
    memory = torch.zeros(x.numel() + 128)
    start = (-memory.data_ptr() % 256 + offset) // 4
    return memory[start : start + x.numel()].copy_(x)


def vectors(count: int) -> list[Any]:
    made = torch.Generator().manual_seed(1)
    return [tuple(aligned(torch.randn(N, generator=made)) for _ in range(2)) for _ in range(count)]


def both(driver: Any) -> Callable[..., Any]:
    """A function for `program`: x + y by a library, and (x + y) + y by a generated kernel."""

    def launch(own: Any, x: Any, y: Any, out: Any, more: Any) -> Any:
        Kernel(driver.library, "add")(x, y, out)
        own["add"](out, y, more)
        return out, more

    return launch


def losing(lost: int, compared: list[Any]) -> Callable[..., None]:
    """`LibraryLaunch.compare` that does not find address `lost` of the first launch; launches go to `compared`."""
    inner = library_launches.LibraryLaunch.compare

    def compare(self: Any, *given: Any) -> None:
        inner(self, *given)
        compared.append(self)
        if len(compared) == 1:
            del self.slots[lost]

    return compare


def test_library_kernels_use_the_callers_memory(driver: Any) -> None:
    run, kept = program(both(driver), driver, 2), []
    given = vectors(5)
    run(*given[0])
    assert not run.copied and not run.places and run.wide == {0, 1} and len(run.found) == 1
    for x, y in given:
        assert copies(lambda x=x, y=y: kept.append((x, y, run(x, y)))) == 0
    function = direct_calls.direct_call(run, given[0], run.lock)
    if function is not None:  # a C compiler and Python's headers are there
        kept += [(x, y, function(x, y)) for x, y in given]
    for x, y, (out, more) in kept:
        torch.testing.assert_close(out, x + y)
        torch.testing.assert_close(more, (x + y) + y)
    assert len({out.data_ptr() for _, _, (out, _) in kept}) == len(kept)


def test_results_that_libraries_allocate_are_copied_in_one_launch(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the program's code and by the C function, which copies one by one for programs of older versions."""

    def launch(own: Any, x: Any, y: Any, out: Any) -> Any:
        Kernel(driver.library, "add")(x, y, out)
        return [out, *(torch.full((3, n), float(n)).t() for n in range(5)), torch.ones(2, dtype=torch.int64)]

    run, given = program(launch, driver, 1), vectors(3)
    run(*given[0])
    run(*given[0])
    copied: list[int] = []
    together = torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda a, b: (copied.append(len(a)), together(a, b)))
    function = direct_calls.direct_call(run, given[0], run.lock)
    for k, call in enumerate([run, run, *([function] * 3 if function is not None else [])]):
        if k == 4:
            monkeypatch.delattr(gpu_calls.Calls, "copies")
        x, y = given[k % 3]
        out, *others, last = call(x, y)
        torch.testing.assert_close(out, x + y)
        assert [tuple(z.shape) for z in others] == [(n, 3) for n in range(5)] and last.tolist() == [1, 1]
        assert all((z == n).all() and z.stride() == torch.empty(3, n).t().stride() for n, z in enumerate(others))
        for z in (*others, last):
            z.fill_(9)  # results of later calls are others
    assert copied == [5] * (2 if function is None else 4)


def test_programs_of_library_kernels_alone_have_a_direct_call(driver: Any) -> None:
    """As the backward pass of a network of convolutions."""

    def launch(own: Any, x: Any, y: Any, out: Any) -> Any:
        Kernel(driver.library, "add")(x, y, out)
        return (out,)

    run, ((x, y), (z, _)) = program(launch, driver), vectors(2)
    run(x, y)
    run(x, y)
    function = direct_calls.direct_call(run, (x, y), run.lock)
    if direct_calls.c_function("direct_call") is not None:
        assert function is not None and not run.kernels.table
        torch.testing.assert_close(function(z, y)[0], z + y)


def test_inputs_with_another_alignment_than_the_recorded_ones_are_copied(driver: Any) -> None:
    run, ((x, y),) = program(both(driver), driver, 2), vectors(1)
    run(x, y)
    run(x, y)
    odd = aligned(x, 16)
    assert copies(lambda: torch.testing.assert_close(run(odd, y)[0], x + y)) == 1
    function = direct_calls.direct_call(run, (x, y), run.lock)
    assert function is None or (function(odd, y) is None and function(x, y) is not None)


def test_steady_inputs_stay_in_place(driver: Any) -> None:
    run, ((x, y), (other, _)) = program(both(driver), driver, 2), vectors(2)
    run.steady = frozenset({1})
    for first in (x, other, x):
        y += 1
        torch.testing.assert_close(run(first, y)[0], first + y)
    assert run.pinned == {1: y.data_ptr()} and run.wide == {0} and not run.copied


def test_states_are_not_advanced_by_the_search_for_addresses(driver: Any) -> None:
    state = torch.zeros(1)

    def launch(own: Any, x: Any, y: Any, out: Any) -> Any:
        Kernel(driver.library, "add")(x, y, out)
        state.add_(1)
        return (out,)

    run, ((x, y),) = program(launch, driver, states={"n": state}), vectors(1)
    run(x, y)
    assert run.found and state.item() == 2  # of the call, and of the emulated recording, which runs operations of Torch


@pytest.mark.parametrize("lost", [0, 2])
def test_an_address_that_is_not_found_means_a_copy(driver: Any, lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library may keep an address elsewhere than among the parameters of a kernel: then the results differ, and the
    tensor is found by which they do."""

    def launch(own: Any, x: Any, y: Any, out: Any, more: Any) -> Any:
        Kernel(driver.library, "add")(x, y, out)
        Kernel(driver.library, "add")(x, out, more)
        return out, more

    compared: list[Any] = []
    monkeypatch.setattr(library_launches.LibraryLaunch, "compare", losing(lost, compared))
    run, given = program(launch, driver, 2, 4), vectors(3)
    for x, y in given:
        torch.testing.assert_close(run(x, y)[1], x + (x + y))
    assert len(compared) == 2 and run.copied == set(run.places) == {lost} and run.why_copied == "results differ"


@pytest.mark.parametrize("lost", [None, 2])
def test_results_of_equal_calls_may_differ(driver: Any, lost: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that add in any order, as gradients of weights in 16 bits, are no reason to copy; a lost address is."""
    replay, drawn = gpu_calls.Calls.replay, torch.Generator().manual_seed(0)

    def noisy(self: Any, *given: Any) -> Any:
        return tuple(x * (1 + 3e-3 * torch.randn(x.shape, generator=drawn)) for x in replay(self, *given))

    monkeypatch.setattr(gpu_calls.Calls, "replay", noisy)
    if lost is not None:
        monkeypatch.setattr(library_launches.LibraryLaunch, "compare", losing(lost, []))
    run, given = program(both(driver), driver, 2), vectors(1)[0]
    run(*given)
    assert run.copied == ({2} if lost is not None else set()) and bool(run.why_copied) == (lost is not None)


def test_without_time_to_find_such_a_tensor_all_are_copied(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_addresses.LibraryAddresses, "PROVING_S", -1.0)
    run, given = program(both(driver), driver, 2), vectors(3)
    for x, y in given:
        torch.testing.assert_close(run(x, y)[1], (x + y) + y)
    assert run.copied == {0, 1, 2} and not run.found and not run.wide


def test_parameters_may_be_one_buffer() -> None:
    """As of cuBLAS's kernels for Hopper GPUs; a graph node gets the copy, with addresses set in it."""
    words, size = (ctypes.c_uint64 * 3)(5, 6, 7), ctypes.c_size_t(24)
    options = (ctypes.c_void_p * 5)(2, ctypes.addressof(size), 1, ctypes.addressof(words), 0)
    one = library_launches.LibraryLaunch.__new__(library_launches.LibraryLaunch)
    one.how = KernelNode(extra=ctypes.addressof(options))
    one.start = one.read_buffer()
    assert one.layout == [(0, 24)] and [w.value for w in one.words()] == [5, 6, 7]
    next(iter(one.words())).value = 8
    given = (ctypes.c_void_p * 5).from_address(one.how.extra)
    assert given[0] == 1 and given[2] == 2 and not given[4] and one.how.parameters is None
    assert ctypes.c_uint64.from_address(given[1]).value == 8 and ctypes.c_size_t.from_address(given[3]).value == 24
    one.how = KernelNode()
    assert one.read_buffer() == 0 and not list(one.words())


@pytest.mark.parametrize("fault", ["kernels", "type", "ambiguous", "memory", "driver"])
def test_recordings_that_differ_mean_copies(driver: Any, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, given = program(both(driver), driver, 2), vectors(3)
    if fault == "kernels":
        read, made = library_launches.LibraryLaunch.__init__, []

        def other(self: Any, *given: Any) -> None:
            read(self, *given)
            made.append(self)
            self.how.grid[0] += len(made)

        monkeypatch.setattr(library_launches.LibraryLaunch, "__init__", other)
    elif fault == "type":
        nodes = library_launches.nodes_of
        monkeypatch.setattr(library_launches, "nodes_of", lambda *given: [(n, 3) for n, _ in nodes(*given)])
    elif fault == "ambiguous":
        monkeypatch.setattr(library_launches.Spans, "at", lambda self, where: [0, 0])
    else:
        inner = gpu_calls.Calls.captured_results

        def exhausted(self: Any, recorded: Any, places: Any, quick: bool) -> Any:
            if quick:
                kind = torch.cuda.OutOfMemoryError if fault == "memory" else RuntimeError
                raise kind("CUDA out of memory.")
            return inner(self, recorded, places, quick)

        monkeypatch.setattr(gpu_calls.Calls, "captured_results", exhausted)
    with pytest.warns(RuntimeWarning, match="library kernels use") if fault == "driver" else nullcontext():
        run(*given[0])
    for x, y in given:
        torch.testing.assert_close(run(x, y)[1], (x + y) + y)
    assert run.copied == {0, 1, 2} and not run.found and not run.wide


def test_tensors_that_other_nodes_copy_stay_in_the_programs_memory(
    driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, inner = [], library_launches.nodes_of
    monkeypatch.setattr(
        library_launches, "nodes_of", lambda *given: [*inner(*given), (nodes.append(given) or len(nodes), 1)]
    )
    run, given = program(both(driver), driver, 2), vectors(3)

    def parameters(node: Any, found: Any) -> int:
        ctypes.cast(found, ctypes.POINTER(ctypes.c_uint64))[5] = run.places[1].data_ptr()
        return 0

    monkeypatch.setattr(driver.library, "cuGraphMemcpyNodeGetParams", parameters, raising=False)
    for x, y in given:
        torch.testing.assert_close(run(x, y)[1], (x + y) + y)
    assert run.copied == set(run.places) == {1} and run.wide == {0}
