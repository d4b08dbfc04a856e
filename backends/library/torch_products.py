"""Declares Torch CPU kernels for matrix products: eager GEMMs, and MKL and oneDNN GEMMs with packed weights and fused
epilogues."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel, identify
from .torch_calls import (
    PRODUCTS,
    SINGLE,
    batched_code,
    batches_merge,
    bias_line,
    filled,
    flat_code,
    relu_after,
    residual_fits,
    two_d,
)
from .torch_rows import one_float, packs, row, usable_if


def _packed_rows(call: Call) -> int:
    return prod(call.packed_for("x")[:-1])


def _packed(function: str) -> Callable[[Call], str]:
    """Code of a weight preparation that packs a matrix for the number of rows of x, by the helper `function`."""

    def code(call: Call) -> str:
        return f"{function}({call.names['w']}, {_packed_rows(call)})"

    identify(code, f"torch.packed[{function}]")
    return code


def _mkl_code(bias: bool) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        n, rows = call.names, _packed_rows(call)
        return f"torch.ops.mkl._mkl_linear.default({n['x']}, *{n['w']}, {n['b'] if bias else None}, {rows})"

    identify(code, f"torch.mkl[{bias}]")
    return code


#: activation pattern -> oneDNN's (name, algorithm)
EPILOGUES = {
    "relu({})": ("relu", ""),
    "gelu({})": ("gelu", "none"),
    "gelu_tanh({})": ("gelu", "tanh"),
    "silu({})": ("swish", ""),
    "sigmoid({})": ("sigmoid", ""),
    "tanh({})": ("tanh", ""),
    "hard_swish({})": ("hardswish", ""),
}


def _onednn_linear(act: str, algorithm: str, bias: bool) -> str:
    if act == "relu":
        return relu_after(_onednn_linear("none", "", bias))
    return (
        "torch.ops.mkldnn._linear_pointwise.default({x}, {w}, "
        + f"{'{b}' if bias else None}, {act!r}, [], {algorithm!r})"
    )


def products() -> list[LibraryKernel]:
    """Library kernels for matrix products that run Torch code on the CPU."""
    more: dict[str, Any] = {"family": "contraction"}
    packed: dict[str, Any] = {**more, "dense": ("*",), "applies": usable_if(SINGLE, two_d, bias_line, filled)}
    onednn: dict[str, Any] = {
        **packed,
        "applies": usable_if(packs, two_d, bias_line, filled),
        "prep": {"w": _packed("onednn_pack")},
        "setup": ("onednn_pack",),
    }
    mkl: dict[str, Any] = {**packed, "prep": {"w": _packed("mkl_pack")}, "setup": ("mkl_pack",)}
    transposed: dict[str, Any] = {
        **packed,
        "prep": {"w": "{w}.t().contiguous()"},
        "applies": usable_if(one_float, two_d, bias_line),
    }
    rows = [
        row("matmul", "matmul(x, w)", "torch.matmul({x}, {w}, out={out})", applies=one_float, **more),
        row("mm", "matmul(x, w)", flat_code("torch.mm({x2}, {w}, out={out2})"), dense=("x",), applies=usable_if(one_float, two_d), **more),
        row("bmm", "matmul(x, w)", batched_code("torch.bmm({x}, {w}, out={out})"), applies=usable_if(one_float, batches_merge), **more),
        row("addmm", "linear(x, w, b)", flat_code("torch.addmm({b}, {x2}, {w}, out={out2})"), dense=("x",),
            applies=one_float, **more),
        row("addmm_residual", "matmul(x, w) + r",
            flat_code("torch.addmm({r2}, {x2}, {w}, out={out2})"), dense=("x", "r"),
            applies=usable_if(one_float, two_d, residual_fits), inplace=("r",), **more),
        row("addmm_residual_left", "r + matmul(x, w)",
            flat_code("torch.addmm({r2}, {x2}, {w}, out={out2})"), dense=("x", "r"),
            applies=usable_if(one_float, two_d, residual_fits), inplace=("r",), **more),
    ]  # fmt: skip
    for suffix, pattern, bias in PRODUCTS:
        b = "{b}" if bias else "None"
        rows += [
            row(f"linear{suffix}", pattern, f"torch._C._nn.linear({{x}}, {{w}}, {b}, out={{out}})", **transposed),
            row(f"mkl{suffix}", pattern, _mkl_code(bias), **mkl),
            row(f"onednn{suffix}", pattern, _onednn_linear("none", "", bias), **onednn),
        ]
        for epilogue, (act, algorithm) in EPILOGUES.items():
            name = epilogue.partition("(")[0]
            rows.append(
                row(f"onednn{suffix}_{name}", epilogue.format(pattern), _onednn_linear(act, algorithm, bias), **onednn)
            )
        add = f"torch.ops.mkldnn._linear_pointwise.binary({{x}}, {{r}}, {{w}}, {b}, 'add')"
        residual = {**onednn, "applies": usable_if(packs, two_d, bias_line, filled, residual_fits)}
        rows += [
            row(f"onednn{suffix}_residual", f"{pattern} + r", add, **residual),
            row(f"onednn{suffix}_residual_left", f"r + {pattern}", add, **residual),
        ]
    return rows
