"""Torch CPU backend: library kernels as rows of a table.

Elementwise ops and reductions with `out=`, MKL and oneDNN GEMMs and convolutions with packed weights and fused
epilogues, attention, normalisations.

Torch works on NumPy's memory. Only emitted source and `unavailable()` import Torch. A template without `{out}` returns
a new tensor, because Torch cannot write that result to given memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from itertools import product
from math import prod
from typing import Any

from ...egraph.ir import dtypes
from ...egraph.ir.ops import OPS
from ...extract.model.kernel import Call, Code
from ...extract.model.library_kernel import LibraryKernel, identified, identify
from ..contract import BackendBase
from .numpy import RECURRENT, RECURRENT_ATTRS, concats, out_call, spell
from .torch_calls import (
    BITS,
    CONVOLUTIONS,
    FLOATS,
    GEOMETRY,
    NUMBER,
    PRODUCTS,
    SINGLE,
    Applies,
    batched_code,
    batches_merge,
    bias_line,
    both,
    channel_bias,
    channels_last,
    dtypes_of,
    extents,
    filled,
    flat_code,
    half_pads,
    heads_fit,
    is_weight_gradient,
    one_block,
    planar,
    pool_pads,
    residual_fits,
    residual_fits_last,
    some_axes,
    symmetric,
    two_d,
    usable,
    weight_gradient_code,
)
from .torch_helpers import HELPERS


def _FLOAT(call: Call) -> bool:
    """Whether all dtypes of the call are one float dtype."""
    found = dtypes_of(call)
    return len(found) == 1 and found <= set(FLOATS)


def _alike(call: Call) -> bool:
    """Whether all float operands and results of the call have one dtype."""
    return len({d for d in dtypes_of(call) if d in FLOATS}) <= 1


def _packs(call: Call) -> bool:
    """Whether oneDNN packs weights of this dtype: float32, and bfloat16 if the CPU supports it."""
    found = dtypes_of(call)
    return found == {"float32"} or (found == {"bfloat16"} and multiplies_bfloat16())


@cache
def multiplies_bfloat16() -> bool:
    """Whether oneDNN has bfloat16 GEMMs for this CPU."""
    if _unavailable():
        return False
    import torch

    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _all(*conditions: Applies | None) -> Applies:
    return both(usable, *conditions)


def row(name: str, pattern: str, code: Code, *, applies: Applies | None = None, **more: Any) -> LibraryKernel:
    """Template of a library kernel that runs Torch code on the CPU; `more`: further fields of `LibraryKernel`."""
    return LibraryKernel(f"torch.{name}", "torch", pattern, code, applies=_all(applies), **more)


# ---------------------------------------------------------------- pointwise
#: `OutFunction.dtypes` -> condition
_DTYPES: dict[str, Applies | None] = {"any": None, "number": NUMBER, "float": _FLOAT, "bits": BITS}

#: name -> (pattern, code) of activations over x
ACTIVATIONS: dict[str, tuple[str, str]] = {
    "relu": ("relu(x)", "torch.clamp_min({x}, 0, out={out})"),
    "silu": ("silu(x)", "torch._C._nn.silu({x}, out={out})"),
    "gelu": ("gelu(x)", "torch._C._nn.gelu({x}, out={out})"),
    "gelu_tanh": ("gelu_tanh(x)", "torch._C._nn.gelu({x}, approximate='tanh', out={out})"),
    "mish": ("mish(x)", "torch._C._nn.mish({x}, out={out})"),
    "hard_swish": ("hard_swish(x)", "torch._C._nn.hardswish({x}, out={out})"),
    "elu": ("elu(x, alpha=alpha)", "torch._C._nn.elu({x}, {alpha}, out={out})"),
    "leaky_relu": ("leaky_relu(x, alpha=alpha)", "torch._C._nn.leaky_relu({x}, {alpha}, out={out})"),
    "clip": ("clip(x, lo=lo, hi=hi)", "torch.clamp({x}, {lo}, {hi}, out={out})"),
}


def _functions() -> list[LibraryKernel]:
    """Templates of all ops that a Torch function with `out=` computes."""
    found = []
    for op in OPS.values():
        if op.torch_function is not None and op.torch_function.dtypes != "none":
            pattern, names, reused = out_call(op)
            code = f"torch.{op.torch_function.name}({names}, out={{out}})"
            found.append(row(op.name, pattern, code, applies=_DTYPES[op.torch_function.dtypes], inplace=reused))
    return found


def _pointwise() -> list[LibraryKernel]:
    return [
        *_functions(),
        *(
            row(name, pattern, spell(code), inplace=("x",), applies=_alike)
            for name, (pattern, code) in ACTIVATIONS.items()
        ),
        row("softplus", "softplus(x)", "torch._C._nn.softplus({x}, 1, 20, out={out})", inplace=("x",), applies=SINGLE),
        row("square", "x * x", "torch.square({x}, out={out})", inplace=("x",), applies=NUMBER),
        row("where", "where(c, x, y)", "torch.where({c}, {x}, {y}, out={out})", inplace=("x", "y"), applies=_alike),
        row("is_nan", "is_nan(x)", "torch.ne({x}, {x}, out={out})"),
        row("cast", "cast(x, dtype=dtype)", "{out}.copy_({x})", applies=_plain_cast),
        row("mul_add", "x * y + z", "torch.addcmul({z}, {x}, {y}, out={out})", inplace=("z",), applies=_FLOAT),
        row("add_mul", "z + x * y", "torch.addcmul({z}, {x}, {y}, out={out})", inplace=("z",), applies=_FLOAT),
    ]


def _plain_cast(call: Call) -> bool:
    """Whether a cast is to a float, or from int or bool: casts that C and NumPy define alike, unlike float to
    integer."""
    return dtypes.is_float(call.output.type.dtype) or not dtypes.is_float(call.operands["x"].type.dtype)


# ---------------------------------------------------------------- reductions and normalisations


def _width(call: Call) -> str:
    return str(extents(call.operands["x"])[-1])


def _reductions() -> list[LibraryKernel]:
    more: dict[str, Any] = {"family": "reduction", "applies": _all(_FLOAT, some_axes)}
    along = ", {axes}, True, out={out})"
    return [
        row("sum", "sum(x, axes=axes)", "torch.sum({x}" + along, **more),
        row("mean", "mean(x, axes=axes)", "torch.mean({x}" + along, **more),
        row("max", "max(x, axes=axes)", "torch.amax({x}" + along, **more),
        row("min", "min(x, axes=axes)", "torch.amin({x}" + along, **more),
        row("logsumexp", "logsumexp(x, axes=axes)", "torch.logsumexp({x}" + along, **more),
        row("argmax", "argmax(x, axis=axis)", "torch.argmax({x}, {axis}, True, out={out})", family="reduction", applies=NUMBER),
        row("argmin", "argmin(x, axis=axis)", "torch.argmin({x}, {axis}, True, out={out})", family="reduction", applies=NUMBER),
        row("cumsum", "cumsum(x, axis=axis)", "torch.cumsum({x}, {axis}, out={out})", **more),
        row("softmax", "softmax(x, axis=axis)", "torch.softmax({x}, {axis}, out={out})", **more),
        row("log_softmax", "log_softmax(x, axis=axis)", "torch.log_softmax({x}, {axis}, out={out})", **more),
        row("layer_norm", "layer_norm(x, g, b, eps=eps)", spell("torch.layer_norm({x}, ({n},), {g}, {b}, {eps})", n=_width),
            dense=("*",), **more),
        row("layer_norm_out", "layer_norm(x, g, b, eps=eps)", spell("layer_norm_out({x}, {g}, {b}, {eps}, {out})"),
            dense=("*",), setup=("layer_norm_out",), **more),
        row("rms_norm", "rms_norm(x, g, eps=eps)", spell("torch.rms_norm({x}, ({n},), {g}, {eps})", n=_width),
            dense=("*",), **more),
        row("group_norm", "group_norm(x, g, b, groups=groups, eps=eps)",
            spell("torch.group_norm({x}, {groups}, {g}, {b}, {eps}, False)"), dense=("*",), **more),
        row("batch_norm", "batch_norm(x, g, b, m, v, eps=eps)",
            spell("torch.batch_norm({x}, {g}, {b}, {m}, {v}, False, 0.0, {eps}, False)"), dense=("*",), applies=_FLOAT),
    ]  # fmt: skip


# ---------------------------------------------------------------- products


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
    return (
        "torch.ops.mkldnn._linear_pointwise.default({x}, {w}, "
        + f"{'{b}' if bias else None}, {act!r}, [], {algorithm!r})"
    )


def _products() -> list[LibraryKernel]:
    more: dict[str, Any] = {"family": "contraction"}
    packed: dict[str, Any] = {**more, "dense": ("*",), "applies": _all(SINGLE, two_d, bias_line, filled)}
    onednn: dict[str, Any] = {
        **packed,
        "applies": _all(_packs, two_d, bias_line, filled),
        "prep": {"w": _packed("onednn_pack")},
        "setup": ("onednn_pack",),
    }
    mkl: dict[str, Any] = {**packed, "prep": {"w": _packed("mkl_pack")}, "setup": ("mkl_pack",)}
    transposed: dict[str, Any] = {
        **packed,
        "prep": {"w": "{w}.t().contiguous()"},
        "applies": _all(_FLOAT, two_d, bias_line),
    }
    rows = [
        row("matmul", "matmul(x, w)", "torch.matmul({x}, {w}, out={out})", applies=_FLOAT, **more),
        row("mm", "matmul(x, w)", flat_code("torch.mm({x2}, {w}, out={out2})"), dense=("x",), applies=_all(_FLOAT, two_d), **more),
        row("bmm", "matmul(x, w)", batched_code("torch.bmm({x}, {w}, out={out})"), applies=_all(_FLOAT, batches_merge), **more),
        row("addmm", "linear(x, w, b)", flat_code("torch.addmm({b}, {x2}, {w}, out={out2})"), dense=("x",),
            applies=_FLOAT, **more),
        row("addmm_residual", "matmul(x, w) + r",
            flat_code("torch.addmm({r2}, {x2}, {w}, out={out2})"), dense=("x", "r"),
            applies=_all(_FLOAT, two_d, residual_fits), inplace=("r",), **more),
        row("addmm_residual_left", "r + matmul(x, w)",
            flat_code("torch.addmm({r2}, {x2}, {w}, out={out2})"), dense=("x", "r"),
            applies=_all(_FLOAT, two_d, residual_fits), inplace=("r",), **more),
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
        residual = {**onednn, "applies": _all(_packs, two_d, bias_line, filled, residual_fits)}
        rows += [
            row(f"onednn{suffix}_residual", f"{pattern} + r", add, **residual),
            row(f"onednn{suffix}_residual_left", f"r + {pattern}", add, **residual),
        ]
    return rows


# ---------------------------------------------------------------- convolution and pooling


def _clearly_channels_last(call: Call) -> bool:
    """Whether x is unambiguously channels-last: no axis has size 1."""
    sizes = (*extents(call.operands["x"])[1:], *extents(call.output)[1:])
    return planar(call) and min(sizes) > 1 and one_block(call) and not call.operands["x"].dense


def _conv_code(bias: bool) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        n, a = call.names, call.attrs
        zeros = (0,) * len(a["strides"])
        return (
            f"torch.convolution({n['x']}, {n['w']}, {n['b'] if bias else None}, {a['strides']}, {half_pads(call)}, "
            f"{a['dilations']}, False, {zeros}, {a['groups']})"
        )

    identify(code, f"torch.conv[{bias}]")
    return code


@identified("torch._uneven_conv")
def _uneven_conv(call: Call) -> str:
    n, a = call.names, call.attrs
    return f"conv_uneven({n['x']}, {n['w']}, {a['strides']}, {a['pads']}, {a['dilations']}, {a['groups']})"


@identified("torch._conv_pack")
def _conv_pack(call: Call) -> str:
    a, w = call.attrs, call.names["w"]
    return (
        f"torch.ops.mkldnn._reorder_convolution_weight({w}, {half_pads(call)}, {a['strides']}, {a['dilations']}, "
        f"{a['groups']}, {call.packed_for('x')})"
    )


def _onednn_conv(bias: bool, act: str, algorithm: str, residual: bool, copied: bool) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        n, a = call.names, call.attrs
        geometry = f"{half_pads(call)}, {a['strides']}, {a['dilations']}, {a['groups']}"
        b = n["b"] if bias else None
        if residual:
            unary = f"{act!r}, [], {algorithm!r}" if act != "none" else "None, [], None"
            text = (
                f"torch.ops.mkldnn._convolution_pointwise.binary({n['x']}, {n['r']}, {n['w']}, {b}, {geometry}, 'add', 1.0, "
                f"{unary})"
            )
        else:
            text = (
                f"torch.ops.mkldnn._convolution_pointwise.default({n['x']}, {n['w']}, {b}, {geometry}, {act!r}, [], "
                f"{algorithm!r})"
            )
        return f"{n['out']}.copy_({text})" if copied else text

    identify(code, f"torch.onednn_conv[{bias},{act},{algorithm},{residual},{copied}]")
    return code


def _convolutions() -> list[LibraryKernel]:
    base = (symmetric, channel_bias)
    gradient = _all(_FLOAT, is_weight_gradient)
    eager: dict[str, Any] = {"family": "conv", "dense": ("*",), "applies": _all(_FLOAT, *base)}
    onednn: dict[str, Any] = {"family": "conv", "dense": ("w", "b"), "prep": {"w": _conv_pack}}
    rows = [
        row("weight_gradient", f"conv(x, w, {GEOMETRY})", weight_gradient_code, setup=("weight_gradient",), family="conv",
            applies=gradient),
    ]  # fmt: skip
    for suffix, pattern, bias in CONVOLUTIONS:
        rows.append(row(f"conv{suffix}", pattern, _conv_code(bias), **eager))
        if not bias:
            uneven = _all(_FLOAT, lambda call: not symmetric(call))
            rows.append(
                row("conv_uneven", pattern, _uneven_conv, setup=("conv_uneven",), **{**eager, "applies": uneven})
            )
        spelled = {"{}": ("none", ""), "relu({})": ("relu", ""), "silu({})": ("swish", "")}
        for (epilogue, (act, algorithm)), copied in product(spelled.items(), (False, True)):
            name = "_" + epilogue.partition("(")[0] if act != "none" else ""
            style = {**onednn, "applies": _all(SINGLE, planar, one_block, filled, *base)}
            style |= {} if copied else {"layout": channels_last}
            rows.append(
                row(f"onednn_conv{suffix}{name}{'_rows' if copied else ''}", epilogue.format(pattern),
                    _onednn_conv(bias, act, algorithm, False, copied), **style)
            )  # fmt: skip
        for (form, side), (act, outer) in product(
            ((f"{pattern} + r", ""), (f"r + {pattern}" if not bias else f"r + ({pattern})", "_left")),
            (("none", "{}"), ("relu", "relu({})")),
        ):
            style = {
                **onednn,
                "applies": _all(SINGLE, planar, one_block, filled, residual_fits_last, *base),
                "layout": channels_last,
            }
            name = f"onednn_conv{suffix}_residual{side}{'_relu' if act == 'relu' else ''}"
            rows.append(row(name, outer.format(form), _onednn_conv(bias, act, "", True, False), **style))
    return rows


def _pool_code(function: str, more: str) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        a = call.attrs
        return f"{function}({call.names['x']}, {a['kernel']}, {a['strides']}, {half_pads(call)}{more})"

    identify(code, f"torch.pool[{function}]")
    return code


def _pools() -> list[LibraryKernel]:
    attrs = "kernel=kernel, strides=strides, pads=pads, dilations=dilations"
    found = []
    for name, function, more in (
        ("max_pool", "torch.max_pool2d", ", 1, False"), ("avg_pool", "torch._C._nn.avg_pool2d", ", False, True")
    ):  # fmt: skip
        code, pattern = _pool_code(function, more), f"{name}(x, {attrs})"
        found += [
            row(name, pattern, code, family="reduction", dense=("x",), applies=_all(_FLOAT, pool_pads)),
            row(f"{name}_channels_last", pattern, code, family="reduction", layout=channels_last,
                applies=_all(_FLOAT, pool_pads, _clearly_channels_last)),
        ]  # fmt: skip
    return found


# ---------------------------------------------------------------- recurrent layers
#: Cell -> activations of Torch's recurrent layers.
_CELLS = {"lstm": ("sigmoid tanh tanh",), "gru": ("sigmoid tanh",), "plain": ("tanh", "relu")}


def _own_cell(call: Call) -> bool:
    return not call.attrs["variant"] and call.attrs["activations"] in _CELLS[call.attrs["cell"]]


def _spelled_cell(call: Call) -> bool:
    return not _own_cell(call)


def _size(call: Call) -> str:
    return str(extents(call.operands["x"])[-1])


@identified("torch._recurrent_prep")
def _recurrent_prep(call: Call) -> str:
    a, names = call.attrs, ("hidden", "width", "layers", "directions")
    sizes = ", ".join(str(v) for v in (_size(call), *(a[n] for n in names)))
    return f"recurrent_packed({call.names['w']}, {a['cell']!r}, {a['activations']!r}, {sizes})"


def _recurrent() -> list[LibraryKernel]:
    call = "recurrent_layers({x}, {s}, WEIGHTS, {cell}, {activations}, {hidden}, {width}, {layers}, {directions}, out={out})"
    weights = "recurrent_weights({w}, {cell}, {size}, {hidden}, {width}, {layers}, {directions})"
    own: dict[str, Any] = {"family": "recurrent", "dense": ("s", "w"), "applies": _all(_FLOAT, _own_cell)}
    return [
        row("recurrent", RECURRENT, spell(call.replace("WEIGHTS", weights), size=_size),
            setup=("recurrent_layers", "recurrent_weights"), **own),
        row("recurrent_packed", RECURRENT, call.replace("WEIGHTS", "{w}"), prep={"w": _recurrent_prep},
            setup=("recurrent_layers", "recurrent_packed"), **own),
        row("recurrent_spelled", RECURRENT, "recurrent_spelled({x}, {s}, {w}, " + RECURRENT_ATTRS + ", out={out})",
            family="recurrent", setup=("recurrent_spelled", "scan"), applies=_all(_FLOAT, _spelled_cell)),
    ]  # fmt: skip


# ---------------------------------------------------------------- attention, layout, indexing
_ATTENTION = "scale=scale, causal=causal, window=window, softcap=softcap"


def _plain_attention(call: Call) -> bool:
    a, (q, k) = call.attrs, (extents(call.operands[n]) for n in "qk")
    square = not a["causal"] or q[-2] == k[-2]
    masked_too = a["causal"] and "m" in call.operands
    return (
        not a["window"] and not a["softcap"] and square and not masked_too and len(q) in (3, 4, 5) and heads_fit(call)
    )


def _mask_fits(call: Call) -> bool:
    return _plain_attention(call) and (call.operands["m"].type.rank < 5 or extents(call.operands["m"])[1:3] == (1, 1))


def _plain_updates(call: Call) -> bool:
    """Whether the elements are those of the updates, of a dtype whose sums Torch does not round more often."""
    kinds = {n: o.type.dtype for n, o in (*call.operands.items(), ("out", call.output))}
    same = kinds["x"] == kinds["u"] == kinds["out"] in ("float32", "float64", "int32", "int64")
    return same and kinds["i"] in ("int32", "int64")


def _rest() -> list[LibraryKernel]:
    code = "sdpa({q}, {k}, {v}, {mask}, {scale}, {causal})"
    spelled = "attention_spelled({q}, {k}, {v}, {mask}, {scale}, {causal}, {window}, {softcap})"
    shape_of: Callable[[Call], str] = lambda call: repr(extents(call.operands["x"]))
    return [
        row("sdpa", f"attention(q, k, v, {_ATTENTION})", code.replace("{mask}", "None"), family="attention",
            setup=("sdpa",), applies=_all(_FLOAT, _plain_attention)),
        row("sdpa_masked", f"masked_attention(q, k, v, m, {_ATTENTION})", code.replace("{mask}", "{m}"), family="attention",
            setup=("sdpa",), applies=_all(_FLOAT, _mask_fits)),
        row("attention", f"attention(q, k, v, {_ATTENTION})", spell(spelled.replace("{mask}", "None")), family="attention",
            setup=("attention_spelled",), applies=_all(_FLOAT, lambda call: not _plain_attention(call))),
        row("masked_attention", f"masked_attention(q, k, v, m, {_ATTENTION})", spell(spelled.replace("{mask}", "{m}")),
            family="attention", setup=("attention_spelled",), applies=_all(_FLOAT, lambda call: not _mask_fits(call))),
        row("copy", "x", "{out}.copy_({x})", family="copy", exact=True),
        row("reshape", "reshape(x, shape=shape)", spell("{out}.view({have}).copy_({x})", have=shape_of), family="copy",
            exact=True),
        *(row(f"concat{n if n > 2 else ''}", pattern, f"torch.cat(({parts}), {{axis}}, out={{out}})", family="copy", exact=True)
          for n, pattern, parts in concats()),
        row("updated", "scatter_elements(x, i, u, axis=axis, mode=mode)", "updated({x}, {i}, {u}, {axis}, {mode}, {out})",
            family="scatter", inplace=("x",), setup=("updated",), applies=_plain_updates),
        row("rope", "rope(x, c, s)", "rope_out({x}, {c}, {s}, {out})", setup=("rope_out",), applies=_FLOAT),
        row("embedding", "gather(x, i, axis=0)", "torch.embedding({x}, {i}.clamp(0, {x}.shape[0] - 1))", family="gather",
            applies=lambda c: c.operands["i"].type.dtype in ("int32", "int64") and c.operands["x"].type.rank == 2,
            exact=True),
    ]  # fmt: skip


class TorchBackend(BackendBase):
    """Backend of Torch kernels on the CPU, on NumPy's memory."""

    name = "torch"
    operands = "torch"
    helpers: Mapping[str, str] = HELPERS

    @cached_property
    def templates(self) -> Sequence[LibraryKernel]:
        """All kernels; views and missing ops come from NumPy."""
        return (*_pointwise(), *_reductions(), *_products(), *_convolutions(), *_pools(), *_recurrent(), *_rest())

    def unavailable(self) -> str:
        """Reason why Torch cannot be used (missing or broken); empty if it can."""
        return _unavailable()


@cache
def _unavailable() -> str:
    from importlib.util import find_spec

    return "" if find_spec("torch") else "PyTorch is not installed (pip install 'tensor-graphs[torch]')"


BACKEND = TorchBackend()
