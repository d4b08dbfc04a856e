"""What all commands share: progress on stderr, Ctrl-C, answers, and files to read and to write."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Annotated, Any

import typer

from .errors import TensorGraphsError, UsageError
from .plain import Malformed, read_bytes
from .progress import Progress
from .writing import is_stream

Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]
Out = Annotated[Path | None, typer.Option("-o", "--output", help="where to write")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="say more on stderr")]


class Console:
    """Progress on stderr: a spinner with the stage where stderr is a terminal, a line per stage with -v, else nothing."""

    def __init__(self, verbose: bool, quiet: bool = False) -> None:
        self.verbose, self.quiet, self._status = verbose, quiet, None  # type: tuple[bool, bool, Any]

    def say(self, stage: str, message: str) -> None:
        """A stage began, or something happened in it."""
        text = f"{stage}: {message}" if message else stage
        if self._status is not None:
            self._status.update(text)
        elif self.verbose:
            print(text, file=sys.stderr, flush=True)

    @contextmanager
    def live(self) -> Iterator[Console]:
        """Show the spinner while working."""
        if self.quiet or self.verbose or not sys.stderr.isatty():
            yield self
            return
        from rich.console import Console as Rich

        with Rich(stderr=True).status("starting") as status:
            self._status = status
            try:
                yield self
            finally:
                self._status = None


@contextmanager
def working(verbose: bool, as_json: bool) -> Iterator[Progress]:
    """Work that shows how it goes, and ends early once it is asked to."""
    console = Console(verbose, quiet=as_json and not verbose)
    progress = Progress(console.say)
    with interruptible(progress), console.live():
        yield progress


class Terminated(BaseException):
    """SIGTERM arrived while nothing was there to be kept: what is under way ends and removes its temporary files."""


def terminated(number: int, frame: FrameType | None) -> None:
    """The handler of SIGTERM outside of searches."""
    signal.signal(number, signal.SIG_IGN)  # once is enough: cleaning up is not to be cut short
    raise Terminated


@contextmanager
def interruptible(progress: Progress) -> Iterator[None]:
    """Ctrl-C or SIGTERM once: stop searching and keep the best so far; a second time: quit."""

    def ask(number: int, frame: FrameType | None) -> None:
        if progress.stopped:
            for s in old:
                signal.signal(s, signal.SIG_DFL)  # whoever swallows this one does not get the next
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated
        progress.stopped = True
        with suppress(OSError):  # not by print, which may be under way
            os.write(2, b"stopping, keeping the best so far (again to quit)\n")

    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return
    old = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for s, handler in old.items():
            signal.signal(s, handler)


@dataclass(frozen=True)
class Answer:
    """What a command found, as fields of the JSON document and as text; `error` where it ended early with a result."""

    document: Mapping[str, Any]
    text: str
    error: TensorGraphsError | None = None


def writable(target: Path, *, folder: bool = False) -> None:
    """Look where a result is to go before it is worked for. UsageError if something else is there, or nothing may be written."""
    from .backends.program import refuse_occupied

    if folder:
        refuse_occupied(target)
    elif target.is_dir():
        raise UsageError(f"{target} is a folder", hint="name a file")
    if not folder and is_stream(target):
        return
    place = Path(os.path.realpath(target)) if target.is_symlink() else target.absolute()
    above = next(p for p in place.parents if p.exists())
    try:  # not by asking for permissions: root has them all, in places too that hold no files
        with TemporaryDirectory(prefix=".tensor_graphs-", dir=above):
            pass
    except OSError as problem:
        raise UsageError(f"nothing can be written in {above}: {problem.strerror}", hint="name another place") from None


def text_of(file: Path) -> str:
    """A text file's content; UsageError if it is no text, larger than 64 MiB, or no plain file."""
    try:
        return read_bytes(file, 1 << 26).decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError("this is no text", where=str(file), hint="one rule per line, in UTF-8") from None
    except Malformed as problem:
        raise UsageError(str(problem), where=str(file)) from None
