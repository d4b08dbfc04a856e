"""The library of CUDA C++ kernels whose warps have roles (cuda_roles.cuh), beside that of all kernels: for Hopper alone."""

from __future__ import annotations

from pathlib import Path

COLUMNS = (64, 128, 192, 256)  # of one instruction of the matrix unit
GROUPS, GROUP = 2, 64  # groups of four warps that multiply; rows of one of them in an instruction


def _product(columns: int) -> str:
    """One instruction: 64 rows times so many columns, 16 elements of the sum. Sums lie as the library wants them: 64 columns, rows 8
    apart, 8 columns, neighbours; the instruction has 8 columns outside of the rows."""
    count = columns // 2
    spots = [(j // 8, i * 16 + j % 8 * 2 + c) for j in range(columns // 8) for i in (0, 1) for c in (0, 1)]
    sums = ", ".join(f'"+f"(x[{piece}][{at}])' for piece, at in spots)
    names = ", ".join(f"%{i}" for i in range(count))
    return (
        f"template <> struct Product<TYPE, {columns}> {{ \\\n"
        "    template <bool LEFT_DOWN, bool RIGHT_DOWN> \\\n"
        f"    static DEVICE void add(float (&x)[{columns // 64}][32], unsigned long long a, unsigned long long b, bool more) {{ \\\n"
        f'        asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{count + 2}, 0;\\n" \\\n'
        f'            "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32." NAME "." NAME " {{{names}}}, %{count}, %{count + 1}, '
        f'p, 1, 1, %{count + 3}, %{count + 4};\\n}}" \\\n'
        f'            : {sums} : "l"(a), "l"(b), "r"((int)more), "n"(LEFT_DOWN), "n"(RIGHT_DOWN)); \\\n'
        "    } \\\n}; \\\n"
    )


def _products() -> str:
    return (
        "template <class T, int COLUMNS> struct Product;\n#define PRODUCTS(TYPE, NAME) \\\n"
        + "".join(map(_product, COLUMNS)).rstrip().rstrip("\\")
        + '\nPRODUCTS(bf16, "bf16")\nPRODUCTS(f16, "f16")\n'
    )


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


ROLE_INTRINSICS = _text("cuda_roles_intrinsics.cuh") + _products()
ROLE_LIBRARY = ROLE_INTRINSICS + _text("cuda_roles.cuh")
