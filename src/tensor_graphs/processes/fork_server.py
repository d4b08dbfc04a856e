"""Runs a fork server: a process that has imported a worker's module, and forks a worker of it for each request.

`run_worker` starts it as `fork_server SOCKET MODULE PREPARE SECONDS`. It imports the module and calls its function
PREPARE; each fork calls the module's function `main`. The server does none of a worker's jobs and has no threads of its
own, so that forks begin in the state of a new process, and no worker sees what another has done. It ends with its
parent, when the parent closes the socket and the last fork has ended, or after SECONDS without a fork and a request.

A request is a message of JSON, the worker's environment variables that differ between workers, with the descriptors of
its standard input, output and error, of its current folder, and of its control socket. There the server writes a line
with the worker's process id, then one with its exit code. Where that socket is closed or has anything to read, the
server kills the worker and the processes of its session, such as compilers; so it does when the worker ends.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import ModuleType

from .child import die_with_parent

VARYING = "TENSOR_GRAPHS_"  # beginning of the names of variables that each request sets anew
MESSAGE = 1 << 16  # bytes of a request
DESCRIPTORS = 5  # of a request: standard input, output and error, current folder, control socket


class ForkingLoop:
    """The requests of a parent and the forks of this process that run."""

    def __init__(self, requests: socket.socket, seconds: float) -> None:
        self.requests, self.seconds = requests, seconds
        self.controls: dict[int, socket.socket] = {}  # process id of each fork -> its control socket
        self.selector = selectors.DefaultSelector()
        self.ended, writer = os.pipe()  # readable when a fork has ended
        os.set_blocking(writer, False)
        self.own = [self.ended, writer]
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self.selector.register(requests, selectors.EVENT_READ, self.serve)
        self.selector.register(self.ended, selectors.EVENT_READ, self.reap)
        self.open = True  # whether requests may come

    def run(self) -> bool:
        """Serve requests until the end. Returns whether this is a fork, which has its own descriptors only."""
        while self.open or self.controls:
            found = self.selector.select(None if self.controls else self.seconds)
            if not found:  # a request that comes now has still been sent, or fails where the parent notices it
                self.requests.shutdown(socket.SHUT_RD)
            for key, _ in found:
                if key.data():
                    return True
        return False

    def serve(self) -> bool:
        """Fork a worker for the next request. Returns whether this is the fork."""
        text, given, _, _ = socket.recv_fds(self.requests, MESSAGE, DESCRIPTORS)
        if not text:
            self.selector.unregister(self.requests)
            self.open = False
            return False
        *descriptors, control = given
        own = socket.socket(fileno=control)
        own.setblocking(False)
        server, pid = os.getpid(), -1
        if _waits(own):
            with suppress(OSError):  # no process more is allowed; the parent notices that the socket is closed
                pid = os.fork()
        if pid == 0:
            own.close()
            self.become(json.loads(text), descriptors, server)
            return True
        for descriptor in descriptors:
            os.close(descriptor)
        if pid < 0:
            own.close()
            return False
        self.controls[pid] = own
        self.selector.register(own, selectors.EVENT_READ, lambda: self.kill(pid))
        with suppress(OSError):
            own.send(f"{pid}\n".encode())
        return False

    def become(self, environment: dict[str, str], descriptors: list[int], server: int) -> None:
        """Make this fork of `server` the worker: its own session, descriptors, folder and environment."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        die_with_parent()
        if os.getppid() != server:  # it has ended before
            os._exit(1)
        self.selector.close()
        for opened in (self.requests, *self.controls.values()):
            opened.close()
        *streams, folder = descriptors
        os.fchdir(folder)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for descriptor in (*descriptors, *self.own):
            os.close(descriptor)
        for name in [n for n in os.environ if n.startswith(VARYING) and n not in environment]:
            del os.environ[name]
        os.environ.update(environment)

    def kill(self, pid: int) -> bool:
        """Kill a fork, which has not been waited for, and its session. Returns False."""
        self.selector.unregister(self.controls[pid])
        for end in (os.killpg, os.kill):  # the fork may not have begun its session yet
            with suppress(OSError):
                end(pid, signal.SIGKILL)
        return False

    def reap(self) -> bool:
        """Report the exit codes of forks that have ended. Returns False."""
        os.read(self.ended, 4096)
        while self.controls:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                break
            control = self.controls.pop(pid := found.si_pid, None)
            if control is None:  # a process that an import has started
                os.waitpid(pid, 0)
                continue
            with suppress(OSError):  # while the process is not waited for, no other has its id
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            with suppress(KeyError):
                self.selector.unregister(control)
            code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            with suppress(OSError):
                control.send(f"{code}\n".encode())
            control.close()
        return False


def _waits(control: socket.socket) -> bool:
    """Whether the parent still waits for a worker: its control socket is open and has nothing to read."""
    try:
        control.recv(1)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def main() -> None:
    """Import and prepare the worker's module, then fork workers until the end; in a fork, run the worker."""
    _, number, module, prepare, seconds = sys.argv
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])  # a parent that blocks it hands that on
    worker: ModuleType = import_module(module)
    begin: Callable[[], object] = getattr(worker, prepare, lambda: None)
    begin()
    gc.collect()
    gc.freeze()  # collections of a fork would copy the pages of all objects
    if ForkingLoop(socket.socket(fileno=int(number)), float(seconds)).run():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        worker.main()


if __name__ == "__main__":
    main()
