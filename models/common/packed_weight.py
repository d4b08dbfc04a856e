"""Represents weights that stay packed: lazy arrays of codes (stored numbers), scales and zero points, and the
expression of the matrix over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...egraph.builders.builders import param
from ...egraph.evaluate.interpret import evaluate
from ...egraph.ir.tensor import Tensor
from ...egraph.ir.weight_data import Data, load_data
from ...egraph.types import dtypes

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class LazyPart:
    """A lazy array [shape] of `dtype`: `compute` of the `stored` arrays, called when it is loaded."""

    shape: tuple[int, ...]
    dtype: str
    stored: tuple[Data, ...]
    compute: Callable[..., Array]

    def load(self) -> Array:
        """The part as an array, computed from the stored arrays, which are read now."""
        found = self.compute(*map(load_data, self.stored))
        return np.ascontiguousarray(found.astype(dtypes.numpy_dtype(self.dtype), copy=False)).reshape(self.shape)


@dataclass(frozen=True)
class PackedWeight:
    """A quantized weight [shape] of `dtype`, as stored parts and the expression of the matrix over them.

    `build` makes the expression from one leaf for each part; weights with equal `form` have equal expressions. An
    `ArraySource`: `load` gives the expanded weight.
    """

    shape: tuple[int, ...]
    dtype: str
    form: str
    parts: Mapping[str, Data]
    build: Callable[[Mapping[str, Tensor]], Tensor]

    def params(self, name: str) -> dict[str, Data]:
        """The stored arrays by the names of their params: `NAME.PART` -> data."""
        return {f"{name}.{part}": data for part, data in self.parts.items()}

    def tensor(self, name: str) -> Tensor:
        """The expression of the weight `name` over its params `NAME.PART`."""
        return self.build({p: param(f"{name}.{p}", d.shape, dtypes.name_of(d.dtype)) for p, d in self.parts.items()})

    def load(self) -> Array:
        """Expand the weight from its codes, scales and zero points; returns the array."""
        return evaluate([self.tensor("w")], {}, params=self.params("w"))[0].astype(
            dtypes.numpy_dtype(self.dtype), copy=False
        )

    @property
    def kind(self) -> tuple[Any, ...]:
        """Stacking key: weights with equal keys can be stacked."""
        return (
            self.form,
            self.shape,
            self.dtype,
            tuple((n, d.shape, dtypes.name_of(d.dtype)) for n, d in self.parts.items()),
        )

    def stacked(self, weights: Sequence[PackedWeight], stack: Callable[[tuple[Data, ...]], Data]) -> PackedWeight:
        """Several weights of equal `kind` as one with a leading axis; `stack` joins the data of one part of all of
        them."""
        parts = {n: stack(tuple(w.parts[n] for w in weights)) for n in self.parts}
        return replace(self, shape=(len(weights), *self.shape), parts=parts)


__all__ = ["LazyPart", "PackedWeight"]
