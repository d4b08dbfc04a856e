"""A kernel that is measured on a GPU, with the schedules that were tried: what became of each, and what a store is told of it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from ..costdb import tuned
from ..costdb.key import KernelKey, Work
from ..costdb.schema import Accuracy, Row
from ..costdb.schema import Failure as FailureRow
from ..costdb.schema import Timing as TimingRow
from ..costdb.snapshot import Snapshot
from ..extract.kernel import Call, Candidate, Template
from ..extract.work import call_work
from .compile_pool import Reply
from .gpu_process import GpuProcess
from .kernel_text import KernelText, call_json
from .keys import key_of
from .measure import CUT, Failure
from .schedule_search import COUNT, Key, Schedule, ScheduleSearch, key_of_schedule

SCHEDULES = COUNT  # of one kernel that are measured
REGIME = "cold"  # of the times that searches go by
FRAME = 16  # bytes of stack that are no spilled registers: alignment of a frame, a counter's address
WRONG = ("wrong", "error")  # what the device says of a schedule that has run, or could not
GIVE_UP = 3  # schedules of one kernel that fault, crash or hang, or are wrong where none is right, before the others are not tried
_numbers = count()


@dataclass(eq=False)
class Try:
    """One schedule of a kernel on its way."""

    call: Call
    text: KernelText | None = None
    compiled: Future[Reply] | None = None
    failure: Failure | None = None
    accuracy: dict[str, float] | None = None
    cold: Sequence[float] = ()
    hot: Sequence[float] = ()
    clock_mhz: float = float("nan")
    twin: Try | None = None  # an earlier schedule that gives the same binary

    @property
    def us(self) -> float:
        """The middle one of the cold samples; infinite for a failure."""
        return sorted(self.cold)[len(self.cold) // 2] if self.cold and self.failure is None else math.inf


@dataclass(eq=False)
class Measured:
    """A kernel with the schedules that were tried, and those that are under way."""

    template: Template
    call: Call
    tries: list[Try] = field(default_factory=list)
    search: ScheduleSearch | None = None
    candidate: Candidate | None = None
    look: bool = False  # whether only a few guesses are tried
    pending: int = 0  # tries that are not judged yet
    broken: int = 0  # tries that ended the process with the device
    spilling: list[tuple[int, Try]] = field(default_factory=list)  # bytes; tried only where all spill
    binaries: dict[str, Try] = field(default_factory=dict)
    process: GpuProcess | None = None  # the one that has it open
    best: list[int] = field(default_factory=list)  # tries to be measured in full at the end
    moves: tuple[int, list[Schedule]] = (-1, [])  # how much was known, and what its search would propose by that
    number: int = field(default_factory=lambda: next(_numbers))

    def __post_init__(self) -> None:
        self.work = Work(*call_work(self.template, self.call))
        self.digest = key_of(self.template, self.call).digest

    @property
    def opening(self) -> Reply:
        """What the process with the device must be told of it."""
        return {
            "job": "open", "kernel": self.number, "pattern": self.template.pattern, "call": call_json(self.call),
            "loss": self.template.loss,
        }  # fmt: skip

    @property
    def given_up(self) -> str:
        """Why its other schedules are not tried; empty where they are. (What is wrong in some is so in all, most often: ten of one product
        took 0.7 to 2.8 seconds each to say so.)"""
        wrong = sum(t.failure is not None and t.failure.status in WRONG for t in self.tries)
        if self.broken >= GIVE_UP:
            return f"{self.broken} other schedules ended the process"
        return f"{wrong} others are wrong" if wrong >= GIVE_UP and all(t.us == math.inf for t in self.tries) else ""

    def hoped(self) -> list[Schedule]:
        """What its search may propose when all under way is judged."""
        if self.search is not None and self.moves[0] != len(self.search.known):
            self.moves = len(self.search.known), self.search.ahead()
        return self.moves[1]

    def judge(self, one: Try) -> bool:
        """Whether a compiled try is worth running now; notes what failed, does not fit, is another's twin, or spills."""
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

    def least_spilling(self) -> Try | None:
        """The try that spills least, where nothing that does not spill has run; the others have failed."""
        self.spilling.sort(key=lambda pair: pair[0])
        clean = any(t.us < math.inf for t in self.tries)
        least = None if clean or not self.spilling else self.spilling.pop(0)[1]
        for spills, one in self.spilling:
            one.failure = Failure("spills", f"{spills} bytes of registers spill per thread", "compile")
        self.spilling.clear()
        return least


def failed(one: Try, reply: Reply) -> bool:
    """Whether a process says that a try has failed, which is noted."""
    if reply["ok"]:
        return False
    one.failure = Failure(reply["status"], reply["message"], reply.get("stage", ""))
    return True


def not_tried(why: str) -> Failure:
    """What is recorded of schedules of a kernel that was given up."""
    return Failure("not-tried", why, "try")


def search_of(
    template: Template, call: Call, most: int = SCHEDULES, snapshot: Snapshot | None = None
) -> ScheduleSearch | None:
    """The search of a kernel's schedules with what a store knows of it; None where there is nothing to choose."""
    ranked = [] if template.space is None or call.schedule else [dict(s) for s in template.space(call)]
    if not ranked:
        return None
    fits = None if template.fits is None else lambda s: template.fits(replace(call, schedule=s))  # type: ignore[misc]
    if snapshot is None:
        return ScheduleSearch(ranked[:most], fits, count=most)
    key = key_of(template, call)
    near = tuned.nearest(snapshot, key, Work(*call_work(template, call)), REGIME)
    legal = [s for s in near if fits is not None and fits(s)]
    known = dict(_known(snapshot, key, [*ranked[:most], *tuned.tried(snapshot, key)]))
    return ScheduleSearch(ranked[:most], fits, [] if known else legal, most, known)


def _known(snapshot: Snapshot, key: KernelKey, schedules: Iterable[Mapping[str, int]]) -> Iterator[tuple[Key, float]]:
    """What was measured of schedules, or failed."""
    for schedule in schedules:
        digest = key.with_schedule(schedule).digest
        measured = snapshot.measurement(digest, REGIME)
        if measured is not None:
            yield key_of_schedule(schedule), measured.us
        elif snapshot.has(digest, "failure"):
            yield key_of_schedule(schedule), math.inf


def kind_of(template: Template, call: Call) -> Hashable:
    """What a kernel has in common with those whose schedules are good guesses for it (generated.py); else itself."""
    alike = getattr(template, "alike", None)
    return alike(call) if alike is not None else (template.identity, id(call))


def rows_of(kernel: Measured) -> list[Row]:
    """Timing (cold, and hot where taken), accuracy and failure rows of a kernel's schedules."""
    rows: list[Row] = []
    for one in kernel.tries:
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
        rows.append(Accuracy(**norms, **common))
    return rows
