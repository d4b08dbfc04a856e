"""Schedule search on made-up times: it finds what the ranking misses, never asks twice, goes on where it was cut."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda import backend as cuda_cpp
from tensor_graphs.backends.generate.kernel_text import kernel_text
from tensor_graphs.backends.generate.schedule import Domain, Move, depths, flag, number, optional
from tensor_graphs.backends.generate.schedule import Schedule as Declared
from tensor_graphs.backends.triton.backend import generated
from tensor_graphs.backends.triton.schedules import candidates as triton_space
from tensor_graphs.backends.triton.schedules import facts as triton_facts
from tensor_graphs.backends.tuning.schedule_search import (
    COUNT,
    LOOK,
    SEEDS,
    Schedule,
    ScheduleSearch,
    key_of_schedule,
)
from tensor_graphs.backends.tuning.trials import Measured, Trial, rows_of, search_of
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.egraph.composites import composite_ops as composite
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.extract.model.kernel import Call, Candidate, Operand, Vertex, contiguous
from tensor_graphs.pipeline.costs.prices import CostPricer

NAMES = ("m", "n", "k0", "warps")


@dataclass(frozen=True)
class Toy(Declared):
    """Four parameters; `m` alone where there are no others."""

    m: int = number("rows", Domain(1, 256, powers=True))
    n: int | None = optional("columns", Domain(1, 256, powers=True))
    k: tuple[int, ...] = depths("depths", Domain(powers=True))
    warps: int | None = optional("warps", Domain(1, 16, powers=True))
    stages: int | None = optional("stages", Domain(1, 8, steps="step"))
    split: int | None = optional("parts", Domain(2), drops=True, starts=2, companions=("join",))
    join: bool = flag("joined", fixed=True)


def moves(schedule: Schedule) -> Iterator[Move]:
    """Moves of a stored schedule of `Toy`."""
    found = Toy.parse(schedule)
    assert found is not None
    return found.moves()


def search(ranked: Sequence[Schedule], *arguments: Any, **more: Any) -> ScheduleSearch:
    """A search among schedules of `Toy`."""
    return ScheduleSearch(ranked, *arguments, moves=moves, form=lambda s: "roles" in s, **more)


def fits(schedule: Schedule) -> bool:
    return (
        set(schedule) == set(NAMES)
        and all(v & (v - 1) == 0 and 1 <= v <= 256 for v in schedule.values())
        and schedule["warps"] <= 16
        and 256 <= schedule["m"] * schedule["n"] <= 1 << 14
    )


def distance(best: Schedule, schedule: Schedule) -> float:
    """A valley around one schedule, that parameters approach independently."""
    return 10.0 + sum(abs(math.log2(best[n] / schedule[n])) * (i + 1) for i, n in enumerate(NAMES))


RANKED = [{"m": 16 << i % 3, "n": 32 << i % 4, "k0": 16 << i % 2, "warps": 4 << i % 2} for i in range(12)]


def run(one: ScheduleSearch, cost: object, worth: float = math.inf, cut: int = 10**9) -> list[Schedule]:
    """The schedules measured, in order, until the search ends or `cut` of them."""
    asked: list[Schedule] = []
    while (wanted := one.more(worth)) and len(asked) < cut:
        for schedule in wanted:
            asked.append(schedule)
            one.record(schedule, cost(schedule))  # type: ignore[operator]
    return asked


@given(best=st.fixed_dictionaries({"m": st.sampled_from([16, 64]), "n": st.sampled_from([64, 128, 256]),
                                   "k0": st.sampled_from([32, 64, 128]), "warps": st.sampled_from([2, 4, 8])}))  # fmt: skip
def test_moves_find_what_the_ranking_misses(best: Schedule) -> None:
    cost = lambda s: distance(best, s)
    asked = run(search(RANKED, fits), cost)
    assert len(asked) == len({key_of_schedule(s) for s in asked}) <= COUNT
    assert all(map(fits, asked))
    found, ranked = min(map(cost, asked)), min(map(cost, RANKED))
    assert found <= ranked
    if ranked > 14:
        assert found < ranked - 1


@given(st.data())
def test_a_search_that_was_cut_goes_on_as_if_it_had_not_been(data: st.DataObject) -> None:
    """What is proposed follows from what is known: the same results, however they came, give the same proposals."""
    cost = lambda s: math.inf if hash(key_of_schedule(s)) % 5 == 0 else distance(RANKED[3], s)
    whole = run(search(RANKED, fits), cost)
    cut = data.draw(st.integers(0, len(whole)))
    first = search(RANKED, fits)
    before = run(first, cost, cut=cut)
    after = run(search(RANKED, fits, known=dict(first.known)), cost)
    assert before + after == whole
    ended = search(RANKED, fits, known={**first.known, **{key_of_schedule(s): cost(s) for s in after}})
    assert ended.more() == []


def test_a_hopeless_kernel_is_left_after_the_guesses() -> None:
    assert len(run(search(RANKED, fits), lambda s: 100.0, worth=10.0)) == SEEDS
    assert len(run(search(RANKED, fits), lambda s: 9.0, worth=10.0)) == COUNT
    assert run(search(RANKED, fits), lambda s: 9.0, worth=0.0) == []


def test_where_all_guesses_fail_the_others_are_tried() -> None:
    good = key_of_schedule(RANKED[-1])
    asked = run(search(RANKED, fits), lambda s: 5.0 if key_of_schedule(s) == good else math.inf)
    assert RANKED[-1] in asked and len(asked) <= 2 * COUNT
    assert run(search(RANKED), lambda s: math.inf) == RANKED


def test_what_was_best_nearby_is_a_guess() -> None:
    near = {"m": 16, "n": 256, "k0": 64, "warps": 2}
    assert near in search(RANKED, fits, near=[near]).more()


def test_a_first_look_is_a_few_guesses_and_the_search_goes_on_from_them() -> None:
    one = search(RANKED, fits)
    assert one.more(look=True) == RANKED[:1]
    one.record(RANKED[0], 9.0)
    assert one.more(worth=8.0, look=True) == RANKED[1:LOOK], "it is not far from being of use"
    one.record(RANKED[1], 7.0)
    one.record(RANKED[2], math.inf)
    assert one.more(look=True) == [] and one.more()[: SEEDS - LOOK] == RANKED[LOOK:SEEDS]
    failed = search(RANKED, fits)
    for _ in range(2):
        for s in failed.more(look=True):
            failed.record(s, math.inf)
    assert failed.known.keys() == set(map(key_of_schedule, RANKED[:LOOK])) and failed.more(look=True), (
        "nothing is known yet"
    )
    assert failed.more(worth=0.0, look=True) == [], "the time is up"


def test_a_first_look_ends_where_the_first_guess_is_far_from_being_of_use() -> None:
    one = search(RANKED, fits)
    one.record(*one.more(look=True), 15.1)
    assert one.more(worth=10.0, look=True) == [] and one.more(worth=10.1, look=True) == RANKED[1:LOOK]


def test_a_first_look_sees_the_best_guess_of_each_form() -> None:
    roles = {"roles": 1, "m": 64, "n": 64}
    wide = [{**roles, "m": m} for m in (128, 256)]
    assert search([roles, *wide, *RANKED]).more(look=True) == [roles]
    assert search([roles, RANKED[0], {**roles, "m": 128}]).more(look=True) == [roles, RANKED[0]]


def test_what_was_best_in_kernels_like_it_is_all_of_a_first_look_and_begins_a_search() -> None:
    like = [{"m": 16, "n": 256, "k0": 64, "warps": 2}, {"m": 32, "n": 256, "k0": 64, "warps": 2}]
    one = search(RANKED, fits, like=like)
    assert one.more(look=True) == like[:1]
    one.record(like[0], 5.0)
    assert one.more(look=True) == [] and one.more()[0] == like[1]
    failed = search(RANKED, fits, like=like)
    failed.record(like[0], math.inf)
    assert failed.more(look=True)


def test_where_moves_from_the_fastest_are_used_up_those_from_others_near_it_lead_on() -> None:
    times = {1: 10.0, 2: 10.5, 4: 11.0, 8: 11.2, 16: 9.0, 32: 20.0, 64: 8.0}
    legal = lambda s: set(s) == {"m"} and s["m"] in times
    asked = run(search([{"m": 1}], legal), lambda s: times[s["m"]])
    assert [s["m"] for s in asked] == [1, 2, 4, 8, 16, 32], "what is far from the fastest leads nowhere"


def test_moves_change_one_thing_and_can_be_undone() -> None:
    start = {"m": 16, "n": 32, "k0": 32, "k1": 32, "k2": 8, "stages": 3, "warps": 4}
    steps = [s for *_, s in moves(start)]
    assert {**start, "split": 2, "join": 1} in steps and {**start, "k0": 64, "k1": 64} in steps
    assert {**start, "stages": 4} in steps and {**start, "m": 8} in steps
    assert all(key_of_schedule(start) in (key_of_schedule(back) for *_, back in moves(s)) for s in steps)


# ---------------------------------------------------------------- Triton's space
def operand(tensor: Tensor) -> Operand:
    return Operand(tensor.type, contiguous(tensor.shape))  # type: ignore[arg-type]


def terms() -> dict[str, Tensor]:
    def x(*shape: int) -> Tensor:
        return t.input(f"x{prod(shape)}", shape, "bfloat16")

    q, k = t.input("q", (1, 8, 1, 64), "bfloat16"), t.input("k", (1, 8, 512, 64), "bfloat16")
    return {
        "pointwise": t.exp(x(300, 70)) + 1.0,
        "narrow": t.exp(x(1, 16)) + 1.0,
        "rows": composite.softmax(x(300, 1000), axis=1),
        "a short sum": t.matmul(x(72, 8), x(8, 48)),
        "few rows": t.matmul(x(4, 512), x(512, 768)),
        "a vector": t.matmul(x(1, 512), x(512, 768)),
        "many rows": composite.silu(t.matmul(x(640, 512), x(512, 768))),
        "attention": composite.attention(q, k, k, scale=0.125, causal=False),
    }


@pytest.mark.parametrize("kind", terms())
def test_what_is_ranked_fits_and_so_do_moves_that_can_be_written(kind: str) -> None:
    root = terms()[kind]
    template = generated(root)
    call = Call({str(n): operand(leaf) for n, leaf in leaves(root).items()}, operand(root), {})
    assert template.space is not None and template.fits is not None
    ranked = [dict(s) for s in template.space(call)]
    fitting = lambda s: template.fits(replace(call, schedule=s))  # type: ignore[misc]
    assert ranked and all(map(fitting, ranked))
    legal = [s for *_, s in template.moves(ranked[0]) if fitting(s)]  # type: ignore[misc]
    assert legal and all(template.source(replace(call, schedule=s)) for s in legal)  # type: ignore[misc]
    for wrong in ({"m": 3}, {"warps": 64}, {"n": 1 << 20}, {"stages": 0}, {"what": 2}):
        assert not fitting({**ranked[0], **wrong})


@pytest.mark.parametrize("kind", terms())
def test_moves_in_cuda_give_other_kernels(kind: str) -> None:
    """What is ranked fits; no legal move gives the text that was there before, which would cost a measurement."""
    root = terms()[kind]
    template = cuda_cpp.generated(root, ["x393216"] if kind == "few rows" else [])
    call = Call({str(n): operand(leaf) for n, leaf in leaves(root).items()}, operand(root), {})
    assert template.space is not None and template.fits is not None
    ranked = [dict(s) for s in template.space(call)]
    fitting = lambda s: template.fits(replace(call, schedule=s))  # type: ignore[misc]
    assert bool(ranked) or kind in ("many rows", "attention", "a short sum")
    ranked = [s for s in ranked if "roles" not in s]
    assert all(map(fitting, ranked)) and not any(
        fitting({**s, **more}) for s in ranked for more in ({"boxes": 1}, {"stages": 2}, {"um": 64})
    )
    text = lambda s: re.sub(r"_[0-9a-f]{10}", "", kernel_text(template, replace(call, schedule=s)).text)
    for s in ranked[:3]:
        assert text(s) not in {text(m) for *_, m in template.moves(s) if fitting(m)}  # type: ignore[misc]


def leaves(root: Tensor) -> dict[str, Tensor]:
    from tensor_graphs.egraph.ir.tensor import topological

    return {n.attr("name"): n for n in topological([root]) if n.op == "input"}


def test_a_store_knows_schedules_of_this_shape_and_the_best_of_others(tmp_path: object) -> None:
    store = Store(tmp_path)  # type: ignore[arg-type]

    def at(rows: int) -> tuple[object, Call]:
        root = composite.softmax(t.input("x", (rows, 1000)), axis=1)
        return generated(root), Call({"x": operand(leaves(root)["x"])}, operand(root), {})

    template, call = at(256)
    first = search_of(template, call, COUNT, store.snapshot)  # type: ignore[arg-type]
    assert first is not None and not first.near
    moved = next(s for *_, s in first.moves(first.ranked[0]) if first.fits(s) and s not in first.ranked)  # type: ignore[misc]
    tries = [Trial(replace(call, schedule=s), cold=[us] * 3) for s, us in ((first.ranked[0], 5.0), (moved, 2.0))]
    store.add(rows_of(Measured(template, call, tries)))  # type: ignore[arg-type]
    again = search_of(template, call, COUNT, store.snapshot)  # type: ignore[arg-type]
    assert again is not None and again.known == {key_of_schedule(first.ranked[0]): 5.0, key_of_schedule(moved): 2.0}
    assert not again.near and again.more()
    with patch.object(type(template), "fits", side_effect=AssertionError("emitted, to guess what is known")):
        assert search_of(template, call, COUNT, store.snapshot).unfinished  # type: ignore[arg-type, union-attr]
    place = Candidate(template, Vertex(0, call.output.strides), (), call)  # type: ignore[arg-type]
    price = CostPricer(store).price([place])[0]
    assert (price.us, price.source, price.schedule) == (2.0, "measured", key_of_schedule(moved))
    other, larger = at(512)
    elsewhere = search_of(other, larger, COUNT, store.snapshot)  # type: ignore[arg-type]
    assert elsewhere is not None and not elsewhere.known
    assert elsewhere.near == [moved]


def test_kernels_that_differ_in_no_number_are_ranked_once() -> None:
    def facts(*shape: int) -> triton_facts.KernelFacts:
        root = composite.softmax(t.input("x", shape, "bfloat16"), axis=1)
        found = generated(root).lower(Call({"x": operand(leaves(root)["x"])}, operand(root), {}))
        assert found is not None
        return triton_facts.facts_of(found.kernel, found.shape, found.cuts)

    assert facts(300, 1000) == facts(300, 1000) != facts(301, 1000)
    assert {hash(facts(300, 1000))} == {hash(facts(300, 1000))}


def test_kernels_are_alike_whose_loops_are_the_same() -> None:
    def kind(root: Tensor, emitted: object = generated) -> object:
        call = Call({str(n): operand(x) for n, x in leaves(root).items()}, operand(root), {})
        return emitted(root).alike(call)  # type: ignore[operator]

    def product(rows: int = 256, length: int = 512) -> Tensor:
        return t.matmul(t.input("x", (rows, length)), t.input("w", (length, 128)))

    bias = t.input("b", (128,))
    assert kind(product()) == kind(composite.relu(product() + bias)) is not None
    assert len({kind(product()), kind(product(512)), kind(product(256, 256)), kind(t.exp(bias))}) == 4
    assert kind(product()) != kind(product(), cuda_cpp.generated)


def test_what_can_have_roles_learns_nothing_from_what_cannot() -> None:
    """A first look at attention would else try no roles where its keys' norm, computed inside, had none."""
    q, k, v = (t.input(n, (1, 2, 1024, 64), "bfloat16") for n in "qkv")
    kinds = []
    for keys in (k, composite.rms_norm(k, t.input("g", (64,), "bfloat16"), eps=1e-6)):
        root = composite.attention(q, keys, v, scale=0.125)
        template, call = generated(root), Call({str(n): operand(x) for n, x in leaves(root).items()}, operand(root), {})
        kinds.append((any("roles" in s for s in template.space(call)), template.alike(call)))  # type: ignore[misc]
    assert [roles for roles, _ in kinds] == [True, False]
    assert kinds[0][1] != kinds[1][1]


def test_thousands_of_programs_are_not_guessed_to_be_small() -> None:
    root = composite.softmax(t.input("x", (65536, 128), "bfloat16"), axis=1)
    template, call = generated(root), Call({"x": operand(leaves(root)["x"])}, operand(root), {})
    best, *_ = template.space(call)  # type: ignore[misc]
    assert best["m"] * best["k0"] >= triton_space.SMALL


@pytest.mark.parametrize("normed", [False, True])
def test_what_lies_along_rows_is_guessed_in_tiles_of_many_rows(normed: bool) -> None:
    """A transposition writes one element of each row side by side."""
    x = t.input("x", (32, 2048, 128), "bfloat16")
    plain = composite.rms_norm(x, t.input("g", (128,), "bfloat16"), eps=1e-6) if normed else x * 2.0
    for root, least in ((plain, 1), (t.permute(plain, (0, 2, 1)), 32)):
        template = generated(root)
        best = next(
            iter(template.space(Call({str(n): operand(a) for n, a in leaves(root).items()}, operand(root), {})))
        )  # type: ignore[misc]
        assert min(best["m"], best["n"]) >= least
