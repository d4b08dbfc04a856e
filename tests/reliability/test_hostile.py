"""Hostile files by the hundred for every reader, from a fixed seed: read, or refused by name. And links, signals and
odd files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends.program.program_folder import refuse_occupied
from tensor_graphs.cli import app as cli
from tensor_graphs.errors import BadModelError, BadWeightsError, TensorGraphsError, UsageError
from tensor_graphs.models.huggingface.load import load_folder
from tensor_graphs.models.load import FORMATS
from tensor_graphs.models.random_checkpoints import write_checkpoint
from tensor_graphs.plain import Malformed, Within, decode, read_bytes

from ..fuzz.commands import findings
from ..fuzz.hostile import corpus, nest
from ..fuzz.readers import CONFIG, READERS, Bench


@pytest.mark.parametrize("name", READERS)
def test_hostile_files_are_read_or_refused_by_name(name: str, tmp_path: Path) -> None:
    bench = Bench(name, tmp_path)
    for content in bench.good:
        assert not bench.read(content)
    for content in corpus(bench.good, 120, seed=1):
        message = bench.read(content)
        assert not message, f"{content[:300]!r}\n{message}"


def test_every_untrusted_model_format_has_a_reader() -> None:
    assert {suffix.removeprefix(".") for suffix, f in FORMATS.items() if not f.runs_code} <= set(READERS)


def test_commands_end_with_one_document_and_a_documented_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On odd paths and hostile files."""
    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(tmp_path / "home"))
    cases = list(findings(tmp_path, 5, seed=3))
    assert len(cases) > 80 and [case for case in cases if case[1]] == []


# ---------------------------------------------------------------- names
NAMELESS = ["a\0b", "lone \ud800 surrogate", "x" * 300, "/".join(["d"] * 3000), 5, b"bytes", ["a"]]


@pytest.mark.parametrize("name", NAMELESS, ids=lambda name: repr(name)[:12])
def test_names_that_no_file_can_have_are_refused(name: Any, tmp_path: Path) -> None:
    """The message can be printed, too."""
    y = tg.exp(tg.input("x", (4,)))
    program = tg.optimize(y, budget=0, backend="numpy", measure=False)
    place = f"{tmp_path}/{name}" if isinstance(name, str) else name
    entries: dict[str, Callable[[], Any]] = {
        "load": lambda: tg.load(place),
        "save": lambda: program.save(place),
        "load_program": lambda: tg.load_program(place),
        "extract": lambda: tg.extract(place),
        "save_graph": lambda: tg.save_graph(tg.Graph.of(y), place),
        "costdb": lambda: tg.optimize(y, budget=0, backend="numpy", costdb=place),
        "Generator": lambda: tg.Generator(place),
    }
    for entry, call in entries.items():
        with pytest.raises(TensorGraphsError) as raised:
            call()
        assert str(raised.value).encode(), entry


def test_a_manifest_without_a_weight_of_its_program_is_named(tmp_path: Path) -> None:
    y = tg.input("x", (4,)) + tg.param("w", (4,))
    tg.optimize(y, params={"w": np.ones(4, np.float32)}, budget=0, backend="numpy", measure=False).save(tmp_path / "p")
    manifest = tmp_path / "p" / "manifest.json"
    changed = json.loads(manifest.read_text())
    changed["weights"][0][0] = "other"
    manifest.write_text(json.dumps(changed))
    with pytest.raises(BadWeightsError, match="'w', which its manifest does not list"):
        tg.load_program(tmp_path / "p")(np.ones(4, np.float32))


# ---------------------------------------------------------------- decoding
def test_decoding_names_the_place() -> None:
    kind = dict[str, tuple[str, list[Annotated[int, Within(0, 9)]]]]
    assert decode(kind, {"a": ["x", [1, 9]]}) == {"a": ("x", [1, 9])}
    wrong: list[tuple[Any, str]] = [
        ([], "an object"), ({"a": 1}, "a: a list of 2"), ({"a": ["x", [True]]}, r"a\[1\]\[0\]: a whole number"),
        ({"a": ["x", [10]]}, r"a\[1\]\[0\]: a number within"), ({"a": ["x", [10**5000]]}, "within"), ({"a": [1, []]}, r"a\[0\]: a text"),
    ]  # fmt: skip
    for value, message in wrong:
        with pytest.raises(Malformed, match=message):
            decode(kind, value)
    assert decode(float | None, 3) == 3.0 and decode(Literal["cpu", "cuda"], "cpu") == "cpu"
    for kind_, value in (
        (float, float("nan")),
        (float, 10**400),
        (int, 1.0),
        (Literal["cpu"], "gpu"),
        (str, nest(900)),
    ):
        with pytest.raises(Malformed):
            decode(kind_, value)


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "program.py")
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(BadModelError, match="not a saved program"):
        tg.load_program(tmp_path)
    with pytest.raises(Malformed, match="not a plain file"):
        read_bytes(tmp_path / "program.py", 10)
    with pytest.raises(UsageError, match="is not a saved program"):
        refuse_occupied(tmp_path / "program.py")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(Malformed, match="has more than"):
            read_bytes(tmp_path / "sparse", 1 << 26)
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


def changed(folder: Path, **values: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    "values",
    [{"structure": 7}, {"structure": -1}, {"structure": True}, {"structure": nest(100, 1)}, {"structure": {"tuple": [0, 5]}},
     {"structure": {"set": [0]}}, {"device": "cuda:9"}, {"device": 3}, {"cost": "1"}, {"workspace": -1}, {"workspace": 10**400},
     {"inputs": [["x", ["9" * 5000], "float32"]]}, {"inputs": [["x", ["(" * 3000], "float32"]]}, {"inputs": [["x", [4], "float128"]]},
     {"outputs": {}}, {"sizes": {"n": [4, 1, 2]}}, {"sizes": {"1n": [1, 4, 2]}}, {"weights": [["w", [1 << 61], "float32"]]}, {"name": None}],
    ids=range(19),
)  # fmt: skip
def test_wrong_manifests_are_bad_models(values: dict[str, Any], tmp_path: Path) -> None:
    program = tg.optimize(tg.exp(tg.input("x", (4,))), backend="numpy", budget=5.0, measure=False)
    folder = program.save(tmp_path / "p")
    changed(folder, **values)
    with pytest.raises(BadModelError, match=r"manifest\.json is malformed"):
        tg.load_program(folder)


def test_weights_that_were_replaced_are_not_read(tmp_path: Path) -> None:
    import numpy as np

    def saved(k: int) -> Path:
        w = np.full((4, 4), k, np.float32)
        found = tg.optimize(
            tg.input("x", (2, 4)) @ tg.param("w", (4, 4)), params={"w": w}, backend="numpy", budget=5.0, measure=False
        )
        return found.save(tmp_path / "p")

    program = tg.load_program(saved(1))
    saved(2)
    with pytest.raises(BadWeightsError, match="replaced or written"):
        program(np.ones((2, 4), np.float32))


# ---------------------------------------------------------------- links out of a model's folder
def test_links_of_a_hugging_face_cache_are_followed_and_others_are_not(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--x--y"
    write_checkpoint(tmp_path / "plain", CONFIG)
    snapshot = repository / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for i, name in enumerate(("config.json", "model.safetensors")):
        (tmp_path / "plain" / name).rename(repository / "blobs" / str(i))
        (snapshot / name).symlink_to(Path("../../blobs") / str(i))
    assert load_folder(snapshot).params
    other = tmp_path / "other"
    other.mkdir()
    for i, name in enumerate(("config.json", "model.safetensors")):
        (other / name).symlink_to(repository / "blobs" / str(i))
        with pytest.raises(BadModelError, match="outside the model's folder"):
            load_folder(other)
        (other / name).unlink()
        (other / name).symlink_to(other / f"copy{i}")
        (other / f"copy{i}").write_bytes((repository / "blobs" / str(i)).read_bytes())
    assert load_folder(other).params, "links within the folder are no matter"
    (other / "model.safetensors").unlink()
    (other / "model.safetensors").symlink_to(repository / "blobs" / "1")
    assert tg.load(other, trust=True).params


# ---------------------------------------------------------------- signals and exit codes
def test_a_bad_shard_is_told_by_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tg.optimize(tg.exp(tg.input("x", (8,))), backend="numpy", costdb=tmp_path / "db", budget=10.0)
    shard = next((tmp_path / "db").rglob("*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-9])
    capsys.readouterr()
    for code in (2, 0):
        assert cli.run(["db", "check", "--costdb", str(tmp_path / "db"), "--json"]) == code
        found = json.loads(capsys.readouterr().out)
        assert found["ok"] == (code == 0) and "check" in found


def test_sigterm_while_starting_ends_with_a_code_and_one_document(tmp_path: Path) -> None:
    """While modules are imported; later: `test_a_terminated_command_writes_the_best_so_far`."""
    from tensor_graphs.egraph.ir.graph import Graph

    x = tg.input("x", (4, 64))
    tg.save_graph(Graph.of(tg.softmax(tg.exp(x) * 2.0)), tmp_path / "m.safetensors")
    command = [
        sys.executable,
        "-m",
        "tensor_graphs",
        "optimize",
        str(tmp_path / "m.safetensors"),
        "-o",
        str(tmp_path / "out"),
        "--json",
    ]
    child = subprocess.Popen([*command, "--budget", "20"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(0.3)
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate(timeout=300)
    assert child.returncode in (0, 130, 143, -signal.SIGTERM)
    if child.returncode != -signal.SIGTERM:
        assert json.loads(out)["ok"] == (child.returncode == 0)
    assert {p.name for p in tmp_path.iterdir()} <= {"m.safetensors", "out"}
    if (tmp_path / "out").exists():
        tg.load_program(tmp_path / "out")


def test_sigterm_outside_of_a_search_is_143(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensor_graphs.cli.console import Terminated

    def end(*_: Any) -> None:
        raise Terminated

    monkeypatch.setattr("tensor_graphs.cli.explain.doctor", end)
    assert cli.run(["doctor", "--json"]) == 143
    assert json.loads(capsys.readouterr().out)["error"]["message"] == "terminated"


def test_a_saturation_over_an_older_one_is_both_files_or_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensor_graphs.explorer import egraph_file

    one, two = (tg.saturate(f(tg.input("x", (4,))), backend="numpy", budget=5.0) for f in (tg.exp, tg.tanh))
    path = tmp_path / "e.json"
    egraph_file.write(path, one)
    monkeypatch.setattr(
        egraph_file, "write_egraph", lambda *a, **k: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(TensorGraphsError, match="could not be written"):
        egraph_file.write(path, two)
    found = egraph_file.read(path)
    assert found.record is not None and found._model(found.record).outputs
    assert {p.name for p in tmp_path.iterdir()} == {"e.json", "e.model.safetensors"}
