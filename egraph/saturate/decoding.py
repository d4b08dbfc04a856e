"""Decodes the saturation engine's arrays to an e-graph (EGraphView)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..ir.tensor import Tensor
from ..ops.ops import Type
from ..view.saturation_report import SaturationReport
from ..view.view import EGraphView
from .engine import Arrays
from .language import signature
from .tables import LoweredGraph


def decode(lowered: LoweredGraph, dims: Sequence[tuple[int, ...]], names: Sequence[str], arrays: Arrays) -> EGraphView:
    """The saturated e-graph that the engine's arrays describe (`arrays`, `names`: what `Engine.view` returned; `dims`:
    size vectors by id).

    E-nodes without a known type or unreachable from the roots are dropped. E-classes are numbered breadth-first from
    the roots.
    """
    handle = dict(arrays["handle"].tolist())
    cls, off, child = (arrays[k].tolist() for k in ("cls", "off", "child"))
    shape, dtype = arrays["shape"].tolist(), arrays["dtype"].tolist()
    rows_of: dict[int, list[int]] = {}
    for row, c in enumerate(cls):
        if shape[c] >= 0 and all(shape[k] >= 0 for k in child[off[row] : off[row + 1]]):
            rows_of.setdefault(c, []).append(row)
    order, queue = _breadth_first([handle[r] for r in lowered.roots], rows_of, off, child)
    number = {c: i for i, c in enumerate(queue)}
    op, attrs, tensors = _operations(lowered, order, dims, names, arrays)
    reads = [[number[k] for k in child[off[r] : off[r + 1]]] for r in order]
    classes = {n: number[handle[i]] for i, n in enumerate(lowered.nodes[: lowered.own]) if handle[i] in number}
    written = {(n.op, n.attrs, *[classes[a] for a in n.args]) for n in classes if all(a in classes for a in n.args)}
    return EGraphView(
        op=op,
        attrs=attrs,
        cls=np.array([number[cls[r]] for r in order], np.int32),
        off=np.cumsum([0, *map(len, reads)]).astype(np.int32),
        child=np.array([k for row in reads for k in row], np.int32),
        types=[Type(dims[shape[c]], lowered.interner.decode("dtype", dtype[c])) for c in queue],
        weight=arrays["weight"][np.array(queue, np.int64)],
        roots=tuple(number[handle[r]] for r in lowered.roots),
        report=SaturationReport(),
        tensors=tensors,
        classes=classes,
        original_nodes=np.array([(o, a, *row) in written for o, a, row in zip(op, attrs, reads)], np.bool_),
        age=arrays["age"][np.array(queue, np.int64)],
    )


def _breadth_first(
    roots: Sequence[int], rows_of: Mapping[int, Sequence[int]], off: Sequence[int], child: Sequence[int]
) -> tuple[list[int], list[int]]:
    """(rows of e-nodes, e-classes) that the roots reach, breadth first; `off`, `child`: operand classes of each row."""
    queue = list(dict.fromkeys(roots))
    seen, order = set(queue), list[int]()
    for c in queue:  # grows during iteration
        for row in rows_of.get(c, ()):
            order.append(row)
            for k in child[off[row] : off[row + 1]]:
                if k not in seen:
                    seen.add(k)
                    queue.append(k)
    return order, queue


def _operations(
    lowered: LoweredGraph, order: Sequence[int], dims: Sequence[tuple[int, ...]], names: Sequence[str], arrays: Arrays
) -> tuple[list[str], list[Any], dict[int, Tensor]]:
    """(ops, attributes, leaf tensor by position) of the rows `order`."""
    ops, attr_off, attr = (arrays[k].tolist() for k in ("op", "attr_off", "attr"))
    op, attrs, tensors = list[str](), list[Any](), dict[int, Tensor]()
    letters = {name: signature(name).lstrip("T") for name in names if name != "Leaf"}
    for place, row in enumerate(order):
        name, values = names[ops[row]], attr[attr_off[row] : attr_off[row + 1]]
        if name == "Leaf":
            leaf = lowered.nodes[values[0]]
            tensors[place] = leaf
            op.append(leaf.op)
            attrs.append(leaf.attrs)
        else:
            full = [dims[v] if letter == "D" else v for letter, v in zip(letters[name], values)]
            op.append(name)
            attrs.append(lowered.decode(name, full))
    return op, attrs, tensors
