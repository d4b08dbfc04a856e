"""Storage dtypes: what a 16-bit model's kernels may round, and what they may not."""

from __future__ import annotations

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.egraph.ir import dtypes
from tensor_graphs.egraph.ir.graph import Graph, Tensor
from tensor_graphs.egraph.simplify.widen import widen
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.model.storage_dtypes import narrow_types


def types(root: Tensor) -> dict[str, set[str]]:
    """Storage dtypes of the values of each op, in the widened graph."""
    params = {"w": np.ones((8, 8), dtypes.numpy_dtype("bfloat16"))}
    view = view_of(widen(Graph.of(root, params=params)))
    stored = narrow_types(view)
    found: dict[str, set[str]] = {}
    for node, op in enumerate(view.op):
        found.setdefault(op, set()).add(stored[int(view.cls[node])].dtype)
    return found


def test_angles_keep_their_bits() -> None:
    """An angle of 561 radians in bfloat16 would be another angle, also where it is moved before its cosine is taken."""
    position, waves = tg.input("p", (4, 1), "int64"), tg.input("f", (1, 4))
    angle = tg.cast(position, "float32") * waves
    table = tg.cast(tg.cos(tg.concat([angle, angle], -1)), "bfloat16")
    found = types(tg.input("x", (4, 8), "bfloat16") @ tg.param("w", (8, 8), "bfloat16") * table + table)
    assert found["mul"] == {"float32", "bfloat16"} and found["concat"] == {"float32"}
    assert found["cos"] == {"bfloat16"} and found["matmul"] == {"bfloat16"}


@pytest.mark.parametrize("change", [tg.floor, tg.round, lambda t: tg.cast(t, "int32")])
def test_operands_of_rounding_to_whole_numbers_keep_their_bits(change: object) -> None:
    x = tg.input("x", (4, 8), "bfloat16") @ tg.param("w", (8, 8), "bfloat16")
    found = types(tg.cast(change(x * 3.0), "bfloat16") + x)  # type: ignore[operator]
    assert found["mul"] == {"float32"} and found["add"] == {"bfloat16"}
