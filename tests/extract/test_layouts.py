"""Images lie in one layout for a generated kernel, where they may lie in either."""

from __future__ import annotations

import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.generate.weight_layouts import channels_innermost
from tensor_graphs.backends.library.torch_cuda import BACKEND as LIBRARIES
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.backends.triton.backend import BACKEND as TRITON
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.view.view import EGraphView, view_of
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.candidates.hypergraph import Hypergraph
from tensor_graphs.extract.candidates.image_layouts import (
    ImageLayout,
    KernelImageLayouts,
    image_classes,
    image_layout_indices,
)
from tensor_graphs.extract.model.clock import Halted
from tensor_graphs.extract.model.kernel import Candidate, Operand, Vertex, contiguous

SHAPE = (2, 16, 8, 8)


def conv(x: Tensor, name: str, size: int = 3) -> Tensor:
    w = t.param(name, (16, 16, size, size), "float16")
    return t.conv(x, w, strides=(1, 1), pads=(size // 2,) * 4, dilations=(1, 1), groups=1)


def block() -> Graph:
    """Two residual convolutions, then matrices over the places of the image."""
    x = t.input("x", SHAPE, "float16")
    y = t.maximum(conv(x, "a") + conv(x, "b", 1), t.full((1, 1, 1, 1), 0.0, "float16"))
    z = conv(y, "c") + y
    places = t.permute(t.reshape(z, (2, 16, 64)), (0, 2, 1))
    return Graph.of({"z": z, "m": t.matmul(places, t.param("w", (16, 16), "float16"))})


def found() -> Hypergraph:
    return candidate_hypergraph(view_of(block()), [LIBRARIES, TRITON], view_strides)


def test_images_are_what_windows_read_and_make_and_what_is_computed_beside_them() -> None:
    view = view_of(block())
    shapes = {view.types[k].shape for k in image_classes(view)}
    assert SHAPE in shapes and not any(len(s) < 3 for s in shapes)
    assert not any(view.types[k].shape in ((2, 16, 64), (2, 64, 16)) for k in image_classes(view)), "matrices of places"
    assert all(k in image_classes(view) for k, kind in enumerate(view.types) if kind.shape == SHAPE)


def test_a_program_without_windows_has_no_images() -> None:
    x = t.input("x", (2, 4, 8, 8))
    assert not image_classes(view_of(Graph.of(t.exp(x) + x)))


def lies(view: EGraphView, vertex: Vertex) -> ImageLayout | None:
    """How an image that may lie in either layout lies."""
    kind = view.types[vertex.cls]
    if kind.shape != SHAPE:
        return None
    rows = Operand(kind, contiguous(SHAPE))
    return {rows.strides: ImageLayout.ROWS, channels_innermost(rows).strides: ImageLayout.TURNED}.get(vertex.strides)


def test_generated_kernels_read_and_write_images_that_lie_alike() -> None:
    graph = found()
    view, roots = graph.view, {r.cls for r in graph.roots}
    seen: set[tuple[frozenset[ImageLayout | None], ImageLayout | None]] = set()

    def read(candidate: Candidate) -> frozenset[ImageLayout | None]:
        free = (v for _, v in candidate.inputs if v.cls not in graph.given)
        return frozenset(lies(view, v) for v in free if lies(view, v))

    for candidate in graph.candidates:
        if candidate.template.backend == "triton" and candidate.output.cls not in roots:
            seen.add((read(candidate), lies(view, candidate.output)))
    assert {how for how, _ in seen} <= {frozenset(), frozenset({ImageLayout.ROWS}), frozenset({ImageLayout.TURNED})}
    assert {(frozenset({one}), one) for one in ImageLayout} <= seen, "in each of the two"
    assert not {(frozenset({a}), b) for a in ImageLayout for b in ImageLayout if a is not b} & seen
    assert {(frozenset[ImageLayout](), one) for one in ImageLayout} <= seen, (
        "what is given lies row-major, and is read for both"
    )
    assert any(
        c.output.cls in roots and read(c) == {ImageLayout.TURNED} and lies(view, c.output) is ImageLayout.ROWS
        for c in graph.candidates if c.template.backend == "triton"
    ), "an output is row-major, whatever it is made of"  # fmt: skip


def test_what_is_looked_at_is_read_once_in_each_layout() -> None:
    asked: list[int] = []
    graph = found()
    for template in {
        c.template for c in graph.candidates if c.template.family == "conv" and c.template.backend == "triton"
    }:
        asked.append(len(template.lowered))  # type: ignore[attr-defined]
    assert asked and max(asked) <= 3, "all alike, beside what is given, and into an output"


def test_layouts_that_go_together() -> None:
    image = {ImageLayout.ROWS: 0, ImageLayout.TURNED: 2}
    allowed = [[0, 1, 2], [0, 1], [0, 1, 2]]

    def ways(free: bool, writes: ImageLayout, asked_for: bool = False) -> list[list[list[int]]]:
        return list(KernelImageLayouts(allowed, [image, {}, image], free, writes, asked_for).uniform)

    rows, turned = [[0, 1], [0, 1], [0, 1]], [[1, 2], [0, 1], [1, 2]]
    assert ways(True, ImageLayout.ROWS) == [rows] and ways(True, ImageLayout.TURNED) == [turned]
    assert ways(False, ImageLayout.ROWS) == [rows, turned] == ways(True, ImageLayout.ROWS, asked_for=True)
    assert list(KernelImageLayouts([[0, 1]], [{}], True, ImageLayout.TURNED, False).uniform) == [[[0, 1]]] * 2, (
        "nothing is chosen"
    )


def test_an_image_that_nothing_turns_lies_as_it_is() -> None:
    assert image_layout_indices([(4, 1), (1, 4)], None) == {} == image_layout_indices([(4, 1)], (1, 4))
    assert image_layout_indices([(4, 1), (2, 2), (1, 4)], (1, 4)) == {ImageLayout.ROWS: 0, ImageLayout.TURNED: 2}


def test_matching_that_runs_out_of_time_keeps_what_covers_the_roots() -> None:
    """Once all library kernels are bound, a search goes on with the generated kernels bound so far; before, there is no
    hypergraph."""
    view = view_of(block())
    whole = candidate_hypergraph(view, [LIBRARIES, TRITON], view_strides)
    with pytest.raises(Halted):
        candidate_hypergraph(view, [LIBRARIES, TRITON], view_strides, stop=lambda: True)
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return False

    candidate_hypergraph(view, [LIBRARIES, TRITON], view_strides, stop=stop)
    last = iter(range(asked - 1))
    part = candidate_hypergraph(view, [LIBRARIES, TRITON], view_strides, stop=lambda: next(last, None) is None)
    assert part.stats["left_out"] == 1 and 0 < len(part.candidates) <= len(whole.candidates)
    assert set(part.roots) <= {v for c in part.candidates for v in c.outputs}
