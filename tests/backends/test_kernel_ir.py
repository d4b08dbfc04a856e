"""The kernel IR: index arithmetic, kernels against the interpreter, and the Triton emitter against both."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.ir import kernel as kir
from tensor_graphs.backends.ir.expr import Builder, walk
from tensor_graphs.backends.ir.index import Axis, Index, index, linear, unravelled
from tensor_graphs.backends.ir.short_erf import COARSE, FINE, ShortErf
from tensor_graphs.backends.ir.tensor_maps import box, describable
from tensor_graphs.backends.ir.tiling import shape_of
from tensor_graphs.backends.ir.unfusable import Unfusable
from tensor_graphs.backends.lowering.lower import kernel_of
from tensor_graphs.backends.lowering.scale_motion import base_two, scaled_early
from tensor_graphs.backends.lowering.split_reduction import split
from tensor_graphs.backends.triton.backend import generated, launches
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, make, topological
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous

from ..examples import examples
from . import kernel_interpreter
from .transformations import transformations

GOLDEN = Path(__file__).parent / "golden"


# ---------------------------------------------------------------- index arithmetic
I, J, K = Axis("i", 6), Axis("j", 4), Axis("k", 8)


def _at(i: Index, point: dict[Axis, int]) -> int:
    total = i.const
    for atom, factor in i.terms:
        if isinstance(atom, Axis):
            total += factor * point[atom]
        else:
            inner = _at(atom.index, point)
            total += factor * (inner % atom.by if atom.rest else inner // atom.by)
    return total


@st.composite
def indices(draw: Any, depth: int = 3) -> tuple[Index, Callable[[dict[Axis, int]], int]]:
    """A non-negative index, and what it means."""
    kind = draw(st.sampled_from(("axis", "number", "add", "mul", "div", "mod"))) if depth else draw(st.sampled_from(("axis", "number")))  # fmt: skip
    if kind == "axis":
        axis = draw(st.sampled_from((I, J, K)))
        return index(axis), lambda p: p[axis]
    if kind == "number":
        n = draw(st.integers(0, 9))
        return index(n), lambda p: n
    x, fx = draw(indices(depth - 1))
    if kind == "add":
        y, fy = draw(indices(depth - 1))
        return x + y, lambda p: fx(p) + fy(p)
    n = draw(st.integers(1, 12))
    if kind == "mul":
        return x * n, lambda p: fx(p) * n
    return (x // n, lambda p: fx(p) // n) if kind == "div" else (x % n, lambda p: fx(p) % n)


@settings(max_examples=examples(300))
@given(indices())
def test_normal_forms_keep_the_value_and_the_range(found: tuple[Index, Callable[[dict[Axis, int]], int]]) -> None:
    form, meaning = found
    low, high = form.range
    for point in itertools.product(range(6), range(4), range(8)):
        at = dict(zip((I, J, K), point))
        assert _at(form, at) == meaning(at)
        assert low <= meaning(at) <= high


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple))
def test_ravelling_and_back_leaves_no_division(shape: tuple[int, ...]) -> None:
    axes = [index(Axis(f"a{n}", d)) for n, d in enumerate(shape)]
    assert unravelled(linear(axes, shape), shape) == tuple(axes)


# ---------------------------------------------------------------- kernels of all classes
def x(name: str, *shape: int) -> Tensor:
    return t.input(name, shape)


def _grouped(name: str, b: int, heads: int, group: int, length: int, width: int) -> Tensor:
    """Key or value heads, each repeated for a group of query heads."""
    own = t.reshape(x(name, b, heads, length, width), (b, heads, 1, length, width))
    return t.reshape(t.broadcast_to(own, (b, heads, group, length, width)), (b, heads * group, length, width))


def _naive_attention() -> Tensor:
    q, k, v = (x(n, 2, 32, 16) for n in "qkv")
    seen = t.le(t.iota((32, 32), 1), t.iota((32, 32), 0))
    scores = t.matmul(c.rms_norm(q, x("g", 16), eps=1e-6), t.transpose(k)) * 0.25
    hidden = t.where(t.reshape(seen, (1, 32, 32)), scores, t.full((1, 1, 1), float("-inf")))
    return t.matmul(c.softmax(hidden, axis=2), v)


def _seen(rows: int) -> Tensor:
    return t.reshape(t.le(t.iota((rows, rows), 1), t.iota((rows, rows), 0)), (1, rows, rows))


def _linear_attention() -> Tensor:
    """Attention without softmax, over the sum of its weights."""
    q, k, v = (x(n, 2, 64, 16) for n in "qkv")
    weights = t.where(_seen(64), t.matmul(c.relu(q), t.transpose(c.relu(k))), t.full((1, 1, 1), 0.0))
    return t.matmul(weights, v) / (t.sum(weights, axis=2, keepdims=True) + 1.0)


def _dense(h: Tensor, name: str, width: int) -> Tensor:
    return t.matmul(h, x(f"w_{name}", h.shape[-1], width)) + x(f"b_{name}", width)  # type: ignore[arg-type]


def _turned(y: Tensor) -> Tensor:
    """As rotary embeddings do: the second half, negated, before the first."""
    half = int(y.shape[-1]) // 2
    return y * 0.5 + t.concat([-t.slice_axis(y, 1, half, 2 * half), t.slice_axis(y, 1, 0, half)], 1)


def _as_many_keys_as_features() -> Tensor:
    """A softmax over 32 keys of queries that are normed in rows of 32 and then read two rows at once."""
    h = x("h", 8, 32)
    q = x("a", 8, 32) / t.sqrt(t.mean(h * h, axis=1, keepdims=True) + 1e-6)
    return c.softmax(t.matmul(t.reshape(q, (4, 64)), x("k", 64, 32)) * 0.1, axis=1)


KERNELS: dict[str, Callable[[], Tensor]] = {
    "pointwise": lambda: c.gelu(x("a", 20, 48)) * x("b", 48),
    "transposed": lambda: t.permute(x("a", 20, 48), (1, 0)) + x("b", 48, 20),
    "joined": lambda: t.concat([x("a", 4, 5), x("b", 4, 11)], 1) * 2.0,
    "padded": lambda: t.pad(x("a", 6, 5), [(1, 2), (0, 3)], 0.5) + 1.0,
    "softmax": lambda: c.softmax(x("a", 20, 48) * 0.5, axis=1),
    "log_softmax": lambda: c.log_softmax(x("a", 5, 100), axis=1),
    "rms_norm": lambda: c.rms_norm(x("a", 20, 48), x("g", 48), eps=1e-6),
    "layer_norm": lambda: c.layer_norm(x("a", 20, 48), x("g", 48), x("b", 48), eps=1e-5),
    "column_sum": lambda: t.sum(x("a", 64, 48), axis=0, keepdims=True),
    "whole_sum": lambda: t.sum(x("a", 16, 4, 8), axis=(0, 2), keepdims=True),
    "row_max": lambda: t.max(x("a", 7, 30), axis=1, keepdims=True),
    "product": lambda: t.matmul(x("a", 20, 48), x("w", 48, 40)) + x("b", 40),
    "batched_product": lambda: t.matmul(x("a", 3, 20, 32), x("b", 3, 32, 40)),
    "norm_product": lambda: t.matmul(c.rms_norm(x("a", 16, 64), x("g", 64), eps=1e-6), x("w", 64, 48)),
    "norm_vector": lambda: t.matmul(c.rms_norm(x("a", 1, 128), x("g", 128), eps=1e-6), x("w", 128, 48)),
    "gated": lambda: c.silu(t.matmul(x("a", 16, 64), x("v", 64, 48))) * t.matmul(x("a", 16, 64), x("w", 64, 48)),
    "low_rank": lambda: t.matmul(x("a", 16, 64), x("w", 64, 48)) + t.matmul(t.matmul(x("a", 16, 64), x("u", 64, 16)), x("v", 16, 48)),
    "attention": lambda: c.attention(x("q", 2, 2, 32, 16), x("k", 2, 2, 32, 16), x("v", 2, 2, 32, 16), scale=0.25, causal=True),
    "windowed": lambda: c.attention(x("q", 2, 32, 16), x("k", 2, 32, 16), x("v", 2, 32, 16), scale=0.25, causal=True, window=7, softcap=3.0),
    "decode": lambda: c.attention(x("q", 2, 4, 1, 16), _grouped("k", 2, 2, 2, 64, 16), _grouped("v", 2, 2, 2, 64, 16), scale=0.25),
    "naive_attention": _naive_attention,
    "bottleneck": lambda: _dense(c.gelu(_dense(x("a", 32, 160), "down", 80)), "up", 96) + x("r", 32, 96),
    "small_mlp": lambda: _dense(c.gelu(_dense(c.layer_norm(x("a", 32, 32), x("g", 32), x("b", 32), eps=1e-5), "up", 128)), "down", 32),
    "small_mlp_of_channels": lambda: t.permute(_dense(c.gelu(_dense(t.permute(x("a", 2, 32, 20), (0, 2, 1)), "up", 80)), "down", 32), (0, 2, 1)),
    "cube_of_a_product": lambda: t.matmul(c.gelu_tanh(t.matmul(c.rms_norm(x("a", 16, 32), x("g", 32), eps=1e-6), x("u", 32, 48))), x("v", 48, 32)),
    "three_layers": lambda: _dense(c.relu(_dense(c.relu(_dense(x("a", 32, 32), "u", 32)), "v", 32)), "w", 32),
    "linear_attention": _linear_attention,
    "decayed": lambda: t.matmul(t.matmul(x("q", 2, 64, 16), t.transpose(x("k", 2, 64, 16))) * t.cast(_seen(64), "float32") * x("d", 64, 64), x("v", 2, 64, 16)),
    "plain_norm_product": lambda: t.matmul(x("a", 16, 64) * t.rsqrt(t.mean(x("a", 16, 64) * x("a", 16, 64), axis=1, keepdims=True) + 1e-6), x("w", 64, 48)),
    "turned_after_a_norm": lambda: t.matmul(_turned(c.rms_norm(x("a", 16, 32), x("g", 32), eps=1e-6)), x("w", 32, 16)),
    "as_many_keys_as_features": _as_many_keys_as_features,
    "exact_gelu": lambda: c.gelu(x("a", 20, 64)),
    "normed_attention": lambda: c.attention(c.rms_norm(x("q", 2, 2, 48, 16), x("g", 16), eps=1e-6), c.rms_norm(x("k", 2, 2, 48, 16), x("h", 16), eps=1e-6), x("v", 2, 2, 48, 16), scale=0.25, causal=True),
}  # fmt: skip


def leaves(root: Tensor) -> list[Tensor]:
    return [n for n in topological([root]) if n.op == "input"]


def kernel(root: Tensor) -> kir.Kernel:
    found = {n: str(n.attr("name")) for n in leaves(root)}
    buffers = {name: kir.Buffer("float32", tuple(n.shape), contiguous(n.shape)) for n, name in found.items()}  # type: ignore[arg-type]
    return kernel_of(root, found, {**buffers, "out": kir.Buffer("float32", tuple(root.shape), contiguous(root.shape))})  # type: ignore[arg-type]


def values(root: Tensor, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {str(n.attr("name")): rng.standard_normal(n.shape).astype(np.float32) for n in leaves(root)}


def _space(root: Tensor) -> list[dict[str, int]]:
    """The schedules of a term's kernel, everything in order in memory."""
    template = generated(root)
    kinds = {str(n.attr("name")): Operand(n.type, contiguous(n.shape)) for n in leaves(root)}  # type: ignore[arg-type]
    call = Call({o: kinds[o] for o in template.operands}, Operand(root.type, contiguous(root.shape)), {})  # type: ignore[arg-type]
    return [dict(s) for s in template.space(call)]  # type: ignore[misc]


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want))


def memory_for(one: kir.Kernel, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    found = {n: v.reshape(-1).astype(np.float64) for n, v in given.items()}
    for name, b in one.buffers.items():
        found.setdefault(name, np.full(int(np.prod(b.shape)), np.nan))
    return found


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("two", [False, True], ids=["as read", "as emitted"])
def test_a_kernel_means_what_its_term_means(name: str, two: bool) -> None:
    root = KERNELS[name]()
    given = values(root)
    want = evaluate([root], given, float64=True)[0]
    one = scaled_early(base_two(kernel(root))) if two else kernel(root)
    memory = memory_for(one, given)
    kernel_interpreter.run(one, memory)
    assert error(memory["out"].reshape(want.shape), want) < 1e-12


@pytest.mark.parametrize(
    "name", ["norm_product", "norm_vector", "low_rank", "attention", "decode", "column_sum", "row_max", "layer_norm"]
)
@pytest.mark.parametrize("parts", [2, 4])
def test_a_split_reduction_means_the_same(name: str, parts: int) -> None:
    root = KERNELS[name]()
    one = base_two(kernel(root))
    axis = max(shape_of(one).outer, key=lambda a: a.size)
    if axis.size % parts:
        with pytest.raises(Unfusable):
            split(one, axis, parts)
        return
    first, second = split(one, axis, parts)
    given = values(root)
    memory = memory_for(first, given)
    kernel_interpreter.run(first, memory)
    kernel_interpreter.run(second, memory)
    want = evaluate([root], given, float64=True)[0]
    assert error(memory["out"].reshape(want.shape), want) < 1e-12


def test_rows_that_wait_for_a_whole_row_cannot_be_split() -> None:
    a = x("a", 4, 16)
    one = kernel(t.max(t.abs(a - t.mean(a, axis=1, keepdims=True)), axis=1))
    with pytest.raises(Unfusable, match="complete reduction"):
        split(one, one.reductions[0].axis, 2)


def test_whole_numbers_do_not_pass_through_a_float64_that_is_computed_in_float32() -> None:
    """Floats of a kernel have the dtype of its buffers: without one of float64, 2**24 + 1 would be rounded."""
    whole = t.input("a", (4, 4), "int64")
    half = t.cast(whole, "float64") * 0.5

    def buffers(out: str) -> dict[str, kir.Buffer]:
        return {name: kir.Buffer(dtype, (4, 4), (4, 1)) for name, dtype in (("a", "int64"), ("out", out))}

    with pytest.raises(Unfusable, match="another width"):
        kernel_of(t.cast(half, "int64"), {whole: "a"}, buffers("int64"))
    with pytest.raises(Unfusable, match="integers converted"):
        kernel_of(t.cast(half, "float32"), {whole: "a"}, buffers("float32"))
    kernel_of(half, {whole: "a"}, buffers("float64"))


@pytest.mark.parametrize("root", [t.argsort(x("a", 4, 4), 0), t.argmax(x("a", 4, 4), 1)], ids=["argsort", "argmax"])
def test_what_has_no_index_expression_is_refused(root: Tensor) -> None:
    with pytest.raises(Unfusable):
        kernel(root)


def test_a_loop_over_what_no_block_binds_is_refused() -> None:
    """The norm of a sum of two products of different lengths: what joins the parts of one of them has the other one's
    loop."""
    rows = t.matmul(x("a", 128, 64), x("w", 64, 64)) + t.matmul(x("b", 128, 256), x("u", 256, 64))
    root = c.layer_norm(x("r", 128, 64) + rows, x("g", 64), x("h", 64), eps=1e-5)
    template, out = generated(root), Operand(Type(root.shape, "float32"), contiguous(root.shape))  # type: ignore[arg-type]
    kinds = {str(n.attr("name")): Operand(Type(n.shape, "float32"), contiguous(n.shape)) for n in leaves(root)}  # type: ignore[arg-type]
    call = Call({o: kinds[o] for o in template.operands}, out, {})
    tiles = {"m": 32, "n": 32, "k0": 64, "k1": 32, "k2": 64, "group": 8, "stages": 3, "warps": 4}
    assert launches(template, replace(call, schedule=tiles))
    with pytest.raises(Unfusable, match="no enclosing block"):
        launches(template, replace(call, schedule=tiles | {"split": 2, "join": 1}))


# ---------------------------------------------------------------- what the algebra of the IR does
def test_a_row_scale_leaves_the_product_behind_it() -> None:
    """DEFER: the normalisation's scale is applied to the result, not to what is multiplied."""
    one = kernel(KERNELS["norm_product"]())
    products = [e for e in one.reductions if e in shape_of(one).dots]
    assert len(products) == 1
    assert not any(e.op == "rsqrt" for e in walk(products[0].args))


def test_queries_are_scaled_before_the_loop_over_keys() -> None:
    """What no key moves joins the queries, in the two products alike; the keys' own norm stays a factor of the
    scores."""
    one = scaled_early(base_two(kernel(KERNELS["normed_attention"]())))
    shape = shape_of(one)
    scores = [d for e, d in shape.dots.items() if e.axes - set(one.axes)]
    assert len(scores) == 1
    assert any(e.op == "rsqrt" for e in walk(scores[0].left)) and not any(
        e.op == "rsqrt" for e in walk(scores[0].right)
    )
    assert shape.kind == "attention"


def test_programs_with_most_keys_begin_first() -> None:
    """Under a causal mask the last rows have the most to do."""
    tiles = {"m": 16, "n": 16, "k0": 16, "k1": 16, "warps": 4, "stages": 2}
    (causal,) = launches(*_call("normed_attention", tiles))
    (even,) = launches(*_call("gated", TILES))
    assert "tile = 2 - program // 4" in causal.source and "- program" not in even.source


def test_kernels_started_early_wait_before_they_read() -> None:
    tiles = {"m": 16, "n": 16, "k0": 16, "k1": 16, "warps": 4, "stages": 2, "split": 2}
    parts = launches(*_call("decode", tiles | {"early": 1}))
    assert len(parts) == 2
    for one in parts:
        assert one.source.index("begin_early()") < one.source.index("tl.load(") and "launch_pdl=True" in one.call(
            {a: a for a in one.args}
        )
    template, call = _call("decode", {})
    assert template.fits(replace(call, schedule={**template.space(call)[0], "early": 1}))
    assert not any("begin_early" in one.source for one in launches(*_call("decode", tiles)))


def test_attention_is_one_loop_over_the_keys() -> None:
    """ROLL: maximum, sum and products share a loop; the scores are never stored."""
    (only,) = launches(*_call("naive_attention", {"m": 16, "n": 16, "k0": 16, "k1": 16, "warps": 4, "stages": 2}))
    loops = re.findall(r"for (\w+) in", only.source)
    assert len(loops) == 2  # one without the causal mask, one with it
    assert len(set(loops)) == 1


# ---------------------------------------------------------------- products behind products
WALKING = {"m": 16, "n": 32, "k0": 32, "k1": 128, "warps": 4, "stages": 2, "walk": 1}


def test_what_lies_between_two_products_is_held_whole_where_it_is_the_shorter() -> None:
    """The first product is walked then, and columns may be, behind it; else tiles of what lies between are."""
    template, call = _call("bottleneck", {})
    found = template.lower(call)
    assert found.shape.kind == "contraction" and shape_of(kernel(KERNELS["small_mlp"]())).kind == "attention"
    assert found.space and all(s["k1"] == 128 for s in found.space)
    (only,) = launches(template, replace(call, schedule=WALKING))
    first, columns = (only.source.index(f"for {a}_ in") for a in ("r160", "n"))
    assert first < only.source.index("erf(") < columns < only.source.rindex("tl.dot(")
    for more in ({}, {"n": 16}, {"boxes": 1}):
        assert interpreted("bottleneck", WALKING | more) < 2e-6


def test_many_rows_walk_the_columns() -> None:
    """What each tile of columns would compute anew costs more than columns one after the other."""
    root = t.matmul(c.relu(t.matmul(x("a", 8192, 1024), x("u", 1024, 128))), x("v", 128, 1024))
    template, kinds = generated(root), {str(n.attr("name")): Operand(n.type, contiguous(n.shape)) for n in leaves(root)}  # type: ignore[arg-type]
    space = template.space(Call(kinds, Operand(root.type, contiguous(root.shape)), {}))  # type: ignore[arg-type,misc]
    assert "walk" in space[0]


def test_walking_columns_computes_nothing_anew() -> None:
    template, call = _call("bottleneck", {})
    apart = {k: v for k, v in WALKING.items() if k != "walk"}
    assert (
        template.effort(replace(call, schedule=WALKING))
        == template.work
        < template.effort(replace(call, schedule=apart))
    )
    assert all(template.fits(replace(call, schedule=s)) for s in (WALKING, apart))
    assert not template.fits(replace(call, schedule=WALKING | {"n": 128}))  # there is nothing to walk
    assert not template.fits(replace(call, schedule=WALKING | {"k1": 64}))  # not whole
    for name in ("product", "low_rank", "attention"):  # no product that all columns wait for
        template, call = _call(name, {})
        assert not template.fits(replace(call, schedule={**template.space(call)[0], "walk": 1}))


@pytest.mark.parametrize("name", ["linear_attention", "decayed"])
def test_a_mask_of_a_sum_ends_its_loop(name: str) -> None:
    """As that of a softmax does: beyond the diagonal nothing is read, before it nothing is masked."""
    tiles = {"m": 16, "n": 16, "k0": 16, "k1": 16, "warps": 4, "stages": 2}
    template, call = _call(name, tiles)
    (only,) = launches(template, call)
    assert len(re.findall("for r64_ in", only.source)) == 2 and only.source.count("r64[None, :] <= m[:, None]") == 1
    assert interpreted(name, tiles) < 2e-6


def test_a_mask_with_another_condition_is_left_out_nowhere() -> None:
    """Keys before the diagonal that a second mask hides are hidden; the diagonal still ends the loop."""
    own = t.input("own", (2, 1, 64), "bool")
    q, k, v = (x(n, 2, 64, 16) for n in "qkv")
    scores = t.where(make("and", (_seen(64), own), {}), t.matmul(q, t.transpose(k)), t.full((1, 1, 1), float("-inf")))
    root = t.matmul(c.softmax(scores, axis=2), v)
    given = values(root) | {"own": np.arange(128).reshape(2, 1, 64) % 3 != 2}
    want = evaluate([root], given, float64=True)[0]
    assert error(ran(root, given, {"m": 16, "n": 16, "k0": 16, "k1": 16, "warps": 4, "stages": 2}), want) < 2e-6


# ---------------------------------------------------------------- Triton
def _call(name: str, schedule: dict[str, int]) -> tuple[Any, Call]:
    root = KERNELS[name]()
    kinds = {str(n.attr("name")): Operand(Type(n.shape, "float32"), contiguous(n.shape)) for n in leaves(root)}  # type: ignore[arg-type]
    template = generated(root)
    out = Operand(Type(root.shape, "float32"), contiguous(root.shape))  # type: ignore[arg-type]
    call = Call({o: kinds[o] for o in template.operands}, out, {})
    return template, replace(call, schedule=schedule)


def interpreted(name: str, schedule: dict[str, int], dtype: str = "float32") -> float:
    """The relative error of a schedule in Triton's interpreter; results and scratch begin as NaN."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from tensor_graphs.backends.generate.kernel_text import kernel_text, module_of

    template, call = _call(name, schedule)
    narrow = {o: replace(p, type=Type(p.type.shape, dtype)) for o, p in call.operands.items()}
    call = replace(call, operands=narrow, output=replace(call.output, type=Type(call.output.type.shape, dtype)))
    given = {n: v.astype(dtype) for n, v in values(template.root).items()}
    want = evaluate([template.root], {n: v.astype(np.float32) for n, v in given.items()}, float64=True)[0]
    out = torch.full(tuple(want.shape), float("nan"), dtype=getattr(torch, dtype))
    scratch = torch.full((template.scratch(call),), 255, dtype=torch.uint8)
    module_of(kernel_text(template, call)).run(*(torch.from_numpy(given[o]) for o in template.operands), out, scratch)
    return error(out.float().numpy(), want)


@pytest.mark.parametrize("name", KERNELS)
def test_schedules_compute_the_same_in_the_interpreter(name: str) -> None:
    template, call = _call(name, {})
    space = list(template.space(call))
    assert space
    for schedule in [space[0], space[len(space) // 2], space[-1]]:
        assert interpreted(name, dict(schedule)) < 2e-6, schedule


TILES = {"m": 16, "n": 16, "k0": 16, "k1": 16, "warps": 4, "stages": 2}


@pytest.mark.parametrize("name", ["norm_product", "gated", "low_rank", "attention", "normed_attention", "decode"])
@pytest.mark.parametrize(
    "more", [{}, {"split": 2}, {"split": 2, "join": 1}], ids=["one", "split", "joined by the last"]
)
def test_ways_to_split_agree(name: str, more: dict[str, int]) -> None:
    assert interpreted(name, TILES | more) < 2e-6


def test_a_reduction_in_another_ones_loop_has_an_axis_of_its_own() -> None:
    """A mean for each element that a softmax reads of as many numbers as it has keys: what the mean adds up was read at
    the softmax's key alone. What is computed before a loop shares its axis."""
    assert {e.axis.name for e in kernel(KERNELS["as_many_keys_as_features"]()).reductions} == {"r64", "r32", "r32n1"}
    assert {e.axis.name for e in kernel(KERNELS["softmax"]()).reductions} == {"r48"}
    sizes = {"m": 16, "n": 16, "k0": 16, "k1": 16, "k2": 16, "warps": 4, "stages": 2}
    assert interpreted("as_many_keys_as_features", sizes) < 2e-6


def test_without_a_schedule_a_call_runs_the_first_guess() -> None:
    """One in parts as well: their states lie in scratch memory."""
    root = t.matmul(x("a", 1, 8192), x("w", 8192, 64))
    template, places = (
        generated(root),
        [Operand(Type(s, "float32"), contiguous(s)) for s in ((1, 8192), (8192, 64), (1, 64))],
    )
    plain = Call(dict(zip(template.operands, places)), places[2], {})
    guess = replace(plain, schedule=dict(template.space(plain)[0]))
    assert guess.schedule["split"] > 1
    assert template.scratch(plain) == template.scratch(guess) > 0 and "SPLIT" in transformations(template, plain)
    names = {**{o: o for o in template.operands}, "out": "out", "scratch": "scratch"}
    assert template.write(replace(plain, names=names)) == template.write(replace(guess, names=names))


@pytest.mark.parametrize("name", ["norm_product", "gated", "low_rank", "normed_attention", "decode"])
@pytest.mark.parametrize("more", [{}, {"split": 2, "join": 1}], ids=["one", "joined by the last"])
def test_tiles_read_in_boxes_are_the_same(name: str, more: dict[str, int]) -> None:
    template, call = _call(name, TILES | more | {"boxes": 1})
    assert more or any(  # parts of 24 keys are no whole boxes
        "described(" in one.call({a: a for a in (*one.args, *call.operands, "out")}) for one in launches(template, call)
    )
    assert interpreted(name, TILES | more | {"boxes": 1}) < 2e-6


@pytest.mark.parametrize(
    "more", [{}, {"split": 2}, {"split": 2, "join": 1}], ids=["one", "split", "joined by the last"]
)
def test_what_a_loop_does_not_move_may_be_read_in_it(more: dict[str, int]) -> None:
    """Queries are read behind the first copies of keys and values, at a place that looks as if it moved."""
    tiles = {"m": 16, "n": 16, "k0": 16, "k1": 16, "warps": 4, "stages": 2, "boxes": 1} | more
    first, after = (launches(*_call("decode", s))[0].source for s in (tiles, tiles | {"inside": 1}))
    loads = [[line for line in text.splitlines() if "tl.load(q" in line] for text in (first, after)]
    assert all(len(found) == 1 for found in loads) and loads[1][0].startswith("        ") > loads[0][0].startswith(
        "        "
    )
    assert "_ // " in loads[1][0] and interpreted("decode", tiles | {"inside": 1}) < 2e-6


def test_what_a_descriptor_can_say_is_said_once() -> None:
    """Matrices and images alike: up to five axes, the innermost side by side, the others in steps of 16 bytes."""
    assert describable((64, 1), 2) and describable((64, 1), 2, (128, 64)) and describable((4096, 512, 64, 8, 1), 2)
    assert describable((4, 1), 4) and not describable((4, 1), 2), "steps of 16 bytes"
    assert not describable((1,), 2) and not describable((4096, 512, 256, 64, 8, 1), 2), "two to five axes"
    assert not describable((64, 2), 2) and not describable((0, 1), 2) and not describable((-8, 1), 2)
    assert not describable((64, 1), 2, (257, 64)) and not describable((64, 1), 2, (16, 4)), "boxes"


def test_a_box_is_a_tile_of_a_matrix_in_memory() -> None:
    """Heads side by side in a row are columns of it; what would leave the row, or is not next to each other, is no
    box."""
    row, col, head = Axis("m", 64), Axis("k", 32), Axis("h", 4)
    tiles = {row: ("m0", 16), col: ("0", 32)}
    at = index(row) * 128 + index(head) * 32 + index(col)
    found = box(at, tiles, 2, lambda a: a.name)
    assert found is not None
    assert (found.shape, found.block, found.origin) == ((64, 128), (16, 32), ("m0", "h * 32"))
    behind = box(at + index(Axis("b", 2)) * (64 * 128), tiles, 2, lambda a: a.name)
    assert behind is not None and behind.shape == (128, 128) and behind.origin[0] == "m0 + b * 64"
    assert box(at + index(head) * 32, tiles, 2, lambda a: a.name) is None  # beyond the row
    assert box(at + index(col), tiles, 2, lambda a: a.name) is None  # every second element
    assert box(index(row) * 33 + index(col), tiles, 2, lambda a: a.name) is None  # rows not aligned


def test_row_squares_ride_on_the_matrix_unit() -> None:
    """Few rows of 16 bits that a product reads anyway: their sums of squares are a diagonal there."""
    template, call = _call("plain_norm_product", TILES)
    narrow = {o: replace(p, type=Type(p.type.shape, "float16")) for o, p in call.operands.items()}
    (only,) = launches(template, replace(call, operands=narrow))
    assert "tl.dot(t3, tl.trans(t3)" in only.source
    assert interpreted("plain_norm_product", TILES, "float16") < 2e-3


@pytest.mark.parametrize("short", [FINE, COARSE], ids=["fine", "coarse"])
def test_the_short_error_function_is_as_close_as_it_says(short: ShortErf) -> None:
    x = np.linspace(-6, 6, 200_001).astype(np.float32)
    y = np.clip(x, -np.float32(short.limit), np.float32(short.limit))
    u = y * y * np.float32(short.scale) - np.float32(1)
    got = y * eval(short.horner("u"), {"u": u})
    want = np.array([math.erf(v) for v in x.astype(float)])
    apart = want != 0
    assert np.max(np.abs(got[apart] / want[apart] - 1)) < short.error
    assert interpreted("exact_gelu", {"m": 4, "n": 64, "warps": 4, "stages": 1}, "float16") < 1e-3


def test_more_tiles_than_can_be_counted_are_refused() -> None:
    root = t.sum(x("a", 1 << 18, 64), axis=1, keepdims=True)
    found = generated(root)
    kind = Operand(Type((1 << 18, 64), "float32"), (64, 1))
    call = Call({"a": kind}, Operand(Type((1 << 18, 1), "float32"), (1, 1)), {})
    schedule = {"m": 1, "n": 1, "k0": 16, "warps": 1, "stages": 2, "split": 2, "join": 1}
    with pytest.raises(Unfusable, match="output tiles"):
        launches(found, replace(call, schedule=schedule))


@pytest.mark.parametrize("name", ["softmax", "rms_norm", "layer_norm"])
@pytest.mark.parametrize("tile", [16, 64])
def test_rows_held_whole_and_rows_walked_agree(name: str, tile: int) -> None:
    whole = {f"k{i}": tile for i in range(2)}
    assert interpreted(name, {"m": 4, "n": tile, "warps": 4, "stages": 2, **whole}) < 2e-6


@pytest.mark.parametrize(
    "name",
    [
        "norm_product",
        "attention",
        "normed_attention",
        "softmax",
        "bottleneck",
        "small_mlp",
        "three_layers",
        "linear_attention",
    ],
)
def test_sixteen_bits_in_memory(name: str) -> None:
    template, call = _call(name, {})
    assert interpreted(name, dict(template.space(call)[0]), "float16") < 2e-3


@pytest.mark.parametrize("name", ["pointwise", "softmax", "gated", "naive_attention", "bottleneck", "linear_attention"])
def test_the_source_is_the_golden_file(name: str, update_golden: bool) -> None:
    template, call = _call(name, {})
    schedule = (
        template.space(call)[0] if name in ("pointwise", "softmax") else WALKING if name == "bottleneck" else TILES
    )
    found = launches(template, replace(call, schedule=dict(schedule)))
    text = "\n\n".join(re.sub(r"_[0-9a-f]{10}\b", "", one.source) for one in found)
    path = GOLDEN / f"triton_{name}.py"
    if update_golden:
        path.write_text(f"# Generated; see test_kernel_ir.py.\n{text}", encoding="utf-8")
    assert path.read_text(encoding="utf-8").partition("\n")[2] == text


# ---------------------------------------------------------------- fusion groups of an e-graph
def test_regions_of_a_saturated_graph_compute_their_class() -> None:
    """Every region's kernel against the value of its class, for the classes of a saturated graph."""
    from tensor_graphs.egraph.saturate.saturate import Limits, saturate_block
    from tensor_graphs.egraph.saturate.sessions import InProcess
    from tensor_graphs.extract.fusion.groups import FusionGroups
    from tensor_graphs.rules import ALL

    a, w, g = t.input("a", (8, 32)), t.param("w", (32, 16)), t.param("g", (32,))
    graph = Graph.of(c.softmax(t.matmul(c.rms_norm(a, g, eps=1e-6), w), axis=1))
    view = saturate_block(graph, ALL, Limits(nodes=400, iterations=4, seconds=300), session=InProcess())
    rng = np.random.default_rng(0)
    data = {"a": rng.standard_normal((8, 32)), "w": rng.standard_normal((32, 16)), "g": rng.standard_normal(32)}
    terms = view.terms(view.cheapest([1.0] * len(view))[1], range(view.n_classes))
    known = evaluate(terms, data, params=data, float64=True)
    given = frozenset(int(view.cls[n]) for n, op in enumerate(view.op) if op in ("input", "param"))
    count = 0
    for region in FusionGroups(view, given):
        names = {leaf: str(leaf.attr("name")) for leaf, _ in region.leaves}
        buffers = {str(n.attr("name")): kir.Buffer("float32", tuple(n.shape), contiguous(n.shape)) for n in names}  # type: ignore[arg-type]
        kind = view.types[region.cls]
        buffers["out"] = kir.Buffer("float32", tuple(kind.shape), contiguous(kind.shape))  # type: ignore[arg-type]
        one = kernel_of(region.term, names, buffers)
        memory = memory_for(one, {names[leaf]: np.asarray(known[cls]) for leaf, cls in region.leaves})
        kernel_interpreter.run(one, memory)
        np.testing.assert_allclose(
            memory["out"].reshape(known[region.cls].shape), known[region.cls], rtol=1e-9, atol=1e-9
        )
        count += 1
    assert count > 20


def test_three_narrow_layers_are_one_region() -> None:
    """Each row of them is held whole; a wide layer is not computed on the way."""
    from tensor_graphs.egraph.view.view import view_of
    from tensor_graphs.extract.fusion.groups import FusionGroups

    for middle, wanted in ((256, {3}), (512, set())):
        h: Tensor = t.input("a", (1024, 64))
        for n, width in enumerate((middle, 64, 64)):
            h = c.relu(t.matmul(h, t.param(f"w{n}", (int(h.shape[1]), width))))
        view = view_of(Graph.of(h))
        given = frozenset(int(view.cls[n]) for n, op in enumerate(view.op) if op in ("input", "param"))
        found = {sum(n.op == "matmul" for n in topological([r.term])) for r in FusionGroups(view, given)}
        assert {n for n in found if n > 2} == wanted


# ---------------------------------------------------------------- what tiles of text must not lose
def ran(root: Tensor, given: dict[str, np.ndarray], schedule: dict[str, int] | None = None) -> np.ndarray:
    """A term's kernel of a schedule, the first one if none is given, in Triton's interpreter."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from tensor_graphs.backends.generate.kernel_text import kernel_text, module_of

    template = generated(root)
    kinds = {str(n.attr("name")): Operand(n.type, contiguous(n.shape)) for n in leaves(root)}  # type: ignore[arg-type]
    call = Call(kinds, Operand(root.type, contiguous(root.shape)), {}, schedule=schedule or {})  # type: ignore[arg-type]
    out = torch.zeros(tuple(root.shape), dtype=getattr(torch, root.dtype))
    scratch = torch.full((template.scratch(call),), 255, dtype=torch.uint8)  # type: ignore[misc]
    module_of(kernel_text(template, call)).run(*(torch.from_numpy(given[o]) for o in template.operands), out, scratch)
    return np.asarray(out.numpy())


def test_nan_is_not_lost() -> None:
    a = np.array([np.nan, 1.0, -2.0, np.inf], np.float32)
    for root in (
        t.maximum(x("a", 4), 0.0),
        t.minimum(x("a", 4), 0.5),
        c.relu(x("a", 4)),
        t.sign(x("a", 4)),
        c.clip(x("a", 4), lo=-1.0, hi=1.0),
    ):
        np.testing.assert_array_equal(ran(root, {"a": a}), evaluate([root], {"a": a})[0])


#: kernel -> (schedules that walk its reductions in another way, operand that has a NaN)
ROWS = {"m": 4, "n": 1, "k0": 16, "warps": 1, "stages": 2}
WALKED = [{}, ROWS, ROWS | {"n": 16}, ROWS | {"split": 2}, ROWS | {"split": 2, "join": 1}]
LOST = {
    "row_max": (lambda: t.max(x("a", 7, 128), axis=1, keepdims=True), WALKED[:2] + WALKED[3:], "a"),
    "row_min": (lambda: t.min(x("a", 7, 128), axis=1, keepdims=True), WALKED[:2] + WALKED[3:], "a"),
    "ragged": (lambda: t.max(x("a", 5, 50), axis=1, keepdims=True), WALKED[:2], "a"),
    "columns": (lambda: t.max(x("a", 64, 12), axis=0, keepdims=True), WALKED[:2], "a"),
    "softmax": (lambda: c.softmax(x("a", 7, 128), axis=1), [{}, WALKED[2]], "a"),
    "log_softmax": (lambda: c.log_softmax(x("a", 7, 128), axis=1), [{}, WALKED[2]], "a"),
    "logsumexp": (lambda: c.logsumexp(x("a", 7, 128), axes=(1,)), WALKED[:2], "a"),
    "queries": (KERNELS["attention"], [{}, TILES, TILES | {"split": 2, "join": 1}], "q"),
    "keys": (KERNELS["attention"], [{}, TILES, TILES | {"split": 2}], "k"),
    "decode": (KERNELS["decode"], [{}, TILES | {"split": 2}, TILES | {"split": 2, "join": 1}], "k"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_nan_is_not_lost_by_reductions(name: str) -> None:
    """However a reduction is tiled, walked, rolled or split: NaN comes out where the specification has it, and nowhere
    else."""
    make, schedules, operand = LOST[name]
    root = make()
    given = values(root)
    place = tuple(d // 3 for d in given[operand].shape)
    given[operand][place] = np.nan
    with np.errstate(invalid="ignore"):
        want = evaluate([root], given)[0]
    assert 0 < np.isnan(want).sum() < want.size
    for schedule in schedules:
        got = ran(root, given, schedule)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want), err_msg=str(schedule))
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


def test_a_loop_waits_for_products_of_computed_rows() -> None:
    """What a left side computed in registers must not overtake; one that is loaded, or few rows, take another way."""

    def text(root: Tensor, dtype: str = "float16", **more: int) -> str:
        template = generated(root)
        kinds = {str(n.attr("name")): Operand(Type(n.shape, dtype), contiguous(n.shape)) for n in leaves(root)}  # type: ignore[arg-type]
        schedule = {"m": 64, "n": 64, "k0": 32, "warps": 4, "stages": 2} | more
        out = Operand(Type(root.shape, dtype), contiguous(root.shape))  # type: ignore[arg-type]
        return launches(template, Call({o: kinds[o] for o in template.operands}, out, {}, schedule=schedule))[0].source

    a, w, v = x("a", 128, 64), x("w", 64, 128), x("v", 64, 128)
    after = text(t.matmul(c.relu(a), w))
    assert "acc1 = held(acc1)" in after and after.index("held(") > after.index("tl.dot(")
    both = text(c.silu(t.matmul(c.relu(a), w)) * t.matmul(c.relu(a), v))
    assert both.count("= held(") == 2 and both.rindex("tl.dot(") < both.index("held(")
    assert "held(" not in text(t.matmul(a, w)) + text(t.matmul(c.relu(a), w), m=32) + text(
        t.matmul(c.relu(a), w), stages=1
    )
    normed = t.matmul(a, w) * t.rsqrt(t.mean(a * a, 1, keepdims=True))  # rows that statistics read as well
    assert text(normed).count("= held(") == 1
    assert "held(" not in text(t.matmul(c.relu(a), w), "float32")  # threads multiply by themselves
    assert "held(" not in text(c.silu(t.matmul(a, w)) * t.matmul(a, v))  # two products of the same rows


@pytest.mark.parametrize("side", [t.log, t.rsqrt, lambda a: 1.0 / a], ids=["log", "rsqrt", "inverse"])
def test_what_is_infinite_at_zero_ends_with_its_axis(side: Callable[[Tensor], Tensor]) -> None:
    """Beyond the axis' end loads give 0, of which these make infinity: times 0 that would be NaN."""
    root = t.matmul(side(t.abs(x("a", 20, 40))), t.abs(x("w", 40, 32)))
    given = values(root)
    want = evaluate([root], given, float64=True)[0]
    for schedule in ({"m": 16, "n": 32, "k0": 16, "warps": 4, "stages": 2}, {}):
        assert error(ran(root, given, schedule), want) < 2e-6


@pytest.mark.parametrize("rows", [16, 64, 512])
def test_what_products_outside_of_loops_read_fits_into_shared_memory(rows: int) -> None:
    """A chain of float32 whose first sum could be whole: 256 x 256 numbers beside each other's rows would not
    compile."""
    root = t.matmul(t.matmul(x("a", rows, 256), x("v", 256, 192)), x("w", 192, 256))
    for s in _space(root):
        tiles = [(s["m"], s["k0"]), (s["k0"], s["k1"]), (s["k1"], s["n"])] if s["k0"] >= 256 and s["k1"] >= 192 else []
        assert 4 * sum(a * b for a, b in tiles) <= 227 << 10


@pytest.mark.parametrize(
    ("size", "dtype"), [(7, "int64"), (8, "int64"), (1024, "int64"), (1024, "int32"), (7, "uint8")]
)
def test_extremes_of_whole_numbers_are_exact(size: int, dtype: str) -> None:
    """Numbers that no float holds: neither where an axis is not full nor by parts do they become floats."""
    a, info = t.input("a", (1, size), dtype), np.iinfo(dtype)
    given = {"a": info.max - np.arange(1, min(size, 250) + 1, dtype=dtype)[np.arange(size) % 250].reshape(1, size)}
    for root, wanted in ((t.max(a, 1), info.max - 1), (t.min(a, 1), given["a"].min())):
        for schedule in _space(root):
            assert "split" not in schedule and ran(root, given, schedule).tolist() == [wanted]


def test_short_sums_of_products_stay_sums() -> None:
    """Triton's compiler would make a product of matrices of them, in TF32, or of fewer elements than the matrix unit
    takes."""
    for k in (2, 3, 8):
        root = t.matmul(x("a", 36, k), x("w", k, 64))
        given, template = values(root), generated(root)
        kinds = {n: Operand(Type(v.shape, "float32"), contiguous(v.shape)) for n, v in given.items()}
        call = Call({o: kinds[o] for o in template.operands}, Operand(root.type, contiguous(root.shape)), {})  # type: ignore[arg-type]
        source = launches(template, call)[0].source
        assert "tl.dot(" not in source and ("[:, :, None]" in source) == ("+ 0.0, 1)" in source)
        assert error(ran(root, given), evaluate([root], given, float64=True)[0]) < 2e-6


def test_a_value_without_columns_is_written_to_all_of_them() -> None:
    """Rows that are shorter than what their sums are repeated to: columns are walked behind the sum."""
    root = t.matmul(x("a", 8, 2), t.full((2, 20), 1.0))
    given = values(root)
    want = evaluate([root], given, float64=True)[0]
    for schedule in ({}, {"m": 1, "n": 2, "k0": 2, "warps": 1, "stages": 2}):
        assert error(ran(root, given, schedule), want) < 2e-6


def _experts(rows: int = 3, experts: int = 4, chosen: int = 2) -> dict[str, Tensor]:
    """What each row's own choice of several matrices makes of it, as kernels of one launch each."""
    one, several = t.input("i", (rows,), "int64"), t.input("i", (rows, chosen), "int64")
    row = t.reshape(x("a", rows, 40), (rows, 1, 40))
    made = t.matmul(t.reshape(row, (rows, 1, 1, 40)), t.gather(x("w", experts, 40, 96), several, 0))
    narrow, back = t.gather(x("u", experts, 40, 8), one, 0), t.gather(x("v", experts, 8, 96), one, 0)
    return {
        "adapters": t.matmul(t.matmul(row, narrow), back),
        "biased": c.silu(
            t.matmul(row, t.gather(x("w", experts, 40, 96), one, 0)) + t.gather(x("b", experts, 1, 96), one, 0)
        ),
        "added": t.sum(made * t.reshape(x("g", rows, chosen), (rows, chosen, 1, 1)), axis=1),
    }


@pytest.mark.parametrize("name", ["adapters", "biased", "added"])
def test_rows_may_choose_their_matrices(name: str) -> None:
    """Experts and adapters lie in one tensor; what a row has chosen is read from its place, and several are added with
    weights."""
    root = _experts()[name]
    picks = np.array([[3, 0], [1, 1], [0, 2]])
    given = values(root) | {"i": picks if name == "added" else picks[:, 0].copy()}
    want = evaluate([root], given, float64=True)[0]
    template = generated(root)
    kinds = {str(n.attr("name")): Operand(n.type, contiguous(n.shape)) for n in leaves(root)}  # type: ignore[arg-type]
    space = template.space(Call(kinds, Operand(root.type, contiguous(root.shape)), {}))  # type: ignore[arg-type,misc]
    assert len(space) > 4
    for schedule in (space[0], space[len(space) // 2], space[-1]):
        assert error(ran(root, given, dict(schedule)), want) < 2e-6, schedule


@pytest.mark.parametrize("power", [0.0, 4.0, 5.0, -3.0, 1.5, None])
def test_powers_of_negative_numbers(power: float | None) -> None:
    a = np.array([-2.0, -1.5, -1.0, -0.5, 0.5, 1.0, 3.0, 2.0], np.float32)
    b = np.array([2.0, 3.0, 0.0, -1.0, 1.5, 7.0, -2.0, 0.5], np.float32)
    root = t.pow(x("a", 8), x("b", 8)) if power is None else t.pow(x("a", 8), power) + 0.0
    with np.errstate(invalid="ignore"):
        want = evaluate([root], {"a": a, "b": b})[0]
    np.testing.assert_allclose(ran(root, {"a": a, "b": b}), want, rtol=2e-6)


def test_one_element_among_many() -> None:
    """A part of size 1, and a place that is known: what is read has the dimensions that its mask has."""
    a, b = np.float32([[2.0]]), np.float32([[3.0], [4.0]])
    np.testing.assert_array_equal(
        ran(t.concat([x("a", 1, 1), x("b", 2, 1)], 0) * 2.0, {"a": a, "b": b}), [[4], [6], [8]]
    )
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    picked = t.gather(x("a", 4, 3), t.full((2,), 3, "int64"), 0) * 2.0
    np.testing.assert_array_equal(ran(picked, {"a": table}), 2 * table[[3, 3]])


def test_whole_numbers_keep_their_width() -> None:
    root = t.cast(t.input("a", (4,), "int32"), "int64") * 3
    a = np.array([1 << 30, -(1 << 31), 5, (1 << 31) - 1], np.int32)
    np.testing.assert_array_equal(ran(root, {"a": a}), a.astype(np.int64) * 3)


@pytest.mark.parametrize("axis", [0, 1])
def test_elements_picked_along_an_axis(axis: int) -> None:
    """Of a table that lies in memory, beside a reduction of the same rows, as a cross entropy does."""
    table, i = values(x("a", 9, 13))["a"], np.array([5, 0, 12, 3, 3, 7, 1, 2, 11], np.int64) % (13 if axis else 9)
    index = i[:, None] if axis else np.resize(i, (1, 13))
    picked = t.gather_elements(x("a", 9, 13), t.input("i", index.shape, "int64"), axis)
    root = c.logsumexp(x("a", 9, 13), axes=(axis,)) - picked
    want = evaluate([root], {"a": table, "i": index}, float64=True)[0]
    np.testing.assert_allclose(ran(root, {"a": table, "i": index}), want, rtol=2e-5, atol=2e-6)


def test_loops_within_loops_over_axes_of_one_size() -> None:
    """What a loop counts in is nobody else's name: a compiler wants one type for it."""
    deep = t.tanh(t.tanh(t.tanh(x("a", 64, 64)) @ x("b", 64, 64)) @ x("c", 64, 64)) @ x("d", 64, 64)
    kinds = {str(n.attr("name")): Operand(n.type, contiguous(n.shape)) for n in leaves(deep)}  # type: ignore[arg-type]
    call = Call(kinds, Operand(deep.type, contiguous(deep.shape)), {})  # type: ignore[arg-type]
    template = generated(deep)
    tiles = {"m": 16, "n": 16, "k0": 16, "k1": 16, "k2": 16, "warps": 4, "stages": 2}
    (one,) = launches(template, replace(call, schedule=tiles))
    nodes = list(ast.walk(ast.parse(one.source)))
    counted = {n.target.id for n in nodes if isinstance(n, ast.For) and isinstance(n.target, ast.Name)}
    assigned = {n.id for s in nodes if isinstance(s, ast.Assign) for n in s.targets if isinstance(n, ast.Name)}
    assert len(counted) > 1 and not counted & assigned


def test_guesses_for_long_rows_keep_the_memory_busy() -> None:
    """A row that no tile holds is walked by many threads: of 1001 rows of 32001, one warp for four took ten times as
    long."""
    root = c.softmax(t.input("x", (1001, 32001), "float16"), axis=1)
    call = Call({"x": Operand(Type((1001, 32001), "float16"), (32001, 1))}, Operand(root.type, (32001, 1)), {})
    for guess in generated(root).space(call)[:3]:  # type: ignore[misc]
        assert guess["warps"] >= 4 and guess["m"] * guess["k0"] >= 2048


def test_rows_of_a_product_behind_another_are_the_rows_of_that() -> None:
    """Channels before pixels: the computed side is the left one, whichever way results lie, and the tile of pixels is
    free."""
    shape = shape_of(kernel(KERNELS["small_mlp_of_channels"]()))
    assert (shape.m, shape.n) == (2 * 20, 32) and shape.kind == "attention"


def test_attention_of_few_rows_is_split_into_parts_of_one_tile() -> None:
    """Also where the number of keys is three times a power of two."""
    root = c.attention(x("q", 1, 1, 4, 64), x("k", 1, 1, 768, 64), x("v", 1, 1, 768, 64), scale=0.125)
    space = _space(root)
    assert {s.get("split", 1) for s in space[:4]} <= {12, 16} and space[0]["split"] == 12
    q = c.rms_norm(x("q", 1, 1, 4, 256), x("g", 256), eps=1e-6)
    root = c.attention(q, x("k", 1, 1, 768, 256), x("v", 1, 1, 768, 256), scale=0.0625)
    assert {s.get("split", 1) for s in _space(root)[:4]} == {24}, (
        "long rows: half of the positions a part took a sixth less time"
    )


def test_guesses_for_small_products_wait_little() -> None:
    """What few programs read comes in rounds, one after the other: many must be under way, and nothing be joined."""
    root = t.matmul(x("a", 64, 896), x("w", 896, 1152))
    place = lambda s: Operand(Type(s, "bfloat16"), contiguous(s))
    template, leaf = generated(root), {str(n.attr("name")): n.shape for n in leaves(root)}
    call = Call({o: place(leaf[o]) for o in template.operands}, place(root.shape), {})
    first, *others = template.space(call)[:5]  # type: ignore[misc]
    assert first["m"] == 64  # as many as the matrix unit takes
    for guess in (first, *others):
        assert guess["stages"] >= 6 and guess["k0"] * guess["stages"] >= 512 and "split" not in guess


def test_functions_forget_signs_and_numbers_are_computed() -> None:
    """An odd function of a value and of its negative is computed once, however the sign is written; so is what reads
    numbers alone."""
    b = Builder()
    x, y = (b.load("x", index(Axis("i", 8)) + n, "float32", (), ()) for n in (0, 8))
    half, minus = b.const(0.5), b.const(-0.5)
    negated = [b.mul(b.pointwise("neg", (x,)), half), b.mul(minus, x), b.pointwise("neg", (b.mul(x, half),))]
    for op in ("erf", "tanh", "sin", "atan"):
        plain = b.pointwise(op, (b.mul(x, half),))
        found = [b.pointwise(op, (e,)) for e in negated]
        assert all(f.op == "neg" and {*f.args} <= {plain, b.pointwise(op, (b.mul(half, x),))} for f in found)
    assert b.pointwise("cos", (b.pointwise("neg", (x,)),)) is b.pointwise("cos", (x,))
    twice = b.pointwise("div", (b.pointwise("neg", (x,)), b.pointwise("neg", (y,))))
    assert b.pointwise("erf", (twice,)) is b.pointwise("erf", (b.pointwise("div", (x, y)),))
    assert b.pointwise("neg", (b.const(2.0),)) is b.const(-2.0) and b.pointwise("exp", (b.const(0.0),)) is b.const(1.0)
    assert b.pointwise("log", (b.const(0.0),)).op == "log"  # not finite


@given(
    st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 7)), min_size=1, max_size=3), st.integers(-20, 20),
    st.integers(1, 9), st.integers(1, 5),
)  # fmt: skip
def test_dividends_of_indices_are_never_negative(terms: list[tuple[int, int]], const: int, by: int, again: int) -> None:
    """Emitted languages round quotients toward zero; `flip` after `reshape` has negative coefficients."""
    axes = [Axis(f"i{n}", size) for n, (_, size) in enumerate(terms)]
    whole = Index((), const)
    for axis, (factor, _) in zip(axes, terms):
        whole = whole + index(axis) * factor
    quotient, rest = whole.split(by)
    for found in (quotient, rest, quotient.split(again)[0], quotient.split(again)[1]):
        assert all(d.index.range[0] >= 0 for d in found.divisions())
    for at in np.ndindex(*(size for _, size in terms)):
        value = const + sum(c * i for (c, _), i in zip(terms, at))
        change = {axis: Index((), i) for axis, i in zip(axes, at)}
        assert quotient.replaced(change) == Index((), value // by)
        assert rest.replaced(change) == Index((), value % by)


def test_triton_computes_integers_as_integers() -> None:
    """The sign of an integer is one; results wrap at the width of their dtype; divisors may be 0."""
    a, b = t.input("a", (4, 8), "int64"), t.input("b", (4, 8), "int64")
    rng = np.random.default_rng(0)
    given = {"a": rng.integers(1 << 40, 1 << 41, (4, 8)), "b": rng.integers(-3, 4, (4, 8))}
    for root in (
        a + make("sign", [b], {}),
        make("mod", [a, b], {}) + make("floordiv", [a, b], {}),
        t.cast(t.cast(a, "uint16") * t.cast(b, "uint16"), "int64"),
    ):
        np.testing.assert_array_equal(
            ran(root, given, {"m": 4, "n": 8, "warps": 1, "stages": 1}), evaluate([root], given)[0]
        )
