"""The short form of a deep model: the same blocks between the same neighbours, and a graph that computes."""

from __future__ import annotations

import numpy as np
import pytest

from tensor_graphs.egraph.blocks.blocks import Blocks, find_blocks
from tensor_graphs.egraph.blocks.short_form import LARGEST_SHARE, short_form
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.view.joined_view import join_blocks
from tensor_graphs.egraph.view.view import view_of

from ..fuzz.reassembly import reassemble
from .test_blocks import cnn, transformer


def runs(blocks: Blocks) -> set[tuple[int, ...]]:
    kinds = [i.block for i in blocks.instances]
    return {tuple(kinds[n : n + 3]) for n in range(len(kinds) - 2)}


@pytest.mark.parametrize(("layers", "windows"), [(8, 1), (20, 1), (12, 2)])
def test_every_block_follows_what_it_follows_in_the_model(layers: int, windows: int) -> None:
    whole = find_blocks(transformer(layers, windows=windows))
    short = short_form(whole)
    assert short is not None and len(short.instances) <= LARGEST_SHARE * len(whole.instances)
    assert runs(short) == runs(whole) and short.unique == whole.unique
    known = {v for i in whole.instances for v in i.outputs}
    for n, one in enumerate(short.instances):
        before = {v for i in short.instances[:n] for v in i.outputs}
        assert all(v in before for v in one.inputs if v in known)
        assert [v.type for v in one.outputs] == [r.type for r in whole.unique[one.block].graph.outputs]
    assert len(short_form(find_blocks(transformer(2 * layers, windows=windows))).instances) == len(short.instances)  # type: ignore[union-attr]


def test_it_computes_the_model_with_fewer_layers() -> None:
    """All layers have the same weights here, so that it does not matter which of them are left."""
    whole = transformer(16)
    short = short_form(find_blocks(whole))
    assert short is not None
    made = reassemble(short)
    rng = np.random.default_rng(0)
    alike: dict[str, np.ndarray] = {}

    def params(graph: Graph) -> dict[str, np.ndarray]:
        leaves = {p.attr("name"): p for p in graph.leaves("param")}
        one = {n: n.partition(".")[2] if n[0].isdigit() else n for n in leaves}
        for n, p in leaves.items():
            alike.setdefault(one[n], rng.standard_normal(p.shape) / 8)  # type: ignore[arg-type]
        return {n: alike[one[n]] for n in leaves}

    layers = {p.attr("name").partition(".")[0] for p in made.leaves("param") if p.attr("name")[0].isdigit()}
    assert 2 <= len(layers) < 8
    given = {
        "ids": np.arange(16).reshape(2, 8),
        "positions": np.arange(16).reshape(2, 8),
        "keep": np.ones((2, 1, 1, 8), np.int64),
    }
    (got,) = evaluate(made, given, params=params(made), float64=True)
    (want,) = evaluate(transformer(len(layers)), given, params=params(transformer(len(layers))), float64=True)
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_its_view_has_the_blocks_of_the_model() -> None:
    whole = find_blocks(transformer(10))
    short = short_form(whole)
    assert short is not None
    views = [view_of(b.graph) for b in whole.unique]
    found, full = join_blocks(short, views), join_blocks(whole, views)
    assert found.extractable() and len(found) < len(full) / 2
    types = {(b, x): full.types[c] for b, places in full.instances for x, c in enumerate(places.tolist()) if c >= 0}
    for b, places in found.instances:
        assert all(found.types[c] == types[b, x] for x, c in enumerate(places.tolist()) if c >= 0)


def test_models_without_repeats_have_none() -> None:
    assert short_form(find_blocks(transformer(1))) is None
    assert short_form(find_blocks(cnn((1, 1, 1)))) is None


def test_values_read_far_behind_are_kept() -> None:
    """The last layer reads what the first one made, and what the fifth one made: the fifth cannot be left out."""
    import tensor_graphs as tg

    x, seen = tg.input("x", (4, 16)), []
    for i in range(12):
        x = x + tg.tanh(tg.rms_norm(x, tg.param(f"g{i}", (16,)), eps=1e-6) @ tg.param(f"w{i}", (16, 16)))
        seen.append(x)
    for extra in ((), (0,), (4,)):
        graph = Graph.of(tg.exp(x) + sum(seen[i] * 2.0 for i in extra) if extra else tg.exp(x))
        whole = find_blocks(graph)
        short = short_form(whole)
        if short is not None:
            assert runs(short) == runs(whole)
            assert {r.type for r in reassemble(short).roots} == {r.type for r in graph.roots}
    assert short_form(find_blocks(Graph.of(tg.exp(x)))) is not None
