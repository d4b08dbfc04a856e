"""Describes reduced precisions of float32 products on tensor cores: operand formats, errors and speeds.

TF32 keeps 11 of 24 significand bits, bfloat16 8. If each operand is split into a large and a small part, three products
(large times small, small times large, large times large) omit only the product of the small parts. In TF32 that is less
than the rounding error of the sum. bfloat16 needs three parts and six products for the same accuracy; with two parts
its error is larger than float32's and smaller than TF32's. Sources: D. Mukunoki, K. Ozaki, T. Ogita, T. Imamura, DGEMM
using tensor cores (ISC 2020); H. Ootomo, R. Yokota, Recovering single precision accuracy from tensor cores (2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """A way to multiply float32 matrices on tensor cores or CUDA cores.

    `name` is Triton's name, `number` the code in schedules. `loss` is the relative error of a product of random
    matrices in the Frobenius norm (for precisions as accurate as float32, the error of splitting the operands); `rate`
    is the approximate speedup over float32 on CUDA cores. Both were measured on an H200. Products with fewer than
    `rows` rows gain nothing, because they are bound by memory.
    """

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

PRECISIONS = (IEEE, THREE, TF32, TWO_BRAINS, THREE_BRAINS)  # in the order of `number`

# loss of TF32 products in libraries, which round (Triton truncates): the smallest tolerance that allows TF32, which the
# texts of the option `tolerance` name
LIBRARY_TF32 = 3e-4


def within(limit: float, offered: Sequence[Precision]) -> tuple[Precision, ...]:
    """The input precision to use for a permitted relative error `limit`, as a tuple of one: the fastest of those
    `offered` within the limit, IEEE if there is none.

    `offered` is sorted by speed, slowest first.
    """
    return (([p for p in offered if p.loss <= limit] or [IEEE])[-1],)
