"""NumPy's functions of everyday data work (interpolation, counts, writes at traced places) give NumPy's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensor_graphs.backends.runtime.computed_indices import computed_check
from tensor_graphs.errors import IndexRangeError, ShapeError, TraceError
from tensor_graphs.models.functions.trace import trace
from tensor_graphs.pipeline.sources.index_limits import index_limits

from .traced_results import results

N = np.nan
GRID, VALUES = np.array([-1.0, 0.0, 0.5, 0.5, 2.0]), np.array([3.0, -1.0, np.inf, np.inf, 7.0])
TABLE = np.arange(24.0).reshape(4, 6)


def draws(dtype: Any = np.float64, shape: tuple[int, ...] = (4, 6)) -> list[Any]:
    """Normal numbers, ties, special values and large ones of a shape."""
    random = np.random.default_rng(20)
    special = random.choice(np.array([0.0, -0.0, 0.5, -1.0, 2.0, N, np.inf, -np.inf, 1e-300]), shape)
    found = [
        random.standard_normal(shape),
        random.integers(-3, 4, shape) / 2,
        special,
        random.standard_normal(shape) * 1e8,
    ]
    return [v.astype(dtype) for v in found]


def numbers(low: int, high: int, shape: tuple[int, ...] = (9,), dtype: Any = np.int64) -> list[Any]:
    random = np.random.default_rng(21)
    return [random.integers(low, high, shape).astype(dtype) for _ in range(4)]


def into(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that writes into a copy of its first argument, and returns that."""

    def run(x: Any, *rest: Any) -> Any:
        y = x.copy()
        function(y, *rest)
        return y

    return run


def set_at(x: Any, key: Any, value: Any) -> None:
    x[key] = value


def gradient_of_logits(x: Any, i: Any) -> Any:
    p = np.exp(x - x.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(4), i] -= 1
    return p


#: functions of an array [4, 6] of floats
OF_FLOATS: dict[str, Callable[[Any], Any]] = {
    "interp": lambda x: np.interp(x, GRID, VALUES), "interp, ends": lambda x: np.interp(x[0], GRID, VALUES, left=9.0, right=N),
    "interp, one": lambda x: np.interp(x, [0.5], [4.0]), "interp, period": lambda x: np.interp(x, [10.0, 350, 190], [1, 2, 3.0], period=360),
    "interp, fp": lambda x: np.interp([0.1, 0.6, 2.0, 9.0], GRID[:3], x[0, :3]), "interp, xp": lambda x: np.interp(0.3, np.cumsum(np.abs(x[1])), x[0]),
    "gradient": lambda x: np.gradient(x), "gradient, places": lambda x: np.gradient(x, [0, 1, 3, 7.0], axis=0, edge_order=2),
    "unwrap": lambda x: np.unwrap(x * 4, axis=1), "unwrap, period": lambda x: np.unwrap(x[0], discont=2, period=3),
    "polyval": lambda x: np.polyval([2.0, 0, -1], x), "polyder": lambda x: np.polyder(x[0], 2), "polyint": lambda x: np.polyint(x[0], k=3),
    "polyadd": lambda x: np.polyadd(x[0], [1, 2]), "linspace": lambda x: np.linspace(x[0], 2, 5, axis=-1),
    "linspace, step": lambda x: np.linspace(x[0, 0], x[0, 1], 4, endpoint=False, retstep=True),
    "logspace": lambda x: np.logspace(x[0] / 4, 1, 3), "corrcoef": lambda x: np.corrcoef(x), "cov": lambda x: np.cov(x[0], x[1] * 2, ddof=0),
    "nanmedian": lambda x: np.nanmedian(x, axis=1), "nanmedian, kept": lambda x: np.nanmedian(x, keepdims=True),
    "lexsort": lambda x: np.lexsort((x[0], np.sign(x[1]))), "angle": lambda x: np.angle(x), "digitize": lambda x: np.digitize(x, [2, 0.5, 0.5, -1]),
    "digitize, right": lambda x: np.digitize(x, [2, 0.5, -1], right=True), "histogram": lambda x: np.histogram(x, 5, (-1, 2)),
    "histogram, borders": lambda x: np.histogram(x, [-1, 0, 0, 0.5, 2], weights=np.abs(np.nan_to_num(x)).astype(np.float64)),
    "histogram, density": lambda x: np.histogram(x, 3, (-50, 50), density=True)[0], "searchsorted": lambda x: np.searchsorted(np.sort(x[0]), x),
    "searchsorted, right": lambda x: np.searchsorted(np.sort(x[0]), x, side="right"),
    "insert": lambda x: np.insert(x, [1, 3, 3], x[:, :3], axis=1), "insert, one": lambda x: np.insert(x, -1, 5), "block": lambda x: np.block([[x, x[:, :1]], [x[:1], 7 * np.ones((1, 1))]]),
    "diagflat": lambda x: np.diagflat(x[0], 1), "resize": lambda x: np.resize(x, (5, 7)), "compress": lambda x: np.compress([True, False, True], x, axis=0),
    "ediff1d": lambda x: np.ediff1d(x, to_begin=[1, 2], to_end=x[0]), "average": lambda x: np.average(x, 0, returned=True),
    "fftshift": lambda x: np.fft.fftshift(x, axes=1), "ifftshift": lambda x: np.fft.ifftshift(x), "array_equiv": lambda x: np.array_equiv(x, x[:1]),
    "packbits": lambda x: np.packbits(x > 0, axis=1), "packbits, little": lambda x: np.packbits(x > 0, bitorder="little"),
    "apply_along_axis": lambda x: np.apply_along_axis(lambda r: np.stack([r.max(), r[0]]), 0, x), "apply_over_axes": lambda x: np.apply_over_axes(np.max, x, [0, 1]),
    "fill_diagonal": into(lambda x: np.fill_diagonal(x, x[3])), "fill_diagonal, one": into(lambda x: np.fill_diagonal(x, 5)),
    "putmask": into(lambda x: np.putmask(x, x > 0, [1, 2, 3])), "place": into(lambda x: np.place(x, x > 0, 7.5)), "place, known": into(lambda x: np.place(x, TABLE > 9, [1, 2])),
    "put_along_axis": into(lambda x: np.put_along_axis(x, np.argmax(x, 1, keepdims=True), 99, 1)),
    "put_along_axis, all": into(lambda x: np.put_along_axis(x, np.argsort(x, 0, kind="stable"), np.arange(24.0).reshape(4, 6), 0)),
    "put": into(lambda x: np.put(x, np.argsort(x[0], kind="stable"), x[1])), "put, wrap": into(lambda x: np.put(x, [3, 99, -1], [1, 2], mode="wrap")),
    "at, known": into(lambda x: np.add.at(x, [0, 2, 0], x[:3] * 2)), "at, slices": into(lambda x: np.maximum.at(x, (slice(1, 3), [0, 0, 1]), 0.25)),
    "unravel_index": lambda x: np.unravel_index(np.argmax(x), x.shape), "tril_indices_from": lambda x: x[np.tril_indices_from(x)],
    "partition": lambda x: (np.partition(x, (1, -2), axis=1)[:, [1, -2]], np.sort(np.partition(x, 9, axis=None)[:9])), "argpartition": lambda x: np.take_along_axis(x, x.argpartition(2, axis=0)[2:3], 0),
    "partition, in place": into(lambda x: x.partition(0) or set_at(x, (slice(None), slice(1, None)), 0)), "det": lambda x: (np.linalg.det(np.nan_to_num(x[:3, :3], posinf=3, neginf=-2) / 1e4), np.linalg.det((x[:2, :2] > 0).astype(int))),
    "piecewise": lambda x: np.piecewise(x, [x < -1, x > 0.5], [-1, np.sqrt, lambda v: v * 3]), "piecewise, more": lambda x: np.piecewise(x, [x > 0], [lambda v, k, s: v * k - s, 7], 3, s=x.max()),
}  # fmt: skip
#: functions of an array [4, 6] that raise, as programs do, if a row is NaN, a range infinite, a matrix singular
WHERE_VALID: dict[str, Callable[[Any], Any]] = {
    "nanargmax": lambda x: (np.nanargmax(x, axis=1), np.nanargmin(x), np.nanargmin(x, 0, keepdims=True)), "inv": lambda x: (np.linalg.inv(x[:2, :2]), np.linalg.inv(x[:3, 3:])),
    "solve": lambda x: (np.linalg.solve(x[:3, :3], x[:3, 3]), np.linalg.solve(x[:2, 4:], x[:2, :3])), "histogram": lambda x: np.histogram(x, 5),
    "histogram, density": lambda x: np.histogram(x[:3], 3, density=True),
}  # fmt: skip
#: functions of an array [4, 6] and integers [4] from -4 to 3
AT_PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "set": into(lambda x, i: set_at(x, i, 5.0)), "set, rows": into(lambda x, i: set_at(x, i, x[::-1] + 100)),
    "set, pairs": into(lambda x, i: set_at(x, (i, [0, 5, 0, 0]), [1.0, 2.0, 3.0, 4.0])), "set, each row": into(lambda x, i: set_at(x, (np.arange(4), i), i * 2)),
    "set, both": into(lambda x, i: set_at(x, (i, i[::-1]), x[0, :4])), "set, columns": into(lambda x, i: set_at(x, (slice(None), i), TABLE[:, :4])),
    "one-hot": lambda x, i: set_at(z := np.zeros_like(x), (np.arange(4), i), 1) or z, "gradient": gradient_of_logits,
    "add.at": into(lambda x, i: np.add.at(x, i, TABLE)), "add.at, pairs": into(lambda x, i: np.add.at(x, (i, i), 1)),
    "subtract.at": into(lambda x, i: np.subtract.at(x, i, x * 2)), "multiply.at": into(lambda x, i: np.multiply.at(x, (i, 1), [2, 3, 4, 5])),
    "maximum.at": into(lambda x, i: np.maximum.at(x, i, x[::-1])), "minimum.at": into(lambda x, i: np.minimum.at(x, i, 0.0)),
    "choose": lambda x, i: np.choose(i + 4, [x[0, :4]] * 3 + [1.5] + list(TABLE[:, :4])), "choose, wrap": lambda x, i: np.choose(i, [1, 2, 3], mode="wrap"),
    "ravel_multi_index": lambda x, i: np.ravel_multi_index((i + 4, [0, 1, 2, 1]), (8, 3)), "ravel, clip": lambda x, i: np.ravel_multi_index((i, i), (3, 3), mode="clip"),
    "bincount": lambda x, i: np.bincount(i + 4, minlength=8), "bincount, weights": lambda x, i: np.bincount(i % 3, x[:, 0], 5),
    "ravel, F": lambda x, i: np.ravel_multi_index((i + 4, [0, 1, 2, 1], 1), (8, 3, 2), order="F"), "putmask, integers": into(lambda x, i: np.putmask(x, x.astype(np.int8), i)),
    "resize": lambda x, i: set_at(y := np.resize(z := i + 1, 4), 0, 9) or y * 100 + z, "resize, more": lambda x, i: np.resize(i, (3, 5)), "put, nothing": into(lambda x, i: np.put(x, i, []) or np.putmask(x, x > 0, [])),
    "histogram, weights": lambda x, i: np.histogram(x[0, :4], 3, (-2, 2), weights=i), "digitize, sorted": lambda x, i: np.digitize(x, np.sort(i)),
    "digitize, falling": lambda x, i: np.digitize(x, np.sort(i)[::-1], right=True),
    "take, wrap": lambda x, i: np.take(x, i * 5, mode="wrap"), "take, clip": lambda x, i: np.take(x, i * 5, axis=1, mode="clip"), "ix_": lambda x, i: x[np.ix_(i, i[:2])],
}  # fmt: skip


def agrees(function: Callable[..., Any], *arrays: Any) -> None:
    """Traced and evaluated, a function gives NumPy's results: values, shapes and dtypes."""
    for a, b in results(function, *arrays):
        near = 2e-6 if b.dtype == np.float32 else 1e-12
        np.testing.assert_allclose(a, b, rtol=near, atol=near * 1e-3)


def test_indices_may_be_too_narrow_for_the_size_of_the_axis() -> None:
    x, i = np.arange(300.0), np.array([3, 200, 255], np.uint8)
    for mode in ("wrap", "clip"):
        agrees(lambda x, i, mode=mode: np.take(x, i, mode=mode), x, i)
        agrees(lambda i, mode=mode: np.ravel_multi_index((i, i), (300, 300), mode=mode), i)


def test_an_axis_that_a_large_array_lacks_is_an_error() -> None:
    with pytest.raises(ShapeError, match="axis 5"):
        trace(lambda x: np.median(x, axis=5), (np.zeros((300, 200)),))


@pytest.mark.parametrize("name", OF_FLOATS)
def test_functions_of_floats(name: str) -> None:
    for x in (*draws(), *draws(np.float32)[:2]):
        if "density" in name or "interp, xp" in name:
            x = np.nan_to_num(x, posinf=3, neginf=-3)
        agrees(OF_FLOATS[name], x)


@pytest.mark.parametrize("name", WHERE_VALID)
def test_what_raises_for_some_values_raises_in_calls(name: str) -> None:
    function = WHERE_VALID[name]
    x = draws()[0]
    agrees(function, x)
    agrees(function, x.astype(np.float32))
    graph = trace(function, [x])
    check = computed_check(index_limits(function, graph).computed, ["x"])
    check([x])
    for wrong in (np.full_like(x, np.nan), np.zeros_like(x)):
        with np.errstate(all="ignore"):
            try:
                function(wrong)
            except (ValueError, np.linalg.LinAlgError):
                with pytest.raises(IndexRangeError, match="the function raises"):
                    check([wrong])
            else:
                check([wrong])


@pytest.mark.parametrize("name", AT_PLACES)
def test_functions_at_places(name: str) -> None:
    """The last of several values for one place wins, as in NumPy; negative indices count from the end."""
    for x, i in zip(draws(), numbers(-4, 4, (4,))):
        agrees(AT_PLACES[name], x, i)
    agrees(AT_PLACES[name], draws(np.float32)[0], numbers(-4, 4, (4,), np.int8)[0])


def test_functions_of_integers() -> None:
    for x in numbers(0, 255, (3, 5), np.uint8):
        for function in (np.unpackbits, lambda x: np.unpackbits(x, axis=1, count=11, bitorder="little")):
            agrees(function, x)
    for x in numbers(-9, 9):
        agrees(lambda x: np.interp(x, [-3, 0, 5], [1, 2, 4]), x)
        agrees(lambda x: np.gradient(x), x)
        agrees(into(lambda x: np.add.at(x, np.abs(x) // 2, x)), x)
        agrees(lambda x: np.histogram(x, 4, (-5, 6)), x)


REFUSED: dict[str, Callable[..., Any]] = {
    "minlength": lambda x, i: np.bincount(i), "np.sort": lambda x, i: np.searchsorted(x[0] if 0 else i, 1), "range=": lambda x, i: np.histogram(x, 3, (x[0, 0], 9)),
    "cast the values": into(lambda x, i: np.add.at(i.copy(), i, x[:, 0])), "np.zeros": into(lambda x, i: np.add.at(np.zeros(9), i, 1)),
    "not elementwise": lambda x, i: np.piecewise(x, [x > 0], [lambda v: v - v.max()]), "number of elements": lambda x, i: np.piecewise(x, [x > 0], [lambda v: v / len(v)]),
    "1 to 8 rows": lambda x, i: np.linalg.inv(np.zeros((9, 9)) + x[0, 0]),
    "weights of": lambda x, i: np.histogram(x, 3, (0, 1), weights=[1.0]), "np.where": into(lambda x, i: np.add.at(x, x > 0, 1)), "like=x": lambda x, i: np.put_along_axis(np.zeros((4, 6)), i[:, None], 1, 1),
}  # fmt: skip


@pytest.mark.parametrize("hint", REFUSED)
def test_refusals_say_what_to_write(hint: str) -> None:
    with pytest.raises(TraceError) as caught:
        trace(REFUSED[hint], [TABLE, np.array([1, 2, 0, 1])])
    assert hint in str(caught.value)
