"""Reads and writes starter rows: measured times that are shipped with the package and used where a user's store has no
rows of its own.

One Parquet file a device, in the schema of the shards, with one row of each kind a key (a kernel at one shape, layout,
schedule and machine): its timing as three samples (quartiles and median of the runs), its largest error, or its last
failure. All have the run SHIPPED: measurements of this machine take precedence (`Snapshot`), and a price that rests on
shipped rows alone has a wide interval, so that a search measures the kernel again before a plan depends on it. For a
device without a file, the files of other devices of its kind (CPU, GPU) are read: their keys differ, so they only serve
predictions. A model learnt from a device's rows and its held-out accuracy (accuracy.py) lie beside them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from ... import settings
from ...errors import CostStoreError, UnwritableError
from ...plain import Malformed, read_bytes
from ...writing.files import write_bytes
from ..price.gaussian_process import GaussianProcess
from ..price.learnt import decode, encode, fitted
from ..price.roofline import CALIBRATION
from ..reports.reports import StoreReport
from . import shards
from .accuracy import Accuracy, of_device
from .schema import COLUMNS, SHIPPED, arrow_schema, checked, rows_with, summarised, to_table
from .snapshot import LOADED, UNSCHEDULED, Snapshot
from .valid_rows import exported_tables

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = Path(__file__).resolve().parents[1] / "starter"  # the package's own starter rows
NONE = "none"  # value of the setting `starter` for no starter rows
KINDS = ("cpu", "gpu")  # of devices; a device's key begins with it
MODEL = ".npz"  # suffix of a device's learnt model (price/learnt.py)
ACCURACY = ".json"  # suffix of the model's held-out accuracy
MAX_MODEL_BYTES = 4 << 20
MAX_BYTES = 1 << 20  # size of one device's file
SCHEDULES = (256, 128, 64, 32, 16, 8, 4)  # schedules kept per kernel call: as many as fit into the limit of bytes
Record = dict[str, Any]


def kind_of_device(device: str) -> str:
    """The part of a device's key before the first colon: cpu, gpu or interpreter."""
    return device.partition(":")[0]


def folder_in_use() -> Path | None:
    """The folder of starter rows that the setting `starter` names; None for "none". Raises CostStoreError if it is no
    folder.
    """
    named = settings.current().starter
    if named == NONE:
        return None
    folder = Path(named) if named else FOLDER
    if named and not folder.is_dir():
        raise CostStoreError("the folder of starter rows does not exist", where=named, hint=f'a folder, or "{NONE}"')
    return folder


def files_for(folder: Path, devices: Iterable[str]) -> list[Path]:
    """The starter files for some devices: a device's own, else those of all devices of its kind."""
    found: dict[Path, None] = {}
    for device in dict.fromkeys(devices):
        own = folder / f"{shards.device_slug(device)}.parquet"
        alike = sorted(folder.glob(f"{kind_of_device(device)}-*.parquet"))
        found.update(dict.fromkeys([own] if own.is_file() else alike))
    return list(found)


def read(path: Path) -> pa.Table:
    """The valid shipped rows of a starter file. Those of the package are not checked again: like its code, they are
    what was tested. Raises BadShard or OSError."""
    try:
        content = read_bytes(path, shards.MAX_SHARD_FILE_BYTES)
    except Malformed:
        raise shards.BadShard("too-large") from None
    table = shards.decode(content)
    table = summarised(table) if path.parent == FOLDER else checked(table)[0]
    return rows_with(table, "run", SHIPPED)


def read_model(path: Path) -> GaussianProcess | None:
    """The learnt model beside a starter file; None if there is none. Raises BadShard or OSError if it cannot be
    read."""
    beside = path.with_suffix(MODEL)
    if not beside.is_file():
        return None
    try:
        return decode(read_bytes(beside, MAX_MODEL_BYTES))
    except (Malformed, ValueError) as error:
        raise shards.BadShard(str(error)) from None


# ---------------------------------------------------------------- export
@dataclass(frozen=True, repr=False)
class StarterFile(StoreReport):
    """One written starter file.

    The device, numbers of kernel calls and of rows, bytes, and the number of schedules kept per kernel call.
    """

    path: str
    device: str
    calls: int
    rows: int
    bytes: int
    schedules: int


def export_starter(root: Path, folder: Path, max_bytes: int = MAX_BYTES) -> list[StarterFile]:
    """Write one starter file for each CPU and GPU that a store has rows of; returns what was written.

    A file has at most `max_bytes` bytes: if it would be larger, only the fastest schedules of each kernel call are
    kept. Raises CostStoreError if the store has no such rows, or if a device's file does not fit; UnwritableError if a
    file cannot be written.
    """
    by_device: dict[str, list[Record]] = {}
    for record in (row for table in exported_tables(root) for row in table.to_pylist()):
        if kind_of_device(record["device"]) in KINDS:
            by_device.setdefault(record["device"], []).append(record)
    if not by_device:
        raise CostStoreError("the store has no rows of a CPU or GPU", where=str(root))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnwritableError(f"the folder cannot be made: {error.strerror or error}", where=str(folder)) from error
    return [_written(folder, device, rows, max_bytes) for device, rows in sorted(by_device.items())]


def _written(folder: Path, device: str, rows: Sequence[Record], max_bytes: int) -> StarterFile:
    regime = "hot" if kind_of_device(device) == "cpu" else "cold"
    merged = list(_merged(rows, regime))
    for most in SCHEDULES:
        kept = _fastest(merged, most)
        content = shards.encode(_table(kept))
        if len(content) <= max_bytes:
            path = folder / f"{shards.device_slug(device)}.parquet"
            write_bytes(path, content)
            size = len(content) + write_model(path, shards.decode(content), device)
            return StarterFile(str(path), device, len({*map(_call, kept)}), len(kept), size, most)
    raise CostStoreError(f"the rows of {device} need more than {max_bytes} bytes", where=str(folder))


def write_model(path: Path, table: pa.Table, device: str) -> int:
    """Write the model learnt from a starter file's rows and its accuracy beside the file; returns their bytes.

    Where the rows do not suffice for a model, removes what was written beside the file before, and returns 0.
    """
    snapshot = Snapshot()
    timings = rows_with(table, "kind", "timing")
    snapshot.extend("timing", {name: timings.column(name).to_pylist() for name in LOADED["timing"]})
    model = fitted(snapshot, "hot" if kind_of_device(device) == "cpu" else "cold", device)
    if model is None:
        path.with_suffix(MODEL).unlink(missing_ok=True)
        path.with_suffix(ACCURACY).unlink(missing_ok=True)
        return 0
    learnt = encode(model)
    accuracies = json.dumps([one.to_json() for one in of_device(snapshot, device)], indent=1).encode()
    write_bytes(path.with_suffix(MODEL), learnt)
    write_bytes(path.with_suffix(ACCURACY), accuracies + b"\n")
    return len(learnt) + len(accuracies)


def shipped_accuracy() -> list[Accuracy]:
    """Held-out accuracy of the models in the starter folder in use (`folder_in_use`), as computed when they were
    written. Raises CostStoreError if one cannot be read.
    """
    folder, found = folder_in_use(), []
    for path in [] if folder is None else sorted(folder.glob(f"*{ACCURACY}")):
        try:
            found += [Accuracy.of_json(one) for one in json.loads(read_bytes(path, MAX_MODEL_BYTES))]
        except (Malformed, OSError, ValueError, TypeError, LookupError) as error:
            raise CostStoreError(f"the accuracy of starter rows cannot be read: {error}", where=str(path)) from None
    return found


def _merged(rows: Iterable[Record], regime: str) -> Iterator[Record]:
    """One record of each kind and key: timings in the regime that plans use (calibration: in both), the largest error,
    the last failure of keys without a timing."""
    place = lambda r: (r["digest"], r["kind"], r["regime"])
    wanted = [r for r in rows if r["kind"] != "timing" or r["regime"] == regime or r["family"] == CALIBRATION]
    timed = {r["digest"] for r in wanted if r["kind"] == "timing"}
    for (digest, kind, _), group in groupby(sorted(wanted, key=place), key=place):
        same = list(group)
        if kind == "timing":
            yield _shipped(_newest(same), samples=_quartiles([r["median_us"] for r in same], same[0]["samples"]))
        elif kind == "accuracy":
            yield _shipped(max(same, key=lambda r: r["rel_fro"]))
        elif digest not in timed:
            yield _shipped(_newest(same), message="")


def _newest(rows: Sequence[Record]) -> Record:
    return max(rows, key=lambda r: (r["time_us"], r["run"]))


def _shipped(record: Record, **changes: Any) -> Record:
    return {**record, "run": SHIPPED, "threads": record["threads"], **changes}


def _quartiles(medians: Sequence[float], samples: Sequence[float]) -> list[float]:
    """Three samples whose median is that of the runs: quartiles over runs, of the samples if there is one run."""
    values = medians if len(medians) > 1 else samples
    return list(values) if len(values) < 2 else quantiles(values, n=4, method="inclusive")


def _call(record: Mapping[str, Any]) -> tuple[str, ...]:
    """Key of a kernel at its shapes, without its schedule."""
    return tuple(record[name] for name in ("kernel", "constants", "shapes", "dtypes", "strides"))


def _fastest(records: Iterable[Record], most: int) -> list[Record]:
    """The records of the `most` fastest schedules of each kernel call, and all of kernels without schedules."""
    times: dict[tuple[str, ...], dict[str, float]] = {}
    records = list(records)
    for r in records:
        if r["schedule"] not in UNSCHEDULED:
            us = r["median_us"] if r["kind"] == "timing" else float("inf")
            known = times.setdefault(_call(r), {})
            known[r["digest"]] = min(us, known.get(r["digest"], us))
    kept = {d for known in times.values() for d in sorted(known, key=lambda d: (known[d], d))[:most]}
    return [r for r in records if r["schedule"] in UNSCHEDULED or r["digest"] in kept]


def _table(records: Sequence[Record]) -> pa.Table:
    """The records as a table, in an order that compresses well and depends only on the records."""
    import pyarrow as pa

    if not records:
        return to_table(())
    ordered = sorted(records, key=lambda r: (r["kind"], r["family"], r["name"], *_call(r), r["schedule"], r["digest"]))
    columns = [pa.array([r[name] for r in ordered], type=field.type) for name, field in zip(COLUMNS, arrow_schema())]
    return pa.Table.from_arrays(columns, schema=arrow_schema())


Devices = Callable[[], Iterable[str]]
__all__ = [
    "Devices",
    "StarterFile",
    "export_starter",
    "files_for",
    "folder_in_use",
    "kind_of_device",
    "read",
    "read_model",
    "shipped_accuracy",
    "write_model",
]
