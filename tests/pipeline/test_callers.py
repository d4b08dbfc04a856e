"""On the CPU a program is compared with the graph as it is written and with the caller's own function; the fastest of
them runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs import settings
from tensor_graphs.backends.program.program import Program
from tensor_graphs.errors import ShapeError
from tensor_graphs.pipeline.execution import caller_timing, timing
from tensor_graphs.pipeline.sources import caller
from tensor_graphs.pipeline.stages import load

pytestmark = pytest.mark.usefixtures("real_times")

X, Y = (np.random.default_rng(i).standard_normal((4, 6)).astype(np.float32) for i in range(2))
GIVEN: dict[str, Any] = {"backend": "numpy", "budget": 20.0, "effort": 0}


def gated(x: Any, y: Any) -> Any:
    """A function of NumPy's, for arrays and for tensors of ours."""
    return np.tanh(x) * y + x


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of the cost store of all tests: a kernel is measured once."""
    return str(tmp_path_factory.mktemp("costdb"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, measured: str) -> Iterator[Path]:
    with settings.override(home=str(tmp_path), costdb=measured):
        yield tmp_path


@pytest.fixture
def slow_plans(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """Calls of compiled plans take two milliseconds more. Returns the programs called, one entry a call."""
    flat, called = Program._flat, list[Program]()

    def slow(self: Program, args: Any, named: Any) -> Any:
        called.append(self)
        time.sleep(0.002)
        return flat(self, args, named)

    monkeypatch.setattr(Program, "_flat", slow)
    monkeypatch.setattr(Program, "_tries", 0)  # no direct functions, which make calls without it
    return called


def test_a_faster_function_runs_and_the_report_says_so(tmp_path: Path, slow_plans: list[Program]) -> None:
    made = tg.optimize(gated, (X, Y), **GIVEN)
    assert made.report.runs == "caller" and made.report.caller_us < made.report.program_us
    assert "the caller's own function runs" in str(made.report)
    slow_plans.clear()
    found = made(X, Y)
    assert not slow_plans
    np.testing.assert_array_equal(found, gated(X, Y))
    np.testing.assert_array_equal(made(x=X, y=Y), found)
    with pytest.raises(ShapeError):
        made(X, Y[:2])
    with pytest.warns(UserWarning, match="the compiled plan is saved"):
        made.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "report.json").read_text())["runs"] == "caller"
    loaded = tg.load_program(tmp_path / "saved")
    assert loaded.manifest.compared == made.report.compared and made.manifest.compared == ""
    np.testing.assert_allclose(loaded(X, Y), found, rtol=1e-6)
    assert tg.optimize(gated, (X, Y), **GIVEN).report.from_plan_cache


@pytest.mark.usefixtures("slow_plans")
@pytest.mark.parametrize(
    ("options", "why"),
    [({"allow_caller": False}, "allow_caller=False"), ({"measure": False}, "nothing is measured"),
     ({"deterministic": True}, "nothing is measured"), ({"error_budget": 1.0}, "limits")],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)  # fmt: skip
def test_a_caller_can_be_refused_and_the_report_says_why(options: dict[str, Any], why: str) -> None:
    made = tg.optimize(gated, (X, Y), **{**GIVEN, **options})
    assert made.report.runs == "program" and made.report.caller_us is None and why in made.report.compared
    assert type(made) is Program


def test_a_slower_function_does_not_run() -> None:
    def slow(x: Any, y: Any) -> Any:
        if type(x) is np.ndarray:
            time.sleep(0.002)
        return gated(x, y)

    made = tg.optimize(slow, (X, Y), **GIVEN)
    assert type(made) is Program and made.report.caller_us > 2000 and "the program runs" in made.report.compared


@pytest.mark.usefixtures("slow_plans")
@pytest.mark.parametrize("off", [1e-3, "types", "raises", "same memory"])
def test_what_is_not_the_function_that_was_traced_does_not_run(off: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load.trace_check, "compare", lambda *args, **kwargs: "")  # it would refuse these functions

    def other(x: Any, y: Any) -> Any:
        if type(x) is not np.ndarray:
            return gated(x, y) if off != "same memory" else x * 1.0
        if off == "raises":
            raise ValueError("no arrays")
        if off == "same memory":
            return x
        return gated(x, y).astype(np.float64) if off == "types" else gated(x, y) * np.float32(1 + off)

    made = tg.optimize(other, (X, Y), **GIVEN)
    assert type(made) is Program and made.report.runs != "caller"
    message = {
        1e-3: "over tolerance",
        "types": "other types",
        "raises": "ValueError",
        "same memory": "its inputs' memory",
    }
    assert message[off] in made.report.compared


def test_types_and_expressions_have_nothing_to_compare_with() -> None:
    for source, examples in ((gated, (((4, 6), "float32"),) * 2), (tg.tanh(tg.input("x", (4, 6))), None)):
        made = tg.optimize(source, examples, **GIVEN)
        assert made.report.compared == "" and made.report.runs == "program"


@pytest.mark.parametrize("faster", ["before", "after"])
def test_the_graph_as_it_is_written_runs_where_it_is_faster(monkeypatch: pytest.MonkeyPatch, faster: str) -> None:
    took = {"before": 2.0, "after": 2.0, faster: 1.0}
    monkeypatch.setattr(timing, "sampled", lambda calls, **how: {n: [took[n]] * 9 for n in calls})
    x, w = tg.input("x", (4, 6)), tg.param("w", (6, 6))
    for _ in range(2):  # searched, then remembered
        made = tg.optimize(tg.softmax(x @ w, axis=1), params={"w": np.eye(6, dtype=np.float32)}, **GIVEN)
        assert made.report.runs == ("as written" if faster == "before" else "program")
        assert made.report.steps and all(s.us > 0 and s.limit_us for s in made.report.steps)
        np.testing.assert_allclose(made(X), np.exp(X) / np.exp(X).sum(1, keepdims=True), rtol=1e-5)
    assert made.report.from_plan_cache


@pytest.mark.parametrize(
    ("share", "many", "why"),
    [
        (1.01, True, ""),
        (0.97, True, "with its arguments checked the caller's function takes 97.0 µs, within the noise of 4 %"),
        (0.8, True, None),
        (0.81, False, None),
        (0.5, False, None),
    ],
)
def test_noise_takes_no_caller(monkeypatch: pytest.MonkeyPatch, share: float, many: bool, why: str | None) -> None:
    """Where both differ by less than noise the program runs."""
    program = tg.optimize(gated, (X, Y), **{**GIVEN, "allow_caller": False})
    given = caller.Caller.of(gated, (X, Y), {})
    assert given is not None
    took = {"caller": 100 * share, "program": 100.0, "wrapped": 100 * share}
    monkeypatch.setattr(caller_timing, "sampled", lambda calls, **how: {n: [took[n]] * 9 for n in calls})
    ticks = iter(took.values())
    clock = lambda call: next(ticks)
    found = caller_timing.why_program_runs(
        program, given, program.report, left=5.0, ended=lambda: not many, clock=clock
    )
    assert found == why
    assert program.report.program_us == 100


def test_the_figures_of_a_report_are_those_that_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = caller_timing._reason
    fast = {"caller": [3.0] * 9, "wrapped": [3.1] * 9, "program": [2.0, *[96.0] * 8]}
    assert reason(fast) is None  # never a program several times slower than the function
    fast["program"] = [2.0, *[4.0] * 8]
    assert "the fastest calls take 3.1 µs and 2.0 µs" in (reason(fast) or "")
    slow = {"caller": [0.7] * 9, "wrapped": [5.7] * 9, "program": [5.6] * 9}
    assert reason(slow) == "with its arguments checked the caller's function takes 5.7 µs"
    rounds: list[str] = []

    def more(calls: Any, **how: Any) -> dict[str, list[float]]:
        rounds.append("more")
        return {"caller": [1.0] * 9, "wrapped": [9.0] * 9, "program": [8.0] * 9}

    monkeypatch.setattr(caller_timing, "sampled", more)
    program = tg.optimize(gated, (X, Y), **{**GIVEN, "allow_caller": False})
    given, first = caller.Caller.of(gated, (X, Y), {}), {"caller": 1e5, "program": 1.2e5}
    assert given is not None
    found = caller_timing.why_program_runs(
        program, given, program.report, left=0.0, ended=lambda: False, clock=lambda call: 1.0, first=first
    )
    assert len(rounds) == 1 and program.report.program_us == 8.0 and "takes 9.0 µs" in (found or "")


@pytest.mark.parametrize(("queued", "why"), [(99.0, None), (100.0, None), (101.0, "in a row")])
def test_on_a_gpu_calls_in_a_row_must_not_be_slower(
    monkeypatch: pytest.MonkeyPatch, queued: float, why: str | None
) -> None:
    """Single calls of the caller's function take half of the program's time, calls in a row `queued` of 100."""
    program = tg.optimize(gated, (X, Y), **{**GIVEN, "allow_caller": False})
    given = replace(caller.Caller.of(gated, (X, Y), {}), device="cuda:0")  # type: ignore[type-var]
    single = {"caller": 50.0, "program": 100.0, "wrapped": 50.0}
    row = {"program": 1600.0, "wrapped": 16 * queued}
    took = lambda calls: single if "caller" in calls else row
    monkeypatch.setattr(caller_timing, "sampled", lambda calls, **how: {n: [took(calls)[n]] * 9 for n in calls})
    clock = lambda call: 50.0
    found = caller_timing.why_program_runs(program, given, program.report, left=5, ended=lambda: False, clock=clock)
    assert found == why or (why is not None and found is not None and why in found)


def test_a_gpu_without_a_number_is_the_first_one() -> None:
    on = lambda device: replace(caller.Caller.of(gated, (X, Y), {}), device=device)  # type: ignore[type-var]
    assert on("cuda:0").is_on("cuda") and on("cuda:1").is_on("cuda:1") and on("cpu").is_on("cpu")
    assert not on("cuda:1").is_on("cuda") and not on("cpu").is_on("cuda") and not on("cuda:0").is_on("cpu")


# ---------------------------------------------------------------- modules
torch = pytest.importorskip("torch", reason="modules are PyTorch's")


class Nested(torch.nn.Module):
    """Arguments in a dict and a flag, results in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 3)

    def forward(self, batch: Any, double: bool = False, *, shift: Any) -> Any:
        found = self.layer(batch["x"]) + shift
        return {"y": found * 2 if double else found, "rest": (batch["x"] - 1, None)}


@pytest.mark.usefixtures("slow_plans")
def test_modules_run_with_nested_arguments_and_other_weights() -> None:
    module, x, shift = Nested().eval(), torch.from_numpy(X.copy()), torch.ones(3)
    args = ({"x": x}, True)
    made = tg.optimize(module, args, example_kwargs={"shift": shift}, budget=20.0, effort=0, backend="torch")
    assert made.report.runs == "caller", made.report.compared
    with torch.no_grad():
        want = module(*args, shift=shift)
    for found in (made(*args, shift=shift), made(x, shift)):
        assert set(found) == {"y", "rest"} and found["rest"][1] is None and not found["y"].requires_grad
        torch.testing.assert_close(found["y"], want["y"], rtol=0, atol=0)
    arrays = made(X, np.ones(3, np.float32))
    assert isinstance(arrays["y"], np.ndarray)
    np.testing.assert_allclose(arrays["y"], want["y"], rtol=1e-5, atol=1e-6)
    made.bind({"layer.weight": np.zeros((3, 6), np.float32)})
    np.testing.assert_allclose(made(x, shift)["y"], 2 * (module.layer.bias.detach() + 1).expand(4, 3), rtol=1e-5)


@pytest.mark.usefixtures("slow_plans")
def test_calls_like_an_earlier_one_are_checked_in_c() -> None:
    torch = pytest.importorskip("torch")
    seen: list[tuple[int, ...]] = []

    def function(a: Any) -> Any:
        seen.append(tuple(a.stride()))
        return torch.relu(a) + 1

    x = torch.randn(4, 4)
    program = tg.optimize(function, (x,), budget=1, measure=False, effort=0)
    calls = caller.CallerProgram.around(program, caller.Caller.of(function, (x,), {}))  # type: ignore[arg-type]
    seen.clear()
    for given in (x, x, x.t(), x, x.t()) * 3:
        torch.testing.assert_close(calls(given), torch.relu(given) + 1)
    assert (
        len(seen) == 15 and calls._check is not None and not calls._checks
    )  # strides alternate: no more checks are made
    for other in (x.double(), x[:2], x.numpy()):
        with pytest.raises(ShapeError) if not isinstance(other, np.ndarray) else nullcontext():
            calls(other)
    assert len(seen) == 15


def test_programs_with_states_are_not_exchanged() -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(6))

        def forward(self, x: Any) -> Any:
            self.total.add_(x.sum(0))
            return x + self.total

    made = tg.optimize(Counting().eval(), (torch.from_numpy(X.copy()),), budget=20.0, effort=0, backend="torch")
    assert type(made) is Program and "states" in made.report.compared


@pytest.mark.usefixtures("slow_plans")
def test_free_sizes_reach_the_caller() -> None:
    module = torch.nn.GRU(6, 3).eval()
    made = tg.optimize(module, (torch.randn(5, 2, 6),), dynamic_shapes=({0: "steps"},), budget=20.0, effort=0)
    assert made.report.runs == "caller", made.report.compared
    x = torch.randn(9, 2, 6)
    with torch.no_grad():
        torch.testing.assert_close(made(x), tuple(module(x)), rtol=0, atol=0)
