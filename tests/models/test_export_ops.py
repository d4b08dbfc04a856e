"""Every family of ATen overloads against eager PyTorch: each family is exported once, each case is one test."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from tensor_graphs.egraph.evaluate.interpret import evaluate  # noqa: E402
from tensor_graphs.models.torch_export.arrays import to_numpy  # noqa: E402
from tensor_graphs.models.torch_export.aten_ops import IGNORED, TABLE  # noqa: E402
from tensor_graphs.models.torch_export.export import load_module  # noqa: E402

Case = Callable[..., Any]


def _random(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + 7))


def _ints(high: int, *shape: int, low: int = 0) -> Any:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(sum(shape) + high))


def _power(exponent: float) -> Case:
    return lambda x, p: p**exponent


def _inside(function: Case) -> Case:
    """On values within (-1, 1)."""
    return lambda x, p: function(torch.tanh(x))


def _on(function: Case, *places: int, number: float | None = None) -> Case:
    """On some of a family's inputs, then a number."""
    return lambda *inputs: function(*(inputs[i] for i in places), *(() if number is None else (number,)))


X, Y, POSITIVE = _random(3, 4), _random(3, 4), _random(3, 4).abs() + 0.1
IMAGE, LINE, VOLUME = _random(2, 4, 6, 9), _random(2, 4, 9), _random(1, 2, 4, 5, 6)
SEQUENCE = _random(2, 3, 5, 8)
ODD = torch.tensor([[0.0, float("nan"), 1.5], [float("inf"), -2.5, float("-inf")]])

FAMILIES: dict[str, tuple[tuple[Any, ...], dict[str, Case]]] = {
    "arithmetic": ((X, Y), {
        "add": lambda x, y: x + y, "add_alpha": lambda x, y: torch.add(x, y, alpha=2), "add_scalar": lambda x, y: x + 3,
        "sub": lambda x, y: x - y, "sub_alpha": lambda x, y: torch.sub(x, y, alpha=0.5), "rsub": lambda x, y: 2 - x,
        "mul": lambda x, y: x * y, "mul_scalar": lambda x, y: x * 1.5, "div": lambda x, y: x / y,
        "div_scalar": lambda x, y: x / 3, "rdiv": lambda x, y: 3 / x,
        "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
        "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        "floor_divide": lambda x, y: x // y, "remainder": lambda x, y: torch.remainder(x, y),
        "remainder_scalar": lambda x, y: x % 0.7, "fmod": lambda x, y: torch.fmod(x, y),
        "maximum": lambda x, y: torch.maximum(x, y), "minimum": lambda x, y: torch.minimum(x, y),
        "broadcast": lambda x, y: x[:, :1] * y[0], "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.3),
        "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=0.3), "lerp": lambda x, y: torch.lerp(x, y, 0.3),
        "atan2": lambda x, y: torch.atan2(x, y), "hypot": lambda x, y: torch.hypot(x, y),
        "inplace": lambda x, y: x.clone().mul_(2).add_(y), "zero_dim": lambda x, y: x * y[0, 0],
    }),
    "powers": ((X, POSITIVE), {
        **{f"pow_{e}": _power(e) for e in (2, 3, 0.5, -0.5, -1, -2, 1, 0, 2.5, 4)},
        "pow_base": lambda x, p: 2.0**x, "pow_tensor": lambda x, p: p**x, "square": lambda x, p: x.square(),
        "rsqrt": lambda x, p: p.rsqrt(), "sqrt": lambda x, p: p.sqrt(), "reciprocal": lambda x, p: p.reciprocal(),
    }),
    "functions": ((X, POSITIVE), {
        **{name: _on(getattr(torch, name), 0) for name in (
            "neg", "abs", "sign", "exp", "expm1", "tanh", "erf", "erfc", "sin", "cos", "atan", "floor", "ceil", "round",
            "trunc", "frac", "sigmoid", "exp2", "sinh", "cosh", "asinh", "tan", "deg2rad", "rad2deg", "sgn")},
        **{name: _on(getattr(torch, name), 1) for name in ("log", "log2", "log10", "log1p")},
        **{name: _inside(getattr(torch, name)) for name in ("asin", "acos", "atanh")},
        "acosh": lambda x, p: torch.acosh(p + 1), "round_decimals": lambda x, p: torch.round(x, decimals=2),
    }),
    "activations": ((X * 2,), {
        "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
        "mish": F.mish, "softplus": F.softplus, "softplus_beta": lambda x: F.softplus(x, beta=2), "elu": F.elu,
        "elu_alpha": lambda x: F.elu(x, alpha=0.3), "celu": lambda x: F.celu(x, 0.4), "selu": F.selu,
        "leaky_relu": lambda x: F.leaky_relu(x, 0.2), "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid,
        "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.7), "relu6": F.relu6, "logsigmoid": F.logsigmoid,
        "softsign": F.softsign, "threshold": lambda x: F.threshold(x, 0.1, 20.0), "glu": F.glu,
        "tanhshrink": F.tanhshrink, "softshrink": F.softshrink, "hardshrink": F.hardshrink,
        "prelu": lambda x: F.prelu(x, torch.tensor([0.1, 0.2, 0.3, 0.4])), "dropout": lambda x: F.dropout(x, 0.5, False),
        "softmax": lambda x: F.softmax(x, 0), "log_softmax": lambda x: F.log_softmax(x, -1),
        "softmax_dtype": lambda x: F.softmax(x, -1, dtype=torch.float64), "softmin": lambda x: F.softmin(x, 1),
    }),
    "comparisons": ((X, Y, _ints(3, 3, 4), _ints(3, 3, 4, low=1)), {
        **{op: _on(getattr(torch, op), 2, 3) for op in ("eq", "ne", "lt", "le", "gt", "ge")},
        **{f"{op}_scalar": _on(getattr(torch, op), 0, number=0.5) for op in ("eq", "lt", "ge")},
        "logical_and": lambda x, y, i, j: torch.logical_and(i, j > 1), "logical_or": lambda x, y, i, j: (i > 1) | (j > 1),
        "logical_xor": lambda x, y, i, j: torch.logical_xor(i, j), "logical_not": lambda x, y, i, j: torch.logical_not(i),
        "invert": lambda x, y, i, j: ~(i > 1), "bitwise_not": lambda x, y, i, j: ~i, "bitwise_and": lambda x, y, i, j: i & j,
        "bitwise_or": lambda x, y, i, j: i | 2, "bitwise_xor": lambda x, y, i, j: i ^ j,
        "where": lambda x, y, i, j: torch.where(i > 1, x, y), "where_scalar": lambda x, y, i, j: torch.where(i > 1, x, 0.0),
        "masked_fill": lambda x, y, i, j: x.masked_fill(i == 0, float("-inf")),
        "masked_fill_tensor": lambda x, y, i, j: x.masked_fill(i == 0, y[0, 0]),
        "clamp": lambda x, y, i, j: x.clamp(-0.5, 0.5), "clamp_min": lambda x, y, i, j: x.clamp(min=0.1),
        "clamp_max": lambda x, y, i, j: x.clamp_max(0.1), "clamp_tensor": lambda x, y, i, j: x.clamp(min=y),
        "clamp_int": lambda x, y, i, j: i.clamp(1, 2), "any": lambda x, y, i, j: (i > 1).any(1),
        "all": lambda x, y, i, j: (i > 0).all(), "any_all": lambda x, y, i, j: (i > 5).any(),
        "isclose": lambda x, y, i, j: torch.isclose(x, x + 1e-9),
    }),
    "odd values": ((ODD,), {
        "isnan": torch.isnan, "isinf": torch.isinf, "isfinite": torch.isfinite, "nan_to_num": torch.nan_to_num,
        "nan_to_num_values": lambda x: torch.nan_to_num(x, 1.0, 2.0, 3.0), "fmax": lambda x: torch.fmax(x, x.flip(1)),
        "fmin": lambda x: torch.fmin(x, x.flip(1)), "relu": F.relu, "maximum": lambda x: torch.maximum(x, x.flip(0)),
        "amax": lambda x: x.amax(1), "isnan_int": lambda x: torch.isnan(torch.ones(2, dtype=torch.int64)), "sign": lambda x: x.sign(),
        **{name: _on(getattr(torch, name), 0) for name in ("sinh", "cosh", "tanh", "asinh", "acosh", "asin", "acos", "atanh")},
        "median": lambda x: x.median(1)[0], "logcumsumexp": lambda x: x.logcumsumexp(1),
    }),
    "far values": ((torch.tensor([[-0.0, 0.0, -1.0, 1e20, -1e20, 3e38], [-3e38, 80.0, -80.0, -1e4, 0.3, 1e-30]]),), {
        **{name: _on(getattr(torch, name), 0) for name in ("sinh", "cosh", "asinh", "acosh", "asin", "acos", "atanh")},
        "atan2": lambda x: torch.atan2(x, x.flip(1)),
    }),
    "integers": ((_ints(9, 3, 4, low=-9), _ints(5, 3, 4, low=1), _ints(2, 3, 4).bool()), {
        "add": lambda i, j, b: i + j, "div": lambda i, j, b: i / j, "floor_divide": lambda i, j, b: i // j,
        "trunc": lambda i, j, b: torch.div(i, j, rounding_mode="trunc"), "mod": lambda i, j, b: i % j,
        "fmod": lambda i, j, b: torch.fmod(i, j), "fmod_least": lambda i, j, b: torch.fmod(i - 2**63, j - 3 + 2 * (j == 3)),
        "trunc_least": lambda i, j, b: torch.div(i + 9 - 2**63, j - 7, rounding_mode="trunc"), "float_scalar": lambda i, j, b: i * 0.5, "bool_add": lambda i, j, b: b + 1,
        "bool_sum": lambda i, j, b: b.sum(), "bool_float": lambda i, j, b: 1.0 - b.float(), "sum": lambda i, j, b: i.sum(1),
        "int32": lambda i, j, b: i.to(torch.int32) + 1, "int32_sum": lambda i, j, b: i.to(torch.int32).sum(),
        "cumsum_bool": lambda i, j, b: b.cumsum(1), "prod": lambda i, j, b: j.prod(1), "abs": lambda i, j, b: i.abs(),
        "neg": lambda i, j, b: -i, "exp": lambda i, j, b: j.exp(), "amin": lambda i, j, b: i.amin((0, 1)),
        "one_hot": lambda i, j, b: F.one_hot(j, 6), "floor": lambda i, j, b: i.floor(), "pow": lambda i, j, b: i**2,
        "uint8": lambda i, j, b: j.to(torch.uint8) * 2, "uint8_shift": lambda i, j, b: (j.to(torch.uint8) * 60) >> j * 3, "mixed": lambda i, j, b: i.to(torch.int32) * j,
        "to_bool": lambda i, j, b: i.bool(), "where": lambda i, j, b: torch.where(b, i, 0),
    }),
    "views": ((SEQUENCE,), {
        "view": lambda x: x.view(2, 3, 40), "view_minus": lambda x: x.view(-1, 8), "reshape": lambda x: x.mT.reshape(2, -1),
        "permute": lambda x: x.permute(0, 2, 1, -1), "transpose": lambda x: x.transpose(1, -1), "t": lambda x: x[0, 0].t(),
        "unsqueeze": lambda x: x.unsqueeze(-1), "squeeze": lambda x: x[:, :1].squeeze(1), "squeeze_none": lambda x: x.squeeze(0),
        "squeeze_all": lambda x: x[:1, :, :1].squeeze(), "squeeze_dims": lambda x: x[:1, :, :1].squeeze((0, 2)),
        "expand": lambda x: x[:, :1].expand(-1, 3, -1, -1), "expand_lead": lambda x: x[0, 0].expand(4, 5, 8),
        "slice": lambda x: x[:, 1:, ::2, :-1], "slice_far": lambda x: x[:, :100, -3:], "select": lambda x: x[:, -1, 2],
        "narrow": lambda x: x.narrow(2, 1, 3), "split": lambda x: x.split(2, 2)[2], "split_sizes": lambda x: x.split([1, 4], 2)[1],
        "chunk": lambda x: x.chunk(3, 2)[1], "unbind": lambda x: x.unbind(1)[2], "flatten": lambda x: x.flatten(1, 2),
        "unflatten": lambda x: x.unflatten(-1, (2, 4)), "diagonal": lambda x: x.diagonal(1, 2, 3),
        "diagonal_below": lambda x: x.diagonal(-2, 2, 3), "unfold": lambda x: x.unfold(3, 3, 2),
        "movedim": lambda x: x.movedim(1, 3), "swapaxes": lambda x: x.swapaxes(0, 1), "clone": lambda x: x.clone(),
        "contiguous": lambda x: x.mT.contiguous(), "detach": lambda x: x.detach() * 1, "alias": lambda x: torch.ops.aten.alias(x),
        "pixel_shuffle": lambda x: F.pixel_shuffle(x.transpose(1, 3), 2), "pixel_unshuffle": lambda x: F.pixel_unshuffle(x[..., :4, :], 2),
        "to_half": lambda x: x.half(), "to_int": lambda x: (x * 3).to(torch.int64), "type_as": lambda x: x.type_as(x.double()),
        "view_as": lambda x: x.view_as(x), "ravel": lambda x: x.ravel(), "newaxis": lambda x: x[:, None, 0],
        "slice_assign": lambda x: _assigned(x), "einsum": lambda x: torch.einsum("abcd,aecd->abe", x, x),
    }),
    "creation": ((X,), {
        "arange": lambda x: torch.arange(5) + x[0, 0], "arange_range": lambda x: torch.arange(2, 9, 3) * 1 + x[0, 0].long(),
        "arange_float": lambda x: torch.arange(0, 1, 0.3) + x[0, 0], "arange_down": lambda x: torch.arange(5, 0, -2) + x[0, 0],
        "full": lambda x: torch.full((2, 4), 7.0) + x[0], "full_int": lambda x: torch.full((2,), 7) * 2, "zeros": lambda x: torch.zeros(2, 4) + x[0],
        "ones_like": lambda x: torch.ones_like(x), "zeros_like": lambda x: torch.zeros_like(x, dtype=torch.int64),
        "full_like": lambda x: torch.full_like(x, 0.3), "new_ones": lambda x: x.new_ones(2), "new_zeros": lambda x: x.new_zeros(2, 3),
        "new_full": lambda x: x.new_full((2,), 3), "tril": lambda x: x.tril(), "triu": lambda x: x.triu(1),
        "tril_bool": lambda x: torch.tril(torch.ones(4, 4, dtype=torch.bool), -1) & (x[0] > 0), "eye": lambda x: torch.eye(4) * x[0],
        "linspace": lambda x: torch.linspace(0, 1, 4) * x, "tensor": lambda x: torch.tensor([1.0, 2.0, 3.0, 4.0]) * x,
        "scalar_tensor": lambda x: torch.tensor(2.5) * x, "fill": lambda x: torch.empty(3).fill_(2.0),
        "meshgrid": lambda x: torch.meshgrid(x[0], x[:, 0], indexing="ij")[1], "diag": lambda x: torch.diag_embed(x),
    }),
    "layout": ((X, Y, IMAGE), {
        "cat": lambda x, y, m: torch.cat([x, y, x], 1), "cat_types": lambda x, y, m: torch.cat([x, y.long()], 0),
        "cat_empty": lambda x, y, m: torch.cat([torch.zeros(0), x], 0), "stack": lambda x, y, m: torch.stack([x, y], -1),
        "hstack": lambda x, y, m: torch.hstack([x, y]), "repeat": lambda x, y, m: x.repeat(2, 1, 3),
        "repeat_interleave": lambda x, y, m: x.repeat_interleave(2, 1), "tile": lambda x, y, m: x.tile(2),
        "roll": lambda x, y, m: x.roll(1, 0), "roll_two": lambda x, y, m: x.roll((-1, 2), (0, 1)), "roll_flat": lambda x, y, m: x.roll(3),
        "flip": lambda x, y, m: x.flip((0, 1)), "rot90": lambda x, y, m: torch.rot90(x), "pad": lambda x, y, m: F.pad(x, (1, 2), value=3.0),
        "pad_two": lambda x, y, m: F.pad(m, (1, 2, 0, 1)), "pad_negative": lambda x, y, m: F.pad(m, (-1, 2, 1, -2)),
        "reflect": lambda x, y, m: F.pad(m, (2, 1, 1, 2), mode="reflect"), "replicate": lambda x, y, m: F.pad(m, (2, 1, 1, 2), mode="replicate"),
        "circular": lambda x, y, m: F.pad(m, (2, 1, 1, 2), mode="circular"),
        "slice_scatter": lambda x, y, m: torch.slice_scatter(x, y[:, :2], 1, 1, 3),
        "slice_scatter_step": lambda x, y, m: torch.slice_scatter(x, y[:, :2], 1, 0, 4, 2),
        "select_scatter": lambda x, y, m: torch.select_scatter(x, y[0], 0, 1), "broadcast_tensors": lambda x, y, m: torch.broadcast_tensors(x, y[:1])[1],
    }),
    "indexing": ((X, _random(5, 6, 4), _ints(3, 2, 4), _ints(5, 7), _ints(5, 2, 3, low=-5), _ints(6, 2, 3, low=-6)), {
        "embedding": lambda x, y, i, j, k, l: F.embedding(i, x), "index_select": lambda x, y, i, j, k, l: y.index_select(0, j),
        "index": lambda x, y, i, j, k, l: y[j], "index_axis": lambda x, y, i, j, k, l: y[:, j], "index_negative": lambda x, y, i, j, k, l: y[k],
        "index_two": lambda x, y, i, j, k, l: y[k, l], "index_inner": lambda x, y, i, j, k, l: y[:, l, k.clamp(-4, 3)],
        "index_apart": lambda x, y, i, j, k, l: y[k, :, k.clamp(-4, 3)], "index_broadcast": lambda x, y, i, j, k, l: y[k[:, :1], l],
        "index_slice": lambda x, y, i, j, k, l: y[1:, j[:2] % 6, ::2], "index_list": lambda x, y, i, j, k, l: y[:, [0, 5, -1]],
        "gather": lambda x, y, i, j, k, l: x.gather(0, i), "gather_small": lambda x, y, i, j, k, l: x.gather(1, i[:, :2]),
        "take_along_dim": lambda x, y, i, j, k, l: torch.take_along_dim(x, x.argsort(1), 1),
        "scatter": lambda x, y, i, j, k, l: x.scatter(1, i[:, :1], 9.0), "scatter_src": lambda x, y, i, j, k, l: x.scatter(0, i[:1], x * 2),
        "scatter_add": lambda x, y, i, j, k, l: x.scatter_add(0, i, x), "scatter_reduce": lambda x, y, i, j, k, l: x.scatter_reduce(0, i, x, "amax"),
        "scatter_prod": lambda x, y, i, j, k, l: x.scatter_reduce(0, i, x, "prod"),
        "index_put": lambda x, y, i, j, k, l: y.index_put((torch.tensor([0, 3]),), torch.ones(4)),
        "index_put_add": lambda x, y, i, j, k, l: y.index_put((j,), torch.ones(()), accumulate=True),
        "index_put_two": lambda x, y, i, j, k, l: y.index_put((k, l), torch.ones(4) * 2, accumulate=True),
        "index_put_inner": lambda x, y, i, j, k, l: _put_inner(y), "mask_assign": lambda x, y, i, j, k, l: _masked_assign(x),
        "index_add": lambda x, y, i, j, k, l: x.index_add(1, torch.tensor([0, 0, 3]), x[:, :3], alpha=2),
        "index_copy": lambda x, y, i, j, k, l: x.index_copy(0, torch.tensor([2, 0]), x[:2] * 3),
        "index_fill": lambda x, y, i, j, k, l: x.index_fill(1, torch.tensor([1, 3]), 0.5),
    }),
    "reductions": ((SEQUENCE,), {
        "sum": lambda x: x.sum(), "sum_dims": lambda x: x.sum((1, -1)), "sum_keep": lambda x: x.sum(2, keepdim=True),
        "sum_dtype": lambda x: x.sum(1, dtype=torch.float64), "mean": lambda x: x.mean(), "mean_dims": lambda x: x.mean((0, 2), keepdim=True),
        "var": lambda x: x.var(), "var_dim": lambda x: x.var(-1, unbiased=False), "var_correction": lambda x: torch.var(x, (1, 2), correction=2),
        "std": lambda x: x.std(1), "var_mean": lambda x: torch.var_mean(x, 1)[0] + torch.var_mean(x, 1)[1], "amax": lambda x: x.amax((1, 3)),
        "amin": lambda x: x.amin(0, keepdim=True), "max": lambda x: x.max(), "min": lambda x: x.min(), "max_dim": lambda x: x.max(1)[0],
        "max_index": lambda x: x.max(2)[1], "min_dim": lambda x: x.min(-1, keepdim=True)[0], "argmax": lambda x: x.argmax(2),
        "argmax_all": lambda x: x.argmax(), "argmin": lambda x: x.argmin(-1, keepdim=True), "prod": lambda x: x.prod(), "prod_dim": lambda x: x.prod(1),
        "logsumexp": lambda x: torch.logsumexp(x, (1, 3)), "norm": lambda x: x.norm(), "norm_dim": lambda x: torch.linalg.vector_norm(x, 2, 1),
        "norm_1": lambda x: torch.linalg.vector_norm(x, 1, (0, 1)), "norm_3": lambda x: torch.linalg.vector_norm(x, 3, 1),
        "norm_inf": lambda x: torch.linalg.vector_norm(x, float("inf"), 1), "normalize": lambda x: F.normalize(x, dim=-1),
        "cumsum": lambda x: x.cumsum(1), "sort": lambda x: x.sort(2)[0], "sort_index": lambda x: x.sort(1, descending=True)[1],
        "argsort": lambda x: x.argsort(-1), "topk": lambda x: x.topk(3)[0], "topk_index": lambda x: x.topk(2, dim=2, largest=False)[1],
        "count_nonzero": lambda x: (x > 0).sum(1), "cosine_similarity": lambda x: F.cosine_similarity(x, x.flip(0), dim=-1),
        "mse_loss": lambda x: F.mse_loss(x, x.flip(0)), "cross_entropy": lambda x: F.cross_entropy(x[0, 0], torch.tensor([1, 2, -100, 0, 7])),
        "nll_sum": lambda x: F.nll_loss(x[0, 0], torch.tensor([1, 2, 3, 0, 7]), weight=torch.arange(8.0), reduction="sum"),
        "nll_none": lambda x: F.nll_loss(x[0, 0], torch.tensor([1, 2, 3, 0, 7]), reduction="none"),
    }),
    "running": ((SEQUENCE, _ints(3, 2, 3, 5, 8), _ints(20, 4, 5, low=-20), _ints(6, 4, 5), ODD), {
        "cumprod": lambda x, i, a, b, o: x.cumprod(2), "cumprod_int": lambda x, i, a, b, o: a.cumprod(1), "cummax": lambda x, i, a, b, o: x.round().cummax(3)[0],
        "cummax_index": lambda x, i, a, b, o: x.round().cummax(3)[1], "cummin_index": lambda x, i, a, b, o: i.cummin(1)[1], "cummax_nan": lambda x, i, a, b, o: o.cummax(1)[0],
        "logcumsumexp": lambda x, i, a, b, o: x.logcumsumexp(-1), "median": lambda x, i, a, b, o: x.median(), "median_dim": lambda x, i, a, b, o: x.median(1)[0],
        "median_nan": lambda x, i, a, b, o: o.median(1)[0], "kthvalue": lambda x, i, a, b, o: x.kthvalue(2, 1)[0], "left": lambda x, i, a, b, o: a << b, "left_scalar": lambda x, i, a, b, o: a << 2,
        "right": lambda x, i, a, b, o: a >> b, "right_scalar": lambda x, i, a, b, o: a >> 1, "bucketize": lambda x, i, a, b, o: torch.bucketize(a, torch.tensor([-7, 0, 0, 9])),
        "bucketize_right": lambda x, i, a, b, o: torch.bucketize(a, torch.tensor([-7, 0, 0, 9]), right=True), "searchsorted": lambda x, i, a, b, o: torch.searchsorted(x.sort(-1)[0], x[:, :, :, :2].contiguous()),
        "mean_into": lambda x, i, a, b, o: x.scatter_reduce(3, i, x, "mean"), "mean_alone": lambda x, i, a, b, o: x.scatter_reduce(3, i, x * 2, "mean", include_self=False),
        "largest_alone": lambda x, i, a, b, o: x.scatter_reduce(3, i, x - 9, "amax", include_self=False), "sum_alone": lambda x, i, a, b, o: i.scatter_reduce(3, i, i, "sum", include_self=False),
        "cdist": lambda x, i, a, b, o: torch.cdist(x, x.flip(2)), "cdist_1": lambda x, i, a, b, o: torch.cdist(x, x[:, :1], p=1.0), "triangle": lambda x, i, a, b, o: x[0, 0][torch.tril_indices(5, 8, -1).unbind()],
        "triangle_up": lambda x, i, a, b, o: torch.triu_indices(3, 4, 1),
    }),
    "bags": ((_random(9, 4), _ints(9, 3, 5), _ints(9, 11), torch.tensor([0, 4, 4, 9])), {
        **{mode: lambda w, i, f, o, mode=mode: F.embedding_bag(i, w, mode=mode) for mode in ("sum", "mean", "max")},
        **{f"{mode}_offsets": lambda w, i, f, o, mode=mode: F.embedding_bag(f, w, o, mode=mode) for mode in ("sum", "mean", "max")},
        "last": lambda w, i, f, o: F.embedding_bag(f[:9], w, o, include_last_offset=True), "shares": lambda w, i, f, o: F.embedding_bag(i, w, per_sample_weights=i * 0.5, mode="sum"),
        **{f"{mode}_padding": lambda w, i, f, o, mode=mode: F.embedding_bag(i, w, mode=mode, padding_idx=3) for mode in ("sum", "mean", "max")},
    }),
    "grids": ((_random(2, 3, 5, 4), _random(2, 3, 7, 2), _random(1, 2, 4, 5, 3), _random(1, 2, 3, 2, 3)), {
        f"{mode}_{padding}_{align}": lambda x, g, v, h, mode=mode, padding=padding, align=align: F.grid_sample(x, g, mode, padding, align)
        for mode in ("bilinear", "nearest", "bicubic") for padding in ("zeros", "border", "reflection") for align in (False, True)
    } | {"volume": lambda x, g, v, h: F.grid_sample(v, h, align_corners=False), "volume_near": lambda x, g, v, h: F.grid_sample(v, h, "nearest", "border", True)}),
    "complex": ((_random(2, 3, 8), _random(2, 3, 8), _random(2, 6, 4, 3)), {
        "rotary": lambda x, y, m: _rotary(x), "product": lambda x, y, m: torch.view_as_real(torch.complex(x, y) * torch.complex(y, x)), "quotient": lambda x, y, m: (torch.complex(x, y) / torch.complex(y, x)).real,
        "scalar": lambda x, y, m: torch.view_as_real(torch.complex(x, y) * 2j - 1), "real_factor": lambda x, y, m: torch.view_as_real(torch.complex(x, y) * y + x), "by_real": lambda x, y, m: (torch.complex(x, y) / 3).imag,
        "exp": lambda x, y, m: torch.exp(1j * x).imag, "abs": lambda x, y, m: torch.complex(x, y).abs(), "angle": lambda x, y, m: torch.complex(x, y).angle(), "matmul": lambda x, y, m: (torch.complex(x, y) @ torch.complex(y, x).mT.conj()).imag,
        "moves": lambda x, y, m: torch.view_as_real(torch.cat([torch.complex(x, y), torch.complex(y, x)], 1)[:, 1:4].permute(2, 0, 1).flatten(1)), "assign": lambda x, y, m: _assigned_complex(x, y),
        "rfft": lambda x, y, m: torch.view_as_real(torch.fft.rfft(x)), "irfft": lambda x, y, m: torch.fft.irfft(torch.complex(x, y), n=13, norm="ortho"), "rfft2": lambda x, y, m: torch.fft.irfft2(torch.fft.rfft2(m, dim=(1, 2), norm="ortho") * 2, s=(6, 4), dim=(1, 2), norm="ortho"),
        "fftn": lambda x, y, m: torch.fft.fftn(m, dim=(-2, -1)).real, "ifft": lambda x, y, m: torch.fft.ifft(torch.complex(x, y), dim=1).imag, "stft": lambda x, y, m: torch.stft(m.reshape(2, -1), 16, 8, window=torch.hann_window(16), return_complex=True).abs(),
    }),
    "contractions": ((X, Y, SEQUENCE), {
        "mm": lambda x, y, s: x @ y.T, "bmm": lambda x, y, s: torch.bmm(s[0], s[1].mT), "matmul": lambda x, y, s: s @ s.mT, "matmul_2d": lambda x, y, s: s[..., :4] @ x.T,
        "matvec": lambda x, y, s: x @ y[0], "vecmat": lambda x, y, s: x[:, 0] @ y, "dot": lambda x, y, s: torch.dot(x[0], y[0]), "outer": lambda x, y, s: torch.outer(x[0], y[1]),
        "batch_vec": lambda x, y, s: s[..., :4] @ x[0], "addmm": lambda x, y, s: torch.addmm(y[0, :3], x, y.T), "addmm_scaled": lambda x, y, s: torch.addmm(x[:, :3], x, y.T, beta=0.5, alpha=2.0),
        "baddbmm": lambda x, y, s: torch.baddbmm(s[0, :, :1, :5], s[0], s[1].mT), "linear": lambda x, y, s: F.linear(s[..., :4], x, y[:, 0]), "linear_plain": lambda x, y, s: F.linear(x, y),
        "linear_vector": lambda x, y, s: F.linear(x[0], y, y[:, 0]), "addmv": lambda x, y, s: torch.addmv(x[:, 0], x, y[0]), "einsum": lambda x, y, s: torch.einsum("ij,kj->ik", x, y),
        "einsum_batch": lambda x, y, s: torch.einsum("bhtd,bhsd->bhts", s, s), "bilinear": lambda x, y, s: torch.einsum("bi,oi,bj->boj", x, y, y), "tensordot": lambda x, y, s: torch.tensordot(s, s, dims=([2, 3], [2, 3])),
        "dtype_mix": lambda x, y, s: x.double() @ y.double().T, "inner": lambda x, y, s: torch.inner(x, y),
    }),
    "convolutions": ((IMAGE, LINE, VOLUME, _random(6, 4, 3, 3), _random(6), _random(4, 3, 3, 2), _random(8, 1, 3, 3), _random(5, 4, 3)), {
        "conv2d": lambda m, l, v, w, b, wt, wd, w1: F.conv2d(m, w, b, padding=1), "conv2d_stride": lambda m, l, v, w, b, wt, wd, w1: F.conv2d(m, w, None, (2, 1), (1, 2), (1, 2)),
        "conv2d_same": lambda m, l, v, w, b, wt, wd, w1: F.conv2d(m, w, b, padding="same"), "depthwise": lambda m, l, v, w, b, wt, wd, w1: F.conv2d(m, wd, groups=4),
        "conv1d": lambda m, l, v, w, b, wt, wd, w1: F.conv1d(l, w1, stride=2), "conv3d": lambda m, l, v, w, b, wt, wd, w1: F.conv3d(v, torch.ones(3, 2, 2, 2, 2)), "unbatched": lambda m, l, v, w, b, wt, wd, w1: F.conv2d(m[0], w, b),
        "transposed": lambda m, l, v, w, b, wt, wd, w1: F.conv_transpose2d(m, wt, b[:3]), "transposed_stride": lambda m, l, v, w, b, wt, wd, w1: F.conv_transpose2d(m, wt, None, 2, 1, 1),
        "transposed_groups": lambda m, l, v, w, b, wt, wd, w1: F.conv_transpose2d(m, wt, None, (2, 3), (2, 0), 0, 2, (1, 2)), "transposed_cut": lambda m, l, v, w, b, wt, wd, w1: F.conv_transpose1d(l, w1[:4, :2], None, 1, 3),
        "max_pool2d": lambda m, l, v, w, b, wt, wd, w1: F.max_pool2d(m, 3, 2, 1), "max_pool_ceil": lambda m, l, v, w, b, wt, wd, w1: F.max_pool2d(m, 2, ceil_mode=True), "max_pool_dilated": lambda m, l, v, w, b, wt, wd, w1: F.max_pool2d(m, 2, 1, 0, 2),
        "max_pool1d": lambda m, l, v, w, b, wt, wd, w1: F.max_pool1d(l, 3), "max_pool3d": lambda m, l, v, w, b, wt, wd, w1: F.max_pool3d(v, 2), "avg_pool2d": lambda m, l, v, w, b, wt, wd, w1: F.avg_pool2d(m, (2, 3), (2, 2), (1, 1)),
        "avg_pool_inside": lambda m, l, v, w, b, wt, wd, w1: F.avg_pool2d(m, 3, 2, 1, count_include_pad=False), "avg_pool_ceil": lambda m, l, v, w, b, wt, wd, w1: F.avg_pool2d(m, 2, ceil_mode=True), "avg_pool_both": lambda m, l, v, w, b, wt, wd, w1: F.avg_pool2d(m, 4, 3, 1, ceil_mode=True),
        "avg_pool_divisor": lambda m, l, v, w, b, wt, wd, w1: F.avg_pool2d(m, 2, divisor_override=3), "avg_pool1d": lambda m, l, v, w, b, wt, wd, w1: F.avg_pool1d(l, 2), "adaptive_one": lambda m, l, v, w, b, wt, wd, w1: F.adaptive_avg_pool2d(m, 1),
        "adaptive_even": lambda m, l, v, w, b, wt, wd, w1: F.adaptive_avg_pool2d(m, (3, 3)), "adaptive_uneven": lambda m, l, v, w, b, wt, wd, w1: F.adaptive_avg_pool2d(m, (4, 5)), "adaptive_1d": lambda m, l, v, w, b, wt, wd, w1: F.adaptive_avg_pool1d(l, 4),
        "adaptive_none": lambda m, l, v, w, b, wt, wd, w1: F.adaptive_avg_pool2d(m, (None, 3)), "adaptive_max": lambda m, l, v, w, b, wt, wd, w1: F.adaptive_max_pool2d(m, (2, 3)), "nearest": lambda m, l, v, w, b, wt, wd, w1: F.interpolate(m, scale_factor=2),
        "nearest_size": lambda m, l, v, w, b, wt, wd, w1: F.interpolate(m, size=(8, 7)), "nearest_factor": lambda m, l, v, w, b, wt, wd, w1: F.interpolate(m, scale_factor=(1.5, 0.7)), "nearest_1d": lambda m, l, v, w, b, wt, wd, w1: F.interpolate(l, scale_factor=3.0),
        "bilinear": lambda m, l, v, w, b, wt, wd, w1: F.interpolate(m, size=(9, 5), mode="bilinear"), "bilinear_corners": lambda m, l, v, w, b, wt, wd, w1: F.interpolate(m, size=(9, 12), mode="bilinear", align_corners=True),
        "bilinear_factor": lambda m, l, v, w, b, wt, wd, w1: F.interpolate(m, scale_factor=2, mode="bilinear"), "linear_1d": lambda m, l, v, w, b, wt, wd, w1: F.interpolate(l, scale_factor=2, mode="linear"), "trilinear": lambda m, l, v, w, b, wt, wd, w1: F.interpolate(v, size=(3, 7, 6), mode="trilinear"),
    }),
    "windows": ((IMAGE, LINE, IMAGE.round()), {
        "adaptive_max": lambda m, l, r: F.adaptive_max_pool2d(m, (4, 5)), "adaptive_max_1d": lambda m, l, r: F.adaptive_max_pool1d(l, 4), "adaptive_max_index": lambda m, l, r: F.adaptive_max_pool2d(r, (2, 3), return_indices=True)[1],
        "index": lambda m, l, r: F.max_pool2d(r, 2, return_indices=True)[1], "index_overlap": lambda m, l, r: F.max_pool2d(r, 3, (2, 1), 1, (1, 2), True, return_indices=True)[1], "index_1d": lambda m, l, r: F.max_pool1d(l, 3, 2, 1, return_indices=True)[1],
        "unpool": lambda m, l, r: F.max_unpool2d(*F.max_pool2d(m, 2, return_indices=True), 2, output_size=(6, 9)), "unpool_1d": lambda m, l, r: F.max_unpool1d(*F.max_pool1d(l, 3, return_indices=True), 3),
        "antialias": lambda m, l, r: F.interpolate(m, size=(4, 4), mode="bilinear", antialias=True), "antialias_up": lambda m, l, r: F.interpolate(m, size=(7, 4), mode="bicubic", antialias=True), "antialias_corners": lambda m, l, r: F.interpolate(m, size=(3, 11), mode="bicubic", antialias=True, align_corners=True),
        "antialias_factor": lambda m, l, r: F.interpolate(m, scale_factor=(0.4, 1.7), mode="bilinear", antialias=True),
    }),
    "quantized": ((X, Y, torch.tensor([0.1, 0.02, 0.3]), torch.tensor([3, -5, 0], dtype=torch.int32)), {
        "tensor": lambda x, y, s, z: torch.fake_quantize_per_tensor_affine(x, 0.0173, 3, -20, 19), "tensor_scale": lambda x, y, s, z: torch.fake_quantize_per_tensor_affine(x, s[0], z[0], -128, 127),
        "channels": lambda x, y, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 0, -128, 127), "mask": lambda x, y, s, z: torch.ops.aten.fake_quantize_per_tensor_affine_cachemask(x, 0.01, 0, -20, 19)[1],
        "copysign": lambda x, y, s, z: torch.copysign(x, y), "copysign_zero": lambda x, y, s, z: torch.copysign(x, -x * 0), "copysign_scalar": lambda x, y, s, z: torch.copysign(x, -2.0), "signbit": lambda x, y, s, z: torch.signbit(x * 0), "signbit_int": lambda x, y, s, z: torch.signbit(z),
        "masked_scatter": lambda x, y, s, z: x.masked_scatter(x > 0, y), "masked_scatter_rows": lambda x, y, s, z: x.masked_scatter((s > 0.05)[:, None], y), "bilinear": lambda x, y, s, z: F.bilinear(x, y, torch.arange(32.0).reshape(2, 4, 4), s[:2]),
        "diagonal_scatter": lambda x, y, s, z: torch.diagonal_scatter(x, y[0, :3], 1), "diagonal_fill": lambda x, y, s, z: _diagonal(x),
    }),
    "norms": ((IMAGE, SEQUENCE, _random(4), _random(4).abs() + 0.5), {
        "layer_norm": lambda m, s, g, p: F.layer_norm(s, (8,)), "layer_norm_affine": lambda m, s, g, p: F.layer_norm(s[..., :4], (4,), g, p, 1e-3), "layer_norm_two": lambda m, s, g, p: F.layer_norm(s, (5, 8)),
        "layer_norm_gain": lambda m, s, g, p: F.layer_norm(s[..., :4], (4,), g), "rms_norm": lambda m, s, g, p: F.rms_norm(s[..., :4], (4,), g, 1e-6), "rms_norm_plain": lambda m, s, g, p: F.rms_norm(s, (8,)),
        "group_norm": lambda m, s, g, p: F.group_norm(m, 2, g, p), "group_norm_plain": lambda m, s, g, p: F.group_norm(m, 4), "batch_norm": lambda m, s, g, p: F.batch_norm(m, g, p, g, p), "batch_norm_plain": lambda m, s, g, p: F.batch_norm(m[:, :, 0], g, p),
        "batch_norm_own": lambda m, s, g, p: F.batch_norm(m, None, None, g, p, training=True), "instance_norm": lambda m, s, g, p: F.instance_norm(m, weight=g, bias=p), "local_response": lambda m, s, g, p: F.local_response_norm(m, 3),
    }),
    "attention": ((SEQUENCE, _random(2, 3, 7, 8), _ints(2, 2, 1, 5, 7).bool(), _random(5, 7), _random(2, 6, 5, 8)), {
        "plain": lambda q, k, b, f, g: F.scaled_dot_product_attention(q, k, k), "scale": lambda q, k, b, f, g: F.scaled_dot_product_attention(q, k, k, scale=0.3), "causal": lambda q, k, b, f, g: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        "causal_uneven": lambda q, k, b, f, g: F.scaled_dot_product_attention(q, k, k, is_causal=True), "bool_mask": lambda q, k, b, f, g: F.scaled_dot_product_attention(q, k, k, b), "empty_rows": lambda q, k, b, f, g: F.scaled_dot_product_attention(q, k, k, b & (f > 9)),
        "float_mask": lambda q, k, b, f, g: F.scaled_dot_product_attention(q, k, k, f), "tril_mask": lambda q, k, b, f, g: F.scaled_dot_product_attention(q, q, q, torch.ones(5, 5).tril().bool()), "three_axes": lambda q, k, b, f, g: F.scaled_dot_product_attention(q[0], k[0], k[0]),
        "grouped": lambda q, k, b, f, g: F.scaled_dot_product_attention(g, k, k, enable_gqa=True), "grouped_mask": lambda q, k, b, f, g: F.scaled_dot_product_attention(g, k, k, b, enable_gqa=True), "grouped_causal": lambda q, k, b, f, g: F.scaled_dot_product_attention(g, q, q, is_causal=True, enable_gqa=True),
        "hidden_rows": lambda q, k, b, f, g: F.scaled_dot_product_attention(q, k, k, f.masked_fill(f[:, :1] > 0, float("-inf"))), "hidden_by_sum": lambda q, k, b, f, g: F.scaled_dot_product_attention(q, k, k, torch.full((5, 7), -3e38) + torch.where(b[0, 0], 0.0, -3e38)),
    }),
}  # fmt: skip


def _rotary(x: Any) -> Any:
    """Rotary embedding as the first Llama had it: neighbours as complex numbers, turned by their position."""
    turns = torch.outer(torch.arange(3.0), 1.0 / 10.0 ** (torch.arange(4.0) / 4))
    pairs = torch.view_as_complex(x.float().reshape(2, 3, 4, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(turns), turns)).flatten(2).type_as(x)


def _assigned_complex(x: Any, y: Any) -> Any:
    z = torch.zeros(2, 3, 8, dtype=torch.complex64)
    z[:, 1:] = torch.complex(x, y)[:, :2]
    z[:, :, 0] = y[:, :, 0]
    return torch.view_as_real(z)


def _assigned(x: Any) -> Any:
    y = x.clone()
    y[:, 1:, ::2] = 0.0
    y[0, 0, 1] += 2.0
    return y


def _diagonal(x: Any) -> Any:
    y = x.clone()
    y.diagonal(-1).copy_(y[0, :2] * 3)
    return y


def _put_inner(x: Any) -> Any:
    y = x.clone()
    y[:, torch.tensor([1, -1])] = torch.arange(4.0)
    return y


def _masked_assign(x: Any) -> Any:
    y = x.clone()
    y[y > 0] = -1.0
    return y


CASES = [(family, case) for family, (_, cases) in FAMILIES.items() for case in cases]


@cache
def _family(name: str) -> dict[str, np.ndarray]:
    inputs, cases = FAMILIES[name]
    graph = load_module(lambda *xs: {case: f(*xs) for case, f in cases.items()}, inputs, name=name)
    assert list(graph.names) == list(cases)
    values = {leaf.attr("name"): to_numpy(v) for leaf, v in zip(graph.inputs, inputs, strict=True)}
    return dict(zip(graph.names, evaluate(graph, values), strict=True))


@pytest.mark.parametrize(("family", "case"), CASES, ids=[f"{f}-{c}" for f, c in CASES])
def test_overloads_match_eager(family: str, case: str) -> None:
    found = _family(family)[case]
    inputs, cases = FAMILIES[family]
    wanted = to_numpy(cases[case](*(v.clone() for v in inputs)))
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    kind = {"rtol": 2e-5, "atol": 2e-6} if wanted.dtype.kind == "f" else {"rtol": 0, "atol": 0}
    if wanted.dtype == np.float16:
        kind = {"rtol": 1e-3, "atol": 1e-3}
    np.testing.assert_allclose(found, wanted, **kind)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_one_size_are_reduced_along_an_axis(mode: str) -> None:
    """Indices with two axes: no table of places, which grows with indices times bags, and nothing to scatter."""
    inputs, _ = FAMILIES["bags"]
    graph = load_module(lambda w, i: F.embedding_bag(i, w, mode=mode), inputs[:2])
    assert not {"scatter_elements", "iota", "ge", "le"} & {n.op for n in graph.nodes()}


def test_the_table_names_real_overloads() -> None:
    assert len(TABLE) >= 130
    for name in [*TABLE, *IGNORED]:
        packet, _, overload = name.partition(".")
        assert hasattr(getattr(torch.ops.aten, packet), overload), name
