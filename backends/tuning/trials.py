"""Defines tuning trials (one kernel with one choice of tuning parameters on a GPU): their results, and the rows stored
in the cost store."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from ...costdb.keys.key import KernelKey, Work
from ...costdb.store import tuned
from ...costdb.store.schema import AccuracyRow, FailureRow, Row, TimingRow
from ...costdb.store.snapshot import Snapshot
from ...extract.model.kernel import Call, Candidate, Template
from ...extract.model.work import call_work
from ..generate.kernel_text import KernelText, call_json
from .compile_pool import Reply
from .gpu_process import GpuProcess
from .keys import key_of
from .measurement import CUT, Failure
from .schedule_search import COUNT, Key, Schedule, ScheduleSearch, key_of_schedule

SCHEDULES = COUNT  # schedules measured per kernel
REGIME = "cold"  # measurement regime (cold cache) that searches compare
# stack bytes that are not spilled registers: frame alignment, a counter's address, and the words in which sines and
# cosines reduce far arguments (32 to 48 bytes; kernels with rotary positions have them in every schedule)
FRAME = 64
WRONG = ("wrong", "error")  # failure statuses of schedules that are wrong or could not run
# limit of schedules that fault, crash, hang, or are wrong with none right; then the kernel's other schedules are not
# tried
GIVE_UP = 3
# a result whose error is at most this multiple of what is allowed may come from rounding in this schedule alone: it
# says nothing about the kernel's other schedules
NEAR = 2.0
RANK_WEIGHT = 0.02  # relative difference of time that one place of a ranking model is worth
CONFIRMED = 2  # of a kernel's shipped schedules that a search measures first
_numbers = count()


@dataclass(eq=False)
class Trial:
    """One tuning trial: the schedule of `call`, from emission to measurement.

    `text`: the emitted kernel. `compiled`: its compilation, under way or done. `failure`: why there is no measurement.
    `cold`, `hot`: µs per call of all samples, with operands outside and inside of the cache. `accuracy`: error norms.
    `clock_mhz`: GPU clock during the samples.
    """

    call: Call
    text: KernelText | None = None
    compiled: Future[Reply] | None = None
    failure: Failure | None = None
    accuracy: dict[str, float] | None = None
    cold: Sequence[float] = ()
    hot: Sequence[float] = ()
    clock_mhz: float = float("nan")
    twin: Trial | None = None  # earlier trial with an identical binary

    @property
    def us(self) -> float:
        """Median of the cold samples in µs; infinite for a failure."""
        return sorted(self.cold)[len(self.cold) // 2] if self.cold and self.failure is None else math.inf


@dataclass(eq=False)
class Measured:
    """A kernel that is being measured, with its tuning trials.

    `search`: proposes its schedules (None: it has a single one). `candidate`: a candidate that asked for it.
    `spilling`: (spilled bytes, trial) of trials set aside because registers spill. `binaries`: first trial by digest of
    its binary. `moves`: cached result of `search.ahead()`, with the number of measurements that it is for. `number`:
    identifies the kernel in messages to device processes.
    """

    template: Template
    call: Call
    trials: list[Trial] = field(default_factory=list)
    search: ScheduleSearch | None = None
    candidate: Candidate | None = None
    look: bool = False  # whether only a few guesses are tried
    pending: int = 0  # trials without a result
    broken: int = 0  # trials that ended the device process
    # (spilled bytes, trial); run only if all trials spill
    spilling: list[tuple[int, Trial]] = field(default_factory=list)
    binaries: dict[str, Trial] = field(default_factory=dict)
    process: GpuProcess | None = None  # device process that has the kernel open
    best: list[int] = field(default_factory=list)  # indices of trials to measure in full at the end
    # (number of known results, proposals derived from them): cache of `likely_next`
    moves: tuple[int, list[Schedule]] = (-1, [])
    number: int = field(default_factory=lambda: next(_numbers))

    def __post_init__(self) -> None:
        self.work = Work(*call_work(self.template, self.call))
        self.digest = key_of(self.template, self.call).digest

    @property
    def opening(self) -> Reply:
        """The message that opens the kernel in a device process."""
        return {
            "job": "open", "kernel": self.number, "pattern": self.template.pattern, "call": call_json(self.call),
            "loss": self.template.loss, "loads": self.template.space is None and not self.template.searches,
        }  # fmt: skip

    @property
    def given_up(self) -> str:
        """Reason why the remaining schedules are not tried; empty if they are.

        A kernel with wrong results in some schedules most often has wrong results in all, and each check takes long
        (0.7 to 2.8 seconds for a matrix product).
        """
        failures = [t.failure for t in self.trials if t.failure is not None]
        wrong = sum(f.status in WRONG and f.ratio > NEAR for f in failures)
        if self.broken >= GIVE_UP:
            return f"{self.broken} other schedules ended the process"
        return f"{wrong} others are wrong" if wrong >= GIVE_UP and all(t.us == math.inf for t in self.trials) else ""

    def likely_next(self) -> list[Schedule]:
        """Schedules that the search is likely to propose next, to compile early."""
        if self.search is not None and self.moves[0] != len(self.search.known):
            self.moves = len(self.search.known), self.search.ahead()
        return self.moves[1]

    def judge(self, one: Trial) -> bool:
        """Whether a compiled trial should run now: it has not failed, fits the GPU, and its binary is not that of an
        earlier trial.

        A trial with more than a few spilled bytes is set aside (`least_spilling`). Failures and duplicates are
        recorded.
        """
        reply = one.compiled.result() if one.compiled is not None else None
        if one.failure is not None or reply is None:
            return one.failure is None
        if failed(one, reply):
            return False
        if not reply["fits"]:
            one.failure = Failure("resources", f"{reply['shared']} bytes of shared memory", "compile")
        elif (twin := self.binaries.setdefault(reply["digest"], one)) is not one:
            one.twin = twin
        elif reply["spills"] > FRAME:
            self.spilling.append((reply["spills"], one))
        else:
            return True
        return False

    def least_spilling(self) -> Trial | None:
        """The trial with the fewest bytes of spilled registers, to be run because no trial has a time yet; None if one
        has, or if none was held back for its spills.

        The other spilling trials are recorded as failures.
        """
        self.spilling.sort(key=lambda pair: pair[0])
        clean = any(t.us < math.inf for t in self.trials)
        least = None if clean or not self.spilling else self.spilling.pop(0)[1]
        for spills, one in self.spilling:
            one.failure = Failure("spills", f"{spills} bytes of registers spill per thread", "compile")
        self.spilling.clear()
        return least


def failed(one: Trial, reply: Reply) -> bool:
    """Whether a worker's reply is a failure, which is then recorded in the trial."""
    if reply["ok"]:
        return False
    one.failure = Failure(reply["status"], reply["message"], reply.get("stage", ""), reply.get("ratio", math.inf))
    return True


def not_tried(why: str) -> Failure:
    """Make the failure that is recorded for the untried schedules of a kernel that was given up; `why`: the reason, as
    text."""
    return Failure("not-tried", why, "try")


def search_of(
    template: Template, call: Call, most: int = SCHEDULES, snapshot: Snapshot | None = None
) -> ScheduleSearch | None:
    """Schedule search of a call over at most `most` schedules, with results from `snapshot`; None if there are no
    schedules to choose from.
    """
    ranked = [] if template.space is None or call.schedule else [dict(s) for s in template.space(call)]
    if not ranked:
        return None
    fits = None if template.fits is None else lambda s: template.fits(replace(call, schedule=s))  # type: ignore[misc]
    search = ScheduleSearch(ranked[:most], fits, count=most, moves=template.moves, form=template.warp_specialized)
    if snapshot is None:
        return search
    key, work = key_of(template, call), Work(*call_work(template, call))
    ranked = _by_learnt(snapshot, key, work, ranked[:most])
    search.ranked = ranked
    known = dict(_known(snapshot, key, [*ranked, *tuned.tried_schedules(snapshot, key)]))
    search.confirm = _unconfirmed(snapshot, key, known)
    search.count = max(most, sum(us < math.inf for us in known.values()))
    search.known = {k: us for k, us in known.items() if dict(k) not in search.confirm}
    if fits is not None and not known:
        search.near = [s for s in tuned.nearest_schedules(snapshot, key, work, REGIME) if fits(s)]
    return search


def _by_learnt(
    snapshot: Snapshot, key: KernelKey, work: Work, ranked: Sequence[dict[str, int]]
) -> list[dict[str, int]]:  # fmt: skip
    """Ranked schedules reordered by the times that the device's learnt model predicts, if there is one.

    Of two schedules, the one ranked later moves ahead only if it is predicted to be faster by RANK_WEIGHT for each rank
    between them.
    """
    if not snapshot.learnt.models:
        return list(ranked)
    factors = snapshot.learnt_factors([key.with_schedule(s) for s in ranked], [work] * len(ranked))
    return [ranked[i] for i in sorted(range(len(ranked)), key=lambda i: factors[i] + RANK_WEIGHT * i)]


def _unconfirmed(snapshot: Snapshot, key: KernelKey, known: Mapping[Key, float]) -> list[Schedule]:
    """The fastest known schedules, at most CONFIRMED, if none of them was measured on this machine; else none."""
    fastest = sorted((us, schedule) for schedule, us in known.items() if us < math.inf)[:CONFIRMED]
    measured = (snapshot.measurement(key.with_schedule(dict(s)).digest, REGIME) for _, s in fastest)
    return [dict(s) for _, s in fastest] if all(m is not None and m.shipped for m in measured) else []


def _known(snapshot: Snapshot, key: KernelKey, schedules: Iterable[Mapping[str, int]]) -> Iterator[tuple[Key, float]]:
    """(schedule, µs) of stored measurements; infinite µs for stored failures."""
    for schedule in schedules:
        digest = key.with_schedule(schedule).digest
        measured = snapshot.measurement(digest, REGIME)
        if measured is not None:
            yield key_of_schedule(schedule), measured.us
        elif snapshot.has(digest, "failure"):
            yield key_of_schedule(schedule), math.inf


def similarity_key(template: Template, call: Call) -> Hashable:
    """Key of a group of kernels whose best schedules are good guesses for each other (`GeneratedKernel.alike`); unique
    for kernels that are not generated."""
    return template.alike(call)


def rows_of(kernel: Measured) -> list[Row]:
    """Rows for the cost store of a kernel's trials: timing (cold, and hot if measured), accuracy, failures."""
    rows: list[Row] = []
    for one in kernel.trials:
        common: dict[str, Any] = {"key": key_of(kernel.template, one.call), "work": kernel.work}
        if one.failure is not None:
            failure = one.failure
            if failure.status == CUT:
                continue
            rows.append(FailureRow(status=failure.status, stage=failure.stage, message=failure.message, **common))
            continue
        for regime, samples in (("cold", one.cold), ("hot", one.hot)):
            if samples:
                rows.append(TimingRow(samples=samples, regime=regime, clock_mhz=one.clock_mhz, **common))
        norms: dict[str, Any] = dict(one.accuracy or {"rel_fro": 0.0})
        rows.append(AccuracyRow(**norms, **common))
    return rows
