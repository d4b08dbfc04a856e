"""Common text of warp-specialized Gluon kernels (attention, convolution): imports, layouts, warp-group sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable

GROUP = 64  # rows of a warp group: M of one wgmma instruction
REGISTERS = 240, 24  # per thread of a consumer and of the producer (setmaxnreg)

IMPORTS = """from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

fetch_box = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared  # renamed after Triton 3.6"""
SEEING = (
    'seen_as = getattr(gl.shared_memory_descriptor, "reinterpret", None) or gl.shared_memory_descriptor._reinterpret'
)


def swizzle(columns: int) -> int:
    """Shared-memory swizzle, in bytes, of a tile of 16-bit elements with `columns` columns."""
    return min(128, 2 * columns)


def shared_layout(columns: int, rank: int = 2) -> str:
    """Gluon expression of the shared-memory layout of a tile of 16-bit elements with `columns` columns and `rank`
    dimensions."""
    return f"gl.NVMMASharedLayout(swizzle_byte_width={swizzle(columns)}, element_bitwidth=16, rank={rank})"


def matrix_layout(columns: int) -> str:
    """Gluon expression of the register layout of a warp group's wgmma accumulators; `columns`: N of one instruction."""
    return f"gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, {columns}, 16])"


def in_gluon(lines: Iterable[str]) -> str:
    """Gluon source made from lines of the Triton emitter: the prefix `tl.` of names becomes `gl.`."""
    return re.sub(r"\btl\.(?!PropagateNan)", "gl.", "\n".join(lines)) + "\n"
