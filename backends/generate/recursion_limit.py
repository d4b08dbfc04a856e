"""Raises Python's recursion limit while deeply nested terms are traversed."""

from __future__ import annotations

import sys

from ...processes.forks import Lock

FRAMES = 24  # Python stack frames per nested operation during lowering and emission
# Upper bound of the recursion limit. The limit is process-wide, and about 80 000 calls from C overflow an 8 MiB stack.
DEEPEST = 40_000
_deepening = Lock()


def raise_recursion_limit(operations: int) -> None:
    """Raise Python's recursion limit for a term of `operations` operations, up to `DEEPEST`.

    The bound keeps a maliciously nested file from overflowing the C stack.
    """
    with _deepening:  # the limit is process-wide: another thread may be raising it
        sys.setrecursionlimit(max(sys.getrecursionlimit(), min(1000 + FRAMES * operations, DEEPEST)))
