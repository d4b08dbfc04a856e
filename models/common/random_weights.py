"""Makes lazy random weights: seeded by tensor name, scaled so that activations stay near 1."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...egraph.types import dtypes


@dataclass(frozen=True)
class RandomArray:
    """A lazy array of the given shape and dtype of normal numbers `mean + scale * N(0, 1)`. Arrays with equal seed and
    name have equal data."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    scale: float = 1.0
    mean: float = 0.0
    seed: int = 0
    name: str = ""

    def load(self) -> np.ndarray[Any, Any]:
        """Draw the numbers and return them as an array."""
        rng = np.random.default_rng((self.seed, zlib.crc32(self.name.encode("utf-8", "surrogatepass"))))
        found = rng.standard_normal(self.shape, dtype=np.float32)
        found *= np.float32(self.scale)
        found += np.float32(self.mean)
        return np.asarray(found).astype(dtypes.numpy_dtype(self.dtype), copy=False)
