"""Computes the flops and the compulsory memory traffic of a kernel call, from which the roofline (lower bound of its
time) follows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...egraph.builders.builders import input as placeholder
from ...egraph.ir.tensor import Tensor, topological
from ...egraph.types.dims import concrete
from .kernel import Call, Template
from .meaning import output_terms


def node_flops(node: Tensor) -> float:
    """Flops of one node, from its op's entry: per node (`Op.work`), or per element of its result."""
    if node.entry.work is not None:
        return node.entry.work(node)
    if node.entry.kind in ("view", "leaf"):
        return 0.0
    out = prod(concrete(node.shape))
    larger = max([out, *(prod(concrete(a.shape)) for a in node.args)]) if node.entry.kind != "index" else out
    return float(larger) * node.entry.flops


def graph_flops(roots: list[Tensor]) -> float:
    """Flops of all nodes below the roots, each counted once."""
    return float(sum(node_flops(n) for n in topological(roots) if not n.is_leaf))


def call_work(template: Template, call: Call) -> tuple[float, float]:
    """Work of one kernel call as (flops, bytes): each operand is read once and each output written once.

    Gathers read only the gathered elements, and scatters into an operand write only the updates; the operand is read if
    another output is computed from the scatter. Flops are divided by `Template.rate`, the kernel's arithmetic
    throughput relative to the usual one of its operands' dtype.
    """
    if template.family == "copy":
        return 0.0, 2.0 * call.output.type.nbytes
    read = {o: float(call.operands[o].type.nbytes) for o in template.operands}
    written = [float(o.type.nbytes) for o in call.outputs]
    if template.flops is not None and not any(op in template.pattern for op in ("gather", "scatter")):
        return template.flops(call) / template.rate, sum(read.values()) + sum(written)
    roots = _roots(template, call)
    for name, picked in _picked(roots).items():
        itemsize = call.operands[name].type.nbytes // max(1, prod(concrete(call.operands[name].type.shape)))
        read[name] = min(read[name], float(picked * itemsize))
    for n, base in written_into(roots).items():
        updates, whole = (prod(concrete(roots[n].args[i].shape)) for i in (2, 0))
        read[base] = read[base] if is_read(roots, n) else 0.0
        written[n] *= updates / max(1, whole)
    flops = template.flops(call) if template.flops is not None else graph_flops(list(roots))
    return flops / template.rate, sum(read.values()) + sum(written)


def _roots(template: Template, call: Call) -> Sequence[Tensor]:
    """The term of each output over inputs; a generated kernel's own if they have the sizes of the call, since reading
    its pattern takes milliseconds."""
    leaves = (t for t in topological(template.roots) if t.op == "input")
    if template.roots and all(t.shape == call.operands[str(t.attr("name"))].type.shape for t in leaves):
        return template.roots
    return output_terms(template, call, placeholder)


def written_into(roots: Sequence[Tensor]) -> dict[int, str]:
    """Outputs that a kernel writes into an operand (scatter): output index -> name of the operand."""
    return {
        n: str(t.args[0].attr("name"))
        for n, t in enumerate(roots)
        if t.entry.fusion_role == "written" and t.args[0].op in ("input", "param")
    }


def is_read(roots: Sequence[Tensor], n: int) -> bool:
    """Whether output `n`, which the kernel writes into an operand, is also read by the same kernel (for a further
    output).
    """
    return any(a is roots[n] for t in topological(list(roots)) for a in t.args)


def _picked(roots: Sequence[Tensor]) -> dict[str, int]:
    """Input name -> number of elements read, for inputs used only by gathers."""
    picked: dict[str, int] = {}
    other: set[str] = set()
    for node in topological(roots):
        for i, a in enumerate(node.args):
            if a.op != "input":
                continue
            if i == 0 and node.entry.index_operand is not None and node.entry.fusion_role == "cheap":
                picked[a.attr("name")] = picked.get(a.attr("name"), 0) + prod(concrete(node.shape))
            else:
                other.add(a.attr("name"))
    return {name: size for name, size in picked.items() if name not in other}
