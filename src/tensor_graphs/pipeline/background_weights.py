"""Encodes quantized weights on the GPU while the host searches. That wastes no work: every plan (choice of kernels)
reads nearly all of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

from ..backends.runtime.upload import copied_bytes
from ..backends.tuning.gpu_lock import GpuLock
from ..costdb.keys.device import GPU_KIND, gpu_facts
from ..egraph.ir.weight_data import DerivedData
from ..extract.model.clock import Clock
from .context.session import Session
from .stages.prepare import Task

MAX_ORIGINALS_SHARE = 0.25  # share of free device memory that the original weights may have


def free_bytes() -> int:
    """Free bytes of the GPU's memory."""
    import torch

    return int(torch.cuda.mem_get_info()[0])


@dataclass
class BackgroundWeights:
    """Handle of the background computation of derived weights (encoded ones of a quantized model)."""

    started: bool = False  # whether weights are encoded in the background; known soon after `start_weights`
    end: Callable[[], None] = lambda: None  # ends encoding early, and waits until it has ended


def start_weights(session: Session, task: Task) -> BackgroundWeights:
    """Start computing derived weights (encoded ones of a quantized model) on the GPU, in a background thread.

    The result has no reference to the weights: the caller keeps them alive, by `codes_kept`. Shares the GPU lock with
    kernel timing. Errors are ignored here: the program computes the same weights and raises them.
    """
    graph = task.model.graph
    found = [graph.params.get(str(leaf.attr("name"))) for leaf in graph.leaves("param")]
    derived: list[Any] = [data for data in found if isinstance(data, DerivedData)]
    if not (derived and task.on_gpu and gpu_facts()):
        return BackgroundWeights()
    ended, lock, clock = Event(), GpuLock(), Clock()
    session.background_clocks.append(("weights", clock))

    def compute() -> None:
        with suppress(Exception), clock.running("encode"), lock:
            made.started = copied_bytes(derived) <= MAX_ORIGINALS_SHARE * free_bytes()
            for data in derived if made.started else ():
                if ended.is_set() or session.progress.stopped:
                    break
                data.load_on(GPU_KIND)
                lock()

    thread = Thread(target=compute, name="weights", daemon=True)

    def end() -> None:
        ended.set()
        lock.uncontended = True
        thread.join()

    made = BackgroundWeights(started=False, end=end)
    thread.start()
    return made


__all__ = ["BackgroundWeights", "start_weights"]
