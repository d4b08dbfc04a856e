"""States the rates of two kinds of devices, for estimates where nothing was measured: an H200, and two server cores.

The cost model's rooflines, the ranking of GPU schedules and the expected time of verification start from these.
Calibration rows of the cost store replace them for rooflines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["GPU", "HOST", "Rates"]


@dataclass(frozen=True)
class Rates:
    """Stated rates of a device, used until it is calibrated.

    `launch_us`: µs of a kernel launch. `bytes_per_us`: memory traffic; the first `cache_bytes` of a kernel move at
    `cache_bytes_per_us`. `flops_per_us`: float32 arithmetic; `dtype_factors` has the rate of other dtypes relative to
    it, 1 where not listed. `reference_flops_per_s`, `reference_bytes_per_s`: estimates for the float64 reference runs
    of verification, which compute and write every value by itself. `weight_bytes_per_s`: their reading of weights, for
    a GPU with the copy to it.
    """

    launch_us: float
    bytes_per_us: float
    flops_per_us: float
    cache_bytes: float
    cache_bytes_per_us: float
    reference_flops_per_s: float
    reference_bytes_per_s: float
    weight_bytes_per_s: float
    dtype_factors: Mapping[str, float] = field(default_factory=dict)


#: An H200 that replays a CUDA graph. Its bandwidth is measured; the rest is estimated.
GPU = Rates(
    1.3, 4.3e6, 6.0e7, 4.0e7, 1.0e7, 1e13, 1e11, 4e9, {"float64": 0.5, "bfloat16": 13.0, "float16": 13.0, "int8": 26.0}
)
#: Two server cores; all estimated.
HOST = Rates(0.5, 2.0e4, 1.0e5, 2.0e6, 1.0e5, 2e10, 1e9, 2e9, {"float64": 0.5})
