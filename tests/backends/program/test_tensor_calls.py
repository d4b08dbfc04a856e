"""Calls of CPU programs with Torch tensors: the fast way for tensors like those of earlier calls, and all others."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import tensor_graphs as tg
import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.c.backend import generated
from tensor_graphs.backends.program.launch import direct_calls, host_calls, host_programs
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.program.saved_program import load_program
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime import cpu_tensors
from tensor_graphs.backends.runtime.computed_indices import ComputedIndices
from tensor_graphs.backends.runtime.index_limits import IndexLimit
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.errors import IndexRangeError, ShapeError, UsageError

torch = pytest.importorskip("torch")
KINDS = ["numpy", "torch", "mixed", *([] if backend("c").unavailable() else ["c"])]
N = 8


@pytest.fixture(autouse=True)
def direct_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls after the first one are made by the C function of host_calls.c where it accepts the arguments."""
    monkeypatch.setattr(Program, "_tries", 1)
    direct_calls.c_function("host_call", host_calls.SOURCE, np.get_include())  # else it is compiled beside the calls


class Marked(torch.Tensor):  # type: ignore[misc]
    """A subclass of tensors."""


def program(kind: str) -> Program:
    """tanh(x) by a NumPy, Torch or C kernel; "mixed" has an output of NumPy's beside."""
    x = tg.input("x", (N, 64))
    y = t.tanh(x)
    kernels: dict[str, list[Any]] = {
        "numpy": [backend("numpy")], "torch": [backend("torch")], "mixed": [backend("torch"), backend("numpy")],
        "c": [SimpleNamespace(templates=[generated(y)])],
    }  # fmt: skip
    return Program(direct_plan(Graph.of({"y": y, "z": t.flip(x, 0)} if kind == "mixed" else y), kernels[kind]))


def check(call: Callable[..., Any], x: Any) -> Any:
    """The result for x, after comparison."""
    found = call(x)
    found = found["y"] if isinstance(found, dict) else found
    assert type(found) is torch.Tensor and found.is_contiguous() and not found.requires_grad
    torch.testing.assert_close(found, x.detach().as_subclass(torch.Tensor).tanh(), rtol=1e-5, atol=1e-6)
    return found


def odd_tensors() -> dict[str, Any]:
    """Tensors of the program's shape and dtype that are not row-major memory of their own."""
    wide = torch.randn(2 * N, 130)
    read_only = np.random.default_rng(0).standard_normal((N, 64)).astype(np.float32)
    read_only.flags.writeable = False
    with torch.inference_mode():
        inferred = torch.randn(N, 64)
    return {
        "transposed": torch.randn(64, N).t(), "a part": wide[::2, 3:67], "expanded": wide[:1, :64].expand(N, 64),
        "unaligned": wide.flatten()[1 : N * 64 + 1].view(N, 64), "negated": torch.complex(wide, wide).conj().imag[:N, :64],
        "negated, row-major": torch._neg_view(torch.randn(N, 64)), "a parameter": torch.nn.Parameter(torch.randn(N, 64)),
        "with gradients": torch.randn(N, 64, requires_grad=True), "inside a graph": torch.randn(N, 64, requires_grad=True) * 2,
        "a subclass": torch.randn(N, 64).as_subclass(Marked), "of inference mode": inferred, "read-only": torch.as_tensor(read_only),
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("kind", KINDS)
def test_odd_tensors_between_plain_ones(kind: str) -> None:
    call = program(kind)
    for x in (torch.randn(N, 64), *odd_tensors().values()):
        check(call, torch.randn(N, 64))
        check(call, x)
        with torch.no_grad():
            check(call, x)
        with torch.inference_mode():
            check(call, x)
    with torch.autocast("cpu"):
        check(call, torch.randn(N, 64))


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_tensors_are_named_after_right_ones(kind: str) -> None:
    call, x = program(kind), torch.randn(N, 64)
    for _ in range(3):
        check(call, x)
    for wrong in (x.double(), x[:3], x[None], x.bfloat16()):
        with pytest.raises(ShapeError, match="'x'"):
            call(wrong)
    for wrong in (x.to("meta"), x.to_sparse()):
        with pytest.raises(UsageError, match=r"has no (array|data)"):
            call(wrong)
    with pytest.raises(UsageError):
        call(x, x)
    check(call, x)


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_the_caller_s(kind: str, tmp_path: Any) -> None:
    call, xs = program(kind), [torch.randn(N, 64) for _ in range(4)]
    kept = [x.clone() for x in xs]
    found = [check(call, x) for x in xs]
    copies = [y.clone() for y in found]
    for y in found[2:]:
        y.fill_(7)
    check(call, xs[0])
    assert all(map(torch.equal, xs, kept)) and all(map(torch.equal, found[:2], copies[:2]))
    arrays = call(xs[0].numpy())
    np.testing.assert_array_equal(arrays["y"] if isinstance(arrays, dict) else arrays, copies[0].numpy())
    loaded = load_program(call.save(tmp_path / "saved"))
    assert all(torch.equal(check(loaded, x), y) for x, y in zip(xs, copies))


def test_programs_that_use_an_input_as_an_array_take_tensors_nevertheless() -> None:
    """Of two inputs one is read by C kernels, the other by NumPy; outputs of C kernels are tensors of the call, also
    where a Torch kernel reads a reshaped one."""
    if backend("c").unavailable():
        pytest.skip("no C compiler")
    x, y, w = tg.input("x", (N, 64)), tg.input("y", (N, 64)), tg.input("w", (64, 4))
    one, other = t.tanh(x), t.flip(y, 0) + 1.0
    two = t.tanh(one)
    product = t.matmul(t.reshape(two, (N // 2, 2, 64)), w)
    kernels = [SimpleNamespace(templates=[generated(one), generated(two)]), backend("torch"), backend("numpy")]
    plan = direct_plan(Graph.of({"one": one, "two": two, "product": product, "other": other}), kernels)
    call = Program(plan)
    assert "TENSORS = True" in call.source and "RESULTS = (0, 1" in call.source
    run = call.source[call.source.index("def run(") :]
    assert (
        run.count("steps_2()") == 1
        and "at[0:3] = starts_of(x, v3, v4)" in run
        and "start_of" not in run.replace("starts_of", "")
        and "argument(" not in run
    )
    for _ in range(4):
        a, b, c = torch.randn(N, 64), torch.randn(N, 64), torch.randn(64, 4)
        want = (a.tanh(), a.tanh().tanh(), a.tanh().tanh().reshape(N // 2, 2, 64) @ c, b.flip(0) + 1)
        for given in ((a, c, b), (a.numpy(), c.numpy(), b.numpy()), (a, c, b.numpy()), (a.numpy(), c, b)):
            for found, right in zip(call(*given).values(), want, strict=True):
                torch.testing.assert_close(torch.as_tensor(found), right, rtol=1e-5, atol=1e-6)


def test_two_arguments_that_are_one_tensor_or_of_two_kinds() -> None:
    x, y = tg.input("x", (N, 4)), tg.input("y", (N, 4))
    for names in (["numpy"], ["torch", "numpy"]):
        call = Program(direct_plan(Graph.of(t.tanh(x) + y), [backend(n) for n in names]))
        a, b = torch.randn(N, 4), torch.randn(N, 4)
        for _ in range(3):
            torch.testing.assert_close(call(a, b), a.tanh() + b)
            torch.testing.assert_close(call(a, a), a.tanh() + a)
            torch.testing.assert_close(call(a.numpy(), b), a.tanh() + b)
            torch.testing.assert_close(call(a, b.numpy()), a.tanh() + b)
            torch.testing.assert_close(call(y=b, x=a), a.tanh() + b)


def test_dtypes_shapes_without_elements_and_free_sizes() -> None:
    both = [backend("torch"), backend("numpy")]
    for dtype in ("bfloat16", "float16", "float64", "int64", "int32"):
        call = Program(direct_plan(Graph.of(t.input("x", (4, 4), dtype) + t.input("y", (4, 4), dtype)), both))
        a, b = (torch.arange(16).view(4, 4).to(getattr(torch, dtype)) for _ in range(2))
        for _ in range(3):
            found = call(a, b)
            assert found.dtype == a.dtype and torch.equal(found, a + b)
    empty = Program(direct_plan(Graph.of(t.tanh(t.input("x", (0, 4)))), both))
    assert [empty(torch.ones(0, 4)).shape for _ in range(3)] == [(0, 4)] * 3
    every = tg.optimize(t.tanh(t.input("x", (tg.dim("T", max=50), 4))), backend="torch", measure=False, budget=1)
    for n in (3, 5, 3, 3, 5):
        x = torch.randn(n, 4)
        torch.testing.assert_close(every(x), x.tanh())


def test_a_torch_without_these_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_tensors, "_dynamo_guards", lambda wanted: None)
    call = program("torch")
    for x in (*odd_tensors().values(), torch.randn(N, 64)) * 2:
        check(call, x)


def test_several_threads_call_a_program() -> None:
    call, right = program("torch"), []

    def calls() -> None:
        for _ in range(100):
            x = torch.randn(N, 64)
            right.append(torch.allclose(call(x), x.tanh(), atol=1e-6))

    threads = [threading.Thread(target=calls) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 400


def test_a_call_s_results_are_made_as_tensors_of_the_kernels() -> None:
    call = Program(direct_plan(Graph.of(t.tanh(t.input("x", (N, 4)))), [backend("torch"), backend("numpy")]))
    x, seen = torch.randn(N, 4), []
    torch.testing.assert_close(call(x), x.tanh())
    run = call._run
    call._run = lambda *given: (seen.append(given), run(*given))[1]  # type: ignore[misc, func-returns-value]
    y = call(x)
    assert torch.equal(y, x.tanh()) and seen[-1][0] is x and seen[-1][1] is y


@pytest.mark.parametrize("kind", KINDS)
def test_an_input_that_requires_gradients_is_warned_of(kind: str) -> None:
    made = program(kind)
    given = torch.ones(N, 64, requires_grad=True)
    with pytest.warns(UserWarning, match="no gradients"):
        made(given)
    with torch.no_grad(), warnings.catch_warnings(action="error"):
        made(given)


# ---------------------------------------------------------------- the C function of a call
def direct_of(call: Program, *given: Any) -> Callable[..., Any]:
    """The direct function of a program after the call that binds it, and another."""
    call(*given), call(*given)
    if call._direct is None:
        pytest.skip("Python's headers or a C compiler are missing")
    return call._direct


def test_no_call_waits_for_the_compiler_of_its_direct_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that hung held the eighth call of a program for two minutes."""
    released, compiled = threading.Event(), direct_calls.c_function
    monkeypatch.setattr(direct_calls, "c_function", lambda *key: released.wait(300) and compiled(*key))
    monkeypatch.setattr(direct_calls, "_kept", lambda path: False)
    monkeypatch.setattr(direct_calls, "_compiling", {})
    last, call, x = program("numpy"), program("numpy"), np.ones((N, 64), np.float32)
    with monkeypatch.context() as ending:  # of the interpreter: no thread may start
        ending.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't create new thread")))
        np.testing.assert_allclose([last(x) for _ in range(9)][-1], np.tanh(x), rtol=1e-5)
        assert threading.Thread.start.called  # type: ignore[attr-defined]
    for _ in range(9):
        np.testing.assert_allclose(call(x), np.tanh(x), rtol=1e-5)
    assert call._direct is None
    released.set()
    for thread in direct_calls._compiling.values():
        thread.join()
    for _ in range(9):
        call(x)
    assert (call._direct is None) == (compiled("host_call", host_calls.SOURCE, np.get_include()) is None)


@pytest.mark.parametrize("kind", KINDS)
def test_the_direct_function_makes_calls_that_fit_and_no_others(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, x = program(kind), torch.randn(N, 64)
    direct, array = direct_of(call, x), x.numpy()
    assert (getattr(call._run, "whole", None) is not None) == (kind == "c")
    monkeypatch.setattr(call, "_called", None)  # the emitted code is called by the C function only
    for given in (array, x) if call._tensors and call._tensors.direct else (array,):
        found = call(given)
        found = found["y"] if isinstance(found, dict) else found
        assert type(found) is type(given)
        np.testing.assert_allclose(np.asarray(found), np.tanh(array), rtol=1e-5, atol=1e-6)
    swapped, fields = array.astype(">f4"), array.view([("a", "f4")])
    for other in (
        array.T.copy().T,
        array[:4],
        array.astype(float),
        swapped,
        fields,
        array[0],
        array.tolist(),
        x.t(),
        None,
        np.float32(1),
    ):
        assert direct(other) is None
    assert direct() is None and direct(array, array) is None
    with call._lock:
        assert direct(array) is not None  # the lock is this thread's
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with call._lock:
            held.set()
            done.wait(300)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(300)
    assert direct(array) is None
    done.set()
    thread.join()
    assert direct(array) is not None


def test_the_direct_function_checks_indices_and_names_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    table, at = t.input("table", (5, 4)), t.input("at", (3,), "int64")
    call = Program(direct_plan(Graph.of(t.gather(table, at, 0)), [backend("numpy")]))
    before = direct_of(call, np.ones((5, 4), np.float32), np.zeros(3, np.int64))
    call.checking([IndexLimit("at", -5, 5)], ComputedIndices())
    given = np.arange(20, dtype=np.float32).reshape(5, 4), np.array([0, 4, 2])
    assert direct_of(call, *given) is not before
    monkeypatch.setattr(call, "_called", None)
    np.testing.assert_array_equal(call(*given), given[0][given[1]])
    with pytest.raises(IndexRangeError):
        call(given[0], given[1] + 3)
    np.testing.assert_array_equal(call(*given), given[0][given[1]])


@pytest.mark.parametrize("names", [["numpy"], ["torch", "numpy"]])
def test_a_function_that_is_made_while_another_thread_binds_other_weights_makes_no_call(
    names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It computed with the weights from before in all calls to come."""
    y, ones = t.input("x", (N, 64)) * t.param("w", (64,)), np.ones(64, np.float32)
    call = Program(direct_plan(Graph.of(y), [backend(n) for n in names]), {"w": ones})
    x, made = torch.randn(N, 64), host_programs.host_call

    def made_late(bound: Any) -> Any:
        found = made(bound)
        if not bound_again:
            bound_again.append(call.bind({"w": 2 * ones}))
        return found

    bound_again: list[Any] = []
    monkeypatch.setattr(host_programs, "host_call", made_late)
    direct_of(call, x)
    assert bound_again
    for given in (x, x.numpy(), x):
        np.testing.assert_allclose(np.asarray(call(given)), 2 * x.numpy(), rtol=1e-6)


def test_a_released_program_is_freed_and_binds_again() -> None:
    call, x = program(KINDS[-1]), np.ones((N, 64), np.float32)
    direct_of(call, x)
    call.unbind()
    assert call._direct is None
    np.testing.assert_allclose(call(x), np.tanh(x), rtol=1e-5)
    call(x)
    known = weakref.ref(call)
    del call
    gc.collect()
    assert known() is None  # no cycle through the C function, which the garbage collector does not see
