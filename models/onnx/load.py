"""ONNX importer: `load_onnx` reads a file, checks it, and builds a graph. Nothing in the file is executed.

Order of steps: file size; parsing without external data; unsupported operators, dtypes and versions, all reported at
once; structure (undefined names, cycles, duplicates); the ONNX checker; graph construction with our own shape
inference. ONNX's shape inference is not used: it is native code that crashes on some malformed attributes.

`python -m tensor_graphs.models.onnx.load` prints the table of supported operators.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ...egraph.ir import builders as t
from ...egraph.ir import dims as _dims
from ...egraph.ir import dtypes
from ...egraph.ir.dims import Dim
from ...egraph.ir.graph import Data, Graph, Tensor, load_data
from ...errors import BadModelError, TooLargeError, UnsupportedError, UsageError
from ...plain import file_identity, is_file
from ...processes.memory_limits import machine_memory
from ..common.module_paths import ModulePaths, path_of_onnx
from ..files.arrays import MappedArray
from ..files.inside import inside
from ..files.limits import check_count
from .masked import masked_value
from .node import ELEMENT_TYPES, Context, Listed, Node, Opaque, Result, SymbolicInts, Value, element_name
from .ops import OPERATORS
from .shapes import shape_value

#: Supported versions of the default operator set (first, last).
OPSETS = (13, 28)
#: Size limit of a protocol buffer; larger models keep their weights in external data files.
MAX_FILE_BYTES = 2**31 - 1
DATA_SIZES = "sizes that depend on values are not built: compute all cases and choose by Where"
#: Limit on the number of nodes after the model's local functions are inlined.
MAX_NODES = 1_000_000
#: Float initializers of at most this many elements become constants, larger ones params.
CONSTANT_ELEMENTS = 8
#: Integer initializers of at most this many elements become constants, so that shapes and indices are known at load
#: time.
CONSTANT_INTEGERS = 1 << 16


def load_onnx(
    path: str | os.PathLike[str], *, dims: Mapping[str, int] | None = None, max_bytes: int | None = None
) -> Graph:
    """Return the graph of an ONNX file. Named dimensions are free (`tg.dim`) unless `dims` gives their size.

    Float initializers with more than CONSTANT_ELEMENTS elements become params (lazy if stored as external data), others
    constants. `max_bytes` limits the size of any single value; the default is this machine's memory.

    Raises BadModelError for an invalid model, TooLargeError for a value above the limit, UnsupportedError listing every
    unsupported operator, dtype and version with counts, UsageError if `dims` names an unknown dimension.
    """
    file = Path(path)
    model = _parse(file)
    model = _inline(model, file)
    missing = _unsupported(model)
    if missing:
        raise UnsupportedError("the model needs unsupported features", missing=missing, where=str(file),
                               hint="python -m tensor_graphs.models.onnx.load lists the supported operators")  # fmt: skip
    _check_structure(model.graph, set(), str(file))
    _check_with_onnx(model, file)
    loader = _Loader(file, Context(_opset(model), max_bytes or machine_memory()), _named_sizes(model.graph, dims, file))
    try:
        return loader.load(model)
    except (BadModelError, UnsupportedError) as error:
        error.where = error.where or str(file)
        raise


# ---------------------------------------------------------------- reading and checking
def short(name: object, limit: int = 80) -> str:
    """Return a name from a file for use in messages: quoted, escaped, truncated to `limit` characters."""
    text = str(name)
    return repr(text if len(text) <= limit else text[:limit] + "…")


def plain(name: str) -> str:
    """Return an operator name unchanged if it is a plain identifier; otherwise quoted, escaped and truncated."""
    return name if re.fullmatch(r"[A-Za-z0-9_.]{1,80}", str(name)) else short(name)


def _label(node: Any) -> str:
    return f"{plain(node.op_type)} {short(node.name or next(iter(node.output), ''))}"


def _parse(file: Path) -> Any:
    """Return the parsed ModelProto, without external data."""
    import onnx

    if not file.exists():
        raise BadModelError("there is no such file", where=str(file))
    if not file.is_file():
        raise BadModelError("an ONNX model is a file, this is not", where=str(file))
    size = file.stat().st_size
    if size == 0:
        raise BadModelError("the file is empty", where=str(file))
    if size > MAX_FILE_BYTES:
        raise TooLargeError(f"the file has {size} bytes, more than a protocol buffer can hold", where=str(file),
                            hint="save the model with external data")  # fmt: skip
    try:
        before = file_identity(file)
        model = onnx.load(str(file), load_external_data=False, format="protobuf")
        changed = file_identity(file) != before
    except Exception as error:  # the parser's exception types differ between protobuf versions
        raise BadModelError(f"not an ONNX file: {error}", where=str(file)) from error
    if changed:
        raise BadModelError("the file was replaced or written while it was read", where=str(file), hint="load it again")
    check_count(len(model.graph.node), where=str(file))
    if not model.graph.node and not model.graph.output:
        raise BadModelError("the file holds no graph", where=str(file), hint="is it an ONNX model?")
    _check_texts(model, str(file))
    return model


def _inline(model: Any, file: Path) -> Any:
    """Return the model with its local functions inlined. The resulting node count is checked first."""
    if not model.functions:
        return model
    import onnx.inliner

    bodies = {(f.domain, f.name): f for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(key: tuple[str, str], above: tuple[tuple[str, str], ...]) -> int:
        if key in above or len(above) > 200:
            raise BadModelError(f"function {short(key[1])} calls itself", where=str(file))
        if key not in sizes:
            sizes[key] = total(bodies[key].node, (*above, key))
        return sizes[key]

    def total(nodes: Iterable[Any], above: tuple[tuple[str, str], ...]) -> int:
        return sum(size(k, above) if (k := (n.domain, n.op_type)) in bodies else 1 for n in _all_nodes(nodes))

    count = total(model.graph.node, ())
    if count > MAX_NODES:
        raise TooLargeError(f"inlining the model's functions makes {count} nodes", where=str(file))
    try:
        return onnx.inliner.inline_local_functions(model)
    except (RuntimeError, ValueError) as error:
        raise BadModelError(f"the model's functions cannot be inlined: {error}", where=str(file)) from error


def _all_nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    """Iterate over nodes, including those of subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _all_nodes(attribute.g.node)


def _opset(model: Any) -> int:
    return max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)


def _unsupported(model: Any) -> dict[str, int]:
    """Count everything unsupported that can be found without building: opset versions, operators, dtypes."""
    found: Counter[str] = Counter()
    version = _opset(model)
    if not OPSETS[0] <= version <= OPSETS[1]:
        found[f"opset {version} (supported: {OPSETS[0]} to {OPSETS[1]})"] += 1
    for node in _all_nodes(model.graph.node):
        if node.domain not in ("", "ai.onnx"):
            found[plain(f"{node.domain}.{node.op_type}")] += 1
        elif node.op_type not in OPERATORS:
            found[plain(node.op_type)] += 1
    initial = {i.name for i in model.graph.initializer}
    for tensor in model.graph.initializer:
        _count_dtype(found, tensor.data_type)
    for info in model.graph.input:
        if not info.type.HasField("tensor_type"):
            found[f"input of kind {info.type.WhichOneof('value')}"] += 1
        elif info.name not in initial:
            _count_dtype(found, info.type.tensor_type.elem_type)
            if not info.type.tensor_type.HasField("shape"):
                found["input of unknown rank"] += 1
    if model.graph.sparse_initializer:
        found["sparse initializer"] += len(model.graph.sparse_initializer)
    return dict(found)


def _count_dtype(found: Counter[str], code: int) -> None:
    if code not in ELEMENT_TYPES:
        found[f"dtype {element_name(code)}"] += 1


def _check_structure(graph: Any, outer: set[str], where: str) -> None:
    """Raise BadModelError for values used before their definition (also cycles), undefined, or defined twice."""
    defined = {i.name for i in graph.input} | {i.name for i in graph.initializer}
    made = Counter(name for node in graph.node for name in node.output if name)
    for name in (*defined, *made, *(n for node in graph.node for n in (*node.input, node.op_type, node.name))):
        if not isinstance(name, str):  # protobuf returns bytes for text that is not UTF-8
            raise BadModelError(f"the name {short(name)} is not UTF-8", where=where)
    for name, times in made.items():
        if times > 1 or name in defined:
            raise BadModelError(f"the value {short(name)} is computed twice", where=where)
    seen = outer | defined
    for node in graph.node:
        for name in node.input:
            if name and name not in seen:
                why = (
                    "before it is computed (a cycle, or nodes out of order)" if name in made else "but nothing makes it"
                )
                raise BadModelError(f"{_label(node)} reads {short(name)} {why}", where=where)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _check_structure(attribute.g, seen, where)
        seen.update(node.output)
    for info in graph.output:
        if info.name not in seen:
            raise BadModelError(f"the output {short(info.name)} is not computed by any node", where=where)


def _check_with_onnx(model: Any, file: Path) -> None:
    """Run the ONNX checker on the file, by path, so that it checks external data without loading the data."""
    import onnx.checker

    for tensor in _tensors(model.graph):
        _check_tensor(tensor, file)
    unshaped = [
        o for o in model.graph.output if o.type.HasField("tensor_type") and not o.type.tensor_type.HasField("shape")
    ]
    try:
        onnx.checker.check_model(_shaped(model) if unshaped else str(file))
    except (onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        raise BadModelError(
            f"the ONNX checker refuses it: {' '.join(str(error).split())[:600]}", where=str(file)
        ) from error


def _shaped(model: Any) -> Any:
    """Return a copy for the checker, which rejects outputs without a shape.

    The outputs get an empty shape. References to external data, checked before, are removed.
    """
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for output in copy.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.shape.SetInParent()
    for tensor in _tensors(copy.graph):
        if tensor.data_location == tensor.EXTERNAL:
            del tensor.external_data[:], tensor.dims[:]
            tensor.data_location = tensor.DEFAULT
            tensor.dims.append(0)
    return copy


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for node in _all_nodes(graph.node):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from attribute.g.initializer


def _check_tensor(tensor: Any, file: Path) -> None:
    """Check a tensor's sizes arithmetically: negative, overflowing, or not matching the stored bytes."""
    where = f"{file}: tensor {short(tensor.name)}"
    if any(d < 0 for d in tensor.dims):
        raise BadModelError(f"negative dimension in {list(tensor.dims)}", where=where)
    kind = ELEMENT_TYPES.get(tensor.data_type)
    if kind is None:
        return
    size = prod(tensor.dims) * dtypes.itemsize(kind)
    if tensor.data_location == tensor.EXTERNAL:
        _external(tensor, size, file, where)
    elif tensor.HasField("raw_data"):
        if len(tensor.raw_data) != size:
            raise BadModelError(
                f"{list(tensor.dims)} of {kind} needs {size} bytes, there are {len(tensor.raw_data)}", where=where
            )
    elif size > 8 * tensor.ByteSize():  # protobuf packs a small integer into one byte at least
        raise BadModelError(f"{list(tensor.dims)} of {kind} needs {size} bytes, the tensor holds fewer", where=where)


def _held(tensor: Any, shape: tuple[int, ...], where: str) -> np.ndarray[Any, Any]:
    """Return the data of a tensor stored in the model file.

    Raises BadModelError if the count does not match the shape.
    """
    from onnx import numpy_helper

    try:
        found: np.ndarray[Any, Any] = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadModelError(f"the data of a tensor do not fit its type: {error}", where=where) from None
    if found.shape != shape:
        raise BadModelError(f"a tensor of shape {list(shape)} holds {list(found.shape)}", where=where)
    return found


def _check_texts(message: Any, where: str) -> None:
    """Raise BadModelError if a string field is not UTF-8 (protobuf then returns bytes)."""
    todo = [message]
    while todo:
        for kind, value in todo.pop().ListFields():
            if kind.type not in (kind.TYPE_MESSAGE, kind.TYPE_STRING):
                continue
            values = [value] if isinstance(value, str | bytes) or hasattr(value, "ListFields") else value
            if kind.type == kind.TYPE_MESSAGE:
                todo += values
            elif odd := [text for text in values if not isinstance(text, str)]:
                raise BadModelError(f"{kind.name} is no text in UTF-8: {short(odd[0])}", where=where)


def _external(tensor: Any, size: int, file: Path, where: str) -> tuple[Path, int, tuple[int, ...]]:
    """Return (path, offset, identity of the file now) of external data.

    The data must be in a regular file below the model's folder, reached without a link that leaves the folder.
    """
    entries = {e.key: e.value for e in tensor.external_data}
    location = PurePosixPath(entries.get("location", "").replace("\\", "/"))
    if not location.parts or location.is_absolute() or ".." in location.parts or ":" in location.parts[0]:
        raise BadModelError(f"external data at {short(location)} is outside the model's folder", where=where)
    try:
        target = inside(file.parent, location)
    except BadModelError as problem:
        raise BadModelError(f"external data at {short(location)} is reached through a symbolic link out of the folder", where=where,
                            hint="copy the data beside the model") from problem  # fmt: skip
    if not is_file(target):
        raise BadModelError(f"external data {short(location)} is missing", where=where)
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", size))
    except ValueError:
        raise BadModelError("offset or length of external data is not a number", where=where) from None
    identity = file_identity(target)
    if offset < 0 or length != size or offset + size > target.stat().st_size:
        raise BadModelError(
            f"external data {short(location)} does not hold {size} bytes at {offset} (length {length})", where=where
        )
    return target, offset, identity


# ---------------------------------------------------------------- dimensions
def _named_sizes(graph: Any, given: Mapping[str, int] | None, file: Path) -> dict[tuple[str, int], Dim]:
    """Return the size of each (input, axis): an int, or a free dimension with a name derived from the file's."""
    given = dict(given or {})
    weights = {i.name for i in graph.initializer}
    names: dict[str, str] = {}
    found: dict[tuple[str, int], Dim] = {}
    for info in graph.input:
        if info.name in weights:
            continue
        for axis, size in enumerate(info.type.tensor_type.shape.dim):
            if size.HasField("dim_value"):
                if size.dim_value < 0:
                    raise BadModelError(f"input {short(info.name)} has a negative size", where=str(file))
                found[info.name, axis] = size.dim_value
                continue
            raw = size.dim_param or f"{info.name}_{axis}"
            name = names.setdefault(raw, _identifier(raw, names.values()))
            asked = given.get(raw, given.get(name))
            if asked is not None and asked < 0:
                raise UsageError(f"dimension {short(raw)} cannot be {asked}", where=str(file))
            found[info.name, axis] = _dims.dim(name) if asked is None else int(asked)
    unknown = sorted(set(given) - set(names) - set(names.values()))
    if unknown:
        raise UsageError(
            f"the model has no dimension called {unknown}",
            where=str(file),
            hint=f"it has {sorted(names.values())[:20]}",
        )
    return found


def _identifier(raw: str, taken: Iterable[str]) -> str:
    name = re.sub(r"[^A-Za-z0-9_]+", "_", raw)[:60].strip("_") or "dim"
    name = f"d{name}" if name[0].isdigit() else name
    return unique(name, set(taken))


def unique(name: str, taken: Container[str]) -> str:
    """Return the name, with the first numeric suffix from 2 on that is not taken if the name is taken."""
    found, number = name, 2
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    return found


# ---------------------------------------------------------------- building
class _Poison:
    """Placeholder for the result of an unsupported operator. Nodes that use it are skipped."""


_POISON = _Poison()
Env = dict[str, "Value | _Poison"]


@dataclass
class _Loader:
    file: Path
    context: Context
    sizes: Mapping[tuple[str, int], Dim]
    missing: Counter[str] = field(default_factory=Counter)
    paths: ModulePaths = field(default_factory=ModulePaths)
    #: Tensors of subgraphs and attributes, by id of their TensorProto (kept alive here): unrolled bodies reuse them.
    read: dict[int, tuple[Any, Tensor]] = field(default_factory=dict)

    def load(self, model: Any) -> Graph:
        """Return the whole graph. All unsupported operator variants are raised together."""
        graph = model.graph
        env: Env = {}
        for tensor in graph.initializer:
            env[tensor.name] = self.initializer(tensor, tensor.name)
        inputs = []
        for info in graph.input:
            if info.name not in env:
                inputs.append(self.input(info))
                env[info.name] = inputs[-1]
        self.run(graph, env)
        if self.missing:
            hint = DATA_SIZES if any("depends on data" in variant for variant in self.missing) else ""
            raise UnsupportedError("the model needs unsupported features", missing=self.missing, hint=hint)
        names = [o.name for o in graph.output]
        outputs = tuple(self.tensor(env[n]) for n in names)
        structure = {n: i for i, n in enumerate(names)} if len(names) > 1 else None
        used = {n.attr("name") for n in Graph(outputs, tuple(names), tuple(inputs)).leaves("param")}
        params = {n: d for n, d in self.context.params.items() if n in used}
        result = Graph(outputs, tuple(names), tuple(inputs), params, {}, structure, graph.name or self.file.stem)
        result.check()
        return replace(result, modules=self.paths.of(result))

    @staticmethod
    def tensor(value: Value | _Poison) -> Tensor:
        """Return a model output as a tensor. Raises UnsupportedError for sequences and data-dependent sizes."""
        assert not isinstance(value, _Poison)
        if isinstance(value, Opaque):
            kind, hint = (
                ("is a sequence", "") if isinstance(value, Listed) else ("has a size that depends on data", DATA_SIZES)
            )
            raise UnsupportedError(
                "the model needs unsupported features", missing={f"an output that {kind}": 1}, hint=hint
            )
        return value.tensor() if isinstance(value, SymbolicInts) else value

    def input(self, info: Any) -> Tensor:
        """Return a graph input with resolved named dimensions."""
        kind = info.type.tensor_type
        shape = tuple(self.sizes[info.name, i] for i in range(len(kind.shape.dim)))
        return self.context.check(t.input(info.name, shape, ELEMENT_TYPES[kind.elem_type]))

    def initializer(self, tensor: Any, name: str) -> Tensor:
        """Return an initializer as a param (lazy if external) or a constant."""
        kind = ELEMENT_TYPES.get(tensor.data_type)
        if kind is None:
            raise UnsupportedError(
                "the model needs unsupported features", missing={f"dtype {element_name(tensor.data_type)}": 1}
            )
        shape = tuple(tensor.dims)
        count = prod(shape)
        name = unique(name, self.context.params)  # branches of different nodes may use the same name
        leaf = self.context.check(t.param(name, shape, kind))
        data: Data
        if tensor.data_location == tensor.EXTERNAL:
            where = f"{self.file}: tensor {short(name)}"
            place, offset, identity = _external(tensor, leaf.type.nbytes, self.file, where)
            data = MappedArray(place, offset, shape, kind, identity)
        else:
            data = _held(tensor, shape, f"{self.file}: tensor {short(name)}")
        limit = CONSTANT_ELEMENTS if dtypes.is_float(kind) else CONSTANT_INTEGERS
        if not shape or count <= limit:
            return self.context.constant(load_data(data))
        self.context.params[name] = data
        return leaf

    def once(self, tensor: Any, name: str) -> Tensor:
        """Return the param or constant of a TensorProto, created on the first call only."""
        if id(tensor) not in self.read:
            self.read[id(tensor)] = (tensor, self.initializer(tensor, name))
        return self.read[id(tensor)][1]

    def run(self, graph: Any, env: Env) -> None:
        """Build all nodes of a graph in order; results are stored in `env`."""
        reads = Counter(name for node in _all_nodes(graph.node) for name in node.input)
        reads.update(o.name for o in graph.output)
        for proto in graph.node:
            operands = [env[name] if name else None for name in proto.input]
            results: Iterable[Value | _Poison | None]
            if any(isinstance(v, _Poison) for v in operands):
                results = [_POISON] * len(proto.output)
            else:
                results = self.node(proto, operands, [bool(n) and reads[n] > 0 for n in proto.output], env)  # type: ignore[arg-type]
            self.paths.add(results, operands, path_of_onnx(proto.name, proto.metadata_props))
            for name, value in zip(proto.output, results):
                if name and value is not None:
                    env[name] = value
                elif name and reads[name]:
                    raise BadModelError(f"{_label(proto)} does not give its result {short(name)}")

    def node(
        self, proto: Any, operands: list[Value | None], wanted: list[bool], env: Env
    ) -> list[Value | _Poison | None]:
        """Return the results of one node; placeholders (_POISON) if it is unsupported."""
        label = _label(proto)
        branch = partial(self.branch, env)
        try:
            node = Node(proto.op_type, label, operands, self.attributes(proto), wanted, self.context, branch)
            if (symbolic := shape_value(node)) is not None:
                result: Result = self.context.value(symbolic)
            elif (picked := masked_value(node)) is not None:
                result = picked
            else:
                result = OPERATORS[node.op].build(node)
        except UnsupportedError as error:
            self.missing.update(error.missing or {f"{proto.op_type} ({error.message})": 1})
            return [_POISON] * len(proto.output)
        except (BadModelError, UsageError) as error:
            error.where = error.where if error.where and isinstance(error, TooLargeError) else f"{self.file}: {label}"
            if isinstance(error, TooLargeError | BadModelError):
                raise
            detail = f" ({error.hint})" if error.hint else ""
            raise BadModelError(f"{label}: {error.message}{detail}", where=str(self.file)) from error
        except MemoryError as error:
            raise TooLargeError(f"{label} does not fit into memory", where=str(self.file)) from error
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError) as error:
            why = f"{type(error).__name__}: {error}"
            raise BadModelError(f"{label} cannot be built ({why[:300]})", where=str(self.file)) from error
        results = [result] if isinstance(result, Tensor | SymbolicInts | Opaque) else result
        return [None if v is None else self.finish(v, label) for v in results]

    def finish(self, value: Value, label: str) -> Value:
        """Check a value's size, and fold it if it is a small constant."""
        if isinstance(value, SymbolicInts | Opaque):
            return value
        try:
            return self.context.fold(self.context.check(value))
        except TooLargeError as error:
            error.where = f"{self.file}: {label}"
            raise

    def branch(self, env: Env, graph: Any, given: Sequence[Value] = ()) -> list[Value]:
        """Return the outputs of a subgraph that can read the enclosing scope; its inputs are bound to `given`."""
        if len(graph.input) != len(given):
            raise BadModelError(f"the subgraph {short(graph.name)} takes {len(graph.input)} values, not {len(given)}")
        inner = {**env, **{info.name: value for info, value in zip(graph.input, given)}}
        for tensor in graph.initializer:
            inner[tensor.name] = self.once(tensor, f"{graph.name}/{tensor.name}")
        self.run(graph, inner)
        found = [inner[o.name] for o in graph.output]
        if any(isinstance(v, _Poison) for v in found):
            raise UnsupportedError("in a subgraph", missing={"a subgraph (unsupported operators in it)": 1})
        return [v for v in found if not isinstance(v, _Poison)]

    def attributes(self, proto: Any) -> dict[str, Any]:
        """Return a node's attributes as Python values; tensors become graph values."""
        import onnx

        found: dict[str, Any] = {}
        for attribute in proto.attribute:
            if attribute.ref_attr_name:
                raise BadModelError(f"{_label(proto)} refers to an attribute of a function that is not there")
            if attribute.type == onnx.AttributeProto.TENSOR:
                found[attribute.name] = self.once(attribute.t, proto.output[0])
                continue
            value = onnx.helper.get_attribute_value(attribute)
            if isinstance(value, bytes):
                value = value.decode("utf-8", "replace")
            found[attribute.name] = value
        return found


# ---------------------------------------------------------------- support table
def support_table() -> str:
    """Return the Markdown table of supported operators and their limits."""
    low, high = OPSETS
    lines = [
        "# ONNX operators",
        "",
        f"{len(OPERATORS)} operators of the default domain, opset {low} to {high}. Subgraphs of `If`, `Loop` and `Scan` run where",
        "the condition or the trip count is known at load time. Models with sequence inputs or outputs, strings",
        "and optional types are not supported.",
        "Integer operands that set shapes, axes or sizes (of Reshape, Slice, Pad, TopK, ...) must be known at load time:",
        "constants, or arithmetic on sizes, which may be free dimensions. Training modes and random numbers are not built.",
        "",
        "This page is generated: `python -m tensor_graphs.models.onnx.load > docs/onnx-support.md`.",
        "",
        "| operator | not supported |",
        "|---|---|",
    ]
    lines += [f"| {name} | {OPERATORS[name].limits} |" for name in sorted(OPERATORS)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(support_table())

__all__ = ["load_onnx", "support_table"]
