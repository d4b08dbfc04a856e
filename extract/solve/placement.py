"""Assigns computations to devices as an extraction problem: e-classes are (class, device) pairs, copies between devices
are nodes.

A value may be computed on several devices, or computed on one and copied to others; the solver finds the cheapest sum.
Extractions are acyclic, so each chain of copies starts at a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...errors import ExtractionError
from .extraction import Extraction
from .problem import FloatArray, Limit, Problem

Copy = tuple[int, int, int]
"""(class, source device index, target device index)."""


@dataclass(frozen=True)
class Placement:
    """Extraction problem extended by the choice of a device for every value.

    For each class c of the original problem (without devices) and each device d, `problem` has a class with index `c *
    len(devices) + d`: the value of c in the memory of d. `made[i]` says what its node i stands for: (node of the
    original problem, device) for a kernel that runs there, (class of the original problem, source device, target
    device) for a copy. A device is an index into `devices`, the list of names.
    """

    problem: Problem
    devices: tuple[str, ...]
    made: tuple[tuple[int, int] | Copy, ...]

    def kernels(self, extraction: Extraction) -> list[tuple[int, str]]:
        """(node of the problem without devices, name of the device) of every kernel that an extraction chose."""
        chosen = [self.made[int(i)] for i in extraction.choice if i >= 0]
        return [(m[0], self.devices[m[1]]) for m in chosen if len(m) == 2]

    def copies(self, extraction: Extraction) -> list[tuple[int, str, str]]:
        """(class of the problem without devices, name of the source device, of the target device) of every copy that an
        extraction chose."""
        chosen = [self.made[int(i)] for i in extraction.choice if i >= 0]
        return [(m[0], self.devices[m[1]], self.devices[m[2]]) for m in chosen if len(m) == 3]


def place(
    problem: Problem,
    cost: Mapping[str, FloatArray],
    copy: Mapping[tuple[str, str], FloatArray],
    roots: Mapping[int, str] | str,
    *,
    memory: Mapping[str, float] | None = None,
    size: Sequence[float] | FloatArray | None = None,
) -> Placement:
    """The placement problem of an e-graph over the devices that are keys of `cost`.

    cost[d]: float64[n_nodes], cost of each node on device d; inf if it cannot run there. copy[a, b]:
    float64[n_classes], cost of copying each class from a to b; missing pairs cannot be copied directly. roots: the
    device on which each root class, or all, must be. memory[d]: memory limit of device d, on the sum of `size`
    (float64[n_classes]) over the values there. Limits of `problem` count each kernel on whichever device it runs;
    copies count 0. Raises ExtractionError if array shapes do not match or a device is unknown."""
    devices = tuple(cost)
    where = {r: roots if isinstance(roots, str) else roots.get(r, "") for r in problem.roots}
    for name in [*where.values(), *(d for pair in copy for d in pair), *(memory or {})]:
        if name not in devices:
            raise ExtractionError(f"no device {name!r}", where="place", hint="devices are " + ", ".join(devices))
    sizes = np.zeros(problem.n_classes) if size is None else np.asarray(size, np.float64)
    arrays = [(d, a, problem.n_nodes) for d, a in cost.items()]
    arrays += [(f"copy {a} to {b}", v, problem.n_classes) for (a, b), v in copy.items()]
    for name, array, wanted in [*arrays, ("size", sizes, problem.n_classes)]:
        if np.shape(array) != (wanted,):
            raise ExtractionError(f"{np.shape(array)} entries where {wanted} are needed", where=f"place: {name}")
    made, nodes = _nodes(problem, devices, cost, copy)
    names = None if problem.class_ids is None else [f"{c}@{d}" for c in problem.class_ids for d in devices]
    n = len(devices)
    placed = Problem.build(
        nodes,
        [r * n + devices.index(where[r]) for r in problem.roots],
        n_classes=problem.n_classes * n,
        class_ids=names,
    )
    inherited = [
        Limit(limit.name, np.array([limit.use[m[0]] if len(m) == 2 else 0.0 for m in made]), limit.most)
        for limit in problem.limits
    ]
    capacities = [
        Limit(f"memory on {d}", np.where(placed.cls % n == devices.index(d), sizes[placed.cls // n], 0.0), most)
        for d, most in (memory or {}).items()
    ]
    return Placement(replace(placed, limits=(*inherited, *capacities)), devices, tuple(made))


def _nodes(
    problem: Problem,
    devices: Sequence[str],
    cost: Mapping[str, FloatArray],
    copy: Mapping[tuple[str, str], FloatArray],
) -> tuple[list[tuple[int, int] | Copy], list[tuple[int, list[int], float]]]:
    """(what each node stands for, node specifications): kernels on each device that can run them, then copies."""
    n = len(devices)
    made: list[tuple[int, int] | Copy] = []
    nodes: list[tuple[int, list[int], float]] = []
    for d, device in enumerate(devices):
        for i in problem.live:
            if (price := float(cost[device][i])) < math.inf:
                children = problem.child[problem.off[i] : problem.off[i + 1]].tolist()
                made.append((i, d))
                nodes.append((int(problem.cls[i]) * n + d, [k * n + d for k in children], price))
    for (a, b), prices in copy.items():
        source, target = devices.index(a), devices.index(b)
        for c, price in enumerate(np.asarray(prices, np.float64).tolist()):
            if price < math.inf and source != target:
                made.append((c, source, target))
                nodes.append((c * n + target, [c * n + source], price))
    return made, nodes


__all__ = ["Placement", "place"]
