"""How products of float32 may be computed on a matrix unit, which takes operands of fewer digits: in what, and what that loses.

TF32 keeps 11 of 24 binary digits. In three products of the two halves of each operand (large times small, small times large,
large times large) only what two small halves would give is lost: D. Mukunoki, K. Ozaki, T. Ogita, T. Imamura, DGEMM using tensor
cores (ISC 2020); H. Ootomo, R. Yokota, Recovering single precision accuracy from tensor cores (2022).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """A way to multiply float32: its name, as Triton has it, its number in schedules, and the unit roundoff of its operands."""

    name: str
    number: int
    loss: float


IEEE = Precision("ieee", 0, 0.0)
THREE = Precision("tf32x3", 1, 2.0**-22)
TF32 = Precision("tf32", 2, 2.0**-12)

PRECISIONS = (IEEE, THREE, TF32)  # by number
TRIED = (TF32,)  # of those that round, the slower ones first


def within(limit: float) -> tuple[Precision, ...]:
    """Those worth trying where kernels may lose so much (relative): none that rounds, and the fastest of the others."""
    return (IEEE, *[p for p in TRIED if p.loss <= limit][-1:])
