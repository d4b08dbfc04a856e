"""Declares NumPy kernels for matrix products, convolutions, pooling, recurrent layers and attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...egraph.ops.ops import OPS
from ...egraph.types.dims import concrete
from ...extract.model.kernel import Call, Code
from ...extract.model.library_kernel import LibraryKernel, identified, identify
from ..ir.source_text import literal
from .numpy_rows import every, has_halves, of_kind, row, sizes, wide_floats
from .scratch import ScratchBuffer, ScratchBuffers, compute_dtype, shape_of, with_scratch, work

#: Pattern of the op `recurrent` and format string of its attributes.
RECURRENT = "recurrent(x, s, w, " + ", ".join(f"{a}={a}" for a in OPS["recurrent"].attrs) + ")"
RECURRENT_ATTRS = ", ".join("{" + a + "}" for a in OPS["recurrent"].attrs)


def _with_padding(call: Call, dtype: str) -> ScratchBuffer | str:
    pads, (n, c, *space) = call.attrs["pads"], shape_of(call, "x")
    if not any(pads) and dtype == call.operands["x"].type.dtype:
        return "x"
    return (n, c, *(pads[i] + d + pads[len(space) + i] for i, d in enumerate(space))), dtype


def _around(call: Call) -> ScratchBuffers:
    return {"around": _with_padding(call, call.operands["x"].type.dtype)}


def _around_and_sums(call: Call) -> ScratchBuffers:
    return {"around": _with_padding(call, compute_dtype(call)), "work": work(call)}


def _scores(call: Call) -> ScratchBuffers:
    *batch, m, _ = shape_of(call, "out")
    kind, n = compute_dtype(call), shape_of(call, "k")[-2]
    inputs: ScratchBuffers = {
        f"{o}32": o if call.operands[o].type.dtype == kind else (shape_of(call, o), kind) for o in "qkv"
    }
    return {**inputs, "scores": ((*batch, m, n), kind), "stat": ((*batch, m, 1), kind), "work": work(call)}


def masked_by_operand_only(call: Call) -> bool:
    """Whether attention has neither a causal mask nor a window: only its operand `h` masks scores."""
    return not call.attrs["causal"] and not call.attrs["window"]


@identified("numpy._attention_text")
def _attention_text(call: Call) -> str:
    """Code that widens operands if needed, then calls the helper `attention` with a precomputed mask of hidden
    scores, or with the operand `h`."""
    a, m, n = call.attrs, shape_of(call, "q")[-2], shape_of(call, "k")[-2]
    copies = "".join(
        f"np.copyto({{{o}32}}, {{{o}}}); " for o in "qkv" if call.operands[o].type.dtype != compute_dtype(call)
    )
    hidden = f"hidden_scores({m}, {n}, {a['causal']}, {a['window']})" if a["causal"] or a["window"] else "None"
    hidden = "{h}" if "h" in call.operands else hidden
    mask = "{m}" if "m" in call.operands else "None"
    return (
        f"{copies}attention({{q32}}, {{k32}}, {{v32}}, {mask}, {hidden}, {{scale}}, {{softcap}}, {{scores}}, {{stat}}, "
        "{work}, {out})"
    )


def _rows(call: Call, name: str) -> str:
    """The operand viewed as a matrix: all axes but the last merged."""
    operand = call.output if name == "out" else call.operands[name]
    shape = sizes(operand)
    if len(shape) == 2:
        return call.names[name]
    count = 1
    for d in shape[:-1]:
        count *= d
    return f"{call.names[name]}.reshape({count}, {shape[-1]})"


def _gemm_code(bias: bool) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        out = call.names["out"]
        text = f"np.matmul({_rows(call, 'x')}, {call.names['w']}, out={_rows(call, 'out')})"
        return f"{text}; np.add({out}, {call.names['b']}, out={out})" if bias else text

    identify(code, f"numpy.gemm[{bias}]")
    return code


def _batched(call: Call) -> bool:
    """Whether x is a batch of matrices with one right-hand matrix for all, so that one GEMM over all rows computes the
    products."""
    x = call.operands["x"].type
    return (
        wide_floats(call)
        and x.rank > 2
        and call.operands["w"].type.rank == 2
        and concrete(x.shape)[:-2] != (1,) * (x.rank - 2)
    )


def contractions() -> list[LibraryKernel]:
    """Make the library kernels, in NumPy code, for matrix products, convolutions, pooling, recurrent layers and
    attention."""
    more: dict[str, Any] = {"family": "contraction"}
    column_major: dict[str, Code] = {"w": "np.asfortranarray({w})"}
    halves = "np.copyto({out}, np.matmul({x}.astype(np.float32), {w}.astype(np.float32)), casting='unsafe')"
    conv = {"strides": "strides", "pads": "pads", "dilations": "dilations", "groups": "groups"}
    geometry = ", ".join(f"{k}={v}" for k, v in conv.items())
    values = "{strides}, {pads}, {dilations}, {groups}"
    pool = "kernel=kernel, strides=strides, pads=pads, dilations=dilations"
    attention = "scale=scale, causal=causal, window=window, softcap=softcap"
    return [
        row("matmul", "matmul(x, w)", "np.matmul({x}, {w}, out={out})", applies=every(wide_floats, of_kind("float")),
            exact=True, **more),
        row("matmul_int", "matmul(x, w)", "integer_product({x}, {w}, {out})", applies=of_kind("int", "bool"), family="other",
            setup=("integer_product",), rate=0.25, version="2", exact=True),
        row("matmul_half", "matmul(x, w)", halves, applies=has_halves, exact=True, **more),
        row("matmul_flat", "matmul(x, w)", _gemm_code(bias=False), dense=("x", "w"), applies=_batched, **more),
        row("matmul_columns", "matmul(x, w)", _gemm_code(bias=False), dense=("x",), prep=column_major,
            applies=every(wide_floats, _two_d), **more),
        row("linear", "linear(x, w, b)", _gemm_code(bias=True), dense=("x",), applies=wide_floats, **more),
        row("linear_columns", "linear(x, w, b)", _gemm_code(bias=True), dense=("x",), prep=column_major, applies=wide_floats, **more),
        row("linear_half", "linear(x, w, b)", halves.replace("np.matmul", "{b} + np.matmul"), applies=has_halves, **more),
        row("conv", f"conv(x, w, {geometry})", f"conv({{x}}, {{w}}, {values}, {{out}})", family="conv", setup=("conv",),
            applies=of_kind("float")),
        row("conv_int", f"conv(x, w, {geometry})", f"conv({{x}}, {{w}}, {values}, {{out}})", family="other", setup=("conv",),
            applies=of_kind("int", "bool")),
        row("defined_conv", f"conv(x, w, {geometry})", f"defined_conv({{x}}, {{w}}, {values}, {{out}})", family="conv",
            setup=("defined_conv",), exact=True),
        row("conv_prepared", f"conv(x, w, {geometry})", "{w}({x}, {out})", family="conv", setup=("conv_plan",),
            prep={"w": _conv_plan}, applies=wide_floats),
        row("conv_1x1", f"conv(x, w, {geometry})", _pointwise_conv_code, family="conv", dense=("*",), applies=every(wide_floats, _is_1x1)),
        row("max_pool", f"max_pool(x, {pool})", family="reduction", setup=("pool",), exact=True, **with_scratch(
            "pool({x}, np.maximum, -inf, {kernel}, {strides}, {pads}, {dilations}, {around}, {out}, {out})", _around)),
        row("avg_pool", f"avg_pool(x, {pool})", family="reduction", setup=("pool",), **with_scratch(
            "pool({x}, np.add, 0, {kernel}, {strides}, {pads}, {dilations}, {around}, {work}, {out})", _around_and_sums)),
        row("recurrent", RECURRENT, "np.copyto({out}, recurrent({x}, {s}, {w}, " + RECURRENT_ATTRS + "))", setup=("recurrent",),
            exact=True, **more),
        row("attention", f"attention(q, k, v, {attention})", family="attention", setup=("attention", "hidden_scores"),
            **with_scratch(_attention_text, _scores)),
        row("masked_attention", f"masked_attention(q, k, v, m, {attention})", family="attention",
            setup=("attention", "hidden_scores"), **with_scratch(_attention_text, _scores)),
        row("hiding_attention", f"hiding_attention(q, k, v, h, {attention})", family="attention", setup=("attention",),
            applies=masked_by_operand_only, **with_scratch(_attention_text, _scores)),
    ]  # fmt: skip


def _two_d(call: Call) -> bool:
    return call.operands["w"].type.rank == 2


@identified("numpy._conv_plan")
def _conv_plan(call: Call) -> str:
    a = call.attrs
    geometry = ", ".join(literal(a[k]) for k in ("strides", "pads", "dilations", "groups"))
    x = call.operands["x"]
    return f"conv_plan({call.names['w']}, {literal(sizes(x))}, {geometry})"


def _is_1x1(call: Call) -> bool:
    a = call.attrs
    return (
        set(sizes(call.operands["w"])[2:]) == {1}
        and a["groups"] == 1
        and set(a["strides"]) == {1}
        and set(a["pads"]) == {0}
    )


@identified("numpy._pointwise_conv_code")
def _pointwise_conv_code(call: Call) -> str:
    n, (batch, channels, *space) = call.names, sizes(call.operands["x"])
    outputs, size = sizes(call.output)[1], 1
    for d in space:
        size *= d
    return (
        f"np.matmul({n['w']}.reshape({outputs}, {channels}), {n['x']}.reshape({batch}, {channels}, {size}), "
        f"out={n['out']}.reshape({batch}, {outputs}, {size}))"
    )
