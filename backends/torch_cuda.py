"""Library kernels on a GPU: what Torch calls there (cuBLAS and cuBLASLt, cuDNN, fused attention, its own elementwise and
row kernels), on tensors that may lie in 16 bits under a float32 pattern.

Rows that work on both devices are those of `torch.py`. They want all floats in one dtype, which is then also what they
compute in (products and sums accumulate wider). Where operands differ in dtype, pointwise kernels promote by
themselves; every other row has a `_wide` twin that widens its operands first, so that a plan always exists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from math import prod
from typing import Any

from ..egraph import dtypes
from ..egraph.ops import OPS
from ..extract.kernel import Call, Operand, Strides, Template
from .descriptors import padded_row
from .numpy import spell
from .precision import LIBRARY_TF32, TF32
from .torch import (
    _GEOMETRY,
    _NUMBER,
    CONVOLUTIONS,
    FLOATS,
    PRODUCTS,
    _batches_merge,
    _bias_line,
    _channel_bias,
    _count,
    _equal_batches,
    _flat_code,
    _grouped,
    _half_pads,
    _of,
    _one_block,
    _planar,
    _pool_pads,
    _residual,
    _shape,
    _symmetric,
    _two_d,
    channels_last,
    usable,
)
from .torch import BACKEND as CPU
from .torch_cuda_helpers import HELPERS as OWN
from .torch_helpers import HELPERS as SHARED
from .views import TORCH as VIEW_CODE
from .views import VIEWS, spelled, view_strides

Applies = Callable[[Call], bool]

_FLOAT = _of(*FLOATS)  # of one dtype or several: `row` asks for one where a kernel does not say otherwise


# ---------------------------------------------------------------- conditions
def floats(call: Call) -> set[str]:
    """Float dtypes of operands and output."""
    return {o.type.dtype for o in (*call.operands.values(), call.output) if dtypes.is_float(o.type.dtype)}


def uniform(call: Call) -> bool:
    """All floats have one dtype."""
    return len(floats(call)) <= 1


def promotes(call: Call) -> bool:
    """The widest operand is as wide as the result, so that Torch's own promotion loses nothing."""
    given = [dtypes.itemsize(o.type.dtype) for o in call.operands.values() if dtypes.is_float(o.type.dtype)]
    made = call.output.type.dtype
    return not dtypes.is_float(made) or not given or max(given) >= dtypes.itemsize(made)


def both(*conditions: Applies | None) -> Applies:
    """All of the conditions, those that are there."""
    kept = [c for c in conditions if c is not None]
    return lambda call: all(c(call) for c in kept)


def row(
    name: str, pattern: str, code: Any, *, applies: Applies | None = None, mixed: bool = False, **more: Any
) -> Template:
    """One kernel on the GPU; `mixed`: floats of several dtypes are welcome."""
    fits = both(usable, None if mixed else uniform, applies)
    return Template(f"cuda.{name}", "torch_cuda", pattern, code, applies=fits, **more)


# ---------------------------------------------------------------- rows of torch.py
#: Not taken over: packed for the CPU, or spelled otherwise here.
_CPU_ONLY = (
    "mkl", "onednn", "layer_norm_out", "softplus", "conv", "sdpa", "attention", "masked", "embedding", "argm", "linear",
    "matmul", "mm", "bmm", "addmm", "cast", "sum", "mean", "square",
)  # fmt: skip

#: Pointwise rows that promote operands of several dtypes themselves.
_PROMOTING = ("add", "sub", "mul", "div", "maximum", "minimum", "eq", "lt", "le", "mul_add", "add_mul", "pow")


def _moved(t: Template) -> Template:
    """A CPU row on the GPU."""
    name = t.name.partition(".")[2]
    name = f"{name}_out" if "rope_out" in t.setup else name
    condition = None if t.family == "copy" else promotes if name in _PROMOTING else uniform
    return replace(t, name=f"cuda.{name}", backend="torch_cuda", applies=both(t.applies, condition))


def _from_cpu() -> list[Template]:
    return [_moved(t) for t in CPU.templates if not t.name.partition(".")[2].startswith(_CPU_ONLY)]


_OUT = "__OUT__"


def _widened(t: Template) -> Template:
    """The kernel over operands widened to float32 (or float64 where one is), its result rounded once."""

    def code(call: Call) -> str:
        wide = "double" if "float64" in floats(call) else "float"
        names = {
            o: f"{n}.{wide}()" if o in call.operands and dtypes.is_float(call.operands[o].type.dtype) else n
            for o, n in call.names.items()
        }
        text = t.write(replace(call, names={**names, "out": _OUT}))
        return f"{call.names['out']}.copy_({text.replace(f', out={_OUT}', '')})"

    inner = t.applies
    code.__qualname__ = f"widened[{t.identity}]"
    assert inner is not None
    fits: Applies = lambda call: not uniform(call) and not inner(call) and inner(_uniformed(call))
    return replace(t, name=f"{t.name}_wide", code=code, applies=fits, inplace=(), exact=False)


def _uniformed(call: Call) -> Call:
    """The call as its widened twin's code sees it: floats of one dtype."""
    wide = "float64" if "float64" in floats(call) else "float32"

    def kind(o: Any) -> Any:
        return replace(o, type=replace(o.type, dtype=wide)) if dtypes.is_float(o.type.dtype) else o

    return replace(call, operands={n: kind(o) for n, o in call.operands.items()}, output=kind(call.output))


def _widenable(t: Template) -> bool:
    """Whether the twin is needed and can be written: the only place that the code names its output is `out=`."""
    name = t.name.partition(".")[2]
    plain = t.family not in ("copy", "view", "scatter", "gather", "sort") and t.layout is None and not t.prep
    plain = plain and (not name.startswith("sdpa") or name.endswith("_single"))  # what is widened has no 16 bits
    return (
        plain
        and not t.loss
        and name not in _NOT_WIDENED
        and not name.startswith(("mm", "bmm", "baddbmm"))
        and not name.endswith(_VARIANTS)
    )


#: Rows that take floats of any dtypes themselves, take none, or have another row that is widened.
_NOT_WIDENED = frozenset([
    "cast", "square", "square_wide", "sum", "mean", "prod", "and", "or", "xor", "not", "eq", "lt", "le", "is_nan", "is_inf",
    "argmax", "argmin", "softplus_double", "matmul", "matmul_wide", "linear", "linear_wide", "rope_out",
    "rope_wide",
])  # fmt: skip
_VARIANTS = ("_int", "_bool", "_cast", "_nothing", "_tuned", "_flash", "_cudnn")


# ---------------------------------------------------------------- pointwise and reductions
def _identity_axes(call: Call) -> bool:
    return call.attrs.get("axes") == ()


def _bool(call: Call) -> bool:
    return {o.type.dtype for o in call.operands.values()} == {"bool"}


def _not_float(call: Call) -> bool:
    return not floats(call)


def _has_float(call: Call) -> bool:
    return bool(floats(call))


def _some_axes(call: Call) -> bool:
    return call.attrs.get("axes") != ()


def _narrowed(call: Call) -> bool:
    return not uniform(call) and _some_axes(call)


def _pointwise() -> list[Template]:
    soft = "torch.logaddexp({x}, torch.zeros_like({x}), out={out})"
    return [
        row("cast", "cast(x, dtype=dtype)", "{out}.copy_({x})", mixed=True),
        row("square", "x * x", "torch.mul({x}, {x}, out={out})", inplace=("x",), applies=_NUMBER),
        row("square_wide", "x * x", "{out}.copy_({x}.float() * {x})", applies=lambda c: not uniform(c), mixed=True),
        row("sign", "sign(x)", "torch.where({x} != {x}, {x}, torch.sign({x}), out={out})", inplace=("x",), applies=_NUMBER),
        row("floordiv", "floordiv(x, y)", "torch.floor_divide({x}, {y}, out={out})", inplace=("x", "y"), applies=_FLOAT),
        row("mod", "mod(x, y)", "torch.remainder({x}, {y}, out={out})", inplace=("x", "y"), applies=_FLOAT),
        *(row(f"{op}_int", f"{op}(x, y)", f"{{out}}.copy_(int_divided({{x}}, {{y}}, {op == 'mod'}))", setup=("int_divided",),
              applies=both(_NUMBER, _not_float)) for op in ("floordiv", "mod")),
        row("pow_int", "pow(x, y)", "torch.pow({x}, {y}, out={out})", inplace=("x", "y"), applies=both(_NUMBER, _not_float)),
        *(row(f"{op}_bool", f"{op}(x, y)", f"torch.{function}({{x}}, {{y}}, out={{out}})", inplace=("x", "y"), applies=_bool)
          for op, function in (("add", "bitwise_or"), ("mul", "bitwise_and"))),
        row("abs_bool", "abs(x)", "{out}.copy_({x})", inplace=("x",), applies=_bool),
        row("is_inf", "is_inf(x)", "torch.eq(torch.abs({x}), torch.inf, out={out})"),
        row("hard_sigmoid", "hard_sigmoid(x, alpha=alpha, beta=beta)",
            spell("torch.clamp({x} * {alpha} + {beta}, 0, 1, out={out})"), inplace=("x",)),
        row("softplus", "softplus(x)", "torch._C._nn.softplus({x}, 1, 20, out={out})", inplace=("x",),
            applies=lambda c: "float64" not in floats(c)),
        row("softplus_double", "softplus(x)", soft, inplace=("x",), applies=lambda c: "float64" in floats(c)),
    ]  # fmt: skip


def _reductions() -> list[Template]:
    more: dict[str, Any] = {"family": "reduction"}
    along = ", {axes}, True, out={out})"
    sums = both(lambda c: not _bool(c), _some_axes, sums_wider)
    found = [
        row("sum", "sum(x, axes=axes)", "torch.sum({x}" + along, applies=sums, mixed=True, **more),
        row("mean", "mean(x, axes=axes)", "torch.mean({x}" + along, applies=both(_FLOAT, sums), mixed=True, **more),
        *(row(f"{op}_cast", f"{op}(x, axes=axes)", f"{{out}}.copy_(torch.{op}({{x}}, {{axes}}, True))",
              applies=both(_FLOAT, _some_axes, lambda c: not sums_wider(c)), mixed=True, **more) for op in ("sum", "mean")),
        row("sum_bool", "sum(x, axes=axes)", "torch.amax({x}, {axes}, True, out={out})", applies=both(_bool, _some_axes), **more),
        row("prod", "prod(x, axes=axes)", "{out}.copy_(product({x}, {axes}))", setup=("product",),
            mixed=True, **more),
        row("cumsum_int", "cumsum(x, axis=axis)", "{out}.copy_(torch.cumsum({x}.long(), {axis}))", applies=_not_float,
            **more),
        row("argsort", "argsort(x, axis=axis, descending=descending)", "{out}.copy_(sorting({x}, {axis}, {descending}))",
            family="sort", setup=("sorting",), mixed=True),
        row("cross_entropy", "cross_entropy(x, i)",
            "torch.nn.functional.cross_entropy({x}, {i}.long(), reduction='none')", **more),
    ]  # fmt: skip
    for op in ("max", "min"):
        bare = f"torch.a{op}({{x}}, {{axes}}, True"
        found += [
            row(f"{op}_cast", f"{op}(x, axes=axes)", "{out}.copy_(" + bare + "))", applies=_narrowed, mixed=True, **more),
            row(f"{op}_int", f"{op}(x, axes=axes)", bare + ", out={out})", applies=both(_not_float, _some_axes), **more),
            row(f"arg{op}", f"arg{op}(x, axis=axis)", f"torch.arg{op}({{x}}, {{axis}}, True, out={{out}})",
                applies=_has_float, mixed=True, **more),
            row(f"arg{op}_int", f"arg{op}(x, axis=axis)", f"torch.arg{op}({{x}}.to(torch.int64), {{axis}}, True, out={{out}})",
                applies=_not_float, **more),
        ]  # fmt: skip
    found += [
        row(
            f"{op}_nothing",
            f"{op}(x, axes=axes)",
            "{out}.copy_({x})",
            applies=_identity_axes,
            mixed=True,
            family="copy",
        )
        for op in ("sum", "prod", "max", "min", "mean")
    ]
    found.append(
        row("logsumexp_nothing", "logsumexp(x, axes=axes)", "{out}.copy_({x})", applies=_identity_axes, mixed=True)
    )
    return found


def sums_wider(call: Call) -> bool:
    """The result is at least as wide as what is added, so that Torch adds in its dtype."""
    return dtypes.itemsize(call.output.type.dtype) >= dtypes.itemsize(call.operands["x"].type.dtype)


# ---------------------------------------------------------------- products
def merges(operand: str) -> Applies:
    """The operand can be looked at as a matrix: all axes but the last as one."""

    def fits(call: Call) -> bool:
        o = call.operands[operand]
        return view_strides("reshape", {"shape": (_count(o), _shape(o)[-1])}, o) is not None

    return fits


#: Weights as they are, or laid out column after column: cuBLAS takes either, at different speed.
ORDERS: dict[str, dict[str, Any]] = {"": {}, "_columns": {"prep": {"w": "{w}.t().contiguous().t()"}}}

#: Activations that cuBLASLt applies while it writes: pattern -> option.
EPILOGUES = {"relu({})": "False", "gelu_tanh({})": "True"}


def _batched_code(text: str) -> Callable[[Call], str]:
    """Code over operands as batches of matrices."""

    def code(call: Call) -> str:
        def flat(name: str) -> str:
            shape = _shape(call.output if name == "out" else call.operands[name])
            sizes = f"{prod(shape[:-2])}, {shape[-2]}, {shape[-1]}"
            return call.names[name] if len(shape) == 3 else f"{call.names[name]}.view({sizes})"

        return text.format(**{o: flat(o) for o in (*call.operands, "out")})

    code.__qualname__ = f"batched[{text}]"
    return code


def _products() -> list[Template]:
    more: dict[str, Any] = {"family": "contraction"}
    flat = both(_FLOAT, _two_d, merges("x"), _bias_line)
    residual = both(flat, _residual, merges("r"))
    found = [
        row("bmm", "matmul(x, w)", _batched_code("torch.bmm({x}, {w}, out={out})"), applies=both(_FLOAT, _batches_merge), **more),
        row("matmul", "matmul(x, w)", "torch.matmul({x}, {w}, out={out})",
            applies=both(_FLOAT, lambda c: not flat(c) and not _batches_merge(c)), **more),
        row("matmul_wide", "matmul(x, w)", "{out}.copy_(torch.matmul({x}.float(), {w}.float()))",
            applies=lambda c: not uniform(c), mixed=True, **more),
        row("matmul_int", "matmul(x, w)", "{out}.copy_(int_matmul({x}, {w}))", setup=("int_matmul",), applies=_not_float),
        row("linear", "linear(x, w, b)", "torch.add(torch.matmul({x}, {w}), {b}, out={out})",
            applies=both(_FLOAT, lambda c: not flat(c)), **more),
        row("linear_wide", "linear(x, w, b)", "{out}.copy_(torch.matmul({x}.float(), {w}.float()) + {b})",
            applies=lambda c: not uniform(c), mixed=True, **more),
    ]  # fmt: skip
    for side, pattern in (("", "matmul(x, w) + r"), ("_left", "r + matmul(x, w)")):
        batched = both(_FLOAT, _batches_merge, _equal_batches, _residual)
        found.append(row(f"baddbmm{side}", pattern, _batched_code("torch.baddbmm({r}, {x}, {w}, out={out})"),
                         applies=batched, inplace=("r",), **more))  # fmt: skip
    for order, style in ORDERS.items():
        for suffix, pattern, bias in PRODUCTS:
            text = "torch.addmm({b}, {x2}, {w}, out={out2})" if bias else "torch.mm({x2}, {w}, out={out2})"
            found.append(row(f"mm{suffix}{order}", pattern, _flat_code(text), applies=flat, **style, **more))
            for epilogue, gelu in EPILOGUES.items() if bias else ():
                name = f"mm{suffix}_{epilogue.partition('(')[0]}{order}"
                text = f"torch._addmm_activation({{b}}, {{x2}}, {{w}}, use_gelu={gelu}, out={{out2}})"
                found.append(row(name, epilogue.format(pattern), _flat_code(text), applies=flat, **style, **more))
        for side, pattern in (("", "matmul(x, w) + r"), ("_left", "r + matmul(x, w)")):
            text = "torch.addmm({r2}, {x2}, {w}, out={out2})"
            found.append(row(f"mm_residual{side}{order}", pattern, _flat_code(text), applies=residual,
                             inplace=("r",), **style, **more))  # fmt: skip
    return [*found, *map(_in_tf32, filter(_multiplies, found)), *_even_products(both(flat, _uneven))]


def _even_products(applies: Applies) -> list[Template]:
    """Products over weights that are padded when they are loaded, for sizes that libraries multiply element by element."""
    more: dict[str, Any] = {
        "family": "contraction",
        "prep": {"w": "evened({w})"},
        "setup": ("evened", "room_of", "even_product"),
    }
    text = "even_product({x2}, {w}, {out2}, {scratch}"
    return [
        row(f"mm{suffix}_even", pattern, _flat_code(f"{text}, {{b}})" if bias else f"{text})"), applies=applies,
            scratch=_even_room, **more)
        for suffix, pattern, bias in PRODUCTS
    ]  # fmt: skip


def _uneven(call: Call) -> bool:
    """Whether a product of 16-bit floats has columns, or a sum, of no whole 16 bytes: more of them than are added."""
    w = call.operands["w"]
    return _halves(call) and bool(_odd(w)) and min(*_shape(w), _count(call.output)) >= padded_row(1, w.type.dtype)


def _odd(matrix: Operand) -> list[int]:
    """Sizes of a matrix that are no rows of whole 16 bytes."""
    return [s for s in _shape(matrix) if padded_row(s, matrix.type.dtype) != s]


def _even_room(call: Call) -> int:
    """Bytes for a result and rows of whole 16 bytes."""
    w = call.operands["w"]
    beside = sum(padded_row(s, w.type.dtype) for s in _odd(w))
    return _count(call.output) * beside * dtypes.itemsize(w.type.dtype)


_PRODUCT = re.compile(r"torch\.(?:bmm|mm|addmm|baddbmm|matmul|_addmm_activation)\b")


def single(call: Call) -> bool:
    """All floats are float32."""
    return floats(call) == {"float32"}


def _multiplies(t: Template) -> bool:
    """Whether a product has a twin in TF32: those of floats of one dtype."""
    return not t.name.endswith(("_wide", "_int"))


def _in_tf32(t: Template) -> Template:
    """The product with its operands rounded to TF32, which a library does where it is allowed to."""

    def code(call: Call) -> str:
        return _PRODUCT.sub(r"in_tf32(\g<0>,", t.write(call), count=1).replace(",(", ", ", 1)

    code.__qualname__ = f"in_tf32[{t.identity}]"
    return replace(
        t,
        name=f"{t.name}_tf32",
        code=code,
        applies=both(t.applies, single),
        setup=(*t.setup, "in_tf32"),
        loss=LIBRARY_TF32,
        rate=TF32.rate,
    )


# ---------------------------------------------------------------- convolution and pooling
def _conv_code(tuned: bool, bias: bool, tf32: bool = False) -> Callable[[Call], str]:
    """cuDNN's convolution, without TF32 unless that is said: rounding of float32 operands is not for a kernel to choose unseen.
    `tuned` tries cuDNN's algorithms at the first call."""

    def code(call: Call) -> str:
        n, a = call.names, call.attrs
        zeros = (0,) * len(a["strides"])
        geometry = f"{a['strides']}, {_half_pads(call)}, {a['dilations']}, False, {zeros}, {a['groups']}"
        return f"torch._convolution({_image(call)}, {n['w']}, {n['b'] if bias else None}, {geometry}, {tuned}, False, True, {tf32})"

    code.__qualname__ = f"cuda_conv[{tuned},{bias}{',tf32' if tf32 else ''}]"
    return code


def _image(call: Call) -> str:
    """The image, with channels innermost where the result has them so."""
    x = call.names["x"]
    return x if call.output.dense else f"{x}.contiguous(memory_format=torch.channels_last)"


def _clear(call: Call) -> bool:
    """No axis of 1 leaves Torch in doubt about the layout, and cuDNN has it (not for float64)."""
    return "float64" not in floats(call) and min(*_shape(call.operands["x"])[1:], *_shape(call.output)[1:]) > 1


def _fused_conv(residual: bool) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        n, a = call.names, call.attrs
        geometry = f"{a['strides']}, {_half_pads(call)}, {a['dilations']}, {a['groups']}"
        if residual:
            return f"torch.cudnn_convolution_add_relu({_image(call)}, {n['w']}, {n['r']}, 1.0, {n['b']}, {geometry})"
        return f"torch.cudnn_convolution_relu({_image(call)}, {n['w']}, {n['b']}, {geometry})"

    code.__qualname__ = f"fused_conv[{residual}]"
    return code


def _residual_last(call: Call) -> bool:
    r, want = call.operands["r"], channels_last(call)
    return _residual(call) and all(s == t or d == 1 for s, t, d in zip(r.strides, want, _shape(r)))


def _halves(call: Call) -> bool:
    return floats(call) <= {*dtypes.HALVES}


def _all_but_weight(condition: Applies) -> Applies:
    """The condition and one dtype for everything but the weight, which takes the image's when it is loaded: the weights of
    a 1x1 convolution lie in float32 (their rows are one element long)."""

    def fits(call: Call) -> bool:
        others = {n: o for n, o in call.operands.items() if n != "w"}
        return uniform(replace(call, operands=others)) and condition(call)

    return fits


def _weight_as(text: str) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        return text.format(w=call.names["w"], x=f"torch.{call.operands['x'].type.dtype}")

    code.__qualname__ = f"weight[{text}]"
    return code


def _convolutions() -> list[Template]:
    base = both(_FLOAT, _symmetric, _channel_bias)
    dense: dict[str, Any] = {"family": "conv", "dense": ("*",), "applies": base}
    weights: dict[str, Any] = {**dense, "prep": {"w": _weight_as("{w}.to({x})")}, "applies": _all_but_weight(base)}
    weights |= {"mixed": True}
    last: dict[str, Any] = {
        **weights, "prep": {"w": _weight_as("channels_innermost({w}, {x})")}, "setup": ("channels_innermost",),
        "dense": ("w", "b"), "layout": channels_last,
        "applies": both(weights["applies"], _planar, _one_block, _clear),
    }  # fmt: skip
    found = [
        row("conv_uneven", f"conv(x, w, {_GEOMETRY})", _uneven_conv, setup=("padded_conv",), family="conv", dense=("*",),
            applies=both(_FLOAT, lambda call: not _symmetric(call))),
    ]  # fmt: skip
    for suffix, pattern, bias in CONVOLUTIONS:
        for tuned in (False, True):
            how = "_tuned" if tuned else ""
            found.append(row(f"conv{suffix}{how}", pattern, _conv_code(tuned, bias), **dense))
            narrowing = {**weights, "applies": both(weights["applies"], lambda c: not uniform(c))}
            found.append(row(f"conv{suffix}_weights{how}", pattern, _conv_code(tuned, bias), **narrowing))
            found.append(row(f"conv{suffix}_last{how}", pattern, _conv_code(tuned, bias), **last))
            for order, style in (("", dense), ("_last", last)):
                rounding = {**style, "applies": both(style["applies"], single), "loss": LIBRARY_TF32, "rate": TF32.rate}
                found.append(row(f"conv{suffix}{order}{how}_tf32", pattern, _conv_code(tuned, bias, True), **rounding))
        if bias:
            fused = {**last, "applies": both(last["applies"], lambda c: c.output.type.dtype in dtypes.HALVES)}
            found.append(row("conv_bias_relu_last", f"relu({pattern})", _fused_conv(False), **fused))
            for side, form in (("", f"{pattern} + r"), ("_left", f"r + ({pattern})")):
                style = {**fused, "applies": both(fused["applies"], _residual_last)}
                found.append(row(f"conv_bias_residual{side}_relu_last", f"relu({form})", _fused_conv(True), **style))
    return found


def _uneven_conv(call: Call) -> str:
    n, a = call.names, call.attrs
    return f"padded_conv({n['x']}, {n['w']}, {a['strides']}, {a['pads']}, {a['dilations']}, {a['groups']})"


def _pools() -> list[Template]:
    attrs = "kernel=kernel, strides=strides, pads=pads, dilations=dilations"
    windows = "pooled({x}, {kernel}, {strides}, {pads}, {dilations}, "

    def last_axes(call: Call) -> str:
        n = len(call.attrs["kernel"])
        return repr(tuple(range(-n, 0)))

    general: dict[str, Any] = {
        "family": "reduction", "setup": ("pooled",), "applies": both(_FLOAT, lambda call: not _pool_pads(call)),
    }  # fmt: skip
    return [
        row("max_pool_any", f"max_pool(x, {attrs})", spell("torch.amax(" + windows + "-torch.inf), {axes}, out={out})",
            axes=last_axes), **general),
        row("avg_pool_any", f"avg_pool(x, {attrs})", spell("torch.mean(" + windows + "0), {axes}, out={out})", axes=last_axes),
            **general),
    ]  # fmt: skip


# ---------------------------------------------------------------- attention
_ATTENTION = "scale=scale, causal=causal, window=window, softcap=softcap"

#: Torch's fused attention kernels by the suffix of our row: its own choice, and each by name.
KERNELS = {"": "", "_single": "", "_flash": "FLASH_ATTENTION", "_cudnn": "CUDNN_ATTENTION"}
SINGLE_RATE = 0.15  # of what products of float32 reach, in the fused kernels for what has no 16 bits (seen on an H200)


def _causal(call: Call) -> bool:
    """Whether anything is hidden: a single row sees all columns (the last row is aligned with the last column)."""
    return bool(call.attrs["causal"]) and _shape(call.operands["q"])[-2] > 1


def _fusable(call: Call) -> bool:
    a, (q, k) = call.attrs, (_shape(call.operands[n]) for n in "qk")
    square = not _causal(call) or (q[-2] == k[-2] and "m" not in call.operands)
    return not a["window"] and not a["softcap"] and square and len(q) in (3, 4, 5) and _grouped(call) and _mask(call)


def _mask(call: Call) -> bool:
    m = call.operands.get("m")
    return m is None or m.type.rank < 5 or _shape(m)[1:3] == (1, 1)


def _lines(call: Call) -> bool:
    """Rows of 16-bit numbers in one piece, of a width that the fused kernels have."""
    inputs = [call.operands[n] for n in "qkv"]
    widths = {_shape(o)[-1] for o in inputs}
    fit = len(widths) == 1 and max(widths) <= 256 and max(widths) % 8 == 0
    return _halves(call) and fit and all(o.strides[-1] == 1 for o in inputs)


def heads_inside(call: Call) -> Strides:
    """Strides of attention's result with each position's heads together: [batch, T, heads, D] in memory."""
    _, *heads, rows, width = _shape(call.output)
    inner: list[int] = []
    step = width
    for size in reversed(heads):
        inner.insert(0, step)
        step *= size
    return (rows * step, *inner, step, 1)


def _sdpa_code(kernel: str, rows: bool) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        n = call.names
        return (f"attended({n['q']}, {n['k']}, {n['v']}, {n.get('m')}, {call.attrs['scale']}, {_causal(call)}, {kernel!r}, "
                f"{rows})")  # fmt: skip

    code.__qualname__ = f"sdpa[{kernel},{rows}]"
    return code


def _packable(call: Call) -> bool:
    """The group's queries may be rows of one matrix: there is a group, and every row sees the same."""
    q = _shape(call.operands["q"])
    masked = "m" in call.operands and _shape(call.operands["m"])[-2] != 1
    return len(q) == 5 and q[2] > 1 and not _causal(call) and not masked


def _grouped_code(kernel: str) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        n = call.names
        return f"grouped({n['q']}, {n['k']}, {n['v']}, {n.get('m')}, {call.attrs['scale']}, {kernel!r})"

    code.__qualname__ = f"grouped[{kernel}]"
    return code


def _attentions() -> list[Template]:
    found = []
    spelling = "attention_spelled({q}, {k}, {v}, MASK, {scale}, {causal}, {window}, {softcap})"
    more: dict[str, Any] = {"family": "attention"}
    for masked, pattern in (
        ("", f"attention(q, k, v, {_ATTENTION})"),
        ("_masked", f"masked_attention(q, k, v, m, {_ATTENTION})"),
    ):
        for suffix, kernel in KERNELS.items():
            if masked and suffix == "_flash":
                continue  # it knows no masks
            own = _lines if kernel else (lambda call: not _halves(call)) if suffix else _halves
            fits = both(_FLOAT, _fusable, own)
            more["rate"] = SINGLE_RATE if suffix == "_single" else 1.0
            shaped = both(fits, lambda call: call.output.type.rank in (4, 5))
            found += [
                row(f"sdpa{masked}{suffix}", pattern, _sdpa_code(kernel, False), setup=("attended",), applies=fits, **more),
                row(f"sdpa{masked}{suffix}_rows", pattern, _sdpa_code(kernel, True), setup=("attended",), applies=shaped,
                    layout=heads_inside, **more),
            ]  # fmt: skip
            found.append(row(f"sdpa{masked}_grouped{suffix}", pattern, _grouped_code(kernel), setup=("grouped",),
                             applies=both(fits, _packable), **more))  # fmt: skip
        text = spelling.replace("MASK", "{m}" if masked else "None")
        found.append(row(f"attention{masked}", pattern, spell(text), setup=("attention_spelled",),
                         applies=both(_FLOAT, lambda call: not _fusable(call)), **more))  # fmt: skip
    return found


# ---------------------------------------------------------------- layout, copies, indexing
def _copied_view(op: str) -> Callable[[Call], str]:
    """A view op as a copy."""

    def code(call: Call) -> str:
        text = f"{call.names['x']}.flip({call.attrs['axis']})" if op == "flip" else spelled(VIEW_CODE[op], call)
        return f"{call.names['out']}.copy_({text})"

    code.__qualname__ = f"torch_copied[{op}]"
    return code


def _layout() -> list[Template]:
    more: dict[str, Any] = {"mixed": True, "exact": True}
    ops = [v.name.rpartition(".")[2] for v in VIEWS]
    return [
        *(row(op, f"{op}(x, {', '.join(f'{a}={a}' for a in OPS[op].attrs)})", _copied_view(op), family="copy", **more)
          for op in ops if op != "reshape"),
        row("pad", "pad(x, axis=axis, lo=lo, hi=hi, value=value)", spell("padded_into({x}, {axis}, {lo}, {value}, {out})"),
            family="copy", setup=("padded_into",), **more),
        row("embedding", "gather(x, i, axis=0)", "torch.embedding({x}, {i}.clamp(0, {x}.shape[0] - 1))", family="gather",
            applies=lambda c: c.operands["i"].type.dtype in ("int32", "int64") and c.operands["x"].type.rank == 2, exact=True),
        row("gather", "gather(x, i, axis=axis)", "taken({x}, {i}, {axis}, {out})", family="gather", setup=("taken",), **more),
        row("gather_elements", "gather_elements(x, i, axis=axis)", "picked({x}, {i}, {axis}, {out})", family="gather",
            setup=("picked",), **more),
        row("scatter_elements", "scatter_elements(x, i, u, axis=axis, mode=mode)",
            "scattered({x}, {i}, {u}, {axis}, {mode}, {out})", family="scatter", inplace=("x",), setup=("scattered",), mixed=True),
        row("index_copy", "scatter_elements(x, broadcast_to(i, shape=s), u, axis=axis, mode='set')",
            "replaced({x}, {i}, {u}, {axis}, {out})", family="scatter", inplace=("x",), setup=("replaced",), applies=_slices,
            mixed=True),
        row("rope_wide", "rope(x, c, s)", "{out}.copy_(rotated({x}.float(), {c}, {s}))", setup=("rotated",),
            applies=both(_FLOAT, lambda c: not uniform(c)), mixed=True),
    ]  # fmt: skip


def _slices(call: Call) -> bool:
    """The index is a line along the axis, and whole slices are written there."""
    axis, shape = call.attrs["axis"], call.attrs["s"]
    x, i, u = (_shape(call.operands[n]) for n in "xiu")
    line = len(i) == len(x) and all(d == 1 for k, d in enumerate(i) if k != axis) and i[axis] == u[axis]
    return line and tuple(shape) == u and all(a == b for k, (a, b) in enumerate(zip(x, u)) if k != axis)


def _same_float(call: Call) -> bool:
    a, b = call.operands["x"].type.dtype, call.output.type.dtype
    return a == b and dtypes.is_float(a)


#: Views of tensors (never backwards: Torch has no negative strides), and casts between floats that lie in one dtype.
TENSOR_VIEWS: tuple[Template, ...] = (
    *(replace(v, backend="torch_cuda", code=VIEW_CODE[op], setup=())
      for v in VIEWS for op in [v.name.rpartition(".")[2]] if op in VIEW_CODE),
    Template("view.cast", "torch_cuda", "cast(x, dtype=dtype)", "{x}", family="view", applies=_same_float, exact=True),
)  # fmt: skip


class TorchCudaBackend:
    """Torch's kernels on tensors in a GPU's memory."""

    name = "torch_cuda"
    device = "cuda"
    helpers: Mapping[str, str] = {**SHARED, **OWN}

    @cached_property
    def templates(self) -> Sequence[Template]:
        """Views, then a kernel or more for every op."""
        native = [
            *_from_cpu(),
            *_pointwise(),
            *_reductions(),
            *_products(),
            *_convolutions(),
            *_pools(),
            *_attentions(),
            *_layout(),
        ]
        return (*TENSOR_VIEWS, *native, *_twins(native))

    def unavailable(self) -> str:
        """Empty, or why no GPU can be used: no Torch, no driver, no device."""
        return _unavailable()


def _twins(native: Iterable[Template]) -> list[Template]:
    return [_widened(t) for t in native if _widenable(t)]


@cache
def _unavailable() -> str:
    from ctypes import CDLL
    from importlib.util import find_spec

    if find_spec("torch") is None:
        return "PyTorch is not installed (pip install 'tensor-graphs[gpu]')"
    if not any(_loads(CDLL, name) for name in ("libcuda.so.1", "nvcuda.dll")):
        return "there is no NVIDIA driver (libcuda cannot be loaded)"
    import torch

    if torch.version.cuda is None:
        return "this PyTorch is built without CUDA"
    return "" if torch.cuda.is_available() else "CUDA finds no usable GPU"


def _loads(load: Callable[[str], object], name: str) -> bool:
    try:
        load(name)
    except OSError:
        return False
    return True


BACKEND = TorchCudaBackend()

__all__ = ["BACKEND", "TENSOR_VIEWS", "TorchCudaBackend", "uniform"]
