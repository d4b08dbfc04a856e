"""Calls of C kernels on bytes: random operands, and comparison with the references."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tensor_graphs.backends.tuning.single_kernel import in_layout
from tensor_graphs.extract.model.kernel import Call
from tensor_graphs.extract.model.library_kernel import LibraryKernel

from ..reference import expected
from ..together import library_results

SCALES, POINTS = "amspju", "zyoqv"  # operands: float factors and scales; zero points


def result_dtype(name: str, kind: str) -> str:
    return kind if "quantized" in name else "float32" if "scaled" in name else "int32"


def drawn(call: Call, terms: int, seed: int = 0) -> dict[str, Any]:
    """Random operands by name, such that results are spread over the range of bytes. `terms`: number of terms of each
    sum that the kernel computes; 0 if it computes none."""
    rng, found = np.random.default_rng(seed), {}
    spread = 75.0**2 * np.sqrt(terms) if terms else 1.0
    for name, o in call.operands.items():
        dtype, shape = o.type.dtype, o.type.shape
        if name in SCALES:
            values = rng.uniform(0.5, 1.5, shape) * (40.0 / spread if name == "m" else 1.0)
        elif dtype == "float32":
            values = 9.0 * rng.standard_normal(shape)
        elif dtype == "int32":
            values = rng.integers(-9000, 9000, shape)
        else:
            limits = np.iinfo(dtype)
            values = rng.integers(limits.min, limits.max + 1, shape)
            values = values // 8 + (limits.max + limits.min) // 2 if name in POINTS else values
        found[name] = in_layout(np.asarray(values).astype(dtype), o)
    return found


def compare(calls: Iterable[tuple[LibraryKernel, Call, int, int]]) -> None:
    """Assert that the results of kernels, which are compiled together, match the reference: integer sums exactly,
    floats within rounding, bytes except for a few whose value before rounding lies next to a half. `calls`: kernel,
    call, terms of each sum, and the seed of its operands."""
    cases = [(row, call, drawn(call, terms, seed)) for row, call, terms, seed in calls]
    for case, got, of in library_results(cases):
        want = expected(*case)
        if got.dtype == np.float32:
            np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-5, err_msg=of)
        elif got.dtype == np.int32:
            np.testing.assert_array_equal(got, want, err_msg=of)
        else:
            off = np.abs(got.astype(int) - want.astype(int))
            assert off.max() <= 1 and (off > 0).mean() <= 2e-3, (of, off.max(), (off > 0).mean())
            assert np.ptp(want.astype(int)) > 15, f"a result that shows little: {of}"
