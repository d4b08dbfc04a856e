"""Makes the operand values with which a CPU kernel is checked and timed. Kernels with the same meaning get the same
values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any
from zlib import crc32

import numpy as np

from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor, topological
from ...egraph.ops.ops import Type
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from ...extract.model.kernel import Call
from ..verification.input_distributions import InputDistribution, input_distributions
from ..verification.inputs import whole_numbers
from .single_kernel import Array, in_layout

POOL = 1_000_003  # normal numbers that values are taken from
DRAWN = 1 << 24  # maximum integers of an operand that are drawn one by one; larger operands repeat POOL of them

_pool: list[Array] = []
_large: dict[
    tuple[Any, ...], Array
] = {}  # the last operand of more than DRAWN numbers: kernels of a table or output matrix share it


def operand_values(name: str, kind: Type, role: InputDistribution, positive: bool, scale: float = 1.0) -> Array:
    """Values of the operand `name` as an array of type `kind` (also for rank 0), equal in every call.

    Floats are normal numbers from a pool, repeated if needed: with `positive` their magnitudes plus 0.1, else
    multiplied by `scale`. Integers are drawn from the distribution `role`. Values are converted before they are
    repeated, so that large operands take one pass.
    """
    if not _pool:
        _pool.append(np.random.default_rng(0).standard_normal(POOL, np.float32))
    shape, seed = concrete(kind.shape), crc32(name.encode())
    if not dtypes.is_float(kind.dtype) and kind.dtype != "bool":
        whole = partial(whole_numbers, dtype=kind.dtype, role=role, rng=np.random.default_rng(seed), turn=0)
        return whole(shape) if role.bound or prod(shape) <= DRAWN else np.resize(whole((POOL,)), shape)
    large = prod(shape) > DRAWN
    key = (kind, seed, positive, scale)
    if key in _large:
        return _large[key]
    line: Array = np.roll(_pool[0], -(seed % POOL))
    if kind.dtype == "bool":
        return np.resize(line > 0, shape)
    if positive:
        line = np.abs(line) + np.float32(0.1)
    elif scale != 1.0:
        line = line * np.float32(scale)
    if large:
        _large.clear()  # before the memory for another one is taken
    found = np.resize(line.astype(dtypes.numpy_dtype(kind.dtype)), shape)
    if large:
        found.flags.writeable = False
        _large[key] = found
    return found


def drawn(roots: Sequence[Tensor], call: Call) -> dict[str, tuple[Type, InputDistribution, bool, float]]:
    """Distribution of each operand's values: (type, role of integers, whether floats are positive, scale of floats).

    Recurrent weights are small, so that rounding errors do not grow from step to step. Depends only on the terms, not
    on the backend.
    """
    known = input_distributions(Graph.of(list(roots)), ("param",))
    nodes = topological(roots)
    scales = {
        leaf.attr("name"): 0.5 * node.attr("hidden") ** -0.5
        for node in nodes if node.op == "recurrent" for leaf in topological([node.args[2]]) if leaf.op == "param"
    }  # fmt: skip
    positive = any(n.entry.domain == "positive" for n in nodes)  # their usual domain
    return {
        n: (o.type, known.get(n) or InputDistribution(), positive, scales.get(n, 1.0)) for n, o in call.operands.items()
    }


def shown(
    operands: Mapping[str, Array], given: Mapping[str, tuple[Type, InputDistribution, bool, float]], call: Call
) -> dict[str, Array]:  # fmt: skip
    """The operands, where those that are sequence lengths of a mask are replaced by arrays of the largest possible
    length: nothing is masked, and kernels that stop at the length are timed on all positions. Empty if there are no
    such operands. `given`: the distributions from which the operands were drawn (`drawn`)."""
    found = {}
    for name, (kind, role, _, _) in given.items():
        if role.counted and dtypes.category(kind.dtype) == "int":
            last = min(role.counted, int(np.iinfo(operands[name].dtype).max) + 1) - 1
            found[name] = in_layout(np.full(operands[name].shape, last, operands[name].dtype), call.operands[name])
    return {**operands, **found} if found else {}


__all__ = ["drawn", "operand_values", "shown"]
