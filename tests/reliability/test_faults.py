"""Bad values, hostile names, exploding rules, broken stores, dying children: a right result, or an error with a name.

Faults of model files are tested beside the loaders, those of the store beside the store.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs import errors
from tensor_graphs.backends import registry
from tensor_graphs.backends.tuning import worker_process
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.patterns.rule import Rule
from tensor_graphs.egraph.saturate import worker
from tensor_graphs.extract.model.pricing import Priced
from tensor_graphs.options import Options
from tensor_graphs.pipeline.context.session import Session
from tensor_graphs.pipeline.costs.prices import CostPricer
from tensor_graphs.pipeline.optimize import optimize_graph
from tensor_graphs.progress import Progress
from tensor_graphs.rules import ALL

from ..only_in import only_in

FAST: dict[str, Any] = {"backend": "numpy", "measure": False}


def normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def right(made: Any, outputs: Any, values: dict[str, Any], params: Any = None) -> None:
    """The program's results are the interpreter's, NaN and infinities in place."""
    with np.errstate(all="ignore"):
        want = evaluate(Graph.of(outputs, params=params or {}), values)
    found = made(**values)
    found = [found] if isinstance(outputs, Tensor) else list(found.values() if isinstance(found, dict) else found)
    for f, w in zip(found, want, strict=True):
        assert f.shape == w.shape and f.dtype == w.dtype
        np.testing.assert_allclose(np.asarray(f, np.float64), np.asarray(w, np.float64), 1e-4, 1e-6)


# ---------------------------------------------------------------- 10: hostile names
HOSTILE = {
    "sql": "'; DROP TABLE rows; --",
    "html": '<script>alert(1)</script>&amp;"',
    "quotes": "\"\"\"\nimport os; os.abort()\n'''\\",
    "newlines": "a\nb\r\nc\u2028d\0e",
    "format": "{x}{0.__class__}%s{{",
    "bidi": "\u202egnp.exe\u2066 ﷽ 𝕏",
    "dunder": "__class__",
    "keyword": "lambda",
    "numpy": "np",
    "path": "../../../../etc/passwd",
    "empty": "",
    "surrogate": "\udc80",
    "long": "n" * (1 << 20),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_names_are_only_names(kind: str, tmp_path: Path) -> None:
    name = HOSTILE[kind]
    x, w = tg.input(name, (2, 4)), tg.param(name, (4, 4))
    outputs = {name: tg.tanh(x) @ w, name + "2": x}
    graph = Graph.of(outputs, params={name: normal(4, 4)}, name=name)
    made = tg.optimize(graph, **FAST)
    found = made(normal(2, 4))
    np.testing.assert_allclose(found[name], np.tanh(normal(2, 4)) @ normal(4, 4), rtol=1e-5)
    assert "os.abort()" not in [line.strip() for line in made.source.splitlines()]
    compile(made.source, "program", "exec")
    for page in (made.report.html(), made.report._repr_html_(), made._repr_html_(), graph._repr_html_()):
        assert "<script>alert" not in page
    explorer = tg.saturate(graph, backend="numpy")
    assert "<script>alert" not in explorer._repr_html_() and "<script>alert" not in explorer.view.html()
    assert str(made.report) and repr(made) and repr(explorer)
    loaded = tg.load_program(made.save(tmp_path / "out"))
    assert np.array_equal(loaded(**{name: normal(2, 4)})[name], found[name])
    assert {p.name for p in tmp_path.iterdir()} == {"out"}


@pytest.mark.usefixtures("even")
def test_hostile_names_reach_the_store_as_text(tmp_path: Path) -> None:
    x = tg.input(HOSTILE["sql"], (8,))
    tg.optimize(Graph.of(tg.exp(x), name=HOSTILE["sql"]), backend="numpy", costdb=tmp_path / "db", budget=60.0)
    again = tg.optimize(tg.exp(x), backend="numpy", costdb=tmp_path / "db", budget=60.0)
    assert again.report.measured_now == 0 and again.report.priced == {"measured": 1}


# ---------------------------------------------------------------- 11: odd shapes and layouts
def chain_of(x: Tensor) -> dict[str, Tensor]:
    axis = x.rank - 1
    found = {"a": tg.tanh(x) * 2.0 + x, "same": x, "flat": x.reshape((int(np.prod(x.shape)),))}  # type: ignore[arg-type]
    if x.rank:
        found |= {"sum": tg.sum(x, axis), "t": tg.permute(x, tuple(reversed(range(x.rank)))), "c": tg.concat([x, x], 0)}
        found |= {"all": tg.sum(tg.exp(x))}
    return found


@pytest.mark.parametrize(
    "shape", [(), (0,), (3, 0), (0, 3), (2, 0, 4), (1,), (1, 1, 1), (2, 1, 2, 1, 2, 1, 2, 1), (2,) * 8]
)
def test_odd_shapes(shape: tuple[int, ...]) -> None:
    outputs = chain_of(tg.input("x", shape))
    right(tg.optimize(outputs, **FAST), outputs, {"x": np.asarray(normal(*shape) if shape else np.float32(0.3))})


def test_products_over_nothing() -> None:
    x, y = tg.input("x", (2, 0)), tg.input("y", (0, 3))
    outputs = [x @ y, tg.softmax(tg.input("z", (3, 0))), tg.sum(x, 1)]
    values = {"x": normal(2, 0), "y": normal(0, 3), "z": normal(3, 0)}
    right(tg.optimize(outputs, **FAST), outputs, values)


def test_layouts_and_aliased_inputs() -> None:
    outputs = {"a": tg.input("x", (4, 4)) @ tg.input("y", (4, 4)), "b": tg.input("x", (4, 4)) + 1.0}
    made = tg.optimize(outputs, **FAST)
    base = normal(8, 8)
    locked = normal(4, 4)
    locked.setflags(write=False)
    for x in (base[::2, ::2], base[:4, :4].T, base[3::-1, 7:3:-1], np.broadcast_to(base[:1, :4], (4, 4)), locked):
        before = x.copy()
        right(made, outputs, {"x": x, "y": x})
        assert np.array_equal(x, before)


# ---------------------------------------------------------------- 12: values that are no ordinary numbers
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -0.0, 1e-42, 3e38])
def test_special_weights(value: float) -> None:
    w = normal(6, 6)
    w[2, 3] = value
    x = tg.input("x", (4, 6))
    p = tg.param("w", (6, 6))
    outputs = {"product": x @ p, "scaled": tg.softmax(x @ p), "relu": tg.relu(p * 2.0) + tg.sum(x), "sum": tg.sum(p, 0)}
    made = tg.optimize(outputs, params={"w": w}, **FAST)
    assert made.report.verification["passed"]
    right(made, outputs, {"x": normal(4, 6)}, {"w": w})


def test_special_inputs_pass_through() -> None:
    x = tg.input("x", (8,))
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-42, 3e38, -3e38], np.float32)
    outputs = [tg.exp(x), tg.maximum(x, 0.0), tg.relu(x), -x, tg.abs(x), tg.sigmoid(x), tg.where(tg.lt(x, 0.0), x, -x)]
    made = tg.optimize(outputs, **FAST)
    right(made, outputs, {"x": special})


def test_integers_wrap_around() -> None:
    x, y = tg.input("x", (5,), "int8"), tg.input("y", (5,), "uint8")
    outputs = [x * x, x + 100, -x, tg.sum(x), y * 3, y - 1, tg.floordiv(x, 3), tg.mod(x, 3)]
    made = tg.optimize(outputs, **FAST)
    data = {"x": np.array([-128, -1, 0, 7, 127], np.int8), "y": np.array([0, 1, 2, 200, 255], np.uint8)}
    for f, w in zip(made(**data), evaluate(Graph.of(outputs), data)):
        assert np.array_equal(f, w) and f.dtype == w.dtype


# ---------------------------------------------------------------- 13, 14: rules
def test_an_unsound_rule_is_refuted_before_use() -> None:
    from tensor_graphs.rules.check.check import check

    verdict = check(Rule("zero", "mul(x, y)", "sub(x, x)", growth="collects"))
    assert verdict.status == "refuted" and verdict.counterexample


def exploding() -> Rule:
    return Rule("explode", "add(x, y)", "add(sub(add(x, y), x), x)", growth="expands", keep=True)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [(tg.Limits(nodes=200, iterations=50), "nodes"), (tg.Limits(iterations=2), "limit of rounds"),
     (tg.Limits(nodes=10**7, iterations=10**6, seconds=0.1, beam=0), "time limit")],
)  # fmt: skip
def test_exploding_rules_stop_at_a_limit(limits: tg.Limits, reason: str) -> None:
    a, b, c = (tg.input(n, (4,)) for n in "abc")
    graph = Graph.of(((a + b) + c) * (a + c))
    start = time.monotonic()
    made = optimize_graph(Session(Options(**FAST, limits=limits), own_rules=(exploding(), *ALL)), graph)
    assert reason in made.report.stopped
    assert time.monotonic() - start < 120.0
    right(made, graph.outputs[0], {n: normal(4, seed=i) for i, n in enumerate("abc")})


def test_memory_limits_are_kept() -> None:
    a, b = tg.input("a", (4,)), tg.input("b", (4,))
    limits = tg.Limits(nodes=10**8, iterations=10**6, seconds=60.0, bytes=1, beam=0)
    made = optimize_graph(Session(Options(**FAST, limits=limits), own_rules=(exploding(),)), Graph.of((a + b) * a))
    assert "memory limit" in made.report.stopped
    right(made, (a + b) * a, {"a": normal(4), "b": normal(4, seed=1)})


# ---------------------------------------------------------------- 15: nothing to choose, or all the same
def test_no_kernel_at_all_is_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    never = Priced(float("inf"), float("inf"), float("inf"), "failed")
    monkeypatch.setattr(CostPricer, "price", lambda self, found: [never for _ in found])
    with pytest.raises(errors.NoPlanError) as caught:
        tg.optimize(tg.exp(tg.input("x", (4,))), **FAST)
    assert caught.value.exit_code == 6


def test_equal_costs_are_decided_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    same = Priced(1.0, 1.0, 1.0, "measured")
    monkeypatch.setattr(CostPricer, "price", lambda self, found: [same for _ in found])
    x, y, z = (tg.input(n, (4,)) for n in "xyz")
    build = lambda: tg.optimize((x + y) * z + (y + x) * z, deterministic=True, **FAST)
    assert build().source == build().source


def test_cyclic_classes_give_acyclic_plans() -> None:
    x = tg.input("x", (4, 4))
    outputs = tg.neg(-(x * 1.0 + 0.0)) + (x.T).T - 0.0
    made = tg.optimize(outputs, **FAST)
    right(made, outputs, {"x": normal(4, 4)})


# ---------------------------------------------------------------- 16: stops
@pytest.mark.parametrize(
    "stage", ["simplify", "blocks", "saturate", "join blocks", "candidates", "extract", "build", "verify", "time"]
)
def test_a_stop_at_any_stage_keeps_a_plan(stage: str) -> None:
    progress = Progress()

    def say(now: str, message: str) -> None:
        progress.stopped = progress.stopped or now == stage

    progress.say = say
    x = tg.input("x", (8, 8))
    made = tg.optimize(tg.softmax(x @ x) + 1.0, backend="numpy", progress=progress, budget=60.0)
    right(made, tg.softmax(x @ x) + 1.0, {"x": normal(8, 8)})


def test_an_interrupt_leaves_no_children(tmp_path: Path) -> None:
    code = (
        "import signal\n"
        "import tensor_graphs as tg\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # background jobs of a shell ignore it
        "x = tg.input('x', (64, 64))\n"
        "say = lambda stage, text: print(stage, flush=True)\n"
        "for i in range(1000):\n"
        "    tg.optimize(tg.softmax(x @ x + float(i)), backend='numpy', progress=tg.Progress(say))\n"
    )
    env = {**os.environ, "TENSOR_GRAPHS_HOME": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "extract":
            break
    time.sleep(0.3)
    children = _children(process.pid)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode in (-signal.SIGINT, 130, 1)
    end = time.monotonic() + 60
    while any(_alive(c) for c in children) and time.monotonic() < end:
        time.sleep(0.05)
    assert children and not any(_alive(c) for c in children)


@pytest.mark.usefixtures("even")
def test_a_terminated_command_writes_the_best_so_far(tmp_path: Path) -> None:
    """SIGTERM once is Ctrl-C once: the plan so far is written, the exit code says so, and no child is left."""
    from tensor_graphs.models.files.native import save_graph

    x = tg.input("x", (96, 96))
    for n in range(12):
        x = tg.softmax(x @ tg.input("w", (96, 96)) + float(n), axis=1)
    save_graph(Graph.of(x), tmp_path / "model.safetensors")
    command = [sys.executable, "-m", "tensor_graphs", "optimize", "model.safetensors", "-v", "--json", "-o", "out",
               "--backend", "numpy", "--budget", "120"]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TENSOR_GRAPHS_HOME": str(tmp_path / "home")},
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("extract"):
            break
    children = _children(process.pid)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=300)
    document = json.loads(out)
    assert process.returncode in (0, 130, 143) and document["schema"] == 1
    assert (process.returncode == 0) == document["ok"], "it was done already, or says that it was stopped"
    assert tg.load_program(tmp_path / "out").input_names and children
    assert {p.name for p in tmp_path.iterdir()} == {"model.safetensors", "home", "out"}
    end = time.monotonic() + 60
    while any(_alive(c) for c in children) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(_alive(c) for c in children)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_kill_while_saving_leaves_one_program_or_the_other(tmp_path: Path) -> None:
    """The folder holds the older program or the newer one, whole; what was left beside it does not stand in the way."""
    x, w = tg.input("x", (4, 256)), tg.param("w", (256, 256))
    for scale in (1.0, 2.0):
        made = tg.optimize(x @ w, params={"w": np.full((256, 256), scale, np.float32)}, backend="numpy", measure=False)
        made.save(tmp_path / f"from_{scale:g}")
    code = (
        "import tensor_graphs as tg\n"
        "both = [tg.load_program(f'from_{s}') for s in (1, 2)]\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    for p in both: p.save('out')\n"
    )
    given = np.ones((4, 256), np.float32)
    for wait in (0.02, 0.07):
        process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        end = time.monotonic() + 120
        while not (tmp_path / "out").exists() and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(wait)
        process.kill()
        process.communicate()
        (value,) = {float(v) for v in np.unique(tg.load_program(tmp_path / "out")(given))}
        assert value in (256.0, 512.0)


def test_a_terminal_without_unicode_gets_an_answer(tmp_path: Path) -> None:
    """Locale C: reports have µ and names of any letters; text that cannot be encoded is replaced, not an error."""
    from tensor_graphs.models.files.native import save_graph

    save_graph(Graph.of(tg.exp(tg.input("größe_\u2028", (4,))), name="模型"), tmp_path / "model.safetensors")
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii",
           "TENSOR_GRAPHS_HOME": str(tmp_path / "home")}  # fmt: skip
    code = (
        "from tensor_graphs.cli.app import main\n"
        "command = 'optimize model.safetensors --backend numpy --no-measure -v -o out'.split()\n"
        "for more in ([], ['--json']):\n"
        "    try: main([*command, *more])\n"
        "    except SystemExit as end: print('code', end.code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True)
    *_, first, document, second = done.stdout.splitlines()
    assert first == second == b"code 0", done.stderr.decode("ascii", "replace")
    assert json.loads(document)["ok"]


def _children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        pytest.skip("this system does not list children")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ---------------------------------------------------------------- 19: a backend that is not there
def test_an_absent_backend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = registry.backend("torch")
    monkeypatch.setattr(type(torch), "unavailable", lambda self: "torch is not installed")
    x = tg.input("x", (4,))
    with pytest.raises(errors.DeviceUnavailableError, match="torch is not installed") as caught:
        tg.optimize(tg.exp(x), backend="torch", measure=False)
    assert caught.value.exit_code == 4 and "auto" in caught.value.hint
    used = tg.optimize(tg.exp(x), backend="auto", measure=False).report.backend
    assert used in ("numpy on cpu", "numpy + c on cpu")


def test_an_unknown_backend_is_a_usage_error() -> None:
    with pytest.raises(errors.UsageError, match="metal"):
        tg.optimize(tg.exp(tg.input("x", (4,))), backend="metal")


# ---------------------------------------------------------------- 20, 21, 25: stores and homes
@pytest.mark.parametrize("damage", ["text", "empty", "folder", "locked"])
def test_a_broken_store_does_not_stop_a_run(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, root = tg.input("x", (8,)), tmp_path / "db"
    tg.optimize(tg.exp(x), backend="numpy", costdb=root, budget=60.0)
    assert Store(root).snapshot.kernels()  # the next reader of the rows makes the cache
    files = [p for p in root.rglob("*") if p.is_file()]
    assert {".parquet", ".duckdb"} <= {p.suffix for p in files}
    for file in files:
        if damage in ("text", "empty"):
            file.write_bytes(b"" if damage == "empty" else b"this is no database" * 50)
        elif damage == "folder" and file.suffix != ".parquet":
            file.unlink()
            file.mkdir()
    holder = None
    if damage == "locked":
        monkeypatch.setitem(Store.__init__.__kwdefaults__, "wait_s", 0.2)
        duck = next((str(p) for p in files if "duck" in p.suffix), None)
        code = f"import duckdb, sys; c = duckdb.connect({duck!r}); print('held', flush=True); sys.stdin.read()"
        holder = (
            subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            if duck
            else None
        )
        if holder is not None and holder.stdout is not None:
            holder.stdout.readline()
    try:
        made = tg.optimize(tg.exp(x), backend="numpy", costdb=root, budget=60.0, again=True)
    finally:
        if holder is not None:
            holder.communicate()
    right(made, tg.exp(x), {"x": normal(8)})
    assert made.report.priced
    if damage in ("text", "folder"):
        assert made.report.warnings, "the report must say that the store was damaged"


def test_a_read_only_home_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensor_graphs import cache_folder

    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(tmp_path / "home"))
    only_in(monkeypatch, cache_folder, "os", access=lambda path, mode: "home" not in str(path))
    monkeypatch.setattr(cache_folder, "_temporary", [])
    with pytest.warns(UserWarning, match="not writable"):
        folder = cache_folder.home()
    assert folder != tmp_path / "home" and folder.is_dir()
    monkeypatch.setattr(cache_folder, "_temporary", [])
    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(tmp_path / "home"))  # the first call set another one
    made = tg.optimize(tg.exp(tg.input("x", (8,))), **FAST)
    assert any("not writable" in w for w in made.report.warnings)


def test_the_home_in_place_of_a_read_only_one_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, warnings; warnings.simplefilter('ignore')\n"
        "from tensor_graphs import cache_folder\n"
        "print(cache_folder.home(), flush=True)\n"
        "if len(sys.argv) < 2:\n"
        "    subprocess.run([sys.executable, '-c', sys.orig_argv[2], 'child'])\n"
        "    if os.fork() == 0: sys.exit()\n"
        "    os.wait(); print(cache_folder.home().is_dir())\n"
    )
    (tmp_path / "file").write_text("")
    env = {**os.environ, "TENSOR_GRAPHS_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    own, childs, there = done.stdout.split()
    assert own == childs and there == "True", "processes that it starts share it; a fork does not take it along"
    assert not list(tmp_path.glob("tensor_graphs-*"))


def test_a_store_that_cannot_be_written_does_not_stop_a_run(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    made = tg.optimize(tg.exp(tg.input("x", (8,))), backend="numpy", costdb=blocked / "db", budget=60.0)
    right(made, tg.exp(tg.input("x", (8,))), {"x": normal(8)})
    assert made.report.warnings


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: writing fails midway, as on a full disk."""
    resource = pytest.importorskip("resource", reason="needs limits on file sizes")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_while_saving_leaves_the_older_program(tmp_path: Path) -> None:
    x, w = tg.input("x", (4, 64)), tg.param("w", (64, 64))
    older, newer = (tg.optimize(x @ w, params={"w": normal(64, 64, seed=s)}, **FAST) for s in (0, 1))
    folder = older.save(tmp_path / "out")
    for target in (folder, tmp_path / "new"):
        with full_disk(1 << 13), pytest.raises(errors.UsageError, match="could not be written") as caught:
            newer.save(target)
        assert caught.value.where == str(target) and caught.value.exit_code == 2
    assert {p.name for p in tmp_path.iterdir()} == {"out"}, "nothing is left of what was begun"
    assert np.array_equal(tg.load_program(folder)(normal(4, 64)), older(normal(4, 64)))
    newer.save(folder)
    assert np.array_equal(tg.load_program(folder)(normal(4, 64)), newer(normal(4, 64)))


@pytest.mark.usefixtures("even")
def test_a_full_disk_under_the_store_does_not_stop_a_run(tmp_path: Path) -> None:
    expression = tg.exp(tg.input("x", (8,)))
    with full_disk(512):
        made = tg.optimize(expression, backend="numpy", costdb=tmp_path / "db", budget=60.0)
    right(made, expression, {"x": normal(8)})
    assert made.report.priced == {"measured": 1} and made.report.measured_now > 0
    assert any("kept in memory" in w for w in made.report.warnings)
    assert not list((tmp_path / "db").rglob("*.parquet"))
    again = tg.optimize(expression, backend="numpy", costdb=tmp_path / "db", budget=60.0)
    assert again.report.measured_now > 0 and list((tmp_path / "db").rglob("*.parquet")), "there is room again"
    assert not any("kept in memory" in w for w in again.report.warnings)


def test_a_full_disk_is_no_bug_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tensor_graphs.cli import app as cli
    from tensor_graphs.models.files.native import save_graph

    x, w = tg.input("x", (4, 64)), tg.param("w", (64, 64))
    save_graph(Graph.of(tg.exp(x) @ w, params={"w": normal(64, 64)}), tmp_path / "m.safetensors")
    for command in ("optimize", "saturate"):
        output = tmp_path / ("out" if command == "optimize" else "e.json")
        arguments = [command, str(tmp_path / "m.safetensors"), "--backend", "numpy", "-o", str(output)]
        with full_disk(1 << 11):
            code = cli.run([*arguments, *(["--no-measure"] if command == "optimize" else [])])
        assert code == 2 and "could not be written" in capsys.readouterr().err
        assert not output.exists()


@pytest.mark.usefixtures("even")
def test_an_empty_shard_is_set_aside_and_the_others_are_used(tmp_path: Path) -> None:
    x, root = tg.input("x", (8,)), tmp_path / "db"
    tg.optimize(tg.exp(x), backend="numpy", costdb=root, budget=60.0)
    first = set(root.rglob("*.parquet"))
    tg.optimize(tg.tanh(x), backend="numpy", costdb=root, budget=60.0)
    assert first and set(root.rglob("*.parquet")) > first
    for shard in first:
        shard.write_bytes(b"")
    for cache in root.rglob("*.duckdb"):
        cache.unlink()
    for expression, known in ((tg.tanh(x), True), (tg.exp(x), False)):
        made = tg.optimize(expression, backend="numpy", costdb=root, budget=60.0, again=True)
        right(made, expression, {"x": normal(8)})
        assert any("set aside" in w for w in made.report.warnings) == known, "the first to read it says so"
        assert made.report.priced == {"measured": 1}
        assert known or made.report.measured_now > 0
    assert not [p for p in root.rglob("*.parquet") if p.stat().st_size == 0 and "quarantine" not in str(p)]


def test_parallel_runs_share_a_store(tmp_path: Path) -> None:
    found: list[Any] = []

    def one(i: int) -> None:
        found.append(tg.optimize(tg.exp(tg.input("x", (8 + i,))), costdb=tmp_path / "db", **FAST))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 4 and all(p.report.verification["passed"] for p in found)


def test_two_programs_saved_to_one_folder(tmp_path: Path) -> None:
    a = tg.optimize(tg.exp(tg.input("x", (4,))), **FAST)
    b = tg.optimize(tg.input("x", (4,)) * 3.0, **FAST)
    threads = [threading.Thread(target=p.save, args=(tmp_path / "out",)) for p in (a, b) * 4]
    a.save(tmp_path / "out")
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    found = tg.load_program(tmp_path / "out")(normal(4))
    assert np.allclose(found, np.exp(normal(4))) or np.allclose(found, normal(4) * 3)


# ---------------------------------------------------------------- children that die
def test_a_dying_saturation_worker_leaves_the_graph_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    request = worker.SaturationWorker.request

    def dying(self: Any, method: str, payload: Any, bounds: Any) -> Any:
        if method == "step":
            assert self.process is not None
            self.process.kill()
            self.process.wait()
        return request(self, method, payload, bounds)

    monkeypatch.setattr(worker.SaturationWorker, "request", dying)
    x = tg.input("x", (8, 8))
    made = tg.optimize(tg.relu(x @ x) + 1.0, **FAST)
    assert "worker-died" in made.report.stopped
    assert any("worker" in w for w in made.report.warnings), made.report.warnings
    right(made, tg.relu(x @ x) + 1.0, {"x": normal(8, 8)})
    monkeypatch.undo()
    assert "saturated" in tg.optimize(tg.relu(x @ x) + 1.0, **FAST).report.stopped


def test_a_worker_that_cannot_start_leaves_the_graph_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any) -> None:
        raise errors.WorkerError("no processes left")

    monkeypatch.setattr(worker.SaturationWorker, "prepare", refuse)
    x = tg.input("x", (8, 8))
    made = tg.optimize(x @ x, **FAST)
    assert "worker-died" in made.report.stopped and any("no processes left" in w for w in made.report.warnings)


def test_a_dying_measuring_worker_gives_predicted_prices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        worker_process.CpuWorkerProcess,
        "ask",
        lambda self, job: {"ok": False, "status": "crash", "message": "ended with code -9"},
    )
    x = tg.input("x", (8, 8))
    made = tg.optimize(tg.exp(x) + 1.0, backend="numpy", costdb=tmp_path / "db", budget=60.0)
    right(made, tg.exp(x) + 1.0, {"x": normal(8, 8)})
    assert made.report.warnings and "measured" not in made.report.priced


def test_a_measuring_worker_that_cannot_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(self: Any, job: Any) -> Any:
        raise errors.WorkerError("the measuring process cannot be started")

    monkeypatch.setattr(worker_process.CpuWorkerProcess, "ask", refuse)
    x = tg.input("x", (8, 8))
    made = tg.optimize(tg.exp(x) + 1.0, backend="numpy", costdb=tmp_path / "db", budget=60.0)
    right(made, tg.exp(x) + 1.0, {"x": normal(8, 8)})
    assert any("measuring" in w for w in made.report.warnings)
