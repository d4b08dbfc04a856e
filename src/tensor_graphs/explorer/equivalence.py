"""Proves the equivalence of two programs with the rewrite rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ..egraph.ir.graph import Graph
from ..egraph.ir.tensor import Tensor, make, rebuild
from ..egraph.ir.weight_data import Data, load_data
from ..egraph.saturate.saturate import Limits
from ..egraph.saturate.worker import default_pool
from ..egraph.simplify.simplify import simplify
from ..errors import ShapeError
from ..option_checks import is_limits, is_named
from ..pipeline.sources.source import as_graph
from ..rules.derive.prove import LIMITS, NAMED, Prover


@lru_cache(1)
def _prover() -> Prover:
    """The rules compiled for proofs, cached: reading them takes a second."""
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
    """Whether the rules prove two programs equal within the limits. False means not proved, not unequal.

    `a`, `b`: anything that `optimize` takes: expressions (or sequences or dicts of them), Graphs, functions or modules
    with `example_inputs`, model paths. Leaves (inputs, params, states) correspond if name and type agree; inputs of two
    functions or modules correspond by position; params bound to different data do not correspond. Outputs are compared
    in order, new values of states by name. Both programs are added to one e-graph, the rules saturate it
    (rules/derive/prove.py), and corresponding outputs must be in the same e-class. Rules hold over the real numbers, so
    programs that differ in rounding only are equal.

        x = tg.input("x", (8, 8))
        assert tg.equivalent(x + x, 2.0 * x)

    `trust`: allow model files that can run code while loading. Raises UsageError for an unknown kind of program,
    ShapeError if a dimension is free (give `dims`).
    """
    is_named("dims", dims)
    is_limits("limits", limits)
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
    """Sizes at which a source is loaded. None for expressions and graphs, which are bound later, since each may lack
    some of the dimensions.
    """
    return None if isinstance(source, Graph | Tensor | list | tuple | dict) else dims


def _concrete(graph: Graph, dims: Mapping[str, int] | None) -> Graph:
    """The graph at the given sizes, simplified. Raises ShapeError if a dimension stays free."""
    free = graph.free_dims
    bound = graph.bind({n: s for n, s in (dims or {}).items() if n in free})
    if left := sorted(bound.free_dims):
        raise ShapeError(f"the sizes of {left} are free", hint="equivalent(a, b, dims={name: size})")
    return simplify(bound)


def _called(source: Any) -> bool:
    """Whether a source takes positional inputs."""
    return callable(source) and not isinstance(source, Graph | Tensor)


def _at_positions(graph: Graph, other: Graph) -> Graph:
    """The graph with its inputs replaced by the other graph's inputs at the same positions, where the types agree."""
    return _renamed(graph, {x: y for x, y in zip(graph.inputs, other.inputs) if x.type == y.type})


def _apart(graph: Graph, other: Graph) -> Graph:
    """Rename leaves that share a name with a leaf of the other graph but have another type or other data."""
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
    """Whether both graphs bind a weight of this name, to different data."""
    return name in a.params and name in b.params and not _same(a.params[name], b.params[name])


def _renamed(graph: Graph, new: Mapping[Tensor, Tensor]) -> Graph:
    """The graph with leaves replaced according to `new`."""
    changed = graph.with_roots(rebuild(graph.roots, lambda node, args: new.get(node)))
    return replace(changed, inputs=tuple(new.get(x, x) for x in graph.inputs))


def _same(a: Data, b: Data) -> bool:
    """Whether two weights are bitwise equal."""
    x, y = load_data(a), load_data(b)
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
