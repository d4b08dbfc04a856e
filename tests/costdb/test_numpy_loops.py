"""Estimated times of NumPy's reductions: by the loops that NumPy makes, not by their flops and bytes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tensor_graphs.costdb.keys.key import KernelKey, Work
from tensor_graphs.costdb.price.learnt import LearntFactors
from tensor_graphs.costdb.price.numpy_loops import RATES, SPREAD, loops_us
from tensor_graphs.costdb.price.predict import Predictor, Query
from tensor_graphs.costdb.store.snapshot import Snapshot
from tensor_graphs.extract.model.kernel import contiguous


def key(
    name: str, shape: tuple[int, ...], axes: tuple[int, ...], strides: Any = None, backend: str = "numpy"
) -> KernelKey:
    """The key of a reduction that keeps its axes, or of a scan along none."""
    result = tuple(1 if i in axes else size for i, size in enumerate(shape))
    return KernelKey(
        kernel=name, name=name, family="reduction", backend=backend, emitter="", source="s", shapes=(shape, result),
        dtypes=("float32", "float32"), strides=(strides or contiguous(shape), contiguous(result)), device="cpu:x",
    )  # fmt: skip


def us(*given: Any, **more: Any) -> float:
    return loops_us(key(*given, **more).columns)


@pytest.mark.parametrize("name", sorted(RATES))
def test_short_rows_cost_more_than_long_ones_of_as_many_elements(name: str) -> None:
    assert us(name, (4096, 16), (1,)) > us(name, (16, 4096), (1,)) > us(name, (16, 512), (1,)) > 0
    assert us(name, (0, 4), (1,)) > 0


def test_axes_that_lie_one_after_the_other_are_one_row() -> None:
    rows, planes = us("np.sum", (64, 8, 8), (1, 2)), us("np.sum", (64, 64), (1,))
    assert rows == planes < us("np.sum", (64, 8, 8), (1, 2), (128, 16, 1))  # rows that are apart
    assert us("np.sum", (64, 64), (1,), (1, 64)) == us("np.sum", (64, 64), (0,))  # by strides, not by number
    assert us("np.sum", (256, 768), (0,)) < us("np.sum", (256, 768), (1,))  # rows added to rows
    assert us("np.sum", (1, 1), (0, 1)) == us("np.sum", (1,), (0,))


def test_other_kernels_have_none() -> None:
    assert us("np.add", (8, 8), ()) == us("np.sum", (8, 8), (1,), backend="torch") == 0


def test_prices_follow_the_loops_without_rows_and_whatever_the_learnt_model_says() -> None:
    class Wrong:
        """A model that takes every kernel for 40 times slower than its bound."""

        low = high = 0.0

        def predict(self, rows: Any) -> Any:
            return [math.log(40.0)] * len(rows)

    snapshot = Snapshot()
    snapshot.learnt = LearntFactors({"cpu:x": Wrong()})  # type: ignore[dict-item]
    asked = [key("np.cumsum", (256, 768), ()), key("np.copy", (256, 768), ())]
    scan, copy = Predictor(snapshot).price([Query(k, Work(196608.0, 1572864.0)) for k in asked])
    assert scan.us == pytest.approx(loops_us(asked[0].columns) + 0.5) and copy.us > 40
    assert scan.low == pytest.approx(scan.us / SPREAD) and scan.us < scan.high  # the estimate may be too high
