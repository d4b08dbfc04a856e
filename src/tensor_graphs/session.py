"""One optimization under way: what was asked for, its clock, its cost store, and what it has to say in the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from types import NoneType

from . import settings
from .backends.generator import Lowerings
from .backends.lower_pool import LowerPool
from .backends.measure import CpuMeasurer
from .backends.measure_gpu import GpuMeasurer
from .caller import Caller
from .costdb.store import Store, default_root
from .egraph.memo import forget
from .egraph.rule import Rule
from .egraph.saturate import Limits
from .egraph.view import EGraphView
from .errors import UsageError, warnings_into
from .extract.clock import Clock, Halted
from .progress import Progress
from .rules import ALL
from .symbolic import Symbolic
from .timeline import Rows, timeline
from .verify import Tolerance, allowed_error, spare

LATE = 0.25  # of the budget: what looking for a plan within tolerance may take beyond it


#: option -> what it may be, and how that is called
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
    """What a caller can choose; see `optimize`."""

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
        allowed_error(self.tolerance, 0.0, "float32")  # refuses what is none

    @property
    def exact(self) -> bool:
        """Whether only bitwise-exact rewriting is allowed."""
        return self.tolerance == "exact"


@dataclass
class Session:
    """One optimization under way: options, the clock of its stages, and what it has found so far."""

    options: Options
    progress: Progress = field(default_factory=Progress)
    clock: Clock = field(default_factory=Clock)
    now: Callable[[], float] = time.monotonic
    warnings: list[str] = field(default_factory=list)
    smaller: list[EGraphView] = field(default_factory=list)  # what less effort would have searched
    symbolic: Symbolic | None = None  # where the program is to run at every size
    cut: list[str] = field(default_factory=list)  # what the budget or Ctrl-C left out, in words
    reserved: float = 0.0  # seconds that verification is expected to take
    begun: tuple[Store, CpuMeasurer | GpuMeasurer] | None = (
        None  # what measures on a GPU, if its processes started ahead
    )
    memory: list[str] = field(
        default_factory=list
    )  # why no plan of an earlier search was taken, and this one is not kept
    kept: bool = False  # whether the graph runs as it is written, for nothing faster was found in the time
    caller: Caller | None = None  # what the graph was made of, where that can be called instead

    clocks: list[tuple[str, Clock]] = field(default_factory=list)  # of others who take part, for the timeline

    def __post_init__(self) -> None:
        self.lowerings = Lowerings(spare(self.options.tolerance), LowerPool())  # kernels that are generated for it
        self.start = self.now()
        self.began = time.monotonic()

    @contextmanager
    def running(self) -> Iterator[None]:
        """The time in which the optimization is under way. In the end its processes end, and what was kept to be computed once is
        dropped."""
        try:
            yield
        finally:
            self.lowerings.close()
            forget()

    @contextmanager
    def stage(self, name: str, message: str = "") -> Iterator[None]:
        """Time a stage and say that it began."""
        self.progress.say(name, message)
        with self.clock.running(name):
            yield

    @property
    def timeline(self) -> Rows:
        """What was done when, by whom."""
        return timeline(self.began, [("stage", self.clock), *self.clocks])

    @property
    def left(self) -> float:
        """Seconds of the budget that remain."""
        return self.options.budget - (self.now() - self.start)

    def loaded(self) -> None:
        """Warn where loading the model alone took the whole budget."""
        if (took := self.options.budget - self.left) > self.options.budget > 0:
            self.warnings.append(f"loading took {took:.1f} s, more than the budget of {self.options.budget:g} s")

    @property
    def over(self) -> bool:
        """Whether nothing more is to be begun that can be left out."""
        return self._past(0.0)

    @property
    def late(self) -> bool:
        """Whether not even another plan is to be looked for where one is over tolerance: that may take a little more."""
        return self._past(LATE)

    def _past(self, share: float) -> bool:
        """Whether the budget and a share of it more are gone, or nobody wants to wait."""
        return self.progress.stopped or (self.left <= -share * self.options.budget and not self.options.deterministic)

    def refused(self, reason: Exception) -> None:
        """Say why the plan of an earlier search is not taken again."""
        self.memory.append(f"the plan of an earlier search is not used: {reason}")
        self.progress.say("recall", self.memory[-1])

    def interrupted(self) -> Callable[[], bool]:
        """Whether Ctrl-C came since this was asked for: it ends the stage under way, and what later ones could leave out."""
        before = self.progress.stopped
        return lambda: self.progress.stopped and not before

    def polled(self) -> Callable[[], None]:
        """What raises Halted once that is so."""
        pressed = self.interrupted()

        def poll() -> None:
            if pressed():
                raise Halted

        return poll


def beside_ours(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """The rules in force: the built-in ones and a caller's, each of which is tried on random instances first. RuleError where one is
    malformed or refuted (with the counterexample), UsageError where it is no rule or its name is taken."""
    if not rules:
        return ALL
    from .rules import EVERY, partial
    from .rules.check import require

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
    """The cost store of the session; nothing is read yet."""
    with kept_warnings(session):  # of a folder that cannot be written
        return Store(store_root(session.options), frozen=session.options.deterministic)


@contextmanager
def open_store(session: Session, store: Store | None = None) -> Iterator[Store]:
    """The cost store of the session; its warnings are kept for the report."""
    with kept_warnings(session):
        store = store or store_of(session)
        yield store
        store.flush()


@contextmanager
def kept_warnings(session: Session) -> Iterator[None]:
    """Keep what the block warns of for the report."""
    with warnings_into(session.warnings):
        yield
