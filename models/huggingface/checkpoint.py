"""Reads a checkpoint with checks: the fields of config.json and the weight tensors by name."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.ir.weight_data import Data, load_data
from ...egraph.types import dtypes
from ...egraph.types.dims import Dim
from ...errors import BadModelError, BadWeightsError, TooLargeError, UnsupportedError, warned
from ...plain import as_float
from ..common.packed_weight import PackedWeight

T = TypeVar("T")
NAMED = 12  # largest number of tensor names in one warning


class UnusedWeightsWarning(UserWarning):
    """Warning about tensors of a checkpoint that the config's model class does not use."""


@dataclass(frozen=True)
class Config:
    """The `fields` of a config.json, each checked when it is read. `where`: path for messages.

    Reading raises BadModelError, with the name of the field, for a value of another kind.
    """

    fields: Mapping[str, Any]
    where: str = ""

    def _bad(self, name: str, wanted: str) -> BadModelError:
        return BadModelError(f"config field {name!r} is {str(self.fields.get(name))[:80]!r}, not {wanted}",
                             where=self.where)  # fmt: skip

    def size(self, name: str, default: int | None = None, *, least: int = 1, most: int = 1 << 32) -> int:
        """The field `name` as an integer in least..most; `default` if it is missing.

        Without a default the field is required. Raises TooLargeError above `most`, BadModelError otherwise.
        """
        value = self.fields.get(name)
        if value is None:
            if default is None:
                raise BadModelError(f"config field {name!r} is missing", where=self.where)
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._bad(name, f"a whole number >= {least}")
        if value > most:
            raise TooLargeError(f"config field {name!r} is more than {most}", where=self.where)
        return value

    def texts(self, name: str) -> list[str] | None:
        """The field `name` as a list of strings; None if it is missing or null."""
        value = self.fields.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self._bad(name, "a list of strings")
        return value

    def number(self, name: str, default: float) -> float:
        """The field `name` as a finite number; `default` if it is missing."""
        value = self.fields.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not math.isfinite(found := as_float(value)):
            raise self._bad(name, "a number")
        return found

    def numbers(self, name: str, count: int) -> list[float]:
        """The field `name` as a list of `count` positive finite numbers. Raises BadModelError otherwise."""
        given = self.fields.get(name)
        found = [math.nan if isinstance(v, bool) else as_float(v) for v in given] if isinstance(given, list) else []
        if len(found) != count or not all(0 < v < math.inf for v in found):
            raise self._bad(name, f"a list of {count} positive numbers")
        return found

    def flag(self, name: str, default: bool) -> bool:
        """The field `name` as a boolean; `default` if it is missing."""
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._bad(name, "true or false")
        return value

    def text(self, name: str, default: str) -> str:
        """The field `name` as a string; `default` if it is missing."""
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._bad(name, "a string")
        return value

    def section(self, name: str) -> Config:
        """The field `name`, a nested object, as a `Config`; without fields if it is missing or null."""
        value = self.fields.get(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self._bad(name, "an object")
        return Config(value, f"{self.where} {name}".strip())

    def choice(self, name: str, default: str, known: Sequence[str]) -> str:
        """The field `name` as a string, one of `known`; `default` if it is missing. Raises UnsupportedError
        otherwise."""
        value = self.text(name, default)
        if value not in known:
            raise UnsupportedError(f"{name}={value!r} is not supported", where=self.where,
                                   hint=f"known: {', '.join(known)}")  # fmt: skip
        return value

    def refuse(self, **wanted: Any) -> None:
        """Raise UnsupportedError unless each named field is absent, null or equal to the only supported value."""
        for name, value in wanted.items():
            if self.fields.get(name, value) not in (value, None):
                raise UnsupportedError(f"{name}={self.fields[name]!r} is not supported", where=self.where)

    @property
    def model_class(self) -> str:
        """The model class named by the config (first entry of `architectures`); empty if there is none."""
        return (self.texts("architectures") or [""])[0]

    def by_class(self, known: Mapping[str, T], default: str) -> T:
        """Return the entry of `known` with the longest key that is a suffix of the model class name.

        `default` replaces the class name if the config has none. Raises UnsupportedError if no key is a suffix.
        """
        name = self.model_class or default
        fits = [ending for ending in known if name.endswith(ending)]
        if not fits:
            raise UnsupportedError(
                f"the class {name[:80]!r} has no builder here", where=self.where,
                hint=f"known are classes that end in {', '.join(known)}; others come in as ONNX or torch.export files",
            )  # fmt: skip
        return known[max(fits, key=len)]

    def dtype(self, fallback: str) -> str:
        """Return the dtype of activations: the field `dtype` or `torch_dtype`, else `fallback` (the weights' dtype).

        Raises UnsupportedError for a dtype other than float16, bfloat16, float32 and float64.
        """
        name = self.text("dtype", self.text("torch_dtype", "auto")).removeprefix("torch.")
        if name == "auto":
            return fallback
        if name not in ("float32", "float16", "bfloat16", "float64"):
            raise UnsupportedError(f"activations in {name!r} are not supported", where=self.where)
        return name


@dataclass(frozen=True)
class StackedArray:
    """A lazy array [parts, ...] of parts of equal shape and dtype; the parts are read one by one by `load`."""

    parts: tuple[Data, ...]

    @property
    def sources(self) -> tuple[Data, ...]:
        """The parts."""
        return self.parts

    @property
    def recipe(self) -> tuple[object, ...]:
        """That they are stacked."""
        return ("stacked",)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of parts, then their shape."""
        return (len(self.parts), *self.parts[0].shape)

    @property
    def dtype(self) -> str:
        """Dtype of the parts."""
        return dtypes.name_of(self.parts[0].dtype)

    def load(self) -> np.ndarray[Any, Any]:
        """The parts as one array, read now."""
        whole = np.empty(self.shape, dtypes.numpy_dtype(self.dtype))
        for place, part in zip(whole, self.parts):
            place[...] = load_data(part)
        return whole


@dataclass
class Weights:
    """Tensors `data` of a checkpoint, requested one by one under their Hugging Face names.

    A tensor of the checkpoint that is never requested is an error, or a warning if its name matches a pattern in
    `unused`. A name may have one of `prefixes` in the file (`model.layers…` and `layers…` are the same tensor). With
    `invented` instead of `data`, every requested tensor exists with that dtype. `taken`: shapes of the tensors
    requested so far, by name. `params`: data of the parameters made so far. `where`: path for messages.
    """

    data: Mapping[str, Data]
    prefixes: Sequence[str] = ()
    unused: Mapping[str, str] = field(default_factory=dict)  # regex of names that may stay unrequested -> reason
    aliases: Sequence[tuple[str, str]] = ()  # (suffix, older suffix) of the same tensor
    where: str = ""
    invented: str = ""  # dtype of all tensors of a checkpoint that is still to be written
    params: dict[str, Data] = field(default_factory=dict)
    taken: dict[str, tuple[int, ...]] = field(default_factory=dict)
    stacked: set[str] = field(default_factory=set)  # tensors that are part of a stacked parameter, or packed weights

    def spelled(self, name: str) -> str | None:
        """Name that a tensor has in the file (with a prefix or under an alias); None if it is absent. Raises
        BadWeightsError if two spellings are present."""
        names = [name, *(name.removesuffix(a) + b for a, b in self.aliases if name.endswith(a))]
        found = [p + n for n in names for p in ("", *self.prefixes) if p + n in self.data]
        if len(found) > 1:
            raise BadWeightsError(f"tensor {name!r} is there twice: as {found[0]!r} and {found[1]!r}", where=self.where)
        return found[0] if found else None

    def has(self, name: str) -> bool:
        """Return whether the tensor `name` is present."""
        return bool(self.invented) or self.spelled(name) is not None

    def dtype_of(self, name: str) -> str:
        """Return the dtype of the tensor `name` in the file; float32 if it is absent."""
        spelled = self.spelled(name)
        return self.invented or (dtypes.name_of(self.data[spelled].dtype) if spelled is not None else "float32")

    def take(self, name: str, shape: Sequence[Dim], dtype: str) -> Tensor:
        """Return the parameter `name` cast to `dtype`. Raises BadWeightsError if it is missing or has another shape.

        Raises UnsupportedError if it holds no floats.
        """
        wanted = tuple(int(d) for d in shape)  # type: ignore[arg-type]
        self.taken[name] = wanted
        if self.invented:
            return t.cast(t.param(name, wanted, self.invented), dtype)
        spelled = self.spelled(name)
        if spelled is None:
            raise BadWeightsError(f"tensor {name!r} of shape {list(wanted)} is missing", where=self.where)
        source = self.data[spelled]
        if tuple(source.shape) != wanted:
            raise BadWeightsError(f"tensor {spelled!r} has shape {list(source.shape)}, the config says {list(wanted)}",
                                  where=self.where)  # fmt: skip
        if isinstance(source, PackedWeight):
            self.params |= source.params(spelled)
            self.stacked.add(spelled)
            return t.cast(source.tensor(spelled), dtype)
        stored = dtypes.name_of(source.dtype)
        if not dtypes.is_float(stored):
            raise UnsupportedError(f"tensor {spelled!r} holds {stored}", where=self.where,
                                   hint="a quantized checkpoint needs a quantization_config")  # fmt: skip
        self.params[spelled] = source
        return t.cast(t.param(spelled, wanted, stored), dtype)

    def stack(self, name: str, parts: Sequence[str], shape: Sequence[Dim], dtype: str) -> Tensor:
        """Return the tensors `parts`, each of `shape`, as one parameter `name` [parts, *shape], cast to `dtype`.

        They are read one by one when the parameter is loaded. Raises the errors of `take`, and BadWeightsError if their
        dtypes differ.
        """
        for part in parts:
            self.take(part, shape, dtype)
        wanted = (len(parts), *(int(d) for d in shape))  # type: ignore[arg-type]
        if self.invented:
            return t.cast(t.param(name, wanted, self.invented), dtype)
        spelled = [self.spelled(part) or part for part in parts]
        sources = [self.data[s] for s in spelled]
        for s, source in zip(spelled, sources):
            for taken in source.params(s) if isinstance(source, PackedWeight) else (s,):
                del self.params[taken]
        kinds = {dtypes.name_of(s.dtype) for s in sources}
        if len(kinds) > 1:
            raise BadWeightsError(f"tensors {name!r} have several dtypes: {sorted(kinds)}", where=self.where)
        self.stacked.update(spelled)
        packed = [s for s in sources if isinstance(s, PackedWeight)]
        if len(packed) == len(sources) and len({s.kind for s in packed}) == 1:
            whole = packed[0].stacked(packed, StackedArray)
            self.params |= whole.params(name)
            return t.cast(whole.tensor(name), dtype)
        self.params[name] = StackedArray(tuple(sources))
        return t.cast(t.param(name, wanted, kinds.pop()), dtype)

    def finish(self) -> None:
        """Check for tensors that were never requested.

        Raises BadWeightsError with their names; those that match a pattern in `unused` only cause a warning with the
        reason.
        """
        left: dict[str, list[str]] = {}
        for name in sorted(set(self.data) - set(self.params) - self.stacked):
            why = next((why for pattern, why in self.unused.items() if re.search(pattern, name)), "")
            left.setdefault(why, []).append(name)
        if extra := left.pop("", []):
            raise BadWeightsError(
                f"{len(extra)} tensors have no place in this architecture: "
                + ", ".join(repr(n[:120]) for n in extra[:5])
                + (", …" if len(extra) > 5 else ""),
                where=self.where,
                hint="is model_type in config.json right?",
            )
        for why, names in left.items():
            warned(f"not used, {why}: {listed(names)}", UnusedWeightsWarning)


def listed(names: Sequence[str]) -> str:
    """Tensor names as one line of text. Names that differ only in a layer number are listed once with their count."""
    counts = Counter(re.sub(r"\.\d+\.", ".*.", name[:120]) for name in names)
    shown = [f"{name!r} ×{count}" if count > 1 else repr(name) for name, count in counts.items()]
    return ", ".join(shown[:NAMED]) + (f" and {len(shown) - NAMED} more" if len(shown) > NAMED else "")
