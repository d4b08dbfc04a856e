"""Draws verification inputs and computes reference runs: in float64 and in the dtypes of the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy as np

from ..backends.runtime.threads import one_blas_thread
from ..backends.runtime.upload import copied_bytes
from ..backends.verification import inputs as drawing
from ..backends.verification.index_bounds import index_bounds
from ..backends.verification.inputs import random_indices
from ..costdb.keys import rates
from ..costdb.keys.device import gpu_facts
from ..egraph.evaluate.interpret import evaluate, expanded
from ..egraph.ir.graph import Graph
from ..egraph.ir.tensor import Tensor
from ..egraph.ir.weight_data import DerivedData
from ..egraph.types import dtypes
from ..egraph.types.dims import concrete
from ..egraph.types.dtypes import HALVES
from ..extract.model.work import graph_flops
from .comparison import (
    Array,
    Values,
)
from .memory_checks import eager_bytes, input_output_bytes, refuse_reference

LARGE_FLOPS = 2e10  # flops above which one seed is used instead of three (noted in the report)
LARGE_BYTES = 1 << 28  # bytes of inputs and outputs, likewise
#: Flops up to which one thread computes a graph's products. Where other processes have the cores, each product of two
#: threads waits for the second one to get a turn: 30 to 60 ms for one that takes 0.06 ms (128 x 64 x 64, load 20).
ONE_THREAD_FLOPS = 1e9


def sample_inputs(
    leaves: Sequence[Tensor], rng: np.random.Generator, bounds: Mapping[str, int] | None = None,
    typical: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, Array]:  # fmt: skip
    """Random values for inputs and states: normal floats of the mean and deviation `typical[name]` (default: 0 and 1),
    fair bools, integers below `bounds[name]` (default 2).

    Integers are distinct along each sufficiently short axis, because the order of two writes to the same index is
    undefined.
    """
    found = {}
    for leaf in leaves:
        shape, name = concrete(leaf.shape), str(leaf.attr("name"))
        kind = dtypes.category(leaf.dtype)
        target = dtypes.numpy_dtype(leaf.dtype)
        if kind == "float":
            mean, deviation = (typical or {}).get(name, (0.0, 1.0))
            draw = lambda s, target=target, mean=mean, deviation=deviation: np.asarray(
                mean + deviation * rng.standard_normal(s)
            ).astype(target)
            found[name] = drawing.repeated(shape, draw)
        elif kind == "bool":
            found[name] = drawing.repeated(shape, lambda s: np.asarray(rng.random(s) < 0.5))
        else:
            found[name] = random_indices(shape, max(1, (bounds or {}).get(name, 2)), rng).astype(target)
    return found


def sampled_near(graph: Graph, rng: np.random.Generator, device: str = "") -> Values:
    """Random values for a graph's inputs: tensors on a Torch device, or arrays if `device` is "" or its memory is
    insufficient."""
    if not device or not fits_device(device, graph, sum(t.type.nbytes for t in graph.inputs)):
        return sample_inputs(graph.inputs, rng, index_bounds(graph), graph.typical)
    from .on_device import sample_tensors

    return sample_tensors(graph.inputs, rng, index_bounds(graph), device, graph.typical)


KEPT_BYTES = 1 << 22  # maximum output bytes of a reference that is kept in memory between sizes


Reference = tuple[Values, list[Any], list[Any]]  # (inputs, float64 run, own-dtype run)


def first_reference(
    graph: Graph, device: str, *, seed: int = 0, poll: Callable[[], object] = lambda: None
) -> dict[int, Reference]:  # fmt: skip
    """Draw the first verification input and run the graph on it, on a device, before the program exists; returns {0:
    reference}, to be passed to `verify` as `references`.

    Empty if device memory is insufficient. Raises Halted through `poll`.
    """
    nbytes = input_output_bytes(graph)
    if has_unsigned(graph) or not fits_device(device, graph, nbytes if nbytes > LARGE_BYTES else 3 * nbytes):
        return {}
    import torch

    from .on_device import reference_tensors

    with suppress(torch.OutOfMemoryError):
        draw = np.random.default_rng((seed, 0))
        return {0: reference_tensors(graph, draw, device, poll, weights_on_device(graph, device))}
    return {}


def with_atomic_ops(graph: Graph) -> Graph:
    """The graph with composite ops expanded as a float64 run evaluates them."""
    return expanded(graph, wide_means=True)


def expected_seconds(graph: Graph, flops: float, on_gpu: bool, derived: bool = True) -> float:
    """Estimate of the seconds that verifying `graph` on one input takes, on the GPU or on the CPU.

    Sum of: reading the weights once (on a GPU: copying `weight_bytes(graph, derived)` to it), and two runs (the graph
    and its reference), each of `flops` operations, in which every value is written once and read once. `derived`:
    whether quantized weights are copied, too; if not, they are on the GPU already.
    """
    known = rates.GPU if on_gpu else rates.HOST
    weights = weight_bytes(graph, derived) if on_gpu else sum(leaf.type.nbytes for leaf in graph.leaves("param"))
    return weights / known.weight_bytes_per_s + expected_run_seconds(graph, flops, on_gpu)


def expected_run_seconds(graph: Graph, flops: float, on_gpu: bool) -> float:
    """Estimate of the seconds that verifying `graph` on a further input takes: `expected_seconds` without the
    weights."""
    return run_seconds_of(flops, sum(n.type.nbytes for n in graph.nodes() if n.args), on_gpu)


def run_seconds_of(flops: float, nbytes: float, on_gpu: bool) -> float:
    """`expected_run_seconds` of a graph of `flops`, the values of which take `nbytes` bytes."""
    known = rates.GPU if on_gpu else rates.HOST
    return 2 * flops / known.reference_flops_per_s + 4 * nbytes / known.reference_bytes_per_s


def call_seconds(graph: Graph, on_gpu: bool = False) -> float:
    """Estimate of the seconds of one call of the caller's function, of arrays or of tensors on a GPU, from the sizes in
    its graph: `eager_bytes` are written once and read once."""
    known = rates.GPU if on_gpu else rates.HOST
    return graph_flops(list(graph.roots)) / known.reference_flops_per_s + 2 * eager_bytes(graph) / (
        known.reference_bytes_per_s
    )


def weight_bytes(graph: Graph, derived: bool = True) -> int:
    """Bytes that are copied to a GPU for a graph's weights: for quantized ones those of the original weights.

    `derived`: whether quantized weights count; if not, they are on the GPU already.
    """
    leaves = graph.leaves("param")
    data = [graph.params.get(str(leaf.attr("name"))) for leaf in leaves]
    without = sum(leaf.type.nbytes for leaf, known in zip(leaves, data, strict=True) if known is None)
    return without + copied_bytes([d for d in data if d is not None and (derived or not isinstance(d, DerivedData))])


def has_unsigned(graph: Graph) -> bool:
    """Whether unsigned integers occur that Torch cannot compare."""
    return any(n.dtype in ("uint16", "uint32", "uint64") for n in graph.nodes())


def fits_device(device: str, graph: Graph, nbytes: int) -> bool:
    """Whether `nbytes` of a graph's inputs and outputs and their references fit into the memory of a Torch device,
    beside a program."""
    from .on_device import fits

    return fits(device, nbytes, sum(leaf.type.nbytes for leaf in graph.leaves("param")))


def weights_on_device(graph: Graph, device: str) -> dict[str, Any] | None:
    """A new, empty cache for a graph's weights on a Torch device if they fit into its memory; else None."""
    if not device:
        return None
    from .on_device import room_for_weights

    return room_for_weights(graph, device)


def compute_reference(
    graph: Graph, rng: np.random.Generator, device: str, bitwise: bool, poll: Callable[[], object],
    weights: dict[str, Any] | None = None, turn: int = 0,
) -> Reference:  # fmt: skip
    """Draw inputs and run a graph on them; returns (inputs, outputs in float64, outputs in its own dtypes).

    Tensors on `device`; for "" arrays, computed on a GPU if there is one and `bitwise` is false. `turn`: index of the
    input set. `poll` is called before each operation and may raise. `weights`: cache of weights on the device.
    """
    if device:
        import torch

        from .on_device import reference_tensors

        with suppress(torch.OutOfMemoryError):
            return reference_tensors(graph, rng, device, poll, weights, turn)
        if weights is not None:
            weights.clear()
        torch.cuda.empty_cache()  # fall back to the host: more memory, but slower
    inputs = drawing.inputs(graph, rng, turn)
    if bitwise and turn == 2:
        inputs = drawing.special_floats(inputs, rng)
    graph = expanded(graph, wide_means=not bitwise)
    if not bitwise and not device and gpu_facts():
        import torch

        from ..backends.verification.torch_reference import evaluate_graph

        with suppress(torch.OutOfMemoryError):
            return inputs, evaluate_graph(graph, inputs, float64=True), evaluate_graph(graph, inputs)
        torch.cuda.empty_cache()
    refuse_reference(graph)
    with np.errstate(all="ignore"), nullcontext() if bitwise else interpreter_threads(graph):  # bits depend on threads
        wide = evaluate(graph, inputs, float64=True, poll=poll)
        exact = [_kept(r, root.dtype) for r, root in zip(wide, graph.roots)]
        del wide
        return inputs, exact, evaluate(graph, inputs, whole=bitwise, poll=poll)


def interpreter_threads(graph: Graph) -> AbstractContextManager[None]:
    """Context manager in which the interpreter runs a graph: the products of a small one are computed by one thread."""
    return one_blas_thread() if graph_flops(list(graph.roots)) <= ONE_THREAD_FLOPS else nullcontext()


def _kept(exact: Array, dtype: str) -> Array:
    """Keep a float64 result in float32 beside 16-bit outputs, whose ulp is at least 2**13 times that of float32, unless
    an element overflows.
    """
    if dtype not in HALVES:
        return exact
    with np.errstate(over="ignore"):
        kept = exact.astype(np.float32)
    return kept if np.array_equal(np.isfinite(kept), np.isfinite(exact)) else exact
