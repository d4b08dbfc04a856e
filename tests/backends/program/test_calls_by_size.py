"""Calls of programs of every size, with a driver that computes on the host (driver_host.c)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest

from tensor_graphs.backends.program.helpers import (
    any_size_binaries,
    any_size_gpu_helpers,
    gpu_calls,
    gpu_launches,
)
from tensor_graphs.backends.program.launch import binaries
from tensor_graphs.backends.program.manifest import Manifest
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.program.saved_program import load_program
from tensor_graphs.egraph.types.dims import dim

from .. import driver_host
from ..driver_host import Described
from ..driver_host import SizedKernel as Sized
from .test_direct_launches import pytestmark  # noqa: F401

torch = pytest.importorskip("torch")


@pytest.fixture
def program(driver: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes programs of every length from `body(kernels, memory, n)`, which gives a launch function of (x, out)."""

    def made(body: Any, launch_mode: str = "", library: Any = ()) -> Any:
        workspace, sizes = any_size_gpu_helpers.Workspace("cpu"), []
        own = {name: Sized(driver.library, name) for name in ("add", "doubled")}

        def at(shape: Any, *more: Any) -> Any:
            n = shape[0]
            sizes.append(n)
            memory = workspace.take(4 * n)[torch.float32].as_strided((n,), (1,), 0)
            kernels = gpu_launches.Launches()
            launch = body({name: kernels.of(kernel) for name, kernel in own.items()}, memory, n)
            types = [((n,), torch.float32)]
            given = types * (1 + len(more))
            calls = gpu_calls.Calls(
                launch, kernels, given, [(*types[0], None)], "cpu", True, strict=False, library=library
            )
            return driver_host.as_on_gpu(calls)

        found = any_size_gpu_helpers.CallsBySize(at, workspace, "cpu", True, launch_mode=launch_mode)
        found.gpu, found.index, found.made_at, found.state, found.own = True, -1, sizes, driver, own
        return found

    return made


def threefold(kernels: Any, memory: Any, n: int) -> Any:
    def launch(x: Any, out: Any) -> Any:
        kernels["add"](x, x, memory, sizes=(n,), grid=n)
        kernels["add"](memory, x, out, sizes=(n,), grid=n)
        return (out,)

    return launch


@pytest.fixture
def run(program: Any) -> Any:
    """A program for 3 x of every length; `made_at`: the lengths that were prepared."""
    return program(threefold)


def right(run: Any, n: int) -> None:
    x = torch.randn(n)
    torch.testing.assert_close(run(x)[0], 3 * x)


def test_each_size_is_prepared_once_and_recorded_when_it_recurs(run: Any) -> None:
    for _ in range(4):
        for n in (96, 5, 17):
            right(run, n)
    assert run.made_at == [96, 5, 17]
    assert [bool(calls.times) for calls in run.kept.values()].count(True) == 1  # modes are timed once
    assert run.kept[(96,),].settled and run.kept[(96,),].launch_mode == run.launch_mode


@pytest.mark.parametrize("mode", ["flat", "graph", "copying"])
def test_a_new_size_is_launched_like_recorded_ones(program: Any, mode: str) -> None:
    run = program(threefold, mode)
    run.warm([((2,),), ((700,),)], {})
    assert len(run.known.templates) == 2 and run.known.complete
    by_interface, run.break_even = run.own["add"].calls, 5
    for n in (4000, 33, 9, 33, 33, 9, 33):
        right(run, n)
    assert run.own["add"].calls == by_interface  # neither launched by the kernels' own interface, nor recorded again
    repeated = [run.kept[(n,),] for n in (33, 9)]
    assert all(calls.launch_mode == "flat" and calls.complete and not calls.settled for calls in repeated)
    assert (
        run.kept[(4000,),].alike and not run.kept[(4000,),].ready
    )  # a size that does not recur has no launches of its own
    right(run, 33)  # has been called often enough to pay for recording
    assert [run.kept[(n,),].settled for n in (33, 9)] == [True, False] and run.kept[(33,),].launch_mode == mode
    assert run.own["add"].calls == by_interface + (0 if mode == "flat" else 4)
    for n in (33, 9, 33):
        right(run, n)


def test_calls_of_a_new_size_wait_for_the_stream_that_made_the_weights(program: Any, driver: Any) -> None:
    run = program(threefold)
    run.bound = torch.cuda.current_stream()
    for calls, n in enumerate((4, 4, 5)):
        before = driver.waits
        run(torch.ones(n))
        assert (driver.waits > before) == (calls != 1)


def test_recording_waits_until_calls_have_lost_what_it_takes(run: Any) -> None:
    calls = SimpleNamespace(launch_mode="graph", times={"flat": 30e-6, "graph": 20e-6}, recording_s=400e-6)
    run.chosen(calls)
    assert run.launch_mode == "graph" and run.break_even == 40
    calls.launch_mode, calls.times = "flat", {"flat": 20e-6, "graph": 20e-6}
    run.chosen(calls)
    assert run.break_even >= 4000  # never, in effect


def test_a_launch_unlike_recorded_ones_goes_through_the_kernels_interface(program: Any) -> None:
    def body(kernels: Any, memory: Any, n: int) -> Any:
        def launch(x: Any, out: Any) -> Any:
            start = 1 if n > 8 else 0  # from the second element on, as kernels compiled for other alignments have it
            kernels["add"](x[start:], x[start:], memory, sizes=(n - start,), grid=n)
            kernels["add"](memory, x[start:], out[start:], sizes=(n - start,), grid=n)
            return (out[start:],)

        return launch

    run = program(body, "flat")
    run.warm([((4,),), ((8,),)], {})
    before = run.own["add"].calls
    for _ in range(3):
        x = torch.randn(11)
        torch.testing.assert_close(run(x)[0], 3 * x[1:])
    assert run.own["add"].calls == before + 6  # the first call, the second, and its recording
    assert run.kept[(11,),].settled and run.made_at == [8, 4, 11]
    right(run, 7)
    assert run.own["add"].calls == before + 6


def test_tensor_maps_and_results_of_libraries_at_new_sizes(program: Any) -> None:
    held = []

    def body(kernels: Any, memory: Any, n: int) -> Any:
        def launch(x: Any, out: Any) -> Any:
            held.append(found := torch.empty(n))
            Sized(run.state.library, "add")(x, x, found, sizes=(n,))  # not wrapped: like a library's
            kernels["doubled"](memory, sizes=(n,), grid=n, boxes=[(found, (1, n), (1, 8))])
            kernels["add"](memory, x, out, sizes=(n,), grid=n)
            return (out,)

        return launch

    run = program(body, "flat", library=[0])
    run.warm([((16,),)], {})
    assert len(run.known.templates) == 2 and not run.known.complete
    before = run.own["doubled"].calls
    for n in (24, 7, 24, 1000, 7):
        x = torch.randn(n)
        torch.testing.assert_close(run(x)[0], 5 * x)
    assert run.own["doubled"].calls == before


@pytest.mark.parametrize("swizzle", [3, 2])
def test_launches_with_tensor_descriptors_at_new_sizes(
    program: Any, driver: Any, monkeypatch: Any, swizzle: int
) -> None:
    """As recorded ones, with tensor maps of their sizes; not if the maps of recorded ones cannot be made again."""
    monkeypatch.setattr(any_size_binaries, "torch", torch, raising=False)
    function, variants = Described(driver.library, swizzle), any_size_binaries.Variants()

    def body(kernels: Any, memory: Any, n: int) -> Any:
        own = gpu_launches.Launches.of(kernels["add"].launches, function)
        kernels["add"].launches.variants = variants

        def launch(x: Any, out: Any) -> Any:
            own[(1,)](memory, SimpleNamespace(base=x, shape=[n // 4, 4], strides=[4, 1]), n, num_warps=4)
            own[(1,)](out, SimpleNamespace(base=memory, shape=[n // 4, 4], strides=[4, 1]), n, num_warps=4)
            return (out,)

        return launch

    run = program(body, "flat")
    run.warm([((8,),), ((16,),)], {})
    before = function.compiled
    for n in (12, 12, 400, 12, 12, 20, 20, 20):
        x = torch.randn(n)
        torch.testing.assert_close(run(x)[0], 4 * x)
    known = swizzle == 3
    assert (function.compiled == before) == known and len(run.known.templates) == 2 * known
    assert all(calls.ready and calls.complete for calls in run.kept.values() if calls.seen > 1)


def test_the_same_tensor_given_twice_is_two_tensors_later(program: Any) -> None:
    """Which tensor a launch reads is known from the recorded call, not from the addresses of the first call at a
    size."""

    def body(kernels: Any, memory: Any, n: int) -> Any:
        def launch(x: Any, y: Any, out: Any) -> Any:
            kernels["add"](x, y, out, sizes=(n,), grid=n)
            return (out,)

        return launch

    run = program(body, "flat")
    run.warm([((16,), (16,))], {})
    x, y = torch.randn(2, 32)
    for a, b in ((x, x), (x, y), (y, y)):
        torch.testing.assert_close(run(a, b)[0], a + b)


def test_a_larger_workspace_replaces_what_used_the_smaller_one(run: Any) -> None:
    for n in (4, 4, 4, 5000, 4, 5000, 5000, 4):
        right(run, n)
    assert run.made_at == [4, 5000, 4] and len(run.kept) == 2


def test_a_larger_workspace_need_not_fit_beside_the_smaller_one(
    run: Any, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory of the device for one of them: the smaller one is given up, with the sizes that used it."""
    empty, held, refused = torch.empty, [], []

    def limited(*size: Any, **options: Any) -> Any:
        if options.get("dtype") is torch.uint8:
            if any(x() is not None for x in held):
                refused.append(size)
                raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
            found = empty(*size, **options)
            held.append(ref(found.untyped_storage()))
            return found
        return empty(*size, **options)

    for n in (5, 6, 5):
        right(run, n)
    held.append(ref(run.workspace.views[torch.uint8].untyped_storage()))
    monkeypatch.setattr(torch, "empty", limited)
    before = driver.waits
    right(run, 5000)
    assert (
        len(refused) == 1 and {*run.kept} == {((5000,),)} and driver.waits > before
    )  # it waits for the stream of the last call
    for n in (5, 5000, 6, 5):
        right(run, n)


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
    assert run.made_at == [700, 2] and not run.kept
    right(run, 2)
    assert run.workspace.grown == 1 or run.workspace.size >= 2800


# ---------------------------------------------------------------- saved kernels
class Function:
    """A Triton function of the host's driver, launched with a grid, tensors and a size."""

    __name__ = "add"

    def __init__(self, library: Any) -> None:
        self.inner, self.compiled = Sized(library, "add"), 0

    def __getitem__(self, grid: Any) -> Any:
        def launch(*given: Any, num_warps: int) -> Any:
            self.inner(*given[:-1], sizes=given[-1:])
            self.compiled += 1
            facts = SimpleNamespace(name="add", num_warps=num_warps, shared=0)
            return SimpleNamespace(asm={"cubin": b"add"}, metadata=facts)

        return launch


@pytest.fixture
def saved(driver: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
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
    unseen = binaries.AbsentCompiler()(Function(saved.driver.library))  # what is left of a decorated function
    launched = gpu_launches.Launches(Stored()).of(unseen)
    for n in (8, 5):
        x, y, out = (torch.randn(n) for _ in range(3))
        launched[(1,)](x, y, out, n, num_warps=4)
        torch.testing.assert_close(out, x + y)
    with pytest.raises(any_size_binaries.NotStored, match=r"add-\+\+"):
        launched[(1,)](torch.randn(9)[1:], y, out, 5, num_warps=4)


def test_saved_kernels_of_every_size_get_tensor_maps_of_their_descriptors(
    driver: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(any_size_binaries, "torch", torch, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)

    def noted(**map_facts: Any) -> Any:
        variants, x, compiled = any_size_binaries.Variants(), torch.zeros(4, 4), Described(driver.library).made
        compiled.metadata.tensordesc_meta[0].update(map_facts)
        variants.note("described", (x, SimpleNamespace(base=x, shape=[4, 4], strides=[4, 1]), 16), compiled, False)
        return binaries.collected(SimpleNamespace(kept={}, variants=variants), "GPU sm_90")

    class Stored(any_size_binaries.Variants):
        pass

    binaries.read_binaries(tmp_path, binaries.write_binaries(tmp_path, noted())).install({"Variants": Stored})
    launched = gpu_launches.Launches(Stored()).of(binaries.AbsentCompiler()(SimpleNamespace(__name__="described")))
    descriptor = binaries.AbsentCompiler().TensorDescriptor  # what is left of Triton's class
    for rows in (3, 7):
        x, out = torch.randn(rows, 4), torch.empty(rows, 4)
        launched[(1,)](out, descriptor(x, [rows, 4], [4, 1], [2, 4]), 4 * rows, num_warps=4)
        torch.testing.assert_close(out, 2 * x)
    assert noted(elem_type=10).variants["described+"]["maps"] == [[3, 4, 9, [2, 4]]]  # the driver's number of bfloat16
    assert noted(fp4_padded=True) is noted(is_im2col=True) is None  # cannot be stored: compiled again


def test_launches_of_saved_kernels_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function has no attributes of a compiled one; whether its launches are early is a bool all the same."""
    launches = gpu_launches.Launches(any_size_binaries.Variants())
    monkeypatch.setattr(gpu_launches, "torch", torch, raising=False)
    monkeypatch.setattr(launches, "make", lambda *given, **options: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    kept: list[bool] = []
    monkeypatch.setattr(launches, "keep", lambda kernel, given, options, early, binary: kept.append(early))
    launches.stored, launches.recording = ({}, []), True
    for options in ({}, {"launch_pdl": True}):
        launches.of(binaries.AbsentCompiler())[(1,)](torch.randn(8), num_warps=4, **options)
    assert kept == [False, True] and all(type(early) is bool for early in kept)


def test_calls_from_another_current_device_are_made_on_the_programs(
    run: Any, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the caller captures a graph on the other device, too."""
    device = [0]

    @contextmanager
    def entered(index: int) -> Iterator[None]:
        device.append(index)
        yield
        device.pop()

    monkeypatch.setattr(torch.cuda, "device", entered)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: device[-1])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: device[-1] == 0)
    for n in (5, 17, 5, 5):
        right(run, n)
    assert not run.held and {*run.kept} == {((5,),), ((17,),)}


def test_copies_of_a_size_outlive_the_program_on_the_stream_of_other_sizes(program: Any, driver: Any) -> None:
    """A call at this size needs not wait on that stream, since another size's call has."""

    def body(kernels: Any, memory: Any, n: int) -> Any:
        def launch(x: Any, out: Any) -> Any:
            Sized(driver.library, "add")(x, x, memory, sizes=(n,))  # not wrapped: like a library's
            kernels["add"](memory, x, out, sizes=(n,), grid=n)
            return (out,)

        return launch

    run = program(body, "graph", library=[0])
    for _ in range(3):
        right(run, 5)
    assert (place := run.kept[((5,),)].places[0].data_ptr()) and (place, 8) not in driver.kept
    driver.stream = 8
    right(run, 9)
    right(run, 5)
    assert driver.kept.count((place, 8)) == 1


def test_a_workspace_outlives_the_program_on_every_stream_that_uses_it(run: Any, driver: Any) -> None:
    for stream, n in ((7, 5), (8, 5), (8, 6), (7, 5), (8, 5000), (8, 5000), (7, 9)):
        driver.stream = stream
        right(run, n)
    old, new = dict.fromkeys(where for where, _ in driver.kept)
    assert driver.kept == [(old, 7), (old, 8), (new, 8), (new, 7)]


BOUND = """
class Run:
    def __init__(self, launch_mode):
        self.launch_mode, self.break_even = launch_mode or "graph", 32 if launch_mode else 200

def bind(weights, states=None, device="cuda", graph=True, launch_mode=""):
    return Run(launch_mode)
"""


def test_the_number_of_calls_after_which_recording_pays_is_saved(tmp_path: Path) -> None:
    shape = (dim("T", max=64),)
    manifest = Manifest("sized", (("x", shape, "float32"),), (("y", shape, "float32"),), None, (), (), 0, 0, 1, 0.0, 0.0,
                        device="cuda", sizes={"T": (1, 64, 8)})  # fmt: skip
    Program.from_saved(manifest, BOUND, {}, None, "cpu").bind().save(tmp_path / "saved")
    for _ in range(2):  # a loaded program is saved as it was
        loaded = load_program(tmp_path / "saved", device="cpu").bind()
        assert vars(loaded._run) == {"launch_mode": "graph", "break_even": 200}
        loaded.save(tmp_path / "saved")
    record = json.loads((tmp_path / "saved" / "manifest.json").read_text())
    assert record.pop("break_even") == 200
    (tmp_path / "saved" / "manifest.json").write_text(json.dumps(record))  # as earlier versions wrote it
    assert load_program(tmp_path / "saved", device="cpu").bind()._run.break_even == 32


def test_programs_of_older_versions_call_the_launch_mode_way(tmp_path: Path) -> None:
    older, spec = BOUND.replace("launch_mode", "way").replace("Run", "Calls"), ("x", (4,), "float32")
    manifest = Manifest("older", (spec,), (("y", *spec[1:]),), None, (), (), 0, 0, 1, 0.0, 0.0, device="cuda")
    Program.from_saved(replace(manifest, launch_mode="flat"), older, {}, None, "cpu").save(tmp_path / "saved")
    file = tmp_path / "saved" / "manifest.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"way": record.pop("launch_mode")}))
    loaded = load_program(tmp_path / "saved", device="cpu").bind()
    assert loaded._run.way == loaded._run.launch_mode == loaded.manifest.launch_mode == "flat"
    loaded._run.launch_mode = "graph"
    loaded.save(tmp_path / "again")
    assert load_program(tmp_path / "again", device="cpu").manifest.launch_mode == loaded._run.way == "graph"
