"""z3, if it is installed, and what is said where a question is not for it."""

from __future__ import annotations

from typing import Any


class Beyond(Exception):
    """Outside this method."""


def z3() -> Any:
    """The solver, or Beyond if it is not installed."""
    try:
        import z3 as module
    except ImportError as error:
        raise Beyond("z3 is not installed (pip install 'tensor-graphs[rules]')") from error
    return module
