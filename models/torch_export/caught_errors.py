"""Finds errors about unknown values that a module catches itself while torch exports it.

The tensors of an export have no values, so code that asks for one gets an error. If it catches the error and goes on,
the exported graph is that of the branch for errors, whatever the values are at a call.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from threading import get_ident
from typing import Any

from ...errors import ExportError
from ..common.shown_texts import is_shown


@contextmanager
def uncaught(title: str) -> Iterator[None]:
    """Context manager in which torch exports the module `title` on this thread. Raises ExportError at its end for the
    first error about an unknown value that code outside of torch caught, also in threads that were started meanwhile,
    and for texts of tensors that are not only shown. The caller holds the lock of `export.tracing`."""
    import torch
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    made: list[tuple[int, BaseException]] = []  # (thread, error)
    others = {t.ident for t in threading.enumerate()} - {get_ident()}

    def kept_when_made(init: Callable[..., None]) -> Callable[..., None]:
        def run(self: BaseException, *given: Any, **named: Any) -> None:
            made.append((get_ident(), self))
            init(self, *given, **named)

        return run

    def kept_when_raised(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            try:
                return method(*given, **named)
            except Exception as error:
                made.append((get_ident(), error))
                raise

        return run

    inside = str(Path(torch.__file__).parent)

    def only_shown(method: Callable[..., str]) -> Callable[..., str]:
        def run(self: Any, *given: Any, **named: Any) -> str:
            frame = sys._getframe(1)
            foreign = get_ident() in others or frame.f_code.co_filename.startswith(inside)
            if not (foreign or is_shown(frame)):
                texts.append(frame.f_lineno)
            return method(self, *given, **named)

        return run

    texts: list[int] = []  # lines of the code that asked for a text
    with ExitStack() as stack:
        for owner, name in product((torch.Tensor, FunctionalTensor, FakeTensor), ("__repr__", "__format__")):
            if name in vars(owner):
                stack.enter_context(_replaced(owner, name, only_shown))
        for kind in (GuardOnDataDependentSymNode, DataDependentOutputException):
            stack.enter_context(_replaced(kind, "__init__", kept_when_made))
        stack.enter_context(_replaced(torch.Tensor, "numpy", kept_when_raised))
        yield
    _refuse_text(title, texts)
    for thread, error in made:
        if thread not in others and not _catching_file(error).startswith(inside):
            raise ExportError(
                "a value is asked for that an export does not have, and the error is caught", where=title,
                hint="branches on values cannot be captured: compute both sides, torch.where",
            ) from error  # fmt: skip


def _refuse_text(title: str, lines: Sequence[int]) -> None:
    """Raise ExportError for the first of the `lines` that make a text of a tensor, if there are any."""
    if lines:
        raise ExportError(
            f"line {lines[0]} makes a text of a tensor, which has no values in an export: the module might decide by it", where=title,
            hint="give it to print, a logger or an error directly",
        ) from RuntimeError("a text of a tensor")  # fmt: skip  # of torch's kind: the function is not traced instead


@contextmanager
def _replaced(owner: type, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """Context manager in which a class has another method `name`: `change` of the present one."""
    own, before = name in vars(owner), getattr(owner, name)
    setattr(owner, name, change(before))
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


def _catching_file(error: BaseException) -> str:
    """File of the function that caught an error: the outermost one that it passed through. Torch's own file for an
    error that was not raised."""
    import torch

    return error.__traceback__.tb_frame.f_code.co_filename if error.__traceback__ else str(torch.__file__)


__all__ = ["uncaught"]
