"""Lets the kernel of a matrix product also store the left operand, as a further result: for example a residual stream
with the product of its norm.

Every thread block of a matrix-vector product computes the whole left operand anyway; one block may store it, or a value
from which it is computed, along the product's reduction axis. Such a result has the product's rows and as many columns
as the reduction has elements, whatever the number of the product's columns.
"""

from __future__ import annotations

from math import prod

from ...egraph.ir.tensor import Tensor, topological
from ...egraph.ops.ops import OPS
from ...egraph.types.dims import concrete
from .matrix_vector import vector_product_extent

MAX_OPERAND_ROWS = 4  # products of more rows run on tensor cores, whose kernels do not store their left operand


def is_product_operand(part: Tensor, root: Tensor) -> bool:
    """Whether `part` is the left operand of a matrix product in the term `root`, or is computed into it element by
    element.

    The product has the rows of `root`, at most MAX_OPERAND_ROWS of them, and other columns than `part`. Short products
    of vectors do not count: kernels compute them like elementwise operations.
    """
    shape, whole = concrete(part.shape), concrete(root.shape)
    if not shape or not whole or shape[-1] == whole[-1] or part is root:
        return False
    if prod(shape[:-1]) != prod(whole[:-1]) or prod(shape[:-1]) > MAX_OPERAND_ROWS:
        return False
    products = (n for n in topological([root]) if OPS[n.op].law in ("matmul", "linear"))
    return any(
        concrete(n.args[0].shape)[-1] == shape[-1]
        and prod(concrete(n.args[0].shape)) == prod(shape)
        and concrete(n.args[1].shape)[:-2] == ()
        and vector_product_extent(concrete(n.args[0].shape), concrete(n.args[1].shape)) is None
        and part in topological([n.args[0]])
        for n in products
    )
