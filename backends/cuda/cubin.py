"""Register and stack use of a compiled CUDA kernel, parsed from its cubin.

A cubin is an ELF file whose section `.nv.info` lists function attributes. An attribute has a format (1 byte), an id (1
byte) and a size or value (2 bytes). In format 4 the size is the number of bytes that follow; those read here are a
symbol index and a count. (Checked for binaries of sm_80 to sm_90 against `cuobjdump --dump-resource-usage`.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

SIZED = 4  # format of attributes with a payload
FRAME, REGISTERS = 0x11, 0x2F  # ids of the attributes that are read


def resources(binary: bytes) -> tuple[int, int]:
    """(registers per thread, bytes of stack spills per thread) of the compiled kernel `binary` (a cubin file), each the
    maximum over all of its functions.

    Raises ValueError if `binary` is not a cubin.
    """
    try:
        found = [pair for start, size in _sections(binary, b".nv.info") for pair in _attributes(binary, start, size)]
    except (struct.error, IndexError) as error:
        raise ValueError(f"not a compiled kernel: {error}") from None
    most = {number: max((v for n, v in found if n == number), default=0) for number in (REGISTERS, FRAME)}
    return most[REGISTERS], most[FRAME]


def _sections(binary: bytes, wanted: bytes) -> Iterator[tuple[int, int]]:
    """(offset, bytes) of the sections called `wanted`."""
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
    """(id, count) of the register and stack attributes."""
    at = start
    while at < start + length:
        form, number, size = struct.unpack_from("<BBH", binary, at)
        at += 4
        if form == SIZED:
            if number in (FRAME, REGISTERS):
                yield number, struct.unpack_from("<II", binary, at)[1]
            at += size
