"""Reports progress of long work, and passes on the request to stop it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Progress:
    """Receiver of progress messages, with the user's request to stop. The library itself prints nothing.

    `say(stage, message)` is called at stage starts and events; setting `stopped` ends the work with the best result so
    far.
    """

    say: Callable[[str, str], None] = lambda stage, message: None
    stopped: bool = False
