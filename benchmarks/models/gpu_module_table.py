"""Table of the modules of benchmarks/gpu/modules.py; gpu_call_models.py and gpu_further_modules.py add theirs to it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Tensor, ...]]
MODULES: dict[str, Callable[[], Made]] = {}


def module(make: Callable[[], Made]) -> Callable[[], Made]:
    """Decorator that adds a builder of (module, its inputs) to the table, under its function's name."""
    MODULES[make.__name__] = make
    return make
