"""cache: 2 kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray


def along(index: Array, axis: int) -> tuple[Any, ...]:
    """Subscript s of an array x such that x[s] is take_along_axis(x, index, axis), for reading and for writing."""
    places: list[Any] = list(np.ogrid[tuple(slice(n) for n in index.shape)])
    places[axis] = index
    return tuple(places)


def scatter_elements(x: Array, index: Array, updates: Array, axis: int, mode: str, out: Array) -> None:
    """Write x with updates written at the index along one axis into `out`. x may be out. `mode`: "set", or how an
    update is combined with the element there: "add", "mul", "max", "min"."""
    if x.ctypes.data != out.ctypes.data:
        np.copyto(out, x)
    if mode == "set":
        out[along(index, axis)] = updates
    else:
        ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[mode]
        ufunc.at(out, along(index, axis), updates)


def bind(weights, states):
    """Makes the program for given weights and states, which run() updates."""
    cache = states['cache']

    @np.errstate(all="ignore")
    def run(x, position):
        """(x: float32[1, 4], position: int64[1, 4]) -> (output: float32[4])"""
        # scatter_elements: float32[6, 4]
        scatter_elements(cache, position, x, 0, 'set', cache)
        # sum: float32[1, 4]
        v4 = np.empty((1, 4), np.float32)
        np.add.reduce(cache, axis=(0,), dtype=np.float32, out=v4, keepdims=True)
        v5 = v4.reshape((4,))
        return v5,

    return run
