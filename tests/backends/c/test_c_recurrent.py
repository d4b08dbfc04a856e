"""Recurrent layers in C against the op's meaning in float64: cells, sizes, layouts of x, special values, programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends.c import convolutions, recurrent_text
from tensor_graphs.backends.c.recurrent_layers import FUNCTIONS, recurrent_rows
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.tuning.single_kernel import compiled, in_layout
from tensor_graphs.egraph.ops.law_text import GATES
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.ops.recurrence import recurrent
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous

from ..together import library_results

pytestmark = pytest.mark.skipif(bool(backend("c").unavailable()), reason="no C compiler")
(SHIPPED,) = recurrent_rows()
#: The kernel with the functions of all cells in its C source, so that one compilation of two seconds serves all tests.
SOURCE = {**convolutions.SOURCE, "tiled_recurrent": recurrent_text.LAYERS, **recurrent_text.CELLS}
ROW = replace(SHIPPED, source=lambda call: SOURCE)
CELLS = pytest.mark.parametrize("cell", FUNCTIONS, ids=list(FUNCTIONS.values()))
LSTM = ("lstm", "", "sigmoid tanh tanh")


def call_of(
    cell: tuple[str, str, str], steps: int, batch: int, size: int, hidden: int, layers: int = 1, directions: int = 1,
    **other: Any,
) -> Call:  # fmt: skip
    """A call of contiguous operands; `other` replaces attributes."""
    kind, variant, activations = cell
    count, rows = layers * directions, GATES[kind][0] * hidden
    states = count * batch * hidden * (2 if kind == "lstm" else 1)
    weights = directions * rows * (size + (layers - 1) * directions * hidden) + count * rows * (hidden + 2)
    operand = lambda *shape: Operand(Type(shape, "float32"), contiguous(shape))
    attrs = {
        "cell": kind, "variant": variant, "activations": activations, "hidden": hidden, "width": hidden, "layers": layers,
        "directions": directions, **other,
    }  # fmt: skip
    operands = {"x": operand(steps, batch, size), "s": operand(states), "w": operand(weights)}
    return Call(operands, operand(steps * batch * directions * hidden + states), attrs)


def drawn(call: Call) -> dict[str, Any]:
    """Random operands; weights as large as those of trained layers."""
    rng, scale = np.random.default_rng(0), {"w": call.attrs["hidden"] ** -0.5}
    draw = lambda name, o: in_layout((scale.get(name, 1.0) * rng.standard_normal(o.type.shape)).astype(np.float32), o)
    return {name: draw(name, o) for name, o in call.operands.items()}


def check(calls: Iterable[Call]) -> None:
    """Layers, which one program computes, agree with float64."""
    cases = [(ROW, call, drawn(call)) for call in calls]
    for (_, call, operands), got, of in library_results(cases):
        assert SHIPPED.source(call).items() <= SOURCE.items()
        want = recurrent(*(v.astype(float) for v in operands.values()), **call.attrs)
        assert np.linalg.norm(got.astype(float) - want) <= 4e-7 * np.linalg.norm(want), of


@CELLS
def test_sizes(cell: tuple[str, str, str]) -> None:
    check(call_of(cell, 3, batch, 5, hidden) for hidden, batch in ((1, 1), (16, 4), (33, 3), (70, 8)))


def test_rows() -> None:
    """Every number of rows that a kernel has, and one group of rows more."""
    check(call_of(LSTM, 3, batch, 5, 19) for batch in range(1, 10))


@CELLS
def test_layers_and_directions(cell: tuple[str, str, str]) -> None:
    numbers = ((1, 2, 2), (6, 3, 1), (5, 1, 2))
    check(call_of(cell, steps, 2, 11, 20, layers, directions) for steps, layers, directions in numbers)


@CELLS
def test_long_sums_and_many_steps(cell: tuple[str, str, str]) -> None:
    check([call_of(cell, 40, 3, 300, 300)])


def batch_first(call: Call) -> Call:
    """The call with an x that is stored batch by batch."""
    steps, _, size = call.operands["x"].type.shape
    return replace(call, operands={**call.operands, "x": Operand(call.operands["x"].type, (size, steps * size, 1))})


@CELLS
def test_batch_first(cell: tuple[str, str, str]) -> None:
    check(batch_first(call_of(cell, 6, batch, 9, 17, 2)) for batch in (1, 5))


@CELLS
def test_nan_and_large_values_are_those_of_the_op(cell: tuple[str, str, str]) -> None:
    call = call_of(cell, 4, 6, 3, 19)
    operands = drawn(call)
    operands["x"][0, 0] = np.nan
    operands["x"][1:, 1] = 1e4
    operands["x"][1:, 2] = -1e4
    got = compiled(ROW, call)(operands)()[0]
    want = recurrent(*(v.astype(float) for v in operands.values()), **call.attrs)
    assert np.isnan(want).any() and not np.isnan(want).all()
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


@pytest.mark.skipif(bool(backend("torch").unavailable()), reason="no PyTorch")
def test_steps_are_divided_over_threads() -> None:
    import torch

    before, call = torch.get_num_threads(), call_of(LSTM, 5, 7, 40, 150, 2, 2)
    run = compiled(ROW, call)(drawn(call))
    try:
        torch.set_num_threads(1)
        one = run()[0].copy()
        torch.set_num_threads(3)
        three = run()[0].copy()
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(one, three)  # each sum is computed by one thread


def test_what_it_cannot_compute_is_refused() -> None:
    assert ROW.applies is not None
    usual = call_of(LSTM, 2, 3, 4, 5)
    assert ROW.applies(usual)
    for other in ({"activations": "relu tanh tanh"}, {"variant": "peephole"}, {"variant": "coupled"}, {"width": 4}):
        assert not ROW.applies(call_of(LSTM, 2, 3, 4, 5, **other)), other
    assert not ROW.applies(call_of(LSTM, 2, 0, 4, 5))
    turned = Operand(usual.operands["x"].type, (1, 2, 6))
    assert not ROW.applies(Call({**usual.operands, "x": turned}, usual.output, usual.attrs))
    double = {n: Operand(Type(o.type.shape, "float64"), o.strides) for n, o in usual.operands.items()}
    assert not ROW.applies(Call(double, Operand(Type(usual.output.type.shape, "float64"), (1,)), usual.attrs))


def test_layers_with_a_head_are_a_program_of_c() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    torch.manual_seed(0)

    class Tagger(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.LSTM(24, 40, num_layers=2, bidirectional=True, batch_first=True)
            self.second = nn.GRU(80, 16, batch_first=True)
            self.head = nn.Linear(16, 7)

        def forward(self, x: Any) -> Any:
            return self.head(self.second(self.first(x)[0])[0])

    module, x = Tagger().eval().requires_grad_(False), torch.randn(3, 50, 24)
    program: Any = tg.optimize(module, (x,), backend="c", budget=5, measure=False, allow_caller=False)
    assert "tiled_lstm" in program.source and "tiled_gru" in program.source
    np.testing.assert_allclose(program(x).numpy(), module(x).numpy(), rtol=1e-4, atol=1e-5)
