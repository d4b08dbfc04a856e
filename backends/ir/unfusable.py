"""The exception raised where no kernel can be generated for a term or schedule (`Unfusable`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Unfusable(Exception):
    """Raised when a kernel cannot be generated for a term or schedule; the message says why."""


def if_fusable(make: Callable[..., T], *args: Any, **named: Any) -> T | None:
    """Result of `make(*args, **named)`, or None if it raises Unfusable."""
    try:
        return make(*args, **named)
    except Unfusable:
        return None
