"""Placeholder for an operator result without a builder."""

from __future__ import annotations


class Missing:
    """Placeholder for the result of an operator without a builder.

    `what`: text that names the result in the UnsupportedError raised on use; "" if the operator was reported already.
    """

    def __init__(self, what: str) -> None:
        self.what = what
