"""Table of samplers, one for each type law (rule for an op's result type): from the wanted sizes of a result to types
of the operands (used by sample.py)."""

from __future__ import annotations

from .sample_contractions import attention, conv, dequantize, from_float8, linear, matmul, pool, unpack
from .sample_elementwise import along, norm, pointwise, reduce, rope, same
from .sample_parts import Handler
from .sample_views import broadcast_to, concat, cross_entropy, gather, leaf, pad, permute, reshape, slice_, windows

HANDLERS: dict[str, Handler] = {
    "from_float8": from_float8,
    "unpack": unpack,
    "dequantize": dequantize,
    "leaf": leaf,
    "pointwise": pointwise,
    "compare": pointwise,
    "where": pointwise,
    "cast": pointwise,
    "reduce": reduce,
    "arg_reduce": along,
    "along": along,
    "along_index": along,
    "matmul": matmul,
    "conv": conv,
    "pool": pool,
    "reshape": reshape,
    "permute": permute,
    "broadcast_to": broadcast_to,
    "slice": slice_,
    "concat": concat,
    "pad": pad,
    "windows": windows,
    "gather": gather,
    "gather_elements": gather,
    "scatter_elements": gather,
    "norm": norm,
    "channel_norm": norm,
    "linear": linear,
    "attention": attention,
    "rope": rope,
    "cross_entropy": cross_entropy,
    "same": same,
}
