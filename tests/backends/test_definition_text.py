"""Source text of helper functions: that of `inspect.getsource`."""

from __future__ import annotations

import importlib
import inspect
from functools import cache, wraps
from typing import Any

import pytest

from tensor_graphs.backends.definition_text import source_of

MODULES = (
    "c.helpers", "library.numpy_helpers", "library.torch_cuda_helpers", "library.torch_helpers", "program.any_size_binaries",
    "program.any_size_launches", "program.cuda_driver", "program.gpu_calls", "program.gpu_launches", "user.files",
)  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_it_is_what_inspect_finds(name: str) -> None:
    module = importlib.import_module(f"tensor_graphs.backends.{name}")
    found = [v for v in vars(module).values() if inspect.isfunction(v) or inspect.isclass(v)]
    own = [v for v in found if v.__module__ == module.__name__]
    assert own
    for value in own:
        assert source_of(value) == inspect.getsource(value).rstrip(), value


def passed(function: Any) -> Any:
    @wraps(function)
    def call() -> Any:
        return function()

    return call


@passed
@passed
def decorated() -> str:
    return """
def decorated() -> str: not this
"""


@cache
def cached() -> int:
    return 1


def test_decorators_belong_to_it_and_inner_functions_are_found() -> None:
    def inner() -> int:
        return 2

    assert source_of(decorated).startswith("@passed\n@passed\ndef decorated")
    assert source_of(decorated).endswith('not this\n"""')
    assert source_of(cached) == "@cache\ndef cached() -> int:\n    return 1"
    assert source_of(inner).strip().startswith("def inner")
