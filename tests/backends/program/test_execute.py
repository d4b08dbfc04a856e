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


LONG = (
    "class Long:\n    def value(self):\n"
    + "".join(f"        x{n} = {n}\n" for n in range(200))
    + "        return x199\n"
)


def test_programs_share_the_code_of_large_classes() -> None:
    spaces: list[dict[str, Any]] = [{}, {}]
    for number, space in enumerate(spaces):
        execute(f"first = {number}\n\n\n{LONG}\n\ndef fails():\n    return first / 0\n", f"<program {number}>", space)
    one, two = (space["Long"] for space in spaces)
    assert one is not two and one.value.__code__ is two.value.__code__ and two().value() == 199
    with pytest.raises(ZeroDivisionError) as caught:
        spaces[1]["fails"]()
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (frame.filename, frame.line, frame.lineno) == ("<program 1>", "return first / 0", LONG.count("\n") + 7)


@pytest.mark.parametrize("text", [f"x = '''\n{LONG}'''\n", f"x = '''a\n{LONG}\n\nb'''\n{LONG}"])
def test_a_class_within_a_string_is_text(text: str) -> None:
    space: dict[str, Any] = {}
    execute(text, "<a string>", space)
    assert LONG in space["x"]


def test_errors_of_a_text_name_its_line() -> None:
    with pytest.raises(SyntaxError) as caught:
        execute(f"{LONG}\n\nx = = 1\n", "<wrong>", {})
    assert caught.value.filename == "<wrong>" and caught.value.lineno == LONG.count("\n") + 3
