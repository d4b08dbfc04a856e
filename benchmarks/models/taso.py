"""Imports the JSON graph listings of earlier tensor optimizers (TASO, Tensat), used as benchmark models.

A file is {"name", "nodes": [{"id", "op", "inputs", "shape", "params"}, …]} in topological order. Weights get random
data. The graph's outputs are the nodes without users (inputs and weights excepted); unused weights are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod, sqrt
from pathlib import Path
from typing import Any

from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.ir.weight_data import Data
from tensor_graphs.egraph.types.dims import concrete
from tensor_graphs.errors import BadModelError, ShapeError, UnsupportedError
from tensor_graphs.models.common.random_weights import RandomArray
from tensor_graphs.models.files.limits import check_size
from tensor_graphs.models.files.safetensors import read_json_file

_ACTIVATIONS: Mapping[Any, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x, 0: lambda x: x, "sigmoid": c.sigmoid, 1: c.sigmoid, "relu": c.relu, 2: c.relu,
    "tanh": t.tanh, 3: t.tanh,
}  # fmt: skip


def _pads(x: Tensor, kernel: tuple[int, ...], params: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the four pads of a 2-D window, equal on both sides as in TASO.

    'same' yields ceil(size / stride) output positions, 'valid' pads nothing.
    """
    if params["pad"] == "valid":
        return (0,) * 4
    sides = []
    for size, window, stride in zip(concrete(x.shape[2:]), kernel, params["stride"], strict=True):
        positions = -(-size // stride)
        sides.append((max((positions - 1) * stride + window - size, 0) + 1) // 2)
    return (*sides, *sides)


def _conv(x: Tensor, w: Tensor, params: Mapping[str, Any], shape: tuple[int, ...]) -> Tensor:
    pads = _pads(x, concrete(w.shape[2:]), params)
    return t.conv(x, w, strides=params["stride"], pads=pads, groups=params.get("groups", 1))


def _pool(build: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def apply(x: Tensor, params: Mapping[str, Any], shape: tuple[int, ...]) -> Tensor:
        kernel = tuple(params["kernel"])
        return build(x, kernel=kernel, strides=params["stride"], pads=_pads(x, kernel, params), dilations=(1, 1))

    return apply


#: Operator builders: op name -> function of (operands…, params, listed shape) that returns the value.
_OPS: Mapping[str, Callable[..., Tensor]] = {
    "relu": lambda x, p, s: c.relu(x),
    "sigmoid": lambda x, p, s: c.sigmoid(x),
    "tanh": lambda x, p, s: t.tanh(x),
    "dropout": lambda x, p, s: x,  # the identity at inference
    "matmul": lambda a, b, p, s: t.matmul(a, b),
    "ewadd": lambda a, b, p, s: t.add(a, b),
    "ewmul": lambda a, b, p, s: t.mul(a, b),
    "reshape": lambda x, p, s: t.reshape(x, s),
    "transpose": lambda x, p, s: t.permute(x, p["perm"]),
    "concat": lambda *a: t.concat(a[:-2], a[-2]["axis"]),
    "conv2d": _conv,
    "poolmax": _pool(c.max_pool),
    "poolavg": _pool(c.avg_pool),
}


def load_field_json(path: Path | str, *, seed: int = 0) -> Graph:
    """Return the graph of a JSON listing: float32, with random weights drawn from `seed`.

    Raises BadModelError for a malformed node, UnsupportedError for ops that cannot be imported.
    """
    path = Path(path)
    listing = read_json_file(path)
    nodes = listing.get("nodes")
    if not isinstance(nodes, list) or not all(isinstance(n, dict) for n in nodes):
        raise BadModelError("there is no list of nodes", where=str(path))
    unknown: dict[str, int] = {}
    for node in nodes:
        if node.get("op") not in (*_OPS, "input", "weight"):
            unknown[str(node.get("op"))] = unknown.get(str(node.get("op")), 0) + 1
    if unknown:
        raise UnsupportedError("ops without a builder", missing=unknown, where=str(path))
    built: dict[int, Tensor] = {}
    params: dict[str, Data] = {}
    for node in nodes:
        try:
            built[node["id"]] = _node(node, built, params, seed, str(path))
        except (ShapeError, LookupError, TypeError, ValueError) as problem:
            raise BadModelError(f"node {node.get('id')} ({node['op']}): {problem}", where=str(path)) from None
    used = {i for node in nodes for i in node["inputs"]}
    outputs = [built[n["id"]] for n in nodes if n["id"] not in used and n["op"] not in ("weight", "input")]
    inputs = [built[n["id"]] for n in nodes if n["op"] == "input"]
    live = {str(p.attr("name")) for p in Graph.of(outputs).leaves("param")}
    kept = {name: data for name, data in params.items() if name in live}
    return Graph.of(outputs, params=kept, inputs=inputs, name=str(listing.get("name", path.stem)))


def _node(
    node: Mapping[str, Any], built: Mapping[int, Tensor], params: dict[str, Data], seed: int, where: str
) -> Tensor:
    shape, name = tuple(int(d) for d in node["shape"]), f"{node['op']}{node['id']}"
    check_size(shape, "float32", what=f"node {node['id']}", where=where)
    if node["op"] == "input":
        return t.input(name, shape)
    if node["op"] == "weight":
        inputs = prod(shape[1:]) if len(shape) == 4 else shape[0] if len(shape) == 2 and shape[0] > 1 else 1
        params[name] = RandomArray(shape, "float32", 1 / sqrt(max(inputs, 1)), 0.0, seed, name)
        return t.param(name, shape)
    details = node.get("params", {})
    found = _OPS[node["op"]](*(built[i] for i in node["inputs"]), details, shape)
    found = _ACTIVATIONS[details.get("act", "none")](found)
    if found.shape != shape:
        raise ShapeError(f"it is listed with shape {shape}, its operands give {found.shape}")
    return found
