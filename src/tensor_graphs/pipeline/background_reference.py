"""Computes the reference outputs of the first verification on the GPU while the host rewrites the graph."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Thread

from ..backends.tuning.gpu_lock import GpuLock
from ..costdb.keys.device import GPU_KIND, gpu_facts
from ..extract.model.clock import Clock
from ..extract.model.work import graph_flops
from ..verification.reference import Reference, expected_seconds, first_reference
from .context.session import Session
from .stages.prepare import Task

LIGHT_S = 1.0  # maximum expected seconds of a reference that is computed in the background


def start_reference(session: Session, task: Task) -> Callable[[], dict[int, Reference]]:
    """Start computing the first verification reference on the GPU, if that is cheap; returns a function that waits for
    it.

    That function returns the references by seed, {} if none was computed (verification then computes it and reports
    errors). Shares the GPU lock with kernel timing.
    """
    options, graph = session.options, task.model.graph
    light = expected_seconds(graph, graph_flops(list(task.work.roots)), on_gpu=True) < LIGHT_S
    if not task.on_gpu or not gpu_facts() or not options.verify or options.exact or not light:
        return dict
    pressed, lock, clock = session.polled(), GpuLock(), Clock()
    session.background_clocks.append(("reference", clock))
    found: list[dict[int, Reference]] = []

    def poll() -> None:
        pressed()
        lock()

    def compute() -> None:
        with suppress(Exception), clock.running("compute"), lock:
            found.append(first_reference(graph, GPU_KIND, seed=options.seed, poll=poll))

    thread = Thread(target=copy_context().run, args=(compute,), name="reference", daemon=True)
    thread.start()

    def result() -> dict[int, Reference]:
        lock.uncontended = True
        thread.join()
        return found[0] if found else {}

    return result


__all__ = ["start_reference"]
