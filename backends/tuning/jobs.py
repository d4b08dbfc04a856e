"""Tuning jobs: files of kernel calls to measure on another machine, and the measurement into Parquet shards.

A job names a kernel (a backend's template, or the term of a generated kernel), describes a call, and may list
schedules. A job is data: only kernels that the local emitters write from these names and terms are executed. Measuring
needs no e-graph, solver or database; `tensor-graphs db merge` merges the shards.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from ...costdb.keys.device import GPU_KIND, gpu_facts, gpu_machine
from ...costdb.store import shards
from ...costdb.store.schema import Row, checked, rows_with, to_table
from ...costdb.store.snapshot import LOADED, Snapshot
from ...egraph.ir import dtypes
from ...egraph.ir.ops import Type
from ...errors import DeviceUnavailableError, TensorGraphsError, UsageError
from ...extract.model.kernel import Call, Candidate, Template, Vertex
from ...plain import Malformed, read_bytes
from ...writing import write_bytes
from ..generate.kernel_text import call_json, call_of_json
from ..ir.precision import IEEE
from .keys import key_of
from .measure_cpu import CpuMeasurer, Sink, SinkBase
from .measure_gpu import GpuMeasurer
from .trials import SCHEDULES, search_of

FORMAT = 1
LARGEST_BYTES = 1 << 28  # maximum size of a job file
MOST_ELEMENTS = 1 << 34  # maximum elements of one operand
FLUSH_S, FLUSH_ROWS = 5.0, 500

Job = dict[str, Any]


# ---------------------------------------------------------------- jobs
def job_of(template: Template, call: Call) -> Job:
    """A call as a job (a JSON object)."""
    found: Job = {"backend": template.backend, "template": template.name, "identity": template.identity,
                  "pattern": template.pattern, "call": call_json(replace(call, names={}))}  # fmt: skip
    return found | template.job_fields()


def read_job(job: Job) -> tuple[Template, list[Call]]:
    """The template of a job and its calls, one per listed schedule, else the single call.

    UsageError for a malformed job.
    """
    try:
        call = _checked(call_of_json(job["call"]))
        template = template_of_job(job, call)
        wanted = job.get("schedules")
        calls = [call] if wanted is None else [replace(call, schedule=_schedule(s)) for s in wanted]
    except TensorGraphsError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise UsageError(f"not a job: {type(error).__name__}: {error}") from None
    if set(template.operands) != set(call.operands):
        raise UsageError(f"{template.name} takes {list(template.operands)}, not {list(call.operands)}")
    if len(template.terms) != len(call.outputs):
        raise UsageError(f"{template.name} makes {len(template.terms)} values, not {len(call.outputs)}")
    return template, calls


def template_of_job(job: Job, call: Call) -> Template:
    """The template that a job names, or its regenerated kernel.

    UsageError if this version's kernel has another identity.
    """
    from ..registry import template

    if "leaves" not in job:
        found = template(job["backend"], job["template"])
    else:
        found = _generated(job, call)
    if found.identity != job["identity"]:
        raise UsageError(f"{job['template']} is another kernel in this version", hint="write the jobs again")
    return found


def _generated(job: Job, call: Call) -> Template:
    from ...egraph.ir.builders import input as placeholder
    from ...egraph.ir.pattern import build, parse_terms
    from ..registry import backend

    leaves = {
        name: placeholder(name, call.operands[name].type.shape, dtypes.check(dtype))
        for name, dtype in job["leaves"].items()
    }
    roots = [build(term, leaves, {}) for term in parse_terms(str(job["pattern"]))]
    laid_out, last = [str(name) for name in job.get("laid_out", ()) if name in leaves], job.get("channels_last") is True
    return backend(job["backend"]).template(roots, laid_out, last, job.get("precision", IEEE.name))


def _checked(call: Call) -> Call:
    for o in (*call.operands.values(), *call.outputs):
        size = 1
        for d in o.type.shape:
            size *= _natural(d)
        if size > MOST_ELEMENTS or len(o.strides) != len(o.type.shape):
            raise UsageError(f"an operand of {size} elements with strides {o.strides}")
        Type(o.type.shape, dtypes.check(o.type.dtype))
        for s in o.strides:
            if type(s) is not int or abs(s) > MOST_ELEMENTS:
                raise UsageError(f"a stride of {s!r}")
    return replace(call, schedule=_schedule(call.schedule))


def _schedule(data: Mapping[str, Any]) -> dict[str, int]:
    return {str(name): _natural(value) for name, value in data.items()}


def _natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST_ELEMENTS:
        raise UsageError(f"{value!r} is not a valid size")
    return value


# ---------------------------------------------------------------- files
def write_jobs(path: str | Path, candidates: Iterable[Candidate]) -> int:
    """Write one job per distinct call: JSON lines, or Parquet for a `.parquet` path; atomic.

    Returns the number of jobs.

    UnwritableError if the file cannot be written.
    """
    seen: dict[str, str] = {}
    for c in candidates:
        if not c.is_view:
            seen.setdefault(key_of(c.template, c.call).digest, json.dumps(job_of(c.template, c.call)))
    target, lines = Path(path), list(seen.values())
    if target.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"job": pa.array(lines, pa.string())}), sink)
        write_bytes(target, sink.getvalue().to_pybytes())
    else:
        header = json.dumps({"tensor_graphs_jobs": FORMAT, "count": len(lines)})
        write_bytes(target, ("\n".join([header, *lines]) + "\n").encode())
    return len(lines)


def read_jobs(path: str | Path) -> list[Job | str]:
    """The jobs of a file; an error text replaces a malformed line. UsageError for another kind of file."""
    source = Path(path)
    try:
        content = read_bytes(source, LARGEST_BYTES)
    except Malformed as problem:
        raise UsageError(str(problem), where=str(path)) from None
    if source.suffix == ".parquet":
        return [_parsed(line) for line in _parquet_lines(content, source)]
    first, *lines = content.decode("utf-8", errors="replace").splitlines() or [""]
    header = _parsed(first)
    if isinstance(header, str) or header.get("tensor_graphs_jobs") != FORMAT:
        raise UsageError("this is no file of jobs", where=str(path), hint="`tensor-graphs profile MODEL --jobs FILE`")
    return [_parsed(line) for line in lines if line.strip()]


def _parquet_lines(content: bytes, source: Path) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
        if sum(group.total_byte_size for group in groups) > shards.MAX_SHARD_TABLE_BYTES:
            raise UsageError(f"the file holds more than {shards.MAX_SHARD_TABLE_BYTES} bytes", where=str(source))
        return [str(line) for line in file.read(columns=["job"]).column("job").to_pylist()]
    except (pa.ArrowException, OSError, LookupError, ValueError, TypeError, MemoryError) as error:
        raise UsageError("this is no Parquet file of jobs", where=str(source)) from error


def _parsed(line: str) -> Job | str:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"[:200]
    return found if isinstance(found, dict) else "not a JSON object"


# ---------------------------------------------------------------- the worker
@dataclass
class ShardSink(SinkBase):
    """Sink that writes rows to Parquet shards under a folder every few seconds, so that a kill loses little."""

    root: Path
    rows: list[Row] = field(default_factory=list)
    snapshot: Snapshot | None = field(
        default_factory=Snapshot
    )  # measurements at the start, which searches continue from
    counts: dict[str, int] = field(default_factory=dict)
    last: float = field(default_factory=time.monotonic)

    def add(self, rows: Iterable[Row]) -> None:
        """Buffer rows; flush if due."""
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
    """The timings and failures in the readable shards under a folder."""
    found = Snapshot()
    for shard in shards.find(root):
        try:
            table, _ = checked(shards.read(shard.path))
        except (shards.BadShard, OSError):
            continue
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
    """Measure every job without a result in the shards under `root`, in order, for at most `seconds`; returns counts.

    `device`: "cuda", or "cpu" to run GPU jobs in Triton's interpreter (tests). `workers`: compiler processes.
    `schedules`: number of schedules per kernel. `say` gets progress messages; `stop` is asked before each job.
    Raises DeviceUnavailableError if GPU jobs are given and there is no GPU.
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
    """Context manager of one machine's measuring processes for CPU and GPU jobs: started when first needed, closed on
    exit."""

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
        """Measure candidates into the sink.

        `taken` wraps the sequence of candidates and may end it early. Raises DeviceUnavailableError for GPU
        candidates if there is no GPU.
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
    """(candidates to measure, number of jobs already measured, job index -> error) of jobs, given the measurements
    `have`. `most`: number of schedules per kernel."""
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
