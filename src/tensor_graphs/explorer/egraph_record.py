"""Writes and parses the record `tensor_graphs` of an e-graph file: the algebraic e-graph as JSON, parsed with checks.

The file is untrusted input: sizes and indices are bounded, every e-node is type-checked against its e-class, and every
leaf must be one of the model beside the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..egraph.ir.graph import Graph
from ..egraph.ir.tensor import Tensor
from ..egraph.ops.ops import OPS, Type
from ..egraph.ops.type_laws import infer
from ..egraph.types import dtypes
from ..egraph.types.dims import concrete
from ..egraph.view.saturation_report import SaturationReport
from ..egraph.view.view import EGraphView
from ..errors import ExtractionError, ShapeError
from ..models.files.graph_json import attrs_from_json, attrs_to_json
from ..models.files.limits import check_size
from ..wording import spelled_values, with_article

KEY = "tensor_graphs"  # top-level key of the record
VERSION = 1
_MEMBERS = {
    "version": int,
    "model": dict,
    "backends": list,
    "classes": list,
    "nodes": list,
    "roots": list,
    "sources": dict,
}


def one_size(sizes: Mapping[str, int]) -> str:
    """Warning that an e-graph was made at one size of each free dimension, by name; "" if there are none."""
    if not sizes:
        return ""
    return f"the e-graph was made at {spelled_values(sizes)}: its program has these sizes only (`optimize` makes one for every size)"


def sizes_of(record: Mapping[str, Any], where: str) -> dict[str, int]:
    """Sizes, by name, of the model's free dimensions at which the e-graph of `record` was made; older files name none.

    Raises ExtractionError, which names the file by `where`, if they are malformed.
    """
    found = record.get("sizes", {})
    if not isinstance(found, Mapping):
        raise ExtractionError("sizes must be an object", where=where)
    return {str(n)[:80]: _whole(s, 1 << 62, "a size", f"{where}.sizes") for n, s in found.items()}


def view_to_json(view: EGraphView) -> dict[str, Any]:
    """The e-graph as JSON, which becomes part of a file's member `tensor_graphs`.

    `classes`: [dtype, shape, weight-only] of each e-class. `nodes`: [op, attributes, e-class, operand e-classes] of
    each e-node. `roots`: e-classes of the outputs. `own`: e-nodes of the original graph. `original`: e-classes with its
    values. `age`: round in which each e-class appeared. `own` and `age` are empty if unknown.
    """
    cls = view.cls.tolist()
    return {
        "classes": [[t.dtype, list(concrete(t.shape)), bool(w)] for t, w in zip(view.types, view.weight)],
        "nodes": [[op, attrs_to_json(op, view.attrs[i]), cls[i], view.children(i).tolist()] for i, op in enumerate(view.op)],
        "roots": list(view.roots), "own": [] if view.original_nodes is None else np.flatnonzero(view.original_nodes).tolist(),
        "original": np.flatnonzero(view.original_classes).tolist(),
        "age": [] if view.age is None else view.age.tolist(),
    }  # fmt: skip


def record_of(document: Mapping[str, Any], where: str) -> Mapping[str, Any] | None:
    """The member `tensor_graphs` (e-graph and model as JSON) of a parsed e-graph file; None if the file has none.

    Raises ExtractionError, which names the file by `where`, if it is malformed.
    """
    if KEY not in document:
        return None
    record = document[KEY]
    if not isinstance(record, Mapping):
        raise ExtractionError(f"{KEY} must be an object", where=where)
    if record.get("version") != VERSION:
        raise ExtractionError(
            f"version {str(record.get('version'))[:40]}, this reads {VERSION}", where=where, hint="saturate again"
        )
    for name, kind in _MEMBERS.items():
        if not isinstance(record.get(name), kind):
            raise ExtractionError(f"{name} must be {with_article(kind.__name__)}", where=where)
    return record


def view_from_json(record: Mapping[str, Any], saved: Graph, where: str) -> EGraphView:
    """The e-graph that `record`, a file's member `tensor_graphs`, describes, over the leaves of the model `saved`.

    Raises ExtractionError, which names the file by `where`, if the record is malformed.
    """
    types, weight = _types(record["classes"], where)
    leaves = {_leaf_key(t.op, t.attrs): t for t in saved.nodes() if t.is_leaf}
    leaves |= {_leaf_key(t.op, t.attrs): t for t in saved.inputs}
    ops: list[str] = []
    attrs: list[tuple[tuple[str, Any], ...]] = []
    owners: list[int] = []
    children: list[list[int]] = []
    tensors: dict[int, Tensor] = {}
    for i, row in enumerate(record["nodes"]):
        at = f"{where}.nodes[{i}]"
        op, values, owner, below = _row(row, (str, dict, int, list), at)
        ops.append(op)
        attrs.append(attrs_from_json(op, values, at))
        owners.append(_whole(owner, len(types), "a class", at))
        children.append([_whole(k, len(types), "a class", at) for k in below])
        if (leaf := _typed(op, attrs[-1], types[owner], [types[k] for k in below], leaves, at)) is not None:
            tensors[i] = leaf
    roots = tuple(_whole(r, len(types), "a root", where) for r in record["roots"])
    off = np.cumsum([0, *map(len, children)]).astype(np.int32)
    flat = np.array([k for row in children for k in row], np.int32)
    own = _flags(record, "own", len(ops), "an e-node", where)  # e-nodes of the original model
    # e-classes of the original model: some kernels are generated for these only
    original = _flags(record, "original", len(types), "a class", where)
    ages = record.get("age", [])
    if not isinstance(ages, list) or len(ages) not in (0, len(types)):
        raise ExtractionError(f"age must be a list of {len(types)} numbers", where=where)
    age = np.array([_whole(a, 1 << 31, "an iteration", f"{where}.age") for a in ages], np.int32) if ages else None
    return EGraphView(ops, attrs, np.array(owners, np.int32), off, flat, types, np.array(weight, np.bool_), roots,
                      SaturationReport(), tensors, {}, original, age, own)  # fmt: skip


def _types(rows: Sequence[Any], where: str) -> tuple[list[Type], list[bool]]:
    types, weight = [], []
    for i, row in enumerate(rows):
        place_ = f"{where}.classes[{i}]"
        dtype, shape, fixed = _row(row, (str, list, bool), place_)
        if dtype not in dtypes.DTYPES:
            raise ExtractionError(f"there is no dtype {dtype[:40]!r}", where=place_)
        types.append(Type(tuple(_whole(d, 1 << 62, "a size", place_) for d in shape), dtype))
        check_size(types[-1].shape, dtype, what="a class", where=place_)
        weight.append(fixed)
    return types, weight


def _flags(
    record: Mapping[str, Any], name: str, size: int, what: str, where: str
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Boolean array of length `size`, True at the indices in list `name` of the record (missing: none)."""
    found = np.zeros(size, np.bool_)
    if not isinstance(written := record.get(name, []), list):
        raise ExtractionError(f"{name} must be a list", where=where)
    found[[_whole(i, size, what, f"{where}.{name}") for i in written]] = True
    return found


def _typed(
    op: str, attrs: Sequence[tuple[str, Any]], owner: Type, below: list[Type], leaves: Mapping[tuple[str, str], Tensor],
    where: str,
) -> Tensor | None:  # fmt: skip
    """Type-check a node; return the model's leaf for a leaf node, else None.

    Raises ExtractionError if the types disagree.
    """
    try:
        found = infer(OPS[op], below, dict(attrs))
    except (ShapeError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ExtractionError(f"{op} does not fit its operands: {error}", where=where) from None
    if found != owner:
        raise ExtractionError(f"{op} is {found}, its class {owner}", where=where)
    if op not in ("input", "param", "state", "constant"):
        return None
    leaf = leaves.get(_leaf_key(op, attrs))
    if leaf is None or leaf.type != owner:
        raise ExtractionError(f"the model has no such {op}", where=where)
    return leaf


def _leaf_key(op: str, attrs: Sequence[tuple[str, Any]]) -> tuple[str, str]:
    named = dict(attrs)
    return op, str(named.get("name", named.get("digest", "")))


def _row(value: Any, kinds: tuple[type, ...], where: str) -> Any:
    if not isinstance(value, list) or [type(v) for v in value] != list(kinds):
        raise ExtractionError(f"expected a list of {', '.join(k.__name__ for k in kinds)}", where=where)
    return value


def _whole(value: Any, limit: int, what: str, where: str) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise ExtractionError(f"{what} is {str(value)[:40]!r}, not within 0..{limit - 1}", where=where)
    return value


__all__ = ["KEY", "VERSION", "one_size", "record_of", "sizes_of", "view_from_json", "view_to_json"]
