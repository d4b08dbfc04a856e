"""Chooses a few kernels that contain the C functions which a model's library kernels call, to be compiled early.

All products with constant matrices and all direct convolutions call one C function, Winograd's and depthwise
convolutions one each, and a function takes the compiler half a second to two seconds; kernels on bytes have two texts,
of half a second and of three. A measuring process compiles them while the model is rewritten and its kernels are
matched.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor
from ...egraph.ops.ops import Type
from ...egraph.types.dims import concrete
from ...extract.model.kernel import Call, Operand, Template, contiguous
from ...extract.model.library_kernel import LibraryKernel
from ..generate.weight_layouts import channels_innermost
from .byte_values import byte_value_rows
from .convolutions import convolution_rows
from .integer_products import integer_product_rows
from .linear_products import linear_rows

ROWS: Mapping[str, LibraryKernel] = {
    row.name: row for row in (*linear_rows(), *convolution_rows(), *integer_product_rows(), *byte_value_rows())
}
BYTES = frozenset({"integer_conv", "integer_matmul", "quantize"})  # ops of quantized models
CONVOLUTIONS = ("c.tiled_conv", "c.winograd_conv", "c.depthwise_conv")


def stand_ins(graph: Graph) -> list[tuple[Template, Call]]:
    """Kernels, each with a call, whose sources together contain every C function that products and convolutions of the
    graph with weights may call: compiling these few compiles the functions for all."""
    found: dict[str, Call] = {}
    weights = set[Tensor]()  # weights, and values computed from weights alone
    for n in graph.nodes():
        if n.op == "param" or (n.args and all(a in weights for a in n.args)):
            weights.add(n)
        elif n.op == "conv" and n.args[1] in weights and all(isinstance(d, int) for d in (*n.shape, *n.args[0].shape)):
            call = _convolution(n)
            for name in CONVOLUTIONS:
                if name not in found and (applies := ROWS[name].applies) is not None and applies(call):
                    found[name] = call
        elif n.op in ("matmul", "linear") and n.args[1] in weights:
            found["c.tiled_linear"] = Call({"x": _line(6), "w": _line(16)}, _line(6), {})
    if any(n.op in BYTES for n in graph.nodes()):
        found |= _of_bytes()
    if "c.tiled_conv" in found:
        found.pop("c.tiled_linear", None)  # the same function
    return [(ROWS[name], call) for name, call in found.items()]


def _of_bytes() -> dict[str, Call]:
    """A kernel with the text of all products and convolutions of bytes, and one with that of other kernels on bytes."""
    one = [Operand(Type((1, 1), kind), (1, 1)) for kind in ("float32", "uint8")]
    codes = Operand(Type((6, 16), "uint8"), (16, 1))
    w, sums = Operand(Type((16, 16), "int8"), (16, 1)), Operand(Type((6, 16), "int32"), (16, 1))
    return {
        "c.integer_matmul": Call({"x": codes, "w": w, "z": one[1]}, sums, {"e": (1, 1), "d": "int8"}),
        "c.bytes_quantize": Call({"x": _line(6), "s": one[0], "o": one[1]}, codes, {}),
    }


def _line(rows: int) -> Operand:
    return Operand(Type((rows, 16), "float32"), (16, 1))


def _convolution(node: Tensor) -> Call:
    """The call of a convolution on images whose channels are innermost."""
    x, w = (a.type for a in node.args[:2])
    attrs = {name: node.attr(name) for name in ("strides", "pads", "dilations", "groups")}
    operands = {"x": channels_innermost(_row_major(x)), "w": _row_major(w)}
    return Call(operands, channels_innermost(_row_major(node.type)), attrs)


def _row_major(kind: Type) -> Operand:
    return Operand(kind, contiguous(concrete(kind.shape)))


__all__ = ["stand_ins"]
