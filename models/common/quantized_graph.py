"""Quantization of a graph's weights: matrices of products become dequantized weights over packed params."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod, sqrt
from typing import Any

import numpy as np

from ...egraph.ir import dtypes
from ...egraph.ir.builders import cast, transpose
from ...egraph.ir.graph import Data, Graph, Tensor, load_data, make, rebuild
from ...errors import UnsupportedError, UsageError
from .packed_weight import LazyPart, PackedWeight
from .quantization import check_form, dequantized, encoded, group_of

Array = np.ndarray[Any, Any]
SAMPLE = 1 << 20  # numbers of a weight by which its error is judged
SMALLEST = 1 << 12  # numbers from which a weight is quantized
DESTROYED = 0.5  # relative error from which a weight stays as it is: its scales underflow in its dtype


@dataclass(frozen=True)
class Quantization:
    """Result of a quantization.

    weights: number of matrices · before, after: their bytes · error: relative error (Frobenius norm) of the quantized
    weights, over at most `SAMPLE` numbers of each · kept: weights of products that stay as they are.
    """

    form: str
    weights: int
    before: int
    after: int
    error: float
    kept: tuple[str, ...] = ()

    def __str__(self) -> str:
        kept = f", {len(self.kept)} kept" if self.kept else ""
        return f"{self.form}: {self.weights} weights{kept}, {self.before / 1e6:.1f} to {self.after / 1e6:.1f} MB, error of the weights {self.error:.1e}"


def quantized(graph: Graph, form: str, *, but: Sequence[Tensor] = ()) -> tuple[Graph, Quantization]:
    """Return the graph with the weights of matrix products in a form of `FORMS`, and what was done.

    A weight is a float param of rank 2 and at least `SMALLEST` numbers that only products read, as it is, transposed or cast. An
    embedding table that is the output matrix too keeps its dtype where rows are looked up.
    Products that values in `but` are (up to elementwise ops and views), such as logits, keep their weights, and so do
    weights that would lose half of their norm (`DESTROYED`). Packed params are `NAME.q` and
    `NAME.scale`, computed when they are loaded. UsageError for another form or a param without data, UnsupportedError if there
    is no weight.
    """
    check_form(form)
    found = _matrices(graph, but)
    looked_up = {n.args[0] for n in graph.nodes() if n.op == "gather"}
    made, params, kept, totals = dict[Tensor, Tensor](), dict(graph.params), list[str](), np.zeros(4)
    for leaf, by_rows in found.items():
        name = str(leaf.attr("name"))
        if name not in graph.params:
            raise UsageError(f"param {name!r} has no data to quantize", hint="bind it: params={name: array}")
        try:
            weight = packed_weight(graph.params[name], form, leaf.dtype, by_rows)
        except UnsupportedError:
            kept.append(name)
            continue
        wrong, size = _error(load_data(graph.params[name]), form, leaf.dtype, by_rows)
        if not wrong <= DESTROYED**2 * size:
            kept.append(name)
            continue
        if leaf not in looked_up:
            del params[name]
        params |= weight.params(name)
        made[leaf] = weight.tensor(name)
        after = sum(prod(d.shape) * dtypes.itemsize(dtypes.name_of(d.dtype)) for d in weight.parts.values())
        totals += np.array((leaf.type.nbytes, after, wrong, size))
    if not made:
        raise UnsupportedError(f"no weight can be quantized to {form}", where=graph.name,
                               hint=f"weights are float matrices of products, of at least {SMALLEST} numbers")  # fmt: skip
    roots = rebuild(graph.roots, lambda node, args: _replaced(node, args, made))
    error = sqrt(totals[2] / totals[3]) if totals[3] else 0.0
    done = Quantization(form, len(made), int(totals[0]), int(totals[1]), error, tuple(kept))
    return replace(graph.with_roots(roots), params=params), done


def _replaced(node: Tensor, args: tuple[Tensor, ...], made: Mapping[Tensor, Tensor]) -> Tensor | None:
    """A quantized weight in place of its leaf; rows that are looked up come from the leaf."""
    if node.op == "gather" and node.args[0] in made:
        return make(node.op, (node.args[0], *args[1:]), dict(node.attrs))
    return made.get(node)


def _matrices(graph: Graph, but: Sequence[Tensor]) -> dict[Tensor, bool]:
    """Leaf -> whether its rows are the products' columns ([outputs, inputs], as in `x @ w.T`), for weights to quantize."""
    readers: dict[Tensor, list[Tensor]] = {}
    for node in graph.nodes():
        for a in node.args:
            readers.setdefault(a, []).append(node)
    last = {n for root in but for n in _elementwise_below(root)}
    found: dict[Tensor, bool] = {}
    for leaf in graph.leaves("param"):
        if (
            leaf.rank != 2
            or not dtypes.is_float(leaf.dtype)
            or leaf.type.nbytes < SMALLEST * dtypes.itemsize(leaf.dtype)
        ):
            continue
        uses = [u for u in _uses(leaf, False, readers) if u[0].op != "gather" or u[1] is not leaf]
        products = all(n.op in ("matmul", "linear") and len(n.args) > 1 and n.args[1] is a for n, a, _ in uses)
        ways = {turned for *_, turned in uses}
        if uses and products and len(ways) == 1 and leaf not in graph.roots and not any(n in last for n, *_ in uses):
            found[leaf] = ways.pop()
    return found


def _uses(x: Tensor, turned: bool, readers: dict[Tensor, list[Tensor]]) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """(reader, operand, whether the operand is the transposed leaf) of all uses through casts and transpositions."""
    for reader in readers.get(x, ()):
        if reader.op == "cast" and dtypes.is_float(reader.dtype):
            yield from _uses(reader, turned, readers)
        elif reader.op == "permute" and reader.attr("perm") == (1, 0):
            yield from _uses(reader, not turned, readers)
        else:
            yield reader, x, turned


def _elementwise_below(root: Tensor) -> Iterator[Tensor]:
    """The nodes from an output down to and including the first one that is neither elementwise nor a view."""
    while root.entry.pointwise or root.entry.kind == "view":
        yield root
        root = root.args[0]
    yield root


def packed_weight(data: Data, form: str, dtype: str, by_rows: bool) -> PackedWeight:
    """A quantized weight of some float data: [outputs, inputs] if `by_rows`, else [inputs, outputs].

    UnsupportedError if the form does not fit the inputs.
    """
    shape = tuple(int(n) for n in data.shape)
    outputs, inputs = shape if by_rows else shape[::-1]
    scales = (outputs, inputs // group_of(form, inputs))
    if form in ("int4", "mxfp4") and inputs % 2:
        raise UnsupportedError(f"{inputs} numbers of 4 bits do not fill bytes")
    codes = (outputs, inputs // 2 if form in ("int4", "mxfp4") else inputs)
    parts: dict[str, Data] = {
        name: LazyPart(own, kind, (data,), partial(_encoded, form, dtype, by_rows, name))
        for name, own, kind in (("q", codes, "int8" if form == "int8" else "uint8"), ("scale", scales, dtype))
    }

    def build(leaf: Any) -> Tensor:
        whole = cast(dequantized(form, leaf["q"], leaf["scale"]), dtype)
        return whole if by_rows else transpose(whole)

    return PackedWeight(shape, dtype, form, parts, build)


def _encoded(form: str, dtype: str, by_rows: bool, part: str, weight: Array) -> Array:
    return encoded(weight if by_rows else weight.T, form, dtype)[part]


def _error(weight: Array, form: str, dtype: str, by_rows: bool) -> tuple[float, float]:
    """(squared error, squares) over evenly spaced rows of a weight, at most `SAMPLE` numbers."""
    rows = weight if by_rows else weight.T
    step = max(1, -(-rows.size // SAMPLE))
    some = np.asarray(rows[::step], np.float32)
    again = packed_weight(some, form, dtype, True).load().astype(np.float64)
    wide = some.astype(np.float64)
    return float(((again - wide) ** 2).sum()), float((wide**2).sum())


__all__ = ["Quantization", "packed_weight", "quantized"]
