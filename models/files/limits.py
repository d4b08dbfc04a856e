"""Limits imported models: sizes, checked arithmetically before anything is allocated, operations, and seconds."""

from __future__ import annotations

from ... import settings
from ...egraph.types import dtypes
from ...egraph.types.dims import Shape
from ...errors import TooLargeError

#: Largest size of one value in bytes (1 TiB). A file that asks for more is corrupt or hostile.
MAX_BYTES = 1 << 40
#: Largest rank of one value (NumPy allows 64).
MAX_RANK = 32
#: Seconds of tracing or exporting a model: at least MIN_EXPORT_S, EACH for each second of the budget, UNBUDGETED for
#: calls without a budget.
MIN_EXPORT_S, EACH, UNBUDGETED = 60.0, 4.0, 600.0
#: Seconds without a new operation after which an export counts as stalled, whatever MIN_EXPORT_S is: IDLE, and
#: IDLE_EACH for each operation traced so far. A first export imports PyTorch's exporter before its first operation
#: (1.2 s, 8 s on two cores at load 14); afterwards the longest pause is 4 ms, and 0.3 ms for each operation once all
#: are traced. (MIN_EXPORT_S is as long because a legitimate module of 10,000 operations takes 12 s, and a minute at
#: that load.)
IDLE, IDLE_EACH = 20.0, 1e-3


def seconds_of(budget: float | None) -> float:
    """Return the time limit of a trace or export in seconds: the setting `export_seconds`, else derived from the
    budget."""
    if (chosen := settings.current().export_seconds) > 0:
        return float(chosen)
    return UNBUDGETED if budget is None else max(MIN_EXPORT_S, EACH * budget)


def idle_seconds_of(budget: float | None, operations: int) -> float:
    """Return the time limit, in seconds, of an export that traces no further operation, after it has traced so many
    `operations`. It grows with their number, up to the limit of the whole export (`seconds_of`)."""
    longest = seconds_of(budget)
    if budget is None or settings.current().export_seconds > 0:
        return longest
    return min(longest, max(IDLE, EACH * budget) + IDLE_EACH * operations)


def check_size(shape: Shape, dtype: str, *, what: str, where: str = "") -> None:
    """Raise TooLargeError if a value of this shape and dtype exceeds MAX_RANK or MAX_BYTES.

    Free dimensions count as 1. `what` and `where` name the value and its file in the message.
    """
    if len(shape) > MAX_RANK:
        raise TooLargeError(f"{what} has {len(shape)} axes, more than {MAX_RANK}", where=where)
    size = dtypes.itemsize(dtype)
    for d in shape:
        if isinstance(d, int) and d == 0:
            return
    for d in shape:
        size *= d if isinstance(d, int) else 1
        if size > MAX_BYTES:
            raise TooLargeError(
                f"{what} of type {dtype}{list(shape)} needs more than {MAX_BYTES} bytes",
                where=where,
                hint="this is larger than any value that can be computed here",
            )


def check_count(count: int, *, where: str = "", most: int | None = None) -> None:
    """Raise TooLargeError if `count` operations are more than the setting `max_nodes` allows.

    `where`: path for the message. `most`: the setting's value, which a thread without the caller's context has to be
    told.

    Every compilation stage takes about 1 ms and 20 KiB for each operation.
    """
    most = settings.current().max_nodes if most is None else most
    if count > most:
        raise TooLargeError(
            f"the model has {count} operations, more than {most}", where=where,
            hint="optimize parts of it, or set TENSOR_GRAPHS_MAX_NODES (settings.override(max_nodes=...))",
        )  # fmt: skip
