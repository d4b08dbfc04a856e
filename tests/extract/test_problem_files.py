"""Bad problems, bad choices, bad files: each gets an ExtractionError that says what and where; good files
round-trip."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.errors import ExtractionError, UsageError
from tensor_graphs.extract.solve.problem import Problem, evaluate
from tensor_graphs.extract.solve.serialize import parse_egraph, read_egraph, to_json, write_egraph
from tensor_graphs.extract.solve.solve import solve

NAN, INF = float("nan"), float("inf")
SMALL = [(0, (), 1.0), (1, (0, 0), 2.0), (1, (0, 2), 0.5), (2, (1,), 0.0)]


def node(eclass: Any, children: Any = (), cost: Any = 1.0, **more: Any) -> dict[str, Any]:
    return {"op": "f", "cost": cost, "eclass": eclass, "children": list(children), **more}


def document(**nodes: Any) -> dict[str, Any]:
    return {"nodes": nodes, "root_eclasses": ["A"]}


@pytest.mark.parametrize(
    ("nodes", "roots", "message"),
    [
        ([(0, (), NAN)], [0], "NaN"),
        ([(0, (), -1.0)], [0], "negative"),
        ([(0, (), -INF)], [0], "negative"),
        ([(0, (), 1.0)], [], "no root"),
        ([(0, (5,), 1.0)], [0], "outside"),
        ([(0, (-1,), 1.0)], [0], "outside"),
        ([(-3, (), 1.0)], [0], "outside"),
        ([(0, (), 1.0)], [1], "outside"),
        ([(0, (), 1.0)], [-1], "outside"),
        ([(2**40, (), 1.0)], [0], "not an array"),
        ([(0, (), "dear")], [0], "not an array"),
    ],
)
def test_bad_problems(nodes: Any, roots: Any, message: str) -> None:
    with pytest.raises(ExtractionError, match=message) as caught:
        Problem.build(nodes, roots, n_classes=1)
    assert caught.value.where


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"off": [0, 1]}, "offsets"),
        ({"off": [0, 2, 1]}, "rise"),
        ({"off": [0, 0, 5]}, "rise"),
        ({"cost": [1.0]}, "costs"),
        ({"node_ids": ("a",)}, "entries"),
        ({"class_ids": ("a",)}, "entries"),
        ({"rank": [1]}, "entries"),
    ],
)
def test_bad_arrays(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "cls": [0, 1],
        "off": [0, 0, 1],
        "child": [0],
        "cost": [1, 1],
        "n_classes": 2,
        "roots": (1,),
    }
    assert evaluate(Problem(**good), [0, 1]) == 2
    with pytest.raises(ExtractionError, match=message):
        Problem(**{**good, **change})


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ([0, 2, 3], "cyclic"),
        ([-1, 1, -1], "no node is chosen"),
        ([0, 3, -1], "another class"),
        ([0, 99, -1], "no node is chosen"),
        ([0], "1 choices for 3 classes"),
    ],
)
def test_bad_choices(choice: list[int], message: str) -> None:
    problem = Problem.build(SMALL, [1])
    assert evaluate(problem, [0, 1, -1]) == 3.0
    with pytest.raises(ExtractionError, match=message):
        evaluate(problem, choice)


def test_infinite_cost_deletes_a_node() -> None:
    problem = Problem.build([(0, (), INF), (0, (), 5.0), (1, (0,), 1.0)], [1])
    assert solve(problem).cost == 6.0
    with pytest.raises(ExtractionError, match="deleted"):
        evaluate(problem, [0, 2])
    with pytest.raises(ExtractionError, match="no finite acyclic term") as caught:
        solve(Problem.build([(0, (), INF), (1, (0,), 1.0)], [1], class_ids=["leaf", "top"]))
    assert "top" in caught.value.where


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_round_trip(tmp_path: Path, suffix: str) -> None:
    problem = Problem.build(
        SMALL, [1, 2], n_classes=4, node_ids=["a", "b", "c", "d"], class_ids=["A", "B", "C", "empty"]
    )
    path = tmp_path / f"graph{suffix}"
    write_egraph(path, problem, ops=["x", "+", "*", "id"], extra={"tensor_graphs": {"blocks": 1}})
    again = read_egraph(path)
    for name in ("cls", "off", "child", "cost"):
        np.testing.assert_array_equal(getattr(again, name), getattr(problem, name))
    assert (again.node_ids, again.class_ids, again.roots) == (problem.node_ids, problem.class_ids, problem.roots)
    assert solve(again).cost == solve(problem).cost
    text = gzip.decompress(path.read_bytes()) if suffix == ".json.gz" else path.read_bytes()
    assert json.loads(text)["tensor_graphs"] == {"blocks": 1}
    assert json.loads(text)["nodes"]["b"] == {"op": "+", "cost": 2.0, "eclass": "B", "children": ["a", "a"]}


def test_to_json_lists_only_what_the_roots_need() -> None:
    problem = Problem.build(SMALL, [1], node_ids=["a", "b", "c", "d"], class_ids=["A", "B", "C"])
    found = to_json(problem, solve(problem))
    assert found["choices"] == {"B": "b", "A": "a"} and list(found["choices"]) == ["B", "A"]
    assert (found["cost"], found["lower_bound"], found["gap"], found["optimal"]) == (3.0, 3.0, 0.0, True)
    assert json.loads(json.dumps(found)) == found


def test_odd_but_legal_documents() -> None:
    problem = parse_egraph(
        {
            "nodes": {
                "1": node(7, [], 2),
                "2": {"op": "g", "eclass": "A", "children": ["1", "1"]},  # no cost: 1
                "3": node("A", [7], 9.0),  # names a class
                "4": node("A", ["5"], 0.0),  # reads a class that only a subsumed node could build
                "5": node("S", [], 0.0, subsumed=True),
                "6": node("A", ["gone"], 0.0),
                "7": node("A", [], float("inf")),
            },
            "root_eclasses": ["A", 7, "A"],
            "class_data": {"gone": {}},
        }
    )
    assert problem.class_ids is not None and [problem.class_ids[r] for r in problem.roots] == ["A", "7"]
    found = solve(problem)
    assert found.cost == 3.0 and to_json(problem, found)["choices"] == {"A": "2", "7": "1"}


@pytest.mark.parametrize(
    ("given", "message", "place"),
    [
        ([], "no key 'nodes'", ""),
        ({"nodes": {}}, "no key 'root_eclasses'", ""),
        ({"nodes": [], "root_eclasses": []}, "nodes must be", ""),
        ({"nodes": {}, "root_eclasses": "A"}, "root_eclasses must be", ""),
        ({"nodes": {}, "root_eclasses": []}, "no root", ""),
        (document(a=3), "must be an object", "nodes['a']"),
        (document(a={"op": "f"}), "has no eclass", "nodes['a']"),
        (document(a=node(None)), "text or an integer", "nodes['a'].eclass"),
        (document(a=node(True)), "text or an integer", "nodes['a'].eclass"),
        (document(a=node("A", ["nowhere"])), "no node or class", "nodes['a'].children[0]"),
        (document(a=node("A", [["a"]])), "text or an integer", "nodes['a'].children[0]"),
        (document(a={**node("A"), "children": "a"}), "must be a list", "nodes['a']"),
        (document(a=node("A", cost="1")), "must be a number", "nodes['a'].cost"),
        (document(a=node("A", cost=None)), "must be a number", "nodes['a'].cost"),
        (document(a=node("A", cost=10**400)), "too large", "nodes['a'].cost"),
        (document(a=node("A", cost=-1)), "cost of node a is negative", "class A"),
        (document(a=node("A", cost=NAN)), "cost of node a is NaN", "class A"),
        (document(a=node("B")), "root class 'A' has no node", "root_eclasses"),
    ],
)
def test_bad_documents(given: Any, message: str, place: str) -> None:
    with pytest.raises(ExtractionError, match=message.replace("'", ".")) as caught:
        parse_egraph(given, where="file.json")
    assert place in caught.value.where and caught.value.where.count("file.json") == 1


def test_roots_of_a_file_without_roots() -> None:
    """egglog writes no roots: they are named by class, by node, or by the variable of a `let`; choices are by name."""
    given = document(a=node("A", cost=4), b=node("B", ["a"]), c=node("B", cost=2), d=node("C", ["b"]))
    given |= {"root_eclasses": [], "class_data": {"B": {"type": "Num", "let": "$e"}}}
    for root, cost in (("B", 2), ("b", 2), ("$e", 2), ("e", 2), ("d", 3)):
        assert tg.extract(given, roots=[root]).cost == cost
    both = tg.extract(given, roots=["A", "e", "c"])
    assert both.cost == 5 and both.choices == {"A": "a", "B": "b"}
    said: list[str] = []
    ended = tg.extract(given, roots=["d"], progress=tg.Progress(lambda stage, text: said.append(text), stopped=True))
    assert ended.cost == 3 and said == ["4 nodes in 3 classes"]
    for roots, message in (([], "no root class"), (["f"], "root class 'f' has no node")):
        with pytest.raises(ExtractionError, match=message) as caught:
            tg.extract(given, roots=roots)
        assert "variable: e" in caught.value.hint
    with pytest.raises(UsageError, match="roots='e'"):
        tg.extract(given, roots="e")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("empty.json", b"", "not JSON"),
        ("cut.json", b'{"nodes": {"a": {', "not JSON"),
        ("latin.json", b'{"nodes": "\xff\xfe"}', "not JSON"),
        ("deep.json", b"[" * 200_000, "nested too deeply"),
        ("long.json", b'{"nodes": ' + b"9" * 10_000 + b"}", "not JSON"),
        ("twice.json", b'{"nodes": {"a": 1, "a": 2}, "root_eclasses": []}', "twice"),
        ("plain.json.gz", b'{"nodes": {}}', "gzip"),
        ("cut.json.gz", gzip.compress(b'{"nodes": {}}' * 50, mtime=0)[:-12], "gzip"),
        ("flipped.json.gz", gzip.compress(b'{"nodes": {}}' * 50, mtime=0)[:20] + b"\0\1\2\3" * 9, "gzip"),
        ("bomb.json.gz", gzip.compress(b" " * 6_000_000, mtime=0), "larger than"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ExtractionError, match=message) as caught:
        read_egraph(path, memory=20_000_000)
    assert name in caught.value.where


def test_a_key_that_occurs_twice_among_many(tmp_path: Path) -> None:
    """Found in one pass: comparing each key with all others would take minutes."""
    nodes = ", ".join(f'"n{i}": {{"eclass": "0", "op": "x"}}' for i in [*range(100_000), 99_999])
    (tmp_path / "e.json").write_text(f'{{"nodes": {{{nodes}}}, "root_eclasses": ["0"]}}')
    begin = time.process_time()
    with pytest.raises(ExtractionError, match="'n99999' occurs twice"):
        read_egraph(tmp_path / "e.json")
    assert time.process_time() - begin < 60


def test_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.json", tmp_path):
        with pytest.raises(ExtractionError, match=r"cannot be read|not a plain file"):
            read_egraph(path)
