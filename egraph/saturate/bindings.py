"""What a saturation needs of egglog's bindings and of the system: the extension module alone, seconds by rule from its
report, and files in memory."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def load_bindings() -> Any:
    """Import egglog's extension module without its Python package, whose import takes ten times as long; returns the
    module."""
    if "egglog.bindings" in sys.modules:
        return importlib.import_module("egglog.bindings")  # waits for another thread that is importing it
    package = importlib.util.find_spec("egglog")
    if package is not None and package.submodule_search_locations:
        finder = importlib.machinery.PathFinder.find_spec("egglog.bindings", list(package.submodule_search_locations))
        if finder is not None and finder.loader is not None:
            module = importlib.util.module_from_spec(finder)
            finder.loader.exec_module(module)
            return module
    import egglog.bindings

    return egglog.bindings


_TIME = re.compile(r'"((?:[^"\\]|\\.)*)": ([0-9.]+)(ns|µs|ms|s)\b')
_UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def rule_seconds(report: Any, measured: float) -> dict[str, float]:
    """Seconds per rule, parsed from the text of egglog's report on a run.

    The report's numbers are a thousand times too small in egglog 13.2. If their sum exceeds `measured`, the wall-clock
    seconds of the run, all are scaled down in proportion.
    """
    text = str(report).partition("search_and_apply_time_per_rule: {")[2].partition("}")[0]
    found = {name: float(value) * _UNITS[unit] for name, value, unit in _TIME.findall(text)}
    scale = min(1.0, measured / total) if (total := sum(found.values())) else 1.0
    return {name: found[name] * scale for name in sorted(found)}


@contextmanager
def readable(text: str) -> Iterator[str]:
    """Context manager that yields the path of a temporary file with the given text.

    An in-memory file where available (Linux), so nothing is left however the process ends; otherwise a file that is
    removed afterwards.
    """
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        with os.fdopen(os.memfd_create("facts"), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.TemporaryDirectory(prefix="egraph-") as folder:
        path = Path(folder) / "facts.tsv"
        path.write_text(text, encoding="utf-8")
        yield path.as_posix()
