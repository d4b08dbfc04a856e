"""Large e-graphs of different structure, for the extraction figures: same seed, same e-graph."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from tensor_graphs.extract.solve.problem import Problem

Node = tuple[int, list[int], float]


def layers(nodes: int, rng: random.Random) -> tuple[list[Node], list[int]]:
    """Wide e-graph: layers of 400 classes; each reads random classes of the layer below.

    Returns (nodes, ids of the root classes).
    """
    classes, width = nodes // 4, 400
    found: list[Node] = [(c, [], rng.random()) for c in range(width)]
    for c in range(width, classes):
        low = (c // width - 1) * width
        found += [(c, _some(rng, low, low + width, (1, 2, 2, 3)), round(10 * rng.random(), 2)) for _ in range(4)]
    return found, list(range(classes - 5, classes))


def chain(nodes: int, rng: random.Random) -> tuple[list[Node], list[int]]:
    """Deep and narrow e-graph: every class reads the three below it, as in blocks of a model.

    Returns (nodes, ids of the root classes).
    """
    classes = nodes // 4
    found: list[Node] = [(c, [], rng.random()) for c in range(3)]
    for c in range(3, classes):
        found += [(c, _some(rng, c - 3, c, (1, 2, 2)), 10 * rng.random()) for _ in range(4)]
    return found, [classes - 1]


def shared(nodes: int, rng: random.Random) -> tuple[list[Node], list[int]]:
    """E-graph with much sharing: classes read any class below, mostly a few of them.

    Returns (nodes, ids of the root classes).
    """
    classes = nodes // 4
    found: list[Node] = [(c, [], rng.random()) for c in range(20)]
    for c in range(20, classes):
        for _ in range(4):
            children = [int(c * rng.random() ** rng.choice((0.3, 1, 3))) for _ in range(rng.choice((1, 2, 3, 4)))]
            found.append((c, children, 10 * rng.random()))
    return found, list(range(classes - 50, classes))


def cyclic(nodes: int, rng: random.Random) -> tuple[list[Node], list[int]]:
    """E-graph with many cycles: two reads in five go up, at most 60 classes; nearly all classes are one component.

    Returns (nodes, ids of the root classes).
    """
    classes = nodes // 4
    found: list[Node] = [(c, [], rng.random()) for c in range(20)]
    for c in range(20, classes):
        found.append((c, _some(rng, max(0, c - 60), c, (2,)), 1 + 10 * rng.random()))
        for _ in range(3):
            steps = [rng.randint(1, 60) * (1 if rng.random() < 0.4 else -1) for _ in range(rng.choice((1, 2, 2)))]
            found.append((c, [min(max(c + s, 0), classes - 1) for s in steps], 10 * rng.random()))
    return found, [classes - 1, classes // 2]


def crowded(nodes: int, rng: random.Random) -> tuple[list[Node], list[int]]:
    """E-graph of few classes with very many nodes and integral costs, as rewriting of arithmetic gives.

    Returns (nodes, ids of the root classes).
    """
    classes = 2000
    found: list[Node] = [(c, [], float(rng.randint(1, 9))) for c in range(50)]
    for c in range(50, classes):
        found.append((c, _some(rng, 0, c, (2,)), float(rng.randint(1, 9))))
        for _ in range(nodes // classes):
            children = [min(max(int(rng.gauss(c, classes / 20)), 0), classes - 1) for _ in range(2)]
            found.append((c, children, float(rng.randint(1, 9))))
    return found, [classes - 1]


def anywhere(nodes: int, rng: random.Random) -> tuple[list[Node], list[int]]:
    """E-graph of one component without any order: reads go to any class.

    Returns (nodes, ids of the root classes).
    """
    classes = nodes // 4
    found: list[Node] = [(c, [], 10 * rng.random()) for c in range(0, classes, 10)]
    found += [(c, _some(rng, 0, classes, (1, 2, 3)), 10 * rng.random()) for c in range(classes) for _ in range(4)]
    return found, [0, 1, 2]


def stack(nodes: int, rng: random.Random) -> tuple[list[Node], list[int]]:
    """E-graph of stacked residual blocks, cyclic inside, no two alike.

    Returns (nodes, ids of the root classes).
    """
    found: list[Node] = [(0, [], 1.0)]
    below, c = 0, 1
    while len(found) < nodes:
        first = c
        for i in range(12):
            pool = [below, *range(first, c)]
            for _ in range(3):
                children = rng.sample(pool, min(len(pool), rng.choice((1, 2, 2))))
                found.append((c, children, round(5 * rng.random(), 3)))
            if i > 2 and rng.random() < 0.3:
                found.append((first + rng.randrange(1, i), [c], round(rng.random(), 3)))
            c += 1
        found += [(c, [c - 1, below], 0.1), (c, [c - 2, c - 3], 0.2)]
        below, c = c, c + 1
    return found, [below]


def pieces(nodes: int, rng: random.Random) -> tuple[list[Node], list[int]]:
    """Thousands of small cyclic e-graphs with a root each.

    Returns (nodes, ids of the root classes).
    """
    found: list[Node] = []
    roots: list[int] = []
    c = 0
    while len(found) < nodes:
        size = rng.randint(5, 40)
        for i in range(size):
            found.append((c + i, _some(rng, c, c + i, (2,)) if i > 1 else [], 3 * rng.random()))
            found += [(c + i, _some(rng, c, c + size, (1, 2)), 3 * rng.random()) for _ in range(2)]
        c += size
        roots.append(c - 1)
    return found, roots


def _some(rng: random.Random, low: int, high: int, counts: tuple[int, ...]) -> list[int]:
    return [rng.randrange(low, high) for _ in range(rng.choice(counts))]


SHAPES: dict[str, Callable[[int, random.Random], tuple[list[Node], list[int]]]] = {
    f.__name__: f for f in (layers, chain, shared, cyclic, crowded, anywhere, stack, pieces)
}


def large(nodes: int = 100_000, seed: int = 0) -> Iterator[tuple[str, Problem]]:
    """Yields (name, extraction problem) of every structure, with about `nodes` e-nodes."""
    for name, make in SHAPES.items():
        found, roots = make(nodes, random.Random(seed))
        yield name, Problem.build(found, roots)
