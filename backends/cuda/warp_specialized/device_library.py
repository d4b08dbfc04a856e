"""CUDA C++ library text that warp-specialized kernels include (kernel.cuh), for Hopper only; it needs the common
library too."""

from __future__ import annotations

from pathlib import Path

COLUMNS = tuple(range(64, 257, 16))  # N of one wgmma instruction: those worth emitting
PIECE = 64  # columns of a result piece that is stored at once
GROUPS, GROUP = 2, 64  # number of consumer warp groups; rows of one wgmma instruction


def product_text(columns: int) -> str:
    """CUDA source of functions that multiply by the instruction `wgmma.mma_async` m64nNk16 for N = `columns`, in
    bfloat16 and float16.

    Accumulators are in the library's order, [piece of 64 columns (the last may be narrower)][row i or i + 8][8-column
    block][one of two adjacent columns]; the instruction's order has the column block before the row.
    """
    count, pieces = columns // 2, -(-columns // PIECE)
    spots = []
    for j in range(columns // 8):
        piece, at = divmod(j, PIECE // 8)
        wide = min(PIECE, columns - piece * PIECE) // 8
        spots += [(piece, i * 2 * wide + at * 2 + c) for i in (0, 1) for c in (0, 1)]
    sums = ", ".join(f'"+f"(x[{piece}][{at}])' for piece, at in spots)
    names = ", ".join(f"%{i}" for i in range(count))
    return (
        "#define PRODUCT(TYPE, NAME) \\\n"
        f"template <> struct Product<TYPE, {columns}> {{ \\\n"
        "    template <bool LEFT_DOWN, bool RIGHT_DOWN> \\\n"
        f"    static DEVICE void add(float (&x)[{pieces}][32], unsigned long long a, unsigned long long b, bool more) {{ \\\n"
        f'        asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{count + 2}, 0;\\n" \\\n'
        f'            "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32." NAME "." NAME " {{{names}}}, %{count}, %{count + 1}, '
        f'p, 1, 1, %{count + 3}, %{count + 4};\\n}}" \\\n'
        f'            : {sums} : "l"(a), "l"(b), "r"((int)more), "n"(LEFT_DOWN), "n"(RIGHT_DOWN)); \\\n'
        "    } \\\n};\n"
        'PRODUCT(bf16, "bf16")\nPRODUCT(f16, "f16")\n#undef PRODUCT\n'
    )


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


ROLE_INTRINSICS = _text("intrinsics.cuh")
ROLE_LIBRARY = ROLE_INTRINSICS + _text("kernel.cuh")
