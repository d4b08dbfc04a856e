"""Looks up stored schedules (tuning parameters) of a kernel: those tried in its shape, and the best ones of the nearest
other shapes."""

from __future__ import annotations

import json
import math
from typing import TypeAlias

from ..keys.key import KernelKey, Work
from .snapshot import Snapshot

Schedule: TypeAlias = dict[str, int]


def tried_schedules(snapshot: Snapshot, key: KernelKey) -> list[Schedule]:
    """Schedules of a kernel in its shape that were timed or failed on any device, sorted by their text."""
    found = (_schedule(text) for text in sorted(snapshot.tuned(key.kernel).get(key.columns["shapes"], ())))
    return [schedule for schedule in found if schedule]


def nearest_schedules(snapshot: Snapshot, key: KernelKey, work: Work, regime: str, count: int = 2) -> list[Schedule]:
    """The fastest schedule of each of the `count` nearest other shapes of a kernel, measured on its device, or on any
    device if there are none. The distance is Euclidean in the logarithms of flops and bytes.
    `work`: flops and bytes of the call. `regime`: "hot" or "cold" caches.
    """
    return _nearest(snapshot, key, work, regime, count, key.device) or _nearest(snapshot, key, work, regime, count, "")


def _nearest(
    snapshot: Snapshot, key: KernelKey, work: Work, regime: str, count: int, device: str
) -> list[Schedule]:  # fmt: skip
    """`nearest_schedules` on one device; on any device if `device` is empty."""
    near: list[tuple[float, str, Schedule]] = []
    for shapes, schedules in snapshot.tuned(key.kernel).items():
        if shapes == key.columns["shapes"]:
            continue
        times: list[tuple[float, str, Work]] = []
        for text, digests in schedules.items():
            for digest in digests:
                measured = snapshot.measurement(digest, regime)
                if measured is not None and (row := snapshot.first_row(digest))["device"] in (device or row["device"],):
                    times.append((measured.us, text, Work(row["flops"], row["bytes"])))
        if times and (schedule := _schedule(min(times, key=lambda t: t[:2])[1])):
            near.append((_distance(times[0][2], work), shapes, schedule))
    return [schedule for _, _, schedule in sorted(near, key=lambda n: n[:2])[:count]]


def _distance(a: Work, b: Work) -> float:
    return math.hypot(math.log1p(a.flops) - math.log1p(b.flops), math.log1p(a.bytes) - math.log1p(b.bytes))


def _schedule(text: str) -> Schedule | None:
    """The schedule encoded in a column's text (name, integer pairs); None for any other content."""
    try:
        found = dict(json.loads(text))
    except (ValueError, TypeError):
        return None
    fine = all(type(n) is str and type(v) is int and 0 <= v < 1 << 31 for n, v in found.items())
    return found if fine and found else None
