"""Checks of the stages from a graph to a program. Each check returns a description of the problem, '' for none."""

from __future__ import annotations

import heapq
import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import tensor_graphs as tg
from tensor_graphs.backends.ir.precision import IEEE
from tensor_graphs.backends.program.launch.emission import emit_for
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.registry import backend, backends_storing_narrow
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.backends.tuning.keys import key_of
from tensor_graphs.egraph.blocks.blocks import find_blocks
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.patterns.rule import Rule
from tensor_graphs.egraph.saturate.saturate import Limits, saturate_block, saturate_blocks
from tensor_graphs.egraph.types import dtypes
from tensor_graphs.egraph.view.joined_view import join_blocks
from tensor_graphs.egraph.view.view import EGraphView
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph
from tensor_graphs.extract.candidates.hypergraph import Hypergraph
from tensor_graphs.extract.model.backend import Backend
from tensor_graphs.extract.model.plan import Plan
from tensor_graphs.extract.model.pricing import Priced
from tensor_graphs.extract.model.storage_dtypes import narrow_types
from tensor_graphs.extract.search.plan import plan_of
from tensor_graphs.extract.search.search import Choice
from tensor_graphs.extract.solve.extraction import Extraction
from tensor_graphs.options import Options
from tensor_graphs.pipeline.cache.plan_file import plan_from_json, plan_to_json, priced_steps
from tensor_graphs.pipeline.context.session import Session
from tensor_graphs.pipeline.execution.run_program import renamed, run_flat
from tensor_graphs.pipeline.stages.prepare import prepare
from tensor_graphs.rules import ALL

from .graphs import Case
from .oracle import BASE, Oracle, coarsest

Array = np.ndarray[Any, Any]
SEEN: Counter[str] = Counter()  # what was exercised: kernels, rules, classes, by name


def work_of(graph: Graph, *, exact: bool = False) -> Graph:
    """The simplified graph that the pipeline optimizes; `exact`: without widening of 16-bit floats."""
    session = Session(Options(backend="numpy", tolerance="exact" if exact else "eager", limits=Limits(iterations=0)))
    return prepare(session, graph, None).work


def data_of(one: Case) -> dict[str, Array]:
    """Inputs and weights by name."""
    return {**one.inputs, **one.graph.params}  # type: ignore[dict-item]


# ---------------------------------------------------------------- simplification
def simplified(one: Case, rng: random.Random) -> str:
    """Problem if the simplified graph has other values than the graph; with tolerance "exact", other bits."""
    oracle = Oracle(one.graph.outputs, data_of(one))  # constants are folded in their own dtype
    with np.errstate(all="ignore"):
        found = evaluate(work_of(one.graph), one.inputs, float64=True)
        if message := oracle.wrong(found):
            return message
        if any(n.entry.kind in ("contraction", "reduction") or n.entry.composite for n in one.graph.nodes()):
            return ""  # folded constants lie otherwise in memory: NumPy adds them up in another order
        for a, b in zip(evaluate(work_of(one.graph, exact=True), one.inputs), evaluate(one.graph, one.inputs)):
            if not same_bits(a, b):
                return f"claimed exact, but the bits differ: {a!r} for {b!r}"
    return ""


def same_bits(a: Array, b: Array) -> bool:
    """Equal bit by bit; NaN equals NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind in "iub":
        return bool(np.array_equal(a, b))
    x, y = a.astype(np.float64), b.astype(np.float64)
    nan = np.isnan(x)
    return bool(np.array_equal(nan, np.isnan(y)) and np.all(nan | ((x == y) & (np.signbit(x) == np.signbit(y)))))


# ---------------------------------------------------------------- classes
def classes(
    one: Case, rng: random.Random, *, rules: Sequence[Rule] = ALL, rounds: int = 5, nodes: int = 2500, seconds: float = 8.0,
    exact: bool = False,
) -> str:  # fmt: skip
    """Problem if two e-nodes of an e-class have different values, after more rounds than the default and without
    pruning.
    """
    work = work_of(one.graph, exact=exact)
    view = saturate_block(
        work, rules, Limits(nodes=nodes, iterations=rounds, seconds=seconds), guard=False, exact=exact
    )
    SEEN.update(f"rule {n}" for n, m in view.report.matches.items() if m)
    return class_values(view, data_of(one), exact=exact)


def class_values(view: EGraphView, data: dict[str, Array], *, exact: bool = False) -> str:
    """Problem if an e-node, evaluated on the values of its operands' classes, differs from the value of its own
    class.
    """
    choice = view.cheapest([1.0] * len(view))[1]
    known = [c for c in range(view.n_classes) if choice[c] >= 0]
    with np.errstate(all="ignore"):
        terms = view.terms(choice, known)
        found = evaluate(terms, data, params=data, float64=not exact)
        value = dict(zip(known, found))
        for n in range(len(view)):
            children, cls = view.children(n).tolist(), int(view.cls[n])
            if (
                view.op[n] in ("input", "param", "state", "constant")
                or cls not in value
                or any(k not in value for k in children)
            ):
                continue
            SEEN["e-nodes"] += 1
            want = value[cls]
            got = of_node(view, n, [value[k] for k in children], exact=exact)
            if got.shape != want.shape:
                return f"class {cls} ({view.types[cls]}): shape {got.shape}, not {want.shape}\n{shown(view, n, terms, known)}"
            if exact:
                if not same_bits(got, want):
                    return f"bits differ: {got!r} for {want!r}\n{shown(view, n, terms, known)}"
            elif message := apart(view, n, got, want, [value[k] for k in children]):
                return f"class {cls} ({view.types[cls]}): {message}\n{shown(view, n, terms, known)}"
    SEEN["classes"] += view.n_classes
    return ""


def of_node(view: EGraphView, node: int, operands: Sequence[Array], *, exact: bool = False) -> Array:
    """The value of an e-node for given operand values."""
    leaves = [tg.input(f"k{i}", t.shape, t.dtype) for i, t in enumerate(view.types[k] for k in view.children(node))]
    made = view.node_tensor(node, leaves)
    return evaluate([made], {f"k{i}": x for i, x in enumerate(operands)}, float64=not exact)[0]


def apart(view: EGraphView, node: int, got: Array, want: Array, operands: Sequence[Array]) -> str:
    """Description of the difference of two values of a class; '' if rounding explains it, or a discontinuity near the
    operands.
    """
    floats = dtypes.is_float(view.types[int(view.cls[node])].dtype)
    if not floats and np.array_equal(got, want):
        return ""
    if floats:
        fine = np.isfinite(want)
        if not np.array_equal(fine, np.isfinite(got)):
            bad = fine != np.isfinite(got)
        else:
            peak = max(
                [
                    1.0,
                    *(
                        float(np.abs(x[np.isfinite(x)]).max(initial=0.0))
                        for x in (*operands, want)
                        if x.dtype.kind == "f"
                    ),
                ]
            )
            bad = np.zeros(want.shape, np.bool_)
            bad[fine] = np.abs(got[fine] - want[fine]) > 1e-9 * peak
        if not bad.any():
            return ""
    rng = np.random.default_rng(0)
    for _ in range(4):  # near a jump, or badly conditioned
        moved = of_node(
            view, node, [x * (1 + 1e-9 * rng.uniform(-1, 1, x.shape)) if x.dtype.kind == "f" else x for x in operands]
        )
        if not floats:
            bad = got != want
            bad &= moved == got
        else:
            bad &= ~(np.abs(moved - got) * 10 >= np.abs(got - want))
        if not bad.any():
            return ""
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{int(bad.sum())} of {bad.size} places differ, at {at} {got[at]!r} for {want[at]!r}"


def shown(view: EGraphView, node: int, terms: Sequence[Tensor], known: Sequence[int]) -> str:
    """Text of an e-node and of the term of its class."""
    at = dict(zip(known, terms))
    cls = int(view.cls[node])
    made = view.node_tensor(node, [at[k] for k in view.children(node).tolist()])
    return "\n".join(f"{name}\n{Case(Graph.of(t), {}).text()}" for name, t in (("term", at[cls]), ("e-node", made)))


# ---------------------------------------------------------------- plans of odd kernels
CPU, GPU = ("numpy", "torch", "c"), ("torch_cuda", "triton", "nvrtc")


def backends_of(*names: str) -> list[Backend]:
    """Backends that work here, and those that generate for a GPU."""
    return [b for n in names if (b := backend(n)) and (n in GPU or not b.unavailable())]


def odd_choice(found: Hypergraph, rng: random.Random, done: set[Any]) -> Choice | None:
    """A plan by random prices at which kernels that no earlier plan had are nearly free."""
    prices = []
    for c in found.candidates:
        free = not c.is_view and kernel_key(c) not in done
        us = rng.random() ** 2 * (1e-4 if free and rng.random() < 0.8 else 1.0) + 1e-6
        us += 1e6 * (
            "tf32" in c.template.name or bool(getattr(c.template, "precision", IEEE).loss)
        )  # such kernels are allowed at other tolerances only
        schedules = c.template.space(c.call) if c.template.space is not None else ()
        schedule = tuple(sorted(rng.choice(list(schedules)).items())) if schedules else ()
        prices.append(Priced(us, us, us, "predicted", schedule))
    order = cheapest(found, [p.us for p in prices])
    if order is None:
        return None
    cost = sum(prices[i].us for i in order)
    nothing = Extraction(np.zeros(0, np.int32), cost, 0.0, False, 0.0, "odd")
    return Choice(found, order, prices, nothing)


def kernel_key(candidate: Any) -> Any:
    """Key of a candidate kernel: equal for kernels with equal calls."""
    call = candidate.call
    places = tuple((o.type, o.strides) for o in call.buffers.values())
    return candidate.template.name, candidate.template.pattern, places, repr(call.attrs)


def cheapest(found: Hypergraph, price: Sequence[float]) -> list[int] | None:
    """Candidates of the trees of least cost, operands before users; None if a root has no derivation (Knuth's
    algorithm).
    """
    numbered = found.numbered
    left = [len(children) for children in numbered.needs]
    users: dict[int, list[int]] = {}
    for i, children in enumerate(numbered.needs):
        for k in children:
            users.setdefault(k, []).append(i)
    best: dict[int, float] = {}
    maker: dict[int, int] = {}
    given = {n for v, n in numbered.vertices.items() if found.given.get(v.cls) == v.strides}
    heap = [(price[i], i) for i, n in enumerate(left) if not n]
    heapq.heapify(heap)
    while heap:
        cost, i = heapq.heappop(heap)
        for v in numbered.outputs(i):
            if v in best:
                continue
            best[v], maker[v] = cost, i
            for user in users.get(v, ()):
                left[user] -= 1
                if not left[user]:
                    heapq.heappush(heap, (price[user] + sum(best[k] for k in numbered.needs[user]), user))
    order: dict[int, None] = {}

    def visit(v: int) -> bool:
        if v in given:
            return True
        if v not in maker:
            return False
        if maker[v] not in order:
            if not all(visit(k) for k in numbered.needs[maker[v]]):
                return False
            order[maker[v]] = None
        return True

    return list(order) if all(visit(r) for r in numbered.roots) else None


def own_text(source: str) -> str:
    """The source of a program from its first kernel on, without the helper functions before it."""
    starts = [at for mark in ("@triton.jit", "extern ", "\ndef bind(", "\nvoid ") if (at := source.find(mark)) >= 0]
    return source[min(starts) :]


def forms(one: Case, *, exact: bool = False) -> tuple[Graph, EGraphView]:
    """(simplified graph, its saturated view), computed as the pipeline does."""
    work = work_of(one.graph, exact=exact)
    blocks = find_blocks(work)
    rules = [r for r in ALL if r.exact or not exact]
    views = saturate_blocks(
        [b.graph for b in blocks.unique], rules, Limits(nodes=1200, iterations=4, seconds=4.0), exact=exact
    )
    return work, join_blocks(blocks, views)


def odd_plans(one: Case, rng: random.Random, names: Sequence[str], tries: int, narrow: bool) -> Iterator[Plan]:
    """Yields plans of the graph at random prices, each with kernels that no earlier plan contains. Raises ValueError
    if no plan covers the outputs.
    """
    work, view = forms(one)
    types = narrow_types(view) if narrow else None
    chosen = backends_of(*names)
    if narrow and not {*names} & {*GPU}:
        chosen = backends_storing_narrow(chosen)
    found = candidate_hypergraph(view, chosen, view_strides, types)
    done: set[Any] = set()
    for _ in range(tries):
        choice = odd_choice(found, rng, done)
        if choice is None:
            if narrow:
                return
            raise ValueError(f"no kernels cover the outputs of\n{Case(work, {}).text()}")
        fresh = {kernel_key(found.candidates[i]) for i in choice.chosen} - done
        if not fresh:
            return
        done |= fresh
        yield replace(plan_of(choice, work), graph=renamed(one.graph, work))


def plans(one: Case, rng: random.Random, *, names: Sequence[str] = CPU, tries: int = 8, device: str | None = None,
          narrow: bool = False) -> str:  # fmt: skip
    """Problem if a program of rarely chosen kernels has other values than the graph."""
    dtype = coarsest(one.graph.nodes())
    dtype = max(dtype, "float32", key=BASE.__getitem__) if dtype != "float64" else dtype
    oracle = Oracle(one.graph.outputs, data_of(one), dtype=dtype)
    for plan in odd_plans(one, rng, names, tries, narrow):
        program = Program(plan, device=device)
        SEEN.update(f"kernel {s.template.name}" for s in plan.steps)
        SEEN["programs"] += 1
        try:
            with np.errstate(all="ignore"):
                values = run_flat(program, one.inputs)
        except Exception as error:
            return f"{type(error).__name__}: {error}\n{own_text(program.source)}"
        if message := oracle.wrong(values):
            return f"{message}\nkernels {[s.template.name for s in plan.steps]}\n{own_text(program.source)}"
        for value, root in zip(values, one.graph.outputs):
            if np.asarray(value).dtype != dtypes.numpy_dtype(root.dtype):
                return f"dtype {np.asarray(value).dtype}, not {root.dtype}"
    return ""


FILED: tuple[tuple[tuple[str, ...], bool], ...] = (
    (CPU, False), (("numpy", "torch"), True), (("torch_cuda", "triton"), True), (("torch_cuda", "nvrtc"), True),
)  # fmt: skip


def filed(one: Case, rng: random.Random, *, tries: int = 3) -> str:
    """Problem if a plan that is written to JSON and read again gives another program, for kernels of every backend."""
    for names, narrow in FILED:
        for plan in odd_plans(one, rng, names, tries, narrow):
            SEEN.update(f"kernel {s.template.name}" for s in plan.steps)
            source, written = emit_for(plan).source, plan_to_json(plan)
            again = plan_from_json(json.loads(json.dumps(written)), plan.graph)
            if emit_for(again).source != source:
                return f"another program is read than was written: {names}\n{own_text(source)}"
            if plan_to_json(again) != written:
                return f"another file is written of the plan that was read: {names}"
            for (a, call), (b, other) in zip(priced_steps(plan), priced_steps(again), strict=True):
                if key_of(a.template, call) != key_of(b.template, other):
                    return f"{a.template.name} has another key in the cost store"
    return ""


# ---------------------------------------------------------------- what users call
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 3e38, 65504.0, 1.0)


def special(one: Case, made: Program, rng: random.Random) -> str:
    """Problem if a program with tolerance "exact" has other bits than the graph for NaN, infinities, signed zeros and
    denormals.
    """
    draw = np.random.default_rng(rng.randrange(1 << 30))
    inputs = dict(one.inputs)
    for leaf in one.graph.inputs:
        name = str(leaf.attr("name"))
        if dtypes.is_float(leaf.dtype):
            odd = draw.random(inputs[name].shape) < 0.4
            with np.errstate(over="ignore"):
                inputs[name] = np.where(odd, draw.choice(SPECIAL, odd.shape).astype(inputs[name].dtype), inputs[name])
    with np.errstate(all="ignore"):
        for found, want in zip(run_flat(made, inputs), evaluate(one.graph, inputs)):
            if not same_bits(np.asarray(found), want):
                return f"exact, but special values differ: {found!r} for {want!r} of {inputs}\n{own_text(made.source)}"
    SEEN["exact programs on special values"] += 1
    return ""


def optimized(one: Case, rng: random.Random, *, exact: bool = False) -> str:
    """Problem of a program that `optimize` returns with random options, before and after it is saved and loaded."""
    options: dict[str, Any] = {"backend": rng.choice(("auto", "numpy", "torch", "c")), "effort": rng.choice((0, 1, 1))}
    exact = exact or rng.random() < 0.25
    if exact:
        options |= {"backend": "numpy", "tolerance": "exact"}
    try:
        made = tg.optimize(
            one.graph, measure=False, budget=20.0, limits=Limits(nodes=1200, iterations=4, seconds=4.0), **options
        )
    except tg.errors.TensorGraphsError as error:
        return f"{options}: {type(error).__name__}: {error}"
    SEEN[f"optimize {options['backend']}{' exact' if exact else ''}"] += 1
    with np.errstate(all="ignore"):
        values = run_flat(made, one.inputs)
        own = evaluate(one.graph, one.inputs)
    dtype = coarsest(one.graph.nodes())
    oracle = Oracle(
        one.graph.outputs,
        data_of(one),
        dtype=dtype if dtype == "float64" else max(dtype, "float32", key=BASE.__getitem__),
    )
    if exact and not all(map(same_bits, map(np.asarray, values), own)):
        return f"exact, but the bits differ: {values} for {own}\n{made.source}"
    if exact and (message := special(one, made, rng)):
        return message
    if message := oracle.wrong(values):
        return f"{options}: {message}\n{made.source}"
    with tempfile.TemporaryDirectory() as folder:
        made.save(Path(folder) / "p")
        loaded = tg.load_program(Path(folder) / "p")
        for a, b in zip(run_flat(loaded, one.inputs), values):
            if not same_bits(np.asarray(a), np.asarray(b)):
                return f"{options}: the loaded program gives {a!r} for {b!r}"
    return ""
