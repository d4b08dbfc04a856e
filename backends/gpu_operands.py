"""Operands for measuring on a GPU: random values of a sensible size, laid out as a call says, with guarded outputs.

Values are normal numbers, never zeros (which hide unwritten outputs, and run faster). What a term divides by or takes
roots and logarithms of is positive; weights of products are scaled so that sums stay near one; what many values are multiplied
with or divided by (gains, statistics of rows) makes factors near one; indices stay in range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from ..egraph import dtypes
from ..egraph.dims import concrete
from ..egraph.graph import Graph, Tensor, topological
from ..egraph.interpret import expand_all
from ..extract.kernel import Operand
from . import drawing
from .exchange import tensor_of
from .torch_reference import torch_dtype

if TYPE_CHECKING:
    import torch

POISON = 0xFF  # every float of such bytes is NaN
ZONE = 4096  # bytes of poison before and after a guarded tensor

_VIEWS = {"reshape", "permute", "broadcast_to", "slice", "flip", "windows", "concat", "pad", "cast", "gather"}
_SAME_ELEMENTS = {"reshape", "permute", "broadcast_to", "cast"}
_KEEPS_SIGN = _VIEWS | {"sum", "max", "min", "add", "mul", "div", "maximum", "minimum", "matmul", "sqrt", "recip"}
_WANTS_POSITIVE = {"log": 0, "log1p": 0, "sqrt": 0, "rsqrt": 0, "recip": 0, "pow": 0, "div": 1}  # op -> which operand
_SUMS, _ROOTS = {"sum", "max", "min", "matmul"}, {"rsqrt", "recip"}
_HUGE = 1e30  # what is multiplied by it says yes or no, as masks of attention do
_INDICES = {"gather": 1, "gather_elements": 1, "scatter_elements": 1}


@dataclass
class Role:
    """How an operand's values are drawn."""

    scale: float = 1.0
    positive: bool = False
    near: float = 0.0  # from a half of this to one and a half of it, where it is not 0
    bound: int = 100  # of indices: values lie below
    distinct: bool = False  # indices that must not meet
    last: bool = False  # each as large as it may be: places up to which a mask shows what there is
    free: drawing.Role | None = None  # of whole numbers that none of these binds


def roles(roots: Sequence[Tensor]) -> dict[str, Role]:
    """Operand to its role in terms over params named like operands."""
    order = topological(expand_all(list(roots)))
    found = {n.attr("name"): Role() for n in order if n.op == "param"}
    tempered = set(_tempered(order))
    for node in order:
        if node.op in _WANTS_POSITIVE:
            for leaf in _below(node.args[_WANTS_POSITIVE[node.op]], _KEEPS_SIGN):
                found[leaf].positive = True
        if node.op in ("mul", "div"):
            for factor, other in (node.args, node.args[::-1]):
                if _own_size(factor) < _own_size(other):
                    for leaf, size in _multiples(factor):
                        found[leaf].near = size
        if node.op in ("matmul", "conv") and id(node) not in tempered:
            for leaf in _weights(node.args[1]):
                found[leaf].scale = _fan_in(node) ** -0.5
        if node.op == "recurrent":  # else rounding would grow from step to step
            for leaf in _weights(node.args[2]):
                found[leaf].scale = 0.5 * node.attr("hidden") ** -0.5
        if node.op == "mul" and any(a.op == "full" and abs(a.attr("value")) >= _HUGE for a in node.args):
            for leaf in _below(node, _VIEWS | {"add", "sub", "mul", "where", "eq"}):
                found[leaf].bound = 2
        if node.op in _INDICES:
            x = node.args[0]
            for leaf in _below(node.args[_INDICES[node.op]], _VIEWS | {"where"}):
                found[leaf].bound = concrete(x.shape)[node.attr("axis")]
                found[leaf].distinct = node.op == "scatter_elements"
        if node.op in ("lt", "le"):
            for counted, other in (node.args, node.args[::-1]):
                while counted.op in _VIEWS - {"gather", "concat"}:
                    counted = counted.args[0]
                if counted.op == "iota":
                    for leaf in _below(other, _VIEWS - {"gather"} | {"add", "sub"}):
                        found[leaf].bound, found[leaf].last = concrete(counted.shape)[counted.attr("axis")], True
    for name, role in drawing.roles(Graph.of(list(roots)), ("param",)).items():
        if found[name] == Role(scale=found[name].scale, positive=found[name].positive, near=found[name].near):
            found[name].free = role
    return found


def _tempered(order: list[Tensor]) -> Iterator[int]:
    """Products that the term itself scales by a number, as attention does its scores, and batches of products."""
    for node in order:
        if node.op in ("mul", "div") and any(a.op == "full" for a in node.args):
            yield from (id(a) for a in node.args)
        if node.op == "matmul" and any(d != 1 for d in concrete(node.args[1].shape)[:-2]):
            yield id(node)


def _own_size(node: Tensor) -> int:
    """Elements of a value before they were repeated."""
    while node.op in _SAME_ELEMENTS:
        node = node.args[0]
    return prod(concrete(node.shape))


def _fan_in(node: Tensor) -> int:
    shape = concrete(node.args[1].shape)
    return max(1, prod(shape[1:]) if node.op == "conv" else shape[-2])


def _params(top: Tensor, into: Callable[[Tensor], Iterable[Tensor]]) -> Iterator[str]:
    """Names of the params reached from a node by the ways that `into` allows; every node is met once."""
    seen: set[int] = set()
    todo = [top]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.op == "param":
            yield node.attr("name")
        todo += into(node)


def _below(top: Tensor, through: set[str]) -> Iterator[str]:
    """Params reached without leaving the ops named; a square ends the way, its sign is known."""

    def into(node: Tensor) -> Iterable[Tensor]:
        square = node.op == "mul" and node.args[0] is node.args[1]
        return node.args if node.op in through and not square else ()

    return _params(top, into)


def _multiples(top: Tensor) -> Iterator[tuple[str, float]]:
    """Params that a factor is made of, each with the size at which the numbers that it is multiplied by make it one: a sum of squares
    of 64 numbers, of which a root mean square is made, is near 64. (As sums near one they made queries and keys eight times as
    large each: a softmax that shows every rounding.)"""
    seen: set[int] = set()
    todo = [(top, 1.0)]
    while todo:
        node, size = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        for number in (a for a in node.args[node.op == "div" :] if a.op == "full" and node.op in ("mul", "div")):
            size *= (abs(number.attr("value")) or 1.0) ** (1 if node.op == "div" else -1)
        if node.op == "param":
            yield node.attr("name"), size
        if node.op in _KEEPS_SIGN - _SUMS | _ROOTS:
            todo += ((a, size) for a in node.args)


def _weights(top: Tensor) -> Iterator[str]:
    """Params that a product's right side is made of; of a product with a row or column, the matrix."""

    def into(node: Tensor) -> Iterable[Tensor]:
        if node.op == "mul":
            return (max(node.args, key=lambda a: prod(concrete(a.shape))),)
        return node.args if node.op in _VIEWS | {"add", "sub"} else ()

    return _params(top, into)


# ---------------------------------------------------------------- memory
def span(operand: Operand) -> int:
    """Elements from the first to the last in memory; ValueError for negative strides, which Torch does not have."""
    shape = concrete(operand.type.shape)
    if any(s < 0 for s in operand.strides):
        raise ValueError("negative strides")
    return 1 + sum((d - 1) * s for d, s in zip(shape, operand.strides)) if prod(shape) else 0


def room(operand: Operand, device: str) -> tuple[Any, Any]:
    """(bytes, tensor): memory full of poison with the tensor in its layout inside, `ZONE` bytes from either end."""
    import torch

    dtype = torch_dtype(operand.type.dtype)
    size = span(operand) * dtype.itemsize
    raw = torch.full((size + 2 * ZONE,), POISON, dtype=torch.uint8, device=device)
    inner = raw[ZONE : ZONE + size].view(dtype)
    return raw, inner.as_strided(concrete(operand.type.shape), operand.strides)


def intact(raw: Any) -> Any:
    """A tensor that says whether the poison on both sides of a guarded tensor is whole."""
    return (raw[:ZONE] == POISON).all() & (raw[-ZONE:] == POISON).all()


def place(values: Any, operand: Operand, device: str) -> Any:
    """The values in the operand's layout: repeated values where a stride is 0."""
    import torch

    dtype, shape = torch_dtype(operand.type.dtype), concrete(operand.type.shape)
    made = torch.zeros(max(span(operand), 1), dtype=dtype, device=device).as_strided(shape, operand.strides)
    repeated = tuple(slice(0, 1) if s == 0 and d > 1 else slice(None) for s, d in zip(operand.strides, shape))
    made[repeated].copy_(values[repeated])
    return made


def draw(name: str, operand: Operand, role: Role, device: str, size: float = 1.0) -> torch.Tensor:
    """Values for one operand in its layout, the same for the same name; numbers that no role makes near one, times `size`."""
    import torch

    shape, dtype = concrete(operand.type.shape), operand.type.dtype
    generator = torch.Generator(device=device).manual_seed(crc32(name.encode()))
    if dtype == "bool":
        values = torch.rand(shape, generator=generator, device=device) < 0.5
    elif not dtypes.is_float(dtype):
        if role.free is not None:
            drawn = drawing.whole_numbers(shape, dtype, role.free, np.random.default_rng(crc32(name.encode())), 0)
            values = tensor_of(drawn).to(device)
        else:
            values = _integers(shape, role, generator, device).to(torch_dtype(dtype))
    else:
        values = (torch.rand if role.near else torch.randn)(
            shape, generator=generator, device=device, dtype=torch.float32
        )
        values = values.add_(0.5).mul_(role.near) if role.near else values.abs_().add_(0.1) if role.positive else values
        values = values.mul_(role.scale * (1.0 if role.near else size)).to(torch_dtype(dtype))
    return place(values, operand, device)


def _integers(shape: tuple[int, ...], role: Role, generator: Any, device: str) -> Any:
    import torch

    bound, count = max(role.bound, 1), prod(shape)
    if role.last and not role.distinct:
        return torch.full(shape, bound - 1, dtype=torch.int64, device=device)
    if not role.distinct:
        return torch.randint(bound, shape, generator=generator, device=device)
    order = torch.randperm(bound, generator=generator, device=device)
    return order[torch.arange(count, device=device) % bound].reshape(shape)
