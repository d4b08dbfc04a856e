"""Opens sessions of egglog (an engine with the e-graph of one saturation), in this process or in a worker process."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from .engine import Arrays, Engine
from .engine_bounds import Bounds, Stopped


class SaturationSession(Protocol):
    """Protocol of a session of egglog (an engine that saturates one block at a time), in this process (`InProcess`) or
    in a worker process."""

    def prepare(self) -> None:
        """Start the engine or its worker process, if needed, and wait until it accepts requests. The time is not
        charged to a limit."""
        ...

    def request(self, method: str, payload: Any, bounds: Bounds) -> tuple[dict[str, Any], Arrays]:
        """Call a method of `Engine` with the argument `payload` (JSON; None: none); returns (header, arrays).

        Raises Deadline, MemoryLimit, Stopped, WorkerError (the worker died) or EngineError.
        """
        ...


class InProcess:
    """A session in this process, for tests and debugging. A running round cannot be stopped."""

    def __init__(self) -> None:
        self.engine: Engine | None = None

    def prepare(self) -> None:
        """Create the engine, if needed (`SaturationSession.prepare`)."""
        self.engine = self.engine or Engine()

    def request(self, method: str, payload: Any, bounds: Bounds) -> tuple[dict[str, Any], Arrays]:
        """Call a method of the `Engine` in this process with the argument `payload` (None: none) and return its result
        (`SaturationSession.request`).

        Raises Stopped if a stop was requested.
        """
        if bounds.stop():
            raise Stopped
        arguments = [] if payload is None else [payload]
        found: tuple[dict[str, Any], Arrays] = getattr(self.engine, method)(*arguments)
        return found


class Sessions(Protocol):
    """Protocol of session sources: a worker `Pool`, or one session for all blocks (repeated subgraphs)."""

    @property
    def size(self) -> int:
        """Number of egglog sessions, which is that of blocks that can be saturated at the same time."""
        ...

    def session(self) -> AbstractContextManager[SaturationSession]:
        """Context manager: exclusive use of a session."""
        ...


@dataclass(frozen=True)
class OneSession:
    """Session source with the single session `only`, for saturations one after another."""

    only: SaturationSession
    size: int = 1

    def session(self) -> AbstractContextManager[SaturationSession]:
        """Context manager that yields the only session (`Sessions.session`)."""
        return nullcontext(self.only)
