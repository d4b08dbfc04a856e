"""Measures kernels on the CPU in a worker process that is kept between candidates; a crash or hang costs only one
candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ... import settings
from ...costdb.keys.device import cores
from ...costdb.keys.key import Work
from ...costdb.store.schema import AccuracyRow, FailureRow, Row, TimingRow
from ...extract.model.clock import Clock
from ...extract.model.kernel import Call, Candidate, Template
from ...extract.model.work import call_work
from .cpu_worker import PRELOAD, encode
from .keys import key_of
from .measurement import CUT, Failure, Sink, Timing, ended_of
from .worker_process import GRACE_S, CpuWorkerProcess


class CpuMeasurer:
    """Measures candidates in a worker process and adds the rows to a sink (a cost store). Implements the protocol
    `Measurer`.

    `seconds`: sampling time per candidate (up to four times that if other processes disturb it). Results are first
    checked against a float64 reference. `timeout`: seconds per candidate in total. `preload`: library that the worker
    imports when it starts. `grace`: seconds that a kernel which runs when time is up gets. `spent` and `clocks` are
    empty: nothing is counted on a CPU.
    """

    ahead = False
    keeps = False  # no measurement stays in flight
    ready = True  # the worker starts fast
    spent: Mapping[str, float] = {}
    clocks: list[tuple[str, Clock]] = []

    def __init__(
        self, sink: Sink, *, seconds: float = 0.015, timeout: float = 30.0, worker: CpuWorkerProcess | None = None,
        preload: str = "", grace: float = GRACE_S,
    ) -> None:  # fmt: skip
        self.sink, self.seconds = sink, seconds
        environment = {PRELOAD: preload} if preload else None
        self.worker = worker or CpuWorkerProcess(timeout=timeout, environment=environment, prepare="preload")
        self.worker.grace = grace
        self.threads = settings.current().threads or cores()

    def measure(
        self, candidates: Iterable[Candidate], progress: Callable[[int], None] | None = None,
        worth: Callable[[Candidate], float] | None = None, look: bool = False,
        later: Iterable[tuple[Candidate, bool]] = (), leave: bool = False,
    ) -> Sequence[Candidate]:  # fmt: skip
        """Measure each distinct call and store timing, accuracy and failures; returns when the rows are on disk.

        `progress` is called with the number of finished candidates. `worth`: cost cutoff of a candidate in µs, above
        which it is not measured further. The other parameters are those of `Measurer.measure`. A kernel that still runs
        `grace` (at most `GRACE_S`) after time is up is abandoned without a row. Always returns (), because no
        measurement stays in flight.
        """
        seen: set[str] = set()
        self.worker.ended = ended_of(worth)
        for done, candidate in enumerate(candidates):
            key = key_of(candidate.template, candidate.call)
            if not candidate.is_view and key.digest not in seen:
                seen.add(key.digest)
                self.sink.add(self._rows(candidate.template, candidate.call))
            if progress is not None:
                progress(done + 1)
        if seen:
            self.sink.flush()
        return ()

    def unfinished(self, candidate: Candidate) -> bool:
        """Whether `candidate` has untried schedules that are worth measuring (`Measurer.unfinished`): never, since CPU
        kernels have no schedules."""
        return False

    def further(self, candidate: Candidate) -> bool:
        """Whether the schedule search of `candidate` may continue with more schedules (`Measurer.further`): never,
        since CPU kernels have no schedules."""
        return False

    def time(self, template: Template, call: Call) -> Timing | Failure:
        """Measure one call and return the result without storing it."""
        reply = self.worker.ask({**encode(template, call), "seconds": self.seconds})
        if not reply["ok"]:
            return Failure(reply["status"], reply["message"], reply.get("stage", ""))
        return Timing(tuple(reply["samples"]), reply["accuracy"], reply["reference"])

    def _rows(self, template: Template, call: Call) -> list[Row]:
        found = self.time(template, call)
        common: dict[str, Any] = {
            "key": key_of(template, call),
            "work": Work(*call_work(template, call)),
            "threads": self.threads,
        }
        if isinstance(found, Failure):
            if found.status == CUT:
                return []
            return [FailureRow(status=found.status, stage=found.stage, message=found.message, **common)]
        norms: dict[str, Any] = {k: v for k, v in found.accuracy.items() if np.isfinite(v) or k != "rel_fro"}
        return [
            TimingRow(samples=found.samples_us, **common),
            AccuracyRow(reference=found.reference, **norms, **common),
        ]

    def start(self) -> None:
        """Start the worker without waiting for it.

        Importing its libraries, for the first one of this process, takes as long as a measurement of many kernels.
        """
        self.worker.start()

    def compile(self, wanted: Iterable[tuple[Template, Call]], seconds: float = 0.0) -> bool:
        """Compile kernels before they are needed (`Measurer.compile`): a running worker does so without being waited
        for, in the time until its first measurement."""
        for template, call in wanted:
            self.worker.begin({**encode(template, call), "compile": True})
        return True

    def pause(self) -> None:
        """End the worker process; the next measurement starts another."""
        self.worker.close()

    def rest(self) -> None:
        """End the measurements in flight (`Measurer.rest`): there are none between calls, so this only ends the worker
        process."""
        self.pause()

    def close(self) -> None:
        """End the worker process."""
        self.worker.close()

    def __enter__(self) -> CpuMeasurer:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()
