"""Verification among tensors says what verification among arrays says."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.types.dtypes import numpy_dtype
from tensor_graphs.verification import comparison, verify

torch = pytest.importorskip("torch", reason="values on a device are Torch's tensors")
from tensor_graphs.backends.runtime.marshalling import array_of, tensor_of  # noqa: E402
from tensor_graphs.backends.verification import compare  # noqa: E402
from tensor_graphs.verification import on_device  # noqa: E402

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30]


def spoiled(rng: np.random.Generator, share: float, dtype: Any = np.float64) -> np.ndarray[Any, Any]:
    x = rng.standard_normal((23, 7))
    places = rng.random(x.shape) < share
    x[places] = rng.choice(SPECIAL, places.sum())
    return x.astype(dtype)


@pytest.mark.parametrize("piece", [1 << 22, 10, 1])
@pytest.mark.parametrize("share", [0.0, 0.05, 1.0])
def test_errors_are_those_of_arrays(piece: int, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "PIECE_THERE", piece)
    rng = np.random.default_rng(0)
    for turn in range(4):
        exact = spoiled(rng, share)
        own = np.where(rng.random(exact.shape) < 0.9, exact * 1.001, spoiled(rng, share)).astype(np.float32)
        y = [exact * 1.01, own, spoiled(rng, share), exact.copy()][turn].astype(np.float32)
        want = comparison._errors(y, exact, own)
        got = comparison._errors(*map(tensor_of, (y, exact, own)))
        assert got[2] == want[2] and got[:2] == pytest.approx(want[:2], rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_verdicts_agree(dtype: str) -> None:
    """A right run, a rough one and a wrong one; an integer output among them."""
    x, s = tg.input("x", (40, 30), dtype), tg.state("s", (40, 30), dtype)
    graph = Graph.of({"y": tg.softmax(x * 3.0), "i": tg.argmax(x, 1)}, updates={"s": s + x})
    assert not verify.verify(graph, _run, device="cpu").miscompiled
    here, there = (verify.verify(graph, _run, device=d) for d in ("", "cpu"))
    for a, b in zip(here.outputs, there.outputs, strict=True):
        assert (a.name, a.discrete, a.passed) == (b.name, b.discrete, b.passed)
        assert b.original == pytest.approx(a.original, rel=0.5, abs=1e-15)  # sums in another order
    for wrong in (_shifted, _missing):
        here, there = (verify.verify(graph, wrong, device=d) for d in ("", "cpu"))
        assert not here.passed and not there.passed and here.miscompiled == there.miscompiled
    assert {o.seeds for o in (here, there)} == {3}


def _run(values: Any) -> list[Any]:
    x, s = values["x"], values["s"]
    x, s = (v if isinstance(v, torch.Tensor) else tensor_of(v) for v in (x, s))
    found = [torch.softmax(3.0 * x, -1), x.argmax(1), s + x]
    return found if isinstance(values["x"], torch.Tensor) else list(map(array_of, found))


def _shifted(values: Any) -> list[Any]:
    y, i, s = _run(values)
    return [y, i, s + 1]


def _missing(values: Any) -> list[Any]:
    y, i, s = _run(values)
    y[0, 0] = float("nan")
    return [y, i, s]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"])
def test_integers_are_compared_place_by_place(dtype: str) -> None:
    own = np.arange(40).reshape(5, 8).astype(numpy_dtype(dtype))
    y = own.copy()
    y[0, :4] = ~y[0, :4] if dtype != "bool" else np.logical_not(y[0, :4])
    assert on_device.unequal(tensor_of(y), tensor_of(own)) == comparison._unequal(y, own) == 0.1
    assert on_device.unequal(tensor_of(own), tensor_of(own)) == 0.0
    assert on_device.unequal(tensor_of(own[:2]), tensor_of(own)) == 1.0
    assert on_device.unequal(tensor_of(own[:0]), tensor_of(own[:0])) == 0.0


def test_states_are_what_was_drawn_not_what_they_start_as() -> None:
    """A graph's params hold what its states start as under their names."""
    s, x = tg.state("s", (6,)), tg.input("x", (6,))
    graph = replace(Graph.of(x * 2.0, updates={"s": s + x}), params={"s": np.full(6, 9.0, np.float32)})
    assert verify.verify(graph, lambda v: [v["x"] * 2, v["s"] + v["x"]], device="cpu").passed


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int64", "int8", "uint8", "bool"])
def test_what_is_drawn_has_the_types_it_should(dtype: str) -> None:
    leaves = [tg.input("x", (30, 50), dtype), tg.input("none", (0, 5), dtype), tg.input("one", (), dtype)]
    drawn = [on_device.sample_tensors(leaves, np.random.default_rng(7), {"x": 60}, "cpu") for _ in range(2)]
    for leaf in leaves:
        a, b = (array_of(values[leaf.attr("name")]) for values in drawn)
        assert a.shape == leaf.shape and a.dtype == numpy_dtype(dtype)
        np.testing.assert_array_equal(a, b)
    x = array_of(drawn[0]["x"]).astype(np.float64)
    if "float" in dtype:
        assert abs(x.mean()) < 0.2 and 0.9 < x.std() < 1.1
    elif dtype == "bool":
        assert 0.4 < x.mean() < 0.6
    else:
        assert x.min() == 0 and 50 < x.max() < 60 and all(len(set(row)) == 50 for row in x)


def test_large_values_and_bits_stay_with_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, seen = Graph.of(tg.exp(tg.input("x", (4,)))), []

    def run(values: Any) -> list[Any]:
        seen.append(type(values["x"]))
        return [np.exp(np.asarray(values["x"]))]

    verify.verify(graph, run, device="cpu", seeds=1)
    verify.verify(graph, run, device="cpu", seeds=1, tolerance="exact")
    monkeypatch.setattr(on_device, "fits", lambda *_: False)
    verify.verify(graph, run, device="cpu", seeds=1)
    assert seen == [torch.Tensor, np.ndarray, np.ndarray]


def test_caches_of_many_rows_are_compared_on_the_device_if_the_weights_leave_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """16 rows of an 8B model, 4 GiB of states in and out: on the host, drawing and comparing them takes a minute."""
    monkeypatch.setattr(on_device, "is_gpu", lambda device: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=140 << 30))
    fits = [on_device.fits("cuda", n << 30, weights << 30) for n, weights in ((4, 15), (4, 60), (2, 60), (12, 15))]
    assert fits == [True, False, True, False]


def test_a_full_device_leaves_it_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **more: Any) -> Any:
        raise torch.OutOfMemoryError

    x = torch.arange(1.0, 5.0)
    plain, asked = compare.MeasuredErrors, iter([full, compare.MeasuredErrors])
    with monkeypatch.context() as patch:
        patch.setattr(compare, "MeasuredErrors", lambda *tensors: next(asked)(*tensors))
        found = comparison._measured(2 * x, x, x)
        assert found.errors == plain(2 * x, x, x).errors == (1.0, 0.0)
    monkeypatch.setattr(on_device, "reference_tensors", full)
    verdict = verify.verify(Graph.of(tg.exp(tg.input("x", (4,)))), lambda v: [np.exp(v["x"])], device="cpu")
    assert verdict.passed and verdict.seeds == 3


def test_weights_stay_on_the_device_between_runs_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []

    class Lazy:
        def __init__(self, name: str, array: np.ndarray[Any, Any]) -> None:
            self.name, self.array, self.shape, self.dtype = name, array, array.shape, array.dtype

        def load(self) -> np.ndarray[Any, Any]:
            taken.append(self.name)
            return self.array

    w, b = np.random.default_rng(0).standard_normal((2, 5, 5), dtype=np.float32)
    y = tg.input("x", (4, 5)) @ tg.param("w", (5, 5)) + (tg.param("b", (5, 5)) @ tg.param("w", (5, 5)))[0]
    graph = replace(Graph.of({"y": y}), params={"w": Lazy("w", w), "b": Lazy("b", b)})
    right = lambda values: [values["x"] @ tensor_of(w) + (tensor_of(b) @ tensor_of(w))[0]]
    verdict = verify.verify(graph, right, device="cpu")
    assert verdict.passed and len(taken) == 2 * 2 * verdict.seeds  # each of two runs takes both
    taken.clear()
    monkeypatch.setattr(on_device, "room_for_weights", lambda graph, device: {})
    again = verify.verify(graph, right, device="cpu")
    assert again.outputs == verdict.outputs and sorted(taken) == ["b", "w"]


def test_a_comparison_without_a_baseline_waits_little_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each transfer from a device waits for its work; what is found is what NumPy finds."""
    reads = []
    for name in ("tolist", "item", "__float__", "__int__", "__bool__"):
        read = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda x, read=read: reads.append(1) or read(x))
    rng = np.random.default_rng(0)
    exact = rng.standard_normal((64, 96))
    for shape in ((64, 96), (1, 6144), (64, 1, 96)):
        for far in (1.0, 40.0):
            y = exact + far * 1e-3 * rng.standard_normal(exact.shape)
            given = [x.reshape(shape) for x in (y, exact)]
            want = compare.worst(*given, None, "bfloat16", 5e-3)
            reads.clear()
            found = compare.worst(*map(torch.from_numpy, given), None, "bfloat16", 5e-3)
            assert found.where == want.where and found.ratio == pytest.approx(want.ratio)
            assert 3 <= len(reads) <= 7
