"""Imports ONNX files: `load_onnx` reads a file, checks it, and builds a graph. Nothing in the file is executed.

Order of steps: file size; parsing without external data; unsupported operators, dtypes and versions, all reported at
once; structure (undefined names, cycles, duplicates); the ONNX checker; graph construction with this package's shape
inference. ONNX's shape inference is not used: it is native code that crashes on some malformed attributes.

`python -m tensor_graphs.models.onnx.support_table` prints the table of supported operators.
"""

from __future__ import annotations

import os
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from math import prod
from pathlib import Path
from typing import Any

from ...egraph.builders import builders as t
from ...egraph.ir.file_array import FileArray
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor
from ...egraph.ir.weight_data import Data, load_data
from ...egraph.types import dtypes
from ...egraph.types.dims import Dim
from ...errors import BadModelError, TooLargeError, UnsupportedError, UsageError
from ...processes.memory_limits import machine_memory
from ..common.module_paths import ModulePaths, path_of_onnx
from ..files.limits import check_count
from .context import Context
from .input_sizes import named_sizes, unique
from .masked import masked_value
from .names import MICROSOFT, node_label, operator_key, short
from .node import Node, Result
from .older import current
from .ops import OPERATORS
from .read_file import (
    check_structure,
    check_with_onnx,
    first_unsupported,
    inlined,
    opset,
    parse_model,
    unsupported,
)
from .shapes import shape_dtype, shape_value
from .signature import check_attributes, check_operands
from .stored_tensors import all_nodes, external_data, stored_bytes, stored_data
from .values import ELEMENT_TYPES, FOUR_BITS, FourBits, KnownSequence, Opaque, SymbolicInts, Value, element_name

DATA_SIZES = "sizes that depend on values are not built: compute all cases and choose by Where"
#: Float initializers of at most this many elements become constants, larger ones params.
CONSTANT_ELEMENTS = 8
#: Integer initializers of at most this many elements become constants, so that shapes and indices are known at load
#: time.
CONSTANT_INTEGERS = 1 << 16


NEEDS = "the model needs unsupported features"


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
    model = parse_model(file)
    model = inlined(model, file)
    missing = unsupported(model)
    if missing:
        where = _place(file, first_unsupported(model))
        raise UnsupportedError(NEEDS, missing=missing, where=where, hint=_remedy(missing))
    check_structure(model.graph, set(), str(file))
    check_with_onnx(model, file)
    loader = _Loader(file, Context(opset(model), max_bytes or machine_memory()), named_sizes(model.graph, dims, file))
    try:
        return loader.load(model)
    except (BadModelError, UnsupportedError) as error:
        error.where = error.where or str(file)
        raise


def _remedy(missing: Iterable[str]) -> str:
    """Hint for a user whose model needs these unsupported features."""
    if any(name.startswith(f"{MICROSOFT}.nchwc") for name in missing):
        return "ONNX Runtime optimized this file for one processor (level all): save it with level extended"
    if any(name.startswith("opset ") for name in missing):
        return "onnx.version_converter.convert_version(model, 17) writes a model for another opset"
    return "docs/onnx-support.md, or python -m tensor_graphs.models.onnx.support_table, lists the supported operators"


def _place(file: Path, label: str) -> str:
    """The file, with the first of its nodes that are not supported, if there is one, by its `label`."""
    return f"{file}: first at {label}" if label else str(file)


class _Poison:
    """Placeholder for the result of an unsupported operator. Nodes that use it are skipped."""


_POISON = _Poison()
Env = ChainMap[str, "Value | _Poison"]  # values by name; those of a subgraph in front of those around it


@dataclass
class _Loader:
    file: Path
    context: Context
    sizes: Mapping[tuple[str, int], Dim]
    missing: Counter[str] = field(default_factory=Counter)
    first: str = ""  # label of the first node that is not supported
    paths: ModulePaths = field(default_factory=ModulePaths)
    #: Tensors of subgraphs and attributes, by id of their TensorProto (kept alive here): unrolled bodies reuse them.
    read: dict[int, tuple[Any, Tensor | FourBits]] = field(default_factory=dict)
    #: How often the nodes of a graph or subgraph read each name, by id of its GraphProto (kept alive here).
    reads: dict[int, tuple[Any, Counter[str]]] = field(default_factory=dict)
    #: Nodes that made the tensors, for errors of sizes that are known later.
    labels: dict[Tensor, str] = field(default_factory=dict)
    built: int = 0  # nodes and initializers of the subgraphs built so far, which are built once for each iteration

    def load(self, model: Any) -> Graph:
        """Return the whole graph. All unsupported operator variants are raised together."""
        graph = model.graph
        env: Env = ChainMap()
        for tensor in graph.initializer:
            env[tensor.name] = self.initializer(tensor, tensor.name)
        inputs = []
        for info in graph.input:
            if info.name in env:
                self.check_declared(env[info.name], info)
            else:
                inputs.append(self.input(info))
                env[info.name] = inputs[-1]
        self.run(graph, env)
        if self.missing:
            hint = DATA_SIZES if any("depends on data" in variant for variant in self.missing) else ""
            raise UnsupportedError(NEEDS, missing=self.missing, where=_place(self.file, self.first), hint=hint)
        names = [o.name for o in graph.output]
        made_by = {name: node_label(node) for node in graph.node for name in node.output}
        outputs = self.outputs({n: env[n] for n in names}, made_by)
        for output, info in zip(outputs, graph.output):
            self.check_declared(output, info, shape=False)  # declared shapes are often wrong, as ONNX Runtime warns
        structure = {n: i for i, n in enumerate(names)} if len(names) > 1 else None
        used = {n.attr("name") for n in Graph(outputs, tuple(names), tuple(inputs)).leaves("param")}
        params = {n: d for n, d in self.context.params.items() if n in used}
        result = Graph(outputs, tuple(names), tuple(inputs), params, {}, structure, graph.name or self.file.stem)
        result.check()
        return replace(result, modules=self.paths.of(result), labels=self.labels if result.free_dims else {})

    def outputs(self, values: Mapping[str, Value | _Poison], made_by: Mapping[str, str]) -> tuple[Tensor, ...]:
        """The model's outputs (name -> value) as tensors. `made_by`: output -> label of its node.

        Raises UnsupportedError that lists all sequences, 4-bit integers and sizes that depend on data.
        """
        found: list[Tensor] = []
        missing: Counter[str] = Counter()
        for name, value in values.items():
            assert not isinstance(value, _Poison)
            if isinstance(value, Opaque):
                kind = (
                    "is a sequence" if isinstance(value, KnownSequence)
                    else f"has the dtype {value.kind}" if isinstance(value, FourBits)
                    else "has a size that depends on data"
                )  # fmt: skip
                missing[f"the output {short(name)}, made by {made_by.get(name, 'no node')}, {kind}"] += 1
            else:
                found.append(value.tensor() if isinstance(value, SymbolicInts) else value)
        if missing:
            hint = DATA_SIZES if any("depends on data" in variant for variant in missing) else ""
            raise UnsupportedError(NEEDS, missing=missing, hint=hint)
        return tuple(found)

    @staticmethod
    def check_declared(value: Any, info: Any, shape: bool = True) -> None:
        """Raise BadModelError if an initializer or output has another dtype, or with `shape` other sizes, than the file
        declares for its name."""
        if isinstance(value, Opaque):
            return
        kind = info.type.tensor_type
        dtype = ELEMENT_TYPES.get(kind.elem_type, value.dtype)
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
        fits = len(sizes) == value.rank and all(a is None or a == b for a, b in zip(sizes, value.shape))
        if dtype != value.dtype or (shape and kind.HasField("shape") and not fits):
            raise BadModelError(
                f"{short(info.name)} is {value.type}, but is declared as {dtype}{sizes if shape else ''}"
            )

    def input(self, info: Any) -> Tensor:
        """Return a graph input with resolved named dimensions."""
        kind = info.type.tensor_type
        shape = tuple(self.sizes[info.name, i] for i in range(len(kind.shape.dim)))
        return self.context.check(t.input(info.name, shape, ELEMENT_TYPES[kind.elem_type]))

    def initializer(self, tensor: Any, name: str) -> Tensor | FourBits:
        """Return an initializer as a param (lazy if external) or a constant."""
        if tensor.data_type in FOUR_BITS:
            return self.four_bits(tensor, name)
        kind = ELEMENT_TYPES.get(tensor.data_type)
        if kind is None:
            raise UnsupportedError(NEEDS, missing={f"dtype {element_name(tensor.data_type)}": 1})
        shape = tuple(tensor.dims)
        count = prod(shape)
        name = unique(name, self.context.params)  # branches of different nodes may use the same name
        leaf = self.context.check(t.param(name, shape, kind))
        data: Data
        if tensor.data_location == tensor.EXTERNAL:
            where = f"{self.file}: tensor {short(name)}"
            place, offset, identity = external_data(tensor, leaf.type.nbytes, self.file, where)
            data = FileArray(place, offset, shape, kind, identity)
        else:
            data = stored_data(tensor, shape, f"{self.file}: tensor {short(name)}")
        limit = CONSTANT_ELEMENTS if dtypes.is_float(kind) else CONSTANT_INTEGERS
        if not shape or count <= limit:
            constant = self.context.constant(load_data(data))
            self.context.names[id(constant)] = constant, name
            return constant
        self.context.params[name] = data
        return leaf

    def four_bits(self, tensor: Any, name: str) -> FourBits:
        """Return an initializer of 4-bit integers, whose bytes are lazy if they are external."""
        shape, where = tuple(tensor.dims), f"{self.file}: tensor {short(name)}"
        size = (prod(shape) + 1) // 2
        self.context.check(t.zeros((size,), "uint8"))
        data: Data
        if tensor.data_location == tensor.EXTERNAL:
            place, offset, identity = external_data(tensor, size, self.file, where)
            data = FileArray(place, offset, (size,), "uint8", identity)
        else:
            data = stored_bytes(tensor, size, where)
        return FourBits(name, shape, FOUR_BITS[tensor.data_type], data)

    def once(self, tensor: Any, name: str) -> Tensor | FourBits:
        """Return the param or constant of a TensorProto, created on the first call only."""
        if id(tensor) not in self.read:
            self.read[id(tensor)] = (tensor, self.initializer(tensor, name))
        return self.read[id(tensor)][1]

    def run(self, graph: Any, env: Env) -> None:
        """Build all nodes of a graph in order; results are stored in `env`."""
        reads = self.reads_of(graph)
        for proto in graph.node:
            operands = [env[name] if name else None for name in proto.input]
            results: Iterable[Value | _Poison | None]
            if any(isinstance(v, _Poison) for v in operands):
                results = [_POISON] * len(proto.output)
            else:
                results = self.node(proto, operands, [bool(n) and reads[n] > 0 for n in proto.output], env)  # type: ignore[arg-type]
            self.paths.add(results, operands, path_of_onnx(proto.name, proto.metadata_props))
            for name, value in zip_longest(proto.output, list(results)[: len(proto.output)]):
                if name and value is not None:
                    env[name] = value
                elif name and reads[name]:
                    raise BadModelError(f"{node_label(proto)} does not give its result {short(name)}")

    def reads_of(self, graph: Any) -> Counter[str]:
        """Number of reads of each name by the nodes and outputs of a graph and its subgraphs."""
        if id(graph) not in self.reads:
            found = Counter(name for node in all_nodes(graph.node) for name in node.input)
            found.update(o.name for o in graph.output)
            self.reads[id(graph)] = graph, found
        return self.reads[id(graph)][1]

    def node(
        self, proto: Any, operands: list[Value | None], wanted: list[bool], env: Env
    ) -> list[Value | _Poison | None]:
        """Return the results of one node; placeholders (_POISON) if it is unsupported."""
        label = node_label(proto)
        branch = partial(self.branch, env)
        try:
            node = Node(operator_key(proto), label, operands, self.attributes(proto), wanted, self.context, branch)
            check_attributes(node)
            check_operands(node)
            node = current(node)
            if (symbolic := shape_value(node)) is not None:
                result: Result = self.context.value(symbolic, shape_dtype(node))
            elif (picked := masked_value(node)) is not None:
                result = picked
            else:
                result = OPERATORS[node.op].build(node)
        except UnsupportedError as error:
            self.first = self.first or label
            self.missing.update(error.missing or {f"{operator_key(proto)} ({error.message})": 1})
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
            result = self.context.fold(self.context.check(value))
        except TooLargeError as error:
            error.where = f"{self.file}: {label}"
            raise
        if isinstance(result, Tensor):
            self.labels.setdefault(result, label)
        return result

    def branch(self, env: Env, graph: Any, given: Sequence[Value] = ()) -> list[Value]:
        """Return the outputs of a subgraph that can read the enclosing scope; its inputs are bound to `given`.

        Raises BadModelError for another number of inputs, UnsupportedError for unsupported outputs, TooLargeError once
        all subgraphs together have more operations than the setting `max_nodes`.
        """
        self.built += len(graph.node) + len(graph.initializer) + 1
        check_count(self.built, where=str(self.file))
        if len(graph.input) != len(given):
            raise BadModelError(f"the subgraph {short(graph.name)} takes {len(graph.input)} values, not {len(given)}")
        inner = env.new_child({info.name: value for info, value in zip(graph.input, given)})
        for tensor in graph.initializer:
            if tensor.name in inner.maps[0]:
                raise BadModelError(f"{short(tensor.name)} is an input and an initializer of a subgraph")
            inner[tensor.name] = self.once(tensor, f"{graph.name}/{tensor.name}")
        self.run(graph, inner)
        found = [inner[o.name] for o in graph.output]
        if any(isinstance(v, _Poison) for v in found):
            raise UnsupportedError("in a subgraph", missing={"a subgraph (unsupported operators in it)": 1})
        return [v for v in found if not isinstance(v, _Poison)]

    def attributes(self, proto: Any) -> dict[str, Any]:
        """Return a node's attributes as Python values; tensors become graph values.

        Raises BadModelError for a reference to an attribute of a missing function.
        """
        import onnx

        found: dict[str, Any] = {}
        for attribute in proto.attribute:
            if attribute.ref_attr_name:
                raise BadModelError(f"{node_label(proto)} refers to an attribute of a function that is not there")
            if attribute.type == onnx.AttributeProto.TENSOR:
                found[attribute.name] = self.once(attribute.t, proto.output[0])
                continue
            value = onnx.helper.get_attribute_value(attribute)
            if isinstance(value, bytes):
                value = value.decode("utf-8", "replace")
            found[attribute.name] = value
        return found


__all__ = ["load_onnx"]
