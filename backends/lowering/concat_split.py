"""Rewrites a kernel with concatenated results so that it computes them piece by piece (the PIECES transformation,
concat split).

The value of an element of a concatenation depends on its index. As one expression it is a select between all pieces, so
every element computes all pieces: an element of sixteen stacked steps of a recurrence computes all sixteen steps. Where
the pieces have equal sizes and enough work, the kernel iterates over the elements of one piece and stores every piece,
so that common subexpressions are computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import gcd, prod
from typing import NamedTuple

from ...egraph.ir.tensor import Tensor, make, topological
from ...egraph.ops.ops import OPS
from ...egraph.types.dims import concrete
from ...extract.fusion.matrix_vector import vector_product_extent

MAX_PIECES = 256  # limit of pieces of a result
MIN_PIECE_OPERATIONS = 3.0  # operations per piece and element above which computing all pieces everywhere is expensive
SHORT = 8  # elements of a reduction that is unrolled, of an axis that is cut into single elements
WRITTEN = 2.0  # limit of the growth in operations by unrolled reductions


class ResultPiece(NamedTuple):
    """Part of the concatenated result `root`: `term` computes its elements, which begin at index `start` of `root`."""

    root: Tensor
    term: Tensor
    start: tuple[int, ...]


def pieces(roots: Sequence[Tensor]) -> list[ResultPiece] | None:
    """The pieces of the results `roots` that one kernel shall compute side by side; None if the results are not
    concatenated or splitting does not pay.

    Each piece has as many elements as the largest piece, or the largest piece's shape with size 1 along some axes.
    Pieces do not pay if they have little work and one kernel can compute the results without them.
    """
    nodes = topological(roots)
    if any(t.op in ("conv", "scatter_elements") or _of_matrices(t) for t in nodes):
        return None
    if any(0 in concrete(t.shape) for t in roots):
        return None
    found = [_cut(t, _ends(t)) for t in roots]
    if len(found) == sum(map(len, found)):
        return None
    found = _of_one_size(roots, found)
    work = sum(OPS[t.op].flops for t in nodes if t.entry.kind in ("pointwise", "reduction") and t.op != "cast")
    apart = [p for each in found for p in each]
    if work < MIN_PIECE_OPERATIONS * len(apart) and _alike(roots):
        return None
    return apart if _alike([p.term for p in apart]) else None


def unsplit_flops(roots: Sequence[Tensor]) -> float:
    """Flops of the matrix products inside those concatenations among the results `roots` that are not split into
    pieces; 0 if there are none.

    Without the split, each element of a result computes the products of all pieces and then selects one of them, so
    that these products are computed once per element of the result.
    """
    total = 0.0
    for root in roots:
        for t in topological([c for c in topological([root]) if c.op == "concat"]):
            if t.op == "matmul":
                depth = concrete(t.args[0].shape)[-1]
                total += prod(concrete(root.shape)) * depth * (2.0 + _elementwise_flops(t))
    return total if total and pieces(roots) is None else 0.0


def _elementwise_flops(product: Tensor) -> float:
    """Flops for one pair of elements of a product's operands, up to reductions and products."""
    seen: set[Tensor] = set()
    stack, total = list(product.args), 0.0
    while stack:
        t = stack.pop()
        if t in seen or t.entry.kind in ("reduction", "contraction"):
            continue
        seen.add(t)
        total += t.entry.flops if t.entry.pointwise else 0.0
        stack += t.args
    return total


def should_unroll(apart: Sequence[ResultPiece]) -> bool:
    """Whether to unroll the reductions in `apart`, pieces of results that one kernel computes side by side: the
    reductions are short, and most work is outside of them."""
    nodes = topological([p.root for p in apart])
    depths = [_depth(t) for t in nodes if t.entry.kind == "reduction"]
    if not depths or max(depths) > SHORT or any(t.op == "matmul" for t in nodes):
        return False
    rows = max(prod(concrete(p.term.shape)) for p in apart)
    times = [-(-prod(concrete(t.shape)) // rows) for t in nodes if t.entry.pointwise]
    return sum(times) <= WRITTEN * len(times)


def _depth(t: Tensor) -> int:
    """Number of elements that each result of a reduction combines."""
    return prod(concrete(t.args[0].shape)) // max(prod(concrete(t.shape)), 1)


def _of_one_size(roots: Sequence[Tensor], found: list[list[ResultPiece]]) -> list[list[ResultPiece]]:
    """The pieces, where an undivided result larger than the smallest piece is cut along its last axes if these are
    short."""
    size = min(prod(concrete(p.term.shape)) for each in found for p in each)

    def smaller(root: Tensor, own: list[ResultPiece]) -> list[ResultPiece]:
        shape, first = concrete(root.shape), root.rank
        while prod(shape[:first]) > size and first:
            first -= 1
        if len(own) > 1 or prod(shape[:first]) != size or any(d > SHORT for d in shape[first:]):
            return own
        return _cut(root, {axis: {*range(1, shape[axis])} for axis in range(first, root.rank) if shape[axis] > 1})

    return [smaller(root, own) for root, own in zip(roots, found, strict=True)]


def _alike(terms: Sequence[Tensor]) -> bool:
    """Whether each term has as many elements as the largest term, or the largest term's shape with size 1 along some
    axes."""
    shapes = [concrete(t.shape) for t in terms]
    widest = max(shapes, key=prod)
    return all(prod(s) == prod(widest) or _within(s, widest) for s in shapes)


def _of_matrices(t: Tensor) -> bool:
    """Whether a term is a product of matrices, which needs to be tiled."""
    return t.op == "matmul" and vector_product_extent(*(concrete(a.shape) for a in t.args)) is None


def _within(own: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(own) == len(shape) and all(d in (1, whole) for d, whole in zip(own, shape))


def _cut(root: Tensor, ends: Mapping[int, set[int]]) -> list[ResultPiece]:
    """The pieces of a result, all of one size, that the boundaries `ends` along its axes determine; the whole result if
    they were too many."""
    shape = concrete(root.shape)
    steps = [gcd(size, *ends.get(axis, ())) for axis, size in enumerate(shape)]
    if not ends or prod(size // step for size, step in zip(shape, steps)) > MAX_PIECES:
        return [ResultPiece(root, root, (0,) * root.rank)]
    found = []
    for start in product(*(range(0, size, step) for size, step in zip(shape, steps))):
        term = root
        for axis in ends:
            place = {"axis": axis, "start": start[axis], "stop": start[axis] + steps[axis], "step": 1}
            term = make("slice", (term,), place)
        found.append(ResultPiece(root, term, start))
    return found


Axes = tuple[tuple[int, ...], ...]
"""For each axis of a tensor, the axes of a root that it runs along: none, one, or several or parts of some (a single
one then is listed twice)."""


def _ends(root: Tensor) -> dict[int, set[int]]:
    """Boundaries between pieces along each axis of a result: axis -> positions.

    They come from concatenations below elementwise operations, short reductions and reshapes. An axis that a reshape
    merges with others is cut into single elements.
    """
    ends: dict[int, set[int]] = {}
    shape = concrete(root.shape)
    seen: set[tuple[Tensor, Axes, tuple[int, ...]]] = set()
    alone: Axes = tuple((n,) if d > 1 else () for n, d in enumerate(shape))
    stack = [(root, alone, (0,) * root.rank, False)]  # tensor, axes, offsets, below a concatenation
    while stack:
        t, axes, before, inside = stack.pop()
        if (t, axes, before) in seen:
            continue
        seen.add((t, axes, before))
        if t.op == "concat":
            (x, y), along = t.args, t.attr("axis")
            whole = len(axes[along]) == 1
            middle = before[along] + concrete(x.shape)[along] * whole
            for n in axes[along]:
                if whole or shape[n] <= SHORT:
                    ends.setdefault(n, set()).update({middle} if whole else range(1, shape[n]))
            after = (*before[:along], middle, *before[along + 1 :])
            stack += [(x, axes, before, True), (y, axes, after, True)]
        elif t.op == "reshape" and (moved := _moved(t, axes, before)) is not None:
            stack.append((t.args[0], *moved, inside))
        elif not inside and t.entry.kind == "reduction" and _depth(t) <= SHORT and t.op in WRITABLE:
            kept = tuple(() if n in t.attr("axes") else along for n, along in enumerate(axes))
            stack.append((t.args[0], kept, before, False))
        elif not inside and (t.entry.pointwise or t.op == "cast"):
            stack += [(a, axes, before, False) for a in t.args if a.shape == t.shape]
    return ends


WRITABLE = ("sum", "max", "min", "prod")


def _moved(t: Tensor, axes: Axes, before: tuple[int, ...]) -> tuple[Axes, tuple[int, ...]] | None:
    """(root axes, offsets) of each axis of a reshape's operand, given those of its result.

    None for a nonzero offset, unless the reshape only adds or removes axes of size 1.
    """
    own, inner = concrete(t.shape), concrete(t.args[0].shape)
    if [d for d in own if d > 1] == [d for d in inner if d > 1]:
        rest = iter([(a, b) for a, b, d in zip(axes, before, own) if d > 1])
        found = [next(rest) if d > 1 else ((), 0) for d in inner]
        return tuple(a for a, _ in found), tuple(b for _, b in found)
    if any(before):
        return None
    return tuple(_under(inner, own, axes)), (0,) * len(inner)


def _under(inner: tuple[int, ...], own: tuple[int, ...], axes: Axes) -> Iterator[tuple[int, ...]]:
    """For each axis of a reshape's operand (of shape `inner`), the root axes of those result axes that run over some of
    the same elements. `own`: shape of the result; `axes`: root axes of each result axis."""
    spans = [(prod(own[n:]), prod(own[n + 1 :])) for n in range(len(own))]
    for n in range(len(inner)):
        high, low = prod(inner[n:]), prod(inner[n + 1 :])
        meet = [(a, b, of) for (a, b), of in zip(spans, axes) if min(a, high) > max(b, low)]
        found = tuple(r for *_, of in meet for r in of)
        same = len(meet) == 1 and meet[0][:2] == (high, low)
        yield found if same or len(found) > 1 else found * 2
