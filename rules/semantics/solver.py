"""Loads the optional z3 solver, and defines the exception for queries that a proof method does not support."""

from __future__ import annotations

from typing import Any


class OutOfScope(Exception):
    """Raised when a query is outside of the scope of a proof method; the message says why."""


def z3() -> Any:
    """The z3 module; raises OutOfScope if z3 is not installed."""
    try:
        import z3 as module
    except ImportError as error:
        raise OutOfScope("z3 is not installed (pip install 'tensor-graphs[rules]')") from error
    return module
