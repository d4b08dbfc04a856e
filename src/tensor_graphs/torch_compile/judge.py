"""Decision whether a compiled graph replaces the eager one: whole calls of both, timed alternately."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from ..pipeline.timing import Run, is_surely_faster, sampled, wall_us

#: Seconds of timing at most, if calls are not longer than that; seconds after which settled medians end it.
MOST_S, SETTLED_S = 1.0, 0.1
#: Relative margin by which the compiled graph must be faster.
NOISE = 0.02
QUEUED = 16  # calls in a row on a GPU without waiting for their results


def timed(calls: dict[str, Run], on_gpu: bool, first: Run) -> dict[str, list[float]]:
    """Times in µs of whole calls, alternating, until medians are settled; at least one sample of each.

    `first` runs untimed before each call.
    """
    until = time.perf_counter() + 2 * MOST_S
    ended: Callable[[], bool] = lambda: time.perf_counter() > until
    return sampled(calls, seconds=MOST_S, settled=SETTLED_S, clock=_clock(on_gpu), ended=ended, first=first)


def _clock(on_gpu: bool) -> Callable[[Run], float]:
    """Wall clock of a call with the device's work; on a GPU until the device is idle."""
    if not on_gpu:
        return wall_us
    import torch

    def synchronized(call: Run) -> float:
        torch.cuda.synchronize()
        return wall_us(lambda: (call(), torch.cuda.synchronize()))

    return synchronized


def faster(eager: Run, compiled: Run, on_gpu: bool, first: Run) -> tuple[bool, float, float]:
    """Whether the compiled call is faster by more than noise, with the median µs of the eager and of the compiled call.

    Returns (faster, eager µs, compiled µs). `on_gpu`: calls are timed singly, and QUEUED at a time without waiting
    between them, as in a model whose host runs ahead of the device: the compiled call must be faster singly, and not
    slower when queued.
    """
    samples = timed({"eager": eager, "program": compiled}, on_gpu, first)
    wins = is_surely_faster(samples["program"], samples["eager"], NOISE)
    if wins and on_gpu:
        queued = timed({"eager": _repeated(eager), "program": _repeated(compiled)}, on_gpu, first)
        if median(queued["program"]) > median(queued["eager"]):
            wins, samples = False, {name: [us / QUEUED for us in taken] for name, taken in queued.items()}
    return wins, median(samples["eager"]), median(samples["program"])


def _repeated(call: Run) -> Run:
    def calls() -> None:
        for _ in range(QUEUED):
            call()

    return calls


class TrialStep:
    """Repeatable call of a graph with a real call's arguments: forward, and backward if results need gradients.

    Tensors that the graph writes are copied; `reset` restores the copies. Gradients go to detached leaves, so neither
    `.grad` nor hooks of the caller's tensors are touched.
    """

    def __init__(self, args: Sequence[Any], written: Sequence[int], gradients: bool) -> None:
        import torch

        self.args = list(args)
        self._copies: list[tuple[Any, Any]] = []
        for i, x in enumerate(args):
            if not isinstance(x, torch.Tensor):
                continue
            if i in written:
                kept = x.detach().clone()
                self.args[i] = kept.clone()
                self._copies.append((self.args[i], kept))
            elif gradients:
                self.args[i] = x.detach()
            if gradients and x.requires_grad and i not in written:
                self.args[i].requires_grad_()
        self._leaves = [x for x in self.args if isinstance(x, torch.Tensor) and x.requires_grad] if gradients else []

    def reset(self) -> None:
        """Restore the tensors that the graph writes."""
        for copy, kept in self._copies:
            copy.copy_(kept)

    def run(self, function: Callable[..., Any]) -> Any:
        """Call a graph; returns nothing of use where gradients are computed."""
        import torch

        results = function(*self.args)
        roots = [y for y in results if isinstance(y, torch.Tensor) and y.requires_grad] if self._leaves else []
        if roots:
            torch.autograd.grad(roots, self._leaves, [torch.ones_like(y) for y in roots], allow_unused=True)
        return results


__all__ = ["MOST_S", "NOISE", "TrialStep", "faster", "timed"]
