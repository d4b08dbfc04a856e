"""Products of float32: strict where nobody allows less, in TF32 where a tolerance does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tensor_graphs as tg
import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.generate.lowerings import Lowerings
from tensor_graphs.backends.ir.precision import IEEE, LIBRARY_TF32, PRECISIONS, TF32, THREE, within
from tensor_graphs.backends.library import torch_cuda_helpers
from tensor_graphs.backends.program.helpers import gpu_calls
from tensor_graphs.backends.program.helpers.gpu_launches import Launches
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.backends.tuning.jobs import job_of, template_of_job
from tensor_graphs.backends.tuning.unfused import direct_plan
from tensor_graphs.egraph.composites import composite_ops as composite
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.candidates.hypergraph import Hypergraph
from tensor_graphs.extract.model.kernel import Template
from tensor_graphs.pipeline.stages.backend_filter import exact_only, within_loss
from tensor_graphs.verification.comparison import rounding_allowance

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
NAMES = ("torch_cuda", "triton", "nvrtc")


def product(dtype: str = "float32", weight: bool = True) -> Tensor:
    w = t.param("w", (96, 64), dtype) if weight else t.input("w", (96, 64), dtype)
    return composite.relu(t.matmul(t.input("x", (64, 96), dtype), w))


def attention() -> Tensor:
    q, k, v = (t.input(n, (2, 32, 16), "float32") for n in "qkv")
    return t.matmul(composite.softmax(t.matmul(q, t.permute(k, (0, 2, 1))), axis=2), v)


def picture() -> Tensor:
    return t.conv(t.input("x", (1, 8, 9, 9), "float32"), t.input("w", (16, 8, 3, 3), "float32"), pads=(1, 1, 1, 1))


def found(root: Tensor, tolerance: Any) -> Hypergraph:
    own = Lowerings(0.0 if tolerance == "exact" else rounding_allowance(tolerance)).opened
    chosen = [
        exact_only(own(backend(n)))
        if tolerance == "exact"
        else within_loss(own(backend(n)), rounding_allowance(tolerance))
        for n in NAMES
    ]
    return candidate_hypergraph(view_of(Graph.of([root])), chosen, view_strides)


def rounding(root: Tensor, tolerance: Any, least: float = 2.0**-20) -> set[str]:
    """Kernels that round operands by more than float32 itself does, about."""
    return {c.template.name for c in found(root, tolerance).candidates if c.template.loss > least}


@pytest.mark.parametrize("tolerance", ["eager", "fast", "exact", 0.0, 5e-6])
@pytest.mark.parametrize("root", [product, attention, picture])
def test_what_rounds_is_no_candidate_where_nobody_allows_it(root: Callable[[], Tensor], tolerance: Any) -> None:
    assert rounding(root(), tolerance) == set()


@pytest.mark.parametrize(
    "root, wanted",
    [
        (product, {"cuda.mm_tf32", "triton.contraction_tf32"}),
        (attention, {"cuda.bmm_tf32", "triton.contraction_tf32"}),
        (picture, {"cuda.conv_tf32", "triton.conv_tf32"}),
    ],
)
def test_a_tolerance_brings_tf32_of_libraries_and_generated(root: Callable[[], Tensor], wanted: set[str]) -> None:
    assert wanted <= rounding(root(), 1e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes_have_no_tf32(dtype: str) -> None:
    assert rounding(product(dtype), 1.0) == set()


@pytest.mark.parametrize("root", [product, attention, picture])
def test_the_librarys_strict_kernels_stay_where_tf32_is_allowed(root: Callable[[], Tensor]) -> None:
    """What is over tolerance is chosen again from less."""
    of = lambda tolerance: {
        c.template.name for c in found(root(), tolerance).candidates if c.template.backend == "torch_cuda"
    }
    assert of("exact") <= of("eager") <= of(1e-3)


@pytest.mark.parametrize("tolerance", ["eager", "fast", 2e-6])
def test_products_of_parts_are_as_good_as_float32(tolerance: Any) -> None:
    """Weights lie along the sum for TF32; what cannot be laid out anew is multiplied in parts of bfloat16."""
    assert rounding(product(), tolerance, 0.0) == {"triton.contraction_tf32x3", "nvrtc.contraction_tf32x3"}
    values = rounding(product(weight=False), tolerance, 0.0)
    assert values == {"triton.contraction_bf16x6", "nvrtc.contraction_tf32x3"}
    assert rounding(product(), "exact", 0.0) == rounding(product(), 0.0, 0.0) == set()
    laid = [
        set(c.template.prep) for c in found(product(), tolerance).candidates if "triton.contraction" in c.template.name
    ]
    assert laid and all(len(names) == 1 for names in laid)


def test_between_float32_and_tf32_there_are_two_parts_of_bfloat16() -> None:
    assert rounding(product(), 1e-4) == {"triton.contraction_bf16x3"}


def test_what_has_no_matrices_is_generated_as_it_is() -> None:
    """A vector times a matrix is no work for a matrix unit, in whatever precision one may."""
    row = t.matmul(t.input("x", (1, 96), "float32"), t.input("w", (96, 64), "float32"))
    names = {c.template.name for c in found(row, 1e-3).candidates if c.template.backend != "torch_cuda"}
    assert {"triton.contraction", "nvrtc.contraction"} <= names and not any("tf32" in n for n in names)


def test_few_rows_are_multiplied_in_parts_only_where_that_pays() -> None:
    few = t.matmul(t.input("x", (16, 96), "float32"), t.param("w", (96, 64), "float32"))
    assert rounding(few, "eager", 0.0) == set()
    assert "triton.contraction_tf32" in rounding(few, 1e-3)


def test_generated_text_says_its_precision() -> None:
    texts = {
        c.template.name: list((c.template.source or dict)(c.call).values())[-1]
        for tolerance in ("exact", "eager", 1e-3)
        for c in found(product(), 0.0 if tolerance == "exact" else tolerance).candidates
        if c.template.name.startswith("triton.contraction")
    }
    assert "input_precision='ieee'" in texts["triton.contraction"]
    assert "input_precision='tf32x3'" in texts["triton.contraction_tf32x3"]
    assert "input_precision='tf32'" in texts["triton.contraction_tf32"]


def test_a_job_of_a_generated_kernel_keeps_its_precision() -> None:
    for c in (c for tolerance in (0.0, "eager", 1e-3) for c in found(product(), tolerance).candidates):
        if c.template.space is not None:
            again = template_of_job(job_of(c.template, c.call), c.call)
            assert (again.identity, again.loss) == (c.template.identity, c.template.loss)


def test_first_guesses_of_parts_leave_room_for_them() -> None:
    """Lines of shared memory at a time, and few enough sums in a thread."""
    large = t.matmul(t.input("x", (1000, 896), "float32"), t.param("w", (896, 3584), "float32"))
    for c in found(large, "eager").candidates:
        if c.template.name == "triton.contraction_tf32x3":
            s = (c.template.space or list)(c.call)[0]  # type: ignore[arg-type]
            assert s["k0"] == 32 and s["m"] * s["n"] <= 64 * 32 * s["warps"] and s["precision"] == THREE.number


def test_precisions_that_a_limit_allows() -> None:
    assert within(0.0, (THREE, TF32)) == within(1.0, ()) == (IEEE,)
    assert within(2.0**-20, (THREE, TF32)) == within(1.0, (THREE,)) == (THREE,)
    assert within(1e-3, (THREE, TF32)) == (TF32,)
    assert [p.number for p in PRECISIONS] == list(range(len(PRECISIONS)))


def test_the_graph_as_it_came_runs_strictly() -> None:
    plan = direct_plan(Graph.of([product()]), [backend("torch_cuda")])
    assert not any(s.template.loss for s in plan.steps)


# ---------------------------------------------------------------- the library's switch
@pytest.fixture(autouse=True)
def _as_emitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The helpers' text names `torch`, which programs import."""
    for module in (gpu_calls, torch_cuda_helpers):
        monkeypatch.setattr(module, "torch", torch, raising=False)


@pytest.fixture(params=["none", "tf32", "ieee"])
def rule(request: pytest.FixtureRequest) -> Any:
    """A caller's rule for products of float32."""
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = request.param
    yield request.param
    settings.fp32_precision = before


def test_texts_name_the_tolerance_from_which_products_are_rounded() -> None:
    assert rounding_allowance(LIBRARY_TF32) >= LIBRARY_TF32 < TF32.loss
    for file in (f for f in ("src/tensor_graphs/options.py", "docs/cli.md") if (ROOT / f).exists()):
        (found,) = re.findall(r"[Ff]rom (\S+) on, float32 products", (ROOT / file).read_text(encoding="utf-8"))
        assert float(found) == LIBRARY_TF32, file


def test_a_product_in_tf32_leaves_the_callers_rule(rule: str) -> None:
    settings = torch.backends.cuda.matmul
    assert torch_cuda_helpers.in_tf32(lambda: settings.fp32_precision) == "tf32"
    with pytest.raises(ZeroDivisionError):
        torch_cuda_helpers.in_tf32(lambda: 1 / 0)
    assert settings.fp32_precision == rule


def test_a_program_rounds_by_its_plan_not_by_the_callers_rule(rule: str) -> None:
    settings, seen = torch.backends.cuda.matmul, []

    def launch() -> tuple[Any, ...]:
        rounded = torch_cuda_helpers.in_tf32(lambda: settings.fp32_precision)
        seen.extend([settings.fp32_precision, rounded, settings.fp32_precision])
        return ()

    gpu_calls.Calls(launch, Launches(), (), (), "cpu", False)()
    assert seen == ["ieee", "tf32", "ieee"] and settings.fp32_precision == rule


def test_the_twin_computes_what_its_original_does() -> None:
    """Here nothing rounds: the two are the same but for the switch."""
    templates = {x.name: x for x in backend("torch_cuda").templates}
    twins = [x for x in templates.values() if x.loss and x.family == "contraction"]
    assert len(twins) > 20
    for twin in twins:
        original: Template = templates[twin.name.removesuffix("_tf32")]
        assert (twin.pattern, twin.prep, twin.inplace) == (original.pattern, original.prep, original.inplace)
        assert twin.loss == LIBRARY_TF32 and "in_tf32" in twin.setup


def test_options_refuse_what_is_no_tolerance() -> None:
    with pytest.raises(tg.errors.UsageError):
        rounding_allowance("loose")
