"""Checks of candidate kernels that are cheaper than what they stand for: no reduced precision where nothing is rounded,
legality of a split without the split, one frame for all tiles of a GEMM, the first schedules without the rest."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda.backend import generated
from tensor_graphs.backends.cuda.ranking.model import _varied
from tensor_graphs.backends.cuda.warp_specialized.frame import GemmFrame
from tensor_graphs.backends.cuda.warp_specialized.kernel import Gemm, readable
from tensor_graphs.backends.cuda.warp_specialized.parameters import GemmSchedule
from tensor_graphs.backends.cuda.warp_specialized.schedules import PLAIN, _estimates
from tensor_graphs.backends.generate.emitter import Launch
from tensor_graphs.backends.generate.lowerings import Lowerings
from tensor_graphs.backends.generate.template import template_of
from tensor_graphs.backends.ir.kernel import PROBE
from tensor_graphs.backends.ir.source_text import words
from tensor_graphs.backends.ir.tiling import shape_of
from tensor_graphs.backends.ir.unfusable import Unfusable, if_fusable
from tensor_graphs.backends.lowering.split_reduction import split, splittable
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.backends.triton.backend import BACKEND as TRITON
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.verification.comparison import rounding_allowance

from .test_kernel_ir import KERNELS, kernel
from .test_lowering_pool import GENERATORS, LIBRARIES


def product(dtype: str) -> Graph:
    """A matrix product with a pointwise prologue."""
    return Graph.of(t.matmul(t.exp(t.input("x", (64, 96), dtype)), t.param("w", (96, 64), dtype)))


@pytest.mark.parametrize(("dtype", "rounds"), [("float32", True), ("bfloat16", False)])
def test_reduced_precisions_are_tried_only_where_operands_are_rounded(dtype: str, rounds: bool) -> None:
    lowerings = Lowerings(rounding_allowance("eager"))
    candidate_hypergraph(view_of(product(dtype)), [LIBRARIES, *map(lowerings.of, GENERATORS)], view_strides)
    tried = {key[-1].name for one in lowerings.open.values() for key in one.known}
    assert ("tf32x3" in tried) == rounds and "ieee" in tried


@pytest.mark.parametrize("name", KERNELS)
def test_what_counts_as_splittable_can_be_split(name: str) -> None:
    one = kernel(KERNELS[name]())
    for axis in {e.axis for e in one.reductions}:
        for parts in (1, 2, 3, 4):
            assert splittable(one, axis, parts) == (if_fusable(split, one, axis, parts) is not None), (axis, parts)


def test_tiles_of_a_gemm_are_judged_alike_in_a_shared_frame_and_in_their_own() -> None:
    place = lambda *shape: Operand(t.input("x", shape, "bfloat16").type, contiguous(shape))
    for m, n, k in ((256, 192, 128), (100, 72, 64), (96, 104, 64)):
        template = generated(t.matmul(t.input("x", (m, k)), t.input("w", (k, n))))
        one = template.kernel(Call({"x": place(m, k), "w": place(k, n)}, place(m, n), {}))
        assert one is not None
        shape = shape_of(one)
        shared, seen = GemmFrame(one, shape, PLAIN, PROBE), list[bool]()
        for s in (GemmSchedule(64, 24, 2, 2, group=1), *(s for _, s in _estimates(m, n, k, 1, 1))):
            own = if_fusable(GemmFrame, one, shape, s, PROBE)
            seen.append(own is not None and if_fusable(Gemm, own, s) is not None)
            assert readable(shared, s) == seen[-1], s
        assert seen[0] is False and True in seen


def test_the_first_schedules_are_those_of_the_whole_order() -> None:
    draw = random.Random(0)
    for _ in range(200):
        entries = [
            tuple(sorted({"tn": draw.choice((1, 2, 4)), "t0": 32, "split": draw.choice((1, 2, 4, 8)), "v0": n}.items()))
            for n in range(draw.randrange(1, 60))
        ]
        whole = _varied(entries, len(entries) + 1)
        for count in (1, 3, 8, 16):
            assert _varied(entries, count) == whole[:count]


def test_tested_schedules_are_emitted_and_not_emitted_again() -> None:
    """Schedules of clustered attention: test_clustered_attention.py."""
    kind = Operand(t.input("q", (4, 2048, 128), "bfloat16").type, contiguous((4, 2048, 128)))
    q, k, v = (t.input(n, (4, 2048, 128)) for n in "qkv")
    template = template_of(TRITON.emitter, c.attention(q, k, v, scale=0.1, causal=True))
    found = template.lower(Call(dict.fromkeys(template.operands, kind), kind, {}))
    assert found is not None
    tested = [s for s in TRITON.emitter.strategies if s.tested]  # type: ignore[attr-defined]
    numbers = [n for n in found.space if any(s.schedule.parse(n) is not None for s in tested)]
    assert numbers and all(TRITON.emitter.launches(found, n, "kernel") for n in numbers)

    def refused(*_: object) -> list[Launch]:
        raise Unfusable("never emitted")

    for strategy in tested:
        emitters = [
            replace(TRITON.emitter, strategies=(replace(strategy, emit=refused, tested=sure),))  # type: ignore[type-var]
            for sure in (True, False)
        ]
        assert [e.emits(found, numbers[0]) for e in emitters] == [True, False]


def test_words_are_whole_names() -> None:
    text = "x1 + x_2.at[x3](y.z, 4e5)\nx10"
    assert words(text) == {"x1", "x_2", "at", "x3", "y", "z", "4e5", "x10"}
    assert words(text, members=False) == {"x1", "x_2", "x3", "y", "4e5", "x10"}
