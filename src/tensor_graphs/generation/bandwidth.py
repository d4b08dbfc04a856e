"""Determines the memory bandwidth of the device that programs run on."""

from __future__ import annotations

import time

import numpy as np

from ..backends.machine import target
from ..costdb.keys.device import GPU_KIND

READ = 1 << 26  # bytes read in a measurement on the host: beyond the last cache


def memory_bandwidth(device: str) -> float:
    """Bytes per microsecond that a device reads from its memory; `device`: Torch's name, or "" for arrays on the host.

    On a GPU as `backends.machine` states it; on the host measured in a few milliseconds, the best of three.
    """
    if device.startswith(GPU_KIND):
        return target().bytes_per_us
    data = np.ones(READ // 4, np.float32)
    times = []
    for _ in range(4):
        begun = time.perf_counter()
        np.dot(data, data)
        times.append(time.perf_counter() - begun)
    return READ / min(times[1:]) / 1e6
