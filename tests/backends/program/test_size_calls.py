"""Calls of GPU programs at sizes that they have not met, with a driver that computes on the host (driver_host.c)."""

from __future__ import annotations

from typing import Any

import pytest

from tensor_graphs.backends.program.buckets import Bucket, Buckets
from tensor_graphs.backends.program.helpers import any_size_binaries
from tensor_graphs.backends.program.launch import direct_calls, size_calls, size_trace
from tensor_graphs.backends.program.manifest import Manifest
from tensor_graphs.backends.program.program import Program
from tensor_graphs.egraph.types.dims import dim
from tensor_graphs.errors import DeviceFaultError, DeviceMemoryError, ShapeError

from .. import driver_host
from .test_direct_launches import pytestmark  # noqa: F401

torch = pytest.importorskip("torch")

#: Five times x by two forms of kernels: the second kernel of sizes from 65 on is another launch.
FIVEFOLD = """
T = x_shape[0]
check_sizes((x_shape, ), ((T, 2),), (('1 <= T <= 4096', 1 <= T <= 4096), ))
offset0 = 0
offset1 = offset0 + (max(8*T, 4) + 255) // 256 * 256
spaces = workspace.take(offset1 + 8*T)
v0 = spaces[torch.float32].as_strided((T, 2), (2, 1), offset0 // 4)
v1 = spaces[torch.float32].as_strided((T, 2), (2, 1), offset1 // 4)
kernels = Launches()

def launch(x, out, *, add=kernels.of(add)):
    add(x, x, v0, sizes=(2*T,), grid=(T + 7) // 8)
    if T >= 65:
        add(v0, v0, v1, sizes=(2*T,), grid=3, early=True)
    else:
        add(v0, v0, v1, sizes=(T + T,), grid=T)
    add(v1.view(2*T), x, out[0:T], sizes=(2*T,), grid=1)
    return out,

spec = ((T, 2), torch.float32)
return Calls(launch, kernels, [spec], [(*spec, None)], device, True, reuse=False, library=[], strict=False)
"""
#: The same with kernels of libraries, whose results and views generated kernels read.
MIXED = """
T = x_shape[0]
check_sizes((x_shape, ), ((T, 2),), ())
rows = T + -T % 64 * min(1, T // 65)
spaces = workspace.take(16*rows)
v0 = spaces[torch.float32].as_strided((T, 4), (4, 1), 0)
whole = spaces[torch.float32].as_strided((rows, 4), (4, 1), 0)
left = v0[:, 0:2]
right = v0[:, 2:4]
kernels = Launches()

def launch(x, out, *, add=kernels.of(add)):
    torch.mul(whole, 1.0, out=whole)
    torch.mul(x, 2.0, out=left)
    right.copy_(left)
    v1 = torch.add(left, right, alpha=1)
    add(v1, x, out, sizes=(2*T,), grid=1)
    del v1
    return out, out.view((2*T,))[0:T]

spec = ((T, 2), torch.float32)
return Calls(launch, kernels, [spec], [(*spec, None)], device, True, reuse=False, library=[0], strict=True)
"""
#: The same by a kernel that reads a caller's tensor, or the workspace, through tensor maps of sizes from 65 on.
MAPPED = """
T = x_shape[0]
check_sizes((x_shape, ), ((T, 2),), ())
spaces = workspace.take(16*T + 256)
v0 = spaces[torch.float32].as_strided((T, 2), (2, 1), 64)
kernels = Launches()

def launch(x, out, *, add=kernels.of(add), doubled=kernels.of(doubled)):
    doubled(v0, sizes=(2*T,), grid=1, boxes=[(x, (T, 2), (1, 8))])
    if T >= 65:
        doubled(out, sizes=(2*T,), grid=(T + 7) // 8, boxes=[(v0, (T, 2), (64, 64), 2*T)])
    else:
        add(v0, v0, out, sizes=(2*T,), grid=1)
    add(x, out, out, sizes=(2*T,), grid=1)
    return out,

spec = ((T, 2), torch.float32)
return Calls(launch, kernels, [spec], [(*spec, None)], device, True, reuse=False, library=[], strict=False)
"""
#: The same by a Triton function that takes tensor descriptors.
TILED = """
T = x_shape[0]
check_sizes((x_shape, ), ((T, 2),), ())
spaces = workspace.take(16*T + 256)
v0 = spaces[torch.float32].as_strided((T, 2), (2, 1), 64)
kernels = Launches(variants)

def launch(x, out, *, add=kernels.of(add), tiled=kernels.of(tiled)):
    tiled[(1,)](v0, described(x, (T, 2), (2, 4)), 2*T, num_warps=4)
    if T >= 65:
        tiled[((T + 7) // 8,)](out, described(v0, (2*T, 1), (2, 4), 0, (1, 1)), 2*T, num_warps=4)
    else:
        add(v0, v0, out, sizes=(2*T,), grid=1)
    add(x, out, out, sizes=(2*T,), grid=1)
    return out,

spec = ((T, 2), torch.float32)
return Calls(launch, kernels, [spec], [(*spec, None)], device, True, reuse=False, library=[], strict=False)
"""


@pytest.fixture
def program(driver: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a program of every size from the body of its function `at`; `met`: sizes that it prepared."""
    if direct_calls.c_function("sized_launches") is None:
        pytest.skip("Python's headers or a C compiler are missing")
    monkeypatch.setattr(Program, "_tries", 1)
    monkeypatch.setattr(any_size_binaries, "torch", torch, raising=False)

    def made(text: str, warm: Any = ((2,), (70,)), **names: Any) -> Program:
        names["described"], names["tiled"] = driver_host.described, driver_host.Described(driver.library)
        names["variants"] = any_size_binaries.Variants()
        run = driver_host.sized_program(driver.library, text, **names)
        run.warm([((n, 2),) for (n,) in warm], {})
        met: list[int] = []
        inner = run.made
        run.made = lambda shapes, capturing: (met.append(shapes[0][0]), inner(shapes, capturing))[1]
        shape = (dim("T", max=4096), 2)
        manifest = Manifest("host", (("x", shape, "float32"),), (("y", shape, "float32"),), None, (), (), 0, 0, 1, 0.0, 0.0,
                            device="cuda", sizes={"T": (1, 4096, 64)})  # fmt: skip
        found = Program.from_saved(manifest, "", {}, None, "cpu")
        found._run, found.met = run, met  # type: ignore[attr-defined]
        return found

    return made


def right(program: Any, n: int, factor: float = 5.0) -> None:
    x = torch.randn(n, 2)
    torch.testing.assert_close(program(x), factor * x)


@pytest.mark.parametrize("text", [FIVEFOLD, MIXED, MAPPED, TILED])
def test_a_size_is_met_without_preparing_it(program: Any, text: str) -> None:
    made = program(text, warm=((2,), (3000,)))
    kept = []
    for n in (40, 41, 7, 64, 1, 2900, 65, 1000, 41, 3):
        x = torch.randn(n, 2)
        kept.append((x, made.flat(x)))
    for x, (whole, *views) in kept:
        torch.testing.assert_close(whole, 5 * x)
        assert all(v.data_ptr() == whole.data_ptr() and len(v) == len(x) for v in views)
    assert made.met == ([40] if text is MIXED else [40, 2900])  # once for each form
    with pytest.raises(ShapeError):
        made(torch.zeros(5000, 2))
    with pytest.raises(ShapeError):
        made(torch.zeros(5, 3))


def test_programs_of_an_older_version_have_functions_of_sizes(program: Any) -> None:
    made = program(FIVEFOLD)
    for template in made._run.known.templates.values():
        del template.mapped
        template.describe = lambda base, values: None
    for n in (40, 41):
        right(made, n)
    assert made.met == [40] and len(made._new_sizes.made) == 1 and not made._new_sizes.why


def test_the_function_reads_sizes_once_and_only_what_it_needs(program: Any) -> None:
    made = program(FIVEFOLD)
    right(made, 40)
    (one,) = made._new_sizes.made
    assert "as_strided" not in one.text and "max(" in one.text and "not s0_0 >= 65" in one.text
    right(made, 80)
    assert len(made._new_sizes.made) == 2 and made._new_sizes.tries == 2
    mixed = program(MIXED)
    right(mixed, 40)
    (one,) = mixed._new_sizes.made
    assert one.text.count("as_strided") == 2 and "del t" in one.text and "own_launched" in one.text


def test_a_size_that_recurs_is_prepared(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_calls.SizeCalls, "PREPARED", 3)
    made = program(FIVEFOLD)
    for _ in range(10):
        for n in (30, 31):
            right(made, n)
    assert made.met == [30, 31] and made._fitting[((31, 2),)].direct.call is not None
    made._new_sizes.KEPT = 2
    for n in range(1, 9):
        right(made, n)
    assert len(made._new_sizes.seen) <= 2


def test_a_larger_workspace_is_taken_by_the_emitted_code(program: Any) -> None:
    made = program(FIVEFOLD)
    for n in (80, 4000, 81, 3999, 82):
        right(made, n)
    assert made.met == [80, 4000] and made._new_sizes.tries == 1


def test_a_workspace_that_could_not_grow_is_not_taken_for_a_larger_one(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = program(FIVEFOLD)
    for n in (80, 81):
        right(made, n)
    workspace, (one,) = made._run.workspace, made._new_sizes.made

    def exhausted(*given: Any, **named: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    with monkeypatch.context() as full:
        full.setattr(torch, "empty", exhausted)
        with pytest.raises(DeviceMemoryError):
            made(torch.zeros(4000, 2))
    assert workspace.size == -1 and not workspace.views
    assert one.call([torch.zeros(3000, 2)]) is None  # its launches would write behind the workspace
    for n in (82, 4000):
        right(made, n)


def test_what_the_function_cannot_take_is_left_to_the_emitted_code(program: Any, driver: Any) -> None:
    made = program(FIVEFOLD)
    made(torch.zeros(81)[1:].view(40, 2))
    assert made._new_sizes.why == ["inputs were copied"] and not made._new_sizes.tries
    made.met.clear()
    right(made, 41)
    made.met[:] = [40]
    (one,) = made._new_sizes.made
    x = torch.randn(33, 2)
    odd = torch.zeros(67)[1:].view(33, 2)
    for given in (
        odd,
        x.T.contiguous().T,
        x.double(),
        x.clone().requires_grad_(),
        x.view(66),
        x.numpy(),
        torch.zeros(5000, 2),
    ):
        assert one.call((given,)) is None
    torch.testing.assert_close(made(odd.fill_(1)), torch.full((33, 2), 5.0))
    with made._lock:
        driver.capturing = True
        assert one.call((x,)) is None
        driver.capturing = False
    made._run.last.stream = 8
    assert one.call((x,)) is None
    made._run.last.stream = 7
    driver.library.lose_context()
    torch.testing.assert_close(one.call((x,))[0], 5 * x)
    with torch.inference_mode():
        right(made, 35)
        right(made, 36)
    right(made, 38)
    assert made.met == [40, 33, 35]
    driver.library.fail_launch(2)
    with pytest.raises(DeviceFaultError, match="CUDA error: cuLaunchKernelEx failed with code 700"):
        made(torch.randn(37, 2))
    right(made, 37)


BODY = "T = x_shape[0]\nkernels = Launches()\n{}\ndef launch(x, out, *, add=kernels.of(add), doubled=kernels.of(doubled)):\n    {}\n" \
    "    return out,\nspec = ((T, 2), torch.float32)\n" \
    "return Calls(launch, kernels, [spec], [(*spec, None)], device, True, reuse=False, library=[0], strict=False)\n"  # fmt: skip


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        ("rows = list(range(T))", "add(x, x, out, sizes=(2*T,), grid=1)"),
        ("", "add(x, x, out, sizes=(2*len(x),), grid=1)"),
        ("", "doubled(out, sizes=(2*T,), grid=1, boxes=[(x, (len(x), 2), (1, 8))])"),
        ("name = f'{T} rows'", "add(x, x, out, sizes=(2*T,), grid=1)"),
        ("", "torch.add(x, x, out=out) if x.shape[0] > 3 else torch.mul(x, 2, out=out)"),
        ("", "add(x, x, out, sizes=(2*T,), grid=1); x[0]"),
        (
            "table = {T: 1}",
            "add(x, x, out, sizes=(2*table[T],), grid=1) if False else add(x, x, out, sizes=(2*T,), grid=1)",
        ),
    ],
)
def test_other_code_has_no_function(program: Any, before: str, inside: str) -> None:
    made = program(BODY.format(before, inside))
    for n in (30, 31, 30, 80):
        right(made, n, 2.0)
    assert not made._new_sizes.made and made.met == [30, 31, 80]
    assert made._new_sizes.tries == 1 and len(made._new_sizes.why) == 1  # no attempt that fails in the same way


def test_other_forms_are_tried_where_one_has_no_function(program: Any) -> None:
    inside = "add(x, x, out, sizes=(2*T,), grid=1) if T >= 65 else add(x, x, out, sizes=(2*len(x),), grid=1)"
    made = program(BODY.format("", inside), warm=((2,), (3000,)))
    for n in (30, 31, 80, 81, 32, 82):
        right(made, n, 2.0)
    new = made._new_sizes
    assert (made.met, len(new.made), new.tries) == ([30, 31, 80, 32], 1, 2)
    assert new.why and new.refused[0].holds([(64, 2)]) and not new.refused[0].holds([(65, 2)])
    assert not new.refused[0].holds([(64,)])


def test_sizes_without_tensor_maps_are_left_to_the_emitted_code(program: Any, driver: Any) -> None:
    made = program(MAPPED)
    right(made, 80)
    (one,) = made._new_sizes.made
    driver.library.fail_encode(1)
    found = one.call((torch.zeros(81, 2),))
    driver.library.fail_encode(0)
    assert found is None and one.call((torch.zeros(81, 2),)) is not None


def test_a_tensor_map_that_differs_from_the_emitted_one_is_noticed(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, inner = program(MAPPED), driver_host.Kernel.described
    monkeypatch.setattr(
        driver_host.Kernel, "described", lambda self, x, shape, box, *more: inner(self, x, shape, (3, 8))
    )
    for n in range(80, 90):
        right(made, n)
    assert made._new_sizes.why == ["a launch differs from the emitted code's"] and made._new_sizes.tries == 3


def test_a_launch_that_differs_from_the_emitted_one_is_noticed(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = program(FIVEFOLD)
    monkeypatch.setattr(size_trace.Tracer, "extreme", lambda self, which: lambda *given: 1024)  # a wrong offset
    right(made, 40)
    assert made._new_sizes.tries == 1 and not made._new_sizes.made


def test_buckets_have_functions_of_their_own_plans(program: Any) -> None:
    made, plan = program(FIVEFOLD), program(MIXED, warm=((2,), (3000,)))
    made.manifest = made.manifest.__class__(**{f: getattr(made.manifest, f) for f in made.manifest.__dataclass_fields__} | {
        "buckets": Buckets("T", (Bucket(1, 99), Bucket(100, 4096, "late")))})  # fmt: skip
    made.plans = {"late": plan}
    for n in (30, 31, 200, 201, 99, 100, 32):
        right(made, n)
    assert (made.met, plan.met) == ([30, 99], [200])
    with pytest.raises(ShapeError):
        made(torch.zeros(5000, 2))


def test_sizes_cannot_be_used_as_numbers() -> None:
    tracer = size_trace.Tracer({})
    size = size_trace.TracedSize(tracer, 12, size_trace.Line("", name="s0_0"))
    for use in (int, str, bool, hash, range, float, repr, "{}".format):
        with pytest.raises((size_trace.Untraceable, TypeError)):
            use(size)
    values = [size + 1, 1 + size, size - 2, 2 - size, size * 3, 100 // size, size // 5, size % 5, 100 % size, -size]
    assert [x.value for x in values] == [13, 13, 10, -10, 36, 8, 2, 2, 4, -12]
    space: dict[str, Any] = {"s0_0": 12}
    for line in tracer.lines:
        exec(f"{line.name} = {line.text}", space)
    assert [space[x.line.name] for x in values] == [x.value for x in values]
    assert (size > 3, size < 3, size == 12, size != 12, 1 <= size <= 12) == (True, False, True, False, True)
    assert size + 1 is size + 1
    assert all(eval(text, space) for text in tracer.conditions)
