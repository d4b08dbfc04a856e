"""What a compiled kernel uses, read from its binary: an ELF file whose section `.nv.info` lists attributes of functions.

An attribute is a form (1 byte), a number (1 byte) and a size or value (2 bytes); those of form 4 are followed by so many bytes,
here a symbol's index and a count. (Seen in binaries of sm_80 to sm_90; `cuobjdump --dump-resource-usage` shows the same.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

SIZED = 4  # the form of attributes with bytes of their own
FRAME, REGISTERS = 0x11, 0x2F  # the numbers of those that are read


def resources(binary: bytes) -> tuple[int, int]:
    """(registers, bytes of stack that a thread spills to), the most of any function; ValueError if it is no such binary."""
    try:
        found = [pair for start, size in _sections(binary, b".nv.info") for pair in _attributes(binary, start, size)]
    except (struct.error, IndexError) as error:
        raise ValueError(f"not a compiled kernel: {error}") from None
    most = {number: max((v for n, v in found if n == number), default=0) for number in (REGISTERS, FRAME)}
    return most[REGISTERS], most[FRAME]


def _sections(binary: bytes, wanted: bytes) -> Iterator[tuple[int, int]]:
    """(start, bytes) of the sections of a name."""
    if binary[:5] != b"\x7fELF\x02":
        raise ValueError("not a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", binary, 40)
    size, count, names = struct.unpack_from("<HHH", binary, 58)
    headers = [struct.unpack_from("<IIQQQQ", binary, table + i * size) for i in range(count)]
    texts = headers[names][4]
    for name, _, _, _, start, length in headers:
        if binary[texts + name : binary.index(b"\0", texts + name)] == wanted:
            yield start, length


def _attributes(binary: bytes, start: int, length: int) -> Iterator[tuple[int, int]]:
    """(number, count) of the attributes that have a count for a function."""
    at = start
    while at < start + length:
        form, number, size = struct.unpack_from("<BBH", binary, at)
        at += 4
        if form == SIZED:
            if number in (FRAME, REGISTERS):
                yield number, struct.unpack_from("<II", binary, at)[1]
            at += size
