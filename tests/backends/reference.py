"""Float64 reference of a single kernel call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.types import dtypes
from tensor_graphs.extract.model.kernel import Call, Template
from tensor_graphs.extract.model.meaning import output_terms

Array = np.ndarray[Any, Any]
ROUNDED = ("to_float16", "to_bfloat16")  # ops that round to a dtype, which real numbers do not have


def expected(
    template: Template, call: Call, operands: Mapping[str, Array], output: int = 0, float64: bool = True
) -> Array:
    """The reference of the kernel's output with this number, in float64, or in the dtypes of the model. `ROUNDED`
    ops always have the latter: float64 stands for real numbers, which they keep."""
    root = output_terms(template, call)[output]
    float64 = float64 and root.op not in ROUNDED
    given = {
        leaf.attr("name"): operands[leaf.attr("name")].astype(dtypes.numpy_dtype(leaf.dtype), copy=False)
        for leaf in Graph.of(root).leaves("param")
    }
    return evaluate([root], {}, params=given, float64=float64)[0]
