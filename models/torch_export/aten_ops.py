"""Registers ATen overloads: name -> function that builds its expression. New overloads are added here.

Such a function (builder) takes the overload's arguments in schema order, with tensors as tensor expressions, dtypes as
names and free sizes as dimension expressions. Device, layout and memory-format arguments are dropped before. Overloads
listed here are not decomposed when an exported program is imported, so composites stay composites.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.builders.elementwise_builders import elementwise, float_functions
from ...egraph.composites import composite_ops as c
from . import aten_activations as act
from . import aten_attention, aten_conv, aten_create, aten_index, aten_norm, aten_pool, aten_resample, aten_views
from . import aten_layout as layout
from . import aten_pointwise as p
from . import aten_reduce as r
from . import aten_search as search
from .aten_backward import BACKWARD
from .aten_norm_backward import NORM_BACKWARD
from .aten_recurrent import RECURRENT
from .aten_training import TRAINING

Builder = Callable[..., Any]


def _overloads(table: Mapping[str, Builder]) -> dict[str, Builder]:
    """Expand the table's keys: 'add.Tensor Scalar' stands for add.Tensor and add.Scalar; no dot means `default`."""
    found: dict[str, Builder] = {}
    for names, builder in table.items():
        op, _, overloads = names.partition(".")
        for overload in overloads.split() or ["default"]:
            found[f"{op}.{overload}"] = builder
    return found


_ARITHMETIC: dict[str, Builder] = {
    "add.Tensor Scalar": p.add,
    "sub.Tensor Scalar": p.sub,
    "rsub.Scalar Tensor": p.rsub,
    "mul.Tensor Scalar": p.product,
    "div.Tensor Scalar Tensor_mode Scalar_mode": p.div,
    "true_divide.Tensor": p.div,
    "floor_divide.default Scalar": lambda x, y: p.div(x, y, "floor"),
    "remainder.Tensor Scalar Scalar_Tensor": p.binary(t.mod),
    "fmod.Tensor Scalar": p.fmod,
    "pow.Tensor_Tensor Tensor_Scalar Scalar": p.power,
    "maximum": p.binary(t.maximum),
    "minimum": p.binary(t.minimum),
    "fmax": p.fmax,
    "fmin": p.fmin,
    "atan2": p.atan2,
    "copysign.Tensor Scalar": p.copysign,
    "hypot": p.hypot,
    "ldexp.Tensor": p.ldexp,
    "xlogy.Tensor Scalar_Other Scalar_Self": p.xlogy,
    "addcmul": p.addcmul,
    "addcdiv": p.addcdiv,
    "lerp.Scalar Tensor": p.lerp,
    "clamp.default Tensor": p.clamp,
    "clamp_min.default Tensor": p.clamp,
    "clamp_max.default Tensor": p.clamp_max,
    "eq.Tensor Scalar": p.binary(t.eq),
    "ne.Tensor Scalar": p.binary(t.ne),
    "lt.Tensor Scalar": p.binary(t.lt),
    "le.Tensor Scalar": p.binary(t.le),
    "gt.Tensor Scalar": p.binary(t.gt),
    "ge.Tensor Scalar": p.binary(t.ge),
    "logical_and": p.logical(t.logical_and),
    "logical_or": p.logical(t.logical_or),
    "logical_xor": p.logical(t.logical_xor),
    "logical_not": t.logical_not,
    "bitwise_and.Tensor Scalar": p.binary(t.logical_and),
    "bitwise_or.Tensor Scalar": p.binary(t.logical_or),
    "bitwise_xor.Tensor Scalar": p.binary(t.logical_xor),
    "bitwise_not": p.bitwise_not,
    **dict.fromkeys(("__lshift__.Scalar Tensor", "bitwise_left_shift.Tensor Tensor_Scalar"), p.shift(True)),
    **dict.fromkeys(("__rshift__.Scalar Tensor", "bitwise_right_shift.Tensor Tensor_Scalar"), p.shift(False)),
    "where.self ScalarOther ScalarSelf Scalar": p.where,
    "masked_fill.Scalar Tensor": p.masked_fill,
    "isnan": p.is_nan,
    "isinf": p.is_inf,
    "isfinite": p.is_finite,
    "nan_to_num": p.nan_to_num,
}

_FUNCTIONS: dict[str, Builder] = {
    "neg": t.neg,
    "abs": t.abs,
    **dict.fromkeys(("sign", "sgn"), p.sign),
    "signbit": p.signbit,
    "square": t.square,
    **{name: p.floating(elementwise(op.name)) for op in float_functions() for name in op.aten},
    "log2": p.scaled_log(2.0),
    "log10": p.scaled_log(10.0),
    **{name: p.floating(build) for name, build in p.IDENTITIES.items()},
    "floor": p.whole(t.floor),
    "ceil": p.whole(t.ceil),
    "round": p.whole(t.round),
    "round.decimals": p.round_decimals,
    "trunc": p.trunc,
    "relu": lambda x: p.clamp(x, 0),
    "relu6": lambda x: p.clamp(x, 0, 6),
    "hardtanh": lambda x, lo=-1, hi=1: p.clamp(x, lo, hi),
    "gelu": act.gelu,
    "softplus": act.softplus,
    "elu": act.elu,
    "celu": act.celu,
    "selu": act.selu,
    "leaky_relu": lambda x, slope=0.01: c.leaky_relu(x, alpha=float(slope)),
    "hardsigmoid": lambda x: c.hard_sigmoid(x),
    "log_sigmoid": act.log_sigmoid,
    "log_sigmoid_forward": act.log_sigmoid_forward,
    "prelu": act.prelu,
    "_prelu_kernel": act.prelu,
    "threshold": act.threshold,
    "glu": act.glu,
    "softshrink": act.softshrink,
    "hardshrink": act.hardshrink,
    "fake_quantize_per_tensor_affine.default tensor_qparams": lambda *args: p.fake_quantize(*args)[0],
    "fake_quantize_per_tensor_affine_cachemask": p.fake_quantize,
    "fake_quantize_per_channel_affine": lambda *args: p.fake_quantize_channels(*args)[0],
    "fake_quantize_per_channel_affine_cachemask": p.fake_quantize_channels,
    "dropout": act.dropout,
    "native_dropout": act.native_dropout,
}  # fmt: skip

_CREATION: dict[str, Builder] = {
    "full": aten_create.full,
    "zeros": aten_create.filled(0),
    "ones": aten_create.filled(1),
    "empty.memory_format": aten_create.filled(0),
    "full_like": aten_create.full_like,
    "zeros_like": aten_create.filled_like(0),
    "ones_like": aten_create.filled_like(1),
    "empty_like": aten_create.filled_like(0),
    "new_full": aten_create.new_full,
    "new_zeros": aten_create.new_filled(0),
    "new_ones": aten_create.new_filled(1),
    "new_empty": aten_create.new_filled(0),
    "fill.Scalar Tensor": aten_create.fill,
    "scalar_tensor": aten_create.scalar_tensor,
    "arange": aten_create.arange_end,
    "arange.start": aten_create.arange,
    "arange.start_step": aten_create.arange,
    "linspace": aten_create.linspace,
    "eye": aten_create.eye,
    "eye.m": aten_create.eye,
    "tril": aten_create.tril,
    "triu": aten_create.triu,
    "tril_indices": aten_create.triangle(np.tril_indices),
    "triu_indices": aten_create.triangle(np.triu_indices),
}

_VIEWS: dict[str, Builder] = {
    "_to_copy": aten_create.to_copy,
    "to.dtype": lambda x, dtype, *_: aten_create.to_copy(x, dtype),
    "to.dtype_layout": aten_create.to_copy,
    "to.device": lambda x, device, dtype, *_: aten_create.to_copy(x, dtype),
    "type_as": lambda x, other: t.cast(x, other.dtype),
    "expand_as": lambda x, other: t.broadcast_to(x, other.shape),
    **dict.fromkeys(("view_as", "reshape_as"), lambda x, other: t.reshape(x, other.shape)),
    "mT": t.transpose,
    "numpy_T": lambda x: t.permute(x, tuple(reversed(range(x.rank)))),
    "copy": aten_create.copy,
    **dict.fromkeys(("clone", "contiguous", "detach", "alias", "lift_fresh", "lift_fresh_copy", "detach_", "detach_copy",
                     "alias_copy"), aten_create.same),
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "view_copy", "_reshape_copy"), t.reshape),
    **dict.fromkeys(("unsqueeze", "unsqueeze_copy"), aten_views.unsqueeze),
    **dict.fromkeys(("squeeze.default dim dims", "squeeze_copy.default dim dims"), aten_views.squeeze),
    **dict.fromkeys(("permute", "permute_copy"), t.permute),
    **dict.fromkeys(("transpose.int", "transpose_copy.int"), aten_views.transpose),
    **dict.fromkeys(("t", "t_copy"), aten_views.t_),
    **dict.fromkeys(("expand", "expand_copy"), aten_views.expand),
    **dict.fromkeys(("slice.Tensor", "slice_copy.Tensor"), aten_views.slice_),
    **dict.fromkeys(("select.int", "select_copy.int"), aten_views.select),
    **dict.fromkeys(("narrow", "narrow_copy"), aten_views.narrow),
    **dict.fromkeys(("split.Tensor", "split_copy.Tensor", "split_with_sizes", "split_with_sizes_copy"), aten_views.split),
    "chunk": aten_views.chunk,
    **dict.fromkeys(("unbind.int", "unbind_copy.int"), aten_views.unbind),
    "flatten.using_ints": aten_views.flatten,
    **dict.fromkeys(("diagonal", "diagonal_copy"), aten_views.diagonal),
    **dict.fromkeys(("unfold", "unfold_copy"), aten_views.unfold),
    "pixel_shuffle": aten_views.pixel_shuffle,
    "pixel_unshuffle": aten_views.pixel_unshuffle,
}  # fmt: skip

_LAYOUT: dict[str, Builder] = {
    "cat": layout.cat,
    "stack": layout.stack,
    "repeat": layout.repeat,
    "repeat_interleave.self_int": layout.repeat_interleave,
    "roll": layout.roll,
    "flip": layout.flip,
    "constant_pad_nd": layout.constant_pad,
    **{f"reflection_pad{n}d": layout.edge_pad("reflect") for n in (1, 2, 3)},
    **{f"replication_pad{n}d": layout.edge_pad("edge") for n in (1, 2, 3)},
    "slice_scatter": layout.slice_scatter,
    "select_scatter": layout.select_scatter,
    "diagonal_scatter": aten_index.diagonal_scatter,
    "masked_scatter": aten_index.masked_scatter,
    "embedding": aten_index.embedding,
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), aten_index.embedding_bag),
    "index_select": aten_index.index_select,
    "gather": aten_index.gather,
    "scatter.src value": aten_index.scatter,
    "scatter.reduce value_reduce": lambda x, dim, index, source, *, reduce: aten_index.scatter(x, dim, index, source, reduce),
    "scatter_add": aten_index.scatter_add,
    "scatter_reduce.two": lambda x, dim, index, source, reduce, include_self=True: aten_index.scatter(
        x, dim, index, source, reduce, include_self),
    **dict.fromkeys(("index.Tensor", "_unsafe_index.Tensor"), aten_index.index),
    **dict.fromkeys(("index_put", "_unsafe_index_put"), aten_index.index_put),
    "index_add": aten_index.index_add,
    "index_copy": aten_index.index_copy,
    "index_fill.int_Scalar int_Tensor": aten_index.index_fill,
}  # fmt: skip

_REDUCTIONS: dict[str, Builder] = {
    "sum": r.sum_all,
    "sum.dim_IntList": r.sum_,
    "mean": r.mean_all,
    "mean.dim": r.mean,
    "prod": r.prod_all,
    "prod.dim_int": r.prod,
    "amax": r.over_axes(t.max),
    "amin": r.over_axes(t.min),
    "max": t.max,
    "min": t.min,
    "max.other": p.binary(t.maximum),
    "min.other": p.binary(t.minimum),
    "max.dim": r.extreme(t.max, t.argmax),
    "min.dim": r.extreme(t.min, t.argmin),
    "any": t.any,
    "any.dim dims": r.truth(t.any),
    "all": t.all,
    "all.dim dims": r.truth(t.all),
    "argmax": r.arg(t.argmax),
    "argmin": r.arg(t.argmin),
    "var": r.var_all,
    "var.dim": r.var_dim,
    "var.correction": r.var,
    "std": r.root(r.var_all),
    "std.dim": r.root(r.var_dim),
    "std.correction": r.root(r.var),
    "var_mean.correction": r.with_mean(r.var),
    "std_mean.correction": r.with_mean(r.root(r.var)),
    "logsumexp": r.logsumexp,
    "linalg_vector_norm": r.vector_norm,
    "norm.Scalar ScalarOpt_dim ScalarOpt_dim_dtype": r.norm,
    "cumsum": r.cumsum,
    "cumprod": r.cumprod,
    "logcumsumexp": r.logcumsumexp,
    "cummax": r.running_extreme(t.maximum),
    "cummin": r.running_extreme(t.minimum),
    "median.default dim": r.median,
    "kthvalue": r.kthvalue,
    "bucketize.Tensor": search.bucketize,
    "searchsorted.Tensor Scalar": search.searchsorted,
    "sort": r.sort,
    "sort.stable": r.sort_stable,
    "argsort": r.argsort,
    "topk": r.topk,
    **dict.fromkeys(("softmax.int", "_softmax"), r.softmax),
    **dict.fromkeys(("log_softmax.int", "_log_softmax"), r.log_softmax),
    "nll_loss_forward": r.nll_loss,
    "nll_loss2d_forward": r.nll_loss,
}

_CONTRACTIONS: dict[str, Builder] = {
    **dict.fromkeys(("mm", "bmm"), t.matmul),
    "matmul": r.matmul,
    "linear": r.linear,
    "bilinear": aten_conv.bilinear,
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), r.addmm),
    "mv": r.matvec,
    **dict.fromkeys(("dot", "vdot"), r.dot),
    "outer": r.outer,
    "addbmm": r.addbmm,
    "dist": r.dist,
    "_cdist_forward": r.cdist,
    "convolution": aten_conv.convolution,
    **{f"conv{n}d.default padding": aten_conv.conv for n in (1, 2, 3)},
    **{
        f"conv_transpose{n}d.{kind}": aten_conv.conv_transpose
        for n, kind in ((1, "default"), (2, "input"), (3, "input"))
    },
}

_LAYERS: dict[str, Builder] = {
    **{f"max_pool{n}d": aten_pool.max_pool(n) for n in (1, 2, 3)},
    **{f"max_pool{n}d_with_indices": aten_pool.max_pool_indices(n) for n in (1, 2, 3)},
    **{f"max_unpool{n}d": aten_pool.max_unpool(n) for n in (2, 3)},
    **{f"avg_pool{n}d": aten_pool.avg_pool(n) for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": aten_pool.adaptive_avg_pool(n) for n in (1, 2, 3)},
    **{f"_adaptive_avg_pool{n}d": aten_pool.adaptive_avg_pool(n) for n in (2, 3)},
    **{f"adaptive_max_pool{n}d": aten_pool.adaptive_max_pool(n) for n in (1, 2, 3)},
    "layer_norm": aten_norm.layer_norm,
    "native_layer_norm": aten_norm.native_layer_norm,
    "rms_norm": aten_norm.rms_norm,
    "_fused_rms_norm": aten_norm.fused_rms_norm,
    "group_norm": aten_norm.group_norm,
    "native_group_norm": aten_norm.native_group_norm,
    "batch_norm": aten_norm.batch_norm,
    "_native_batch_norm_legit_no_training": aten_norm.batch_norm_inference,
    "_native_batch_norm_legit_functional": aten_norm.batch_norm_functional,
    "_native_batch_norm_legit.no_stats": aten_norm.batch_norm_without_stats,
    "instance_norm": aten_norm.instance_norm,
    "scaled_dot_product_attention": aten_attention.attention,
    **{f"grid_sampler_{n}d": aten_resample.grid_sampler for n in (2, 3)},
    **{f"upsample_nearest{n}d.default vec": aten_resample.upsample_nearest for n in (1, 2, 3)},
    **{f"_upsample_nearest_exact{n}d.default vec": aten_resample.upsample_nearest_exact for n in (1, 2, 3)},
    **{
        f"upsample_{kind}.default vec": aten_resample.upsample_linear
        for kind in ("linear1d", "bilinear2d", "trilinear3d")
    },
    "_upsample_bilinear2d_aa.default vec": aten_resample.upsample_linear_aa,
    "_upsample_bicubic2d_aa.default vec": aten_resample.upsample_cubic_aa,
}

#: Overload name ("add.Tensor") -> builder.
TABLE: dict[str, Builder] = (
    RECURRENT
    | TRAINING
    | BACKWARD
    | NORM_BACKWARD
    | _overloads(_ARITHMETIC | _FUNCTIONS | _CREATION | _VIEWS | _LAYOUT | _REDUCTIONS | _CONTRACTIONS | _LAYERS)
)

#: Overloads that compute nothing: assertions and size constraints.
IGNORED: frozenset[str] = frozenset({
    "_assert_async.msg", "_assert_scalar.default", "_assert_tensor_metadata.default", "sym_constrain_range.default",
    "sym_constrain_range_for_size.default", "_functional_assert_async.msg", "_functional_assert_scalar.default",
})  # fmt: skip

__all__ = ["IGNORED", "TABLE", "Builder"]
