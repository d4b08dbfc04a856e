"""Whole numbers and truth values that rounding decides, on a GPU: programs of generated kernels against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.backends.registry import backend

torch = pytest.importorskip("torch")
NO_GPU = backend("torch_cuda").unavailable()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU or "there is a GPU")]

#: Functions of whole numbers x and y (64 x 256).
DECIDED: dict[str, Callable[[Any, Any], Any]] = {
    "quotient": lambda x, y: torch.floor(
        x / torch.full_like(x, 49)
    ),  # x / 49 multiplies by 1 / 49 in PyTorch's kernels
    "sum of products": lambda x, y: torch.floor(x * 0.1 + y * 0.3),
    "difference": lambda x, y: x * 0.1 - y * 0.1 == 0.1 * x - 0.1 * y,
    "root": lambda x, y: (x / torch.sqrt(y * y)).int(),
    "three": lambda x, y: (0.299 * x + 0.587 * x + 0.114 * x).to(torch.int32),
    "behind a sum": lambda x, y: torch.floor((7 * x / 7).sum(1) / 3 + y[:, 0]),
    "before a product": lambda x, y: torch.floor((7 * x / 7) @ y.T / 7),
}


@pytest.mark.parametrize("kernels", ["triton-only", "cuda", "gpu"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_rounding_decides_as_in_eager(dtype: str, kernels: str) -> None:
    kind, places = getattr(torch, dtype), torch.arange(64 * 256, device="cuda").reshape(64, 256)
    functions = {n: f for n, f in DECIDED.items() if n != "before a product" or dtype != "float64"}
    whole = lambda x, y: [f(x, y) for f in functions.values()]
    examples = [(torch.rand(64, 256, device="cuda") * 50 + 1).to(kind) for _ in range(2)]
    program = tg.optimize(whole, tuple(examples), backend=kernels, budget=8.0, measure=False, allow_caller=False)
    for factor in (1, 7, 49):
        x, y = (factor * (places % 12)).to(kind), (1 + places % 5).to(kind)
        for name, found, wanted in zip(functions, program(x, y), whole(x, y), strict=True):
            assert torch.equal(found, wanted), (name, int((found != wanted).sum()))
