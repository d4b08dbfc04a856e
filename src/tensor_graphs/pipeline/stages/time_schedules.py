"""Chooses schedules of the kernels that a GPU program repeats, as a model of equal layers does, by timing the program
with each.

Kernels that overlap share the memory's bandwidth and the multiprocessors: those that are the fastest alone are not the
fastest beside each other. All equal kernels of a program are exchanged together, for one that was measured alone, hence
checked; those that take most of the time come first (coordinate descent).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
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
from ..execution.exchanged_program import ExchangedProgram, Exchanges
from .measure_prefetching import Look, measure_prefetching, prefetches, reads_whole, scheduled
from .time_launching import Compiler, results_of

LEAST_S = 1.0  # seconds without which nothing is tried
MOST = 1.5  # longest time for trying, as a multiple of the reserved seconds
# schedules of each kernel tried in a turn: in programs made for each, and in variants of one program
# (exchanged_program.py), which take a tenth of the time
COUNT, EXCHANGED = 3, 8
# by how much their times alone may exceed the fastest one's, relative to it, in either case
GAP, EXCHANGED_GAP = 0.3, 0.6
TURNS, SHARE = 6, 0.01  # turns through all kernels; share of a program's time below which a kernel is left out
# relative differences of measured times that are treated as noise: of programs, and of programs in one turn
NOISE, STEP = 0.003, 0.002
NEAR = 1.05  # factor of a program's time that overlapping launches may cost while no schedule is chosen for them
DIFFERENT = 0.05  # relative difference of results above which they are not another order of sums
MAX_BYTES = 4 << 30  # device bytes of the programs of one kernel's schedules, without weights that they share
BATCH_S = 0.4  # seconds, at most, of sampling programs
LOOK = 0.35  # share of the seconds in which kernels that could read weights before they wait are measured before
# seconds, at most, of waiting for a kernel's schedules, which are compiled from the turn's begin on; then of each
COMPILING_S, COMPILED_S = 1.5, 0.02
LAST_S = 0.5  # seconds that trying leaves for making the program of the chosen schedules, and for timing it

Made = Program | ExchangedProgram
Build = Callable[[Choice], Program]
Sample = Callable[[Sequence[Program], Callable[[], bool]], Sequence[Sequence[float]]]
Fastest = Callable[[Sequence[Sequence[float]], float], int]


def begin_compiling_schedules(
    session: Session, choice: Choice, program: Program, compiler: Compiler | None, measured: Measured
) -> None:  # fmt: skip
    """Start compiling the kernels that `fastest_schedules` will try first, without waiting for the result."""
    plan: Plan | None = getattr(program, "plan", None)
    if plan is None or compiler is None or not _seconds_left(session):
        return
    swaps, overlap = Swaps(choice), choice.launching or HELD
    rank = _rank(overlap)
    for group in swaps.groups(choice, SHARE):
        if tried := swaps.swaps(choice, group, measured, count=EXCHANGED, gap=EXCHANGED_GAP, rank=rank):
            compiler([call for s in tried for call in _calls(choice, plan, s, overlap)], 0.0)


def fastest_schedules(
    session: Session, choice: Choice, program: Program, build: Build, compiler: Compiler | None, measured: Measured,
    values: Sequence[Any], sample: Sample, fastest: Fastest, look: Look | None = None,
) -> tuple[Choice, Program]:  # fmt: skip
    """(choice, program) after trying other measured schedules of its repeated kernels, and other launch overlaps, in
    the whole program: the given ones, unless others are faster by more than noise.

    `build` returns the program of a choice. `compiler` compiles kernels in advance. `measured` gives the prices of a
    candidate kernel's measured schedules. `values`: inputs on the device. `sample` times programs in turn until its
    argument returns True, `fastest` returns the index of the fastest one that is surely faster than the first, by more
    than a relative difference, or 0.
    `look` measures kernels that could read weights before they wait, where none for the same values was measured.
    The result's choice has the given one as `Choice.alone`. All other programs release their weights.
    """
    if compiler is None or session.progress.stopped or getattr(program, "plan", None) is None:
        return choice, program
    swaps = Swaps(choice)
    if not trying_s(session) or not swaps.groups(choice, SHARE):
        return choice, program
    seconds = _seconds_left(session)
    if not seconds:
        session.omitted.append(Omission(OmittedWork.TIMING_SCHEDULES))
        return choice, program
    until = session.now() + seconds
    if look is not None:
        measure_prefetching(session, choice, swaps, measured, look, LOOK * seconds)
    descent = _Descent(session, build, compiler, measured, values, sample, fastest, until, swaps, choice, program)
    return descent.run()


def _seconds_left(session: Session) -> float:
    """Seconds for trying schedules, 0.0 if they are too few."""
    left = min(MOST * trying_s(session), session.left - after_finalists_s(session))
    return left if left >= LEAST_S else 0.0


@dataclass
class _Descent:
    """Coordinate descent over the schedules of a program's kernels. `choice`, `program`: the fastest so far, at first
    the given ones, which stay bound; other members as for `fastest_schedules`.

    Where that is possible, schedules are tried in variants of the first program (`exchanges`).
    """

    session: Session
    build: Build
    compiler: Compiler
    measured: Measured
    values: Sequence[Any]
    sample: Sample
    fastest: Fastest
    until: float
    swaps: Swaps
    choice: Choice
    program: Made
    rows: list[FinalistReport] = field(default_factory=list)
    tried: set[tuple[Hashable, ...]] = field(default_factory=set)  # keys of exchanges
    faults: list[str] = field(default_factory=list)  # why programs with other schedules were left out
    exchanges: Exchanges | None = None

    def __post_init__(self) -> None:
        assert not isinstance(self.program, ExchangedProgram)
        self.first, self.own = self.choice, self.program

    def ended(self) -> bool:
        """Whether the time for trying is up."""
        kept = LAST_S if isinstance(self.program, ExchangedProgram) else 0.0
        return self.session.now() >= self.until - kept or self.session.progress.stopped

    def run(self) -> tuple[Choice, Program]:
        """The fastest choice and its program."""
        want = results_of(self.own, self.values)
        self._overlapped(want)
        self.exchanges = Exchanges.of(self.program)
        if self.exchanges is not None and (same := self.exchanges.program_of({})) is not None:
            self.program = same  # variants are compared with a variant: the program itself does more on the host
        for turn in range(TURNS):
            groups, known = self.swaps.groups(self.choice, SHARE), len(self.tried)
            for group in groups:
                self._compiled(self._next(group), 0.0)
            for group in groups:
                if not self.ended():
                    self._exchange(group, want)
            if self.ended() and not turn:
                self.session.omitted.append(Omission(OmittedWork.TIMING_SCHEDULES))
            if self.ended() or len(self.tried) == known:
                break
        return self._better(want)

    def _overlapped(self, want: Sequence[Any]) -> None:
        """Begin with overlapping launches if kernels as measured are hardly faster: other schedules gain by them. With
        those that were the fastest, if they were timed."""
        plan = self.program.plan
        assert plan is not None
        if self.choice.launching or not changes_schedules(plan, HELD):
            return
        timed = [f for f in self.session.finalists if f.launching]
        overlap = min(timed, key=lambda f: f.measured_us).launching if timed else HELD
        early = replace(self.choice, launching=overlap)
        if (made := self._runnable(early, want)) is not None:
            samples = self._sampled([self.program, made])
            if median(samples[1]) <= NEAR * median(samples[0]):
                self.choice, self.program = early, made
            else:
                made.unbind()

    def _built(self, choice: Choice) -> Program:
        """The program of a choice, launched like the given one."""
        return self.build(choice).launching_as(self.own)

    def _variant(self, swap: Swap) -> tuple[Choice, Callable[[], Made | None]]:
        """The choice with kernels exchanged, and a function that makes its program: a variant of the first program if
        there can be variants with other kernels in these places; None if not with these."""
        choice, plan = swap.applied(self.choice), self.program.plan
        assert plan is not None
        steps = _steps(self.choice, plan, swap)
        if not self._varies(swap.places):
            return choice, lambda: self._built(choice)
        before = self.program.changed if isinstance(self.program, ExchangedProgram) else {}
        exchanges = self.exchanges
        return choice, lambda: None if exchanges is None else exchanges.program_of({**before, **steps})

    def _varies(self, group: Collection[int]) -> bool:
        """Whether the first program may have variants with other kernels in the places of a group."""
        if self.exchanges is None:
            return False
        return all(self.exchanges.sites[n] is not None for n, i in enumerate(self.choice.chosen) if i in group)

    def _next(self, group: Sequence[int]) -> list[Swap]:
        """The next kernels to be tried in the places of a group."""
        count, gap = (EXCHANGED, EXCHANGED_GAP) if self._varies(group) else (COUNT, GAP)
        rank = _rank(self.choice.launching)
        return self.swaps.swaps(self.choice, group, self.measured, count=count, gap=gap, rank=rank, tried=self.tried)

    def _compiled(self, swaps: Sequence[Swap], seconds: float) -> bool:
        """Whether the kernels of exchanges are compiled within so many seconds; compilers go on afterwards."""
        plan = self.program.plan
        assert plan is not None
        return self.compiler([c for s in swaps for c in _calls(self.choice, plan, s, self.choice.launching)], seconds)

    def _ready(self, swaps: Sequence[Swap]) -> list[Swap]:
        """Those of the exchanges whose kernels are compiled soon; they count as tried."""
        ready = list(swaps)
        if not self._compiled(swaps, min(COMPILING_S, max(0.0, self.until - self.session.now()))):
            ready = [s for s in swaps if self._compiled([s], COMPILED_S)] if self.exchanges is not None else []
        self.tried.update(s.key for s in ready)
        return ready

    def _exchange(self, group: Sequence[int], want: Sequence[Any]) -> None:
        """Try other kernels in the places of a group, and keep the fastest whose results are right."""
        found = self._ready(self._next(group))
        variants = [self._variant(s) for s in found]
        texts = {id(c): s.text(self.choice) for s, (c, _) in zip(found, variants, strict=True)}
        made = self._running(variants)
        if not made or self.session.now() >= self.until:
            self._release([p for _, p in made])
            return
        every = [(self.choice, self.program), *made]
        samples = self._sampled([p for _, p in every])
        self.rows += [_report(c, us, texts[id(c)]) for (c, _), us in zip(made, samples[1:], strict=True)]
        while (best := self.fastest(samples, STEP)) and not self._right(every[best][1], want):
            samples = [*samples[:best], samples[0], *samples[best + 1 :]]
        before, after = median(samples[0]), median(samples[best])
        self.session.progress.say("schedules", f"{_short(texts[id(made[0][0])])}: {before:.1f} -> {after:.1f} µs")
        self.choice, self.program = every[best]
        self._release([p for n, (_, p) in enumerate(every) if n != best])

    def _release(self, programs: Sequence[Any]) -> None:
        """Release the weights of programs that are not used any more, and of the program that variants are made of if
        the fastest program is none of these."""
        base = None if self.exchanges is None else self.exchanges.program
        done = [p for p in programs if p is not base]
        if self.exchanges is not None and self.program is not base and not isinstance(self.program, ExchangedProgram):
            done.append(base)
            self.exchanges = Exchanges.of(self.program)
        for program in done:
            if program is not self.own:
                program.unbind()

    def _running(
        self, variants: Sequence[tuple[Choice, Callable[[], Made | None]]], last: bool = False
    ) -> list[tuple[Choice, Made]]:  # fmt: skip
        """Those of the choices, with their programs, that run and fit into memory. `last`: even if the time for trying
        is up."""
        found, room = list[tuple[Choice, Made]](), MAX_BYTES
        for choice, make in variants:
            if self.session.progress.stopped if last else self.ended():
                break
            try:
                if (made := make()) is None:
                    continue
                if (room := room - made.missing_bytes()) < 0:
                    break
                made.flat_near(*self.values)
                made.wait("running a program with other schedules")
                found.append((choice, made))
            except Exception as error:  # a compiler error, or too little device memory
                self.faults.append(f"{type(error).__name__}: {str(error)[:120]}")
        return found

    def _right(self, program: Made, want: Sequence[Any]) -> bool:
        """Whether a program that runs has about the wanted results."""
        if all(map(_close, results_of(program, self.values), want)):
            return True
        self.faults.append("results that differ")
        return False

    def _runnable(self, choice: Choice, want: Sequence[Any], last: bool = False) -> Program | None:
        """The program of a choice if it runs, fits into memory and has about the wanted results. `last`: even if the
        time for trying is up."""
        for _, made in self._running([(choice, lambda: self._built(choice))], last):
            if self._right(made, want):
                return made  # type: ignore[return-value]
            made.unbind()
        return None

    def _sampled(self, programs: Sequence[Any]) -> Sequence[Sequence[float]]:
        """Times of programs."""
        until = self.session.now() + BATCH_S
        return self.sample(programs, lambda: self.session.progress.stopped or self.session.now() >= until)

    def _better(self, want: Sequence[Any]) -> tuple[Choice, Program]:
        """The fastest choice with its program if that is surely faster than the given one, else the latter. Adds the
        programs that were timed to the session's finalists."""
        before, choice = self.session.finalists, self.choice
        if isinstance(self.program, ExchangedProgram):
            base, changed = self.program.own, self.program.changed
            self.program = (self._runnable(choice, want, last=True) or self.own) if changed else base
            self._release([])
        program: Program = self.program
        if self.faults:
            text = f"{counted(len(self.faults), 'other schedule')} left out in the program: {self.faults[0]}"
            self.session.warnings.append(text)
        if program is not self.own:
            samples = self._sampled([self.own, program])
            if self.fastest(samples, NOISE):
                before = before or [_report(self.first, samples[0], "")]
                best = _report(choice, samples[1], "", chosen=True)
                self.session.finalists = [*(replace(f, chosen=False) for f in before), *self.rows, best]
                self.own.unbind()
                return replace(choice, alone=self.first), program
            program.unbind()
        self.session.finalists = [*before, *self.rows]
        return self.first, self.own


def _rank(launching: str) -> Callable[[Candidate, Priced], int]:
    """Order in which kernels are tried where launches overlap: first those that read all weights before they wait, then
    those that read some of them, then those that start while their predecessor runs."""

    def rank(candidate: Candidate, price: Priced) -> int:
        early = bool(dict(price.schedule).get("early"))
        if not launching:
            return 0
        if not early or not prefetches(candidate):
            return 2 if early else 3
        return 0 if reads_whole(scheduled(candidate, dict(price.schedule))) else 1

    return rank


def _calls(choice: Choice, plan: Plan, swap: Swap, launching: str) -> list[tuple[Template, Call]]:
    """The kernels that `swap` puts into the plan of a choice, with the launch overlap `launching`, equal ones once."""
    changed = _steps(choice, plan, swap)
    steps = tuple(changed.get(n, s) for n, s in enumerate(plan.steps))
    made = plan_for_launching(replace(plan, steps=steps, launching=launching)).steps
    distinct = {(frozenset(s.call.schedule.items()), s.call.constant): s for s in (made[n] for n in changed)}
    return [(s.template, s.call) for s in distinct.values()]


def _steps(choice: Choice, plan: Plan, swap: Swap) -> dict[int, Step]:
    """The steps that `swap` puts into the plan of a choice, by their indices."""
    candidates, places = choice.hypergraph.candidates, swap.places
    return {
        n: _exchanged(plan.steps[n], candidates[i], candidates[places[i]], swap.price)
        for n, i in enumerate(choice.chosen)
        if i in places
    }


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
