"""Declares the library kernels of the Torch CPU backend as rows of a table.

Elementwise ops and reductions with `out=`, MKL and oneDNN GEMMs and convolutions with packed weights and fused
epilogues, attention, normalisations.

Torch works on NumPy's memory. Only emitted source and `unavailable()` import Torch. A template without `{out}` returns
a new tensor, because Torch cannot write that result to given memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from ...egraph.ops.ops import OPS
from ...egraph.types import dtypes
from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel, identified
from ..contract import BackendBase
from .numpy import concats, out_call
from .numpy_products import RECURRENT, RECURRENT_ATTRS, masked_by_operand_only
from .numpy_rows import spell
from .torch_calls import (
    BITS,
    FLOATS,
    HIDING,
    NUMBER,
    SINGLE,
    Applies,
    both,
    channels_last,
    dtypes_of,
    extents,
    heads_fit,
    is_channels_last,
    of,
    some_axes,
)
from .torch_helpers import HELPERS
from .torch_images import convolutions, pools
from .torch_products import products
from .torch_rows import one_float, row, unavailable, usable_if
from .torch_training import training
from .torch_training_helpers import HELPERS as TRAINING_HELPERS


def _alike(call: Call) -> bool:
    """Whether all float operands and results of the call have one dtype."""
    return len({d for d in dtypes_of(call) if d in FLOATS}) <= 1


def _concat_last(call: Call) -> bool:
    """Whether all operands are channels-last images, of which channels are concatenated."""
    return call.attrs["axis"] == 1 and all(map(is_channels_last, call.operands.values()))


# ---------------------------------------------------------------- pointwise
#: `OutFunction.dtypes` -> condition
_DTYPES: dict[str, Applies | None] = {"any": None, "number": NUMBER, "float": one_float, "bits": BITS}

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
            conditions = [_DTYPES[op.torch_function.dtypes], _alike if op.rounding == "never" else None]
            found.append(row(op.name, pattern, code, applies=both(*conditions), inplace=reused))
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
        *(
            row(
                f"to_{half}",
                f"to_{half}(x)",
                f"{{out}}.copy_({{x}}.to(torch.{half}))",
                inplace=("x",),
                applies=of("float32", "float16", "bfloat16"),
            )
            for half in ("float16", "bfloat16")
        ),
        row("mul_add", "x * y + z", "torch.addcmul({z}, {x}, {y}, out={out})", inplace=("z",), applies=one_float),
        row("add_mul", "z + x * y", "torch.addcmul({z}, {x}, {y}, out={out})", inplace=("z",), applies=one_float),
    ]


def _plain_cast(call: Call) -> bool:
    """Whether a cast is to a float, or from int or bool: casts that C and NumPy define alike, unlike float to
    integer."""
    return dtypes.is_float(call.output.type.dtype) or not dtypes.is_float(call.operands["x"].type.dtype)


# ---------------------------------------------------------------- reductions and normalisations


def _width(call: Call) -> str:
    return str(extents(call.operands["x"])[-1])


def _reductions() -> list[LibraryKernel]:
    more: dict[str, Any] = {"family": "reduction", "applies": usable_if(one_float, some_axes)}
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
            spell("torch.batch_norm({x}, {g}, {b}, {m}, {v}, False, 0.0, {eps}, False)"), dense=("*",), applies=one_float),
    ]  # fmt: skip


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
    own: dict[str, Any] = {"family": "recurrent", "dense": ("s", "w"), "applies": usable_if(one_float, _own_cell)}
    return [
        row("recurrent", RECURRENT, spell(call.replace("WEIGHTS", weights), size=_size),
            setup=("recurrent_layers", "recurrent_weights"), **own),
        row("recurrent_packed", RECURRENT, call.replace("WEIGHTS", "{w}"), prep={"w": _recurrent_prep},
            setup=("recurrent_layers", "recurrent_packed"), **own),
        row("recurrent_spelled", RECURRENT, "recurrent_spelled({x}, {s}, {w}, " + RECURRENT_ATTRS + ", out={out})",
            family="recurrent", setup=("recurrent_spelled", "scan"), applies=usable_if(one_float, _spelled_cell)),
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
            setup=("sdpa",), applies=usable_if(one_float, _plain_attention)),
        row("sdpa_masked", f"masked_attention(q, k, v, m, {_ATTENTION})", code.replace("{mask}", "{m}"), family="attention",
            setup=("sdpa",), applies=usable_if(one_float, _mask_fits)),
        row("attention", f"attention(q, k, v, {_ATTENTION})", spell(spelled.replace("{mask}", "None")), family="attention",
            setup=("attention_spelled",), applies=usable_if(one_float, lambda call: not _plain_attention(call))),
        row("masked_attention", f"masked_attention(q, k, v, m, {_ATTENTION})", spell(spelled.replace("{mask}", "{m}")),
            family="attention", setup=("attention_spelled",), applies=usable_if(one_float, lambda call: not _mask_fits(call))),
        row("hiding_attention", f"hiding_attention(q, k, v, h, {_ATTENTION})", spell(HIDING), family="attention",
            setup=("attention_hiding",), applies=usable_if(masked_by_operand_only, _alike)),
        row("copy", "x", "{out}.copy_({x})", family="copy", exact=True),
        row("reshape", "reshape(x, shape=shape)", spell("{out}.view({have}).copy_({x})", have=shape_of), family="copy",
            exact=True),
        *(row(f"concat{n if n > 2 else ''}", pattern, f"torch.cat(({parts}), {{axis}}, out={{out}})", family="copy", exact=True)
          for n, pattern, parts in concats()),
        *(row(f"last_concat{n if n > 2 else ''}", pattern, f"torch.cat(({parts}), {{axis}}, out={{out}})", family="copy", exact=True,
              layout=channels_last, applies=_concat_last)
          for n, pattern, parts in concats() if n < 4),
        row("updated", "scatter_elements(x, i, u, axis=axis, mode=mode)", "updated({x}, {i}, {u}, {axis}, {mode}, {out})",
            family="scatter", inplace=("x",), setup=("updated",), applies=_plain_updates),
        row("rope", "rope(x, c, s)", "rope_out({x}, {c}, {s}, {out})", setup=("rope_out",), applies=one_float),
        row("embedding", "gather(x, i, axis=0)", "torch.embedding({x}, {i}.clamp(0, {x}.shape[0] - 1))", family="gather",
            applies=lambda c: c.operands["i"].type.dtype in ("int32", "int64") and c.operands["x"].type.rank == 2,
            exact=True),
    ]  # fmt: skip


class TorchBackend(BackendBase):
    """Backend of Torch kernels on the CPU, on NumPy's memory. `helpers`: source texts that kernels' code may need, by
    name."""

    name = "torch"
    operands = "torch"
    helpers: Mapping[str, str] = {**HELPERS, **TRAINING_HELPERS}

    @cached_property
    def templates(self) -> Sequence[LibraryKernel]:
        """All kernels; views and missing ops come from NumPy."""
        return (
            *_pointwise(),
            *_reductions(),
            *products(),
            *convolutions(),
            *pools(),
            *_recurrent(),
            *training(),
            *_rest(),
        )

    def unavailable(self) -> str:
        """Reason why Torch cannot be used (missing or broken); empty if it can."""
        return unavailable()


BACKEND = TorchBackend()
