"""Graphs of repeated regions: one random body several times over, with weights of its own each time, what is shared,
what skips from one to a later one, and values of each that are outputs. What is stamped of a block must be right at
every repeat."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np

import tensor_graphs as tg
from tensor_graphs.egraph.blocks.blocks import find_blocks
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.tensor import Tensor, make
from tensor_graphs.egraph.types import dtypes

from .checks import SEEN, class_values, data_of, forms, plans, work_of
from .graphs import Array, Case, case
from .oracle import Oracle
from .reassembly import reassemble


def repeats(one: Case, rng: random.Random) -> Case | None:
    """The body several times over; None where it has no float input."""
    inputs = [i for i in one.graph.inputs if dtypes.is_float(i.dtype)]
    outputs = [o for o in one.graph.outputs if dtypes.is_float(o.dtype)]
    if not inputs or not outputs:
        return None
    stream, draw = rng.choice(inputs), np.random.default_rng(rng.randrange(1 << 30))
    alike = [i for i in one.graph.inputs if i.type == stream.type and i is not stream]
    params: dict[str, Array] = {}
    given: dict[str, Array] = dict(one.inputs)
    passed, roots, x = [stream], list[Tensor](), stream
    for layer in range(rng.randint(2, 5)):
        put: dict[Tensor, Tensor] = {stream: x}
        for leaf in one.graph.leaves("param"):
            name = f"l{layer}_{leaf.attr('name')}"
            old = np.asarray(one.graph.params[str(leaf.attr("name"))])
            fresh = draw.permutation(old.reshape(-1)).reshape(old.shape)
            params[name], put[leaf] = fresh, tg.param(name, leaf.shape, leaf.dtype)
        if alike and rng.random() < 0.5:
            put[alike[0]] = rng.choice(passed)
        made = replayed(one.graph.outputs, put)
        found = next(m for m, o in zip(made, one.graph.outputs) if o is outputs[0])
        joined = tg.tanh(x + tg.with_rank(tg.mean(tg.cast(found, x.dtype)), x.rank))
        x = tg.cast(joined, stream.dtype)
        passed.append(x)
        roots += [m for m in made if not m.is_leaf and rng.random() < 0.3]
    return case(list(dict.fromkeys([x, *roots[:3]])), given, params)


def replayed(roots: tuple[Tensor, ...], put: Mapping[Tensor, Tensor]) -> list[Tensor]:
    """Terms with other values in the places of some."""
    from tensor_graphs.egraph.ir.tensor import topological

    done = dict(put)
    for n in topological(roots):
        if n not in done:
            done[n] = n if n.is_leaf else make(n.op, [done[a] for a in n.args], dict(n.attrs), data=n.data)
    return [done[r] for r in roots]


def blocks(one: Case, rng: random.Random) -> str:
    """The blocks make up the model again; every e-node of the joined view has its class's value; odd plans are
    right."""
    whole = repeats(one, rng)
    if whole is None:
        return ""
    work = work_of(whole.graph)
    found = find_blocks(work)
    SEEN["models of repeats"] += 1
    SEEN["blocks"] += len(found.unique)
    SEEN["instances"] += len(found.instances)
    if any(a is not b for a, b in zip(reassemble(found).roots, work.roots)):
        return "the blocks do not make up the model"
    oracle = Oracle(whole.graph.outputs, data_of(whole))
    if not all(np.isfinite(w).all() for w in oracle.want if w.dtype.kind == "f"):
        return ""
    _, view = forms(whole)
    if message := class_values(view, data_of(whole)):
        return message
    with np.errstate(all="ignore"):
        choice = view.cheapest([1.0] * len(view))[1]
        got = evaluate(view.terms(choice, view.roots), whole.inputs, params=whole.graph.params, float64=True)
    if message := oracle.wrong(got):
        return message
    return plans(whole, rng, tries=2) if rng.random() < 0.3 else ""
