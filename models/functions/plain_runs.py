"""Tells functions of this package that the caller's function is being run on plain arrays, to compare its results."""

from __future__ import annotations

from contextvars import ContextVar


class OwnFunction(Exception):
    """Raised when the caller's function, which is run on plain arrays, calls a function of this package."""


# whether a caller's function is running on plain arrays
on_arrays: ContextVar[bool] = ContextVar("on_arrays", default=False)


def refuse_arrays(name: str) -> None:
    """Raise OwnFunction while the caller's function is run on plain arrays; `name`: the function of this package that
    it calls, which works on expressions only."""
    if on_arrays.get():
        raise OwnFunction(name)


__all__ = ["OwnFunction", "on_arrays", "refuse_arrays"]
