"""Programs: calling, states, outputs, saving, loading in a fresh process, errors."""

from __future__ import annotations

import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
import tensor_graphs.egraph.builders.builders as t
from tensor_graphs import settings
from tensor_graphs.backends.program import bound_program, stored_weights
from tensor_graphs.backends.program import weights as program_weights
from tensor_graphs.backends.program.manifest import Manifest
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.program.saved_program import load_program
from tensor_graphs.backends.program.stored_weights import StoredWeights
from tensor_graphs.backends.program.weights import EvaluatedWeights, SharedWeights
from tensor_graphs.backends.registry import backend, select
from tensor_graphs.backends.runtime.heap import trim
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import topological
from tensor_graphs.egraph.types.dtypes import numpy_dtype
from tensor_graphs.errors import BadModelError, BadWeightsError, ShapeError, UsageError

TORCH = not backend("torch").unavailable()
CHOICES = ["numpy", *(["torch"] if TORCH else [])]


def backends(choice: str) -> list:
    return [backend("numpy")] if choice == "numpy" else [backend("torch"), backend("numpy")]


def encoder() -> tuple[Graph, dict[str, np.ndarray]]:
    x = t.input("x", (2, 8, 16))
    w, b, g = t.param("layer.0/w", (16, 16)), t.param("b", (16,)), t.param("g", (16,))
    h = c.gelu(c.linear(x, w, b))
    q = t.permute(t.reshape(h, (2, 8, 4, 4)), (0, 2, 1, 3))
    a = c.softmax(t.matmul(q, t.transpose(q)) * 0.5, axis=3)
    o = t.reshape(t.permute(t.matmul(a, q), (0, 2, 1, 3)), (2, 8, 16))
    graph = Graph.of({"y": c.layer_norm(o + x, g, b, eps=1e-5), "largest": t.max(h, axis=-1)}, name="encoder")
    rng = np.random.default_rng(0)
    sizes = {"layer.0/w": (16, 16), "b": (16,), "g": (16,)}
    return graph, {n: rng.standard_normal(s).astype(np.float32) for n, s in sizes.items()}


@pytest.mark.parametrize("choice", CHOICES)
def test_a_program_computes_its_graph(choice: str) -> None:
    graph, params = encoder()
    program = Program(direct_plan(graph, backends(choice)), params)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((2, 8, 16)).astype(np.float32)
        found = program(x)
        want = evaluate(graph, {"x": x}, params=params, float64=True)
        assert list(found) == ["y", "largest"]
        for a, b in zip(found.values(), want):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("space", [(9,), (5, 6), (4, 5, 3)], ids=len)
def test_pools_over_any_number_of_axes(choice: str, space: tuple[int, ...]) -> None:
    """Kernels that write channels innermost are asked for that layout only where they apply."""
    n = len(space)
    x = np.random.default_rng(0).standard_normal((2, 4, *space)).astype(np.float32)
    window = {"kernel": (2,) * n, "strides": (1,) * n, "pads": (0,) * n + (1,) * n, "dilations": (1,) * n}
    graph = Graph.of([pool(t.input("x", x.shape), **window) for pool in (c.max_pool, c.avg_pool)])
    found = Program(direct_plan(graph, backends(choice))).flat(x)
    for got, want in zip(found, evaluate(graph, {"x": x}, float64=True), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("choice", CHOICES)
def test_outputs_are_fresh_unless_reused(choice: str) -> None:
    graph, params = encoder()
    x = np.ones((2, 8, 16), np.float32)
    plan = direct_plan(graph, backends(choice))
    program = Program(plan, params)
    first, second = program(x), program(2 * x)
    assert not np.shares_memory(first["y"], second["y"])
    assert not np.array_equal(first["y"], second["y"])
    reusing = Program(plan, params, reuse_outputs=True)
    kept = reusing(x)["y"].copy()
    np.testing.assert_allclose(kept, first["y"], rtol=1e-5)


@pytest.mark.parametrize("choice", CHOICES)
def test_what_runs_backwards_is_handed_from_torch_to_numpy_and_back(choice: str) -> None:
    """Torch's tensors have no negative strides: neither what Torch made itself, nor on axes of one element."""
    x, w = t.input("x", (3, 1, 4, 8)), t.param("w", (1, 1, 8, 8))
    backwards = t.flip(c.attention(x, x, x, scale=0.5, causal=False), 0)
    graph = Graph.of([t.matmul(backwards[0:1], w), t.matmul(t.flip(x, 0)[1:2], w), backwards])
    rng = np.random.default_rng(0)
    params, given = {"w": rng.standard_normal(w.shape, np.float32)}, rng.standard_normal(x.shape, np.float32)
    found = Program(direct_plan(graph, backends(choice)), params).flat(given)
    for got, want in zip(found, evaluate(graph, {"x": given}, params=params, float64=True), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_outputs_that_are_inputs_or_weights_are_copies() -> None:
    x, w = t.input("x", (4,)), t.param("w", (4,))
    program = Program(
        direct_plan(Graph.of([x, w, t.reshape(x, (2, 2)), x]), [backend("numpy")]), {"w": np.ones(4, np.float32)}
    )
    given = np.arange(4, dtype=np.float32)
    results = program(given)
    for r in results:
        r += 1
    np.testing.assert_array_equal(given, np.arange(4))
    np.testing.assert_array_equal(program(given)[1], 1)
    assert not np.shares_memory(results[0], results[3])


def test_states_are_updated_in_place() -> None:
    x, s, _u = t.input("x", (4,)), t.state("s", (4,)), t.state("u", (4,))
    graph = Graph.of([(s + x) * 2.0, s], updates={"s": s + x, "u": s})
    program = Program(direct_plan(graph, [backend("numpy")]))
    ones = np.ones(4, np.float32)
    program.bind()
    place = program.states["s"].ctypes.data
    for step in range(3):
        doubled, before = program(ones)
        assert doubled[0] == 2 * (step + 1) and before[0] == step
        assert program.states["s"][0] == step + 1 and program.states["u"][0] == step
    assert program.states["s"].ctypes.data == place
    program.reset()
    assert not program.states["s"].any()


def test_a_cache_is_written_where_it_lies() -> None:
    k, i, x = t.state("k", (6, 4)), t.input("i", (1, 4), "int64"), t.input("x", (1, 4))
    program = Program(
        direct_plan(Graph.of(x * 2.0, updates={"k": t.scatter_elements(k, i, x, 0)}, inputs=[x, i]), [backend("numpy")])
    )
    for row in range(3):
        program(x=np.full((1, 4), row + 1, np.float32), i=np.full((1, 4), row))
    np.testing.assert_array_equal(program.states["k"][:, 0], [1, 2, 3, 0, 0, 0])
    assert "np.copyto" not in program.source.partition("def run")[2]


def test_a_state_that_is_read_after_its_update_keeps_its_old_value() -> None:
    """The new value is computed first: writing it where the state lies would give the later reader the wrong
    version."""
    k, i, x = t.state("k", (6, 4)), t.input("i", (1, 4), "int64"), t.input("x", (1, 4))
    new = t.scatter_elements(k, i, x, 0)
    total = t.sum(new, (0, 1), keepdims=True)
    graph = Graph.of({"old": t.exp(k * total), "new": total}, updates={"k": new}, inputs=[x, i])
    plan = direct_plan(graph, [backend("numpy")])
    order = [s.template.name for s in plan.steps]
    assert order.index("np.scatter_elements") < order.index("np.mul")  # the state's reader comes second
    program, state = Program(plan), np.zeros((6, 4), np.float32)
    for row in range(3):
        values = {"x": np.full((1, 4), row + 1, np.float32), "i": np.full((1, 4), row), "k": state}
        old, total_now, state = evaluate(graph, values)
        got = program(x=values["x"], i=values["i"])
        np.testing.assert_allclose(got["old"], old)
        np.testing.assert_array_equal(got["new"], total_now)
        np.testing.assert_array_equal(program.states["k"], state)
    assert "np.copyto" in program.source.partition("def run")[2]  # written at the end of a call


def test_programs_share_states_and_weights() -> None:
    s, x, w = t.state("s", (4,)), t.input("x", (4,)), t.param("w", (4,))
    weights = {"w": np.arange(4, dtype=np.float32)}
    graphs = (
        Graph.of(x * w, updates={"s": s + x}, params=weights, inputs=[x]),
        Graph.of(s * w, updates={"u": s * 2.0}, params=weights),
    )
    writer, reader = (Program(direct_plan(g, [backend("numpy")])) for g in graphs)
    states: dict[str, Any] = {"s": np.ones(4, np.float32)}
    pool = SharedWeights()
    assert writer.share(states, pool) is writer and pool.held(reader._weights) == 16
    reader.share(states, pool)
    assert set(states) == {"s", "u"} and reader.states["s"] is writer.states["s"] is states["s"]
    writer(np.full(4, 2, np.float32))
    np.testing.assert_array_equal(reader(), 3 * weights["w"])
    np.testing.assert_array_equal(states["u"], 6)
    writer.reset()
    assert states["s"][0] == 3  # states of others are left alone
    with pytest.raises(ShapeError, match=r"state 's' is float32\[4\], the shared one float64\[2\]"):
        writer.share({"s": np.ones(2)})


def test_weights_of_a_pool_are_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a program that was bound with them lives, for another one of a pool, and for one that joins another
    pool."""
    x, w = t.input("x", (2, 64)), t.param("w", (64, 64))
    graph = Graph.of(x @ t.exp(w), params={"w": np.eye(64, dtype=np.float32)})
    pool, evaluated, plain = SharedWeights(), list[str](), EvaluatedWeights.__getitem__
    monkeypatch.setattr(EvaluatedWeights, "__getitem__", lambda self, key: evaluated.append(key) or plain(self, key))
    first, second = (Program(direct_plan(graph, [backend("numpy")])).pooled(pool) for _ in range(2))
    given = np.ones((2, 64), np.float32)
    want, whole = first(given), first.memory_by_kind()["weights"]
    assert len(evaluated) == 1 and second.missing_bytes() == sum(second.memory_by_kind().values()) - whole
    np.testing.assert_array_equal(second(given), want)
    first.unbind()
    second.share({}, SharedWeights())
    np.testing.assert_array_equal(second(given), want)
    assert len(evaluated) == 1
    second.unbind()
    first(given)  # the pool has let go of what no program holds
    assert len(evaluated) == 2


def test_a_pool_keeps_its_weights_when_it_adopts_another() -> None:
    """Else programs that join one after another would each hold a copy."""
    x, w = t.input("x", (2, 64)), t.param("w", (64, 64))
    graph = Graph.of(x @ t.exp(w), params={"w": np.eye(64, dtype=np.float32)})
    first, second = (Program(direct_plan(graph, [backend("numpy")])) for _ in range(2))
    pool = SharedWeights()
    first.share({}, pool)
    own = dict(pool._known)
    second.pooled(SharedWeights()).bind()
    second.share({}, pool)
    assert own and all(pool._known[key] is weight for key, weight in own.items())


def test_seconds_of_preparing_count_what_expands_weights() -> None:
    x, w = t.input("x", (64, 64)), t.param("w", (64, 64))
    graphs = [Graph.of(x * y, params={"w": np.eye(64, dtype=np.float32)}) for y in (w, t.exp(w))]
    plain, expanded = (Program(direct_plan(g, [backend("numpy")])).preparing_s() for g in graphs)
    assert expanded > 4 * plain > 0


def test_seconds_of_preparing_count_weights_on_the_device_that_computes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = t.input("x", (2, 512)), t.param("w", (512, 512), "int8")
    graph = Graph.of(x @ (t.cast(w, "float32") * 0.5), params={"w": np.ones((512, 512), np.int8)})
    program = Program(direct_plan(graph, [backend("numpy")])).pooled(SharedWeights())
    here = program.preparing_s()
    monkeypatch.setattr(Program, "tensors", "cuda")
    assert 0 < program.preparing_s() < here / 10
    monkeypatch.setattr(SharedWeights, "holds", lambda *_: True)
    assert program.preparing_s() == 0


def test_two_states_may_swap() -> None:
    a, b = t.state("a", (3,)), t.state("b", (3,))
    program = Program(direct_plan(Graph.of(a + b, updates={"a": b, "b": a}), [backend("numpy")])).bind()
    program.states["a"][:] = 1
    program()
    assert program.states["a"][0] == 0 and program.states["b"][0] == 1


@pytest.mark.skipif(not TORCH, reason="PyTorch is not installed")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_in_torch_out(dtype: str) -> None:
    import torch

    x = t.input("x", (4, 4), dtype)
    program = Program(direct_plan(Graph.of(t.tanh(x) + x), backends("torch")))
    given = torch.randn(4, 4, dtype=getattr(torch, dtype))
    found = program(given.t())
    assert isinstance(found, torch.Tensor) and found.dtype == given.dtype
    torch.testing.assert_close(found, torch.tanh(given.t()) + given.t(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("choice", CHOICES)
def test_saved_programs_run_in_a_fresh_process_without_a_search(tmp_path: Path, choice: str) -> None:
    """The emitted source of the one in NumPy also without this package, before it is imported."""
    graph, params = encoder()
    program = Program(direct_plan(graph, backends(choice)), params)
    x = np.random.default_rng(1).standard_normal((2, 8, 16)).astype(np.float32)
    want = program(x)["y"]
    np.save(tmp_path / "x.npy", x)
    program.save(tmp_path / "p")
    program.save(tmp_path / "p")
    assert sorted(f.name for f in (tmp_path / "p").iterdir()) == [
        "check.json",
        "manifest.json",
        "program.py",
        "weights.safetensors",
    ]
    assert sorted(f.name for f in tmp_path.iterdir()) == ["p", "x.npy"]
    emitted = (
        "import sys, numpy as np\nfrom safetensors.numpy import load_file\n"
        "space = {}\nexec(open('p/program.py').read(), space)\n"
        "np.save('emitted.npy', space['bind'](load_file('p/weights.safetensors'))(np.load('x.npy'))[0])\n"
        "assert not {'tensor_graphs', 'torch'} & set(sys.modules), 'emitted source has imported a package'\n"
    ) * (choice == "numpy")
    script = (
        "import sys, numpy as np; from tensor_graphs.backends.program.saved_program import load_program\n"
        "np.save('y.npy', load_program('p')(np.load('x.npy'))['y'])\n"
        "assert not {'egglog', 'ortools', 'duckdb'} & set(sys.modules), 'a search was loaded'\n"
        "others = {f'tensor_graphs.{n}' for n in ('backends.c.backend', 'backends.cuda.backend', 'numeric')}\n"
        "assert not others & set(sys.modules), 'backends or functions on arrays were loaded'"
    )
    subprocess.run([sys.executable, "-c", emitted + script], cwd=tmp_path, check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), want)
    if choice == "numpy":
        np.testing.assert_array_equal(np.load(tmp_path / "emitted.npy"), want)


def test_structures_survive_saving(tmp_path: Path) -> None:
    from dataclasses import replace

    x = t.input("x", (2,))
    graph = replace(Graph.of([x + 1.0, x * 2.0]), structure={"a": [0, (1,)], "b": 1})
    program = Program(direct_plan(graph, [backend("numpy")]))
    program.save(tmp_path / "p")
    a, b = program(np.ones(2, np.float32)), load_program(tmp_path / "p")(x=np.ones(2, np.float32))
    assert type(b["a"]) is list and type(b["a"][1]) is tuple and b["b"][0] == 2 == a["b"][0]


def test_inputs_are_checked_by_name() -> None:
    graph, params = encoder()
    program = Program(direct_plan(graph, [backend("numpy")]), params)
    with pytest.raises(ShapeError, match=r"input 'x' is float64\[2, 8, 16\], not float32"):
        program(np.ones((2, 8, 16)))
    with pytest.raises(ShapeError, match=r"\[2, 8\]"):
        program(np.ones((2, 8), np.float32))
    for senseless in ("a", ["1"] * 8, [None], object(), {1: 2}, [1, [2, 3]], 1j):
        with pytest.raises(UsageError, match="input 'x' cannot be a"):
            program(senseless)
    with pytest.raises(UsageError, match="missing"):
        program()
    with pytest.raises(UsageError, match="called"):
        program(z=1)
    with pytest.raises(UsageError, match="twice"):
        program(np.ones((2, 8, 16), np.float32), x=1)
    with pytest.raises(UsageError, match="2 inputs given"):
        program(1, 2)


def test_missing_and_wrong_weights_are_named() -> None:
    graph, params = encoder()
    plan = direct_plan(graph, [backend("numpy")])
    with pytest.raises(UsageError, match=r"layer\.0/w"):
        Program(plan, {n: a for n, a in params.items() if n != "layer.0/w"}).bind()
    with pytest.raises(BadWeightsError, match="'b'"):
        Program(plan, {**params, "b": np.ones(3, np.float32)}).bind()
    program = Program(plan, params)
    x = np.ones((2, 8, 16), np.float32)
    before = program(x)["y"]
    program.bind({"g": params["g"] * 2})
    assert not np.array_equal(program(x)["y"], before)
    with pytest.raises(UsageError, match=r"no param or state is called \['gain'\]"):
        program.bind({"gain": params["g"]})


@pytest.mark.parametrize(
    "data", [np.full((3, 3), 5), np.ones((3, 3)), np.ones((3, 2), np.float32), [[1] * 3] * 3, None, "w"]
)
def test_weights_of_another_type_are_refused_and_nothing_changes(data: Any) -> None:
    """Integers were computed with as integers: w * 0.3 was 0."""
    x, w = t.input("x", (2, 3)), t.param("w", (3, 3))
    program = Program(direct_plan(Graph.of([x @ (w * 0.3)]), [backend("numpy")]), {"w": np.eye(3, dtype=np.float32)})
    given = np.ones((2, 3), np.float32)
    before = program(given)
    with pytest.raises((UsageError, ShapeError), match=r"its data|unknown dtype"):
        program.bind({"w": data})
    np.testing.assert_array_equal(program(given), before)


def test_a_cache_past_its_end_is_named() -> None:
    k, at, x = t.state("k", (2, 3)), t.state("at", (1, 3), "int64"), t.input("x", (1, 3))
    new = t.scatter_elements(k, at, x, 0)
    graph = Graph.of(t.sum(new, 0), updates={"k": new, "at": at + 1})
    program = Program(direct_plan(graph, [backend("numpy")]))
    for _ in range(2):
        program(np.ones((1, 3), np.float32))
    with pytest.raises(UsageError, match="past the end of an axis: index 2") as caught:
        program(np.ones((1, 3), np.float32))
    assert "reset()" in caught.value.hint
    program.reset()
    assert program(np.ones((1, 3), np.float32)).tolist() == [1, 1, 1]


def test_states_are_named() -> None:
    s = t.state("s", (2,))
    program = Program(direct_plan(Graph.of(s * 2.0, updates={"s": s + 1.0}), [backend("numpy")]))
    assert program.get_state("s").tolist() == [0, 0]  # bound when first asked
    program.set_state("s", [3, 4])
    assert program().tolist() == [6, 8]
    for call in (lambda: program.get_state("q"), lambda: program.set_state("q", 1)):
        with pytest.raises(UsageError, match="no state is called"):
            call()
    with pytest.raises(ShapeError, match="state 's'"):
        program.set_state("s", np.ones(3))


def test_damaged_programs_are_refused(tmp_path: Path) -> None:
    graph, params = encoder()
    program = Program(direct_plan(graph, [backend("numpy")]), params)
    with pytest.raises(BadModelError):
        load_program(tmp_path / "nothing")
    folder = program.save(tmp_path / "p")
    (folder / "program.py").write_text(program.source + "\nprint('changed')\n")
    with pytest.raises(BadModelError, match=r"not the file that was saved") as caught:
        load_program(folder)
    assert caught.value.where == str(folder)
    for text, message in (("{", "malformed"), ("{}", "it has no 'schema'")):
        (program.save(folder) / "manifest.json").write_text(text)
        with pytest.raises(BadModelError, match=message):
            load_program(folder)
    (program.save(folder) / "program.py").unlink()
    with pytest.raises(BadModelError, match=r"it has no program\.py"):
        load_program(folder)
    program.save(folder)
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:40])
    with pytest.raises(BadWeightsError):
        load_program(folder)(np.ones((2, 8, 16), np.float32))
    weights.unlink()
    with pytest.raises(BadWeightsError, match="missing"):
        load_program(folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("mine")
    with pytest.raises(UsageError):
        program.save(tmp_path / "other")


def test_a_failed_save_leaves_nothing(tmp_path: Path) -> None:
    graph, params = encoder()
    program = Program(direct_plan(graph, [backend("numpy")]), {n: a for n, a in params.items() if n != "b"})
    with pytest.raises(UsageError):
        program.save(tmp_path / "p")
    assert list(tmp_path.iterdir()) == []


def test_calls_from_several_threads_wait_for_each_other() -> None:
    graph, params = encoder()
    program = Program(direct_plan(graph, [backend("numpy")]), params)
    inputs = [np.full((2, 8, 16), i, np.float32) for i in range(8)]
    want = [program(x)["y"] for x in inputs]
    found: dict[int, np.ndarray] = {}
    run = lambda i: found.update({i: [program(inputs[i])["y"] for _ in range(20)][-1]})
    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(8):
        np.testing.assert_array_equal(found[i], want[i])


def test_memory_is_known_before_anything_is_allocated() -> None:
    graph, _ = encoder()
    program = Program(direct_plan(graph, [backend("numpy")]))
    weights = (16 * 16 + 16 + 16) * 4
    assert weights < program.memory()["cpu"] < weights + 20 * 2 * 4 * 8 * 8 * 4


def test_names_that_are_no_identifiers_or_clash_with_ours() -> None:
    names = ["np", "1x", "lambda", "a b", "memory", "run", "erf", "weights", "x\n import os"]
    inputs = [t.input(n, (2,)) for n in names]
    total = inputs[0]
    for x in inputs[1:]:
        total = t.erf(total) + x
    program = Program(direct_plan(Graph.of(total, inputs=inputs, name='"""\nimport os\n'), [backend("numpy")]))
    values = {n: np.full(2, i, np.float32) for i, n in enumerate(names)}
    want = evaluate(program.plan.graph, values, float64=True)[0]
    np.testing.assert_allclose(program(**values), want, rtol=1e-6)


def test_the_null_backend_runs_everything() -> None:
    graph, params = encoder()
    program = Program(direct_plan(graph, [backend("null")]), params)
    assert program(np.ones((2, 8, 16), np.float32))["y"].shape == (2, 8, 16)


def test_select_is_explicit_about_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensor_graphs.errors import DeviceUnavailableError

    assert [b.name for b in select("numpy")] == ["numpy"]
    with pytest.raises(UsageError, match="no backend is called"):
        select("nonsense")
    monkeypatch.setattr(type(backend("torch")), "unavailable", lambda self: "broken")
    with pytest.raises(DeviceUnavailableError, match="broken"):
        select("torch")
    assert [b.name for b in select("auto") if b.name != "c"] == ["numpy"]


@pytest.mark.skipif(not TORCH, reason="PyTorch is not installed")
def test_two_thread_pools_are_not_mixed() -> None:
    """Beside Torch, NumPy offers no kernel on its own threaded BLAS, and still every atomic op has a kernel."""
    from tensor_graphs.egraph.ops.ops import OPS
    from tensor_graphs.egraph.patterns.pattern import PatternCall

    templates = [x for b in select("auto") for x in b.templates]
    threaded = [x.name for x in templates if x.backend == "numpy" and x.family in ("contraction", "conv", "attention")]
    assert not threaded
    assert {op for op, entry in OPS.items() if entry.arity and not entry.composite} <= {
        x.term.op for x in templates if isinstance(x.term, PatternCall)
    }


def test_repr_html_escapes() -> None:
    x = t.input("x", (2,))
    program = Program(direct_plan(Graph.of(x + 1.0, name="<b>"), [backend("numpy")]))
    assert "<b><b>" not in program._repr_html_() and "kernels" in program._repr_html_()


@pytest.mark.parametrize("plain", [True, False])
def test_a_weight_is_widened_and_turned_in_one_copy(plain: bool) -> None:
    data = np.random.default_rng(0).standard_normal((1 << 14, 64)).astype(np.float16)
    weight = t.param("w", data.shape, "float16")
    terms = {"a": t.transpose(weight.astype("float32")), "b": t.transpose(weight).astype("float32")}
    held = EvaluatedWeights(terms, {"w": data}, frozenset(terms) if plain else frozenset())
    for key in terms:
        tracemalloc.start()
        made = held[key]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        np.testing.assert_array_equal(made, data.T.astype(np.float32))
        assert made.dtype == np.float32 and (made if plain else made.T).flags.c_contiguous
        assert peak < 1.25 * made.nbytes


def test_a_cast_that_rounds_is_made_where_it_stands() -> None:
    """Only widening casts may be left for the last."""
    data = np.array([[1.0, 2.0**-12 + 1.0]], np.float32)
    weight = t.param("w", (1, 2))
    term = t.transpose(weight.astype("bfloat16").astype("float32"))
    np.testing.assert_array_equal(EvaluatedWeights({"w": term}, {"w": data}, frozenset({"w"}))["w"], [[1.0], [1.0]])


def test_a_program_that_lets_go_gives_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, params = encoder()
    program = Program(direct_plan(graph, backends("numpy")), params)
    x = np.ones((2, 8, 16), np.float32)
    before, calls = program(x)["y"], []
    monkeypatch.setattr(bound_program, "trim", lambda: calls.append(program._run))
    program.unbind()
    assert calls == [None], "after what it held is free"
    np.testing.assert_array_equal(program(x)["y"], before)
    trim()


# ---------------------------------------------------------------- weights
def _moves() -> Iterator[tuple[str, Any, bool]]:
    """Terms in bfloat16 over a param in bfloat16, and whether they only move it about."""
    w = t.param("w", (6, 4), "bfloat16")
    wide, narrow = t.cast(w, "float32"), lambda x: t.cast(x, "bfloat16")
    yield "turned", narrow(t.transpose(wide)), True
    yield "side by side", narrow(t.concat([wide[0:2], t.reshape(wide, (6, 4))], axis=0)), True
    yield "widened twice", narrow(t.cast(t.transpose(wide), "float64")), True
    yield "scaled", narrow(t.transpose(wide) * 1.5), False
    yield "beside another", narrow(t.concat([wide, wide + 0.25], axis=1)), False
    yield "by way of fewer bits", narrow(t.cast(t.cast(wide, "float16"), "float32")), False


@pytest.mark.parametrize(("name", "term", "moves"), _moves())
def test_weights_that_are_only_moved_about_are_not_cast(
    name: str, term: Any, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = np.random.default_rng(0).standard_normal((6, 4)).astype(numpy_dtype("bfloat16"))
    seen: list[Any] = []
    monkeypatch.setattr(
        program_weights, "evaluate", lambda terms, *a, **k: seen.extend(terms) or evaluate(terms, *a, **k)
    )
    found = program_weights.EvaluatedWeights({"k": term}, {"w": w}, frozenset(["k"]))["k"]
    np.testing.assert_array_equal(found, evaluate([term], {}, params={"w": w})[0])
    assert found.dtype == w.dtype and found.flags.c_contiguous
    assert moves == all(node.op != "cast" for node in topological(seen))


ALONE = """
import importlib.abc, sys
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name[0] != "_" and name.partition(".")[0] not in {"numpy", *sys.stdlib_module_names}:
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
import numpy as np
space = {"__name__": "alone"}
exec(open(sys.argv[1] + "/program.py", encoding="utf-8").read(), space)
values = dict(np.load(sys.argv[1] + "/values.npz"))
x, want = values.pop("x"), values.pop("want")
(found,) = space["bind"](values)(x)
np.testing.assert_allclose(found, want, rtol=1e-5)
"""


@pytest.mark.parametrize("name", ["numpy", "c"])
def test_the_source_of_a_saved_program_needs_numpy_alone(name: str, tmp_path: Path) -> None:
    """NumPy's kernels, and generated ones in C, which the program compiles."""
    x, w = t.input("x", (8, 16)), t.param("w", (16,))
    weights = {"w": np.arange(16, dtype=np.float32)}
    graph = Graph.of(t.exp(x * 0.1) + w, params=weights, inputs=[x])
    given = {"backend": name, "budget": 5.0, "measure": False, "deterministic": True}
    program = tg.optimize(graph, costdb=tmp_path / "costs", **given)
    values = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    folder = program.save(tmp_path / "program")
    kept = {key: program._weights[key] for key in program._weights}
    assert ("C_SOURCE" in program.source) == (name == "c")
    np.savez(folder / "values.npz", x=values, want=program(values), **kept)
    done = subprocess.run([sys.executable, "-c", ALONE, str(folder)], capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr


@pytest.mark.parametrize("damage", ["end", "swap", "bit"])
def test_damaged_weights_are_not_loaded_without_a_word(tmp_path: Path, damage: str) -> None:
    path, kept = tmp_path / "weights.safetensors", {"a": np.arange(5000.0), "b": np.arange(7, dtype=np.int8)}
    specs = [("a", (5000,), "float64"), ("b", (7,), "int8")]
    stored_weights.write_weights(path, specs, kept)
    assert all((StoredWeights(path, specs)[key] == kept[key]).all() for key in kept)
    assert (pytest.importorskip("safetensors.numpy").load_file(path)["a"] == kept["a"]).all()
    raw = bytearray(path.read_bytes())
    start = len(raw) - 7 - 40_000
    if damage == "end":
        raw[-400:-7] = bytes(393)
    elif damage == "swap":
        raw[start : start + 8192] = raw[start + 4096 : start + 8192] + raw[start : start + 4096]
    else:
        raw[start + 20_000] ^= 1
    path.write_bytes(raw)
    assert (StoredWeights(path, specs)["b"] == kept["b"]).all()
    for read in (lambda w: w["a"], lambda w: w.on_device("cpu")["a"]):
        with pytest.raises(BadWeightsError, match="is damaged"):
            read(StoredWeights(path, specs))
    with settings.override(check_weights=0):
        assert StoredWeights(path, specs)["a"].shape == (5000,)
    buffers = [np.empty(size, np.uint8) for size in (8192, 8192, 5000)]
    with pytest.raises(BadWeightsError, match="is damaged"):
        list(StoredWeights(path, specs).stored("a").pieces(buffers[:2]))
    with pytest.raises(ValueError, match="5000 bytes are not of whole pages"):
        list(StoredWeights(path, specs).stored("a").pieces(buffers[2:]))


def test_a_gpu_copies_stored_weights_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As carefully as arrays are read from it."""
    torch, save = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch").save_file
    whole = {"a": torch.randn(3, 5).bfloat16(), "b": torch.arange(4)}
    save(whole, tmp_path / "weights.safetensors")
    specs = [("a", (3, 5), "bfloat16"), ("b", (4,), "int64"), ("c", (1,), "int64"), ("b", (5,), "int64")]
    manifest = Manifest("stored", (), (), None, tuple(specs[:2]), (), 0, 0, 1, 0.0, 0.0, device="cuda")
    program = Program.from_saved(manifest, "", StoredWeights(tmp_path / "weights.safetensors", specs[:3]), None, "cuda")
    monkeypatch.setattr(Program, "check_free_memory", lambda self: None)
    copied = stored_weights.uploaded_file
    monkeypatch.setattr(stored_weights, "uploaded_file", lambda data, device: copied(data, "cpu"))
    monkeypatch.setattr(program, "source", "def bind(weights, states=None, device='cpu'): return {**weights}.get")
    with pytest.raises(BadWeightsError, match="'c' cannot be read"):
        program.bind()
    program._weights = stored = StoredWeights(tmp_path / "weights.safetensors", specs[:2])
    run = program.bind()._run
    assert run is not None and all(torch.equal(run(name), x) for name, x in whole.items())
    there = stored.on_device("cpu")
    with pytest.raises(BadWeightsError, match="does not list"):
        there["c"]
    with pytest.raises(BadWeightsError, match=r"'b' is int64\[4\], not int64\[5\]"):
        StoredWeights(tmp_path / "weights.safetensors", specs[3:]).on_device("cpu")["b"]
    save(whole, tmp_path / "other")
    (tmp_path / "other").replace(tmp_path / "weights.safetensors")
    with pytest.raises(BadWeightsError, match="was replaced"):
        there["a"]
