"""Reads and checks an ONNX file before its graph is built: parsing without external data, local functions, versions,
structure, the ONNX checker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...errors import BadModelError, TooLargeError
from ...plain import file_identity
from ..files.limits import check_count
from .names import MICROSOFT, node_label, operator_key, plain, short
from .node import OPSETS
from .ops import OPERATORS
from .stored_tensors import all_nodes, check_tensor, tensors
from .values import ELEMENT_TYPES, FOUR_BITS, element_name

#: Size limit of a protocol buffer; larger models keep their weights in external data files.
MAX_FILE_BYTES = 2**31 - 1
#: Limit on the number of nodes after the model's local functions are inlined.
MAX_NODES = 1_000_000
#: The only version of the operators that ONNX Runtime adds.
MICROSOFT_OPSET = 1
#: Operators of ONNX Runtime that its files have in the default domain. The ONNX checker does not know them, or only in
#: later versions of the operator set.
OF_RUNTIME = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})


def parse_model(file: Path) -> Any:
    """Return the parsed ModelProto, without external data.

    Raises BadModelError for a malformed file, TooLargeError for one over the size limit.
    """
    import onnx

    if not file.exists():
        raise BadModelError("there is no such file", where=str(file))
    if not file.is_file():
        raise BadModelError("an ONNX model is a file, and this is a folder or a device", where=str(file))
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


_Key = tuple[str, str, str]  # of a local function: domain, name, overload


def _key(proto: Any, name: str) -> _Key:
    """Return the key of a function, or of a node that calls it."""
    return proto.domain, name, proto.overload


def _add_defaults(node: Any, function: Any) -> None:
    """Give a call of a local function the function's default values of attributes that it lacks, which ONNX's inliner
    leaves out."""
    if function is not None:
        given = {a.name for a in node.attribute}
        node.attribute.extend(a for a in function.attribute_proto if a.name not in given)


def inlined(model: Any, file: Path) -> Any:
    """Return the model with its local functions inlined. The resulting node count is checked first.

    Raises BadModelError for recursive functions, TooLargeError for too many nodes.
    """
    if not model.functions:
        return model
    import onnx.checker
    import onnx.inliner

    bodies = {_key(f, f.name): f for f in model.functions}
    for domain, name, _ in bodies:
        if domain in ("", "ai.onnx"):
            raise BadModelError(f"the function {short(name)} is in the domain of ONNX's operators", where=str(file))
    sizes: dict[_Key, int] = {}

    def size(key: _Key, above: tuple[_Key, ...]) -> int:
        if key in above or len(above) > 200:
            raise BadModelError(f"function {short(key[1])} calls itself", where=str(file))
        if key not in sizes:
            sizes[key] = total(bodies[key].node, (*above, key))
        return sizes[key]

    def total(nodes: Iterable[Any], above: tuple[_Key, ...]) -> int:
        return sum(size(k, above) if (k := _key(n, n.op_type)) in bodies else 1 for n in all_nodes(nodes))

    count = total(model.graph.node, ())
    if count > MAX_NODES:
        raise TooLargeError(f"inlining the model's functions makes {count} nodes", where=str(file))
    for nodes in (model.graph.node, *(f.node for f in model.functions)):
        for node in all_nodes(nodes):
            _add_defaults(node, bodies.get(_key(node, node.op_type)))
    try:
        return onnx.inliner.inline_local_functions(model)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise BadModelError(f"the model's functions cannot be inlined: {error}", where=str(file)) from error


def opset(model: Any) -> int:
    """Version of the default operator set; 0 if the file names none."""
    return max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)


def unsupported(model: Any) -> dict[str, int]:
    """Count the unsupported features of a model that can be found without building it (opset versions, operators,
    dtypes); feature -> count."""
    found: Counter[str] = Counter()
    version = opset(model)
    if not OPSETS[0] <= version <= OPSETS[1]:
        found[f"opset {version} (supported: {OPSETS[0]} to {OPSETS[1]})"] += 1
    for imported in model.opset_import:
        if imported.domain == MICROSOFT and imported.version != MICROSOFT_OPSET:
            found[f"opset {imported.version} of {MICROSOFT} (supported: {MICROSOFT_OPSET})"] += 1
    for node in all_nodes(model.graph.node):
        if operator_key(node) not in OPERATORS:
            found[plain(operator_key(node))] += 1
    initial = {i.name for i in model.graph.initializer}
    for tensor in model.graph.initializer:
        if tensor.data_type not in FOUR_BITS:
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


def first_unsupported(model: Any) -> str:
    """Label of the first node whose operator is not supported; "" if there is none."""
    unknown = (node_label(node) for node in all_nodes(model.graph.node) if operator_key(node) not in OPERATORS)
    return next(unknown, "")


def _count_dtype(found: Counter[str], code: int) -> None:
    if code not in ELEMENT_TYPES:
        found[f"dtype {element_name(code)}"] += 1


def check_structure(graph: Any, outer: set[str], where: str) -> None:
    """Raise BadModelError for values used before their definition (also cycles), undefined, or defined twice.

    `outer`: names defined around a subgraph. `where`: place for the message.
    """
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
                raise BadModelError(f"{node_label(node)} reads {short(name)} {why}", where=where)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                check_structure(attribute.g, seen, where)
        seen.update(node.output)
    for info in graph.output:
        if info.name not in seen:
            raise BadModelError(f"the output {short(info.name)} is not computed by any node", where=where)


def check_with_onnx(model: Any, file: Path) -> None:
    """Run the ONNX checker on the file, by path, so that it checks external data without loading the data.

    Raises BadModelError if it finds an error.
    """
    import onnx.checker

    for tensor in tensors(model.graph):
        check_tensor(tensor, file)
    unshaped = any(
        o.type.HasField("tensor_type") and not o.type.tensor_type.HasField("shape") for o in model.graph.output
    )
    unknown = any(_unknown(node, opset(model)) for node in all_nodes(model.graph.node))
    try:
        onnx.checker.check_model(checkable(model) if unshaped or unknown else str(file))
    except (onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        raise BadModelError(
            f"the ONNX checker refuses it: {' '.join(str(error).split())[:600]}", where=str(file)
        ) from error


def _unknown(node: Any, version: int) -> bool:
    """Whether the ONNX checker refuses a node that is supported at this version of the operator set: one of
    `OF_RUNTIME`, or an operator that was replaced later (GroupNormalization before opset 21)."""
    import onnx.defs

    key = operator_key(node)
    if not onnx.defs.has(key, max_inclusive_version=version):
        return key in OF_RUNTIME
    return key in OPERATORS and bool(onnx.defs.get_schema(key, version, "").deprecated)


def checkable(model: Any) -> Any:
    """Return a copy of the model for the ONNX checker, which rejects outputs without a shape and operators of the
    default domain that it does not know or that are deprecated.

    Those outputs get an empty shape, those operators another domain. References to external data,
    checked before, are removed.
    """
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for output in copy.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.shape.SetInParent()
    for node in all_nodes(copy.graph.node):
        if _unknown(node, opset(model)):
            node.domain = MICROSOFT
    if all(imported.domain != MICROSOFT for imported in copy.opset_import):
        copy.opset_import.add(domain=MICROSOFT, version=MICROSOFT_OPSET)
    for tensor in tensors(copy.graph):
        if tensor.data_location == tensor.EXTERNAL:
            del tensor.external_data[:], tensor.dims[:]
            tensor.data_location = tensor.DEFAULT
            tensor.dims.append(0)
    return copy


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


__all__ = [
    "MAX_FILE_BYTES",
    "MAX_NODES",
    "check_structure",
    "check_with_onnx",
    "checkable",
    "first_unsupported",
    "inlined",
    "opset",
    "parse_model",
    "unsupported",
]
