"""The ONNX operator registry, filled by importing the builder modules."""

from __future__ import annotations

from . import contract as onnx_contract
from . import control as onnx_control
from . import index as onnx_index
from . import layout as onnx_layout
from . import norm as onnx_norm
from . import pointwise as onnx_pointwise
from . import pool as onnx_pool
from . import reduce as onnx_reduce
from . import resize as onnx_resize
from . import rnn as onnx_rnn
from . import sample as onnx_sample
from . import sequence as onnx_sequence
from .node import OPERATORS

assert onnx_contract and onnx_control and onnx_index and onnx_layout and onnx_norm and onnx_pointwise
assert onnx_pool and onnx_reduce and onnx_resize and onnx_rnn and onnx_sample and onnx_sequence

__all__ = ["OPERATORS"]
