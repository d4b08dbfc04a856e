"""Writes into tensors, as values: what an exported program changes in place, where it is plain who sees it.

torch.export leaves in-place operations in the program. Tracing it once more makes them values, and takes longer than the export did.
Mostly that is not needed: a cache is written and read again as a whole, or a sum is added to. Such a write is its functional twin, of
which everybody reads the result from then on. Where a view of what is written was taken before and is read after, or an argument of
the module is written, it is not plain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .aten_ops import TABLE

#: Operators whose results may share memory with their operands although their schemas do not say so; and those that return
#: their operand where there is nothing to do.
_QUIET = ("reshape", "contiguous", "to", "flatten", "narrow", "chunk")
_IDLE = ("dropout", "type_as", "_unsafe_view")
#: What only gives its operand another name.
_RENAMES = ("detach_.default",)


@dataclass(frozen=True)
class Writes:
    """What a program writes in place. An origin is a node that memory comes from: a buffer's placeholder, or what made the tensor."""

    names: Mapping[Any, Any] = field(default_factory=dict)  # what writes or renames -> the origin, whose value it is
    buffers: Sequence[str] = ()  # those that are written, in the order of the program's inputs


def functional(target: Any) -> str:
    """The overload that computes what an in-place one writes, if there is a builder for it; else ""."""
    schema = getattr(target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return ""
    op, _, kind = schema.name.removeprefix("aten::").partition(".")
    wrote = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
    found = f"{op.removesuffix('_')}.{schema.overload_name or 'default'}"
    plain = op.endswith("_") and not kind and wrote[0] and not any(wrote[1:]) and len(schema.returns) == 1
    return found if plain and found in TABLE else ""


def aliases(op: Any) -> bool:
    """Whether results may share memory with arguments, as far as an operator's schema and name tell."""
    return any(a.alias_info is not None for a in (*op._schema.arguments, *op._schema.returns)) or (
        op._schema.name.removeprefix("aten::") in _QUIET
    )


def writes_of(program: Any) -> Writes | None:
    """What an exported program writes; None where it is not plain who sees it."""
    import torch

    inner = [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    if any(_writes(node) for m in inner[1:] for node in m.graph.nodes):
        return None
    nodes = list(program.graph_module.graph.nodes)
    if not any(map(_writes, nodes)):
        return Writes()
    place = {node: i for i, node in enumerate(nodes)}
    names: dict[Any, Any] = {}
    sharing: dict[Any, set[Any]] = {}  # node -> origins of whose memory it may be a part
    parts: dict[Any, list[Any]] = {}  # origin -> what may be a part of it
    buffers: dict[Any, str] = {}
    own = _own_buffers(program)
    for node in nodes:
        if _writes(node) or _renames(node):
            origin = names[node] = names.get(node.args[0], node.args[0])
            sharing[node] = sharing[origin]
            if _writes(node):
                if sharing[origin] != {origin} or _read_later(parts.get(origin, ()), node, place):
                    return None
                if origin.op != "call_function" and origin.name not in own:
                    return None
                if origin.op != "call_function":
                    buffers[origin] = own[origin.name]
        else:
            origin = node
            sharing[node] = {o for a in _shared(node) for o in sharing[a]} or {node}
        for whole in sharing[node] - {origin}:
            parts.setdefault(whole, []).append(node)
    return Writes(names, [buffers[node] for node in nodes if node in buffers])


def _read_later(parts: Sequence[Any], node: Any, place: Mapping[Any, int]) -> bool:
    """Whether any of some parts, taken before a node, is read after it."""
    return any(place[user] > place[node] for part in parts for user in part.users)


def _writes(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and bool(schema.is_mutable) and not _renames(node)


def _renames(node: Any) -> bool:
    return node.op == "call_function" and str(node.target).removeprefix("aten.") in _RENAMES


def _shared(node: Any) -> list[Any]:
    """The nodes of whose memory a node's result may be a part: of its operands all, unless it is known to be new."""
    import torch

    op = node.target
    if (
        isinstance(op, torch._ops.OpOverload)
        and not aliases(op)
        and op._schema.name.removeprefix("aten::") not in _IDLE
    ):
        composite = op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
        if not composite or str(op).removeprefix("aten.") in TABLE:
            return []
    return list(node.all_input_nodes)


def _own_buffers(program: Any) -> dict[str, str]:
    """Placeholder to target of the buffers whose memory no other parameter or buffer shares."""
    held: dict[str, Any] = {}
    kinds: dict[str, str] = {}
    for spec in program.graph_signature.input_specs:
        tensor = program.state_dict.get(spec.target, program.constants.get(spec.target)) if spec.target else None
        if hasattr(tensor, "untyped_storage"):
            held[spec.arg.name], kinds[spec.arg.name] = tensor, spec.kind.name
    memory = {name: (str(t.device), t.untyped_storage().data_ptr()) for name, t in held.items() if t.numel()}
    shared = list(memory.values())
    targets = {s.arg.name: s.target for s in program.graph_signature.input_specs if s.arg.name in held}
    return {
        name: targets[name] for name in held
        if kinds[name] == "BUFFER" and (name not in memory or shared.count(memory[name]) == 1)
    }  # fmt: skip


__all__ = ["Writes", "aliases", "functional", "writes_of"]
