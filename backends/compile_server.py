"""The process that compiles kernels side by side: it loads the compiler once and forks itself for every compiler at work.

Jobs come as JSON lines and go to compilers that are idle; replies leave in the order in which they are ready. A compiler that
crashes or takes too long costs its job; the next one is forked in milliseconds, with everything loaded. The process itself has
one thread and runs no kernels, so that a fork is a whole copy of it.
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

from . import compile_worker
from .measure_worker import die_with_parent, own_output

CHUNK = 1 << 16
READY = 0  # the number of no job: everything is loaded

Job = Mapping[str, Any]


@dataclass
class Lines:
    """Whole lines out of pieces of text."""

    rest: bytes = b""

    def of(self, piece: bytes) -> list[bytes]:
        """The lines that end in this piece."""
        *whole, self.rest = (self.rest + piece).split(b"\n")
        return whole


@dataclass(eq=False)
class Compiler:
    """A forked child: its process, the way to it, and the job that it has, until when."""

    pid: int
    way: socket.socket
    lines: Lines = field(default_factory=Lines)
    job: Job | None = None
    until: float = float("inf")

    def give(self, job: Job) -> None:
        """Hand it a job; that it may be gone is seen when its end of the way is closed."""
        self.job, self.until = job, time.monotonic() + float(job["timeout"])
        with contextlib.suppress(OSError):
            self.way.sendall(json.dumps(job).encode() + b"\n")

    def end(self) -> int:
        """Kill it; how it ended."""
        self.way.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Server:
    """Takes jobs from one file descriptor, writes replies to another, with at most `most` compilers."""

    def __init__(self, source: int, target: int, most: int) -> None:
        self.source, self.target, self.most = source, target, most
        self.waiting: deque[Job] = deque()
        self.compilers: list[Compiler] = []
        self.selector = selectors.DefaultSelector()
        self.selector.register(source, selectors.EVENT_READ)
        self.asked = Lines()

    def run(self) -> None:
        """Until the source ends."""
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
                    self._heard(key.data)
            now = time.monotonic()
            for late in [c for c in self.compilers if c.job and c.until < now]:
                self._lost(late, "timeout", f"no answer within {float(late.job['timeout']):g} s")  # type: ignore[index]

    def _hand_out(self) -> None:
        while self.waiting:
            idle = next((c for c in self.compilers if c.job is None), None)
            if idle is None and len(self.compilers) >= self.most:
                return
            (idle or self._forked()).give(self.waiting.popleft())

    def _heard(self, compiler: Compiler) -> None:
        try:
            piece = compiler.way.recv(CHUNK)
        except OSError:
            piece = b""
        if not piece:
            self._lost(compiler, "crash", "")
            return
        for line in compiler.lines.of(piece):
            self._reply(line)
            compiler.job, compiler.until = None, float("inf")

    def _lost(self, compiler: Compiler, status: str, message: str) -> None:
        """End a compiler; its job has failed."""
        self.selector.unregister(compiler.way)
        self.compilers.remove(compiler)
        code = compiler.end()
        if compiler.job is not None:
            lost = {"id": compiler.job["id"], "ok": False, "status": status, "stage": "compile",
                    "message": message or f"the compiler ended with code {code}"}  # fmt: skip
            self.say(lost)

    def say(self, reply: Mapping[str, Any]) -> None:
        """Write a reply."""
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
                _answer_all(there)
            finally:
                os._exit(0)
        there.close()
        made = Compiler(pid, here)
        self.compilers.append(made)
        self.selector.register(here, selectors.EVENT_READ, made)
        return made


def _answer_all(way: socket.socket) -> None:
    """What a compiler does: jobs one after the other."""
    lines = Lines()
    while piece := way.recv(CHUNK):
        for line in lines.of(piece):
            job = json.loads(line)
            way.sendall(json.dumps({"id": job["id"], **compile_worker.answer(job)}).encode() + b"\n")


def main() -> None:
    """`compile_server COMPILERS CAPABILITY`: serve the standard input. An interrupt is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    out = own_output()
    compile_worker.begin(int(sys.argv[2]))
    server = Server(0, out.fileno(), int(sys.argv[1]))
    server.say({"id": READY})
    server.run()


if __name__ == "__main__":
    main()
