"""Measures a file of tuning jobs on a Ray cluster: one actor per GPU, and one per machine for CPU jobs.

The driver hands out one job at a time per actor, writes the rows that come back as shards, and starts a new actor in
place of one that died. A job whose actor died is tried once more; if that actor dies too, the job is reported as lost.
Schedules are compiled on the actor's machine, by the cores that Ray reserves for the actor.
"""

from __future__ import annotations

import math
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...costdb.keys.device import GPU_KIND
from ...costdb.store import shards
from ...costdb.store.schema import Row, checked, rows_with, to_table
from ...costdb.store.snapshot import Snapshot
from ...errors import DeviceUnavailableError, TensorGraphsError
from .job_measuring import LocalMeasurers, known, on_gpu, wanted
from .jobs import Job
from .measurement import SinkBase
from .trials import SCHEDULES

TRIES = 2  # actors that may die on a job before it is given up
JOB_S = 600.0  # an actor that takes longer for one job is killed
POLL_S = 0.5
CONNECT_S = 10.0
LOCAL = "local"


@dataclass
class RowList(SinkBase):
    """Destination of rows that keeps them in memory. Its `snapshot`, the earlier measurements, is empty."""

    rows: list[Row] = field(default_factory=list)
    snapshot: Snapshot | None = field(default_factory=Snapshot)

    def add(self, rows: Iterable[Row]) -> None:
        """Append measured rows to the list that the actor returns (`Sink.add`)."""
        self.rows.extend(rows)


class FleetWorker:
    """Object of a Ray actor, which measures one job (request to measure a kernel) after another on the actor's machine.

    `device`: "cuda", or "cpu" to run GPU jobs in Triton's interpreter. `workers`: compiler processes. `schedules`:
    number of schedules per kernel.
    """

    def __init__(self, device: str, workers: int | None, schedules: int) -> None:
        self.schedules = schedules
        self.sink = RowList()
        self.local = LocalMeasurers(self.sink, device=device, workers=workers, schedules=schedules)

    def measure(self, job: Job) -> tuple[bytes, str]:
        """Measure one job (request to measure a kernel); returns (its rows as a Parquet table, an error text or "")."""
        found, _, bad = wanted([job], Snapshot(), self.schedules)
        error = bad.get(0, "")
        try:
            self.local.measure(found)
        except TensorGraphsError as problem:
            error = str(problem)[:300]
        rows, self.sink.rows = self.sink.rows, []
        return shards.encode(to_table(rows)), error


@dataclass(frozen=True)
class FleetOutcome:
    """Result of measuring on a cluster.

    `measured`, `known`, `lost`: numbers of jobs (requests to measure kernels). `bad`: job index -> error. `rows`:
    numbers of rows written, per kind. `actors`, `died`: numbers of actors that were started and that died.
    """

    measured: int
    known: int
    lost: int
    bad: Mapping[int, str]
    rows: Mapping[str, int]
    actors: int
    died: int

    def to_json(self) -> dict[str, Any]:
        """The result as a JSON object."""
        return {**vars(self), "bad": {str(n): why for n, why in self.bad.items()}, "rows": dict(self.rows)}


def measure_on_fleet(
    jobs: Sequence[Job | str], root: str | Path, *, address: str = LOCAL, device: str = GPU_KIND,
    workers: int | None = None, schedules: int = SCHEDULES, seconds: float = math.inf,
    say: Callable[[str], None] = lambda message: None, stop: Callable[[], bool] = lambda: False,
) -> FleetOutcome:  # fmt: skip
    """Measure every job (request to measure a kernel) without a result in the shards under `root` on a Ray cluster, for
    at most `seconds`; returns counts.

    `address`: that of a running cluster ("auto": the cluster of this machine), or "local" for a cluster of this
    machine's cores and GPUs that ends with the call. tensor_graphs must be importable on the cluster's machines.
    `device`: "cuda", or "cpu" to run GPU jobs in Triton's interpreter. `workers`: compiler processes per actor.
    `schedules`: number of schedules per kernel. `say` gets progress messages. `stop` is polled; True ends the run. Rows
    are checked before they are written. Raises DeviceUnavailableError if Ray is missing, the cluster cannot be reached,
    or it has no GPU for GPU jobs.
    """
    have = known(Path(root))
    pending, old, bad = deque[tuple[int, Job, bool]](), 0, dict[int, str]()
    for number, job in enumerate(jobs):
        found, done, wrong = wanted([job], have, schedules)
        old += done
        if wrong:
            bad[number] = wrong[0]
        elif found:
            assert not isinstance(job, str)
            pending.append((number, job, any(map(on_gpu, found))))
    if not pending:
        return FleetOutcome(0, old, 0, bad, {}, 0, 0)
    with _cluster(address) as ray:
        fleet = _Fleet(ray, Path(root), device, workers, schedules, bad)
        fleet.run(pending, time.monotonic() + seconds, say, stop)
    return FleetOutcome(fleet.measured, old, fleet.lost, bad, fleet.rows, fleet.started, fleet.died)


@contextmanager
def _cluster(address: str) -> Iterator[Any]:
    """Context manager that gives the module ray, connected to a cluster.

    If the process is connected already, that connection is used and kept, whatever `address` is.
    """
    try:
        import ray
    except ImportError as error:
        raise DeviceUnavailableError(
            "measuring on a cluster needs Ray", where=address, hint="pip install 'tensor-graphs[fleet]'"
        ) from error
    if ray.is_initialized():
        there = ray.get_runtime_context().gcs_address
        if address not in (LOCAL, "auto", there):
            raise DeviceUnavailableError(f"this process is connected to the Ray cluster {there}", where=address,
                                         hint="ray.shutdown() ends the connection")  # fmt: skip
        yield ray
        return
    # "local" starts a cluster even if RAY_ADDRESS or a running cluster of this machine names another one
    options: dict[str, Any] = {"address": address, "logging_level": "error", "log_to_driver": False}
    if address == LOCAL:
        options |= {"include_dashboard": False}
    try:
        _reachable(address)
        ray.init(**options)
    except (ConnectionError, ValueError, RuntimeError, OSError, OverflowError) as error:  # a port above 65535
        raise DeviceUnavailableError(
            f"the cluster cannot be reached: {str(error)[:300]}", where=address, hint="`ray start --head` starts one"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _reachable(address: str) -> None:
    """Connect to HOST:PORT once, because Ray itself tries for minutes. Raises OSError if nothing answers."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()


class _Fleet:
    """The actors of one run, and the job of each."""

    def __init__(
        self, ray: Any, root: Path, device: str, workers: int | None, schedules: int, bad: dict[int, str]
    ) -> None:
        self.ray, self.root, self.bad = ray, root, bad
        self.device, self.workers, self.schedules = device, workers, schedules
        self.measured = self.lost = self.started = self.died = 0
        self.rows: dict[str, int] = {}
        self._tries: dict[int, int] = {}
        self._busy: dict[Any, tuple[Any, tuple[int, Job, bool], float]] = {}  # reply -> actor, job, start

    def run(
        self, pending: deque[tuple[int, Job, bool]], until: float, say: Callable[[str], None], stop: Callable[[], bool]
    ) -> None:
        """Measure until nothing is pending, time is up or `stop` says so."""
        total = len(pending)
        idle = {gpu: self._actors(gpu, sum(g == gpu for _, _, g in pending)) for gpu in {g for _, _, g in pending}}
        while pending or self._busy:
            if stop() or time.monotonic() > until:
                return
            for _ in range(len(pending)):
                job = pending.popleft()
                if idle[job[2]]:
                    self._hand(idle[job[2]].pop(), job)
                else:
                    pending.append(job)
            ready, _ = self.ray.wait(list(self._busy), num_returns=1, timeout=POLL_S)
            for reply in [*ready, *self._overdue()]:
                actor, job, _ = self._busy.pop(reply)
                if self._receive(reply, actor, job):
                    idle[job[2]].append(actor)
                    say(f"{self.measured} of {total} measured")
                else:
                    say(f"an actor died on job {job[0]}")
                    idle[job[2]].append(self._actor(job[2]))
                    self._again(job, pending)

    def _actors(self, gpu: bool, most: int) -> list[Any]:
        """Start at most `most` actors for jobs of one kind: one per GPU of the cluster (`gpu`), or one per machine."""
        if gpu and self.device == GPU_KIND:
            count = int(self.ray.cluster_resources().get("GPU", 0))
            if not count:
                raise DeviceUnavailableError("the cluster has no GPU", hint="add a machine with one")
        else:
            count = sum(bool(node["Alive"]) for node in self.ray.nodes())
        return [self._actor(gpu) for _ in range(min(count, most))]

    def _actor(self, gpu: bool) -> Any:
        self.started += 1
        on_device = gpu and self.device == GPU_KIND
        options = {"num_gpus": 1} if on_device else {"num_cpus": 1, "scheduling_strategy": "SPREAD"}
        made = self.ray.remote(FleetWorker).options(**options, max_restarts=0)
        return made.remote(self.device, self.workers, self.schedules)

    def _hand(self, actor: Any, job: tuple[int, Job, bool]) -> None:
        self._busy[actor.measure.remote(job[1])] = actor, job, time.monotonic()

    def _overdue(self) -> list[Any]:
        """Replies that take longer than JOB_S; their actors are killed."""
        late = [reply for reply, (_, _, start) in self._busy.items() if time.monotonic() - start > JOB_S]
        for reply in late:
            self.ray.kill(self._busy[reply][0])
        return late

    def _receive(self, reply: Any, actor: Any, job: tuple[int, Job, bool]) -> bool:
        """Store the rows of a reply; False if its actor is dead."""
        try:
            content, error = self.ray.get(reply, timeout=POLL_S)
        except self.ray.exceptions.RayTaskError as raised:  # the job raised; its actor lives
            self.bad[job[0]] = f"the worker raised {str(raised).strip().rpartition(chr(10))[2][:300]}"
            return True
        except (self.ray.exceptions.RayError, TimeoutError):
            self.died += 1
            with suppress(Exception):
                self.ray.kill(actor)
            return False
        try:
            table, _ = checked(shards.decode(content))
        except shards.BadShard as damaged:
            self.bad[job[0]] = f"the rows that came back cannot be read: {damaged}"
            return True
        if error:
            self.bad[job[0]] = error
        self.measured += 1
        for device in sorted(set(table.column("device").to_pylist())):
            shards.write(self.root, device, rows_with(table, "device", device))
        for kind in table.column("kind").to_pylist():
            self.rows[kind] = self.rows.get(kind, 0) + 1
        return True

    def _again(self, job: tuple[int, Job, bool], pending: deque[tuple[int, Job, bool]]) -> None:
        """Queue a job again whose actor died; after `TRIES` dead actors, record the job as lost."""
        self._tries[job[0]] = self._tries.get(job[0], 0) + 1
        if self._tries[job[0]] < TRIES:
            pending.append(job)
        else:
            self.lost += 1
            self.bad[job[0]] = f"{TRIES} workers died on it"


__all__ = ["FleetOutcome", "FleetWorker", "measure_on_fleet"]
