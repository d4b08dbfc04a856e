"""Pool of worker processes that lower terms to kernels; the parent's side of lower_worker.py.

The caller works through a list of jobs from its beginning, workers from its end, until they meet: nobody waits for a
worker to start, and a machine without idle cores loses nothing. While the list still grows, workers take jobs in order.
The caller is single-threaded and serves the workers between its own jobs.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..costdb.device import cores
from ..extract.clock import Clock
from .lower_worker import HEAD, Job, Reply, message

MOST = 16  # worker processes
PART, AHEAD = 4, 2  # jobs per message, messages that a worker has at once
WORTH = 100  # jobs of a batch that are worth starting workers: about a second of work
PATIENCE_S = 30.0  # seconds for one job, after which a worker is given up


@dataclass(eq=False)
class _Process:
    """One worker: pending output, the partial next reply, and its number of messages."""

    process: subprocess.Popen[bytes]
    out: bytearray = field(default_factory=bytearray)
    into: bytearray = field(default_factory=bytearray)
    busy: dict[int, None] = field(default_factory=dict)  # jobs in progress
    messages: int = 0
    since: float = 0.0  # time since the worker has had messages
    heard: bool = False  # whether the worker has ever answered: it may still be starting

    def write(self) -> None:
        """Write as much as the pipe takes."""
        assert self.process.stdin is not None
        with contextlib.suppress(BlockingIOError):
            while self.out:
                del self.out[: os.write(self.process.stdin.fileno(), self.out)]

    def read(self) -> list[tuple[int, Reply]]:
        """The complete replies in the pipe. EOFError if the worker has ended."""
        assert self.process.stdout is not None
        with contextlib.suppress(BlockingIOError):
            while True:
                piece = os.read(self.process.stdout.fileno(), 1 << 16)
                if not piece:
                    raise EOFError
                self.into += piece
        found = []
        while len(self.into) >= HEAD.size and len(self.into) >= (size := HEAD.size + HEAD.unpack_from(self.into)[0]):
            found += pickle.loads(self.into[HEAD.size : size])
            del self.into[:size]
            self.messages -= 1
        return found

    def end(self) -> None:
        """Kill the worker."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


@dataclass
class Batch:
    """A batch of jobs, each taken once and in order; job numbers continue from one batch to the next."""

    pool: LowerPool
    first: int
    jobs: list[Callable[[], Job]] = field(default_factory=list)
    found: dict[int, Reply] = field(default_factory=dict)
    grows: bool = True  # whether jobs may still be added

    def __post_init__(self) -> None:
        # jobs taken by the caller; by workers while the batch grew; first index given to workers from the end
        self.taken = self.early = self.given = 0

    def add(self, job: Callable[[], Job]) -> None:
        """Add a job."""
        self.jobs.append(job)
        self.pool.added(self)

    def close(self) -> None:
        """Declare the batch complete."""
        self.grows, self.given = False, len(self.jobs)
        self.pool.pump(self)

    def there(self) -> Reply:
        """The workers' reply to the next job if it has arrived, else an empty one."""
        self.taken += 1
        return self.found.pop(self.first + self.taken - 1, [])

    def take(self) -> Reply:
        """The workers' reply to the next job; empty if the job is left to the caller."""
        number = self.first + self.taken
        self.taken += 1
        self.pool.pump(self)
        until = time.monotonic() + PATIENCE_S
        while number not in self.found and self.pool.waits_for(number):
            self.pool.pump(self, wait=True)
            if time.monotonic() > until:
                self.pool.close()
        return self.found.pop(number, [])

    def next(self) -> list[tuple[int, Job]]:
        """Jobs for a worker, from the end, except those that the caller will reach first; while the batch grows, from
        its beginning."""
        if self.grows:
            count = PART if len(self.jobs) - self.early >= PART else 0
            self.early += count
            return [(self.first + n, self.jobs[n]()) for n in range(self.early - count, self.early)]
        count = max(0, min(PART, self.given - max(self.taken + 1, self.early)))
        self.given -= count
        return [(self.first + n, self.jobs[n]()) for n in range(self.given, self.given + count)]


class LowerPool:
    """Up to `size` worker processes, started on demand or by `begin`. `names` are the generators in use together: they
    lower the same jobs."""

    names: tuple[str, ...]

    def __init__(self, size: int) -> None:
        self.size, self.names = size, ()
        self._count = 0  # jobs so far
        self.clock = Clock()  # time that workers were busy
        self._processes: list[_Process] = []
        self._selector = selectors.DefaultSelector()

    def begin(self) -> None:
        """Start the workers without waiting for them; idle ones that have ended are restarted."""
        for process in [p for p in self._processes if p.process.poll() is not None and not p.messages]:
            self._drop(process)
        while len(self._processes) < self.size:
            try:
                self._start()
            except OSError:  # continue with fewer workers
                self.size = len(self._processes)

    def _start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tensor_graphs.backends.lower_worker"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        made = _Process(process)
        self._processes.append(made)
        self._selector.register(process.stdout, selectors.EVENT_READ, made)

    def batch(self, jobs: Sequence[Callable[[], Job]]) -> Batch:
        """Start a batch of jobs, each built when it is sent. Only one batch at a time; the previous one is dropped."""
        found = self.growing()
        found.jobs += jobs
        self._count += len(jobs)
        if len(jobs) >= WORTH:
            self.begin()
        found.close()
        return found

    def growing(self) -> Batch:
        """Start an empty batch, to which jobs are added one by one."""
        for p in self._processes:
            p.busy.clear()  # late replies of the previous batch are dropped
        return Batch(self, self._count)

    def added(self, batch: Batch) -> None:
        """Notice that a job was added: workers may take it at once."""
        self._count += 1
        if len(batch.jobs) == WORTH:
            self.begin()
        if len(batch.jobs) % PART == 0:
            self.pump(batch)

    def waits_for(self, number: int) -> bool:
        """Whether a worker has the job in progress. Jobs of a worker that has not started yet are taken back."""
        for p in self._processes:
            if number in p.busy:
                if p.heard:
                    return True
                del p.busy[number]
        return False

    def pump(self, batch: Batch, wait: bool = False) -> None:
        """Collect replies and send further jobs."""
        for p in [*self._processes]:
            while p.messages < (AHEAD if p.heard or not batch.grows else 1) and (jobs := batch.next()):
                p.since = p.since if p.messages else time.monotonic()
                p.out += message(jobs)
                p.busy |= dict.fromkeys(n for n, _ in jobs)
                p.messages += 1
            if p.out:
                self._safely(p, p.write)
        for key, _ in self._selector.select(0.05 if wait else 0):
            self._safely(key.data, partial(self._received, key.data, batch))

    def _received(self, process: _Process, batch: Batch) -> None:
        read = process.read()
        if read:
            process.heard = True
            now = time.monotonic()
            self.clock.spent("read", process.since, now)
            process.since = now
        for number, found in read:
            if number in process.busy:
                del process.busy[number]
                batch.found[number] = found

    def _safely(self, process: _Process, work: Callable[[], None]) -> None:
        """Do something with a worker. If the worker has died, its jobs are left to the caller."""
        try:
            work()
        except (OSError, EOFError):
            if process in self._processes:
                self._drop(process)
                self.size = len(self._processes)

    def _drop(self, process: _Process) -> None:
        self._processes.remove(process)
        self._selector.unregister(process.process.stdout)  # type: ignore[arg-type]
        process.end()

    def close(self) -> None:
        """End all workers; they start again on demand."""
        for process in [*self._processes]:
            self._drop(process)


_pools: list[LowerPool] = []


def default_pool() -> LowerPool:
    """The pool of this process, made on first use and closed at exit."""
    if not _pools:
        _pools.append(LowerPool(min(MOST, cores() - 1)))
        atexit.register(_pools[0].close)
    return _pools[0]
