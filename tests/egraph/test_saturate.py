"""Saturation: what it finds is sound, complete where it must be, within its limits, and the same every time."""

from __future__ import annotations

import json
import multiprocessing.spawn
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.patterns.rule import Rule
from tensor_graphs.egraph.saturate import bindings, engine_bounds, saturate
from tensor_graphs.egraph.saturate.engine_bounds import Bounds, Deadline, MemoryLimit, Stopped
from tensor_graphs.egraph.saturate.language import RUN
from tensor_graphs.egraph.saturate.saturate import Limits, saturate_block, saturate_blocks
from tensor_graphs.egraph.saturate.sessions import InProcess, OneSession
from tensor_graphs.egraph.saturate.term_cost import Roofline, node_prices
from tensor_graphs.egraph.saturate.worker import Pool, SaturationWorker
from tensor_graphs.egraph.view.view import EGraphView, view_of
from tensor_graphs.errors import RuleError, UsageError, WorkerError

from ..examples import examples
from ..fuzz.strategies import data, graphs
from ..only_in import only_in
from .best_terms import best_terms
from .plans import dag_cost

_LAST = "axis=rank(x) - 1"
_WIDE = "matmul(x, concat(a, b, axis=1))"
RULES = (
    Rule("add-commutes", "x + y", "y + x", exact=True),
    Rule("add-associates", "(x + y) + z", "x + (y + z)", both=True),
    Rule("mul-commutes", "x * y", "y * x", exact=True),
    Rule("mul-one", "x * 1.0", "x", exact=True),
    Rule("double", "x + x", "x * lit(2.0, x)", exact=True),
    Rule("distribute", "x * (y + z)", "x * y + x * z", both=True),
    Rule("sub-as-add", "x - y", "x + neg(y)", both=True, exact=True),
    Rule("neg-neg", "neg(neg(x))", "x", exact=True),
    Rule("relu", "maximum(x, 0.0)", "relu(x)", exact=True),
    Rule("permutes", "permute(permute(x, perm=p), perm=q)", "permute(x, perm=compose(p, q))", exact=True),
    Rule("permute-nothing", "permute(x, perm=p)", "x", when=("p == identity(rank(x))",), exact=True),
    Rule("reshapes", "reshape(reshape(x, shape=s), shape=u)", "reshape(x, shape=u)", exact=True),
    Rule("slices", "slice(slice(x, axis=i, start=a, stop=b), axis=i, start=d, stop=e)",
         "slice(x, axis=i, start=a + d, stop=a + e)", exact=True),
    Rule("slice-concat", "slice(concat(x, y, axis=i), axis=i, start=0, stop=b)", "slice(x, axis=i, start=0, stop=b)",
         when=("b <= size(x, i)",), exact=True),
    Rule("flips", "flip(flip(x, axis=i), axis=i)", "x", exact=True),
    Rule("matmul-associates", "(x @ y) @ z", "x @ (y @ z)", both=True, when=("rank(y) == rank(z)",)),
    Rule("matmul-sum", "x @ y + x @ z", "x @ (y + z)", when=("shape(y) == shape(z)",)),
    Rule("merge", ("x @ a", "x @ b"),
         (f"slice({_WIDE}, {_LAST}, start=0, stop=size(a, 1))",
          f"slice({_WIDE}, {_LAST}, start=size(a, 1), stop=size(a, 1) + size(b, 1))"),
         when=("ordered(a, b)", "rank(a) == 2", "rank(b) == 2"), keep=True),
)  # fmt: skip
GROWING = tuple(r for r in RULES if r.name in ("add-commutes", "add-associates", "distribute", "mul-commutes"))


def qkv(outputs: bool = True) -> Graph:
    """Three products that share an operand."""
    x = t.input("x", (4, 512))
    found = [t.tanh(x @ t.param(f"w{i}", (512, 256))) for i in range(3)]
    return Graph.of(found if outputs else found[0] + found[1] + found[2])


def long_sum(n: int, name: str = "x") -> Graph:
    """A sum whose orders are exponentially many."""
    total = t.input(f"{name}0", (2, 2))
    for i in range(1, n):
        total = total + t.input(f"{name}{i}", (2, 2)) * t.input("scale", (2, 2))
    return Graph.of(total)


def everything(view: EGraphView) -> list[Any]:
    """A view as plain data."""
    return [view.op, view.attrs, view.cls.tolist(), view.off.tolist(), view.child.tolist(), list(map(str, view.types)),
            view.weight.tolist(), view.roots, view.report.matches, view.report.sizes, view.report.stopped]  # fmt: skip


def assert_sound(graph: Graph, view: EGraphView) -> None:
    """Every e-node of every class has the class's value, in float64, and the class's type."""
    choice = view.cheapest([1.0] * len(view))[1]
    known = [k for k in range(view.n_classes) if choice[k] >= 0]
    terms = dict(zip(known, view.terms(choice, known)))
    forms: list[tuple[int, Tensor]] = []
    for i in range(len(view)):
        children = view.children(i).tolist()
        if all(k in terms for k in children):
            forms.append((int(view.cls[i]), view.node_tensor(i, [terms[k] for k in children])))
    originals = {cls: node for node, cls in view.classes.items()}
    references = [originals.get(cls, terms[cls]) for cls, _ in forms]
    values, params = data(graph)
    with np.errstate(all="ignore"):
        found = evaluate([*references, *(f for _, f in forms)], values, params=params, float64=True)
    for (cls, form), a, b in zip(forms, found, found[len(forms) :]):
        assert form.type == view.types[cls]
        np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-9, err_msg=repr(form))


@settings(deadline=None, max_examples=examples(25))
@given(graphs())
def test_every_form_of_every_class_is_equal(graph: Graph) -> None:
    assert_sound(graph, saturate_block(graph, RULES, Limits(iterations=4, nodes=2000), session=InProcess()))


def test_transformer_pieces_are_sound_and_merged() -> None:
    graph = qkv()
    view = saturate_block(graph, RULES, session=InProcess())
    assert_sound(graph, view)
    wide = {view.types[int(view.cls[i])].shape[-1] for i in range(len(view)) if view.op[i] == "matmul"}
    assert wide == {256, 512, 768}  # pairs and all three: chains, not only pairs
    assert view.report.stopped == "saturated" and view.report.extractable


def test_merged_chains_are_at_most_two_to_the_k() -> None:
    x = t.input("x", (4, 8))
    for k in (2, 3, 5):
        graph = Graph.of([x @ t.param(f"w{i}", (8, 8)) for i in range(k)])
        view = saturate_block(
            graph, [r for r in RULES if r.name in ("merge", "slices")], session=InProcess(), guard=False
        )
        assert view.report.stopped == "saturated"
        assert sum(op == "matmul" for op in view.op) == 2**k - 1


def test_exact_loads_exact_rules_only() -> None:
    view = saturate_block(qkv(), RULES, session=InProcess(), exact=True)
    assert set(view.report.matches) == {d.name for r in RULES if r.exact for d in r.directions} & set(
        view.report.matches
    )
    assert "concat" not in view.op


# ---------------------------------------------------------------- limits
def test_limits_are_kept_and_named() -> None:
    graph = long_sum(8)

    def run(**k: Any) -> EGraphView:
        return saturate_block(graph, GROWING, Limits(**k), session=InProcess(), guard=False)

    few = run(iterations=2)
    assert (few.report.stopped, few.report.iterations, len(few.report.sizes)) == ("iterations", 2, 3)
    small = run(nodes=300, iterations=20)
    assert small.report.stopped == "nodes" and len(small) <= 300 < small.report.sizes[-1]
    none = run(iterations=0)
    assert len(none) == len(graph.nodes()) and none.report.stopped == "iterations"
    assert run(seconds=0).report.stopped == "seconds"


@pytest.mark.parametrize("limits", [{"nodes": -1}, {"seconds": float("nan")}, {"beam": -2}])
def test_senseless_limits(limits: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Limits(**limits)
    with pytest.raises(UsageError):
        saturate_block(qkv(), RULES, slack=-1, session=InProcess())


def test_the_report_counts_matches_and_time() -> None:
    report = saturate_block(qkv(False), RULES, session=InProcess()).report
    assert (
        report.matches["add-commutes"] >= 2 and report.matches["add-associates"] >= 1 and "flips" not in report.matches
    )
    assert report.matches.keys() >= report.rule_seconds.keys()
    assert 0 < sum(report.rule_seconds.values()) < report.seconds


# ---------------------------------------------------------------- pruning
def exact_cost(view: EGraphView) -> float:
    """The least cost of any plan: exhaustive search over the classes reached, cheapest first (small views only)."""
    price = node_prices(view, Roofline())
    fixed = view.weight.tolist()
    best = [float("inf")]
    bound = view.cheapest(price)[1]
    best[0] = dag_cost(view, price, bound)

    def search(todo: tuple[int, ...], chosen: dict[int, int], cost: float) -> None:
        todo = tuple(k for k in todo if k not in chosen and not fixed[k])
        if cost >= best[0]:
            return
        if not todo:
            if _acyclic(view, chosen):
                best[0] = cost
            return
        for i in sorted(view.nodes_of(todo[0]).tolist(), key=lambda i: (price[i], i)):
            search((*todo[1:], *view.children(i).tolist()), {**chosen, todo[0]: i}, cost + price[i])

    search(view.roots, {}, 0.0)
    return best[0]


def _acyclic(view: EGraphView, chosen: dict[int, int]) -> bool:
    state: dict[int, int] = {}

    def visit(k: int) -> bool:
        if k not in chosen or state.get(k) == 2:
            return True
        if state.get(k) == 1:
            return False
        state[k] = 1
        fine = all(visit(j) for j in view.children(chosen[k]).tolist())
        state[k] = 2
        return fine

    return all(visit(r) for r in view.roots)


SAMPLES = {"sum": long_sum(4), "qkv": qkv(), "joined": qkv(False),
           "factor": Graph.of(t.input("x", (8, 8)) * t.input("y", (8, 8)) + t.input("x", (8, 8)) * t.input("z", (8, 8)))}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("knob", ["iterations", "beam", "slack"])
def test_more_search_never_gives_a_dearer_plan(name: str, knob: str) -> None:
    steps: dict[str, list[dict[str, Any]]] = {
        "iterations": [{"limits": Limits(iterations=i)} for i in (1, 2, 4, 8)],
        "beam": [{"limits": Limits(iterations=5, beam=k)} for k in (1, 2, 4, 16)],
        "slack": [{"slack": s} for s in (0, 1500, 6000, 50_000)],
    }
    costs = [exact_cost(saturate_block(SAMPLES[name], RULES, session=InProcess(), **s)) for s in steps[knob]]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] <= exact_cost(view_of(SAMPLES[name]))


@pytest.mark.parametrize("options", [{"slack": 0}, {"limits": Limits(beam=1)}, {"slack": 0, "limits": Limits(beam=1)}])
@settings(deadline=None, max_examples=examples(15))
@given(graph=graphs())
def test_pruning_never_loses_the_graph(graph: Graph, options: dict[str, Any]) -> None:
    limits = options.get("limits", Limits(iterations=4))
    view = saturate_block(graph, RULES, limits, slack=options.get("slack"), session=InProcess())
    assert view.report.extractable
    held = {(view.op[i], view.attrs[i], int(view.cls[i]), *view.children(i).tolist()) for i in range(len(view))}
    for node in graph.nodes():
        row = (node.op, node.attrs, view.classes[node], *(view.classes[a] for a in node.args))
        assert row in held


def test_pruning_drops_dominated_forms_but_not_kept_ones() -> None:
    free = saturate_block(qkv(), RULES, session=InProcess(), guard=False)
    tight = saturate_block(qkv(), RULES, session=InProcess(), slack=0)
    assert len(tight) < len(free)
    kept = [i for i in range(len(tight)) if tight.op[i] == "matmul" and tight.types[int(tight.cls[i])].shape[-1] == 768]
    assert kept  # made by a keep rule, dearer than one product alone


def test_a_beam_bounds_what_rules_can_match() -> None:
    graph = long_sum(7)
    wide = saturate_block(graph, GROWING, Limits(iterations=6), session=InProcess(), guard=False)
    narrow = saturate_block(graph, GROWING, Limits(iterations=6, beam=1), session=InProcess(), guard=False)
    assert narrow.report.sizes[-1] < wide.report.sizes[-1] / 2
    assert_sound(graph, narrow)


# ---------------------------------------------------------------- worker
@pytest.fixture
def worker() -> Iterator[SaturationWorker]:
    found = SaturationWorker()
    yield found
    found.kill()


def test_a_worker_finds_what_this_process_finds(worker: SaturationWorker) -> None:
    for graph in (qkv(), long_sum(5), qkv(False)):  # one after the other in one process
        here = saturate_block(graph, RULES, Limits(iterations=5), session=InProcess())
        there = saturate_block(graph, RULES, Limits(iterations=5), session=worker)
        assert everything(here) == everything(there)


def test_the_deadline_holds_inside_a_round(worker: SaturationWorker) -> None:
    limits = Limits(iterations=50, nodes=10**9, seconds=1.0, bytes=4 << 30)
    begin = time.perf_counter()
    view = saturate_block(long_sum(30), GROWING, limits, session=worker, guard=False)
    assert view.report.stopped == "seconds" and view.extractable()
    assert view.report.iterations < 50 and time.perf_counter() - begin < 60
    again = saturate_block(qkv(), RULES, session=worker)  # a killed worker starts again
    assert again.report.stopped == "saturated"


def test_the_memory_limit_holds(worker: SaturationWorker) -> None:
    limits = Limits(iterations=50, nodes=10**9, seconds=600.0, bytes=150 << 20)
    view = saturate_block(long_sum(30), GROWING, limits, session=worker, guard=False)
    assert view.report.stopped == "bytes" and view.extractable()


def test_a_worker_that_dies_leaves_the_last_good_view(worker: SaturationWorker) -> None:
    class Dying:
        def __init__(self) -> None:
            self.calls = 0

        def prepare(self) -> None:
            worker.prepare()

        def request(self, method: str, payload: Any, bounds: Bounds) -> Any:
            self.calls += method == "step"
            if self.calls == 3:
                assert worker.process is not None
                worker.process.kill()
            return worker.request(method, payload, bounds)

    view = saturate_block(long_sum(6), GROWING, session=Dying(), guard=False)
    assert (view.report.stopped, view.report.iterations, view.report.kept) == ("worker-died", 2, 2)
    assert "exit code -9" in view.report.message and len(view) == view.report.sizes[-1]


def test_a_worker_that_answers_nonsense(
    worker: SaturationWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talks = "import sys; print('hello there', flush=True); sys.stdin.read()"
    # as multiprocessing.set_executable does, which programs that embed Python call
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", os.fsencode(_script(talks, tmp_path)))
    with pytest.raises(WorkerError, match="nonsense"):
        worker.prepare()
    fails = "import sys; print('no such module', file=sys.stderr); sys.exit(3)"
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", os.fsencode(_script(fails, tmp_path)))
    with pytest.raises(WorkerError, match="no such module"):
        worker.prepare()
    for none in (None, b"/no/python"):
        monkeypatch.setattr(multiprocessing.spawn, "_python_exe", none)
        with pytest.raises(WorkerError, match="is no Python interpreter"):
            worker.prepare()


PYTHON = sys.executable


def _script(code: str, folder: Path) -> str:
    """A program that stands in for Python."""
    path = folder / "python.sh"
    path.write_text(f"#!/bin/sh\nexec {shlex.quote(PYTHON)} -c {shlex.quote(code)}\n")
    path.chmod(0o755)
    return str(path)


def test_an_unsound_rule_is_named_an_error_and_the_worker_lives(worker: SaturationWorker) -> None:
    wrong = Rule("wrong", "tanh(x)", "sum(x, axes=(0,))")
    with pytest.raises(RuleError, match="unsound"):
        saturate_block(Graph.of(t.tanh(t.input("x", (2, 3)))), [wrong], session=worker)
    assert saturate_block(qkv(), RULES, session=worker).report.stopped == "saturated"


def test_stop_ends_a_round_at_once(worker: SaturationWorker) -> None:
    pressed = threading.Event()
    threading.Timer(0.7, pressed.set).start()
    limits = Limits(iterations=50, nodes=10**9, seconds=100.0)
    view = saturate_block(long_sum(30), GROWING, limits, session=worker, guard=False, stop=pressed.is_set)
    assert view.report.stopped == "interrupted" and view.extractable()


def test_bounds_of_a_request(worker: SaturationWorker) -> None:
    worker.prepare()
    process = worker.process
    assert process is not None
    with pytest.raises(Deadline):
        worker.request("live", None, Bounds(0.0, 0))
    assert process.poll() is not None  # it was killed
    with pytest.raises(WorkerError, match="not running"):
        worker.request("live", None, Bounds(5.0, 0))
    worker.prepare()
    with pytest.raises(Stopped):
        worker.request("live", None, Bounds(60.0, 0, lambda: True))
    worker.prepare()
    with pytest.raises(MemoryLimit):
        while True:
            worker.request("declare", {"key": str(time.perf_counter()), "signatures": {}, "needs": {}, "ops": {}, "uses": {}, "rules": {}, "pruned": 0, "beam": 0,
                                       "commands": ["(sort T)"] * 1}, Bounds(60.0, 1))  # fmt: skip


def test_a_worker_dies_with_its_parent() -> None:
    code = ("from tensor_graphs.egraph.saturate.worker import SaturationWorker\nw = SaturationWorker(); w.prepare()\n"
            "print(w.process.pid, flush=True)\nimport os; os.kill(os.getpid(), 9)")  # fmt: skip
    pid = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
    until = time.monotonic() + 60
    while _alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not _alive(pid), "the worker outlived its parent"


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs files in memory")
def test_a_killed_worker_leaves_nothing_behind(
    worker: SaturationWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert saturate_block(qkv(), RULES, session=worker).report.stopped == "saturated"
    assert worker.process is not None
    worker.process.kill()
    worker.process.wait()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("in_memory", [True, False])
def test_tables_are_read_and_then_gone(in_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    with bindings.readable("1\t2\n") as path:
        assert Path(path).read_text() == "1\t2\n" and bool(list(tmp_path.iterdir())) is not in_memory
    assert not Path(path).exists() and not list(tmp_path.iterdir())
    view = saturate_block(qkv(), RULES, session=InProcess())
    assert view.report.stopped == "saturated" and not list(tmp_path.iterdir())


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


UNGUARDED = """
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.patterns.rule import Rule
from tensor_graphs.egraph.saturate.saturate import saturate_blocks
x, y = t.input("x", (2, 3)), t.input("y", (2, 3))
views = saturate_blocks([Graph.of(x + y), Graph.of(y * x)], [Rule("c", "x + y", "y + x")])
print([len(v) for v in views], [v.report.stopped for v in views])
"""


@pytest.mark.parametrize("how", ["script", "stdin"])
def test_works_without_a_main_guard(how: str, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('imported from the folder of the user')")
    file = tmp_path / "unguarded.py"
    file.write_text(UNGUARDED)
    command = [sys.executable, "-P", str(file)] if how == "script" else [sys.executable, "-P", "-"]
    done = subprocess.run(command, input=UNGUARDED, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.stdout.strip() == "[4, 3] ['saturated', 'saturated']", done.stderr


# ---------------------------------------------------------------- several blocks
def test_a_pool_keeps_order_and_is_deterministic() -> None:
    graphs = [qkv(), long_sum(5), qkv(False), long_sum(4, "y"), Graph.of(c.softmax(t.input("x", (3, 4)), axis=1))]
    pool = Pool(2)
    try:
        runs = [saturate_blocks(graphs, RULES, Limits(iterations=4, beam=b), pool=pool) for b in (0, 0, 3, 3)]
    finally:
        pool.close()
    for first, second in ((0, 1), (2, 3)):
        assert [everything(v) for v in runs[first]] == [everything(v) for v in runs[second]]
    for graph, view in zip(graphs, runs[0]):
        assert [view.classes[r] for r in graph.roots] == list(view.roots)


def test_views_do_not_depend_on_hash_seeds() -> None:
    code = (f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\nimport json\n"
            "from tests.egraph.test_saturate import *\n"
            "v = [saturate_block(g, RULES, Limits(iterations=4, beam=b), session=InProcess()) for g in SAMPLES.values() "
            "for b in (0, 2)]\n"
            "print(json.dumps([everything(x)[:8] for x in v], default=str))")  # fmt: skip
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                       env={"PYTHONHASHSEED": seed, "PATH": ""}).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert len(json.loads(runs[0])) == 2 * len(SAMPLES) and runs[0] == runs[1]


def test_a_worker_that_starts_late_has_what_is_left_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of seconds of a block leaves its start out."""
    clock, asked = [100.0], []

    class Late(InProcess):
        def prepare(self) -> None:
            super().prepare()
            clock[0] += 7.0

        def request(self, method: str, payload: Any, bounds: Bounds) -> Any:
            asked.append((method, bounds.seconds))
            return super().request(method, payload, bounds)

    only_in(monkeypatch, saturate, "time", perf_counter=lambda: clock[0])
    blocks, limits = [Graph.of(t.input("x", (2, 3)) * 1.0)], Limits(seconds=5.0)
    for deadline, left in ((20.0, 5.0), (9.0, 2.0), (6.0, None)):
        asked.clear()
        (view,) = saturate_blocks(blocks, RULES, limits, pool=OneSession(Late()), deadline=deadline)
        assert {s for method, s in asked if method != "declare"} == ({left} if left else set())
        assert (view.report.stopped == "seconds") == (left is None)


def test_a_deadline_for_all_blocks_leaves_the_rest_as_they_are() -> None:
    graphs = [long_sum(4), qkv()]
    views = saturate_blocks(graphs, RULES, pool=Pool(1), deadline=0.0)
    assert [v.report.stopped for v in views] == ["seconds", "seconds"]
    assert [len(v) for v in views] == [len(g.nodes()) for g in graphs]


@pytest.mark.parametrize("when", ["start", "step", "ready"])
def test_an_unread_reply_answers_no_other_request(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between a request and its reply, and between a start and its report: the process gets no further
    request."""
    graph, pool, receive = long_sum(4), Pool(1), SaturationWorker._receive
    asked: list[str] = []

    def pressed(self: SaturationWorker, bounds: Bounds) -> Any:
        asked.append("ready" if self.starting else "step" if "start" in asked else "start")
        if asked.count(when) == 1 and asked[-1] == when:
            raise KeyboardInterrupt
        return receive(self, bounds)

    monkeypatch.setattr(SaturationWorker, "_receive", pressed)
    try:
        assert saturate_blocks([graph], RULES, pool=pool)[0].report.stopped == "interrupted"
        monkeypatch.undo()
        began = time.monotonic()
        (found,) = saturate_blocks([graph], RULES, pool=pool)
        assert found.report.stopped != "interrupted" and len(found) > 2 and time.monotonic() - began < 120
    finally:
        pool.close()


def test_an_interrupt_keeps_what_was_found_and_stops_the_other_blocks() -> None:
    class Pressed(InProcess):
        steps = 0

        def request(self, method: str, payload: Any, bounds: Bounds) -> Any:
            self.steps += method == "step"
            if self.steps == 3:
                raise KeyboardInterrupt
            return super().request(method, payload, bounds)

    class One:
        size = 1

        def session(self) -> AbstractContextManager[InProcess]:
            return nullcontext(session)

    session = Pressed()
    first, second = saturate_blocks([long_sum(6), qkv()], GROWING, pool=One(), guard=False)
    assert (first.report.stopped, first.report.kept) == ("interrupted", 2) and len(first) > len(long_sum(6).nodes())
    assert second.report.stopped == "interrupted" and len(second) == len(qkv().nodes())


def test_empty_values_are_left_alone() -> None:
    graph = Graph.of(t.input("x", (0, 3)) + t.input("y", (1, 3)))
    view = saturate_block(graph, RULES, session=InProcess())
    assert best_terms(view) == list(graph.roots) and "empty" in view.report.message


def test_composites_are_united_with_their_parts_unless_exact() -> None:
    graph = Graph.of(c.softmax(t.input("x", (3, 4)), axis=1) * c.gelu(t.input("y", (3, 4))))
    view = saturate_block(graph, (), Limits(iterations=1), session=InProcess())
    softmax = view.classes[graph.roots[0].args[0]]
    assert sorted(view.op[i] for i in view.nodes_of(softmax).tolist()) == ["div", "softmax"]
    assert "erf" not in view.op  # activations stay whole
    assert_sound(graph, view)
    assert "div" not in saturate_block(graph, (), Limits(iterations=1), session=InProcess(), exact=True).op


# ---------------------------------------------------------------- rules that cannot match are not run
class _Ungated(InProcess):
    """Runs every rule in every round."""

    def request(self, method: str, payload: Any, bounds: Bounds) -> Any:
        assert self.engine is not None
        self.engine.shapes = None
        return super().request(method, payload, bounds)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(graph=graphs())
def test_leaving_out_rules_that_cannot_match_changes_nothing(graph: Graph) -> None:
    limits = Limits(nodes=600, iterations=4, seconds=300)
    found = [saturate_block(graph, RULES, limits, session=s()) for s in (InProcess, _Ungated)]
    assert found[0].report.sizes == found[1].report.sizes
    assert {k: n for k, n in found[0].report.matches.items() if n} == {
        k: n for k, n in found[1].report.matches.items() if n
    }
    assert sorted(found[0].op) == sorted(found[1].op)


def test_a_rule_whose_ops_come_up_later_sees_everything() -> None:
    rules = (Rule("sub-as-add", "x - y", "x + neg(y)"), Rule("add-neg-neg", "x + neg(neg(y))", "x + y"))
    x, y = t.input("x", (3, 4)), t.input("y", (3, 4))
    view = saturate_block(Graph.of(x - t.neg(y)), rules, Limits(seconds=300), session=InProcess(), guard=False)
    sums = [i for i in view.nodes_of(view.roots[0]).tolist() if view.op[i] == "add"]
    assert view.report.matches == {"sub-as-add": 1, "add-neg-neg": 1}
    assert [view.classes[x], view.classes[y]] in [view.children(i).tolist() for i in sums]


def test_rules_and_ops_are_declared_when_they_come_up_and_stay_for_later_blocks() -> None:
    """An op comes up in a graph or in a declared rule. After a rule that egglog refuses, the e-graph is made anew."""
    rules = (Rule("sub-as-add", "x - y", "x + neg(y)"), Rule("add-neg-neg", "x + neg(neg(y))", "x + y"),
             Rule("neg-tanh", "neg(x) - (y + z)", "tanh(x - (y + z))"))  # fmt: skip
    x, y = t.input("x", (3, 4)), t.input("y", (3, 4))
    limits, session = Limits(seconds=300), InProcess()
    ops = {"o_sub", "o_add", "o_neg"}
    once = saturate_block(Graph.of(x - y), rules, limits, session=session, guard=False)
    assert session.engine is not None and session.engine.declared == {"r_0", *ops} and session.engine.kept == {"o_sub"}
    graph = Graph.of(x - t.neg(y))
    found = [saturate_block(graph, rules, limits, session=s, guard=False) for s in (session, session, InProcess())]
    assert session.engine.declared == session.engine.kept == {"r_0", "r_1", *ops}
    assert once.report.matches == {"sub-as-add": 1, "add-neg-neg": 0, "neg-tanh": 0}
    assert len({(tuple(v.op), tuple(v.report.matches.items()), v.report.sizes) for v in found}) == 1
    session.engine.texts["r_1"] = ["(rule ((= e (no_such_op e))) () :ruleset r_1)"]
    for _ in range(2):
        session.engine.declared.discard("r_1")
        with pytest.raises(engine_bounds.EngineError):
            session.engine.use(["r_1"])
        assert session.engine.key == "" and "r_1" not in session.engine.declared  # declared anew by the next block


@pytest.mark.parametrize("count", [3, 6, 12])
def test_merges_of_many_weights_grow_linearly(count: int) -> None:
    from tensor_graphs.rules import ALL

    merging = [r for r in ALL if r.name in ("merge-matmuls", "slice-slice")]
    x = t.input("x", (8, 16))
    graph = Graph.of([t.exp(x @ t.param(f"w{i}", (16, 4))) for i in range(count)])
    view = saturate_block(graph, merging, Limits(iterations=count + 2, seconds=300), session=InProcess())
    widths = Counter(view.types[int(view.cls[i])].shape[1] // 4 for i in range(len(view)) if view.op[i] == "matmul")
    assert widths == {n: count + 1 - n if n <= RUN else 1 for n in range(1, count + 1)}  # runs up to 4, then prefixes
