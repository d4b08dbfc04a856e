"""Declares Torch GPU library kernels: cuBLAS and cuBLASLt, cuDNN, fused attention, Torch's elementwise and row kernels.

The storage dtype of tensors may be a 16-bit float under a float32 pattern.

Templates that work on both devices come from `torch.py`. They require a single float dtype, which is also the compute
dtype (products and sums accumulate wider). With mixed dtypes, pointwise kernels promote as Torch does; every other
template has a `_wide` variant that first widens its operands, so that a plan always exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

from ...egraph.ops.ops import OPS
from ...egraph.types import dtypes
from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel, identify
from ...imported import installed
from ..gpu_backend import GpuBackend
from ..gpu_context import begin_driver
from ..runtime.views import spelled, torch_code, torch_copy_code, view_ops, view_templates
from .numpy_rows import spell
from .torch import BACKEND as CPU
from .torch_calls import NUMBER, Applies, both, extents, filled, some_axes
from .torch_cuda_attention import attentions
from .torch_cuda_helpers import HELPERS as OWN
from .torch_cuda_images import convolutions, pools
from .torch_cuda_products import products
from .torch_cuda_rows import FLOAT, floats, promotes, row, single, uniform
from .torch_helpers import HELPERS as SHARED
from .torch_training import gpu_training, training
from .torch_training_helpers import HELPERS as TRAINING

# ---------------------------------------------------------------- templates of torch.py
#: Names of CPU kernels that the GPU backend leaves out, also with a suffix after "_": they read weights packed for
#: the CPU, or this module has other kernels for GPUs.
_CPU_ONLY = (
    "mkl", "onednn", "layer_norm_out", "softplus", "conv", "sdpa", "attention", "masked", "embedding", "argmax", "argmin", "last_concat",
    "last_concat3", "linear",
    "matmul", "mm", "bmm", "addmm", "cast", "sum", "mean", "square", "updated",
)  # fmt: skip

#: Pointwise templates that promote mixed dtypes themselves.
_PROMOTING = ("add", "sub", "mul", "div", "maximum", "minimum", "eq", "lt", "le", "mul_add", "add_mul", "pow")
#: Pointwise templates that take and write any float dtype.
_ROUNDING = ("to_float16", "to_bfloat16")


def _moved(t: LibraryKernel) -> LibraryKernel:
    """A CPU template adapted to the GPU."""
    name = t.name.partition(".")[2]
    name = f"{name}_out" if "rope_out" in t.setup else name
    condition = None if t.family == "copy" or name in _ROUNDING else promotes if name in _PROMOTING else uniform
    return replace(t, name=f"cuda.{name}", backend="torch_cuda", applies=both(t.applies, condition))


def _from_cpu() -> list[LibraryKernel]:
    left = {t.name for t in training()}  # `gpu_training` has those of GPUs
    return [_moved(t) for t in CPU.templates if t.name not in left and not _cpu_only(t.name.partition(".")[2])]


def _cpu_only(name: str) -> bool:
    return any(name == own or name.startswith(f"{own}_") for own in _CPU_ONLY)


_OUT = "__OUT__"


def _widened(t: LibraryKernel) -> LibraryKernel:
    """The `_wide` variant of a template: widens operands to float32 (to float64 if one operand is float64), and rounds
    the result once."""

    def code(call: Call) -> str:
        wide = "double" if "float64" in floats(call) else "float"
        names = {
            o: f"{n}.{wide}()" if o in call.operands and dtypes.is_float(call.operands[o].type.dtype) else n
            for o, n in call.names.items()
        }
        text = t.write(replace(call, names={**names, "out": _OUT}))
        return f"{call.names['out']}.copy_({text.replace(f', out={_OUT}', '')})"

    inner = t.applies
    identify(code, f"torch_cuda.widened[{t.identity}]")
    assert inner is not None
    fits: Applies = lambda call: not uniform(call) and not inner(call) and inner(_uniformed(call))
    return replace(t, name=f"{t.name}_wide", code=code, applies=fits, inplace=(), exact=False)


def _uniformed(call: Call) -> Call:
    """The call with all floats in the widened dtype."""
    wide = "float64" if "float64" in floats(call) else "float32"

    def kind(o: Any) -> Any:
        return replace(o, type=replace(o.type, dtype=wide)) if dtypes.is_float(o.type.dtype) else o

    return replace(call, operands={n: kind(o) for n, o in call.operands.items()}, output=kind(call.output))


def _widenable(t: LibraryKernel) -> bool:
    """Whether a template needs a widened variant, and its code allows one by naming the output only in `out=`."""
    name = t.name.partition(".")[2]
    plain = t.family not in ("copy", "view", "scatter", "gather", "sort") and t.layout is None and not t.prep
    plain = plain and (not name.startswith("sdpa") or name.endswith("_single"))  # widened operands are not 16-bit
    return (
        plain
        and not t.loss
        and name not in (*_NOT_WIDENED, *_ROUNDING)
        and not name.startswith(("mm", "bmm", "baddbmm"))
        and not name.endswith(_VARIANTS)
    )


#: Templates that accept mixed float dtypes, take no floats, or have another widened variant.
_NOT_WIDENED = frozenset([
    "cast", "from_float8", "unpack", "dequantize", "quantize", "square", "square_wide", "sum", "mean", "prod", "and", "or", "xor", "not", "eq", "lt", "le", "is_nan", "is_inf",
    "argmax", "argmin", "variance_and_mean", "group_norm_split", "softplus_double", "matmul", "matmul_wide", "linear", "linear_wide", "rope_out",
    "rope_wide",
])  # fmt: skip
_VARIANTS = ("_int", "_bool", "_cast", "_nothing", "_tuned", "_flash", "_cudnn", "_efficient", "_live")


# ---------------------------------------------------------------- pointwise and reductions
def _identity_axes(call: Call) -> bool:
    return call.attrs.get("axes") == ()


def _bool(call: Call) -> bool:
    return {o.type.dtype for o in call.operands.values()} == {"bool"}


def _not_float(call: Call) -> bool:
    return not floats(call)


def _has_float(call: Call) -> bool:
    return bool(floats(call))


def _narrowed(call: Call) -> bool:
    return not uniform(call) and some_axes(call)


def _pointwise() -> list[LibraryKernel]:
    soft = "torch.logaddexp({x}, torch.zeros_like({x}), out={out})"
    return [
        row("cast", "cast(x, dtype=dtype)", "{out}.copy_({x})", mixed=True),
        row("from_float8", "from_float8(x, dtype=dtype)", "{out}.copy_({x}.view(torch.float8_e4m3fn).float())", mixed=True, exact=True),
        row("unpack", "unpack(x, bits=bits, form=form, axis=axis, block=block, dtype=dtype)",
            "{out}.copy_(unpacked({x}, {bits}, {form}, {axis}, {block}))", setup=("unpacked",), mixed=True, exact=True),
        row("dequantize", "dequantize(q, s, z)", "{out}.copy_(dequantized({q}, {s}, {z}))", setup=("dequantized",), mixed=True, exact=True),
        row("quantize", "quantize(x, s, z)", "{out}.copy_(quantized({x}, {s}, {z}))", setup=("quantized",), mixed=True, exact=True),
        row("square", "x * x", "torch.mul({x}, {x}, out={out})", inplace=("x",), applies=NUMBER),
        row("square_wide", "x * x", "{out}.copy_({x}.float() * {x})", applies=lambda c: not uniform(c), mixed=True),
        row("sign", "sign(x)", "torch.where({x} != {x}, {x}, torch.sign({x}), out={out})", inplace=("x",), applies=NUMBER),
        row("floordiv", "floordiv(x, y)", "torch.floor_divide({x}, {y}, out={out})", inplace=("x", "y"), applies=FLOAT),
        row("mod", "mod(x, y)", "torch.remainder({x}, {y}, out={out})", inplace=("x", "y"), applies=FLOAT),
        *(row(f"{op}_int", f"{op}(x, y)", f"{{out}}.copy_(int_divided({{x}}, {{y}}, {op == 'mod'}))", setup=("int_divided",),
              applies=both(NUMBER, _not_float)) for op in ("floordiv", "mod")),
        row("pow_int", "pow(x, y)", "torch.pow({x}, {y}, out={out})", inplace=("x", "y"), applies=both(NUMBER, _not_float)),
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


def _variance(axes: str) -> str:
    """Pattern of the variance of x along axes."""
    centred = f"(x - mean(x, axes={axes}))"
    return f"mean({centred} * {centred}, axes={axes})"


def _all_single(call: Call) -> bool:
    """Whether all floats are float32, in all results."""
    return single(call) and all(o.type.dtype == "float32" for o in call.more)


FEW_GROUPS = 264  # groups of all examples, two for each multiprocessor, up to which statistics are split over blocks


def _few_groups(call: Call) -> bool:
    """Condition on calls of a group norm: few groups of at most float32."""
    examples = extents(call.operands["x"])[0]
    few = isinstance(examples, int) and 0 < examples * call.attrs["groups"] <= FEW_GROUPS
    return few and FLOAT(call) and "float64" not in floats(call) and filled(call)


def _reductions() -> list[LibraryKernel]:
    more: dict[str, Any] = {"family": "reduction"}
    along = ", {axes}, True, out={out})"
    sums = both(lambda c: not _bool(c), some_axes, sums_wider)
    found = [
        row("variance_and_mean", f"{_variance('axes')}; mean(x, axes=axes)",
            "torch.ops.aten.var_mean.correction_out({x}, {axes}, correction=0, keepdim=True, out0={out}, out1={out1})",
            applies=both(_all_single, some_axes), **more),
        row("sum", "sum(x, axes=axes)", "torch.sum({x}" + along, applies=sums, mixed=True, **more),
        row("mean", "mean(x, axes=axes)", "torch.mean({x}" + along, applies=both(FLOAT, sums), mixed=True, **more),
        *(row(f"{op}_cast", f"{op}(x, axes=axes)", f"{{out}}.copy_(torch.{op}({{x}}, {{axes}}, True))",
              applies=both(FLOAT, some_axes, lambda c: not sums_wider(c)), mixed=True, **more) for op in ("sum", "mean")),
        row("sum_bool", "sum(x, axes=axes)", "torch.amax({x}, {axes}, True, out={out})", applies=both(_bool, some_axes), **more),
        row("prod", "prod(x, axes=axes)", "{out}.copy_(product({x}, {axes}))", setup=("product",),
            mixed=True, **more),
        row("cumsum_int", "cumsum(x, axis=axis)", "{out}.copy_(torch.cumsum({x}.long(), {axis}))", applies=_not_float,
            **more),
        row("argsort", "argsort(x, axis=axis, descending=descending)", "{out}.copy_(sorting({x}, {axis}, {descending}))",
            family="sort", setup=("sorting",), mixed=True),
        row("group_norm_split", "group_norm(x, g, b, groups=groups, eps=eps)",
            "split_group_norm({x}, {groups}, {g}, {b}, {eps}, {out})", setup=("split_group_norm",), applies=_few_groups,
            mixed=True, dense=("*",), **more),
        row("cross_entropy", "cross_entropy(x, i)",
            "torch.nn.functional.cross_entropy({x}, {i}.long(), reduction='none')", **more),
    ]  # fmt: skip
    for op in ("max", "min"):
        bare = f"torch.a{op}({{x}}, {{axes}}, True"
        found += [
            row(f"{op}_cast", f"{op}(x, axes=axes)", "{out}.copy_(" + bare + "))", applies=_narrowed, mixed=True, **more),
            row(f"{op}_int", f"{op}(x, axes=axes)", bare + ", out={out})", applies=both(_not_float, some_axes), **more),
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
    """Condition on calls: the result is at least as wide as the summand, so that Torch adds in the result's dtype."""
    return dtypes.itemsize(call.output.type.dtype) >= dtypes.itemsize(call.operands["x"].type.dtype)


# ---------------------------------------------------------------- layout, copies, indexing
def _copied_view(op: str) -> Callable[[Call], str] | None:
    """Code that computes a view op as a copy; None if Torch has no expression for the op."""
    text = torch_copy_code(op)
    if text is None:
        return None

    def code(call: Call) -> str:
        return f"{call.names['out']}.copy_({spelled(text, call)})"

    identify(code, f"torch_cuda.torch_copied[{op}]")
    return code


def _layout() -> list[LibraryKernel]:
    more: dict[str, Any] = {"mixed": True, "exact": True}
    copied = {op: code for op in view_ops() if op != "reshape" and (code := _copied_view(op)) is not None}
    return [
        *(row(op, f"{op}(x, {', '.join(f'{a}={a}' for a in OPS[op].attrs)})", code, family="copy", **more)
          for op, code in copied.items()),
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
            applies=both(FLOAT, lambda c: not uniform(c)), mixed=True),
    ]  # fmt: skip


def _slices(call: Call) -> bool:
    """Whether the index varies along the axis only, so that whole slices are written."""
    axis, shape = call.attrs["axis"], call.attrs["s"]
    x, i, u = (extents(call.operands[n]) for n in "xiu")
    line = len(i) == len(x) and all(d == 1 for k, d in enumerate(i) if k != axis) and i[axis] == u[axis]
    return line and tuple(shape) == u and all(a == b for k, (a, b) in enumerate(zip(x, u)) if k != axis)


def _same_float(call: Call) -> bool:
    a, b = call.operands["x"].type.dtype, call.output.type.dtype
    return a == b and dtypes.is_float(a)


#: Views of tensors (without negative strides, which Torch lacks), and casts between equal storage dtypes.
TENSOR_VIEWS: tuple[LibraryKernel, ...] = (
    *(replace(v, backend="torch_cuda", code=code, setup=())
      for v in view_templates() if (code := torch_code(v.name.rpartition(".")[2])) is not None),
    LibraryKernel("view.cast", "torch_cuda", "cast(x, dtype=dtype)", "{x}", family="view", applies=_same_float, exact=True),
)  # fmt: skip


class TorchCudaBackend(GpuBackend):
    """Backend of Torch's GPU library kernels. `helpers`: source texts that kernels' code may need, by name."""

    name = "torch_cuda"
    helpers: Mapping[str, str] = {**SHARED, **TRAINING, **OWN}

    @cached_property
    def templates(self) -> Sequence[LibraryKernel]:
        """Kernel templates (patterns and code): those of views, then at least one per op."""
        native = [
            *_from_cpu(),
            *_pointwise(),
            *_reductions(),
            *products(),
            *convolutions(),
            *pools(),
            *attentions(),
            *_layout(),
        ]
        return (*TENSOR_VIEWS, *native, *_twins(native), *gpu_training())

    def unavailable(self) -> str:
        """Reason why no GPU can be used (no Torch, driver or device); empty if one can."""
        return _unavailable()


def _twins(native: Iterable[LibraryKernel]) -> list[LibraryKernel]:
    return [_widened(t) for t in native if _widenable(t)]


@cache
def _unavailable() -> str:
    from ctypes import CDLL

    if not installed("torch"):
        return "PyTorch is not installed (pip install 'tensor-graphs[gpu]')"
    if not any(_loads(CDLL, name) for name in ("libcuda.so.1", "nvcuda.dll")):
        return "there is no NVIDIA driver (libcuda cannot be loaded)"
    begin_driver()  # while PyTorch is imported
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
