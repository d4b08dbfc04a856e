"""Error norms of a kernel's result on a GPU against the float64 reference, and their limits."""

from __future__ import annotations

from typing import Any

from .result_check import Wrong

TOLERANCE = {"float64": 1e-9, "float32": 1e-3, "float16": 5e-3, "bfloat16": 3e-2}
"""Maximum relative Frobenius error of a kernel, by the narrowest float dtype of operands and output: about ten times
the error of one rounding. (Whether a program is accurate enough is decided for the whole program.)"""


LOST = 20.0  # tolerance of a kernel that rounds its operands (TF32), as a multiple of the error of rounding one operand
LEAST_SIZE = 1 / 16  # minimum scale of operand values, if values of usual size overflow
_PRECISION = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
NORMS = ("rel_fro", "max_abs", "max_rel", "max_ulp")


def accuracy(got: Any, want: Any, dtype: str) -> dict[str, float]:
    """Error norms of the result `got`, of dtype `dtype`, against the reference `want`, over elements where both are
    finite.

    Keys: rel_fro, max_abs, max_rel, max_ulp (`result_check.accuracy`). Raises Wrong if NaN or infinity differ.
    """
    import torch

    g, w = got.double(), want
    rounded = w.to(got.dtype).double()  # values too large for the dtype become infinite
    finite = torch.isfinite(rounded)
    misplaced = (torch.isnan(g) != torch.isnan(w)) | (torch.isinf(rounded) & (g != rounded))
    g, w = torch.where(finite, g, 0.0), torch.where(finite, w, 0.0)
    error = (g - w).abs()
    spacing = torch.exp2((torch.frexp(w).exponent.clamp_min(-126) - _PRECISION[dtype]).double())
    norms = torch.stack([
        misplaced.any().double(), error.square().sum().sqrt(), w.square().sum().sqrt(),
        *(t.max() if t.numel() else t.sum() for t in (
            error, torch.where(error > 0, error / w.abs(), 0.0), error / spacing,
        )),
    ])  # fmt: skip
    wrong, off, norm, largest, relative, ulp = norms.tolist()
    if wrong:
        raise Wrong("NaN or infinity in unexpected elements, or elements that were not written")
    return dict(zip(NORMS, (off / norm if norm else float(off > 0), largest, relative, ulp)))
