"""How long work says where it is, and hears that it is to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Progress:
    """Where messages about long work go, and whether the user asked to stop. The library itself prints nothing."""

    say: Callable[[str, str], None] = lambda stage, message: None
    stopped: bool = False
