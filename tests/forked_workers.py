"""Worker processes of a test run as forks of a process that has imported their modules.

A worker that measures for a GPU, or searches for `torch.compile`, imports PyTorch and this package: 2 s of CPU time.
The fixture `forked_workers` of conftest.py has such workers be forks instead, as those that measure on the CPU are for
users too (processes/forked.py). Each is a process of its own, with the environment, pipes and session that
`start_worker` gives it; only how Python starts it and imports its modules is not tested. Tests about that
(`tests/reliability/test_threads.py`, `tests/backends/tuning/test_measure.py`) start workers as users do.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

MESSAGE = 1 << 17  # most bytes of a request: an environment
PACKAGE = "tensor_graphs"
#: Worker module -> whether forks can stand for it: those that import much, and are started by many tests.
MODULES = (
    f"{PACKAGE}.backends.tuning.gpu_worker", f"{PACKAGE}.torch_compile.worker",
)  # fmt: skip
PRELOAD = "TENSOR_GRAPHS_PRELOAD"
#: What the names of environment variables begin with that libraries and Python read when they are loaded.
READ_AT_START = ("OMP_", "OPENBLAS_", "MKL_", "PYTHON", "LD_", "TORCH", "TRITON", "KMP_", "GOMP_", "CUDA_")


class Server:
    """A process that has imported a worker's modules and forks on request."""

    def __init__(self, module: str, environment: dict[str, str]) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-P", str(Path(__file__)), str(theirs.fileno()), module]
            self.process = subprocess.Popen(
                command, env=environment, pass_fds=[theirs.fileno()], start_new_session=True
            )
        self.asking = threading.Lock()

    def fork(self, arguments: list[str], environment: dict[str, str], pipes: list[int]) -> int:
        """Id of a new process that runs the worker's module; `pipes`: its standard input, output and error, and the one
        to which its exit status is written."""
        request = json.dumps([arguments, environment, os.getcwd()]).encode()
        with self.asking:
            socket.send_fds(self.socket, [request], pipes)
            answer = self.socket.recv(MESSAGE)
        if not answer:
            raise OSError("the server of forks has ended")
        return int(answer)

    def close(self) -> None:
        self.socket.close()
        self.process.wait()


class Forked(subprocess.Popen[Any]):
    """A fork, as `subprocess.Popen` shows a process. The server is its parent, and writes its exit status to a pipe."""

    def __init__(
        self, server: Server, arguments: list[str], environment: dict[str, str], text: bool, streams: tuple[Any, ...]
    ) -> None:
        """`streams`: the arguments `stdin`, `stdout` and `stderr` of `subprocess.Popen`; the third is no pipe."""
        self.args, self.returncode, self.stdin, self.stdout, self.stderr = arguments, None, None, None, None
        self._waitpid_lock, self._child_created, self._communication_started = threading.Lock(), True, False
        self._input, self.text_mode, self._sigint_wait_secs = None, text, 0.25
        pipes = [os.pipe() if given == subprocess.PIPE else None for given in streams[:2]]
        self._ended, ending = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        given = [descriptor(stream, number, null) for number, stream in enumerate(streams)]
        for number, pipe in enumerate(pipes):
            if pipe:
                given[number] = pipe[number]
        try:
            self.pid = server.fork(arguments, environment, [*given, ending])
        finally:
            for fd in (*(pipe[number] for number, pipe in enumerate(pipes) if pipe), ending, null):
                os.close(fd)
        words: dict[str, Any] = {"encoding": "utf-8"} if text else {}
        if pipes[0]:
            self.stdin = os.fdopen(pipes[0][1], "w" if text else "wb", **words)
        if pipes[1]:
            self.stdout = os.fdopen(pipes[1][0], "r" if text else "rb", **words)

    def _internal_poll(self, _deadstate: Any = None, **more: Any) -> int | None:
        with self._waitpid_lock:
            return self._status(0.0)

    def _wait(self, timeout: float | None) -> int:
        with self._waitpid_lock:
            code = self._status(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def _status(self, timeout: float | None) -> int | None:
        """The exit code, waited for at most `timeout` seconds; None if it still runs."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._ended, selectors.EVENT_READ)
                if not selector.select(timeout):
                    return None
            text = os.read(self._ended, 16)
            self.returncode = int(text) if text else -signal.SIGKILL
            os.close(self._ended)
        return self.returncode


def descriptor(stream: Any, number: int, null: int) -> int:
    """The descriptor that `subprocess.Popen` gives a process for an argument such as `stdout`; `null`: of /dev/null."""
    if stream is None:
        return number
    if isinstance(stream, int):
        return null if stream < 0 else stream
    return int(stream.fileno())


class Forks:
    """Starts workers as forks; stands for the module `subprocess` in `processes/spawn.py` and
    `torch_compile/search.py`."""

    def __init__(self) -> None:
        self.servers: dict[tuple[str, ...], Server] = {}
        self.making = threading.Lock()

    def popen(self, command: list[str], *, env: dict[str, str], **how: Any) -> subprocess.Popen[Any]:
        """A process as `subprocess.Popen(command, env=env, **how)` starts it; a fork for modules of MODULES."""
        module, *arguments = command[4:] if command[3].endswith(".run_worker") else command[3:]
        if module not in MODULES or command[0] != sys.executable:
            return subprocess.Popen(command, env=env, **how)
        read = sorted(f"{name}={value}" for name, value in env.items() if name.startswith(READ_AT_START))
        key = (module, env.get(PRELOAD, ""), *read)
        with self.making:
            if key not in self.servers or self.servers[key].process.poll() is not None:
                self.servers[key] = Server(module, env)
        streams = how.get("stdin"), how.get("stdout"), how.get("stderr")
        return Forked(self.servers[key], arguments, env, bool(how.get("text")), streams)

    def close(self) -> None:
        for server in self.servers.values():
            server.close()
        self.servers.clear()


# ---------------------------------------------------------------- the server's process
def serve(control: socket.socket, module: str) -> None:
    """Fork a process for each request, until the parent ends."""
    gc.disable()
    if os.environ.get(PRELOAD) == "torch" or module.endswith("gpu_worker"):
        import torch  # noqa: F401
    worker = importlib.import_module(module)
    if hasattr(worker, "preload"):
        worker.preload()  # here, its imports take the CPU time once: half a second
    del sys.modules[module]  # a fork runs it as its main module
    gc.enable()
    gc.freeze()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    status: dict[int, int] = {}
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    selector.register(reading, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj == reading:
                os.read(reading, 4096)
                reap(status)
                continue
            request, pipes, _, _ = socket.recv_fds(control, MESSAGE, 4)
            if not request:
                return
            if not (pid := os.fork()):
                for fd in (control.fileno(), reading, writing, *status.values(), pipes.pop()):
                    os.close(fd)
                run(module, *json.loads(request), pipes)
            *others, status[pid] = pipes
            for fd in others:
                os.close(fd)
            control.send(str(pid).encode())


def reap(status: dict[int, int]) -> None:
    """Write the exit codes of the forks that have ended to their pipes."""
    while status:
        pid, ended = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        pipe = status.pop(pid)
        os.write(pipe, str(os.waitstatus_to_exitcode(ended)).encode())
        os.close(pipe)


def run(module: str, arguments: list[str], environment: dict[str, str], folder: str, pipes: list[int]) -> None:
    """Run the worker's module in this fork, as `python -m` does, and end."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for number, pipe in enumerate(pipes):
            os.dup2(pipe, number)
            os.close(pipe)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "w" if n else "r", closefd=False) for n in range(3))
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        path = environment["PYTHONPATH"].split(os.pathsep)
        sys.path[:] = [*path, *(p for p in sys.path if p not in path)]
        from tensor_graphs.processes.run_worker import main

        sys.argv = ["run_worker", module, *arguments]
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
