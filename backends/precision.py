"""How products of float32 may be computed on a matrix unit, which takes operands of fewer digits: in what, and what that loses.

TF32 keeps 11 of 24 binary digits, bfloat16 8. In three products of the two halves of each operand (large times small, small times large,
large times large) only what two small halves would give is lost, less than sums of so many numbers round; with bfloat16 that takes three parts and six products, with two parts it is in between: D. Mukunoki, K. Ozaki,
T. Ogita, T. Imamura, DGEMM using tensor cores (ISC 2020); H. Ootomo, R. Yokota, Recovering single precision accuracy from tensor
cores (2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """A way to multiply float32: its name, as Triton has it, its number in schedules, the relative error of a product of random
    matrices (Frobenius; of those that are as exact as float32: what operands lose), and how many times as fast it is as float32
    without a matrix unit, about. Both were seen on an H200. `rows`: of a product with fewer than these nothing is gained, for it
    waits for memory."""

    name: str
    number: int
    loss: float
    rate: float
    rows: int = 1


IEEE = Precision("ieee", 0, 0.0, 1.0)
THREE = Precision("tf32x3", 1, 2.0**-22, 1.5, 17)
TF32 = Precision("tf32", 2, 8e-4, 6.0)
TWO_BRAINS = Precision("bf16x3", 3, 6e-6, 1.8, 17)
THREE_BRAINS = Precision("bf16x6", 4, 2.0**-22, 1.2, 17)

PRECISIONS = (IEEE, THREE, TF32, TWO_BRAINS, THREE_BRAINS)  # by number

LIBRARY_TF32 = 3e-4  # what a product in TF32 loses where a library rounds: Triton cuts digits off


def within(limit: float, offered: Sequence[Precision]) -> tuple[Precision, ...]:
    """What is worth trying of those offered, the slower ones first, where kernels may lose so much (relative): the fastest."""
    return (([p for p in offered if p.loss <= limit] or [IEEE])[-1],)
