"""The reference on a device says what the interpreter says."""

from __future__ import annotations

import numpy as np
import pytest

from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.sample import sample
from tensor_graphs.backends.single import meaning, random_values
from tensor_graphs.egraph.graph import topological
from tensor_graphs.egraph.interpret import evaluate, expand_all
from tensor_graphs.egraph.ops import OPS

torch = pytest.importorskip("torch", reason="the reference is computed by Torch")
from tensor_graphs.backends import torch_reference  # noqa: E402

LEAVES = {"input", "param", "state", "constant", "full", "iota"}


def test_every_atomic_op_is_known() -> None:
    assert set(torch_reference.FUNCTIONS) == {n for n, op in OPS.items() if not op.composite} - LEAVES


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_it_agrees_with_the_interpreter(dtype: str) -> None:
    """On a sample of every kernel of NumPy, composites among them; both carry floats in float64."""
    met: set[str] = set()
    for template in backend("numpy").templates:
        call = sample(template, 3, dtype, attempts=300)
        if call is None:
            continue
        root = meaning(template, call)
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
