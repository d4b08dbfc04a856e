"""Briefs of wanted kernels, proposals of a command, and the commands `tensor-graphs kernels`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends import registry
from tensor_graphs.backends.admission import checks
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.cli.app import run
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.types.dims import concrete
from tensor_graphs.errors import UsageError
from tensor_graphs.extract.model.plan import Plan
from tensor_graphs.extract.model.pricing import Priced
from tensor_graphs.kernels import proposals
from tensor_graphs.kernels.briefs import Brief, numpy_source, write_briefs
from tensor_graphs.kernels.proposals import Proposal, propose
from tensor_graphs.kernels.regions import reason_without_regions, regions_of
from tensor_graphs.kernels.wanted import wanted
from tensor_graphs.pipeline.stages import time_program

KERNEL = """
import numpy as np

import tensor_graphs as tg


@tg.kernel("numpy", reference=lambda x: tg.cumsum(tg.softmax(x, axis=-1), axis=-1) * 2.0, inputs={"x": "float32[M, N]"})
def nucleus(x, out):
    with np.errstate(all="ignore"):
        np.subtract(x, x.max(1, keepdims=True), out=out)
        np.exp(out, out=out)
        total = out.sum(1, keepdims=True, dtype=np.float64)
        out[...] = 2.0 * (np.cumsum(out.astype(np.float64), axis=1) / total)
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "costs")


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    registry.drop_kernels()


def priced(terms: list[Any], us: Callable[[str], float]) -> Plan:
    """The unfused NumPy plan of terms at invented prices, by kernel name."""
    plan = direct_plan(Graph.of(terms), [registry.backend("numpy")])
    steps = [replace(s, cost=Priced(us(s.template.name), 0.0, 0.0, "measured")) for s in plan.steps]
    return replace(plan, steps=tuple(steps))


def nucleus_region(store: Store) -> Brief:
    x = tg.input("logits", (16, 5000))
    plan = priced([tg.cumsum(tg.softmax(x, axis=-1), axis=-1) * 2.0], lambda name: 100.0)
    (region,) = regions_of(plan, store, 5)
    return Brief(1, "sampler", region)


def test_a_region_is_a_chain_of_calls_that_share_traffic(store: Store) -> None:
    region = nucleus_region(store).region
    assert region.pattern == "mul(cumsum(softmax(x0, axis=1), axis=1), 2.0)"
    assert [n for n, _ in region.operands] == ["x0"]
    assert (region.us, region.count, region.share) == (300.0, 1, 1.0)
    assert 0 < region.limit_us < 100
    assert region.bytes == 2 * 4 * 16 * 5000


def test_equal_regions_are_counted_and_the_largest_gap_comes_first(store: Store) -> None:
    x, y = tg.input("x", (16, 5000)), tg.input("y", (16, 5000))
    terms = [tg.tanh(x), tg.tanh(y), tg.exp(x + y)]
    plan = priced(terms, lambda name: 500.0 if "exp" in name else 300.0 if "tanh" in name else 0.001)
    first, second = regions_of(plan, store, 2)
    assert (first.pattern, first.count) == ("tanh(x0)", 2)
    assert first.gap_us == pytest.approx(2 * (300 - first.limit_us))
    assert "exp" in second.pattern
    assert regions_of(plan, store, 1) == [first] or len(regions_of(plan, store, 1)) == 1


def test_a_brief_has_a_reference_that_runs(store: Store, tmp_path: Path) -> None:
    brief = nucleus_region(store)
    space: dict[str, Any] = {}
    exec(numpy_source(brief.region), space)
    x = np.random.default_rng(0).standard_normal((16, 5000), dtype=np.float32)
    (got,) = space["bind"]({})(x)
    (want,) = evaluate(list(brief.region.terms), {"x0": x}, float64=True)
    assert np.allclose(got, want, rtol=1e-4)
    text = brief.markdown()
    for part in (
        "roofline limit",
        "[16, 5000]",
        "np.softmax",
        "How to submit",
        "executed as code",
        "float32[16, 5000]",
    ):
        assert part in text
    assert write_briefs(tmp_path, [brief]) == [str(tmp_path / "brief-1.md"), str(tmp_path / "brief-1.json")]
    facts = json.loads((tmp_path / "brief-1.json").read_text())
    assert facts["inputs"][0]["strides"] == [5000, 1]
    assert facts["limit_us"] < facts["us"]
    assert concrete(brief.region.results[0].type.shape) == (16, 5000)


def test_the_reference_of_a_brief_states_no_estimate(store: Store) -> None:
    assert "estimated" not in numpy_source(nucleus_region(store).region)


def test_a_graph_that_runs_as_written_counts_at_stored_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_program.timing, "is_surely_faster", lambda *samples: True)
    x = tg.input("x", (16, 3000))
    (brief,) = wanted(tg.cumsum(tg.tanh(x), axis=-1), count=1, backend="numpy", budget=60, costdb=tmp_path)
    assert 0 < brief.region.limit_us < brief.region.us
    assert repr(brief).startswith("Brief 1 of graph: ")


def test_an_empty_result_says_why(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = tg.input("x", (16, 3000))
    found = wanted(tg.reshape(x, (-1,)), backend="numpy", budget=1, costdb=tmp_path)
    assert (list(found), repr(found)) == ([], f"[] ({found.why})")
    assert "the plan calls no kernels" in found._repr_html_()
    at_limit = priced([tg.tanh(x)], lambda name: 0.001)
    assert reason_without_regions(at_limit, store).startswith(
        "no kernel is slower than its limit: 1 kernel call, 0.0 µs, limits "
    )
    unmeasured = replace(at_limit, steps=tuple(replace(s, cost=Priced(1, 1, 30, "bound")) for s in at_limit.steps))
    assert "give a larger budget" in reason_without_regions(unmeasured, store)
    with pytest.raises(UsageError, match="at least 1"):
        wanted(tg.tanh(x), count=0)
    tg.save_graph(Graph.of([tg.reshape(x, (-1,))]), tmp_path / "view.safetensors")
    assert run(["kernels", "wanted", str(tmp_path / "view.safetensors"), "--backend", "numpy", "--budget", "1"]) == 0
    assert "calls no kernels" in capsys.readouterr().out


def command(*code: str) -> str:
    """A command that runs Python code."""
    return shlex.join([sys.executable, "-c", "; ".join(code)])


@pytest.fixture
def proposed(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Proposal]:
    """Runs a command for one brief; user kernels take 10 µs, others 100."""

    @contextmanager
    def measuring(brief: Brief) -> Iterator[proposals.Measure]:
        yield lambda template, call: 10.0 if template.name.startswith("user.") else 100.0

    monkeypatch.setattr(proposals, "_measuring", measuring)
    monkeypatch.setattr(checks, "CASES", 3)
    brief = nucleus_region(store)
    return lambda text, seconds=120.0: propose([brief], text, tmp_path, seconds=seconds)[0]


def test_a_good_proposal_is_accepted_with_its_gain(proposed: Callable[..., Proposal]) -> None:
    fenced = f"Here it is:\n```python\n{KERNEL}```\n"
    found = proposed(command("import sys", "assert 'Kernel wanted' in sys.stdin.read()", f"print({fenced!r})"))
    assert (found.status, found.kernel) == ("accepted", "user.nucleus"), found
    assert (found.today_us, found.proposal_us, found.gain_us) == (300.0, 10.0, 290.0)
    assert Path(found.file).read_text().lstrip().startswith("import numpy")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (["import sys", "sys.exit(3)"], "ended with code 3"),
        (["pass"], "printed nothing"),
        (["import subprocess, time", "subprocess.Popen(['sleep', '2345'])", "time.sleep(60)"], "took longer than 1 s"),
        (["while True: print('x' * 100_000)"], "printed more than"),
        ([f"print({KERNEL.replace('2.0 *', '2.1 *')!r})"], "wrong"),
        (
            [f"print({KERNEL.replace(') * 2.0,', ') * 3.0,').replace('2.0 *', '3.0 *')!r})"],
            "no kernel of the file computes",
        ),
        (["print('import os; os._exit(1)')"], "crash"),
    ],
)
def test_bad_proposals_are_refused_with_reasons(
    code: list[str], message: str, proposed: Callable[..., Proposal]
) -> None:  # fmt: skip
    found = proposed(command(*code), 1.0 if "sleep" in str(code) else 120.0)
    assert found.status == "refused"
    assert message in found.reason
    assert found.gain_us == 0


def test_a_command_that_does_not_exist_is_named(proposed: Callable[..., Proposal]) -> None:
    assert "cannot be started" in proposed("/no/such/program").reason
    with pytest.raises(UsageError, match="empty command"):
        proposed("  ")


def test_the_commands_answer_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.py"
    path.write_text(KERNEL)

    def answered(*words: str) -> tuple[int, dict[str, Any]]:
        code = run(["kernels", *words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    code, found = answered("list", str(path))
    assert (code, found["kernels"][0]["name"]) == (0, "user.nucleus")
    code, found = answered("check", str(path))
    assert (code, found["kernels"][0]["status"]) == (0, "admitted")
    path.write_text(KERNEL.replace("2.0 *", "2.1 *"))
    code, found = answered("check", str(path))
    assert (code, found["error"]["code"], found["kernels"][0]["status"]) == (5, "kernel-refused", "wrong")
    code, found = answered("check", str(tmp_path / "none.py"))
    assert (code, found["error"]["code"]) == (2, "kernel")
    code, found = answered("list")
    assert any(k["name"] == "np.softmax" for k in found["kernels"])


def test_wanted_measures_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = tg.input("logits", (4, 3000))
    tg.save_graph(Graph.of([tg.cumsum(tg.tanh(x), axis=-1)]), tmp_path / "model.safetensors")
    words = ["kernels", "wanted", str(tmp_path / "model.safetensors"), "--backend", "numpy", "--budget", "3", "--json"]
    assert run([*words, "-o", str(tmp_path / "briefs")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["briefs"]
    assert (tmp_path / "briefs" / "brief-1.md").is_file()
    assert run([*words, "--propose", "cat"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["hint"] == "-o DIR"
