"""Decides whether a compiled graph replaces the eager one: whole calls of both, timed alternately."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

from ..costdb.keys.device import GPU_KIND
from ..pipeline.execution.timing import (
    FEW,
    QUEUED,
    Run,
    device_alone,
    idle_us,
    is_surely_faster,
    repeated,
    sampled,
    wall_us,
    why_not_faster,
    why_pairs_lost,
    wins_pairs,
)

#: Seconds of timing at most, if calls are not longer than that; seconds after which settled medians end it.
MOST_S, SETTLED_S = 1.0, 0.1
#: Relative margin by which the compiled graph must be faster.
NOISE = 0.02


def timed(calls: dict[str, Run], on_gpu: bool, first: Run) -> dict[str, list[float]]:
    """Time whole calls of several functions alternately, until medians are settled; returns µs of each call by name, at
    least one sample each.

    `first` runs untimed before each call. `on_gpu`: a call is timed until the GPU is idle.
    """
    until = time.perf_counter() + 2 * MOST_S
    ended: Callable[[], bool] = lambda: time.perf_counter() > until
    with device_alone(GPU_KIND if on_gpu else ""):
        return sampled(
            calls,
            seconds=MOST_S,
            settled=SETTLED_S,
            clock=idle_us if on_gpu else wall_us,
            ended=ended,
            first=first,
        )


class Judgement(NamedTuple):
    """Whether programs win over eager execution (`won`), median µs of the eager and of the compiled call, and why they
    do not win where their median is smaller ("" if it is not, or if they win)."""

    won: bool
    eager_us: float
    program_us: float
    why: str = ""


def faster(eager: Run, compiled: Run, on_gpu: bool, first: Run) -> Judgement:
    """Time both calls; the result says whether the compiled one is faster by more than noise.

    It must win in median and minimum, and in most pairs of calls where there are at least FEW. `first` runs untimed
    before each call. `on_gpu`: calls are timed singly, and QUEUED at a time without waiting between them, as in a model
    whose host runs ahead of the device: the compiled call must be faster singly, and not slower when queued.
    """
    samples = timed({"eager": eager, "program": compiled}, on_gpu, first)
    program_us, eager_us = samples["program"], samples["eager"]
    times = median(eager_us), median(program_us)
    if not is_surely_faster(program_us, eager_us, NOISE):
        return Judgement(False, *times, why_not_faster(program_us, eager_us, NOISE))
    if len(eager_us) >= FEW and not wins_pairs(program_us, eager_us, NOISE):
        return Judgement(False, *times, why_pairs_lost(program_us, eager_us, NOISE))
    if on_gpu:
        taken = timed({"eager": repeated(eager, QUEUED), "program": repeated(compiled, QUEUED)}, on_gpu, first)
        queued = median(taken["eager"]) / QUEUED, median(taken["program"]) / QUEUED
        if queued[1] > queued[0]:
            single = f"singly, {times[1]:.1f} µs and {times[0]:.1f} µs"
            return Judgement(
                False, *queued, f"these are times of {QUEUED} calls without waiting between them; {single}"
            )
    return Judgement(True, *times)


class TrialStep:
    """Repeatable call of a graph with a real call's arguments: forward, and backward if results need gradients.

    Arguments that the graph writes, and those that share memory with them, are copied; `reset` restores the copies.
    Gradients go to detached leaves, so neither `.grad` nor hooks of the caller's tensors are touched. `written`:
    positions of the arguments that the graph writes. `gradients`: whether the backward pass runs. `held`: tensors of
    the graph module that the graph writes (the parameters in the step of an optimizer); calls write them where they
    are, and `reset`, which has to follow the last call, restores them.
    """

    def __init__(self, args: Sequence[Any], written: Sequence[int], gradients: bool, held: Sequence[Any] = ()) -> None:
        import torch

        self.args, self.held = list(args), held
        # (what calls write, its first content): tensors or storages
        self._copies: list[tuple[Any, Any]] = [(x, x.detach().clone()) for x in held]
        tensors = {i: x for i, x in enumerate(args) if isinstance(x, torch.Tensor)}
        shared = _aliases(tensors, written)
        for i, x in tensors.items():
            if i in written and i not in shared:
                kept = x.detach().clone()
                self.args[i] = kept.clone()
                self._copies.append((self.args[i], kept))
            elif gradients and i not in shared:
                self.args[i] = x.detach()
            if gradients and x.requires_grad and i not in written and i not in shared:
                self.args[i].requires_grad_()
        self._copy_aliases([(i, tensors[i]) for i in shared])
        self._leaves = [x for x in self.args if isinstance(x, torch.Tensor) and x.requires_grad] if gradients else []

    def _copy_aliases(self, aliases: Sequence[tuple[int, Any]]) -> None:
        """Put copies in place of tensors that share memory; the copies share memory in the same way."""
        import torch

        storages: dict[int, Any] = {}
        bases: dict[int, Any] = {}
        for i, x in aliases:
            base = x if x._base is None else x._base
            address = base.untyped_storage()._cdata
            if address not in storages:
                storages[address] = base.untyped_storage().clone()
                self._copies.append((storages[address], storages[address].clone()))
            if id(base) not in bases:
                empty = torch.empty(0, dtype=base.dtype, device=base.device)
                bases[id(base)] = empty.set_(storages[address], base.storage_offset(), base.shape, base.stride())
            self.args[i] = bases[id(base)]
            if x is not base:
                same = self.args[i] if x.dtype == base.dtype else self.args[i].view(x.dtype)
                self.args[i] = same.as_strided(x.shape, x.stride(), x.storage_offset())

    def reset(self) -> None:
        """Restore the tensors that the graph writes."""
        import torch

        with torch.no_grad():
            for copy, kept in self._copies:
                copy.copy_(kept)

    def reset_held(self) -> None:
        """Restore the graph module's tensors only, not the copies of arguments."""
        import torch

        with torch.no_grad():
            for tensor, kept in self._copies[: len(self.held)]:
                tensor.copy_(kept)

    def run(self, function: Callable[..., Any]) -> Any:
        """Call a graph, forward and backward; returns the results of the forward pass."""
        results = function(*self.args)
        self._gradients(results)
        return results

    def values(self, function: Callable[..., Any]) -> list[Any]:
        """Call a graph, forward and backward; returns its results, then the gradients of its arguments (None for those
        that results do not depend on)."""
        results = function(*self.args)
        return [*results, *self._gradients(results)]

    def _gradients(self, results: Sequence[Any]) -> Sequence[Any]:
        import torch

        roots = [y for y in results if isinstance(y, torch.Tensor) and y.requires_grad] if self._leaves else []
        if not roots:
            return ()
        ones = [torch.ones_like(y) for y in roots]
        return torch.autograd.grad(roots, self._leaves, ones, allow_unused=True)  # type: ignore[no-any-return]


@contextmanager
def without_traces(devices: Sequence[Any]) -> Iterator[None]:
    """Context after which random numbers, of the CPU and of the GPUs `devices`, go on as before, and transforms of
    `torch.func` that an error left open in a graph are closed."""
    import torch

    depth = torch._C._functorch.get_dynamic_layer_stack_depth()
    with torch.random.fork_rng(devices=list({d.index for d in devices})):
        try:
            yield
        finally:
            torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)


def refuses(eager: Callable[..., Any], step: TrialStep, devices: Sequence[Any]) -> bool:
    """Whether the forward pass of a graph raises an error for the arguments of a call."""
    step.reset()
    try:
        with without_traces(devices):
            eager(*step.args)
    except Exception:
        return True
    return False


def _aliases(tensors: Mapping[int, Any], written: Sequence[int]) -> list[int]:
    """Positions of tensors that share memory with another one, if any of those that share it is written."""
    import torch

    by_storage: dict[int, list[int]] = {}
    for i, x in tensors.items():
        if x.layout == torch.strided:
            by_storage.setdefault(x.untyped_storage()._cdata, []).append(i)
    return [i for group in by_storage.values() if len(group) > 1 and not set(group).isdisjoint(written) for i in group]


__all__ = ["MOST_S", "NOISE", "Judgement", "TrialStep", "faster", "refuses", "timed", "without_traces"]
