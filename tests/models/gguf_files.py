"""Writes small GGUF files."""

from __future__ import annotations

import struct
from typing import Any


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(name: str, value: Any) -> bytes:
    """One metadata value."""
    if isinstance(value, str):
        return text(name) + struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        return text(name) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    form, kind = ("<f", 6) if isinstance(value, float) else ("<I", 4)
    return text(name) + struct.pack("<I", kind) + struct.pack(form, value)


def file_of(metadata: dict[str, Any], tensors: dict[str, tuple[tuple[int, ...], int, bytes]]) -> bytes:
    """A file of version 3. tensors: name -> (shape, type, bytes)."""
    head = (
        b"GGUF"
        + struct.pack("<IQQ", 3, len(tensors), len(metadata))
        + b"".join(entry(n, v) for n, v in metadata.items())
    )
    data = b""
    for name, (shape, kind, content) in tensors.items():
        head += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", d) for d in reversed(shape))
        head += struct.pack("<IQ", kind, len(data))
        data += content + b"\0" * (-len(content) % 32)
    return head + b"\0" * (-len(head) % 32) + data
