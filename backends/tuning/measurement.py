"""Results of measuring one kernel, and the destinations of measured rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ...costdb.store.schema import Row
from ...costdb.store.snapshot import Snapshot

CUT = "cut"  # status of a measurement that was cut off when time was up: not the kernel's failure, never stored


@dataclass(frozen=True)
class Timing:
    """Result of measuring a kernel: samples in µs, error norms (`result_check.accuracy`), and the reference's
    precision."""

    samples_us: tuple[float, ...]
    accuracy: dict[str, float]
    reference: str = "float64"

    @property
    def median(self) -> float:
        """Median of the samples in µs."""
        return float(np.median(self.samples_us))


@dataclass(frozen=True)
class Failure:
    """Reason for a missing measurement: `status` is wrong, error, memory, crash, timeout or cut (the time was up; never
    stored); on a GPU also emit-error, resources or spills. `message`: the error's text. `stage`: the step that failed,
    such as compile. `ratio`: of a wrong result its error as a multiple of what is allowed, if known, else infinite."""

    status: str
    message: str
    stage: str = ""
    ratio: float = math.inf


class Sink(Protocol):
    """Protocol of destinations of measured rows, such as the cost store. Default implementations: `SinkBase`."""

    def add(self, rows: Iterable[Row]) -> object:
        """Add rows; they may reach the disk only with `flush`."""
        ...

    def flush(self) -> object:
        """Write all added rows to the disk."""
        ...

    @property
    def snapshot(self) -> Snapshot | None:
        """Earlier measurements, which schedule searches continue from; None if there are none."""
        ...

    def calibrated(self, device: str) -> bool:
        """Whether the limits of a device (bandwidths, peak rates, launch gap) are known, or need not be measured."""
        ...


class SinkBase:
    """Defaults of `Sink`: no earlier rows, nothing to flush, no calibration."""

    snapshot: Snapshot | None = None

    def flush(self) -> object:
        """Write all added rows to the disk (`Sink.flush`): nothing to do by default, since added rows are
        not buffered."""
        return None

    def calibrated(self, device: str) -> bool:
        """Whether the limits of a device need not be measured (`Sink.calibrated`): always by default."""
        return True


def ended_of(worth: object) -> Callable[[], bool] | None:
    """The member `ended` of a cost cutoff `worth` (`extract.search.cutoff.CostCutoff`), which tells whether the time
    for measuring is over; None if `worth` has no such member.
    """
    return getattr(worth, "ended", None)
