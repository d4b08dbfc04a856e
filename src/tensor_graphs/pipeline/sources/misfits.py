"""Names the operation of a graph that does not fit at some sizes of its free dimensions, and sizes at which it does.

An exporter that saw one example may write a size of it into the file (the shape of a reshape) and declare the dimension
free all the same. Such a graph exists at that size only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...egraph.ir.graph import Graph, bound_attrs
from ...egraph.ir.tensor import Tensor
from ...egraph.ops.ops import Type
from ...egraph.ops.type_laws import infer
from ...egraph.types.dims import bind, symbols
from ...errors import BadModelError, ShapeError, TensorGraphsError
from ...wording import spelled_values

TRIED = 64  # most sizes that are tried


def misfit(graph: Graph, sizes: Mapping[str, int], error: ShapeError) -> TensorGraphsError:
    """Error for a graph that cannot be bound to `sizes`, from the `error` that `Graph.bind` raised.

    BadModelError that names the node, if the graph is of a file with named nodes, else ShapeError. Its hint has a size
    of one dimension at which all operations fit, if one is found among the numbers in the operation's shapes. A size
    outside of its dimension's range fits nowhere: then it is `error` itself.
    """
    node = _first_misfit(graph, sizes)
    if node is None or any(not atom.min <= sizes[name] <= atom.max for name, atom in graph.free_dims.items()):
        return error
    found = next(
        (change for change in _tried(graph, node, sizes) if _first_misfit(graph, {**sizes, **change}) is None), {}
    )
    hint = "".join(
        f"it fits at {n}={s}, which is fixed in the model: optimize with --fix {n}={s} (fixed={{{n!r}: {s}}}), or give"
        f" --dim {n}={s}"
        for n, s in found.items()
    )
    label = _label(graph, node)
    if not label:
        return ShapeError(
            f"{error.message}, at {spelled_values(sizes)}", where=error.where, hint=hint, sizes=error.sizes
        )
    return BadModelError(f"{label}: {error.message}, at {spelled_values(sizes)}", where=graph.name, hint=hint)


def _first_misfit(graph: Graph, sizes: Mapping[str, int]) -> Tensor | None:
    """The first operation whose operands do not fit at some sizes; None if all fit."""
    types: dict[Tensor, Type] = {}
    for node in graph.nodes():
        try:
            if node.is_leaf:
                types[node] = Type(tuple(bind(d, sizes) for d in node.shape), node.dtype)
            else:
                types[node] = infer(node.entry, [types[a] for a in node.args], bound_attrs(node, sizes))
        except ShapeError:
            return node
    return None


def _tried(graph: Graph, node: Tensor, sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Sizes of one dimension each at which an operation may fit: numbers in its shapes, if in the dimension's range."""
    shapes = [node.shape, *(a.shape for a in node.args)]
    numbers = dict.fromkeys(d for shape in shapes for d in shape if isinstance(d, int) and d > 0)
    names = {n for shape in shapes for d in shape for n in symbols(d)}
    free = graph.free_dims
    changes = [
        {n: d} for n in sizes if n in names for d in numbers if free[n].min <= d <= free[n].max and d != sizes[n]
    ]
    yield from changes[:TRIED]


def _label(graph: Graph, node: Tensor) -> str:
    """Label of the file's node that an operation is part of; "" if the file names none."""
    inside = {node}
    for other in graph.nodes():
        if other is node or not inside.isdisjoint(other.args):
            if other in graph.labels:
                return graph.labels[other]
            inside.add(other)
    return ""


__all__ = ["misfit"]
