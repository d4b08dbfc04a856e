"""Decides which labels (search states) of the frontier DP can be part of a cheapest solution."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import and_, or_

import numpy as np
import numpy.typing as npt

from .frontier_pieces import Label
from .label_setting import bits_of

MAX_DOMINATING_LABELS = 400
FEW_LABELS = 64
BLOCK = 256
"""A label is compared with at most MAX_DOMINATING_LABELS of the cheapest labels. Where at most FEW_LABELS are kept,
they are compared one by one, without packing the others. Else so many labels are compared at a time."""

Bits = npt.NDArray[np.uint64]


def undominated(bucket: dict[int, Label], most: int) -> dict[int, Label]:
    """Labels of a bucket that are not dominated: no other label is at most as expensive and needs a subset of its
    classes.

    Only the `most` cheapest of them, if `most` is at most MAX_DOMINATING_LABELS. All labels (no check) if they differ
    in more than 64 bits.
    """
    varies = reduce(or_, bucket) ^ reduce(and_, bucket)
    if varies.bit_count() > 64:
        return bucket
    masks = sorted(bucket, key=lambda mask: bucket[mask][0])
    if most <= FEW_LABELS:
        return _first_undominated(bucket, masks, most)
    bits, limit = _packed(masks, bits_of(varies)), min(most, MAX_DOMINATING_LABELS)
    kept: list[int] = []
    for start in range(0, len(masks), BLOCK):
        block = bits[start : start + BLOCK]
        left = np.flatnonzero(~_supersets(bits[kept[:limit]], block))
        if len(kept) < limit:
            left = left[~_supersets(block[left], block[left], earlier=True)]
        kept += (start + left).tolist()
        if most <= limit <= len(kept):
            break
    return {masks[n]: bucket[masks[n]] for n in (kept[:most] if most <= limit else kept)}


def _supersets(some: Bits, others: Bits, *, earlier: bool = False) -> npt.NDArray[np.bool_]:
    """For each of the `others`, whether it contains all bits of one of `some`; with `earlier`, of one before it."""
    contained = (some[:, None] & ~others) == 0
    found: npt.NDArray[np.bool_] = (np.triu(contained, 1) if earlier else contained).any(axis=0)
    return found


def _first_undominated(bucket: dict[int, Label], masks: Iterable[int], most: int) -> dict[int, Label]:
    """The first `most` labels, in the order of `masks`, that need no superset of an earlier one of them."""
    kept: dict[int, Label] = {}
    for mask in masks:
        free = ~mask
        for other in kept:
            if not other & free:
                break
        else:
            kept[mask] = bucket[mask]
            if len(kept) == most:
                break
    return kept


def _packed(masks: Iterable[int], varying: Sequence[int]) -> Bits:
    """The varying bits of each mask, packed into a 64-bit word."""
    low = varying[0] if varying else 0
    size = ((varying[-1] if varying else 0) - low) // 8 + 1
    keep = (1 << 8 * size) - 1
    raw = b"".join([((m >> low) & keep).to_bytes(size, "little") for m in masks])
    bits = np.unpackbits(np.frombuffer(raw, np.uint8).reshape(-1, size), axis=1, bitorder="little")
    picked = bits[:, [v - low for v in varying]].astype(np.uint64)
    return picked @ (np.uint64(1) << np.arange(len(varying), dtype=np.uint64))
