"""Collects type laws, in Python and for egglog side by side: rules for the shape and dtype of an op's result, given the
types of its operands.

The function `NAME` of a law computes a `Type` or raises ShapeError; `NAME_text` yields the same law as egglog text, as
one or more `LawCase`, for operands that are known to be valid. A test checks that both agree.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ShapeError
from ..types import dtypes
from .law_text import TypeLaw, same_text
from .laws_composite import (
    attention,
    attention_text,
    channel_norm,
    cross_entropy,
    cross_entropy_text,
    dequantize,
    dequantize_text,
    linear,
    linear_text,
    norm,
    quantize,
    quantize_text,
    recurrent,
    recurrent_text,
    rope,
    unpack,
    unpack_text,
)
from .laws_contraction import (
    conv,
    conv_text,
    integer_conv,
    integer_conv_text,
    integer_matmul,
    integer_matmul_text,
    matmul,
    matmul_text,
    pool,
    pool_text,
)
from .laws_elementwise import (
    along,
    along_index,
    along_index_text,
    arg_reduce,
    arg_reduce_text,
    cast,
    cast_text,
    compare,
    compare_text,
    from_float8,
    leaf,
    leaf_text,
    pointwise,
    pointwise_text,
    reduce,
    reduce_text,
    same,
    where,
    where_text,
)
from .laws_layout import (
    broadcast_to,
    concat,
    concat_text,
    gather,
    gather_elements,
    gather_elements_text,
    gather_text,
    pad,
    pad_text,
    permute,
    permute_text,
    requested_text,
    reshape,
    scatter_elements,
    slice_,
    slice_text,
    windows,
    windows_text,
)
from .laws_training import (
    attention_gradient,
    attention_statistics,
    attention_statistics_text,
    channel_norm_gradient,
    channel_statistic,
    channel_statistic_text,
    conv_input_gradient,
    conv_weight_gradient,
    embedding_gradient,
    group_gain_gradient,
    group_statistic,
    group_statistic_text,
    max_pool_gradient,
    norm_gradient,
    pool_indices,
    pool_indices_text,
    softmax_gradient,
)
from .ops import Attrs, Op, Type

#: Type laws by name.
LAWS: dict[str, TypeLaw] = {
    "leaf": TypeLaw(leaf, leaf_text),
    "pointwise": TypeLaw(pointwise, pointwise_text, keeps_rank=True),
    "compare": TypeLaw(compare, compare_text, keeps_rank=True),
    "where": TypeLaw(where, where_text, keeps_rank=True),
    "cast": TypeLaw(cast, cast_text, keeps_rank=True),
    "from_float8": TypeLaw(from_float8, cast_text, keeps_rank=True),
    "reduce": TypeLaw(reduce, reduce_text, keeps_rank=True),
    "arg_reduce": TypeLaw(arg_reduce, arg_reduce_text),
    "along": TypeLaw(along, same_text, 1, keeps_rank=True),
    "along_index": TypeLaw(along_index, along_index_text),
    "matmul": TypeLaw(matmul, matmul_text, 2),
    "conv": TypeLaw(conv, conv_text, 3),
    "integer_conv": TypeLaw(integer_conv, integer_conv_text, 3),
    "integer_matmul": TypeLaw(integer_matmul, integer_matmul_text, 2),
    "pool": TypeLaw(pool, pool_text, 3),
    "reshape": TypeLaw(reshape, requested_text),
    "permute": TypeLaw(permute, permute_text, keeps_rank=True),
    "broadcast_to": TypeLaw(broadcast_to, requested_text, keeps_rank=True),
    "slice": TypeLaw(slice_, slice_text, 1, keeps_rank=True),
    "concat": TypeLaw(concat, concat_text, 1, keeps_rank=True),
    "pad": TypeLaw(pad, pad_text, 1, keeps_rank=True),
    "windows": TypeLaw(windows, windows_text),
    "gather": TypeLaw(gather, gather_text),
    "gather_elements": TypeLaw(gather_elements, gather_elements_text),
    "scatter_elements": TypeLaw(scatter_elements, same_text),
    "norm": TypeLaw(norm, same_text, 1),
    "channel_norm": TypeLaw(channel_norm, same_text, 2),
    "linear": TypeLaw(linear, linear_text, 2),
    "attention": TypeLaw(attention, attention_text, 3),
    "rope": TypeLaw(rope, same_text, 1),
    "cross_entropy": TypeLaw(cross_entropy, cross_entropy_text),
    "recurrent": TypeLaw(recurrent, recurrent_text),
    "unpack": TypeLaw(unpack, unpack_text, 1, keeps_rank=True),
    "dequantize": TypeLaw(dequantize, dequantize_text, keeps_rank=True),
    "quantize": TypeLaw(quantize, quantize_text, keeps_rank=True),
    "same": TypeLaw(same, same_text, 1, keeps_rank=True),
    "conv_input_gradient": TypeLaw(conv_input_gradient, requested_text, 3),
    "conv_weight_gradient": TypeLaw(conv_weight_gradient, requested_text, 3),
    "norm_gradient": TypeLaw(norm_gradient, same_text, 1),
    "channel_norm_gradient": TypeLaw(channel_norm_gradient, same_text, 2),
    "channel_statistic": TypeLaw(channel_statistic, channel_statistic_text, 2),
    "group_statistic": TypeLaw(group_statistic, group_statistic_text, 2),
    "group_gain_gradient": TypeLaw(group_gain_gradient, channel_statistic_text, 2),
    "softmax_gradient": TypeLaw(softmax_gradient, same_text, 1, keeps_rank=True),
    "attention_statistics": TypeLaw(attention_statistics, attention_statistics_text, 3),
    "attention_gradient": TypeLaw(attention_gradient, same_text, 3),
    "pool_indices": TypeLaw(pool_indices, pool_indices_text, 3),
    "max_pool_gradient": TypeLaw(max_pool_gradient, requested_text, 3),
    "embedding_gradient": TypeLaw(embedding_gradient, requested_text),
}


def infer(op: Op, types: Sequence[Type], attrs: Attrs) -> Type:
    """Result type of an op. Raises ShapeError if the types do not fit the op, or a size would be negative."""
    if len(types) != op.arity:
        raise ShapeError(f"{op.name} takes {op.arity} operands, not {len(types)}")
    if op.floats_only and any(not dtypes.is_float(t.dtype) for t in types):
        raise ShapeError(f"{op.name} needs floating-point operands, not {', '.join(map(str, types))}")
    try:
        found = LAWS[op.law].infer(op, tuple(types), attrs)
        if any(isinstance(d, int) and d < 0 for d in found.shape):
            raise ShapeError(f"negative dimension in {found.shape}")
        return found
    except ShapeError as error:
        if not error.where:
            error.where = f"{op.name}({', '.join(map(str, types))}){dict(attrs) if attrs else ''}"
        raise


__all__ = ["LAWS", "infer"]
