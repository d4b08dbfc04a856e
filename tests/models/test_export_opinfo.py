"""PyTorch's own operator samples (OpInfo) through load_module and the reference interpreter, against eager.

OpInfo is private to PyTorch, so everything about it stays in this file; without its modules the tests are skipped.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's internal test helpers need expecttest")

from tests.fuzz import (  # noqa: E402
    opinfo,
    torch_draws,
    torch_values,
)
from tests.fuzz.opinfo import drawn, sample_of  # noqa: E402
from tests.fuzz.torch_comparison import compared  # noqa: E402
from torch.utils._pytree import tree_structure, tree_unflatten  # noqa: E402

from tensor_graphs.egraph.evaluate.interpret import evaluate  # noqa: E402
from tensor_graphs.errors import UnsupportedError  # noqa: E402
from tensor_graphs.models.torch_export.arrays import to_numpy  # noqa: E402
from tensor_graphs.models.torch_export.export import load_module  # noqa: E402

SAMPLES = 2

#: A sample of the entries: those that real models use, with the broadcast, rank-0 and empty cases that OpInfo adds.
NAMES = [
    "add",
    "sub",
    "mul",
    "div",
    "true_divide",
    "floor_divide",
    "remainder",
    "fmod",
    "pow",
    "rsub",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "atan2",
    "hypot",
    "logaddexp",
    "lerp",
    "addcmul",
    "addcdiv",
    "eq",
    "ne",
    "lt",
    "ge",
    "logical_and",
    "logical_not",
    "where",
    "masked_fill",
    "clamp",
    "clamp_min",
    "isfinite",
    "nan_to_num",
    "isclose",
    "neg",
    "abs",
    "sign",
    "exp",
    "expm1",
    "log",
    "log1p",
    "log2",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "tanh",
    "sigmoid",
    "erf",
    "erfc",
    "sin",
    "cos",
    "tan",
    "asin",
    "sinh",
    "asinh",
    "floor",
    "ceil",
    "round",
    "trunc",
    "frac",
    "square",
    "heaviside",
    "softmax",
    "log_softmax",
    "logit",
    "xlogy",
    "view",
    "reshape",
    "permute",
    "transpose",
    "unsqueeze",
    "squeeze",
    "expand",
    "narrow_copy",
    "select",
    "slice",
    "split",
    "chunk",
    "unbind",
    "flatten",
    "diagonal",
    "unfold",
    "movedim",
    "cat",
    "stack",
    "hstack",
    "repeat",
    "tile",
    "repeat_interleave",
    "roll",
    "flip",
    "rot90",
    "tril",
    "triu",
    "diag_embed",
    "meshgrid",
    "broadcast_to",
    "gather",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "index_select",
    "index_add",
    "index_copy",
    "index_fill",
    "index_put",
    "__getitem__",
    "take_along_dim",
    "select_scatter",
    "slice_scatter",
    "sum",
    "mean",
    "prod",
    "amax",
    "amin",
    "max",
    "min",
    "argmax",
    "argmin",
    "any",
    "all",
    "var",
    "std",
    "var_mean",
    "logsumexp",
    "cumsum",
    "sort",
    "argsort",
    "topk",
    "norm",
    "aminmax",
    "diff",
    "mm",
    "bmm",
    "matmul",
    "addmm",
    "baddbmm",
    "addmv",
    "addbmm",
    "mv",
    "dot",
    "inner",
    "outer",
    "einsum",
    "tensordot",
    "kron",
    "trace",
    "__rmatmul__",
    "__rsub__",
    "nn.functional.gelu",
    "nn.functional.silu",
    "nn.functional.mish",
    "nn.functional.elu",
    "nn.functional.leaky_relu",
    "nn.functional.hardswish",
    "nn.functional.softplus",
    "nn.functional.logsigmoid",
    "nn.functional.glu",
    "nn.functional.prelu",
    "nn.functional.linear",
    "nn.functional.conv1d",
    "nn.functional.conv2d",
    "nn.functional.conv3d",
    "nn.functional.conv_transpose1d",
    "nn.functional.conv_transpose2d",
    "nn.functional.max_pool2d",
    "nn.functional.avg_pool1d",
    "nn.functional.avg_pool2d",
    "nn.functional.adaptive_avg_pool2d",
    "nn.functional.layer_norm",
    "nn.functional.rms_norm",
    "nn.functional.group_norm",
    "nn.functional.batch_norm",
    "nn.functional.instance_norm",
    "nn.functional.embedding",
    "nn.functional.interpolate",
    "nn.functional.pad",
    "nn.functional.pixel_shuffle",
    "nn.functional.normalize",
    "nn.functional.scaled_dot_product_attention",
    "nn.functional.cross_entropy",
    "nn.functional.mse_loss",
    "nn.functional.cosine_similarity",
    "nn.functional.grid_sample",
    "nn.functional.embedding_bag",
    "cumprod",
    "cummax",
    "cummin",
    "logcumsumexp",
    "median",
    "kthvalue",
    "bucketize",
    "searchsorted",
    "cdist",
]

#: Entries of which some sample has no meaning here, with the reason.
SKIPPED = {
    "__getitem__": "bool masks give sizes that depend on data",
    "index_put": "samples write several values at bool masks",
    "scatter": "samples write into 0-d tensors",
    "scatter_add": "samples write into 0-d tensors",
    "scatter_reduce": "samples write into 0-d tensors",
    "index_add": "samples write into 0-d tensors",
    "index_copy": "samples write into 0-d tensors",
    "nn.functional.embedding": "max_norm samples write into the table",
    "nn.functional.max_pool2d": "samples return the positions",
    "nn.functional.interpolate": "bicubic and antialiased samples",
    "nn.functional.scaled_dot_product_attention": "samples with dropout",
    "nn.functional.batch_norm": "training samples write into their inputs",
    "nn.functional.instance_norm": "training samples write into their inputs",
}

#: Entries that must be refused by name: an unexpected success means that this table is out of date.
REFUSED = {
    "lgamma": "lgamma.default",
    "cholesky": "cholesky.default",
}


@cache
def entry_of(name: str) -> Any:
    """The first entry of a name; skips the test where PyTorch has no OpInfo."""
    pytest.importorskip("torch.testing._internal.common_methods_invocations", reason="no OpInfo in this PyTorch")
    return next(opinfo.entries(name))


def _samples(entry: Any, count: int) -> list[Any]:
    """`count` samples spread over the first twelve."""
    torch.manual_seed(0)
    first = drawn(entry, torch.float32, 12)
    return first[:: max(1, len(first) // count)][:count]


def _compare(names: Sequence[str], samples: Sequence[Any] | None = None) -> None:
    """Export samples of several entries as one program, because exporting costs far more than evaluating."""
    entries = {name: entry_of(name) for name in names}
    calls = [
        (n, one.tensors, one.function)
        for n, e in entries.items() for s in samples or _samples(e, SAMPLES) for one in [sample_of(e, s)]
    ]  # fmt: skip

    def together(*values: Any) -> list[list[Any]]:
        rest, results = list(values), []
        for _, tensors, function in calls:
            results.append(function(*(rest.pop(0) for _ in tensors)))
        return results

    inputs = tuple(v for _, tensors, _ in calls for v in tensors)
    graph = load_module(together, inputs, name="samples")
    values = {leaf.attr("name"): to_numpy(v) for leaf, v in zip(graph.inputs, inputs, strict=True)}
    found = iter(evaluate(graph, values))
    for name, tensors, function in calls:
        for eager in map(to_numpy, function(*(v.clone() for v in tensors))):
            result = next(found)
            assert (result.dtype, result.shape) == (eager.dtype, eager.shape), name
            np.testing.assert_allclose(result, eager, rtol=2e-4, atol=2e-5, err_msg=name)
    assert next(found, None) is None


PLAIN = [name for name in NAMES if name not in SKIPPED]
GROUPS = [PLAIN[i : i + 12] for i in range(0, len(PLAIN), 12)]


@pytest.mark.parametrize("names", GROUPS, ids=[f"{g[0]}..{g[-1]}" for g in GROUPS])
def test_samples_match_eager(names: list[str]) -> None:
    _compare(names)


@pytest.mark.parametrize("name", SKIPPED)
def test_entries_with_refused_samples_match_in_the_others(name: str) -> None:
    for sample in _samples(entry_of(name), 4):
        try:
            return _compare([name], [sample])
        except UnsupportedError:
            continue
    pytest.skip(SKIPPED[name])


@pytest.mark.parametrize("name", REFUSED)
def test_operators_without_a_builder_are_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        _compare([name])
    assert REFUSED[name] in caught.value.missing


@pytest.mark.filterwarnings("ignore")
def test_random_programs_of_samples_are_eagers() -> None:
    group = torch_values.Group([p for seed in (7, 8, 1005) if (p := torch_draws.program_of(seed))])
    graph = load_module(lambda *x: group(*x), group.examples())
    spec = tree_structure(group(*group.examples()))

    def evaluated(*x: Any) -> Any:
        values = {str(n.attr("name")): to_numpy(v) for n, v in zip(graph.inputs, x, strict=True)}
        return tree_unflatten([torch.from_numpy(np.array(v)) for v in evaluate(graph, values)], spec)

    assert compared(group, evaluated, random.Random(0), fixed=False, sharing=False) == {}
