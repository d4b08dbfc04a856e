"""Declares library kernels in C for products with a constant matrix, with bias, residual and activation fused.

A product of rows by a matrix is a direct convolution of 1 x 1 (tiled_products.py) whose pixels are the rows. A call
costs less than one of oneDNN or MKL through Torch, is joined with neighbouring C kernels, and writes to memory that the
plan has assigned.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from ...extract.model.kernel import Call, Code
from ...extract.model.library_kernel import LibraryKernel, identified, identify
from ..library.torch_calls import (
    PRODUCTS,
    SINGLE,
    bias_line,
    both,
    extents,
    filled,
    residual_fits,
    rows_in,
    two_d,
    usable,
)
from . import convolutions
from .call_facts import SIDES, ending, few_elements
from .convolutions import BIAS, RESIDUAL, SOURCE, VERSION

#: Activation pattern -> its number in C: those of convolutions that have no attributes, and GELU.
ACTIVATIONS = {p: n for p, n in convolutions.ACTIVATIONS.items() if "=" not in p} | {"gelu({})": 5, "gelu_tanh({})": 6}


def known_sizes(call: Call) -> bool:
    """Condition on calls: all sizes are known numbers."""
    return all(isinstance(d, int) for o in call.buffers.values() for d in extents(o))


@identified("c.linear_packed")
def _pack(call: Call) -> str:
    return f"conv_packed({call.names['w']}.T[:, :, None, None], 1)"


def _code(bias: bool, residual: bool, act: int) -> Code:
    def code(call: Call) -> str:
        names = [call.names[o] for o in ("x", "w", "b" if bias else "x", "r" if residual else "x", "out", "x")]
        m, (k, n) = rows_in(call.operands["x"]), extents(call.operands["w"])
        image = f"1, 1, {m}, {k}, {m * k}, 1, {m * k}, {k}, 1, {m}, {n}"
        flags = BIAS * bias + RESIDUAL * residual
        return f"tiled_conv({', '.join(names)}, {image}, 1, 1, 1, 1, 1, 1, 1, 0, 0, {flags}, {act}, 0, 0)"

    identify(code, f"c.tiled_linear[{bias},{residual},{act}]")
    return code


def linear_rows() -> list[LibraryKernel]:
    """Library kernels for products with a constant matrix: with and without bias, activation, and a residual that is
    added before the activation."""
    found: list[LibraryKernel] = []
    fits = both(usable, SINGLE, two_d, bias_line, filled, known_sizes, few_elements)
    more: dict[str, Any] = {
        "family": "contraction", "dense": ("*",), "prep": {"w": _pack}, "source": lambda call: SOURCE, "version": VERSION,
        "setup": ("address", "c_function", "c_library", "from_cache_line", "conv_packed"),
    }  # fmt: skip
    for (suffix, pattern, bias), (side, text), (spelled, act) in product(PRODUCTS, SIDES.items(), ACTIVATIONS.items()):
        residual = side != ""
        if residual and act > 1:
            continue
        inner = text.format(f"({pattern})" if " + " in pattern and side == "_residual_left" else pattern)
        found.append(
            LibraryKernel(
                f"c.tiled_linear{suffix}{side}{ending(spelled)}", "c", spelled.format(inner), _code(bias, residual, act),
                applies=both(fits, residual_fits) if residual else fits, inplace=("r",) if residual else (), **more,
            )
        )  # fmt: skip
    return found


__all__ = ["known_sizes", "linear_rows"]
