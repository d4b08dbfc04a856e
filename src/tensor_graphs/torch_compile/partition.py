"""Partitions a traced graph into subgraphs that can be imported (parts) and operators that stay eager (islands)."""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..models.torch_export.traced import unsupported
from .complex_borders import split_between, with_real_borders
from .random_operators import draw_first, may_draw, returns_operand
from .report import IslandReport, PartReport, TracedReport


@dataclass(frozen=True)
class Part:
    """A subgraph of supported operators, for which a program is searched.

    `name`: its submodule in the split module. `module`: the subgraph. `sources`: for each of its placeholders, the
    index of a placeholder of the whole graph, a constant tensor, or None for a value computed in between.
    """

    name: str
    module: Any
    sources: tuple[Any, ...]


@dataclass(frozen=True)
class Split:
    """A traced graph as a Torch module in which each part (subgraph of supported operators) is one submodule."""

    module: Any
    parts: tuple[Part, ...]


def split(
    module: Any, kind: str, least: int, frozen: Collection[int] = (), seen: int | None = None
) -> tuple[Split, TracedReport]:
    """Copy of a traced graph module, split into parts (subgraphs of supported operators), and its report.

    `kind`: "inference", "forward" or "backward", for the report. Parts have at least `least` operators that compute;
    views and sizes do not count. `frozen`: placeholders that the report does not count as operands. `seen`: number of
    results, the first ones, that the caller gets; the others are saved for the backward pass (None: all).
    """
    from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

    copied = _copy(module)
    _fill_seeds(copied)
    _widen_statistics(copied)
    _order_equal_keys(copied)
    draw_first(copied)
    reasons = _reasons_for_eager(copied, seen)
    for before, node in pairwise([n for n in copied.graph.nodes if n in reasons and may_draw(n)]):
        node.update_kwarg(_BEFORE, before)  # parts are formed and sorted without changing the order of random numbers
    found = _supported_subgraphs(copied, reasons)
    whole = sum(map(_computes, copied.graph.nodes))  # a part that is all of the graph may be one composite operator
    kept = [nodes for nodes in found if sum(map(_computes, nodes)) >= max(1, min(least, whole))]
    split_between(kept)
    small = {n: f"a part of fewer than {least} operators" for nodes in found if nodes not in kept for n in nodes}
    report = TracedReport(kind, sum(map(_counts, copied.graph.nodes)))
    report.islands = _islands(copied.graph, {n for nodes in kept for n in nodes}, {**small, **reasons})
    fused = fuse_by_partitions(
        copied, [dict.fromkeys(nodes) for nodes in kept], prefix="part_", always_return_tuple=True
    )
    for node in fused.graph.nodes:
        node.kwargs = {name: value for name, value in node.kwargs.items() if name != _BEFORE}
    fused.recompile()
    parts = []
    for part, row in _parts_of(fused, frozen):
        parts.append(part)
        report.parts.append(row)
    return Split(fused, tuple(parts)), report


def _reasons_for_eager(module: Any, seen: int | None) -> dict[Any, str]:
    """Operators of a graph module that stay eager -> reason; the graph is changed where real and complex values meet
    (`with_real_borders`) and where results share memory (`_views_of_results`). `seen`: as for `split`."""
    views = _views_of_results(module.graph, seen)
    refused = with_real_borders(module, unsupported)
    reasons = {
        **_misplaced(module),
        **refused,
        **dict.fromkeys(views, "it shares memory with another result or an input"),
        **dict.fromkeys(filter(returns_operand, module.graph.nodes), "it returns its operand"),
    }
    return reasons | _undefined(module.graph, reasons)


def _supported_subgraphs(module: Any, eager: Container[Any]) -> list[list[Any]]:
    """The largest subgraphs of operators, without those in `eager`, that can each be one call: lists of nodes."""
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
    from torch.fx.passes.operator_support import OperatorSupportBase

    class Support(OperatorSupportBase):  # type: ignore[misc]
        def is_node_supported(self, submodules: Any, node: Any) -> bool:
            return node.op == "call_function" and node not in eager

    partitioner = CapabilityBasedPartitioner(module, Support(), allows_single_node_partition=True)
    return [list(p.nodes) for p in partitioner.propose_partitions()]


def _parts_of(module: Any, frozen: Collection[int]) -> Iterator[tuple[Part, PartReport]]:
    """Yield each part of a split module with its report. `frozen`: as for `split`."""
    index = {n: i for i, n in enumerate(module.graph.find_nodes(op="placeholder"))}
    for node in module.graph.find_nodes(op="call_module"):
        inner = getattr(module, node.target)
        inputs = [a.meta.get("val") for a in node.args if a.op != "get_attr" and index.get(a) not in frozen]
        results = inner.graph.output_node().all_input_nodes
        yield (
            Part(node.target, inner, tuple(_source(module, a, index) for a in node.args)),
            PartReport(
                sum(map(_counts, inner.graph.nodes)),
                sum(map(bytes_of, inputs)),
                sum(bytes_of(r.meta.get("val")) for r in results),
            ),
        )


def saved_results(module: Any, part: str, seen: int | None, written: int = 0) -> set[int]:
    """Indices of the results of the part named `part` that only the backward pass reads, or that are new values of
    mutated arguments.

    `module`: the split module. `seen`: number of the module's results that its caller gets (None: all); `written`: how
    many of them, the first ones, count as new values of mutated arguments.
    """
    if seen is None:
        return set()
    output = module.graph.output_node()
    shown = set(output.args[0][written:seen])
    (call,) = (n for n in module.graph.find_nodes(op="call_module") if n.target == part)
    taken = [n for n in call.users if n.target is operator.getitem and n not in shown]
    return {int(n.args[1]) for n in taken if set(n.users) == {output}}


def bytes_of(value: Any) -> int:
    """Bytes of a traced tensor at the sizes it was traced with; 0 for other values."""
    if isinstance(value, list | tuple):
        return sum(map(bytes_of, value))
    if not hasattr(value, "dtype"):
        return 0
    count = 1
    for size in value.shape:
        count *= int(size if isinstance(size, int) else size.node.hint or 0)
    return count * int(value.dtype.itemsize)


def tensors_of(value: Any) -> Iterator[Any]:
    """Yields the tensors in the traced value of a node, which may be nested in lists and tuples."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)
    elif hasattr(value, "device"):
        yield value


def device_of(module: Any) -> Any:
    """Device of a graph: that of its first tensor that is not a scalar, else of its first tensor; None without
    tensors."""
    found = [v for node in module.graph.nodes for v in tensors_of(node.meta.get("val"))]
    return next((v.device for v in found if v.dim()), found[0].device if found else None)


#: Argument with which an operator depends on another one that must run before, while a graph is split.
_BEFORE = "_before"


def _copy(module: Any) -> Any:
    """Return a graph module with a graph of its own and the same submodules and constants."""
    import torch

    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    graph.output_node().meta = dict(module.graph.output_node().meta)
    return torch.fx.GraphModule(module, graph)


#: Fused attention of a GPU -> which of its results are the seed and the offset of its random numbers.
_SEEDS = {
    "aten._scaled_dot_product_efficient_attention.default": (2, 3),
    "aten._scaled_dot_product_flash_attention.default": (6, 7),
    "aten._scaled_dot_product_cudnn_attention.default": (6, 7),
}


def _fill_seeds(module: Any) -> None:
    """Replace the seeds of attention without dropout by zeros, which are constants of the module.

    PyTorch leaves them uninitialized, on a device that differs from the traced one, and its backward pass does not read
    them. A forward graph is compiled in AOTAutograd's fake tensor mode, in which `torch.zeros` would have no data.
    """
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    for node in list(module.graph.nodes):
        if str(node.target) not in _SEEDS or _argument(node, "dropout_p"):
            continue
        for user in list(node.users):
            if user.target is operator.getitem and user.args[1] in _SEEDS[str(node.target)]:
                value, name = user.meta["val"], f"_seed_of_{user.name}"
                with unset_fake_temporarily():
                    module.register_buffer(name, torch.zeros(value.shape, dtype=value.dtype, device=value.device))
                with module.graph.inserting_before(user):
                    zeros = module.graph.get_attr(name)
                zeros.meta = dict(user.meta)
                user.replace_all_uses_with(zeros)
                module.graph.erase_node(user)


#: Operator -> position of the gain among its arguments, and of the saved statistics, among its arguments (True) or its
#: results.
_STATISTICS = {
    "aten.native_batch_norm_backward.default": (2, (5, 6), True), "aten.native_layer_norm_backward.default": (5, (3, 4), True),
    "aten.native_group_norm_backward.default": (4, (2, 3), True),
    "aten._native_batch_norm_legit_functional.default": (1, (1, 2), False), "aten.native_layer_norm.default": (2, (1, 2), False),
    "aten.native_group_norm.default": (1, (1, 2), False),
}  # fmt: skip


def _widen_statistics(module: Any) -> None:
    """Give saved statistics of norms the dtype that they have in calls: for 16-bit operands with a float32 gain they
    are float32, while PyTorch traces them with 16 bits on a CPU."""
    for node in module.graph.nodes:
        gain, places, given = _STATISTICS.get(str(node.target), (0, (), False))
        wide = getattr(node.args[gain], "meta", {}).get("val") if places else None
        if given:
            saved = [node.args[i] for i in places if node.args[i].op == "placeholder"]
        else:
            saved = [user for user in node.users if user.target is operator.getitem and user.args[1] in places]
        for one in saved:  # grows
            saved += [user for user in one.users if str(user.target) == "aten.detach.default"]
            value = one.meta.get("val")
            if wide is not None and value is not None and value.dtype.itemsize == 2 < wide.dtype.itemsize:
                one.meta["val"] = value.to(wide.dtype)


def _order_equal_keys(module: Any) -> None:
    """Make sorts stable, as those of programs are. PyTorch leaves the order of equal keys open, and their positions, as
    of the tokens of an expert, would differ from those of the program at its comparison."""
    import torch

    for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.sort.default):
        named = {"dim": _argument(node, "dim"), "descending": _argument(node, "descending")}
        node.target, node.args, node.kwargs = torch.ops.aten.sort.stable, node.args[:1], {"stable": True, **named}


def _argument(node: Any, name: str) -> Any:
    """Value of an operator's argument in a call, or its default."""
    position, declared = next((i, a) for i, a in enumerate(node.target._schema.arguments) if a.name == name)
    return node.args[position] if position < len(node.args) else node.kwargs.get(name, declared.default_value)


def _views_of_results(graph: Any, seen: int | None) -> list[Any]:
    """Copy the view operators of those of the first `seen` results that share memory with another result or an input.
    The copies, at the end of the graph, are returned. They must stay eager: the results of a program do not share
    memory, and the caller may later write to a result.
    """
    output = graph.output_node()
    by_memory: defaultdict[Any, set[Any]] = defaultdict(set)
    results = {n for n in output.args[0][:seen] if hasattr(n, "meta")}
    for node in (*results, *graph.find_nodes(op="placeholder")):
        for memory in _memory_of(node):
            by_memory[memory].add(node)
    copies: dict[Any, Any] = {}

    def copied(node: Any) -> Any:
        """The node itself, or for a view a copy of the node and of all views that it is made from."""
        viewed = _viewed(node)
        if viewed is not None and node not in copies:
            source = copied(viewed)
            with graph.inserting_before(output):
                copies[node] = graph.node_copy(node, lambda n: source if n is viewed else n)
        return copies.get(node, node)

    shared = {node for nodes in by_memory.values() if len(nodes) > 1 for node in nodes}
    for node in shared & results:
        if copied(node) is not node:
            output.replace_input_with(node, copies[node])
    graph.eliminate_dead_code()
    return list(copies.values())


def _memory_of(node: Any) -> set[Any]:
    """The storages of a node's traced tensors."""
    from torch.multiprocessing.reductions import StorageWeakRef

    return {
        StorageWeakRef(v.untyped_storage())
        for v in tensors_of(node.meta.get("val"))
        if str(v.layout) == "torch.strided"
    }


def _viewed(node: Any) -> Any:
    """The operand that an operator's result is a view of; None if it has memory of its own."""
    if node.op != "call_function":
        return None
    memory = _memory_of(node)
    return next((n for n in node.all_input_nodes if memory & _memory_of(n)), None)


def _source(module: Any, node: Any, index: dict[Any, int]) -> Any:
    if node.op == "placeholder":
        return index[node]
    return getattr(module, node.target, None) if node.op == "get_attr" else None


def _counts(node: Any) -> bool:
    """Whether a node is an operator on tensors."""
    return (
        node.op == "call_function" and node.target is not operator.getitem and bool([*tensors_of(node.meta.get("val"))])
    )


def _computes(node: Any) -> bool:
    """Whether a node is an operator that computes, not a view."""
    schema = getattr(node.target, "_schema", None)
    return _counts(node) and not (schema and any(r.alias_info is not None for r in schema.returns))


def _misplaced(module: Any) -> dict[Any, str]:
    """Operators that no program can run: other devices, sparse tensors, tensors without data."""
    home = device_of(module)
    found: dict[Any, str] = {}
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        for value in (v for n in (node, *node.all_input_nodes) for v in tensors_of(n.meta.get("val"))):
            if value.device != home:
                found[node] = f"a tensor on {value.device}"
            elif str(value.layout) != "torch.strided":
                found[node] = f"a tensor of layout {value.layout}"
        if any(
            n.op == "get_attr" and not hasattr(getattr(module, n.target, None), "dtype") for n in node.all_input_nodes
        ):
            found[node] = "it calls a subgraph"
    return found


def _undefined(graph: Any, reasons: Collection[Any]) -> dict[Any, str]:
    """Tensors without defined values (`torch.empty`) that operators outside of parts get, or the caller: as results of
    a program they would differ from the eager ones.
    """
    reason = "its values are undefined"
    created = [n for n in graph.nodes if str(n.target).startswith(("aten.empty", "aten.new_empty"))]
    return {n: reason for n in created if any(user.op == "output" or user in reasons for user in n.users)}


def _islands(graph: Any, inside: set[Any], reasons: dict[Any, str]) -> list[IslandReport]:
    """Operators outside of parts by kind and reason, with the bytes that cross between them and parts."""
    counts: Counter[tuple[str, str]] = Counter()
    crossing: defaultdict[tuple[str, str], int] = defaultdict(int)
    for node in graph.nodes:
        if node in inside or not _counts(node):
            continue
        key = str(node.target), reasons.get(node, "a cycle through an eager operator")
        counts[key] += 1
        crossing[key] += sum(bytes_of(n.meta.get("val")) for n in node.all_input_nodes if n in inside)
        if any(user in inside for user in node.users):
            crossing[key] += bytes_of(node.meta.get("val"))
    return [IslandReport(name, n, reason, crossing[name, reason]) for (name, reason), n in counts.items()]


__all__ = ["Part", "Split", "device_of", "saved_results", "split", "tensors_of"]
