"""Placeholder for an operator result without a builder."""

from __future__ import annotations


class Missing:
    """Placeholder for an operator result without a builder.

    `what` names it in the error raised on use; empty if reported.
    """

    def __init__(self, what: str) -> None:
        self.what = what
