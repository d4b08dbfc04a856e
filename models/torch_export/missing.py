"""Placeholder for a result of an operator that cannot be imported."""

from __future__ import annotations


class Missing:
    """Placeholder for a result of an operator that cannot be imported; using it raises UnsupportedError.

    `what`: text that names the result in that error; "" if the operator was reported already.
    """

    def __init__(self, what: str) -> None:
        self.what = what
