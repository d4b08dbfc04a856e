"""Matrices whose rows are not 16-byte aligned: padded weight layouts, TMA boxes at their end, and the kernels that read
them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda import backend as cuda_cpp
from tensor_graphs.backends.generate.call_code import launches
from tensor_graphs.backends.generate.kernel_text import kernel_text, module_of
from tensor_graphs.backends.generate.template import GeneratedKernel
from tensor_graphs.backends.generate.weight_layouts import even, is_unaligned, laid_out, prepared
from tensor_graphs.backends.ir.index import Axis, index
from tensor_graphs.backends.ir.kernel import Buffer
from tensor_graphs.backends.ir.tensor_maps import as_one, box
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.backends.triton import backend as triton
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous

from .test_kernel_ir import x


def _call(template: GeneratedKernel, root: Tensor, dtype: str) -> Call:
    kinds = {str(n.attr("name")): n.shape for n in topological([root]) if n.op == "input"}
    place = lambda shape: Operand(Type(shape, dtype), contiguous(shape))
    return Call({o: place(kinds[o]) for o in template.operands}, place(root.shape), {})


@given(st.integers(1, 300), st.integers(1, 40), st.sampled_from(["float16", "bfloat16", "float32"]))
@settings(max_examples=30, deadline=None)
def test_weights_are_laid_out_as_kernels_are_told(rows: int, columns: int, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    kind = Type((rows, columns), dtype)
    call = Call({"w": Operand(kind, (columns, 1))}, Operand(kind, (columns, 1)), {}, {"w": "w"})
    w = torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns).to(getattr(torch, dtype))
    found = eval(prepared("w")(call), {"torch": torch, "w": w})
    one, apart = laid_out(Buffer(dtype, (rows, columns), (columns, 1)), call).strides
    assert one == 1 and found.is_contiguous() and found.shape[1] == apart == even(rows, dtype)
    assert torch.equal(found[:, :rows], w.t()) and not found[:, rows:].any()
    assert apart * w.itemsize % 16 == 0 or (-rows * w.itemsize % 16) * 4 > rows * w.itemsize
    assert is_unaligned(kind) == (dtype != "float32" and columns % 8 != 0)


def test_a_box_beyond_the_end_of_an_axis_needs_a_matrix_that_ends_there() -> None:
    m, k, h = Axis("m", 100), Axis("k", 75), Axis("h", 2)
    tiles, name = {m: ("m0", 64), k: ("k0", 64)}, lambda a: a.name
    rows = index(m) * 80 + index(k)
    both = box(rows, tiles, 2, name, {m, k})
    assert both is not None and both.shape == (100, 75) and both.strides == (80, 1)
    assert (whole := box(rows, tiles, 2, name, {m})) is not None and whole.shape == (100, 80) and not whole.strides
    behind = box(rows + index(h) * 8000, tiles, 2, name, {k})
    assert behind is not None and behind.shape == (200, 75)
    assert box(rows + index(h) * 8000, tiles, 2, name, {m}) is None, "another's rows follow"
    beside = index(m) * 160 + index(k) + index(h) * 80
    assert box(beside, tiles, 2, name, {m}) is not None and box(beside, tiles, 2, name, {k}) is None
    part = box(index(m) * 160 + index(k) + 80, tiles, 2, name, {k})
    assert part is not None and part.shape == (100, 155) and part.origin == ("m0", "k0 + 80")


def test_axes_that_are_walked_as_one() -> None:
    a, b, one = Axis("a", 3), Axis("b", 5), Axis("one", 15)
    assert as_one(index(a) * 40 + index(b) * 8 + 2, (a, b), one) == index(one) * 8 + 2
    assert as_one(index(a) * 48 + index(b) * 8, (a, b), one) is None


def _gated() -> Tensor:
    rows = x("x", 2, 20, 40)
    return c.silu(t.matmul(rows, x("w", 40, 37))) * t.matmul(rows, x("v", 40, 37))


#: name -> (term, weights laid out anew)
ODD: dict[str, tuple[Callable[[], Tensor], tuple[str, ...]]] = {
    "columns": (lambda: t.matmul(x("x", 36, 64), x("w", 64, 51)) + x("b", 51), ("w",)),
    "batches": (_gated, ("w", "v")),
    "sum": (lambda: c.relu(t.matmul(t.permute(x("x", 75, 40), (1, 0)), x("w", 75, 24))), ("w",)),
    "as it lies": (lambda: t.matmul(x("x", 20, 72), x("w", 72, 40)), ()),
}


@pytest.mark.parametrize("name", ODD)
def test_boxes_that_go_beyond_the_ends_compute_the_same(name: str) -> None:
    torch = pytest.importorskip("torch")
    make, weights = ODD[name]
    root, rng = make(), np.random.default_rng(0)
    template = triton.generated(root, weights)
    schedule = {"m": 16, "n": 16, "k0": 16, "warps": 4, "stages": 2, "boxes": 1}
    call = replace(_call(template, root, "float16"), schedule=schedule)
    text = "".join(one.call({a: a for a in (*one.args, *call.operands)}) for one in launches(template, call))
    assert text.count("described(") == len(template.operands) - ("b" in template.operands), "each matrix in boxes"
    assert ("strides=(80, 1)" in text) == (name == "sum")
    given_ = {n: rng.standard_normal(o.type.shape).astype(np.float16) for n, o in call.operands.items()}
    tensors = {n: torch.from_numpy(v) for n, v in given_.items()}
    for w in weights:
        tensors[w] = eval(prepared(w)(replace(call, names={w: w})), {"torch": torch, **tensors})
    out = torch.full(root.shape, float("nan"), dtype=torch.float16)
    module_of(kernel_text(template, call)).run(*(tensors[o] for o in template.operands), out, torch.empty(0))
    (want,) = evaluate([root], {n: v.astype(np.float32) for n, v in given_.items()}, float64=True)
    assert np.linalg.norm(out.double().numpy() - want) < 2e-3 * np.linalg.norm(want)


@pytest.mark.parametrize(("rows", "form"), [(16, "warps"), (128, "roles")])
@pytest.mark.parametrize("columns", [1003, 1024])
def test_a_weight_with_odd_rows_is_read_along_the_sum(rows: int, form: str, columns: int) -> None:
    """And in no other way: as it lies, its elements come one by one."""
    root = t.matmul(t.input("x", (rows, 640), "bfloat16"), t.param("w", (640, columns), "bfloat16"))
    found = candidate_hypergraph(view_of(Graph.of([root])), [triton.BACKEND, cuda_cpp.BACKEND], view_strides).candidates
    products = [x for x in found if x.template.family == "contraction"]
    forms = {name for x in products if x.template.space for s in x.template.space(x.call) for name in s}
    assert {x.template.backend for x in products} == {"triton", "nvrtc"} and form in forms
    if columns % 8:
        assert all(x.template.prep for x in products)
    else:
        assert any(not x.template.prep for x in products)
