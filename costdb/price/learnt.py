"""Predicts a correction of the roofline (lower bound of a kernel's time) from a learnt model: a Gaussian process for
log(time / roofline) over a kernel's sizes, layout and schedule.

It is fitted once, when starter rows are exported (costdb/store/starter.py), and stored beside them as plain arrays.
Predictions (predict.py) add corrections from measured related kernels to it, so that the measurements of a search are
used without another fit.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..keys.key import Work
from .features import COUNT, EMPHASIS, features
from .gaussian_process import Array, GaussianProcess, fit
from .numpy_loops import loops_us
from .roofline import CALIBRATION, Rooflines

if TYPE_CHECKING:
    from ..store.snapshot import Snapshot

LEAST_ROWS, LEAST_KERNELS = 200, 20  # timed keys of a device, and kernels at their shapes, from which a model is fitted
MOST_ROWS = 1500  # of a fit, which takes cubic time; more are thinned evenly
MAX_BYTES = 64 << 20  # of a stored model, unpacked
LIMIT = 4.0  # largest absolute log ratio that is believed, of a row and of a prediction
_PARTS = ("centre", "scale", "rows", "weights", "numbers")


class LearntFactors:
    """Learnt models of log(time / roofline) by device. A device without a model uses that of the first device of its
    kind ("gpu:…", "cpu:…").
    """

    def __init__(self, models: Mapping[str, GaussianProcess] | None = None) -> None:
        self.models = dict(models or {})

    def of(self, columns: Sequence[Mapping[str, Any]], work: Sequence[Work]) -> Array:
        """log(time / lower bound) of keys (kernels at one shape, layout, schedule and machine) given by their columns
        and work; 0 for devices without a model, and for NumPy's reductions, whose bound is an estimate."""
        found = np.zeros(len(columns))
        if not self.models or not columns:
            return found
        rows = features(columns, work)
        devices = [str(c["device"]) for c in columns]
        for device in set(devices):
            if (model := self._model(device)) is not None:
                own = [i for i, d in enumerate(devices) if d == device and not loops_us(columns[i])]
                if own:
                    found[own] = np.clip(model.predict(rows[own]), -LIMIT, LIMIT)
        return found

    def spread(self, device: str) -> tuple[float, float]:
        """First and ninth decile of measured minus predicted log(time / roofline) of a device's model.

        (0, 0) for a device without a model.
        """
        model = self._model(device)
        return (0.0, 0.0) if model is None else (model.low, model.high)

    def _model(self, device: str) -> GaussianProcess | None:
        if device in self.models:
            return self.models[device]
        kind = device.partition(":")[0]
        return next((self.models[d] for d in sorted(self.models) if d.partition(":")[0] == kind), None)


def fitted(snapshot: Snapshot, regime: str, device: str) -> GaussianProcess | None:
    """The model of a device's timed keys (kernels at one shape, layout, schedule and machine) in a regime; None for
    fewer than LEAST_ROWS keys or LEAST_KERNELS kernels.

    Few kernels do not suffice: twelve well-tuned kernels alone made predictions of others worse.
    """
    rooflines = Rooflines(snapshot, regime)
    columns, work, ratios = [], [], []
    for digest in sorted(snapshot.digests()):
        row, measured = snapshot.first_row(digest), snapshot.measurement(digest, regime)
        if measured is None or row["device"] != device or row["family"] == CALIBRATION or loops_us(row):
            continue
        own = Work(row["flops"], row["bytes"])
        ratio = math.log(measured.us / rooflines.bound_us(row, own))
        if abs(ratio) <= LIMIT:
            columns.append(row)
            work.append(own)
            ratios.append(ratio)
    if len(ratios) < LEAST_ROWS or len({(c["kernel"], c["shapes"]) for c in columns}) < LEAST_KERNELS:
        return None
    taken = np.linspace(0, len(ratios) - 1, min(len(ratios), MOST_ROWS)).astype(int)
    return fit(features([columns[i] for i in taken], [work[i] for i in taken]), np.array(ratios)[taken], EMPHASIS)


# ---------------------------------------------------------------- as bytes
def encode(model: GaussianProcess) -> bytes:
    """The model as the bytes of a NumPy archive, mostly of 16- and 32-bit floats, without pickle."""
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer, centre=model.centre.astype("f4"), scale=model.scale.astype("f4"), rows=model.rows.T.astype("f2"),
        weights=model.weights.astype("f4"), numbers=np.array([model.mean, model.low, model.high], "f8"),
    )  # fmt: skip
    return buffer.getvalue()


def decode(content: bytes) -> GaussianProcess:
    """The model of an archive. Raises ValueError for anything else, models of other features included."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as listed:
            if sum(one.file_size for one in listed.infolist()) > MAX_BYTES:
                raise ValueError(f"more than {MAX_BYTES} bytes unpacked")
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            centre, scale, columns, weights, numbers = (archive[name] for name in _PARTS)
    except Exception as error:  # zip and NumPy errors of many types: one meaning
        raise ValueError(f"no model: {error}") from None
    count = len(weights) if weights.ndim == 1 else 0
    if (
        not count
        or columns.shape != (COUNT, count)
        or {centre.shape, scale.shape} != {(COUNT,)}
        or numbers.shape != (3,)
    ):
        raise ValueError("a model of other features, or of another form")
    centre, scale, rows, weights = (np.asarray(p, dtype=np.float64) for p in (centre, scale, columns.T, weights))
    if not all(np.isfinite(part).all() for part in (centre, scale, rows, weights, numbers)):
        raise ValueError("a model with impossible numbers")
    return GaussianProcess(centre, scale, rows, weights, *map(float, numbers))


__all__ = ["LearntFactors", "decode", "encode", "fitted"]
