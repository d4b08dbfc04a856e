"""Declares a library kernel in C that copies row-major images to channels-last ones, which convolutions in C read."""

from __future__ import annotations

from math import prod

from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel, identified
from ..library.torch_calls import SINGLE, channels_last, extents, filled, is_channels_last
from .convolutions import few_elements
from .functions import c_function

TO_LAST = """/* n row-major images of c channels and s pixels, copied to channels-last ones in blocks of 16 x 16. */
void tiled_to_last(const float *restrict x, float *restrict y, int n, int c, int s)
{
    #pragma omp parallel for schedule(static)
    for (int64_t part = 0; part < (int64_t)n * ((s + 15) / 16); part++) {
        const int64_t image = part / ((s + 15) / 16);
        const int begin = (int)(part % ((s + 15) / 16)) * 16, end = begin + 16 < s ? begin + 16 : s;
        const float *const from = x + image * c * s;
        float *const to = y + image * c * s;
        int k = 0;
        if (end - begin == 16)
            for (; k + 16 <= c; k += 16) {
                float block[16][16];
                for (int j = 0; j < 16; j++)
                    for (int i = 0; i < 16; i++) block[i][j] = from[(int64_t)(k + j) * s + begin + i];
                for (int i = 0; i < 16; i++) __builtin_memcpy(to + (int64_t)(begin + i) * c + k, block[i], sizeof block[i]);
            }
        for (; k < c; k++)
            for (int i = begin; i < end; i++) to[(int64_t)i * c + k] = from[(int64_t)k * s + i];
    }
}
"""


def _fits(call: Call) -> bool:
    """Condition on calls: from a row-major to a channels-last image of float32."""
    x = call.operands["x"]
    return (
        x.type.rank in (3, 4)
        and x.dense
        and is_channels_last(call.output)
        and SINGLE(call)
        and filled(call)
        and few_elements(call)
    )


@identified("c.tiled_to_last")
def _code(call: Call) -> str:
    n, c, *space = extents(call.operands["x"])
    return f"tiled_to_last({call.names['x']}, {call.names['out']}, {n}, {c}, {prod(space)})"


def image_copy_rows() -> list[LibraryKernel]:
    """The copy of row-major images to channels-last ones."""
    return [
        LibraryKernel(
            "c.to_channels_last", "c", "x", _code, family="copy", layout=channels_last, exact=True, applies=_fits,
            **c_function("tiled_to_last", TO_LAST),
        )
    ]  # fmt: skip


__all__ = ["image_copy_rows"]
