"""What a call means and how much work it is, where values lie in memory in other floats than are computed with."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.triton.backend import generated
from tensor_graphs.egraph.composites.composite_ops import causal_mask
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ops.op_flops import attended_pairs
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.patterns.pattern_parser import parse_term
from tensor_graphs.errors import ShapeError
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.extract.model.library_kernel import LibraryKernel
from tensor_graphs.extract.model.meaning import pattern_terms
from tensor_graphs.extract.model.work import call_work


def call(output: tuple[int, ...], dtype: str = "bfloat16", **operands: tuple[tuple[int, ...], str]) -> Call:
    kinds = {n: Operand(Type(shape, d), contiguous(shape)) for n, (shape, d) in operands.items()}
    return Call(kinds, Operand(Type(output, dtype), contiguous(output)), {})


def test_mixed_floats_are_alike() -> None:
    pattern = "cast(div(x, sqrt(s)) @ w, dtype='bfloat16')"
    found = call((8, 4), x=((8, 6), "bfloat16"), s=((8, 1), "float32"), w=((6, 4), "bfloat16"))
    root = pattern_terms([parse_term(pattern)], found)[0]
    assert root.dtype == "float32" and root.shape == (8, 4)
    assert pattern_terms([parse_term("x + x")], found)[0].dtype == "bfloat16"  # where they fit as they are, they stay
    with pytest.raises(ShapeError):
        pattern_terms([parse_term("x @ x")], found)[0]
    assert (
        pattern_terms([parse_term("cast(x, dtype='float32') * x")], call((8, 6), x=((8, 6), "float16")))[0].dtype
        == "float32"
    )


def test_what_is_gathered_from_is_not_read_whole() -> None:
    found = call((5, 8), t=((1000, 8), "bfloat16"), i=((5,), "int64"))
    for pattern in ("gather(t, i, axis=0)", "gather(t, i, axis=0) * 2.0"):
        template = LibraryKernel("x", "triton", pattern, "", flops=lambda c: 7.0)
        assert call_work(template, found) == (7.0, 5 * 8 * 2 + 5 * 8 + 5 * 8 * 2), pattern
    both = LibraryKernel("x", "triton", "gather(t, i, axis=0) + slice(t, axis=0, start=0, stop=5)", "")
    assert call_work(both, found)[1] == 1000 * 8 * 2 + 5 * 8 + 5 * 8 * 2


def test_a_generated_kernels_own_terms_are_read() -> None:
    """The work is that of its pattern, which takes longer to read, if they have the sizes of the call."""
    cache, at, new = t.input("cache", (1, 64, 8)), t.input("at", (1,), "int64"), t.input("new", (1, 1, 8))
    rows = t.broadcast_to(t.reshape(at, (1, 1, 1)), (1, 1, 8))
    template = generated(t.scatter_elements(cache, rows, new * 2.0, 1))
    sizes = {"cache": (1, 64, 8), "at": (1,), "new": (1, 1, 8)}
    kinds = {n: (sizes[n], "int64" if n == "at" else "float32") for n in template.operands}
    work = call_work(template, call((1, 64, 8), "float32", **kinds))
    with patch.object(type(template), "roots", []):
        assert call_work(template, call((1, 64, 8), "float32", **kinds)) == work and work[1] == 8 * 4 + 8 + 8 * 4
    with patch("tensor_graphs.extract.model.work.output_terms", side_effect=AssertionError("read")):
        assert call_work(template, call((1, 64, 8), "float32", **kinds)) == work


@pytest.mark.parametrize(("rows", "columns"), [(5, 5), (3, 7), (7, 3), (1, 9)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [0, 2, 20])
def test_attention_computes_what_its_mask_shows(rows: int, columns: int, causal: bool, window: int) -> None:
    mask = causal_mask(rows, columns, causal, window, "float32")
    shown = int(np.isfinite(np.broadcast_to(evaluate(Graph.of(mask), {})[0], (rows, columns))).sum())
    assert attended_pairs(rows, columns, causal, window) == shown
    pattern = f"attention(q, k, v, scale=1.0, causal={causal}, window={window}, softcap=0.0)"
    found = call(
        (2, rows, 4), q=((2, rows, 6), "float32"), k=((2, columns, 6), "float32"), v=((2, columns, 4), "float32")
    )
    assert call_work(LibraryKernel("x", "torch_cuda", pattern, ""), found)[0] == 2 * 2 * shown * (6 + 4)
