"""Collects the layouts (strides in memory) in which the values of an e-graph may be stored, while candidate kernels are
matched."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ...egraph.ops.ops import Type
from ...egraph.types.dims import concrete
from ...egraph.view.view import EGraphView
from ..model.kernel import Operand, Strides, Vertex, contiguous

MAX_LAYOUTS = 16
"""Largest number of layouts of a class, including the row-major layout. No graph seen so far reaches it: a cut would
depend on the rest of the e-graph, so that a larger e-graph could lose kernels."""


class ClassLayouts:
    """Layouts (strides) in which each e-class of an e-graph may be stored, the row-major one first, with the vertices
    and operands of the hypergraph in these layouts.

    `by_class`: e-class -> strides of each layout known so far. `turned`: e-class -> layout other than row-major in
    which generated kernels may write it. `given`: row-major strides of e-classes that are in memory before any kernel
    runs. `types`: storage types of the e-classes. `weight`: whether an e-class depends on weights only.
    """

    def __init__(self, view: EGraphView, types: Sequence[Type], given: Collection[int]) -> None:
        self.types, self.roots = types, {*view.roots}
        self.shapes = [concrete(t.shape) for t in view.types]
        self.given = {cls: contiguous(self.shapes[cls]) for cls in sorted(given)}
        self.weight = [bool(w) for w in view.weight]
        self.by_class: dict[int, list[Strides]] = {}
        self.turned: dict[int, Strides] = {}
        self._operands: dict[Vertex, Operand] = {}
        self._layout_ids: dict[Vertex, tuple[int, bool]] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._vertices: dict[int, list[Vertex]] = {}  # class -> one vertex for each layout found so far
        # (operand, class) -> inputs shared between candidates
        self._inputs: dict[tuple[str, int], list[tuple[str, Vertex]]] = {}
        self._kinds: dict[int, int] = {}
        self._made_kinds: dict[int, tuple[int, bool, bool]] = {}
        self._kind_numbers: dict[tuple[Any, ...], int] = {}

    def operand(self, vertex: Vertex) -> Operand:
        """The vertex (e-class in a layout) as an operand of a kernel (type and strides); cached."""
        found = self._operands.get(vertex)
        if found is None:
            found = self._operands[vertex] = Operand(self.types[vertex.cls], vertex.strides)
        return found

    def of(self, cls: int) -> list[Strides]:
        found = self.by_class.get(cls)
        if found is None:
            found = self.by_class[cls] = [contiguous(self.shapes[cls])]
        return found

    def add(self, made: Vertex) -> None:
        self.of(made.cls).append(made.strides)
        self._vertices.pop(made.cls, None)
        self._kinds.pop(made.cls, None)

    def add_if_new(self, made: Vertex) -> bool:
        """Record the layout of the vertex `made`, which a kernel writes. Returns True if it was recorded; False if it
        is known already or its e-class has MAX_LAYOUTS layouts."""
        layouts = self.of(made.cls)
        if made.strides in layouts or len(layouts) >= MAX_LAYOUTS:
            return False
        self.add(made)
        return True

    def vertices_of(self, cls: int) -> list[Vertex]:
        found = self._vertices.get(cls)
        if found is None:
            found = self._vertices[cls] = [Vertex(cls, s) for s in self.of(cls)]
        return found

    def row_major(self, cls: int) -> Vertex:
        """The vertex of an e-class in its row-major layout."""
        return self.vertices_of(cls)[0]

    def layout_id(self, vertex: Vertex) -> tuple[int, bool]:
        """(id of the vertex's dtype, shape and strides, whether the vertex is dense: row-major without gaps)."""
        found = self._layout_ids.get(vertex)
        if found is None:
            operand = self.operand(vertex)
            number = self._numbers.setdefault(
                (operand.type.dtype, self.shapes[vertex.cls], operand.strides), len(self._numbers)
            )
            found = self._layout_ids[vertex] = (number, operand.dense)
        return found

    def kind(self, cls: int) -> int:
        """Id of the properties of an e-class that decide how kernels that read it are bound: type, layouts, whether it
        is given (in memory before any kernel runs) or a weight. E-classes with equal properties have equal ids."""
        found = self._kinds.get(cls)
        if found is None:
            lies = tuple(self.of(cls)), self.turned.get(cls), cls in self.given
            key = self.types[cls].dtype, self.shapes[cls], lies, self.weight[cls]
            found = self._kinds[cls] = self._kind_numbers.setdefault(key, len(self._kind_numbers))
        return found

    def made_kind(self, cls: int) -> tuple[int, bool, bool]:
        """Properties of an e-class that decide how kernels that write it are bound: (id of type and row-major layout,
        whether generated kernels may write another layout, whether it is a root).

        Cached, since the layouts of outputs are known before any kernel is bound.
        """
        found = self._made_kinds.get(cls)
        if found is None:
            number, _ = self.layout_id(self.row_major(cls))
            found = self._made_kinds[cls] = number, cls in self.turned, cls in self.roots
        return found

    def inputs_of(self, operand: str, cls: int) -> list[tuple[str, Vertex]]:
        """For each layout of an e-class the pair (`operand`, vertex), as an input of a candidate whose operand has that
        name.

        Candidates share these tuples, to keep the number of objects that the cyclic garbage collector traverses small.
        """
        found = self._inputs.setdefault((operand, cls), [])
        if len(found) < len(self.of(cls)):
            found += [(operand, v) for v in self.vertices_of(cls)[len(found) :]]
        return found

    def keep(self, classes: Collection[int]) -> None:
        """Forget the layouts of all e-classes other than `classes`."""
        for cls in [c for c in self.by_class if c not in classes]:
            del self.by_class[cls]
            self._vertices.pop(cls, None)


def canonical_strides(strides: Strides, shape: Sequence[int]) -> Strides:
    """The strides with those of axes of size 1 (which have no effect) replaced by the row-major ones, so that every
    dense value has exactly the row-major strides."""
    row_major = contiguous(shape)
    return tuple(w if d == 1 else s for s, w, d in zip(strides, row_major, shape))
