"""Do the rules prove that two programs compute the same?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from .egraph.graph import Data, Graph, Tensor, load_data, make, rebuild
from .egraph.saturate import Limits
from .egraph.simplify import simplify
from .egraph.worker import default_pool
from .errors import ShapeError
from .rules.prove import LIMITS, NAMED, Prover
from .source import as_graph


@lru_cache(1)
def _prover() -> Prover:
    """The rules for proofs, which take a second to read. Its declarations of ops and ranks are the same for whoever asks."""
    return Prover()


def equivalent(
    a: Any,
    b: Any,
    example_inputs: Any = None,
    *,
    dims: Mapping[str, int] | None = None,
    limits: Limits | None = None,
    trust: bool = False,
) -> bool:
    """Whether the rules prove two programs equal within the limits. False means not proved, never unequal.

    `a` and `b` are what `optimize` takes: expressions (or sequences or dicts of them), Graphs, functions or modules with
    `example_inputs`, paths of models. Inputs, params and states are the same where name and type agree, and, of two
    functions or modules, inputs at the same position; params that both bind to different data are not. Outputs are compared
    in order, new values of states by name. Both sides are put into one e-graph, the rules run on it (rules/prove.py), and the
    outputs must then share their classes. What rounds differently is equal: rules hold over the reals.

    Raises UsageError for a program of no known kind, ShapeError where a dimension is left free (give `dims`).
    """
    left, right = (_concrete(as_graph(x, example_inputs, dims=_known(x, dims), trust=trust), dims) for x in (a, b))
    if _called(a) and _called(b):
        right = _at_positions(right, left)
    right = _apart(right, left)
    if len(left.outputs) != len(right.outputs) or set(left.updates) != set(right.updates):
        return False
    pairs = [*zip(left.outputs, right.outputs), *((left.updates[n], right.updates[n]) for n in left.updates)]
    if any(x.type != y.type for x, y in pairs):
        return False
    with default_pool().session() as session:
        return bool(_prover().prove([pairs], session, limits or LIMITS))


def _known(source: Any, dims: Mapping[str, int] | None) -> Mapping[str, int] | None:
    """The sizes that loading needs; expressions are bound afterwards, for each may lack some of the dimensions."""
    return None if isinstance(source, Graph | Tensor | list | tuple | dict) else dims


def _concrete(graph: Graph, dims: Mapping[str, int] | None) -> Graph:
    """The graph at the given sizes, simplified."""
    free = graph.free_dims
    bound = graph.bind({n: s for n, s in (dims or {}).items() if n in free})
    if left := sorted(bound.free_dims):
        raise ShapeError(f"the sizes of {left} are free", hint="equivalent(a, b, dims={name: size})")
    return simplify(bound)


def _called(source: Any) -> bool:
    """Whether a source is called with positional inputs."""
    return callable(source) and not isinstance(source, Graph | Tensor)


def _at_positions(graph: Graph, other: Graph) -> Graph:
    """The graph reading the other's inputs at the same positions, where the types agree."""
    return _renamed(graph, {x: y for x, y in zip(graph.inputs, other.inputs) if x.type == y.type})


def _apart(graph: Graph, other: Graph) -> Graph:
    """The graph with other names for leaves that are not the other's of that name: another type, or other data."""
    theirs = {(n.op, n.attr("name")): n for n in other.nodes() if n.op in NAMED}
    ours = [n for n in graph.nodes() if n.op in NAMED]
    taken = {*theirs, *((n.op, n.attr("name")) for n in ours)}
    new = {}
    for leaf in ours:
        name = leaf.attr("name")
        twin = theirs.get((leaf.op, name))
        if twin is not None and (twin is not leaf or _rebound(name, graph, other)):
            while (leaf.op, name) in taken:
                name += "'"
            taken.add((leaf.op, name))
            new[leaf] = make(leaf.op, (), {**dict(leaf.attrs), "name": name})
    return _renamed(graph, new)


def _rebound(name: str, a: Graph, b: Graph) -> bool:
    """Whether both graphs bind a weight, and not to the same bits."""
    return name in a.params and name in b.params and not _same(a.params[name], b.params[name])


def _renamed(graph: Graph, new: Mapping[Tensor, Tensor]) -> Graph:
    """The graph with some leaves in the place of others."""
    changed = graph.with_roots(rebuild(graph.roots, lambda node, args: new.get(node)))
    return replace(changed, inputs=tuple(new.get(x, x) for x in graph.inputs))


def _same(a: Data, b: Data) -> bool:
    """Whether two weights are equal bit for bit."""
    x, y = load_data(a), load_data(b)
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
