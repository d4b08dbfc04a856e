"""Defines the prices (times) of candidate kernels, and the protocols of their sources: pricers (the cost store) and
measurers (a device)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .clock import Clock
from .kernel import Call, Candidate, Template


@dataclass(frozen=True)
class Priced:
    """A candidate's price in µs: the value used, its prediction interval (low, high), its source, and the schedule
    (tuning parameters) that the price is for. `shipped`: not measured on this machine; it comes from a row of the cost
    store that was installed with the package."""

    us: float
    low: float
    high: float
    source: str  # measured | predicted | bound
    schedule: tuple[tuple[str, int], ...] = ()
    shipped: bool = False

    @property
    def origin(self) -> str:
        """The source as reports name it: `source`, or "shipped" for a measurement that was installed with the
        package."""
        return "shipped" if self.shipped else self.source


class Measurer(Protocol):
    """Protocol of processes that time candidates; a failed measurement is recorded as a failure and priced infinite.

    `ahead`: whether measuring may begin before the rewritten graph is known, and may continue while the solver runs.
    `keeps`, set by the caller: whether kernels that are being measured at the deadline are kept for the next call of
    `measure`.
    """

    keeps: bool

    @property
    def ahead(self) -> bool: ...

    @property
    def ready(self) -> bool:
        """Whether the measuring processes have started, or start at once."""
        ...

    @property
    def spent(self) -> Mapping[str, float]:
        """Counts and seconds of all measuring, for the report."""
        ...

    @property
    def clocks(self) -> list[tuple[str, Clock]]:
        """(name, clock) of each measuring process, for the timeline."""
        ...

    def compile(self, wanted: Iterable[tuple[Template, Call]], seconds: float = ...) -> bool:
        """Compile kernels (with their calls) before they are needed, for at most `seconds`; returns whether all were
        compiled."""
        ...

    def start(self) -> None:
        """Start the measuring processes without waiting for them."""
        ...

    def pause(self) -> None:
        """Free the memory of the measuring processes while nothing is measured, if restarting them is cheap."""
        ...

    def rest(self) -> None:
        """End the measurements in flight and write their results to the cost store; afterwards another search may use
        the measurer."""
        ...

    def close(self) -> None:
        """End the measuring processes."""
        ...

    def measure(
        self, candidates: Iterable[Candidate], *, worth: Callable[[Candidate], float] | None = None, look: bool = False,
        later: Iterable[tuple[Candidate, bool]] = (), leave: bool = False,
    ) -> Sequence[Candidate]:  # fmt: skip
        """Measure candidates and store the results; returns when they are on disk.

        With `leave`, returns as soon as few measurements are in flight: their candidates are returned and continue
        during the next call; otherwise the result is empty. The iterable may end early, when the time is up. `worth`
        gives the cost cutoff of a candidate in µs, above which further measuring is useless; it falls while others are
        measured. With `look`, each runs in a few schedules only. `later`: (candidate, `look`) pairs that may be
        requested next, for preparation in advance.
        """
        ...

    def unfinished(self, candidate: Candidate) -> bool:
        """Whether a measured candidate has untried schedules that are still worth measuring."""
        ...

    def further(self, candidate: Candidate) -> bool:
        """Permit more schedules for a candidate whose schedule search ended at the usual number; returns whether there
        are more."""
        ...


class Pricer(Protocol):
    """Protocol of price sources: prices of candidates from measurements and predictions."""

    def price(self, candidates: Sequence[Candidate]) -> list[Priced]:
        """The price of each candidate kernel, in the order given: µs, and how it is known (`Priced`)."""
        ...

    def on_record(self, candidate: Candidate) -> bool:
        """Whether the cost store may have a measurement of the candidate's kernel, decided without computing the
        kernel's key."""
        ...

    @property
    def prepare(self) -> Callable[[Iterable[Candidate]], None] | None:
        """Function that computes the keys of candidates, possibly in another thread. None if keys need no
        preparation."""
        ...


class PricerBase:
    """Defaults of `Pricer`: keys need no preparation, and every kernel may have a measurement."""

    prepare: Callable[[Iterable[Candidate]], None] | None = None

    def on_record(self, candidate: Candidate) -> bool:
        """Whether the cost store may have a measurement of the candidate's kernel (`Pricer.on_record`): always by
        default."""
        return True
