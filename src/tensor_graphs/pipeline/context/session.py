"""Holds the state of one optimization: options, deadline clock, cost store, and messages for the report."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from ... import settings
from ...backends.generate.lowering_pool import LowerPool
from ...backends.generate.lowerings import Lowerings
from ...backends.program.weights import SharedWeights
from ...backends.registry import select
from ...backends.runtime.compile_clock import compilers_within
from ...costdb.store.store import Store, default_root
from ...egraph.ir.memo import forget
from ...egraph.ir.tensor import Tensor
from ...egraph.patterns.rule import Rule
from ...errors import warnings_into
from ...extract.model.clock import Clock, Halted
from ...extract.model.pricing import Measurer
from ...options import Options, with_builtin
from ...progress import Progress
from ...report.omissions import Omission, OmittedWork
from ...report.records import FinalistReport
from ...report.timeline import Rows, timeline
from ...verification.comparison import rounding_allowance
from ...wording import counted
from ...writing.files import named_path
from ..sources.caller import Caller
from .expected import ExpectedTimes

MIN_MEASURING_SHARE, MIN_MEASURING_S = 0.2, 2.0  # of measuring on a GPU: share of the budget, at most these seconds
MAX_STARTING_S = 8.0  # seconds of a call in which work before measuring goes on while the measuring processes start
# time for tests of the caller's rules: fraction of the budget, and at least these seconds
TESTING, TESTING_S = 0.5, 2.0
VERIFYING_S = 5.0  # seconds that verification on one input may always take, whatever is left of the budget
LATE = 0.25  # fraction of the budget by which the search for a plan within tolerance may exceed it


@dataclass
class Session:
    """State of one optimization: options, clocks, messages for the report, worker processes.

    `now`: the clock that the budget is measured by, in seconds; `budget_start`: its reading when the budget began.
    `timeline_start`: reading of `time.monotonic` at the start of the session, the origin of the report's timeline.
    `warnings`: texts for the report. `plan_cache_notes`: why cached plans were not used.
    """

    options: Options
    progress: Progress = field(default_factory=Progress)
    own_rules: Sequence[Rule] = ()  # rules in force, in place of the built-in ones and those of the options
    stage_clock: Clock = field(default_factory=Clock)  # time of each stage of the report
    now: Callable[[], float] = time.monotonic
    warnings: list[str] = field(default_factory=list)
    omitted: list[Omission] = field(default_factory=list)  # work omitted because of the budget or Ctrl-C
    expected: ExpectedTimes = field(default_factory=ExpectedTimes)  # of the work after the search
    weights: SharedWeights = field(default_factory=SharedWeights)  # pool of the weights of programs that a search binds
    started: tuple[Store, Measurer] | None = None  # GPU measurer whose processes were started in advance
    plan_cache_notes: list[str] = field(
        default_factory=list
    )  # why no cached plan was used; why this plan was not cached
    caller: Caller | None = None  # the source as a callable with examples, if it is one
    starting: Callable[[], bool] = lambda: False  # whether the measuring processes are still starting
    ready_at: float | None = None  # time at which the measuring processes were first seen to have started
    finalists: list[FinalistReport] = field(default_factory=list)  # plans that were timed as whole programs
    whole: bool = True  # whether programs are timed as a whole: finalists, and the program against the unfused baseline
    background_clocks: list[tuple[str, Clock]] = field(default_factory=list)  # (activity, clock), for the timeline
    keeps_measurer: bool = False  # whether a search leaves its measurer's processes to the next one
    _is_loaded: bool = False
    _waiting_for_model: list[Callable[[], object]] = field(default_factory=list)  # `when_loaded`
    timed: bool = True  # whether the latency of the program that is found is measured
    float32_values: set[Tensor] = field(default_factory=set)  # of prepared 16-bit models, which compute them in float32

    def __post_init__(self) -> None:
        self.budget_start = self.now()
        self.timeline_start = time.monotonic()
        if self.options.rules and not self.own_rules:
            with self.stage("test rules", counted(len(self.options.rules), "rule")):
                self.own_rules = self._tested_rules()
        self.lowerings = Lowerings(
            rounding_allowance(self.options.tolerance), LowerPool()
        )  # for this session's kernels

    def _tested_rules(self) -> Sequence[Rule]:
        """The built-in rules and those of the options, tested for a share of the budget. The others take no part, and
        the report says how many."""
        allowed = max(TESTING_S, TESTING * self.options.budget)
        given = len(self.options.rules)
        over = lambda: (
            self.progress.stopped or (not self.options.deterministic and self.now() - self.budget_start > allowed)
        )
        rules = with_builtin(self.options.rules, over, self.warnings.append)
        if untested := len(with_builtin(())) + given - len(rules):
            self.omitted.append(Omission(OmittedWork.TESTING_RULES, f"{untested} of {given}, which take no part"))
        return rules

    @cached_property
    def rules(self) -> Sequence[Rule]:
        """Rules in force. The built-in ones are loaded on first use: a cached plan needs none."""
        return self.own_rules or with_builtin(())

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context manager of the whole optimization, whose clock C compilers obey. At its end worker processes stop and
        memo tables are emptied."""
        try:
            with compilers_within(lambda: self.left):
                yield
        finally:
            self.lowerings.close()
            forget()

    @contextmanager
    def stage(self, name: str, message: str = "") -> Iterator[None]:
        """Context manager that times the stage `name` of `optimize`; its start is reported to `progress`, with
        `message`."""
        self.progress.say(name, message)
        with self.stage_clock.running(name):
            yield

    @contextmanager
    def part(self, seconds: float, *, own: bool) -> Iterator[None]:
        """Context manager of a search that is a part of this session: the budget inside it is `seconds` from now on.

        `own`: messages inside it are kept out of the session's report, and the latency of its program is not measured.
        """
        fields = (
            "options",
            "budget_start",
            "warnings",
            "omitted",
            "finalists",
            "plan_cache_notes",
            "timed",
            "expected",
        )
        before = {name: getattr(self, name) for name in fields}
        self.options, self.budget_start = replace(self.options, budget=max(0.0, seconds)), self.now()
        if own:
            self.warnings, self.omitted, self.finalists, self.plan_cache_notes, self.timed = [], [], [], [], False
            self.expected = replace(self.expected, binding_s=0.0, ending_s=0.0)
        try:
            yield
        finally:
            for name, value in before.items():
                if own or name in ("options", "budget_start"):
                    setattr(self, name, value)

    @property
    def timeline(self) -> Rows:
        """Spans (begin, end in seconds) of all activities of this session and of its measuring processes, by activity,
        for the report."""
        return timeline(self.timeline_start, [("stage", self.stage_clock), *self.background_clocks])

    @property
    def left(self) -> float:
        """Remaining seconds of the budget; negative once exceeded."""
        return self.options.budget - (self.now() - self.budget_start)

    def when_loaded(self, work: Callable[[], object]) -> None:
        """Do some work when the model is loaded: at once if it is."""
        if self._is_loaded:
            work()
        else:
            self._waiting_for_model.append(work)

    def loaded(self) -> None:
        """Note that the model is loaded. Warns if loading it alone took longer than the budget."""
        self._is_loaded = True
        while self._waiting_for_model:
            self._waiting_for_model.pop()()
        if (took := self.options.budget - self.left) > self.options.budget > 0:
            self.warnings.append(f"loading took {took:.1f} s, more than the budget of {self.options.budget:g} s")

    @property
    def waiting(self) -> bool:
        """Whether the measuring processes have not started yet. Until they have, candidate kernels may be formed for
        longer than their share of the budget."""
        return not self.ready_s and self.starting() and self.now() - self.budget_start < MAX_STARTING_S

    @property
    def ready_s(self) -> float:
        """Seconds since the measuring processes were first seen to have started; 0 before."""
        if self.ready_at is None and not self.starting():
            self.ready_at = self.now()
        return 0.0 if self.ready_at is None else self.now() - self.ready_at

    @property
    def over(self) -> bool:
        """Whether at most `expected.ending_s` seconds of the budget are left, or the user asked to stop: no further
        optional work is started.
        """
        return self._past(0.0)

    def over_in(self, seconds: float) -> bool:
        """Whether the session will be `over` in `seconds`: optional work that takes as long is not started."""
        return self._past(0.0, seconds)

    def late(self, seconds: float) -> bool:
        """Whether 1 + LATE times the budget will be used up in `seconds`: if a plan is then over tolerance, no other
        one is sought."""
        return self._past(LATE, seconds)

    def _past(self, share: float, seconds: float = 0.0) -> bool:
        """Whether the budget plus `share` of it is used up in so many seconds, or the user asked to stop."""
        return self.progress.stopped or (
            self.left - seconds - self.expected.ending_s <= -share * self.options.budget
            and not self.options.deterministic
        )

    @property
    def verifying_s(self) -> float:
        """Seconds that verification on one input may take: what is left of the budget, at least VERIFYING_S and LATE
        times the budget; not more after Ctrl-C. Outputs that are expected to take far longer are compared in part. No
        limit with the option `deterministic`."""
        if self.options.deterministic:
            return math.inf
        left = 0.0 if self.progress.stopped else self.left - self.expected.ending_s
        return max(VERIFYING_S, LATE * self.options.budget, left)

    def verified(self) -> None:
        """Note that a program was verified. Warns if that alone took longer than the budget."""
        took = self.stage_clock.seconds.get("verify", 0.0)
        if took > self.options.budget > 0:
            self.warnings.append(f"verifying took {took:.1f} s, more than the budget of {self.options.budget:g} s")

    def refused(self, reason: Exception) -> None:
        """Record why a cached plan is not used."""
        self.plan_cache_notes.append(f"the plan of an earlier search is not used: {reason}")
        self.progress.say("plan cache", self.plan_cache_notes[-1])

    def interrupted(self) -> Callable[[], bool]:
        """Predicate: whether Ctrl-C arrived since the predicate was created."""
        before = self.progress.stopped
        return lambda: self.progress.stopped and not before

    def polled(self) -> Callable[[], None]:
        """Function that raises Halted if Ctrl-C arrived since the function was created."""
        pressed = self.interrupted()

        def poll() -> None:
            if pressed():
                raise Halted

        return poll


def least_measuring(options: Options) -> float:
    """Minimum seconds of measuring on a GPU."""
    return min(MIN_MEASURING_S, MIN_MEASURING_SHARE * options.budget)


def store_root(options: Options) -> Path:
    """The folder of the cost store."""
    return named_path(options.costdb or settings.current().costdb or default_root())


def store_of(session: Session) -> Store:
    """The session's cost store, not loaded yet."""
    with kept_warnings(session):  # warnings about an unwritable folder
        starter = lambda: {b.machine().device for b in select(session.options.backend_name)}
        return Store(store_root(session.options), frozen=session.options.deterministic, starter=starter)


@contextmanager
def open_store(session: Session, store: Store | None = None) -> Iterator[Store]:
    """Context manager of a cost store (default: the session's). Its warnings go to the report; new measurements are
    written to disk at its end."""
    with kept_warnings(session):
        store = store or store_of(session)
        yield store
        store.flush()


@contextmanager
def kept_warnings(session: Session) -> Iterator[None]:
    """Context manager that collects warnings for the report."""
    with warnings_into(session.warnings):
        yield
