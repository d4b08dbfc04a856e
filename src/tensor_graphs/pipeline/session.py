"""State of one optimization: options, deadline clock, cost store, and messages for the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from types import NoneType

from .. import settings
from ..backends.generate.generator import Lowerings
from ..backends.generate.lowering_pool import LowerPool
from ..backends.tuning.measure_cpu import CpuMeasurer
from ..backends.tuning.measure_gpu import GpuMeasurer
from ..costdb.store.store import Store, default_root
from ..egraph.ir.memo import forget
from ..egraph.ir.rule import Rule
from ..egraph.saturate.saturate import Limits
from ..egraph.view.view import EGraphView
from ..errors import UsageError, warnings_into
from ..extract.model.clock import Clock, Halted
from ..progress import Progress
from ..report.timeline import Rows, timeline
from ..rules import ALL
from ..verification.comparison import Tolerance, allowed_error, spare
from .any_size import Symbolic
from .caller import Caller

LATE = 0.25  # fraction of the budget by which the search for a plan within tolerance may exceed it


#: option -> allowed types, and their description in an error
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "backend": ((str,), "a name"),
    "budget": ((Real,), "a number of seconds"),
    "limits": ((Limits,), "a tg.Limits(...)"),
    "costdb": ((str, Path, NoneType), "a folder"),
    "seed": ((Integral,), "an integer"),
    "memory_limit": ((Real, NoneType), "a number of bytes"),
    "error_budget": ((Real, NoneType), "a number"),
    "effort": ((Integral,), "an integer"),
}


@dataclass(frozen=True)
class Options:
    """Options of an optimization; see `optimize`."""

    backend: str = "auto"
    tolerance: Tolerance = "eager"
    budget: float = 60.0
    limits: Limits = field(default_factory=Limits)
    costdb: str | Path | None = None
    verify: bool = True
    measure: bool = True
    deterministic: bool = False
    seed: int = 0
    rules: tuple[Rule, ...] = ALL
    memory_limit: float | None = None
    error_budget: float | None = None
    effort: int = 1
    again: bool = False
    allow_caller: bool = True

    def __post_init__(self) -> None:
        for name, (kinds, meant) in _KINDS.items():
            if not isinstance(getattr(self, name), kinds):
                raise UsageError(f"{name}={getattr(self, name)!r}", hint=f"{name} is {meant}")
        if not self.budget >= 0:
            raise UsageError(f"a budget of {self.budget} seconds", hint="give a number from 0 on")
        if self.seed < 0:
            raise UsageError(f"seed={self.seed}", hint="give an integer from 0 on")
        allowed_error(self.tolerance, 0.0, "float32")  # raises UsageError for an invalid tolerance

    @property
    def exact(self) -> bool:
        """Whether only bitwise-exact rewriting is allowed."""
        return self.tolerance == "exact"


@dataclass
class Session:
    """One running optimization: options, stage clock, and intermediate results."""

    options: Options
    progress: Progress = field(default_factory=Progress)
    clock: Clock = field(default_factory=Clock)
    now: Callable[[], float] = time.monotonic
    warnings: list[str] = field(default_factory=list)
    smaller: list[EGraphView] = field(default_factory=list)  # views of lower effort levels
    symbolic: Symbolic | None = None  # set for a size-polymorphic search
    cut: list[str] = field(default_factory=list)  # texts: work omitted because of the budget or Ctrl-C
    reserved: float = 0.0  # expected seconds of verification
    begun: tuple[Store, CpuMeasurer | GpuMeasurer] | None = None  # GPU measurer whose processes were started in advance
    memory: list[str] = field(
        default_factory=list
    )  # messages: why no cached plan was used; why this plan was not cached
    kept: bool = False  # whether the unfused graph is returned because nothing faster was found
    caller: Caller | None = None  # the source as a callable with examples, if it is one

    clocks: list[tuple[str, Clock]] = field(default_factory=list)  # clocks of background activities, for the timeline

    def __post_init__(self) -> None:
        self.lowerings = Lowerings(spare(self.options.tolerance), LowerPool())  # kernel generation for this session
        self.start = self.now()
        self.began = time.monotonic()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context of the whole optimization. At its end worker processes stop and memoized results are dropped."""
        try:
            yield
        finally:
            self.lowerings.close()
            forget()

    @contextmanager
    def stage(self, name: str, message: str = "") -> Iterator[None]:
        """Context that times a stage and reports its start."""
        self.progress.say(name, message)
        with self.clock.running(name):
            yield

    @property
    def timeline(self) -> Rows:
        """Spans of all activities, for the report."""
        return timeline(self.began, [("stage", self.clock), *self.clocks])

    @property
    def left(self) -> float:
        """Remaining seconds of the budget; negative once exceeded."""
        return self.options.budget - (self.now() - self.start)

    def loaded(self) -> None:
        """Warn if loading the model alone took longer than the budget."""
        if (took := self.options.budget - self.left) > self.options.budget > 0:
            self.warnings.append(f"loading took {took:.1f} s, more than the budget of {self.options.budget:g} s")

    @property
    def over(self) -> bool:
        """Whether the budget is used up: no further optional work is started."""
        return self._past(0.0)

    @property
    def late(self) -> bool:
        """Whether the budget plus LATE is used up: no further plan is sought if one is over tolerance."""
        return self._past(LATE)

    def _past(self, share: float) -> bool:
        """Whether the budget plus `share` of it is used up, or the user asked to stop."""
        return self.progress.stopped or (self.left <= -share * self.options.budget and not self.options.deterministic)

    def refused(self, reason: Exception) -> None:
        """Record why a cached plan is not used."""
        self.memory.append(f"the plan of an earlier search is not used: {reason}")
        self.progress.say("recall", self.memory[-1])

    def interrupted(self) -> Callable[[], bool]:
        """Return a predicate: Ctrl-C arrived since this call."""
        before = self.progress.stopped
        return lambda: self.progress.stopped and not before

    def polled(self) -> Callable[[], None]:
        """Return a function that raises Halted once Ctrl-C has arrived since this call."""
        pressed = self.interrupted()

        def poll() -> None:
            if pressed():
                raise Halted

        return poll


def beside_ours(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """The built-in rules and the caller's rules, each of the latter tested on random instances first.

    RuleError if a rule is malformed or refuted (with the counterexample), UsageError if it is not a Rule or its name is
    taken.
    """
    if not rules:
        return ALL
    from ..rules import EVERY
    from ..rules.check.check import require
    from ..rules.tables import partial

    tried = {r.name: r for r in (*EVERY, *partial.RULES)}
    names = {r.name for r in ALL}
    for rule in rules:
        if not isinstance(rule, Rule):
            raise UsageError(f"a {type(rule).__name__} is no rule", hint='tg.Rule("name", "left side", "right side")')
        if rule.name in names:
            raise UsageError(f"two rules are called {rule.name!r}")
        names.add(rule.name)
        if tried.get(rule.name) != rule:
            require(rule)
    return (*ALL, *rules)


def store_root(options: Options) -> Path:
    """The folder of the cost store."""
    return Path(options.costdb or settings.current().costdb or default_root())


def store_of(session: Session) -> Store:
    """The session's cost store, not loaded yet."""
    with kept_warnings(session):  # warnings about an unwritable folder
        return Store(store_root(session.options), frozen=session.options.deterministic)


@contextmanager
def open_store(session: Session, store: Store | None = None) -> Iterator[Store]:
    """Context of the session's cost store; warnings go to the report, and new rows are flushed at the end."""
    with kept_warnings(session):
        store = store or store_of(session)
        yield store
        store.flush()


@contextmanager
def kept_warnings(session: Session) -> Iterator[None]:
    """Context that collects warnings for the report."""
    with warnings_into(session.warnings):
        yield
