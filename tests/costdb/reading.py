"""Reads measurements of a store by key."""

from __future__ import annotations

from collections.abc import Iterable

from tensor_graphs.costdb.keys.key import KernelKey
from tensor_graphs.costdb.store.snapshot import Measurement
from tensor_graphs.costdb.store.store import Store


def lookup(store: Store, keys: Iterable[KernelKey | str], *, regime: str = "hot") -> dict[str, Measurement]:
    """Digest -> measurement of those keys that were timed in this regime ("hot" or "cold")."""
    snapshot = store.snapshot
    digests = [key if isinstance(key, str) else key.digest for key in keys]
    found = {digest: snapshot.measurement(digest, regime) for digest in digests}
    return {digest: measurement for digest, measurement in found.items() if measurement is not None}
