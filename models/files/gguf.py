"""Reads GGUF files: checked header, metadata, and tensors as lazy arrays over the mapped file. Versions 2 and 3,
little-endian.

A file is untrusted: every count, length, type, shape and offset is checked against the bytes that there are before
anything is allocated. Nothing in a file is executed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...egraph.ir.file_array import FileArray
from ...egraph.types import dtypes
from ...errors import BadModelError, BadWeightsError, TooLargeError, UnsupportedError
from ...plain import Malformed, file_identity, opened

MAGIC = b"GGUF"
MAX_RANK, MAX_NAME, MAX_TENSORS, MAX_SIZE = 4, 1 << 16, 1 << 20, 1 << 40
MAX_TEXT, MAX_TOKEN = 1 << 24, 1 << 10  # bytes of a text, and of one of an array that is kept
MAX_TEXTS, MAX_KEPT = 1 << 22, 1 << 21  # texts of one array, and values of one that is kept
MAX_VALUES, MAX_LIST = 1 << 16, 1 << 16  # metadata values, and numbers that are kept of one array
MAX_READ = 1 << 26  # bytes of metadata and tensor entries that are read, not skipped
ALIGNMENT = 32  # of tensor data, unless `general.alignment` says otherwise

#: Type of a metadata value -> struct format.
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9


@dataclass(frozen=True)
class GgufEncoding:
    """Storage format of a tensor's numbers: blocks of `nbytes` bytes with `numbers` numbers each.

    `dtype` of plain numbers; empty for quantized blocks.
    """

    name: str
    numbers: int
    nbytes: int
    dtype: str = ""


#: Type of a tensor in the file -> encoding.
ENCODINGS = {
    0: GgufEncoding("F32", 1, 4, "float32"), 1: GgufEncoding("F16", 1, 2, "float16"), 30: GgufEncoding("BF16", 1, 2, "bfloat16"),
    2: GgufEncoding("Q4_0", 32, 18), 3: GgufEncoding("Q4_1", 32, 20), 6: GgufEncoding("Q5_0", 32, 22),
    7: GgufEncoding("Q5_1", 32, 24), 8: GgufEncoding("Q8_0", 32, 34), 10: GgufEncoding("Q2_K", 256, 84),
    11: GgufEncoding("Q3_K", 256, 110), 12: GgufEncoding("Q4_K", 256, 144), 13: GgufEncoding("Q5_K", 256, 176),
    14: GgufEncoding("Q6_K", 256, 210), 20: GgufEncoding("IQ4_NL", 32, 18), 23: GgufEncoding("IQ4_XS", 256, 136),
    39: GgufEncoding("MXFP4", 32, 17),
}  # fmt: skip
#: Types that the format has and this package does not read.
FOREIGN = {9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS",
           17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 24: "I8", 25: "I16",
           26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4", 41: "Q1_0"}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file.

    shape: sizes, the last axis contiguous · data: the numbers, or for blocks their bytes [..., bytes of a row].
    """

    shape: tuple[int, ...]
    encoding: GgufEncoding
    data: FileArray


@dataclass(frozen=True)
class SkippedArray:
    """A metadata value that was not asked for: an array of `count` items. No number, so that none is taken for it."""

    count: int


@dataclass(frozen=True)
class GgufFile:
    """Metadata and tensors of a file by name.

    Arrays of texts, and arrays of more than `MAX_LIST` numbers, are `SkippedArray` unless they were asked for.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]


class _Header:
    """A cursor over the bytes of a header. Reads, because a mapped file that is cut short ends the process."""

    def __init__(self, path: Path, file: BinaryIO, kept: Collection[str]) -> None:
        self.path, self.file, self.at, self.kept = path, file, 0, kept
        self.identity = file_identity(file.fileno())
        self.size = os.fstat(file.fileno()).st_size
        self.left = MAX_READ

    def bad(self, text: str) -> BadModelError:
        return BadModelError(text, where=str(self.path))

    def take(self, size: int, what: str) -> bytes:
        """The next `size` bytes. Raises BadModelError, which names `what`, if the file is too short."""
        found = self.file.read(size) if size <= self.size - self.at else b""
        if len(found) != size:
            raise self.bad(f"the file ends inside {what}, at byte {self.at}")
        self.at += size
        self.spend(size)
        return found

    def spend(self, count: int) -> None:
        """Count bytes that are read. Raises TooLargeError beyond MAX_READ: a large file may take no space on a disk."""
        self.left -= count
        if self.left < 0:
            raise TooLargeError(f"metadata and tensor entries have more than {MAX_READ} bytes", where=str(self.path))

    def number(self, form: str, what: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form), what))[0]

    def text(self, what: str, most: int) -> str:
        size = self.number("<Q", what)
        if size > most:
            raise self.bad(f"{what} has a stated size of {size} bytes, more than {most}")
        try:
            return self.take(size, what).decode("utf-8")
        except UnicodeDecodeError:
            raise self.bad(f"{what} is not UTF-8") from None

    def count(self, what: str, least: int) -> int:
        """A number of items of at least `least` bytes each.

        Raises BadModelError, which names `what`, if the file cannot hold them.
        """
        found = int(self.number("<Q", what))
        if found > (self.size - self.at) // least:
            raise self.bad(f"{found} {what} do not fit into the file")
        return found

    def value(self, kind: int, name: str) -> Any:
        """A metadata value; `SkippedArray` for an array of texts or of many numbers unless its name is in `kept`.

        Raises BadModelError for a malformed value, TooLargeError for too many texts.
        """
        if kind in _SCALARS:
            found = self.number(_SCALARS[kind], name)
            return bool(found) if kind == _BOOL else found
        if kind == _STRING:
            return self.text(f"the value of {name!r}", MAX_TEXT)
        if kind != _ARRAY:
            raise self.bad(f"{name!r} has the unknown type {kind}")
        inner = self.number("<I", name)
        if inner == _STRING:
            count = self.count(f"texts of {name!r}", 8)
            kept = name in self.kept
            if count > (most := MAX_KEPT if kept else MAX_TEXTS):
                raise TooLargeError(f"{count} texts of {name!r}, more than {most}", where=str(self.path))
            if kept:
                return [self.text(f"a text of {name!r}", MAX_TOKEN) for _ in range(count)]
            for _ in range(count):
                self.skip(self.number("<Q", name), name)
            return SkippedArray(count)
        if inner not in _SCALARS:
            raise self.bad(f"{name!r} is an array of the type {inner}")
        form = _SCALARS[inner]
        count = self.count(f"numbers of {name!r}", struct.calcsize(form))
        if count > (MAX_KEPT if name in self.kept else MAX_LIST):
            self.skip(count * struct.calcsize(form), name)
            return SkippedArray(count)
        return np.frombuffer(self.take(count * struct.calcsize(form), name), np.dtype(form)).tolist()

    def skip(self, size: int, what: str) -> None:
        if size > self.size - self.at:
            raise self.bad(f"the file ends inside {what}, at byte {self.at}")
        self.at = self.file.seek(size, os.SEEK_CUR)


def read_gguf(path: Path | str, kept: Collection[str] = ()) -> GgufFile:
    """Return metadata and tensors of a file; no tensor data is read. `kept`: names of long arrays to keep.

    Raises BadModelError for a malformed header, BadWeightsError for tensors outside the file or that overlap,
    TooLargeError for sizes beyond limits, UnsupportedError for other versions and encodings.
    """
    path = Path(path)
    try:
        with opened(path, 1 << 62) as file:
            header = _Header(path, file, kept)
            if header.size < 24:
                raise BadModelError(f"{path.name} has {header.size} bytes, too few for a header", where=str(path))
            found = _read(header)
            if file_identity(file.fileno()) != header.identity:
                raise BadModelError(f"{path.name} was written while it was read", where=str(path))
            return found
    except Malformed as error:
        raise BadModelError(str(error), where=str(path)) from None
    except OSError as error:
        raise BadModelError(f"{path.name} cannot be read: {error}", where=str(path)) from None


def _read(header: _Header) -> GgufFile:
    """Metadata and tensors of an open file; errors as of `read_gguf`."""
    path = header.path
    if header.take(4, "the magic") != MAGIC:
        raise BadModelError(f"{path.name} does not begin with GGUF", where=str(path))
    version = header.number("<I", "the version")
    if version not in (2, 3):
        raise UnsupportedError(
            f"GGUF version {version} is not supported", where=str(path), hint="2 and 3, little-endian, are"
        )
    tensors = header.count("tensors", 24)
    if tensors > MAX_TENSORS:
        raise TooLargeError(f"{tensors} tensors, more than {MAX_TENSORS}", where=str(path))
    metadata: dict[str, Any] = {}
    values = header.count("metadata values", 13)
    if values > MAX_VALUES:
        raise TooLargeError(f"{values} metadata values, more than {MAX_VALUES}", where=str(path))
    for _ in range(values):
        name = header.text("a metadata name", MAX_NAME)
        if name in metadata:
            raise header.bad(f"{name[:200]!r} is there twice")
        metadata[name] = header.value(header.number("<I", name), name[:200])
    return GgufFile(path, metadata, _tensors(header, tensors, metadata))


def _tensors(header: _Header, count: int, metadata: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """The tensors' entries, checked against the file's size."""
    found: dict[str, tuple[tuple[int, ...], GgufEncoding, int]] = {}
    foreign: dict[str, int] = {}
    for _ in range(count):
        name = header.text("a tensor name", MAX_NAME)
        if name in found:
            raise header.bad(f"tensor {name[:200]!r} is there twice")
        rank = header.number("<I", name)
        if rank > MAX_RANK:
            raise header.bad(f"tensor {name[:200]!r} has {rank} axes, more than {MAX_RANK}")
        shape = tuple(header.number("<Q", name) for _ in range(rank))[::-1]
        kind, offset = header.number("<I", name), header.number("<Q", name)
        if kind in FOREIGN:
            foreign[FOREIGN[kind]] = foreign.get(FOREIGN[kind], 0) + 1
        elif kind not in ENCODINGS:
            raise header.bad(f"tensor {name[:200]!r} has the unknown type {kind}")
        found[name] = shape, ENCODINGS.get(kind, ENCODINGS[0]), offset
    if foreign:
        raise UnsupportedError("encodings of tensors that are not supported", missing=foreign, where=str(header.path),
                               hint=f"known: {', '.join(e.name for e in ENCODINGS.values())}")  # fmt: skip
    aligned = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(aligned, int) or aligned < 1 or aligned & (aligned - 1) or aligned > 1 << 20:
        raise header.bad(f"general.alignment is {str(aligned)[:80]}, not a power of two")
    start = -(-header.at // aligned) * aligned
    stored = {name: _stored(header, name, *entry, start, aligned) for name, entry in found.items()}
    _refuse_overlaps(stored, header.path)
    return stored


def _refuse_overlaps(stored: Mapping[str, StoredTensor], path: Path) -> None:
    """Raise BadWeightsError if a byte of the file belongs to two tensors."""
    end, before = 0, ""
    for name, data in sorted(((n, t.data) for n, t in stored.items() if t.data.nbytes), key=lambda one: one[1].offset):
        if data.offset < end:
            raise BadWeightsError(f"tensor {name[:200]!r} overlaps {before[:200]!r}", where=str(path))
        end, before = data.offset + data.nbytes, name


def _stored(
    header: _Header,
    name: str,
    shape: tuple[int, ...],
    encoding: GgufEncoding,
    offset: int,
    start: int,
    aligned: int,
) -> StoredTensor:
    """One tensor's entry. `start`: offset of the tensor data; `offset`: of the tensor in it, a multiple of `aligned`.

    Raises BadWeightsError if its numbers do not fill blocks or do not lie inside the file, TooLargeError beyond
    MAX_SIZE.
    """
    path, size = header.path, header.size
    shown, row = repr(name[:200]), shape[-1] if shape else 1
    if prod(shape) > MAX_SIZE or any(d > MAX_SIZE for d in shape):
        raise TooLargeError(f"tensor {shown} of shape {list(shape)} is too large", where=str(path))
    if row % encoding.numbers:
        raise BadWeightsError(
            f"tensor {shown}: rows of {row} numbers are no multiple of {encoding.numbers} ({encoding.name})",
            where=str(path),
        )
    if not encoding.dtype and not prod(shape):
        raise BadWeightsError(f"tensor {shown} of shape {list(shape)} has no blocks ({encoding.name})", where=str(path))
    nbytes = prod(shape) // encoding.numbers * encoding.nbytes
    if offset % aligned or start + offset + nbytes > size:
        raise BadWeightsError(
            f"tensor {shown} lies at {offset}, {nbytes} bytes, outside the file of {size}", where=str(path)
        )
    kind = encoding.dtype or "uint8"
    own = shape if encoding.dtype else (*shape[:-1], row // encoding.numbers * encoding.nbytes)
    assert prod(own) * dtypes.itemsize(kind) == nbytes
    return StoredTensor(shape, encoding, FileArray(path, start + offset, own, kind, header.identity))


__all__ = ["ENCODINGS", "GgufEncoding", "GgufFile", "SkippedArray", "StoredTensor", "read_gguf"]
