"""Attention of many rows in C against float64: awkward sizes, masks, windows, grouped queries, strides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends.c.attentions import MAX_POSITIONS, attention_rows
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.backends.tuning.single_kernel import compiled, in_layout
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous

from ..reference import expected
from ..together import library_results

pytestmark = pytest.mark.skipif(bool(backend("c").unavailable()), reason="no C compiler")
ROWS = {row.name: row for row in attention_rows()}
NAMES = (
    "c.attention",
    "c.attention_rows",
    "c.attention_masked",
    "c.attention_masked_rows",
    "c.attention_hiding_rows",
)


def call_of(
    name: str, lead: tuple[int, ...], t: int, s: int, d: int, e: int, shared: tuple[int, ...] = (), turned: bool = False, **attrs: Any
) -> Call:  # fmt: skip
    """A call; `shared`: leading sizes of k and v, `turned`: heads of q, k and v lie side by side, `mask`: its shape."""
    masks = {"m": "masked", "h": "hiding"}
    mask = attrs.pop("mask", (*lead, t, s))
    kv = shared or lead
    shapes = {"q": (*lead, t, d), "k": (*kv, s, d), "v": (*kv, s, e)} | {
        m: mask for m, kind in masks.items() if kind in name
    }

    def operand(shape: tuple[int, ...], inside: bool, dtype: str = "float32") -> Operand:
        if not inside or len(shape) < 4:
            return Operand(Type(shape, dtype), contiguous(shape))
        b, *heads, rows, width = shape
        a, *inner, c, one = contiguous((b, rows, *heads, width))
        return Operand(Type(shape, "float32"), (a, *inner[1:], c, inner[0], one))

    out = operand((*lead, t, e), name.endswith("_rows"))
    given = {n: operand(x, turned and n not in masks, "bool" if n == "h" else "float32") for n, x in shapes.items()}
    return Call(given, out, {"scale": 0.3, "causal": False, "window": 0, "softcap": 0.0} | attrs)


def check(*calls: tuple[str, Call], large: float = 1.0, hidden: float = 0.0) -> None:
    """Kernels, which are compiled together, accept these calls and agree with float64."""
    cases = []
    for name, call in calls:
        rng = np.random.default_rng(0)
        draw = lambda o, rng=rng: in_layout((large * rng.standard_normal(o.type.shape)).astype(np.float32), o)
        operands = {n: draw(o) for n, o in call.operands.items()}
        if "h" in operands:  # every row sees the first position; hidden NaN stays hidden
            h = operands["h"] = rng.random(operands["h"].shape) < 0.4
            h[..., 0], h[..., 1:2] = False, True
            operands["k"][..., 1:2, :] = np.nan
        if hidden and "m" in operands:
            m = operands["m"]
            m[rng.random(m.shape) < hidden] = -np.inf
            m[..., 0] = 0.0
        cases.append((ROWS[name], call, operands))
    for case, got, of in library_results(cases):
        want = expected(*case).astype(float)
        assert got.shape == want.shape, of
        np.testing.assert_allclose(got, want, rtol=2e-5 * max(large, 1) ** 2, atol=2e-6 * large, err_msg=of)


SIZES = (
    ((2, 3), 49, 49, 32, 32),
    ((1, 2), 17, 1, 1, 1),
    ((1, 1), 18, 16, 16, 17),
    ((3, 1), 19, 97, 24, 64),
    ((1, 2), 64, 130, 67, 80),
)


@pytest.mark.parametrize("name", NAMES)
def test_sizes(name: str) -> None:
    check(*((name, call_of(name, lead, t, s, d, e, turned=t == 49)) for lead, t, s, d, e in SIZES))


@pytest.mark.parametrize("name", NAMES)
def test_masks_by_position(name: str) -> None:
    ways = [{"causal": causal, "window": window} for causal in (False, True) for window in (0, 1, 20)]
    check(*((name, call_of(name, (1, 2), t, s, 16, 20, **way)) for way in ways for t, s in ((37, 37), (23, 61))))


def test_masks_that_are_shared() -> None:
    masks = ((1, 1, 1, 41), (1, 3, 20, 41), (2, 1, 1, 41), (1, 1, 20, 41))
    check(*((n, call_of(n, (2, 3), 20, 41, 8, 8, mask=mask)) for mask in masks for n in NAMES[2::2]), hidden=0.4)


def test_grouped_queries_and_other_ranks() -> None:
    grouped = [
        (n, call_of(n, (2, 2, 3), 21, 33, 16, 16, shared=(2, 2, 1), turned=True, causal=True)) for n in NAMES[:2]
    ]
    check(*grouped, ("c.attention", call_of("c.attention", (5,), 21, 33, 16, 16)))


def test_large_scores() -> None:
    check(("c.attention", call_of("c.attention", (1, 1), 30, 300, 40, 16)), large=20.0)


def test_what_it_cannot_compute_is_refused() -> None:
    row, masked = ROWS["c.attention"], ROWS["c.attention_masked"]
    assert row.applies is not None and masked.applies is not None
    for call in (
        call_of("c.attention", (1, 1), 16, 2049, 8, 8), call_of("c.attention", (1, 1), 20, MAX_POSITIONS + 1, 8, 8),
        call_of("c.attention", (1, 1), 30, 20, 8, 8, causal=True), call_of("c.attention", (1, 1), 30, 20, 8, 8, softcap=5.0),
    ):  # fmt: skip
        assert not row.applies(call)
    check(("c.attention", call_of("c.attention", (2, 3), 1, 33, 8, 12)))  # few rows, and few keys
    assert not masked.applies(call_of("c.attention_masked", (2, 2), 20, 20, 8, 8, mask=(2, 2, 20, 1)))


def test_nan_and_rows_that_see_nothing() -> None:
    call = call_of("c.attention_masked", (1, 1), 17, 20, 8, 8)
    rng = np.random.default_rng(0)
    operands = {n: rng.standard_normal(o.type.shape).astype(np.float32) for n, o in call.operands.items()}
    operands["m"][0, 0, 3] = -np.inf
    operands["q"][0, 0, 5, 2] = np.nan
    got = compiled(ROWS["c.attention_masked"], call)(operands)()[0]
    bad = np.isnan(got).all(-1)[0, 0]
    assert list(np.flatnonzero(bad)) == [3, 5] and np.isfinite(got[0, 0, ~bad]).all()


def test_results_of_both_layouts_are_candidates() -> None:
    q, k, v = (tg.input(n, (2, 4, 64, 24)) for n in "qkv")
    view = view_of(Graph.of(tg.attention(q, k, v, scale=0.2)))
    found = candidate_hypergraph(view, [backend("numpy"), backend("c")], view_strides)
    strides = {k.template.name: k.call.output.strides for k in found.candidates}
    assert strides["c.attention"] == (6144, 1536, 24, 1) and strides["c.attention_rows"] == (6144, 24, 96, 1)
