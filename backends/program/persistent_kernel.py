"""CUDA C++ of a persistent kernel: stages, each the tiles of one generated kernel, in one launch.

All blocks are on the GPU at the same time (a cooperative launch), one on each multiprocessor. A stage's tiles are dealt out to
the blocks in turn. A block waits for the stages whose results its stage reads, or whose operands it overwrites
(stage_order.py), computes its tiles in groups of threads, and reports them. Before it waits, it has the first part of the
matrices of its next tile brought into the L2 cache. Equal kernels are one function; what differs between stages is in a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..ir.tile_function import TileFunction
from .stage_order import StageOrder

THREADS = 512  # of a block: 128 registers each, and one block on a multiprocessor
APART = 32  # numbers between counters (COUNTER_APART)
TABLE = 48 << 10  # most bytes of the table, which is in shared memory
ROOM = 224 << 10  # most bytes of shared memory
STAGE_LIBRARY = "\n".join(
    Path(__file__).with_name(name).read_text(encoding="utf-8")
    for name in ("cuda_stage_intrinsics.cuh", "cuda_stages.cuh")
)


@dataclass(frozen=True)
class Stage:
    """One kernel of a persistent kernel: its tile function, and the text of each operand.

    An operand is a Python expression of a tensor with a fixed address, or the index of a tensor that each launch gives.
    """

    function: TileFunction
    operands: Mapping[str, str | int]


@dataclass(frozen=True)
class PersistentKernel:
    """A persistent kernel of some stages. `given`: number of tensors that each launch gives."""

    name: str
    stages: Sequence[Stage]
    order: StageOrder
    given: int

    @property
    def functions(self) -> list[TileFunction]:
        """The distinct tile functions."""
        return list({s.function.name: s.function for s in self.stages}.values())

    @property
    def width(self) -> int:
        """Numbers in a row of the table."""
        return 3 + 2 * self.order.most + max(len(f.args) for f in self.functions)

    @property
    def table_bytes(self) -> int:
        """Bytes of the table, and of a flag behind it, rounded up to lines of memory."""
        return -(-(8 * self.width * len(self.stages) + 8) // 128) * 128

    @property
    def room(self) -> int:
        """Bytes of shared memory of a block."""
        return self.table_bytes + max(min(THREADS // f.threads, 15) * _room(f) for f in self.functions)

    @property
    def counters(self) -> int:
        """Numbers of counters: of each stage, of blocks at the end, and of the tiles of split reductions."""
        return APART * (len(self.stages) + 1) + sum(_aligned(s.function.counters) for s in self.stages)

    def rows(self, counters: str) -> list[str]:
        """Rows of the table as Python texts: tensors, and numbers. `counters`: the variable of the counters."""
        kinds = {f.name: i for i, f in enumerate(self.functions)}
        found, before, split = [], 0, APART * (len(self.stages) + 1)
        for i, stage in enumerate(self.stages):
            f = stage.function
            operands = {"counters": f"{counters}[{split}:]", **stage.operands}
            waits = [x for j in self.order.waits[i] for x in (j, self.stages[j].function.tiles)]
            values = [operands[a] for a in f.args]
            texts = [str(~v) if isinstance(v, int) else v for v in values]
            row = [str(v) for v in (kinds[f.name], f.tiles, before, *waits)]
            row += ["0"] * (3 + 2 * self.order.most - len(row))
            row += texts
            found.append(f"[{', '.join(row + ['0'] * (self.width - len(row)))}]")
            before += f.tiles
            split += _aligned(f.counters)
        return found

    @property
    def text(self) -> str:
        """The CUDA C++ source, without the library and the tile functions."""
        count, width, most = len(self.stages), self.width, self.order.most
        given = ", ".join(f"given{i}" for i in range(self.given)) or "nullptr"
        parameters = ["const long long* table", "int* done", *(f"void* given{i}" for i in range(self.given))]
        own = f"own_stage<{count}, {width}>(rows, "
        warm = [line for i, f in enumerate(self.functions) if f.warm for line in self._case(i, f, f"{f.name}_warm")]
        work = [line for i, f in enumerate(self.functions) for line in self._case(i, f, f.name)]
        ahead = [
            f"        if (next < {count}) {{",
            f"            const long long* const row = rows + next * {width};",
            *_switch([f"    {line}" for line in warm], 12), "        }",
        ] if warm else []  # fmt: skip
        return "\n".join([
            f'extern "C" __global__ void __launch_bounds__({THREADS}, 1)',
            f"{self.name}({', '.join(parameters)}) {{",
            "    BLOCK_ROOM(room);",
            "    long long* const rows = reinterpret_cast<long long*>(room);",
            f"    char* const place = room + {self.table_bytes};",
            f"    void* const given[] = {{{given}}};",
            f"    copy_table<{THREADS}, {width * count}>(rows, table, given);",
            f"    for (int stage = {own}0), next; stage < {count}; stage = next) {{",
            f"        next = {own}stage + 1);",
            *ahead,
            f"        const long long* const row = rows + stage * {width};",
            f"        await_stages<{most}>(row, done);",
            *_switch(work, 8),
            "        finish_stage(done, stage, Share(row).count());",
            "    }",
            f"    leave<{count}, {THREADS}>(done, reinterpret_cast<bool*>(rows + {width * count}));",
            "}", "",
        ])  # fmt: skip

    def _case(self, kind: int, f: TileFunction, name: str) -> list[str]:
        """Lines of a stage's tiles, in the switch over kinds."""
        first = 3 + 2 * self.order.most
        given = ", ".join(f"({t})row[{first + i}]" for i, t in enumerate(f.types))
        call = f"{name}(turn.block, turn.program, {given});"
        turns = f"Turns<{f.threads}, {THREADS}, {_room(f)}> turn(Share(row), place)"
        if name != f.name:  # only the first tile
            return [f"case {kind}: {{ {turns}; if (turn.more()) {call} break; }}"]
        return [
            f"case {kind}: {{",
            f"    begin_groups<{f.threads}>();",
            f"    for ({turns}; turn.more(); turn.next()) {call}",
            "    end_groups();", "    break;", "}",
        ]  # fmt: skip


def refusal(f: TileFunction) -> str:
    """Why a tile function cannot be a stage; empty if it can."""
    if THREADS % f.threads:
        return f"{f.threads} threads"
    if min(THREADS // f.threads, 15) * _room(f) > ROOM - TABLE:
        return f"{f.room} bytes of shared memory for {f.threads} threads"
    return ""


def _aligned(counters: int) -> int:
    """Counters of which the next stage's begin at a multiple of 16 bytes."""
    return -(-counters // 4) * 4


def _room(f: TileFunction) -> int:
    return -(-f.room // 128) * 128


def _switch(cases: Sequence[str], indent: int) -> list[str]:
    """Lines of a switch over the kind of a row."""
    space = " " * indent
    return [f"{space}switch (int(row[0])) {{", *(f"{space}{line}" for line in cases), f"{space}}}"]
