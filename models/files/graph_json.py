"""Graphs, dimensions and attributes of ops as JSON values, as the project's own model format has them.

Nodes are in topological order as [op, [operand indices], {attributes}], and the outputs, inputs, updates and structure
are node indices. Param data are the tensors `param/<name>`, constants `constant/<node index>`. Floats are stored as
strings (shortest exact form; inf, nan and -0.0 included), free dimensions as polynomials. Reading runs the same checks
as building a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...egraph.composites import composite_ops, quantized_ops, training_ops
from ...egraph.ir.file_array import FileArray
from ...egraph.ir.graph import Graph
from ...egraph.ir.structure import pack, unpack
from ...egraph.ir.tensor import Tensor, constant, make
from ...egraph.ir.weight_data import Data
from ...egraph.ops.ops import OPS
from ...egraph.types import dims, dtypes
from ...egraph.types.dims import Atom, Dim, DimExpr
from ...errors import BadModelError, ShapeError, TensorGraphsError, UsageError
from .limits import check_size

assert composite_ops and quantized_ops and training_ops  # importing registers the composite ops
VERSION = 1
_INT_LIMIT = 1 << 62
_MAX_TERMS = 1024  # limit on the terms of a dimension's sum, and on the factors of a product
_DEPTH = 64  # limit on the nesting of dimension expressions


# ---------------------------------------------------------------- encoding
def _dim_out(value: Dim) -> Any:
    if not isinstance(value, DimExpr):
        return int(value)
    return {"sum": [[factor, [_atom_out(a) for a in atoms]] for atoms, factor in value.terms]}


def _atom_out(atom: Atom) -> Any:
    if atom.op == "size":
        return {"size": atom.name, "min": atom.min, "max": atom.max}
    return {atom.op: [_dim_out(a) for a in atom.args]}


_ENCODE: dict[str, Callable[[Any], Any]] = {
    "int": _dim_out,
    "dims": lambda v: [_dim_out(d) for d in v],
    "float": lambda v: _dim_out(v) if isinstance(v, DimExpr) else v if isinstance(v, bool | int) else repr(float(v)),
    "bool": bool,
    "str": str,
    "dtype": str,
}


def _structure_out(value: Any) -> Any:
    try:
        return pack(value)
    except TypeError as error:
        raise UsageError(
            f"an output structure with {error} cannot be saved", hint="tuples, lists and dicts with str or int keys can"
        ) from None


def _type_out(node: Tensor) -> Any:
    return [node.dtype, [_dim_out(d) for d in node.shape]]


def graph_to_json(graph: Graph) -> tuple[dict[str, Any], dict[str, Data]]:
    """Return (graph as JSON values, data of its constants and params by tensor name)."""
    nodes = list(dict.fromkeys([*graph.nodes(), *graph.inputs]))  # unused inputs remain part of the signature
    number = {node: i for i, node in enumerate(nodes)}
    arrays: dict[str, Data] = {f"param/{name}": data for name, data in graph.params.items()}
    listed: list[list[Any]] = []
    for i, node in enumerate(nodes):
        if node.op == "constant":
            assert node.data is not None
            arrays[f"constant/{i}"] = node.data
            listed.append(["constant", [], {"tensor": f"constant/{i}"}])
            continue
        attrs = {k: _ENCODE[node.entry.attrs[k]](v) for k, v in node.attrs}
        listed.append([node.op, [number[a] for a in node.args], attrs])
    return {
        "version": VERSION,
        "name": graph.name,
        "nodes": listed,
        "inputs": [number[n] for n in graph.inputs],
        "outputs": [[name, number[n], _type_out(n)] for name, n in zip(graph.names, graph.outputs, strict=True)],
        "updates": [[name, number[n]] for name, n in graph.updates.items()],
        "structure": _structure_out(graph.structure),
    }, arrays


def dim_to_json(value: Dim) -> Any:
    """A dimension as JSON: an integer, or a polynomial for a symbolic dimension."""
    return _dim_out(value)


# ---------------------------------------------------------------- decoding
class _Bad(Exception):
    """Decoding error. `graph_from_json` and other callers turn it into a BadModelError with a location."""


def _need(value: Any, kind: type | tuple[type, ...], what: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _Bad(f"{what} is {str(value)[:80]!r}")
    return value


def _int_in(value: Any, what: str = "a number") -> int:
    number: int = _need(value, int, what)
    if abs(number) > _INT_LIMIT:
        raise _Bad(f"{what} is {number}, beyond 62 bits")
    return number


def _dim_in(value: Any, depth: int = 0) -> Dim:
    if isinstance(value, int) and not isinstance(value, bool):
        return _int_in(value, "a dimension")
    if depth > _DEPTH:
        raise _Bad("a dimension is nested too deeply")
    terms = _need(_need(value, dict, "a dimension").get("sum"), list, "a dimension's sum")
    total: Dim = 0
    for term in terms[: _MAX_TERMS + 1]:
        factor, atoms = _pair(term, "a dimension's term")
        product: Dim = _int_in(factor)
        if max(len(terms), len(_need(atoms, list, "a dimension's product"))) > _MAX_TERMS:
            raise _Bad(f"a dimension has more than {_MAX_TERMS} terms")
        for atom in atoms:
            product = product * _atom_in(_need(atom, dict, "a dimension's factor"), depth)
        total = total + product
    return total


def _atom_in(value: Mapping[str, Any], depth: int) -> Dim:
    if set(value) == {"size", "min", "max"}:
        name = _need(value["size"], str, "a dimension's name")
        return dims.dim(name, min=_int_in(value["min"]), max=_int_in(value["max"]))
    if len(value) == 1 and (op := next(iter(value))) in ("//", "%"):
        left, right = (_dim_in(v, depth + 1) for v in _pair(value[op], f"the operands of {op}"))
        if right == 0 or (not isinstance(left, DimExpr) and not isinstance(right, DimExpr)):
            raise _Bad(f"the dimension {left} {op} {right} is not in canonical form")
        return DimExpr((((Atom(op, args=(left, right)),), 1),))
    raise _Bad(f"a dimension's factor has the keys {sorted(value)}")


def _pair(value: Any, what: str) -> tuple[Any, Any]:
    if not isinstance(value, list) or len(value) != 2:
        raise _Bad(f"{what} is {str(value)[:80]!r}, not a pair")
    return value[0], value[1]


def _float_in(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, dict):  # a symbolic dimension used as a number
        return _dim_in(value)
    if isinstance(value, int):
        return _int_in(value)
    try:
        return float(_need(value, str, "a float"))
    except ValueError:
        raise _Bad(f"a float is {value[:80]!r}") from None


def _bool_in(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Bad(f"a truth value is {str(value)[:80]!r}")
    return value


def _dtype_in(value: Any) -> str:
    if value not in dtypes.DTYPES:
        raise _Bad(f"a dtype is {str(value)[:80]!r}")
    return str(value)


_DECODE: dict[str, Callable[[Any], Any]] = {
    "int": _dim_in,
    "dims": lambda v: tuple(_dim_in(d) for d in _need(v, list, "a list of dimensions")),
    "float": _float_in,
    "bool": _bool_in,
    "str": lambda v: _need(v, str, "a string"),
    "dtype": _dtype_in,
}


def _structure_in(value: Any, n_outputs: int) -> Any:
    try:
        return unpack(value, n_outputs)
    except ValueError as error:
        raise _Bad(str(error)) from None


class _Decoder:
    """Decoder of one file's node list. Nodes are built in file order."""

    def __init__(self, listed: list[Any], tensors: Mapping[str, FileArray | Tensor], where: str) -> None:
        self.tensors, self.where, self.built = tensors, where, list[Tensor]()
        unknown: dict[str, int] = {}
        for i, item in enumerate(listed):
            if not isinstance(item, list) or len(item) != 3 or not isinstance(item[0], str):
                raise _Bad(f"node {i} is not [op, operands, attributes]")
            if item[0] not in OPS:
                unknown[item[0][:80]] = unknown.get(item[0][:80], 0) + 1
        if unknown:
            raise _Bad("unknown ops: " + ", ".join(f"{op!r} ×{count}" for op, count in sorted(unknown.items())))
        for i, (op, operands, attrs) in enumerate(listed):
            try:
                self.built.append(self._node(op, operands, attrs))
            except (_Bad, ShapeError, ArithmeticError, LookupError, TypeError, ValueError) as problem:
                raise _Bad(f"node {i} ({op}): {problem}") from None

    def node(self, position: Any, what: str) -> Tensor:
        """Return the node at index `position`. Raises _Bad, which names `what`, if that node has not been built yet."""
        i = _int_in(position, what)
        if not 0 <= i < len(self.built):
            raise _Bad(f"{what} is node {i}, which is not there or comes later: a cycle or a wrong order")
        return self.built[i]

    def _node(self, op: str, operands: Any, attrs: Any) -> Tensor:
        args = [self.node(p, "an operand") for p in _need(operands, list, "the operands")]
        _need(attrs, dict, "the attributes")
        if op == "constant":
            if args or set(attrs) != {"tensor"} or attrs["tensor"] not in self.tensors:
                raise _Bad("a constant names one tensor of the file")
            held = self.tensors[attrs["tensor"]]
            found = held if isinstance(held, Tensor) else constant(held.load())
        else:
            kinds = OPS[op].attrs
            if set(attrs) != set(kinds):
                raise _Bad(f"it has the attributes {sorted(attrs)}, not {sorted(kinds)}")
            found = make(op, args, {k: _DECODE[kinds[k]](v) for k, v in attrs.items()})
        if any(isinstance(d, int) and d < 0 for d in found.shape):
            raise _Bad(f"a negative dimension in {found.type}")
        check_size(found.shape, found.dtype, what=f"{op}", where=self.where)
        return found


def graph_from_json(value: Any, tensors: Mapping[str, FileArray | Tensor], where: str = "") -> Graph:
    """The graph that the result of `graph_to_json` describes.

    `tensors`: the data of its constants, or constant leaves, by name. `where`: path for messages. Raises BadModelError
    for malformed input, and TooLargeError before anything is allocated.
    """
    try:
        return _graph_in(_need(value, dict, "the graph"), tensors, where)
    except (_Bad, RecursionError) as problem:
        raise BadModelError(f"the graph is malformed: {problem}", where=where) from None
    except TensorGraphsError as problem:
        problem.where = problem.where or where
        raise


def _graph_in(value: Mapping[str, Any], tensors: Mapping[str, FileArray | Tensor], where: str) -> Graph:
    if value.get("version") != VERSION:
        raise BadModelError(
            f"the graph has format version {str(value.get('version'))[:40]}, not {VERSION}",
            where=where,
            hint="it was written by another version of this program",
        )
    wanted = {"version", "name", "nodes", "inputs", "outputs", "updates", "structure"}
    if set(value) != wanted:
        raise _Bad(f"it has the keys {sorted(value)}, not {sorted(wanted)}")
    decoder = _Decoder(_need(value["nodes"], list, "nodes"), tensors, where)
    outputs, names = [], []
    for item in _need(value["outputs"], list, "outputs"):
        if not isinstance(item, list) or len(item) != 3:
            raise _Bad("an output is not [name, node, type]")
        names.append(_need(item[0], str, "an output's name"))
        outputs.append(decoder.node(item[1], f"output {item[0]!r}"))
        if item[2] != _type_out(outputs[-1]):
            raise _Bad(f"output {item[0]!r} is declared as {str(item[2])[:200]}, but has the type {outputs[-1].type}")
    if not outputs:
        raise _Bad("there is no output")
    return _assemble(value, decoder, outputs, names)


def _assemble(value: Mapping[str, Any], decoder: _Decoder, outputs: Sequence[Tensor], names: Sequence[str]) -> Graph:
    inputs = [decoder.node(i, "an input") for i in _need(value["inputs"], list, "inputs")]
    if any(n.op != "input" for n in inputs) or len(set(inputs)) != len(inputs):
        raise _Bad("the inputs are not distinct input nodes")
    updates: dict[str, Tensor] = {}
    for item in _need(value["updates"], list, "updates"):
        name, position = _pair(item, "an update")
        if _need(name, str, "an updated state") in updates:
            raise _Bad(f"state {name!r} is updated twice")
        updates[name] = decoder.node(position, f"the update of {name!r}")
    params: dict[str, Data] = {
        n.removeprefix("param/"): a
        for n, a in decoder.tensors.items()
        if n.startswith("param/") and not isinstance(a, Tensor)
    }
    graph = Graph(
        tuple(outputs),
        tuple(names),
        tuple(inputs),
        params,
        updates,
        _structure_in(value["structure"], len(outputs)),
        _need(value["name"], str, "the name"),
    )
    missing = [n for n in graph.leaves("input") if n not in set(inputs)]
    if missing:
        raise _Bad(f"input {missing[0].attr('name')!r} is used but not listed")
    try:
        graph.check()
    except ShapeError as problem:
        raise _Bad(problem.message) from None
    return graph


def dim_from_json(value: Any) -> Dim:
    """The dimension that JSON data describe, the inverse of `dim_to_json`. Raises BadModelError for malformed input."""
    try:
        return _dim_in(value)
    except (_Bad, RecursionError) as problem:
        raise BadModelError(f"a malformed size: {problem}") from None


def attrs_to_json(op: str, attrs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An op's attributes as JSON, as in the model file."""
    kinds = OPS[op].attrs
    return {k: _ENCODE[kinds[k]](v) for k, v in attrs}


def attrs_from_json(op: str, value: Any, where: str = "") -> tuple[tuple[str, Any], ...]:
    """An op's attributes in the op table's order, from JSON: the inverse of `attrs_to_json`.

    `where`: path for messages. Raises BadModelError for an unknown op or other attributes.
    """
    try:
        if _need(op, str, "an op") not in OPS:
            raise _Bad(f"there is no op {op[:80]!r}")
        kinds = OPS[op].attrs
        if set(_need(value, dict, "the attributes")) != set(kinds):
            raise _Bad(f"{op} has the attributes {sorted(kinds)}, not {sorted(map(str, value))[:20]}")
        return tuple((k, _DECODE[kind](value[k])) for k, kind in kinds.items())
    except (_Bad, RecursionError, OverflowError) as problem:
        raise BadModelError(f"malformed attributes: {problem}", where=where) from None
