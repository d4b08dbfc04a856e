"""Partially equivalent rewrites: regions are right and tight, corrections are equal, and without them the rewrite is
wrong."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensor_graphs.egraph.builders import builders as api
from tensor_graphs.egraph.composites import composite_ops as composite
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, make, topological
from tensor_graphs.egraph.saturate.saturate import Limits, saturate_block
from tensor_graphs.egraph.saturate.sessions import InProcess
from tensor_graphs.errors import UsageError
from tensor_graphs.rules import ALL
from tensor_graphs.rules.check.check import judge
from tensor_graphs.rules.derive.independent import holds
from tensor_graphs.rules.tables.partial import PARTIAL, RULES, Partial

from .output_regions import corrected, joined, pieces, restricted, volume, whole, wrong_region
from .partial_check import difference, drawn, uncorrected, verify

BY_NAME = {p.rule.name: p for p in PARTIAL}


def conv(x: Tensor, w: Tensor, stride: int = 1, pad: int = 1, dilation: int = 1, groups: int = 1) -> Tensor:
    attrs = {"strides": (stride, stride), "pads": (pad,) * 4, "dilations": (dilation, dilation), "groups": groups}
    return make("conv", (x, w), attrs)


def values(nodes: list[Tensor], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    leaves = [n for n in topological(nodes) if n.is_leaf and n.op != "full"]
    data = {n.attr("name"): rng.integers(-99, 99, n.shape).astype(np.float64) for n in leaves}
    return evaluate(nodes, data, params=data, float64=True)


def image(name: str, *shape: int) -> Tensor:
    return api.input(name, shape)


# ---------------------------------------------------------------- the families
@pytest.mark.parametrize("partial", PARTIAL, ids=lambda p: p.rule.name)
def test_corrected_rules_hold_and_their_regions_are_tight(partial: Partial) -> None:
    verdict = verify(partial, samples=4, seed=7)
    assert verdict.status == "tested", verdict


@pytest.mark.parametrize("partial", PARTIAL, ids=lambda p: p.rule.name)
def test_without_the_correction_they_are_refuted(partial: Partial) -> None:
    found = [judge(uncorrected(partial), one).status for one in drawn(partial, random.Random(3), 6)]
    assert "refuted" in found


@pytest.mark.parametrize("name", ["conv-rows-into-batch", "max-pool-columns-seam", "conv-rows-frame"])
@pytest.mark.parametrize("start, stop", [(" + 1", ""), ("", " - 1"), ("", " + 1")])
def test_a_smaller_or_larger_region_is_refuted(name: str, start: str, stop: str) -> None:
    partial = BY_NAME[name]
    ((a, b),) = partial.regions
    assert verify(replace(partial, regions=((f"({a}){start}", f"({b}){stop}"),)), samples=8).status == "refuted"


@pytest.mark.parametrize("name", ["conv-rows-seam", "conv-columns-join"])
def test_the_rules_fire_in_an_e_graph(name: str) -> None:
    partial = BY_NAME[name]
    one = next(drawn(partial, random.Random(1), 1))
    pairs = one.sides(partial.rule)
    graph = Graph.of([left for left, _ in pairs])
    view = saturate_block(graph, [partial.rule], Limits(iterations=1, seconds=300), guard=False, session=InProcess())
    assert [holds(view, right) for _, right in pairs] == list(view.roots)


def test_growth_is_bounded_beside_all_other_rules() -> None:
    x, w = image("x", 1, 2, 16, 16), api.param("w", (2, 2, 3, 3))
    limits = Limits(nodes=4000, iterations=6, seconds=60)
    view = saturate_block(Graph.of(api.tanh(conv(x, w))), (*ALL, *RULES), limits, session=InProcess())
    assert view.report.stopped in ("saturated", "iterations") and view.report.extractable


# ---------------------------------------------------------------- regions of any two programs
X, W = image("x", 1, 2, 8, 6), api.param("w", (3, 2, 3, 3))


def folded(x: Tensor, w: Tensor) -> Tensor:
    """Both halves of an image as a batch of two, by reshapes alone."""
    n, c, h, width = x.shape
    batch = api.reshape(
        api.permute(api.reshape(x, (n, c, 2, h // 2, width)), (0, 2, 1, 3, 4)), (2 * n, c, h // 2, width)
    )
    y = conv(batch, w)
    o = w.shape[0]
    return api.reshape(api.permute(api.reshape(y, (n, 2, o, h // 2, width)), (0, 2, 1, 3, 4)), (n, o, h, width))


def halves(op, x: Tensor) -> Tensor:
    h = x.shape[2] // 2
    return api.concat([op(api.slice_axis(x, 2, 0, h)), op(api.slice_axis(x, 2, h, 2 * h))], 2)


def pool(x: Tensor, kind: str = "max_pool") -> Tensor:
    return make(kind, [x], {"kernel": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)})


def spread(x: Tensor, w: Tensor) -> Tensor:
    """A dilated convolution as a plain one on four images of every other pixel."""
    n, c, h, v = x.shape
    parts = api.permute(api.reshape(x, (n, c, h // 2, 2, v // 2, 2)), (0, 3, 5, 1, 2, 4))
    y = conv(api.reshape(parts, (4 * n, c, h // 2, v // 2)), w)
    o = w.shape[0]
    return api.reshape(api.permute(api.reshape(y, (n, 2, 2, o, h // 2, v // 2)), (0, 3, 4, 1, 5, 2)), (n, o, h, v))


def turned(x: Tensor) -> Tensor:
    return api.permute(x, (0, 1, 3, 2))


CASES = {
    "fold into batch": (conv(X, W), folded(X, W), [((0, 1), (0, 3), (3, 5), (0, 6))]),
    "halves": (conv(X, W), halves(lambda x: conv(x, W), X), [((0, 1), (0, 3), (3, 5), (0, 6))]),
    "two layers": (conv(conv(X, W), api.param("v", (2, 3, 3, 3))), halves(lambda x: conv(conv(x, W), api.param("v", (2, 3, 3, 3))), X),
                   [((0, 1), (0, 2), (2, 6), (0, 6))]),
    "pooling": (pool(X), halves(pool, X), [((0, 1), (0, 2), (3, 5), (0, 6))]),
    "pooling of a rectified convolution": (pool(composite.relu(conv(X, W))), halves(lambda x: pool(composite.relu(conv(x, W))), X),
                                           [((0, 1), (0, 3), (2, 6), (0, 6))]),
    "space to batch": (conv(X, W, pad=2, dilation=2), spread(X, W), []),
    "transposed image and kernel": (conv(X, W), turned(conv(turned(X), turned(W))), []),
    "transposed image alone": (conv(X, W), turned(conv(turned(X), W)), [((0, 1), (0, 3), (0, 8), (0, 6))]),
    "mirrored": (conv(X, W), api.flip(conv(api.flip(X, 3), api.flip(W, 3)), 3), []),
    "groups": (conv(X, api.param("g", (4, 1, 3, 3)), groups=2),
               api.concat([conv(api.slice_axis(X, 1, i, i + 1), api.slice_axis(api.param("g", (4, 1, 3, 3)), 0, 2 * i, 2 * i + 2)) for i in (0, 1)], 1), []),
    "wider padding": (api.pad(X, [(0, 0), (0, 0), (1, 1), (0, 0)]), api.pad(X, [(0, 0), (0, 0), (2, 0), (0, 0)]), [((0, 1), (0, 2), (1, 10), (0, 6))]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_regions_of_programs(case: str) -> None:
    original, mutant, expected = CASES[case]
    found = wrong_region(original, mutant)
    assert found == expected
    inside = np.zeros(original.shape, bool)
    for box in expected:
        inside[tuple(slice(*part) for part in box)] = True
    assert np.array_equal(difference(original, mutant, inside), inside)  # nothing outside differs, all inside does
    a, b = values([original, corrected(original, mutant)])
    assert np.array_equal(a, b)


def test_a_correction_reads_only_the_receptive_field() -> None:
    original, mutant, _ = CASES["halves"]
    kept = {id(n) for n in topological([mutant])}
    fresh = [n for n in topological([corrected(original, mutant)]) if n.op == "conv" and id(n) not in kept]
    assert [n.args[0].shape for n in fresh] == [(1, 2, 4, 6)]  # two rows of windows of three rows


def test_a_region_smaller_than_computed_is_not_enough() -> None:
    from .output_regions import _spliced

    original, mutant, (region,) = CASES["halves"]
    for small in (((0, 1), (0, 3), (3, 4), (0, 6)), ((0, 1), (0, 3), (3, 5), (0, 5)), ((0, 1), (0, 2), (3, 5), (0, 6))):
        assert volume(small) < volume(region)
        a, b = values([original, _spliced(original, mutant, whole(original), [small])])
        assert not np.array_equal(a, b)


@st.composite
def programs(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """A windowed op on an image, and the same done apart on two parts and joined, with whatever padding fits."""
    axis, kernel = draw(st.integers(2, 3)), draw(st.integers(1, 3))
    stride, dilation = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    least = max(4, dilation * (kernel - 1) + 1)  # a window fits into each part
    seam, size = draw(st.integers(least, 7)), draw(st.integers(least, 7))
    low, high = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    shape = [1, 2, 7, 7]
    shape[axis] = seam + size
    x, op = image("x", *shape), draw(st.sampled_from(["conv", "avg_pool", "max_pool"]))
    pads = [0, 0, 0, 0]
    pads[axis - 2], pads[axis] = low, high
    attrs = {"strides": (stride, stride), "pads": tuple(pads), "dilations": (dilation, dilation)}

    def of(value: Tensor) -> Tensor:
        if op == "conv":
            return make("conv", (value, api.param("w", (2, 2, kernel, kernel))), {**attrs, "groups": 1})
        return make(op, [value], {**attrs, "kernel": (kernel, kernel)})

    whole_, parts = of(x), [of(api.slice_axis(x, axis, a, b)) for a, b in ((0, seam), (seam, seam + size))]
    mutant = api.concat(parts, axis)
    missing = int(whole_.shape[axis]) - int(mutant.shape[axis])
    if missing < 0:
        mutant = api.slice_axis(mutant, axis, 0, int(whole_.shape[axis]))
    elif missing:
        widths = [(0, missing) if i == axis else (0, 0) for i in range(4)]
        mutant = api.pad(mutant, widths)
    return whole_, mutant


@settings(max_examples=40, deadline=None)
@given(programs())
def test_programs_agree_outside_the_region_and_once_corrected(pair: tuple[Tensor, Tensor]) -> None:
    original, mutant = pair
    a, b, c = values([original, mutant, corrected(original, mutant)])
    for box in wrong_region(original, mutant):
        b[tuple(slice(*part) for part in box)] = a[tuple(slice(*part) for part in box)]
    assert np.array_equal(a, b) and np.array_equal(a, c)


@settings(max_examples=40, deadline=None)
@given(programs(), st.data())
def test_a_restricted_program_is_a_part_of_the_whole(pair: tuple[Tensor, Tensor], data: st.DataObject) -> None:
    node = pair[data.draw(st.integers(0, 1))]
    starts = [data.draw(st.integers(0, int(d) - 1)) for d in node.shape]
    box = tuple((a, data.draw(st.integers(a + 1, int(d)))) for a, d in zip(starts, node.shape))
    a, b = values([node, restricted(node, box)])
    assert np.array_equal(a[tuple(slice(*part) for part in box)], b)


def test_pieces_cover_the_output_once_and_do_not_grow_with_sizes() -> None:
    counts = []
    for size in (8, 64):
        x = image("x", 1, 2, size, 6)
        node = halves(lambda v: conv(v, W), x)
        boxes = [box for box, _ in pieces([node])]
        assert sum(map(volume, boxes)) == volume(whole(node))
        counts.append(len(boxes))
    assert counts[0] == counts[1]


def test_neighbouring_boxes_are_joined() -> None:
    assert joined([((0, 2), (0, 1)), ((0, 2), (1, 3)), ((2, 4), (0, 3))]) == [((0, 4), (0, 3))]
    assert joined([]) == []


def test_programs_that_cannot_be_compared() -> None:
    with pytest.raises(UsageError, match="the mutant is"):
        wrong_region(X, api.slice_axis(X, 2, 0, 4))
    with pytest.raises(UsageError, match="cannot be followed"):
        wrong_region(api.cumsum(X, 2), X)
