"""Source that was written for kernels becomes what it defines."""

from __future__ import annotations

import linecache
from contextlib import suppress
from typing import Any

LINE, KEY = "starting_line_number", "cache_key"  # where a kernel begins, and what it is found by, in Triton's objects


def execute(text: str, file: str, space: dict[str, Any]) -> None:
    """Run a text in a name space. Its lines can be looked up under `file`: tracebacks show them, Triton reads its kernels' text.

    The keys of Triton's cache hold the line at which a kernel begins. All begin at the first one here: what was compiled to be
    measured need not be compiled again where it stands in a program, and below other kernels. The keys are made at once, in the
    order of the text, helpers first: in Triton 3.6 what a helper reads counts in the key of a kernel that calls it only if the helper's
    own key is known, so that all kernels of a program but the first had other keys than when they were measured.
    """
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), space)
    kernels = [value for value in space.values() if hasattr(value, LINE)]
    for kernel in kernels:
        setattr(kernel, LINE, 1)
    for kernel in kernels:
        with suppress(Exception):  # what is the matter with it is said where it is compiled
            getattr(kernel, KEY, None)
