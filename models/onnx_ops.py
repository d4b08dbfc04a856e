"""The ONNX operator registry, filled by importing the builder modules."""

from __future__ import annotations

from . import (
    onnx_contract,
    onnx_control,
    onnx_index,
    onnx_layout,
    onnx_norm,
    onnx_pointwise,
    onnx_pool,
    onnx_reduce,
    onnx_resize,
    onnx_rnn,
    onnx_sample,
    onnx_sequence,
)
from .onnx_node import OPERATORS

assert onnx_contract and onnx_control and onnx_index and onnx_layout and onnx_norm and onnx_pointwise
assert onnx_pool and onnx_reduce and onnx_resize and onnx_rnn and onnx_sample and onnx_sequence

__all__ = ["OPERATORS"]
