"""Defines the rows of the store (timing, accuracy, failure) and their Parquet schema, and validates rows."""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from ..keys.key import IDENTITY_FIELDS, LABEL_FIELDS, KernelKey, Work, digest_of
from ..keys.stored_key import FIELDS, well_formed
from .arrow_arrays import array_of, values_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

FORMAT = "v1"
"""Name of the folder under a store's root that holds shards of this schema version."""

MIN_LATENCY_US, MAX_LATENCY_US = 2e-3, 1e10
"""Latencies outside this range are invalid: no call takes under two nanoseconds or three hours."""

MIN_TIME_US, MAX_TIME_US = 1_577_836_800_000_000, 4_102_444_800_000_000
"""Dates outside 2020 to 2100 are invalid. The reader's own clock decides nothing: it may be wrong."""

MAX_MESSAGE_CHARACTERS, MAX_COLUMN_CHARACTERS = 500, 100_000
REGIMES = ("hot", "cold")
TEAM = "team:"
"""Prefix of the run of rows of a team's store (team.py): used only where this store has no row of a key."""
SHIPPED = "shipped"
"""Run of rows that came with the package (starter.py): used only where this store has no row of a key."""

COLUMNS: dict[str, str] = {
    "kind": "string",
    "digest": "string",
    **dict.fromkeys(IDENTITY_FIELDS + LABEL_FIELDS, "string"),
    "flops": "double",
    "bytes": "double",
    "run": "string",
    "time_us": "int64",
    "threads": "int64",
    # timing
    "regime": "string",
    "clock_mhz": "double",
    "samples": "doubles",
    "median_us": "double",
    "mad_us": "double",
    "n": "int64",
    # accuracy, against `reference`
    "reference": "string",
    "rel_fro": "double",
    "max_abs": "double",
    "max_rel": "double",
    "max_ulp": "double",
    "seeds": "int64",
    # failure
    "status": "string",
    "stage": "string",
    "message": "string",
}
"""Column name -> type, in file order. No column may be null: unknown numbers are NaN, unknown texts empty."""

LATER: frozenset[str] = frozenset()
"""Names of columns that were added to `COLUMNS` after the first files were written: files without one are read, and
their rows have its empty value."""

_EMPTY: dict[str, Any] = {"string": "", "double": float("nan"), "int64": 0, "doubles": ()}


def now_us() -> int:
    """Microseconds since 1970 (UTC) by the machine's clock; the nearest valid date if the clock is wrong by years."""
    return min(max(time.time_ns() // 1000, MIN_TIME_US), MAX_TIME_US)


def run_id() -> str:
    """Id of this process' measuring run: unique per process, in forked processes, too."""
    return _run_id(os.getpid())


@lru_cache(maxsize=8)
def _run_id(pid: int) -> str:
    return uuid.uuid4().hex


NO_WORK = Work(0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class _Row:
    key: KernelKey
    work: Work = NO_WORK
    run: str = field(default_factory=run_id)
    time_us: int = field(default_factory=now_us)
    threads: int = 0

    kind: ClassVar[str] = ""

    def record(self) -> dict[str, Any]:
        """The row as column values; unused columns get their empty value."""
        common = {"kind": self.kind, "digest": self.key.digest, "flops": self.work.flops, "bytes": self.work.bytes}
        own = {name: value for name, value in vars(self).items() if name in COLUMNS}
        return {**self.key.columns, **common, **own}


@dataclass(frozen=True, kw_only=True)
class TimingRow(_Row):
    """Row of timing samples in µs of one kernel in one run. `regime`: inputs "hot" in cache, or "cold" after a
    flush."""

    samples: Sequence[float]
    regime: str = "hot"
    clock_mhz: float = float("nan")

    kind: ClassVar[str] = "timing"


@dataclass(frozen=True, kw_only=True)
class AccuracyRow(_Row):
    """Row of errors of a kernel's outputs against `reference`: relative Frobenius norm, maximal absolute, relative and
    ulp error."""

    rel_fro: float
    max_abs: float = float("nan")
    max_rel: float = float("nan")
    max_ulp: float = float("nan")
    seeds: int = 1
    reference: str = "float64"

    kind: ClassVar[str] = "accuracy"


@dataclass(frozen=True, kw_only=True)
class FailureRow(_Row):
    """Row of a failed measurement: `status` (compile-error, timeout, crash, wrong, …), `stage`, truncated message."""

    status: str
    stage: str = ""
    message: str = ""

    kind: ClassVar[str] = "failure"


Row: TypeAlias = TimingRow | AccuracyRow | FailureRow


def arrow_schema() -> pa.Schema:
    """The Arrow schema of the shards."""
    import pyarrow as pa

    types = {"string": pa.string(), "double": pa.float64(), "int64": pa.int64(), "doubles": pa.list_(pa.float64())}
    return pa.schema([pa.field(name, types[kind]) for name, kind in COLUMNS.items()])


def to_table(rows: Iterable[Row]) -> pa.Table:
    """Rows as an Arrow table with the columns of the schema; what UTF-8 cannot encode becomes escape sequences, and
    long messages are cut. Numbers are validated later, by `checked`."""
    import pyarrow as pa

    records = [row.record() for row in rows]
    arrays = [array_of([_cell(record, name, kind) for record in records], kind) for name, kind in COLUMNS.items()]
    return pa.Table.from_arrays(arrays, schema=arrow_schema())


def completed(table: pa.Table) -> pa.Table:
    """The table with all of `COLUMNS`, in their order. A column that it lacks (one of `LATER`) is added, filled with
    the empty value of its type: "", NaN or 0."""
    import pyarrow as pa

    schema = arrow_schema()
    if table.schema.names == schema.names:
        return table
    arrays = [
        table.column(name) if name in table.schema.names else array_of([_EMPTY[kind]] * table.num_rows, kind)
        for name, kind in COLUMNS.items()
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _cell(record: dict[str, Any], name: str, kind: str) -> Any:
    value = record.get(name, _EMPTY[kind])
    if kind == "double":
        return float(value)
    if kind == "int64":
        return int(value)
    if kind == "doubles":
        return [float(sample) for sample in value]
    text = str(value)
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text[:MAX_MESSAGE_CHARACTERS] if name in ("message", "status", "stage", "run", "regime") else text


def rows_with(table: pa.Table, name: str, value: str) -> pa.Table:
    """The rows of a table whose column `name` equals `value`; the table may be empty."""
    import pyarrow.compute as pc

    return table.filter(pc.equal(table.column(name), array_of([value], "string")[0]))


def checked(table: pa.Table) -> tuple[pa.Table, Counter[str]]:
    """Valid rows of a table, with medians recomputed from the samples, and the number of skipped rows by reason.

    A row is skipped for the first reason that holds: a null, an oversized text, an unknown kind, a digest that is not
    that of its key (a kernel at one shape, layout, schedule and machine), a key whose fields have another form than
    keys of kernels, a date outside 2020 to 2100, negative or NaN work, and for timings no samples, an unknown regime,
    or a latency that is NaN, infinite or outside `MIN_LATENCY_US`..`MAX_LATENCY_US`; NaN accuracy.
    """
    import numpy as np

    skipped: Counter[str] = Counter()
    if not table.num_rows:
        return table, skipped
    table = table.combine_chunks()
    alive = np.ones(table.num_rows, dtype=bool)
    for reason, bad in _faults(table):
        count = int(np.count_nonzero(bad & alive))
        if count:
            skipped[reason] += count
        alive &= ~bad
    return summarised(table.take(array_of(np.flatnonzero(alive), "int64")) if skipped else table), skipped


def _faults(table: pa.Table) -> Iterable[tuple[str, np.ndarray[Any, Any]]]:
    """(reason, mask of the rows that it excludes) pairs, cheap checks first."""
    import numpy as np

    def column(name: str) -> np.ndarray[Any, Any]:
        return values_of(table.column(name))

    null = np.zeros(table.num_rows, dtype=bool)
    for name in COLUMNS:
        null |= values_of(table.column(name).is_null())
    yield "null", null
    yield "oversized text", _oversized(table)
    timing, accuracy, failure = (_among(table.column("kind"), [kind]) for kind in ("timing", "accuracy", "failure"))
    yield "unknown kind", ~(timing | accuracy | failure)
    yield "key does not match its digest", _mismatched(table)
    yield "malformed key", _malformed(table)
    times = column("time_us")
    yield "absurd date", (times < MIN_TIME_US) | (times > MAX_TIME_US)
    with np.errstate(invalid="ignore"):
        work = np.stack([column("flops"), column("bytes")])
        yield "bad work", ~(np.isfinite(work) & (work >= 0)).all(axis=0)
        yield "NaN accuracy", accuracy & ~(column("rel_fro") >= 0)
    yield "unknown regime", timing & ~_among(table.column("regime"), REGIMES)
    yield "bad latency", timing & _bad_latency(table)


def _oversized(table: pa.Table) -> np.ndarray[Any, Any]:
    import numpy as np
    import pyarrow.compute as pc

    bad = np.zeros(table.num_rows, dtype=bool)
    for name, kind in COLUMNS.items():
        if kind == "string":
            bad |= values_of(pc.binary_length(table.column(name))) > MAX_COLUMN_CHARACTERS
    return bad


def _mismatched(table: pa.Table) -> np.ndarray[Any, Any]:
    import numpy as np

    identities = zip(*(table.column(name).to_pylist() for name in IDENTITY_FIELDS))
    claimed = table.column("digest").to_pylist()
    verdicts = [
        None in identity or digest_of(identity) != digest for identity, digest in zip(identities, claimed, strict=True)
    ]
    return np.array(verdicts, dtype=bool)


def _malformed(table: pa.Table) -> np.ndarray[Any, Any]:
    import numpy as np
    import pyarrow.compute as pc

    bad = np.zeros(table.num_rows, dtype=bool)
    for name in FIELDS:
        column = table.column(name)
        wrong = [text for text in pc.unique(column).to_pylist() if text is not None and not well_formed(name, text)]
        if wrong:
            bad |= _among(column, wrong)
    return bad


def _among(column: pa.ChunkedArray, texts: Sequence[str]) -> np.ndarray[Any, Any]:
    """For each element of a column of texts, whether it is one of `texts`."""
    import pyarrow.compute as pc

    return values_of(pc.is_in(column, value_set=array_of(texts, "string")))


def _samples(table: pa.Table) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(all samples concatenated, offset of each table row's first sample; length rows + 1)."""
    import numpy as np
    import pyarrow.compute as pc

    column = table.column("samples").combine_chunks()
    if hasattr(column, "chunk"):  # a chunked array of one chunk in some versions
        column = column.chunk(0)
    offsets = np.concatenate([[0], np.cumsum(values_of(pc.list_value_length(column)), dtype=np.int64)])
    return values_of(column.flatten()), offsets


def _bad_latency(table: pa.Table) -> np.ndarray[Any, Any]:
    import numpy as np

    values, offsets = _samples(table)
    with np.errstate(invalid="ignore"):
        bad = ~((values >= MIN_LATENCY_US) & (values <= MAX_LATENCY_US))
    before = np.concatenate([[0], np.cumsum(bad)])
    counts: np.ndarray[Any, Any] = before[offsets[1:]] - before[offsets[:-1]]
    return np.asarray((counts > 0) | (offsets[1:] == offsets[:-1]))


def summarised(table: pa.Table) -> pa.Table:
    """The table with `median_us`, `mad_us` and `n` recomputed: the file's own values are ignored."""
    import numpy as np

    values, offsets = _samples(table)
    lengths = np.diff(offsets)
    medians = _grouped_median(values, offsets)
    mads = _grouped_median(np.abs(values - np.repeat(medians, lengths)), offsets)
    for name, array in (("median_us", medians), ("mad_us", mads), ("n", lengths)):
        table = table.set_column(table.schema.get_field_index(name), name, array_of(array, COLUMNS[name]))
    return table


def _grouped_median(values: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Median of each `values[offsets[i]:offsets[i + 1]]`, with one sort; NaN for an empty range."""
    import numpy as np

    lengths = np.diff(offsets)
    group = np.repeat(np.arange(len(lengths)), lengths)
    ordered = np.append(values[np.lexsort((values, group))], np.nan)
    low = np.where(lengths > 0, offsets[:-1] + np.maximum(lengths - 1, 0) // 2, len(values))
    high = np.where(lengths > 0, offsets[:-1] + lengths // 2, len(values))
    return np.asarray((ordered[low] + ordered[high]) / 2)
