"""Registers ONNX operators: the functions that translate operators (`@operator` in the modules beside this one), and
elementwise ops of the op table by their ONNX names."""

from __future__ import annotations

from ...egraph.builders.elementwise_builders import elementwise
from ...egraph.composites import composite_ops
from ...egraph.ops.ops import OPS, Op
from . import attention as onnx_attention
from . import contract as onnx_contract
from . import control as onnx_control
from . import fourier as onnx_fourier
from . import index as onnx_index
from . import layout as onnx_layout
from . import microsoft_attention as onnx_microsoft_attention
from . import microsoft_fused as onnx_microsoft_fused
from . import microsoft_qlinear as onnx_microsoft_qlinear
from . import microsoft_quantized as onnx_microsoft_quantized
from . import norm as onnx_norm
from . import pointwise as onnx_pointwise
from . import pool as onnx_pool
from . import quantize as onnx_quantize
from . import reduce as onnx_reduce
from . import resize as onnx_resize
from . import rnn as onnx_rnn
from . import sample as onnx_sample
from . import sequence as onnx_sequence
from .node import OPERATORS, simple

assert composite_ops  # registers the composite ops
assert onnx_contract and onnx_control and onnx_fourier and onnx_index and onnx_layout and onnx_norm and onnx_pointwise
assert onnx_attention and onnx_microsoft_attention and onnx_microsoft_fused and onnx_microsoft_qlinear
assert onnx_microsoft_quantized
assert onnx_pool and onnx_quantize and onnx_reduce and onnx_resize and onnx_rnn and onnx_sample and onnx_sequence


def register_elementwise(op: Op) -> None:
    """Register translations of the ONNX operators in `op.onnx` that have none yet, if `op` is elementwise without
    attributes.

    Does nothing for other ops.
    """
    if op.law in ("pointwise", "compare") and not op.attrs:
        simple({name: elementwise(op.name) for name in op.onnx if name not in OPERATORS}, op.arity)


for _op in OPS.values():
    register_elementwise(_op)

__all__ = ["OPERATORS", "register_elementwise"]
