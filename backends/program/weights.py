"""Holds the weights of a program by key, computed from params when read or read from a safetensors file, and writes
that file."""

from __future__ import annotations

import math
import weakref
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...costdb.keys import rates
from ...costdb.keys.device import GPU_KIND
from ...egraph.evaluate.interpret import evaluate
from ...egraph.ir.file_array import FileArray
from ...egraph.ir.tensor import Tensor, make, structural_digest, topological
from ...egraph.ir.weight_data import Data, load_data
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from ...errors import BadWeightsError
from ..runtime.marshalling import Marshalling
from ..runtime.upload import copied_bytes, uploaded_file
from .manifest import STATE, Spec
from .weights_on_device import computed_weight, is_computed_on

Array = np.ndarray[Any, Any]


class KeyedWeights(Mapping[str, Array]):
    """Mapping of a program's weights by key, each of which also has a key under which programs share it
    (`pool_key`)."""

    @abstractmethod
    def pool_key(self, key: str) -> Hashable:
        """Key under which programs share the weight `key` in a pool (`SharedWeights`): weights with equal ones have
        equal values in equal layouts."""

    @abstractmethod
    def nbytes(self, key: str) -> int:
        """Bytes of the weight `key`."""


class EvaluatedWeights(KeyedWeights):
    """Weights of a program as terms over params, evaluated each time that they are read; nothing is cached.

    `plain`: keys of weights that must be row-major. Any other matrix may be returned as the transpose of a row-major
    array, which saves a copy: such weights are only packed for kernels, and packing changes the layout anyway.
    """

    def __init__(self, terms: Mapping[str, Tensor], params: Mapping[str, Data], plain: frozenset[str]) -> None:
        self.terms, self.params, self.plain = terms, params, plain

    def __getitem__(self, key: str) -> Array:
        if key.startswith(STATE):
            return load_data(self.params[key.removeprefix(STATE)])
        term = self.terms[key]
        if term.op == "param" and term.attr("name") in self.params:
            array = load_data(self.params[term.attr("name")])
            if tuple(array.shape) != term.shape or dtypes.name_of(array.dtype) != term.dtype:
                raise BadWeightsError(
                    f"param {term.attr('name')!r} is {array.dtype}{list(array.shape)}, not {term.type}"
                )
        else:  # For a widened view of a weight: a view of the stored weight, and a single copy.
            array = evaluate([_without_widening(term)], {}, params=self.params)[0]
        made = dtypes.numpy_dtype(term.dtype)
        turned = key not in self.plain and array.ndim == 2 and array.T.flags.c_contiguous
        if array.dtype != made:
            return array.astype(made, order="F" if turned else "C")
        return array if turned else np.ascontiguousarray(array).reshape(concrete(term.shape))

    def stored(self, key: str) -> FileArray | None:
        """The weight `key` as a region of a file, if it is a param that is one; else None."""
        term = self.terms[key]
        data = self.params.get(term.attr("name")) if term.op == "param" else None
        return data if isinstance(data, FileArray) and (data.shape, data.dtype) == (term.shape, term.dtype) else None

    def __iter__(self) -> Iterator[str]:
        return iter(self.terms)

    def __len__(self) -> int:
        return len(self.terms)

    def pool_key(self, key: str) -> Hashable:
        """Key under which programs share the weight `key` in a pool: equal for equal values in equal layouts, among
        programs over the same params."""
        return structural_digest(self.terms[key]), key in self.plain

    def nbytes(self, key: str) -> int:
        """Bytes of the weight `key`."""
        return self.terms[key].type.nbytes

    def preparing_s(self, keys: Iterable[str], device: str = "") -> float:
        """Estimated seconds of preparing the weights `keys` for a pool (`SharedWeights`) on a Torch device; "" for
        NumPy arrays.

        Weights that the device computes itself (`is_computed_on`) count as a copy of their params to the device and a
        computation at its rates.
        """
        terms = [self.terms[k] for k in keys]
        there = [t for t in terms if is_computed_on(device, t, self.params)]
        here = [t for t in terms if not is_computed_on(device, t, self.params)]
        names = [str(n.attr("name")) for n in topological(there) if n.op == "param"]
        copied = copied_bytes(self.params[n] for n in names if n in self.params)
        written = sum(t.type.nbytes for t in here) + 4 * _computed_bytes(here)
        return (
            copied / rates.GPU.weight_bytes_per_s
            + 4 * _computed_bytes(there) / rates.GPU.reference_bytes_per_s
            + written / rates.HOST.reference_bytes_per_s
        )

    def borrowed(self, around: EvaluatedWeights) -> dict[str, str]:
        """Weights that are equal to a weight of `around`, those of another program: key here -> key in `around`."""
        there = {structural_digest(term): name for name, term in reversed(list(around.terms.items()))}
        found = {name: there.get(structural_digest(term)) for name, term in self.terms.items()}
        return {name: known for name, known in found.items() if known is not None}


def _computed_bytes(terms: Sequence[Tensor]) -> int:
    """Bytes of all values that evaluating weights writes; 0 if each is a param as it is, or a view of one."""
    return sum(n.type.nbytes for n in topological(terms) if n.args and n.entry.kind != "view")


def _without_widening(term: Tensor) -> Tensor:
    """A term without casts to wider floats above or below views, which change no value.

    A chain of views that widens a value and narrows it again loses both casts, since 16-bit float casts are slow on
    CPUs.
    """
    if term.op == "cast" and (moved := _moved(term.args[0], term.dtype)) is not None:
        return moved
    if term.op != "cast" and term.entry.kind != "view":
        return term
    below = _without_widening(term.args[0])
    if term.op == "cast":
        return below if _widens(term) else term
    return make(term.op, (below,), dict(term.attrs))


def _moved(term: Tensor, dtype: str) -> Tensor | None:
    """A term of views and concatenations rebuilt without widening casts, if its operands then have `dtype`; else
    None."""
    if term.dtype == dtype:
        return term
    if term.op == "cast":
        return _moved(term.args[0], dtype) if _widens(term) else None
    if term.entry.kind != "view" and term.op != "concat":
        return None
    parts = [_moved(a, dtype) for a in term.args]
    if any(p is None for p in parts):
        return None
    return make(term.op, [p for p in parts if p is not None], dict(term.attrs))


def _widens(cast: Tensor) -> bool:
    """Whether a cast converts a float dtype to a wider one."""
    floats = dtypes.is_float(cast.dtype) and dtypes.is_float(cast.args[0].dtype)
    return floats and dtypes.itemsize(cast.dtype) > dtypes.itemsize(cast.args[0].dtype)


class SharedWeights:
    """Pool of weights for programs over the same params: programs with equal terms share one array or tensor.

    The pool keeps weak references; a weight is freed with the last program that holds it.
    """

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()

    def of(self, weights: Mapping[str, Any], exchange: Marshalling, device: str) -> Mapping[str, Any]:
        """The weights of a program on its device, each taken from the pool if that has it, else moved there and added.
        Weights without keys for sharing (other than `KeyedWeights`) are returned unchanged.

        `exchange`: marshalling that moves weights to the device. `device`: the Torch device of the program's tensors,
        "" for arrays.
        """
        return _PooledWeights(self._known, weights, exchange, device) if isinstance(weights, KeyedWeights) else weights

    def adopt(self, other: SharedWeights) -> list[Any]:
        """Add the weights of another pool over the same params that this pool does not have.

        Returns the added arrays or tensors; the caller's list keeps them alive.
        """
        found = {key: value for key, value in other._known.items() if key not in self._known}
        self._known.update(found)
        return list(found.values())

    def holds(self, weights: KeyedWeights, key: str) -> bool:
        """Whether the weight `key` among the weights of a program is in the pool."""
        return not key.startswith(STATE) and weights.pool_key(key) in self._known

    def held(self, weights: Mapping[str, Any]) -> int:
        """Bytes of those of a program's weights that are in the pool."""
        if not isinstance(weights, KeyedWeights):
            return 0
        return sum(weights.nbytes(n) for n in weights if self.holds(weights, n))


@dataclass(frozen=True)
class _PooledWeights(Mapping[str, Any]):
    known: MutableMapping[Hashable, Any]
    own: Any
    exchange: Marshalling
    device: str

    def __getitem__(self, key: str) -> Any:
        if key.startswith(STATE):
            return self.own[key]
        name = self.own.pool_key(key)
        found = self.known.get(name)
        if found is None:
            found = self.known[name] = self._near(key)
        return found

    def _near(self, key: str) -> Any:
        """A weight on the device: computed there, or copied."""
        if isinstance(self.own, EvaluatedWeights):
            computed = computed_weight(self.own.terms[key], self.own.params, self.device)
            if computed is not None:
                return computed
            stored = self.own.stored(key)
            if stored is not None and self.device.startswith(GPU_KIND):
                return uploaded_file(stored, self.device)
        return self.exchange.near(self.own[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self.own)

    def __len__(self) -> int:
        return len(self.own)


def bytes_of(spec: Spec) -> int:
    """Bytes of a weight or state, given as (name, shape, dtype)."""
    return math.prod(spec[1]) * dtypes.itemsize(spec[2])
