"""Learnt correction of the roofline: boosted trees that predict log(time / roofline) from a kernel's sizes and schedule.

Fitted once, when starter rows are exported (costdb/store/starter.py), and stored beside them as plain arrays. Predictions add
corrections by measured relatives to it (predict.py), so a search's own measurements count without another fit."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..keys.key import Work
from .boosting import Array, BoostedTrees, fit
from .features import COUNT, features
from .roofline import CALIBRATION, Rooflines

if TYPE_CHECKING:
    from ..store.snapshot import Snapshot

LEAST_ROWS, LEAST_KERNELS = 200, 20  # timed keys of a device, and kernels at their shapes, from which a model is fitted
MOST_ROWS = 20_000  # of a fit; more are thinned evenly
MAX_BYTES = 64 << 20  # of a stored model, unpacked
LIMIT = 4.0  # largest absolute log ratio that is believed, of a row and of a prediction
_PARTS = ("edges", "feature", "bin", "leaf", "mean")


class LearntFactors:
    """Models by device. A device without one uses that of the first device of its kind ("gpu:…", "cpu:…")."""

    def __init__(self, models: Mapping[str, BoostedTrees] | None = None) -> None:
        self.models = dict(models or {})

    def of(self, columns: Sequence[Mapping[str, Any]], work: Sequence[Work]) -> Array:
        """log(time / roofline) of keys given by their columns and work; 0 for devices without a model."""
        found = np.zeros(len(columns))
        if not self.models or not columns:
            return found
        rows = features(columns, work)
        devices = [str(c["device"]) for c in columns]
        for device in set(devices):
            if (model := self._model(device)) is not None:
                own = [i for i, d in enumerate(devices) if d == device]
                found[own] = np.clip(model.predict(rows[own]), -LIMIT, LIMIT)
        return found

    def _model(self, device: str) -> BoostedTrees | None:
        if device in self.models:
            return self.models[device]
        kind = device.partition(":")[0]
        return next((self.models[d] for d in sorted(self.models) if d.partition(":")[0] == kind), None)


def fitted(snapshot: Snapshot, regime: str, device: str) -> BoostedTrees | None:
    """The model of a device's timed keys in a regime; None if there are fewer than LEAST_ROWS, or of fewer
    than LEAST_KERNELS kernels (twelve well-tuned kernels alone made predictions of others worse)."""
    rooflines = Rooflines(snapshot, regime)
    columns, work, ratios = [], [], []
    for digest in sorted(snapshot.digests()):
        row, measured = snapshot.first_row(digest), snapshot.measurement(digest, regime)
        if measured is None or row["device"] != device or row["family"] == CALIBRATION:
            continue
        own = Work(row["flops"], row["bytes"])
        ratio = math.log(measured.us / rooflines.of(device, row["backend"], first_dtype(row["dtypes"])).us(own))
        if abs(ratio) <= LIMIT:
            columns.append(row)
            work.append(own)
            ratios.append(ratio)
    if len(ratios) < LEAST_ROWS or len({(c["kernel"], c["shapes"]) for c in columns}) < LEAST_KERNELS:
        return None
    step = math.ceil(len(ratios) / MOST_ROWS)
    return fit(features(columns[::step], work[::step]), np.array(ratios[::step]))


def first_dtype(text: str) -> str:
    """The first dtype of a key, from JSON text; float32 if the text has another form."""
    first = text.removeprefix("[").partition(",")[0].removesuffix("]").strip('"')
    return first or "float32"


# ---------------------------------------------------------------- as bytes
def encode(model: BoostedTrees) -> bytes:
    """The model as a NumPy archive of small types, without pickle."""
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer, edges=model.edges.astype("f4"), feature=model.feature.astype("u1"), bin=model.bin.astype("u1"),
        leaf=model.leaf.astype("f4"), mean=np.array(model.mean, "f8"),
    )  # fmt: skip
    return buffer.getvalue()


def decode(content: bytes) -> BoostedTrees:
    """The model of an archive. ValueError for anything else, models of other features included."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as listed:
            if sum(one.file_size for one in listed.infolist()) > MAX_BYTES:
                raise ValueError(f"more than {MAX_BYTES} bytes unpacked")
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            edges, feature, bins, leaf, mean = (archive[name] for name in _PARTS)
    except Exception as error:  # zip and NumPy errors of many types: one meaning
        raise ValueError(f"no model: {error}") from None
    trees, inner = feature.shape if feature.ndim == 2 else (0, 0)
    whole = edges.ndim == 2 and len(edges) == COUNT and bins.shape == feature.shape and mean.shape == ()
    if not whole or leaf.shape != (trees, inner + 1) or inner & (inner + 1) or not trees * inner:
        raise ValueError("a model of other features, or of another form")
    if feature.min() < 0 or feature.max() >= COUNT or not all(np.isfinite(part).all() for part in (edges, leaf, mean)):
        raise ValueError("a model with impossible numbers")
    return BoostedTrees(
        edges.astype(np.float64), feature.astype(np.int64), bins.astype(np.int64), leaf.astype(np.float64), float(mean)
    )


__all__ = ["LearntFactors", "decode", "encode", "first_dtype", "fitted"]
