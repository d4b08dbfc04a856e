"""Maximal fusion of programs of many small operations: number of kernels, and their values."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensor_graphs as tg
import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.generate.recursion_limit import DEEPEST, raise_recursion_limit
from tensor_graphs.backends.generate.template import GeneratedKernel
from tensor_graphs.backends.generate.term_text import pattern_text
from tensor_graphs.backends.ir import kernel as kir
from tensor_graphs.backends.ir.expr import Builder, factors
from tensor_graphs.backends.ir.index import Axis, index
from tensor_graphs.backends.lowering.concat_split import pieces, should_unroll, unsplit_flops
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.triton.emit.row_stores import rows
from tensor_graphs.backends.tuning.single_kernel import run_outputs
from tensor_graphs.egraph.evaluate.interpret import evaluate, expand_all
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.egraph.ops.ops import OPS
from tensor_graphs.egraph.patterns.pattern import build, shared
from tensor_graphs.egraph.patterns.pattern_parser import parse_terms
from tensor_graphs.egraph.simplify.simplify import simplify
from tensor_graphs.egraph.types.dims import concrete
from tensor_graphs.egraph.view.view import view_of
from tensor_graphs.errors import ExtractionError, RuleError
from tensor_graphs.extract.candidates.candidates import given_classes
from tensor_graphs.extract.fusion.groups import FusionGroups
from tensor_graphs.extract.fusion.maximal import MaximalFusion, without_rewrites_in_large_parts
from tensor_graphs.extract.fusion.multi_output_group import MultiOutputGroup
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.extract.model.work import graph_flops
from tensor_graphs.extract.solve.serialize import read_document

from . import kernel_interpreter

Terms = list[Tensor]
PLACE = index(Axis("i0", 8))


def x(name: str, *shape: int) -> Tensor:
    return t.input(name, shape)


def _scan() -> Terms:
    steps, b, c, a = x("d", 2, 5, 8), x("b", 2, 5, 4), x("c", 2, 5, 4), x("a", 8, 4)
    state: Tensor | None = None
    found = []
    for i in range(5):
        fresh = (tg.softplus(steps[:, i]) * steps[:, i])[:, :, None] * b[:, i, None, :]
        state = fresh if state is None else tg.exp(steps[:, i][:, :, None] * a) * state + fresh
        found.append(tg.sum(state * c[:, i, None, :], axis=-1))
    return [tg.stack(found, axis=1)]


def _read_out(steps: int = 5) -> Terms:
    """A scan whose states are read out by products with a vector, then gated."""
    d, b, c, gate, a = x("d", 2, 8, steps), x("b", 2, steps, 4), x("c", 2, steps, 4), x("g", 2, 8, steps), x("a", 8, 4)
    state: Tensor | None = None
    found = []
    for i in range(steps):
        step = tg.softplus(d[:, :, i])[:, :, None]
        fresh = step * b[:, i, None, :]
        state = fresh if state is None else tg.exp(step * a) * state + fresh
        found.append((state @ c[:, i, :, None])[:, :, 0])
    return [(tg.stack(found, axis=2) + d) * tg.sigmoid(gate)]


def _outer_states() -> Terms:
    """Linear attention with decay: states are outer products, queries read them."""
    q, k, v, w = x("q", 2, 5, 4), x("k", 2, 5, 4), x("v", 2, 5, 8), x("w", 4, 1)
    state: Tensor | None = None
    found = []
    for i in range(5):
        fresh = k[:, i, :, None] @ v[:, i, None, :]
        state = fresh if state is None else tg.sigmoid(w) * state + fresh
        found.append((q[:, i, None, :] @ state)[:, 0])
    return [tg.stack(found, axis=1)]


def _recurrence(steps: int = 7) -> Terms:
    f, z, h = x("f", 3, steps, 6), x("z", 3, steps, 6), x("h", 3, 6)
    found = []
    for i in range(steps):
        gate = tg.sigmoid(f[:, i])
        h = gate * h + (1.0 - gate) * tg.tanh(z[:, i])
        found.append(h)
    return [tg.stack(found, axis=1)]


def _nested_stacks() -> Terms:
    xy, found = x("s", 6, 2), []
    a, b = xy[:, 0], xy[:, 1]
    for _ in range(6):
        a, b = a + 0.1 * tg.sin(b) + a * b, b - 0.1 * tg.cos(a) * b
        found.append(tg.stack([a, b], axis=1))
    return [tg.stack(found, axis=1)]


def _solver() -> Terms:
    now = [x(n, 40) for n in "xyz"]
    for _ in range(4):
        slope = [10.0 * (now[1] - now[0]), now[0] * (28.0 - now[2]) - now[1], now[0] * now[1] - 2.5 * now[2]]
        half = [u + 0.01 * k for u, k in zip(now, slope)]
        now = [u + 0.02 * k * h for u, k, h in zip(now, slope, half)]
    return [tg.stack(now, axis=1), now[0] + now[1]]


def _update() -> Terms:
    p, g, m, v = (x(n, 9, 5) for n in "pgmv")
    m, v = 0.9 * m + 0.1 * g, 0.99 * v * v + 0.01 * g * g
    step = (m / 0.6) / (tg.sqrt(v / 0.4) + 1e-6)
    return [p * 0.99 - 0.1 * tg.tanh(step) * tg.sigmoid(p), m, v]


def _bisection() -> Terms:
    p = tg.softmax(x("l", 3, 20), axis=-1)
    low, high = 0.0 * tg.max(p, axis=-1, keepdims=True), tg.max(p, axis=-1, keepdims=True)
    for _ in range(4):
        middle = (low + high) * 0.5
        enough = tg.sum(tg.where(p < middle, 0.0, p), axis=-1, keepdims=True) >= 0.7
        low, high = tg.where(enough, middle, low), tg.where(enough, high, middle)
    return [tg.where(p < low, 0.0, p)]


def _chain(count: int) -> Terms:
    a = tg.sigmoid(x("x", 30))
    for _ in range(count):
        a = 3.7 * a * (1.0 - a)
    return [a]


PROGRAMS: dict[str, Callable[[], Terms]] = {
    "scan": _scan, "recurrence": _recurrence, "nested stacks": _nested_stacks, "solver": _solver, "update": _update,
    "bisection": _bisection, "read-out": _read_out, "outer states": _outer_states, "chain": lambda: _chain(12),
}  # fmt: skip


def _turns(given_back: bool = True) -> Terms:
    """Rows of three by three made of four, times three: put together, then summed over an axis of what was put
    together."""
    q, v = x("q", 50, 4), x("v", 50, 3)
    q = q / tg.sqrt(tg.sum(q * q, axis=-1, keepdims=True))
    a, b, c, d = (q[:, n] for n in range(4))
    rows = [1.0 - c * c - d * d, b * c - a * d, b * d + a * c, b * c + a * d, 1.0 - b * b - d * d, c * d - a * b,
            b * d - a * c, c * d + a * b, 1.0 - b * b - c * c]  # fmt: skip
    turn = tg.reshape(tg.stack(rows, axis=1), (50, 3, 3))
    return [*([turn] if given_back else []), tg.sum(turn * v[:, None], axis=-1)]


def _corners() -> Terms:
    """Two results of two elements each, of which one is put together and the other one is the largest of pairs; and a
    norm."""
    a, b = x("a", 30, 2), x("b", 30, 2)
    size = tg.exp(a[:, 0] - b[:, 1]) * tg.tanh(a[:, 1] * b[:, 0])
    both = tg.stack([tg.sin(size), size * a[:, 0]], axis=1)
    return [both, tg.max(both * a, axis=1), tg.exp(both) * b]


SHORT = {"turns": _turns, "turned": lambda: _turns(False), "corners": _corners}


def whole_of(roots: Terms, **more: bool) -> MaximalFusion:
    view = view_of(simplify(Graph.of(roots)))
    return MaximalFusion(FusionGroups(view, given_classes(view)), **more)


def kernel_for(group: MultiOutputGroup) -> tuple[GeneratedKernel, Call]:
    """Triton's template of a group, and its call in row-major memory."""
    template = backend("triton").opened()._template(group.terms, ())  # type: ignore[attr-defined]
    leaves = {str(leaf.attr("name")): Operand(leaf.type, contiguous(concrete(leaf.shape))) for leaf, _ in group.leaves}
    first, *more = (Operand(term.type, contiguous(concrete(term.shape))) for term in group.terms)
    return template, Call(leaves, first, {}, more=tuple(more))


@pytest.mark.parametrize("name", [*PROGRAMS, *SHORT])
def test_a_program_is_one_part_and_one_kernel(name: str) -> None:
    """Which computes what the program does, by NumPy and by Triton's interpreter; short reductions are written out."""
    roots = {**PROGRAMS, **SHORT}[name]()
    whole = whole_of(roots, unrolled=name in SHORT)
    assert len(whole.parts) == 1
    group = whole.group(whole.parts[0].members)
    assert group is not None
    template, call = kernel_for(group)
    found = template.lower(call)
    assert found is not None
    assert name not in SHORT or not found.kernel.reductions
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal(concrete(o.type.shape)).astype(np.float32) for n, o in call.operands.items()}
    want = evaluate(Graph.of(list(group.terms)), given, float64=True)
    memory = {n: v.ravel().astype(float) for n, v in given.items()}
    names = [s for s in found.kernel.buffers if s not in given]
    memory |= {n: np.full(w.size, np.nan) for n, w in zip(names, want)}
    kernel_interpreter.run(found.kernel, memory)
    triton = run_outputs(template, replace(call, schedule=found.space[0]), given, device="cpu")
    for name_, w, by_triton in zip(names, want, triton, strict=True):
        np.testing.assert_allclose(memory[name_].reshape(w.shape), w, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(by_triton, w, rtol=2e-4, atol=2e-5)


def test_steps_that_are_stacked_are_each_computed_once() -> None:
    """A kernel over one step's elements: an exponential for each step but the first, not one for each step of each."""
    whole = whole_of(_scan())
    group = whole.group(whole.parts[0].members)
    assert group is not None
    template, call = kernel_for(group)
    lowered = template.lower(call)
    assert lowered is not None
    assert len(lowered.kernel.stores) == 5 and "PIECES" in lowered.kernel.builder.transformations
    assert sum(e.op == "reduce" for e in lowered.kernel.exprs) == 5


@pytest.mark.parametrize(("steps", "most"), [(7, 15), (80, 100)])
def test_loads_stay_ahead_of_stores(steps: int, most: int) -> None:
    """None overtakes a store: those of few steps all come first, of many as much as registers hold."""
    whole = whole_of(_recurrence(steps))
    group = whole.group(whole.parts[0].members)
    assert group is not None
    template, call = kernel_for(group)
    found = template.lower(call)
    assert found is not None
    source = "".join(template.source(replace(call, schedule=found.space[0])).values())  # type: ignore[misc]
    parts = [part.count("tl.load(") for part in source.split("tl.store(")]
    assert sum(parts) == 2 * steps + 1 and most - 10 <= parts[0] <= most
    behind = [sum(parts[: n + 1]) for n in range(steps)]
    assert all(loaded >= min(2 * steps + 1, 2 * n + 60) for n, loaded in enumerate(behind))


@pytest.mark.parametrize(("name", "widths"), [("turns", [9, 3]), ("turned", [3]), ("corners", [2, 2]), ("nested stacks", [12]),
                                              ("solver", [3]), ("recurrence", []), ("update", [])])  # fmt: skip
def test_results_side_by_side_are_written_as_rows(name: str, widths: list[int]) -> None:
    """By a schedule that puts them together; the other way they are stored one by one, and both give the same."""
    whole = whole_of({**PROGRAMS, **SHORT}[name](), unrolled=name in SHORT)
    group = whole.group(whole.parts[0].members)
    assert group is not None
    template, call = kernel_for(group)
    found = template.lower(call)
    assert found is not None and [len(r.stores) for r in rows(found.kernel)] == widths
    plain = next(s for s in found.space if "beside" not in s)
    beside = [s for s in found.space if "beside" in s]
    assert bool(beside) == bool(widths) and (not beside or beside[0] is found.space[0])
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal(concrete(o.type.shape)).astype(np.float32) for n, o in call.operands.items()}
    one_by_one = run_outputs(template, replace(call, schedule=plain), given, device="cpu")
    texts = ["".join(template.source(replace(call, schedule=s)).values()) for s in (plain, *beside[:1])]  # type: ignore[misc]
    for schedule in beside[:2]:
        together = run_outputs(template, replace(call, schedule=schedule), given, device="cpu")
        assert all((a == b).all() for a, b in zip(one_by_one, together, strict=True))
    if beside:
        assert texts[0].count("tl.store(") - texts[1].count("tl.store(") == sum(widths) - len(widths)
        assert not template.fits(replace(call, schedule=beside[0] | {"n": 4096, "warps": 1}))  # type: ignore[misc]


def test_sums_that_most_is_computed_in_are_not_written_out() -> None:
    """The steps of a recurrence over states of four each, and programs without short sums: what is written out is no
    part."""
    assert not whole_of(_recurrence(), unrolled=True).parts
    whole = whole_of(_scan(), unrolled=True)
    (part,) = (p for p in whole.parts if whole.weight(p.members) > 10)
    group = whole.group(part.members)
    assert group is not None
    apart = pieces(expand_all(group.terms))
    assert apart is not None and not should_unroll(apart)


def test_nothing_starts_or_reads_inside_a_large_part() -> None:
    """Of a part that is one kernel, small groups are those at its ends: its states are neither made nor read by
    others."""
    (y,) = _read_out(24)
    found = whole_of([t.matmul(t.reshape(y, (16, 24)), x("w", 24, 6))])
    assert len(found.large) == 1 and len(found.unread) > 100
    groups = found.groups
    groups.settled, groups.unstarted, groups.unread = found.settled, found.unstarted, found.unread
    assert not groups.unread & {*groups.given} and not groups.unread & {*found.results(found.large[0])}
    seen = list(groups)
    assert seen and not any(c in found.unread for r in seen for c in (r.cls, *(c for _, c in r.leaves)))


def test_large_terms_are_looked_at_in_fewer_layouts() -> None:
    few, many = (kernel_for(g)[0].combinations for n in (4, 60) if (g := _group_of(_recurrence(n))))
    assert few > many >= 8


def _group_of(roots: Terms) -> MultiOutputGroup | None:
    whole = whole_of(roots)
    return whole.group(whole.parts[0].members)


def test_results_with_little_to_compute_are_not_cut() -> None:
    halves = t.concat([-1.0 * x("a", 4, 8), x("b", 4, 8)], axis=1)
    assert pieces([halves]) is None


def test_what_one_kernel_cannot_hold_is_cut_where_fewest_values_cross() -> None:
    """Behind many values in parallel there is a place where one crosses."""
    a = x("x", 30)
    for _ in range(4):
        a = tg.sin(a) * tg.cos(a) + tg.exp(a) * tg.tanh(a)
    whole = whole_of([a])
    (part,) = whole.parts
    first, second = whole.halves(part.members)
    assert len(whole.results(first)) == 1 and first + second == part.members
    group = whole.group(part.members)
    assert group is not None
    whole.known[group.classes] = part.members
    whole.refused(group)
    assert sorted(map(len, whole.todo)) == sorted((len(first), len(second)))


def test_a_kernel_of_thousands_of_operations_is_refused_and_cut() -> None:
    whole = whole_of(_chain(1500))
    made = list(backend("triton").opened()._at_once(whole, whole.view.types, frozenset(), lambda: False))  # type: ignore[attr-defined]
    sizes = [len(topological(template.roots)) for _, template in made]
    assert len(whole.parts[0].members) > 4000 and max(sizes) < 3000
    assert {c for p in whole.parts for c in p.members} <= whole.settled


def test_recursion_stays_bounded(tmp_path: Path) -> None:
    """However large a kernel was, a file that is nested too deeply is refused, in this process too."""
    before = sys.getrecursionlimit()
    try:
        raise_recursion_limit(10**6)
        assert sys.getrecursionlimit() <= max(before, DEEPEST) <= 40_000
        (tmp_path / "deep.json").write_bytes(b'[{"a":' * 100_000)
        with pytest.raises(ExtractionError, match="nested too deeply"):
            read_document(tmp_path / "deep.json")
    finally:
        sys.setrecursionlimit(before)


def test_what_is_computed_between_products_belongs_to_no_part_with_them() -> None:
    y = tg.relu(x("a", 8, 8) @ x("b", 8, 8))
    whole = whole_of([tg.exp(y) @ x("c", 8, 8)])
    assert all(whole.values.op(c) != "matmul" for p in whole.parts for c in p.members)
    assert not whole.large and without_rewrites_in_large_parts(whole.view, given_classes(whole.view)) is whole.view


def test_parts_do_not_wait_for_each_other() -> None:
    """A value before a product and one behind it, both read by a third."""
    a = tg.exp(x("a", 8, 8))
    b = tg.tanh(a @ x("w", 8, 8))
    partition = whole_of([a + b, tg.sin(a)]).partition
    for n, part in enumerate(partition.parts):
        assert not partition.later[n] >> n & 1
        assert all(partition.later[n] >> m & 1 for m in part.after)


# ---------------------------------------------------------------- terms, expressions and texts of a thousand operations
def test_shared_terms_are_written_once_and_come_back() -> None:
    (root,) = _chain(400)
    text = pattern_text([root])
    assert len(text) < 60_000
    (term,) = parse_terms(text)
    assert sum(1 for _ in shared(term)) < 3000
    (leaf,) = (n for n in topological([root]) if n.op == "input")
    assert build(term, {"x": leaf}, {}) is root


@pytest.mark.parametrize("text", ["1a := exp(x); exp(x)", "a b := exp(x); exp(x)"])
def test_a_name_must_be_one(text: str) -> None:
    with pytest.raises(RuleError, match="no name"):
        parse_terms(text)


def test_products_of_very_many_factors_are_left_as_they_are() -> None:
    b = Builder()
    e = b.make("load", (), ("x", PLACE, (), "float32"))
    for _ in range(40):
        e = b.mul(e, e)
    assert factors(e) == ([e], [])
    few = b.pointwise("div", (e.args[0].args[0], e))
    over, under = factors(few)
    assert over or under


def test_values_held_at_once_are_counted() -> None:
    b = Builder()
    loads = [b.make("load", (), (f"x{n}", PLACE, (), "float32")) for n in range(4)]
    total = loads[0]
    for load in loads[1:]:
        total = b.pointwise("add", (total, load))
    one = kir.Kernel((), (kir.OutputStore("out", PLACE, total),), {}, b)
    assert one.held == 3  # the sum so far, the next one, and what they make
    assert one.work == 7 and not one.long


def test_results_without_elements_have_no_pieces() -> None:
    x, y = t.input("x", (4, 6)), t.input("y", (0, 6))
    halves, nothing = (t.concat([t.exp(z) * z, t.sin(z) * z], 1) for z in (x, y))
    assert pieces([halves]) is not None
    assert pieces([nothing]) is None and pieces([halves, nothing]) is None


def test_products_of_a_concatenation_count_for_every_element() -> None:
    """Each element computes the products of all pieces, and the exponential for each of its columns."""
    s, (a, b, c) = tg.input("s", (8, 16, 16)), (tg.input(n, (8, 16, 8)) for n in "abc")
    p = tg.exp(s)
    three = t.concat([t.concat([p @ a, p @ b], 2), p @ c], 2)
    assert unsplit_flops([p @ a]) == 0.0
    assert unsplit_flops([three]) == 8 * 16 * 24 * 16 * 3 * (2 + OPS["exp"].flops) > 4 * graph_flops([three])
    apart = t.concat([tg.exp(a), tg.exp(b)], 2)  # split into pieces, and no product
    assert unsplit_flops([apart]) == 0.0
