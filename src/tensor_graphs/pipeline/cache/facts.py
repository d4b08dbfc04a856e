"""Keeps small facts that take long to find and hold for other processes too, such as the digest of a large weight
file, one short file each in the cache folder.

A fact has a key, which must contain everything that it depends on. Files are sealed with their name, in a folder that
only this user can write (private.py). A fact that cannot be read or written is found again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from ... import cache_folder
from ...private import read_sealed, sealed
from ...writing.files import replacing_raw

FOLDER = "facts"
KEPT_FACTS = 1024  # maximum number of facts; the most recently used are kept
MAX_FACT_BYTES = 1 << 12  # maximum bytes of a fact's file


def fact(key: object) -> str | None:
    """The stored text under a key (equal keys have equal `repr`); None if there is none."""
    try:
        path = _path(key)
        text = read_sealed(path, MAX_FACT_BYTES, path.name).decode()
        os.utime(path)
    except (OSError, ValueError):
        return None
    return text


def keep_fact(key: object, text: str) -> None:
    """Store a text under a key. No effect if it cannot be written."""
    path = _path(key)
    with suppress(OSError):
        with replacing_raw(path, own=True) as file:
            file.write(sealed(text.encode(), path.name))
        cache_folder.evict(path.parent.glob("[!.]*"), KEPT_FACTS)  # hidden files are being written


def _path(key: object) -> Path:
    return cache_folder.private(FOLDER) / blake2b(repr(key).encode(), digest_size=16).hexdigest()


__all__ = ["fact", "keep_fact"]
