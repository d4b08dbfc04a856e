"""How generated kernels want their memory: matrices and filters laid out anew at load, images with channels innermost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ..egraph.dims import concrete
from ..egraph.dtypes import HALVES
from ..egraph.graph import Tensor, topological
from ..egraph.ops import Type
from ..extract.kernel import Call, Operand, Strides, contiguous, identify
from .descriptors import padded_row
from .kir import Buffer

WORTH = 4  # rows are padded where that adds no more than this part of them


def even(size: int, dtype: str) -> int:
    """Elements from a row of so many to the next one, so that each begins at a multiple of 16 bytes; its size, where padding
    would add too much to it."""
    padded = padded_row(size, dtype)
    return padded if (padded - size) * WORTH <= size else size


def uneven(kind: Type) -> bool:
    """Whether a weight is a matrix of 16 bits whose rows begin where neither the copy unit nor loads of several elements can."""
    if kind.rank != 2 or kind.dtype not in HALVES:
        return False
    _, columns = concrete(kind.shape)
    return padded_row(columns, kind.dtype) != columns


def laid_out(weight: Buffer, call: Call) -> Buffer:
    """Where `prepared` puts a weight, so that what one output needs is contiguous: a matrix is transposed, its rows padded,
    filters have channels innermost and the 16-bit dtype of the call, if it has one. Filters of one channel have the filters
    innermost."""
    if len(weight.shape) == 2:
        return Buffer(weight.dtype, weight.shape, (1, even(weight.shape[0], weight.dtype)))
    strides = innermost(weight.shape)
    if weight.shape[1] == 1:
        strides = (1, *contiguous((*weight.shape[1:], weight.shape[0]))[:-1])
    return Buffer(_narrow(weight.dtype, call), weight.shape, strides)


def prepared(name: str) -> Callable[[Call], str]:
    """The code that lays a weight out."""

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
    """Strides of an image or filter with its channels (axis 1) innermost."""
    first, channels, *image = shape
    strides = contiguous((first, *image, channels))
    return (strides[0], 1, *strides[1:-1])


def channels_innermost(image: Operand) -> Operand:
    """An image with its channels innermost; axes of 1 keep what they have row-major."""
    shape = concrete(image.type.shape)
    return replace(
        image, strides=tuple(a if d > 1 else b for a, b, d in zip(innermost(shape), contiguous(shape), shape))
    )


def channels_last(call: Call) -> Strides:
    """Strides of a call's result with channels innermost."""
    return channels_innermost(call.output).strides


def filters(root: Tensor, weights: Iterable[str]) -> tuple[str, ...]:
    """Those of the weights that are filters of convolutions in a term."""
    used = {str(n.args[1].attr("name")) for n in topological([root]) if n.op == "conv" and n.args[1].op == "input"}
    return tuple(w for w in weights if w in used)
