"""Programs for a GPU, run on Torch's CPU tensors (the same source, without a CUDA graph); on a GPU where there is
one."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.program.launch.emission import device_of, emit_for
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.program.saved_program import load_program
from tensor_graphs.backends.registry import backend, backends
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.cli.explain import explain
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.types.dtypes import numpy_dtype
from tensor_graphs.errors import DeviceFaultError, DeviceMemoryError, DeviceUnavailableError, ShapeError, UsageError
from tensor_graphs.extract.model.plan import Plan
from tensor_graphs.wording import spelled_bytes

from .test_program import encoder

torch = pytest.importorskip("torch")

CUDA = backend("torch_cuda")
NO_GPU = CUDA.unavailable()
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU or "")])]
everywhere = pytest.mark.parametrize("device", DEVICES)


def plan(graph: Graph) -> Plan:
    return direct_plan(graph, [CUDA])


@everywhere
def test_a_program_computes_its_graph(device: str) -> None:
    graph, params = encoder()
    program = Program(plan(graph), params, device=device)
    for seed in range(4):
        x = np.random.default_rng(seed).standard_normal((2, 8, 16)).astype(np.float32)
        want = evaluate(graph, {"x": x}, params=params, float64=True)
        for a, b in zip(program(x).values(), want):
            assert isinstance(a, np.ndarray)
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@everywhere
def test_tensors_in_tensors_out_where_they_lie(device: str) -> None:
    graph, params = encoder()
    program = Program(plan(graph), params, device=device)
    x = torch.randn(8, 2, 16).transpose(0, 1)
    want = program(x.numpy())["y"]
    for given in (x, x.to(device), x.clone().requires_grad_()):
        found = program(given)["y"]
        assert found.device.type == given.device.type and not found.requires_grad
        np.testing.assert_allclose(found.cpu(), want, rtol=1e-5, atol=1e-5)


@everywhere
def test_outputs_are_fresh_unless_reused(device: str) -> None:
    graph, params = encoder()
    x = torch.ones((2, 8, 16), device=device)
    program = Program(plan(graph), params, device=device)
    results = [program(x * i)["y"] for i in (1, 2, 3, 1)]
    assert len({r.data_ptr() for r in results}) == 4
    torch.testing.assert_close(results[0], results[3], rtol=0, atol=0)
    assert not torch.equal(results[0], results[1])
    reusing = Program(plan(graph), params, reuse_outputs=True, device=device)
    reusing(x)
    places = {reusing(x * i)["largest"].data_ptr() for i in (2, 3)}
    assert len(places) == 1
    torch.testing.assert_close(reusing(x)["y"], results[0])


@everywhere
def test_outputs_that_are_inputs_weights_or_views_are_copies(device: str) -> None:
    x, w = t.input("x", (4,)), t.param("w", (4,))
    for reuse in (False, True):
        program = Program(
            plan(Graph.of([x, w, t.reshape(x, (2, 2)), x])),
            {"w": np.ones(4, np.float32)},
            device=device,
            reuse_outputs=reuse,
        )
        given = torch.arange(4.0, device=device)
        for r in program(given):
            r += 1
        torch.testing.assert_close(given, torch.arange(4.0, device=device))
        torch.testing.assert_close(program(given)[1], torch.ones(4, device=device))
        torch.testing.assert_close(program(given)[0], given)


@everywhere
def test_states_are_updated_in_place(device: str) -> None:
    x, s, _u = t.input("x", (4,)), t.state("s", (4,)), t.state("u", (4,))
    graph = Graph.of([(s + x) * 2.0, s], updates={"s": s + x, "u": s})
    program = Program(plan(graph), device=device)
    ones = np.ones(4, np.float32)
    program.bind()
    place = program.states["s"].data_ptr()
    for step in range(4):
        doubled, before = program(ones)
        assert doubled[0] == 2 * (step + 1) and before[0] == step
        assert program.get_state("s")[0] == step + 1 and program.get_state("u")[0] == step
    assert program.states["s"].data_ptr() == place
    program.set_state("s", 5 * ones)
    assert program(ones)[0][0] == 12
    program.reset()
    assert not program.get_state("s").any()


@everywhere
def test_a_state_that_no_kernel_reads_is_written_where_it_lies(device: str) -> None:
    """As the logits of a decode step, which a sampler reads: a copy would be a kernel more."""
    x, _s = t.input("x", (2, 3)), t.state("s", (2, 3))
    program = Program(plan(Graph.of(x * 2.0, updates={"s": x + 1.0}, inputs=[x])), device=device)
    assert "s.copy_" not in program.source
    for n in (1.0, 2.0):
        assert program(np.full((2, 3), n, np.float32)).tolist() == [[2 * n] * 3] * 2
        assert (program.get_state("s") == n + 1).all()


@everywhere
def test_two_states_may_swap(device: str) -> None:
    a, b = t.state("a", (3,)), t.state("b", (3,))
    program = Program(plan(Graph.of(a + b, updates={"a": b, "b": a})), device=device).bind()
    program.set_state("a", np.ones(3, np.float32))
    program()
    assert program.get_state("a")[0] == 0 and program.get_state("b")[0] == 1


@everywhere
def test_a_cache_is_written_where_it_lies(device: str) -> None:
    k, i, x = t.state("k", (6, 4)), t.input("i", (1, 4), "int64"), t.input("x", (1, 4))
    program = Program(
        plan(Graph.of(x * 2.0, updates={"k": t.scatter_elements(k, i, x, 0)}, inputs=[x, i])), device=device
    )
    for row in range(3):
        program(x=np.full((1, 4), row + 1, np.float32), i=np.full((1, 4), row))
    np.testing.assert_array_equal(program.get_state("k")[:, 0], [1, 2, 3, 0, 0, 0])
    assert ".copy_(" not in program.source.partition("def launch")[2].partition("def ")[0]


@everywhere
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int32", "bool"])
def test_other_dtypes_come_and_go(device: str, dtype: str) -> None:
    from tensor_graphs.egraph.types import dtypes

    x, w = t.input("x", (3, 4), dtype), t.param("w", (3, 4), dtype)
    values = (np.arange(12) % 5).reshape(3, 4).astype(dtypes.numpy_dtype(dtype))
    program = Program(plan(Graph.of([t.maximum(x, w), t.transpose(x)])), {"w": values[::-1]}, device=device)
    found = program(values)
    assert found[0].dtype == values.dtype
    np.testing.assert_array_equal(found[0], np.maximum(values, values[::-1]))
    np.testing.assert_array_equal(found[1], values.T)


@everywhere
def test_a_fresh_process_runs_emitted_source_without_this_package_and_saved_programs_without_a_search(
    tmp_path: Path, device: str
) -> None:
    graph, params = encoder()
    program = Program(plan(graph), params, device=device)
    x = np.random.default_rng(1).standard_normal((2, 8, 16)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    program.save(tmp_path / "p")
    script = (
        "import sys, numpy as np, torch\nfrom safetensors.numpy import load_file\n"
        "space = {}\nexec(open('p/program.py').read(), space)\n"
        f"run = space['bind'](load_file('p/weights.safetensors'), device={device!r})\n"
        f"x = torch.ones((2, 8, 16), device={device!r})\n"
        "first, again = (run(x)[0] for _ in range(2))\nassert torch.equal(first, again)\n"
        "np.save('emitted.npy', first.cpu().numpy())\n"
        "assert 'tensor_graphs' not in sys.modules, 'emitted source has imported the package'\n"
        "from tensor_graphs.backends.program.saved_program import load_program\n"
        f"program = load_program('p', device={device!r})\n"
        "np.save('saved.npy', program(np.load('x.npy'))['y'])\n"
        "assert not {'egglog', 'ortools', 'duckdb'} & set(sys.modules), 'a search was loaded'"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    for name, given in (("emitted", np.ones_like(x)), ("saved", x)):
        want = program(given)["y"]
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), want, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU")
def test_without_a_gpu_the_error_has_a_name(tmp_path: Path) -> None:
    graph, params = encoder()
    program = Program(plan(graph), params)
    with pytest.raises(DeviceUnavailableError, match="GPU"):
        program(np.ones((2, 8, 16), np.float32))
    folder = program.save(tmp_path / "p")
    with pytest.raises(DeviceUnavailableError, match="GPU"):
        load_program(folder)
    assert load_program(folder, device="cpu")(np.ones((2, 8, 16), np.float32))["y"].shape == (2, 8, 16)


def test_a_program_for_another_gpu_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensor_graphs.backends import gpu

    graph, params = encoder()
    monkeypatch.setattr(type(CUDA), "unavailable", lambda self: "")
    monkeypatch.setattr(gpu, "hardware", lambda: "NVIDIA H200 sm_90")
    folder = Program(plan(graph), params).save(tmp_path / "p")
    assert load_program(folder).manifest.hardware == "NVIDIA H200 sm_90"
    monkeypatch.setattr(gpu, "hardware", lambda: "NVIDIA L4 sm_89")
    with pytest.raises(DeviceUnavailableError, match=r"NVIDIA H200 sm_90, here is NVIDIA L4 sm_89"):
        load_program(folder)


def test_memory_is_known_before_anything_is_allocated() -> None:
    graph, _ = encoder()
    program = Program(plan(graph))
    weights, values = (16 * 16 + 16 + 16) * 4, 2 * 8 * 16 * 4
    assert weights + 3 * values < program.memory()["cuda"] < weights + 20 * values + 20 * 256
    kinds = program.memory_by_kind()
    assert kinds["weights"] == weights and kinds["states"] == 0 and kinds["workspace"] > 0 < kinds["staging"]
    assert kinds["results"] == sum(int(np.prod(s)) * 4 for _, s, _ in program.manifest.outputs)
    assert sum(kinds.values()) == program.memory()["cuda"]


@everywhere
@pytest.mark.parametrize("released", ["unbind", "del"])
def test_released_programs_hold_no_memory(device: str, released: str) -> None:
    graph, params = encoder()
    program = Program(plan(graph), params, device=device)
    freed, names = list[str](), [n for n, _, _ in program.manifest.weights]
    program._weights = Watched(program._weights, device, freed)
    program(*[np.zeros(s, numpy_dtype(d)) for _, s, d in program.manifest.inputs])
    assert not freed
    gc.disable()  # without the collector
    try:
        if released == "unbind":
            program.unbind()
        else:
            del program
        assert sorted(freed) == sorted(names)
    finally:
        gc.enable()


class Watched(Mapping[str, Any]):
    """Weights as tensors of a device, whose release is noted."""

    def __init__(self, weights: Mapping[str, Any], device: str, freed: list[str]) -> None:
        self.weights, self.device, self.freed = weights, device, freed

    def __getitem__(self, key: str) -> Any:
        made = torch.from_numpy(np.array(self.weights[key])).to(self.device)
        weakref.finalize(made, self.freed.append, key)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)


def test_weights_that_are_laid_out_anew_are_counted() -> None:
    """Read as it is and by columns, a weight is there twice; by columns alone, once."""
    x, w = t.input("x", (4, 64)), t.param("w", (64, 64))
    columns = next(k for k in CUDA.templates if k.name == "cuda.mm_columns")
    for count, graph in ((1, Graph.of(t.matmul(x, w))), (2, Graph.of([t.matmul(x, w), t.matmul(t.exp(x), w)]))):
        found = plan(graph)
        products = [i for i, s in enumerate(found.steps) if s.template.name == "cuda.mm"]
        steps = tuple(replace(s, template=columns) if i == products[-1] else s for i, s in enumerate(found.steps))
        words = Program(replace(found, steps=steps)).memory()["cuda"]
        assert count * 64 * 64 * 4 < words < (count + 0.6) * 64 * 64 * 4


@everywhere
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_transposed_weights_are_laid_out_by_the_device(dtype: str, device: str, tmp_path: Path) -> None:
    """They come as the model holds them, mapped from a file or not; a saved program has them row-major."""
    x, w = t.input("x", (3, 8), dtype), t.param("w", (5, 8), dtype)
    graph = Graph.of(t.matmul(x, t.permute(w, (1, 0))))
    drawn = np.random.default_rng(0).standard_normal((5, 8)).astype(numpy_dtype(dtype))
    drawn.flags.writeable = False
    program = Program(plan(graph), {"w": drawn}, device=device)
    (key,) = [n for n, _, _ in program.manifest.weights]
    assert np.shares_memory(program._weights[key], drawn) and not program._weights[key].flags.c_contiguous
    assert program.memory()["cuda"] >= 2 * drawn.nbytes
    values = np.random.default_rng(1).standard_normal((3, 8)).astype(drawn.dtype)
    want = values.astype(np.float64) @ drawn.T.astype(np.float64)
    for one in (program, load_program(program.save(tmp_path / "saved"), device=device)):
        np.testing.assert_allclose(one(values).astype(np.float64), want, rtol=0.02, atol=0.02)
    assert load_program(tmp_path / "saved", device=device)._weights[key].flags.c_contiguous


def test_programs_for_a_gpu_are_explained_without_one(tmp_path: Path) -> None:
    graph, params = encoder()
    program = Program(plan(graph), params)
    document, text = explain(str(program.save(tmp_path / "p")), {}, "auto")
    assert re.search(r" [KM]iB on cuda", text) and document["memory"] == program.memory()


def test_too_large_programs_are_refused_before_anything_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, params = encoder()
    program = Program(plan(graph), params)
    monkeypatch.setattr(type(CUDA), "unavailable", lambda self: "")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 500)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 400)
    with pytest.raises(
        DeviceMemoryError,
        match=rf"takes {spelled_bytes(program.memory()['cuda'])} on cuda, 1.074 KiB of 1.953 KiB are free",
    ):
        program.bind()


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("CUDA error: an illegal memory access was encountered\nmore", DeviceFaultError),
        ("CUDA out of memory", DeviceMemoryError),
    ],
)
def test_what_the_gpu_does_wrong_has_a_name(message: str, kind: type) -> None:
    graph, params = encoder()
    program = Program(plan(graph), params, device="cpu").bind()
    raised = type("OutOfMemoryError", (RuntimeError,), {}) if kind is DeviceMemoryError else RuntimeError

    def fails(*given: object) -> None:
        raise raised(message)

    program._run = fails
    with pytest.raises(kind, match="encoder: CUDA"):
        program(np.ones((2, 8, 16), np.float32))
    raised, message = RuntimeError, "something else"
    with pytest.raises(RuntimeError, match="something else"):
        program(np.ones((2, 8, 16), np.float32))


def test_inputs_are_checked_by_name() -> None:
    graph, params = encoder()
    program = Program(plan(graph), params, device="cpu")
    with pytest.raises(ShapeError, match=r"input 'x' is float64\[2, 8, 16\], not float32"):
        program(np.ones((2, 8, 16)))
    with pytest.raises(ShapeError, match=r"input 'x' is float16\[2, 8, 16\], not float32"):
        program(torch.ones((2, 8, 16), dtype=torch.float16))


def test_scratch_memory_is_the_workspaces() -> None:
    """A kernel with scratch bytes, on tensors: they overlap neither operands nor result."""
    exp = next(x for x in CUDA.templates if x.name == "cuda.exp")
    code = (
        "half = {scratch}.view(torch.float32); torch.add({x}, {x}, out=half.view(16, 8))\n{out}.copy_(half.view(16, 8))"
    )
    doubled = replace(exp, name="cuda.doubled", code=code, scratch=lambda call: call.output.type.nbytes, inplace=())
    x = t.input("x", (16, 8))
    found = plan(Graph.of(t.exp(t.exp(x) * 1.0)))
    steps = tuple(replace(s, template=doubled) if s.template is exp else s for s in found.steps)
    emitted = emit_for(replace(found, steps=steps))
    assert emitted.layout.scratch and all(offset % 256 == 0 for offset, _ in emitted.layout.scratch.values())
    space: dict = {}
    exec(emitted.source, space)
    (got,) = space["bind"]({}, device="cpu")(torch.full((16, 8), 1.5))
    torch.testing.assert_close(got, torch.full((16, 8), 6.0))


def test_definitions_of_generated_kernels_are_in_the_file_once() -> None:
    exp = next(x for x in CUDA.templates if x.name == "cuda.exp")
    text = "def twice_k(x, out):\n    torch.add(x, x, out=out)"
    made = replace(exp, name="cuda.made", code="twice_k({x}, {out})", source=lambda call: {"twice_k": text})
    twice_k = t.input("twice_k", (4,))
    found = plan(Graph.of(t.exp(t.exp(twice_k))))
    source = emit_for(replace(found, steps=tuple(replace(s, template=made) for s in found.steps))).source
    assert source.count("def twice_k(") == 1
    space: dict = {}
    exec(source, space)
    assert space["bind"]({}, device="cpu")(torch.ones(4))[0][0] == 4


def test_plans_stay_on_one_device() -> None:
    x = t.input("x", (4,))
    assert device_of(plan(Graph.of(t.exp(x)))) == "cuda"
    mixed = plan(Graph.of(t.exp(t.exp(x))))
    exp = next(s for s in backend("numpy").templates if s.name == "np.exp")
    with pytest.raises(UsageError, match="cpu, cuda"):
        device_of(replace(mixed, steps=(mixed.steps[0], replace(mixed.steps[1], template=exp))))


def test_helpers_of_all_backends_agree_on_names() -> None:
    """The emitted file looks helpers up by name alone."""
    from tensor_graphs.backends.program.helpers.cpu_helpers import HELPERS
    from tensor_graphs.backends.program.helpers.gpu_helpers import HELPERS as CUDA_HELPERS

    texts: dict[str, str] = {}
    for helpers in (HELPERS, CUDA_HELPERS, *(b.helpers for b in backends().values())):
        for name, text in helpers.items():
            assert texts.setdefault(name, text) == text, name


def test_random_graphs_agree_with_the_interpreter() -> None:
    """A few ops of every family in one graph, checked output by output."""
    x, i = t.input("x", (2, 4, 6)), t.input("i", (2, 3), "int64")
    w = t.param("w", (5, 6))
    table = t.gather(w, i, axis=0)
    outputs = [
        t.flip(x, 1), t.pad(x, [(0, 0), (1, 2), (0, 0)], -1.0), t.concat([x, x * 2.0], 2), table, t.argsort(x, 2, True),
        t.cumsum(x, 1), t.sum(x, (0, 2), True), t.where(t.lt(x, 0.0), x, 1.0), t.cast(x, "int32"), t.prod(x, (1,), True),
    ]  # fmt: skip
    graph = Graph.of(outputs, inputs=[x, i])
    rng = np.random.default_rng(2)
    params = {"w": rng.standard_normal((5, 6)).astype(np.float32)}
    given = {"x": rng.standard_normal((2, 4, 6)).astype(np.float32), "i": rng.integers(0, 5, (2, 3))}
    found = Program(plan(graph), params, device="cpu")(**given)
    for a, b in zip(found, evaluate(graph, given, params=params, float64=True)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
