"""How generated convolutions want their memory: filters laid out anew at load, images with channels innermost."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..egraph.dims import concrete
from ..egraph.graph import Tensor, topological
from ..extract.kernel import Call, Strides, contiguous
from .kir import Buffer

HALVES = frozenset(("bfloat16", "float16"))


def laid_out(weight: Buffer, call: Call) -> Buffer:
    """Where `prepared` puts a weight, so that what one output needs is contiguous: a matrix is transposed, filters have
    channels innermost and the 16-bit dtype of the call, if it has one. Filters of one channel have the filters innermost."""
    if len(weight.shape) == 2:
        return Buffer(weight.dtype, weight.shape, (1, weight.shape[0]))
    strides = innermost(weight.shape)
    if weight.shape[1] == 1:
        strides = (1, *contiguous((*weight.shape[1:], weight.shape[0]))[:-1])
    return Buffer(_narrow(weight.dtype, call), weight.shape, strides)


def prepared(name: str) -> Callable[[Call], str]:
    """The code that lays a weight out."""

    def text(call: Call) -> str:
        kind, weight = call.operands[name].type, call.names[name]
        if kind.rank == 2:
            return f"{weight}.t().contiguous()"
        axis = 0 if kind.shape[1] == 1 else 1
        return f"{weight}.to(torch.{_narrow(kind.dtype, call)}).movedim({axis}, -1).contiguous()"

    return text


def _narrow(dtype: str, call: Call) -> str:
    halves = sorted({o.type.dtype for o in call.operands.values()} & HALVES)
    return halves[0] if halves and dtype == "float32" else dtype


def innermost(shape: tuple[int, ...]) -> Strides:
    """Strides of an image or filter with its channels (axis 1) innermost."""
    first, channels, *image = shape
    strides = contiguous((first, *image, channels))
    return (strides[0], 1, *strides[1:-1])


def channels_last(call: Call) -> Strides:
    """Strides of a call's result with channels innermost; axes of 1 keep what they have row-major."""
    shape = concrete(call.output.type.shape)
    return tuple(a if d > 1 else b for a, b, d in zip(innermost(shape), contiguous(shape), shape))


def filters(root: Tensor, weights: Iterable[str]) -> tuple[str, ...]:
    """Those of the weights that are filters of convolutions in a term."""
    used = {str(n.args[1].attr("name")) for n in topological([root]) if n.op == "conv" and n.args[1].op == "input"}
    return tuple(w for w in weights if w in used)
