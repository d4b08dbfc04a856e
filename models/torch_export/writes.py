"""Functionalizes in-place writes in an exported program, for programs in which aliasing is simple.

torch.export leaves in-place operators in the program. Decomposing it functionalizes them, but takes longer than the
export itself. Usually that is unnecessary: a cache is updated and then read as a whole, or a sum is accumulated. Such
an in-place operator is replaced by its functional overload, and all later uses read the result. The program is refused
(and decomposed instead) if a view taken before the write is read after it, or if the write goes to an argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .aten_ops import TABLE

#: Operators whose results may alias operands although their schemas do not say so (_QUIET), and operators that return
#: their operand when they have nothing to do (_IDLE).
_QUIET = ("reshape", "contiguous", "to", "flatten", "narrow", "chunk")
_IDLE = ("dropout", "type_as", "_unsafe_view")
#: In-place operators that change no data: the result is another name of the operand.
_RENAMES = ("detach_.default",)


@dataclass(frozen=True)
class Writes:
    """In-place writes of an exported program: which nodes write (`names`), and to which buffers.

    An origin is the node that created the memory: a buffer's placeholder or an operator.
    """

    # writing or renaming node -> origin; the result of the node is the new value of the origin
    names: Mapping[Any, Any] = field(default_factory=dict)
    buffers: Sequence[str] = ()  # written buffers, in the order of the program's inputs


def functional(target: Any) -> str:
    """Return the name of the overload that computes the result of the in-place overload `target` without writing, if it
    can be imported; otherwise ""."""
    schema = getattr(target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return ""
    op, _, kind = schema.name.removeprefix("aten::").partition(".")
    wrote = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
    found = f"{op.removesuffix('_')}.{schema.overload_name or 'default'}"
    plain = op.endswith("_") and not kind and wrote[0] and not any(wrote[1:]) and len(schema.returns) == 1
    return found if plain and found in TABLE else ""


def aliases(op: Any) -> bool:
    """Return whether results of an operator may alias its arguments.

    True if its schema says so, and for operators such as `reshape`, whose schemas do not mention that they may return
    views.
    """
    return any(a.alias_info is not None for a in (*op._schema.arguments, *op._schema.returns)) or (
        op._schema.name.removeprefix("aten::") in _QUIET
    )


def writes_of(program: Any) -> Writes | None:
    """Find the in-place writes of an exported program; None if aliasing is too complex: then the program has to be
    decomposed instead."""
    import torch

    inner = [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    if any(_writes(node) for m in inner[1:] for node in m.graph.nodes):
        return None
    nodes = list(program.graph_module.graph.nodes)
    if not any(map(_writes, nodes)):
        return Writes()
    place = {node: i for i, node in enumerate(nodes)}
    names: dict[Any, Any] = {}
    sharing: dict[Any, set[Any]] = {}  # node -> origins whose memory the node may alias
    parts: dict[Any, list[Any]] = {}  # origin -> nodes that may alias it
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
    """Return whether a node in `parts` has a user after `node`. `place` gives each node's position."""
    return any(place[user] > place[node] for part in parts for user in part.users)


def _writes(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and bool(schema.is_mutable) and not _renames(node)


def _renames(node: Any) -> bool:
    return node.op == "call_function" and str(node.target).removeprefix("aten.") in _RENAMES


def _shared(node: Any) -> list[Any]:
    """Return the nodes whose memory a node's result may alias.

    All operands, unless the result is known to be new memory.
    """
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
    """Return placeholder name -> target of the buffers whose storage no other parameter or buffer shares."""
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
