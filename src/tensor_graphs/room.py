"""Host and device memory checks: refuse by arithmetic what cannot fit, and name sizes when an allocation fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .costdb.device import gpu_facts
from .egraph.graph import Graph
from .egraph.host import host_bytes
from .errors import DeviceMemoryError, TooLargeError

_HINT = "give smaller sizes (dims=, fixed=), or optimize parts of the model"


def in_and_out(graph: Graph) -> int:
    """Bytes of inputs, states and results, all of which a program holds at once."""
    return sum(t.type.nbytes for t in (*graph.inputs, *graph.leaves("state"), *graph.roots))


def refuse_too_large(graph: Graph) -> None:
    """TooLargeError if a graph of known sizes has inputs and results that exceed this machine's memory."""
    if (needed := in_and_out(graph)) > (have := host_bytes()):
        raise TooLargeError(
            f"inputs and results take {needed} bytes, this machine has {have}", where=graph.name, hint=_HINT
        )


def refuse_too_large_for_gpu(graph: Graph) -> None:
    """DeviceMemoryError if a graph of known sizes has inputs and results that exceed this machine's GPU memory. Queries
    only its total size.
    """
    have = int(gpu_facts().get("memory_bytes", 0))  # 0 without a real GPU (dry run)
    if have and (needed := in_and_out(graph)) > have:
        raise DeviceMemoryError(
            f"inputs and results take {needed} bytes, the GPU has {have}", where=graph.name, hint=_HINT
        )


@contextmanager
def memory_errors_named(graph: Graph) -> Iterator[None]:
    """Convert a MemoryError of the block to a TooLargeError that names the largest value."""
    try:
        yield
    except MemoryError as error:
        largest = max((n.type for n in graph.nodes()), key=lambda kind: kind.nbytes)
        what = f"{error or 'an allocation failed'}; the largest value, {largest}, takes {largest.nbytes} bytes"
        raise TooLargeError(f"memory ran out: {what}", where=graph.name, hint=_HINT) from error


__all__ = ["host_bytes", "in_and_out", "memory_errors_named", "refuse_too_large", "refuse_too_large_for_gpu"]
