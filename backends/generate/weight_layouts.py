"""Chooses the memory layouts that generated kernels prefer: weights and filters transposed or padded at load time,
images channels-last."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ...egraph.ir.tensor import Tensor, topological
from ...egraph.ops.ops import Type
from ...egraph.types.dims import concrete
from ...egraph.types.dtypes import HALVES
from ...extract.model.kernel import Call, Operand, Strides, contiguous
from ...extract.model.library_kernel import identify
from ..ir.kernel import Buffer
from ..ir.tensor_maps import padded_row

MAX_PADDING_PART = 4  # maximum padding of rows: this fraction (1/MAX_PADDING_PART) of their size


def even(size: int, dtype: str) -> int:
    """Elements of `dtype` from one row of `size` elements to the next so that all rows are aligned to 16 bytes; `size`
    if that would add too much padding."""
    padded = padded_row(size, dtype)
    return padded if (padded - size) * MAX_PADDING_PART <= size else size


def is_unaligned(kind: Type) -> bool:
    """Whether a weight of the type `kind` is a 16-bit matrix whose rows are not aligned for TMA and vector loads."""
    if kind.rank != 2 or kind.dtype not in HALVES:
        return False
    _, columns = concrete(kind.shape)
    return padded_row(columns, kind.dtype) != columns


def laid_out(weight: Buffer, call: Call) -> Buffer:
    """The buffer (dtype, sizes and strides) that describes `weight` after `prepared` has changed its layout.

    In the new layout the weights of one output element are contiguous: a matrix is transposed and its rows padded;
    filters become channels-last, in the call's 16-bit dtype if it has one; depthwise filters have the filter axis
    innermost.
    """
    if len(weight.shape) == 2:
        return Buffer(weight.dtype, weight.shape, (1, even(weight.shape[0], weight.dtype)))
    strides = innermost(weight.shape)
    if weight.shape[1] == 1:
        strides = (1, *contiguous((*weight.shape[1:], weight.shape[0]))[:-1])
    return Buffer(_narrow(weight.dtype, call), weight.shape, strides)


def transposed_matrix(name: str) -> Callable[[Call], str]:
    """Function from a call to the Python expression that transposes the weight `name`, a NumPy matrix, at load time."""
    return identify(lambda call: f"np.ascontiguousarray({call.names[name]}.T)", "weight_layouts.transposed_matrix")


def prepared(name: str) -> Callable[[Call], str]:
    """Function from a call to the Python expression that gives the weight `name`, a tensor, the layout of
    `laid_out`."""

    def text(call: Call) -> str:
        kind, weight = call.operands[name].type, call.names[name]
        if kind.rank == 2:
            size = concrete(kind.shape)[0]
            beyond = even(size, kind.dtype) - size
            return (
                f"torch.nn.functional.pad({weight}.t(), (0, {beyond})).contiguous()"
                if beyond
                else f"{weight}.t().contiguous()"
            )
        axis = 0 if kind.shape[1] == 1 else 1
        return f"{weight}.to(torch.{_narrow(kind.dtype, call)}).movedim({axis}, -1).contiguous()"

    return identify(text, "images.prepared.<locals>.text")


def _narrow(dtype: str, call: Call) -> str:
    halves = sorted({o.type.dtype for o in call.operands.values()} & {*HALVES})
    return halves[0] if halves and dtype == "float32" else dtype


def innermost(shape: tuple[int, ...]) -> Strides:
    """Channels-last strides, in elements, of an image or filter with the given shape: channels (axis 1) are
    innermost."""
    first, channels, *image = shape
    strides = contiguous((first, *image, channels))
    return (strides[0], 1, *strides[1:-1])


def channels_innermost(image: Operand) -> Operand:
    """The operand `image` with a channels-last layout; axes of size 1 keep their row-major strides."""
    shape = concrete(image.type.shape)
    return replace(
        image, strides=tuple(a if d > 1 else b for a, b, d in zip(innermost(shape), contiguous(shape), shape))
    )


def channels_last(call: Call) -> Strides:
    """Channels-last strides, in elements, of the result of `call`."""
    return channels_innermost(call.output).strides


def filters(root: Tensor, weights: Iterable[str]) -> tuple[str, ...]:
    """Those of `weights` (names) that are filters of convolutions in the term `root`."""
    used = {str(n.args[1].attr("name")) for n in topological([root]) if n.op == "conv" and n.args[1].op == "input"}
    return tuple(w for w in weights if w in used)
