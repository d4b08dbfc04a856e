"""The viewer's data and pages, and what-if questions."""

from __future__ import annotations

import gzip
import json
import math
import re
import shutil
import subprocess
import zlib
from base64 import b64decode, b64encode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks.pages.browser import Browser, chromium

import tensor_graphs as tg
from tensor_graphs.cli.app import run
from tensor_graphs.cli.view import page_of
from tensor_graphs.egraph.explain.explain import DEFINITION
from tensor_graphs.egraph.patterns.rule import REVERSED
from tensor_graphs.errors import BadModelError, ExtractionError, NoPlanError, UsageError
from tensor_graphs.explorer.chosen_terms import chosen_terms
from tensor_graphs.explorer.columns import decode, encode
from tensor_graphs.explorer.derivations import Derivation, without_rules
from tensor_graphs.explorer.egraph_file import write
from tensor_graphs.explorer.explorer import Explorer
from tensor_graphs.explorer.file_page import file_page
from tensor_graphs.explorer.layers import layers_of
from tensor_graphs.explorer.page import SCRIPTS, WEB, explorer_data, widget_parts
from tensor_graphs.explorer.tables import question_columns
from tensor_graphs.explorer.widget import answer
from tensor_graphs.models.common.module_paths import path_of_onnx
from tensor_graphs.report.shell import asset

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\u202e\udc80"


@pytest.fixture(scope="module")
def explorer(tmp_path_factory: pytest.TempPathFactory) -> Explorer:
    """(x w) * 2 + exp(x w) behind names that try to run scripts."""
    x, w = tg.input("x", (32, 64)), tg.param(HOSTILE, (64, 64))
    y = tg.softmax(tg.exp(x @ w) + (x @ w) * 2.0)
    with tg.settings.override(home=str(tmp_path_factory.mktemp("home"))):
        return tg.saturate(tg.Graph.of(y, name=HOSTILE), backend="c")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Explorer, int, int]:
    """tanh(exp(x)) with its two e-classes: one kernel each, or one for both."""
    with tg.settings.override(home=str(tmp_path_factory.mktemp("home"))):
        found = tg.saturate(tg.tanh(tg.exp(tg.input("x", (64, 64)))), backend="c")
    inner = next(int(found.view.cls[n]) for n, op in enumerate(found.view.op) if op == "exp")
    return found, inner, found.view.roots[0]


# ---------------------------------------------------------------- columns
def test_columns_are_read_as_written() -> None:
    columns: dict[str, Any] = {
        "bools": np.array([True, False]), "ints": np.array([-1, 1 << 30], np.int32), "wide": np.arange(3, dtype=np.int64),
        "floats": np.array([math.nan, math.inf, -0.0]), "none": np.zeros(0, np.int32), "no texts": [],
        "texts": ["", "a", "é𝕏", "a", HOSTILE], "many": [str(i) for i in range(300)],
    }  # fmt: skip
    found, meta = decode(encode(columns, {"title": HOSTILE[:10], "n": 1.5}))
    assert meta == {"title": HOSTILE[:10], "n": 1.5} and found.keys() == columns.keys()
    for name, values in columns.items():
        if isinstance(values, list):
            assert list(found[name]) == [v.replace("\udc80", "?") for v in values]
        else:
            np.testing.assert_array_equal(np.asarray(found[name]), values)
    assert np.asarray(found["ints"]).dtype == np.int32 and np.signbit(np.asarray(found["floats"])[2])
    with pytest.raises(BadModelError, match="not column data"):
        decode(b"PNG.....")


def test_answers_without_proof_are_upper_bounds(
    pair: tuple[Explorer, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    explorer = pair[0]
    assert np.asarray(question_columns(explorer, 5.0)["kernel.proven"]).all()
    asked: list[float] = []

    def unproven(self: Explorer, seconds: float, **conditions: Any) -> Any:
        asked.append(seconds)
        return SimpleNamespace(unused=(), after_us=1e3, optimal=False)

    monkeypatch.setattr(Explorer, "what_if", unproven)
    found = question_columns(explorer, 5.0)
    answered = [i for i in explorer.choice.chosen if found["kernel.without"][i] == 1e3]
    assert answered and not np.asarray(found["kernel.proven"])[answered].any()
    assert max(asked) <= 5.0 / 4


def test_the_data_of_an_explorer_describes_it(explorer: Explorer) -> None:
    found, _ = decode(explorer_data(explorer, seconds=0.5))
    view, kernels = explorer.view, explorer.choice.hypergraph.candidates
    assert found["node.op"] == view.op and np.array_equal(np.asarray(found["node.kid.item"]), view.child)
    assert found["kernel.name"] == [c.template.name for c in kernels]
    steps = np.asarray(found["kernel.step"])
    assert [int(np.flatnonzero(steps == n)[0]) for n in range(len(explorer.choice.chosen))] == explorer.choice.chosen
    assert np.allclose(np.asarray(found["kernel.us"])[explorer.choice.chosen].sum(), explorer.choice.cost)
    limits = np.asarray(found["kernel.limit"])
    assert all(limits[i] > 0 for i in explorer.choice.chosen if not kernels[i].is_view)
    assert all(found["kernel.source"][i] for i in explorer.choice.chosen if not kernels[i].is_view)


def test_operations_are_named_after_the_layers_of_their_weights() -> None:
    x = tg.input("x", (4, 8))
    w = {n: tg.param(n, (8, 8)) for n in ("blocks.0.attn.q.weight", "blocks.0.attn.out.weight", "head.weight")}
    q, out, head = w.values()
    scores = x @ tg.permute(q, (1, 0))
    mixed = tg.softmax(scores)
    projected = mixed @ out
    added = projected + x
    last = tg.tanh(added @ head)
    found = layers_of(tg.Graph.of(last))
    assert found == {
        scores: "blocks.0.attn.q", mixed: "blocks.0.attn", projected: "blocks.0.attn.out", added @ head: "head",
    }  # fmt: skip


def test_operations_are_named_after_the_modules_that_were_traced(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Residual(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())

        def forward(self, x: Any) -> Any:
            return x + self.inner(x)

    model = torch.nn.Sequential(Residual(), torch.nn.ReLU())
    found = tg.saturate(model, (torch.ones(2, 8),), backend="numpy", costdb=tmp_path)
    layers = {n.op: layer for n, layer in layers_of(found.work, found.modules).items()}
    assert layers == {"linear": "0.inner.0", "tanh": "0.inner.1", "add": "0", "relu": "1"}
    write(tmp_path / "e.json", found)
    assert {"0.inner.1", "1"} <= set(inner_data(file_page(tmp_path / "e.json"))["class.layer"])


@pytest.mark.parametrize(
    ("name", "scopes", "path"),
    [
        ("/layers/layers.0/attn/MatMul_3", "", "layers.0.attn"),
        ("node_linear_1", "['', 'layers.0', 'layers.0.attn', 'linear_1']", "layers.0.attn"),
        ("MatMul_3", "", ""),
        ("", "no list", ""),
    ],
)
def test_paths_of_onnx_nodes(name: str, scopes: str, path: str) -> None:
    entry = SimpleNamespace(key="pkg.torch.onnx.name_scopes", value=scopes)
    assert path_of_onnx(name, [entry] if scopes else []) == path


def test_operations_of_the_model_lead_to_their_e_classes(explorer: Explorer) -> None:
    found, _ = decode(explorer_data(explorer, seconds=0.0))
    classes, ops = np.asarray(found["model.class"]), found["model.op"]
    assert (classes >= 0).all()
    for cls, op in zip(classes.tolist(), ops):
        assert op in {explorer.view.op[n] for n in explorer.view.nodes_of(cls)}
    used = {r for r in found["node.rule"] if r and not r.startswith(DEFINITION)}
    texts = dict(zip(found["rule.name"], found["rule.text"]))
    assert used <= texts.keys() and texts["add-commutes"] == "add(x, y) => add(y, x); exact"


# ---------------------------------------------------------------- rules of e-nodes
def test_every_e_node_that_the_model_lacks_has_a_rule_or_a_definition(explorer: Explorer) -> None:
    made = {n for d in explorer.derivations for n in d.made}
    own = explorer.view.original_nodes
    assert own is not None and all(own[n] or n in made for n in range(len(explorer.view)))
    rules = {d.rule for d in explorer.derivations}
    assert any(r.startswith(DEFINITION) for r in rules) and "add-commutes" in rules


def test_forms_that_only_forbidden_rules_reach_are_found(pair: tuple[Explorer, int, int]) -> None:
    view = pair[0].view
    assert len(view) >= 3 and view.original_nodes is not None
    own = [n for n in range(len(view)) if view.original_nodes[n]]
    chain = [Derivation("a", (own[0],), (100,)), Derivation("b", (100,), (101,)), Derivation("c", (101,), (100,))]

    class Larger:
        original_nodes = [n in (0, 1, 2) for n in range(102)]

        def __len__(self) -> int:
            return 102

    larger: Any = Larger()
    assert without_rules(larger, chain, frozenset("a")) == {100, 101}  # c starts from what b makes from what a makes
    assert without_rules(larger, chain, frozenset("b")) == {101}
    assert without_rules(larger, chain, frozenset()) == set()


# ---------------------------------------------------------------- what-if
def test_a_hand_solved_choice_between_one_kernel_and_two(pair: tuple[Explorer, int, int]) -> None:
    found, inner, outer = pair
    flat = {"*": 10.0}  # every kernel takes 10 µs: one fused kernel is best
    one = found.what_if(cost=flat)
    assert one.after_us == 10.0 and one.optimal and len(one.choice.chosen) == 1
    with pytest.raises(UsageError, match="no e-class 99999"):
        found.fusing(inner, 99999)
    fused = [f"k{i}" for i in found.fusing(inner, outer)]
    assert f"k{one.choice.chosen[0]}" in fused
    two = found.what_if(forbid=fused, cost=flat)
    assert two.after_us == 20.0 and two.difference_us == 20.0 - found.choice.cost
    assert {k.made for k in two.added} <= {f"c{inner}", f"c{outer}"}
    cheaper = found.what_if(cost={**flat, **dict.fromkeys(fused, 21.0)})  # fusing costs more than both
    assert cheaper.after_us == 20.0
    assert found.what_if(cost={**flat, **dict.fromkeys(fused, 19.0)}).after_us == 19.0
    exp = next(i for i, c in enumerate(found.choice.hypergraph.candidates) if c.output.cls == inner)
    pinned = found.what_if(pin=[f"k{exp}"], cost=flat)  # exp must run, and an output must need it
    assert pinned.after_us == 20.0 and exp in pinned.choice.chosen and not pinned.unused


def test_forbidding_every_kernel_of_a_value_leaves_the_fused_one_or_no_plan(pair: tuple[Explorer, int, int]) -> None:
    found, inner, outer = pair
    kept = found.what_if(forbid=[f"c{inner}"])
    assert all(c.output.cls != inner for c in (found.choice.hypergraph.candidates[i] for i in kept.choice.chosen))
    with pytest.raises(NoPlanError, match="no plan is left"):
        found.what_if(forbid=[f"c{outer}"])
    node = next(n for n, op in enumerate(found.view.op) if op == "exp")
    with pytest.raises(NoPlanError):
        found.what_if(forbid=[f"n{node}"])  # nothing else computes it
    assert found.what_if(pin=[f"n{node}"]).difference_us == 0.0


def test_forbidden_rules_take_their_forms_away(explorer: Explorer) -> None:
    rules = sorted({d.rule for d in explorer.derivations})
    without = explorer.what_if(forbid=["rule:*"])
    dead = without_rules(explorer.view, explorer.derivations, frozenset(rules))
    assert dead and all(explorer.covered[i].isdisjoint(dead) for i in without.choice.chosen)
    assert without.after_us >= explorer.choice.cost - 1e-9
    backward = next(r for r in rules if r.endswith(REVERSED))
    assert backward in explorer._question._rules([f"rule:{backward.removesuffix(REVERSED)}"]), "both directions"
    assert "rule:*" in str(without) and "<script" not in without._repr_html_() and without.to_json()["optimal"]


@pytest.mark.parametrize(
    "question",
    [{"forbid": ["k999999"]}, {"forbid": ["np.matmull"]}, {"forbid": "rule:nothing"}, {"pin": ["np.matmul"]},
     {"pin": ["c0"]}, {"pin": ["c0@7,7,7"]}, {"cost": {"k0": -1.0}}, {"cost": {"k0": math.nan}}],
)  # fmt: skip
def test_bad_selectors_are_named(explorer: Explorer, question: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as error:
        explorer.what_if(**question)
    assert error.value.where == "what_if"


def test_a_widget_answers_questions_and_refuses_others(pair: tuple[Explorer, int, int]) -> None:
    found, inner, _ = pair
    assert answer(found, {"id": 7, "forbid": [f"c{inner}"]})["id"] == 7
    for message in (
        None,
        [],
        {"id": 1, "forbid": "k1"},
        {"id": 1, "pin": [3]},
        {"id": 1, "pin": ["k1"] * 1000},
        {"id": 1, "forbid": ["?"]},
    ):
        assert "error" in answer(found, message)


def test_the_widget_holds_the_data(pair: tuple[Explorer, int, int]) -> None:
    pytest.importorskip("anywidget", reason="the notebook extra is not installed")
    made = pair[0].widget()
    assert decode(made.data)[0]["node.op"] == pair[0].view.op and "export default" in made._esm


# ---------------------------------------------------------------- exports
def test_everything_is_data(explorer: Explorer) -> None:
    tables, plain, view = explorer.to_arrow(), explorer.to_json(), explorer.view
    assert tables["node"].column("op").to_pylist() == plain["node"]["op"] == view.op
    assert tables["node"].column("kid").to_pylist() == [view.children(n).tolist() for n in range(len(view))]
    assert tables["kernel"].num_rows == len(explorer.choice.hypergraph.candidates) == len(plain["kernel"]["us"])
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    dot = explorer.to_dot("plan")
    assert dot.startswith("digraph {") and dot.count("palegreen") == len(explorer.choice.chosen)
    assert re.fullmatch(
        r'digraph \{\n(  (node \[shape=box\]|"(\\.|[^"\\])*"( -> "(\\.|[^"\\])*"| \[label="(\\.|[^"\\])*"[^"]*\]));\n)*\}\n',
        explorer.to_dot(),
    )
    with pytest.raises(UsageError, match="no graph"):
        explorer.to_dot("plans")


def test_graphs_of_networkx(explorer: Explorer) -> None:
    networkx = pytest.importorskip("networkx", reason="networkx is not installed")
    plan, whole = explorer.to_networkx("plan"), explorer.to_networkx()
    assert networkx.is_directed_acyclic_graph(plan)
    assert sum(d["kind"] in ("kernel", "view") for _, d in plan.nodes(data=True)) == len(explorer.choice.chosen)
    assert len(whole) == len(explorer.view) + explorer.view.n_classes
    root = f"c{explorer.view.roots[0]}"
    assert any(d.get("op") == "matmul" for n in networkx.descendants(whole, root) for d in [whole.nodes[n]])


# ---------------------------------------------------------------- pages
def inner(page: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns and the meta data of a page."""
    packed = re.search(r'<script type="application/octet-stream" id="data">([^<]*)</script>', page)
    assert packed
    return decode(zlib.decompress(b64decode(packed[1])))


def inner_data(page: str) -> dict[str, Any]:
    return inner(page)[0]


def test_names_reach_a_page_as_data_only(explorer: Explorer) -> None:
    with pytest.raises(UsageError, match="is no path"):
        explorer.save_html(None)  # type: ignore[arg-type]
    page = explorer.html()
    assert page.count("<script") == 2 and "hacked=1</script>" not in page and "<img" not in page
    assert "default-src 'none'" in page and not re.search(r"<[a-z][^>]*(src|href)=|https?://|@import|url\(", page)
    assert HOSTILE.replace("\udc80", "?") in inner_data(page)["node.name"]


def test_files_have_pages_too(explorer: Explorer, tmp_path: Path) -> None:
    write(tmp_path / "e.json.gz", explorer)
    found = inner_data(file_page(tmp_path / "e.json.gz"))
    assert found["node.op"] == explorer.view.op and (np.asarray(found["kernel.step"]) >= 0).any()
    assert "add-commutes" in found["node.rule"] and (np.asarray(found["kernel.limit"]) > 0).any()
    nodes = {
        "a": {"op": HOSTILE, "children": ["b"], "eclass": "1", "cost": 1.0},
        "b": {"op": "x", "children": [], "eclass": "2", "cost": 2.0},
    }
    (tmp_path / "f.json").write_text(json.dumps({"nodes": nodes, "root_eclasses": ["1"]}))
    assert inner_data(file_page(tmp_path / "f.json"))["node.op"] == [HOSTILE.replace("\udc80", "?"), "x"]
    document = json.loads(gzip.decompress((tmp_path / "e.json.gz").read_bytes()))
    for name, wrong in (
        ("computes", {"k0": True}),
        ("computes", {"k0": [10**6]}),
        ("limits", {"k0": "1"}),
        ("layers", {"0": 1}),
        ("age", [1]),
        ("age", 3),
    ):
        bad = {**document, "tensor_graphs": {**document["tensor_graphs"], name: wrong}}
        (tmp_path / "bad.json").write_text(json.dumps(bad))
        with pytest.raises(ExtractionError):
            file_page(tmp_path / "bad.json")
    (tmp_path / "g.json").write_text("{}")
    with pytest.raises(ExtractionError):
        file_page(tmp_path / "g.json")


def test_the_page_of_a_file_has_the_steps_of_the_rewriting(tmp_path: Path) -> None:
    x, w, v = tg.input("x", (16, 64)), tg.param("w", (64, 64)), tg.param("v", (64, 64))
    found = tg.saturate((x * 0.125) @ w + x @ v, backend="numpy", costdb=tmp_path)
    write(tmp_path / "e.json", found)
    steps = [s.rule for e in found.explain() for s in e.steps]
    assert inner_data(file_page(tmp_path / "e.json"))["step.rule"] == steps
    assert "matmul-right-sum" in steps


def test_a_file_without_a_chosen_term_says_so(explorer: Explorer, tmp_path: Path) -> None:
    with pytest.raises(ExtractionError, match="do not compute"):
        chosen_terms(explorer.view, [])
    write(tmp_path / "e.json", explorer)
    document = json.loads((tmp_path / "e.json").read_text())
    document["tensor_graphs"]["computes"] = {}
    (tmp_path / "e.json").write_text(json.dumps(document))
    page = file_page(tmp_path / "e.json")
    assert "step.rule" not in inner_data(page)
    assert "The rewriting is not shown: the chosen kernels do not compute the e-class" in inner(page)[1]["notes"][-1]


def test_the_page_of_a_saved_program_derives_its_rewriting(tmp_path: Path) -> None:
    x = tg.input("x", (32, 32))
    program = tg.optimize(tg.exp(x) * 2.0 + tg.exp(x) * 3.0, backend="c", measure=False, budget=5, costdb=tmp_path)
    page = page_of(program.save(tmp_path / "out"))
    assert "<summary>Rewrites</summary>" in page and "<th>rule</th>" in page
    (tmp_path / "out" / "origin.safetensors").unlink()
    assert "Not derived: this program does not say what it was made from" in page_of(tmp_path / "out")
    assert "The rule applications are not in this file" in page_of(tmp_path / "out" / "report.json")


def test_the_command_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = {"a": {"op": "x", "children": [], "eclass": "1", "cost": 1.0}}
    (tmp_path / "e.json").write_text(json.dumps({"nodes": nodes, "root_eclasses": ["1"]}))
    assert run(["view", str(tmp_path / "e.json"), "--output", str(tmp_path / "p.html"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] and (tmp_path / "p.html").read_text().startswith("<!doctype html>")
    assert run(["view", str(tmp_path / "none.json"), "-o", str(tmp_path / "q.html")]) == 2
    assert run(["view", str(tmp_path), "-o", str(tmp_path / "q.html")]) == 2 and not (tmp_path / "q.html").exists()


@pytest.mark.skipif(chromium() is None, reason="Chromium is not installed")
def test_a_browser_shows_the_page_and_runs_nothing_else(explorer: Explorer, tmp_path: Path) -> None:
    page = explorer.save_html(tmp_path / "page.html")
    with Browser() as browser:
        browser.open(page)
        tabs = browser.run("[...document.querySelectorAll('nav button')].map(b => { b.click(); return b.textContent })")
        assert tabs[:4] == ["E-graph", "Plan", "Model and plan", "Rewrites"]
        browser.run("viewer.pick('E-graph'); viewer.main.search.value = 'exp'; viewer.main.find()")
        assert browser.run("document.querySelector('.results button').click() ?? viewer.main.selected") >= 0
        named = "[...viewer.graph.also].filter(([op, names]) => names && viewer.graph.op.dict.includes(op))"
        op, names = browser.run(f"{named}.find(([op, names]) => !names.includes(op)) ?? {named}[0]")
        found = f"viewer.main.search.value = '{names.split()[0]}'; viewer.main.find(); document.querySelector('.results').innerText"
        assert op in browser.run(found)
        kernels = browser.run(
            "viewer.main.showKernel(viewer.graph.plan.at(-1)) ?? document.querySelector('aside').textContent"
        )
        assert (
            "in the plan" in kernels
            and explorer.choice.hypergraph.candidates[explorer.choice.chosen[-1]].template.name in kernels
        )
        shown = "viewer.pick('Model and plan'), viewer.pick('Rewrites'), "
        shown += "[...document.querySelectorAll('.steps button')].forEach(b => b.click()), "
        shown += "document.querySelector('.steps').textContent"
        assert re.search(r"all \d+ steps?|no rule was needed", browser.run(shown))
        fused = "viewer.main.mark(0), viewer.main.mark(1), document.querySelector('aside h2').textContent"
        assert browser.run(fused) == "Fusing c0 and c1"
        words = "viewer.main.select([...Array(viewer.graph.classes).keys()].find(c => viewer.graph.isGiven(c))), "
        assert "Given by the caller: no kernel is needed." in browser.run(
            f"{words} document.querySelector('aside').textContent"
        )
        assert browser.run("window.hacked") is None
        assert browser.messages() == []


@pytest.mark.skipif(chromium() is None, reason="Chromium is not installed")
def test_a_notebook_widget_asks_and_shows_the_answer(pair: tuple[Explorer, int, int], tmp_path: Path) -> None:
    found, inner, _ = pair
    script, style = widget_parts()
    host = """
      const data = new DataView(Uint8Array.from(atob("DATA"), (c) => c.charCodeAt(0)).buffer), heard = {};
      window.sent = [];
      const model = { get: () => data, on: (name, f) => { heard[name] = f; }, send: (m) => window.sent.push(m) };
      window.reply = (m) => heard["msg:custom"](m);
      render({ model, el: document.body });
    """.replace("DATA", b64encode(explorer_data(found, seconds=0)).decode())
    (tmp_path / "host.html").write_text(
        f"<meta charset=utf-8><style>{style}</style><body><script type=module>{script}{host}</script>"
    )
    with Browser() as browser:
        browser.open(tmp_path / "host.html", ready="!!document.querySelector('.asking input')")
        browser.run(
            "(i => { i.value = 'forbid X pin k0 cost *=10'; i.nextSibling.click() })(document.querySelector('.asking input'))".replace(
                "X", f"c{inner}"
            )
        )
        question = browser.run("sent[0]")
        assert question == {"id": 1, "forbid": [f"c{inner}"], "pin": ["k0"], "cost": {"*": 10}}
        reply = answer(found, {**question, "pin": []})
        browser.run(f"reply({json.dumps(reply)})")
        assert "10.0 µs" in browser.run("document.querySelector('aside').textContent")
        assert browser.messages() == []


BOUNDED = """
const vm = require("vm"), context = vm.createContext({});
vm.runInContext(require("fs").readFileSync(0, "utf8") + "\\nObject.assign(this, { Graph, layered, namesOf });", context);
const depth = 60, args = (i) => (i ? [i - 1, i - 1] : []);
const names = context.namesOf(depth, { at: (i) => (i ? "add" : "param") }, { at: (i) => (i ? "" : "w") }, args);
let asked = 0;
const children = [...Array(2000).keys()].slice(1), below = (i) => { asked++; return i ? [] : children; };
const boxes = context.layered([0, ...children], below, () => [200, 40]);
const graph = Object.create(context.Graph.prototype), both = [0, 1], ones = [1, 1];
const lists = { makersOf: (c) => [c], input: () => [1], out: (k) => [k], inside: () => undefined, planned: (c) => c };
const each = { plan: both, step: both, placeClass: both, isView: [0, 1], limit: ones, us: ones, bytes: ones, size: ones };
Object.assign(graph, lists, each, { launch: ones, byteRate: ones, flopRate: ones, flops: ones });
console.log(JSON.stringify([names, asked, boxes.size, graph.together([0]).kernels.length]));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no JavaScript engine")
def test_the_viewers_work_is_bounded() -> None:
    """Weights doubled 60 times, a node of 2,000 operands, and a view of itself in a damaged file."""
    scripts = asset(WEB, *(name for name in SCRIPTS if name != "viewer.js"))
    done = subprocess.run(["node", "-e", BOUNDED], input=scripts, capture_output=True, text=True, timeout=300)
    assert json.loads(done.stdout) == ["w", 2000, 2000, 1], done.stderr
