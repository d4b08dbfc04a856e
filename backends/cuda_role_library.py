"""The library of CUDA C++ kernels whose warps have roles (cuda_roles.cuh), beside that of all kernels: for Hopper alone."""

from __future__ import annotations

from pathlib import Path

COLUMNS = tuple(range(64, 257, 16))  # of one instruction of the matrix unit, that are worth writing
PIECE = 64  # columns of results that leave together
GROUPS, GROUP = 2, 64  # groups of four warps that multiply; rows of one of them in an instruction


def product_text(columns: int) -> str:
    """One instruction in two dtypes: 64 rows times so many columns, 16 elements of the sum. Sums lie as the library wants them:
    pieces of 64 columns (the last one may be narrower), rows 8 apart, 8 columns, neighbours; the instruction has 8 columns outside
    of the rows."""
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


ROLE_INTRINSICS = _text("cuda_roles_intrinsics.cuh")
ROLE_LIBRARY = ROLE_INTRINSICS + _text("cuda_roles.cuh")
