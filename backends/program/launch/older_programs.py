"""Lets this version call programs for a GPU that an older version saved: their `program.py` holds the older classes.

Imports: the standard library.
"""

from __future__ import annotations

from typing import Any

CLASSES = ("Calls", "CallsBySize")  # of emitted programs that have a launch mode


def name_launch_mode(run: Any) -> None:
    """Give the classes of the bound program `run` the attribute `launch_mode` if an older version saved it, which
    called the launch mode `way`."""
    if hasattr(run, "way") and not hasattr(run, "launch_mode"):
        emitted = type(run).__init__.__globals__
        for kind in (emitted[name] for name in CLASSES if name in emitted):
            kind.launch_mode = property(lambda self: self.way, lambda self, mode: setattr(self, "way", mode))


__all__ = ["name_launch_mode"]
