"""How products of float32 may be computed on a matrix unit, which takes operands of fewer digits: in what, and what that loses.

TF32 keeps 11 of 24 binary digits. In three products of the two halves of each operand (large times small, small times large,
large times large) only what two small halves would give is lost, less than sums of so many numbers round: D. Mukunoki, K. Ozaki,
T. Ogita, T. Imamura, DGEMM using tensor cores (ISC 2020); H. Ootomo, R. Yokota, Recovering single precision accuracy from tensor
cores (2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """A way to multiply float32: its name, as Triton has it, its number in schedules, the unit roundoff of its operands, and how
    many times as fast it is as float32 without a matrix unit, about (seen on an H200)."""

    name: str
    number: int
    loss: float
    rate: float


IEEE = Precision("ieee", 0, 0.0, 1.0)
THREE = Precision("tf32x3", 1, 2.0**-22, 1.5)
TF32 = Precision("tf32", 2, 2.0**-12, 6.0)

PRECISIONS = (IEEE, THREE, TF32)  # by number


def within(limit: float, offered: Sequence[Precision]) -> tuple[Precision, ...]:
    """What is worth trying of those offered, the slower ones first, where kernels may lose so much (relative): the fastest."""
    return (([p for p in offered if p.loss <= limit] or [IEEE])[-1],)
