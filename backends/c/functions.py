"""Declares what library kernels that call one C function have in common."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any


def c_function(name: str, text: str) -> dict[str, Any]:
    """Fields of a LibraryKernel whose code calls the C function `name` with this text: its source, what a program needs
    to call it, and the version that is part of the key of measurements."""
    source = {name: text}
    return {
        "source": lambda call: source, "setup": ("address", "c_function", "c_library"),
        "version": blake2b(text.encode(), digest_size=4).hexdigest(),
    }  # fmt: skip


__all__ = ["c_function"]
