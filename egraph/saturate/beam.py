"""Prunes an e-graph: per e-class keeps the k e-nodes of least tree cost and the cheapest of every op (the beam), and
subsumes the others.

Subsumed e-nodes no longer match rules but stay in the e-graphs returned later, so a plan (choice of kernels) that was
found once is never lost.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from ..ops.ops import OPS, Type
from ..types import dtypes
from .engine import Arrays
from .language import signature
from .term_cost import Pricing

KILL = "(ruleset r_kill)"


def subsumption_commands(op: str) -> Iterator[str]:
    """Egglog commands that subsume chosen e-nodes of an op, in the ruleset that `KILL` declares: those listed in the
    relation `k_op` (round, operand handles, attributes)."""
    sig = signature(op)
    names = [f"v{i}" for i in range(len(sig))]
    body = "".join(f" (= d{i} (Attr v{i}))" for i, k in enumerate(sig) if k == "D")
    args = " ".join({"T": f"(H v{i})", "D": f"d{i}"}.get(k, f"v{i}") for i, k in enumerate(sig))
    yield f"(relation k_{op} ({' '.join(['i64'] * (len(sig) + 1))}))"
    yield f"(rule ((k_{op} z {' '.join(names)}){body}) ((subsume (o_{op} {args}))) :ruleset r_kill)"


def row_costs(arrays: Arrays, names: Sequence[str], dims: Sequence[tuple[int, ...]], pricing: Pricing) -> list[float]:
    """Tree cost in nanoseconds of every e-node of an e-graph, using the cheapest e-node of each operand.

    `arrays`, `names`: the e-graph as `Engine.view` returns it; `dims`: size vectors by id. Infinite if an operand has
    no finite cost.
    """
    cls, off, child = (arrays[k].tolist() for k in ("cls", "off", "child"))
    weight, shape, dtype, ops = (arrays[k].tolist() for k in ("weight", "shape", "dtype", "op"))
    types = [Type(dims[s], dtypes.DTYPES[d]) if s >= 0 else None for s, d in zip(shape, dtype)]
    formulas = {n: pricing.formula(OPS[n]) for n in names if n != "Leaf"}
    own: list[float] = []
    for i, c in enumerate(cls):
        children = child[off[i] : off[i + 1]]
        out, operands = types[c], [t for t in (types[k] for k in children) if t is not None]
        if out is None or len(operands) != len(children):
            own.append(float("inf"))
        elif all(weight[k] for k in children):
            own.append(0.0)
        else:
            own.append(float(formulas[names[ops[i]]].evaluate(out, operands)))
    return _trees(cls, off, child, own, len(shape))


def _trees(cls: list[int], off: list[int], child: list[int], own: list[float], n_classes: int) -> list[float]:
    """Tree cost of every e-node (Knuth's generalization of Dijkstra's algorithm over e-classes)."""
    users: list[list[int]] = [[] for _ in range(n_classes)]
    left, best, total = [], [float("inf")] * n_classes, [float("inf")] * len(cls)
    for i in range(len(cls)):
        children = child[off[i] : off[i + 1]]
        left.append(len(children))
        for k in children:
            users[k].append(i)
    heap = [(own[i], cls[i], i) for i, n in enumerate(left) if not n]
    for value, _, i in heap:
        total[i] = value
    heapq.heapify(heap)
    done = bytearray(n_classes)
    while heap:
        value, c, _ = heapq.heappop(heap)
        if done[c] or value == float("inf"):
            continue
        done[c], best[c] = 1, value
        for user in users[c]:
            left[user] -= 1
            if not left[user]:
                total[user] = own[user] + sum(best[k] for k in child[off[user] : off[user + 1]])
                heapq.heappush(heap, (total[user], cls[user], user))
    return total


def victims(
    arrays: Arrays, names: Sequence[str], dims: Sequence[tuple[int, ...]], pricing: Pricing, k: int
) -> list[int]:
    """Row indices of the e-nodes that beam pruning drops: neither among the `k` cheapest of their e-class nor the
    cheapest of their op.

    `arrays`, `names`: e-nodes as `Engine.view` returns them; `dims`: size vectors by id; `pricing`: costs of ops. Ties
    are broken by op name, then by row index.
    """
    cost = row_costs(arrays, names, dims, pricing)
    ops, cls = arrays["op"].tolist(), arrays["cls"].tolist()
    by_class: dict[int, list[int]] = {}
    for i, c in enumerate(cls):
        if names[ops[i]] != "Leaf":
            by_class.setdefault(c, []).append(i)
    found = []
    for rows in by_class.values():
        if len(rows) <= k:
            continue
        ranked = sorted(rows, key=lambda i: (cost[i], names[ops[i]], i))
        keep = set(ranked[:k])
        first: dict[int, int] = {}
        for i in ranked:
            first.setdefault(ops[i], i)
        found += [i for i in ranked if i not in keep and first[ops[i]] != i]
    return sorted(found)


__all__ = ["KILL", "row_costs", "subsumption_commands", "victims"]
