"""Defines the keys of measurements: everything a kernel's time depends on, the key's digest, and the kernel's
compulsory work (flops and bytes)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from numbers import Integral, Real
from typing import TypeAlias

from ...errors import UsageError
from ...wording import with_article
from .device import device_key, driver_key, toolchain_key
from .source import source_hash

__all__ = ["KernelKey", "Plain", "Work", "device_key", "driver_key", "source_hash", "toolchain_key"]

Plain: TypeAlias = "str | int | float | tuple[Plain, ...]"
"""Types of key fields. Floats and bools become texts when a key is made."""

TEXT_FIELDS = ("kernel", "backend", "emitter", "source", "device", "driver", "toolchain")
TUPLE_FIELDS = ("constants", "shapes", "dtypes", "strides", "schedule")
IDENTITY_FIELDS = TEXT_FIELDS + TUPLE_FIELDS
"""The fields hashed into the digest, in this order."""
LABEL_FIELDS = ("name", "family")
"""Descriptive fields, for prediction and display: changing these keeps every measurement."""
FORM = "/"
"""Divides a generated kernel's name from the digest of its form, the kernel's terms without numbers."""

_LONGEST_TEXT = 2000


@dataclass(frozen=True)
class Work:
    """Work that a kernel must do in any implementation.

    `flops` arithmetic operations, `bytes` of memory traffic.

    Raises UsageError if negative or not finite.
    """

    flops: float
    bytes: float

    def __post_init__(self) -> None:
        for label, amount in (("flops", self.flops), ("bytes", self.bytes)):
            if not (math.isfinite(amount) and amount >= 0):
                raise UsageError(f"{label} must be finite and not negative, got {amount!r}", where="Work")


@dataclass(frozen=True)
class KernelKey:
    """Everything a kernel's time depends on.

    Equal keys have equal digests; `name` and `family` are not part of the digest.

    `kernel` is the structural hash of what the kernel computes, without shapes, `name` ends with a generated
    kernel's form (`FORM`), `source` is the `source_hash` of the code, `emitter` the version of the code generator,
    `schedule` the tuning parameters (a mapping is sorted). Lists become tuples, NumPy integers ints, floats and
    bools texts (`float:0x1.8p+0`, `bool:true`); a text above 2,000 characters is replaced by its beginning and its
    hash. Raises UsageError for other types or an empty `kernel`, `backend` or `source`: different codes must not
    share a price.
    """

    kernel: str
    name: str = field(compare=False)
    family: str = field(compare=False)
    backend: str
    emitter: str
    source: str
    constants: tuple[Plain, ...] = ()
    shapes: tuple[Plain, ...] = ()
    dtypes: tuple[Plain, ...] = ()
    strides: tuple[Plain, ...] = ()
    schedule: Plain = ()
    device: str = ""
    driver: str = ""
    toolchain: str = ""

    def __post_init__(self) -> None:
        for label in TEXT_FIELDS + LABEL_FIELDS:
            value = getattr(self, label)
            if not isinstance(value, str):
                raise UsageError(f"key field {label!r} must be a text, got {type(value).__name__}", where="KernelKey")
            object.__setattr__(self, label, _text(value))
        for label in TUPLE_FIELDS:
            object.__setattr__(self, label, canonical(getattr(self, label), label))
        for label in ("kernel", "backend", "source"):
            if not getattr(self, label):
                raise UsageError(f"key field {label!r} is empty", where="KernelKey", hint="give the hash of the code")

    @cached_property
    def columns(self) -> dict[str, str]:
        """The key as texts, as stored in shards: one per field, tuples as compact JSON."""
        texts = {label: getattr(self, label) for label in TEXT_FIELDS + LABEL_FIELDS}
        return texts | {label: _json(getattr(self, label)) for label in TUPLE_FIELDS}

    @cached_property
    def digest(self) -> str:
        """32 hex digits: BLAKE2b of the canonical JSON list of the identity fields."""
        return digest_of([self.columns[label] for label in IDENTITY_FIELDS])

    def with_schedule(self, schedule: Mapping[str, int]) -> KernelKey:
        """The key of the same kernel with another schedule; much cheaper than building a key."""
        made = object.__new__(KernelKey)
        found = canonical(schedule, "schedule")
        kept = {name: value for name, value in self.__dict__.items() if name != "digest"}
        made.__dict__.update({**kept, "schedule": found, "columns": {**self.columns, "schedule": _json(found)}})
        return made


def digest_of(identity: Sequence[str]) -> str:
    """Digest of a key from the texts of its identity fields (in the order of `IDENTITY_FIELDS`)."""
    return blake2b(_json(list(identity)).encode("ascii"), digest_size=16).hexdigest()


def canonical(value: object, label: str = "value") -> Plain:
    """Canonical form of a key field's value, idempotent. Raises UsageError, which names `label`, for unsupported
    types."""
    kind = type(value)
    if kind is int:  # exact types first: checks of abstract types take ten times as long
        return value  # type: ignore[return-value]
    if kind is tuple:
        return tuple([canonical(part, label) for part in value])  # type: ignore[attr-defined]
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool) or type(value).__name__ == "bool":  # NumPy's bool is no subclass of Python's
        return f"bool:{str(bool(value)).lower()}"
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return f"float:{float(value).hex()}"
    if isinstance(value, Mapping):
        return tuple((_text(str(name)), canonical(part, label)) for name, part in sorted(value.items()))
    if isinstance(value, Sequence):
        return tuple(canonical(part, label) for part in value)
    raise UsageError(
        f"key field {label!r} cannot hold {with_article(type(value).__name__)}",
        where="KernelKey",
        hint="use texts, numbers, and sequences or mappings of them",
    )


def _text(value: str) -> str:
    """`value` as valid UTF-8 (lone surrogates escaped); a very long text is shortened to its beginning and hash."""
    if not value.isascii():
        value = value.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(value) <= _LONGEST_TEXT:
        return value
    return f"{value[:64]}...{blake2b(value.encode('utf-8'), digest_size=16).hexdigest()}"


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
