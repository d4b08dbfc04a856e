"""Reads Parquet content of bounded size once it is decoded.

A text or number that occurs in many rows is stored once: 20 KB of a file can be terabytes of rows. So the headers of
the pages, which say how many values follow, are read first, and texts are read as dictionaries (distinct texts and an
index per row) and measured before the rows are made. The headers are read here because pyarrow ends the process
when it is asked for the columns of some malformed ones.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

#: Encodings of pages in which each distinct value is whole: PLAIN, PLAIN_DICTIONARY, RLE, BIT_PACKED, RLE_DICTIONARY.
#: (Others store what a text shares with the last one as a number.)
WHOLE = {0, 2, 3, 4, 8}
BYTES = 6  # physical type of texts
NUMBER_BYTES = 8
MAX_DEPTH = 16  # of structures in structures
MAX_FOOTER_BYTES, MAX_PAGES = 16 << 20, 200_000


class TooLarge(ValueError):
    """Raised for content that would be larger than the caller allows."""


@dataclass
class Stored:
    """Contents of the pages of a column: number of values, bytes before compression, and whether values are whole."""

    text: bool
    values: int = 0
    nbytes: int = 0
    whole: bool = True


def read(
    content: bytes, schema: pa.Schema, most: int, *, checksums: bool = True, optional: Collection[str] = ()
) -> pa.Table:
    """The columns of `schema` in a Parquet file given as bytes; others are ignored. `checksums`: verify those of pages.
    `optional`: names of columns that the file may lack; the table lacks them then, too.

    Raises TooLarge if the rows would take more than `most` bytes, KeyError for columns that are missing or of another
    type, ValueError for malformed headers, and the errors of pyarrow for other malformed content.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(io.BytesIO(content), page_checksum_verification=checksums)
    found = file.schema_arrow
    schema = pa.schema([f for f in schema if f.name in found.names or f.name not in optional])
    for wanted in schema:
        at = found.get_field_index(wanted.name)
        if at < 0 or found.field(at).type != wanted.type:
            raise KeyError(wanted.name)
    columns, texts = _columns(content), None
    if sum(c.values * (c.nbytes if c.text else NUMBER_BYTES) for c in columns) > most:  # a text has all bytes at most
        if sum(c.nbytes + c.values * NUMBER_BYTES for c in columns) > most or not all(
            c.whole for c in columns if c.text
        ):
            raise TooLarge(f"the file holds more than {most} bytes")
        texts = [wanted.name for wanted in schema if pa.types.is_string(wanted.type)]
        file = pq.ParquetFile(io.BytesIO(content), page_checksum_verification=checksums, read_dictionary=texts)
    table = file.read(columns=schema.names, use_threads=False).select(schema.names)  # threads cost more than this
    if texts and _decoded_bytes(table) > most:
        raise TooLarge(f"the rows take more than {most} bytes")
    return table if table.schema.equals(schema) else table.cast(schema)


def _decoded_bytes(table: pa.Table) -> int:
    """Bytes of the rows of a table once its dictionaries of texts are decoded."""
    import pyarrow as pa
    import pyarrow.compute as pc

    total = 0
    for column in table.columns:
        for chunk in column.chunks:
            if pa.types.is_dictionary(chunk.type):
                lengths = pc.binary_length(chunk.dictionary)
                total += pc.sum(pc.cast(lengths, pa.int64()).take(chunk.indices)).as_py() or 0
            else:
                total += chunk.nbytes
    return total


# ---------------------------------------------------------------- headers
# Thrift's compact protocol: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
def _columns(content: bytes) -> list[Stored]:
    """The columns of all row groups, by the headers of their pages. Raises ValueError if these are malformed."""
    try:
        size = int.from_bytes(content[-8:-4], "little")
        if size > MAX_FOOTER_BYTES:
            raise TooLarge(f"the footer has {size} bytes")
        groups = _structure(content, len(content) - 8 - size, MAX_DEPTH)[0][4]
        pages = itertools.count()
        return [_column(content, chunk[3], pages) for group in groups for chunk in group[1]]
    except (LookupError, TypeError, AttributeError) as error:  # a field of another kind
        raise ValueError(f"malformed header: {error}") from None


def _column(content: bytes, about: dict[int, Any], pages: Iterator[int]) -> Stored:
    """The pages of a column chunk, whose metadata are given by the numbers of their fields. `pages` counts them."""
    found = Stored(about[1] == BYTES)
    at = min(about[9], about.get(11) or about[9])
    end = at + about[7]
    while at < end:
        if next(pages) >= MAX_PAGES:
            raise TooLarge(f"the file has more than {MAX_PAGES} pages")
        page, at = _structure(content, at, MAX_DEPTH)
        header = page.get(5) or page.get(8) or {}
        found.values += header.get(1, 0)
        found.nbytes += page[2]
        found.whole &= header.get(2 if 5 in page else 4, 0) in WHOLE
        if page[2] < 0 or page[3] < 0 or header.get(1, 0) < 0:
            raise ValueError("a page of a negative size")
        at += page[3]
    return found


def _structure(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """(fields by number, end) of the structure at `at`. Raises LookupError beyond the data."""
    if at < 0 or not depth:
        raise LookupError("no structure")
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        kind = head & 15
        if kind in (5, 6) and (byte := data[at]) < 128:  # most fields: a small integer
            fields[number] = (byte >> 1) ^ -(byte & 1)
            at += 1
        elif kind == 8 and (byte := data[at]) < 128:
            at += 1 + byte
        else:
            fields[number], at = _value(data, at, kind, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    """(value, end) of a field of the type `kind`; None for texts, floats and maps, which nobody asks for."""
    if not depth:
        raise LookupError("nested too deeply")
    if kind in (4, 5, 6):
        return _integer(data, at)
    if kind in (1, 2):
        return kind == 1, at
    if kind == 8:
        size, at = _natural(data, at)
        return None, at + size
    if kind == 12:
        return _structure(data, at, depth - 1)
    if kind in (9, 10):
        count, inner, at = data[at] >> 4, data[at] & 15, at + 1
        if count == 15:
            count, at = _natural(data, at)
        found = []
        for _ in range(count):
            item, at = _value(data, at, inner, depth - 1) if inner > 2 else (None, at + 1)
            if at > len(data):
                raise LookupError("a list beyond the file")
            found.append(item)
        return found, at
    if kind in (3, 7):
        return None, at + (1 if kind == 3 else 8)
    raise LookupError(f"a field of type {kind}")


def _natural(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128:
            return found, at
        shift += 7
    raise LookupError("a number of too many digits")


def _integer(data: bytes, at: int) -> tuple[int, int]:
    found, at = _natural(data, at)
    return (found >> 1) ^ -(found & 1), at


__all__ = ["TooLarge", "read"]
