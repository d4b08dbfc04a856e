"""Defines the NumPy backend: a reference kernel for every op, so that a plan always exists, and faster kernels for some
patterns.

Templates (kernels' patterns and code) are data: a pattern (meaning) and code. Code writes to `out` and allocates
nothing large, except in helpers documented to do so. float16 and bfloat16 are computed as in the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from keyword import iskeyword
from math import prod
from typing import Any

from ...egraph.ops.ops import OPS, Op
from ...egraph.types import dtypes
from ...egraph.types.dims import DimExpr, concrete
from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel, identified, identify
from ..contract import BackendBase
from ..ir.source_text import dtype_text, literal
from ..runtime.views import numpy_code, spelled, view_templates
from .numpy_helpers import HELPERS
from .numpy_products import contractions
from .numpy_rows import Applies, every, has_halves, of_kind, row, sizes, spell, wide_floats
from .scratch import ScratchBuffer, ScratchBuffers, compute_dtype, reduced_shape, shape_of, wide, with_scratch, work

PASSES = 0.1  # arithmetic throughput of functions that make several passes over memory, relative to that of one pass


# ---------------------------------------------------------------- scratch memory
def _exponents(call: Call) -> ScratchBuffers:
    return {"exponents": (shape_of(call, "out"), call.output.type.dtype)}


def _each_its_own(call: Call) -> bool:
    """Whether the exponents have the full shape.

    NumPy computes powers with broadcast exponents by other functions, with other rounding.
    """
    return call.output.type.rank > 0 and shape_of(call, "y") == shape_of(call, "out")


def _signs(call: Call) -> ScratchBuffers:
    return {"positive": (shape_of(call, "out"), "bool")}


def _reduced(call: Call, axis: int) -> ScratchBuffer:
    return reduced_shape(shape_of(call, "x"), (axis,)), compute_dtype(call)


def _along_axis(call: Call) -> ScratchBuffers:
    return {"work": work(call), "stat": _reduced(call, call.attrs["axis"])}


def _along_axis_twice(call: Call) -> ScratchBuffers:
    return {**_along_axis(call), "powers": (shape_of(call, "out"), compute_dtype(call))}


def _over_axes(call: Call) -> ScratchBuffers:
    kept = shape_of(call, "out")
    return {"powers": (shape_of(call, "x"), compute_dtype(call)), "top": (kept, compute_dtype(call)), "infinite": (kept, "bool"),
            "work": work(call)}  # fmt: skip


def _along_last(call: Call) -> ScratchBuffers:
    return {"work": work(call), "stat": _reduced(call, -1)}


def _grouped(call: Call) -> ScratchBuffers:
    return {"work": work(call), "stat": ((shape_of(call, "x")[0], call.attrs["groups"], 1), compute_dtype(call))}


def _logs(call: Call) -> ScratchBuffers:
    shape, kind = shape_of(call, "x"), call.operands["x"].type.dtype
    return {"logs": (shape, kind), "work": "logs" if wide(kind) == kind else (shape, wide(kind)),
            "powers": (shape, wide(kind)), "stat": (reduced_shape(shape, (1,)), wide(kind))}  # fmt: skip


def _halved(call: Call) -> ScratchBuffers:
    *rest, last = shape_of(call, "x")
    return {"turned": ((*rest, last // 2), call.operands["x"].type.dtype)}


# ---------------------------------------------------------------- pointwise
_NUMBER = of_kind("int", "float")

#: `OutFunction.dtypes` -> condition
_DTYPES: dict[str, Applies | None] = {"any": None, "number": _NUMBER, "bits": of_kind("bool", "int")}


def out_call(op: Op) -> tuple[str, str, tuple[str, ...]]:
    """Parts of the template (a kernel's pattern and code) of an elementwise op: (pattern, format string of its
    operands, operands that its result may overwrite)."""
    names = ("x", "y", "z")[: op.arity]
    name = f"{op.name}_" if iskeyword(op.name) else op.name
    keeps_dtype = op.law != "compare" or op.name == "not"
    return f"{name}({', '.join(names)})", ", ".join(f"{{{n}}}" for n in names), names if keeps_dtype else ()


def _ufuncs() -> list[LibraryKernel]:
    """Templates of all ops that a ufunc computes."""
    found = []
    for op in OPS.values():
        if op.numpy_function is not None and op.numpy_function.dtypes != "none":
            pattern, names, reused = out_call(op)
            code = f"np.{op.numpy_function.name}({names}, out={{out}})"
            applies = _DTYPES[op.numpy_function.dtypes]
            found.append(row(op.name, pattern, code, inplace=reused, applies=applies, exact=True))
    return found


@identified("numpy._cast_code")
def _cast_code(call: Call) -> str:
    n, target = call.names, call.output.type.dtype
    if call.operands["x"].type.dtype == "bfloat16" and dtypes.category(target) == "int":
        return f"np.copyto({n['out']}, {n['x']}.astype(np.float64), casting='unsafe')"
    return f"np.copyto({n['out']}, {n['x']}, casting='unsafe')"


def _at_most_float32(call: Call) -> bool:
    return call.output.type.dtype != "float64"


def _pointwise() -> list[LibraryKernel]:
    chain = "np.negative({x}, out={out}); np.exp({out}, out={out}); np.add({out}, 1, out={out}); "
    return [
        *_ufuncs(),
        row("rsqrt", "rsqrt(x)", "np.sqrt({x}, out={out}); np.reciprocal({out}, out={out})", inplace=("x",), exact=True),
        row("pow_each", "pow(x, y)", "np.power({x}, {y}, out={out})", inplace=("x",), dense=("y",), exact=True,
            applies=every(_NUMBER, _each_its_own)),
        row("pow", "pow(x, y)", setup=("power",), inplace=("x",), applies=every(_NUMBER, lambda c: not _each_its_own(c)), exact=True,
            **with_scratch("power({x}, {y}, {exponents}, {out})", _exponents)),
        row("square", "x * x", "np.square({x}, out={out})", inplace=("x",), applies=_NUMBER, exact=True),
        row("where", "where(c, x, y)", "np.copyto({out}, {y}); np.copyto({out}, {x}, where={c})", exact=True),
        row("cast", "cast(x, dtype=dtype)", _cast_code, exact=True),
        *(row(f"to_{half}", f"to_{half}(x)", f"np.copyto({{out}}, {{x}}.astype({place}), casting='unsafe')", applies=_at_most_float32, inplace=("x",), exact=True)
          for half, place in (("float16", "np.float16"), ("bfloat16", "ml_dtypes.bfloat16"))),
        row("from_float8", "from_float8(x, dtype=dtype)", "from_float8({x}, {out})", setup=("from_float8",), exact=True),
        row("unpack", "unpack(x, bits=bits, form=form, axis=axis, block=block, dtype=dtype)",
            "unpack({x}, {bits}, {form}, {axis}, {block}, {out})", setup=("unpack",), exact=True),
        row("dequantize", "dequantize(q, s, z)", "dequantize({q}, {s}, {z}, {out})", setup=("dequantize",), exact=True,
            flops=lambda call: 3.0 * prod(concrete(call.output.type.shape)), rate=PASSES),
        row("quantize", "quantize(x, s, z)", "quantize({x}, {s}, {z}, {out})", setup=("quantize",), exact=True, rate=PASSES),
        row("erf", "erf(x)", "erf({x}, {out})", inplace=("x",), setup=("erf",)),
        row("defined_erf", "erf(x)", "np.copyto({out}, defined_erf({x}))", setup=("defined_erf",), exact=True),
        row("relu", "relu(x)", "np.maximum({x}, 0, out={out})", inplace=("x",), exact=True),
        row("sigmoid", "sigmoid(x)", chain + "np.reciprocal({out}, out={out})", inplace=("x",)),
        row("silu", "silu(x)", chain + "np.true_divide({x}, {out}, out={out})"),
        row("gelu", "gelu(x)", "gelu({x}, {out})", inplace=("x",), dense=("x",), setup=("gelu",)),
        row("gelu_tanh", "gelu_tanh(x)", "gelu_tanh({x}, {out})", setup=("gelu_tanh",)),
        row("softplus", "softplus(x)", "np.logaddexp({x}, 0, out={out})", inplace=("x",), applies=wide_floats),
        row("softplus_half", "softplus(x)", "np.copyto({out}, np.logaddexp({x}.astype(np.float32), 0), casting='unsafe')",
            applies=has_halves),
        row("mish", "mish(x)", "mish({x}, {out})", setup=("mish",)),
        *(row(op, f"{op}(x, alpha=alpha)", setup=(op,),
              **with_scratch(f"{op}({{x}}, {{alpha}}, {{positive}}, {{out}})", _signs)) for op in ("elu", "leaky_relu")),
        row("hard_sigmoid", "hard_sigmoid(x, alpha=alpha, beta=beta)",
            spell("np.multiply({x}, {alpha}, out={out}); np.add({out}, {beta}, out={out}); clip({out}, 0, 1, {out})"),
            inplace=("x",), setup=("clip",)),
        row("hard_swish", "hard_swish(x)",
            "np.multiply({x}, 1 / 6, out={out}); np.add({out}, 0.5, out={out}); clip({out}, 0, 1, {out}); "
            "np.multiply({x}, {out}, out={out})", setup=("clip",)),
        row("clip", "clip(x, lo=lo, hi=hi)", spell("clip({x}, {lo}, {hi}, {out})"), inplace=("x",), setup=("clip",), exact=True),
    ]  # fmt: skip


# ---------------------------------------------------------------- reductions and normalisations
def _reduce_code(ufunc: str, wide: bool) -> Callable[[Call], str]:
    def code(call: Call) -> str:
        n, axes = call.names, literal(call.attrs["axes"])
        if wide and has_halves(call):  # accumulate 16-bit floats in float32, as the interpreter does
            total = f"np.{ufunc}.reduce({n['x']}, axis={axes}, dtype=np.float32, keepdims=True)"
            return f"np.copyto({n['out']}, {total}, casting='unsafe')"
        dtype = f", dtype={dtype_text(call.output.type.dtype)}" if ufunc in ("add", "multiply") else ""
        return f"np.{ufunc}.reduce({n['x']}, axis={axes}{dtype}, out={n['out']}, keepdims=True)"

    identify(code, f"numpy.reduce[{ufunc}]")
    return code


@identified("numpy._mean_code")
def _mean_code(call: Call) -> str:
    count = 1
    for axis in call.attrs["axes"]:
        count *= sizes(call.operands["x"])[axis]
    factor = f"1.0 / ({count})" if isinstance(count, DimExpr) else literal(1.0 / count if count else float("nan"))
    return (
        f"{_reduce_code('add', wide=True)(call)}; np.multiply({call.names['out']}, {factor}, out={call.names['out']})"
    )


def _folds() -> Iterator[LibraryKernel]:
    """Yields a template for each op that folds a ufunc along axes."""
    for monoid in ("add", "mul", "maximum", "minimum"):
        ufunc = OPS[monoid].numpy_function
        assert ufunc is not None
        for op in OPS.values():
            if op.law == "reduce" and op.monoid == monoid:
                code = _reduce_code(ufunc.name, monoid == "add")
                yield row(op.name, f"{op.name}(x, axes=axes)", code, exact=True, family="reduction")


def _reductions() -> list[LibraryKernel]:
    more: dict[str, Any] = {"family": "reduction"}
    return [
        *_folds(),
        row("mean", "mean(x, axes=axes)", _mean_code, **more),
        row("argmax", "argmax(x, axis=axis)", "np.argmax({x}, axis={axis}, out={out}, keepdims=True)", exact=True, **more),
        row("argmin", "argmin(x, axis=axis)", "np.argmin({x}, axis={axis}, out={out}, keepdims=True)", exact=True, **more),
        row("cumsum", "cumsum(x, axis=axis)", "np.add.accumulate({x}, axis={axis}, dtype={x}.dtype, out={out})", exact=True,
            **more),
        row("argsort", "argsort(x, axis=axis, descending=descending)", "argsort({x}, {axis}, {descending}, {out})",
            family="sort", setup=("argsort",), exact=True),
        row("softmax", "softmax(x, axis=axis)", setup=("softmax",),
            **with_scratch("softmax({x}, {axis}, {work}, {stat}, {out})", _along_axis), **more),
        row("log_softmax", "log_softmax(x, axis=axis)", setup=("log_softmax",),
            **with_scratch("log_softmax({x}, {axis}, {work}, {powers}, {stat}, {out})", _along_axis_twice), **more),
        row("logsumexp", "logsumexp(x, axes=axes)", setup=("logsumexp",),
            **with_scratch("logsumexp({x}, {axes}, {powers}, {top}, {infinite}, {work}, {out})", _over_axes), **more),
        row("layer_norm", "layer_norm(x, g, b, eps=eps)", setup=("layer_norm",),
            **with_scratch("layer_norm({x}, {g}, {b}, {eps}, {work}, {stat}, {out})", _along_last), **more),
        row("rms_norm", "rms_norm(x, g, eps=eps)", setup=("rms_norm",),
            **with_scratch("rms_norm({x}, {g}, {eps}, {work}, {stat}, {out})", _along_last), **more),
        row("batch_norm", "batch_norm(x, g, b, m, v, eps=eps)", "batch_norm({x}, {g}, {b}, {m}, {v}, {eps}, {out})",
            setup=("batch_norm",)),
        row("group_norm", "group_norm(x, g, b, groups=groups, eps=eps)", setup=("group_norm",),
            **with_scratch("group_norm({x}, {g}, {b}, {groups}, {eps}, {work}, {stat}, {out})", _grouped), **more),
        row("cross_entropy", "cross_entropy(x, i)", setup=("cross_entropy",),
            **with_scratch("cross_entropy({x}, {i}, {logs}, {work}, {powers}, {stat}, {out})", _logs), **more),
    ]  # fmt: skip


# ---------------------------------------------------------------- layout, copies, indexing
def _copied_view(op: str) -> Callable[[Call], str]:
    """Code that computes a view op as a copy, for operands whose layout admits no view."""

    def code(call: Call) -> str:
        if op == "reshape":
            return f"np.copyto({call.names['out']}.reshape({sizes(call.operands['x'])}), {call.names['x']})"
        return f"np.copyto({call.names['out']}, {spelled(numpy_code(op), call)})"

    identify(code, f"numpy.copied[{op}]")
    return code


def _copied_pattern(op: str) -> str:
    return f"{op}(x, {', '.join(f'{a}={a}' for a in OPS[op].attrs)})"


def concats() -> Iterator[tuple[int, str, str]]:
    """Concatenations of 2 to 4 values: (number of values, pattern, format string that lists the values)."""
    pattern, names = "x0", ["x0"]
    for n in range(1, 4):
        names.append(f"x{n}")
        pattern = f"concat({pattern}, x{n}, axis=axis)"
        yield n + 1, pattern, ", ".join("{" + name + "}" for name in names)


def _layout() -> list[LibraryKernel]:
    more: dict[str, Any] = {"exact": True}
    return [
        row("copy", "x", "np.copyto({out}, {x})", family="copy", **more),
        *(row(op, _copied_pattern(op), _copied_view(op), family="copy", setup=v.setup, **more)
          for v in view_templates() for op in [v.name.rpartition(".")[2]]),
        *(row(f"concat{n if n > 2 else ''}", pattern, f"np.concatenate(({parts}), {{axis}}, out={{out}})", family="copy", **more)
          for n, pattern, parts in concats()),
        row("pad2", "pad(pad(x, axis=a, lo=k, hi=l, value=value), axis=b, lo=m, hi=n, value=value)",
            spell("pad2({x}, {a}, {k}, {b}, {m}, {value}, {out})"), family="copy", setup=("pad2",),
            applies=lambda c: c.attrs["a"] != c.attrs["b"], **more),
        row("pad", "pad(x, axis=axis, lo=lo, hi=hi, value=value)", spell("pad({x}, {axis}, {lo}, {value}, {out})"),
            family="copy", setup=("pad",), **more),
        row("gather", "gather(x, i, axis=axis)", "np.take({x}, {i}, axis={axis}, out={out}, mode='clip')",
            family="gather", **more),
        row("gather_elements", "gather_elements(x, i, axis=axis)", "gather_elements({x}, {i}, {axis}, {out})",
            family="gather", setup=("gather_elements",), **more),
        row("scatter_elements", "scatter_elements(x, i, u, axis=axis, mode=mode)",
            "scatter_elements({x}, {i}, {u}, {axis}, {mode}, {out})", family="scatter", inplace=("x",),
            setup=("scatter_elements",), **more),
        row("rope", "rope(x, c, s)", setup=("rope",), **with_scratch("rope({x}, {c}, {s}, {turned}, {out})", _halved)),
    ]  # fmt: skip


class NumpyBackend(BackendBase):
    """Backend of NumPy kernels on the CPU: always usable, with a reference kernel for every op. `helpers`: source texts
    that kernels' code may need, by name."""

    name = "numpy"
    helpers: Mapping[str, str] = HELPERS

    @cached_property
    def templates(self) -> Sequence[LibraryKernel]:
        """Kernel templates (patterns and code): those of views, then at least one per op."""
        return (*view_templates(), *_pointwise(), *_reductions(), *contractions(), *_layout())


BACKEND = NumpyBackend()
