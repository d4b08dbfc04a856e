"""A kernel whose warps have roles and share nothing, each adding up for itself: what a sanitizer says of it is about how Triton gives
out roles. (As emitted programs are: `bind` gives what runs it.)"""

from __future__ import annotations

from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

BLOCKS, EACH = 4, 128


@gluon.jit
def control_fill(out, value: gl.constexpr, EACH: gl.constexpr):
    """A part of the block's line becomes the sum of its places, and its number."""
    at = gl.arange(0, EACH, layout=gl.BlockedLayout([1], [32], [4], [0]))
    here = gl.program_id(0) * 2 + value
    gl.store(out + here * EACH + at, at * 0 + here + gl.sum(at, 0))


@gluon.jit
def control_0000000000(out, EACH: gl.constexpr):
    """Two roles."""
    gl.warp_specialize([(control_fill, (out, 0, EACH)), (control_fill, (out, 1, EACH))], [4], [24])


def bind(weights: Any, states: Any = None, device: str = "cuda", graph: bool = True) -> Any:
    """What runs it; nothing is recorded."""
    out = torch.empty(2 * BLOCKS * EACH, dtype=torch.int32, device=device)

    def run() -> tuple[torch.Tensor]:
        control_0000000000[(BLOCKS,)](out, EACH=EACH, num_warps=4)
        return (out.float(),)

    return run
