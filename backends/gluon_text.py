"""What the text of Gluon functions with roles begins with, for attention and convolutions: groups of warps, layouts, modules."""

from __future__ import annotations

import re
from collections.abc import Iterable

GROUP = 64  # rows of four warps: what one instruction of the matrix unit takes
REGISTERS = 240, 24  # of a thread that computes, of one that copies

IMPORTS = """from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

fetch_box = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared  # renamed after Triton 3.6"""
SEEING = (
    'seen_as = getattr(gl.shared_memory_descriptor, "reinterpret", None) or gl.shared_memory_descriptor._reinterpret'
)


def swizzle(columns: int) -> int:
    """Bytes of a row between which lines of shared memory are exchanged: 16-bit columns."""
    return min(128, 2 * columns)


def shared_layout(columns: int, rank: int = 2) -> str:
    """How a tile of 16 bits lies in shared memory."""
    return f"gl.NVMMASharedLayout(swizzle_byte_width={swizzle(columns)}, element_bitwidth=16, rank={rank})"


def matrix_layout(columns: int) -> str:
    """How the sums of a group lie in the registers of its warps."""
    return f"gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, {columns}, 16])"


def in_gluon(lines: Iterable[str]) -> str:
    """Functions as Gluon's, whose names Triton's emitter has written as its own."""
    return re.sub(r"\btl\.(?!PropagateNan)", "gl.", "\n".join(lines)) + "\n"
