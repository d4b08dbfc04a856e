"""Parses untrusted files: bounded reading, strict JSON, and decoding into declared types with located errors.

`decode` takes the wanted type as standard annotations and returns a value of that type or raises `Malformed`:

    Size = Annotated[int, Within(0, 1 << 62)]
    decode(dict[str, tuple[str, list[Size]]], strict_json(text))
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import types
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from io import BufferedReader
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


class Malformed(ValueError):
    """Raised for data that do not match the declared type.

    The message begins with the location: `inputs[3][1]: a whole number is wanted, not 'x'`.
    """


@dataclass(frozen=True)
class Within:
    """Inclusive bounds of a number, for `Annotated`."""

    low: float
    high: float


Natural = Annotated[int, Within(0, 1 << 62)]


# ---------------------------------------------------------------- reading
def is_file(path: Path) -> bool:
    """Whether a path names a regular file.

    False for names that no file can have (too long, a NUL byte) and for files in folders without access.
    """
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def file_identity(file: Path | int) -> tuple[int, ...]:
    """Device, inode, size in bytes and time of the last change (ns) of a file (path or descriptor).

    Equal as long as the file is neither replaced nor written. Two writes within a few milliseconds may have the same
    time. Raises OSError if the file is missing or not accessible.
    """
    facts = os.stat(file)
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


def read_bytes(path: Path, most: int) -> bytes:
    """Content of a regular file of at most `most` bytes; links are followed.

    Raises OSError if it cannot be read, Malformed if it is another kind of file (a pipe, a device) or too large.
    """
    with opened(path, most) as file:
        size = min(most, os.fstat(file.fileno()).st_size)
        found = file.read(size + 1)  # memory for that is taken at once
        if len(found) > size:
            found += file.read(most + 1 - len(found))
    if len(found) > most:  # it has grown
        raise Malformed(f"{path.name} has more than {most} bytes")
    return found


def opened(path: Path, most: int) -> BufferedReader:
    """A regular file of at most `most` bytes, opened for reading; links are followed, and nothing is waited for.

    Raises OSError if it cannot be opened, Malformed if it is another kind of file (a pipe, a device) or too large.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # opening a pipe must not block
    file = open(os.open(path, flags), "rb")  # noqa: SIM115
    facts = os.fstat(file.fileno())
    if stat.S_ISREG(facts.st_mode) and facts.st_size <= most:
        return file
    file.close()
    kind = "has more than {} bytes" if stat.S_ISREG(facts.st_mode) else "is not a plain file"
    raise Malformed(f"{path.name} {kind.format(most)}")


def file_digest(path: Path, most: int) -> str:
    """SHA-256, in hex, of a regular file of at most `most` bytes. Raises as `opened` does."""
    with opened(path, most) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def strict_json(text: bytes | str) -> Any:
    """Parsed JSON.

    Raises ValueError for duplicate keys, NaN or Infinity literals, over-long numbers, or too deep nesting.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:200]!r} occurs twice")
        found[key] = value
    return found


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def as_float(value: Any) -> float:
    """A real number as a float; nan for other values, and for numbers beyond the range of floats."""
    try:
        return float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        return math.nan


def as_int(text: str) -> int | None:
    """The integer that a text of an optional minus and 1 to 18 ASCII digits spells; None for other texts."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdecimal() and len(digits) <= 18 else None


# ---------------------------------------------------------------- decoding
def decode(kind: Any, value: Any, place: str = "") -> Any:
    """Check parsed JSON against a type; returns the value of type `kind`. Raises Malformed, which names the location
    `place`, for anything else.

    Types: bool, int, float (finite; integers accepted), str, None, Any, Literal, `A | B`, Annotated with `Within`,
    list[T], tuple[A, B], tuple[T, ...], dict[str, T], and dataclasses of these (objects; unknown keys are ignored).
    """
    return _decoder(kind)(value, place)


Decoder = Callable[[Any, str], Any]
_NAMES: dict[Any, str] = {
    bool: "true or false", int: "a whole number", float: "a finite number", str: "a text", type(None): "null",
}  # fmt: skip


def _wrong(wanted: str, value: Any, place: str) -> Malformed:
    try:
        shown = repr(value)
    except (RecursionError, ValueError):  # nested deeply, or a number of thousands of digits
        shown = f"a {type(value).__name__}"
    return Malformed(f"{place or 'the value'}: {wanted} is wanted, not {shown[:80]}")


@cache
def _decoder(kind: Any) -> Decoder:
    """The decoding function of a type."""
    if kind is Any:
        return lambda value, place: value
    if kind in _NAMES:
        return _scalar(kind)
    if is_dataclass(kind):
        return _record(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _bounded(_decoder(arguments[0]), arguments[1])
    if origin is Literal:
        return _literal(arguments)
    if origin in (Union, types.UnionType):
        return _union([_decoder(a) for a in arguments])
    if origin is list or (origin is tuple and arguments[-1] is ...):
        return _sequence(origin, _decoder(arguments[0]))
    if origin is tuple:
        return _tuple([_decoder(a) for a in arguments])
    if origin is dict and arguments[0] is str:
        return _mapping(_decoder(arguments[1]))
    raise TypeError(f"no decoder for {kind}")


def _scalar(kind: Any) -> Decoder:
    def scalar(value: Any, place: str) -> Any:
        if type(value) is kind and (kind is not float or math.isfinite(value)):
            return value
        if kind is float and type(value) is int and abs(value) < 1 << 1000:
            return float(value)
        raise _wrong(_NAMES[kind], value, place)

    return scalar


def _bounded(inner: Decoder, bounds: Within) -> Decoder:
    def bounded(value: Any, place: str) -> Any:
        found = inner(value, place)
        if not bounds.low <= found <= bounds.high:
            raise _wrong(f"a number within {bounds.low}..{bounds.high}", value, place)
        return found

    return bounded


def _literal(choices: tuple[Any, ...]) -> Decoder:
    def literal(value: Any, place: str) -> Any:
        if not any(type(value) is type(c) and value == c for c in choices):
            raise _wrong(" or ".join(map(repr, choices)), value, place)
        return value

    return literal


def _union(kinds: list[Decoder]) -> Decoder:
    def union(value: Any, place: str) -> Any:
        problems = []
        for one in kinds:
            try:
                return one(value, place)
            except Malformed as problem:
                problems.append(problem)
        raise problems[0]

    return union


def _sequence(made: Any, inner: Decoder) -> Decoder:
    def sequence(value: Any, place: str) -> Any:
        if not isinstance(value, list):
            raise _wrong("a list", value, place)
        return made([inner(item, f"{place}[{i}]") for i, item in enumerate(value)])

    return sequence


def _tuple(kinds: list[Decoder]) -> Decoder:
    def fixed(value: Any, place: str) -> Any:
        if not isinstance(value, list) or len(value) != len(kinds):
            raise _wrong(f"a list of {len(kinds)}", value, place)
        return tuple(one(item, f"{place}[{i}]") for i, (one, item) in enumerate(zip(kinds, value, strict=True)))

    return fixed


def _mapping(inner: Decoder) -> Decoder:
    def mapping(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong("an object", value, place)
        return {k: inner(v, f"{place}.{k[:80]}" if place else k[:80]) for k, v in value.items()}

    return mapping


def _record(kind: Any) -> Decoder:
    hints = get_type_hints(kind, include_extras=True)
    members = [(f.name, _decoder(hints[f.name]), f.default is f.default_factory is MISSING) for f in fields(kind)]

    def record(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong("an object", value, place)
        if missing := [name for name, _, needed in members if needed and name not in value]:
            raise Malformed(f"{place or 'the object'}: it has no {missing[0]!r}")
        return kind(**{
            name: one(value[name], f"{place}.{name}" if place else name) for name, one, _ in members if name in value
        })  # fmt: skip

    return record


__all__ = [
    "Malformed",
    "Natural",
    "Within",
    "decode",
    "file_digest",
    "file_identity",
    "is_file",
    "opened",
    "read_bytes",
    "strict_json",
]
