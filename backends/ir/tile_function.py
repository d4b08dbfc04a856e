"""A kernel as a device function of one tile, which a persistent kernel calls for every tile of a stage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TileFunction:
    """A kernel's block as CUDA C++: `name(block, program, args...)`, and `name_warm` with equal parameters.

    `text` defines both. `name_warm` brings the first part of the tile's matrices into the L2 cache; `warm`: whether it does
    anything. `tiles`: number of tiles. `threads`: threads that compute a tile. `args`: names of the operands, `types` their
    pointer types. `room`: bytes of shared memory of a tile. `counters`: zeroed counters, the last argument, that the tiles of
    a split reduction need; 0 without one.
    """

    name: str
    text: str
    tiles: int
    threads: int
    args: tuple[str, ...]
    types: tuple[str, ...]
    room: int
    warm: bool
    counters: int = 0
