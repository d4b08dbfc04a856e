"""Interprets the kernel IR as a reference: evaluates whole axes with NumPy, without tiles. Emitted kernels are tested
against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tensor_graphs.backends.ir.expr import Expr, below_maximum
from tensor_graphs.backends.ir.index import Axis, Index
from tensor_graphs.backends.ir.kernel import Kernel
from tensor_graphs.backends.ir.unfusable import Unfusable
from tensor_graphs.egraph.ops.ops import OPS
from tensor_graphs.egraph.types import dtypes

Array = np.ndarray[Any, Any]
_REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def run(kernel: Kernel, memory: Mapping[str, Array]) -> None:
    """Run a kernel on flat arrays (buffer name -> array); results are written in place.

    Floats are computed in float64. For small sizes only: time and memory grow with the product of the sizes of all axes
    of a value.
    """
    bound = [
        *(e.axis for e in (*kernel.reductions, *kernel.scans)),
        *(a for s in kernel.stores for a in sorted(s.value.axes, key=repr)),
    ]
    axes = [*kernel.axes, *dict.fromkeys(a for a in bound if a not in kernel.axes)]
    with np.errstate(all="ignore"):
        values = _Values(axes, memory)
        for e in kernel.exprs:
            values.known[e] = values.value(e)
        for store in kernel.stores:
            guards = [values.known[g] for g in store.guards]
            spot = values.position(store.at)
            for e, step in store.parts:
                spot = spot + values.known[e].astype(np.int64) * step
            place, value, *there = np.broadcast_arrays(spot, values.known[store.value], *guards)
            kept = np.logical_and.reduce(there) if there else ...
            if store.adds:
                np.add.at(memory[store.buffer], place[kept], value[kept])
            else:
                memory[store.buffer][place[kept]] = value[kept]


class _Values:
    """Values of expressions as arrays with one dimension per axis."""

    def __init__(self, axes: list[Axis], memory: Mapping[str, Array]) -> None:
        self.memory = memory
        self.order = {a: i for i, a in enumerate(axes)}
        self.known: dict[Expr, Array] = {}

    def along(self, axis: Axis) -> Array:
        """The axis's indices as an array along its dimension."""
        shape = [1] * len(self.order)
        shape[self.order[axis]] = axis.size
        return np.arange(axis.size).reshape(shape)

    def position(self, at: Index) -> Array:
        found: Array = np.full([1] * len(self.order), at.const)
        for atom, c in at.terms:
            if isinstance(atom, Axis):
                found = found + self.along(atom) * c
            else:
                inner = self.position(atom.index)
                found = found + (inner % atom.by if atom.rest else inner // atom.by) * c
        return found

    def value(self, e: Expr) -> Array:
        args = [self.known[a] for a in e.args]
        if e.op == "const":
            return np.full([1] * len(self.order), e.value)
        if e.op == "index":
            return self.position(e.value)
        if e.op == "load":
            return self._load(e, args)
        if e.op == "reduce":
            full = list(args[0].shape)
            full[self.order[e.axis]] = e.axis.size
            found: Array = _REDUCE[e.value[0]].reduce(
                np.broadcast_to(args[0], full), axis=self.order[e.axis], keepdims=True
            )
            return found
        if e.op == "scan":
            along, full = self.order[e.axis], list(args[0].shape)
            full[along] = e.axis.size
            sums = _REDUCE[e.value[0]].accumulate(np.broadcast_to(args[0], full), axis=along)
            shape = np.broadcast_shapes(args[1].shape, [1 if i == along else n for i, n in enumerate(sums.shape)])
            over = [n if i != along else e.axis.size for i, n in enumerate(shape)]
            return np.take_along_axis(np.broadcast_to(sums, over), np.broadcast_to(args[1], shape), along)
        if e.op == "cast":
            return args[0].astype(np.float64 if dtypes.is_float(e.value) else dtypes.numpy_dtype(e.value))
        if (shifted := below_maximum(e)) is not None:
            a, m = (self.known[x] for x in shifted)
            args = [a - np.where(np.isneginf(m), 0.0, m)]
        if e.op == "exp2":
            return np.exp2(args[0])
        function = OPS[e.op.removeprefix("exact_")].numpy  # NumPy rounds each operation once
        if function is None:
            raise Unfusable(f"{e.op} has no NumPy function")
        return np.asarray(function({}, *args))

    def _load(self, e: Expr, args: list[Array]) -> Array:
        name, at, steps, _ = e.value
        place = self.position(at)
        for a, step in zip(args, steps):
            place = place + a.astype(np.int64) * step
        there: Array = np.ones((), bool)
        for guard in args[len(steps) :]:
            there = there & guard
        read = self.memory[name][np.where(there, place, 0)]
        found = np.where(there, read, np.zeros((), read.dtype))
        return found.astype(np.float64) if e.kind == "float" else found
