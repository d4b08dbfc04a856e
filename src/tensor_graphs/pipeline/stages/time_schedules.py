"""Chooses schedules of the kernels that a GPU program repeats, as a model of equal layers does, by timing the program
with each.

Kernels that overlap share the memory's bandwidth and the multiprocessors: those that are the fastest alone are not the
fastest beside each other. All equal kernels of a program are exchanged together, for one that was measured alone, hence
checked; those that take most of the time come first (coordinate descent).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from ...backends.program.launch.launching import HELD, changes_schedules, plan_for_launching
from ...backends.program.program import Program
from ...extract.model.kernel import Call, Candidate, Template
from ...extract.model.plan import Plan, Step
from ...extract.model.pricing import Priced
from ...extract.search.search import Choice
from ...extract.search.swaps import Measured, Swap, Swaps
from ...report.omissions import Omission, OmittedWork
from ...report.records import FinalistReport
from ...wording import counted
from ..context.reserves import after_finalists_s, trying_s
from ..context.session import Session
from .measure_prefetching import Look, measure_prefetching, prefetches
from .time_launching import Compiler, results_of

LEAST_S = 1.0  # seconds without which nothing is tried
MOST = 1.5  # longest time for trying, as a multiple of the reserved seconds
# schedules of each kernel tried in a turn; by how much their times alone may exceed the fastest one's, relative to it
COUNT, GAP = 3, 0.3
TURNS, SHARE = 3, 0.01  # turns through all kernels; share of a program's time below which a kernel is left out
NEAR = 1.05  # factor of a program's time that overlapping launches may cost while no schedule is chosen for them
DIFFERENT = 0.05  # relative difference of results above which they are not another order of sums
MAX_BYTES = 4 << 30  # device bytes of the programs of one kernel's schedules, without weights that they share
BATCH_S = 0.4  # seconds, at most, of sampling programs
LOOK = 0.35  # share of the seconds in which kernels that could read weights before they wait are measured before
COMPILING_S = 1.5  # seconds, at most, of waiting for a kernel's schedules, which are compiled from the turn's begin on

Build = Callable[[Choice], Program]
Sample = Callable[[Sequence[Program], Callable[[], bool]], Sequence[Sequence[float]]]
Fastest = Callable[[Sequence[Sequence[float]]], int]


def begin_compiling_schedules(
    session: Session, choice: Choice, program: Program, compiler: Compiler | None, measured: Measured
) -> None:  # fmt: skip
    """Start compiling the kernels that `fastest_schedules` will try first, without waiting for the result."""
    plan: Plan | None = getattr(program, "plan", None)
    if plan is None or compiler is None or not _room(session):
        return
    swaps, overlap = Swaps(choice), choice.launching or HELD
    rank = _rank(overlap)
    tried = [
        s
        for group in swaps.groups(choice, SHARE)
        for s in swaps.swaps(choice, group, measured, count=COUNT, gap=GAP, rank=rank)
    ]
    if tried:
        compiler([call for s in tried for call in _calls(choice, plan, s, overlap)], 0.0)


def fastest_schedules(
    session: Session, choice: Choice, program: Program, build: Build, compiler: Compiler | None, measured: Measured,
    values: Sequence[Any], sample: Sample, fastest: Fastest, look: Look | None = None,
) -> tuple[Choice, Program]:  # fmt: skip
    """The choice with its program, or with the kernels and the launch overlap that make it faster by more than noise.

    `build` returns the program of a choice. `compiler` compiles kernels in advance. `measured` gives the prices of a
    candidate kernel's measured schedules. `values`: inputs on the device. `sample` times programs in turn until its
    argument returns True, `fastest` returns the index of the fastest one that is surely faster than the first, or 0.
    `look` measures kernels that could read weights before they wait, where none for the same values was measured.
    The result's choice has the given one as `Choice.alone`. All other programs release their weights.
    """
    if compiler is None or session.progress.stopped or getattr(program, "plan", None) is None:
        return choice, program
    swaps = Swaps(choice)
    if not trying_s(session) or not swaps.groups(choice, SHARE):
        return choice, program
    seconds = _room(session)
    if not seconds:
        session.omitted.append(Omission(OmittedWork.TIMING_SCHEDULES))
        return choice, program
    until = session.now() + seconds
    if look is not None:
        measure_prefetching(session, choice, swaps, measured, look, LOOK * seconds)
    ended = lambda: session.now() >= until or session.progress.stopped
    descent = _Descent(
        session, build, compiler, measured, values, sample, fastest, until, ended, swaps, choice, program
    )
    return descent.run()


def _room(session: Session) -> float:
    """Seconds for trying schedules, 0.0 if they are too few."""
    left = min(MOST * trying_s(session), session.left - after_finalists_s(session))
    return left if left >= LEAST_S else 0.0


@dataclass
class _Descent:
    """Coordinate descent over the schedules of a program's kernels. `choice`, `program`: the fastest so far, at first
    the given ones, which stay bound; other members as for `fastest_schedules`."""

    session: Session
    build: Build
    compiler: Compiler
    measured: Measured
    values: Sequence[Any]
    sample: Sample
    fastest: Fastest
    until: float
    ended: Callable[[], bool]
    swaps: Swaps
    choice: Choice
    program: Program
    rows: list[FinalistReport] = field(default_factory=list)
    tried: set[tuple[Hashable, ...]] = field(default_factory=set)  # keys of exchanges
    faults: list[str] = field(default_factory=list)  # why programs with other schedules were left out

    def __post_init__(self) -> None:
        self.first, self.own = self.choice, self.program

    def run(self) -> tuple[Choice, Program]:
        """The fastest choice and its program."""
        want = results_of(self.own, self.values)
        self._overlapped(want)
        for turn in range(TURNS):
            groups, known = self.swaps.groups(self.choice, SHARE), len(self.tried)
            self._compiled([s for group in groups for s in self._next(group)], 0.0)
            for group in groups:
                if not self.ended():
                    self._exchange(group, want)
            if self.ended() and not turn:
                self.session.omitted.append(Omission(OmittedWork.TIMING_SCHEDULES))
            if self.ended() or len(self.tried) == known:
                break
        return self._better()

    def _overlapped(self, want: Sequence[Any]) -> None:
        """Begin with overlapping launches if kernels as measured are hardly faster: other schedules gain by them."""
        plan = self.program.plan
        assert plan is not None
        if self.choice.launching or not changes_schedules(plan, HELD):
            return
        made = self._runnable([replace(self.choice, launching=HELD)], want)
        if made:
            samples = self._sampled([self.program, made[0][1]])
            if median(samples[1]) <= NEAR * median(samples[0]):
                self.choice, self.program = made[0]
            else:
                made[0][1].unbind()

    def _next(self, group: Sequence[int]) -> list[Swap]:
        """The next kernels to be tried in the places of a group."""
        return self.swaps.swaps(
            self.choice, group, self.measured, count=COUNT, gap=GAP, rank=_rank(self.choice.launching), tried=self.tried
        )  # fmt: skip

    def _compiled(self, swaps: Sequence[Swap], seconds: float) -> bool:
        """Whether the kernels of exchanges are compiled within so many seconds; compilers go on afterwards."""
        plan = self.program.plan
        assert plan is not None
        return self.compiler([c for s in swaps for c in _calls(self.choice, plan, s, self.choice.launching)], seconds)

    def _exchange(self, group: Sequence[int], want: Sequence[Any]) -> None:
        """Try other kernels in the places of a group, and keep the fastest."""
        found = self._next(group)
        if not found or not self._compiled(found, min(COMPILING_S, max(0.0, self.until - self.session.now()))):
            return
        self.tried.update(s.key for s in found)
        pairs = [(s.applied(self.choice), s.text(self.choice)) for s in found]
        made = self._runnable([c for c, _ in pairs], want)
        if not made:
            return
        texts = {id(c): text for c, text in pairs}
        samples = self._sampled([self.program, *(p for _, p in made)])
        best = self.fastest(samples)
        self.rows += [_report(c, us, texts[id(c)]) for (c, _), us in zip(made, samples[1:], strict=True)]
        before, after = median(samples[0]), median(samples[best])
        self.session.progress.say("schedules", f"{_short(texts[id(made[0][0])])}: {before:.1f} -> {after:.1f} µs")
        others = [p for n, (_, p) in enumerate(made, 1) if n != best]
        if best:
            others += [self.program] if self.program is not self.own else []
            self.choice, self.program = made[best - 1]
        for other in others:
            other.unbind()

    def _runnable(self, choices: Sequence[Choice], want: Sequence[Any]) -> list[tuple[Choice, Program]]:
        """Those of the choices, with their programs, that run, fit into memory and have about the wanted results."""
        found, room = [], MAX_BYTES
        for choice in choices:
            if self.ended():
                break
            try:
                made = self.build(choice).launching_as(self.own)
                if (room := room - made.missing_bytes()) < 0:
                    break
                made.flat_near(*self.values)
                made.wait("running a program with other schedules")
                right = all(map(_close, results_of(made, self.values), want))
            except Exception as error:  # a compiler error, or too little device memory
                self.faults.append(f"{type(error).__name__}: {str(error)[:120]}")
                continue
            if right:
                found.append((choice, made))
            else:
                self.faults.append("results that differ")
                made.unbind()
        return found

    def _sampled(self, programs: Sequence[Program], last: bool = False) -> Sequence[Sequence[float]]:
        """Times of programs; the `last` ones have their time even if the time for trying is up."""
        until = self.session.now() + BATCH_S

        def ended() -> bool:
            over = self.session.progress.stopped if last else self.ended()
            return over or self.session.now() >= until

        return self.sample(programs, ended)

    def _better(self) -> tuple[Choice, Program]:
        """The fastest choice with its program if that is surely faster than the given one, else the latter. Adds the
        programs that were timed to the session's finalists."""
        before = self.session.finalists
        if self.faults:
            text = f"{counted(len(self.faults), 'other schedule')} left out in the program: {self.faults[0]}"
            self.session.warnings.append(text)
        if self.program is not self.own:
            samples = self._sampled([self.own, self.program], last=True)
            if self.fastest(samples):
                before = before or [_report(self.first, samples[0], "")]
                best = _report(self.choice, samples[1], "", chosen=True)
                self.session.finalists = [*(replace(f, chosen=False) for f in before), *self.rows, best]
                self.own.unbind()
                return replace(self.choice, alone=self.first), self.program
            self.program.unbind()
        self.session.finalists = [*before, *self.rows]
        return self.first, self.own


def _rank(launching: str) -> Callable[[Candidate, Priced], int]:
    """Order in which kernels are tried where launches overlap: first those that read weights before they wait, then
    those that start while their predecessor runs."""

    def rank(candidate: Candidate, price: Priced) -> int:
        early = bool(dict(price.schedule).get("early"))
        return 0 if not launching or (early and prefetches(candidate)) else 1 if early else 2

    return rank


def _calls(choice: Choice, plan: Plan, swap: Swap, launching: str) -> list[tuple[Template, Call]]:
    """The kernels that `swap` puts into the plan of a choice, with the launch overlap `launching`, equal ones once."""
    candidates, steps, changed = choice.hypergraph.candidates, list(plan.steps), []
    for n, i in enumerate(choice.chosen):
        if i in swap.places:
            steps[n] = _exchanged(steps[n], candidates[i], candidates[swap.places[i]], swap.price)
            changed.append(n)
    made = plan_for_launching(replace(plan, steps=tuple(steps), launching=launching)).steps
    distinct = {(frozenset(s.call.schedule.items()), s.call.constant): s for s in (made[n] for n in changed)}
    return [(s.template, s.call) for s in distinct.values()]


def _exchanged(step: Step, old: Candidate, new: Candidate, price: Priced) -> Step:
    """A plan's step with another kernel on the same values."""
    of = {vertex: value for (_, vertex), (_, value) in zip(old.inputs, step.inputs, strict=True)}
    call = replace(new.call, schedule=dict(price.schedule))
    return replace(step, template=new.template, call=call, inputs=tuple((o, of[v]) for o, v in new.inputs), cost=price)


def _report(choice: Choice, us: Sequence[float], changed: str, chosen: bool = False) -> FinalistReport:
    return FinalistReport(sum(choice.sources.values()), choice.cost, median(us), chosen, choice.launching, changed)


def _short(text: str) -> str:
    return text.partition(":")[0]


def _close(a: Any, b: Any) -> bool:
    """Whether a tensor on the device equals another but for another order of sums in what it was computed from."""
    if not a.dtype.is_floating_point:
        return bool((a == b).all())
    same = (a == b) | (a.isnan() & b.isnan()) | (a.isfinite() & b.isfinite())
    x, y = (v.double().nan_to_num(0.0, 0.0, 0.0) for v in (a, b))
    return bool(same.all()) and bool((x - y).norm() <= DIFFERENT * y.norm())


__all__ = ["Measured", "begin_compiling_schedules", "fastest_schedules"]
