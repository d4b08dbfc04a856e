"""The command line: every command, one JSON document whatever happens, exit codes, Ctrl-C."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

import tensor_graphs as tg
from tensor_graphs import cache_folder, errors, settings
from tensor_graphs.cli import app as cli
from tensor_graphs.cli import main as command_line
from tensor_graphs.cli.console import Console
from tensor_graphs.costdb.store.store import default_root
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.models.files.native import load_graph, save_graph
from tensor_graphs.pipeline import optimize as pipeline
from tensor_graphs.rules import ALL
from tensor_graphs.writing.files import named_path

QUICK = ["--backend", "numpy", "--no-measure"]
MAIN = "import sys; from tensor_graphs.cli.app import main; main(sys.argv[1:])"
COLOUR = re.compile(r"\x1b\[[0-9;]*[1-9][0-9;]*m")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Each test has a cost store of its own and runs in its own folder."""
    folder = tmp_path / "home"
    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(folder))
    monkeypatch.setenv("TENSOR_GRAPHS_STARTER", "none")  # this fixture replaces that of conftest.py
    monkeypatch.chdir(tmp_path)
    yield folder


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A small model file: two outputs, two weights, a constant."""
    rng = np.random.default_rng(0)
    x, w, v = tg.input("x", (8, 16)), tg.param("w", (16, 16)), tg.param("v", (16, 16))
    outputs = {"y": tg.softmax((x * 0.125) @ w), "z": tg.relu(x @ v) + tg.constant(np.arange(16, dtype=np.float32))}
    params = {n: rng.standard_normal((16, 16)).astype(np.float32) for n in "wv"}
    save_graph(tg.Graph.of(outputs, params=params, name="tiny"), tmp_path / "tiny.safetensors")
    return "tiny.safetensors"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", MAIN, *arguments]


def document(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """Run in this process with --json: the exit code is as said, and stdout is exactly one document."""
    capsys.readouterr()
    assert cli.run([*arguments, "--json"]) == code
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    found: dict[str, Any] = json.loads(out)
    assert found["schema"] == 1 and found["ok"] == (code == 0)
    if code:
        assert set(found["error"]) == {"code", "message", "where", "hint"} and found["error"]["message"]
    return found


def sample(model: str) -> tuple[dict[str, np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]:
    """Inputs, and what the interpreter makes of them."""
    inputs = {"x": np.random.default_rng(1).standard_normal((8, 16)).astype(np.float32)}
    return inputs, evaluate(load_graph(model), inputs)


# ---------------------------------------------------------------- commands
def test_rules_of_ones_own(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.txt").write_text("# mine\ntwice-relu: relu(relu(relu(x))) => relu(x)\n")
    found = document(capsys, "optimize", model, *QUICK, "-o", "out", "--rules", "own.txt")
    assert found["report"]["searched"]["rules"][0]["name"] == "twice-relu"
    for text, code, message in (
        ("x - y => y - x", 2, "wrong"), ("x + y", 2, "expected"), ("foo(x) => x", 2, "foo"),
        ("(relu ?x)=>(relu (relu ?x))", 2, "Tensat"),
    ):  # fmt: skip
        Path("own.txt").write_text(text)
        found = document(capsys, "optimize", model, *QUICK, "-o", "out", "--rules", "own.txt", code=code)
        assert message in found["error"]["message"]
        assert message == "wrong" or found["error"]["where"] == "own.txt"
    assert "no folder" in document(capsys, "generate", model, "--prompt-tokens", "1", code=3)["error"]["message"]


def test_optimize_writes_a_program_that_runs_in_a_fresh_process(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "optimize", model, *QUICK, "-o", "out", "--report", "report.html")
    assert found["output"] == "out" and found["report"]["verification"]["passed"]
    assert Path("report.html").read_text().startswith("<!doctype html>")
    inputs, expected = sample(model)
    np.savez("inputs.npz", **inputs)
    code = (
        "import sys, numpy as np, tensor_graphs as tg\n"
        "found = tg.load_program('out')(**np.load('inputs.npz'))\n"
        "assert not {'egglog', 'ortools', 'torch'} & set(sys.modules), 'loading needs no search'\n"
        "np.savez('found.npz', **found)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    results = np.load("found.npz")
    for name, reference in zip(("y", "z"), expected, strict=True):
        np.testing.assert_allclose(results[name], reference, rtol=1e-5, atol=1e-6)


def test_places_for_results_are_looked_at_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the model is even opened: it does not exist."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("kept")
    for place in ("full", "full/mine.txt"):
        assert cli.run(["optimize", "nothere.onnx", "-o", str(tmp_path / place)]) == 2
        assert "not a saved program" in capsys.readouterr().err
    assert cli.run(["optimize", "nothere.onnx", "-o", str(tmp_path / "full" / "mine.txt" / "out")]) == 2
    assert "nothing can be written" in capsys.readouterr().err
    assert cli.run(["optimize", "nothere.onnx", "-o", str(tmp_path / "new"), "--report", str(tmp_path)]) == 2
    assert cli.run(["saturate", "nothere.onnx", "-o", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err
    for arguments in (["profile", "nothere.onnx", "--jobs"], ["rules", "synthesize", "--ops", "add", "-o"]):
        assert cli.run([*arguments, str(tmp_path)]) == 2
        assert "is a folder" in capsys.readouterr().err
    assert (tmp_path / "full" / "mine.txt").read_text() == "kept" and not (tmp_path / "new").exists()
    assert {p.name for p in tmp_path.iterdir()} <= {"full", "home"}, "looking leaves nothing behind"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that takes no files")
@pytest.mark.parametrize(
    "arguments", [["optimize", "x.onnx"], ["saturate", "x.onnx"], ["optimize", "x.onnx", "-o", "y", "--report"]]
)
def test_a_place_that_takes_no_files_is_found_out_at_once(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Even by root, who has every permission there."""
    where = [] if arguments[-1] == "--report" else ["-o"]
    found = document(capsys, *arguments, *where, "/proc/self/found", code=2)
    assert found["error"]["code"] == "usage" and "nothing can be written in /proc/self" in found["error"]["message"]


@pytest.mark.parametrize("module", ["tensor_graphs", "tensor_graphs.cli.app"])
def test_the_package_is_run_as_a_module(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"tensor-graphs {tg.__version__}\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib import metadata

    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"tensor-graphs {tg.__version__}\n"
    assert metadata.version("tensor-graphs") == tg.__version__


def test_optimize_as_text(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["optimize", model, *QUICK, "-v"]) == 0
    shown = capsys.readouterr()
    for label in ("e-graph", "blocks", "kernels", "proven bound", "passed", "program.py"):
        assert label in shown.out
    assert "saturate: 1 unique block of 1" in shown.err and "saturate:" not in shown.out
    assert Path("tiny-optimized", "program.py").is_file()


@pytest.mark.parametrize("name", ["e.json", "e.json.gz"])
def test_saturate_then_extract_is_optimize(model: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    whole = document(capsys, "optimize", model, *QUICK, "-o", "whole")
    written = document(capsys, "saturate", model, "--backend", "numpy", "-o", name)
    assert written["output"] == name and written["candidates"] > 0
    solved = document(capsys, "extract", name, "-o", "out")
    assert solved["cost"] == pytest.approx(whole["report"]["cost_us"])
    assert solved["optimal"] and solved["lower_bound"] <= solved["cost"] and solved["gap"] == 0
    counts = {n: k["count"] for n, k in solved["kernels"].items()}
    assert solved["unit"] == "us" and counts == whole["report"]["priced"]
    assert sum(k["us"] for k in solved["kernels"].values()) == pytest.approx(solved["cost"], abs=1)
    assert document(capsys, "explain", "out", "--steps")["blocks"][0]["verdict"] == "replayed"
    shown = document(capsys, "explain", "out")["report"]
    assert sorted((k["name"], k["count"]) for k in shown["kernels"]) == sorted(
        (k["name"], k["count"]) for k in whole["report"]["kernels"]
    )
    assert cli.run(["extract", name, "-o", "out"]) == 0
    assert f"kernels  {sum(counts.values())} bound (" in (told := capsys.readouterr().out) and "µs" in told
    inputs, expected = sample(model)
    found = tg.load_program(solved["output"])(**inputs)
    assert list(found) == ["y", "z"]
    for value, reference in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(value, reference, rtol=1e-5, atol=1e-6)


def test_extract_solves_any_egraph_of_the_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = lambda op, cost, cls, *children: {"op": op, "cost": cost, "eclass": cls, "children": list(children)}
    nodes = {
        "shared": node("s", 4, "S"), "two": node("+", 1, "R", "l", "r"), "l": node("l", 1, "L", "shared"),
        "r": node("r", 1, "T", "shared"), "one": node("1", 8, "R"),
    }  # fmt: skip
    Path("plain.json").write_text(json.dumps({"nodes": nodes, "root_eclasses": ["R"]}))
    found = document(capsys, "extract", "plain.json")
    assert found["cost"] == found["lower_bound"] == 7  # 1 + 1 + 1 + 4: what is shared is paid once
    assert found["choices"] == {"R": "two", "L": "l", "T": "r", "S": "shared"} and "kernels" not in found
    assert document(capsys, "extract", "plain.json", "-o", "out", code=2)["error"]["code"] == "usage"
    Path("cyclic.json").write_text(json.dumps({"nodes": {"a": node("f", 1, "S", "a")}, "root_eclasses": ["S"]}))
    wrong = document(capsys, "extract", "cyclic.json", code=3)["error"]
    assert wrong["code"] == "extraction" and wrong["where"] == "cyclic.json: class S"


def test_ctrl_c_keeps_the_cheapest_choice_so_far(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C during `extract` ends it with a choice, and named roots are those that it covers."""
    from tensor_graphs.extract.solve import solve as solving

    nodes = {
        n: {"op": n, "eclass": n.upper(), "children": list(children), "cost": 1}
        for n, children in (("a", ""), ("b", "a"))
    }
    (tmp_path / "e.json").write_text(json.dumps({"nodes": nodes, "root_eclasses": []}))
    real = solving.solve

    def interrupted(*args: Any, stop: Any, **named: Any) -> Any:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop()
        return real(*args, stop=stop, **named)

    assert "--root" in document(capsys, "extract", "e.json", code=3)["error"]["hint"]
    monkeypatch.setattr(solving, "solve", interrupted)
    found = document(capsys, "extract", "e.json", "--root", "B", code=130)
    assert found["error"]["code"] == "interrupted" and found["choices"] == {"B": "b", "A": "a"}
    assert "--root" in document(capsys, "extract", "e.json", "--root", "B", "-o", "out", code=2)["error"]["hint"]


def test_explain_a_program_and_a_model(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    document(capsys, "optimize", model, *QUICK, "-o", "out")
    saved = document(capsys, "explain", "out")
    assert saved["report"]["kernels"] and saved["program"]["name"] == "tiny" and saved["memory"]["cpu"] > 0
    assert cli.run(["explain", "out"]) == 0
    assert "np.matmul" in capsys.readouterr().out
    found = document(capsys, "explain", model)
    assert found["parameters"] == 512 and found["ops"]["matmul"] == 2 and found["unique_blocks"] == 1


def test_explain_lists_the_rules_that_were_applied(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    [block] = document(capsys, "explain", model, "--steps")["blocks"]
    assert block["verdict"] == "replayed" and all(o["complete"] for o in block["outputs"])
    known = {d.name for r in ALL for d in r.directions}
    assert {s["rule"] for o in block["outputs"] for s in o["steps"] if not s["rule"].startswith("definition")} <= known
    assert cli.run(["explain", model, "--steps"]) == 0
    assert "replayed" in capsys.readouterr().out


def test_explain_lists_the_rules_of_a_saved_program(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    document(capsys, "optimize", model, *QUICK, "-o", "out")
    [block] = document(capsys, "explain", "out", "--steps")["blocks"]
    assert block["verdict"] == "replayed" and block["inside"] == 0 and all(o["complete"] for o in block["outputs"])
    [of_model] = document(capsys, "explain", model, "--steps", "--backend", "numpy")["blocks"]
    assert block["outputs"] == of_model["outputs"] and block["e_nodes"] == of_model["e_nodes"]
    Path("out/origin.safetensors").unlink()
    assert (
        "does not say what it was made from"
        in document(capsys, "explain", "out", "--steps", code=2)["error"]["message"]
    )


def test_explain_of_a_damaged_program_is_a_named_error(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    document(capsys, "optimize", model, *QUICK, "-o", "out")
    for text in ("[]", "{", '{"kernels": [{"us": "x"}]}', '{"kernels": [], "blocks": [[]], "rules": {}}'):
        Path("out/report.json").write_text(text)
        assert document(capsys, "explain", "out", code=3)["error"]["code"] == "bad-model"
    good = {"kernels": [], "blocks": [], "rules": {}, "verification": None}
    for searched in (1, {"rounds": "x"}, {"limits": 1}, {"limits": {"nodes": -1}}):
        Path("out/report.json").write_text(json.dumps({**good, "searched": searched}))
        document(capsys, "explain", "out", "--steps", code=2 if searched == {"limits": {"nodes": -1}} else 3)
    Path("out/report.json").write_text(json.dumps(good))
    Path("out/origin.safetensors").write_bytes(b"nonsense")
    assert document(capsys, "explain", "out", "--steps", code=3)["error"]["code"] == "bad-weights"
    Path("out/manifest.json").write_text("{}")
    assert document(capsys, "explain", "out", code=3)["error"]["code"] == "bad-model"


def test_profile_measures_and_times_distinct_plans(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "profile", model, "--backend", "numpy", "--paths", "2", "--budget", "30")
    assert found["measured_now"] > 0 and 1 <= len(found["paths"]) <= 2
    estimates = [p["estimated_us"] for p in found["paths"]]
    assert estimates == sorted(estimates) and all(p["measured_us"] > 0 for p in found["paths"])
    assert not any(p["resumed"] for p in found["paths"]) and Path(found["times"]).is_file()


@pytest.mark.usefixtures("even")
def test_a_sweep_goes_on_where_it_ended(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensor_graphs.explorer import profile as sweep
    from tensor_graphs.pipeline.forms import choose_form

    monkeypatch.setattr(choose_form, "time_program", lambda *given: None)
    short = ("--backend", "numpy", "--budget", "60", "--workers", "1")
    monkeypatch.setattr(sweep, "interleaved", lambda pair, **given: dict.fromkeys(pair, 5.0))
    first = document(capsys, "profile", model, *short, "--paths", "1")
    file = Path(first["times"])
    known = json.loads(file.read_text())
    assert list(known.values()) == [p["measured_us"] for p in first["paths"]] == [5.0]
    monkeypatch.setattr(sweep, "interleaved", lambda pair, **given: dict.fromkeys(pair, 7.0))
    found = document(capsys, "profile", model, *short, "--paths", "3", "--resume")
    assert [p["measured_us"] for p in found["paths"] if p["resumed"]] == [5.0]
    assert all(p["resumed"] or p["measured_us"] == 7.0 for p in found["paths"])
    assert known.items() <= json.loads(file.read_text()).items()
    file.write_text("[1, 2")  # a damaged file is no file
    anew = document(capsys, "profile", model, *short, "--paths", "1", "--resume")
    assert [(p["resumed"], p["measured_us"]) for p in anew["paths"]] == [(False, 7.0)]
    assert document(capsys, "profile", model, "--paths", "0", code=2)["error"]["code"] == "usage"


@pytest.mark.parametrize(("backend", "code"), [("cuda", 4), ("triton", 4), ("metal", 2), ("", 0)])
def test_a_backend_that_is_not_there(
    model: str, backend: str, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensor_graphs.backends import registry

    for name in {backend, "torch_cuda"} & set(registry.backends()):
        monkeypatch.setattr(type(registry.backend(name)), "unavailable", lambda self: "there is no GPU")
    found = document(capsys, "optimize", model, "--backend", backend or "numpy", "--no-measure", "-o", "out", code=code)
    if code:
        assert found["error"]["code"] == {4: "device-unavailable", 2: "usage"}[code] and not Path("out").exists()
        assert (backend if code == 2 else "no GPU") in found["error"]["message"]


def test_store_commands(model: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document(capsys, "optimize", model, "--backend", "numpy", "-o", "out", "--budget", "20")
    stats = document(capsys, "db", "stats")["stats"]
    assert stats["rows"]["timing"] > 0 and stats["root"].startswith(str(home))
    assert document(capsys, "db", "failures")["failures"]["of"] == stats["keys"]
    assert document(capsys, "db", "check")["check"]["ok"]
    small = document(capsys, "db", "compact")["compact"]
    assert small["shards_before"] > 1 == small["shards_after"] and small["rows_before"] == small["rows_after"]
    assert document(capsys, "db", "stats")["stats"]["rows"] == stats["rows"]
    merged = document(capsys, "db", "merge", stats["root"], "--costdb", "other")["merge"]
    assert merged["copied"] == 1
    assert document(capsys, "db", "export", "rows.parquet", "--costdb", "other")["rows"] == sum(stats["rows"].values())
    assert document(capsys, "db", "merge", "nowhere", code=2)["error"]["code"] == "cost-store"
    for command in (
        "stats",
        "failures",
        "accuracy",
        "check",
        "page",
        "compact",
        "export x.parquet",
        "export-starter x",
        "push team",
    ):
        error = document(capsys, "db", *command.split(), "--costdb", "mistyped", code=2)["error"]
        assert error["code"] == "cost-store" and error["where"] == "mistyped"
    with settings.override(costdb="unused"):
        assert not document(capsys, "db", "stats")["stats"]["keys"]
    assert not Path("mistyped").exists() and not Path("unused").exists()
    (starter,) = document(capsys, "db", "export-starter", "starter", "--costdb", "other")["files"]
    assert starter["device"].startswith("cpu:") and 0 < starter["rows"] <= sum(stats["rows"].values())
    assert (
        document(capsys, "db", "export-starter", "starter", "--costdb", "empty", code=2)["error"]["code"]
        == "cost-store"
    )
    held_out = [one["held_out"] for one in document(capsys, "db", "accuracy", "--costdb", "other")["accuracy"]["found"]]
    assert held_out == ["kernels", "calls", "schedules", "roofline"]


def test_rules_list_and_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    rules = document(capsys, "rules", "list")["rules"]
    assert len(rules) >= 70 and all(r["name"] and r["doc"] and r["family"] for r in rules)
    found = document(capsys, "doctor")
    assert found["tensor_graphs"] == tg.__version__ and "numpy" in found["backends"] and found["device"]


# ---------------------------------------------------------------- failures
def test_usage_errors(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["nonsense"], ["optimize"], ["optimize", model, "--budget", "x"], ["optimize", model, "--dim", "n"],
        ["optimize", model, "--backend", "nonsense"], ["optimize", model, "--tolerance", "wide", *QUICK],
        ["extract", "e.json", "--nonsense"], ["saturate", model, *QUICK[:2], "-o", f"{model}/e.json"],
    ):  # fmt: skip
        assert document(capsys, *arguments, code=2)["error"]["code"] == "usage"


@pytest.mark.parametrize(
    "arguments",
    [
        ("optimize", "tiny.safetensors", "--dim", "N=--3"), ("optimize", "tiny.safetensors", "--dim", "N=²"),
        ("optimize", "tiny.safetensors", "--fix", "N=" + "9" * 5000), ("generate", "x", "--prompt-tokens", "9" * 5000),
        ("generate", "x", "--prompt-tokens", "--3"), ("db", "export", "/"), ("db", "export-starter", "x", "--megabytes", "inf"),
        ("optimize", "tiny.safetensors", "--memory-limit", "-inf"), ("optimize", "tiny.safetensors", "-o", "/"),
        ("measure", "jobs.jsonl", "-o", "shards", "--fleet", "127.0.0.1:99999"), ("db", "push", "--team", "~nouser/x"),
        ("kernels", "list", "~nouser/x"),
    ],
)  # fmt: skip
def test_odd_numbers_and_paths_are_usage_errors(
    model: str, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    if "--fleet" in arguments:
        pytest.importorskip("ray", reason="the fleet extra is not installed")
    Path("jobs.jsonl").write_text("{}")
    assert cli.run([*arguments, "--json"]) not in (0, 1)
    assert json.loads(capsys.readouterr().out)["schema"] == 1


def path_options(command: Any) -> set[str]:
    """The long options of a command and its subcommands whose values are paths."""
    own = [p for p in command.params if p.type_descriptor.annotation in (Path, list[Path])]
    found = {name for p in own for name in p.opts if name.startswith("--")}
    return found.union(*map(path_options, getattr(command, "commands", {}).values()))


def test_the_home_folder_is_put_in_where_the_shell_does_not(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a folder "~" was made in the current one."""
    monkeypatch.setenv("HOME", str(user := tmp_path / r"us\1er"))
    user.mkdir()
    for name in path_options(get_command(cli.app)):
        assert cli._in_home(f"{name}=~/a") == f"{name}={user}/a"
    commands = [("optimize", model, "--rules=~/no"), ("explain", "~/no.onnx"), ("db", "stats", "--costdb=~/no")]
    for arguments in commands:
        assert cli.run([*arguments, "--json"])
        assert str(user) in json.loads(capsys.readouterr().out)["error"]["where"]
    with settings.override(home=str(tmp_path), costdb="~no.such.user/costs"):  # there is no such user
        assert default_root() == Path("~no.such.user/costs")
    with settings.override(home="~/cache", costdb="~/costs"):
        assert (cache_folder.home(), default_root()) == (user / "cache", user / "costs")
    assert named_path("~/out") == user / "out" and named_path("~out") == Path("~out")


def test_bad_models(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("cut.safetensors").write_bytes(Path(model).read_bytes()[:100])
    Path("junk.onnx").write_bytes(b"\x00" * 64)
    Path("code.pt2").write_bytes(b"PK")
    Path("empty").mkdir()
    for name in ("missing.onnx", "cut.safetensors", "junk.onnx", "empty", "code.pt2"):
        error = document(capsys, "optimize", name, *QUICK, code=3)["error"]
        assert name.split(".")[0] in error["where"] + error["message"]
    Path("e.json").write_text('{"nodes": {}, "root_eclasses": ["a"]}')
    assert document(capsys, "extract", "e.json", code=3)["error"]["code"] == "extraction"


def test_unavailable_backend(model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from tensor_graphs.backends import registry

    found = registry.backend("torch")
    monkeypatch.setattr(type(found), "unavailable", lambda self: "not today")
    error = document(capsys, "optimize", model, "--backend", "torch", code=4)["error"]
    assert error["code"] == "device-unavailable" and "not today" in error["message"]


@pytest.mark.parametrize(
    ("error", "code"),
    [(errors.VerificationError("off"), 5), (errors.NoPlanError("none"), 6), (errors.WorkerError("dead"), 1),
     (ZeroDivisionError("oh"), 1), (EOFError("marshal data too short"), 1), (KeyboardInterrupt(), 130), (MemoryError(), 3),
     (errors.UnsupportedError("ops", missing={"Foo": 2}), 3)],
)  # fmt: skip
def test_errors_become_exit_codes(
    error: BaseException, code: int, model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        print("a library's chatter")
        raise error

    monkeypatch.setattr(pipeline, "optimize", fail)
    found = document(capsys, "optimize", model, code=code)["error"]
    assert code != 1 or "report" in found["hint"] or isinstance(error, errors.WorkerError)
    assert cli.run(["optimize", model]) == code
    assert "Traceback" not in capsys.readouterr().err or (code == 1 and not isinstance(error, errors.WorkerError))


def test_numbers_that_json_cannot_hold_become_null(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tensor_graphs.cli.explain.doctor", lambda: {"a": float("nan"), "b": np.float32(2), "c": (1, {2})}
    )
    assert document(capsys, "doctor") | {"schema": 1} == {"schema": 1, "ok": True, "a": None, "b": 2.0, "c": [1, [2]]}


def test_a_closed_pipe_is_no_error() -> None:
    run = subprocess.run(
        f"{sys.executable} -c '{MAIN}' rules list | head -n 1; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout.split()[-1] == "0" and "Error" not in run.stderr


def test_names_in_files_do_not_control_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    x = tg.input("\x1b]0;owned\x07\r\u202e[/x]", (2, 3))
    save_graph(Graph.of({"o": tg.exp(x)}, name="\x1b[2J"), tmp_path / "m.safetensors")
    codes = [cli.run(["explain", str(tmp_path / name)]) for name in ("m.safetensors", "no\x9b.onnx")]
    out, err = capsys.readouterr()
    assert codes == [0, 3] and r"\x1b]0;owned\x07\r\u202e[/x]" in out and r"no\x9b.onnx" in err
    assert not {"\x1b", "\x07", "\r", "\u202e", "\x9b"} & {*out, *err}


class _Gone(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_an_error_keeps_its_code_where_nobody_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", _Gone())
    Console(verbose=True).say("stage", "progress that nobody reads ends no command")
    assert cli.run(["explain", "missing.onnx"]) == 3
    monkeypatch.setattr(sys, "stdout", _Gone())
    assert cli.run(["explain", "missing.onnx", "--json"]) == 3


@pytest.mark.skipif(os.name != "posix", reason="closes descriptors with a shell")
def test_closed_standard_streams_are_the_null_device() -> None:
    closed = "0<&- 1>&- 2>&-"
    run = subprocess.run(f"{sys.executable} -c '{MAIN}' generate missing --prompt-tokens 1 {closed}", shell=True)
    assert run.returncode == 3


@pytest.mark.skipif(os.name != "posix", reason="removes the current folder")
def test_a_removed_current_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gone").mkdir()
    with contextlib.chdir(tmp_path):
        os.chdir("gone")
        (tmp_path / "gone").rmdir()
        assert document(capsys, "db", "stats")["ok"]
        relative = document(capsys, "db", "export", "all.parquet", "--costdb", str(tmp_path / "store"), code=2)
    assert "current folder" in relative["error"]["message"] or relative["error"]["where"]


# ---------------------------------------------------------------- terminal and signals
@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals and signals of POSIX")
@pytest.mark.parametrize("no_color", [False, True])
def test_progress_goes_to_the_terminal_and_no_color_is_honoured(
    model: str, no_color: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import pty

    ours, theirs = pty.openpty()
    for name in ("NO_COLOR", "FORCE_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    shown = bytearray()

    def listen() -> None:
        with contextlib.suppress(OSError):  # Linux's way to say that the other end was closed
            while piece := os.read(ours, 4096):
                shown.extend(piece)

    listener = threading.Thread(target=listen)
    listener.start()
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        code = cli.run(["optimize", model, *QUICK, "-o", "out"])
    listener.join()
    os.close(ours)
    out = capsys.readouterr().out
    assert code == 0 and "proven bound" in out and "\x1b" not in out
    assert any(stage in shown for stage in (b"starting", b"saturate", b"candidates", b"extract", b"verify"))
    assert bool(COLOUR.search(shown.decode())) != no_color


def interrupted(model: str, at: str, times: int, *more: str) -> tuple[int, str, str]:
    """Exit code and output of an optimization that gets SIGINT (its whole group, as from a terminal) at a stage."""
    process = subprocess.Popen(
        command("optimize", model, "--backend", "numpy", "-o", "out", "-v", "--json", *more),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None and process.stdout is not None
    message = ""
    for line in process.stderr:
        message += line
        if times and (line.startswith(at) or "stopping" in line):
            times -= 1
            os.killpg(process.pid, signal.SIGINT)
    return process.wait(), process.stdout.read(), message


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals and signals of POSIX")
def test_ctrl_c_keeps_the_best_plan(model: str) -> None:
    """Other stages, verification too: tests/pipeline/test_budget.py."""
    code, out, message = interrupted(model, "saturate", 1)
    assert code == 130 and "stopping" in message
    found = json.loads(out)
    assert found["error"]["code"] == "interrupted" and found["output"] == "out" and not found["ok"]
    inputs, expected = sample(model)
    for value, reference in zip(tg.load_program("out")(**inputs).values(), expected, strict=True):
        np.testing.assert_allclose(value, reference, rtol=1e-5, atol=1e-6)


def test_ctrl_c_while_commands_are_imported_has_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Importing(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "tensor_graphs.cli.app", Importing("app"))
    with pytest.raises(SystemExit) as left:
        command_line(["doctor", "--json"])
    said = capsys.readouterr()
    assert left.value.code == 130 and said.err == "interrupted\n"
    assert json.loads(said.out)["error"]["code"] == "interrupted"


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals and signals of POSIX")
def test_ctrl_c_twice_quits(model: str) -> None:
    code, out, _ = interrupted(model, "extract: round 1", 2)
    assert code in (130, -signal.SIGINT) and not Path("out").exists()
    assert not out or json.loads(out)["error"]["code"] == "interrupted"


def test_long_stages_say_that_they_still_run(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(verbose=False)
    console.say("verify", "")
    console.beat()
    console._begun -= 21
    console.say("verify", "another input")
    console.beat()
    console.say("time", "")
    console.beat()
    console._begun -= 21
    console.say("", "")
    console.beat()
    assert capsys.readouterr().err == "verify: another input (21 s so far)\n"
