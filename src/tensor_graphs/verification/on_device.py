"""Verifies a program on its own device: inputs, both reference runs and the comparison are tensors there.

The checks are those of `verify.py`, which compares arrays on the host: the graph runs in float64 and in its own dtypes,
and every element of every output is compared in float64. For large activations, drawing inputs, copying them and
comparing on the host dominate verification of a small graph; here only a few sums are copied to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..backends.gpu import is_gpu
from ..backends.runtime.marshalling import array_of, is_torch, tensor_of
from ..backends.verification.input_distributions import InputDistribution, input_distributions
from ..backends.verification.inputs import SHARE as ODD_SHARE
from ..backends.verification.inputs import kinds_of_lines, odd_numbers, odd_share, random_indices, whole_numbers
from ..backends.verification.ties import made_alike
from ..backends.verification.torch_reference import evaluate_tensors
from ..backends.verification.uniform_lines import make_lines_uniform, make_whole_uniform
from ..egraph.evaluate.interpret import expanded
from ..egraph.ir.graph import Graph
from ..egraph.ir.tensor import Tensor
from ..egraph.types import dtypes
from ..egraph.types.dims import concrete
from ..egraph.types.dtypes import HALVES, torch_dtype

if TYPE_CHECKING:
    import torch

REFERENCE_MEMORY_MULTIPLE = 8  # memory of references, inputs and copies, relative to the inputs and outputs
# share of free device memory that kept weights may have; a program not bound yet needs as much, or twice that
WEIGHTS_SHARE = 0.25
# shares of device memory that verification may use; the rest is the program's: in any case, and together with the
# weights, which the program and the references may each hold
MAX_MEMORY_SHARE, MAX_SHARE_WITH_WEIGHTS, WEIGHT_COPIES = 0.125, 0.5, 2


def fits(device: str, nbytes: int, weights: int) -> bool:
    """Whether the references for `nbytes` of inputs and outputs fit into a device's memory and leave enough for the
    program. `weights`: bytes of the graph's weights."""
    import torch

    if not is_gpu(torch.device(device)):
        return True
    total = torch.cuda.get_device_properties(device).total_memory
    room = max(MAX_MEMORY_SHARE * total, MAX_SHARE_WITH_WEIGHTS * total - WEIGHT_COPIES * weights)
    return bool(REFERENCE_MEMORY_MULTIPLE * nbytes <= room)


def sample_tensors(
    leaves: Sequence[Tensor], rng: np.random.Generator, bounds: Mapping[str, int] | None, device: str,
    typical: Mapping[str, tuple[float, float]] | None = None,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Random inputs and states drawn on a device, with the distributions of `reference.sample_inputs`.

    The same generator on the same kind of device gives the same values. `bounds`: exclusive upper bounds of index
    inputs by name. `typical`: mean and deviation of floats by name.
    """
    import torch

    drawing = torch.Generator(device).manual_seed(int(rng.integers(1 << 62)))
    found = {}
    for leaf in leaves:
        shape, name, kind = concrete(leaf.shape), str(leaf.attr("name")), dtypes.category(leaf.dtype)
        if kind == "float":
            wide = torch.float64 if leaf.dtype == "float64" else torch.float32
            mean, deviation = (typical or {}).get(name, (0.0, 1.0))
            normal = torch.randn(shape, generator=drawing, dtype=wide, device=device)
            drawn = (mean + deviation * normal).to(torch_dtype(leaf.dtype))
        elif kind == "bool":
            drawn = torch.rand(shape, generator=drawing, device=device) < 0.5
        else:
            indices = random_indices(shape, max(1, (bounds or {}).get(name, 2)), rng)
            drawn = tensor_of(np.asarray(indices.astype(dtypes.numpy_dtype(leaf.dtype)), order="C")).to(device)
        found[name] = drawn
    return found


def draw(graph: Graph, rng: np.random.Generator, device: str, turn: int = 0) -> dict[str, torch.Tensor]:
    """Random inputs and states of a graph on a device, with the distributions of `backends.verification.inputs.inputs`.

    The same generator on the same kind of device gives the same values. `turn`: index of the input set; selects the
    distribution.
    """
    import torch

    drawn = torch.Generator(device).manual_seed(int(rng.integers(1 << 62)))
    known, found = input_distributions(graph), {}
    for leaf in (*graph.inputs, *graph.leaves("state")):
        shape, name, kind = concrete(leaf.shape), str(leaf.attr("name")), dtypes.category(leaf.dtype)
        role = known.get(name) or InputDistribution()
        if kind == "bool":
            found[name] = torch.rand(shape, generator=drawn, device=device) < 0.5
        elif kind == "int":
            found[name] = tensor_of(np.asarray(whole_numbers(shape, leaf.dtype, role, rng, turn), order="C")).to(device)
        else:
            wide = torch.float64 if leaf.dtype == "float64" else torch.float32
            x = role.mean + role.deviation * torch.randn(shape, generator=drawn, dtype=wide, device=device)
            share = odd_share(role) if turn == 1 else ODD_SHARE
            some = torch.rand(shape, generator=drawn, device=device) < share if turn else None
            if role.positive:
                away = x.abs() + 0.1 * role.deviation
                x = torch.where(some, x, away) if turn == 2 and some is not None else away
            if turn == 1 and some is not None:
                odd = torch.tensor(odd_numbers(role), dtype=wide, device=device)
                x = torch.where(some, odd[torch.randint(len(odd), shape, generator=drawn, device=device)], x)
            found[name] = x.to(torch_dtype(leaf.dtype))
    for name, x in found.items():
        role = known.get(name) or InputDistribution()
        if turn == 1 and role.alike:
            arrays = {n: array_of(found[n].cpu()) for n in {name, *(a.other for a in role.alike)}}
            tied = made_alike(arrays, name, role.alike, ODD_SHARE, rng, role.positive)
            found[name] = tensor_of(np.asarray(tied, order="C")).to(device)
        elif turn == 2 and (lines := kinds_of_lines(role, str(x.dtype).removeprefix("torch."))):
            make_lines_uniform(x, lines, rng)
        elif turn > 2 and (lines := kinds_of_lines(role, str(x.dtype).removeprefix("torch."))):
            make_whole_uniform(x, lines, turn)
    return found


def room_for_weights(graph: Graph, device: str) -> dict[str, torch.Tensor] | None:
    """A new, empty dict (name -> tensor) for a graph's weights on a GPU, which reference runs fill and share; None if
    the GPU's free memory does not suffice or `device` is no GPU.

    Copying the weights is most of the time of a reference run of a large model.
    """
    import torch

    if not is_gpu(torch.device(device)):
        return None
    nbytes = sum(leaf.type.nbytes for leaf in graph.leaves("param"))
    return {} if nbytes <= WEIGHTS_SHARE * torch.cuda.mem_get_info(device)[0] else None


def reference_tensors(
    graph: Graph, rng: np.random.Generator, device: str, poll: Callable[[], object] = lambda: None,
    kept: dict[str, torch.Tensor] | None = None, turn: int = 0,
) -> tuple[dict[str, torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:  # fmt: skip
    """Draw inputs on a device and run the graph there; returns (inputs, outputs in float64, outputs in the graph's own
    dtypes).

    Raises torch.OutOfMemoryError if memory runs out. `kept`: weights already on the device, by name; newly copied ones
    are added. `turn`: index of the input set within one verification, from 0. `poll` is called before each operation
    and may raise.
    """
    inputs = draw(graph, rng, device, turn)
    graph = expanded(graph, wide_means=True)
    wide = evaluate_tensors(graph, inputs, device, float64=True, poll=poll, kept=kept)
    exact = [_kept(value, root.dtype) for value, root in zip(wide, graph.roots)]
    del wide
    return inputs, exact, evaluate_tensors(graph, inputs, device, poll=poll, kept=kept)


def _kept(exact: torch.Tensor, dtype: str) -> torch.Tensor:
    """Keep the reference of a 16-bit output in float32 unless an element overflows there (as `reference._kept`)."""
    if dtype not in HALVES:
        return exact
    kept = exact.float()
    return kept if bool((kept.isfinite() == exact.isfinite()).all()) else exact


def near(value: Any, like: torch.Tensor) -> torch.Tensor:
    """The array or tensor `value` as a tensor on the device of `like`, its reference."""
    found: torch.Tensor = (value if is_torch(value) else tensor_of(np.asarray(value, order="C"))).to(like.device)
    return found


def unequal(y: torch.Tensor, own: torch.Tensor) -> float:
    """Fraction of elements of an integer or bool output that differ from its reference `own`; 1 for different
    shapes."""
    if y.shape != own.shape:
        return 1.0
    if not own.numel():
        return 0.0
    y, own = (
        x if x.is_floating_point() else x.long() for x in (y, own)
    )  # CUDA compares no unsigned integers wider than 8 bits
    return float((y != own).double().mean())
