"""The error function for results of 16 bits: odd polynomials that cost a quarter to a third of the exact one.

erf(x) = y * p(u) with y = x held to [-limit, limit] and u = y * y * scale - 1 in [-1, 1]. The coefficients minimise the
largest relative error (Lawson's reweighted least squares over Chebyshev points); it is below `error` for every x, in float32
arithmetic too. Where a product's result goes through it, the arithmetic shows: it is no longer than the dtype needs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ShortErf:
    """One such polynomial."""

    limit: float
    error: float
    coefficients: tuple[float, ...]

    @property
    def scale(self) -> float:
        """What squares are multiplied by, to lie in [0, 2]."""
        return 2.0 / (self.limit * self.limit)

    def horner(self, u: str) -> str:
        """p(u) as text over the name of u."""
        text = repr(self.coefficients[-1])
        for c in self.coefficients[-2::-1]:
            text = f"({text} * {u} + {c!r})" if c >= 0 else f"({text} * {u} - {-c!r})"
        return text[1:-1]


FINE = ShortErf(3.2, 7e-6, (
    0.441334575, -0.217305765, 0.154334098, -0.113674589, 0.0808037519, -0.0546147525, 0.0326668955, -0.0153631102,
    0.00856594555, -0.00698080473, 0.00273253839,
))  # fmt: skip
"""A hundredth of what float16 resolves."""

COARSE = ShortErf(2.65, 1.9e-4, (
    0.529382338, -0.248433747, 0.156265264, -0.0907419927, 0.0522595405, -0.0362496953, 0.0148688906,
))  # fmt: skip
"""A tenth of what bfloat16 rounds by."""
