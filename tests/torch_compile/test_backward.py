"""Gradients that AOTAutograd traces, imported and evaluated in float64, against autograd's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensor_graphs.egraph.evaluate.interpret import evaluate
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
    "attention, heads that share keys": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), (x(2, 4, 5, 4), x(2, 2, 5, 4), x(2, 2, 5, 4)),
    ),
    "embedding": (lambda w, i: F.embedding(i, w, padding_idx=3), (x(5, 4), torch.tensor([[1, 2], [1, 3]]))),
    "batch norm": (lambda a, g, b: F.batch_norm(a, None, None, g, b, True), (x(4, 3, 5), x(3), x(3))),
    "group norm": (lambda a, g, b: F.group_norm(a, 2, g, b), (x(3, 4, 5), x(4), x(4))),
    "layer norm": (lambda a, g, b: F.layer_norm(a, (4, 5), g, b), (x(3, 4, 5), x(4, 5), x(4, 5))),
    "loss": (lambda a, i: F.cross_entropy(a, i, label_smoothing=0.1), (x(3, 4), torch.tensor([1, 0, 2]))),
    "loss, weights": (
        lambda a, i, w: F.cross_entropy(a, i, w.double(), ignore_index=1),
        (x(3, 4, 2), torch.tensor([[1, 0], [2, 1], [3, 3]]), torch.tensor([3, 1, 2, 5])),
    ),
    "loss, each": (lambda a, i: F.nll_loss(a, i, reduction="none"), (x(3, 4), torch.tensor([1, -100, 2]))),
    "loss, sum": (lambda a, i: F.nll_loss(a, i, reduction="sum"), (x(4), torch.tensor(2))),
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


def efficient(grad: Any, q: Any, k: Any, v: Any, bias: Any, causal: bool) -> list[Any]:
    """Memory-efficient attention of a GPU, its logsumexp without padding, and its gradients."""
    a = torch.ops.aten
    out, lse, *random = a._scaled_dot_product_efficient_attention(q, k, v, bias, True, 0.0, causal)
    backward = a._scaled_dot_product_efficient_attention_backward
    grads = backward(grad, q, k, v, bias, out, lse, *random, 0.0, [True, True, True, bias is not None], causal)
    return [out, lse[..., : q.shape[-2]], *(g for g in grads if g is not None), *random]


def flash(grad: Any, q: Any, k: Any, v: Any, bias: Any, causal: bool) -> list[Any]:
    """FlashAttention of a GPU, its logsumexp, and its gradients."""
    a = torch.ops.aten
    out, lse, *rest, state, unused, _ = a._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    grads = a._scaled_dot_product_flash_attention_backward(grad, q, k, v, out, lse, *rest, 0.0, causal, state, unused)
    return [out, lse, *grads, state]


def cudnn(grad: Any, q: Any, k: Any, v: Any, bias: Any, causal: bool) -> list[Any]:
    """cuDNN's attention, its logsumexp, and its gradients."""
    a = torch.ops.aten
    out, lse, *rest, seed, offset, _ = a._scaled_dot_product_cudnn_attention(q, k, v, bias, True, 0.0, causal)
    backward = a._scaled_dot_product_cudnn_attention_backward
    grads = backward(grad, q, k, v, out, lse, seed, offset, bias, *rest, 0.0, causal)
    return [out, lse.squeeze(-1), *grads, seed]


def traced_attention(kind: Callable[..., Any], given: list[Any], bias: Any, causal: bool) -> Any:
    """Graph module of attention and its gradients, traced without a GPU."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    with FakeTensorMode():
        near = [torch.empty(v.shape, dtype=v.dtype, device="meta") for v in given]
        mask = None if bias is None else torch.empty(bias.shape, device="meta")
        traced = make_fx(lambda grad, q, k, v, mask: kind(grad, q, k, v, mask, causal))(*near, mask)
    traced.graph.eliminate_dead_code()
    return traced


@pytest.mark.parametrize("kind", [efficient, flash, cudnn])
def test_seeds_of_attention_without_dropout_are_constants(kind: Callable[..., Any]) -> None:
    from tensor_graphs.torch_compile.partition import split

    traced = traced_attention(kind, [torch.randn(1, 2, 4, 8).bfloat16() for _ in range(4)], None, True)
    found, report = split(traced, "forward", 1)
    seeds = [n for n in found.module.graph.output_node().args[0] if n.op == "get_attr"]
    assert seeds and len(found.parts) == 1 and not report.islands
    assert all(not getattr(found.module, n.target).is_floating_point() for n in seeds)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("kind", "dtype", "biased"),
    [
        (efficient, "float32", False),
        (efficient, "float32", True),
        (flash, "bfloat16", False),
        (cudnn, "bfloat16", False),
    ],
)
def test_attention_of_a_gpu_and_its_gradients_are_imported(
    kind: Callable[..., Any], dtype: str, biased: bool, causal: bool
) -> None:
    torch.manual_seed(0)
    shapes = {"grad": (2, 3, 6, 8), "q": (2, 3, 6, 8), "k": (2, 3, 6, 8), "v": (2, 3, 6, 8)}
    given = {n: torch.randn(s).to(getattr(torch, dtype)) for n, s in shapes.items()}
    bias = torch.randn(2, 3, 6, 6) if biased else None
    traced = traced_attention(kind, [*given.values()], bias, causal)
    assert unsupported(traced) == {}
    graph, _ = read_traced(traced)
    values = [v.float().numpy() for v in (*given.values(), *([] if bias is None else [bias]))]
    leaves = graph.inputs
    found = evaluate(graph, {str(n.attr("name")): v for n, v in zip(leaves, values, strict=True)}, float64=True)

    own = [v.double().requires_grad_() for v in (*list(given.values())[1:], *([] if bias is None else [bias]))]
    scores = own[0] @ own[1].mT / 8**0.5 + (own[3] if biased else 0.0)
    if causal:
        scores = scores.masked_fill(~torch.ones(6, 6).tril().bool(), float("-inf"))
    expected = scores.softmax(-1) @ own[2]
    right = [expected, scores.logsumexp(-1), *torch.autograd.grad(expected, own, given["grad"].double())]
    for one, want in zip(found, right):
        torch.testing.assert_close(torch.from_numpy(np.array(one, np.float64)), want, rtol=1e-6, atol=1e-6)
    assert all(not np.any(np.asarray(zero)) for zero in found[len(right) :])


def _norm(*args: Any) -> Any:
    return torch.ops.aten._native_batch_norm_legit_no_training(*args, 0.1, 1e-5)


def _functional_norm(*args: Any) -> Any:
    return torch.ops.aten._native_batch_norm_legit_functional(*args, False, 0.1, 1e-5)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("function", [_norm, _functional_norm, lambda a, *_: torch.ops.aten.log_sigmoid_forward(a)])
def test_results_that_have_elements_on_one_device_only_are_imported(function: Callable[..., Any], device: str) -> None:
    """Statistics of a batch norm in inference, which a GPU returns and a CPU does not; the opposite for log-sigmoid."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    given = [x(2, 3, 4, 4), x(3), x(3), x(3), x(3).abs() + 0.5]
    with FakeTensorMode():
        traced = make_fx(function)(*(torch.empty(v.shape, dtype=v.dtype, device=device) for v in given))
    graph, _ = read_traced(traced)
    shapes = [tuple(r.meta["val"].shape) for r in traced.graph.output_node().args[0]]
    assert [tuple(y.shape) for y in graph.outputs] == shapes and ((0,) in shapes) == (
        device == ("cuda" if len(shapes) == 2 else "cpu")
    )
    values = {str(n.attr("name")): v.numpy() for n, v in zip(graph.inputs, given, strict=False)}
    found = [torch.from_numpy(np.array(y)) for y in evaluate(graph, values, float64=True)]
    torch.testing.assert_close(found[0], function(*given)[0])
    if len(found) > 2 and device == "cuda":
        torch.testing.assert_close(found[1:3], [given[3], torch.rsqrt(given[4] + 1e-5)])
