"""Prints the outcome of a command, its answer or error as text or as one JSON document, and gives the exit code."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer

from ..errors import Interrupted, TensorGraphsError, TooLargeError, UsageError
from .console import Answer, Terminated, discard, printable, tell, terminated
from .json_document import dumped


def _closing() -> None:
    """Ignore SIGTERM and SIGINT from here on, so that the output document is printed completely."""
    if signal.getsignal(signal.SIGTERM) is terminated:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)


class Unprintable(Exception):
    """Standard output cannot be written, as on a full disk."""


def _put(text: str) -> None:
    """Print on stdout. That the reader of the pipe has gone is not an error; raises Unprintable for others."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        discard(sys.stdout)
    except OSError as error:
        raise Unprintable(error.strerror or str(error)) from error


def finish(as_json: bool, answer: Answer) -> int:
    """Print an answer, and the error that ended the command early, if any; returns the exit code."""
    _closing()
    text = answer.text if answer.exact else printable(answer.text)
    if answer.error is None:
        _put(dumped({"ok": True, **answer.document}) if as_json else text)
        if answer.afterwards is not None:
            _afterwards(answer.afterwards)
        return 0
    if not as_json:
        _put(text)
    return fail(as_json, answer.error.exit_code, answer.error.to_json(), str(answer.error), answer.document)


def _afterwards(work: Callable[[], object]) -> None:
    """Do the work that follows an answer. Readers of standard output see its end now; a signal ends the work, and an
    error is a message."""
    discard(sys.stdout)
    try:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:  # by `_closing`
            signal.signal(signal.SIGTERM, terminated)
            signal.signal(signal.SIGINT, signal.default_int_handler)
        work()
    except (KeyboardInterrupt, Terminated):
        pass
    except TensorGraphsError as error:
        tell(f"note: {error}")


def described(error: BaseException) -> tuple[int, dict[str, str], str]:
    """Exit code, JSON object and text of an error."""
    if isinstance(error, typer.Abort) and isinstance(error.__cause__, EOFError):  # so Typer passes on any EOFError
        error = error.__cause__
    if isinstance(error, TensorGraphsError):
        return error.exit_code, error.to_json(), f"error: {error}"
    if hasattr(error, "format_message"):  # an error of Typer's parser, from whichever copy of Click it uses
        known = UsageError(error.format_message(), where="command line", hint="see --help")
        return 2, known.to_json(), f"error: {known}"
    if isinstance(error, Terminated):
        return 143, Interrupted("terminated").to_json(), "terminated"
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return 130, Interrupted("interrupted").to_json(), "interrupted"
    if isinstance(error, MemoryError):
        short = TooLargeError(f"memory ran out: {error or 'an allocation failed'}", where=_place(error),
                              hint="give a smaller input, or more memory")  # fmt: skip
        return short.exit_code, short.to_json(), f"error: {short}"
    if isinstance(error, OSError) and error.filename is not None:
        known = UsageError(error.strerror or str(error), where=str(error.filename))
        return 2, known.to_json(), f"error: {known}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        known = UsageError(f"a file could not be written: {error.strerror}", hint="make room, or write elsewhere")
        return 2, known.to_json(), f"error: {known}"
    if isinstance(error, FileNotFoundError):  # without a name: of the current folder
        known = UsageError("the current folder was removed", hint="cd to another one")
        return 2, known.to_json(), f"error: {known}"
    import traceback

    trace = "".join(traceback.format_exception(error))
    hint = "this is a bug; please report it with the command and the output of `tensor-graphs doctor`"
    bug = TensorGraphsError(f"{type(error).__name__}: {error}", where=_place(error), hint=hint)
    return 1, bug.to_json(), f"{trace}\n{hint}"


def _place(error: BaseException) -> str:
    """Module, line and function where an error was raised."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""


def fail(
    as_json: bool, code: int, error: dict[str, str], text: str, document: Mapping[str, Any] | None = None
) -> int:  # fmt: skip
    """Print an error (`described`) as text and, with `as_json`, as JSON with the fields of `document`; returns
    `code`."""
    _closing()
    tell(text)  # also where standard output cannot be written
    if as_json:
        _put(dumped({"ok": False, "error": error, **(document or {})}))
    return code
