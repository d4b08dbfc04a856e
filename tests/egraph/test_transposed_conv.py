"""Transposed convolutions against PyTorch: any stride, window, dilation, padding and number of axes."""

from __future__ import annotations

import numpy as np
import pytest

from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.builders.contraction_builders import transposed_conv
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("n", [1, 2, 3])
def test_transposed_convolutions(n: int) -> None:
    rng, done = np.random.default_rng(n), 0
    reference = getattr(torch.nn.functional, f"conv_transpose{n}d")
    while done < 40:
        numbers = lambda least, most: rng.integers(least, most + 1, n).tolist()
        kernel, strides, dilations, pads, sizes = (
            numbers(1, 5), numbers(1, 4), numbers(1, 2), numbers(0, 2), numbers(1, 5),
        )  # fmt: skip
        more = [int(rng.integers(0, max(s, d))) for s, d in zip(strides, dilations)]
        c, o = rng.integers(1, 4, 2)
        given = {"x": (2, c, *sizes), "w": (c, o, *kernel), "b": (o,)}
        values = {name: rng.standard_normal(shape) for name, shape in given.items()}
        try:
            want = reference(*map(torch.tensor, values.values()), strides, pads, more, 1, dilations).numpy()
        except RuntimeError:  # the padding cuts off everything
            continue
        leaves = [t.input(name, shape, "float64") for name, shape in given.items()]
        high = [p - m for p, m in zip(pads, more)]
        got = evaluate([transposed_conv(*leaves, strides, pads, high, dilations, 1)], values)[0]
        np.testing.assert_allclose(got, want, atol=1e-12)
        done += 1


def test_strides_multiply_no_zeros() -> None:
    """A stride of 4 along a window of 8: two products for each result and channel, not eight."""
    x, w = t.input("x", (1, 16, 32)), t.param("w", (16, 8, 8))
    (conv,) = (n for n in Graph.of(transposed_conv(x, w, None, [4], [2], [2], [1], 1)).nodes() if n.op == "conv")
    assert conv.type.shape == (1, 32, 33) and conv.args[1].shape == (32, 16, 2)
