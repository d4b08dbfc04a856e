"""Generated convolutions, windows and pools: the kernel IR against float64, and Triton's interpreter, in both
layouts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.generate.kernel_text import kernel_text, module_of
from tensor_graphs.backends.generate.template import template_of
from tensor_graphs.backends.generate.weight_layouts import innermost
from tensor_graphs.backends.ir import kernel as kir
from tensor_graphs.backends.ir.tiling import shape_of
from tensor_graphs.backends.lowering.lower import kernel_of
from tensor_graphs.backends.lowering.split_reduction import split
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.backends.triton.backend import BACKEND, launches
from tensor_graphs.backends.tuning.jobs import job_of, read_job
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, make, topological
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.saturate.saturate import Limits, saturate_block
from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.egraph.view.view import EGraphView
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.fusion.groups import FusionGroups
from tensor_graphs.extract.model.kernel import Call, Candidate, Operand, Strides, contiguous
from tensor_graphs.extract.model.pricing import Priced, PricerBase
from tensor_graphs.extract.search.search import search
from tensor_graphs.rules import ALL

from ..examples import examples
from . import kernel_interpreter

GOLDEN = Path(__file__).parent / "golden"


def x(name: str, *shape: int) -> Tensor:
    return t.input(name, shape)


def conv(image: Tensor, w: Tensor, stride: int = 1, pad: int = 0, dilation: int = 1, groups: int = 1) -> Tensor:
    n = image.rank - 2
    pads, strides, dilations = (pad,) * (2 * n), (stride,) * n, (dilation,) * n
    return make("conv", (image, w), {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups})


def pool(kind: Callable[..., Tensor], image: Tensor, size: int, stride: int, pad: int) -> Tensor:
    n = image.rank - 2
    return kind(image, kernel=(size,) * n, strides=(stride,) * n, pads=(pad,) * (2 * n), dilations=(1,) * n)


def normed(value: Tensor, name: str = "") -> Tensor:
    channels = int(value.shape[1])  # type: ignore[arg-type]
    return c.batch_norm(value, *(x(f"{part}{name}", channels) for part in ("gain", "shift", "mean", "var")), eps=1e-5)


KERNELS: dict[str, Callable[[], Tensor]] = {
    "conv": lambda: conv(x("a", 2, 32, 6, 5), x("w", 20, 32, 3, 3), pad=1),
    "strided": lambda: conv(x("a", 2, 16, 9, 8), x("w", 24, 16, 3, 3), stride=2, pad=1),
    "dilated": lambda: conv(x("a", 1, 16, 9, 8), x("w", 16, 16, 3, 3), pad=2, dilation=2),
    "first": lambda: conv(x("a", 2, 3, 14, 14), x("w", 16, 3, 7, 7), stride=2, pad=3),
    "line": lambda: conv(x("a", 2, 16, 20), x("w", 16, 16, 5), pad=2),
    "point": lambda: conv(x("a", 2, 32, 5, 6), x("w", 16, 32, 1, 1)),
    "strided_point": lambda: conv(x("a", 2, 32, 5, 6), x("w", 16, 32, 1, 1), stride=2),
    "grouped": lambda: conv(x("a", 2, 32, 6, 6), x("w", 32, 16, 3, 3), pad=1, groups=2),
    "depthwise": lambda: conv(x("a", 2, 12, 7, 6), x("w", 12, 1, 3, 3), pad=1, groups=12),
    "causal_line": lambda: t.slice_axis(conv(x("a", 2, 24, 20), x("w", 24, 1, 4), pad=3, groups=24), 2, 0, 20),
    "norm_relu": lambda: c.relu(normed(conv(x("a", 2, 16, 6, 6), x("w", 16, 16, 3, 3), pad=1))),
    "residual": lambda: c.relu(x("r", 2, 16, 6, 6) + normed(conv(x("a", 2, 16, 6, 6), x("w", 16, 16, 1, 1)))),
    "prologue": lambda: conv(c.silu(normed(x("a", 2, 16, 6, 6))), x("w", 16, 16, 3, 3), pad=1) + x("r", 16, 1, 1),
    "max_pool": lambda: pool(c.max_pool, x("a", 2, 4, 9, 8), 3, 2, 1),
    "avg_pool": lambda: pool(c.avg_pool, x("a", 2, 4, 9, 8), 3, 2, 1),
    "line_pool": lambda: pool(c.max_pool, x("a", 2, 4, 17), 4, 3, 2),
    "group_norm": lambda: c.group_norm(x("a", 2, 8, 4, 6), x("g", 8), x("b", 8), groups=4, eps=1e-5),
}  # fmt: skip


def leaves(root: Tensor) -> list[Tensor]:
    return [n for n in topological([root]) if n.op == "input"]


def values(root: Tensor, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    drawn = {str(n.attr("name")): rng.standard_normal(n.shape).astype(np.float32) for n in leaves(root)}
    return {n: np.abs(v) + np.float32(0.5) if n.startswith("var") else v for n, v in drawn.items()}


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got.astype(np.float64) - want) / max(np.linalg.norm(want), 1e-30))


def lying(shape: tuple[int, ...], last: bool) -> Strides:
    return innermost(shape) if last and len(shape) > 2 else contiguous(shape)


def kernel(root: Tensor, last: bool = False) -> kir.Kernel:
    names = {n: str(n.attr("name")) for n in leaves(root)}
    shapes = {name: tuple(map(int, n.shape)) for n, name in names.items()} | {"out": tuple(map(int, root.shape))}  # type: ignore[arg-type]
    return kernel_of(root, names, {n: kir.Buffer("float32", s, lying(s, last)) for n, s in shapes.items()})


def memory_of(one: kir.Kernel, drawn: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    found = {}
    for name, b in one.buffers.items():
        if name in drawn:
            order = sorted(range(len(b.shape)), key=lambda i: -b.strides[i])
            found[name] = drawn[name].transpose(order).reshape(-1).astype(np.float64)
        else:
            found[name] = np.full(prod(b.shape), np.nan)
    return found


def result(one: kir.Kernel, memory: dict[str, np.ndarray]) -> np.ndarray:
    b = one.buffers["out"]
    return np.lib.stride_tricks.as_strided(memory["out"], b.shape, [8 * s for s in b.strides])


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_a_kernel_means_what_its_term_means(name: str, last: bool) -> None:
    root = KERNELS[name]()
    drawn = values(root)
    one = kernel(root, last)
    memory = memory_of(one, drawn)
    kernel_interpreter.run(one, memory)
    assert error(result(one, memory), evaluate([root], drawn, float64=True)[0]) < 1e-12


@st.composite
def convolutions(draw: Any) -> Tensor:
    n = draw(st.integers(1, 2))
    group, batch = draw(st.sampled_from((1, 1, 2, 3))), draw(st.integers(1, 2))
    inner, outer = draw(st.integers(1, 3)), draw(st.integers(1, 3))

    def some(least: int, most: int, count: int = n) -> tuple[int, ...]:
        return tuple(draw(st.integers(least, most)) for _ in range(count))

    sizes, taps, strides, dilations, pads = some(1, 6), some(1, 4), some(1, 3), some(1, 2), some(0, 3, 2 * n)
    fits = all(s + pads[i] + pads[n + i] > d * (k - 1) for i, (s, k, d) in enumerate(zip(sizes, taps, dilations)))
    assume(fits)
    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "groups": group}
    return make("conv", (x("a", batch, group * inner, *sizes), x("w", group * outer, inner, *taps)), attrs)


@settings(max_examples=examples(60))
@given(convolutions(), st.booleans())
def test_any_convolution_means_what_numpy_computes(root: Tensor, last: bool) -> None:
    """Kernels larger than the image, strides beyond it, uneven padding, groups, sizes of 1."""
    drawn, one = values(root), kernel(root, last)
    memory = memory_of(one, drawn)
    kernel_interpreter.run(one, memory)
    np.testing.assert_allclose(result(one, memory), evaluate([root], drawn, float64=True)[0], rtol=1e-9, atol=1e-9)


@settings(max_examples=30)
@given(
    st.sampled_from((c.max_pool, c.avg_pool)),
    st.integers(1, 7),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 1),
)
def test_any_pool_means_what_numpy_computes(
    kind: Callable[..., Tensor], size: int, window: int, stride: int, pad: int
) -> None:
    assume(size + 2 * pad >= window)
    root = pool(kind, x("a", 2, 2, size, size + 1), window, stride, min(pad, window - 1))
    drawn, one = values(root), kernel(root)
    memory = memory_of(one, drawn)
    kernel_interpreter.run(one, memory)
    np.testing.assert_allclose(result(one, memory), evaluate([root], drawn, float64=True)[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["conv", "grouped", "norm_relu"])
def test_a_split_convolution_means_the_same(name: str) -> None:
    root = KERNELS[name]()
    drawn, one = values(root), kernel(root)
    first, second = split(one, one.reductions[0].axis, 2)
    memory = memory_of(first, drawn)
    kernel_interpreter.run(first, memory)
    kernel_interpreter.run(second, memory)
    assert error(result(one, memory), evaluate([root], drawn, float64=True)[0]) < 1e-12


# ---------------------------------------------------------------- Triton
def call_of(root: Tensor, dtype: str, last: bool) -> tuple[Any, Call]:
    found = leaves(root)
    filters = [str(n.attr("name")) for n in found if n.attr("name") == "w"]
    template = template_of(BACKEND.emitter, root, filters, last)

    def operand(shape: tuple[int, ...], inner: bool) -> Operand:
        return Operand(Type(shape, dtype), lying(shape, inner))

    kinds = {str(n.attr("name")): operand(tuple(n.shape), last and n.attr("name") != "w") for n in found}  # type: ignore[arg-type]
    return template, Call(kinds, operand(tuple(root.shape), last), {})  # type: ignore[arg-type]


def interpreted(root: Tensor, schedule: dict[str, int], dtype: str, last: bool) -> float:
    """The relative error of a schedule in Triton's interpreter; the result begins as NaN."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    template, call = call_of(root, dtype, last)
    call = replace(call, schedule=schedule)
    drawn = {n: v.astype(dtype) for n, v in values(root).items()}
    want = evaluate([root], {n: v.astype(np.float32) for n, v in drawn.items()}, float64=True)[0]
    text = kernel_text(template, call)
    module = module_of(text)
    given = {
        n: torch.empty_strided(o.type.shape, o.strides, dtype=getattr(torch, dtype)).copy_(torch.from_numpy(drawn[n]))
        for n, o in call.operands.items()
    }
    given |= {n: getattr(module, f"prepare_{n}")(given[n]) for n in text.prepared}
    out = torch.full((prod(want.shape),), float("nan"), dtype=getattr(torch, dtype))
    out = out.as_strided(want.shape, call.output.strides)
    module.run(*(given[o] for o in text.operands), out, torch.full((text.scratch,), 255, dtype=torch.uint8))
    return error(out.float().numpy(), want)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_schedules_compute_the_same_in_the_interpreter(name: str, last: bool) -> None:
    root = KERNELS[name]()
    template, call = call_of(root, "float32", last)
    space = list(template.space(call))
    assert space
    for schedule in [space[0], space[-1]]:
        assert interpreted(root, dict(schedule), "float32", last) < 3e-6, schedule


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_pools_do_not_lose_nan(last: bool) -> None:
    root = KERNELS["max_pool"]()
    given = values(root)["a"]
    given[1, 2, 4, 4] = np.nan
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    template, call = call_of(root, "float32", last)
    want = evaluate([root], {"a": given})[0]
    for schedule in list(template.space(call))[:2]:
        text = kernel_text(template, replace(call, schedule=schedule))
        o = call.operands["a"]
        a = torch.empty_strided(o.type.shape, o.strides).copy_(torch.from_numpy(given))
        out = torch.zeros(prod(want.shape)).as_strided(want.shape, call.output.strides)
        module_of(text).run(a, out, torch.zeros(text.scratch, dtype=torch.uint8))
        np.testing.assert_array_equal(out.numpy(), want)


@pytest.mark.parametrize("name", ["conv", "depthwise", "norm_relu", "prologue", "max_pool"])
def test_sixteen_bits_in_memory(name: str) -> None:
    root = KERNELS[name]()
    template, call = call_of(root, "float16", True)
    assert interpreted(root, dict(template.space(call)[0]), "float16", True) < 2e-3


TILES = {"m": 16, "n": 16, "k0": 16, "warps": 4, "stages": 2}


TILINGS = [("conv", {}), ("conv", {"split": 2}), ("conv", {"split": 2, "join": 1}), ("conv", {"k0": 32}), ("conv", {"k0": 64}),
           ("strided", {}), ("strided", {"k0": 32}), ("norm_relu", {"split": 2, "join": 1})]  # fmt: skip


@pytest.mark.parametrize(("name", "more"), TILINGS, ids=str)
def test_tiles_that_divide_the_channels_and_others_agree(name: str, more: dict[str, int]) -> None:
    assert interpreted(KERNELS[name](), TILES | more, "float32", True) < 3e-6


def test_a_job_remembers_the_layouts() -> None:
    template, call = call_of(KERNELS["norm_relu"](), "float16", True)
    back, (again,) = read_job(json.loads(json.dumps(job_of(template, call))))
    assert back.identity == template.identity
    assert kernel_text(back, again).text == kernel_text(template, call).text


# ---------------------------------------------------------------- what the kernels look like
def source(name: str, schedule: dict[str, int], last: bool) -> str:
    template, call = call_of(KERNELS[name](), "float32", last)
    return "\n\n".join(one.source for one in launches(template, replace(call, schedule=schedule)))


def test_one_kernel_position_serves_a_tile_of_channels() -> None:
    """Where tiles divide the channels, positions in the kernel are numbers, and bounds are checked by rows alone."""
    assert re.search(r"\(r288_ // 32\)", source("conv", TILES, True))
    assert "r288 //" not in source("conv", TILES, True)
    assert "r288 //" in source("conv", TILES | {"k0": 64}, True)  # two kernel positions in one tile


def test_depthwise_windows_are_unrolled_and_need_no_matrix_unit() -> None:
    template, call = call_of(KERNELS["depthwise"](), "float32", True)
    text = source("depthwise", dict(template.space(call)[0]), True)
    assert "tl.static_range(9)" in text
    assert "tl.dot" not in text


def test_channels_are_columns_where_they_lie_innermost() -> None:
    for last, size in ((True, 20), (False, 2 * 6 * 5)):
        assert shape_of(kernel(KERNELS["conv"](), last)).n == size


@pytest.mark.parametrize("name", ["point", "residual"])
def test_a_pointwise_convolution_is_a_product_without_bounds(name: str) -> None:
    one = kernel(KERNELS[name](), True)
    assert len(shape_of(one).rows) == 1  # samples and places are one axis
    assert not any(e.op == "load" and e.args for e in one.exprs)


@pytest.mark.parametrize(("name", "last"), [("norm_relu", True), ("residual", False), ("max_pool", False)])
def test_the_source_is_the_golden_file(name: str, last: bool, update_golden: bool) -> None:
    template, call = call_of(KERNELS[name](), "float32", last)
    schedule = template.space(call)[0] if name == "max_pool" else TILES
    text = re.sub(r"_[0-9a-f]{10}\b", "", source(name, dict(schedule), last))
    path = GOLDEN / f"triton_{name}.py"
    if update_golden:
        path.write_text(f"# Generated; see test_convolutions.py.\n{text}", encoding="utf-8")
    assert path.read_text(encoding="utf-8").partition("\n")[2] == text


# ---------------------------------------------------------------- in a graph
def bottleneck() -> Graph:
    """A residual network's bottleneck in inference."""
    image, h = t.input("x", (2, 8, 4, 4)), t.input("x", (2, 8, 4, 4))
    for i, (size, inner, outer) in enumerate(((1, 8, 4), (3, 4, 4), (1, 4, 8))):
        h = conv(h, t.param(f"w{i}", (outer, inner, size, size)), pad=size // 2)
        norm = [t.param(f"{part}{i}", (outer,)) for part in ("gain", "shift", "mean", "var")]
        h = c.batch_norm(h, *norm, eps=1e-5)
        h = c.relu(h if i < 2 else image + h)
    return Graph.of(h)


def saturated(graph: Graph) -> EGraphView:
    return saturate_block(graph, ALL, Limits(nodes=400, iterations=5, seconds=300), session=InProcess())


def test_regions_with_convolutions_compute_their_class() -> None:
    graph = bottleneck()
    view = saturated(graph)
    rng = np.random.default_rng(0)
    data = {str(n.attr("name")): rng.random(n.shape) + 0.5 for op in ("input", "param") for n in graph.leaves(op)}  # type: ignore[arg-type]
    known = evaluate(
        view.terms(view.cheapest([1.0] * len(view))[1], range(view.n_classes)), data, params=data, float64=True
    )
    count = 0
    for region in FusionGroups(view, frozenset(int(k) for k in np.flatnonzero(view.weight)) | _inputs(view)):
        if not any(n.op == "conv" for n in topological([region.term])):
            continue
        one = kernel(region.term, count % 2 == 0)
        memory = memory_of(one, {str(leaf.attr("name")): np.asarray(known[k]) for leaf, k in region.leaves})
        kernel_interpreter.run(one, memory)
        np.testing.assert_allclose(result(one, memory), known[region.cls], rtol=1e-9, atol=1e-9)
        count += 1
    assert count > 10


def _inputs(view: EGraphView) -> frozenset[int]:
    return frozenset(int(view.cls[n]) for n, op in enumerate(view.op) if op == "input")


class _Launches(PricerBase):
    """Every kernel costs as much: the plan with the fewest."""

    def price(self, found: Sequence[Candidate]) -> list[Priced]:
        return [Priced(1.0, 1.0, 1.0, "predicted")] * len(found)


def test_a_bottleneck_is_a_kernel_for_each_convolution_or_fewer() -> None:
    """Norm, activation and residual are in the convolutions' kernels; a 1x1 convolution can take the one before it
    along."""
    found = candidate_hypergraph(saturated(bottleneck()), [BACKEND], view_strides)
    choice = search(found, _Launches())
    kernels = [found.candidates[i].template for i in choice.chosen if not found.candidates[i].is_view]
    assert len(kernels) <= 3
    assert sum("conv(" in k.pattern or "matmul(" in k.pattern for k in kernels) >= 2
    assert any(k.template.pattern.count("conv(") == 2 for k in found.candidates)


def test_reductions_over_images_run_along_memory() -> None:
    """With channels innermost, a group's sum takes its channels first."""
    one = kernel(KERNELS["group_norm"](), True)
    (axis,) = {e.axis for e in one.reductions}
    (load,) = {e for e in one.exprs if e.op == "load" and axis in e.axes}
    (channels,) = (c for a, c in load.value[1].terms if repr(a) == f"({axis!r}) % 2")
    assert channels == 1
    assert shape_of(one).walks  # what is normalized comes after the sums, in the same program


def test_scales_of_an_image_are_not_guarded_and_are_loaded_once() -> None:
    image, scale = x("a", 2, 16, 16, 8), x("r", 2, 16, 1, 1)
    one = kernel(conv(c.relu(image * scale), x("w", 16, 16, 3, 3), pad=1), True)
    (load,) = (e for e in one.exprs if e.op == "load" and e.value[0] == "r")
    assert not load.args
    assert [a.size for a in shape_of(one).batch] == [2]


def test_what_an_image_has_once_is_read_once_by_a_program() -> None:
    image, mean, gain = x("a", 2, 48, 32, 32), x("mean", 2, 4, 1), x("gain", 1, 48, 1, 1)
    root = t.reshape(t.reshape(image, (2, 4, 12288)) - mean, (2, 48, 32, 32)) * gain
    leaves = {n: str(n.attr("name")) for n in topological([root]) if n.op == "input"}
    buffers = {name: kir.Buffer("float32", tuple(map(int, n.shape)), contiguous(n.shape)) for n, name in leaves.items()}  # type: ignore[arg-type]
    buffers["out"] = kir.Buffer("float32", (2, 48, 32, 32), innermost((2, 48, 32, 32)))
    one = kernel_of(root, leaves, buffers)
    shape = shape_of(one)
    assert [a.size for a in shape.batch] == [2] and shape.m == 1024 and shape.n == 48, (
        "channels of a group are no short rows"
    )
    given = {n: np.random.default_rng(0).standard_normal(b.shape) for n, b in buffers.items() if n != "out"}
    memory = {n: v.reshape(-1).copy() for n, v in given.items()} | {"out": np.full(2 * 48 * 1024, np.nan)}
    kernel_interpreter.run(one, memory)
    want = evaluate([root], {n: v.astype(np.float32) for n, v in given.items()}, float64=True)[0]
    got = memory["out"].reshape(2, 32, 32, 48).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
