"""Norms in C against float64: of groups and of rows, odd sizes, several images, large means, layouts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends.c.group_norms import BLOCK, MOST_GROUPS, group_norm_rows
from tensor_graphs.backends.c.row_norms import CHUNK, row_norm_rows
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.tuning.single_kernel import compiled, in_layout
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.extract.model.library_kernel import LibraryKernel

from ..reference import expected
from ..together import library_results

pytestmark = pytest.mark.skipif(bool(backend("c").unavailable()), reason="no C compiler")
ROWS = {row.name: row for row in group_norm_rows()}


def call_of(shape: tuple[int, ...], groups: int, rows: bool = False, residual: bool = False) -> Call:
    """A call on a channels-last image; `rows`: on a row-major one."""
    _, channels, h, w = shape
    kind, line = Type(shape, "float32"), Operand(Type((channels,), "float32"), (1,))
    last = (h * w * channels, 1, w * channels, channels)
    x = Operand(kind, contiguous(shape) if rows else last)
    operands = {"x": x, "g": line, "b": line} | ({"r": Operand(kind, last)} if residual else {})
    return Call(operands, Operand(kind, last), {"groups": groups, "eps": 1e-5})


def checked(calls: Iterable[tuple[LibraryKernel, Call]], mean: float) -> list[tuple[LibraryKernel, Any]]:
    """Kernels, which are compiled together, and their results, which agree with float64 on an x of this mean."""
    cases, found = [], []
    for row, call in calls:
        rng = np.random.default_rng(0)
        draw = lambda o, rng=rng: in_layout(rng.standard_normal(o.type.shape).astype(np.float32), o)
        operands = {n: draw(o) for n, o in call.operands.items()}
        operands["x"] += np.float32(mean)
        cases.append((row, call, operands))
    for case, got, of in library_results(cases):
        np.testing.assert_allclose(got, expected(*case), rtol=1e-4, atol=2e-5 if mean < 100 else 2e-3, err_msg=of)
        found.append((case[0], got))
    return found


@pytest.mark.parametrize(
    ("shape", "groups", "mean"),
    [((1, 64, 16, 16), 32, 0.0), ((2, 30, 9, 7), 5, 3.0), ((3, 7, 1, 5), 7, 0.0), ((1, 6, 1, 1), 1, 0.0), ((1, 48, 13, 5), 1, 1e3),
     ((1, MOST_GROUPS, 2, BLOCK), MOST_GROUPS, 0.0)],
)  # fmt: skip
def test_values(shape: tuple[int, ...], groups: int, mean: float) -> None:
    for row, got in checked(((row, call_of(shape, groups, residual="residual" in n)) for n, row in ROWS.items()), mean):
        assert got.strides[1] == 4 or shape[2:] == (1, 1), row.name


@pytest.mark.parametrize(
    ("shape", "mean"), [((3, 2, 37), 0.0), ((1, 2 * CHUNK + 5), 3.0), ((4, 1), 0.0), ((2, 768), 1e3)]
)
def test_norms_of_rows(shape: tuple[int, ...], mean: float) -> None:
    line, x = Operand(Type(shape[-1:], "float32"), (1,)), Operand(Type(shape, "float32"), contiguous(shape))
    calls = [
        (row, Call({n: line if n in "gb" else x for n in row.operands}, x, {"eps": 1e-5})) for row in row_norm_rows()
    ]
    checked(calls, mean)
    for row, call in calls:
        turned = replace(call, operands={**call.operands, "x": Operand(x.type, contiguous(shape[::-1])[::-1])})
        assert row.applies is not None and (prod(shape) == max(shape) or not row.applies(turned)), row.name


def test_every_epilogue_is_vectorized() -> None:
    """A loop that the compiler does not vectorize takes 25 times as long."""
    rng, best = np.random.default_rng(0), {}
    for name, row in ROWS.items():
        call = call_of((1, 128, 16, 16), 32, residual="residual" in name)
        draw = lambda o: rng.standard_normal(o.type.shape).astype(np.float32)
        run = compiled(row, call)({n: in_layout(draw(o), o) for n, o in call.operands.items()})
        best[name] = min(timed(run) for _ in range(30))
    assert max(best.values()) < 8 * best["c.group_norm"], best


def timed(run: Callable[[], Any]) -> int:
    """ns of a call."""
    began = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - began


def test_only_channels_last_images_of_four_axes_are_taken() -> None:
    for name, row in ROWS.items():
        assert row.applies is not None
        residual = "residual" in name
        assert not row.applies(call_of((1, 8, 4, 4), 2, rows=True, residual=residual))
        assert not row.applies(call_of((0, 8, 4, 4), 2, residual=residual))
        assert not row.applies(call_of((1, MOST_GROUPS + 1, 2, 2), MOST_GROUPS + 1, residual=residual))
    x, g, b = tg.input("x", (2, 8, 20)), tg.input("g", (8,)), tg.input("b", (8,))
    graph = Graph.of(c.silu(c.group_norm(x, g, b, groups=4, eps=1e-5)))
    program = tg.optimize(graph, backend="auto", measure=False, budget=2)
    assert program(*(np.ones(s, np.float32) for s in ((2, 8, 20), (8,), (8,)))).shape == (2, 8, 20)


def test_nan_stays_behind_a_relu() -> None:
    call = call_of((1, 16, 2, 2), 16)
    x = in_layout(np.ones((1, 16, 2, 2), np.float32), call.operands["x"])
    x[0, 3] = np.nan
    ones = np.ones(16, np.float32)
    got = compiled(ROWS["c.group_norm_relu"], call)({"x": x, "g": ones, "b": ones})()[0]
    assert np.isnan(got[0, 3]).all() and np.isnan(got).sum() == 4


def test_relu_and_shortcut_of_a_residual_block_are_fused_into_its_norms() -> None:
    torch = pytest.importorskip("torch")

    class Block(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (torch.nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(2))
            self.n, self.m = (torch.nn.GroupNorm(32, 64) for _ in range(2))

        def forward(self, x: Any) -> Any:
            return (self.m(self.b(self.n(self.a(x)).relu())) + x).relu()

    explorer = tg.saturate(Block().eval().requires_grad_(False), (torch.randn(1, 64, 8, 8),), backend="auto", budget=10)
    names = {c.template.name for c in explorer.choice.hypergraph.candidates}
    assert "c.group_norm_relu" in names and names & {"c.group_norm_residual_relu", "c.group_norm_residual_left_relu"}


def test_norms_between_convolutions_need_no_change_of_layout() -> None:
    """A convolution, a norm with SiLU and another convolution: no kernel copies between them."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    conv = lambda: torch.nn.Conv2d(64, 64, 3, padding=1)
    module = (
        torch.nn.Sequential(conv(), torch.nn.GroupNorm(32, 64), torch.nn.SiLU(), conv()).eval().requires_grad_(False)
    )
    explorer = tg.saturate(module, (torch.randn(1, 64, 16, 16),), backend="auto", budget=10)
    found = [row for rows in explorer.kernels.values() for row in rows if row[0].template.name == "c.group_norm_silu"]
    assert found
    number = next(i for i, one in enumerate(explorer.choice.hypergraph.candidates) if one is found[0][0])
    pinned = explorer.what_if(pin=[f"k{number}"])
    chosen = [explorer.choice.hypergraph.candidates[i] for i in pinned.choice.chosen]
    names = [one.template.name for one in chosen if not one.is_view]
    assert "c.group_norm_silu" in names and sum("conv" in name for name in names) == 2
    assert len(names) <= 5, names  # copies of the input and of the result at most
