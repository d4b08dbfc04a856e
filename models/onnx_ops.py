"""The table of ONNX operators: importing the modules below fills it. To add an operator, write a builder in one of them."""

from __future__ import annotations

from . import onnx_contract, onnx_index, onnx_layout, onnx_norm, onnx_pointwise, onnx_pool, onnx_reduce
from .onnx_node import OPERATORS

assert onnx_contract and onnx_index and onnx_layout and onnx_norm and onnx_pointwise and onnx_pool and onnx_reduce

__all__ = ["OPERATORS"]
