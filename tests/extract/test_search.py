"""Lazy measuring: what is measured, when it ends, what is chosen."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs as tg
from tensor_graphs.backends.contract import BackendBase
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.patterns.rule import Rule
from tensor_graphs.egraph.saturate.saturate import Limits, saturate_block
from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.errors import NoPlanError
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.candidates.hypergraph import Hypergraph
from tensor_graphs.extract.model.clock import Clock
from tensor_graphs.extract.model.kernel import Candidate
from tensor_graphs.extract.model.library_kernel import LibraryKernel
from tensor_graphs.extract.model.pricing import Priced, PricerBase
from tensor_graphs.extract.search import plan_solver, policy
from tensor_graphs.extract.search.alternatives import alternatives
from tensor_graphs.extract.search.measurement_state import MeasurementState
from tensor_graphs.extract.search.plan_solver import PlanSolver
from tensor_graphs.extract.search.policy import MAX_ALTERNATIVES
from tensor_graphs.extract.search.search import measure_ahead, search
from tensor_graphs.extract.solve.extraction import Extraction

X = tg.input("x", (8, 8))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A list of one number, the seconds on the clock of searches: only the test moves it."""
    found = [0.0]
    clock = SimpleNamespace(monotonic=lambda: found[0])
    for module in ("plan_solver", "search"):
        monkeypatch.setattr(f"tensor_graphs.extract.search.{module}.time", clock)
    return found


def variants(count: int, output: Any = None, both: int = 0) -> Hypergraph:
    """exp(x) by `count` kernels, called exp0, exp1, …; exp(tanh(x)) by so many that do `both`."""
    templates = [
        LibraryKernel(f"exp{i}", "numpy", "exp(x)", "np.exp({x}, out={out})", version=str(i)) for i in range(count)
    ]
    code = "np.exp(np.tanh({x}), out={out})"
    templates += [LibraryKernel(f"both{i}", "numpy", "exp(tanh(x))", code, version=str(i)) for i in range(both)]
    rest = [t for t in backend("numpy").templates if t.name != "np.exp"]

    class Fake(BackendBase):
        def __init__(self) -> None:
            self.name, self.templates = "test", (*templates, *rest)

    return candidate_hypergraph(view_of(Graph.of(tg.exp(X) if output is None else output)), [Fake()], view_strides)


def call_key(c: Candidate) -> tuple[int, int]:
    """Candidates share equal calls."""
    return id(c.template), id(c.call)


class Prices(PricerBase):
    """Predictions by kernel name until measured; then the truth. `ahead`: as of a GPU's measurer."""

    ahead = True

    def __init__(self, truth: dict[str, float], spread: float = 0.5) -> None:
        self.truth, self.spread = truth, spread
        self.known: set[Any] = set()
        self.asked: list[list[str]] = []

    def of(self, c: Candidate) -> float:
        return self.truth.get(c.template.name, 5.0)

    def price(self, found: Sequence[Candidate]) -> list[Priced]:
        rows = []
        for c in found:
            us = self.of(c)
            measured = call_key(c) in self.known
            rows.append(
                Priced(us, us, us, "measured")
                if measured
                else Priced(us * 1.1, us * (1 - self.spread), us * 2, "predicted")
            )
        return rows

    def further(self, candidate: Candidate) -> bool:
        return False

    def unfinished(self, candidate: Candidate) -> bool:
        return False

    def measure(self, found: Iterable[Candidate], **_: Any) -> Sequence[Candidate]:
        found = list(found)
        self.asked.append([c.template.name for c in found])
        self.known |= {call_key(c) for c in found}
        return ()


def chosen(choice: Any) -> list[str]:
    return [choice.hypergraph.candidates[i].template.name for i in choice.chosen]


def test_the_winner_is_measured_before_it_is_believed() -> None:
    prices = Prices({f"exp{i}": 10.0 - i for i in range(6)})
    choice = search(variants(6), prices, prices)
    assert chosen(choice) == ["exp5"] and choice.cost == 5.0
    assert choice.stopped == "measured" and choice.sources == {"measured": 1} and choice.optimism_us == 0.0
    assert choice.rounds == len(prices.asked) + 1 and choice.measured == sum(map(len, prices.asked))
    assert all(len(names) == len(set(names)) for names in prices.asked)


def test_what_is_far_from_winning_is_not_measured() -> None:
    prices = Prices({"exp0": 1.0, **{f"exp{i}": 100.0 for i in range(1, 20)}}, spread=0.1)
    choice = search(variants(20), prices, prices)
    assert chosen(choice) == ["exp0"] and choice.measured <= 1 + MAX_ALTERNATIVES


def test_a_search_whose_plan_is_beaten_measures_no_more() -> None:
    prices = Prices({"exp0": 4.0, "exp1": 3.0})
    choice = search(variants(2), prices, prices, beaten=1.4)
    assert choice.stopped == "beaten" and prices.asked == [], "half of 3 µs, the optimistic time, is more than 1.4"
    choice = search(variants(2), prices, prices, beaten=2.0)
    assert choice.stopped == "beaten" and chosen(choice) == ["exp1"] and len(prices.asked) == 1, "3 µs are measured"
    assert search(variants(2), prices, prices, beaten=3.0).stopped == "measured"


def test_without_a_measurer_prices_are_taken() -> None:
    prices = Prices({"exp0": 2.0, "exp1": 1.0})
    choice = search(variants(2), prices)
    assert chosen(choice) == ["exp1"] and choice.stopped == "prices only" and choice.measured == 0
    assert choice.cost == pytest.approx(1.1) and choice.optimism_us == pytest.approx(0.6)
    assert choice.extraction.lower_bound <= choice.cost


def test_a_pessimistic_second_look_when_the_budget_ends() -> None:
    """exp0 looks cheapest at best, exp1 is cheaper as predicted; without time to measure the prediction decides."""

    class Look(Prices):
        def price(self, found: Sequence[Candidate]) -> list[Priced]:
            rows = {"exp0": Priced(9.0, 1.0, 20.0, "predicted"), "exp1": Priced(5.0, 4.0, 6.0, "predicted")}
            return [rows.get(c.template.name, Priced(50.0, 50.0, 50.0, "predicted")) for c in found]

    prices = Look({})
    choice = search(variants(2), prices, prices, seconds=-1.0)
    assert chosen(choice) == ["exp1"] and choice.stopped == "budget" and prices.asked == []


def test_a_stop_ends_the_search() -> None:
    prices = Prices({"exp0": 1.0})
    assert search(variants(3), prices, prices, stop=lambda: True).stopped == "budget"
    assert prices.asked == []


def test_a_kernel_that_cannot_be_measured_is_not_asked_for_again() -> None:
    class Deaf(Prices):
        def measure(self, found: Iterable[Candidate], **_: Any) -> Sequence[Candidate]:
            self.asked.append([c.template.name for c in found])
            return ()

    prices = Deaf({"exp0": 1.0, "exp1": 2.0})
    choice = search(variants(2), prices, prices)
    flat = [n for names in prices.asked for n in names]
    assert len(flat) == len(set(flat)) and chosen(choice) == ["exp0"]


def test_a_kernel_that_fails_is_replaced() -> None:
    class Failing(Prices):
        def price(self, found: Sequence[Candidate]) -> list[Priced]:
            bad = Priced(math.inf, math.inf, math.inf, "failed")
            return [bad if c.template.name == "exp0" and call_key(c) in self.known else p
                    for c, p in zip(found, super().price(found))]  # fmt: skip

    prices = Failing({"exp0": 1.0, "exp1": 2.0})
    choice = search(variants(2), prices, prices)
    assert chosen(choice) == ["exp1"] and choice.stopped == "measured"


def test_nothing_finite_is_no_plan() -> None:
    class Dead(Prices):
        def price(self, found: Sequence[Candidate]) -> list[Priced]:
            return [Priced(math.inf, math.inf, math.inf, "failed") for _ in found]

    with pytest.raises(NoPlanError):
        search(variants(2), Dead({}))


def test_equal_calls_are_measured_once() -> None:
    y = tg.exp(tg.tanh(tg.exp(tg.tanh(X))))
    prices = Prices({})
    search(variants(1, y), prices, prices)
    flat = [n for names in prices.asked for n in names]
    assert flat.count("exp0") == 1 and flat.count("np.tanh") == 1


def test_the_order_can_be_run() -> None:
    choice = search(variants(2, tg.softmax(tg.exp(X) @ X.T) + tg.sum(X, 1, keepdims=True)), Prices({}))
    graph = choice.hypergraph
    have = {(c, s) for c, s in graph.given.items()}
    for i in choice.chosen:
        c = graph.candidates[i]
        assert all((v.cls, v.strides) in have for _, v in c.inputs)
        have.add((c.output.cls, c.output.strides))
    assert all((r.cls, r.strides) in have for r in graph.roots)
    assert len(set(choice.chosen)) == len(choice.chosen)


def rewritten() -> Hypergraph:
    rules = [
        Rule("factor", "add(mul(x, z), mul(y, z))", "mul(add(x, y), z)", both=True),
        Rule("c", "add(x, y)", "add(y, x)"),
    ]
    a, b, c = (tg.input(n, (4,)) for n in "abc")
    view = saturate_block(
        Graph.of(tg.exp(a * c + b * c)), rules, Limits(iterations=4), session=InProcess(), guard=False
    )
    return candidate_hypergraph(view, [backend("numpy")], view_strides)


def test_alternatives_rise_in_cost_and_differ() -> None:
    choice = search(rewritten(), Prices({}))
    found = list(alternatives(choice, 5, max_gap=5.0))
    costs = [c.cost for c in found]
    assert len(found) >= 2 and costs == sorted(costs) and costs[0] == pytest.approx(choice.cost)
    assert len({tuple(sorted(c.chosen)) for c in found}) == len(found)
    assert len(list(alternatives(choice, 1))) == 1


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(1.0, 100.0), min_size=1, max_size=8), st.floats(0.05, 0.9))
def test_measuring_finds_the_truly_cheapest(times: list[float], spread: float) -> None:
    """As long as predictions are optimistic enough, the measured optimum is the true one."""
    prices = Prices({f"exp{i}": t for i, t in enumerate(times)}, spread)
    choice = search(variants(len(times)), prices, prices)
    assert choice.cost == min(times) and choice.stopped == "measured"


@settings(deadline=None, max_examples=20)
@given(st.lists(st.floats(0.5, 20.0), min_size=4, max_size=4))
def test_the_cost_is_the_best_that_the_solver_can_prove(times: list[float]) -> None:
    truth = dict(zip(("np.add", "np.mul", "np.exp", "np.matmul"), times))
    choice = search(rewritten(), Prices(truth, spread=0.0))
    add, mul, exp = (1.1 * truth[n] for n in ("np.add", "np.mul", "np.exp"))
    assert choice.extraction.optimal and choice.cost == pytest.approx(min(add + mul, 2 * mul + add) + exp)
    assert choice.extraction.lower_bound <= choice.cost + 1e-6


def test_what_is_measured_wins_over_what_is_only_hoped_for_when_the_time_is_up() -> None:
    prices = Prices({"exp0": 10.0, "exp1": 9.0})
    graph = variants(2)
    prices.known = {call_key(c) for c in graph.candidates if c.template.name == "exp0"}
    choice = search(graph, prices, prices, stop=lambda: True)
    assert choice.stopped == "budget" and chosen(choice) == ["exp0"]


def test_solves_have_what_is_left_of_the_time_and_a_little_more(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    plain = plan_solver.warm_solve

    def noted(*given: Any, **more: Any) -> Any:
        limits.append(more["seconds"])
        return plain(*given, **more)

    monkeypatch.setattr(plan_solver, "warm_solve", noted)
    prices = Prices({"exp0": 10.0})
    search(variants(1), prices, seconds=0.0)
    assert limits == [plan_solver.MIN_SOLVE_S]
    search(variants(1), prices, seconds=0.0, deterministic=True)
    assert limits[1:] == [2.5]  # counted work: the clock has no say
    search(variants(1), prices, stop=lambda: True)
    assert limits[2:] == [plan_solver.MIN_SOLVE_S]


def test_a_stop_ends_a_solve_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    pressed: list[int] = []
    halts: list[Any] = []

    def solved(problem: Any, *, stop: Any = None, **more: Any) -> Any:
        pressed.append(1)
        halts.append(stop is not None and stop())
        return plain(problem, stop=stop, **more)

    plain = plan_solver.solve
    monkeypatch.setattr(plan_solver, "solve", solved)
    prices = Prices({"exp0": 10.0, "exp1": 9.0})
    choice = search(variants(2), prices, prices, stop=lambda: bool(pressed))
    assert choice.stopped == "budget" and halts[0] is True and halts[1:] == [False] * (len(halts) - 1)


class Deepening(Prices):
    """Kernels that are `slack` times as slow after a first look as when their schedules have been searched."""

    def __init__(self, truth: dict[str, float], slack: dict[str, float]) -> None:
        super().__init__(truth)
        self.slack, self.deep, self.looks = slack, set[Any](), list[bool]()

    def of(self, c: Candidate) -> float:
        return super().of(c) * (1.0 if call_key(c) in self.deep else self.slack.get(c.template.name, 1.0))

    def further(self, candidate: Candidate) -> bool:
        return False

    def unfinished(self, candidate: Candidate) -> bool:
        return call_key(candidate) in self.known - self.deep and candidate.template.name in self.slack

    def measure(self, found: Iterable[Candidate], *, look: bool = False, **_: Any) -> Sequence[Candidate]:
        found = list(found)
        super().measure(found)
        self.looks.append(look)
        self.deep |= set() if look else {call_key(c) for c in found}
        return ()


def test_what_is_left_under_way_is_waited_for_before_a_plan_is_believed() -> None:
    """The measurer goes on with the last of each round: it is asked for no more, and known in the end."""

    class Late(Deepening):
        late: tuple[Candidate, ...] = ()

        def measure(self, found: Iterable[Candidate], *, leave: bool = False, **more: Any) -> Sequence[Candidate]:
            found = [*self.late, *found]
            self.late = tuple(found[-1:]) if leave else ()
            super().measure(found[:-1] if leave else found, **more)
            return self.late

    prices = Late({"exp0": 9.0, "exp1": 8.0, "exp2": 7.0}, {"exp0": 1.0, "exp1": 1.2, "exp2": 1.3})
    choice = search(variants(3), prices, prices)
    assert chosen(choice) == ["exp2"] and choice.cost == 7.0 and choice.stopped == "measured" and not prices.late
    budget = search(variants(3), prices := Late({"exp0": 9.0}, {}), prices, stop=lambda: bool(prices.late))
    assert budget.stopped == "budget" and not prices.late, "what was under way is given up"


def test_all_are_looked_at_before_any_is_searched_and_the_best_comes_out() -> None:
    """exp0 looks best at first; exp1 is the best of all when both were searched."""
    prices = Deepening({"exp0": 9.0, "exp1": 8.0}, {"exp0": 1.0, "exp1": 1.2})
    choice = search(variants(2), prices, prices)
    assert chosen(choice) == ["exp1"] and choice.cost == 8.0 and choice.stopped == "measured"
    assert prices.looks == sorted(prices.looks, reverse=True) and prices.looks[0] and not prices.looks[-1]


def test_what_has_little_at_stake_waits_until_what_has_much_was_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, names = {"exp0": 100.0, "exp1": 102.0, "np.tanh": 1.0}, ("exp0", "exp1", "np.tanh")

    def asked(least: int) -> list[tuple[bool, list[str]]]:
        monkeypatch.setattr(policy, "ROUND_KERNELS", least)
        prices = Deepening(truth, dict.fromkeys(names, 1.1))
        choice = search(variants(2, tg.tanh(tg.exp(X))), prices, prices)
        assert set(chosen(choice)) == {"exp0", "np.tanh"} and choice.cost == 101.0 and choice.stopped == "measured"
        return [(look, sorted(set(row) & set(names))) for look, row in zip(prices.looks, prices.asked)]

    both = ["exp0", "exp1"]
    assert asked(1) == [(True, both), (False, both), (True, ["np.tanh"]), (False, ["np.tanh"])]
    assert asked(3) == [(True, [*both, "np.tanh"]), (False, [*both, "np.tanh"])]


def test_what_cannot_become_the_best_is_not_searched() -> None:
    slack = {f"exp{i}": 1.1 for i in range(6)}
    prices = Deepening({"exp0": 1.0, **{f"exp{i}": 4.0 for i in range(1, 6)}}, slack)
    assert chosen(search(variants(6), prices, prices)) == ["exp0"]
    assert [names for names, look in zip(prices.asked, prices.looks) if not look] == [["exp0"]]


def test_what_a_search_was_hoped_to_bring_is_not_believed_when_the_time_is_up() -> None:
    prices = Deepening({"exp0": 9.0, "exp1": 8.0}, {"exp1": 1.3})  # 10.4 after the first look
    choice = search(variants(2), prices, prices, stop=lambda: bool(prices.looks))
    assert chosen(choice) == ["exp0"] and choice.cost == 9.0 and choice.stopped == "budget"


def test_kernels_without_schedules_are_measured_first() -> None:
    graph = variants(4)
    for c in graph.candidates:
        if c.template.name in ("exp0", "exp1"):
            object.__setattr__(c.template, "space", lambda call: [{}])
    prices = Prices({"exp0": 1.0, "exp1": 2.0, "exp2": 3.0, "exp3": 4.0}, spread=0.9)
    search(graph, prices, prices)
    assert prices.asked[:2] == [["exp2", "exp3"], ["exp0", "exp1"]]


def test_a_plan_that_needs_no_compiler_is_measured_before_what_is_hoped_for() -> None:
    """The hopeful plan is exp0 and tanh0, to be compiled; the time ends after the first round, and the libraries' plan
    is known."""
    graph = variants(2, tg.tanh(tg.exp(X)))
    for c in graph.candidates:
        if c.template.name == "exp0":
            object.__setattr__(c.template, "space", lambda call: [{}])

    class Ahead(Prices):
        later: tuple[str, ...] = ()

        def measure(self, found: Iterable[Candidate], *, later: Any = (), **more: Any) -> Sequence[Candidate]:
            self.later = self.later or tuple(c.template.name for c, _ in later)
            return super().measure(found, **more)

    prices = Ahead({"exp0": 30.0, "exp1": 40.0, "np.tanh": 2.0}, spread=0.99)
    choice = search(graph, prices, prices, stop=lambda: bool(prices.asked))
    assert sorted(prices.asked[0]) == ["exp1", "np.tanh"] and prices.later == ("exp0",), "which is compiled meanwhile"
    assert sorted(chosen(choice)) == ["exp1", "np.tanh"] and choice.sources == {"measured": 2} and choice.cost == 42.0


def test_rivals_are_measured_beside_the_winner_only_where_they_may_beat_what_is_expected_of_it() -> None:
    prices = Prices({"exp0": 1.0, "exp1": 2.0, "exp2": 3.0, "exp3": 4.0})  # half of it at best, 1.1 times it expected
    assert chosen(search(variants(4), prices, prices)) == ["exp0"]
    assert prices.asked == [["exp0", "exp1"]]


def test_what_reads_values_that_the_winner_does_without_is_no_rival() -> None:
    """exp takes less than exp(tanh(x)) does, but needs tanh(x)."""
    prices = Prices(
        {"both0": 10.0, "both1": 10.5, "np.tanh": 60.0, "exp0": 2.0, "exp1": 2.0, "np.exp": 2.0}, spread=0.2
    )
    choice = search(variants(2, tg.exp(tg.tanh(X)), both=2), prices, prices)
    assert chosen(choice) == ["both0"] and choice.stopped == "measured"
    assert {name for names in prices.asked for name in names} == {"both0", "both1"}


def test_of_several_rivals_each_counts_for_less_than_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "ROUND_KERNELS", 1)
    monkeypatch.setattr(policy, "LARGE_STAKE", 0.01)

    class Near(Prices):
        def price(self, found: Sequence[Candidate]) -> list[Priced]:
            rows = {"exp0": Priced(100.0, 90.0, 200.0, "predicted"), "np.exp": Priced(900.0, 900.0, 900.0, "measured")}
            others = Priced(105.0, 95.0, 210.0, "predicted")
            known = {call_key(c) for c in found} & self.known
            return [
                Priced(*[100.0] * 3, "measured") if call_key(c) in known else rows.get(c.template.name, others)
                for c in found
            ]

    prices = Near({})
    search(variants(9), prices, prices, stop=lambda: bool(prices.asked))
    assert prices.asked[0][0] == "exp0" and len(prices.asked[0]) == 1 + 4, (
        "one of them may bring 5 µs, the next half of that"
    )


def test_what_was_never_run_counts_as_much_as_it_may_take() -> None:
    """A library's kernel is believed before a guessed schedule of a generated one, a guessed product least."""
    candidate = next(c for c in variants(1).candidates if not c.is_view)
    unknown = Priced(2.0, 1.0, 60.0, "bound")

    def doubted(price: Priced, family: str = "pointwise", guessed: bool = True) -> float:
        space = (lambda call: [{}]) if guessed else None
        return plan_solver.pessimistic_us(
            replace(candidate, template=replace(candidate.template, space=space, family=family)), price
        )

    product, simple, library = doubted(unknown, "contraction"), doubted(unknown), doubted(unknown, guessed=False)
    assert unknown.us < library < simple < unknown.high < product
    assert doubted(replace(unknown, source="measured"), "contraction") == unknown.us


def test_what_is_under_way_when_the_time_ends_is_not_waited_for() -> None:
    """A measurer that may leave kernels under way is asked once more then, without leave: else neither ends."""

    class Slow(Prices):
        left: Sequence[Candidate] = ()
        over = False

        def measure(self, found: Iterable[Candidate], *, leave: bool = False, **_: Any) -> Sequence[Candidate]:
            self.asked.append([c.template.name for c in found])
            assert len(self.asked) < 50
            self.left = [c for c in variant.candidates if c.template.name == "exp0"] if leave else ()
            self.over = True
            return self.left

    variant, slow = variants(30), Slow({})
    assert search(variant, slow, slow, stop=lambda: slow.over).stopped == "budget"
    assert len(slow.asked) == 2 and not slow.left


def test_a_librarys_long_kernel_is_near_what_is_expected() -> None:
    candidate = next(c for c in variants(1).candidates if not c.is_view)
    long = plan_solver.pessimistic_us(candidate, Priced(127.0, 127.0, 3800.0, "bound"))
    assert 127 < long < 198  # what a generated product of the same size was measured to take


# ---------------------------------------------------------------- surprises
class Surprising(Prices):
    """Libraries' kernels are expected near `believed` and take what is true; those with schedules hope for a tenth of
    it."""

    def __init__(self, truth: dict[str, float], believed: dict[str, float]) -> None:
        super().__init__(truth)
        self.believed = believed

    def price(self, found: Sequence[Candidate]) -> list[Priced]:
        rows = []
        for c, p in zip(found, super().price(found)):
            us = self.believed.get(c.template.name, 5.0)
            low = us / 10 if c.template.space is not None else 0.95 * us
            rows.append(p if p.source == "measured" else Priced(us, low, 2 * us, "predicted"))
        return rows


def compiled(graph: Hypergraph, *names: str) -> Hypergraph:
    """The kernels of these names have schedules."""
    for c in graph.candidates:
        if c.template.name in names:
            object.__setattr__(c.template, "space", lambda call: [{}])
    return graph


def test_what_would_be_returned_is_measured_before_more_of_what_is_hoped_for() -> None:
    """Two libraries' kernels take ten times what is expected of them; of 30 others, each round hopes for some that take
    their place."""
    names = [f"exp{i}" for i in range(2, 32)]
    graph = compiled(variants(32), *names)
    truth = {"exp0": 100.0, "exp1": 120.0, **{n: 70.0 + i for i, n in enumerate(names)}}
    prices = Surprising(truth, {"exp0": 10.0, "exp1": 12.0, **dict.fromkeys(names, 60.0)})
    choice = search(graph, prices, prices, stop=lambda: len(prices.asked) > 2)
    assert prices.asked[0] == ["exp0"] and prices.asked[1][0] == "exp1"
    assert choice.sources == {"measured": 1} and choice.cost == min(truth[n] for asked in prices.asked for n in asked)


def test_when_the_time_is_up_what_the_plan_believes_is_measured_still(now: list[float]) -> None:
    """The first measuring lasts longer than the search has; a surprise leads to the next kernel, until what is returned
    was measured."""

    class Slow(Surprising):
        def measure(self, found: Iterable[Candidate], **more: Any) -> Sequence[Candidate]:
            now[0] += 0.0 if self.asked else 0.4
            return super().measure(found, **more)

    truth = {f"exp{i}": 100.0 + i for i in range(8)}
    prices = Slow(truth, {name: 10.0 + 2 * i for i, name in enumerate(truth)})
    choice = search(variants(8), prices, prices, seconds=0.35)
    assert choice.stopped == "budget" and choice.sources == {"measured": 1} and choice.cost == 100.0
    assert len(prices.asked) > 1


class Cut(Surprising):
    """Until the time is up, nothing comes of what is asked for but what is `quick`."""

    quick: tuple[str, ...] = ("np.tanh",)

    def __init__(self, truth: dict[str, float], believed: dict[str, float], now: list[float]) -> None:
        super().__init__(truth, believed)
        self.now = now

    def measure(self, found: Iterable[Candidate], *, worth: Any = None, **more: Any) -> Sequence[Candidate]:
        found = list(found)
        self.asked.append(sorted(c.template.name for c in found))
        while len(self.asked) == 1 and not worth.ended():
            self.now[0] += 0.01
        self.known |= {call_key(c) for c in found if c.template.name in self.quick or len(self.asked) > 1}
        return ()


def test_what_the_end_of_the_time_cut_is_asked_for_again(now: list[float]) -> None:
    prices = Cut({"exp0": 30.0, "exp1": 20.0}, {"exp0": 10.0, "exp1": 12.0}, now)
    choice = search(variants(2, tg.tanh(tg.exp(X))), prices, prices, seconds=0.35)
    assert prices.asked == [["exp0", "np.tanh"], ["exp0"], ["exp1"]]
    assert choice.sources == {"measured": 2} and set(chosen(choice)) == {"exp1", "np.tanh"}


def test_a_device_that_does_not_answer_is_not_waited_for_beyond_the_time(now: list[float]) -> None:
    prices = Cut({"exp0": 30.0}, {"exp0": 10.0, "exp1": 12.0}, now)
    choice = search(variants(2), prices, prices, seconds=0.05)
    assert prices.asked == [["exp0"]] and choice.sources == {"predicted": 1} and choice.stopped == "budget"


def test_libraries_are_measured_while_what_must_be_compiled_is_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensor_graphs.extract.search.lazy_pricing.MIN_LAZY_CALLS", 2)
    graph, begun = compiled(variants(6), "exp0", "exp1", "exp2"), threading.Event()

    class Late(Prices):
        def on_record(self, candidate: Candidate) -> bool:
            return candidate.template.name == "exp2"  # of which something is known

        def prepare(self, found: Iterable[Candidate]) -> None:
            assert begun.wait(60.0)
            assert {c.template.name for c in found} == {"exp0", "exp1"}

        def measure(self, found: Iterable[Candidate], **more: Any) -> Sequence[Candidate]:
            begun.set()
            return super().measure(found, **more)

    prices = Late({f"exp{i}": 1.0 + i for i in range(6)}, spread=0.1)
    choice = search(graph, prices, prices)
    assert "exp2" in prices.asked[0] and not {"exp0", "exp1"} & set(prices.asked[0])
    assert chosen(choice) == ["exp0"] and choice.stopped == "measured"
    begun.clear()
    for c in graph.candidates:
        if not c.is_view:
            object.__setattr__(c.template, "space", lambda call: [{}])
    alone = Late({f"exp{i}": 1.0 + i for i in range(6)}, spread=0.1)
    monkeypatch.setattr(Late, "on_record", lambda self, candidate: candidate.template.name == "np.exp")
    begun.set()
    assert chosen(search(graph, alone, alone)) == ["exp0"], "nothing else covers the outputs: it is waited for"


@pytest.mark.parametrize(("spread", "early"), [(0.3, True), (0.99, False)])
def test_what_the_plan_hangs_on_is_searched_while_others_are_looked_at(spread: float, early: bool) -> None:
    """As far as that may bring as much as looking at others."""
    names = [f"exp{i}" for i in range(40)]
    prices = Deepening({n: 10.0 + i / 10 for i, n in enumerate(names)}, dict.fromkeys(names, 1.2))
    prices.spread = spread
    choice = search(variants(40), prices, prices)
    assert chosen(choice) == ["exp0"] and choice.cost == 10.0
    first = prices.looks.index(False)
    assert (first < prices.looks.count(True)) == early and prices.asked[first][0] == "exp0"


def test_where_time_is_left_the_kernels_of_the_plan_and_near_ones_are_searched_further() -> None:
    """exp1 is the best of all when more of its schedules were measured than is usual; exp2, which is far, is left."""

    class Further(Deepening):
        """What was searched may go on once."""

        def __init__(self, truth: dict[str, float], more: dict[str, float]) -> None:
            super().__init__(truth, dict.fromkeys(truth, 1.1))
            self.more, self.whole, self.open = more, set[Any](), set[Any]()

        def of(self, c: Candidate) -> float:
            return super().of(c) * (self.more.get(c.template.name, 1.0) if call_key(c) in self.whole else 1.0)

        def unfinished(self, candidate: Candidate) -> bool:
            return call_key(candidate) in self.open or super().unfinished(candidate)

        def further(self, candidate: Candidate) -> bool:
            more = candidate.template.name in self.more and call_key(candidate) not in self.whole
            self.open |= {call_key(candidate)} if more else set()
            return more

        def measure(self, found: Iterable[Candidate], *, look: bool = False, **_: Any) -> Sequence[Candidate]:
            found = list(found)
            again = {call_key(c) for c in found} & self.open
            self.whole |= again
            self.open -= again
            return super().measure(found, look=look)

    prices = Further({"exp0": 10.0, "exp1": 10.1, "exp2": 12.0}, {"exp0": 0.995, "exp1": 0.98, "exp2": 0.5})
    choice = search(variants(3), prices, prices)
    assert chosen(choice) == ["exp1"] and choice.cost == pytest.approx(9.898) and choice.stopped == "measured"
    assert {c.template.name for c in choice.hypergraph.candidates if call_key(c) in prices.whole} == {"exp0", "exp1"}


def test_what_is_not_priced_when_the_search_ends_is_left(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    monkeypatch.setattr("tensor_graphs.extract.search.lazy_pricing.MIN_LAZY_CALLS", 2)
    over = threading.Event()

    class Endless(Prices):
        ready = 0

        def on_record(self, candidate: Candidate) -> bool:
            return False

        def prepare(self, found: Iterable[Candidate]) -> None:
            for self.ready, _ in enumerate(found, 1):
                now[0] += 0.05
                assert self.ready < 10 or over.wait(60.0)

        def price(self, found: Sequence[Candidate]) -> list[Priced]:
            assert self.ready > 30 or not any(c.template.space is not None for c in found)
            return super().price(found)

    prices = Endless({f"exp{i}": 10.0 + i for i in range(40)})
    graph = compiled(variants(40), *(f"exp{i}" for i in range(38)))
    choice = search(graph, prices, prices, seconds=0.2)
    over.set()
    assert chosen(choice) == ["exp38"] and choice.sources == {"measured": 1} and choice.stopped == "budget"


def test_when_no_time_is_left_for_measuring_a_surprise_is_replaced_by_what_was_measured(now: list[float]) -> None:
    """exp0 and exp1 surprise in the last measuring there is time for: exp3, which is known, is taken, not exp2, which
    may as well."""

    class Last(Surprising):
        def measure(self, found: Iterable[Candidate], **more: Any) -> Sequence[Candidate]:
            found = list(found)
            self.asked.append([c.template.name for c in found])
            self.known |= {call_key(c) for c in found}
            now[0] += 0.25
            return ()

    graph, believed = variants(4), {"exp0": 10.0, "exp1": 12.0, "exp2": 14.0}
    prices = Last({"exp0": 90.0, "exp1": 100.0, "exp2": 100.0, "exp3": 60.0}, believed)
    prices.known = {call_key(c) for c in graph.candidates if c.template.name == "exp3"}
    choice = search(graph, prices, prices, seconds=0.1)
    assert prices.asked[0] == ["exp0"] and choice.sources == {"measured": 1}
    assert chosen(choice) == ["exp3"] and choice.cost == 60.0


def test_what_was_measured_ahead_is_not_measured_by_the_search() -> None:
    """Until it is told to stop, and without a plan to be settled for in the end."""
    prices, clock = Prices({f"exp{i}": 10.0 - i for i in range(6)}), Clock()
    count = measure_ahead(variants(6), prices, prices, seconds=60.0, stop=lambda: False, clock=clock)
    names = [n for asked in prices.asked for n in asked]
    assert count == len(names) > 0 and "exp5" in names and clock.seconds.keys() >= {"price", "solve", "measure"}
    stopped = Prices({f"exp{i}": 10.0 - i for i in range(6)})
    assert measure_ahead(variants(6), stopped, stopped, seconds=60.0, stop=lambda: True, clock=Clock()) == 0
    assert stopped.asked == []
    with pytest.raises(NoPlanError):
        measure_ahead(variants(0), Prices({}), prices, seconds=60.0, stop=lambda: False, clock=Clock())


def test_nothing_is_under_way_any_more_when_measuring_ahead_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the end comes between two rounds: another search has other candidates."""
    left: list[int] = []

    class Leaving(Prices):
        def measure(self, found: Iterable[Candidate], *, leave: bool = False, **_: Any) -> Sequence[Candidate]:
            kept = [*found] if leave else []
            left.append(len(kept))
            return kept

    plain, solves = policy.AcquisitionPolicy.optimistic_round, []

    def solved(*given: Any) -> Any:
        solves.append(1)
        return plain(*given)

    monkeypatch.setattr(policy.AcquisitionPolicy, "optimistic_round", solved)
    prices, stop = Leaving({f"exp{i}": 10.0 - i for i in range(6)}), lambda: len(solves) > 1
    measure_ahead(variants(6), prices, prices, seconds=60.0, stop=stop, clock=Clock())
    assert len(left) == 2 and left[0] and not left[1]


# ---------------------------------------------------------------- small budgets
class Starting(Prices):
    """Measuring processes that start when they are first asked, after `after` looks at whether they are ready."""

    def __init__(self, after: int) -> None:
        super().__init__({"exp0": 1.0})
        self.left = after

    @property
    def ready(self) -> bool:
        self.left -= 1
        return self.left <= 0


def test_the_least_time_of_measuring_begins_when_its_processes_have_started(now: list[float]) -> None:
    graph, measurer = variants(1), Starting(3)
    plans = PlanSolver(graph, (), 2.0, (0.1,), False, lambda: False, Clock(), start=0.0)
    plans.least, plans.starting = 1.0, lambda: not measurer.ready

    def ended(at: float) -> bool:
        now[0] = at
        return plans.ended()

    assert not ended(1.9) and measurer.left == 3, "within its seconds nothing is asked"
    assert not ended(3.0) and not ended(3.5), "still starting"
    assert not ended(4.0) and not ended(4.9) and ended(5.1), "a second from 4.0 on"
    measurer.left, plans.started = 10**6, None
    assert not ended(plan_solver.MAX_STARTING_S - 0.1) and ended(plan_solver.MAX_STARTING_S + 0.1)


def test_a_kernel_that_ran_when_the_time_was_up_uses_the_time_of_the_closing_phase(now: list[float]) -> None:
    plans = PlanSolver(variants(1), (), 2.0, (0.1,), False, lambda: False, Clock(), start=0.0, closing=0.5)
    ends = []
    for seen in (None, 2.1):
        now[0] = seen or 2.0
        assert plans.ended() == (seen is not None)
        now[0] = 2.4
        plans.start_closing(plans.overtime)
        while not plans.closing_ended():
            now[0] += 0.05
        ends.append(round(now[0], 2))
    assert ends == [2.95, 2.65], "half a second from then on, and from when the time was up"


class OneByOne(Prices):
    """Kernels that are measured one after another, each in `seconds` of the clock, as on a CPU."""

    ahead = False

    def __init__(self, truth: dict[str, float], now: list[float], seconds: float = 0.2, **more: Any) -> None:
        super().__init__(truth, **more)
        self.now, self.seconds = now, seconds

    def measure(self, found: Iterable[Candidate], **_: Any) -> Sequence[Candidate]:
        self.asked.append([])
        for c in found:
            self.now[0] += self.seconds
            self.asked[-1].append(c.template.name)
            self.known.add(call_key(c))
        return ()


@pytest.mark.parametrize(("ahead", "kernels"), [(False, 8), (True, 3)], ids=["cpu", "gpu"])
def test_the_closing_phase_measures_on_when_the_plan_is_measured(ahead: bool, kernels: int, now: list[float]) -> None:
    """On a CPU, as long as kernels end in it: the time is up after 0.5 s, seen after 0.6, and it is a second."""
    prices = OneByOne({f"exp{i}": 10.0 - 0.1 * i for i in range(12)}, now)
    prices.ahead = ahead
    choice = search(variants(12), prices, prices, seconds=0.5, closing=1.0)
    assert sum(map(len, prices.asked)) == kernels and now[0] < 1.6 + 1e-9
    assert choice.sources == {"measured": 1} and choice.stopped == "budget"
    assert choice.cost == min(prices.of(c) for c in choice.hypergraph.candidates if call_key(c) in prices.known)


def test_a_kernel_that_is_in_no_best_plan_any_more_is_not_measured(now: list[float]) -> None:
    """exp0 turns out faster than the others may be, after they have been asked for with it."""

    class Wrong(OneByOne):
        def price(self, found: Sequence[Candidate]) -> list[Priced]:
            rows = super().price(found)
            low = Priced(4.0, 2.0, 8.0, "predicted")
            return [low if c.template.name == "exp0" and p.source != "measured" else p for c, p in zip(found, rows)]

    prices = Wrong({"exp0": 1.0, **{f"exp{i}": 6.0 for i in range(1, 6)}}, now)
    choice = search(variants(6), prices, prices)
    assert chosen(choice) == ["exp0"] and prices.asked == [["exp0"]] and choice.stopped == "measured"


@pytest.mark.parametrize(
    ("ahead", "us", "first"),
    [(False, 8.0, "exp1"), (True, 8.0, "exp0"), (True, 5.0, "exp1")],
    ids=["cpu", "gpu", "far"],
)
def test_what_is_likely_the_cheapest_is_measured_first_without_compilers_that_work_ahead_or_where_it_is_far_cheaper(
    ahead: bool, us: float, first: str, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """exp1 is compiled; on a GPU compilers start while a few library kernels are measured (here none)."""

    class Related(OneByOne):
        def price(self, found: Sequence[Candidate]) -> list[Priced]:
            rows = {"exp0": Priced(10.0, 3.0, 12.0, "predicted"), "exp1": Priced(us, us - 1.0, us + 1.0, "predicted")}
            known = super().price(found)
            return [p if p.source == "measured" else rows.get(c.template.name, p) for c, p in zip(found, known)]

    monkeypatch.setattr(policy, "MEANWHILE", 0)
    prices = Related({"exp0": 10.0, "exp1": us}, now)
    prices.ahead = ahead
    search(compiled(variants(2), "exp1"), prices, prices)
    assert prices.asked[0][0] == first


@pytest.mark.parametrize(("meanwhile", "order"), [(0, ["exp1", "np.tanh", "exp0"]), (1, ["exp0", "exp1", "np.tanh"])])
def test_all_kernels_of_a_far_cheaper_plan_are_measured_before_the_libraries(
    meanwhile: int, order: list[str], now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ones, too, and those of which little is known: they count at the upper ends of their intervals."""
    high = [5.0]

    class Related(OneByOne):
        def price(self, found: Sequence[Candidate]) -> list[Priced]:
            rows = {"exp0": Priced(20.0, 3.0, 22.0, "predicted"), "exp1": Priced(4.0, 3.0, 5.0, "predicted"),
                    "np.tanh": Priced(0.1, 0.01, high[0], "predicted")}  # fmt: skip
            known = super().price(found)
            return [p if p.source == "measured" else rows.get(c.template.name, p) for c, p in zip(found, known)]

    monkeypatch.setattr(policy, "MEANWHILE", meanwhile)
    for high[0], wanted in ((5.0, order), (30.0, ["exp0", "np.tanh", "exp1"])):
        prices = Related({"exp0": 20.0, "exp1": 4.0, "np.tanh": 0.1}, now)
        prices.ahead = True
        search(compiled(variants(2, tg.exp(tg.tanh(X))), "exp1"), prices, prices)
        assert prices.asked[0] == wanted


class Shipped(Prices):
    """Prices shipped with the package until measured; `slow` ones take ten times as long here."""

    def __init__(self, truth: dict[str, float], slow: Sequence[str] = ()) -> None:
        super().__init__(truth)
        self.slow = slow

    def price(self, found: Sequence[Candidate]) -> list[Priced]:
        rows = []
        for c in found:
            us, here = self.of(c), call_key(c) in self.known
            us *= 10.0 if here and c.template.name in self.slow else 1.0
            rows.append(Priced(us, us if here else 0.8 * us, us * 1.25, "measured", shipped=not here))
        return rows


def test_shipped_prices_guide_a_search_and_its_plan_is_measured_again() -> None:
    times = {"exp0": 9.0, "exp1": 5.0, "exp2": 30.0}
    choice = search(variants(3), prices := Shipped(times), prices)
    assert chosen(choice) == ["exp1"] and choice.sources == {"measured": 1}
    assert "exp1" in prices.asked[0] and all("exp2" not in names for names in prices.asked)
    surprised = search(variants(3), prices := Shipped(times, slow=["exp1"]), prices)
    assert chosen(surprised) == ["exp0"] and surprised.sources == {"measured": 1}


def test_without_a_measurer_shipped_prices_are_told_from_measured_ones() -> None:
    choice = search(variants(2), Shipped({"exp0": 3.0}))
    assert choice.sources == {"shipped": 1} and choice.cost == 3.0


def test_library_rivals_are_measured_in_the_first_round() -> None:
    """By their bounds two kernels are cheaper than the one that does both."""
    output = tg.exp(tg.tanh(X))
    truth = {"exp0": 4.0, "np.tanh": 4.0, "both0": 5.0}

    class Bounds(Prices):
        def price(self, found: Sequence[Candidate]) -> list[Priced]:
            low = {"exp0": 2.0, "np.tanh": 2.0, "both0": 4.5}
            asked = [(self.of(c), call_key(c) in self.known, low.get(c.template.name, 50.0)) for c in found]
            return [Priced(us, us, us, "measured") if k else Priced(b, b, 30 * b, "bound") for us, k, b in asked]

    graph = variants(2, output, both=1)
    for c in graph.candidates:
        if c.template.name == "exp1":  # there is something to compile, so that the first round asks libraries first
            object.__setattr__(c.template, "space", lambda call: [{}])
    choice = search(graph, prices := Bounds(truth), prices)
    assert chosen(choice) == ["both0"]
    assert {"exp0", "np.tanh", "both0"} <= set(prices.asked[0])


def test_a_round_that_would_end_too_late_is_not_begun(now: list[float]) -> None:
    """The next solve is expected to take as long as the last one."""
    plans = PlanSolver(variants(2), (), 10.0, (1.0, 1.0), False, lambda: False, Clock())
    now[0] = 9.0
    assert not plans.leaves_no_round(0.5) and plans.leaves_no_round(1.5) and not plans.ended()
    plans.least, plans.started = 20.0, 0.0  # measuring has a minimum time
    assert not plans.leaves_no_round(1.5)
    assert not replace(plans, deterministic=True).leaves_no_round(99.0)


def test_the_last_solve_starts_from_the_plan_that_is_cheaper_at_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine it may find no other plan than the one that it starts from."""
    graph, started = variants(2), []
    names = {c.template.name: i for i, c in enumerate(graph.candidates) if c.template.name.startswith("exp")}
    plans = PlanSolver(graph, (), 10.0, (1.0, 1.0), False, lambda: False, Clock())
    found = Extraction(np.zeros(1, np.int32), 1.0, 0.0, False, 0.0, "")

    def solve(cost: Any, limit: float, known: list[int], least: float) -> Any:
        started.append(list(known))
        return list(known), found

    monkeypatch.setattr(plans, "solve", solve)
    prices = [Priced(9.0, 9.0, 9.0, "measured")] * len(graph.candidates)
    unmeasured = Priced(1.0, 1.0, 900.0, "bound")
    for hoped, kept in (("exp0", "exp1"), ("exp1", "exp0")):
        plans.chosen, plans.pessimistic = [names[hoped]], [names[kept]]
        monkeypatch.setattr(plan_solver, "pessimistic_us", lambda c, p: p.high)
        priced = [unmeasured if i == names[hoped] else p for i, p in enumerate(prices)]
        for settled in (False, True):
            plans.chosen = [names[hoped]]
            plans.solve_final(priced, found, 0.25, settled=settled)
            assert plans.chosen == started[-1] == [names[kept]]
    plans.chosen, plans.pessimistic = [names["exp0"]], []
    plans.solve_final(priced, found, 0.25)
    assert plans.chosen == [names["exp0"]]


def test_rounds_grow_while_processes_wait_for_solves() -> None:
    """Twice as many kernels where measuring took less than half of the time of solving; fewer again where it took far
    more."""
    made = policy.AcquisitionPolicy(None, None)  # type: ignore[arg-type]
    sizes = []
    for solving, measuring in (
        (1.0, 0.4),
        (1.0, 0.6),
        (1.0, 0.4),
        (1.0, 0.4),
        (1.0, 3.1),
        (0.1, 0.01),
        (0.1, 9.0),
        (0.1, 9.0),
    ):
        made.fit_round(solving, measuring)
        sizes.append(made.growth)
    assert sizes == [2, 2, 4, 4, 2, 2, 1, 1]
    stakes = {i: 1.0 / (i + 1) for i in range(90)}
    assert len(policy._batch(stakes, 0.5, made.growth * policy.ROUND_KERNELS)) == policy.ROUND_KERNELS
    assert len(policy._batch(stakes, 0.5, 40)) == 40 and not policy._batch(stakes, 2.0, 40)


def test_a_round_tunes_few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with the largest possible gains, whatever the size of rounds of first looks."""
    graph, prices = variants(40), Prices({})
    made = policy.AcquisitionPolicy(MeasurementState(graph, prices), None, growth=4)  # type: ignore[arg-type]
    stakes = {i: 1.0 / (i + 1) for i in range(30)}
    monkeypatch.setattr(made, "first_look_stakes", lambda *given: {})
    monkeypatch.setattr(made, "tuning_stakes", lambda *given: stakes)
    request = made.optimistic_request([0], prices.price(graph.candidates))
    assert request.now == list(range(policy.TUNED)) and not request.first_look


def test_kernels_of_a_layer_that_the_model_repeats_count_as_often_as_it_does() -> None:
    """A short form has three of sixteen equal layers: what the model has once is not tried first."""
    graph, prices = variants(1, tg.exp(tg.tanh(X))), Prices({"exp0": 40.0, "np.tanh": 10.0})
    layer = next(c.outputs[0].cls for c in graph.candidates if c.template.name == "np.tanh")
    for repeats, names in (({}, ["exp0", "np.tanh"]), ({layer: 16.0}, ["np.tanh", "exp0"])):
        made = policy.AcquisitionPolicy(MeasurementState(replace(graph, repeats=repeats), prices), None)  # type: ignore[arg-type]
        priced = prices.price(graph.candidates)
        plan = [i for i, c in enumerate(graph.candidates) if c.template.name in names]
        found = [graph.candidates[i].template.name for i in made.unmeasured(plan, priced)]
        looks = [graph.candidates[i].template.name for i in made.first_look_stakes(plan, priced)]
        assert found == looks == names
    assert made.unmeasured(plan, priced, 0.5) == [i for i in plan if graph.candidates[i].template.name == "np.tanh"]
