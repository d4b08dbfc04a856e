"""Results of programs have the containers of the function's results: plain and named tuples, lists, dicts."""

from __future__ import annotations

import json
import pickle
import warnings
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.errors import BadModelError
from tensor_graphs.models.files.native import load_graph

Pair = namedtuple("Pair", "low high")
FAST: dict[str, Any] = {"measure": False, "budget": 0.3}
X = np.ones(4, np.float32)


class Result(NamedTuple):
    values: Any
    rest: Any


@pytest.mark.parametrize("own", [True, False])
def test_named_tuples_of_functions(own: bool, tmp_path: Path) -> None:
    function = lambda x: {"a": Pair(x + 1.0, [Result(x, None)])}
    for _ in range(2):  # the second plan is a cached one
        program = tg.optimize(function, (X,), allow_caller=own, **FAST)
        found = program(X)["a"]
        assert type(found) is Pair and type(found.high[0]) is Result and found.high[0].rest is None
        np.testing.assert_array_equal(found.low, X + 1.0)
    program.save(tmp_path / "out")
    saved = tg.load_program(tmp_path / "out")(X)["a"]
    assert type(saved) is Pair and type(saved.high[0]) is Result
    np.testing.assert_array_equal(saved.low, X + 1.0)


def test_named_tuples_of_types_that_are_not_loaded(tmp_path: Path) -> None:
    local = namedtuple("Local", "low _1 class", rename=True)
    program = tg.optimize(lambda x: local(x, x + 1.0, x + 2.0), (X,), **FAST)
    program.save(tmp_path / "out")
    saved = tg.load_program(tmp_path / "out")(X)
    assert type(saved).__name__ == "Local" and saved._fields == local._fields
    np.testing.assert_array_equal(saved.low, X)


@pytest.mark.parametrize(
    "named",
    [[], [3], ["os:stat_result"], ["a:b", ["x"]], ["a:b", ["x", 0], ["x", 0]], ["a:b", [1, 0]], ["a:b", ["x", 5]]],
)
def test_malformed_named_tuples_are_refused(named: Any, tmp_path: Path) -> None:
    tg.optimize(lambda x: (x + 1.0,), (X,), **FAST).save(tmp_path / "out")
    manifest = tmp_path / "out" / "manifest.json"
    record = {**json.loads(manifest.read_text()), "structure": {"named": named}}
    manifest.write_text(json.dumps(record))
    if named == ["os:stat_result"]:  # not the fields of that type
        assert type(tg.load_program(tmp_path / "out")(X)).__name__ == "stat_result"
        return
    with pytest.raises(BadModelError, match="structure"):
        tg.load_program(tmp_path / "out")


def test_graphs_in_files_keep_named_tuples(tmp_path: Path) -> None:
    x = tg.input("x", (4,))
    graph = replace(Graph.of([x + 1.0, x * 2.0]), structure=Pair(0, [1, None]))
    tg.save_graph(graph, tmp_path / "g.safetensors")
    assert load_graph(tmp_path / "g.safetensors").structure == Pair(0, [1, None])
    assert type(load_graph(tmp_path / "g.safetensors").structure) is Pair


@pytest.mark.parametrize("name", ["named", "max", "aminmax"])
def test_named_tuples_of_modules(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return Pair(x, x * 2.0) if name == "named" else x.max(0) if name == "max" else torch.aminmax(x)

    x = torch.randn(3, 4)
    program = tg.optimize(Module().eval(), (x,), allow_caller=False, **FAST)
    wanted, found = Module()(x), program(x)
    assert type(found) is type(wanted)
    program.save(tmp_path / "out")
    saved = tg.load_program(tmp_path / "out")(x)
    assert type(saved) is type(wanted)
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(found, wanted, saved, strict=True))


@dataclass
class Scores:
    best: Any
    rest: Any
    note: str = "kept"


class Box:
    def __init__(self, content: Any) -> None:
        self.content = content


def register() -> Any:
    """Types of results that are registered with PyTorch; returns its pytree module."""
    from torch.utils import _pytree

    if Scores not in _pytree.SUPPORTED_NODES:
        _pytree.register_dataclass(Scores, drop_field_names=["note"], field_names=["best", "rest"])
        _pytree.register_pytree_node(
            Box, lambda box: ([box.content], None), lambda values, context: Box(*values), serialized_type_name="Box"
        )
    return _pytree


@pytest.mark.parametrize("own", [True, False])
def test_registered_types_and_keys_of_modules(own: bool, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    register()

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return {1: Scores(x + 1, [Box(x * 2), None]), "a": OrderedDict(b=x, c=x - 1)}

    x = torch.randn(3, 4)
    program = tg.optimize(Module().eval(), (x,), allow_caller=own, **FAST)
    for found in (program(x), pickle.loads(pickle.dumps(program.manifest.structure)) and program(x)):
        assert list(found) == [1, "a"] and type(found[1]) is Scores and found[1].note == "kept"
        assert type(found[1].rest[0]) is Box and found[1].rest[1] is None and type(found["a"]) is OrderedDict
        assert torch.equal(found[1].rest[0].content, x * 2) and torch.equal(found["a"]["c"], x - 1)
    assert [n for n, _, _ in program.manifest.outputs] == ["1.best", "1.rest.0.0", "a.b", "a.c"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program.save(tmp_path / "out")
    saved = tg.load_program(tmp_path / "out")(x)  # containers of other types are dicts
    assert torch.equal(saved[1]["rest"][0]["0"], x * 2) and torch.equal(saved["a"]["b"], x)
