"""How the text of a kernel refers to the threads that run its block: alone, or as one of many tiles of a persistent kernel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockText:
    """Spelling of a block's thread index, barrier and exchanges in CUDA C++.

    `thread`: index of the thread. `program`: index of the block; empty if it is a parameter. `wait`: statement that waits for
    all threads of the block. `across`: function that combines values of threads, up to its template arguments, and what its
    arguments begin with. `is_last`: beginning of the call that counts the blocks of a tile.
    """

    thread: str = "threadIdx.x"
    program: str = "blockIdx.x"
    wait: str = "__syncthreads();"
    across: tuple[str, str] = ("across", "")
    is_last: str = "is_last("


#: A kernel whose blocks are those of its launch.
ALONE = BlockText()
#: A function of one tile, run by a group of threads of a persistent kernel.
TILE = BlockText("block.thread()", "", "block.wait();", ("across_block", "block, "), "is_last_of(block, block.flag(), ")
