"""Holds the weights of a program by key, computed from params when read or read from a safetensors file, and writes
that file."""

from __future__ import annotations

import json
import math
import weakref
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...costdb.keys import rates
from ...costdb.keys.device import GPU_KIND
from ...egraph.evaluate.interpret import evaluate
from ...egraph.ir.tensor import Tensor, make, structural_digest, topological
from ...egraph.ir.weight_data import Data, detached, load_data
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from ...errors import BadWeightsError
from ...plain import file_identity
from ..runtime.marshalling import Marshalling
from ..runtime.upload import copied_bytes
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
        else:  # For a widened view of a weight: a view of the mapped file, and a single copy.
            array = evaluate([_without_widening(term)], {}, params=self.params)[0]
        made = dtypes.numpy_dtype(term.dtype)
        turned = key not in self.plain and array.ndim == 2 and array.T.flags.c_contiguous
        if array.dtype != made:
            return array.astype(made, order="F" if turned else "C")
        return array if turned else np.ascontiguousarray(array).reshape(concrete(term.shape))

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
        return self.exchange.near(self.own[key] if self.device.startswith(GPU_KIND) else detached(self.own[key]))

    def __iter__(self) -> Iterator[str]:
        return iter(self.own)

    def __len__(self) -> int:
        return len(self.own)


@dataclass(frozen=True)
class HeldWeights(Mapping[str, Any]):
    """The weights `own`, none of them over a mapped file: what happens to the file is nothing to the program."""

    own: Mapping[str, Array]

    def __getitem__(self, key: str) -> Any:
        return detached(self.own[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self.own)

    def __len__(self) -> int:
        return len(self.own)


class StoredWeights(KeyedWeights):
    """Weights in a safetensors file, read on demand; `specs`: (key, shape, dtype) of each.

    Raises BadWeightsError if the file is missing or cannot be read.
    """

    def __init__(self, path: Path, specs: Sequence[Spec]) -> None:
        self.path, self.specs = path, {n: (shape, dtype) for n, shape, dtype in specs}
        if specs and not path.is_file():
            raise BadWeightsError("the weights are missing", where=str(path))
        self._file = self._facts() if specs else ()

    def _facts(self) -> tuple[int, ...]:
        """Identity of the file, to detect its replacement."""
        try:
            return file_identity(self.path)
        except OSError as error:
            raise BadWeightsError(f"the weights cannot be read: {error.strerror}", where=str(self.path)) from None

    def __contains__(self, key: object) -> bool:
        return key in self.specs

    def __getitem__(self, key: str) -> Array:
        from safetensors import safe_open

        def read() -> Array:
            with safe_open(self.path, framework="numpy") as file:
                found: Array = file.get_tensor(key)
            return found

        array: Array = self.read(key, read, lambda found: dtypes.name_of(found.dtype))
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    def read(self, key: str, read: Callable[[], Any], dtype_of: Callable[[Any], str]) -> Any:
        """The weight `key`, which the function `read` reads from the file. Raises BadWeightsError if the file cannot be
        read, was replaced, or holds another shape or dtype than the manifest says. `dtype_of`: function from what
        `read` returns to the name of its dtype."""
        from safetensors import SafetensorError

        if key not in self.specs:
            raise BadWeightsError(
                f"the program reads the weight {key!r}, which its manifest does not list", where=str(self.path)
            )
        shape, dtype = self.specs[key]
        dtypes.numpy_dtype(dtype)  # safetensors knows bfloat16 by name once it is registered with NumPy
        try:
            found = read()
        except (OSError, SafetensorError) as error:
            raise BadWeightsError(f"weight {key!r} cannot be read: {error}", where=str(self.path)) from None
        if self._facts() != self._file:
            raise BadWeightsError(
                "the weights were replaced since the program was loaded", where=str(self.path), hint="load it again"
            )
        if tuple(found.shape) != shape or dtype_of(found) != dtype:
            raise BadWeightsError(
                f"weight {key!r} is {dtype_of(found)}{list(found.shape)}, not {dtype}{list(shape)}",
                where=str(self.path),
            )
        return found

    def mapped(self) -> Mapping[str, Any]:
        """The weights as Torch tensors over the memory-mapped file, for a device that copies them from there: arrays
        would be one copy more. Reading a weight raises BadWeightsError as reading an array does."""
        return _MappedWeights(self)

    def pool_key(self, key: str) -> Hashable:
        """Key under which programs share the weight `key` in a pool: its place in the file."""
        return self.path, key

    def nbytes(self, key: str) -> int:
        """Bytes of the weight `key`."""
        return bytes_of((key, *self.specs[key]))


class _MappedWeights(Mapping[str, Any]):
    """The weights of `stored` as Torch tensors over its file, which is opened at the first read."""

    def __init__(self, stored: StoredWeights) -> None:
        self.stored = stored

    @cached_property
    def file(self) -> Any:
        """The open file."""
        from safetensors import safe_open

        return safe_open(self.stored.path, framework="pt")

    def __getitem__(self, key: str) -> Any:
        return self.stored.read(
            key, lambda: self.file.get_tensor(key), lambda found: str(found.dtype).removeprefix("torch.")
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)


class BorrowedWeights(KeyedWeights):
    """Weights of a saved plan for one bucket (range) of sizes: its own, and those that it shares with the program's
    main plan.

    `names`: key in this plan -> key in `around`, the main plan's weights. `specs`: (key, shape, dtype) of each weight
    here. Raises BadWeightsError if a borrowed weight has another shape or dtype.
    """

    def __init__(
        self, own: StoredWeights, names: Mapping[str, str], around: StoredWeights, specs: Sequence[Spec]
    ) -> None:
        self.own, self.names, self.around = own, names, around
        for name, shape, dtype in specs:
            if name in names and around.specs.get(names[name]) != (shape, dtype):
                raise BadWeightsError(f"weight {name!r} is not among those of the whole program", where=str(own.path))

    def __getitem__(self, key: str) -> Array:
        return self.around[self.names[key]] if key in self.names else self.own[key]

    def __iter__(self) -> Iterator[str]:
        return iter([*self.names, *self.own])

    def __len__(self) -> int:
        return len(self.names) + len(self.own)

    def pool_key(self, key: str) -> Hashable:
        """Key under which programs share the weight `key` in a pool: that of the plan whose weight it is."""
        return self.around.pool_key(self.names[key]) if key in self.names else self.own.pool_key(key)

    def nbytes(self, key: str) -> int:
        """Bytes of the weight `key`."""
        return self.around.nbytes(self.names[key]) if key in self.names else self.own.nbytes(key)


_SAFETENSORS = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip


def bytes_of(spec: Spec) -> int:
    """Bytes of a weight or state, given as (name, shape, dtype)."""
    return math.prod(spec[1]) * dtypes.itemsize(spec[2])


def write_weights(path: Path, specs: Sequence[Spec], weights: Mapping[str, Array]) -> None:
    """Write `weights` into the safetensors file `path`, in the order of `specs` (key, shape, dtype), with one weight in
    memory at a time; the library's writer needs all at once."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape, dtype in specs:
        start, end = end, end + bytes_of((name, shape, dtype))
        header[name] = {"dtype": _SAFETENSORS[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, _, _ in specs:
            file.write(np.ascontiguousarray(weights[name]).reshape(-1).view(np.uint8).data)
