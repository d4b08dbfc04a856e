"""Starts workers as forks of a process that has imported their module (fork_server.py), where the platform can (Linux).

Importing takes 0.3 to 2 s of CPU time, a fork milliseconds. The server of a module is kept for the next worker of this
process, without a worker for at most IDLE_S. It does no jobs, so that no worker sees what an earlier one did. A worker
has the environment, descriptors, folder and limits that a new process would have: servers whose own are others are left
to end.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import IO

from .fork_server import VARYING
from .forks import Lock, adopted, in_forked_child
from .spawn import import_path, start_worker

IDLE_S = 60.0  # seconds for which a server without forks waits for the next request
MOST = 2  # servers of a process; the one that was used longest ago ends first
ENDING_S = 5.0  # seconds, at most, for which the end of a killed worker is waited for; then its server is killed
SILENT_S = 30.0  # seconds after which a server that has not forked, nor ended, counts as hung
PER_REQUEST = (
    VARYING,
)  # beginnings of the names of variables that each request sets, so that servers may differ in them
INHERITED = ("Umask:", "Uid:", "Gid:", "Groups:", "Cpus_allowed:", "Mems_allowed:", "Seccomp:", "NoNewPrivs:")
SERVER = f"{__name__.rpartition('.')[0]}.fork_server"


class ForkedWorker:
    """A fork that runs a worker, with the part of `subprocess.Popen` that workers need. Its standard input and output
    are pipes of UTF-8 text."""

    def __init__(self, server: ForkServer, control: socket.socket, stdin: IO[str], stdout: IO[str]) -> None:
        self.server, self.stdin, self.stdout = server, stdin, stdout
        self.returncode: int | None = None
        self.lost = False  # whether its server has refused it, or has ended before it told how this ended
        self._control, self._said, self._reading = control, b"", Lock()
        self._asked = time.monotonic()

    @property
    def pid(self) -> int:
        """Process id; waits until the server has forked. Raises ProcessLookupError if the worker ended before."""
        while not self.begun and self.returncode is None:
            self._listen(None)
        if not self.begun:
            raise ProcessLookupError("the process was ended before it began")
        return int(self._said.split(b"\n")[0])

    @property
    def begun(self) -> bool:
        """Whether the server has been heard to say that it has forked (`poll` listens)."""
        return b"\n" in self._said

    def _listen(self, seconds: float | None) -> None:
        """Read what the server says, for which this waits at most `seconds` (None: without limit)."""
        with self._reading:
            if self.returncode is not None:
                return
            with selectors.DefaultSelector() as selector:
                selector.register(self._control, selectors.EVENT_READ)
                if not selector.select(seconds):
                    return
            try:
                piece = self._control.recv(256)
            except OSError:
                piece = b""
            self._said += piece
            self.server.answered = self.server.answered or self.begun
            if not piece:  # the server has ended, and its forks with it
                self.returncode, self.lost = -signal.SIGKILL, True
            elif len(lines := self._said.split(b"\n")) > 2:
                self.returncode = int(lines[1])

    def poll(self) -> int | None:
        """The exit code; None while the worker runs, or waits for its server."""
        for _ in range(2):  # the process id and the exit code may be two messages
            self._listen(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = None if until is None else until - time.monotonic()
            if timeout is not None and left is not None and left <= 0:
                raise subprocess.TimeoutExpired("worker", timeout)
            self._listen(left)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        """Kill the worker and the processes of its session, and wait for its end. A worker whose server has not forked
        yet counts as ended: the server will not run it. A server that hangs is killed."""
        if self.poll() is None:
            with contextlib.suppress(OSError):
                self._control.send(b"k")
            if self.begun:
                try:
                    self.wait(ENDING_S)
                except subprocess.TimeoutExpired:  # the server does not answer; its forks end with it
                    self.server.kill()
            elif time.monotonic() - (self._asked if self.server.answered else self.server.started) > SILENT_S:
                self.server.kill()
            self.returncode = -signal.SIGKILL if self.returncode is None else self.returncode
        self._control.close()


class ForkServer:
    """The server of a worker's module, as its parent sees it."""

    def __init__(self, module: str, prepare: str, environment: Mapping[str, str]) -> None:
        """Start the server without waiting for it. Raises OSError if it cannot be started."""
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.requests.setblocking(False)  # one that reads no requests counts as ended once its buffer is full
        self.started, self.answered = time.monotonic(), False  # whether it has ever forked
        try:
            with theirs:
                arguments = (str(theirs.fileno()), module, prepare, str(IDLE_S))
                fds = (theirs.fileno(),)
                self.process = start_worker(SERVER, arguments, environment=environment, pass_fds=fds)
        except BaseException:
            self.requests.close()
            raise
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def fork(self, environment: Mapping[str, str]) -> ForkedWorker:
        """A new worker, with these variables in place of the server's. Does not wait for it. Raises OSError if the
        server has ended."""
        theirs, own = list[int](), list[int]()
        control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with other:
                for number in (0, 1):
                    pair = os.pipe()
                    theirs.append(pair[number])
                    own.append(pair[1 - number])
                theirs.append(os.open(os.devnull, os.O_WRONLY))
                theirs.append(os.open(".", os.O_PATH | os.O_DIRECTORY))
                request = json.dumps(dict(environment)).encode()
                socket.send_fds(self.requests, [request], [*theirs, other.fileno()])
            streams = [os.fdopen(own.pop(0), mode, encoding="utf-8") for mode in ("w", "r")]
            return adopted(ForkedWorker(self, control, *streams))
        except BaseException:
            control.close()
            raise
        finally:
            for descriptor in (*theirs, *own):
                os.close(descriptor)

    def close(self) -> None:
        """Let the server end after its last fork."""
        self.requests.close()

    def kill(self) -> None:
        """End the server, and its forks with it; the next request fails."""
        self.process.kill()


_servers: dict[Hashable, ForkServer] = {}  # what workers have in common -> server, the one used last at the end
_ended: list[ForkServer] = []  # closed servers, which may still have forks
_choosing = Lock()


def start_forked(
    module: str, prepare: str, common: Mapping[str, str], varying: Mapping[str, str]
) -> ForkedWorker | None:
    """A worker that runs the function `main` of a module of this package as a fork of a server that has imported it
    and called its function `prepare`; None where a worker must be a process of its own.

    It has the environment variables of this process, and `common` and `varying` (names that begin with VARYING, which
    the imports do not depend on) in place of these. Raises OSError if a server cannot be started.
    """
    if sys.platform != "linux":
        return None
    whole = {**os.environ, **common, "PYTHONPATH": import_path()}
    own = {name: value for name, value in whole.items() if not name.startswith(PER_REQUEST) or name in common}
    key = (module, prepare, tuple(sorted(own.items())), *inherited())
    late = {name: value for name, value in whole.items() if name.startswith(VARYING)} | dict(varying)
    with _choosing:
        for attempt in (1, 2):
            server = _servers.pop(key, None) or ForkServer(module, prepare, common)
            try:
                worker = server.fork(late)
            except OSError:  # it was idle for too long, and has ended
                server.close()
                _ended.append(server)
                if attempt == 2:
                    raise
                continue
            _servers[key] = server
            break
        while len(_servers) > MOST:
            (oldest := _servers.pop(next(iter(_servers)))).close()
            _ended.append(oldest)
        _ended[:] = [s for s in _ended if s.process.poll() is None]
    return worker


def close_servers() -> None:
    """Let all servers end after their last forks; the next worker starts another."""
    with _choosing:
        for server in _servers.values():
            server.close()
        _ended.extend(_servers.values())
        _servers.clear()


def inherited() -> tuple[str, ...]:
    """What a process takes over from this one beside its environment and descriptors: users, cores, umask, limits,
    control group, priority."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    found = [line for line in lines if line.startswith(INHERITED)]
    for name in ("limits", "cgroup"):
        with contextlib.suppress(OSError):  # not every kernel has it
            found.append(Path("/proc/self", name).read_text(encoding="utf-8"))
    return (*found, str(os.getpriority(os.PRIO_PROCESS, 0)))


@in_forked_child
def _left_behind() -> None:
    """A forked child has servers of its own: those of its parent end with the parent."""
    for server in (*_servers.values(), *_ended):
        server.close()
    _servers.clear()
    _ended.clear()


__all__ = ["ForkedWorker", "close_servers", "start_forked"]
