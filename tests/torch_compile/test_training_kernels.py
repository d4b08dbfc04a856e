"""Kernels of training steps: what ATen computes as one operator is one candidate in the graphs of AOTAutograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.backends.tuning.single_kernel import compiled
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.composites import training_ops as g
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.simplify.simplify import simplify
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.models.torch_export.traced import read_traced, unsupported
from tensor_graphs.torch_compile.decompositions import decompositions

torch = pytest.importorskip("torch")
aot = pytest.importorskip("torch._functorch.aot_autograd")
F = torch.nn.functional
pytestmark = pytest.mark.skipif(bool(backend("c").unavailable()), reason="no C compiler")


def x(*shape: int) -> Any:
    return torch.randn(shape)


def mask() -> Any:
    return torch.randn(1, 1, 5, 5).clamp(-3, 3)


IMAGE, VECTOR = (4, 6, 9, 8), (6,)
#: Function of a training step, its operands, and kernels that its forward and backward graph must have.
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[str, ...]]] = {
    "conv": (lambda a, w: F.conv2d(a, w, None, 2, 1), (x(2, 3, 9, 8), x(4, 3, 3, 3)),
             ("torch.conv_input_gradient", "torch.conv_weight_gradient", "cuda.conv_input_gradient_last", "cuda.conv_weight_gradient")),
    "batch norm": (lambda a, w, b: F.batch_norm(a, torch.zeros(6), torch.ones(6), w, b, True), (x(*IMAGE), x(*VECTOR), x(*VECTOR)),
                   ("c.batch_norm_training", "c.batch_norm_gradients4", "torch.batch_norm_gradients4", "cuda.batch_norm_training",
                    "cuda.cudnn_batch_norm_training", "cuda.channel_statistics", "cuda.batch_norm_gradients4")),
    "batch norm, relu": (
        lambda a, w, b: F.relu(F.batch_norm(a, torch.zeros(6), torch.ones(6), w, b, True)), (x(*IMAGE), x(*VECTOR), x(*VECTOR)),
        ("c.batch_norm_training_relu", "c.batch_norm_gradients4_relu|c.batch_norm_gradients4_hidden"),
    ),
    "residual": (
        lambda a, w, b, r: F.relu(r + F.batch_norm(a, torch.zeros(6), torch.ones(6), w, b, True)),
        (x(*IMAGE), x(*VECTOR), x(*VECTOR), x(*IMAGE)), ("c.batch_norm_training_residual_left_relu",),
    ),
    "layer norm": (lambda a, w, b: F.layer_norm(a, (6,), w, b), (x(4, 5, 6), x(6), x(6)),
                   ("torch.norm_with_statistics", "torch.layer_norm_gradients3", "cuda.norm_with_statistics", "cuda.layer_norm_gradients3")),
    "group norm": (lambda a, w, b: F.group_norm(a, 2, w, b), (x(*IMAGE), x(*VECTOR), x(*VECTOR)),
                   ("torch.group_norm_with_statistics", "torch.group_norm_gradients4", "cuda.group_norm_with_statistics",
                    "cuda.group_norm_gradients4")),
    "relu": (lambda a: F.relu(a), (x(4, 5),), ("cuda.relu_gradient",)),
    "softmax": (lambda a: F.softmax(a, -1), (x(4, 5),), ("torch.softmax_gradient", "cuda.softmax_gradient")),
    "log softmax": (lambda a: F.log_softmax(a, -1), (x(4, 5),), ("torch.log_softmax_gradient", "cuda.log_softmax_gradient")),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(*(y.transpose(1, 2) for y in (q, k, v)), is_causal=True).transpose(1, 2),
        (x(2, 5, 2, 8), x(2, 5, 2, 8), x(2, 5, 2, 8)),
        ("torch.attention_with_statistics", "torch.attention_gradients", "torch.attention_gradients_rows", "cuda.attention_gradients_rows_efficient", "cuda.attention_with_statistics_efficient",
         "cuda.attention_gradients_efficient"),
    ),
    "max pool": (lambda a: F.max_pool2d(a, 3, 2, 1), (x(2, 3, 9, 8),), ("c.max_pool_with_indices", "c.max_pool_gradient", "cuda.max_pool_with_indices", "cuda.max_pool_gradient")),
    "embedding": (lambda w, i: F.embedding(i, w, padding_idx=3), (x(7, 4), torch.tensor([[1, 3], [0, 1]])),
                  ("torch.embedding_gradient", "cuda.embedding_gradient")),
}  # fmt: skip


def traced_graphs(function: Callable[..., Any], operands: tuple[Any, ...]) -> list[Graph]:
    """The imported forward and backward graph of a function."""
    found: list[Graph] = []

    def imported(module: Any, _: Any) -> Any:
        assert unsupported(module) == {}
        found.append(simplify(read_traced(module)[0]))
        run = lambda args: list(module.forward(*args))
        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    given = [v.clone().requires_grad_(v.is_floating_point()) for v in operands]
    traced = aot.aot_function(function, fw_compiler=imported, bw_compiler=imported, decompositions=decompositions())
    made = traced(*given)
    made.backward(torch.randn_like(made))
    return found


@pytest.mark.parametrize("name", CASES)
def test_operators_of_eager_steps_are_single_kernels(name: str) -> None:
    function, operands, wanted = CASES[name]
    known: set[str] = set()
    for graph in traced_graphs(function, operands):
        for names_of in (("numpy", "torch", "c"), ("torch_cuda",)):
            chosen = [backend(b) for b in names_of]
            known |= {c.template.name for c in candidate_hypergraph(view_of(graph), chosen, view_strides).candidates}
    for names in wanted:
        assert known & set(names.split("|")), f"{names} is no candidate"


def test_graphs_that_are_not_rewritten_hold_the_decompositions_of_ops_that_may_lack_kernels() -> None:
    grad, image = t.input("g", (2, 3, 7, 5)), t.input("x", (2, 4, 8, 6))
    made = g.conv_weight_gradient(
        image, grad, shape=(3, 4, 2, 2), strides=(1, 1), pads=(0, 1, 0, 0), dilations=(1, 2), groups=1
    )
    view = view_of(Graph.of(made * 2.0))
    (cls,) = (int(view.cls[n]) for n, op in enumerate(view.op) if op == "conv_weight_gradient")
    assert [view.op[n] for n in range(len(view)) if view.cls[n] == cls] == ["conv_weight_gradient", "permute"]
    assert view.n_classes == len(view) - 1 == len(view.types) == len(view.weight) and view.age is not None
    assert len(view.age) == view.n_classes
    # torch has no kernel for unequal padding: the decomposition's convolution covers the value
    found = candidate_hypergraph(view, [backend("numpy"), backend("torch")], view_strides)
    names = {c.template.name for c in found.candidates}
    assert "torch.conv_uneven" in names and "torch.conv_weight_gradient" not in names


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_decompositions_of_decompositions_are_held_too(name: str) -> None:
    """Also where a size is free, where the C kernel does not apply."""
    image = t.input("x", (tg.dim("n", max=64), 4))
    program = tg.optimize(
        g.channel_deviation(image, eps=1e-5), backend=name, measure=False, effort=0, budget=1, verify=False
    )
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    np.testing.assert_allclose(program(x), (x.var(0) + 1e-5) ** -0.5, rtol=1e-5)


def test_the_unfused_plan_uses_no_kernels_of_several_results() -> None:
    image, line = t.input("x", (2, 3, 4, 5)), t.input("w", (3,))
    made = [
        g.batch_norm_training(image, line, line),
        g.channel_mean(image),
        g.channel_variance(image),
        g.channel_deviation(image),
    ]
    plan = direct_plan(Graph.of(made), [backend("numpy"), backend("torch"), backend("c")])
    assert all(len(step.template.terms) == 1 for step in plan.steps)


def test_batch_norms_in_c_keep_their_accuracy_far_from_zero() -> None:
    """Sums of many elements, and variances that are small beside the mean."""
    rng = np.random.default_rng(0)
    image = (rng.standard_normal((8, 3, 64, 64)) + 1000.0).astype(np.float32)
    gain, shift = (rng.standard_normal(3).astype(np.float32) for _ in range(2))
    (template,) = (k for k in backend("c").templates if k.name == "c.batch_norm_training")
    place = lambda v: Operand(Type(v.shape, "float32"), contiguous(v.shape))
    call = Call(
        {"x": place(image), "g": place(gain), "b": place(shift)}, place(image), {"eps": 1e-5}, more=(place(gain),) * 3
    )
    y, mean, variance, deviation = compiled(template, call)({"x": image, "g": gain, "b": shift})()
    wide = image.astype(np.float64)
    exact, axes = wide.mean((0, 2, 3)), (0, 2, 3)
    np.testing.assert_allclose(mean, exact, rtol=1e-7)
    np.testing.assert_allclose(variance, wide.var(axes), rtol=1e-5)
    np.testing.assert_allclose(deviation, (wide.var(axes) + 1e-5) ** -0.5, rtol=1e-5)
    line = lambda v: v.reshape(1, 3, 1, 1)
    right = (wide - line(exact)) * line((wide.var(axes) + 1e-5) ** -0.5 * gain) + line(shift)
    np.testing.assert_allclose(y, right, atol=2e-4)  # the mean is rounded to 6e-5
