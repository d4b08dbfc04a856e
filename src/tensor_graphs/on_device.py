"""Verification where a program's values are: inputs, both reference runs and the comparison as tensors on one device.

As in `verify.py`, which compares arrays on the host: the whole graph in float64 and in its own dtypes, every element of every
output compared in float64. What large activations cost there (drawing them, copying them to the device and back, comparing
them) is nearly all of the time that a small graph's verification takes; here nothing but a few sums reaches the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .backends.drawing import SHARE as ODD_SHARE
from .backends.drawing import Role, odd_numbers, random_indices, roles, whole_numbers
from .backends.exchange import is_torch, tensor_of
from .backends.torch_reference import evaluate_tensors, torch_dtype
from .egraph import dtypes
from .egraph.dims import concrete
from .egraph.dtypes import HALVES
from .egraph.graph import Graph, Tensor
from .egraph.interpret import expand_all

if TYPE_CHECKING:
    import torch

ROOM = 8  # times the bytes in and out: what references in float64, their inputs and copies of these take
SHARE = 0.125  # of a device's memory that they may take: the rest is the program's


def fits(device: str, nbytes: int) -> bool:
    """Whether references for so many bytes of inputs and outputs leave room on a device for the program."""
    import torch

    if torch.device(device).type != "cuda":
        return True
    return bool(ROOM * nbytes <= SHARE * torch.cuda.get_device_properties(device).total_memory)


def sample_tensors(
    leaves: Sequence[Tensor], rng: np.random.Generator, bounds: Mapping[str, int] | None, device: str
) -> dict[str, torch.Tensor]:
    """Random values for inputs and states, of the distributions of `verify.sample_inputs`, drawn on a device: the same ones
    for the same generator on the same kind of device."""
    import torch

    drawing = torch.Generator(device).manual_seed(int(rng.integers(1 << 62)))
    found = {}
    for leaf in leaves:
        shape, name, kind = concrete(leaf.shape), str(leaf.attr("name")), dtypes.category(leaf.dtype)
        if kind == "float":
            wide = torch.float64 if leaf.dtype == "float64" else torch.float32
            drawn = torch.randn(shape, generator=drawing, dtype=wide, device=device).to(torch_dtype(leaf.dtype))
        elif kind == "bool":
            drawn = torch.rand(shape, generator=drawing, device=device) < 0.5
        else:
            indices = random_indices(shape, max(1, (bounds or {}).get(name, 2)), rng)
            drawn = tensor_of(np.asarray(indices.astype(dtypes.numpy_dtype(leaf.dtype)), order="C")).to(device)
        found[name] = drawn
    return found


def draw(graph: Graph, rng: np.random.Generator, device: str, turn: int = 0) -> dict[str, torch.Tensor]:
    """Values for inputs and states as `drawing.inputs` has them, drawn on a device: the same ones for the same generator on the
    same kind of device."""
    import torch

    drawn = torch.Generator(device).manual_seed(int(rng.integers(1 << 62)))
    known, found = roles(graph), {}
    for leaf in (*graph.inputs, *graph.leaves("state")):
        shape, name, kind = concrete(leaf.shape), str(leaf.attr("name")), dtypes.category(leaf.dtype)
        role = known.get(name) or Role()
        if kind == "bool":
            found[name] = torch.rand(shape, generator=drawn, device=device) < 0.5
        elif kind == "int":
            found[name] = tensor_of(np.asarray(whole_numbers(shape, leaf.dtype, role, rng, turn), order="C")).to(device)
        else:
            wide = torch.float64 if leaf.dtype == "float64" else torch.float32
            x = torch.randn(shape, generator=drawn, dtype=wide, device=device)
            some = torch.rand(shape, generator=drawn, device=device) < ODD_SHARE if turn else None
            if role.positive:
                x = torch.where(some, x, x.abs() + 0.1) if turn == 2 and some is not None else x.abs() + 0.1
            if turn == 1 and some is not None:
                odd = torch.tensor(odd_numbers(role), dtype=wide, device=device)
                x = torch.where(some, odd[torch.randint(len(odd), shape, generator=drawn, device=device)], x)
            found[name] = x.to(torch_dtype(leaf.dtype))
    return found


def room_for_weights(graph: Graph, device: str) -> dict[str, torch.Tensor] | None:
    """Where the weights of a graph stay between runs on a GPU, if there is room: taking them there is most of what a run of a large
    model takes. None elsewhere."""
    import torch

    if torch.device(device).type != "cuda":
        return None
    nbytes = sum(leaf.type.nbytes for leaf in graph.leaves("param"))
    return {} if nbytes <= SHARE * torch.cuda.mem_get_info(device)[0] else None


def reference_tensors(
    graph: Graph, rng: np.random.Generator, device: str, poll: Callable[[], object] = lambda: None,
    kept: dict[str, torch.Tensor] | None = None, turn: int = 0,
) -> tuple[dict[str, torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:  # fmt: skip
    """Inputs, the float64 run, and the run in the graph's own dtypes; torch.OutOfMemoryError where they find no room. `kept`: weights
    that are on the device already, see `evaluate_tensors`; `turn` counts the inputs of one verification from 0."""
    inputs = draw(graph, rng, device, turn)
    graph = graph.with_roots(expand_all(graph.roots, wide_means=True))
    wide = evaluate_tensors(graph, inputs, device, float64=True, poll=poll, kept=kept)
    exact = [_kept(value, root.dtype) for value, root in zip(wide, graph.roots)]
    del wide
    return inputs, exact, evaluate_tensors(graph, inputs, device, poll=poll, kept=kept)


def _kept(exact: torch.Tensor, dtype: str) -> torch.Tensor:
    """As `verify._kept`: in float32 beside numbers of 16 bits, unless one of them becomes infinite there."""
    if dtype not in HALVES:
        return exact
    kept = exact.float()
    return kept if bool((kept.isfinite() == exact.isfinite()).all()) else exact


def near(value: Any, like: torch.Tensor) -> torch.Tensor:
    """An output, which may be an array, where its reference is."""
    found: torch.Tensor = (value if is_torch(value) else tensor_of(np.asarray(value, order="C"))).to(like.device)
    return found


def unequal(y: torch.Tensor, own: torch.Tensor) -> float:
    """Share of the places where integers or bools differ; 1 for another shape."""
    if y.shape != own.shape:
        return 1.0
    if not own.numel():
        return 0.0
    y, own = (
        x if x.is_floating_point() else x.long() for x in (y, own)
    )  # a GPU compares no unsigned integers but bytes
    return float((y != own).double().mean())
