"""Searches for programs: in this process, or one after another in subprocesses while the caller goes on.

A background search writes graph and options into a temporary folder, starts `torch_compile.worker` on it, and ends with
the folder of the saved program or with the reason why there is none. Subprocesses are killed at the exit of this
process; in a forked child, searches of the parent count as failed.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import fields
from pathlib import Path

from .. import settings
from ..backends.program.program import Program
from ..backends.program.saved_program import load_program
from ..backends.tuning.gpu_process import LOCK, own_lock
from ..bytecode import bytecode_environment
from ..costdb.keys.device import GPU_KIND
from ..egraph.ir.graph import Graph
from ..errors import WorkerError
from ..models.files.native import save_graph
from ..pipeline.optimize import optimize
from ..private import temporary_place
from ..processes.ending import at_end
from ..processes.forks import adopted, in_forked_child
from ..processes.spawn import interpreter
from .options import CompileOptions
from .worker import PREFIX

#: Module that a search process runs.
WORKER = "tensor_graphs.torch_compile.worker"
#: Seconds between two looks at a running search process.
POLL_S = 0.05
#: Characters of a failed process's last output that its error quotes.
TAIL = 300
#: Error of a search for a program of weights that were freed.
ABANDONED = "its weights do not exist any more"
#: Error of a search for a program of weights that changed before they were read.
STALE = "its weights changed before the search began"


class Search:
    """One search for the program of a graph, in this process or a subprocess (`submit`).

    `unchanged`: whether the weights are still those that the graph was made for. The graph refers to their memory,
    which is read some time after the search was submitted: if they have changed then, `stale` is set and there is no
    program.
    """

    def __init__(
        self, graph: Graph, sizes: Mapping[str, int], options: CompileOptions, device: str,
        unchanged: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.graph, self.sizes, self.options, self.device = graph, dict(sizes), options, device
        self._unchanged, self.stale = unchanged, False
        self._ended = threading.Event()
        self.at_end: Callable[[], None] = lambda: None  # called when the search is over, unless it was abandoned
        self._owner = os.getpid()
        self._program: Program | None = None
        self._folder: Path | None = None
        self._error = ""
        self.abandoned = False  # whether nothing waits for the program any more: the search ends
        self.remembered = False  # whether the plan cache had a plan, so that nothing was searched

    @property
    def ended(self) -> bool:
        """Whether the search is over: it has found a program or failed."""
        return self._ended.is_set() or self._owner != os.getpid()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of the search, at most `seconds` (None: without limit); returns whether it has ended."""
        return self.ended or self._ended.wait(seconds)

    def program(self) -> Program:
        """The program, with weights bound. Raises WorkerError with the reason if there is none, and the errors of
        `load_program`.
        """
        if not self._ended.is_set() and self.ended:
            raise WorkerError("the process was forked before the search ended")
        if self._error:
            raise WorkerError(self._error)
        if self._program is None:
            assert self._folder is not None
            with _plain_mode():
                self._program = load_program(self._folder, device=None if self.device == "cpu" else self.device).bind()
            self.remembered = _remembered(self._folder)
            _remove(self._folder.parent, self._owner)
        return self._program

    def run_here(self) -> None:
        """Search the program of the graph in this process and thread. An error is kept as text and leaves the graph
        eager."""
        try:
            with _plain_mode():
                self._program = optimize(self.graph, dims=self.sizes, **self.options.search).bind()
            self.remembered = bool(self._program.report.remembered)
            if not self._unchanged():
                self.stale, self._error = True, STALE
        except Exception as error:  # any failure of a search leaves the graph eager
            self._error = f"{type(error).__name__}: {getattr(error, 'message', error)}"
        finally:
            self._end()

    def run_in_subprocess(self, folder: Path) -> None:
        """Search in a subprocess, in an empty folder; returns when it has ended or was killed."""
        try:
            self._error = self._subprocess(folder)
            self._folder = folder / "program"
            weakref.finalize(self, _remove, folder, self._owner)  # of a program that nobody has loaded
        except Exception as error:  # a full disk, no process: the caller goes on without a program
            self._error = f"{type(error).__name__}: {error}"
        finally:
            if self._error:
                shutil.rmtree(folder, ignore_errors=True)
            self._end()

    def _end(self) -> None:
        if not self.abandoned:
            self.at_end()
        self._ended.set()

    def _subprocess(self, folder: Path) -> str:
        """Run a subprocess to its end; returns an error text, "" for success."""
        if self.abandoned:
            return ABANDONED
        save_graph(self.graph, folder / "graph.safetensors")
        if not self._unchanged():
            self.stale = True
            return STALE
        graph = self.graph
        known = {"typical": graph.typical, "inner": sorted(graph.inner)}
        job = {"sizes": self.sizes, "options": self.options.search, **known}
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        with open(folder / "log", "wb") as log:
            process = adopted(subprocess.Popen(
                [interpreter(), "-P", "-m", WORKER, str(folder)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=_environment(), start_new_session=True,
            ))  # fmt: skip
        _running.add(process)
        until = time.monotonic() + self.options.seconds
        try:
            while process.poll() is None:
                if self.abandoned:
                    return ABANDONED
                if time.monotonic() >= until:
                    return f"the search process was killed after {self.options.seconds:g} s"
                time.sleep(POLL_S)
        finally:
            _kill(process)
        if process.returncode == 0:
            return ""
        with open(folder / "log", "rb") as log:  # it may be long
            log.seek(-min(4096, os.fstat(log.fileno()).st_size), os.SEEK_END)
            last = log.read().decode("utf-8", "replace").strip().splitlines()
        return f"the search process ended with code {process.returncode}: {' '.join(last[-3:])[-TAIL:]}"


def _remove(folder: Path, owner: int) -> None:
    """Remove the job folder of a search of the process `owner`: after a fork, parent and children load the same
    program."""
    if owner == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def _remembered(folder: Path) -> bool:
    """Whether the plan of a saved program came from the plan cache."""
    try:
        return bool(json.loads((folder / "report.json").read_text(encoding="utf-8"))["remembered"])
    except (OSError, ValueError, KeyError):
        return False


@contextmanager
def _plain_mode() -> Iterator[None]:
    """Context without autocast, gradients and inference mode of the caller, which would change kernels and their
    memory."""
    import torch

    gpu = torch.autocast(GPU_KIND, enabled=False) if torch.cuda.is_available() else nullcontext()
    with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False), gpu:
        yield


def _environment() -> dict[str, str]:
    """Environment of a search process: this process's settings, GPU lock and import path."""
    chosen = settings.current()
    known = {f"TENSOR_GRAPHS_{f.name.upper()}": (getattr(chosen, f.name), f.default) for f in fields(chosen)}
    return {
        **{name: value for name, value in os.environ.items() if name not in known},
        **bytecode_environment(),
        **{name: str(value) for name, (value, default) in known.items() if value != default},
        LOCK: os.environ.get(LOCK) or own_lock(),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
    _running.discard(process)


# ---------------------------------------------------------------- the queue of this process
_jobs: queue.SimpleQueue[Search] = queue.SimpleQueue()
_running: set[subprocess.Popen[bytes]] = set()
_root: list[Path] = []
_thread: list[threading.Thread] = []
_starting = threading.Lock()


def submit(search: Search) -> None:
    """Run a search: at once and in this thread with the option `wait`, else in the background, after those submitted
    before."""
    if search.options.wait:
        search.run_here()
        return
    with _starting:
        if not _root:
            _root.append(Path(tempfile.mkdtemp(prefix=PREFIX, dir=temporary_place())))
            at_end(_end, _root[0])
        if not _thread:
            _thread.append(threading.Thread(target=_serve, args=(_jobs, _root[0]), name="searches", daemon=True))
            _thread[0].start()
    _jobs.put(search)


def _serve(jobs: queue.SimpleQueue[Search], root: Path) -> None:
    count = 0
    while True:
        folder = root / str(count := count + 1)
        search = jobs.get()
        if not _root:  # the process is about to exit
            return
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
        search.run_in_subprocess(folder)
        del search  # else its program and weights live until the next search


def _end(root: Path) -> None:
    """Kill the running search and remove all job folders, at the exit of the process that made them."""
    _root.clear()
    for process in list(_running):
        with suppress(OSError):
            _kill(process)
    shutil.rmtree(root, ignore_errors=True)


@in_forked_child
def _forked() -> None:
    global _jobs, _starting
    _jobs, _starting = queue.SimpleQueue(), threading.Lock()
    _running.clear()
    _thread.clear()
    _root.clear()


__all__ = ["Search", "submit"]
