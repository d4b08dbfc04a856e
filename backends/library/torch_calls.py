"""Holds call conditions and operand spelling shared by Torch's CPU and GPU templates (kernels' patterns and code)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from ...egraph.ops.ops import OPS
from ...egraph.ops.type_laws import infer
from ...extract.model.kernel import Call, Operand, Strides, contiguous
from ...extract.model.library_kernel import identified, identify
from ..runtime.views import view_strides

Applies = Callable[[Call], bool]

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTS = ("uint8", "int8", "int16", "int32", "int64")


# ---------------------------------------------------------------- conditions
def both(*conditions: Applies | None) -> Applies:
    """Make the condition on calls that all of `conditions` hold; None is ignored."""
    kept = [c for c in conditions if c is not None]
    return lambda call: all(c(call) for c in kept)


def dtypes_of(call: Call) -> set[str]:
    """All dtypes of a call's operands and first output."""
    return {o.type.dtype for o in (*call.operands.values(), call.output)}


def usable(call: Call) -> bool:
    """Condition on calls: Torch has the dtypes, and no stride is negative."""
    known = dtypes_of(call) <= {*FLOATS, *INTS, "bool"}
    return known and all(s >= 0 for o in call.operands.values() for s in o.strides)


def of(*names: str) -> Applies:
    """Make the condition on calls that operands and results have only the dtypes `names`."""
    return lambda call: dtypes_of(call) <= set(names)


#: Torch code of attention without the scores that a bool mask hides.
HIDING = "attention_hiding({q}, {k}, {v}, {h}, {scale}, {softcap})"


def relu_after(text: str) -> str:
    """Torch code of relu, in place, of what a oneDNN call returns. oneDNN's own relu (as its leaky relu and hardtanh)
    gives 0 for NaN."""
    return f"torch.relu_({text})"


SINGLE, NUMBER, BITS = of("float32"), of(*FLOATS, *INTS), of("bool", *INTS)


def extents(operand: Operand) -> tuple[int, ...]:
    """Shape of an operand. Sizes may be expressions in free sizes."""
    return operand.type.shape  # type: ignore[return-value]


def filled(call: Call) -> bool:
    """Condition on calls: no operand and no result is empty (MKL and oneDNN do not pack empty weights)."""
    return all(size != 0 for o in call.buffers.values() for size in extents(o))


def some_axes(call: Call) -> bool:
    """Condition on calls: the reduction has axes (an empty tuple means all axes to Torch)."""
    return call.attrs.get("axes") != ()


# ---------------------------------------------------------------- products
def rows_in(operand: Operand) -> int:
    """Number of rows of an operand viewed as a matrix: all axes but the last merged."""
    return prod(extents(operand)[:-1])


def _matrix(call: Call, name: str) -> str:
    """Source of an operand viewed as a matrix, with all axes but the last merged."""
    operand = call.output if name == "out" else call.operands[name]
    if operand.type.rank == 2:
        return call.names[name]
    return f"{call.names[name]}.view({rows_in(operand)}, {extents(operand)[-1]})"


def two_d(call: Call) -> bool:
    """Condition on calls: the weight is a matrix."""
    return call.operands["w"].type.rank == 2


def flat_code(text: str) -> Callable[[Call], str]:
    """Make the code of a kernel from a format string `text`, in which `{x2}`, `{r2}` and `{out2}` are the operands x
    and r and the output viewed as matrices, with all axes but the last merged."""

    def code(call: Call) -> str:
        matrices = {f"{o}2": _matrix(call, o) for o in ("x", "r", "out") if o == "out" or o in call.operands}
        return text.format(**matrices, **call.names)

    identify(code, f"torch_calls.flat[{text}]")
    return code


def equal_batches(call: Call) -> bool:
    """Condition on calls: both operands have rank >= 3 and equal leading sizes.

    One batched GEMM over a view then computes them.
    """
    a, b = call.operands["x"], call.operands["w"]
    return a.type.rank == b.type.rank >= 3 and extents(a)[:-2] == extents(b)[:-2]


def batches_merge(call: Call) -> bool:
    """Condition on calls: the batch axes of every operand can be merged as a view."""

    def merges(o: Operand) -> bool:
        s = extents(o)
        return view_strides("reshape", {"shape": (prod(s[:-2]), *s[-2:])}, o) is not None

    return equal_batches(call) and all(map(merges, call.operands.values()))


#: Patterns of x @ w with optional bias: (suffix, pattern, has bias). `reshape` gives the bias x's rank.
PRODUCTS = (
    ("", "matmul(x, w)", False),
    ("_bias", "linear(x, w, b)", True),
    ("_bias_sum", "matmul(x, w) + reshape(b, shape=s)", True),
)


def fills_result(call: Call) -> bool:
    """Condition on calls: the product or convolution of x and w (or, without w, x) has the result's shape. Otherwise
    adding a bias or residual broadcasts it. Dtypes do not matter: some kernels cast the weight."""
    types, shape = [call.operands[n].type for n in "xw" if n in call.operands], call.output.type.shape
    if len(types) == 1:
        return types[0].shape == shape
    types = [replace(one, dtype=types[0].dtype) for one in types]
    op = OPS["conv" if "strides" in call.attrs else "matmul"]
    return infer(op, types, {name: call.attrs[name] for name in op.attrs}).shape == shape


def bias_line(call: Call) -> bool:
    """Condition on calls: the reshaped bias is a vector along the last axis, and does not broadcast the product."""
    s = call.attrs.get("s")
    if s is None:
        return True
    size = extents(call.operands["b"])
    line = len(size) == 1 and tuple(s) == (1,) * (len(s) - 1) + size and size[0] == extents(call.output)[-1]
    return line and fills_result(call)


def residual_fits(call: Call) -> bool:
    """Condition on calls: the residual has the result's type, and does not broadcast the value that it is added to."""
    return call.operands["r"].type == call.output.type and fills_result(call)


def batched_code(text: str) -> Callable[[Call], str]:
    """Make the code of a kernel from a format string `text`, in which the names of operands and `{out}` stand for these
    values viewed as batches of matrices: rank 3, with all axes but the last two merged."""

    def code(call: Call) -> str:
        def flat(name: str) -> str:
            shape = extents(call.output if name == "out" else call.operands[name])
            sizes = f"{prod(shape[:-2])}, {shape[-2]}, {shape[-1]}"
            return call.names[name] if len(shape) == 3 else f"{call.names[name]}.view({sizes})"

        return text.format(**{o: flat(o) for o in (*call.operands, "out")})

    identify(code, f"torch_calls.batched[{text}]")
    return code


# ---------------------------------------------------------------- convolution and pooling
GEOMETRY = "strides=strides, pads=pads, dilations=dilations, groups=groups"
#: (suffix, pattern, has bias)
CONVOLUTIONS = (
    ("", f"conv(x, w, {GEOMETRY})", False),
    ("_bias", f"conv(x, w, {GEOMETRY}) + reshape(b, shape=s)", True),
)


def symmetric(call: Call) -> bool:
    """Condition on calls: padding is equal before and after each axis."""
    pads, n = call.attrs["pads"], len(call.attrs["pads"]) // 2
    return tuple(pads[:n]) == tuple(pads[n:])


def is_weight_gradient(call: Call) -> bool:
    """Condition on calls: the convolution `x * w` is the gradient of another convolution's weight: of the one that
    turns `x` into values of the shape of `w`, by a filter of the shape of the output, with strides and dilations
    exchanged. Besides, `w` has more than a quarter of the output's pixels, as gradients have."""
    image, kernel, result = (extents(o)[2:] for o in (call.operands["x"], call.operands["w"], call.output))
    sizes = (*image, *kernel, *result)
    if call.attrs["groups"] != 1 or not symmetric(call) or not all(type(s) is int for s in sizes):
        return False
    if not prod(sizes) or 4 * prod(kernel) <= prod(result):
        return False
    places = zip(image, kernel, result, call.attrs["dilations"], half_pads(call), call.attrs["strides"])
    return all((i + 2 * pad - step * (r - 1) - 1) // stride + 1 == k for i, k, r, stride, pad, step in places)


@identified("torch_calls.weight_gradient_code")
def weight_gradient_code(call: Call) -> str:
    """Code of a convolution that is the gradient of another convolution's weight (`is_weight_gradient`)."""
    n, a = call.names, call.attrs
    return f"weight_gradient({n['x']}, {n['w']}, {a['strides']}, {half_pads(call)}, {a['dilations']}, {extents(call.output)[2:]})"


def channel_bias(call: Call) -> bool:
    """Condition on calls: the reshaped bias is a vector along the channels, and does not broadcast the result."""
    s = call.attrs.get("s")
    if s is None:
        return True
    size = extents(call.operands["b"])
    line = len(size) == 1 and tuple(s) == (1, *size) + (1,) * (len(s) - 2) and size[0] == extents(call.output)[1]
    return line and fills_result(call)


def planar(call: Call) -> bool:
    """Condition on calls: images have two spatial axes."""
    return call.operands["x"].type.rank == 4


def _last_strides(shape: tuple[int, ...]) -> Strides:
    """Channels-last strides of an image [N, C, ...] with any number of spatial axes; axes of size 1 included."""
    n, c, *space = shape
    first, *inner, _ = contiguous((n, *space, c))
    return (first, 1, *inner)


def channels_last(call: Call) -> Strides:
    """Channels-last strides of the output."""
    shape = extents(call.output)
    return tuple(s if d != 1 else t for s, d, t in zip(_last_strides(shape), shape, contiguous(shape)))


def is_channels_last(operand: Operand) -> bool:
    """Whether an image of one or two spatial axes is channels-last; axes of size 1 may have any stride."""
    if operand.type.rank not in (3, 4):
        return False
    shape = extents(operand)
    return all(s == t or d == 1 for s, t, d in zip(operand.strides, _last_strides(shape), shape))


def one_block(call: Call) -> bool:
    """Condition on calls: the memory of x has no gaps (x is row-major or channels-last)."""
    x = call.operands["x"]
    n, c, h, w = extents(x)
    last = (h * w * c, 1, w * c, c)
    return x.dense or all(s == t or d == 1 for s, t, d in zip(x.strides, last, (n, c, h, w)))


def half_pads(call: Call) -> tuple[int, ...]:
    """A call's padding before each spatial axis; that after it is equal, so that the first half of `pads` suffices."""
    return tuple(call.attrs["pads"][: len(call.attrs["pads"]) // 2])


def residual_fits_last(call: Call) -> bool:
    """Condition on calls: the residual has the result's type and is channels-last."""
    r, want = call.operands["r"], channels_last(call)
    return residual_fits(call) and all(s == t or d == 1 for s, t, d in zip(r.strides, want, extents(r)))


def pool_pads(call: Call) -> bool:
    """Condition on calls: Torch has this 2-D pool, with symmetric padding of at most half a window and no dilation."""
    pads, kernel = call.attrs["pads"], call.attrs["kernel"]
    n = len(kernel)
    return (
        symmetric(call)
        and all(2 * p <= k for p, k in zip(pads, kernel))
        and n == 2
        and set(call.attrs["dilations"]) == {1}
    )


# ---------------------------------------------------------------- attention
def heads_fit(call: Call) -> bool:
    """Condition on calls: the leading sizes of q equal the leading sizes of k and v.

    In rank 5, only the group axis (query heads that share keys and values) may broadcast.
    """
    q, k, v = (extents(call.operands[n])[:-2] for n in "qkv")
    if len(q) < 3:
        return q == k == v
    return k == v and q[:2] == k[:2] and k[2] == 1
