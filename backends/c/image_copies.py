"""Declares library kernels in C that copy row-major images to channels-last ones, which convolutions in C read, and
back."""

from __future__ import annotations

from math import prod

from ...extract.model.kernel import Call, Code
from ...extract.model.library_kernel import LibraryKernel, identify
from ..library.torch_calls import SINGLE, both, channels_last, extents, filled, is_channels_last, of
from .call_facts import few_elements
from .functions import c_function

_TO_LAST = """/* n row-major images of c channels and s pixels, copied to channels-last ones in blocks of 16 x 16. */
void NAME(const KIND *restrict x, KIND *restrict y, int n, int c, int s)
{
    #pragma omp parallel for schedule(static)
    for (int64_t part = 0; part < (int64_t)n * ((s + 15) / 16); part++) {
        const int64_t image = part / ((s + 15) / 16);
        const int begin = (int)(part % ((s + 15) / 16)) * 16, end = begin + 16 < s ? begin + 16 : s;
        const KIND *const from = x + image * c * s;
        KIND *const to = y + image * c * s;
        int k = 0;
        if (end - begin == 16)
            for (; k + 16 <= c; k += 16) {
                KIND block[16][16];
                for (int j = 0; j < 16; j++)
                    for (int i = 0; i < 16; i++) block[i][j] = from[(int64_t)(k + j) * s + begin + i];
                for (int i = 0; i < 16; i++) __builtin_memcpy(to + (int64_t)(begin + i) * c + k, block[i], sizeof block[i]);
            }
        for (; k < c; k++)
            for (int i = begin; i < end; i++) to[(int64_t)i * c + k] = from[(int64_t)k * s + i];
    }
}
"""


#: suffix of the kernel's name -> (dtypes, C type, C function)
KINDS = {"": (SINGLE, "float", "tiled_to_last"), "_bytes": (of("uint8", "int8"), "uint8_t", "byte_images_to_last")}


def _fits(call: Call) -> bool:
    """Condition on calls: from a row-major to a channels-last image."""
    x = call.operands["x"]
    return x.type.rank in (3, 4) and x.dense and is_channels_last(call.output) and filled(call) and few_elements(call)


def _back(call: Call) -> bool:
    """Condition on calls: from a channels-last to a row-major image."""
    x = call.operands["x"]
    return not x.dense and is_channels_last(x) and filled(call) and few_elements(call)


def _code(function: str, back: bool) -> Code:
    def code(call: Call) -> str:
        n, c, *space = extents(call.operands["x"])
        rows, columns = (prod(space), c) if back else (c, prod(space))  # a row-major matrix is transposed
        return f"{function}({call.names['x']}, {call.names['out']}, {n}, {rows}, {columns})"

    return identify(code, f"c.{function}[back]" if back else f"c.{function}")


def image_copy_rows() -> list[LibraryKernel]:
    """The copies of row-major images of float32 and of bytes to channels-last ones, and back."""
    ways = (("to", False, _fits, channels_last), ("from", True, _back, None))
    return [
        LibraryKernel(
            f"c.{way}_channels_last{suffix}", "c", "x", _code(function, back), family="copy", layout=layout, exact=True,
            applies=both(kinds, fits), **c_function(function, _TO_LAST.replace("NAME", function).replace("KIND", kind)),
        )
        for suffix, (kinds, kind, function) in KINDS.items()
        for way, back, fits, layout in ways
    ]  # fmt: skip


__all__ = ["image_copy_rows"]
