"""Holds shared parts of the commands: progress on stderr, signal handling, answers, input and output files."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Annotated, Any

import typer

from ..errors import TensorGraphsError, UsageError
from ..plain import Malformed, read_bytes
from ..progress import Progress
from ..writing.files import is_stream

Json = Annotated[bool, typer.Option("--json", help="print exactly one JSON document on stdout")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="print progress on stderr")]


HEARTBEAT_S = 10.0  # seconds of a stage after which, and between which, it is said that it still runs

# control characters but tab and newline, and those that change the direction of text
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """A text whose control characters are escaped: names in files must not control the terminal."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def discard(stream: Any) -> None:
    """Redirect a standard stream to the null device, so that flushing its buffer at exit does not fail."""
    with suppress(OSError, AttributeError):  # it is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def tell(text: str) -> None:
    """Print a message on stderr. One that cannot be written (its reader has gone, a full disk) ends no command."""
    try:
        print(printable(text), file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def open_missing_streams() -> None:
    """Open the null device in place of closed standard streams.

    The next opened files would get their numbers, and messages of this process and its libraries.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number
    sys.stdin = sys.stdin or os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


class Console:
    """Progress display on stderr: a spinner if stderr is a terminal, one line per stage with -v. Every HEARTBEAT_S
    seconds that a stage lasts, it says so, without -v too, unless it is `quiet`."""

    def __init__(self, verbose: bool, quiet: bool = False) -> None:
        self.verbose, self.quiet, self._status = verbose, quiet, None  # type: tuple[bool, bool, Any]
        self._plain: Any = str
        self._stage, self._text, self._begun = "", "", time.monotonic()

    def say(self, stage: str, message: str) -> None:
        """Report the start of a stage, or an event in it. An empty `stage` ends the one before; nothing is printed."""
        if not stage:
            self._stage = ""
            return
        text = f"{stage}: {message}" if message else stage
        if stage != self._stage:
            self._stage, self._begun = stage, time.monotonic()
        self._text = text
        if self._status is not None:
            self._status.update(self._plain(printable(text)))
        elif self.verbose:
            tell(text)

    def beat(self) -> None:
        """Say for how long the current stage lasts already, if that is HEARTBEAT_S seconds."""
        if self._stage and (seconds := time.monotonic() - self._begun) >= HEARTBEAT_S:
            text = f"{self._text} ({seconds:.0f} s so far)"
            if self._status is not None:
                self._status.update(self._plain(printable(text)))
            else:
                tell(text)

    @contextmanager
    def _beating(self) -> Iterator[None]:
        """Context manager with a thread that calls `beat` every HEARTBEAT_S seconds."""
        ended = threading.Event()

        def beats() -> None:
            while not ended.wait(HEARTBEAT_S):
                self.beat()

        thread = threading.Thread(target=beats, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    @contextmanager
    def live(self) -> Iterator[Console]:
        """Context manager that shows the spinner and says how long stages last."""
        if self.quiet:
            yield self
            return
        with self._beating(), self._spinning():
            yield self

    @contextmanager
    def _spinning(self) -> Iterator[None]:
        """Context manager that shows the spinner on a terminal, without -v."""
        if self.verbose or not sys.stderr.isatty():
            yield
            return
        from rich.console import Console as Rich
        from rich.text import Text

        self._plain = Text  # without markup: messages have names of models
        with Rich(stderr=True).status("starting") as status:
            self._status = status
            try:
                yield
            finally:
                self._status = None


@contextmanager
def working(verbose: bool, as_json: bool) -> Iterator[Progress]:
    """Context manager of a long command: shows progress, handles Ctrl-C and SIGTERM, yields the Progress.

    A signal sets its `stopped`.
    """
    console = Console(verbose, quiet=as_json and not verbose)
    progress = Progress(console.say)
    with interruptible(progress), console.live():
        yield progress


class Terminated(BaseException):
    """Raised by SIGTERM outside a search: unwinds the stack so that temporary files are removed."""


def terminated(number: int, frame: FrameType | None) -> None:
    """SIGTERM handler outside of searches: raises `Terminated`, and ignores further signals."""
    signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt cleaning up
    raise Terminated


@contextmanager
def interruptible(progress: Progress) -> Iterator[None]:
    """Install a handler of Ctrl-C and SIGTERM.

    The first sets `progress.stopped` (keep the best result so far), the second quits.
    """

    def ask(number: int, frame: FrameType | None) -> None:
        if progress.stopped:
            for s in old:
                signal.signal(s, signal.SIG_DFL)  # if this exception is swallowed, the next signal kills the process
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated
        progress.stopped = True
        with suppress(OSError):  # print() is not reentrant in a signal handler
            os.write(2, b"stopping, keeping the best so far (again to quit)\n")

    # Python allows signal handlers in the main thread only
    if threading.current_thread() is not threading.main_thread():
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
    """Result of a command: JSON fields and text.

    `error` is set if the command ended early with a partial result. `afterwards`: work for later runs, done once the
    answer is printed. `exact`: the text is a model's own output, printed as it is; in other texts control characters
    are escaped.
    """

    document: Mapping[str, Any]
    text: str
    error: TensorGraphsError | None = None
    afterwards: Callable[[], object] | None = None
    exact: bool = False


def writable(target: Path, *, folder: bool = False) -> None:
    """Check before the work starts that a result can be written.

    Raises UsageError if the target is occupied or its folder is not writable.
    """
    from ..backends.program.program_folder import refuse_occupied

    if folder:
        refuse_occupied(target)
    elif target.is_dir():
        raise UsageError(f"{target} is a folder", hint="name a file")
    if not folder and is_stream(target):
        return
    place = Path(os.path.realpath(target)) if target.is_symlink() else target.absolute()
    above = next(p for p in place.parents if p.exists())
    try:  # create a file to find out: permission bits do not tell for root or for special file systems
        with TemporaryDirectory(prefix=".tensor_graphs-", dir=above):
            pass
    except OSError as problem:
        raise UsageError(f"nothing can be written in {above}: {problem.strerror}", hint="name another place") from None


def text_of(file: Path) -> str:
    """Content of a UTF-8 text file. Raises UsageError if it is not text, larger than 64 MiB, or not a regular file."""
    try:
        return read_bytes(file, 1 << 26).decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(
            "the file is not UTF-8 text", where=str(file), hint="write one rule per line, in UTF-8"
        ) from None
    except Malformed as problem:
        raise UsageError(str(problem), where=str(file)) from None
