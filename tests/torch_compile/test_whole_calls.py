"""Where whole calls of `tg.compile`'s callables go, and that the callables behave as those of torch.compile."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tensor_graphs as tg
from tensor_graphs.torch_compile import judge
from tensor_graphs.torch_compile.report import EAGER, PROGRAM, SEARCHING, GraphReport

from .quick_searches import QUICK, timed

torch = pytest.importorskip("torch")
whole_calls = pytest.importorskip("tensor_graphs.torch_compile.whole_calls")
nn = torch.nn

pytestmark = pytest.mark.usefixtures("fresh_dynamo", "no_grad")


@pytest.fixture
def no_grad() -> Iterator[None]:
    """Autograd records nothing."""
    with torch.no_grad():
        yield


class Graph:
    """What is known about a compiled graph."""

    def __init__(self, runs: str) -> None:
        self.report, self.decided = GraphReport("graph", runs=runs), runs != SEARCHING


class Ticks:
    """A point in time of a clock that only the test moves, in µs."""

    now = 0.0

    def __init__(self) -> None:
        self.began = Ticks.now

    def us(self) -> float:
        return Ticks.now - self.began


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls take the time by which they move `Ticks`."""
    monkeypatch.setattr(whole_calls, "Instant", Ticks)


class Callee:
    """A callable that takes some time (`Ticks`) and counts its calls."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.count = seconds, 0

    def __call__(self, *_: Any, **__: Any) -> int:
        self.count += 1
        Ticks.now += 1e6 * self.seconds
        return self.count


def chosen(runs: str, compiled_s: float, own_s: float, calls: int = 60) -> tuple[Any, int, int]:
    """Report, calls of the compiled callable, calls of the caller's own."""
    backend, graph, compiled, own = whole_calls.CompileBackend(), Graph(runs), Callee(compiled_s), Callee(own_s)
    backend.graphs.add(graph)
    call = whole_calls.WholeCalls(compiled, own, backend)
    for _ in range(calls):
        call(torch.ones(2))
    assert compiled.count + own.count == calls
    return graph.report, compiled.count, own.count


@pytest.mark.usefixtures("ticks")
def test_calls_go_to_the_faster_callable() -> None:
    report, compiled, own = chosen(PROGRAM, 0.0, 0.004)
    assert compiled > 40 and own == whole_calls.CALLS + 1 and "compiled one" in report.calls
    report, compiled, own = chosen(PROGRAM, 0.004, 0.0)
    assert own > 40 and "the module itself:" in report.calls


def test_equal_times_take_more_calls_and_then_go_to_the_module_itself() -> None:
    calls, trial = whole_calls.WholeCalls(print, len, whole_calls.CompileBackend()), whole_calls.CallTrial(print, len)
    for us, typical in zip(trial.us, (10.0, 10.1)):
        us += [500.0, *[typical, typical, typical, 90.0] * (whole_calls.CALLS // 4)]
    assert not trial.ended
    for us, typical in zip(trial.us, (10.0, 10.1)):
        us += [typical] * (whole_calls.MOST_CALLS - whole_calls.CALLS)
    assert trial.ended and trial.times() == (10.0, 10.1)
    calls._end("equal", trial)
    trial.us[0][:] = [500.0, *[8.0, 20.0, 8.0, 8.0] * whole_calls.CALLS]  # disturbed a quarter of the time
    calls._end("faster", trial)
    trial.us[0][:] = [500.0, *[8.0, 20.0, 8.0, 20.0] * whole_calls.CALLS]  # its fast calls may be luck
    calls._end("unclear", trial)
    assert calls._chosen == {"equal": len, "faster": print, "unclear": len}


@pytest.mark.usefixtures("ticks")
def test_calls_without_programs_go_to_the_module_itself() -> None:
    assert chosen(EAGER, 0.0, 0.0)[1:] == (1, 59)
    assert chosen(SEARCHING, 0.0, 0.0)[1:] == (60, 0)


def test_calls_of_which_dynamo_captures_nothing_go_to_the_module_itself() -> None:
    module, x = nn.LSTM(4, 5).eval(), torch.randn(3, 2, 4)
    compiled = tg.compile(module, **QUICK)
    with torch.enable_grad():  # a recurrent layer alone
        for _ in range(3):
            torch.testing.assert_close(compiled(x), module(x))
    assert set(compiled._calls._chosen.values()) == {module} and not compiled._calls.backend.graphs


def test_signatures_that_occur_often_are_told_from_others() -> None:
    seen: list[str] = []
    modes = nn.Identity()
    calls = whole_calls.WholeCalls(lambda *a, **k: seen.append("compiled"), modes, whole_calls.CompileBackend())
    x, y = torch.randn(3, 4), torch.randn(4)
    own = lambda *a, **k: seen.append("own")
    calls._chosen[calls._signature([x, y], {})] = own
    for _ in range(30):
        calls(torch.randn(3, 4), y)
    assert seen == ["own"] * 30 and calls._last is not None
    last, calls._chosen = calls._last, {calls._signature([x, y], {}): own}
    for others in ([x], [x, y, y], [x, y.double()], [x[:2], y], [x, 4.0], [x.to("meta"), y]):
        seen.clear()
        calls(*others)
        assert seen == ["own" if others[0].is_meta else "compiled"], others  # devices are no part of a signature
    seen.clear()
    with torch.enable_grad():
        calls(x, y)
    modes.eval()
    calls(x, y)
    modes.train()
    calls(x, y)
    calls(x.t().contiguous().t(), y)
    assert seen == ["compiled", "compiled", "own", "own"] and calls._last is last


def test_calls_that_all_go_to_the_module_are_rarely_looked_at() -> None:
    module, x, y = nn.Identity(), torch.randn(3, 4), torch.randn(5)
    calls = whole_calls.WholeCalls(lambda *a: a[0] + 1, module, whole_calls.CompileBackend())
    calls._chosen = {calls._signature([v], {}): module for v in (x, y)}
    for _ in range(8):
        assert calls(x) is x
    assert calls.unseen and calls._last is not None
    calls.unseen = -1  # two threads have counted the last of these calls
    assert calls(x) is x and calls.unseen == whole_calls.UNSEEN
    assert torch.equal(calls(input=x), x)  # calls with names are looked at
    new, results = torch.randn(2), []
    for _ in range(2 * whole_calls.UNSEEN):  # a new signature is noticed, and runs the compiled callable at first
        results.append(calls(new) is not new)
    assert any(results) and not results[0]
    seen = []
    handle = module.register_forward_hook(lambda *_: seen.append(1))  # hooks are seen by every call
    for _ in range(40):
        calls(x)
    handle.remove()
    assert len(seen) == 40
    calls._choose(calls._signature([new], {}), calls.compiled, "")
    for _ in range(40):
        calls(x)
    assert not calls.unseen and not torch.equal(calls(new), new)  # one signature is compiled: all calls are looked at


@pytest.mark.parametrize(
    "own", [nn.Linear(3, 3), torch.sin, type("Own", (nn.Identity,), {"__call__": lambda self, x: x + 1})()]
)
def test_what_is_called_without_the_outer_frames_gives_the_same(own: Any) -> None:
    x = torch.randn(3)
    torch.testing.assert_close(whole_calls._without_wrapper(own)(x), own(x))


class Stepped:
    """Callables of a training step, the rest of which takes a time that depends on the callable."""

    def __init__(self, rest_s: dict[str, float]) -> None:
        backend, graph = whole_calls.CompileBackend(), Graph(PROGRAM)
        backend.graphs.add(graph)
        self.kept, self.rest_s, self.seen = graph, rest_s, []
        self.calls = whole_calls.WholeCalls(self.form("compiled"), self.form("own"), backend)

    def form(self, name: str) -> Callable[..., None]:
        return lambda *_: self.seen.append(name)

    def step(self, x: Any) -> None:
        self.calls(x)
        Ticks.now += 1e6 * self.rest_s[self.seen[-1]]  # backward pass and optimizer


@pytest.mark.usefixtures("ticks")
@pytest.mark.parametrize("faster", ["compiled", "own"])
def test_calls_with_gradients_are_timed_with_the_rest_of_the_step(faster: str) -> None:
    stepped = Stepped({"compiled": 0.004, "own": 0.004} | {faster: 0.0})
    with torch.enable_grad():
        for _ in range(40):
            stepped.step(torch.ones(2))
        assert set(stepped.seen[-10:]) == {faster} and stepped.seen[1:26].count("own") in (12, 13)
        assert chosen(EAGER, 0.0, 0.0)[1:] == (1, 59)


@pytest.mark.usefixtures("ticks")
def test_times_of_steps_end_at_calls_of_another_signature() -> None:
    stepped, x = Stepped({"compiled": 0.0, "own": 0.0}), torch.ones(2)
    with torch.enable_grad():
        for _ in range(9):
            stepped.step(x)
        (trial,) = stepped.calls._trials.values()
        with torch.no_grad():
            stepped.calls(x)  # as in a validation loop
        Ticks.now += 1e4
        for _ in range(9):
            stepped.step(x)
    assert (
        sum(map(len, trial.us)) == 15 and max(map(max, trial.us)) < 9e3
    )  # of 17 calls: not the interrupted, not the last


@pytest.mark.usefixtures("ticks")
def test_steps_of_signatures_that_alternate_go_to_the_compiled_callable() -> None:
    """No time of such a step ends at a call of the same signature."""
    stepped = Stepped({"compiled": 0.0, "own": 0.0})
    with torch.enable_grad():
        for _ in range(whole_calls.MOST_CALLS + 5):
            stepped.step(torch.ones(2))
            stepped.step(torch.ones(3))
    assert not stepped.calls._trials and set(stepped.seen[-4:]) == {"compiled"}


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.seen = nn.Linear(8, 8), []

    def forward(self, x: Any) -> Any:
        self.seen.append(x.shape[0])  # a side effect that a repeated call would show
        return torch.relu(self.linear(x)).tanh() * 2


@pytest.mark.parametrize("program", [1.0, 3.0])
def test_every_call_has_its_side_effects_once(program: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "timed", timed(2.0, program))
    module, other = Counted().eval(), Counted().eval()
    other.load_state_dict(module.state_dict())
    compiled = tg.compile(module, **QUICK)
    for n in [3] * 30 + [4] * 3:
        x = torch.randn(n, 8)
        torch.testing.assert_close(compiled(x), other(x))
    assert module.seen == other.seen
    report = tg.torch_compile.reports()[-1]
    assert report.runs == (PROGRAM if program < 2 else EAGER)


def test_a_new_shape_is_compiled_although_another_goes_to_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "timed", timed(2.0, 3.0))
    compiled = tg.compile(nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval(), dynamic=False, **QUICK)
    before = len(tg.torch_compile.reports())
    for n in (3, 3, 5, 5):
        compiled(torch.randn(n, 8))
    assert len(tg.torch_compile.reports()) == before + 2
    assert "calls go to the module itself" in str(tg.torch_compile.last_report())


def test_copies_pickles_hooks_and_outer_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "timed", timed(2.0, 1.0))
    module = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval()
    x, seen = torch.randn(3, 8), []
    compiled = tg.compile(module, **QUICK)
    expected = module(x)
    compiled(x)
    assert isinstance(compiled, torch._dynamo.OptimizedModule) and list(compiled.state_dict()) == [
        "_orig_mod.0.weight",
        "_orig_mod.0.bias",
    ]
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert type(other) is type(compiled) and other._orig_mod is not module
        with torch.no_grad():
            other._orig_mod[0].weight.zero_()
        torch.testing.assert_close(other(x), torch.tanh(module[0].bias).expand(3, 8))
        torch.testing.assert_close(compiled(x), expected)
    outer = torch.compile(lambda a: compiled(a) * 2, backend="eager", fullgraph=True)
    torch.testing.assert_close(outer(x), expected * 2)
    hooked = copy.deepcopy(module)
    hooked.register_forward_hook(lambda m, args, out: seen.append(1))
    compiled = tg.compile(hooked, **QUICK)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), expected)
    assert len(seen) == 3


@pytest.mark.parametrize("program", [1.0, 100.0], ids=["programs", "module"])
def test_hooks_of_the_compiled_module(program: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """They belong to the wrapper: calls of the module itself would leave them out."""
    monkeypatch.setattr(judge, "timed", timed(10.0, program))
    module, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval(), torch.randn(3, 8)
    compiled = tg.compile(module, **QUICK)
    for _ in range(40):
        compiled(x)
    doubled = compiled.register_forward_hook(lambda m, args, out: out * 2)
    for _ in range(40):
        torch.testing.assert_close(compiled(x), 2 * module(x))
    doubled.remove()
    torch.testing.assert_close(compiled(x), module(x))


def test_a_function_keeps_its_name_and_compiles_inside_of_another() -> None:
    def twice(a: Any) -> Any:
        return torch.tanh(a) * 2

    inner = tg.compile(twice, **QUICK)
    outer = tg.compile(lambda a: inner(a) + 1, **QUICK)
    x = torch.randn(3, 4)
    assert inner.__name__ == "twice"
    for _ in range(2):
        torch.testing.assert_close(inner(x), twice(x))
        torch.testing.assert_close(outer(x), twice(x) + 1)
