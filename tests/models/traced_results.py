"""Evaluates a traced NumPy function and compares the types of its results with NumPy's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.models.functions.trace import trace

Array = np.ndarray[Any, Any]


def results(function: Callable[..., Any], *arrays: Any) -> Iterator[tuple[Array, Array]]:
    """(result of the traced function, NumPy's result) for each output, of equal shape and dtype."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = function(*arrays)
        graph = trace(function, arrays)
        found = evaluate(graph, {str(n.attr("name")): a for n, a in zip(graph.inputs, arrays)})
    wanted = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
    for a, b in zip(found, map(np.asarray, wanted), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        yield a, b
