"""Gradients that AOTAutograd traces, imported and evaluated in float64, against autograd's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensor_graphs.egraph.ir.interpret import evaluate
from tensor_graphs.models.torch_export.traced import read_traced, unsupported
from tensor_graphs.torch_compile.decompositions import decompositions

torch = pytest.importorskip("torch")
aot = pytest.importorskip("torch._functorch.aot_autograd")
F = torch.nn.functional


def x(*shape: int) -> Any:
    return torch.randn(shape, dtype=torch.float64)


#: Function and operands; the gradients of all floating-point operands are compared.
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "conv": (lambda a, w, b: F.conv2d(a, w, b, (2, 1), (1, 0), (1, 2)), (x(2, 3, 7, 8), x(4, 3, 3, 2), x(4))),
    "conv, unreached": (lambda a, w: F.conv2d(a, w, stride=3), (x(2, 3, 9, 10), x(4, 3, 2, 3))),
    "conv, groups": (lambda a, w: F.conv2d(a, w, None, 2, 1, groups=2), (x(2, 4, 7, 6), x(6, 2, 3, 3))),
    "conv, depthwise 1d": (lambda a, w: F.conv1d(a, w, None, 1, 2, 2, groups=4), (x(3, 4, 9), x(8, 1, 3))),
    "conv, 3d": (lambda a, w: F.conv3d(a, w, None, 2, 1), (x(2, 2, 5, 4, 6), x(3, 2, 3, 3, 3))),
    "conv, no batch": (lambda a, w: F.conv2d(a, w, None, 1, 1), (x(3, 5, 6), x(4, 3, 3, 3))),
    "conv transposed": (lambda a, w, b: F.conv_transpose2d(a, w, b, 2, 1, 1), (x(2, 4, 5, 3), x(4, 3, 3, 3), x(3))),
    "conv transposed, groups": (lambda a, w: F.conv_transpose1d(a, w, None, 3, 0, 2, 2, 2), (x(2, 4, 5), x(4, 3, 2))),
    "max pool": (lambda a: F.max_pool2d(a, 3, 2, 1), (x(2, 3, 7, 6),)),
    "max pool, 3d": (lambda a: F.max_pool3d(a, 2, 1), (x(1, 2, 3, 4, 5),)),
    "adaptive max pool": (lambda a: F.adaptive_max_pool2d(a, (2, 3)), (x(2, 3, 4, 6),)),
    "mean pool": (lambda a: F.avg_pool2d(a, 2), (x(2, 3, 6, 5),)),
    "mean pool, padding": (lambda a: F.avg_pool2d(a, 3, 2, 1, count_include_pad=False), (x(2, 3, 6, 5),)),
    "mean pool, ceil": (lambda a: F.avg_pool2d(a, 3, 2, 1, ceil_mode=True), (x(2, 3, 6, 5),)),
    "mean pool, divisor": (lambda a: F.avg_pool2d(a, 3, 2, 1, divisor_override=7), (x(2, 6, 5),)),
    "mean pool, 3d": (lambda a: F.avg_pool3d(a, 2, 1), (x(1, 2, 3, 4, 5),)),
    "adaptive mean": (lambda a: F.adaptive_avg_pool2d(a, (3, 2)), (x(2, 3, 7, 4),)),
    "adaptive mean, 1": (lambda a: F.adaptive_avg_pool3d(a, 1), (x(2, 3, 3, 4, 2),)),
    "nearest": (lambda a: F.interpolate(a, scale_factor=2), (x(2, 3, 4, 5),)),
    "nearest, odd": (lambda a: F.interpolate(a, size=(7, 3)), (x(2, 3, 4, 5),)),
    "nearest exact": (lambda a: F.interpolate(a, size=7, mode="nearest-exact"), (x(2, 3, 4),)),
    "bilinear": (lambda a: F.interpolate(a, size=(7, 9), mode="bilinear"), (x(2, 3, 4, 5),)),
    "bilinear, corners": (lambda a: F.interpolate(a, size=(7, 9), mode="bilinear", align_corners=True), (x(2, 3, 4, 5),)),
    "antialiased": (lambda a: F.interpolate(a, size=(3, 4), mode="bicubic", antialias=True), (x(2, 3, 7, 9),)),
    "edge padding": (lambda a: F.pad(a, (1, 2, 0, 3), mode="replicate"), (x(2, 3, 4, 5),)),
    "reflection": (lambda a: F.pad(a, (1, 2, 0, 3), mode="reflect"), (x(2, 3, 4, 5),)),
    "weight norm": (lambda v, g: torch._weight_norm(v, g, 0), (x(4, 3, 2), x(4, 1, 1))),
    "shrinking": (lambda a: F.softshrink(a, 0.3) + F.hardshrink(a, 0.4), (x(5, 6),)),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (x(2, 2, 5, 4), x(2, 2, 5, 4), x(2, 2, 5, 4)),
    ),
    "attention, a hidden row": (
        lambda q, m: F.scaled_dot_product_attention(q, q, q, m), (x(1, 1, 3, 4), torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 0]]).bool()),
    ),
    "embedding": (lambda w, i: F.embedding(i, w, padding_idx=3), (x(5, 4), torch.tensor([[1, 2], [1, 3]]))),
    "batch norm": (lambda a, g, b: F.batch_norm(a, None, None, g, b, True), (x(4, 3, 5), x(3), x(3))),
    "group norm": (lambda a, g, b: F.group_norm(a, 2, g, b), (x(3, 4, 5), x(4), x(4))),
    "layer norm": (lambda a, g, b: F.layer_norm(a, (4, 5), g, b), (x(3, 4, 5), x(4, 5), x(4, 5))),
    "loss": (lambda a, i: F.cross_entropy(a, i, label_smoothing=0.1), (x(3, 4), torch.tensor([1, 0, 2]))),
    "indexing": (lambda a, i: a[i].cumsum(0).amax(1), (x(3, 4), torch.tensor([0, 2, 0]))),
    "log sigmoid": (F.logsigmoid, (x(3, 4),)),
    "strides": (lambda a: torch.as_strided(a.transpose(0, 1) * 2, (2, 6), (1, 2)), (x(3, 4),)),
    "products": (lambda a: a.prod(1) + a.sort(1).values[:, 0] + a.norm(dim=1), (x(3, 4),)),
}  # fmt: skip


def imported(module: Any, _: Any) -> Callable[..., Any]:
    """A traced graph as a function that the reference interpreter evaluates."""
    assert unsupported(module) == {}
    graph, _ = read_traced(module)
    names = [str(leaf.attr("name")) for leaf in graph.inputs]

    def run(args: list[Any]) -> list[Any]:
        given = dict(zip(names, (v.detach().numpy() for v in args), strict=True))
        found = iter([torch.from_numpy(np.array(v)) for v in evaluate(graph, given)])
        return [None if r is None else next(found) for r in module.graph.output_node().args[0]]

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_imported_and_right(name: str) -> None:
    function, operands = CASES[name]
    ours, own = ([v.clone().requires_grad_(v.is_floating_point()) for v in operands] for _ in range(2))
    leaves, references = ([v for v in given if v.requires_grad] for given in (ours, own))
    traced = aot.aot_function(function, fw_compiler=imported, bw_compiler=imported, decompositions=decompositions())
    torch.manual_seed(0)
    expected = function(*own)
    seed = torch.randn_like(expected)
    torch.testing.assert_close(traced(*ours), expected, rtol=1e-9, atol=1e-9)
    found = torch.autograd.grad(traced(*ours), leaves, seed)
    for one, right in zip(found, torch.autograd.grad(expected, references, seed), strict=True):
        torch.testing.assert_close(one, right, rtol=1e-9, atol=1e-9)
