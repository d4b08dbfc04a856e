"""Keeps the states of the traces that are in progress, for traced code that a function runs in threads of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

State = TypeVar("State")


class TraceStates(Generic[State]):
    """One state for each trace in progress. A thread without a trace of its own belongs to a function that is traced in
    another thread."""

    def __init__(self, name: str) -> None:
        self._own: ContextVar[State | None] = ContextVar(name, default=None)
        self._all: list[State] = []

    @contextmanager
    def added(self, state: State) -> Iterator[None]:
        """Context manager of a trace on this thread, which has the state."""
        token = self._own.set(state)
        self._all.append(state)
        try:
            yield
        finally:
            self._own.reset(token)
            self._all.remove(state)

    @property
    def own(self) -> State | None:
        """The state of this thread's trace; None if it has none."""
        return self._own.get()

    @property
    def present(self) -> State | None:
        """The state of this thread's trace, else of the latest one; None if there is no trace."""
        own = self._own.get()
        return own if own is not None else next(reversed(self._all), None)

    def all(self) -> tuple[State, ...]:
        """The states of all traces in progress, the latest one last."""
        return tuple(self._all)


__all__ = ["TraceStates"]
