"""Evaluates a program's weights on its GPU, which expands a quantized matrix in milliseconds where NumPy takes
seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...costdb.keys.device import GPU_KIND
from ...egraph.evaluate.interpret import expand_all
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor, topological
from ...egraph.ir.weight_data import Data, DerivedData
from ..verification.torch_reference import evaluate_tensors

LEAST_BYTES = 1 << 20  # a smaller weight is computed faster by NumPy than its parts are copied
EXACT_OPS = frozenset(
    ("cast", "from_float8", "where", "and", "or", "xor", "not", "eq", "lt", "le", "add", "sub", "mul", "neg", "concat")
)


def is_computed_on(device: str, term: Tensor, params: Mapping[str, Data]) -> bool:
    """Whether `computed_weight` computes the weight `term` over `params` on a Torch device, provided that the device's
    memory suffices."""
    if not device.startswith(GPU_KIND):
        return False
    nodes = topological(expand_all([term]))
    derived = any(isinstance(params.get(str(n.attr("name"))), DerivedData) for n in nodes if n.op == "param")
    if term.type.nbytes < LEAST_BYTES and not derived:
        return False
    computed = [n for n in nodes if n.args and n.entry.kind != "view"]
    # Torch rounds float64 to 16 bits by way of float32
    exact = all(n.op in EXACT_OPS for n in computed) and all(n.dtype != "float64" for n in nodes)
    return exact and (bool(computed) or derived)


def computed_weight(term: Tensor, params: Mapping[str, Data], device: str) -> Any | None:
    """The value of the weight `term` over `params` as a tensor on a GPU, computed there; None if NumPy has to compute
    it.

    The result has the same bits as NumPy's, because only views, derived data (`DerivedData`) and correctly rounded
    elementwise operations in at most float32 are computed. None for terms with other operations, views of stored data,
    small weights, devices other than GPUs, and if the device's memory does not suffice.
    """
    if not is_computed_on(device, term, params):
        return None
    import torch

    try:
        return evaluate_tensors(Graph.of(term, params=params), {}, device)[0]
    except torch.OutOfMemoryError:
        return None
