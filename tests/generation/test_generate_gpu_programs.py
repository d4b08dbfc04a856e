"""Generation with programs for a GPU, rehearsed on Torch's CPU tensors: every op has a kernel, states are shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensor_graphs.backends import gpu
from tensor_graphs.backends.library.torch_cuda import TorchCudaBackend
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.simplify.simplify import simplify
from tensor_graphs.generation import Generator, cached_model, programs

from ..models.decoder_cases import VOCAB, write

pytest.importorskip("torch")


@pytest.fixture
def on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of Torch library kernels in place of optimized ones."""
    if not backend("torch_cuda").unavailable():
        pytest.skip("there is a GPU: tests/gpu/test_generate.py runs there")

    def planned(graph: Graph, **_: Any) -> Program:
        return Program(direct_plan(simplify(graph), [backend("torch_cuda")]), device="cpu")

    monkeypatch.setattr(TorchCudaBackend, "unavailable", lambda self: "")
    monkeypatch.setattr(gpu, "hardware", lambda: "rehearsal")
    monkeypatch.setattr(programs, "optimize", planned)
    monkeypatch.setattr(cached_model, "BUCKETS", (4, 8))
    monkeypatch.setattr(cached_model, "GPU_BUCKETS", ())


@pytest.mark.usefixtures("on_torch")
@pytest.mark.parametrize("case", ["gemma3", "gpt_oss"])
def test_torch_programs_generate_what_arrays_do(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, case, num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"])
    prompts = [[3, 7, 1], [int(v) for v in np.random.default_rng(1).integers(0, VOCAB, 19)]]
    made = Generator(folder, max_length=40, batch=2)
    found = made.generate(prompts, 6).tokens
    assert made._programs.states["token"].device.type == "cpu" and hasattr(made._programs.states["keys.0"], "cpu")
    drawn = made.generate(prompts, 6, temperature=1.0, top_k=9, seed=5).tokens
    monkeypatch.setattr(programs, "optimize", lambda graph, **_: Program(direct_plan(graph, [backend("numpy")])))
    other = Generator(folder, max_length=40, batch=2)
    assert found == other.generate(prompts, 6).tokens
    assert drawn == other.generate(prompts, 6, temperature=1.0, top_k=9, seed=5).tokens


@pytest.mark.usefixtures("on_torch")
def test_torch_programs_speculate_as_arrays_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """States of both models are shared on the device; greedy tokens are the plain ones, draws those of NumPy
    programs."""
    (tmp_path / "draft").mkdir()
    folder, draft = write(tmp_path, "llama"), write(tmp_path / "draft", "llama", num_hidden_layers=1)
    prompts = [[3, 7, 1], [int(v) for v in np.random.default_rng(1).integers(0, VOCAB, 19)]]
    options: dict[str, Any] = {"max_length": 40, "batch": 2, "draft": draft, "draft_tokens": 3, "reuse": True}
    drawing: dict[str, Any] = {"temperature": 1.0, "top_k": 9, "seed": 5}
    made = Generator(folder, **options)
    found = made.generate(prompts, 12)
    assert made._draft is not None and 0 < found.acceptance < 1
    assert made._draft.programs.states["target.token"] is made._programs.states["token"]
    assert found.tokens == Generator(folder, max_length=40, batch=2).generate(prompts, 12).tokens
    drawn = made.generate(prompts, 7, **drawing)
    monkeypatch.setattr(programs, "optimize", lambda graph, **_: Program(direct_plan(graph, [backend("numpy")])))
    other = Generator(folder, **options).generate(prompts, 7, **drawing)
    assert (drawn.tokens, drawn.acceptance) == (other.tokens, other.acceptance)
