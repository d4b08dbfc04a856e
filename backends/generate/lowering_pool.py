"""Lowers terms to kernels in a pool of worker processes; the parent's side of generate/lowering_worker.py.

The caller takes jobs from the beginning of a batch, workers from its end, until all are taken. So the caller never
waits for a worker to start, and a machine without idle cores is not slower than without a pool. While the batch still
grows, or once `WIDE` workers have started, workers take jobs in order; with so many, the caller waits for replies
instead of doing jobs, and its other threads run meanwhile.

A pool belongs to one optimization and is used by one thread at a time. That thread drives pipe I/O between its own
jobs. All pools of a process share a limit on the number of workers (`_worker_slots`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import select
import selectors
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ...bytecode import bytecode_environment
from ...costdb.keys.device import cores
from ...extract.model.clock import Clock
from ...processes.forks import in_forked_child
from ...processes.memory_limits import limited_environment
from ...processes.spawn import start_worker
from .lowering_jobs import HEAD, Job, Reply, framed

# Maximum workers of all pools together. Their work takes three to four times the CPU time of the caller's for the same
# candidates (`python -m benchmarks.search.candidate_stage --parts`). They are forks of one process, which takes 0.7 s
# to import what they need: twelve processes of their own took as much CPU time as their work.
# The candidates of a decode step (Llama-3.2-1B, 15 cores) took 3.6 s with 8 workers, 2.9 and 3.3 with 13.
MAX_WORKERS = 12
LEFT_CORES = 2  # cores that lowering workers and compilers leave to the search and to the processes that measure
PART, AHEAD = 4, 2  # jobs per message; messages in flight per worker
WIDE = 4  # workers that have started from which the caller does no jobs itself
MIN_BATCH_JOBS = 100  # jobs of a batch from which starting workers pays off: about one second of work
# Seconds between services of the pipes while replies are there. Each system call lets another thread run, such as
# overlapped tuning, for up to Python's switch interval of 5 ms.
PUMPING_S = 0.01
PIPE = 1 << 20  # bytes of a pipe: replies of a message, so that workers do not wait for a busy parent
PATIENCE_S = 30.0  # deadline for one job; then the workers are killed
WORKER = "tensor_graphs.backends.generate.lowering_worker"


@dataclass(eq=False)
class _Process:
    """One worker: the process of which it is a fork, its pipes (for jobs and for replies), pending output, partial
    input, and messages in flight, at first the one that it has started."""

    origin: subprocess.Popen[bytes]
    jobs: int
    replies: int
    out: bytearray = field(default_factory=bytearray)
    into: bytearray = field(default_factory=bytearray)
    busy: dict[int, Batch] = field(default_factory=dict)  # number of each job in flight -> its batch
    messages: int = 1
    since: float = field(default_factory=time.monotonic)  # time from which it has been busy with its current message
    answered: bool = False  # whether the worker has ever sent a reply; it may still be starting

    def write(self) -> None:
        """Write as much as the pipe accepts."""
        with contextlib.suppress(BlockingIOError):
            while self.out:
                del self.out[: os.write(self.jobs, self.out)]

    def read(self) -> list[tuple[int, Reply]]:
        """(job number, reply) of each complete reply that one read from the pipe gives. Raises EOFError if the worker
        has ended."""
        with contextlib.suppress(BlockingIOError):
            piece = os.read(self.replies, PIPE)
            if not piece:
                raise EOFError
            self.into += piece
        found = []
        while len(self.into) >= HEAD.size and len(self.into) >= (size := HEAD.size + HEAD.unpack_from(self.into)[0]):
            found += pickle.loads(self.into[HEAD.size : size])
            del self.into[:size]
            self.messages -= 1
            self.answered = True
        return found

    def ended(self) -> bool:
        """Whether the worker has ended: nobody holds the other end of its pipe."""
        waiting = select.poll()
        waiting.register(self.replies, 0)
        return self.origin.poll() is not None or bool(waiting.poll(0))

    def close(self) -> None:
        """Close the pipes; the worker ends when it reads or writes next."""
        for pipe in (self.jobs, self.replies):
            with contextlib.suppress(OSError):
                os.close(pipe)
        self.jobs = self.replies = -1  # the numbers may be given to other files


@dataclass(eq=False)
class Batch:
    """Queue of lowering jobs (terms to lower to kernels) that the caller takes in order, each once, while workers do
    jobs ahead of the caller.

    Job numbers are unique within the pool, which may have several batches in flight.
    """

    pool: LowerPool
    jobs: list[Callable[[], Job]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)  # number of each job
    found: dict[int, Reply] = field(default_factory=dict)  # number of a job -> reply
    grows: bool = True  # whether more jobs may be added

    def __post_init__(self) -> None:
        # Number of jobs the caller has taken; number workers took while the batch grew; first index workers took from
        # the end.
        self.taken = self.early = self.given = 0

    def add(self, job: Callable[[], Job]) -> None:
        """Append a job, given as a function that builds it; workers may start on it at once."""
        self._put(job)
        if len(self.jobs) == MIN_BATCH_JOBS:
            self.pool.begin()
        if len(self.jobs) % PART == 0:
            self.pool.pump(self)

    def _put(self, job: Callable[[], Job]) -> None:
        self.jobs.append(job)
        self.numbers.append(self.pool.number())

    def close(self) -> None:
        """Mark the batch as complete: no more jobs are added."""
        self.grows, self.given = False, len(self.jobs)
        self.pool.pump(self)

    def take_arrived(self) -> Reply:
        """Take the next job: a worker's reply to it if that has arrived, else an empty reply, and the caller must do
        the job. Does not wait."""
        self.taken += 1
        return self.found.pop(self.numbers[self.taken - 1], [])

    def take(self) -> Reply:
        """Take the next job: a worker's reply to it, or an empty reply if the caller must do the job.

        Waits if a worker has the job in progress.
        """
        place, number = self.taken, self.numbers[self.taken]
        self.taken += 1
        if number not in self.found or time.monotonic() >= self.pool.pumped + PUMPING_S:
            self.pool.pump(self)
        until = time.monotonic() + PATIENCE_S
        while number not in self.found and (
            self.pool.waits_for(number) or (self.pool.wide and self.early <= place < self.given)
        ):
            self.pool.pump(self, wait=True)
            if time.monotonic() > until:
                self.pool.close()
        return self.found.pop(number, [])

    def next(self) -> list[tuple[int, Job]]:
        """Up to `PART` jobs to send to a worker, as (number, job); they count as given out.

        The caller lowers the jobs of a complete batch from the beginning, so workers take jobs from its end, but never
        the caller's next one. Of a batch that still grows they take jobs from the beginning. Once at least WIDE workers
        have started, the caller only waits: workers take jobs from the beginning of every batch, the awaited one first,
        and fewer at a time, so that all have some.
        """
        if self.grows:
            count = PART if len(self.jobs) - self.early >= PART else 0
            self.early += count
            return self._made(range(self.early - count, self.early))
        if self.pool.wide:
            first = max(self.taken - 1, self.early)
            left = self.given - first
            count = max(0, min(PART, left, 1 + left // (AHEAD * len(self.pool._processes))))
            self.early = first + count
            return self._made(range(first, self.early))
        count = max(0, min(PART, self.given - max(self.taken + 1, self.early)))
        self.given -= count
        return self._made(range(self.given, self.given + count))

    def _made(self, places: Iterable[int]) -> list[tuple[int, Job]]:
        return [(self.numbers[n], self.jobs[n]()) for n in places]


class LowerPool:
    """Pool of up to `size` worker processes that lower terms to kernels (default: all cores but `LEFT_CORES`, at most
    `MAX_WORKERS`).

    `begin` starts them, within the limit on the workers of all pools.
    """

    def __init__(self, size: int | None = None) -> None:
        self.size = min(MAX_WORKERS, cores() - (LEFT_CORES if cores() > LEFT_CORES else 1)) if size is None else size
        self._count = 0  # jobs numbered so far
        self.clock = Clock()  # time that workers were busy
        self.pumped = 0.0  # when pipes were last served
        self._processes: list[_Process] = []
        self._selector: selectors.BaseSelector | None = None  # None while there are no workers
        _pools.add(self)

    def number(self) -> int:
        """A new number for a job (terms to lower to kernels), unique in the pool."""
        self._count += 1
        return self._count

    def begin(self) -> None:
        """Start workers without waiting for them. Idle workers that have ended are replaced."""
        for process in [p for p in self._processes if not p.busy and p.ended()]:
            self._drop(process)
        before, wanted = len(self._processes), 0
        try:
            while before + wanted < self.size and _worker_slots.acquire(blocking=False):
                wanted += 1
            if wanted:
                self._start(wanted)
        except OSError:  # go on without them
            self.size = before
        finally:  # also after Ctrl-C
            for _ in range(before + wanted - len(self._processes)):
                _worker_slots.release()

    def _start(self, count: int) -> None:
        environment = {"OMP_NUM_THREADS": "1", **bytecode_environment(), **limited_environment(self.size)}
        jobs, replies = list[tuple[int, int]](), list[tuple[int, int]]()
        try:
            for _ in range(count):
                jobs.append(os.pipe())
                replies.append(os.pipe())
            theirs = [(source, target) for (source, _), (_, target) in zip(jobs, replies, strict=True)]
            given = [f"{source},{target}" for source, target in theirs]
            origin = start_worker(WORKER, given, environment=environment, pass_fds=[x for pair in theirs for x in pair])
        except BaseException:
            for descriptor in (x for pair in (*jobs, *replies) for x in pair):
                os.close(descriptor)
            raise
        for descriptor in (x for pair in theirs for x in pair):
            os.close(descriptor)
        self._selector = self._selector or selectors.DefaultSelector()
        for (_, target), (source, _) in zip(jobs, replies, strict=True):
            for descriptor in (target, source):
                os.set_blocking(descriptor, False)
            if hasattr(fcntl, "F_SETPIPE_SZ"):
                with contextlib.suppress(OSError):  # a user's pipes may have used up their share
                    fcntl.fcntl(source, fcntl.F_SETPIPE_SZ, PIPE)
            self._processes.append(made := _Process(origin, target, source))
            self._selector.register(source, selectors.EVENT_READ, made)

    def batch(self, jobs: Sequence[Callable[[], Job]]) -> Batch:
        """Submit a complete batch of jobs (terms to lower to kernels), each given as a function that builds it when it
        is sent; returns the queue from which the caller takes them."""
        found = self.growing()
        for job in jobs:
            found._put(job)
        if len(jobs) >= MIN_BATCH_JOBS:
            self.begin()
        found.close()
        return found

    def growing(self) -> Batch:
        """A new, empty batch to which jobs (terms to lower to kernels) are added one by one."""
        return Batch(self)

    @property
    def wide(self) -> bool:
        """Whether at least `WIDE` workers have started."""
        return sum(p.answered for p in self._processes) >= WIDE

    @property
    def starting(self) -> bool:
        """Whether workers have been started, but none of them has said yet that it is ready."""
        return bool(self._processes) and not any(p.answered for p in self._processes)

    def waits_for(self, number: int) -> bool:
        """Whether a worker is working on the job (terms to lower to kernels) with this number.

        If that worker has never replied, the caller gets the job back and the result is False.
        """
        for p in self._processes:
            if number in p.busy:
                if p.answered:
                    return True
                del p.busy[number]
        return False

    def pump(self, batch: Batch, wait: bool = False) -> None:
        """Send jobs (terms to lower to kernels) of `batch` to workers that can take some, and collect replies of all
        batches.

        With `wait`, wait for a reply for up to 50 ms.
        """
        self.pumped = time.monotonic()
        ended = [p for p in self._processes if not p.messages and p.ended()]  # for want of work
        for p in ended:
            self._drop(p)
        if ended and len(batch.jobs) - batch.taken >= MIN_BATCH_JOBS:
            self.begin()
        for p in [*self._processes]:
            most = AHEAD if p.answered else 2 if batch.grows else 1 + AHEAD
            while p.messages < most and (jobs := batch.next()):
                p.since = p.since if p.messages else time.monotonic()
                p.out += framed(jobs)
                p.busy |= dict.fromkeys((n for n, _ in jobs), batch)
                p.messages += 1
            if p.out:
                self._safely(p, p.write)
        for key, _ in self._selector.select(0.05 if wait else 0) if self._selector is not None else ():
            self._safely(key.data, partial(self._received, key.data))

    def _received(self, process: _Process) -> None:
        before = process.messages
        read = process.read()
        if process.messages < before:
            now = time.monotonic()
            self.clock.spent("read" if read else "start", process.since, now)
            process.since = now
        for number, found in read:
            if (batch := process.busy.pop(number, None)) is not None:
                batch.found[number] = found

    def _safely(self, process: _Process, work: Callable[[], None]) -> None:
        """Run an I/O operation on a worker. If the worker has died, its jobs are left to the caller, and it is not
        replaced; one that had answered all its jobs has ended for want of work, and may be."""
        try:
            work()
        except (OSError, EOFError):
            if process in self._processes:
                self.size -= bool(process.messages)
                self._drop(process)

    def _drop(self, process: _Process) -> None:
        self._processes.remove(process)
        self._selector = self._selector or selectors.DefaultSelector()
        with contextlib.suppress(KeyError):  # Ctrl-C came before it was registered
            self._selector.unregister(process.replies)
        process.close()
        _worker_slots.release()
        if all(p.origin is not process.origin for p in self._processes):  # which ends the workers that still run
            process.origin.kill()
            process.origin.wait()
            for pipe in (process.origin.stdin, process.origin.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        if not self._processes:
            self._selector.close()
            self._selector = None

    def close(self) -> None:
        """End all worker processes; they start again when they are needed."""
        for process in [*self._processes]:
            self._drop(process)

    def forget(self) -> None:
        """Leave the workers to the parent, in a forked child: close its copies of their pipes, by which it would mix
        messages with the parent's and keep workers alive. (Nothing is taken out of the selector, which is shared.)"""
        for process in self._processes:
            process.close()
        self._processes.clear()
        if self._selector is not None:
            self._selector.close()
            self._selector = None


_pools: weakref.WeakSet[LowerPool] = weakref.WeakSet()
_worker_slots = threading.BoundedSemaphore(MAX_WORKERS)  # free worker slots of this process


@in_forked_child
def _emptied() -> None:
    """Release all worker slots in a forked child, which has no workers."""
    global _worker_slots
    for pool in list(_pools):
        pool.forget()
    _worker_slots = threading.BoundedSemaphore(MAX_WORKERS)
