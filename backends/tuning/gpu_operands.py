"""Makes operands for measuring on a GPU: random values of sensible magnitude in a call's layouts, and outputs between
guard zones.

Values are normal numbers, never zeros (zeros hide unwritten outputs and run faster). Divisors and arguments of roots
and logarithms are positive. Weights of products are scaled so that sums stay near one. Broadcast factors and divisors
(gains, row statistics) are drawn such that the resulting factors are near one. Indices are in range. Codes of quantized
weights cover all their values but NaN and are drawn on the device: the largest have 10^8 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log, prod
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from ...egraph.evaluate.interpret import expand_all
from ...egraph.ir.graph import Graph
from ...egraph.ir.places import visible_places
from ...egraph.ir.tensor import Tensor, topological
from ...egraph.ops.laws_training import operands_of_gradient
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from ...egraph.types.dtypes import torch_dtype
from ...extract.model.kernel import Operand
from ..runtime.marshalling import tensor_of
from ..verification import inputs as drawing
from ..verification.input_distributions import InputDistribution, input_distributions

if TYPE_CHECKING:
    import torch

POISON = 0xFF  # byte pattern that is NaN in every float dtype
ZONE = 4096  # bytes of guard zone before and after a tensor
ALIGNED = 512  # bytes to which PyTorch's allocator aligns

_HUGE = 1e30  # a factor this large marks a mask, as in attention
#: Ops between the codes of a quantized weight and the operand that holds them.
_DECODING = ("from_float8", "unpack", "and", "xor", "concat")
_NORM_OF_BYTES = {4: 4.6, 2: 1.1}  # root mean square of evenly distributed signed numbers, by bits; others 74 (8 bits)


@dataclass
class OperandRole:
    """Distribution of one operand's random values. Floats are normal numbers multiplied by `scale`; positive ones with
    `positive`; uniform numbers around `near` if that is not 0. The other fields are for integers."""

    scale: float = 1.0
    positive: bool = False
    near: float = 0.0  # if not 0: uniform between half of this and one and a half times this
    bound: int = 100  # exclusive upper bound of indices
    distinct: bool = False  # indices without duplicates (scatter)
    last: bool = False  # each value is `bound` - 1: visible lengths of masks
    codes: str = ""  # of a quantized weight: "bytes" (of whole numbers) or "float8"; "" for other operands
    free: InputDistribution | None = None  # role of integers that no other field restricts


def _positive_operand(node: Tensor) -> Tensor | None:
    """The operand of a node that should be positive: one that must be, or a divisor of floats."""
    domain = node.entry.domain
    if domain == "positive":
        return node.args[0]
    return node.args[-1] if domain == "nonzero" and node.entry.floats_only else None


def operand_roles(roots: Sequence[Tensor]) -> dict[str, OperandRole]:
    """Distribution of the random values of each operand, by name.

    `roots`: the terms that the kernel computes, over params named like the operands.
    """
    order = topological(expand_all(list(roots)))
    found = {n.attr("name"): OperandRole() for n in order if n.op == "param"}
    for leaf, keys in _statistics(roots):
        found[leaf].near = 2.0 * (log(max(keys, 1)) + 1.0)
    tempered = set(_unscaled(order))
    for node in order:
        if (wanted := _positive_operand(node)) is not None:
            for leaf in _below(wanted, lambda n: n.entry.positive_of_positive):
                found[leaf].positive = True
        if node.op in ("mul", "div"):
            for factor, other in (node.args, node.args[::-1]):
                if _own_size(factor) < _own_size(other):
                    for leaf, size in _multiples(factor):
                        found[leaf].near = size
        if node.op in ("matmul", "conv") and id(node) not in tempered:
            for leaf in _weights(node.args[1]):
                found[leaf].scale = _fan_in(node) ** -0.5
        if node.op == "recurrent":  # otherwise rounding errors grow from step to step
            for leaf in _weights(node.args[2]):
                found[leaf].scale = 0.5 * node.attr("hidden") ** -0.5
        if node.op == "mul" and any(a.op == "full" and abs(a.attr("value")) >= _HUGE for a in node.args):
            for leaf in _below(node, _views_and("add", "sub", "mul", "where", "eq")):
                found[leaf].bound = 2
        if node.entry.index_operand is not None:
            size = node.entry.indexed_size(concrete(node.args[0].shape), dict(node.attrs))
            for leaf in _below(node.args[node.entry.index_operand], _views_and("where", "minimum", "maximum")):
                found[leaf].bound, found[leaf].distinct = size, _writes_several(node, node.entry.index_operand)
    for leaf, count in visible_places(order, ("param",)).items():
        found[leaf].bound, found[leaf].last = count, True
    _set_codes(roots, found)
    for name, role in input_distributions(Graph.of(list(roots)), ("param",)).items():
        if found[name] == OperandRole(scale=found[name].scale, positive=found[name].positive, near=found[name].near):
            found[name].free = role
    return found


def _statistics(roots: Sequence[Tensor]) -> Iterator[tuple[str, int]]:
    """Yields (name of a param that holds the logsumexp of attention's scores, number of keys): fused kernels take the
    softmax to be normalized."""
    for node in topological(list(roots)):
        if node.op in ("attention_gradient", "masked_attention_gradient"):
            keys = concrete(operands_of_gradient(node.args, node.attr("of"))[1].shape)[-2]
            yield from ((str(leaf.attr("name")), keys) for leaf in topological([node.args[5]]) if leaf.op == "param")


def _set_codes(roots: Sequence[Tensor], found: dict[str, OperandRole]) -> None:
    """Set the roles of codes of quantized weights, and of scales: products with these weights stay near one."""
    order, through = topological(list(roots)), _views_and(*_DECODING)
    fans = {
        id(below): _fan_in(node)
        for node in order
        if node.op == "matmul"
        for below in _nodes_below(node.args[1], _views_and("concat"))
    }
    for node in order:
        if node.op in ("from_float8", "unpack"):
            for leaf in _below(node.args[0], through):
                found[leaf].codes = "float8" if node.op == "from_float8" else "bytes"
    for node in order:
        if node.op == "dequantize":
            number, scale = node.args[0], node.args[1]
            names = [n for n in _below(number, through) if n in found]
            for leaf in names if number.op == "param" and number.dtype == "int8" else ():
                found[leaf].codes = "bytes"
            for leaf in _below(scale, _is_view):
                found[leaf].near = fans.get(id(node), 1) ** -0.5 / _norm(number)


def _norm(number: Tensor) -> float:
    """Root mean square of the decoded codes of a quantized weight, if all codes are equally frequent."""
    decoded = list(_nodes_below(number, _is_view))
    if any(n.op == "from_float8" for n in decoded):
        return 1.0
    return next((_NORM_OF_BYTES[n.attr("bits")] for n in decoded if n.op == "unpack"), 74.0)


def _unscaled(order: list[Tensor]) -> Iterator[int]:
    """Ids of nodes whose inputs need no scaling to keep sums near one: nodes that are multiplied with a constant (as
    attention scores are), and batched products."""
    for node in order:
        if node.op in ("mul", "div") and any(a.op == "full" for a in node.args):
            yield from (id(a) for a in node.args)
        if node.op == "matmul" and any(d != 1 for d in concrete(node.args[1].shape)[:-2]):
            yield id(node)


def _writes_several(node: Tensor, index: int) -> bool:
    """Whether a node writes at several indices (operand `index`) along an axis, which must not be equal."""
    if node.entry.fusion_role != "written":
        return False
    axis = dict(node.attrs).get("axis")
    return axis is None or concrete(node.args[index].shape)[axis] > 1


def _own_size(node: Tensor) -> int:
    """Elements of a value before broadcasting."""
    size = prod(concrete(node.shape))
    while _is_view(node) and len(node.args) == 1 and (below := prod(concrete(node.args[0].shape))) <= size:
        node, size = node.args[0], below
    return size


def _is_view(node: Tensor) -> bool:
    """Whether a node only moves or casts elements."""
    return node.entry.moves or node.op == "cast"


def _views_and(*ops: str) -> Callable[[Tensor], bool]:
    """Predicate: whether a node moves elements, casts or gathers them, or has one of the ops."""
    return lambda node: _is_view(node) or node.op == "gather" or node.op in ops


def _fan_in(node: Tensor) -> int:
    shape = concrete(node.args[1].shape)
    return max(1, prod(shape[1:]) if node.op == "conv" else shape[-2])


def _reached(top: Tensor, into: Callable[[Tensor], Iterable[Tensor]]) -> Iterator[Tensor]:
    """The nodes reachable from a node, itself included.

    `into` gives the operands of a node to continue with; each node is visited once.
    """
    seen: set[int] = set()
    todo = [top]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        todo += into(node)


def _nodes_below(top: Tensor, through: Callable[[Tensor], bool]) -> Iterator[Tensor]:
    """A node and all nodes that it is computed from through nodes for which `through` holds."""
    return _reached(top, lambda n: n.args if through(n) else ())


def _params(top: Tensor, into: Callable[[Tensor], Iterable[Tensor]]) -> Iterator[str]:
    """Names of the params reachable from a node; `into` as for `_reached`."""
    return (str(node.attr("name")) for node in _reached(top, into) if node.op == "param")


def _below(top: Tensor, through: Callable[[Tensor], bool]) -> Iterator[str]:
    """Names of the params that `top` is computed from through nodes for which `through` holds.

    A product of a value with itself ends the path: it is positive whatever the param's sign, so the param may keep its
    own distribution.
    """

    def into(node: Tensor) -> Iterable[Tensor]:
        square = node.op == "mul" and node.args[0] is node.args[1]
        return node.args if through(node) and not square else ()

    return _params(top, into)


def _multiples(top: Tensor) -> Iterator[tuple[str, float]]:
    """Params of a broadcast factor, as (name, magnitude of the param for which the factor is near one).

    Constant factors set the magnitude: a sum of 64 squares, as in a root mean square, is near 64. (Sums near one made
    queries and keys eight times too large, and the softmax amplified every rounding error.)
    """
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
        if node.entry.positive_of_positive and node.entry.kind not in ("reduction", "contraction"):
            todo += ((a, size) for a in node.args)


def _weights(top: Tensor) -> Iterator[str]:
    """Names of the params that form the right operand of a product.

    Where a matrix is multiplied with a row or column, only the matrix counts.
    """

    def into(node: Tensor) -> Iterable[Tensor]:
        if node.op == "mul":
            return (max(node.args, key=lambda a: prod(concrete(a.shape))),)
        return node.args if _views_and("add", "sub")(node) else ()

    return _params(top, into)


# ---------------------------------------------------------------- memory
def span(operand: Operand) -> int:
    """Number of elements from an operand's first to its last in memory.

    Raises ValueError for negative strides, which Torch lacks.
    """
    shape = concrete(operand.type.shape)
    if any(s < 0 for s in operand.strides):
        raise ValueError("negative strides")
    return 1 + sum((d - 1) * s for d, s in zip(shape, operand.strides)) if prod(shape) else 0


def guarded_memory(operand: Operand, device: str) -> tuple[Any, Any]:
    """Allocate memory filled with poison bytes, with a tensor of an operand's layout inside; returns (bytes, tensor).

    The tensor is `ZONE` bytes from either end, so that writes outside it are noticed (`is_guard_intact`).
    """
    import torch

    dtype = torch_dtype(operand.type.dtype)
    size = span(operand) * dtype.itemsize
    raw = torch.full((size + 2 * ZONE,), POISON, dtype=torch.uint8, device=device)
    inner = raw[ZONE : ZONE + size].view(dtype)
    return raw, inner.as_strided(concrete(operand.type.shape), operand.strides)


def guarded_memories(operand: Operand, count: int, device: str) -> list[Any]:
    """The tensors of `count` calls of `guarded_memory`, in one allocation that is filled at once."""
    import torch

    dtype = torch_dtype(operand.type.dtype)
    pitch = _pitch(span(operand) * dtype.itemsize + 2 * ZONE)
    raw = torch.full((count * pitch,), POISON, dtype=torch.uint8, device=device).view(dtype)
    return _laid_out(raw, operand, count, pitch, ZONE)


def copies(values: Any, operand: Operand, count: int) -> list[Any]:
    """`count` copies of a tensor that `place` has made, with its strides, in one allocation that is filled at once."""
    import torch

    size = max(span(operand), 1)
    pitch = _pitch(size * values.itemsize)
    raw = torch.empty((count, pitch // values.itemsize), dtype=values.dtype, device=values.device)
    raw[:, :size] = values.as_strided((size,), (1,), values.storage_offset())
    return _laid_out(raw, operand, count, pitch, 0)


def _pitch(size: int) -> int:
    """Bytes from one of several tensors to the next, aligned like allocations."""
    return -(-size // ALIGNED) * ALIGNED


def _laid_out(raw: Any, operand: Operand, count: int, pitch: int, start: int) -> list[Any]:
    """`count` tensors of an operand's layout in `raw`, the first one behind `start` bytes, the others `pitch` bytes
    apart."""
    shape, item = concrete(operand.type.shape), raw.itemsize
    return [raw.as_strided(shape, operand.strides, (start + i * pitch) // item) for i in range(count)]


def is_guard_intact(raw: Any) -> Any:
    """Whether the guard zones at both ends of poisoned memory (`guarded_memory`) are unchanged, as a scalar tensor."""
    return (raw[:ZONE] == POISON).all() & (raw[-ZONE:] == POISON).all()


def place(values: Any, operand: Operand, device: str) -> Any:
    """Makes a new tensor on `device` with the given values in an operand's layout; stride 0 means broadcast."""
    import torch

    dtype, shape = torch_dtype(operand.type.dtype), concrete(operand.type.shape)
    made = torch.zeros(max(span(operand), 1), dtype=dtype, device=device).as_strided(shape, operand.strides)
    repeated = tuple(slice(0, 1) if s == 0 and d > 1 else slice(None) for s, d in zip(operand.strides, shape))
    made[repeated].copy_(values[repeated])
    return made


def draw(name: str, operand: Operand, role: OperandRole, device: str, size: float = 1.0) -> torch.Tensor:
    """Draw values for one operand in its layout on a device; deterministic, seeded by its name.

    Floats are multiplied by `size`, unless the distribution `role` sets their magnitude (`near`).
    """
    import torch

    shape, dtype = concrete(operand.type.shape), operand.type.dtype
    generator = torch.Generator(device=device).manual_seed(crc32(name.encode()))
    if dtype == "bool":
        values = torch.rand(shape, generator=generator, device=device) < 0.5
    elif role.codes:
        values = _codes(shape, dtype, role.codes, generator, device)
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


def _codes(shape: tuple[int, ...], dtype: str, kind: str, generator: torch.Generator, device: str) -> torch.Tensor:
    """Codes of a quantized weight, drawn on the device: normal numbers in e4m3, or all values of a byte but -128."""
    import torch

    if kind == "float8":
        drawn = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
        return drawn.to(torch.float8_e4m3fn).view(torch.uint8)
    low = max(int(dtypes.least(dtype)), -127)
    high = int(dtypes.greatest(dtype)) + 1
    return torch.randint(low, high, shape, generator=generator, device=device, dtype=torch_dtype(dtype))


def _integers(shape: tuple[int, ...], role: OperandRole, generator: Any, device: str) -> Any:
    import torch

    bound, count = max(role.bound, 1), prod(shape)
    if role.last and not role.distinct:
        return torch.full(shape, bound - 1, dtype=torch.int64, device=device)
    if not role.distinct:
        return torch.randint(bound, shape, generator=generator, device=device)
    order = torch.randperm(bound, generator=generator, device=device)
    return order[torch.arange(count, device=device) % bound].reshape(shape)
