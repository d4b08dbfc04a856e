"""Hashes the weights of a graph, so that a plan is verified again for other weights and for no others.

Weights that are regions of files are not hashed again while their files are unchanged: the digest is kept as a fact
(facts.py) under the identity of each file. A file that was changed a moment before it was hashed gets no such record,
because a further change could bear the same time.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import numpy as np

from ...backends.runtime.upload import downloaded
from ...costdb.keys.device import cores
from ...egraph.ir.weight_data import Data
from ...models.files.arrays import MappedArray
from ...plain import file_identity
from .facts import fact, keep_fact

FORMAT = 1
PIECE, AHEAD = 1 << 25, 16  # bytes hashed per piece, maximum number of queued pieces
SETTLED_NS = 2_000_000_000  # age in ns of a file's last change from which a later one has another time
LARGE = 1 << 20  # bytes of weights from which looking a digest up takes less time than hashing

Identity = tuple[object, ...]


def content_digest(params: Mapping[str, Data], device: str = "") -> str:
    """Hash of all weights' bytes, names, shapes and dtypes, the same for every device.

    Derived data (`DerivedData`, computed from other weights) is computed on `device`, if that is a GPU: it is needed
    there anyway.
    """
    identity = files_identity(params)
    if identity is None:
        return _hashed(params, device)
    if (known := fact(identity)) is not None:
        return known
    found = _hashed(params, device)
    if files_identity(params) == identity:  # no file has changed meanwhile
        keep_fact(identity, found)
    return found


def files_identity(params: Mapping[str, Data]) -> Identity | None:
    """What `content_digest` depends on if all weights are regions of files: the regions, and the identity of each file
    with the time of its last change of any kind, which no program can set.

    None if a weight is something else or its file was changed after its header was read or less than `SETTLED_NS` ago,
    and for few bytes.
    """
    regions, files = [], dict[Path, Identity]()
    for name in sorted(params):
        data = params[name]
        if not isinstance(data, MappedArray) or not data.identity:
            return None
        if data.path not in files:
            try:
                before, facts = file_identity(data.path), os.stat(data.path)
            except OSError:
                return None
            if before != data.identity or time.time_ns() - max(facts.st_mtime_ns, facts.st_ctime_ns) < SETTLED_NS:
                return None
            files[data.path] = (os.path.realpath(data.path), *before, facts.st_ctime_ns)
        regions.append((name, files[data.path], data.offset, data.shape, data.dtype))
    if sum(data.nbytes for data in params.values() if isinstance(data, MappedArray)) < LARGE:
        return None
    return "weights", FORMAT, tuple(regions)


def _hashed(params: Mapping[str, Data], device: str) -> str:
    """`content_digest`, computed: pieces are hashed in parallel, so that one large table does not dominate; weights are
    loaded one at a time and released."""

    def hashed(flat: np.ndarray[Any, Any], start: int) -> str:
        return sha256(flat[start : start + PIECE].data).hexdigest()

    lines: list[str] = []
    with ThreadPoolExecutor(max(1, min(8, cores()))) as threads:
        pieces: deque[Future[str]] = deque()
        for name in sorted(params):
            array = np.ascontiguousarray(downloaded(params[name], device))
            lines.append(f"{name} {array.dtype} {array.shape}")
            flat = array.reshape(-1).view(np.uint8)
            for start in range(0, flat.size, PIECE):
                while len(pieces) >= AHEAD:  # queued pieces keep their weights in memory
                    lines.append(pieces.popleft().result())
                pieces.append(threads.submit(hashed, flat, start))
        lines += [piece.result() for piece in pieces]
    return blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()


__all__ = ["content_digest", "files_identity"]
