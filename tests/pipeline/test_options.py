"""Options of the public functions: declared once, validated, shown in signatures and docstrings."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.errors import BadModelError, RuleError, TensorGraphsError, UsageError
from tensor_graphs.explorer.explorer import Explorer
from tensor_graphs.options import CommonOptions, Options, PathOptions, SaturateOptions

COMMON = {"params": None, "dims": None, "backend": None, "limits": None, "budget": 60.0, "costdb": None,
          "memory_limit": None, "error_budget": None, "effort": 1, "quantize": None, "rules": (), "kernels": ()}  # fmt: skip
SATURATE = COMMON | {"tolerance": "eager", "progress": None, "example_kwargs": None, "trust": False}
OPTIMIZE = SATURATE | {"fixed": False, "dynamic_shapes": None, "verify": True, "measure": True, "deterministic": False,
                       "seed": 0, "again": False, "complete_checks": True, "allow_caller": True, "size_buckets": None}  # fmt: skip
PATHS = COMMON | {"count": 10, "max_gap": 0.5, "diversity": 0.0}


@pytest.mark.parametrize(
    ("function", "options", "wanted"),
    [(tg.optimize, Options, OPTIMIZE), (tg.saturate, SaturateOptions, SATURATE), (tg.paths, PathOptions, PATHS)],
)
def test_signatures_and_help_of_public_functions(function: Any, options: type, wanted: dict[str, Any]) -> None:
    parameters = inspect.signature(function).parameters
    assert list(parameters)[:2] == ["source", "example_inputs"] and parameters["example_inputs"].default is None
    keywords = {n: p.default for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert keywords == wanted == {f.name: f.default for f in fields(options)}
    doc = inspect.getdoc(function) or ""
    assert all(f"`{name}`: " in doc for name in wanted)
    with pytest.raises(
        TypeError,
        match=rf"{function.__name__}\(\) got an unexpected keyword argument 'bakend'\. Did you mean 'backend'\?$",
    ):
        function(tg.input("x", (4,)), bakend="c")
    with pytest.raises(TypeError, match=r"argument 'zzz'$"):
        function(tg.input("x", (4,)), zzz=1)


def test_the_package_lists_its_public_names_only() -> None:
    names = dir(tg)
    assert {"optimize", "Rule", "exp", "errors", "__version__"} <= set(names)
    assert not {"Any", "ModuleType", "TYPE_CHECKING", "annotations", "sys"} & set(names)
    assert all(hasattr(tg, name) for name in names)


def test_what_is_no_saved_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, message in (
        ("none", "there is no folder 'none'"),
        ("file", "'file' is not a folder"),
        (".", "no manifest.json"),
    ):
        with pytest.raises(BadModelError, match=message):
            tg.load_program(tmp_path / path)


def test_every_option_is_documented_and_validated() -> None:
    for option in fields(Options):
        assert option.metadata["doc"].endswith(".") and callable(option.metadata["check"]), option.name


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [({"backend": 3}, "a name"), ({"budget": "60"}, "a number of seconds"), ({"budget": -1}, "from 0 on"),
     ({"budget": math.nan}, "from 0 on"), ({"seed": -1}, "from 0 on"), ({"seed": 1.0}, "an integer"),
     ({"limits": {"nodes": 3}}, "tg.Limits"), ({"costdb": 3}, "a folder"), ({"memory_limit": "1 GB"}, "a number from 0 on"),
     ({"error_budget": "small"}, "a number"), ({"effort": 1.5}, "an integer"), ({"effort": -1}, "from 0 on"), ({"tolerance": "rough"}, "eager"),
     ({"verify": "no"}, "True or False"), ({"params": [1.0]}, "a dict by name"), ({"dims": 3}, "a dict by name"),
     ({"fixed": "T"}, "a dict by name")],
)  # fmt: skip
def test_a_wrong_value_has_a_named_error(wrong: dict[str, Any], hint: str) -> None:
    with pytest.raises(UsageError) as seen:
        Options(**wrong)
    assert hint in f"{seen.value.message} {seen.value.hint}"


WRONG: list[Any] = [True, -1, math.nan, "x", b"x", [1], {1: 2}, object(), np.array([1, 2]), np.float32(-1), 1j, int,
                    10**400, Fraction(10**400), -(10**400), "k" + "9" * 5000, "c1@" + "9" * 5000]  # fmt: skip


def of_expression(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **given: call(tg.exp(tg.input("x", (tg.dim("n"), 4))), **{"backend": "numpy", "budget": 0.0, **given})


def equal(**given: Any) -> bool:
    y = tg.exp(tg.input("x", (3,)))
    return tg.equivalent(y, y + 0.0, **given)


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    return tg.saturate(tg.exp(tg.input("x", (3,))) + 1.0, backend="numpy", budget=1)


def test_no_value_of_an_option_raises_an_unnamed_error(
    explorer: Explorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some values name files and folders
    y = tg.exp(tg.input("x", (3,)))
    calls: list[tuple[Callable[..., Any], tuple[str, ...]]] = [
        (Options, tuple(OPTIMIZE)), (PathOptions, tuple(PATHS)), (tg.Limits, ("nodes", "iterations", "seconds", "bytes", "beam", "slack")),
        (of_expression(tg.optimize), ("dims", "rules", "progress")), (of_expression(tg.saturate), ("dims", "rules")),
        (of_expression(tg.pareto), ("tolerances", "budget", "dims")), (equal, ("dims", "limits")),
        (lambda **given: tg.explain_equality(y, y, **given), ("limits",)), (explorer.what_if, ("forbid", "pin", "cost", "seconds")),
        (lambda **given: tg.dim(**{"name": "n", **given}), ("name", "min", "max")),
    ]  # fmt: skip
    accepted = []
    for call, names in calls:
        for name in names:
            for value in WRONG:
                try:
                    call(**{name: value})
                except TensorGraphsError:
                    continue
                accepted.append((name, value))
    assert not [(name, value) for name, value in accepted if isinstance(value, float) and name != "dynamic_shapes"]


def test_rules_are_tested_before_the_model_is_loaded() -> None:
    with pytest.raises(RuleError):
        tg.optimize("no-such-file.onnx", rules=[tg.Rule("wrong", "a - b", "b - a")])


def test_options_that_do_not_decide_the_plan_are_not_part_of_its_key() -> None:
    known = Options().deciding()
    for name, value in {"budget": 3.0, "again": True, "verify": False, "allow_caller": False}.items():
        assert Options(**{name: value}).deciding() == known, name
    for name, value in {"seed": 1, "effort": 0, "tolerance": "fast", "memory_limit": 9.0}.items():
        assert Options(**{name: value}).deciding() != known, name
    assert Options(backend=None).deciding() == Options(backend="auto").deciding()
    assert set(CommonOptions(effort=2).common()) == set(COMMON)
