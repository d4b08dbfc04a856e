"""What was found for a class of one layer holds for the same class of another, with other operands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.view.view import EGraphView, view_of
from tensor_graphs.extract.fusion.groups import FusionGroups
from tensor_graphs.extract.fusion.policy import FusionGroup
from tensor_graphs.extract.fusion.repeats import RepeatedSubgraphs
from tensor_graphs.extract.fusion.sequence_slices import sequence_slice_classes

LAYERS, WIDTH = 24, 8


def network(layers: int = LAYERS) -> EGraphView:
    """Layers with two norms, a gate and a residual each; the fifth has another gate."""
    x = t.input("x", (4, WIDTH))
    for i in range(layers):
        weight = lambda n, i=i: t.param(f"{n}{i}", (WIDTH, WIDTH))
        h = c.rms_norm(x, t.param(f"g{i}", (WIDTH,)), eps=1e-6)
        gate = t.tanh(t.matmul(h, weight("a"))) if i == 4 else c.silu(t.matmul(h, weight("a")))
        x = x + t.matmul(gate * t.matmul(h, weight("b")), weight("c"))
    return view_of(Graph.of(x))


def given(view: EGraphView) -> frozenset[int]:
    return frozenset(int(view.cls[n]) for n, op in enumerate(view.op) if op in ("input", "param", "constant"))


def known(groups: Iterable[FusionGroup]) -> set[Any]:
    return {(r.cls, r.term, tuple(x for _, x in r.leaves), r.inner, r.statistics) for r in groups}


class Different(RepeatedSubgraphs):
    """No two classes are alike."""

    @property
    def colours(self) -> list[int]:
        return list(range(self.view.n_classes))


def test_regions_of_repeated_layers_are_those_that_each_would_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    view = network()
    moved = FusionGroups(view, given(view))
    found = known(moved)
    grown = sum(len(kept) for kept in moved._groups_by_colour.values())
    assert grown < 0.7 * len(moved.reachable())
    monkeypatch.setattr("tensor_graphs.extract.fusion.groups.RepeatedSubgraphs", Different)
    alone = FusionGroups(view, given(view))
    assert known(alone) == found and alone.shared == moved.shared
    assert sum(len(kept) for kept in alone._groups_by_colour.values()) == len(alone.reachable())


def test_classes_are_alike_where_their_surroundings_are() -> None:
    view = network()
    colours = FusionGroups(view, given(view)).repeats.colours
    sums = [int(view.cls[n]) for n, op in enumerate(view.op) if op == "add"]
    seen = [colours[s] for s in sums]
    middle = seen[9:-5]
    assert len({*middle}) == 1 and not {*seen[:3], *seen[-2:], seen[4]} & {*middle}


def test_an_image_follows_e_nodes_and_is_none_where_they_differ() -> None:
    view = network()
    repeats = FusionGroups(view, given(view)).repeats
    tops = [
        n
        for n, op in enumerate(view.op)
        if op == "mul" and any(view.op[m] == "matmul" for k in view.children(n) for m in view.nodes_of(k))
    ]
    below = lambda n: [n, *(int(m) for k in view.children(n) for m in view.nodes_of(k))]
    cls = lambda n: int(view.cls[n])
    first, other, odd = tops[6], tops[7], tops[4]
    image = repeats.image(repeats.outline(below(first)), cls(first), cls(other))
    assert image is not None and image[cls(first)] == cls(other)
    for a, b in image.items():
        assert view.types[a] == view.types[b]
        assert [view.op[n] for n in view.nodes_of(a)] == [view.op[n] for n in view.nodes_of(b)]
    assert repeats.image(repeats.outline(below(first)), cls(first), cls(odd)) is None


def unrolled(steps: int) -> EGraphView:
    """A recurrence over a sequence in memory, its states stacked."""
    x, h = t.input("x", (4, steps, WIDTH)), t.input("h", (4, WIDTH))
    w, u = (t.param(n, (WIDTH, WIDTH)) for n in "wu")
    states = []
    for i in range(steps):
        place = x[:, i]
        h = t.tanh(t.matmul(place, w) + t.matmul(h, u))
        states.append(t.reshape(h, (4, 1, WIDTH)))
    stacked = states[0]
    for state in states[1:]:
        stacked = t.concat([stacked, state], axis=1)
    return view_of(Graph.of(stacked))


def test_steps_of_an_unrolled_program_are_grown_once_and_are_the_same_kernels() -> None:
    """Places of a sequence are read as views, and how many steps are put together tells no step from another."""

    def of_states(view: EGraphView) -> tuple[int, set[Any]]:
        places = sequence_slice_classes(view, given(view), view.types)
        groups = FusionGroups(view, given(view) | places)
        tanh = {int(view.cls[n]) for n, op in enumerate(view.op) if op == "tanh"}
        terms = {r.term for r in groups if r.cls in tanh}
        grown = sum(1 for kept in groups._groups_by_colour.values() for one in kept if one.cls in tanh)
        return grown, terms

    (few, terms), (many, same) = of_states(unrolled(12)), of_states(unrolled(30))
    assert few == many < 12 and terms == same


def test_places_are_views_of_what_is_given() -> None:
    """A step's row, also without the axis of one element and in a wider type of the same memory; no rows of what is
    computed, no wider slices, and none where few are read."""
    view = unrolled(9)
    found = sequence_slice_classes(view, given(view), view.types)
    assert len(found) == 18 and not found & given(view)
    assert not sequence_slice_classes(unrolled(7), given(unrolled(7)), unrolled(7).types)
    x = t.input("x", (9, 4), "bfloat16")
    wide, made = t.cast(x, "float32"), t.exp(x)
    rows = [wide[i : i + 1] for i in range(9)]
    rows += [made[i : i + 1] for i in range(9)]
    view = view_of(Graph.of([*rows, *(x[i : i + 2] for i in range(8))]))
    assert not sequence_slice_classes(view, given(view), view.types)
    assert (
        len(sequence_slice_classes(view, given(view), [view.types[int(next(iter(given(view))))]] * view.n_classes)) == 9
    )
