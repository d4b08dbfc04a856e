"""How many examples of a property that takes seconds Hypothesis draws."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> int:
    """`count` with --hypothesis-profile=random; half of it in the suite, which draws the same ones each time."""
    return count // 2 if settings().derandomize else count
