"""Evaluates a graph node by node with NumPy, in the graph's dtypes or in float64 (reference interpreter).

In float64 mode every float value is float64 and float-to-float casts are identities: the result is the real-valued
meaning of the graph up to double rounding. Values are freed after their last use, weights are loaded on first use, and
large weight operands of matmuls are widened in chunks. Peak memory is therefore the largest set of live values, without
a second copy of any weight.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...errors import UsageError
from ..composites import quantized_ops, training_ops
from ..composites.composite import expand
from ..ir.graph import Graph
from ..ir.memo import memo
from ..ir.tensor import Tensor, make, topological
from ..ir.weight_data import Data, load_data
from ..types import dtypes

assert quantized_ops and training_ops  # registers the ops of quantized weights and of training steps
Array = np.ndarray[Any, Any]
Around = Callable[[Tensor, Sequence[Any], Callable[[Sequence[Any]], Any]], Any]


GRAPHS = 4  # graphs whose expanded forms are kept
NORMS = ("layer_norm", "rms_norm", "group_norm")


def expand_all(
    roots: Sequence[Tensor], *, wide_means: bool = False, only: Collection[str] | None = None
) -> list[Tensor]:
    """The roots with every composite op replaced by its decomposition into atomic ops (those without a decomposition);
    `only`: names of the ops to replace, if not all composites.

    `wide_means`: compute means of 16-bit floats and norms of float16 in float32, as libraries do, because sums of many
    elements and squares overflow in float16.
    """

    def replaced(node: Tensor) -> bool:
        return node.entry.composite and (only is None or node.op in only)

    if not any(map(replaced, topological(roots))):
        return list(roots)
    # memo; an expanded node maps to itself, so decompositions are traversed only down to their operands
    done: dict[Tensor, Tensor] = {}

    def walk(start: Sequence[Tensor]) -> None:
        for node in topological(start, done):
            if node in done:
                continue
            args = tuple([done[a] for a in node.args])
            same = all(a is b for a, b in zip(args, node.args))
            fresh = node if same else make(node.op, args, dict(node.attrs), data=node.data)
            if replaced(fresh):
                inner = _in_float32(fresh) if wide_means else expand(fresh)
                walk([inner])
                fresh = done[inner]
            done[node] = done[fresh] = fresh

    walk(list(roots))
    return [done[r] for r in roots]


def expanded(graph: Graph, *, wide_means: bool = False) -> Graph:
    """The graph with the roots that `expand_all` gives. Several stages of one optimization need them: they are kept
    until its end, for the last `GRAPHS` graphs."""
    return graph.with_roots(_expanded(graph.roots, wide_means))


@memo(GRAPHS)
def _expanded(roots: tuple[Tensor, ...], wide_means: bool) -> tuple[Tensor, ...]:
    return tuple(expand_all(roots, wide_means=wide_means))


def _in_float32(node: Tensor) -> Tensor:
    """Decomposition of a composite op; means of 16-bit floats and norms of float16 are computed in float32."""
    if not ((node.op == "mean" and node.dtype in dtypes.HALVES) or (node.op in NORMS and node.dtype == "float16")):
        return expand(node)
    args = [make("cast", (a,), {"dtype": "float32"}) if a.dtype in dtypes.HALVES else a for a in node.args]
    return make("cast", (make(node.op, args, dict(node.attrs)),), {"dtype": node.dtype})


def apply(
    node: Tensor, arrays: Sequence[Array], *, float64: bool = False, whole: bool = False, out: Array | None = None
) -> Array:  # fmt: skip
    """Value, on concrete operands, of one node whose op has no decomposition (an atomic op).

    With `float64`, all floats are float64 whatever the node's dtype. `whole`: compute every matmul in one call instead
    of chunks; chunking may change the last bit. `out`: one of `arrays` that takes the result (`_overwritten`). Raises
    UsageError for a leaf without data.
    """
    attrs = dict(node.attrs)
    function = node.entry.numpy
    if function is None:
        raise UsageError(f"{node.op} cannot be evaluated without data", hint="bind its data")
    if node.op == "matmul" and not whole:
        x, w = arrays
        wide = _widened_to(x, w, float64)
        if wide is not None:
            return _matmul_in_pieces(x, w, wide).astype(wide if float64 else x.dtype, copy=False)
    if not float64 and takes_wide_numbers(node):
        return _with_wide_numbers(node, arrays)
    if not float64:
        return np.asarray(function(attrs, *arrays))
    if "dtype" in attrs and dtypes.is_float(attrs["dtype"]):
        attrs["dtype"] = "float64"
    if node.op == "cast" and all(dtypes.is_float(d) for d in (attrs["dtype"], dtypes.name_of(arrays[0].dtype))):
        return arrays[0]
    if node.op in LAZY or node.entry.kind == "view":  # pure data movement: the data may stay narrow
        return np.asarray(function(attrs, *arrays))
    operands = [*map(_wide, arrays)]
    if out is None:
        return np.asarray(function(attrs, *operands))
    with np.errstate(all="ignore"):
        return np.asarray(IN_PLACE[node.op](*operands, out=out))


#: Ops whose float64 result may take the place of an operand, and arrays from which that pays: memory that was freed is
#: as slow to get again as three such operations (pages), and weights in few bits take several of them.
IN_PLACE: Mapping[str, Callable[..., Any]] = {"add": np.add, "mul": np.multiply, "sub": np.subtract}
LARGE_RESULT = 1 << 20  # bytes


#: Ops that only select elements: in float64 mode they keep narrow data, which is widened at its first arithmetic use.
LAZY = ("gather", "gather_elements")
CHUNK = 1 << 24  # bytes of one widened chunk of a matrix; larger matrices are widened chunk by chunk
PARTIAL = 1 << 26  # maximum bytes of partial results of such a product, and of a chunk beside them


def takes_wide_numbers(node: Tensor) -> bool:
    """Whether numbers among the node's operands are not rounded to its dtype: in products and quotients of 16-bit
    floats, which are computed in float32, as in PyTorch's kernels. `numbers_kept_wide` writes that into a graph."""
    return node.op in ("mul", "div") and node.dtype in dtypes.HALVES


def _with_wide_numbers(node: Tensor, arrays: Sequence[Array]) -> Array:
    """Value of a node for which `takes_wide_numbers` holds."""
    operands = [
        np.full(x.shape, a.attr("value"), np.float32) if a.op == "full" else x.astype(np.float32)
        for a, x in zip(node.args, arrays)
    ]
    assert node.entry.numpy is not None
    with np.errstate(all="ignore"):
        return np.asarray(node.entry.numpy({}, *operands)).astype(arrays[0].dtype)


def _wide(x: Array) -> Array:
    return x.astype(np.float64) if dtypes.is_float(dtypes.name_of(x.dtype)) and x.dtype != np.float64 else x


def _widened_to(x: Array, w: Array, float64: bool) -> type[np.floating[Any]] | None:
    """Compute dtype of a matmul with a large (stack of) weight matrix, if wider than the operands; otherwise None."""
    wide: type[np.floating[Any]] = np.float64 if float64 else np.float32
    narrow = w.dtype != wide and all(dtypes.is_float(dtypes.name_of(a.dtype)) for a in (x, w))
    halves = x.dtype.itemsize == 2  # also computed in float32 when evaluated in their own dtype
    stacked = w.ndim == 2 or (w.ndim > 2 and x.shape[:-2] == w.shape[:-2])
    large = w.size * np.dtype(wide).itemsize > CHUNK
    return wide if narrow and stacked and large and (float64 or halves) else None


def _matmul_in_pieces(x: Array, w: Array, wide: type[np.floating[Any]]) -> Array:
    """x @ w in a wider dtype, without a full widened copy of w: a sum over blocks of rows of each matrix.

    Rows, because blocks of columns were ten times as slow (BLAS on two busy cores). A block of w has as many bytes as
    the result, but at least CHUNK and at most PARTIAL.
    """
    inner, width = w.shape[-2:]
    out = np.zeros((*x.shape[:-1], width), wide)
    taken = max(1, PARTIAL // (out.itemsize * width))  # rows of x at a time
    count = max(CHUNK, min(PARTIAL, out.nbytes)) // (out.itemsize * width) or 1  # rows of w
    block = np.empty_like(w[(0,) * (w.ndim - 2)][:count], wide)  # same memory layout as w, so reads are contiguous
    for at in np.ndindex(w.shape[:-2]):  # () for a single matrix, which selects all of x
        rows, total = (a.reshape(-1, a.shape[-1]) for a in (x[at].astype(wide, copy=False), out[at]))
        for first in range(0, len(rows), taken):
            part = slice(first, first + taken)
            for start in range(0, inner, count):
                read = w[at][start : start + count]
                np.copyto(block[: len(read)], read, casting="unsafe")
                total[part] += np.matmul(rows[part, start : start + count], block[: len(read)])
    return out


def evaluate(
    graph: Graph | Sequence[Tensor],
    values: Mapping[str, Any],
    *,
    params: Mapping[str, Data] | None = None,
    float64: bool = False,
    whole: bool = False,
    poll: Callable[[], object] = lambda: None,
    around: Around | None = None,
) -> list[Array]:
    """Values of the roots (outputs, then state updates).

    `values` maps input and state names to arrays; `params`: data of weights by name, which take precedence over the
    graph's. `float64`: all floats are float64 whatever the nodes' dtypes. `whole`: compute every matmul in one call
    instead of chunks. `poll` is called before each operation; an exception from it ends the run. `around(node,
    operands, compute)`, if given, computes each operation in place of `apply`. Raises UsageError for leaves without
    data.
    """
    data: dict[str, Data] = dict(graph.params) if isinstance(graph, Graph) else {}
    data |= dict(params or {})
    roots = expanded(graph).roots if isinstance(graph, Graph) else expand_all(list(graph))
    order = topological(roots)
    uses: dict[int, int] = {}
    for node in order:
        for a in node.args:
            uses[id(a)] = uses.get(id(a), 0) + 1
    for root in roots:
        uses[id(root)] = uses.get(id(root), 0) + 1
    live: dict[int, Array] = {}
    once = {n for n, count in uses.items() if count == 1} if float64 and around is None else set[int]()
    for node in order:
        poll()
        if node.is_leaf:
            live[id(node)] = _leaf(node, values, data)
        else:
            operands = [live[id(a)] for a in node.args]
            compute = partial(apply, node, float64=float64, whole=whole, out=_overwritten(node, operands, once))
            live[id(node)] = compute(operands) if around is None else around(node, operands, compute)
            del operands
        for a in node.args:
            uses[id(a)] -= 1
            if not uses[id(a)]:
                live.pop(id(a), None)
    return [_wide(live[id(r)]) if float64 else live[id(r)] for r in roots]


def _overwritten(node: Tensor, operands: Sequence[Array], once: Collection[int]) -> Array | None:
    """The operand whose memory the float64 result of a node may take: nothing else reads it, not even a view. None if
    there is none. `once`: ids of the nodes that have one consumer; roots count as consumed."""
    if node.op not in IN_PLACE or not once:
        return None
    shape = np.broadcast_shapes(*(x.shape for x in operands))
    for a, x in zip(node.args, operands, strict=True):
        fits = x.nbytes >= LARGE_RESULT and x.dtype == np.float64 and x.shape == shape and x.flags.writeable
        if fits and _is_private(a, once):
            return x
    return None


def _is_private(node: Tensor, once: Collection[int]) -> bool:
    """Whether the float64 value of a node is in memory that this node or one below it has allocated, and that only its
    one consumer can read. A reshape, and a cast between floats, may share the memory of its operand."""
    while id(node) in once and node.op in ("reshape", "cast"):
        if node.op == "cast" and not dtypes.is_float(node.args[0].dtype):
            return dtypes.is_float(node.dtype)
        node = node.args[0]
    return id(node) in once and node.op in IN_PLACE


def _leaf(node: Tensor, values: Mapping[str, Any], data: Mapping[str, Data]) -> Array:
    if node.op == "constant":
        assert node.data is not None
        array = node.data
    else:
        source = data if node.op == "param" else values
        name = node.attr("name")
        if name not in source:
            raise UsageError(f"no data for {node.op} {name!r} ({node.type})")
        array = load_data(source[name]) if node.op == "param" else np.asarray(source[name])
    if tuple(array.shape) != node.shape:
        raise UsageError(f"{node.attrs[0][1]!r} has shape {tuple(array.shape)}, not {node.shape}")
    return array
