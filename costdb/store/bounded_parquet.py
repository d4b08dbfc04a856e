"""Reads Parquet content of bounded size once it is decoded.

A text that occurs in many rows is stored once: 20 KB of a file can be terabytes of rows. So texts are read as
dictionaries (distinct texts and an index per row) and measured before the rows are made.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

#: Encodings of pages that hold each distinct text whole. (DELTA_BYTE_ARRAY stores what a text shares with the last one
#: as a number.)
ENCODINGS = {"PLAIN", "PLAIN_DICTIONARY", "RLE", "RLE_DICTIONARY", "BIT_PACKED"}
NUMBER_BYTES = 8


class TooLarge(ValueError):
    """Raised for content that would be larger than the caller allows."""


def read(content: bytes, schema: pa.Schema, most: int, *, checksums: bool = True) -> pa.Table:
    """The columns of `schema` in a Parquet file given as bytes; others are ignored. `checksums`: verify those of pages.

    Raises TooLarge if the rows would take more than `most` bytes, KeyError for columns that are missing or of another
    type, and the errors of pyarrow for malformed content.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(io.BytesIO(content), page_checksum_verification=checksums)
    found = file.schema_arrow
    for wanted in schema:
        at = found.get_field_index(wanted.name)
        if at < 0 or found.field(at).type != wanted.type:
            raise KeyError(wanted.name)
    texts = None
    if _most_bytes(file) > most:
        _refuse_expanding(file, most)
        texts = [wanted.name for wanted in schema if pa.types.is_string(wanted.type)]
        file = pq.ParquetFile(io.BytesIO(content), page_checksum_verification=checksums, read_dictionary=texts)
    table = file.read(columns=schema.names, use_threads=False).select(schema.names)  # threads cost more than this
    if texts and _decoded_bytes(table) > most:
        raise TooLarge(f"the rows take more than {most} bytes")
    return table if table.schema.equals(schema) else table.cast(schema)


def _chunks(file: pq.ParquetFile) -> list[pq.ColumnChunkMetaData]:
    groups = (file.metadata.row_group(index) for index in range(file.metadata.num_row_groups))
    chunks = [group.column(index) for group in groups for index in range(group.num_columns)]
    if any(chunk.total_uncompressed_size < 0 or chunk.num_values < 0 for chunk in chunks):
        raise TooLarge("the size of a column is negative")
    return chunks


def _most_bytes(file: pq.ParquetFile) -> int:
    """Bytes that the rows take at most: each text can be as long as all pages of its column."""
    return sum(
        c.num_values * (c.total_uncompressed_size if c.physical_type == "BYTE_ARRAY" else NUMBER_BYTES)
        for c in _chunks(file)
    )


def _refuse_expanding(file: pq.ParquetFile, most: int) -> None:
    """Raise TooLarge for content that is larger than `most` even with each distinct text once, or whose texts may share
    their beginnings."""
    chunks = _chunks(file)
    if sum(c.total_uncompressed_size + c.num_values * NUMBER_BYTES for c in chunks) > most:
        raise TooLarge(f"the file holds more than {most} bytes")
    if any(c.physical_type == "BYTE_ARRAY" and not ENCODINGS.issuperset(c.encodings) for c in chunks):
        raise TooLarge("texts are stored by their differences")


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


__all__ = ["TooLarge", "read"]
