"""What a text defines, wherever it stands."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from tensor_graphs.backends.program.emit.execute import execute

KERNEL = """import triton
import triton.language as tl

{before}
@triton.jit
def twice(x):
    return x + x


@triton.jit
def kernel(x_ptr, n: tl.constexpr):
    places = tl.arange(0, n)
    tl.store(x_ptr + places, twice(tl.load(x_ptr + places)))
"""


def test_kernels_of_the_same_text_have_one_key_wherever_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    jit = pytest.importorskip("triton.runtime.jit")
    monkeypatch.setattr("triton.jit", jit.JITFunction)  # not the interpreter's

    def key(before: str, sign: str = "+") -> str:
        space: dict[str, Any] = {"__name__": "here"}
        execute(KERNEL.format(before=before).replace("x + x", f"x {sign} x"), f"<after {before!r}, {sign}>", space)
        return str(space["kernel"].cache_key)

    assert key("") == key("\n" * 7 + "first = 1\n")
    assert key("") != key("", "*")


def test_keys_are_made_helpers_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Triton 3.6 a kernel's key says what a helper reads only where the helper has a key already."""
    jit = pytest.importorskip("triton.runtime.jit")
    order: list[str] = []

    class Watched(jit.JITFunction):  # type: ignore[misc]
        @property
        def cache_key(self) -> str:
            order.append(self.__name__)
            return str(jit.JITFunction.cache_key.fget(self))

    monkeypatch.setattr("triton.jit", Watched)
    space: dict[str, Any] = {"__name__": "here"}
    execute(KERNEL.format(before=""), "<helpers first>", space)
    assert order[:2] == ["twice", "kernel"], "before anything is launched"


def test_lines_are_shown_where_something_fails() -> None:
    space: dict[str, Any] = {}
    execute("def fails():\n    return 1 // 0\n", "<a text>", space)
    with pytest.raises(ZeroDivisionError) as caught:
        space["fails"]()
    assert "return 1 // 0" in "".join(traceback.format_exception(caught.value))
