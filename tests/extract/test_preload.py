"""Solver libraries imported in the background."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from tensor_graphs.extract.search.preload import SOLVER_MODULES, STORE_MODULES, import_in_background
assert not any(m in sys.modules for m in (*SOLVER_MODULES, *STORE_MODULES))
thread = import_in_background([*STORE_MODULES, *SOLVER_MODULES])
{then}
"""


def test_libraries_are_loaded_in_the_background() -> None:
    for then in (
        "thread.join(); assert all(m in sys.modules for m in (*SOLVER_MODULES, *STORE_MODULES))",
        "print('the process may end meanwhile')",
        "import _imp; _imp.acquire_lock()",  # where Ctrl-C came while the main thread imported something
    ):
        done = subprocess.run(
            [sys.executable, "-c", CODE.format(then=then)], capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0 and not done.stderr
