"""Runs a module of this package as a worker process, which ends with its parent: `python -m
tensor_graphs.processes.run_worker MODULE ARGUMENTS`.

Python's garbage collector takes a sixth of the CPU time of importing PyTorch. Here it runs a hundredth as often.
"""

from __future__ import annotations

import gc
import sys
from runpy import run_module

from .child import die_with_parent

YOUNG = 70_000  # objects that are allocated between two collections of young objects; Python's default is 700


def main() -> None:
    """Run the module that the first argument names, as `python -m` does, with the other arguments."""
    die_with_parent()  # also while the module imports libraries, and inside of a library
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
    _, module, *arguments = sys.argv
    sys.argv = [module, *arguments]
    run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
