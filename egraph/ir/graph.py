"""Defines graphs: named outputs over named inputs, params and states."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ...errors import BadModelError, ShapeError, UsageError
from ..types import dims, dtypes
from ..types.dims import Dim
from .tensor import LEAVES, Tensor, make, rebuild, structural_digest, topological
from .weight_data import Data


@dataclass(frozen=True)
class Graph:
    """A computation: outputs over inputs, params, states and constants.

    `params` maps parameter names to data (possibly lazy; possibly missing until `bind`). `updates` maps each mutated
    state to its value after a call. `structure`: containers in which outputs are returned, with output indices as
    leaves (structure.py); None means a single output. `modules`: module paths ("blocks.0.attn") of operations as they
    were loaded, where the source knows them; passes leave it as it is. `typical`: mean and standard deviation of float
    inputs by name, where the source knows values of them; random inputs are drawn so. `inner`: names of outputs that
    are values inside of a training step (saved for the backward pass, gradients, new running statistics). `labels`:
    nodes of a file with free dimensions that made these operations; passes leave it as it is.
    """

    outputs: tuple[Tensor, ...]
    names: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    params: Mapping[str, Data] = field(default_factory=dict)
    updates: Mapping[str, Tensor] = field(default_factory=dict)
    structure: Any = None
    name: str = "graph"
    modules: Mapping[Tensor, str] = field(default_factory=dict, compare=False, repr=False)
    typical: Mapping[str, tuple[float, float]] = field(default_factory=dict, compare=False, repr=False)
    inner: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    labels: Mapping[Tensor, str] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def of(
        outputs: Tensor | Sequence[Tensor] | Mapping[str, Tensor],
        *,
        params: Mapping[str, Data] | None = None,
        inputs: Sequence[Tensor] | None = None,
        updates: Mapping[str, Tensor] | None = None,
        name: str = "graph",
    ) -> Graph:
        """A graph from expressions.

        `updates`: state name -> its value after a call. Inputs are ordered by first use unless given. Raises UsageError
        for unlisted inputs and BadModelError for clashing names.
        """
        structure: Any
        if isinstance(outputs, Tensor):
            values, names, structure = [outputs], ["output"], None
        elif isinstance(outputs, Mapping):
            values, names = list(outputs.values()), list(outputs)
            structure = {n: i for i, n in enumerate(names)}
        else:
            values = list(outputs)
            names = [f"output{i}" for i in range(len(values))]
            structure = tuple(range(len(values)))
        if not values or not all(isinstance(v, Tensor) for v in values):
            raise UsageError("a graph needs at least one output, each a tensor expression")
        roots = [*values, *(updates or {}).values()]
        found = [n for n in topological(roots) if n.op == "input"]
        chosen = list(inputs) if inputs is not None else found
        missing = [n.attr("name") for n in found if n not in set(chosen)]
        if missing:
            raise UsageError(f"inputs {missing} are used but not listed")
        graph = Graph(
            tuple(values), tuple(names), tuple(chosen), dict(params or {}), dict(updates or {}), structure, name
        )
        graph.check()
        return graph

    def check(self) -> None:
        """Raise BadModelError for a graph without outputs, leaf names that clash, or data of another shape or dtype.

        Raises ShapeError if a state and its update have different types.
        """
        if not self.outputs:
            raise BadModelError("the model has no outputs", where=self.name)
        seen: dict[tuple[str, str], Tensor] = {}
        for node in self.nodes():
            if node.op in LEAVES[:3]:
                key = (node.op, node.attr("name"))
                if seen.setdefault(key, node) is not node:
                    raise BadModelError(f"two {node.op}s are called {key[1]!r}: {seen[key].type} and {node.type}")
        for name, data in self.params.items():
            leaf = seen.get(("param", name))
            if leaf is not None and (tuple(data.shape) != leaf.shape or dtypes.name_of(data.dtype) != leaf.dtype):
                raise BadModelError(f"param {name!r} is {leaf.type}, its data {data.dtype}{list(data.shape)}")
        for name, value in self.updates.items():
            state = seen.get(("state", name))
            if state is not None and state.type != value.type:
                raise ShapeError(f"state {name!r} is {state.type}, its update {value.type}")

    @property
    def roots(self) -> tuple[Tensor, ...]:
        """Outputs followed by state updates: all values to compute."""
        return (*self.outputs, *self.updates.values())

    def nodes(self) -> list[Tensor]:
        """All nodes in topological order; deterministic."""
        return list(self._nodes)

    @cached_property
    def _nodes(self) -> tuple[Tensor, ...]:
        return tuple(topological(self.roots))

    def leaves(self, op: str) -> list[Tensor]:
        """Leaves of the kind `op` ('input', 'param', 'state', 'constant') that the roots use."""
        return [n for n in self.nodes() if n.op == op]

    def with_roots(self, roots: Sequence[Tensor]) -> Graph:
        """This graph with its roots replaced (same order: outputs, then updates)."""
        n = len(self.outputs)
        return replace(self, outputs=tuple(roots[:n]), updates=dict(zip(self.updates, roots[n:], strict=True)))

    @property
    def free_dims(self) -> dict[str, dims.Atom]:
        """The symbolic (unbound) dimensions of the inputs, by name."""
        return {name: atom for n in self.inputs for d in n.shape for name, atom in dims.symbols(d).items()}

    def bind(self, sizes: Mapping[str, Dim]) -> Graph:
        """This graph with named dimensions replaced by sizes or other expressions.

        Raises UsageError for unknown dimensions.
        """
        free = self.free_dims
        unknown = sorted(set(sizes) - set(free))
        if unknown:
            raise UsageError(
                f"no dimension is called {unknown}", hint=f"the graph has {sorted(free) or 'no free dimensions'}"
            )

        def change(node: Tensor, args: tuple[Tensor, ...]) -> Tensor:
            return make(node.op, args, bound_attrs(node, sizes), data=node.data)

        fresh = {n: change(n, ()) for n in self.inputs}
        graph = self.with_roots(rebuild(self.roots, change)) if free else self
        return replace(graph, inputs=tuple(fresh[n] for n in self.inputs))

    def digest(self) -> str:
        """Structural hash of the graph, 32 hexadecimal digits.

        Operands of commutative ops are sorted; leaf names are included, weight data is not.
        """
        total = hashlib.blake2b(digest_size=16)
        for root in self.roots:
            total.update(structural_digest(root))
        return total.hexdigest()

    def __repr__(self) -> str:
        numbers = {id(n): i for i, n in enumerate(self.nodes())}
        lines = [f"graph {self.name}({', '.join(str(n.attr('name')) + ': ' + str(n.type) for n in self.inputs)})"]
        for node in self.nodes():
            attrs = ", ".join(f"{k}={v!r}" for k, v in node.attrs if k not in ("dtype", "digest"))
            operands = ", ".join(f"%{numbers[id(a)]}" for a in node.args)
            lines.append(
                f"  %{numbers[id(node)]} = {node.op}({', '.join(t for t in (operands, attrs) if t)}): {node.type}"
            )
        lines.append("  return " + ", ".join(f"{n}=%{numbers[id(o)]}" for n, o in zip(self.names, self.outputs)))
        return "\n".join(lines)

    def counts(self) -> dict[str, int]:
        """Number of nodes of each op."""
        found: dict[str, int] = {}
        for node in self.nodes():
            found[node.op] = found.get(node.op, 0) + 1
        return found

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(f"<tr><td>{escape(op)}</td><td>{n}</td></tr>" for op, n in sorted(self.counts().items()))
        head = f"<b>{escape(self.name)}</b>: {len(self.nodes())} nodes"
        return f"{head}<table><tr><th>op</th><th>count</th></tr>{rows}</table><pre>{escape(repr(self)[:8000])}</pre>"


def bound_attrs(node: Tensor, sizes: Mapping[str, Dim]) -> dict[str, Any]:
    """Attributes of a node with named dimensions replaced by sizes or other expressions."""

    def fix(value: Any) -> Any:
        return dims.bind(value, sizes)

    kinds = node.entry.attrs
    return {
        k: tuple(map(fix, v)) if kinds[k] == "dims" else fix(v) if kinds[k] in ("int", "float") else v
        for k, v in node.attrs
    }
