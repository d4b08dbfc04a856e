"""Reads which instruction set extensions this processor has."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def has_byte_dots() -> bool:
    """Whether this processor has dot products of bytes for packed weights (DOTS of backends/ir/c_dots.py). False where
    the system does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return "avx512_vnni" in flags or ("avx2" in flags and "avx512bw" not in flags)


__all__ = ["has_byte_dots"]
