"""Declares Torch GPU matrix products: cuBLAS and cuBLASLt, in TF32 where the tolerance allows it, and with padded
weights."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ...egraph.types import dtypes
from ...extract.model.kernel import Call, Operand, Template
from ...extract.model.library_kernel import LibraryKernel, identify
from ..ir.precision import LIBRARY_TF32, TF32
from ..ir.tensor_maps import padded_row
from ..runtime.views import view_strides
from .torch_calls import (
    PRODUCTS,
    Applies,
    batched_code,
    batches_merge,
    bias_line,
    both,
    equal_batches,
    extents,
    flat_code,
    residual_fits,
    rows_in,
    two_d,
)
from .torch_cuda_rows import FLOAT, floats, halves, row, single, uniform

#: Weight layouts: as stored, or column-major. cuBLAS accepts either, at different speeds.
ORDERS: dict[str, dict[str, Any]] = {"": {}, "_columns": {"prep": {"w": "{w}.t().contiguous().t()"}}}


#: Activations available as cuBLASLt epilogues: pattern -> option.
EPILOGUES = {"relu({})": "False", "gelu_tanh({})": "True"}


def merges(operand: str) -> Applies:
    """Make the condition on calls that the operand named `operand` can be viewed as a matrix, with all axes but the
    last merged."""

    def fits(call: Call) -> bool:
        o = call.operands[operand]
        return view_strides("reshape", {"shape": (rows_in(o), extents(o)[-1])}, o) is not None

    return fits


def products() -> list[LibraryKernel]:
    """Library kernels for matrix products on the GPU. Kernels for operands of one floating-point dtype come in two
    variants: the second one, for float32 operands, uses TF32, which rounds the operands to fewer bits."""
    more: dict[str, Any] = {"family": "contraction"}
    flat = both(FLOAT, two_d, merges("x"), bias_line)
    residual = both(flat, residual_fits, merges("r"))
    found = [
        row("bmm", "matmul(x, w)", batched_code("torch.bmm({x}, {w}, out={out})"), applies=both(FLOAT, batches_merge), **more),
        row("matmul", "matmul(x, w)", "torch.matmul({x}, {w}, out={out})",
            applies=both(FLOAT, lambda c: not flat(c) and not batches_merge(c)), **more),
        row("matmul_wide", "matmul(x, w)", "{out}.copy_(torch.matmul({x}.float(), {w}.float()))",
            applies=lambda c: not uniform(c), mixed=True, **more),
        row("mm_wide", "matmul(x, w)", flat_code("torch.ops.aten.mm.dtype_out({x2}, {w}, torch.float32, out={out2})"),
            applies=both(two_d, merges("x"), _widening), mixed=True, **more),
        row("matmul_int", "matmul(x, w)", "{out}.copy_(int_matmul({x}, {w}))", setup=("int_matmul",), applies=lambda c: not floats(c)),
        row("linear", "linear(x, w, b)", "torch.add(torch.matmul({x}, {w}), {b}, out={out})",
            applies=both(FLOAT, lambda c: not flat(c)), **more),
        row("linear_wide", "linear(x, w, b)", "{out}.copy_(torch.matmul({x}.float(), {w}.float()) + {b})",
            applies=lambda c: not uniform(c), mixed=True, **more),
    ]  # fmt: skip
    for side, pattern in (("", "matmul(x, w) + r"), ("_left", "r + matmul(x, w)")):
        batched = both(FLOAT, batches_merge, equal_batches, residual_fits)
        found.append(row(f"baddbmm{side}", pattern, batched_code("torch.baddbmm({r}, {x}, {w}, out={out})"),
                         applies=batched, inplace=("r",), **more))  # fmt: skip
    for order, style in ORDERS.items():
        for suffix, pattern, bias in PRODUCTS:
            text = "torch.addmm({b}, {x2}, {w}, out={out2})" if bias else "torch.mm({x2}, {w}, out={out2})"
            found.append(row(f"mm{suffix}{order}", pattern, flat_code(text), applies=flat, **style, **more))
            for epilogue, gelu in EPILOGUES.items() if bias else ():
                name = f"mm{suffix}_{epilogue.partition('(')[0]}{order}"
                text = f"torch._addmm_activation({{b}}, {{x2}}, {{w}}, use_gelu={gelu}, out={{out2}})"
                found.append(row(name, epilogue.format(pattern), flat_code(text), applies=flat, **style, **more))
        for side, pattern in (("", "matmul(x, w) + r"), ("_left", "r + matmul(x, w)")):
            text = "torch.addmm({r2}, {x2}, {w}, out={out2})"
            found.append(row(f"mm_residual{side}{order}", pattern, flat_code(text), applies=residual,
                             inplace=("r",), **style, **more))  # fmt: skip
    return [*found, *map(_in_tf32, filter(_multiplies, found)), *_even_products(both(flat, _uneven))]


def _widening(call: Call) -> bool:
    """Whether operands have one 16-bit dtype and the result is float32, as weights' gradients under autocast are."""
    kinds = {call.operands[n].type.dtype for n in "xw"}
    return len(kinds) == 1 and kinds <= {*dtypes.HALVES} and call.output.type.dtype == "float32"


def _even_products(applies: Applies) -> list[LibraryKernel]:
    """Templates of products with weights padded at load time, for sizes at which libraries use slow kernels for
    unaligned rows."""
    more: dict[str, Any] = {
        "family": "contraction",
        "prep": {"w": "evened({w})"},
        "setup": ("evened", "room_of", "even_product"),
    }
    text = "even_product({x2}, {w}, {out2}, {scratch}"
    return [
        row(f"mm{suffix}_even", pattern, flat_code(f"{text}, {{b}})" if bias else f"{text})"), applies=applies,
            scratch=_even_room, **more)
        for suffix, pattern, bias in PRODUCTS
    ]  # fmt: skip


def rows_apart(template: Template) -> bool:
    """Whether each row of a product's result depends on the same row of its operands `x` and `r` (viewed as matrices)
    only, so that it can be computed together with further rows of any values."""
    return template.name.startswith("cuda.mm") and "_even" not in template.name


def _uneven(call: Call) -> bool:
    """Whether a 16-bit product has unaligned columns or K, and is large enough for padding to pay off."""
    w = call.operands["w"]
    return halves(call) and bool(_odd(w)) and min(*extents(w), rows_in(call.output)) >= padded_row(1, w.type.dtype)


def _odd(matrix: Operand) -> list[int]:
    """The sizes of a matrix that are not multiples of 16 bytes."""
    return [s for s in extents(matrix) if padded_row(s, matrix.type.dtype) != s]


def _even_room(call: Call) -> int:
    """Bytes of scratch memory for a padded result and for padded rows of the operand."""
    w = call.operands["w"]
    beside = sum(padded_row(s, w.type.dtype) for s in _odd(w))
    return rows_in(call.output) * beside * dtypes.itemsize(w.type.dtype)


_PRODUCT = re.compile(r"torch\.(?:bmm|mm|addmm|baddbmm|matmul|_addmm_activation)\b")


def _multiplies(t: LibraryKernel) -> bool:
    """Whether a template gets a TF32 variant: it is a product with a single float dtype."""
    return not t.name.endswith(("_wide", "_int"))


def _in_tf32(t: LibraryKernel) -> LibraryKernel:
    """The TF32 variant of a product's template."""

    def code(call: Call) -> str:
        return _PRODUCT.sub(r"in_tf32(\g<0>,", t.write(call), count=1).replace(",(", ", ", 1)

    identify(code, f"torch_cuda_products.in_tf32[{t.identity}]")
    return replace(
        t,
        name=f"{t.name}_tf32",
        code=code,
        applies=both(t.applies, single),
        setup=(*t.setup, "in_tf32"),
        loss=LIBRARY_TF32,
        rate=TF32.rate,
    )
