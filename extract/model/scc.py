"""Computes the strongly connected components of a directed graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def strongly_connected_components(adjacency: Sequence[Iterable[int]]) -> tuple[list[int], list[list[int]]]:
    """Strongly connected components of a graph (Tarjan, iterative), children before parents.

    Returns (component of each vertex, members of each component).
    """
    n = len(adjacency)
    index, low, of = [-1] * n, [0] * n, [-1] * n
    found: list[list[int]] = []
    open_: list[int] = []
    counter = 0
    for start in range(n):
        if index[start] >= 0:
            continue
        index[start] = low[start] = counter
        counter += 1
        open_.append(start)
        work = [(start, iter(adjacency[start]))]
        while work:
            v, edges = work[-1]
            for w in edges:
                if index[w] < 0:
                    index[w] = low[w] = counter
                    counter += 1
                    open_.append(w)
                    work.append((w, iter(adjacency[w])))
                    break
                if of[w] < 0 and index[w] < low[v]:
                    low[v] = index[w]
            else:
                work.pop()
                if work and low[v] < low[work[-1][0]]:
                    low[work[-1][0]] = low[v]
                if low[v] == index[v]:
                    member: list[int] = []
                    while not member or member[-1] != v:
                        member.append(open_.pop())
                        of[member[-1]] = len(found)
                    found.append(member)
    return of, found
