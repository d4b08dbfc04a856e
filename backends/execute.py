"""Source that was written for kernels becomes what it defines."""

from __future__ import annotations

import linecache
from typing import Any

LINE = "starting_line_number"  # where a kernel begins, in Triton's objects


def execute(text: str, file: str, space: dict[str, Any]) -> None:
    """Run a text in a name space. Its lines can be looked up under `file`: tracebacks show them, Triton reads its kernels' text.

    The keys of Triton's cache hold the line at which a kernel begins. All begin at the first one here: what was compiled to be
    measured need not be compiled again where it stands in a program, and below other kernels.
    """
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), space)
    for value in space.values():
        if hasattr(value, LINE):
            setattr(value, LINE, 1)
