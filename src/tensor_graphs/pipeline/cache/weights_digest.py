"""Digest of the weights of a graph, so that a plan is verified again for other weights and for no others.

It depends on the content of weights in memory, and on the identity of files that weights are regions of: path, device,
inode, size, and the times of the last change of content and of any kind, which no program can set. So a model of many
gigabytes in files is not read for it; a copy of its files is verified once more. A file that was changed a moment ago
is hashed, because a further change could bear the same time. Data that is computed from other data (`ComputedData`,
such as codes of a quantized weight) is represented by that data.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ...costdb.keys.device import cores
from ...egraph.ir.file_array import FileArray
from ...egraph.ir.weight_data import ComputedData, Data, load_data
from ...egraph.types import dtypes
from ...plain import file_identity

PIECE, AHEAD = 1 << 25, 16  # bytes hashed per piece, maximum number of queued pieces
THREADS = 8  # threads that hash at most
SETTLED_NS = 2_000_000_000  # age in ns of a file's last change from which a later one has another time
LARGE = 1 << 20  # bytes of regions of files from which looking at the files takes less time than hashing

Identity = tuple[object, ...]


@dataclass
class WeightHashes:
    """Hashes of weight data: `found` has them by the data's `id`, each with the data, which is kept alive. `wait`:
    waits for a thread that is adding some."""

    found: dict[int, tuple[Data, str]] = field(default_factory=dict)
    wait: Callable[[], None] = lambda: None

    def of(self, data: Data) -> str:
        """The hash of data that has been hashed."""
        return self.found[id(data)][1]

    def missing(self, params: Mapping[str, Data]) -> list[Data]:
        """The data of weights whose content their digest needs and that has not been hashed."""
        files = settled_files(params)
        leaves = {id(leaf): leaf for data in params.values() for leaf in _leaves(data) if _region(leaf, files) is None}
        return [leaf for number, leaf in leaves.items() if number not in self.found]

    def add(
        self, wanted: Sequence[Data], ended: Callable[[], bool] = lambda: False, threads: int = THREADS
    ) -> None:  # fmt: skip
        """Hash data in parallel pieces, so that one large table does not dominate. Data is loaded one at a time and
        released. No further data is begun once `ended` returns true. `threads`: number of threads at most."""
        lines: list[tuple[Data, list[str]]] = []
        with ThreadPoolExecutor(max(1, min(threads, cores()))) as pool:
            pieces: deque[tuple[list[str], Future[str]]] = deque()
            for data in wanted:
                if ended():
                    break
                array = np.ascontiguousarray(load_data(data))
                parts = [f"{array.dtype} {array.shape}"]
                lines.append((data, parts))
                flat = array.reshape(-1).view(np.uint8)
                for start in range(0, flat.size, PIECE):
                    while len(pieces) >= AHEAD:  # queued pieces keep their weights in memory
                        _finish(*pieces.popleft())
                    pieces.append((parts, pool.submit(_hashed, flat, start)))
            while pieces:
                _finish(*pieces.popleft())
        self.found |= {id(data): (data, "\n".join(parts)) for data, parts in lines}


def weights_digest(params: Mapping[str, Data], hashes: WeightHashes | None = None) -> str:
    """Digest of weights: their names, and the content of each or its place in a file that is unchanged. `hashes`: those
    of data that has been hashed before."""
    hashes = hashes or WeightHashes()
    hashes.add(hashes.missing(params))
    files = settled_files(params)

    def described(data: Data) -> object:
        if isinstance(data, ComputedData):
            return data.recipe, [described(source) for source in data.sources]
        return _region(data, files) or hashes.of(data)

    lines = [repr((name, described(params[name]))) for name in sorted(params)]
    return blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()


def settled_files(params: Mapping[str, Data]) -> dict[Path, Identity]:
    """Identity of each file that weights are regions of, without files that were changed since their header was read or
    less than `SETTLED_NS` ago; empty for few bytes."""
    regions = [leaf for data in params.values() for leaf in _leaves(data) if isinstance(leaf, FileArray)]
    if sum(region.nbytes for region in regions) < LARGE:
        return {}
    files: dict[Path, Identity] = {}
    for path, read in {(region.path, region.identity) for region in regions}:
        try:
            before, facts = file_identity(path), os.stat(path)
        except OSError:
            continue
        if before == read and time.time_ns() - max(facts.st_mtime_ns, facts.st_ctime_ns) >= SETTLED_NS:
            files[path] = (os.path.realpath(path), *before, facts.st_ctime_ns)
    return files


def hashed_bytes(wanted: Sequence[Data]) -> int:
    """Total size of weight data in bytes."""
    return sum(prod(data.shape) * dtypes.itemsize(dtypes.name_of(data.dtype)) for data in wanted)


def _leaves(data: Data) -> Iterator[Data]:
    """The data that other data is computed from, in the end."""
    if isinstance(data, ComputedData):
        for source in data.sources:
            yield from _leaves(source)
    else:
        yield data


def _region(data: Data, files: Mapping[Path, Identity]) -> Identity | None:
    """The place of data in an unchanged file; None if it is something else, or its file was changed."""
    if not isinstance(data, FileArray) or data.path not in files or data.identity != files[data.path][1:-1]:
        return None
    return files[data.path], data.offset, data.shape, data.dtype


def _hashed(flat: np.ndarray[Any, Any], start: int) -> str:
    return sha256(flat[start : start + PIECE].data).hexdigest()


def _finish(lines: list[str], piece: Future[str]) -> None:
    lines.append(piece.result())


__all__ = ["WeightHashes", "hashed_bytes", "settled_files", "weights_digest"]
