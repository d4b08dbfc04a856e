"""Checks host and device memory: refuses by arithmetic what cannot fit, and names sizes when an allocation fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

from ..costdb.keys.device import gpu_facts
from ..egraph.evaluate.interpret import LAZY, expanded
from ..egraph.ir.graph import Graph
from ..egraph.ir.tensor import Tensor
from ..egraph.types import dtypes
from ..egraph.types.dims import concrete
from ..errors import DeviceMemoryError, TooLargeError
from ..processes.memory_limits import available_bytes, host_bytes
from ..wording import spelled_bytes

_HINT = "give smaller sizes (dims=, fixed=), or optimize parts of the model"


def input_output_bytes(graph: Graph) -> int:
    """Bytes of the inputs, states and results of a graph. A program holds all of them at once."""
    return sum(t.type.nbytes for t in (*graph.inputs, *graph.leaves("state"), *graph.roots))


def largest_value_bytes(graph: Graph) -> int:
    """Bytes of the largest value that a run of a graph of known sizes computes from inputs and states; views do not
    count."""
    fed: dict[int, bool] = {}
    largest = 0
    for n in expanded(graph).nodes():
        fed[id(n)] = n.op in ("input", "state") or any(fed[id(a)] for a in n.args)
        if fed[id(n)] and n.args and n.entry.kind != "view" and n.op not in LAZY:
            largest = max(largest, n.type.nbytes)
    return largest


def refuse_too_large(graph: Graph) -> None:
    """Raise TooLargeError if a graph of known sizes has inputs and results that exceed this machine's memory."""
    if (needed := input_output_bytes(graph)) > (have := host_bytes()):
        raise TooLargeError(
            f"inputs and results take {spelled_bytes(needed)}, this machine has {spelled_bytes(have)}",
            where=graph.name,
            hint=_HINT,
        )


def refuse_too_large_for_gpu(graph: Graph) -> None:
    """Raise DeviceMemoryError if a graph of known sizes has inputs and results that exceed this machine's GPU memory.

    Only the GPU's total memory is queried.
    """
    have = int(gpu_facts().get("memory_bytes", 0))  # 0 without a real GPU (dry run)
    if have and (needed := input_output_bytes(graph)) > have:
        raise DeviceMemoryError(
            f"inputs and results take {spelled_bytes(needed)}, the GPU has {spelled_bytes(have)}",
            where=graph.name,
            hint=_HINT,
        )


def run_bytes(graph: Graph, *, float64: bool) -> int:
    """Lower bound in bytes on the memory that the interpreter takes for a graph of known sizes.

    That is the largest set of results that are live at once, without leaves and views. `float64`: for a run in float64.
    """
    roots, order = expanded(graph).roots, expanded(graph).nodes()
    uses = Counter([id(a) for node in order for a in node.args] + [id(r) for r in roots])
    taken = {id(n): 0 if n.is_leaf or n.entry.kind == "view" or n.op in LAZY else _nbytes(n, float64) for n in order}
    live = peak = 0
    for node in order:
        live += taken[id(node)]
        peak = max(peak, live)
        for a in node.args:
            uses[id(a)] -= 1
            live -= 0 if uses[id(a)] else taken[id(a)]
    return peak


def _nbytes(node: Tensor, float64: bool) -> int:
    wide = float64 and dtypes.is_float(node.dtype)
    return prod(concrete(node.shape)) * 8 if wide else node.type.nbytes


def refuse_reference(graph: Graph) -> None:
    """Raise TooLargeError if the host has too little memory for the reference runs of a graph.

    These are a float64 run and a run in the graph's dtypes, one after the other, and then the program on copies of the
    inputs. Inputs are allocated already.
    """
    copies = sum(t.type.nbytes for t in (*graph.inputs, *graph.leaves("state")))
    out = sum(t.type.nbytes for t in graph.roots)
    wide = sum(t.type.nbytes if t.dtype in dtypes.HALVES else _nbytes(t, float64=True) for t in graph.roots)
    needed = max(run_bytes(graph, float64=True), wide + max(run_bytes(graph, float64=False), copies + 2 * out))
    hint = "verify=False leaves it out; give smaller sizes (dims=, fixed=), or optimize parts of the model"
    refuse_more_than_available(needed, "verification", graph, hint)


def refuse_more_than_available(needed: int, what: str, graph: Graph, hint: str = _HINT) -> None:
    """Raise TooLargeError if a stage (`what`) takes more than the memory that this process can still get.

    `needed`: bytes. `graph`, `hint`: for the message.
    """
    if needed > (have := available_bytes()):
        raise TooLargeError(
            f"{what} takes at least {spelled_bytes(needed)} of memory, {spelled_bytes(have)} are available",
            where=graph.name,
            hint=hint,
        )


def eager_bytes(graph: Graph) -> int:
    """Bytes that a function of arrays takes for a graph of known sizes if it keeps every intermediate, as a Python
    function with one name per value does. Views take none.
    """
    return sum(n.type.nbytes for n in graph.nodes() if n.args and n.entry.kind != "view")


def memory_shortage(needed: int) -> str:
    """Text that says how many bytes are missing if `needed` are not available; "" if they are."""
    have = available_bytes()
    return (
        f"it may take {spelled_bytes(needed)} of memory, {spelled_bytes(have)} are available" if needed > have else ""
    )


@contextmanager
def memory_errors_named(graph: Graph) -> Iterator[None]:
    """Context manager that converts a MemoryError to a TooLargeError that names the graph's largest value."""
    try:
        yield
    except MemoryError as error:
        largest = max((n.type for n in graph.nodes()), key=lambda kind: kind.nbytes)
        what = f"{error or 'an allocation failed'}; the largest value, {largest}, takes {spelled_bytes(largest.nbytes)}"
        raise TooLargeError(f"memory ran out: {what}", where=graph.name, hint=_HINT) from error


__all__ = [
    "eager_bytes", "host_bytes", "input_output_bytes", "largest_value_bytes", "memory_errors_named", "memory_shortage", "refuse_more_than_available",
    "refuse_reference", "refuse_too_large", "refuse_too_large_for_gpu", "run_bytes",
]  # fmt: skip
