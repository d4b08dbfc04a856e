"""Storage dtypes of 16-bit models: which values lie in the model's dtype."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tensor_graphs as tg
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.simplify.widen import widen
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.model.storage_dtypes import narrow_types


def stored(*roots: Tensor) -> dict[str, set[str]]:
    """Storage dtypes of the results of each op in a widened graph."""
    view = view_of(widen(Graph.of(*roots)))
    types, found = narrow_types(view), dict[str, set[str]]()
    for i, op in enumerate(view.op):
        if int(view.cls[i]) not in view.roots:
            found.setdefault(op, set()).add(types[int(view.cls[i])].dtype)
    return found


def test_angles_stay_wide_and_their_cosines_do_not() -> None:
    x = tg.input("x", (4, 64), "bfloat16")
    positions, frequencies = tg.input("p", (1, 4), "int64"), tg.param("f", (1, 32))
    angle = t.reshape(t.cast(positions, "float32"), (4, 1)) * frequencies
    both = t.concat([angle, angle], 1)
    turned = x * t.cast(t.cos(both), "bfloat16") + x * t.cast(t.sin(both), "bfloat16")
    kinds = stored((turned * x) @ t.transpose(x))
    assert kinds["concat"] == {"float32"}, "of positions times frequencies, float32 in the model"
    assert kinds["cos"] == kinds["sin"] == kinds["add"] == {"bfloat16"}
    assert kinds["mul"] == {"float32", "bfloat16"}


def test_activations_below_a_cosine_are_stored_as_the_model_does() -> None:
    x, w = tg.input("x", (4, 64), "bfloat16"), tg.param("w", (64, 64), "bfloat16")
    kinds = stored(t.sin((x @ w) * 30.0) * x)
    assert kinds["matmul"] == kinds["mul"] == kinds["sin"] == {"bfloat16"}


@pytest.mark.parametrize("change", [t.floor, t.round, lambda x: t.cast(x, "int32")])
def test_operands_of_rounding_to_whole_numbers_stay_wide(change: Callable[[Tensor], Tensor]) -> None:
    x = tg.input("x", (4, 64), "bfloat16")
    kinds = stored(t.cast(change(x * 3.0), "bfloat16") * x @ t.transpose(x))
    assert kinds["mul"] == {"float32", "bfloat16"}
