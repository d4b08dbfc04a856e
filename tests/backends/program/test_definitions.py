"""Source text of functions and classes, as emitted programs get it."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

from tensor_graphs import private
from tensor_graphs.backends.ir.definitions import source_of, sources_of
from tensor_graphs.backends.library import numpy_norm_helpers
from tensor_graphs.backends.program.helpers import cuda_driver, gpu_launches
from tensor_graphs.egraph.types import dims


@pytest.mark.parametrize("module", [private, numpy_norm_helpers, gpu_launches, cuda_driver, dims])
def test_sources_are_those_that_python_finds(module: ModuleType) -> None:
    own = [
        v
        for v in vars(module).values()
        if (inspect.isfunction(v) or inspect.isclass(v)) and v.__module__ == module.__name__
    ]
    assert own and {v.__name__ for v in own} <= sources_of(module.__name__).keys()
    for value in own:
        assert source_of(value) == inspect.getsource(value).rstrip(), value
