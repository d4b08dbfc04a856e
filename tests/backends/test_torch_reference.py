"""The reference on a device says what the interpreter says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tensor_graphs as tg
import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.tuning.single_kernel import random_values
from tensor_graphs.egraph.evaluate.interpret import evaluate, expand_all
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import topological
from tensor_graphs.egraph.ops.ops import OPS
from tensor_graphs.egraph.types.dtypes import numpy_dtype
from tensor_graphs.extract.model.meaning import output_terms

from .sampled_calls import sample

torch = pytest.importorskip("torch", reason="the reference is computed by Torch")
from tensor_graphs.backends.verification import torch_reference  # noqa: E402

LEAVES = {"input", "param", "state", "constant", "full", "iota"}


def test_every_atomic_op_is_known() -> None:
    spelled = {
        n
        for n, op in OPS.items()
        if not op.composite and (op.torch_function or op.methods.torch or op.methods.torch_copy)
    }
    assert spelled & set(torch_reference.FUNCTIONS) == {"reshape"}  # as a copy where there is no view
    folds = {n for n, op in OPS.items() if op.monoid in torch_reference.REDUCTIONS}
    assert spelled | folds | set(torch_reference.FUNCTIONS) == {n for n, op in OPS.items() if not op.composite} - LEAVES


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_it_agrees_with_the_interpreter(dtype: str) -> None:
    """On a sample of every kernel of NumPy, composites among them; both carry floats in float64."""
    met: set[str] = set()
    for template in backend("numpy").templates:
        call = sample(template, 3, dtype, attempts=300)
        if call is None:
            continue
        root = output_terms(template, call)[0]
        if root.op in ("floordiv", "mod") and root.dtype != dtype:  # no value over zeros
            continue
        met |= {n.op for n in topological(expand_all([root]))}
        rng = np.random.default_rng(1)
        arrays = {n: np.asarray(random_values(o.type, rng, high=2)) for n, o in call.operands.items()}
        tensors = {n: torch.from_numpy(a.astype(np.float64)) if dtype in str(a.dtype) else torch.from_numpy(a)
                   for n, a in arrays.items()}  # fmt: skip
        want = evaluate([root], {}, params=arrays, float64=True)[0]
        got = torch_reference.evaluate(root, tensors).numpy()
        assert got.shape == want.shape and (got.dtype.kind == want.dtype.kind), template.name
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12, err_msg=template.name)
    assert {"matmul", "conv", "sum", "gather", "scatter_elements", "windows", "argsort", "erf"} <= met


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("float64", [True, False])
def test_whole_graphs_agree_with_the_interpreter(dtype: str, float64: bool) -> None:
    """Inputs, params, states, constants and updates; in their own dtypes up to rounding."""
    x, w = tg.input("x", (4, 6), dtype), tg.param("w", (6, 5), dtype)
    s = tg.state("s", (4, 5), dtype)
    y = tg.softmax(tg.rms_norm(x, tg.constant(np.ones(6).astype(numpy_dtype(dtype))), eps=1e-6) @ w + s)
    graph = Graph.of([y, s * 0.5 + y])
    rng = np.random.default_rng(0)
    graph = replace(graph, params={"w": random_values(w.type, rng)})
    values = {"x": random_values(x.type, rng), "s": random_values(s.type, rng)}
    want = evaluate(graph, values, float64=float64)
    got = torch_reference.evaluate_graph(graph, values, float64=float64, device="cpu")
    for g, r in zip(got, want, strict=True):
        assert g.dtype == r.dtype and g.shape == r.shape
        close = 1e-12 if float64 else {"float32": 1e-5, "bfloat16": 2e-2}[dtype]
        np.testing.assert_allclose(g.astype(np.float64), r.astype(np.float64), rtol=close, atol=close)


def test_what_lies_in_memory_in_fewer_bits_is_computed_in_the_terms_own() -> None:
    """Kernels of a 16-bit model: their terms are carried in float32, what they read is not."""
    x, w = tg.param("x", (4, 6)), tg.param("w", (6, 5))
    values = {"x": torch.randn(4, 6).to(torch.bfloat16), "w": torch.randn(6, 5)}
    got = torch_reference.evaluate(t.matmul(x, w), values, wide=False)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, values["x"].float() @ values["w"])


def test_elements_picked_from_beyond_an_axis_are_its_first_or_last() -> None:
    """By the interpreter, by the reference on a device (where Torch's own would end all work there) and by a program:
    losses pick by labels of which some say that there is none, and hide what comes of it."""
    x, i = tg.input("x", (3, 5), "float64"), tg.input("i", (3, 4), "int64")
    root = t.gather_elements(x, i, 1)
    values = {"x": np.arange(15.0).reshape(3, 5), "i": np.tile(np.array([-100, -1, 3, 200]), (3, 1))}
    want = values["x"][:, [0, 4, 3, 4]]
    np.testing.assert_array_equal(evaluate([root], values)[0], want)
    tensors = {n: torch.from_numpy(v) for n, v in values.items()}
    root_of = t.gather_elements(tg.param("x", (3, 5), "float64"), tg.param("i", (3, 4), "int64"), 1)
    np.testing.assert_array_equal(torch_reference.evaluate(root_of, tensors).numpy(), want)
    for name in ("numpy", "torch"):
        program = tg.optimize(root * 2.0, backend=name, measure=False)
        np.testing.assert_array_equal(program(values["x"], values["i"]), 2 * want)
