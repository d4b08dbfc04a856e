"""Columns of numbers and texts as one compact byte string, the data format of the HTML viewer.

Layout: the magic bytes, the length of the header as uint32, the header as UTF-8 JSON, padding to a multiple of 8, then
the columns one after another, each starting at a multiple of 8. All numbers are little-endian. A column of texts is
stored as the distinct texts and one code per row. The header maps a column's name to its parts: [dtype, offset from the
first column, count]. `web/data.js` reads this format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadModelError

MAGIC = b"TGC1"
ALIGN = 8
DTYPES = ("uint8", "uint16", "uint32", "int32", "float32", "float64")

Column = npt.NDArray[Any] | Sequence[str]


def _number_parts(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values in a dtype of the format: bool as uint8, integers as int32, others as float64."""
    if values.dtype.name in DTYPES:
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8)
    return values.astype(np.int32 if values.dtype.kind in "iu" else np.float64)


def codes_of(texts: Sequence[str]) -> tuple[list[str], npt.NDArray[Any]]:
    """Encode texts as (distinct texts in order of first occurrence, index of each text in that list, in the smallest
    unsigned dtype)."""
    number: dict[str, int] = {}
    codes = [number.setdefault(t, len(number)) for t in texts]
    dtype = np.uint8 if len(number) <= 1 << 8 else np.uint16 if len(number) <= 1 << 16 else np.uint32
    return list(number), np.array(codes, dtype)


def _clean(text: str) -> str:
    """The text without lone surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode("utf-8")


def encode(columns: Mapping[str, Column], meta: Mapping[str, Any]) -> bytes:
    """Encode columns of numbers and texts, and `meta` as JSON, into one byte string.

    Lone surrogates in texts become question marks.
    """
    header: dict[str, Any] = {"meta": meta, "columns": {}}
    parts: list[bytes] = []
    at = 0

    def add(raw: bytes) -> int:
        nonlocal at
        begin = at
        parts.append(raw + b"\0" * (-len(raw) % ALIGN))
        at += len(parts[-1])
        return begin

    for name, column in columns.items():
        if isinstance(column, np.ndarray):
            values = np.ascontiguousarray(_number_parts(column))
            header["columns"][name] = [values.dtype.name, add(values.astype(values.dtype.newbyteorder("<")).tobytes()), values.size]  # fmt: skip
        else:
            distinct, codes = codes_of([_clean(t) for t in column])
            raw = [t.encode() for t in distinct]
            ends = np.cumsum([len(r) for r in raw], dtype=np.uint32) if raw else np.zeros(0, np.uint32)
            header["columns"][name] = [
                "text", [codes.dtype.name, add(codes.tobytes()), codes.size],
                ["uint32", add(ends.tobytes()), len(raw)], ["uint8", add(b"".join(raw)), sum(map(len, raw))],
            ]  # fmt: skip
    text = json.dumps(header, ensure_ascii=True, allow_nan=False).encode()
    start = MAGIC + len(text).to_bytes(4, "little") + text
    return b"".join([start, b"\0" * (-len(start) % ALIGN), *parts])


def decode(data: bytes) -> tuple[dict[str, npt.NDArray[Any] | list[str]], dict[str, Any]]:
    """Columns and `meta` of a byte string that `encode` made, as (columns, meta).

    Raises BadModelError for other bytes.
    """
    if data[:4] != MAGIC:
        raise BadModelError("the bytes are not column data", where="columns", hint="use data written by encode")
    length = int.from_bytes(data[4:8], "little")
    header = json.loads(data[8 : 8 + length])
    first = 8 + length + (-(8 + length) % ALIGN)

    def numbers(part: Sequence[Any]) -> npt.NDArray[Any]:
        dtype, offset, count = part
        return np.frombuffer(data, np.dtype(dtype).newbyteorder("<"), count, first + offset)

    found: dict[str, npt.NDArray[Any] | list[str]] = {}
    for name, part in header["columns"].items():
        if part[0] != "text":
            found[name] = numbers(part)
            continue
        codes, ends, raw = numbers(part[1]), numbers(part[2]).tolist(), numbers(part[3]).tobytes()
        texts = [raw[a:b].decode() for a, b in zip([0, *ends], ends)]
        found[name] = [texts[c] for c in codes.tolist()]
    return found, dict(header["meta"])


__all__ = ["Column", "decode", "encode"]
