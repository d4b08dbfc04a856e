"""Bounds `torch.export` and its decompositions: nodes of one traced graph, and seconds.

torch traces operation by operation and adds each to a `torch.fx.Graph`. Both bounds are checked where a node is added
(below 1 us each). Code that adds no node for too long is interrupted like by Ctrl-C.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from threading import Lock, Timer, get_ident
from typing import Any

from ... import settings
from ...errors import ExportTimeError, TensorGraphsError
from ..files.limits import check_count, idle_seconds_of, seconds_of

#: Part of the time limit by which an export that adds no nodes may exceed it.
GRACE = 0.25


class _Stopped(BaseException):
    """Raised to end an export. It is no Exception, so that neither torch nor the module handles it and goes on."""


@contextmanager
def bounded(title: str, budget: float | None) -> Iterator[None]:
    """Context manager in which torch traces on this thread, within bounds; `title` names the model in errors.

    The caller holds the lock of `export.tracing`. `budget`: seconds of the whole optimization, None without one.

    Raises TooLargeError for a traced graph of more nodes than the setting `max_nodes`, ExportTimeError after
    `seconds_of(budget)`, or without a new node for `idle_seconds_of(budget, nodes)`. Other threads' graphs are not
    affected.
    """
    bound = _Bound(title, budget)
    try:
        with bound.checking(), bound.interrupting():
            yield
    except BaseException as error:
        if bound.error is None:
            raise
        raise bound.error from error


class _Bound:
    """State of one bounded export."""

    def __init__(self, title: str, budget: float | None) -> None:
        self.title, self.budget, self.seconds = title, budget, seconds_of(budget)
        self.added, self.nodes = time.monotonic(), 0  # when the last node was added, and how many there are
        self.end = self.added + self.seconds
        self.most = settings.current().max_nodes
        self.thread, self.lock, self.running = get_ident(), Lock(), True
        self.error: TensorGraphsError | None = None

    def check(self, nodes: int) -> None:
        """Stop the export if a graph of so many nodes, or the time, exceeds its bound."""
        self.added, self.nodes = time.monotonic(), self.nodes + 1
        if nodes > self.most:
            try:
                check_count(nodes, where=self.title, most=self.most)
            except TensorGraphsError as error:
                self.error = error
        elif self.added > self.end:
            self.error = self.late(f"took more than {self.seconds:g} s")
        if self.error is not None:
            raise _Stopped

    def late(self, what: str) -> ExportTimeError:
        return ExportTimeError(
            f"torch.export {what}",
            where=self.title,
            hint="give the result of your own torch.export.export(...), a larger budget, or TENSOR_GRAPHS_EXPORT_SECONDS"
            " (settings.override(export_seconds=...)); a Python loop is traced step by step: use nn.LSTM, or export a step",
        )

    @contextmanager
    def checking(self) -> Iterator[None]:
        """Context in which nodes that this thread adds to a torch.fx.Graph are counted."""
        from torch.fx import Graph

        original = Graph.create_node

        def create_node(graph: Any, *args: Any, **named: Any) -> Any:
            if get_ident() == self.thread and self.running:
                self.check(len(graph.nodes))
            return original(graph, *args, **named)

        Graph.create_node = create_node
        try:
            yield
        finally:
            self.running = False
            if Graph.create_node is create_node:
                Graph.create_node = original

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Context that is interrupted once, GRACE after the time limit, or without a new node for too long."""
        self.watch()
        try:
            yield
        finally:
            with self.lock:
                self.running = False
                self.timer.cancel()
            _raise_in(self.thread, None)

    def watch(self) -> None:
        """Raise _Stopped on the exporting thread at a limit, if it still exports; before, look again when one may be
        reached. Runs on this thread first, then on timers' threads."""
        with self.lock:
            if not self.running:
                return
            idle, now = idle_seconds_of(self.budget, self.nodes), time.monotonic()
            left = min(self.added + idle, self.end + GRACE * self.seconds) - now
            if left > 0:
                self.timer = Timer(left, copy_context().run, [self.watch])  # with this thread's settings
                self.timer.daemon = True
                self.timer.start()
                return
            late = now > self.end
            reason = f"took more than {self.seconds:g} s" if late else f"traced no operation for {idle:g} s"
            self.error = self.error or self.late(reason)
            _raise_in(self.thread, _Stopped)


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Raise an exception on another thread at its next bytecode; None: withdraw one that was not raised yet."""
    raised = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)


__all__ = ["bounded"]
