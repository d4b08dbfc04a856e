"""Does the sum of kernel times rank whole plans as they are measured end to end? `python -m
benchmarks.extraction.ranking`.

Per graph: the kernels of the best plans are measured; then the k best plans that differ enough, and the best plans
without the kernels that took longest (for a spread of costs), are run in turn. Kendall's tau counts pairs ranked as
measured minus pairs ranked otherwise, as shares. Pairs whose estimates differ by less than TIE are not ranked; pairs
whose measured times differ by less than noise (the median of the differences round by round, against NOISE times its
standard error) or by less than TIE say nothing either way and are left out of the second figure.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import median
from typing import Any

import tensor_graphs as tg
from benchmarks.models import zoo
from tensor_graphs.backends.program.program import Program
from tensor_graphs.backends.tuning.measure_cpu import CpuMeasurer
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.errors import NoPlanError
from tensor_graphs.explorer.explorer import Explorer
from tensor_graphs.explorer.export_jobs import unmeasured_candidates
from tensor_graphs.extract.search.alternatives import alternatives
from tensor_graphs.extract.search.plan import plan_of
from tensor_graphs.extract.search.search import Choice, search
from tensor_graphs.pipeline.costs.prices import CostPricer

from ..common import QUICK, mad, rounds, row, set_threads
from ..cpu.torch_eager import random_inputs

PLANS, MAX_GAP, DIVERSITY = 4, 1.0, 0.2
BANS = 6
TIE, NOISE = 0.02, 3.0
ROUNDS = 1 if QUICK else 3  # of measuring what the best plans lack: each makes other plans the best

GRAPHS: dict[str, Callable[[], Graph]] = {
    "transformer layer": lambda: zoo.transformer(1, hidden=256, heads=4, tokens=64),
    "residual convolutions": lambda: zoo.resnet50(image=56, blocks=(1,), classes=16),
    "U-Net, 1 level": lambda: zoo.unet(levels=1),
    "NasRNN, 2 steps": lambda: zoo.nasrnn(steps=2),
    "DiT block": lambda: zoo.dit_block(blocks=1, hidden=256, heads=4, tokens=64),
}


def plans(graph: Graph, costdb: str) -> tuple[Explorer, list[Choice]]:
    """(explorer, different plans in order of estimated cost), with all their kernels measured as far as ROUNDS
    allow.
    """
    store = Store(costdb)
    measurer = CpuMeasurer(store)
    try:
        tg.optimize(graph, costdb=costdb, verify=False, budget=5.0 if QUICK else 30.0)
        for _ in range(ROUNDS):
            found = tg.saturate(graph, costdb=costdb)
            open_ = [
                c
                for choice in [found.choice, *banned(found.choice, store)]
                for c in unmeasured_candidates(choice, PLANS)
            ]
            if not open_:
                break
            measurer.measure(open_)
    finally:
        measurer.close()
    found = tg.saturate(graph, costdb=costdb)
    best = alternatives(found.choice, PLANS, max_gap=MAX_GAP, diversity=DIVERSITY, seconds=30.0)
    return found, sorted([*best, *banned(found.choice, store)], key=lambda c: c.cost)


def banned(choice: Choice, store: Store) -> list[Choice]:
    """The best plans without the kernel that takes longest, then without that and the next longest, and so on."""
    pricer, kernels, kept = CostPricer(store), choice.hypergraph, set[str]()
    plans: list[Choice] = []
    while len(plans) < BANS:
        took: dict[str, float] = {}
        for i in choice.chosen:
            name = choice.hypergraph.candidates[i].template.name
            if not choice.hypergraph.candidates[i].is_view and name not in kept:
                took[name] = took.get(name, 0.0) + choice.prices[i].us
        if not took:
            break
        worst = max(took, key=took.__getitem__)
        fewer = replace(kernels, candidates=[c for c in kernels.candidates if c.template.name != worst])
        try:
            choice = search(fewer, pricer)
        except NoPlanError:
            kept.add(worst)
        else:
            kernels = fewer
            plans.append(choice)
    return plans


def difference(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """(median of a - b, its noise): samples are compared round by round; the noise is NOISE standard errors of the
    median.
    """
    gaps = [x - y for x, y in zip(a, b, strict=True)]
    return median(gaps), NOISE * 1.2533 * 1.4826 * mad(gaps) / math.sqrt(len(gaps))


def tau(cost: Sequence[float], samples: Sequence[Sequence[float]]) -> tuple[float, float, int]:
    """Kendall's tau as (over all ranked pairs, over pairs that measuring distinguishes, number of the latter)."""
    pairs = [
        (i, j) for i, j in combinations(range(len(cost)), 2) if abs(cost[i] - cost[j]) > TIE * min(cost[i], cost[j])
    ]
    gaps = {(i, j): difference(samples[i], samples[j]) for i, j in pairs}
    told = [p for p in pairs if abs(gaps[p][0]) > max(gaps[p][1], TIE * median(samples[p[0]]))]
    agree = lambda p: 1 if (cost[p[0]] - cost[p[1]]) * gaps[p][0] > 0 else -1
    mean = lambda some: sum(map(agree, some)) / len(some) if some else 1.0
    return mean(pairs), mean(told), len(told)


def measure(graph: Graph) -> dict[str, Any]:
    """The plans of one graph: estimated and measured µs, and Kendall's tau."""
    with tempfile.TemporaryDirectory() as folder:
        found, choices = plans(graph, folder)
    programs = [Program(replace(plan_of(c, found.work), graph=found.work)) for c in choices]
    values = random_inputs(found.work)
    times = rounds({str(i): lambda p=p: p.flat(*values) for i, p in enumerate(programs)}, seconds=8.0, most=1000)  # type: ignore[misc]
    samples = [[1e3 * ms for ms in times[str(i)]] for i in range(len(programs))]
    cost, took = [c.cost for c in choices], [median(s) for s in samples]
    every, told, pairs = tau(cost, samples)
    best = min(range(len(took)), key=took.__getitem__)
    gap, noise = difference(samples[0], samples[best])
    return {
        "estimated_us": cost, "measured_us": took, "mad_us": [mad(s) for s in samples], "rounds": len(samples[0]),
        "tau": every, "tau_told_apart": told, "pairs": pairs, "first_is_within_us": gap, "noise_us": noise,
        "within_noise": gap <= max(noise, TIE * took[best]), "sources": [c.sources for c in choices],
    }  # fmt: skip


def main() -> dict[str, Any]:
    """Result for the figures: one row per graph."""
    set_threads()
    rows, details = [], {}
    for name, make in list(GRAPHS.items())[: 1 if QUICK else None]:
        details[name] = one = measure(make())
        n = len(one["measured_us"])
        rows.append(
            row(f"ranking of whole plans: {name}", "the cheapest by sum is the fastest within noise",
                f"{n} plans, estimated {one['estimated_us'][0]:.0f} to {one['estimated_us'][-1]:.0f} µs; tau {one['tau']:+.2f}, "
                f"{one['tau_told_apart']:+.2f} over the {one['pairs']} pairs told apart by measuring; the first is "
                f"{100 * one['first_is_within_us'] / min(one['measured_us']):.1f} % over the fastest", one["within_noise"])
        )  # fmt: skip
        print(rows[-1]["figure"], rows[-1]["measured"], sep=": ", flush=True)
    return {"rows": rows, "details": details}


if __name__ == "__main__":
    argparse.ArgumentParser(
        description="Rank whole plans by estimate and by measurement: some 20 minutes."
    ).parse_args()
    main()
