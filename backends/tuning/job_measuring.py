"""Measures tuning jobs (requests to measure kernels) on one machine and writes Parquet shards, without e-graph, solver
or database.

`tensor-graphs db merge` merges the shards into a store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from ...costdb.keys.device import GPU_KIND, gpu_facts, gpu_machine
from ...costdb.store import shards
from ...costdb.store.schema import Row, checked, rows_with, to_table
from ...costdb.store.snapshot import LOADED, Snapshot
from ...costdb.store.valid_rows import readable_tables
from ...errors import DeviceUnavailableError, TensorGraphsError, UsageError
from ...extract.model.kernel import Call, Candidate, Template, Vertex
from .jobs import Job, read_job
from .keys import key_of
from .measure_cpu import CpuMeasurer
from .measure_gpu import GpuMeasurer
from .measurement import Sink, SinkBase
from .trials import SCHEDULES, search_of

FLUSH_S, FLUSH_ROWS = 5.0, 500  # seconds and rows after which rows are written


@dataclass
class ShardSink(SinkBase):
    """Destination of rows that writes them to Parquet shards under the folder `root` every few seconds, so that a kill
    loses little.

    `rows`: those not written yet. `last`: monotonic time of the last write.
    """

    root: Path
    rows: list[Row] = field(default_factory=list)
    snapshot: Snapshot | None = field(
        default_factory=Snapshot
    )  # measurements at the start, which searches continue from
    counts: dict[str, int] = field(default_factory=dict)
    last: float = field(default_factory=time.monotonic)

    def add(self, rows: Iterable[Row]) -> None:
        """Buffer rows, and write the buffer if its last write is some seconds ago."""
        for row in rows:
            self.rows.append(row)
            self.counts[row.kind] = self.counts.get(row.kind, 0) + 1
        if len(self.rows) >= FLUSH_ROWS or time.monotonic() - self.last > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write all buffered rows, one shard per device."""
        self.last = time.monotonic()
        table, _ = checked(to_table(self.rows))
        for device in sorted(set(table.column("device").to_pylist())):
            shards.write(self.root, device, rows_with(table, "device", device))
        self.rows.clear()


def known(root: Path) -> Snapshot:
    """Snapshot of the timings and failures in all readable shards (Parquet files of the cost store) under a folder."""
    found = Snapshot()
    for table in readable_tables(root):
        for kind in ("timing", "failure"):
            part = rows_with(table, "kind", kind)
            found.extend(kind, {name: part.column(name).to_pylist() for name in LOADED[kind]})
    return found


@dataclass(frozen=True)
class Outcome:
    """Result of measuring a job file.

    `measured`: candidates measured now. `known`: jobs already measured. `bad`: job index -> error. `rows`: rows written
    per kind. `gpu`: value of the setting `gpu` with which another machine plans for this GPU.
    """

    measured: int
    known: int
    bad: Mapping[int, str]
    rows: Mapping[str, int]
    gpu: str

    def to_json(self) -> dict[str, Any]:
        """The outcome as a JSON object."""
        return {"measured": self.measured, "known": self.known, "rows": dict(self.rows), "gpu": self.gpu,
                "bad": {str(n): why for n, why in self.bad.items()}}  # fmt: skip


def measure_jobs(
    jobs: Sequence[Job | str], root: str | Path, *, device: str = GPU_KIND, workers: int | None = None,
    schedules: int = SCHEDULES, seconds: float = float("inf"), say: Callable[[str], None] = lambda message: None,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:  # fmt: skip
    """Measure every job (request to measure a kernel) without a result in the shards under `root`, in order, for at
    most `seconds`; returns counts.

    `device`: "cuda", or "cpu" to run GPU jobs in Triton's interpreter (tests). `workers`: compiler processes.
    `schedules`: number of schedules per kernel. `say` gets progress messages; `stop` is polled before each job. Raises
    DeviceUnavailableError if GPU jobs are given and there is no GPU.
    """
    have, until = known(Path(root)), time.monotonic() + seconds
    sink = ShardSink(Path(root), snapshot=have)
    found, old, bad = wanted(jobs, have, schedules)
    done = 0

    def taken(part: Sequence[Candidate]) -> Iterator[Candidate]:
        nonlocal done
        for candidate in part:
            if stop() or time.monotonic() > until:
                return
            done += 1
            say(f"{done} of {len(found)}: {candidate.template.name}")
            yield candidate

    try:
        with LocalMeasurers(sink, device=device, workers=workers, schedules=schedules, say=say) as measurers:
            measurers.measure(found, taken)
    finally:
        sink.flush()
    return Outcome(done, old, bad, dict(sink.counts), "|".join(gpu_machine()))


class LocalMeasurers:
    """Context manager of one machine's measuring processes for CPU and GPU jobs (requests to measure kernels), which
    start when first needed and end on exit. `sink` gets the rows. `device`: "cuda", or "cpu" for tests. `workers`:
    compiler processes. `schedules`: number of schedules per kernel. `say` gets progress messages."""

    def __init__(
        self, sink: Sink, *, device: str = GPU_KIND, workers: int | None = None, schedules: int = SCHEDULES,
        say: Callable[[str], None] = lambda message: None,
    ) -> None:  # fmt: skip
        self.sink, self.device, self.workers, self.schedules, self.say = sink, device, workers, schedules, say
        self._open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def measure(
        self, found: Sequence[Candidate], taken: Callable[[Sequence[Candidate]], Iterable[Candidate]] = iter
    ) -> None:
        """Measure the candidates `found` and put the rows into the sink, GPU candidates first.

        `taken`: function from candidates to those of them to measure, which may end early. Raises
        DeviceUnavailableError for GPU candidates if there is no GPU.
        """
        gpu = [c for c in found if on_gpu(c)]
        if gpu:
            self._gpu.measure(taken(gpu))
        if len(gpu) < len(found):
            self._cpu.measure(taken([c for c in found if not on_gpu(c)]))

    @cached_property
    def _gpu(self) -> GpuMeasurer:
        if self.device == GPU_KIND and not gpu_facts():
            raise DeviceUnavailableError("there is no NVIDIA GPU here", hint="measure on a machine with one")
        measurer = GpuMeasurer(self.sink, device=self.device, workers=self.workers, schedules=self.schedules)
        self._open.enter_context(measurer)
        self.say("calibrating")  # once; later measurements are compared with it
        measurer.calibrate()
        self.sink.flush()
        return measurer

    @cached_property
    def _cpu(self) -> CpuMeasurer:
        return self._open.enter_context(CpuMeasurer(self.sink))


def wanted(
    jobs: Sequence[Job | str], have: Snapshot, most: int
) -> tuple[list[Candidate], int, dict[int, str]]:  # fmt: skip
    """Split jobs (requests to measure kernels) by the measurements `have`: (candidates to measure, number of jobs
    already measured, job index -> error of a job that cannot be read). `most`: number of schedules per kernel. A text
    in place of a job is the error of one that was not even parsed."""
    found: list[Candidate] = []
    old, bad = 0, dict[int, str]()
    for number, job in enumerate(jobs):
        try:
            if isinstance(job, str):
                raise UsageError(job)
            template, calls = read_job(job)
            if all(_ended(template, c, have, most) for c in calls):
                old += 1
            else:
                found += [_unplaced(template, c) for c in calls]
        except TensorGraphsError as error:
            bad[number] = str(error)[:300]
    return found, old, bad


def _ended(template: Template, call: Call, have: Snapshot, most: int) -> bool:
    """Whether a call needs no further measurement: its search of at most `most` schedules has ended, or it has a stored
    time or failure."""
    search = search_of(template, call, most, have)
    if search is not None:
        return bool(search.known) and not search.more()
    digest = key_of(template, call).digest
    return have.has(digest) or have.has(digest, "failure")


def _unplaced(template: Template, call: Call) -> Candidate:
    made, *more = (Vertex(-1 - n, o.strides) for n, o in enumerate(call.outputs))
    return Candidate(template, made, (), call, more=tuple(more))


def on_gpu(candidate: Candidate) -> bool:
    """Whether a candidate runs on a GPU."""
    from ..registry import backend

    return backend(candidate.template.backend).device.on_gpu
