"""Functions of libraries that a test replaces for one module: other modules and threads of the process go on with the
library's own.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest


def only_in(patch: pytest.MonkeyPatch, user: Any, library: str, **functions: Any) -> None:
    """Replace functions of a library, such as `time`, as the module `user` sees it, which imports it by this name."""
    patch.setattr(user, library, SimpleNamespace(**{**vars(getattr(user, library)), **functions}))
