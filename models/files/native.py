"""Reads and writes the project's own model format.

A safetensors file with the graph as JSON in its metadata, beside params and constants.

The metadata entry `tensor_graphs` is the graph as JSON (graph_json.py). Param data are the tensors `param/<name>`,
constants `constant/<node index>`. The file holds no code.
"""

from __future__ import annotations

import json
from pathlib import Path

from ...egraph.ir.graph import Graph
from ...errors import BadModelError, UsageError
from ...plain import strict_json
from ...wording import with_article
from .graph_json import graph_from_json, graph_to_json
from .safetensors import read_header, write_arrays

KEY = "tensor_graphs"


def save_graph(graph: Graph, path: Path | str) -> None:
    """Write a graph with the data of its params and constants, atomically.

    Params without data are written without data. Raises UnwritableError if the file cannot be written, UsageError for
    anything but a graph.
    """
    if not isinstance(graph, Graph):
        raise UsageError(f"{with_article(type(graph).__name__)} is no graph", hint="tg.Graph.of(expression) makes one")
    value, arrays = graph_to_json(graph)
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    write_arrays(path, arrays, {KEY: text, "format": "tensor_graphs"})


def load_graph(path: Path | str) -> Graph:
    """Return the graph of a file written by `save_graph`. Params are lazy.

    Raises BadWeightsError for a malformed safetensors file, BadModelError for a missing or malformed graph,
    TooLargeError for a value that exceeds the size limits.
    """
    file = read_header(path)
    if KEY not in file.metadata:
        raise BadModelError(
            "the file holds weights and no graph",
            where=str(path),
            hint="give the folder that has its config.json, or a file written by save_graph",
        )
    try:
        value = strict_json(file.metadata[KEY])
    except ValueError as problem:
        raise BadModelError(f"the graph is not valid JSON: {problem}", where=str(path)) from None
    return graph_from_json(value, file.tensors, str(path))
