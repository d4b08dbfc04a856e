"""A map of bounded length that drops its least recently used entries."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruMap(MutableMapping[K, V]):
    """Map of at most `most` entries. A further entry replaces the one that was read or written least recently. Not
    thread-safe."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._entries: dict[K, V] = {}  # the least recently used first

    def __getitem__(self, key: K) -> V:
        value = self._entries[key] = self._entries.pop(key)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._entries.pop(key, None)
        self._entries[key] = value
        while len(self._entries) > self.most:
            del self._entries[next(iter(self._entries))]

    def __delitem__(self, key: K) -> None:
        del self._entries[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


__all__ = ["LruMap"]
