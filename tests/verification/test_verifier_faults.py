"""Verification refuses programs with small faults, and passes right programs that are badly conditioned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends.verification import inputs as drawing
from tensor_graphs.egraph.evaluate.interpret import evaluate, expand_all
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.types.dtypes import numpy_dtype
from tensor_graphs.verification import comparison, on_device, verify
from tensor_graphs.verification.strips import strips_of

Array = np.ndarray[Any, Any]
DEVICES = ["", "cpu"]
pytest.importorskip("torch", reason="values on a device are Torch's tensors")


def spoiled(graph: Graph, fault: Callable[[list[Array], dict[str, Array]], object]) -> Callable[[Any], list[Any]]:
    """A program that computes a graph in its own dtypes, with a fault."""
    from tensor_graphs.backends.runtime.marshalling import array_of, is_torch, tensor_of

    def run(values: Any) -> list[Any]:
        there = any(map(is_torch, values.values()))
        arrays = {n: array_of(v) if is_torch(v) else v for n, v in values.items()}
        with np.errstate(all="ignore"):
            found = [
                np.array(x) for x in evaluate(expand_all(graph.roots, wide_means=True), arrays, params=graph.params)
            ]
            fault(found, arrays)
        return [tensor_of(x) for x in found] if there else found

    return run


def judged(
    graph: Graph, fault: Callable[[list[Array], dict[str, Array]], object], device: str = "", **options: Any
) -> comparison.Verification:
    return verify.verify(graph, spoiled(graph, fault), device=device, **options)


def put(place: Any, change: Callable[[Any], Any]) -> Callable[[list[Array], dict[str, Array]], None]:
    """A fault at places of the first output."""

    def fault(found: list[Array], values: dict[str, Array]) -> None:
        found[0][place] = change(found[0][place])

    return fault


def replaced(by: Callable[[dict[str, Array]], Array]) -> Callable[[list[Array], dict[str, Array]], None]:
    """The first output computed in another way."""

    def fault(found: list[Array], values: dict[str, Array]) -> None:
        found[0] = np.asarray(by(values)).astype(found[0].dtype)

    return fault


SCALES = np.where(np.arange(64) == 5, 1e-4, 1.0).astype(np.float32)


def scaled(axis: int) -> Graph:
    """A product with one channel of 64 that is 10000 times smaller than the others."""
    x, w = tg.input("x", (48, 32)), tg.param("w", (32, 64))
    y = x @ w * tg.param("s", (64,))
    y = y if axis == 1 else y.T
    w_ = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)
    return Graph.of(y, params={"w": w_, "s": SCALES})


def product(rows: int = 100, columns: int = 80, dtype: str = "float32") -> Graph:
    return Graph.of(tg.input("x", (rows, 40), dtype) @ tg.input("w", (40, columns), dtype))


def whole(f: Callable[[Any, Any], tg.Tensor], dtype: str = "int32", shape: tuple[int, ...] = (40, 50)) -> Graph:
    return Graph.of(f(tg.input("x", shape, dtype), tg.input("y", shape, dtype)))


def wide(v: dict[str, Array]) -> tuple[Array, Array]:
    return v["x"].astype(np.float64), v["y"].astype(np.float64)


def ties_last(v: dict[str, Array]) -> Array:
    x = v["x"]
    return x.shape[1] - 1 - np.argmax(x[:, ::-1], 1)


def away(x: Array) -> Array:
    return np.asarray(np.floor(np.abs(x) + 0.5) * np.sign(x))


def half_sums(v: dict[str, Array]) -> Array:
    total = np.zeros(v["x"].shape[0], np.float16)
    for column in v["x"].T:
        total = total + column.astype(np.float16)
    return total


X = tg.input("x", (60, 70))
FEW, OTHER = tg.input("x", (30, 7)), tg.input("y", (7,))


def rows(x: tg.Tensor, by: Callable[..., tg.Tensor]) -> tg.Tensor:
    return by(x, axis=-1, keepdims=True)


def other_rows(
    value: Callable[[Array], Array], where: Callable[[Array], Array]
) -> Callable[[list[Array], dict[str, Array]], object]:
    """Other values in the rows of the input x that satisfy a condition."""
    return replaced(lambda v: np.where(where(v["x"]).reshape(-1, 1), value(v["x"]), v["x"]))


FAULTS: dict[str, tuple[Graph, Callable[[list[Array], dict[str, Array]], object]]] = {
    "one of 100000 elements is off by a hundredth": (Graph.of(tg.tanh(tg.input("x", (100, 1000))) + 2.0), put((17, 3), lambda v: v * 1.01)),
    "one element of a product is off by a tenth of the mean": (product(), put((17, 3), lambda v: v + 0.6)),
    "a small channel is off by a tenth": (scaled(1), put((slice(None), 5), lambda v: v * 1.1)),
    "a small row is off by a tenth": (scaled(0), put(5, lambda v: v * 1.1)),
    "one row is zero": (product(), put(7, lambda v: 0)),
    "the small row is zero": (scaled(0), put(5, lambda v: 0)),
    "the last element is off": (product(), put((-1, -1), lambda v: v + 1)),
    "the last element of a long vector is zero": (Graph.of(tg.exp(tg.input("x", (100_003,)))), put(-1, lambda v: 0)),
    "a channel of an image in 16 bits is off by an eighth": (
        Graph.of(tg.input("x", (2, 16, 24, 24), "bfloat16") * 3.0 + 0.5),
        put((slice(None), 3), lambda v: v * v.dtype.type(1.125)),
    ),
    "a whole number is off by one at one place": (whole(lambda x, y: x + y), put((3, 4), lambda v: v + 1)),
    "a truth value is wrong at one place": (whole(lambda x, y: tg.lt(x, y)), put((3, 4), lambda v: ~v)),
    "an argmax is wrong at one place": (Graph.of(tg.argmax(tg.exp(X), 1)), put(5, lambda v: (v + 1) % 70)),
    "sums saturate": (whole(lambda x, y: x + y), replaced(lambda v: np.clip(sum(wide(v)), -(2**31), 2**31 - 1))),
    "sums of bytes do not wrap": (whole(lambda x, y: tg.lt(x + y, y), "uint8"), replaced(lambda v: sum(wide(v)) < v["y"])),
    "products lose their upper digits": (whole(lambda x, y: x * y, "int64"), replaced(lambda v: (np.prod(wide(v), axis=0)))),
    "division truncates": (whole(lambda x, y: tg.floordiv(x, y)), replaced(lambda v: np.trunc(np.divide(*wide(v))))),
    "the remainder has the dividend's sign": (whole(lambda x, y: tg.mod(x, y)), replaced(lambda v: np.fmod(v["x"], v["y"]))),
    "the remainder of a float has the dividend's sign": (
        Graph.of(tg.mod(tg.input("x", (40, 50)), 3.0)), replaced(lambda v: np.fmod(v["x"], np.float32(3)))),
    "64 bits are cut to 32": (whole(lambda x, y: x + y, "int64"), replaced(lambda v: (v["x"] + v["y"]).astype(np.int32))),
    "unsigned numbers compare as signed ones": (
        whole(lambda x, y: tg.lt(x, y), "uint64"), replaced(lambda v: v["x"].astype(np.int64) < v["y"].astype(np.int64))),
    "a cast saturates": (Graph.of(tg.cast(tg.input("x", (40, 50), "int64"), "int8")), replaced(lambda v: np.clip(v["x"], -128, 127))),
    "negative places are the first one": (
        Graph.of(tg.gather_elements(X, tg.input("i", (60, 9), "int64"), 1)),
        replaced(lambda v: np.take_along_axis(v["x"], np.maximum(v["i"], 0), 1)),
    ),
    "negative places that the graph wraps are the first one": (
        Graph.of(tg.gather(X, tg.where(tg.input("i", (40,), "int64") < 0, tg.input("i", (40,), "int64") + 60, tg.input("i", (40,), "int64")))),
        replaced(lambda v: v["x"][np.maximum(v["i"], 0)]),
    ),
    "the last row of a table is not read": (
        Graph.of(tg.gather(tg.input("x", (50, 3)), tg.input("i", (50,), "int64"))),
        replaced(lambda v: v["x"][np.minimum(v["i"], 48)]),
    ),
    "NaN is missing": (Graph.of(tg.log(X - 100.0)), put((3, 4), lambda v: 0.0)),
    "NaN is too much": (product(), put((3, 4), lambda v: np.nan)),
    "an infinity has the other sign": (Graph.of(X * 1e38 * 1e38), put((3, 4), lambda v: -v)),
    "only large numbers are wrong": (Graph.of(tg.tanh(X * 1e-3)), replaced(lambda v: np.tanh(np.where(np.abs(v["x"]) > 1e3, v["x"] * 1e-4, v["x"] * 1e-3)))),
    "only zeros are wrong": (Graph.of(tg.where(tg.eq(X, 0.0), 1.0, X)), replaced(lambda v: v["x"])),
    "ties are rounded away from zero": (
        Graph.of(tg.round(X)), replaced(lambda v: away(v["x"]))),
    "ties behind a factor are rounded away from zero": (Graph.of(tg.round(X * 4.0 - 1.0)), replaced(lambda v: away(v["x"] * 4 - 1))),
    "ties behind limits are rounded away from zero": (
        Graph.of(tg.cast(tg.minimum(tg.maximum(tg.round(-X * 32.0), -128.0), 127.0), "int8")),
        replaced(lambda v: np.clip(away(v["x"] * -32), -128, 127))),
    "a whole number behind a factor has the floor of the next lower one": (
        Graph.of(tg.floor(X * 0.0625 + 0.25)), replaced(lambda v: np.ceil(v["x"] * 0.0625 + 0.25) - 1)),
    "a multiple of a divisor has the floor of a product with its reciprocal": (
        Graph.of(tg.floor(tg.input("x", (60, 70), "float64") / 49.0)), replaced(lambda v: np.floor(v["x"] * (1 / 49)))),
    "the threshold behind a factor counts as below": (
        Graph.of(tg.where(X.T * 4.0 < 3.0, 1.0, X.T)), replaced(lambda v: np.where(v["x"].T * 4 <= 3, 1, v["x"].T))),
    "a multiple of a divisor behind a factor has the quotient of the next lower one": (
        Graph.of(tg.floordiv(tg.input("x", (60, 70), "float16") * 8.0, 5.0)), replaced(lambda v: np.ceil(v["x"].astype(np.float32) * 8 / 5) - 1)),
    "the last of equal numbers is the largest": (Graph.of(tg.argmax(tg.input("x", (300, 70)), 1)), replaced(ties_last)),
    "equal numbers of two inputs count as less": (
        Graph.of(tg.where(FEW < OTHER, 1.0, FEW)), replaced(lambda v: np.where(v["x"] <= v["y"], 1, v["x"]))),
    "a difference of two inputs that is zero counts as positive": (
        Graph.of(tg.where(tg.exp(OTHER) > 0, tg.where(FEW * 2.0 - OTHER > 0.0, 1.0, FEW), 0.0)),
        replaced(lambda v: np.where(v["x"] * 2 - v["y"] >= 0, 1, v["x"]))),
    "equal numbers of one input count as less": (
        Graph.of(tg.where(FEW[:, 1:] < FEW[:, :-1], 1.0, 0.0)), replaced(lambda v: v["x"][:, 1:] <= v["x"][:, :-1])),
    "a row of zeros has another scale": (
        Graph.of(tg.where(rows(tg.abs(FEW), tg.max) == 0.0, 1.0, FEW)), other_rows(lambda x: x + 2, lambda x: ~x.any(1))),
    "a row of positive numbers has the other sign": (
        Graph.of(tg.where(rows(FEW, tg.min) > 0.0, FEW * 1.0, FEW)), other_rows(lambda x: -x, lambda x: x.min(1) > 0)),
    "a row of negative numbers has the other sign": (
        Graph.of(tg.where(rows(FEW, tg.max) < 0.0, FEW * 1.0, FEW)), other_rows(lambda x: -x, lambda x: x.max(1) < 0)),
    "the least norm of a row is larger": (
        Graph.of(FEW / tg.maximum(tg.sqrt(rows(FEW * FEW, tg.sum)), 1e-8)),
        replaced(lambda v: v["x"] / np.maximum(np.linalg.norm(v["x"], axis=1, keepdims=True), np.float32(1e-3)))),
    "a row that a mask hides is not zero": (
        Graph.of(tg.where(rows(tg.cast(tg.input("x", (30, 7), "bool"), "int32"), tg.sum) == 0, 0.0, tg.input("y", (30, 7)))),
        replaced(lambda v: v["y"])),
    "a sum is taken in 16 bits": (Graph.of(tg.sum(tg.input("x", (30, 2000)), 1)), replaced(half_sums)),
    "a limit of 16-bit numbers is missing": (
        Graph.of(tg.minimum(tg.cast(tg.input("x", (50, 64), "float16"), "float32"), 20.0)), replaced(lambda v: v["x"])),
    "what is above a limit is wrong in 16 bits": (
        Graph.of(tg.where(tg.input("x", (50, 64), "float16") > 20.0, 1.0, tg.input("x", (50, 64), "float16"))), replaced(lambda v: v["x"])),
    "a norm of large 16-bit numbers is zero": (
        Graph.of(tg.rms_norm(tg.input("x", (50, 64), "float16") * 1000.0, tg.ones((64,), "float16"))), put(slice(None), lambda v: 0)),
    "a cast to bool is missing": (
        Graph.of(tg.exp(tg.cast(tg.cast(tg.input("x", (40, 50), "int64"), "bool"), "float32"))), replaced(lambda v: np.exp(v["x"]))),
    "integers lose their upper bits before they become floats": (
        Graph.of(tg.cast(tg.input("x", (40, 50), "int32"), "float32") * 0.5), replaced(lambda v: v["x"].astype(np.int8) * 0.5)),
    "one of the numbers whose squares overflow is off": (
        Graph.of(tg.input("x", (40, 50), "float64") * 1e200), put((3, 4), lambda v: v * 1.1)),
    "a difference that is zero but for rounding is not": (
        Graph.of((X * X - 1.0) - (X - 1.0) * (X + 1.0)), replaced(lambda v: v["x"] * 1e-2)),
    "a variance of means that are large, by squares": (
        Graph.of(tg.var(X + 1000.0, 1)),
        replaced(lambda v: np.mean((v["x"] + np.float32(1000)) ** 2, 1) - np.mean(v["x"] + np.float32(1000), 1) ** 2 + 1e-1),
    ),
    "a whole tensor of positive numbers is scaled": (
        Graph.of(tg.where(tg.all(X > 0.0), X * 2.0, X)), replaced(lambda v: v["x"])),
    "a whole tensor of negative numbers is kept": (
        Graph.of(tg.where(tg.max(X, keepdims=True) < 0.0, -X, X)), replaced(lambda v: v["x"])),
    "a whole tensor of zeros is divided by 1": (
        Graph.of(tg.where(tg.max(tg.abs(X), keepdims=True) > 0.0, X, X + 3.0)), replaced(lambda v: v["x"])),
    "a whole tensor of equal numbers is shifted": (
        Graph.of(X + tg.cast(tg.all(tg.max(X, keepdims=True) == X), "float32")), replaced(lambda v: v["x"])),
    "a whole mask is empty": (
        Graph.of(tg.where(tg.any(tg.input("m", (40, 50), "bool")), X, X - 1.0)), replaced(lambda v: v["x"])),
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_refused(name: str, device: str) -> None:
    graph, fault = FAULTS[name]
    assert judged(graph, lambda found, values: None, device).passed
    verdict = judged(graph, fault, device)
    assert not verdict.passed
    assert verdict.worst.worst.where or not verdict.worst.finite or verdict.worst.plan > verdict.worst.allowed


BITS: dict[str, Callable[[list[Array], dict[str, Array]], object]] = {
    "a zero has the other sign": put((3, 4), lambda v: -v),
    "a denormal number is zero": lambda found, values: found.__setitem__(
        0, np.where(np.abs(found[0]) < 1e-38, 0, found[0])
    ),
    "NaN is a number": lambda found, values: found.__setitem__(0, np.nan_to_num(found[0])),
}


@pytest.mark.parametrize("name", BITS)
def test_faults_in_bits_are_refused_where_bits_count(name: str) -> None:
    graph = Graph.of(tg.maximum(X, 0.0) * 0.5)
    zeros = Graph.of(X * 0.0)
    graph = zeros if "sign" in name else graph
    assert judged(graph, lambda found, values: None, tolerance="exact").passed
    assert not judged(graph, BITS[name], tolerance="exact").passed


# ---------------------------------------------------------------- right programs
def run_as(graph: Graph) -> Callable[[Any], list[Any]]:
    return spoiled(graph, lambda found, values: None)


def other(f: Callable[..., Any], dtype: str = "float32") -> Callable[[list[Array], dict[str, Array]], None]:
    """The first output by another formula, in float32, stored in a dtype."""

    def fault(found: list[Array], values: dict[str, Array]) -> None:
        found[0] = np.asarray(f(*(values[n].astype(np.float32) for n in sorted(values)))).astype(numpy_dtype(dtype))

    return fault


def tiles(x: Array) -> Array:
    """A sum along the rows by tiles."""
    return np.sum([x[:, i : i + 32].sum(1) for i in range(0, x.shape[1], 32)], 0, dtype=np.float32)


def online_softmax(x: Array) -> Array:
    low, total = np.full(x.shape[0], -np.inf, np.float32), np.zeros(x.shape[0], np.float32)
    for i in range(0, x.shape[1], 64):
        part = x[:, i : i + 64]
        new = np.maximum(low, part.max(1))
        total = total * np.exp(low - new) + np.exp(part - new[:, None]).sum(1)
        low = new
    return np.exp(x - low[:, None]) * (np.float32(1) / total)[:, None]


LONG = tg.input("x", (8, 20_000))
HALF = tg.input("x", (50, 64), "float16")
BRAIN = tg.input("x", (50, 64), "bfloat16")
RIGHT: dict[str, tuple[Graph, Callable[[list[Array], dict[str, Array]], object]]] = {
    "a long softmax in tiles": (Graph.of(tg.softmax(LONG * 8.0)), other(lambda x: online_softmax(x * np.float32(8)))),
    "a long sum in tiles": (Graph.of(tg.sum(LONG, 1)), other(tiles)),
    "a variance by squares": (
        Graph.of(tg.var(X + 3.0, 1)), other(lambda x: np.mean(x * x, 1) - np.mean(x, 1) ** 2)),
    "a cancellation": (Graph.of((X + 1000.0) - X), other(lambda x: np.float32(1000) + (x - x))),
    "a logsumexp of large numbers": (
        Graph.of(tg.logsumexp(X * 100.0, 1)),
        other(lambda x: np.max(x * 100, 1) + np.log(np.exp(x * 100 - np.max(x * 100, 1, keepdims=True)).sum(1))),
    ),
    "masked scores": (
        Graph.of(tg.softmax(tg.where(tg.lt(tg.iota((60, 70), 1), 9), X, -1e30))),
        other(lambda x: online_softmax(np.where(np.arange(70) < 9, x, np.float32(-1e30)))),
    ),
    "an argmax of products": (
        Graph.of(tg.argmax(tg.input("x", (4000, 24)) @ tg.input("y", (24, 3)), 1)),
        other(lambda x, y: np.argmax(sum(x[:, i : i + 1] * y[i] for i in range(24)), 1), "int64"),
    ),
    "an argmax of nearly equal numbers": (
        Graph.of(tg.argmax(tg.concat([X * 0.1 * 3.0, X * 3.0 * 0.1], 1), 1)),
        other(lambda x: np.argmax(np.concatenate([x * np.float32(0.3)] * 2, 1), 1), "int64"),
    ),
    "a floor of rounded numbers": (
        Graph.of(tg.floor(tg.cast(tg.input("x", (60, 70), "int32"), "float32") * 0.1 * 10.0)),
        replaced(lambda v: np.floor(v["x"].astype(np.float32) * np.float32(1.0))),
    ),
    "a cast of rounded numbers": (
        Graph.of(tg.cast(tg.cast(tg.input("x", (60, 70), "int32"), "float32") * 0.1 * 10.0, "int32")),
        replaced(lambda v: v["x"]),
    ),
    "a comparison of nearly equal numbers": (
        Graph.of(tg.lt(X * 0.3, X * 0.1 * 3.0)), replaced(lambda v: (np.indices((60, 70)).sum(0) % 2 == 0) & (v["x"] != 0))),
    "a cast of what the dtype does not hold": (
        Graph.of(tg.cast(X * 1e6, "int8")), replaced(lambda v: np.clip(np.trunc(v["x"] * np.float32(1e6)), -128, 127))),
    "a layer norm in 16 bits": (
        Graph.of(tg.layer_norm(BRAIN, tg.ones((64,), "bfloat16"), tg.zeros((64,), "bfloat16"))),
        other(lambda x: (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5), "bfloat16"),
    ),
    "attention in 16 bits, kept in 32": (
        Graph.of(tg.attention(*[tg.input(n, (2, 50, 32), "bfloat16") for n in "abc"])),
        other(lambda a, b, c: np.einsum("nts,nsd->ntd", np.stack([online_softmax(m) for m in np.einsum("ntd,nsd->nts", a, b) / np.float32(32**0.5)]), c), "bfloat16"),
    ),
    "the largest numbers of float16": (Graph.of(HALF * 0.0 + 65500.0), other(lambda x: x * 0 + 65504, "float16")),
    "denormal numbers that are flushed": (
        Graph.of(X * 1e-30 * 1e-9), other(lambda x: np.where(np.abs(x) < 11, 0, x.astype(np.float64) * 1e-39))),
    "sums that are zero but for rounding": (
        Graph.of(tg.sum(X - tg.mean(X, 1, True), 1)), other(lambda x: tiles(x) - x.sum(1))),
    "a difference that is zero but for rounding": (
        Graph.of((X * X - 1.0) - (X - 1.0) * (X + 1.0)), other(lambda x: x * x - 1 - x * x - x + x + 1)),
    "numbers whose squares overflow": (
        Graph.of(tg.exp(tg.input("x", (40, 50), "float64") * 200.0)), replaced(lambda v: np.exp(v["x"] * 100.0) ** 2)),
    "a root of what is nearly zero": (
        Graph.of(tg.sqrt(tg.abs(tg.mean(X * X, 1) - tg.mean(X * X, 1) * 1.0))), other(lambda x: np.zeros(60))),
}  # fmt: skip


#: NumPy adds up pair by pair: what adds up one after the other is farther off than "fast" allows.
MORE_ROUNDED = ("a long softmax in tiles", "a long sum in tiles")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", RIGHT)
def test_right_programs_pass(name: str, device: str) -> None:
    graph, fault = RIGHT[name]
    tolerance = 1e-5 if name in MORE_ROUNDED else "fast"
    verdict = judged(graph, fault, device, tolerance=tolerance)
    assert verdict.passed, verdict.worst.message


def in_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare outputs in strips, as outputs of more than 256 MiB are."""
    monkeypatch.setattr(verify, "LARGE_BYTES", 0)
    monkeypatch.setattr("tensor_graphs.verification.strips.PIECE", 1 << 9)


@pytest.mark.parametrize("name", RIGHT)
def test_right_programs_pass_in_strips(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, fault = RIGHT[name]
    in_strips(monkeypatch)
    verdict = judged(graph, fault, tolerance=1e-5 if name in MORE_ROUNDED else "fast")
    assert verdict.passed, verdict.worst.message
    assert "strips" in verdict.note or "argmax" in name  # the index along an axis needs all of the axis


@pytest.mark.parametrize(
    "name",
    [
        n
        for n, (graph, _) in FAULTS.items()
        if strips_of(graph) and not n.startswith(("a whole tensor", "a whole mask"))
    ],
)
def test_programs_with_a_fault_are_refused_in_strips(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, fault = FAULTS[name]
    in_strips(monkeypatch)
    verdict = judged(graph, fault)
    assert "strips" in verdict.note and not verdict.passed
    assert judged(graph, lambda found, values: None).passed


def test_without_time_left_strips_are_compared_on_the_ordinary_input(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, fault = FAULTS["only large numbers are wrong"]
    in_strips(monkeypatch)
    verdict = judged(graph, fault, enough=lambda: True)
    assert verdict.passed and verdict.seeds == 1 and judged(graph, fault, seeds=1).seeds == 1


def test_places_that_rounding_decides_are_counted_and_nothing_else_is_exempt() -> None:
    graph, right = RIGHT["a comparison of nearly equal numbers"]
    verdict = judged(graph, right)
    assert verdict.passed and verdict.to_json()["places_that_rounding_decides"] > 0
    both = Graph.of({"near": graph.outputs[0], "far": tg.lt(X, 0.25)})
    assert judged(both, right).passed

    def far(found: list[Array], values: dict[str, Array]) -> None:
        right(found, values)
        found[1][0, 0] = ~found[1][0, 0]

    verdict = judged(both, far)
    assert [o.passed for o in verdict.outputs] == [True, False] and verdict.miscompiled
    assert "[0, 0]" in verdict.worst.message and "far" in verdict.worst.message


def test_messages_name_the_place() -> None:
    graph, fault = FAULTS["a small channel is off by a tenth"]
    message = judged(graph, fault).worst.message
    assert "index 5 of axis 1" in message or ", 5]" in message
    graph, fault = FAULTS["one of 100000 elements is off by a hundredth"]
    assert "[17, 3]" in judged(graph, fault).worst.message


# ---------------------------------------------------------------- inputs
def test_inputs_are_drawn_for_what_reads_them() -> None:
    i, j, n, m, d, k, p, e = (tg.input(name, (40, 40), "int64") for name in "ijnmdkpe")
    x = tg.input("x", (40, 40))
    graph = Graph.of(
        [
            tg.gather_elements(x, i, 1), tg.gather(tg.param("t", (40, 2)), j), n + n, tg.where(tg.eq(m, 1), x, 0.0), tg.mod(n, d),
            tg.cast(k * 2, "float32"), tg.lt(tg.iota((40, 40), 1), p), tg.pow(n, e), tg.log(tg.input("y", (40, 40)) * 2.0),
        ]
    )  # fmt: skip
    for turn in range(3):
        found = drawing.inputs(graph, np.random.default_rng(turn), turn)
        assert found["i"].min() < 0 and found["i"].max() == 39 and found["i"].min() >= -40
        assert found["j"].min() == 0 and found["j"].max() == 39
        assert found["n"].min() < -(2**62) and found["n"].max() > 2**62
        assert {0, 1, 2} <= set(found["m"].ravel().tolist())
        assert (found["d"] != 0).all() and (found["d"] < 0).any()
        assert np.abs(found["k"]).max() <= 100 and found["k"].min() < 0
        assert found["p"].min() >= 0 and found["p"].max() < 40
        assert found["e"].min() == 0 and found["e"].max() == 3
        assert (found["y"] > 0).mean() > 0.9
    assert (
        np.abs(found["x"]).max() < 10 and np.abs(drawing.inputs(graph, np.random.default_rng(0), 1)["x"]).max() == 3000
    )


@pytest.mark.parametrize("device", ["", "cpu"])
def test_weights_that_are_inputs_of_a_deep_graph_keep_magnitudes(device: str) -> None:
    """A training step's weights are inputs: drawn as other inputs, values grew by a factor of 8 per layer of width 64.

    Inputs that something else reads too, and those of a shallow graph, are drawn as before.
    """
    weights = [tg.input(f"w{i}", (64, 64)) for i in range(12)]
    x = tg.input("x", (16, 64))
    h, gain = x, tg.input("gain", (64,))
    for w in weights:
        h = tg.tanh(gain) + h @ tg.permute(w, (1, 0))
    graph = Graph.of([h, x * 2.0])
    for turn in range(2):
        rng = np.random.default_rng(turn)
        found = on_device.draw(graph, rng, device, turn) if device else drawing.inputs(graph, rng, turn)
        values = {n: np.asarray(v) for n, v in found.items()}
        assert 0.05 < np.std(values["w3"]) < 0.6 and np.std(values["gain"]) > 0.5 and np.std(values["x"]) > 0.5
        assert np.abs(evaluate(graph, values, float64=True)[0]).max() < 1e9
    shallow = drawing.inputs(Graph.of(tg.exp(x) @ weights[0]), np.random.default_rng(0))
    assert np.std(shallow["w0"]) > 0.9
