"""Computes the error function on float64 arrays, accurate to about one unit in the last place.

Rational approximations on four ranges, with the coefficients of fdlibm's `s_erf.c` (Sun Microsystems, 1993).
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_ERX = 8.45062911510467529297e-01
_SMALL = (
    (-2.37630166566501626084e-05, -5.77027029648944159157e-03, -2.84817495755985104766e-02, -3.25042107247001499370e-01,
     1.28379167095512558561e-01),
    (-3.96022827877536812320e-06, 1.32494738004321644526e-04, 5.08130628187576562776e-03, 6.50222499887672944485e-02,
     3.97917223959155352819e-01, 1.0),
)  # fmt: skip
_MIDDLE = (
    (-2.16637559486879084300e-03, 3.54783043256182359371e-02, -1.10894694282396677476e-01, 3.18346619901161753674e-01,
     -3.72207876035701323847e-01, 4.14856118683748331666e-01, -2.36211856075265944077e-03),
    (1.19844998467991074170e-02, 1.36370839120290507362e-02, 1.26171219808761642112e-01, 7.18286544141962662868e-02,
     5.40397917702171048937e-01, 1.06420880400844228286e-01, 1.0),
)  # fmt: skip
_LARGE = (
    (-9.81432934416914548592e00, -8.12874355063065934246e01, -1.84605092906711035994e02, -1.62396669462573470355e02,
     -6.23753324503260060396e01, -1.05586262253232909814e01, -6.93858572707181764372e-01, -9.86494403484714822705e-03),
    (-6.04244152148580987438e-02, 6.57024977031928170135e00, 1.08635005541779435134e02, 4.29008140027567833386e02,
     6.45387271733267880336e02, 4.34565877475229228821e02, 1.37657754143519042600e02, 1.96512716674392571292e01, 1.0),
)  # fmt: skip
_TAIL = (
    (-4.83519191608651397019e02, -1.02509513161107724954e03, -6.37566443368389627722e02, -1.60636384855821916062e02,
     -1.77579549177547519889e01, -7.99283237680523006574e-01, -9.86494292470009928597e-03),
    (-2.24409524465858183362e01, 4.74528541206955367215e02, 2.55305040643316442583e03, 3.19985821950859553908e03,
     1.53672958608443695994e03, 3.25792512996573918826e02, 3.03380607434824582924e01, 1.0),
)  # fmt: skip


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Array) -> Array:
    above, below = coefficients
    return np.asarray(np.polyval(above, x) / np.polyval(below, x))


def erf(x: Array) -> Array:
    """The error function of any float array, computed in float64, in x's dtype."""
    wide = np.asarray(x, np.float64)
    size = np.asarray(np.abs(wide))
    out = np.array(np.sign(wide))  # where |x| >= 6, and NaN
    with np.errstate(all="ignore"):
        for low, high in ((0.0, 0.84375), (0.84375, 1.25), (1.25, 1 / 0.35), (1 / 0.35, 6.0)):
            here = (size >= low) & (size < high)
            if here.any():
                out[here] = _range(wide[here], size[here], low)
    return np.asarray(out, x.dtype)


def _range(x: Array, size: Array, low: float) -> Array:
    if low == 0.0:
        return np.asarray(x + x * _ratio(_SMALL, x * x))
    if low == 0.84375:
        return np.copysign(_ERX + _ratio(_MIDDLE, size - 1.0), x)
    inner = _ratio(_LARGE if low == 1.25 else _TAIL, 1.0 / (size * size))
    return np.copysign(1.0 - np.exp(-size * size - 0.5625 + inner) / size, x)
