"""Storage dtypes of 16-bit models: which values lie in the model's dtype."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tensor_graphs as tg
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.simplify.simplify import simplified
from tensor_graphs.egraph.simplify.widen import float32_values, widen
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.model.storage_dtypes import narrow_types


def stored(*roots: Tensor) -> dict[str, set[str]]:
    """Storage dtypes of the results of each op in a widened graph."""
    view = view_of(widen(Graph.of(*roots), rounds=True))
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


def test_values_that_the_model_widens_on_purpose_stay_wide() -> None:
    x = tg.input("x", (4, 64), "float16")
    total = t.cumsum(t.cast(x * 3.0, "float32"), 1) * -1.0
    graph = Graph.of(t.cast(t.exp(total), "float16") * x @ t.transpose(x))
    work, wide = simplified(widen(graph), float32_values(graph))
    view = view_of(work)
    types = narrow_types(view, [view.classes[value] for value in wide if value in view.classes])
    kinds = {op: types[cls].dtype for op, cls in zip(view.op, view.cls, strict=True)}
    assert kinds["cumsum"] == "float32", "a float16 sum of logarithms would be off by a few percent below exp"
    assert kinds["exp"] == "float16", "the model rounds it"
    assert not float32_values(Graph.of(x * 2.0)), "a 16-bit model without float32 values"


def test_activations_below_a_cosine_are_stored_as_the_model_does() -> None:
    x, w = tg.input("x", (4, 64), "bfloat16"), tg.param("w", (64, 64), "bfloat16")
    kinds = stored(t.sin((x @ w) * 30.0) * x)
    assert kinds["matmul"] == kinds["mul"] == kinds["sin"] == {"bfloat16"}


@pytest.mark.parametrize("change", [t.floor, t.round, lambda x: t.cast(x, "int32")])
def test_operands_of_rounding_to_whole_numbers_stay_wide(change: Callable[[Tensor], Tensor]) -> None:
    x = tg.input("x", (4, 64), "bfloat16")
    kinds = stored(t.cast(change(x * 3.0), "bfloat16") * x @ t.transpose(x))
    assert kinds["mul"] == {"float32", "bfloat16"}


def test_of_a_float32_model_under_autocast_only_values_of_its_16_bit_part_are_narrow() -> None:
    x, g, b = tg.input("x", (4, 64)), tg.param("g", (64,)), tg.param("b", (64,))
    w, v = (t.cast(tg.param(n, (64, 64)), "bfloat16") for n in "wv")
    normed = c.layer_norm(x, g, b, eps=1e-5)
    product = c.gelu(t.cast(normed, "bfloat16") @ w) @ v
    kinds = stored(t.sqrt(x + t.cast(product, "float32")) * 2.0)
    assert kinds["matmul"] == kinds["gelu"] == {"bfloat16"}
    assert kinds["layer_norm"] == {"bfloat16"}, "the model rounds it before its only use"
    assert kinds["add"] == kinds["sqrt"] == {"float32"}
    assert kinds["cast"] == {"bfloat16"}, "weights and the product's operand are rounded before the product"
