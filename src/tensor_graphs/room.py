"""Room on the host: what certainly does not fit is refused by arithmetic, and what found no room is named with its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .costdb.device import gpu_facts, machine_memory
from .egraph.graph import Graph
from .errors import DeviceMemoryError, TooLargeError

_HINT = "give smaller sizes (dims=, fixed=), or optimize parts of the model"


def host_bytes() -> int:
    """Bytes of memory that this process can ever have: the machine's, or its container's where that is less."""
    found = machine_memory()
    with suppress(OSError, ValueError):  # no such file, or "max"
        found = min(found, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return found


def in_and_out(graph: Graph) -> int:
    """Bytes of inputs, states and results, which a program holds all at once."""
    return sum(t.type.nbytes for t in (*graph.inputs, *graph.leaves("state"), *graph.roots))


def refuse_too_large(graph: Graph) -> None:
    """TooLargeError for a graph of known sizes whose inputs and results alone do not fit into this machine."""
    if (needed := in_and_out(graph)) > (have := host_bytes()):
        raise TooLargeError(
            f"inputs and results take {needed} bytes, this machine has {have}", where=graph.name, hint=_HINT
        )


def refuse_too_large_for_gpu(graph: Graph) -> None:
    """DeviceMemoryError for a graph of known sizes whose inputs and results alone do not fit into the GPU here, whatever else is
    in its memory. Nothing is asked of it but its size."""
    have = int(gpu_facts().get("memory_bytes", 0))  # none where it is only rehearsed
    if have and (needed := in_and_out(graph)) > have:
        raise DeviceMemoryError(
            f"inputs and results take {needed} bytes, the GPU has {have}", where=graph.name, hint=_HINT
        )


@contextmanager
def memory_errors_named(graph: Graph) -> Iterator[None]:
    """TooLargeError in place of a MemoryError."""
    try:
        yield
    except MemoryError as error:
        largest = max((n.type for n in graph.nodes()), key=lambda kind: kind.nbytes)
        what = f"{error or 'an allocation failed'}; the largest value, {largest}, takes {largest.nbytes} bytes"
        raise TooLargeError(f"memory ran out: {what}", where=graph.name, hint=_HINT) from error


__all__ = ["host_bytes", "in_and_out", "memory_errors_named", "refuse_too_large", "refuse_too_large_for_gpu"]
