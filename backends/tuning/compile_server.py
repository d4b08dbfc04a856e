"""Runs a compile server: a process that loads the compiler once and forks compiler processes.

Jobs (requests to compile kernels) are JSON lines and go to idle compilers; replies are written in order of completion.
If a compiler crashes or exceeds its deadline, only its job fails; a replacement is forked in milliseconds, with
everything loaded. The server is single-threaded and runs no kernels, so that forking is safe.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...processes.child import die_with_parent, own_output, yield_to_others
from ...processes.memory_limits import MEMORY_EXIT, limit_own_memory
from . import compile_worker

CHUNK = 1 << 16
NICE = 5  # behind the search and its lowering workers
READY = 0  # reply id that is no job: the compiler is loaded

Job = Mapping[str, Any]


@dataclass
class Lines:
    """Splitter of received bytes into lines; `rest`: the bytes of an incomplete line."""

    rest: bytes = b""

    def of(self, piece: bytes) -> list[bytes]:
        """Append `piece` to the bytes received so far; returns the lines that are complete now."""
        *whole, self.rest = (self.rest + piece).split(b"\n")
        return whole


@dataclass(eq=False)
class Compiler:
    """A forked compiler process: its process id `pid`, its socket `channel`, its current job (None: idle) and the time
    `until` which that may take, on the monotonic clock."""

    pid: int
    channel: socket.socket
    lines: Lines = field(default_factory=Lines)
    job: Job | None = None
    until: float = float("inf")

    def give(self, job: Job) -> None:
        """Send a job (request to compile a kernel). A dead compiler is noticed when its socket closes."""
        self.job, self.until = job, time.monotonic() + float(job["timeout"])
        with contextlib.suppress(OSError):
            self.channel.sendall(json.dumps(job).encode() + b"\n")

    def end(self) -> int:
        """Kill the compiler; returns its exit code."""
        self.channel.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Server:
    """Compile server: reads jobs (requests to compile kernels) from one file descriptor, writes replies to another; at
    most `most` compilers."""

    def __init__(self, source: int, target: int, most: int) -> None:
        self.source, self.target, self.most = source, target, most
        self.waiting: deque[Job] = deque()
        self.compilers: list[Compiler] = []
        self.selector = selectors.DefaultSelector()
        self.selector.register(source, selectors.EVENT_READ)
        self.asked = Lines()

    def run(self) -> None:
        """Hand jobs to compilers and write their replies, until the end of the input; jobs without a reply within
        their time limit are reported as failed."""
        while True:
            self._hand_out()
            until = min((c.until for c in self.compilers if c.job), default=None)
            for key, _ in self.selector.select(None if until is None else max(0.0, until - time.monotonic())):
                if key.fileobj == self.source:
                    piece = os.read(self.source, CHUNK)
                    if not piece:
                        return
                    self.waiting += map(json.loads, self.asked.of(piece))
                else:
                    self._read_reply(key.data)
            now = time.monotonic()
            for late in [c for c in self.compilers if c.job and c.until < now]:
                self._lost(late, "timeout", f"no answer within {float(late.job['timeout']):g} s")  # type: ignore[index]

    def _hand_out(self) -> None:
        while self.waiting:
            idle = next((c for c in self.compilers if c.job is None), None)
            if idle is None and len(self.compilers) >= self.most:
                return
            (idle or self._forked()).give(self.waiting.popleft())

    def _read_reply(self, compiler: Compiler) -> None:
        try:
            piece = compiler.channel.recv(CHUNK)
        except OSError:
            piece = b""
        if not piece:
            self._lost(compiler, "crash", "")
            return
        for line in compiler.lines.of(piece):
            self._reply(line)
            compiler.job, compiler.until = None, float("inf")

    def _lost(self, compiler: Compiler, status: str, message: str) -> None:
        """Remove a compiler that ended or was killed; the reply to its job is a failure of this status and message."""
        self.selector.unregister(compiler.channel)
        self.compilers.remove(compiler)
        code = compiler.end()
        if code == MEMORY_EXIT:
            status, message = "memory", "the compiler exceeded its memory limit"
        if compiler.job is not None:
            lost = {"id": compiler.job["id"], "ok": False, "status": status, "stage": "compile",
                    "message": message or f"the compiler ended with code {code}"}  # fmt: skip
            self.say(lost)

    def say(self, reply: Mapping[str, Any]) -> None:
        """Write a reply to the parent, as a line of JSON."""
        self._reply(json.dumps(reply).encode())

    def _reply(self, line: bytes) -> None:
        rest = line + b"\n"
        while rest:
            rest = rest[os.write(self.target, rest) :]

    def _forked(self) -> Compiler:
        here, there = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                here.close()
                die_with_parent()
                limit_own_memory()
                _answer_all(there)
            finally:
                os._exit(0)
        there.close()
        made = Compiler(pid, here)
        self.compilers.append(made)
        self.selector.register(here, selectors.EVENT_READ, made)
        return made


def _answer_all(channel: socket.socket) -> None:
    """Main loop of a compiler: answer jobs one after another."""
    lines = Lines()
    while piece := channel.recv(CHUNK):
        for line in lines.of(piece):
            job = json.loads(line)
            channel.sendall(json.dumps({"id": job["id"], **compile_worker.answer(job)}).encode() + b"\n")


def main() -> None:
    """`compile_server COMPILERS CAPABILITY`: serve standard input. SIGINT is left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    yield_to_others(NICE)
    out = own_output()
    compile_worker.begin(int(sys.argv[2]))
    server = Server(0, out.fileno(), int(sys.argv[1]))
    server.say({"id": READY})
    server.run()


if __name__ == "__main__":
    main()
