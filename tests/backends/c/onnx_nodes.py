"""Builds ONNX models of quantized operators node by node, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest


class OnnxNodes:
    """The nodes and constants (name -> TensorProto) of a model."""

    def __init__(self) -> None:
        self.onnx = pytest.importorskip("onnx")
        self.known: dict[str, Any] = {}
        self.nodes: list[Any] = []

    def constant(self, name: str, value: Any) -> str:
        """Add a constant; returns its name."""
        self.known[name] = self.onnx.numpy_helper.from_array(np.asarray(value), name)
        return name

    def add(self, op: str, names: list[str], out: str, **attrs: Any) -> str:
        """Add a node that reads the values `names`; returns the name of its result, `out`."""
        self.nodes.append(self.onnx.helper.make_node(op, names, [out], **attrs))
        return out

    def point(self, name: str, scale: float, zero: int) -> list[str]:
        """Add a scale and a uint8 zero point; returns their names."""
        return [self.constant(f"{name}_scale", np.float32(scale)), self.constant(f"{name}_zero", np.uint8(zero))]

    def save(self, path: Path, shapes: tuple[list[int], list[int]], opset: int) -> Path:
        """Write the model from the float32 input x to the output y; `shapes`: theirs."""
        helper = self.onnx.helper
        x, y = (helper.make_tensor_value_info(n, self.onnx.TensorProto.FLOAT, s) for n, s in zip("xy", shapes))
        graph = helper.make_graph(self.nodes, path.stem, [x], [y], list(self.known.values()))
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
        self.onnx.save(made, path)
        return path
